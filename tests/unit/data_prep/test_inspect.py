"""Every invariant is checked: a record that breaks one is told of."""

import gzip

import numpy as np
import pytest
from pretraining_texts import GOLDEN, RUNS, golden_tokenizer

from data_prep import inspect, records
from data_prep.inspect import Checker


def good():
    return {
        "input_ids": np.array([2, 5, 4, 3, 6, 4, 3, 0]),
        "input_mask": np.array([1, 1, 1, 1, 1, 1, 1, 0]),
        "segment_ids": np.array([0, 0, 0, 0, 1, 1, 1, 0]),
        "masked_lm_positions": np.array([2, 5, 0]),
        "masked_lm_ids": np.array([9, 8, 0]),
        "masked_lm_weights": np.array([1, 1, 0], np.float32),
        "next_sentence_labels": np.array([1]),
    }


def test_a_good_record():
    checker = Checker()
    assert checker.check(good()) == []
    assert checker.check(good()) == []
    assert checker.summary.problems == 0


@pytest.mark.parametrize(
    ("name", "place", "value", "message"),
    [
        ("input_mask", 3, 0, "input_mask is not ones"),
        ("input_ids", 7, 5, "not 0 in the padding"),
        ("segment_ids", 7, 1, "not 0 in the padding"),
        ("segment_ids", 1, 1, "segment_ids are not zeros"),
        ("input_ids", 0, 5, r"first token is 5, not \[CLS\]"),
        ("input_ids", 3, 5, "first segment's end is 5"),
        ("input_ids", 6, 5, "last segment's end is 5"),
        ("masked_lm_positions", 0, 5, "do not ascend"),
        ("masked_lm_positions", 0, 0, "outside the text: 0 to 5"),
        ("masked_lm_positions", 1, 6, "outside the text: 2 to 6"),
        ("masked_lm_positions", 0, 3, r"the \[SEP\] between"),
        ("masked_lm_positions", 2, 1, "not 0 in the padding"),
        ("masked_lm_ids", 2, 1, "not 0 in the padding"),
        ("masked_lm_weights", 0, 0, "masked_lm_weights are not ones"),
        ("masked_lm_weights", 0, 0.5, "masked_lm_weights are not ones"),
        ("next_sentence_labels", 0, 2, "next_sentence_labels is 2"),
    ],
)
def test_a_broken_invariant(name, place, value, message):
    checker = Checker()
    checker.check(good())
    broken = good()
    broken[name][place] = value
    problems = checker.check(broken)
    assert checker.summary.problems == 1
    with pytest.raises(ValueError, match=message):
        raise ValueError("; ".join(problems))


def test_other_breaks():
    checker = Checker()
    checker.check(good())
    none = good()
    for name in ("masked_lm_positions", "masked_lm_ids", "masked_lm_weights"):
        none[name][:] = 0
    assert checker.check(none) == []
    assert "1 records have no masked tokens" in checker.summary.lines()
    short = good()
    short["input_ids"] = short["input_ids"][:7]
    assert "input_ids has 7 values, expected 8" in checker.check(short)[0]
    missing = good()
    del missing["segment_ids"]
    assert checker.check(missing) == ["segment_ids is missing"]
    tiny = good()
    tiny["input_mask"][4:] = 0
    assert "has 4 tokens" in checker.check(tiny)[0]


def test_ids_outside_the_vocabulary():
    checker = Checker(golden_tokenizer("run1_base"))
    record = {name: values.copy() for name, values in good().items()}
    record["input_ids"] = np.array([101, 5, 103, 102, 40000, 103, 102, 0])
    record["masked_lm_ids"][0] = 50000
    problems = checker.check(record)
    assert "an id is outside the vocabulary: 0 to 40000" in problems
    assert "a label is outside the vocabulary: 8 to 50000" in problems


@pytest.mark.parametrize("run", RUNS)
def test_golden_files_are_in_order(run, capsys):
    shard = str(GOLDEN / run / "shard0.tfrecord")
    summaries = inspect.main(["inspect", shard, "--records=1"])
    assert summaries[0].problems == 0
    out = capsys.readouterr().out
    assert "all records are well-formed" in out
    assert "% [MASK]" in out


def test_a_record_is_shown_readably(tmp_path, capsys):
    vocab = tmp_path / "vocab.txt"
    vocab.write_text("\n".join(golden_tokenizer("run1_base").vocab) + "\n")
    shard = str(GOLDEN / "run1_base" / "shard0.tfrecord")
    inspect.main(["inspect", shard, f"--vocab_file={vocab}", "--records=1"])
    out = capsys.readouterr().out
    assert "next sentence: " in out
    assert "A [CLS] " in out
    assert "{[MASK]|" in out
    assert "records 169" in out


def test_damaged_files(tmp_path):
    bad = good()
    bad["next_sentence_labels"][0] = 7
    file = tmp_path / "f"
    file.write_bytes(b"".join(records.frame(records.encode_example(r)) for r in (good(), bad)))
    with pytest.raises(ValueError, match="some records are wrong"):
        inspect.main(["inspect", str(file)])
    file.write_bytes(records.frame(b"\xff"))
    with pytest.raises(ValueError, match=r"record 0: the record is no tf\.train\.Example"):
        inspect.main(["inspect", str(file)])
    file.write_bytes(gzip.compress(records.frame(records.encode_example(good())) * 9, mtime=0))
    data = bytearray(file.read_bytes())
    data[12] ^= 0xFF
    file.write_bytes(data)
    with pytest.raises(ValueError, match=r"/f: record 0 at byte 0: the gzip data is damaged"):
        inspect.main(["inspect", str(file)])
    with pytest.raises(ValueError, match="name a file"):
        inspect.main(["inspect"])


@pytest.mark.parametrize("content", [b"", gzip.compress(b"")], ids=["empty", "gzip"])
def test_a_file_without_records(tmp_path, capsys, content):
    file = tmp_path / "empty"
    file.write_bytes(content)
    shard = str(GOLDEN / "run1_base" / "shard0.tfrecord")
    with pytest.raises(ValueError, match=r"^no records are in \S+/empty; make"):
        inspect.main(["inspect", shard, str(file), "--records=0"])
    assert capsys.readouterr().out.count("all records are well-formed") == 1
