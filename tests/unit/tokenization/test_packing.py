import json
from pathlib import Path

import numpy as np
import pytest
from tokenization_texts import uncased_vocab_file

from bert_tf.tokenization import BertTokenizer
from bert_tf.tokenization.packing import TRUNCATIONS, kept_lengths, pack, pad, truncate_pair

GOLDEN = Path(__file__).parents[2] / "golden" / "classifier"
A, B = list(range(100, 120)), list(range(200, 220))


@pytest.fixture(scope="module")
def uncased():
    return BertTokenizer(uncased_vocab_file())


def test_kept_lengths_are_what_taking_one_by_one_leaves():
    for length_a in range(13):
        for length_b in range(13):
            for room in range(26):
                a, b = length_a, length_b
                while a + b > room:
                    if a > b:
                        a -= 1
                    else:
                        b -= 1
                assert kept_lengths(length_a, length_b, room) == (a, b)


@pytest.mark.parametrize("task", ["cola", "mnli", "mrpc", "xnli"])
@pytest.mark.parametrize("split", ["train", "dev", "test"])
def test_golden_features(uncased, task, split):
    if (task, split) == ("xnli", "test"):
        pytest.skip("the original reads no test file for XNLI")
    file = GOLDEN / f"golden_{task}_{split}.jsonl"
    lines = file.read_bytes().decode("utf-8").rstrip("\n").split("\n")
    for line in lines:
        row = json.loads(line)
        for length in (16, 64):
            expected = row[f"features_uncased_{length}"]
            a, b = uncased.encode(row["example"]["text_a"]), None
            if row["example"]["text_b"] is not None:
                b = uncased.encode(row["example"]["text_b"])
            a, b, _ = truncate_pair(a, b, length - (3 if b else 2))
            ids, segments = pack(a, b, uncased.cls_id, uncased.sep_id)
            ids, mask, segments = pad(ids, segments, length)
            assert ids.tolist() == expected["input_ids"]
            assert mask.tolist() == expected["input_mask"]
            assert segments.tolist() == expected["segment_ids"]


@pytest.mark.parametrize(
    ("strategy", "first", "second"),
    [
        ("longest_first", [100, 101, 102, 103, 104], [200, 201, 202, 203]),
        ("head", [100, 101, 102, 103, 104], [200, 201, 202, 203]),
        ("tail", [115, 116, 117, 118, 119], [216, 217, 218, 219]),
        ("head_tail", [100, 101, 117, 118, 119], [200, 217, 218, 219]),
    ],
)
def test_strategies(strategy, first, second):
    assert truncate_pair(A, B, 9, strategy) == (first, second, True)
    # A short text is left alone; the long one gives way.
    assert truncate_pair(A, second, 9, strategy) == (first, second, True)
    assert truncate_pair(first, B, 9, strategy) == (first, second, True)
    assert truncate_pair(A, None, 5, strategy) == (first, None, True)


def test_head_tail_of_a_long_document():
    document = list(range(1000))
    kept, _, _ = truncate_pair(document, None, 510, "head_tail")
    assert kept == document[:128] + document[-382:]


@pytest.mark.parametrize("strategy", TRUNCATIONS)
def test_nothing_to_cut(strategy):
    assert truncate_pair(A, B, 40, strategy) == (A, B, False)
    assert truncate_pair(A, None, 20, strategy) == (A, None, False)
    assert truncate_pair([], [], 0, strategy) == ([], [], False)
    assert truncate_pair(A, B, 0, strategy) == ([], [], True)
    assert truncate_pair(A, [], 1, strategy)[0] == ([119] if strategy == "tail" else [100])


def test_bad_truncation():
    with pytest.raises(ValueError, match="unknown truncation 'middle'; choose one of longest_fi"):
        truncate_pair(A, B, 9, "middle")
    with pytest.raises(ValueError, match="max_seq_length must be at least"):
        truncate_pair(A, None, -1)


def test_pack_and_pad():
    ids, segments = pack([7, 8], [9], cls_id=1, sep_id=2)
    assert ids.dtype == segments.dtype == np.int32
    assert ids.tolist() == [1, 7, 8, 2, 9, 2]
    assert segments.tolist() == [0, 0, 0, 0, 1, 1]
    assert pack([7, 8], None, 1, 2)[1].tolist() == [0, 0, 0, 0]
    assert pack([7], [], 1, 2)[0].tolist() == [1, 7, 2]
    padded = pad(ids, segments, 8, pad_id=5)
    assert [part.tolist() for part in padded] == [
        [1, 7, 8, 2, 9, 2, 5, 5],
        [1, 1, 1, 1, 1, 1, 0, 0],
        [0, 0, 0, 0, 1, 1, 0, 0],
    ]
    assert all(part.dtype == np.int32 for part in padded)
    with pytest.raises(ValueError, match="6 tokens does not fit into 5"):
        pad(ids, segments, 5)
