"""Documents as arrays of tokens, in memory and on disk.

A packed token is `2 * id + 1` if it goes on with the word of the token before it ("##" pieces;
with pre-segmented text also an ideograph that follows another one without a space), else `2 * id`.
So whole-word masking needs neither the vocabulary nor the text.
"""

import contextlib
import dataclasses
import itertools
import os
import zlib
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from bert_tf.tokenization import BertTokenizer
from bert_tf.tokenization.wordpiece import is_cjk
from data_prep.corpus import Document

_MAGIC = 0x32545842
# int64: magic, documents, sentences, tokens, bytes of a token, unknown tokens, CRC-32 of all else.
_HEADER = 7


def token_dtype(vocab_size: int) -> np.dtype:
    """Returns the smallest type that holds every packed token."""
    return np.dtype("<u2" if vocab_size <= 1 << 15 else "<u4")


@dataclasses.dataclass
class PackedText:
    """Some documents. D documents, S sentences, N tokens; none is empty.

    Attributes:
      tokens: uint16 or uint32 [N], packed.
      sentence_ends: int64 [S + 1], starts with 0: sentence s is
        tokens[sentence_ends[s]:sentence_ends[s + 1]].
      document_ends: int64 [D + 1], starts with 0, counts sentences.
      numbers: int64 [D], which document it is; parts of one document have the same number.
      unknown: how many tokens are [UNK].
    """

    tokens: np.ndarray
    sentence_ends: np.ndarray
    document_ends: np.ndarray
    numbers: np.ndarray
    unknown: int

    @property
    def documents(self) -> int:
        return len(self.numbers)

    @property
    def sentences(self) -> int:
        return len(self.sentence_ends) - 1

    def save(self, path: str) -> None:
        """Writes a file; its name appears when it is complete, an error leaves nothing."""
        table = np.zeros((self.documents + 1, 2), "<i8")
        table[:, 0] = self.document_ends
        table[:-1, 1] = self.numbers
        header = (
            _MAGIC,
            self.documents,
            self.sentences,
            len(self.tokens),
            self.tokens.itemsize,
            self.unknown,
        )
        parts = [
            np.array(header, "<i8").tobytes(),
            table.tobytes(),
            self.sentence_ends.astype("<i8").tobytes(),
            self.tokens.tobytes(),
        ]
        checksum = 0
        for part in parts:
            checksum = zlib.crc32(part, checksum)
        parts.insert(1, np.array([checksum], "<i8").tobytes())
        try:
            with open(path + ".tmp", "wb") as file:
                for part in parts:
                    file.write(part)
            os.replace(path + ".tmp", path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.remove(path + ".tmp")
            raise

    @classmethod
    def load(cls, path: str) -> "PackedText":
        """Reads a file that `save` wrote.

        Raises:
          ValueError: it is damaged, which its checksum tells; names the file.
        """
        with open(path, "rb") as file:
            data = file.read()
        layout = FileLayout(data[: FileLayout.HEADER_SIZE], path)
        if len(data) != layout.size:
            raise ValueError(f"{path} is damaged or cut off; {_remedy(path)}")
        view = memoryview(data)
        checksum = zlib.crc32(view[: layout.checksum_at])
        if zlib.crc32(view[FileLayout.HEADER_SIZE :], checksum) != layout.checksum:
            raise ValueError(f"{path} is damaged: its checksum is wrong; {_remedy(path)}")

        table = np.frombuffer(data, "<i8", 2 * layout.documents + 2, layout.documents_at)
        return cls(
            np.frombuffer(data, layout.dtype, layout.tokens, layout.tokens_at),
            np.frombuffer(data, "<i8", layout.sentences + 1, layout.sentences_at),
            table[::2],
            table[1:-1:2],
            layout.unknown,
        )


def _remedy(path: str) -> str:
    return f"delete the folder {os.path.dirname(path) or '.'} to make the tokens anew."


class FileLayout:
    """Where things are in a file of packed text.

    Attributes:
      documents, sentences, tokens, token_size, unknown: counts, and the bytes of a token.
      checksum, checksum_at: the CRC-32 of all other bytes, and where it stands in the header.
      documents_at: int64 [D + 1, 2], the first sentence of a document and its number.
      sentences_at: int64 [S + 1], `PackedText.sentence_ends`.
      tokens_at: the tokens; `dtype` is their type.
      size: of the file in bytes.
    """

    HEADER_SIZE = 8 * _HEADER

    def __init__(self, header: bytes, path: str):
        values = np.frombuffer(header.ljust(self.HEADER_SIZE), "<i8").tolist()
        if values[0] != _MAGIC:
            raise ValueError(f"{path} is no file of tokens; {_remedy(path)}")
        _, self.documents, self.sentences, self.tokens, self.token_size = values[:5]
        self.unknown, self.checksum = values[5:]
        self.checksum_at = self.HEADER_SIZE - 8
        self.dtype = f"<u{self.token_size}"
        self.documents_at = self.HEADER_SIZE
        self.sentences_at = self.documents_at + 16 * (self.documents + 1)
        self.tokens_at = self.sentences_at + 8 * (self.sentences + 1)
        self.size = self.tokens_at + self.token_size * self.tokens


class Packer:
    """Tokenizes documents.

    Args:
      tokenizer: the tokenizer.
      pre_segmented: whether spaces between ideographs mark words, as a segmenter sets them.
      split: from a line to its sentences, or None if a line is one.
    """

    def __init__(
        self,
        tokenizer: BertTokenizer,
        pre_segmented: bool = False,
        split: Callable[[str], list[str]] | None = None,
    ):
        self._tokenizer = tokenizer
        self._split = split
        self._encode: Callable[[str], list[int]] = tokenizer.encode
        if pre_segmented:
            self._encode = self._encode_segmented
        size = tokenizer.vocab_size
        self._dtype = token_dtype(size)
        self._continues = continues(tokenizer)
        self._ideograph = [False] * size
        for token, token_id in tokenizer.vocab.items():
            self._ideograph[token_id] = len(token) == 1 and is_cjk(ord(token))
        self._unk = tokenizer.unk_id
        # A joined ideograph is marked by adding the size to its id.
        self._size = size
        joined = np.arange(size) * 2 + 1
        self._packed = np.concatenate([np.arange(size) * 2 + self._continues, joined])
        self._packed = self._packed.astype(self._dtype)

    def _encode_segmented(self, line: str) -> list[int]:
        result: list[int] = []
        ideograph, unk = self._ideograph, self._unk
        for chunk in line.split():
            ids = self._tokenizer.encode(chunk)
            before = False
            for token_id in ids:
                # An ideograph that the vocabulary lacks is [UNK].
                is_ideograph = ideograph[token_id] or token_id == unk
                result.append(token_id + self._size if before and is_ideograph else token_id)
                before = is_ideograph
        return result

    def pack(self, documents: Iterable[Document]) -> PackedText:
        """Returns the documents as arrays, without sentences and documents that are empty."""
        ids: list[int] = []
        parts: list[np.ndarray] = []
        before = 0
        sentence_ends = [0]
        document_ends = [0]
        numbers: list[int] = []
        encode, split = self._encode, self._split
        for document in documents:
            for line in document.lines:
                for sentence in split(line) if split else (line,):
                    ids += encode(sentence)
                    if before + len(ids) > sentence_ends[-1]:
                        sentence_ends.append(before + len(ids))
                if len(ids) > 1 << 16:
                    parts.append(self._packed[ids])
                    before += len(ids)
                    ids = []
            if len(sentence_ends) - 1 > document_ends[-1]:
                document_ends.append(len(sentence_ends) - 1)
                numbers.append(document.number)
        parts.append(self._packed[np.array(ids, np.int64)])
        tokens = np.concatenate(parts)
        return PackedText(
            tokens,
            np.array(sentence_ends, np.int64),
            np.array(document_ends, np.int64),
            np.array(numbers, np.int64),
            int(np.count_nonzero(tokens >> 1 == self._unk)),
        )


def continues(tokenizer: BertTokenizer) -> np.ndarray:
    """Returns bool [V]: which ids are pieces that go on with a word ("##...")."""
    result = np.zeros(tokenizer.vocab_size, bool)
    for token, token_id in tokenizer.vocab.items():
        result[token_id] = token.startswith("##")
    return result


def replacement_ids(tokenizer: BertTokenizer) -> np.ndarray:
    """Returns int64 [lines of the vocabulary]: what a random token is drawn from, specials too."""
    return np.fromiter(tokenizer.vocab.values(), np.int64)


def special_ids(tokenizer: BertTokenizer) -> tuple[int, int, int]:
    """Returns the ids of [CLS], [SEP] and [MASK]."""
    return tokenizer.cls_id, tokenizer.sep_id, tokenizer.mask_id


def as_sentences(text: PackedText) -> Sequence[list[list[int]]]:
    """Returns the ids of each document's sentences, for tests and small programs."""
    ids = (text.tokens >> 1).tolist()
    ends = text.sentence_ends.tolist()
    sentences = [ids[a:b] for a, b in itertools.pairwise(ends)]
    documents = text.document_ends.tolist()
    return [sentences[a:b] for a, b in itertools.pairwise(documents)]
