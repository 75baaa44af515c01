"""Files to documents: formats, compression, encodings, and the errors."""

import bz2
import gzip
import io
import json
import lzma
import sys

import pytest

from data_prep import corpus
from data_prep.corpus import Corpus


def write(path, content):
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return str(path)


def documents(files, *args, **kwargs):
    return [document.lines for document in Corpus(files, *args, **kwargs)]


WANTED = [["a b"], ["c d", "e f"]]


@pytest.mark.parametrize(
    "text",
    [
        "a b\n\nc d\ne f\n",
        "a b\r\n\r\nc d\r\ne f\r\n",
        "a b\n \t\nc d\ne f",
        "a b\n\n\n\nc d\n  e f  \n\n\n",
        "\ufeffa b\n\nc d\ne f\n",
        "\n\na b\n\u3000\nc d\ne\r f\n",
    ],
)
def test_separators_do_not_matter(tmp_path, text):
    assert documents([write(tmp_path / "f", text)]) == WANTED


def test_lines_end_at_newlines_only(tmp_path):
    text = "a\u2028b\x85c\x0bd\n"
    assert documents([write(tmp_path / "f", text)]) == [[text[:-1]]]


def test_documents_go_on_from_file_to_file(tmp_path):
    files = [write(tmp_path / "1", "a\nb"), write(tmp_path / "2", "c\n\nd\n\n")]
    files.append(write(tmp_path / "3", "e"))
    assert documents(files) == [["a", "b", "c"], ["d"], ["e"]]
    numbers = [document.number for document in Corpus(files)]
    assert numbers == [0, 1, 2]


def test_long_documents_come_in_parts(tmp_path):
    file = write(tmp_path / "f", "aa\nbb\ncc\ndd\nee\n\nff\n\ngg\nhh\nii\njj\n")
    found = [(d.number, d.lines) for d in Corpus([file], max_characters=4)]
    assert found == [
        (0, ["aa", "bb"]),
        (0, ["cc", "dd"]),
        (0, ["ee"]),
        (1, ["ff"]),
        (2, ["gg", "hh"]),
        (2, ["ii", "jj"]),
    ]


@pytest.mark.parametrize(
    "compress",
    [gzip.compress, bz2.compress, lzma.compress, "zstandard"],
    ids=["gzip", "bz2", "lzma", "zstandard"],
)
def test_compressed(tmp_path, compress):
    if compress == "zstandard":
        compress = pytest.importorskip("zstandard").ZstdCompressor().compress
    # The contents tell, not the name; several members one after the other are one text.
    data = compress(b"a b\n\nc d\n")
    more = compress(b"e f\n") if compress in (gzip.compress, bz2.compress, lzma.compress) else b""
    file = write(tmp_path / "f.txt", data + more)
    assert documents([file]) == (WANTED if more else [["a b"], ["c d"]])
    broken = write(tmp_path / "broken", data[: len(data) - 8])
    with pytest.raises(ValueError, match="broken: the compressed data is damaged or cut off"):
        documents([broken])


def test_zstandard_is_missing(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "zstandard", None)
    file = write(tmp_path / "f", b"\x28\xb5\x2f\xfd\0\0")
    with pytest.raises(ImportError, match="pip install zstandard"):
        documents([file])


def test_progress_in_bytes_on_disk(tmp_path):
    files = [write(tmp_path / "1", "a\n\n" * 10), write(tmp_path / "2", gzip.compress(b"b"))]
    text = Corpus(files)
    assert text.bytes_total == 30 + (tmp_path / "2").stat().st_size
    list(text)
    assert text.bytes_read == text.bytes_total


def test_standard_input(monkeypatch, tmp_path):
    with open(write(tmp_path / "f", "a b\n\nc d\ne f\n")) as file:
        monkeypatch.setattr(sys, "stdin", file)
        assert documents(["-"]) == WANTED
    assert corpus.find_files("-") == ["-"]


def test_an_address():
    fsspec = pytest.importorskip("fsspec")
    with fsspec.open("memory://corpus_test/x.txt", "wb") as file:
        file.write(gzip.compress(b"a b\n\nc d\ne f\n"))
    assert documents(corpus.find_files("memory://corpus_test/*")) == WANTED


def test_bytes_that_are_not_utf8(tmp_path):
    file = write(tmp_path / "f", b"\xef\xbb\xbfa\nb\xffc\n")
    with pytest.raises(ValueError) as caught:
        documents([file])
    assert str(caught.value).startswith(f"{file}: byte 6 (0xff")
    assert "--errors=replace" in str(caught.value)
    assert documents([file], errors="replace") == [["a", "b\ufffdc"]]
    offset = 3 + 2 + 1
    assert (tmp_path / "f").read_bytes()[offset] == 0xFF


def test_utf16_is_recognised(tmp_path):
    file = write(tmp_path / "f", "abc\n".encode("utf-16"))
    with pytest.raises(ValueError, match=r"looks like UTF-16"):
        documents([file])


def test_find_files(tmp_path):
    for name in ("b.txt", "a.txt", "c.md"):
        write(tmp_path / name, "x")
    (tmp_path / "d.txt").mkdir()
    found = corpus.find_files(f"{tmp_path}/*.txt,{tmp_path}/c.md")
    assert found == [str(tmp_path / name) for name in ("a.txt", "b.txt", "c.md")]
    with pytest.raises(FileNotFoundError, match=r"no input file matches .*x\*'"):
        corpus.find_files(f"{tmp_path}/a.txt,{tmp_path}/x*")
    with pytest.raises(ValueError, match="is a folder"):
        corpus.find_files(str(tmp_path))
    with pytest.raises(ValueError, match="no input file"):
        corpus.find_files(" ,")


DOC = """<doc id="12" url="https://example.org/12" title="A &amp; B">
A &amp; B

First paragraph.

Second one.
</doc>
<doc id="13" url="u" title="C">
C
Text.

</doc>
"""


def test_wikiextractor_blocks(tmp_path):
    file = write(tmp_path / "wiki_00", DOC)
    assert documents([file], "wikiextractor") == [["First paragraph.", "Second one."], ["Text."]]


def test_wikiextractor_json(tmp_path):
    rows = [
        {"id": "1", "title": "A", "text": "A\n\nFirst.\nSecond."},
        {"id": "2", "title": "B", "text": ""},
        {"id": "3", "text": "Third."},
    ]
    file = write(tmp_path / "f", "\n".join(map(json.dumps, rows)))
    assert documents([file], "wikiextractor") == [["First.", "Second."], ["Third."]]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("plain\n", "line 1: the text is outside <doc>"),
        ('{"text": "a"}\n{"title": "b"}\n', 'line 2: this is no JSON object with a "text"'),
        ('\n{"text": \n', "line 2: this is no JSON object"),
        ('{"text": 3}\n', "line 1: this is no JSON object"),
    ],
)
def test_not_wikiextractor(tmp_path, text, message):
    file = write(tmp_path / "f", text)
    with pytest.raises(ValueError, match=message):
        documents([file], "wikiextractor")


def test_paragraphs(tmp_path):
    one = write(tmp_path / "1", "A line\nand its end.\n\nNext.\n")
    two = write(tmp_path / "2", "Other\n")
    assert documents([one, two], "paragraphs") == [["A line and its end.", "Next."], ["Other"]]


def test_bad_options():
    with pytest.raises(ValueError, match="unknown input format 'x'"):
        Corpus([], "x")
    with pytest.raises(ValueError, match="strict or replace"):
        Corpus([], errors="x")


def test_sentence_splitter():
    pytest.importorskip("sentencex")
    split = corpus.sentence_splitter("en")
    found = split("Mr. Smith is here. He came at 3 p.m. on Monday!  Did he?")
    assert found == ["Mr. Smith is here.", "He came at 3 p.m. on Monday!", "Did he?"]


def test_splitter_that_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "sentencex", None)
    with pytest.raises(ImportError, match="pip install sentencex"):
        corpus.sentence_splitter("en")


def test_stdin_is_not_closed(monkeypatch, tmp_path):
    with open(write(tmp_path / "f", "a\n")) as file:
        monkeypatch.setattr(sys, "stdin", file)
        documents(["-"])
        file.seek(0)
        assert isinstance(file, io.TextIOWrapper)
        assert file.read() == "a\n"
