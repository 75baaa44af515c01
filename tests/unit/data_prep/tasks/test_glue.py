import logging

import numpy as np
import pytest

from data_prep.tasks import get_task
from data_prep.tasks.base import Example

NAMES = ["CoLA", "SST-2", "MRPC", "STS-B", "QQP", "MNLI", "QNLI", "RTE", "WNLI", "AX"]


def _write(folder, **files):
    for name, text in files.items():
        (folder / f"{name}.tsv").write_text(text, "utf-8")
    return str(folder)


@pytest.mark.parametrize("name", NAMES)
def test_names_in_any_spelling(name):
    for spelling in (
        name,
        name.lower(),
        name.upper(),
        name.replace("-", ""),
        "_".join(name.lower().split("-")),
    ):
        assert get_task(spelling).name == name


def test_unknown_name_lists_the_tasks():
    with pytest.raises(ValueError, match=r"no task 'imdb'.*CoLA, SST-2, .*XNLI, TSV, CSV"):
        get_task("imdb")


def test_options_of_other_tasks_are_refused():
    with pytest.raises(ValueError, match="MRPC has no option text_a_column"):
        get_task("MRPC", text_a_column="a")


@pytest.mark.parametrize("name", NAMES)
def test_descriptions_are_consistent(name):
    task = get_task(name)
    assert task.main_metric.name in task.metric_names
    assert task.num_outputs == (1 if name == "STS-B" else len(task.labels))
    rng = np.random.default_rng(0)
    labels = rng.integers(0, task.num_outputs, 20)
    assert list(task.metrics(rng.normal(size=(20, task.num_outputs)), labels)) == list(
        task.metric_names
    )


LAYOUTS = {
    "SST-2": (
        "sentence\tlabel\nfine film \t1\n",
        "index\tsentence\n0\tfine film \n",
        ("fine film ", None, "1"),
    ),
    "STS-B": (
        "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2\t"
        "score\n0\tg\tf\ty\to\ts\ts\ta\tb\t3.800\n",
        "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2\n"
        "0\tg\tf\ty\to\ts\ts\ta\tb\n",
        ("a", "b", 3.8),
    ),
    "QQP": (
        "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n9\t1\t2\ta?\tb?\t1\n",
        "id\tquestion1\tquestion2\n0\ta?\tb?\n",
        ("a?", "b?", "1"),
    ),
    "QNLI": (
        "index\tquestion\tsentence\tlabel\n0\ta?\tb\tnot_entailment\n",
        "index\tquestion\tsentence\n0\ta?\tb\n",
        ("a?", "b", "not_entailment"),
    ),
    "RTE": (
        "index\tsentence1\tsentence2\tlabel\n0\ta\tb\tentailment\n",
        "index\tsentence1\tsentence2\n0\ta\tb\n",
        ("a", "b", "entailment"),
    ),
    "WNLI": (
        "index\tsentence1\tsentence2\tlabel\n0\ta\tb\t0\n",
        "index\tsentence1\tsentence2\n0\ta\tb\n",
        ("a", "b", "0"),
    ),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_layouts_with_a_header(name, tmp_path):
    labelled, test, (text_a, text_b, label) = LAYOUTS[name]
    folder = _write(tmp_path, train=labelled, dev=labelled, test=test)
    task = get_task(name)
    for set_name in ("train", "dev"):
        assert task.read_examples(folder, set_name) == [
            Example(f"{set_name}-1", text_a, text_b, label)
        ]
    assert task.read_examples(folder, "test") == [Example("test-1", text_a, text_b, None)]


def test_columns_are_found_by_name(tmp_path):
    folder = _write(tmp_path, dev="label\tsentence2\tsentence1\nentailment\tb\ta\n")
    assert get_task("RTE").read_examples(folder, "dev") == [
        Example("dev-1", "a", "b", "entailment")
    ]


def test_mismatched_sets_are_optional(tmp_path):
    row = "\t".join(map(str, range(8)))
    text = f"header\n{row}\ta\tb\tneutral\n"
    folder = _write(tmp_path, dev_matched=text, test_matched=text)
    task = get_task("mnli")
    assert task.sets(folder, "eval") == ["dev_matched"]
    assert task.sets(folder, "predict") == ["test_matched"]
    _write(tmp_path, dev_mismatched=text, test_mismatched=text)
    assert task.sets(folder, "eval") == ["dev_matched", "dev_mismatched"]
    assert task.sets(folder, "predict") == ["test_matched", "test_mismatched"]
    assert task.read_examples(folder, "dev_mismatched") == [
        Example("dev_mismatched-0", "a", "b", "neutral")
    ]


@pytest.mark.parametrize("file", ["AX", "diagnostic"])
def test_diagnostic_set(file, tmp_path):
    folder = _write(tmp_path, **{file: "index\tsentence1\tsentence2\n0\ta\tb\n"})
    task = get_task("AX")
    assert task.labels == get_task("MNLI").labels
    assert task.read_examples(folder, "test") == [Example("test-1", "a", "b", None)]
    with pytest.raises(ValueError, match="AX has no train set; it has test"):
        task.read_examples(folder, "train")


def test_placeholder_labels_of_a_test_set_do_not_matter(tmp_path):
    folder = _write(tmp_path, test="Quality\ta\tb\tc\td\n-1\t1\t2\tx\ty\n?\t1\t2\tx\ty\n")
    examples = get_task("MRPC").read_examples(folder, "test")
    assert [example.label for example in examples] == [None, None]


def test_spaces_around_labels_and_empty_rows(tmp_path):
    folder = _write(tmp_path, train="Quality\ta\tb\tc\td\n1 \t1\t2\tx\ty\n\t\t\t\t\n\n")
    assert get_task("MRPC").read_examples(folder, "train") == [Example("train-1", "x", "y", "1")]


@pytest.mark.parametrize("row", ["0\ta\tb", "0\ta\tb\tentailment\tmore"])
def test_rows_of_the_wrong_width(row, tmp_path):
    folder = _write(tmp_path, train=f"index\tsentence1\tsentence2\tlabel\n\n{row}\n")
    found = row.count("\t") + 1
    with pytest.raises(
        ValueError,
        match=rf"train\.tsv, line 3: expected 4 columns, found {found} columns; "
        "is this a file of another task than RTE",
    ):
        get_task("RTE").read_examples(folder, "train")


@pytest.mark.parametrize("name", ["RTE", "MRPC", "CoLA", "MNLI"])
def test_csv_given_for_tsv(name, tmp_path):
    task = get_task(name)
    text = "sentence1,sentence2,label\na,b,entailment\n"
    _write(tmp_path, train=text)
    with pytest.raises(ValueError, match=r"expected .*, found 1 column; .*--task_name=CSV"):
        task.read_examples(str(tmp_path), "train")


def test_missing_column_names_the_header(tmp_path):
    folder = _write(tmp_path, train="index\tquestion\tsentence\tlabel\n0\ta\tb\tentailment\n")
    with pytest.raises(ValueError, match=r"no column 'sentence1'.*'question'.*--task_name"):
        get_task("RTE").read_examples(folder, "train")


def test_unknown_label_is_placed(tmp_path):
    folder = _write(tmp_path, train="gj04\t1\t\tx\ngj04\t3\t\ty\n")
    with pytest.raises(ValueError, match=r"train\.tsv, line 2: the label '3' .* CoLA: 0, 1"):
        get_task("CoLA").read_examples(folder, "train")


@pytest.mark.parametrize("score", ["good", "", "nan", "inf", "1e39", "-1e39"])
def test_a_score_must_be_a_number(score, tmp_path):
    folder = _write(tmp_path, train=f"sentence1\tsentence2\tscore\na\tb\t{score}\n")
    with pytest.raises(ValueError, match=r"train\.tsv, line 2: the label .* not a finite number"):
        get_task("STS-B").read_examples(folder, "train")


def test_missing_file_says_what_is_wanted_and_there(tmp_path):
    _write(tmp_path, other="")
    with pytest.raises(FileNotFoundError) as raised:
        get_task("MNLI").read_examples(str(tmp_path), "train")
    text = str(raised.value)
    assert "train.tsv does not exist" in text
    assert "dev_matched.tsv (evaluation)" in text
    assert "holds other.tsv" in text
    with pytest.raises(FileNotFoundError, match="nowhere is not a folder"):
        get_task("MNLI").read_examples(str(tmp_path / "nowhere"), "train")


def test_missing_file_finds_the_folder_that_was_meant(tmp_path):
    (tmp_path / "MRPC").mkdir()
    _write(tmp_path / "MRPC", train="x")
    with pytest.raises(FileNotFoundError, match=r"Did you mean --data_dir=.*MRPC\?"):
        get_task("MRPC").read_examples(str(tmp_path), "train")


def test_cut_rows_of_qqp_are_left_out_and_counted(tmp_path, caplog):
    rows = ["id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate"]
    rows += [f"{i}\t1\t2\ta\tb\t1" for i in range(300)]
    rows[100:101] = ["99\t1\t2\ta", " and more\tb\t1"]
    folder = _write(tmp_path, train="\n".join(rows), test="\n".join(rows))
    with caplog.at_level(logging.WARNING):
        assert len(get_task("QQP").read_examples(folder, "train")) == 299
    assert "left out 2 of 301 rows" in caplog.text
    # Each row of a test set needs its prediction.
    with pytest.raises(ValueError, match="line 101: expected 6 columns, found 4"):
        get_task("QQP").read_examples(folder, "test")
    _write(tmp_path, train="\n".join(rows[:1] + rows[90:110]))
    with pytest.raises(ValueError, match="line 12: expected 6 columns, found 4"):
        get_task("QQP").read_examples(folder, "train")


@pytest.mark.parametrize(
    ("name", "set_name", "file", "logits", "rows"),
    [
        ("CoLA", "test", "CoLA.tsv", [[0, 1], [1, 0]], ["1", "0"]),
        ("SST-2", "test", "SST-2.tsv", [[0, 1], [1, 0]], ["1", "0"]),
        ("MRPC", "test", "MRPC.tsv", [[0, 1], [1, 0]], ["1", "0"]),
        ("QQP", "test", "QQP.tsv", [[0, 1], [1, 0]], ["1", "0"]),
        ("WNLI", "test", "WNLI.tsv", [[0, 1], [1, 0]], ["1", "0"]),
        ("RTE", "test", "RTE.tsv", [[0, 1], [1, 0]], ["not_entailment", "entailment"]),
        ("QNLI", "test", "QNLI.tsv", [[0, 1], [1, 0]], ["not_entailment", "entailment"]),
        (
            "MNLI",
            "test_matched",
            "MNLI-m.tsv",
            [[3, 1, 2], [1, 2, 3]],
            ["contradiction", "neutral"],
        ),
        (
            "MNLI",
            "test_mismatched",
            "MNLI-mm.tsv",
            [[0, 1, 0], [1, 2, 3]],
            ["entailment", "neutral"],
        ),
        ("AX", "test", "AX.tsv", [[0, 1, 0], [1, 2, 3]], ["entailment", "neutral"]),
        ("STS-B", "test", "STS-B.tsv", [[5.25], [2.71828]], ["5.000", "2.718"]),
        ("STS-B", "test", "STS-B.tsv", [-0.5, 4.9996], ["0.000", "5.000"]),
    ],
)
def test_submissions(name, set_name, file, logits, rows):
    made = get_task(name).submission(set_name, ["test-1", "test-2"], np.array(logits, float))
    assert made.file_name == file
    assert made.header == ("index", "prediction")
    assert made.rows == [(str(i), row) for i, row in enumerate(rows)]


def test_submission_needs_a_row_an_example():
    with pytest.raises(ValueError, match="3 ids and 2 predictions"):
        get_task("RTE").submission("test", ["a", "b", "c"], np.zeros((2, 2)))


def test_label_ids():
    task = get_task("MNLI")
    assert [task.label_id(Example("g", "a", "b", label)) for label in (*task.labels, None)] == [
        0,
        1,
        2,
        0,
    ]
    with pytest.raises(ValueError, match="g-7: the label 'maybe' is not one of"):
        task.label_id(Example("g-7", "a", "b", "maybe"))


def test_report():
    task = get_task("RTE")
    report = task.report(np.array([[1, 0], [1, 0], [0, 1]]), np.array([0, 1, 1]))
    assert report["entailment"] == {
        "precision": 0.5,
        "recall": 1.0,
        "f1": pytest.approx(2 / 3),
        "support": 1.0,
    }
    assert report["not_entailment"]["recall"] == 0.5
    assert get_task("STS-B").report(np.zeros((1, 1)), np.zeros(1)) == {}
