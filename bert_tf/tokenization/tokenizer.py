"""The tokenizer to use: the rules of `wordpiece`, made fast by remembering.

A text is cut into chunks at white space and around CJK ideographs. No rule looks across these
places, so the ids of a text are the ids of its chunks one after the other, and each chunk has to
be worked out once only. The first time, `wordpiece` does it: the result is the same by
construction.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from itertools import chain
from typing import Any

from bert_tf.tokenization.vocab import load_vocab
from bert_tf.tokenization.wordpiece import (
    CJK_RANGES,
    UNK_TOKEN,
    BasicTokenizer,
    Span,
    WordpieceTokenizer,
)

# `str.split` cuts at these, but cleaning drops them, which joins what they stand between.
_JOINING = "\x0b\x0c\x1c\x1d\x1e\x1f\x85"
# What `str.split` cuts at and cleaning leaves or makes a space.
_SPACES = " \t\n\r\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
_CJK = "".join(f"{chr(first)}-{chr(last)}" for first, last in CJK_RANGES)

_find_joining = re.compile(f"[{_JOINING}]").search
_without_joining = str.maketrans("", "", _JOINING)
_split_at_cjk_runs = re.compile(f"([{_CJK}]+)").split
_find_chunks = re.compile(f"[{_CJK}]|[^{_CJK}{_SPACES}]+").finditer

# Limits of the caches. A cache holds at most twice its number of entries (see _Cache). Measured
# with all of them full: 36 MB with ordinary words, 57 MB with random strings of 31 characters; 47
# and 86 MB where offsets were asked for too. Longer keys (addresses, lines of a language without
# spaces) seldom come back and are worked out anew.
_CHUNKS = 1 << 16
_WORDS = 1 << 15
_MAX_KEY_CHARACTERS = 32
# One object for each span in a short chunk, which all cached chunks share.
_SHORT_SPANS: dict[Span, Span] = {
    (start, end): (start, end)
    for start in range(_MAX_KEY_CHARACTERS)
    for end in range(start + 1, _MAX_KEY_CHARACTERS + 1)
}


class _Cache(dict[str, Any]):
    """Remembers what `compute` returns; a hit is a plain look-up in a dict.

    Keeps two generations: when the young one is full it becomes the old one, and the old one is
    forgotten but for the entries that were asked for since. Threads may share it: each step is
    one operation on a dict, and at worst a value is computed twice.
    """

    def __init__(self, compute: Callable[[str], Any], capacity: int):
        super().__init__()
        self._compute = compute
        self._capacity = capacity
        self._old: dict[str, Any] = {}

    def __missing__(self, key: str) -> Any:
        value = self._old.get(key)
        if value is None:
            value = self._compute(key)
        if len(key) <= _MAX_KEY_CHARACTERS:
            if len(self) >= self._capacity:
                self._old = dict(self)
                self.clear()
            self[key] = value
        return value


class BertTokenizer:
    """Text to WordPiece tokens and ids, exactly as the original release's tokenizer.

    One tokenizer may be used by several threads; it can be pickled (the caches stay behind).

    Args:
      vocab_file: path of the vocabulary, a token a line, UTF-8.
      do_lower_case: True for the "uncased" models, False for the "cased" ones.
      strip_accents: whether to drop accents ("é" to "e"). None, the original's way, follows
        `do_lower_case`.
      never_split: tokens of the vocabulary that are kept whole wherever they occur in a text,
        such as "[MASK]". By default such a token is split as any text: "[", "mask", "]".

    Attributes:
      vocab: token to id, in the order of the file.
      inv_vocab: id to token. An id whose token stands again further down in the file is missing.
      vocab_size: the greatest id plus 1, the rows that an embedding table needs.
      cls_id, sep_id, pad_id, mask_id, unk_id: ids of [CLS], [SEP], [PAD], [MASK], [UNK]. Reading
        one that the vocabulary lacks raises a ValueError.
      do_lower_case, strip_accents, never_split: as given, None resolved.

    Raises:
      FileNotFoundError, ValueError: the vocabulary cannot be read (`load_vocab`), or a
        `never_split` token is not in it.

    Example:
      >>> tokenizer = BertTokenizer("uncased_L-12_H-768_A-12/vocab.txt")
      >>> tokenizer.tokenize("Unaffable!")
      ['una', '##ffa', '##ble', '!']
      >>> tokenizer.encode("Unaffable!")
      [14477, 20961, 3468, 999]
    """

    def __init__(
        self,
        vocab_file: str,
        do_lower_case: bool = True,
        strip_accents: bool | None = None,
        never_split: Iterable[str] = (),
    ):
        source = f"vocabulary file {vocab_file}"
        self._set_up(load_vocab(vocab_file), do_lower_case, strip_accents, never_split, source)

    @classmethod
    def from_vocab(
        cls,
        vocab: Mapping[str, int],
        do_lower_case: bool = True,
        strip_accents: bool | None = None,
        never_split: Iterable[str] = (),
    ) -> "BertTokenizer":
        """Makes a tokenizer from a token-to-id mapping; the other arguments as in the class.

        Raises:
          ValueError: `vocab` is empty, an id is negative or stands for two tokens.
        """
        if not vocab:
            raise ValueError("the vocabulary is empty; it must hold at least a token")
        if min(vocab.values()) < 0:
            raise ValueError(f"the vocabulary holds a negative id: {min(vocab.values())}")
        seen: dict[int, str] = {}
        for token, token_id in vocab.items():
            if seen.setdefault(token_id, token) != token:
                raise ValueError(
                    f"the vocabulary gives the id {token_id} to both {seen[token_id]!r} and "
                    f"{token!r}; ids must differ"
                )
        tokenizer = cls.__new__(cls)
        tokenizer._set_up(
            dict(vocab), do_lower_case, strip_accents, never_split, "the vocabulary that was given"
        )
        return tokenizer

    def _set_up(
        self,
        vocab: dict[str, int],
        do_lower_case: bool,
        strip_accents: bool | None,
        never_split: Iterable[str],
        source: str,
    ) -> None:
        self._source = source
        self.vocab = vocab
        self.inv_vocab = {token_id: token for token, token_id in vocab.items()}
        self.vocab_size = max(self.inv_vocab) + 1
        self._basic = BasicTokenizer(do_lower_case, strip_accents, never_split)
        self._wordpiece = WordpieceTokenizer(vocab)
        self.do_lower_case = self._basic.do_lower_case
        self.strip_accents = self._basic.strip_accents
        self.never_split = self._basic.never_split
        for token in self.never_split:
            if token not in vocab:
                raise ValueError(
                    f"the never_split token {token!r} is not in {source}; add it there (in the "
                    "place of an [unusedN] line) or leave it out"
                )
        self._words = _Cache(self._word_ids, _WORDS)
        self._chunks = _Cache(self._chunk_ids, _CHUNKS)
        self._chunk_spans = _Cache(self._spans, _CHUNKS // 2)

    def __getstate__(self) -> tuple[Any, ...]:
        options = self.do_lower_case, self.strip_accents, self.never_split
        return self.vocab, *options, self._source

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self._set_up(*state)

    @property
    def cls_id(self) -> int:
        return self._special("[CLS]")

    @property
    def sep_id(self) -> int:
        return self._special("[SEP]")

    @property
    def pad_id(self) -> int:
        return self._special("[PAD]")

    @property
    def mask_id(self) -> int:
        return self._special("[MASK]")

    @property
    def unk_id(self) -> int:
        return self._special(UNK_TOKEN)

    def _special(self, token: str) -> int:
        token_id = self.vocab.get(token)
        if token_id is None:
            raise ValueError(self._lacks(token))
        return token_id

    def _lacks(self, token: str) -> str:
        if "\ufeff" + token in self.vocab:
            return (
                f"{self._source} has no token {token!r}: the file begins with a byte order mark, "
                "which became a part of its first token; save it as UTF-8 without one"
            )
        return f"{self._source} has no token {token!r}; a BERT vocabulary needs it"

    def encode(self, text: str) -> list[int]:
        """Returns the ids of `text`, without [CLS] and [SEP].

        Raises:
          TypeError: `text` is not a string.
          ValueError: a word is unknown and the vocabulary has no [UNK].
        """
        if not isinstance(text, str):
            raise TypeError(f"the text must be a str, not {type(text).__name__}")
        if self.never_split:
            ids: list[int] = []
            for part, is_kept, _ in self._basic.parts(text):
                if is_kept:
                    ids.append(self.vocab[part])
                else:
                    ids += self._encode(part)
            return ids
        return self._encode(text)

    def _encode(self, text: str) -> list[int]:
        if _find_joining(text):
            text = text.translate(_without_joining)
        if text.isascii():
            chunks = text.split()
        else:
            parts = _split_at_cjk_runs(text)
            chunks = parts[0].split()
            for i in range(1, len(parts), 2):
                chunks.extend(parts[i])  # character by character
                chunks += parts[i + 1].split()
        # All in C while chunks are known.
        return list(chain.from_iterable(map(self._chunks.__getitem__, chunks)))

    def tokenize(self, text: str) -> list[str]:
        """Returns the tokens of `text`, without [CLS] and [SEP]. An unknown word is "[UNK]".

        Raises:
          TypeError: `text` is not a string.
        """
        if UNK_TOKEN not in self.vocab:  # the tokens may then have no ids
            return [
                piece
                for word in self._basic.tokenize(text)
                for piece in self._wordpiece.tokenize(word)
            ]
        return list(map(self.inv_vocab.__getitem__, self.encode(text)))

    def encode_with_offsets(self, text: str) -> tuple[list[int], list[Span]]:
        """Returns the ids of `text`, and for each of them its (start, end) in `text`.

        `text[start:end]` is what the token was made from, accents and capitals included. Starts
        and ends never go down; two tokens made from one character have the same span. An [UNK]
        has the span of its whole word.

        Raises:
          TypeError: `text` is not a string.
          ValueError: a word is unknown and the vocabulary has no [UNK].
        """
        if not isinstance(text, str):
            raise TypeError(f"the text must be a str, not {type(text).__name__}")
        ids: list[int] = []
        spans: list[Span] = []
        for part, is_kept, part_start in self._basic.parts(text):
            if is_kept:
                ids.append(self.vocab[part])
                spans.append((part_start, part_start + len(part)))
                continue
            for match in _find_chunks(part):
                chunk = match.group()
                at = part_start + match.start()
                ids += self._chunks[chunk]
                spans += [(at + start, at + end) for start, end in self._chunk_spans[chunk]]
        return ids, spans

    def tokenize_with_offsets(self, text: str) -> tuple[list[str], list[Span]]:
        """As `encode_with_offsets`, but returns tokens in the place of ids."""
        ids, spans = self.encode_with_offsets(text)
        return self.convert_ids_to_tokens(ids), spans

    def convert_tokens_to_ids(self, tokens: Iterable[str]) -> list[int]:
        """Returns the id of each token.

        Raises:
          ValueError: a token is not in the vocabulary.
        """
        if isinstance(tokens, str):
            raise TypeError(f"tokens must be a list of tokens, not the string {tokens!r}")
        try:
            return [self.vocab[token] for token in tokens]
        except KeyError as error:
            raise ValueError(self._lacks(error.args[0])) from None

    def convert_ids_to_tokens(self, ids: Iterable[int]) -> list[str]:
        """Returns the token of each id.

        Raises:
          ValueError: no token has such an id.
        """
        try:
            return [self.inv_vocab[token_id] for token_id in ids]
        except KeyError as error:
            raise ValueError(
                f"{self._source} has no token with the id {error.args[0]} (its ids go from 0 to "
                f"{self.vocab_size - 1})"
            ) from None

    def _chunk_ids(self, chunk: str) -> tuple[int, ...]:
        words = self._basic.split(chunk)
        if len(words) == 1:
            return self._words[words[0]]
        return tuple(chain.from_iterable(map(self._words.__getitem__, words)))

    def _word_ids(self, word: str) -> tuple[int, ...]:
        try:
            return tuple(map(self.vocab.__getitem__, self._wordpiece.tokenize(word)))
        except KeyError:
            message = f"the word {word!r} is unknown, and {self._lacks(UNK_TOKEN)}"
            raise ValueError(message) from None

    def _spans(self, chunk: str) -> tuple[Span, ...]:
        """The spans of a chunk's tokens, from the chunk's start."""
        result: list[Span] = []
        for word, characters in self._basic.split_with_spans(chunk):
            pieces = self._wordpiece.tokenize(word)
            if pieces == [UNK_TOKEN]:
                pieces = [word]
            at = 0
            for piece in pieces:
                size = len(piece) - (2 if at else 0)  # "##"
                start = min(start for start, _ in characters[at : at + size])
                end = max(end for _, end in characters[at : at + size])
                result.append(_SHORT_SPANS.get((start, end), (start, end)))
                at += size
        return tuple(result)
