import json
from pathlib import Path

import pytest

from bert_tf.tokenization import BertTokenizer, load_vocab

EDGE = Path(__file__).parents[2] / "golden" / "tokenization" / "vocab_edge"
EXPECTED = json.loads((EDGE / "expected.json").read_text(encoding="utf-8"))
READ = [case for case in EXPECTED if case.get("number_of_keys")]


@pytest.mark.parametrize("case", READ, ids=lambda case: case["file"])
def test_golden_files(case):
    vocab = load_vocab(str(EDGE / case["file"]))
    assert [list(item) for item in vocab.items()] == case["items_in_key_order"]
    tokenizer = BertTokenizer(str(EDGE / case["file"]))
    inverse = [list(item) for item in tokenizer.inv_vocab.items()]
    assert inverse == case["inverse_in_key_order"]
    for example in case.get("tokenize_lower", ()):
        assert tokenizer.tokenize(example["text"]) == example["tokens"]
        assert tokenizer.encode(example["text"]) == example["ids"]


def test_size_counts_every_line():
    tokenizer = BertTokenizer(str(EDGE / "vocab_tricky.txt"))
    assert len(tokenizer.vocab) == 35
    assert tokenizer.vocab_size == 39


def test_not_utf8_names_file_and_offset():
    path = str(EDGE / "vocab_invalid_utf8.txt")
    with pytest.raises(ValueError, match=r"byte 0xff at offset 6 \(line 2\)") as error:
        load_vocab(path)
    assert path in str(error.value)


def test_empty_file():
    with pytest.raises(ValueError, match=r"vocab_empty\.txt is empty"):
        load_vocab(str(EDGE / "vocab_empty.txt"))


def test_missing_file():
    with pytest.raises(FileNotFoundError, match=r"no_such\.txt does not exist"):
        load_vocab(str(EDGE / "no_such.txt"))


def test_folder():
    with pytest.raises(ValueError, match=r"is a folder.*vocab\.txt"):
        load_vocab(str(EDGE))


def test_crlf_and_missing_last_newline(tmp_path):
    file = tmp_path / "vocab.txt"
    file.write_bytes(b"[UNK]\r\na\r\n##b")
    assert load_vocab(str(file)) == {"[UNK]": 0, "a": 1, "##b": 2}


def test_byte_order_mark_is_named_when_the_token_is_needed():
    tokenizer = BertTokenizer(str(EDGE / "vocab_bom_blank_end.txt"))
    with pytest.raises(ValueError, match=r"'\[PAD\]'.*byte order mark"):
        _ = tokenizer.pad_id


def test_unknown_token_and_id():
    tokenizer = BertTokenizer(str(EDGE / "vocab_tricky.txt"))
    with pytest.raises(ValueError, match=r"vocab_tricky\.txt has no token 'nope'"):
        tokenizer.convert_tokens_to_ids(["nope"])
    for number in (5, 999):
        with pytest.raises(ValueError, match=f"no token with the id {number}"):
            tokenizer.convert_ids_to_tokens([number])
