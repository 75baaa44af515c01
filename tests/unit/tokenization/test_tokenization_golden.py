"""The original's own output, and its result for each assigned character."""

import hashlib
import json
from pathlib import Path

import pytest
from tokenization_texts import uncased_vocab_file

from bert_tf.tokenization import BertTokenizer
from bert_tf.tokenization.wordpiece import BasicTokenizer

GOLDEN = Path(__file__).parents[2] / "golden" / "tokenization"


def read_lines(name: str) -> list[str]:
    return (GOLDEN / name).read_bytes().decode("utf-8").rstrip("\n").split("\n")


CASES = [json.loads(line) for line in read_lines("cases.jsonl")]


def vocab_of_cases(name: str) -> dict[str, int]:
    """The tokens that the golden shows at their ids, with fillers that no text can hold.

    The published vocabulary itself is not in the repository. A word of known pieces is split
    alike, since no longer piece is added; that [UNK] words stay [UNK], the test shows.
    """
    vocab = {"[UNK]": 100}
    for case in CASES:
        vocab.update(zip(case[name]["tokens"], case[name]["ids"]))
    used = set(vocab.values())
    for number in range(max(used)):
        if number not in used:
            vocab[f"\0{number}"] = number
    return vocab


@pytest.fixture(scope="module")
def tokenizers():
    return {
        "uncased": BertTokenizer(uncased_vocab_file()),
        "cased": BertTokenizer.from_vocab(vocab_of_cases("cased"), do_lower_case=False),
        "chinese": BertTokenizer.from_vocab(vocab_of_cases("chinese")),
    }


def test_number_of_cases():
    assert len(CASES) == 371


@pytest.mark.parametrize("name", ["uncased", "cased", "chinese"])
def test_cases(tokenizers, name):
    tokenizer = tokenizers[name]
    basic = BasicTokenizer(do_lower_case=name != "cased")
    for case in CASES:
        text, expected = case["text"], case[name]
        assert basic.tokenize(text) == expected["basic"], case["id"]
        assert tokenizer.tokenize(text) == expected["tokens"], case["id"]
        assert tokenizer.encode(text) == expected["ids"], case["id"]
        assert tokenizer.encode(text) == expected["ids"], case["id"]  # now from the cache
        ids, spans = tokenizer.encode_with_offsets(text)
        assert ids == expected["ids"], case["id"]
        assert len(spans) == len(ids), case["id"]


@pytest.mark.parametrize("name", ["uncased", "cased"])
def test_every_code_point(name):
    """No property that matters changed from Unicode 14.0 to 15.1 (Python 3.11 to 3.13)."""
    split = BasicTokenizer(do_lower_case=name == "uncased").tokenize
    blocks: dict[int, list[list[str]]] = {}
    for line in read_lines("assigned_ranges.txt"):
        first, last = (int(field, 16) for field in line.split())
        for code_point in range(first, last + 1):
            result = split(f"a{chr(code_point)}b")
            blocks.setdefault(code_point // 256, []).append(result)
    assert sum(map(len, blocks.values())) == 282_230
    expected = dict(line.split() for line in read_lines(f"codepoints_{name}.txt"))
    found = {}
    for block, results in blocks.items():
        text = json.dumps(results, separators=(",", ":"), ensure_ascii=False)
        found[f"{block:04x}".upper()] = hashlib.sha256(text.encode("utf-8")).hexdigest()
    assert found == expected
