"""Pairs of segments for next sentence prediction, as packed instances and as records.

`Settings` are the options of all drivers (`exact`, `parallel`, `beam_pipeline`). `pair_document`
makes the pairs of one document, `build` fills and masks many of them at once. A packed instance
is bytes of about a third of its record; `RecordEncoder` makes the record of it.

Letters: B instances, S max_seq_length, P max_predictions_per_seq.
"""

import dataclasses
import random
import struct
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from bert_tf.tokenization import BertTokenizer
from bert_tf.tokenization.packing import kept_lengths
from data_prep import feature_spec, records
from data_prep.masking import STATIC, Masking, RandomBits, mask
from data_prep.packed_text import PackedText, continues, replacement_ids


@dataclasses.dataclass(frozen=True)
class Settings:
    """How instances are made.

    Attributes:
      max_seq_length: S.
      masking: which tokens are masked.
      short_seq_prob: share of the passes over a document that aim at a random shorter length.
      dupe_factor: how often the corpus is gone through, with other pairs and masks each time.
      seed: decides everything.
      dynamic_masking: leave masking to the training: the records have no masked tokens.
    """

    max_seq_length: int = 128
    masking: Masking = dataclasses.field(default_factory=Masking)
    short_seq_prob: float = 0.1
    dupe_factor: int = 10
    seed: int = 12345
    dynamic_masking: bool = False

    def __post_init__(self) -> None:
        if not 5 <= self.max_seq_length <= 65535:
            raise ValueError(
                f"max_seq_length is {self.max_seq_length}; it must be from 5 to 65535: [CLS], two "
                "[SEP] and a token in each of two segments."
            )
        if self.masking.max_predictions > self.max_seq_length:
            raise ValueError(
                f"max_predictions_per_seq is {self.masking.max_predictions}, more than "
                f"max_seq_length {self.max_seq_length}; usual is max_seq_length * masked_lm_prob "
                f"(here {round(self.max_seq_length * self.masking.prob)})."
            )
        if not 0 <= self.short_seq_prob <= 1:
            raise ValueError(f"short_seq_prob is {self.short_seq_prob}; it must be from 0 to 1.")
        if self.dupe_factor < 1:
            raise ValueError(f"dupe_factor is {self.dupe_factor}; it must be at least 1.")

    @property
    def spec(self) -> feature_spec.Spec:
        """The features of the records."""
        return feature_spec.pretraining(
            self.max_seq_length, self.masking.max_predictions, not self.dynamic_masking
        )


@dataclasses.dataclass(frozen=True)
class Vocabulary:
    """What making instances needs of a tokenizer; small, and quickly sent to a worker.

    Attributes:
      cls_id, sep_id, mask_id: ids of [CLS], [SEP], [MASK].
      size: the greatest id plus 1.
      replacements: int64 [R], ids that a random token is drawn from.
    """

    cls_id: int
    sep_id: int
    mask_id: int
    size: int
    replacements: np.ndarray

    @classmethod
    def of(cls, tokenizer: BertTokenizer) -> "Vocabulary":
        """Raises ValueError if [CLS], [SEP], [MASK] or [UNK] is missing."""
        assert tokenizer.unk_id >= 0
        return cls(
            tokenizer.cls_id,
            tokenizer.sep_id,
            tokenizer.mask_id,
            tokenizer.vocab_size,
            replacement_ids(tokenizer),
        )


def below(getrandbits: Callable[[int], int], n: int) -> int:
    """Returns a random integer from 0 to n - 1: the draws of `random.Random.randrange`.

    Written out here since no Python version may change it, and since it is much faster.
    """
    k = n.bit_length()
    r = getrandbits(k)
    while r >= n:
        r = getrandbits(k)
    return r


# Pairs.

# (start of A, end of A, start of B, end of B, 1 if B is random): places in an array of tokens.
Pair = tuple[int, int, int, int, int]
# () -> (start, ends of its sentences) of a random place in another document, or None if there
# is no other document. The tokens of one sentence after the other up to S - 3 tokens or the
# document's end.
RandomNext = Callable[[], tuple[int, Sequence[int]] | None]


def pair_document(
    ends: Sequence[int],
    settings: Settings,
    rng: random.Random,
    random_next: RandomNext,
) -> tuple[list[Pair], int]:
    """Makes the pairs of one document by the original's way, without its labelling quirks.

    Sentences are gathered up to a target length (S - 3, or a shorter random one for this pass);
    A ends at a random sentence; B is the rest, or with probability 1/2 (always where there is no
    rest) sentences from another document, and then the rest is used again.

    Args:
      ends: [sentences + 1], where the sentences end in an array of tokens; first, where the
        document begins.
      settings: the options.
      rng: the source of randomness.
      random_next: where random second segments come from.

    Returns:
      The pairs, and how many were left out since a second segment was wanted from another
      document and there is none.
    """
    uniform, bits = rng.random, rng.getrandbits
    room = settings.max_seq_length - 3
    target = room
    if uniform() < settings.short_seq_prob:
        target = 2 + below(bits, room - 1)
    pairs: list[Pair] = []
    dropped = 0
    first, last = 0, len(ends) - 1  # sentences of the chunk: first ... end - 1
    end = 0
    while first < last:
        end += 1
        if end < last and ends[end] - ends[first] < target:
            continue
        count = end - first
        middle = first + 1 + (below(bits, count - 1) if count > 1 else 0)
        a_start, a_end = ends[first], ends[middle]
        found = None
        if count == 1 or uniform() < 0.5:
            found = random_next()
        if found is not None:
            b_start, b_ends = found
            wanted = b_start + target - (a_end - a_start)
            b_end = next((b for b in b_ends if b >= wanted), b_ends[-1])
            end = middle  # What would have been B comes again.
        elif count > 1:
            b_start, b_end = a_end, ends[end]
        else:
            dropped += 1
            first = end
            continue
        length_a, length_b = a_end - a_start, b_end - b_start
        if length_a + length_b > room:
            keep_a, keep_b = kept_lengths(length_a, length_b, room)
            # Each token that goes is taken from the front or the back by the toss of a coin.
            if over := length_a - keep_a:
                front = bits(over).bit_count()
                a_start, a_end = a_start + front, a_start + front + keep_a
            if over := length_b - keep_b:
                front = bits(over).bit_count()
                b_start, b_end = b_start + front, b_start + front + keep_b
        pairs.append((a_start, a_end, b_start, b_end, int(found is not None)))
        first = end
    return pairs, dropped


# Instances.

_HEADER = struct.Struct("<HHHH")  # length, start of B, masked tokens, label


def build(
    tokens: np.ndarray,
    pairs: Sequence[Pair],
    settings: Settings,
    vocabulary: Vocabulary,
    bits: RandomBits,
) -> list[bytes]:
    """Makes packed instances of pairs.

    Args:
      tokens: packed tokens (`packed_text`), which the pairs are places in.
      pairs: B pairs, cut to fit.
      settings, vocabulary: as everywhere.
      bits: the source of randomness for masking.
    """
    if not pairs:
        return []
    size = settings.max_seq_length
    table = np.array(pairs, np.int64)
    a_start, a_end, b_start, b_end, labels = table.T
    starts_b = a_end - a_start + 2
    lengths = starts_b + b_end - b_start + 1
    column = np.arange(size)
    places = np.where(
        column < starts_b[:, None] - 1,
        (a_start - 1)[:, None] + column,
        (b_start - starts_b)[:, None] + column,
    )
    filled = tokens[np.clip(places, 0, len(tokens) - 1)]
    row = np.arange(len(table))
    filled[:, 0] = vocabulary.cls_id * 2
    filled[row, starts_b - 1] = vocabulary.sep_id * 2
    filled[row, lengths - 1] = vocabulary.sep_id * 2
    filled[column >= lengths[:, None]] = 0
    ids = filled >> 1
    counts = np.zeros(len(table), np.int64)
    positions = labels_at = np.zeros((len(table), 0), np.int64)
    if not settings.dynamic_masking:
        masked = mask(
            ids,
            lengths,
            starts_b,
            (filled & 1).astype(bool),
            settings.masking,
            vocabulary.mask_id,
            vocabulary.replacements,
            bits,
        )
        ids, counts = masked.input_ids, masked.counts
        positions, labels_at = masked.positions, masked.labels
    id_type = id_dtype(vocabulary.size)
    ids = ids.astype(id_type)
    positions, labels_at = positions.astype("<u2"), labels_at.astype(id_type)
    return [
        b"".join(
            (
                _HEADER.pack(length, start_b, count, label),
                ids[i, :length].tobytes(),
                positions[i, :count].tobytes(),
                labels_at[i, :count].tobytes(),
            )
        )
        for i, (length, start_b, count, label) in enumerate(
            zip(lengths.tolist(), starts_b.tolist(), counts.tolist(), labels.tolist())
        )
    ]


def id_dtype(vocab_size: int) -> np.dtype:
    """Returns the type of ids in packed instances."""
    return np.dtype("<u2" if vocab_size <= 1 << 16 else "<u4")


def pack_instance(
    ids: Sequence[int],
    start_b: int,
    label: int,
    positions: Sequence[int],
    labels: Sequence[int],
    vocab_size: int,
) -> bytes:
    """Packs one instance: ids with specials and masks, without padding."""
    dtype = id_dtype(vocab_size)
    return b"".join(
        (
            _HEADER.pack(len(ids), start_b, len(positions), label),
            np.array(ids, dtype).tobytes(),
            np.array(positions, "<u2").tobytes(),
            np.array(labels, dtype).tobytes(),
        )
    )


def split_packed(data: bytes, vocab_size: int) -> list[memoryview]:
    """Cuts packed instances that stand one after the other."""
    width = id_dtype(vocab_size).itemsize
    view = memoryview(data)
    result = []
    at = 0
    while at < len(data):
        length, _, count, _ = _HEADER.unpack_from(data, at)
        end = at + _HEADER.size + width * length + (2 + width) * count
        result.append(view[at:end])
        at = end
    return result


class _Prefixes(dict[int, bytes]):
    """What stands before the values of an int64 feature, by their size in bytes."""

    def __init__(self, name: str):
        super().__init__()
        self._name = name

    def __missing__(self, size: int) -> bytes:
        self[size] = records.encode_feature(self._name, 3, b"\0" * size)[:-size]
        return self[size]


class RecordEncoder:
    """Makes tf.train.Example records of packed instances.

    Args:
      settings: the options; give the lengths.
      vocab_size: the greatest id plus 1.
    """

    def __init__(self, settings: Settings, vocab_size: int):
        size = settings.max_seq_length
        self._predictions = predictions = settings.masking.max_predictions
        self._masked = not settings.dynamic_masking
        self._varint = [records.varint(i) for i in range(max(vocab_size, size))].__getitem__
        self._width = id_dtype(vocab_size).itemsize
        self._id_code: Any = "H" if self._width == 2 else "I"
        self._zeros, self._ones = b"\0" * size, b"\1" * size
        self._ids = _Prefixes("input_ids")
        self._labels = _Prefixes("masked_lm_ids")
        self._positions = _Prefixes("masked_lm_positions")
        input_mask, segments = _Prefixes("input_mask")[size], _Prefixes("segment_ids")[size]
        self._input_mask = [input_mask + self._ones[:n] + self._zeros[n:] for n in range(size + 1)]
        self._weights = [
            records.encode_feature(
                "masked_lm_weights", 2, (np.arange(predictions) < n).astype("<f4").tobytes()
            )
            for n in range(predictions + 1)
        ]
        next_sentence = _Prefixes("next_sentence_labels")[1]
        # In the order of the names segment_ids comes right behind it.
        self._next = [next_sentence + bytes([n]) + segments for n in (0, 1)]

    def encode(self, packed: bytes | memoryview) -> bytes:
        """Returns the record, framed for a TFRecord file."""
        return records.frame(self.example(packed))

    def example(self, packed: bytes | memoryview) -> bytes:
        """Returns the record, a tf.train.Example."""
        view = memoryview(packed)
        length, start_b, count, label = _HEADER.unpack_from(view)
        ids_end = _HEADER.size + self._width * length
        varint = self._varint
        zeros = self._zeros
        ids = b"".join(map(varint, view[_HEADER.size : ids_end].cast(self._id_code).tolist()))
        ids += zeros[length:]
        parts = [self._ids[len(ids)], ids, self._input_mask[length]]
        if self._masked:
            places_end = ids_end + 2 * count
            padding = b"\0" * (self._predictions - count)
            labels = view[places_end:].cast(self._id_code).tolist()
            labels_data = b"".join(map(varint, labels)) + padding
            places = view[ids_end:places_end].cast("H").tolist()
            places_data = b"".join(map(varint, places)) + padding
            parts += (
                self._labels[len(labels_data)],
                labels_data,
                self._positions[len(places_data)],
                places_data,
                self._weights[count],
            )
        parts += (
            self._next[label],
            zeros[:start_b],
            self._ones[: length - start_b],
            zeros[length:],
        )
        features = b"".join(parts)
        return b"\n" + records.varint(len(features)) + features


@dataclasses.dataclass
class Counts:
    """What was made, for the summary; adds up.

    Attributes:
      documents, sentences, tokens, unknown, continuing: of the corpus, duplicates apart; how many
        tokens are [UNK] and how many go on with a word.
      instances, instance_tokens, random_next, masked: of the records; tokens count specials.
      dropped: pairs left out since there was no other document for a random second segment.
      same_document: pairs whose random second segment is from their own document (exact mode).
    """

    documents: int = 0
    sentences: int = 0
    tokens: int = 0
    unknown: int = 0
    continuing: int = 0
    instances: int = 0
    instance_tokens: int = 0
    random_next: int = 0
    masked: int = 0
    dropped: int = 0
    same_document: int = 0

    def add(self, other: "Counts") -> None:
        for field in dataclasses.fields(self):
            setattr(self, field.name, getattr(self, field.name) + getattr(other, field.name))

    def add_text(self, text: PackedText) -> None:
        self.documents += len(set(text.numbers.tolist()))
        self.sentences += text.sentences
        self.tokens += len(text.tokens)
        self.unknown += text.unknown
        self.continuing += int(np.count_nonzero(text.tokens & 1))

    def add_packed(self, packed: Sequence[bytes]) -> None:
        for instance in packed:
            length, _, count, label = _HEADER.unpack_from(instance)
            self.instance_tokens += length
            self.masked += count
            self.random_next += label
        self.instances += len(packed)

    def summary(self, settings: Settings) -> list[str]:
        """Returns the lines of the summary."""
        slots = max(1, self.instances * settings.max_seq_length)
        lines = [
            f"documents {self.documents:,}, sentences {self.sentences:,}, "
            f"tokens {self.tokens:,}, of these [UNK] {self.unknown / max(1, self.tokens):.2%}",
            f"instances {self.instances:,}, tokens {self.instance_tokens:,}, "
            f"padding {1 - self.instance_tokens / slots:.1%}, "
            f"random next {self.random_next / max(1, self.instances):.1%}",
        ]
        if not settings.dynamic_masking:
            masked = self.masked / max(1, self.instance_tokens)
            lines[-1] += f", masked {masked:.1%}"
        return lines

    def warnings(self, settings: Settings) -> list[str]:
        """Returns what looks wrong, with numbers."""
        result = []
        if self.documents == 1:
            own = (
                f"{self.same_document:,} instances have a random second segment from the same "
                "document, as in the original"
                if self.same_document
                else "no random second segment could be drawn"
            )
            result.append(f"the corpus is one document: {own}. Put a blank line between documents.")
        elif self.same_document:
            result.append(
                f"{self.same_document:,} instances have a random second segment from their own "
                "document (ten tries found no other), as in the original."
            )
        if self.documents > 1 and self.sentences < 1.1 * self.documents:
            result.append(
                f"nearly every document has one sentence ({self.documents:,} documents, "
                f"{self.sentences:,} sentences): all next sentences are then random. A blank "
                "line ends a document; is there one after each sentence?"
            )
        if self.tokens and self.unknown > 0.05 * self.tokens:
            result.append(
                f"{self.unknown / self.tokens:.1%} of the tokens are [UNK]: do the vocabulary and "
                "--do_lower_case fit the language?"
            )
        whole = settings.masking.kind != STATIC and not settings.dynamic_masking
        if whole and self.tokens and self.continuing == 0:
            result.append(
                "no word has more than one piece, so whole-word masking masks single tokens. "
                "Chinese must be segmented into words first: see --pre_segmented."
            )
        return result


__all__ = [
    "Counts",
    "Pair",
    "RecordEncoder",
    "Settings",
    "Vocabulary",
    "below",
    "build",
    "continues",
    "pack_instance",
    "pair_document",
    "split_packed",
]
