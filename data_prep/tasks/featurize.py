"""Examples to token ids, packed without padding; padded batches are cut from that.

Letters: N examples, B batch, T padded length, L labels.
"""

import array
import dataclasses
import functools
from collections.abc import Sequence
from typing import ClassVar, NamedTuple

import numpy as np

from bert_tf.tokenization import BertTokenizer, packing
from data_prep.input_pipeline import TEXT
from data_prep.tasks.base import Example, Task


class Feature(NamedTuple):
    """One example: its ids with [CLS] and [SEP], no padding, and its label."""

    guid: str
    input_ids: np.ndarray
    segment_ids: np.ndarray
    label: np.ndarray


@dataclasses.dataclass
class Features:
    """Examples as ids.

    Attributes:
      input_ids: int32 [total tokens], one example after the other.
      offsets: int64 [N + 1], where each example begins in `input_ids`.
      first_lengths: int32 [N], tokens of segment 0, [CLS] and the first [SEP] included.
      labels: int32 [N] (classification), float32 [N] (regression), float32 [N, L] (multi-label).
      guids: the examples' ids, N.
      max_seq_length: no example is longer.
      num_truncated: examples whose texts were cut.
      example_weights: float32 [N], the weight of each in the loss, or None for 1 each.
    """

    input_ids: np.ndarray
    offsets: np.ndarray
    first_lengths: np.ndarray
    labels: np.ndarray
    guids: list[str]
    max_seq_length: int
    num_truncated: int = 0
    example_weights: np.ndarray | None = None

    signature: ClassVar = TEXT

    def __len__(self) -> int:
        return len(self.guids)

    def __getitem__(self, index: int) -> Feature:
        if not -len(self) <= index < len(self):
            raise IndexError(f"example {index} of {len(self)}")
        index %= len(self)
        ids = self.input_ids[self.offsets[index] : self.offsets[index + 1]]
        segments = (np.arange(len(ids)) >= self.first_lengths[index]).astype(np.int32)
        return Feature(self.guids[index], ids, segments, self.labels[index])

    @functools.cached_property
    def lengths(self) -> np.ndarray:
        """Tokens of each example: int32 [N]."""
        return np.diff(self.offsets).astype(np.int32)

    def dense(self, indices: np.ndarray, length: int) -> dict[str, np.ndarray]:
        """Pads some examples to one length.

        Args:
          indices: [B] int; -1 stands for a row of zeros, which fills up a batch.
          length: T, at least that of the longest among them.

        Returns:
          input_ids, input_mask, segment_ids: int32 [B, T], zeros in the padding.

        Raises:
          ValueError: if an example is longer than `length`.
        """
        indices = np.asarray(indices)
        start = self.offsets[indices]
        tokens = np.where(indices >= 0, self.offsets[indices + 1] - start, 0)
        if len(tokens) and tokens.max() > length:
            raise ValueError(f"An example of {tokens.max()} tokens does not fit into {length}.")
        column = np.arange(length)
        real = column < tokens[:, None]
        ids = np.zeros(real.shape, np.int32)
        ids[real] = self.input_ids[(start[:, None] + column)[real]]
        second = real & (column >= self.first_lengths[indices][:, None])
        return {
            "input_ids": ids,
            "input_mask": real.astype(np.int32),
            "segment_ids": second.astype(np.int32),
        }


def featurize(
    examples: Sequence[Example],
    task: Task,
    tokenizer: BertTokenizer,
    max_seq_length: int,
    truncation: str = "longest_first",
) -> Features:
    """Turns examples into ids. Each distinct text is tokenized once.

    As in the original, a second text without a single token makes the example a text alone.

    Args:
      examples: N of them.
      task: whose labels they carry; a label that is None becomes 0.
      tokenizer: the tokenizer.
      max_seq_length: longest example, [CLS] and [SEP] included.
      truncation: what stays of a longer text: longest_first (the original's), head, tail or
        head_tail.

    Raises:
      ValueError: for a max_seq_length with no room for a token of each text, an unknown
        truncation, an unknown label.
    """
    least = 5 if any(example.text_b is not None for example in examples) else 3
    if max_seq_length < least:
        kind = "a pair of texts" if least == 5 else "a text"
        raise ValueError(
            f"max_seq_length is {max_seq_length}, but {kind} with [CLS] and [SEP] needs at "
            f"least {least}."
        )
    if truncation not in packing.TRUNCATIONS:
        raise ValueError(
            f"There is no truncation {truncation!r}; it is one of {', '.join(packing.TRUNCATIONS)}."
        )
    cls_id, sep_id = tokenizer.cls_id, tokenizer.sep_id
    encode = tokenizer.encode
    # Distinct texts' ids, one after the other: lists of ints would take ten times the memory.
    pool, ends, known = array.array("i"), array.array("q", [0]), dict[str, int]()

    def ids_of(text: str) -> array.array:
        where = known.setdefault(text, len(known))
        if where == len(ends) - 1:
            pool.extend(encode(text))
            ends.append(len(pool))
        return pool[ends[where] : ends[where + 1]]

    ids, offsets, first_lengths = array.array("i"), array.array("q", [0]), array.array("i")
    num_truncated = 0
    for example in examples:
        a: Sequence[int] = ids_of(example.text_a)
        b: Sequence[int] | None = ids_of(example.text_b) if example.text_b else None
        if not b:
            b = None
        room = max_seq_length - (2 if b is None else 3)
        if len(a) + len(b or ()) > room:
            a, b, _ = packing.truncate_pair(a, b, room, truncation)
            num_truncated += 1
        packed, _ = packing.pack(a, b, cls_id, sep_id)
        ids.frombytes(packed.tobytes())
        offsets.append(len(ids))
        first_lengths.append(len(a) + 2)
    labels = np.asarray(
        [task.label_id(example) for example in examples],
        np.int32 if task.kind == "classification" else np.float32,
    )
    if task.kind == "multilabel":
        labels = labels.reshape(-1, len(task.labels))
    return Features(
        np.frombuffer(ids, np.int32),
        np.frombuffer(offsets, np.int64),
        np.frombuffer(first_lengths, np.int32),
        labels,
        [example.guid for example in examples],
        max_seq_length,
        num_truncated,
    )
