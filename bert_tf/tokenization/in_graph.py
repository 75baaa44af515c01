"""The rules of `wordpiece` as TensorFlow ops, for models that take raw strings.

A SavedModel with these ops loads in a process that has tensorflow and tensorflow-text alone. The
result equals `BertTokenizer`'s for every text; the character properties are those of the Python
that builds the graph.

Texts of plain ASCII take tensorflow-text's one-pass WordPiece, which agrees with the rules there.
All others go through the rules proper: tables over code points, then WordPiece word by word.

Bytes that are not UTF-8 are read as U+FFFD, which the rules drop.

Letters: N texts; B code points of all texts, C characters that they became, W words, K tokens.
"""

import functools
import re
import unicodedata
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from bert_tf.tokenization.packing import TRUNCATIONS
from bert_tf.tokenization.tokenizer import BertTokenizer
from bert_tf.tokenization.wordpiece import (
    MAX_WORD_CHARACTERS,
    UNK_TOKEN,
    clean,
    is_mark,
    is_punctuation,
)

try:
    import tensorflow_text as tf_text
except (ImportError, tf.errors.NotFoundError) as error:
    raise ImportError(
        "tokenization inside a TensorFlow graph needs tensorflow-text, of the same version as "
        f"TensorFlow ({tf.__version__}): pip install 'tensorflow-text~={tf.__version__[:4]}.0'. "
        "There is none for macOS and Windows: make and load models that take raw strings on "
        "Linux, or use the ids of BertTokenizer"
    ) from error

# An entry of the tables is what a character becomes: the code point if it is one character, the
# place in the table `more` if it is several, and what is to be known about it in single bits.
_CODE_POINT = (1 << 21) - 1
_COUNT_SHIFT = 21  # three bits: the number of characters, 0 to 4
_ONE = 1 << _COUNT_SHIFT
_SPACE = 1 << 24
_ALONE = 1 << 25  # a word by itself: an ideograph, a punctuation character
_IDEOGRAPH = 1 << 26
_MARK = 1 << 27  # to be dropped when marks are in order (the full table alone has them)
_KEPT_MARK = 1 << 28  # NFD may move it, but it is not of the category Mn, so it stays

# All characters with any property lie below _END or in the second range; the planes between are
# empty, those after it private.
_END = 0x40000
_TAGS, _TAGS_END = 0xE0000, 0xE0200
_NEAR = [*range(_END), *range(_TAGS, _TAGS_END)]

_SIGMA = 0x3A3
# For a sigma a character is one of these.
_UNCASED, _IGNORABLE, _CASED = 0, 1, 2

_MAX_WORD_BYTES = 4 * MAX_WORD_CHARACTERS
_MAX_TOKEN_BYTES = 256

# A pattern of RE2: ASCII without control characters but those that are white space.
_PLAIN = r"[ -~\t\r\n]*"


class _Tables(NamedTuple):
    """int32 arrays; the first index is the place in `_NEAR`."""

    short: np.ndarray  # entries, marks dropped
    full: np.ndarray  # entries, marks still there
    more: np.ndarray  # entries of characters that become several
    sigma: np.ndarray  # _UNCASED, _IGNORABLE or _CASED
    combining: np.ndarray  # canonical combining classes


def _sigma_class(character: str) -> int:
    """What Python's `str.lower` takes the character for when it meets a sigma near it."""
    if clean(ord(character)) == "":
        return _IGNORABLE  # gone by then
    if (character + "Σ").lower()[-1] == "ς":
        return _CASED
    return _IGNORABLE if f"A{character}Σ".lower()[-1] == "ς" else _UNCASED


@functools.lru_cache(maxsize=4)
def _tables(do_lower_case: bool, strip_accents: bool) -> _Tables:
    short = np.zeros(len(_NEAR), np.int32)
    full = np.zeros(len(_NEAR), np.int32)
    sigma = np.zeros(len(_NEAR), np.int32)
    combining = np.zeros(len(_NEAR), np.int32)
    more: list[int] = []

    def one(character: str) -> int:
        code_point = ord(character)
        flags = _ALONE if is_punctuation(code_point) else 0
        if strip_accents and is_mark(code_point):
            flags |= _MARK
        elif strip_accents and unicodedata.combining(character):
            flags |= _KEPT_MARK
        return code_point | _ONE | flags

    def entry(parts: list[int], flags: int) -> int:
        if len(parts) == 1:
            return parts[0] | flags
        for part in parts:
            flags |= part & _KEPT_MARK
        place = len(more)
        more.extend(part | (flags & (_ALONE | _IDEOGRAPH)) for part in parts)
        return (place if parts else 0) | len(parts) << _COUNT_SHIFT | flags

    for place, code_point in enumerate(_NEAR):
        character = chr(code_point)
        cleaned = clean(code_point)
        if not cleaned:
            sigma[place] = _IGNORABLE
            continue
        if cleaned.isspace():
            short[place] = full[place] = 0x20 | _ONE | _SPACE
            continue
        flags = 0 if len(cleaned) == 1 else _ALONE | _IDEOGRAPH
        became = character
        if unicodedata.category(character) not in ("Cn", "Co", "Cs"):
            if do_lower_case:
                became = became.lower()
                sigma[place] = _sigma_class(character)
            if strip_accents:
                became = unicodedata.normalize("NFD", became)
                combining[place] = unicodedata.combining(character)
        parts = [one(part) for part in became]
        full[place] = entry(parts, flags)
        left = [part for part in parts if not part & _MARK]
        short[place] = full[place] if len(left) == len(parts) else entry(left, flags)
    return _Tables(short, full, np.array(more or [0], np.int32), sigma, combining)


def _may_occur(token: str) -> bool:
    """Tells whether a word could be or hold the token; the tokenizer need not know it if not."""
    length = len(token.removeprefix("##"))
    return 0 < length <= MAX_WORD_CHARACTERS and not re.search("[\0\ud800-\udfff]", token)


class _Pieces:
    """tensorflow-text's WordPiece with our ids.

    It wants tokens numbered from 0 without a gap, and no empty ones.
    """

    def __init__(self, vocab: dict[str, int], max_bytes: int, by_word: bool):
        self._tokenizer = tf_text.FastWordpieceTokenizer(
            list(vocab),
            max_bytes_per_word=max_bytes,
            token_out_type=tf.int32,
            unknown_token=UNK_TOKEN,
            no_pretokenization=by_word,
        )
        self._ids = tf.constant(list(vocab.values()), tf.int32)

    def __call__(self, texts: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]:
        """Returns ids int32 [K], row splits int64 [N + 1], byte offsets starts and ends [K]."""
        places, starts, ends = self._tokenizer.tokenize_with_offsets(texts)
        ids = tf.gather(self._ids, places.values)
        return (
            ids,
            places.row_splits,
            tf.cast(starts.values, tf.int32),
            tf.cast(ends.values, tf.int32),
        )


class _Words(NamedTuple):
    words: tf.Tensor  # string [W]
    of_rows: tf.Tensor  # int64 [N + 1], row splits of the words
    characters: tf.Tensor  # int32 [C], code points of all words
    splits: tf.Tensor  # int64 [W + 1], row splits of the characters
    starts: tf.Tensor | None  # int32 [C], with offsets: what part of its text each came from
    ends: tf.Tensor | None


# Tokens of the texts: ids int32 [K], row splits int64 [N + 1]; with offsets also starts and ends,
# int32 [K].
_Tokens = tuple[tf.Tensor, ...]


class InGraphTokenizer(tf.Module):
    """A `BertTokenizer` as TensorFlow ops: the same ids and offsets for every text.

    May be called eagerly and inside a `tf.function`; a SavedModel whose functions use it needs
    `import tensorflow_text` before it is loaded, and nothing of this package.

    Args:
      tokenizer: the tokenizer to take vocabulary and options from.

    Raises:
      ValueError: the vocabulary lacks [UNK], [CLS], [SEP] or [PAD], or holds a token of over 256
        bytes.

    Example:
      >>> tokenizer = InGraphTokenizer(BertTokenizer("uncased_L-12_H-768_A-12/vocab.txt"))
      >>> tokenizer.tokenize(["Unaffable!", ""])
      <tf.RaggedTensor [[14477, 20961, 3468, 999], []]>
    """

    def __init__(self, tokenizer: BertTokenizer):
        super().__init__(name="in_graph_tokenizer")
        self._cls_id, self._sep_id = tokenizer.cls_id, tokenizer.sep_id
        self._pad_id, self._unk_id = tokenizer.pad_id, tokenizer.unk_id
        self._do_lower_case = tokenizer.do_lower_case
        self._strip_accents = tokenizer.strip_accents

        # The longest first, as RE2 takes the first that fits.
        self._kept = sorted(tokenizer.never_split, key=len, reverse=True)
        self._kept_ids = tokenizer.convert_tokens_to_ids(self._kept)
        vocab = {
            token: token_id for token, token_id in tokenizer.vocab.items() if _may_occur(token)
        }
        for token, token_id in vocab.items():
            size = len(token.removeprefix("##").encode("utf-8"))
            if size > _MAX_TOKEN_BYTES:
                raise ValueError(
                    f"tokenization in the graph takes tokens of up to {_MAX_TOKEN_BYTES} bytes, "
                    f"and that of the id {token_id} has {size}: {token[:40]!r}...; use another "
                    "vocabulary, or give the model the ids of BertTokenizer"
                )
        tables = _tables(self._do_lower_case, self._strip_accents)
        with tf.device("CPU"):
            self._by_word = _Pieces(vocab, _MAX_WORD_BYTES, True)
            # In ASCII a character is a byte. tensorflow-text would find tokens with white space
            # there, so they stay out, and it refuses a vocabulary without any word, hence "é".
            plain = {
                token: token_id
                for token, token_id in vocab.items()
                if re.fullmatch("[!-~]+", token)
            }
            plain["é"] = self._unk_id
            self._plain_pieces = _Pieces(plain, MAX_WORD_CHARACTERS, False)
            self._short = tf.constant(tables.short)
            self._full = tf.constant(tables.full)
            self._more = tf.constant(tables.more)
            self._sigma = tf.constant(tables.sigma)
            self._combining = tf.constant(tables.combining)

    @tf.function(autograph=False, input_signature=[tf.TensorSpec([None], tf.string)])
    def tokenize(self, texts: tf.Tensor) -> tf.RaggedTensor:
        """Returns the ids of each text, without [CLS] and [SEP].

        Args:
          texts: string [N], UTF-8.

        Returns:
          int32 [N, (tokens)].
        """
        ids, splits = self._tokenize(texts, False)
        return tf.RaggedTensor.from_row_splits(ids, splits, validate=False)

    @tf.function(autograph=False, input_signature=[tf.TensorSpec([None], tf.string)])
    def tokenize_with_offsets(
        self, texts: tf.Tensor
    ) -> tuple[tf.RaggedTensor, tf.RaggedTensor, tf.RaggedTensor]:
        """Returns the ids of each text and the place of each token in it.

        The spans are those of `BertTokenizer.encode_with_offsets`, in characters (code points),
        not bytes. Where a text is not UTF-8, each U+FFFD that stands for the wrong bytes counts
        as one, as in `bytes.decode(errors="replace")`.

        Args:
          texts: string [N], UTF-8.

        Returns:
          ids: int32 [N, (tokens)].
          starts, ends: int32 [N, (tokens)], ends exclusive.
        """
        ids, splits, starts, ends = self._tokenize(texts, True)
        ragged = functools.partial(tf.RaggedTensor.from_row_splits, validate=False)
        return ragged(ids, splits), ragged(starts, splits), ragged(ends, splits)

    def character_counts(self, code_points: tf.Tensor) -> tf.Tensor:
        """Returns how many characters of words each character becomes, before WordPiece.

        That is 0 for white space and what is dropped, and over 1 for what is decomposed.

        Args:
          code_points: int32 [C].

        Returns:
          int32 [C].
        """
        with tf.device("CPU"):
            entries = self._look_up(self._short, code_points, code_points | _ONE)
            return tf.where(_has(entries, _SPACE), 0, _count(entries))

    def pack(
        self,
        a: tf.RaggedTensor,
        b: tf.RaggedTensor | None,
        max_seq_length: int,
        truncation: str = "longest_first",
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Makes `[CLS] A [SEP]` or `[CLS] A [SEP] B [SEP]`, cut and padded to `max_seq_length`.

        As `truncate_pair`, `pack` and `pad` of `bert_tf.tokenization.packing`: a row of `b` that
        is empty counts as no second text.

        Args:
          a: int [N, (tokens)], ids of the first texts from `tokenize`.
          b: int [N, (tokens)], ids of the second texts; None for texts alone.
          max_seq_length: L, at least 3 with second texts and 2 without.
          truncation: one of `packing.TRUNCATIONS`.

        Returns:
          input_ids, input_mask, segment_ids: int32 [N, L].

        Raises:
          ValueError: `truncation` is unknown or `max_seq_length` too small.
        """
        if truncation not in TRUNCATIONS:
            raise ValueError(
                f"unknown truncation {truncation!r}; choose one of {', '.join(TRUNCATIONS)}"
            )
        least = 2 if b is None else 3
        if max_seq_length < least:
            raise ValueError(
                f"max_seq_length {max_seq_length} has no room for [CLS] and [SEP]; it must be at "
                f"least {least}"
            )
        with tf.device("CPU"):
            length_a = tf.cast(a.row_lengths(), tf.int32)[:, None]
            length_b = tf.zeros_like(length_a)
            if b is not None:
                length_b = tf.cast(b.row_lengths(), tf.int32)[:, None]
            room = max_seq_length - tf.where(length_b > 0, 3, 2)
            # `kept_lengths` in one expression: each has a half, or what the other leaves of it.
            half_a, half_b = (room + 1) // 2, room // 2
            keep_a = tf.minimum(length_a, tf.maximum(half_a, room - length_b))
            keep_b = tf.minimum(length_b, tf.maximum(half_b, room - length_a))
            position = tf.range(max_seq_length)[None, :] - 1
            ids = _kept_id(a, length_a, keep_a, position, truncation)
            ids = tf.where(position < 0, self._cls_id, ids)
            ids = tf.where(position == keep_a, self._sep_id, ids)
            end = keep_a + 2
            segments = tf.zeros_like(ids)
            if b is not None:
                end += tf.where(keep_b > 0, keep_b + 1, 0)
                position_b = position - (keep_a + 1)
                ids_b = _kept_id(b, length_b, keep_b, position_b, truncation)
                ids_b = tf.where(position_b == keep_b, self._sep_id, ids_b)
                ids = tf.where(position_b >= 0, ids_b, ids)
                segments = tf.cast((position_b >= 0) & (position + 1 < end), tf.int32)
            is_token = position + 1 < end
            ids = tf.where(is_token, ids, self._pad_id)
            return ids, tf.cast(is_token, tf.int32), segments

    def _tokenize(self, texts: tf.Tensor, offsets: bool) -> _Tokens:
        with tf.device("CPU"):
            return self._around_kept(texts, offsets) if self._kept else self._any(texts, offsets)

    def _around_kept(self, texts: tf.Tensor, offsets: bool) -> _Tokens:
        """Cuts texts at `never_split` strings, and tokenizes what is between them."""
        pattern = "(" + "|".join(map(re.escape, self._kept)) + ")"
        # No text has the byte 0xff in it then. Every other part is one of the strings.
        texts = tf.strings.unicode_transcode(texts, "UTF-8", "UTF-8", errors="replace")
        cut = tf.strings.split(tf.strings.regex_replace(texts, pattern, b"\xff\\1\xff"), b"\xff")
        parts, of_part = cut.values, tf.repeat(cut.row_starts(), cut.row_lengths())
        is_kept = (tf.range(tf.size(parts, tf.int64)) - of_part) % 2 == 1

        tokens = self._any(tf.where(is_kept, "", parts), offsets)
        counts = tokens[1][1:] - tokens[1][:-1]
        # A string's token goes before those of the next part: between the others' places.
        places = tf.gather(tokens[1], tf.where(is_kept)[:, 0])
        kept = tf.boolean_mask(parts, is_kept)
        which = tf.argmax(kept[:, None] == tf.constant(self._kept)[None, :], axis=1)
        counts += tf.cast(is_kept, tf.int64)
        splits = tf.concat([[0], tf.cumsum(counts)], 0)
        order = tf.argsort(
            tf.concat([2 * tf.range(tf.size(tokens[0], tf.int64)) + 1, 2 * places], 0), stable=True
        )
        ids = tf.gather(tf.concat([tokens[0], tf.gather(self._kept_ids, which)], 0), order)
        row_splits = tf.gather(splits, cut.row_splits)
        if not offsets:
            return ids, row_splits

        lengths = tf.strings.length(parts, "UTF8_CHAR")
        before = tf.cumsum(lengths, exclusive=True)
        before -= tf.gather(before, of_part)
        shifts = tf.repeat(before, counts)
        ends = tf.boolean_mask(lengths, is_kept)
        starts = tf.gather(tf.concat([tokens[2], tf.zeros_like(ends)], 0), order)
        return (
            ids,
            row_splits,
            starts + shifts,
            tf.gather(tf.concat([tokens[3], ends], 0), order) + shifts,
        )

    def _any(self, texts: tf.Tensor, offsets: bool) -> _Tokens:
        is_plain = tf.strings.regex_full_match(texts, _PLAIN)
        return tf.cond(
            tf.reduce_all(is_plain),
            lambda: self._plain(texts, offsets),
            lambda: self._mixed(texts, is_plain, offsets),
        )

    def _plain(self, texts: tf.Tensor, offsets: bool) -> _Tokens:
        """For texts of ASCII without control characters."""
        if self._do_lower_case:
            texts = tf.strings.lower(texts)
        tokens = self._plain_pieces(texts)
        return tokens if offsets else tokens[:2]

    def _mixed(self, texts: tf.Tensor, is_plain: tf.Tensor, offsets: bool) -> _Tokens:
        """For plain texts and others together: each kind by itself, then in order again."""
        plain, other = tf.where(is_plain)[:, 0], tf.where(~is_plain)[:, 0]
        firsts = self._plain(tf.gather(texts, plain), offsets)
        seconds = self._exact(tf.gather(texts, other), offsets)
        splits = tf.concat([firsts[1], seconds[1][1:] + firsts[1][-1]], 0)
        lengths = splits[1:] - splits[:-1]
        places = tf.math.invert_permutation(tf.concat([plain, other], 0))
        lengths = tf.gather(lengths, places)
        in_order = tf.concat([[0], tf.cumsum(lengths)], 0)
        # Where each token stands among those of both kinds.
        shifts = tf.gather(splits, places) - in_order[:-1]
        tokens = tf.range(in_order[-1]) + tf.repeat(shifts, lengths)
        ids, *spans = (
            tf.gather(tf.concat([first, second], 0), tokens)
            for first, second in zip((firsts[0], *firsts[2:]), (seconds[0], *seconds[2:]))
        )
        return (ids, in_order, *spans)

    def _exact(self, texts: tf.Tensor, offsets: bool) -> _Tokens:
        """For any text."""
        words = self._words(texts, offsets)
        lengths = words.splits[1:] - words.splits[:-1]
        is_long = lengths > MAX_WORD_CHARACTERS
        too_many_bytes = "x" * (_MAX_WORD_BYTES + 1)
        ids, pieces_of_words, first_bytes, end_bytes = self._by_word(
            tf.cond(
                tf.reduce_any(is_long),
                lambda: tf.where(is_long, too_many_bytes, words.words),
                lambda: words.words,
            )
        )
        row_splits = tf.gather(pieces_of_words, words.of_rows)
        if not offsets:
            return ids, row_splits

        # From the bytes of a word to its characters, and to what these came from.
        bounds = (0, 0x80, 0x800, 0x10000)
        sizes = tf.add_n([tf.cast(words.characters >= least, tf.int32) for least in bounds])
        bytes_before = tf.cumsum(sizes, exclusive=True)
        counts = pieces_of_words[1:] - pieces_of_words[:-1]
        word_first = tf.repeat(words.splits[:-1], counts)
        word_last = tf.repeat(words.splits[1:], counts) - 1
        word_bytes = tf.gather(bytes_before, word_first)
        first = tf.searchsorted(bytes_before, word_bytes + first_bytes, "right", tf.int64) - 1
        last = tf.searchsorted(bytes_before, word_bytes + end_bytes - 1, "right", tf.int64) - 1
        # An unknown word as a whole, as a long one too, of which other bytes were looked at.
        is_unknown = ids == self._unk_id
        first = tf.where(is_unknown, word_first, first)
        last = tf.where(is_unknown, word_last, last)
        return ids, row_splits, tf.gather(words.starts, first), tf.gather(words.ends, last)

    def _words(self, texts: tf.Tensor, offsets: bool) -> _Words:
        """Steps 1 to 5 of the rules."""
        # A space after each text keeps the rules that look around inside of it.
        decoded = tf.strings.unicode_decode(
            tf.strings.join([texts, " "]), "UTF-8", errors="replace"
        )
        code_points, splits = decoded.values, decoded.row_splits
        entries = self._look_up(self._short, code_points, code_points | _ONE)
        is_moved = tf.reduce_any(_has(entries, _KEPT_MARK))
        starts = ends = None
        if offsets:
            entries, splits, starts, ends = self._in_full(code_points, splits, is_moved, True)
        else:
            entries, splits = tf.cond(
                is_moved,
                lambda: self._in_full(code_points, splits, is_moved, False),
                lambda: self._in_short(code_points, entries, splits),
            )

        is_character = ~_has(entries, _SPACE)
        is_break = _has(entries, _SPACE | _ALONE)
        starts_word = is_character & (_has(entries, _ALONE) | tf.concat([[True], is_break[:-1]], 0))
        places = tf.where(is_character)[:, 0]
        characters = tf.gather(entries, places) & _CODE_POINT
        firsts = tf.where(tf.gather(starts_word, places))[:, 0]
        word_splits = tf.concat([firsts, [tf.size(characters, tf.int64)]], 0)
        words = tf.raw_ops.UnicodeEncode(
            input_values=characters, input_splits=word_splits, output_encoding="UTF-8"
        )
        words_of_rows = tf.gather(_before(starts_word), splits)
        if offsets:
            starts, ends = tf.gather(starts, places), tf.gather(ends, places)
        return _Words(words, words_of_rows, characters, word_splits, starts, ends)

    def _look_up(self, table: tf.Tensor, code_points: tf.Tensor, default: tf.Tensor) -> tf.Tensor:
        """Gathers from a table; `default` [B] is for the code points that the table leaves out."""

        def far() -> tf.Tensor:
            is_tag = (code_points >= _TAGS) & (code_points < _TAGS_END)
            is_far = (code_points >= _END) & ~is_tag
            places = tf.where(is_tag, code_points - (_TAGS - _END), code_points)
            return tf.where(is_far, default, tf.gather(table, tf.where(is_far, 0, places)))

        return tf.cond(
            tf.reduce_any(code_points >= _END), far, lambda: tf.gather(table, code_points)
        )

    def _final_sigmas(self, code_points: tf.Tensor, entries: tf.Tensor) -> tf.Tensor:
        """Makes each sigma that ends a word a last one.

        It does if the nearest character before it that is not ignorable is cased, and the nearest
        after it is not.
        """
        if not self._do_lower_case:
            return entries
        is_sigma = code_points == _SIGMA

        def look_around() -> tf.Tensor:
            classes = self._look_up(self._sigma, code_points, tf.zeros_like(code_points))
            counts = classes != _IGNORABLE
            around = tf.concat([[_UNCASED], tf.boolean_mask(classes, counts), [_UNCASED]], 0)
            sigmas = tf.where(is_sigma)
            # The place in `around` of what stands before each sigma; the sigma itself is next.
            before = tf.gather(tf.cumsum(tf.cast(counts, tf.int32)), sigmas[:, 0]) - 1
            is_final = (tf.gather(around, before) == _CASED) & (
                tf.gather(around, before + 2) != _CASED
            )
            # "ς" comes right before "σ".
            return tf.tensor_scatter_nd_sub(entries, sigmas, tf.cast(is_final, tf.int32))

        return tf.cond(tf.reduce_any(is_sigma), look_around, lambda: entries)

    def _in_short(
        self, code_points: tf.Tensor, entries: tf.Tensor, splits: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """What the code points became: entries int32 [C], their row splits."""
        entries = self._final_sigmas(code_points, entries)

        def expand() -> tuple[tf.Tensor, tf.Tensor]:
            expanded, _, before = self._expand(entries)
            return expanded, tf.gather(before, splits)

        return tf.cond(tf.reduce_all(_count(entries) == 1), lambda: (entries, splits), expand)

    def _in_full(
        self, code_points: tf.Tensor, splits: tf.Tensor, is_moved: tf.Tensor, offsets: bool
    ) -> tuple[tf.Tensor, ...]:
        """The same as `_in_short` for any text, and with offsets also the spans int32 [C]."""
        entries = self._look_up(self._full, code_points, code_points | _ONE)
        entries = self._final_sigmas(code_points, entries)
        entries, source, before = self._expand(entries)
        begins, splits = splits[:-1], tf.gather(before, splits)
        starts = source - tf.cast(tf.repeat(begins, splits[1:] - splits[:-1]), tf.int32)
        ends = starts + 1
        entries, starts, ends = tf.cond(
            is_moved,
            lambda: self._in_order(entries, starts, ends),
            lambda: (entries, starts, ends),
        )
        is_kept = ~_has(entries, _MARK)
        places = tf.where(is_kept)[:, 0]
        entries = tf.gather(entries, places)
        splits = tf.gather(_before(is_kept), splits)
        if not offsets:
            return entries, splits
        # A dropped mark belongs to the character before it, but not to an ideograph, which is
        # another word.
        lasts = tf.concat([places[1:], [tf.size(is_kept, tf.int64)]], 0) - 1
        lasts = tf.where(_has(entries, _IDEOGRAPH), places, lasts)
        return entries, splits, tf.gather(starts, places), tf.gather(ends, lasts)

    def _expand(self, entries: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Puts the entries of `more` in the place of those that stand for none or for several.

        Returns:
          entries: int32 [C].
          source: int32 [C], which of the entries given each of them comes from.
          before: int64 [B + 1], how many come from those before each of the entries given.
        """
        counts = _count(entries)
        before = _before(counts)
        source = tf.repeat(tf.range(tf.size(entries)), counts)
        repeated = tf.gather(entries, source)

        def several() -> tf.Tensor:
            which = tf.range(tf.size(source)) - tf.cast(tf.gather(before, source), tf.int32)
            is_several = _count(repeated) > 1
            places = tf.where(is_several, (repeated & _CODE_POINT) + which, 0)
            return tf.where(is_several, tf.gather(self._more, places), repeated)

        expanded = tf.cond(tf.reduce_any(counts > 1), several, lambda: repeated)
        return expanded, source, before

    def _in_order(
        self, entries: tf.Tensor, starts: tf.Tensor, ends: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """The canonical order of NFD: each run of marks is sorted by their combining classes."""
        classes = self._look_up(self._combining, entries & _CODE_POINT, tf.zeros_like(entries))
        runs = tf.cumsum(tf.cast(classes == 0, tf.int32)) + 1  # 0 will be for what is in none
        order = tf.argsort(tf.cast(runs, tf.int64) * 256 + tf.cast(classes, tf.int64), stable=True)
        # Marks that changed places come from the run as a whole, so that spans stay in order.
        changed = tf.cast(order != tf.range(tf.size(order)), tf.int32)
        number = tf.size(entries) + 2
        is_changed = tf.gather(tf.math.unsorted_segment_max(changed, runs, number), runs) > 0
        is_moved = is_changed & (classes > 0)
        runs_of_marks = tf.where(classes > 0, runs, 0)
        firsts = tf.gather(tf.math.unsorted_segment_min(starts, runs_of_marks, number), runs)
        lasts = tf.gather(tf.math.unsorted_segment_max(ends, runs_of_marks, number), runs)
        starts, ends = tf.where(is_moved, firsts, starts), tf.where(is_moved, lasts, ends)
        return tf.gather(entries, order), tf.gather(starts, order), tf.gather(ends, order)


def _count(entries: tf.Tensor) -> tf.Tensor:
    return tf.bitwise.right_shift(entries, _COUNT_SHIFT) & 7


def _before(counts: tf.Tensor) -> tf.Tensor:
    """int64 [n + 1]: the sums of bool or int32 [n] before each place."""
    return tf.concat([[0], tf.cumsum(tf.cast(counts, tf.int64))], 0)


def _has(entries: tf.Tensor, flags: int) -> tf.Tensor:
    return entries & flags != 0


def _kept_id(
    ids: tf.RaggedTensor, length: tf.Tensor, keep: tf.Tensor, position: tf.Tensor, truncation: str
) -> tf.Tensor:
    """The id at a position int32 [N or 1, L] of the kept tokens; any id where there is none.

    `length` and `keep` are int32 [N, 1]: how many tokens there are and how many stay.
    """
    if truncation == "tail":
        head = tf.zeros_like(keep)
    elif truncation == "head_tail":
        head = (keep + 3) // 4
    else:
        head = keep
    place = tf.where(position < head, position, position + (length - keep))
    place = tf.clip_by_value(place, 0, tf.maximum(length - 1, 0))
    first = tf.cast(ids.row_starts(), tf.int32)[:, None]
    # A text without tokens at the very end begins after all ids.
    values = tf.concat([tf.cast(ids.values, tf.int32), [0]], 0)
    return tf.gather(values, first + place)
