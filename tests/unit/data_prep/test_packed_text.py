"""Documents as arrays, against the original's reader; the file on disk."""

import json

import numpy as np
import pytest
from pretraining_texts import GOLDEN, SPECIALS, golden_tokenizer, small_tokenizer

from bert_tf.tokenization import BertTokenizer
from data_prep.corpus import Corpus, Document
from data_prep.packed_text import PackedText, Packer, as_sentences, token_dtype


@pytest.mark.parametrize(
    ("files", "expected", "run"),
    [
        (["corpus.txt"], "documents_corpus_uncased.jsonl", "run1_base"),
        (["corpus.txt"], "documents_corpus_cased.jsonl", "run6_cased"),
        (
            ["corpus.txt", "corpus2.txt"],
            "documents_corpus_and_corpus2_uncased.jsonl",
            "run4_two_files_two_shards",
        ),
    ],
)
def test_documents_of_the_golden(files, expected, run):
    tokenizer = golden_tokenizer(run)
    text = Packer(tokenizer).pack(Corpus([str(GOLDEN / file) for file in files]))
    found = [[tokenizer.convert_ids_to_tokens(s) for s in d] for d in as_sentences(text)]
    wanted = [json.loads(line) for line in (GOLDEN / expected).read_text().splitlines()]
    assert found == wanted


def test_flags_and_counts():
    tokenizer = small_tokenizer("un ##able able , ab")
    text = Packer(tokenizer).pack(
        [Document(3, ["unable, able", "\u200b"]), Document(4, ["\u200b"]), Document(7, ["x ab"])]
    )
    assert text.tokens.tolist() == [10, 13, 16, 14, 2, 18]
    assert text.sentence_ends.tolist() == [0, 4, 6]
    assert text.document_ends.tolist() == [0, 1, 2]
    assert text.numbers.tolist() == [3, 7]
    assert text.unknown == 1


def test_pre_segmented_chinese():
    tokens = [*SPECIALS, *"我爱北京天安门", "ab", "##c", "。"]
    tokenizer = BertTokenizer.from_vocab({t: i for i, t in enumerate(tokens)})
    line = "我 爱 北京 天安门龘 。 abc北京"
    text = Packer(tokenizer, pre_segmented=True).pack([Document(0, [line])])
    assert (text.tokens >> 1).tolist() == tokenizer.encode(line)
    #                          我 爱 北 京 天 安 门 龘 。 ab ##c 北 京
    assert (text.tokens & 1).tolist() == [0, 0, 0, 1, 0, 1, 1, 1, 0, 0, 1, 0, 1]
    plain = Packer(tokenizer).pack([Document(0, [line])])
    assert (plain.tokens & 1).sum() == 1


def test_splitter_is_used():
    text = Packer(small_tokenizer(), split=lambda line: line.split("|")).pack(
        [Document(0, ["a b|c", "d"])]
    )
    assert as_sentences(text) == [[[5, 6], [7], [8]]]


def test_token_type():
    assert token_dtype(30522) == np.uint16
    assert token_dtype(32769) == np.uint32


@pytest.mark.parametrize("size", [100, 40000])
def test_save_and_load(tmp_path, size):
    tokenizer = BertTokenizer.from_vocab(
        {token: i for i, token in enumerate([*SPECIALS, *(f"w{i}" for i in range(size))])}
    )
    last = f"w{size - 1}"
    text = Packer(tokenizer).pack([Document(5, [f"w1 {last}", last]), Document(6, ["w2"])])
    path = str(tmp_path / "x.tok")
    text.save(path)
    loaded = PackedText.load(path)
    assert as_sentences(loaded) == as_sentences(text) == [[[6, size + 4], [size + 4]], [[7]]]
    assert loaded.numbers.tolist() == [5, 6]
    assert loaded.unknown == 0
    with open(path, "r+b") as file:
        file.truncate(100)
    with pytest.raises(ValueError, match="damaged or cut off"):
        PackedText.load(path)
    (tmp_path / "y.tok").write_text("no tokens")
    with pytest.raises(ValueError, match="no file of tokens"):
        PackedText.load(str(tmp_path / "y.tok"))


def test_any_flipped_bit_is_found(tmp_path):
    path = tmp_path / "x.tok"
    Packer(small_tokenizer()).pack([Document(5, ["a b", "c"]), Document(6, ["d"])]).save(str(path))
    data = path.read_bytes()
    for place in range(len(data)):
        path.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
        with pytest.raises(ValueError, match=r"x\.tok is .*; delete the folder") as caught:
            PackedText.load(str(path))
        assert str(tmp_path) in str(caught.value)


def test_an_error_leaves_no_file(tmp_path, monkeypatch):
    text = Packer(small_tokenizer()).pack([Document(5, ["a b"])])

    def full(source, target):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("data_prep.packed_text.os.replace", full)
    with pytest.raises(OSError, match="No space"):
        text.save(str(tmp_path / "x.tok"))
    assert list(tmp_path.iterdir()) == []
