"""Text files to documents, as a stream: formats, compression, encodings, sentences.

A document is a list of lines. In the original's format a line is a sentence, and a blank line ends
a document; a document goes on from one file to the next unless a blank line is between them.
"""

import bz2
import dataclasses
import gzip
import html
import json
import lzma
import re
import sys
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import IO, Any

from bert_tf import paths

TEXT = "text"
PARAGRAPHS = "paragraphs"
WIKIEXTRACTOR = "wikiextractor"
FORMATS = (TEXT, PARAGRAPHS, WIKIEXTRACTOR)
STDIN = "-"

_BOM = b"\xef\xbb\xbf"
_DOC = re.compile(r"<doc\b[^>]*>")
_TITLE = re.compile(r'\btitle="(.*?)"(?=\s+\w+=|\s*>)')

# What marks the start of a document in a stream of lines.
BREAK = None


def find_files(patterns: str | Sequence[str]) -> list[str]:
    """Returns the files that an input flag means.

    Args:
      patterns: paths and shell patterns, comma-separated if one string; "-" is standard input.

    Raises:
      FileNotFoundError: a pattern matches nothing; names it.
      ValueError: a folder, or no pattern at all.
    """
    if isinstance(patterns, str):
        patterns = patterns.split(",")
    files: list[str] = []
    for pattern in filter(None, (pattern.strip() for pattern in patterns)):
        if pattern == STDIN:
            files.append(STDIN)
            continue
        found = paths.glob(pattern)
        if not found:
            raise FileNotFoundError(
                f"no input file matches {pattern!r}; check the path, and quote a pattern so that "
                "the shell leaves it as it is."
            )
        if len(found) == 1 and paths.is_dir(found[0]):
            raise ValueError(
                f"{found[0]} is a folder; name the files in it: {paths.join(found[0], '*')}"
            )
        files += [file for file in found if not paths.is_dir(file)]
    if not files:
        raise ValueError("no input file is named.")
    return files


@dataclasses.dataclass
class Document:
    """One document, or a part of a long one.

    Attributes:
      number: of the document, from 0; the parts of one document share it.
      lines: not blank, stripped. A line is a sentence, or a paragraph to be split.
    """

    number: int
    lines: list[str]


class Corpus:
    """Reads documents from files, one after the other.

    Args:
      files: from `find_files`.
      input_format: TEXT: a sentence a line, a blank line between documents (the original's
        format). PARAGRAPHS: each file is a document, its paragraphs are separated by blank
        lines; lines within one are joined. WIKIEXTRACTOR: WikiExtractor's output, as `<doc>`
        blocks or JSON lines; titles are left out.
      errors: "strict" stops at bytes that are not UTF-8, "replace" puts U+FFFD there, which the
        tokenizer drops.
      max_characters: a longer document is handed out in parts, so that memory stays bounded;
        None never cuts.

    Attributes:
      bytes_total: of the files as they lie on disk; 0 where it is unknown (standard input).
    """

    def __init__(
        self,
        files: Sequence[str],
        input_format: str = TEXT,
        errors: str = "strict",
        max_characters: int | None = None,
    ):
        if input_format not in FORMATS:
            raise ValueError(
                f"unknown input format {input_format!r}; choose one of {', '.join(FORMATS)}"
            )
        if errors not in ("strict", "replace"):
            raise ValueError(f"errors is {errors!r}; it must be strict or replace")
        self.files = list(files)
        self.bytes_total = (
            0 if STDIN in self.files else sum(paths.size(file) for file in self.files)
        )
        self._format = input_format
        self._errors = errors
        self._max_characters = max_characters
        self._bytes_before = 0
        self._raw: IO[bytes] | None = None

    @property
    def bytes_read(self) -> int:
        """How far the reading is, in bytes of the files on disk; 0 where it is unknown."""
        if self._raw is None or not self.bytes_total:
            return self._bytes_before
        return self._bytes_before + self._raw.tell()

    def __iter__(self) -> Iterator[Document]:
        number = 0
        lines: list[str] = []
        characters = 0
        limit = self._max_characters
        cut = False
        for line in self._lines():
            if line is BREAK:
                if lines:
                    yield Document(number, lines)
                if lines or cut:
                    number += 1
                lines, characters, cut = [], 0, False
                continue
            lines.append(line)
            characters += len(line)
            if limit is not None and characters >= limit:
                yield Document(number, lines)
                lines, characters, cut = [], 0, True
        if lines:
            yield Document(number, lines)

    def _lines(self) -> Iterator[str | None]:
        read = {TEXT: _text, PARAGRAPHS: _paragraphs, WIKIEXTRACTOR: _wikiextractor}[self._format]
        for file in self.files:
            yield from read(self._decoded(file), _name(file))
            if self.bytes_total:
                self._bytes_before += paths.size(file)

    def _decoded(self, file: str) -> Iterator[str]:
        """Yields the lines of a file, stripped."""
        errors = self._errors
        offset = 0
        with _open(file) as raw:
            self._raw = raw
            try:
                for data in _decompressed(raw, _name(file)):
                    size = len(data)
                    if offset == 0 and data.startswith(_BOM):
                        data = data[3:]
                    try:
                        line = data.decode("utf-8", errors)
                    except UnicodeDecodeError as error:
                        place = offset + size - len(data) + error.start
                        raise ValueError(_not_utf8(_name(file), place, data, error)) from None
                    offset += size
                    yield (line.replace("\r", "") if "\r" in line else line).strip()
            finally:
                self._raw = None


def _name(file: str) -> str:
    return "standard input" if file == STDIN else file


def _not_utf8(file: str, place: int, data: bytes, error: UnicodeDecodeError) -> str:
    hint = "save the text as UTF-8, or give --errors=replace to drop such bytes"
    if place == 0 and data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        hint = "it looks like UTF-16: save it as UTF-8"
    return (
        f"{file}: byte {place} (0x{data[error.start]:02x}, counted from 0 in the uncompressed "
        f"text) is not UTF-8; {hint}."
    )


def _open(file: str) -> IO[bytes]:
    if file == STDIN:
        # A copy of the descriptor: closing it leaves the program's standard input alone.
        return open(sys.stdin.fileno(), "rb", closefd=False)
    return paths.open_file(file, "rb")


def _decompressed(raw: IO[bytes], name: str) -> Iterator[bytes]:
    """Yields the lines of a file as bytes; what compression it has, its first bytes tell."""
    if hasattr(raw, "peek"):
        magic = raw.peek(6)[:6]
    else:
        magic = raw.read(6)
        raw.seek(0)
    reader: Any = raw
    damaged: tuple[type[Exception], ...] = ()
    if magic[:2] == b"\x1f\x8b":
        reader, damaged = gzip.GzipFile(fileobj=raw), (EOFError, gzip.BadGzipFile, zlib.error)
    elif magic[:3] == b"BZh":
        reader, damaged = bz2.BZ2File(raw), (EOFError, OSError)
    elif magic == b"\xfd7zXZ\x00":
        reader = lzma.LZMAFile(raw)  # noqa: SIM115
        damaged = (EOFError, lzma.LZMAError)
    elif magic[:4] == b"\x28\xb5\x2f\xfd":
        zstandard = _zstandard(name)
        reader, damaged = _zstandard_lines(raw, zstandard), (zstandard.ZstdError, EOFError)
    try:
        yield from reader
    except damaged as error:
        raise ValueError(
            f"{name}: the compressed data is damaged or cut off ({error}); fetch the file anew."
        ) from None


def _zstandard(name: str) -> Any:
    try:
        import zstandard
    except ImportError:
        raise ImportError(
            f"{name}: to read Zstandard files, install their library: pip install zstandard"
        ) from None
    return zstandard


def _zstandard_lines(raw: IO[bytes], zstandard: Any) -> Iterator[bytes]:
    # The library's own reader takes a file that is cut off for one that has ended.
    frame = zstandard.ZstdDecompressor().decompressobj()
    rest = b""
    while block := raw.read(1 << 18):
        while block:
            if frame.eof:
                frame = zstandard.ZstdDecompressor().decompressobj()
            *lines, rest = (rest + frame.decompress(block)).split(b"\n")
            for line in lines:
                yield line + b"\n"
            block = frame.unused_data if frame.eof else b""
    if not frame.eof:
        raise EOFError("it ends too early")
    if rest:
        yield rest


def _text(lines: Iterator[str], _: str) -> Iterator[str | None]:
    for line in lines:
        yield line or BREAK


def _paragraphs(lines: Iterator[str], _: str) -> Iterator[str | None]:
    yield BREAK
    paragraph: list[str] = []
    for line in lines:
        if line:
            paragraph.append(line)
        elif paragraph:
            yield " ".join(paragraph)
            paragraph = []
    if paragraph:
        yield " ".join(paragraph)
    yield BREAK


def _wikiextractor(lines: Iterator[str], file: str) -> Iterator[str | None]:
    inside = False
    title = ""
    for number, line in enumerate(lines, 1):
        if not line:
            continue
        if not inside and line.startswith("{"):
            yield from _json_document(line, f"{file}, line {number}")
        elif _DOC.match(line):
            yield BREAK
            inside = True
            found = _TITLE.search(line)
            title = html.unescape(found.group(1)).strip() if found else ""
        elif line == "</doc>":
            yield BREAK
            inside = False
        elif not inside:
            raise ValueError(
                f"{file}, line {number}: the text is outside <doc> ... </doc>, so this is not "
                "WikiExtractor's output; leave --input_format=wikiextractor out."
            )
        elif title and html.unescape(line) == title:
            title = ""
        else:
            title = ""
            yield line


def _json_document(line: str, where: str) -> Iterator[str | None]:
    try:
        document = json.loads(line)
        text = document["text"]
        title = document.get("title", "")
        paragraphs = text.split("\n")
    except (ValueError, KeyError, AttributeError) as error:
        raise ValueError(
            f'{where}: this is no JSON object with a "text", as WikiExtractor --json writes '
            f"it ({type(error).__name__}: {error})."
        ) from None
    yield BREAK
    for number, paragraph in enumerate(paragraphs):
        paragraph = paragraph.strip()
        if paragraph and not (number == 0 and paragraph == title):
            yield paragraph
    yield BREAK


def sentence_splitter(language: str) -> Callable[[str], list[str]]:
    """Returns a function from a paragraph to its sentences.

    Args:
      language: a code such as "en", "de", "zh".

    Raises:
      ImportError: the library is not there; names the command that installs it.
    """
    try:
        from sentencex import segment
    except ImportError:
        raise ImportError(
            "--split_sentences needs the sentencex library; install it with: "
            "pip install sentencex (the extra [sentences])"
        ) from None

    def split(paragraph: str) -> list[str]:
        sentences = (sentence.strip() for sentence in segment(language, paragraph))
        return [sentence for sentence in sentences if sentence]

    return split
