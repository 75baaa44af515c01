import pytest

from data_prep.tasks import get_task
from data_prep.tasks.base import Example


def _write(folder, **files):
    for name, text in files.items():
        (folder / name.replace("_", ".")).write_text(text, "utf-8")
    return str(folder)


def test_pairs_without_any_option(tmp_path):
    text = "sentence1\tsentence2\tlabel\na\tb\tyes\nc\td\tno\n"
    folder = _write(tmp_path, train_tsv=text, dev_tsv=text, test_tsv="sentence1\tsentence2\na\tb\n")
    task = get_task("tsv", folder)
    assert task.labels == ("no", "yes")
    assert task.takes_pairs
    assert task.metric_names == ("accuracy", "f1", "macro_f1", "matthews")
    expected = [("a", "b", "yes"), ("c", "d", "no")]
    for name in ("train", "dev"):
        assert task.read_examples(folder, name) == [
            Example(f"{name}-{i}", *fields) for i, fields in enumerate(expected, 1)
        ]
    assert task.read_examples(folder, "test") == [Example("test-1", "a", "b", None)]


def test_single_texts_in_csv_without_any_option(tmp_path):
    text = 'text,label\n"one, ""two""",z\nplain,y\n'
    folder = _write(tmp_path, train_csv=text)
    task = get_task("CSV", folder)
    assert not task.takes_pairs
    assert task.read_examples(folder, "train") == [
        Example("train-1", 'one, "two"', None, "z"),
        Example("train-2", "plain", None, "y"),
    ]


def test_columns_by_name_and_number_and_ids(tmp_path):
    text = "key\tgood\tq\tp\tnote\nk1\t1\tb\ta\t-\nk2\t0\td\tc\t-\n"
    folder = _write(tmp_path, train_tsv=text)
    expected = [Example("k1", "a", "b", "1"), Example("k2", "c", "d", "0")]
    for columns in (("p", "q", "good", "key"), (3, 2, 1, 0), ("3", "-3", "1", "0")):
        options = dict(
            zip(
                ("text_a_column", "text_b_column", "label_column", "id_column"),
                columns,
                strict=True,
            )
        )
        assert get_task("TSV", folder, **options).read_examples(folder, "train") == expected


def test_the_second_text_can_be_left_out(tmp_path):
    folder = _write(tmp_path, train_tsv="text_a\ttext_b\tlabel\na\tb\t0\na\tb\t1\n")
    task = get_task("TSV", folder, text_b_column="")
    assert task.read_examples(folder, "train")[0].text_b is None
    assert not task.takes_pairs


def test_without_a_header(tmp_path):
    folder = _write(tmp_path, train_tsv="0\tfine\n1\tbad\n", test_tsv="\tfine\n")
    with pytest.raises(ValueError, match="without a header needs the numbers"):
        get_task("TSV", folder, header=False)
    task = get_task("TSV", folder, header=False, text_a_column=1, label_column=0)
    assert [e.guid for e in task.read_examples(folder, "train")] == ["train-0", "train-1"]
    assert task.read_examples(folder, "test") == [Example("test-0", "fine", None, None)]
    with pytest.raises(ValueError, match="label column 'x' must be a number"):
        get_task("TSV", folder, header=False, text_a_column=1, label_column="x")


def test_given_labels_need_no_training_file(tmp_path):
    folder = _write(tmp_path, test_tsv="text\tlabel\na\t?\n", dev_tsv="text\tlabel\na\tmaybe\n")
    with pytest.raises(FileNotFoundError, match=r"train\.tsv does not exist"):
        get_task("TSV", folder)
    with pytest.raises(ValueError, match="needs either data_dir or the list of labels"):
        get_task("TSV")
    task = get_task("TSV", folder, labels=["pos", "neg"])
    assert task.labels == ("pos", "neg")
    assert task.read_examples(folder, "test")[0].label is None
    with pytest.raises(ValueError, match=r"dev\.tsv, line 2: the label 'maybe' .*: pos, neg"):
        task.read_examples(folder, "dev")


def test_whole_numbers_are_sorted_by_value(tmp_path):
    folder = _write(tmp_path, train_tsv="text\tlabel\n" + "".join(f"a\t{i}\n" for i in (10, 2, -1)))
    assert get_task("TSV", folder).labels == ("-1", "2", "10")


def test_file_names(tmp_path):
    text = "text\tlabel\na\t0\nb\t1\n"
    folder = _write(tmp_path, a_txt=text, b_txt=text, c_txt=text)
    task = get_task("TSV", folder, train_file="a.txt", dev_file="b.txt", test_file="c.txt")
    for name in ("train", "dev", "test"):
        assert len(task.read_examples(folder, name)) == 2


def test_regression(tmp_path):
    folder = _write(tmp_path, train_tsv="text\tscore\na\t0.5\nb\t-1e2\n")
    task = get_task("TSV", folder, kind="regression")
    assert task.labels == ()
    assert task.num_outputs == 1
    assert task.main_metric.name in task.metric_names
    examples = task.read_examples(folder, "train")
    assert [task.label_id(example) for example in examples] == [0.5, -100.0]
    assert task.predicted([[0.25], [-3.0]]) == ["0.25", "-3"]


def test_multilabel_in_one_field(tmp_path):
    text = "text\tlabels\na\tx, z\nb\t\nc\ty\n"
    folder = _write(tmp_path, train_tsv=text, dev_tsv="text\tlabels\na\tx,w\n")
    task = get_task("TSV", folder, kind="multilabel")
    assert task.labels == ("x", "y", "z")
    examples = task.read_examples(folder, "train")
    assert [example.label for example in examples] == [("x", "z"), (), ("y",)]
    assert [task.label_id(example) for example in examples] == [[1, 0, 1], [0, 0, 0], [0, 1, 0]]
    with pytest.raises(ValueError, match="line 2: the label 'w'"):
        task.read_examples(folder, "dev")
    made = task.submission("test", ["k1", "k2"], [[1.0, -1.0, 0.5], [-1.0, -1.0, -1.0]])
    assert made.rows == [("k1", "x,z"), ("k2", "")]
    other = _write(tmp_path, train_tsv=text.replace(",", "|"))
    assert get_task("TSV", other, kind="multilabel", label_separator="|").labels == task.labels


def test_multilabel_in_columns(tmp_path):
    text = "id,text,toxic,rude\n7,a,1,0\n8,b,0,1\n9,c,0,0\n"
    folder = _write(tmp_path, train_csv=text, test_csv="id,text\n1,a\n")
    options = {"kind": "multilabel", "label_column": ["toxic", "rude"]}
    task = get_task("CSV", folder, **options)
    assert task.labels == ("toxic", "rude")
    assert task.read_examples(folder, "train") == [
        Example("7", "a", None, ("toxic",)),
        Example("8", "b", None, ("rude",)),
        Example("9", "c", None, ()),
    ]
    assert task.read_examples(folder, "test") == [Example("1", "a", None, None)]
    renamed = get_task("CSV", folder, labels=["t", "r"], **options)
    assert renamed.read_examples(folder, "train")[1].label == ("r",)
    with pytest.raises(ValueError, match="1 labels for 2 label columns"):
        get_task("CSV", folder, labels=["t"], **options)
    _write(tmp_path, train_csv=text.replace("b,0,1", "b,0,maybe"))
    with pytest.raises(ValueError, match=r"line 3: the label column 'rude' holds 'maybe'"):
        task.read_examples(folder, "train")


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("", {}, "has no examples"),
        ("text\tlabel\n", {}, "has no examples"),
        ("text\tlabel\na\t1\n", {}, "needs two labels or more, found in train.tsv: 1"),
        ("text\tlabel\na\t1\nb\n", {}, "line 3: expected 2 columns, found 1 column"),
        ("text\tlabel\na\t1\nb\t0\t\n", {}, "line 3: expected 2 columns, found 3 columns"),
        ("text,label\na,1\nb,0\n", {}, "no text column.*--task_name=CSV"),
        ("text;label\na;1\nb;0\n", {}, "semicolons"),
        ("body\tlabel\na\t1\nb\t0\n", {}, "no text column .*'body', 'label'"),
        ("text\tclass\na\t1\nb\t0\n", {}, "no label column .*'text', 'class'"),
        ("text\tlabel\na\t1\nb\t0\n", {"label_column": "tag"}, r"no label column \(tag\)"),
        ("text\tlabel\na\t1\nb\t0\n", {"label_column": 2}, "number 2, but the row has 2 columns"),
        ("text\tlabel\na\t1\n", {"kind": "ranking"}, "no kind of task 'ranking'"),
        ("text\tlabel\na\t1\n", {"label_column": ["x", "y"]}, "for multi-label tasks only"),
        ("text\tlabel\na\t1\n", {"labels": ["1", "1"]}, "listed twice"),
        ("text\tlabel\n" + "".join(f"a\t{i / 7}\n" for i in range(60)), {}, "60 different labels"),
        ("text\tlabel\na\t1\n", {"kind": "regression", "labels": ["1"]}, "no list of labels"),
    ],
)
def test_bad_input(text, options, message, tmp_path):
    folder = _write(tmp_path, train_tsv=text)
    with pytest.raises(ValueError, match=message):
        get_task("TSV", folder, **options)


def test_tsv_given_for_csv(tmp_path):
    folder = _write(tmp_path, train_csv="text\tlabel\na\t1\nb\t0\n")
    with pytest.raises(ValueError, match="looks like a TSV: use --task_name=TSV"):
        get_task("CSV", folder)


def test_unquoted_comma(tmp_path):
    folder = _write(tmp_path, train_csv="text,label\nwell, no,1\nb,0\n")
    with pytest.raises(ValueError, match=r'line 2: expected 2 columns, found 3.*in "quotes"'):
        get_task("CSV", folder)


def test_pairs_must_stay_pairs(tmp_path):
    folder = _write(
        tmp_path, train_tsv="text\tsentence2\tlabel\na\tb\t0\na\tb\t1\n", test_tsv="text\na\n"
    )
    with pytest.raises(ValueError, match="no column for a second text here"):
        get_task("TSV", folder).read_examples(folder, "test")
