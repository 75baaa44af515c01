"""The lines of a text file, and what a model reads of them."""

from __future__ import annotations

import dataclasses
import hashlib
import os
from collections.abc import Iterator
from typing import IO

import numpy as np

from bert_tf import paths
from bert_tf.tokenization import packing
from bert_tf.tokenization.tokenizer import BertTokenizer

_SEPARATOR = " ||| "
_BOM = b"\xef\xbb\xbf"


def split_pair(line: str) -> tuple[str, str | None]:
    """Splits a line at its last " ||| ", the original's rule.

    Returns: the text and None, or the two texts.
    """
    first, separator, second = line.strip().rpartition(_SEPARATOR)
    return (first, second) if separator else (second, None)


class LineReader:
    """The lines of a text file, one at a time, as the original reads them.

    A line ends at "\\n" alone, and every "\\r" in it is dropped. A byte order mark at the start of
    the file is dropped, too.

    Args:
      path: the file; a local path or an address.

    Attributes:
      count: lines read so far.

    Raises:
      FileNotFoundError, IsADirectoryError, PermissionError: the file cannot be read.
    """

    def __init__(self, path: str):
        check_input(path)
        self.path = path
        self.count = 0
        self._digest = hashlib.sha256()
        self._handle: IO[bytes] = paths.open_file(path, "rb")

    def __enter__(self) -> LineReader:
        return self

    def __exit__(self, *error: object) -> None:
        self._handle.close()

    def __iter__(self) -> Iterator[str]:
        """Yields the lines that are left.

        Raises:
          ValueError: a line is not UTF-8; names it.
        """
        while data := self._next():
            yield self._decode(data)

    def skip(self, count: int) -> None:
        """Reads on to line `count`, or to the end where there are fewer."""
        while self.count < count and self._next():
            pass

    def digest(self) -> str:
        """Returns the SHA-256 of all that was read so far."""
        return self._digest.hexdigest()

    def _next(self) -> bytes:
        data = self._handle.readline()
        if data:
            self._digest.update(data)
            self.count += 1
        return data

    def _decode(self, data: bytes) -> str:
        if self.count == 1:
            data = data.removeprefix(_BOM)
        try:
            return data.decode("utf-8").removesuffix("\n").replace("\r", "")
        except UnicodeDecodeError as error:
            hint = "save the file as UTF-8"
            if self.count == 1 and data[:2] in (b"\xff\xfe", b"\xfe\xff"):
                hint = "it looks like UTF-16; save it as UTF-8"
            raise ValueError(
                f"{self.path}, line {self.count}: byte {error.start} of the line "
                f"(0x{data[error.start]:02x}) is not UTF-8; {hint}."
            ) from None


def check_input(path: str) -> None:
    """Raises FileNotFoundError, IsADirectoryError or ValueError if a file holds no line."""
    if not paths.exists(path):
        raise FileNotFoundError(f"There is no input file {path}.")
    if paths.is_dir(path):
        raise IsADirectoryError(f"The input file {path} is a folder; name a file of texts.")
    # Not so for a pipe, whose size is 0 as well.
    if paths.has_scheme(path) or os.path.isfile(paths.local(path)):
        if not paths.size(path):
            raise ValueError(f"The input file {path} is empty; it must hold a text on each line.")
    else:
        raise ValueError(f"The input file {path} is not a regular file; write the texts to one.")


@dataclasses.dataclass(frozen=True)
class Text:
    """A line as the model sees it.

    Attributes:
      ids, segments: int32 [T], from `packing.pack`.
      was_cut: whether tokens were left out.
    """

    ids: np.ndarray
    segments: np.ndarray
    was_cut: bool


def encode(tokenizer: BertTokenizer, line: str, max_seq_length: int) -> Text:
    """Makes a model's input of a line: a text, or a pair with " ||| " between.

    Args:
      tokenizer: the model's.
      line: the text; an empty one makes [CLS] [SEP].
      max_seq_length: longest input in tokens, 3 or more.
    """
    first, second = split_pair(line)
    ids_a = tokenizer.encode(first)
    ids_b = (tokenizer.encode(second) or None) if second else None
    room = max_seq_length - (2 if ids_b is None else 3)
    ids_a, ids_b, was_cut = packing.truncate_pair(ids_a, ids_b, room)
    return Text(*packing.pack(ids_a, ids_b, tokenizer.cls_id, tokenizer.sep_id), was_cut)
