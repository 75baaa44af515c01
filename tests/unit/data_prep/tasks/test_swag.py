import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_tf.tokenization import BertTokenizer
from data_prep.tasks import get_task, swag
from data_prep.tasks.swag import (
    MultipleChoiceExample,
    RaceTask,
    SwagTask,
    featurize,
    read_race,
    read_swag,
)

LETTERS = "abcdefghij"
CLS, SEP = 2, 3
HEADER = ",video-id,fold-ind,startphrase,sent1,sent2,gold-source,ending0,ending1,ending2,label\n"


@pytest.fixture(scope="module")
def tokenizer():
    return make_tokenizer()


def make_tokenizer():
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *LETTERS]
    return BertTokenizer.from_vocab({token: i for i, token in enumerate(tokens)})


@pytest.fixture
def write(tmp_path):
    def write_file(text, name="file.csv"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text if isinstance(text, str) else json.dumps(text), encoding="utf-8")
        return str(path)

    return write_file


# SWAG.


def test_swag(write):
    path = write(
        HEADER
        + "0,v,1,A man. He,A man.,He,gold,sits.,stands.,runs.,2\n"
        + '1,v,2,"x, y",  "Two, ""three"".",,gen, four , five ,,1\n'.replace(',  "', ',"')
    )
    assert list(read_swag(path, "train")) == [
        MultipleChoiceExample("train-0", "A man.", ("He sits.", "He stands.", "He runs."), 2),
        MultipleChoiceExample("train-1", 'Two, "three".', ("four", "five"), 1),
    ]


def test_swag_without_labels(write):
    row = "0,v,1,s,a,b,gold,c,d,e"
    unlabelled = HEADER.replace(",label", "")
    (example,) = read_swag(write(unlabelled + row), "test", labelled=False)
    assert (example.choices, example.label) == (("b c", "b d", "b e"), None)
    (example,) = read_swag(write(HEADER + row + ",?\n"), "test", labelled=False)
    assert example.label is None


def test_swag_columns_are_found_by_name(write):
    path = write("\ufefflabel,ending1,sent2,ending0,sent1\r\n1,two,b,one,a\r\n\r\n")
    assert list(read_swag(path, "dev")) == [
        MultipleChoiceExample("dev-0", "a", ("b one", "b two"), 1)
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b,c\n1,2,3\n", "line 1: the header has no column sent1, sent2, ending0, en"),
        (HEADER.replace(",", "\t"), "line 1: the header has no column sent1"),
        (HEADER.replace(",label", ""), "line 1: the header has no column label; it has .no name"),
        (HEADER.replace("ending1,", ""), "line 1: the header has no column ending1"),
        (HEADER.replace("ending2", "ending3"), "line 1: the header has no ending2, though"),
        (HEADER + "0,v,1,s,a,b,gold,c,d,0\n", "line 2: expected 11 columns, found 10 columns; as "),
        (HEADER + "0,v,1,s,a,b,gold,c,d,e,f,0\n", "line 2: expected 11 columns, found 12 columns"),
        (HEADER + "0,v,1,s,a,b,gold,c,,,0\n", "line 2: an example needs two endings .* 1: ending1"),
        (HEADER + "0,v,1,s,a,b,gold,,,,0\n", "line 2: an example needs two .* none: ending0"),
        (HEADER + "0,v,1,s,a,b,gold,c,,e,0\n", "line 2: ending1 is empty, though there"),
        (HEADER + "\n0,v,1,s,a,b,gold,c,d,e,3\n", "line 3: the label is '3', but .* 0 to 2"),
        (HEADER + "0,v,1,s,a,b,gold,c,d,,2\n", "line 2: the label is '2', but .* 0 to 1"),
        (HEADER + "0,v,1,s,a,b,gold,c,d,e,-1\n", "line 2: the label is '-1'"),
        (HEADER + "0,v,1,s,a,b,gold,c,d,e,\n", "line 2: the label is ''"),
        (HEADER + "0,v,1,s,a,b,gold,c,d,e,B\n", "line 2: the label is 'B'"),
        (HEADER + '0,v,1,"s,a,b,gold,c,d,e,0\n', "line 2: the quoting of this row is broken"),
    ],
)
def test_bad_swag_files(write, text, message):
    with pytest.raises(ValueError, match=r"file\.csv, " + message):
        list(read_swag(write(text), "train"))


def test_swag_task(write, tmp_path):
    row = "0,v,1,s,a,b,gold,c,d,e,"
    for name in ("train.csv", "dev.csv", "test.csv"):
        write(HEADER + row + "1\n", name)
    task = SwagTask()
    folder = str(tmp_path)
    train, dev, test = (task.read_examples(folder, name) for name in ("train", "dev", "test"))
    assert [one[0].label for one in (train, dev, test)] == [1, 1, None]
    assert train[0].guid == "train-0"
    assert (task.num_outputs, task.sets(str(tmp_path), "eval")) == (1, ["dev"])
    with pytest.raises(FileNotFoundError, match=r"mine\.csv does not exist"):
        SwagTask(train_file="mine.csv").read_examples(str(tmp_path), "train")
    for text in ("", HEADER):
        write(text, "train.csv")
        with pytest.raises(ValueError, match=r"train\.csv has no examples"):
            task.read_examples(str(tmp_path), "train")


def test_accuracy():
    logits = np.array([[0.1, 0.2, -1e9], [3.0, 1.0, 2.0], [0.0, 0.0, 0.5], [-1.0, -2.0, -1e9]])
    labels = np.array([1, 0, 0, 1])
    assert SwagTask().metrics(logits, labels) == {"accuracy": 0.5}
    assert SwagTask().predicted(logits) == ["1", "0", "2", "0"]
    assert RaceTask().predicted(logits) == ["B", "A", "C", "A"]
    assert SwagTask().report(logits, labels) == {}


# RACE.

RACE = {
    "id": "high1.txt",
    "article": " The fox ran. ",
    "questions": ["Who ran?", "The fox _ .", "It ____, then"],
    "options": [["fox", "dog"], ["ran", "sat", "ate"], ["a", "b"]],
    "answers": ["A", "C", "B"],
}
EXPECTED = [
    MultipleChoiceExample("high1.txt-0", "The fox ran.", ("Who ran? fox", "Who ran? dog"), 0),
    MultipleChoiceExample(
        "high1.txt-1", "The fox ran.", ("The fox ran .", "The fox sat .", "The fox ate ."), 2
    ),
    MultipleChoiceExample("high1.txt-2", "The fox ran.", ("It a, then", "It b, then"), 1),
]


def test_race_files(write, tmp_path):
    text = json.dumps(RACE)
    assert list(read_race(write(RACE, "one.txt"), "dev")) == EXPECTED
    indented = "\ufeff" + json.dumps(RACE, indent=2)
    assert list(read_race(write(indented, "one.txt"), "dev")) == EXPECTED
    assert list(read_race(write([RACE, RACE], "list.json"), "dev")) == EXPECTED * 2
    assert list(read_race(write(f"{text}\n\n{text}\n", "lines.jsonl"), "dev")) == EXPECTED * 2


def test_race_folders(write, tmp_path):
    plain = {key: value for key, value in RACE.items() if key != "id"}
    write(plain, "train/middle/2.txt")
    write(RACE, "train/high/1.txt")
    write("not read", "train/high/README.md")
    found = RaceTask().read_examples(str(tmp_path), "train")
    assert found[:3] == EXPECTED
    assert [one.guid for one in found[3:]] == ["train-1-0", "train-1-1", "train-1-2"]
    write({key: value for key, value in RACE.items() if key != "answers"}, "test.json")
    found = RaceTask().read_examples(str(tmp_path), "test")
    assert [one.label for one in found] == [None] * 3
    (tmp_path / "dev").mkdir()
    with pytest.raises(ValueError, match="dev has no examples"):
        RaceTask().read_examples(str(tmp_path), "dev")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"answers": ["A", "D", "B"]}, r"question 1 \(from 0\): the answer is 'D', .* 3 options"),
        ({"answers": ["A", "", "B"]}, "question 1 .*: the answer is ''"),
        ({"answers": [0, "A", "B"]}, "question 0 .*: the answer is 0"),
        ({"answers": ["A"]}, "as many of each: 3 questions, 3 options, 1 answers"),
        ({"answers": None}, "answers is not a list"),
        ({"article": ["a"]}, "article is not a text"),
        ({"options": [["a", " "], ["a", "b", "c"], ["a", "b"]]}, "question 0 .*: option 1 is"),
        ({"options": [["a"], ["a", "b", "c"], ["a", "b"]]}, "two options or more, none empty: 1"),
        ({"options": ["ab", "ab", "ab"]}, "question 0 .* its options a list of texts"),
        ({"questions": [1, "a", "b"]}, "question 0 .*: the question must be a text"),
    ],
)
def test_bad_race_objects(write, change, message):
    path = write({**RACE, **change}, "file.json")
    with pytest.raises(ValueError, match=rf"file\.json.*{message}"):
        list(read_race(path, "train"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "line 1: not JSON"),
        ('{\n"article": }', r"line 2: not JSON \(Expecting value\)"),
        (json.dumps(RACE) + "\n{,}\n", r"line 2: not JSON \(Expecting property"),
        ("[1]", r"object 0 \(from 0\): this is not an object; RACE's objects have article,"),
        ('{"article": "a"}', "this has no questions, options, answers; RACE's objects have"),
    ],
)
def test_bad_json(write, text, message):
    with pytest.raises(ValueError, match=rf"file\.json.*{message}"):
        list(read_race(write(text, "file.json"), "train"))


# Features.


def test_packing(tokenizer):
    examples = [
        MultipleChoiceExample("0", "a b", ("c", "d e", "f"), 2),
        MultipleChoiceExample("1", "g", ("h", "i")),
    ]
    features = featurize(examples, tokenizer, 16)
    a, b, c, d, e, f, g, h, i = tokenizer.encode("a b c d e f g h i")
    assert len(features) == 2
    assert features.lengths.tolist() == [7, 5]
    assert features.labels.tolist() == [2, 0]
    assert features.counts.tolist() == [3, 2]
    assert (features.num_choices, features.num_truncated) == (3, 0)
    batch = features.dense(np.array([1, 0, -1]), 8)
    assert {value.dtype for value in batch.values()} == {np.dtype(np.int32)}
    zeros = [0] * 8
    assert batch["input_ids"].tolist() == [
        [[CLS, g, SEP, h, SEP, 0, 0, 0], [CLS, g, SEP, i, SEP, 0, 0, 0], zeros],
        [
            [CLS, a, b, SEP, c, SEP, 0, 0],
            [CLS, a, b, SEP, d, e, SEP, 0],
            [CLS, a, b, SEP, f, SEP, 0, 0],
        ],
        [zeros] * 3,
    ]
    assert batch["input_mask"].tolist() == (batch["input_ids"] > 0).astype(int).tolist()
    assert batch["segment_ids"][1].tolist() == [
        [0, 0, 0, 0, 1, 1, 0, 0],
        [0, 0, 0, 0, 1, 1, 1, 0],
        [0, 0, 0, 0, 1, 1, 0, 0],
    ]
    assert batch["choice_mask"].tolist() == [[1, 1, 0], [1, 1, 1], [0, 0, 0]]
    with pytest.raises(ValueError, match="A choice of 7 tokens does not fit into 6"):
        features.dense(np.array([0]), 6)


@settings(deadline=None, max_examples=60)
@given(
    sizes=st.lists(
        st.tuples(st.integers(0, 9), st.lists(st.integers(0, 9), min_size=2, max_size=5)),
        min_size=1,
        max_size=5,
    ),
    max_seq_length=st.integers(5, 12),
    data=st.data(),
)
def test_every_choice_is_as_packed_alone(sizes, max_seq_length, data):
    from data_prep.tasks import get_task
    from data_prep.tasks.base import Example
    from data_prep.tasks.featurize import featurize as featurize_pairs

    tokenizer = make_tokenizer()

    def text(size):
        return " ".join(LETTERS[:size])

    examples = [
        MultipleChoiceExample(str(n), text(context), tuple(map(text, choices)), 0)
        for n, (context, choices) in enumerate(sizes)
    ]
    features = featurize(examples, tokenizer, max_seq_length)
    pairs = [Example("", one.context, choice) for one in examples for choice in one.choices]
    alone = featurize_pairs(pairs, get_task("MRPC"), tokenizer, max_seq_length)
    assert features.num_truncated == alone.num_truncated
    order = np.array(data.draw(st.permutations(range(len(examples)))))
    batch = features.dense(order, max_seq_length)
    expected = alone.dense(np.arange(len(pairs)), max_seq_length)
    bounds = np.cumsum([0, *(len(one.choices) for one in examples)])
    for row, index in enumerate(order):
        count = len(examples[index].choices)
        assert batch["choice_mask"][row].sum() == count
        for name, values in expected.items():
            np.testing.assert_array_equal(
                batch[name][row, :count], values[bounds[index] : bounds[index + 1]]
            )
            assert not batch[name][row, count:].any()
        assert features.lengths[index] == batch["input_mask"][row].sum(-1).max()


@pytest.mark.parametrize(
    ("choices", "label", "length", "truncation", "message"),
    [
        (("a", "b"), 0, 4, "head", "max_seq_length is 4, but a context and a choice"),
        (("a", "b"), 0, 8, "middle", "no truncation 'middle'"),
        (("a",), 0, 8, "head", "x-0: an example needs two choices or more, not 1"),
        (("a", "b"), 2, 8, "head", "x-0: the label is 2, but the choices are numbered 0 to 1"),
        (("a", "b"), -1, 8, "head", "x-0: the label is -1"),
    ],
)
def test_bad_examples(tokenizer, choices, label, length, truncation, message):
    with pytest.raises(ValueError, match=message):
        featurize(
            [MultipleChoiceExample("x-0", "a", choices, label)], tokenizer, length, truncation
        )
    with pytest.raises(ValueError, match="There are no examples"):
        featurize([], tokenizer, 8)


def test_names_of_files():
    assert swag.RaceTask(dev_file="mine").eval_sets == {"dev": "mine"}
    assert SwagTask(test_file="mine.csv").predict_sets == {"test": "mine.csv"}


def test_a_test_file_with_labels_is_evaluated(write, tmp_path):
    header = "sent1,sent2,ending0,ending1"
    write(f"{header},label\na,b,c,d,1\n", "test.csv")
    write(f"{header}\na,b,c,d\n", "other.csv")
    for name, labelled in (("test.csv", True), ("other.csv", False), ("none.csv", False)):
        task = get_task("swag", test_file=name)
        task.evaluate_test(str(tmp_path))
        assert task.has_labels("test") == labelled
        assert task.sets(str(tmp_path), "eval") == (["dev", "test"] if labelled else ["dev"])
    item = {"article": "a", "questions": ["b _"], "options": [["c", "d"]], "answers": ["B"]}
    write(json.dumps(item), "test.json")
    task = get_task("RACE")
    task.evaluate_test(str(tmp_path))
    assert task.read_examples(str(tmp_path), "test")[0].label == 1
    del item["answers"]
    write(json.dumps(item), "test.json")
    task = get_task("RACE")
    task.evaluate_test(str(tmp_path))
    assert task.read_examples(str(tmp_path), "test")[0].label is None
    with pytest.raises(ValueError, match="SWAG has no option labels"):
        get_task("SWAG", labels=["a"])
