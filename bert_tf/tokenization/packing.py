"""From the ids of one text or two to a model's input: cut, [CLS] A [SEP] B [SEP], pad.

Ids in and out as they come from `BertTokenizer.encode`. Letters: T tokens of an example, specials
included; L the padded length.
"""

from collections.abc import Sequence

import numpy as np

TRUNCATIONS = ("longest_first", "head", "tail", "head_tail")


def kept_lengths(length_a: int, length_b: int, max_tokens: int) -> tuple[int, int]:
    """Returns how many tokens each text keeps so that both have `max_tokens` at most together.

    That is what is left when single tokens are taken from the longer text until both fit, from
    the second one where they are equally long (the original's rule).
    """
    if length_a + length_b <= max_tokens:
        return length_a, length_b
    if length_b <= max_tokens // 2:
        return max_tokens - length_b, length_b
    if length_a <= (max_tokens + 1) // 2:
        return length_a, max_tokens - length_a
    return (max_tokens + 1) // 2, max_tokens // 2


def truncate_pair(
    ids_a: Sequence[int],
    ids_b: Sequence[int] | None,
    max_tokens: int,
    strategy: str = "longest_first",
) -> tuple[list[int], list[int] | None, bool]:
    """Cuts one text or a pair to `max_tokens` tokens in all.

    How much of each text is kept does not depend on the strategy: a text alone keeps
    `max_tokens`; in a pair the longer text gives way until both fit, the second where they are
    equally long (`kept_lengths`). The strategy says which tokens stay in each text that is cut:

    - "longest_first": the first ones; this is the original's truncation.
    - "head": the same, under the name that goes with the next two.
    - "tail": the last ones.
    - "head_tail": a quarter from the start (rounded up), the rest from the end: of 510 tokens
      the first 128 and the last 382.

    Args:
      ids_a: ids of the first text, no specials.
      ids_b: ids of the second text, or None for a text alone.
      max_tokens: the room without specials: `max_seq_length - (3 if ids_b else 2)`. A second text
        that is empty counts as none, here and in `pack`.
      strategy: one of `TRUNCATIONS`.

    Returns:
      ids of the first text, of the second (None if there was none), whether anything was cut.

    Raises:
      ValueError: `strategy` is unknown or `max_tokens` negative.
    """
    if strategy not in TRUNCATIONS:
        raise ValueError(f"unknown truncation {strategy!r}; choose one of {', '.join(TRUNCATIONS)}")
    if max_tokens < 0:
        raise ValueError(
            f"{max_tokens} tokens are left for the text after [CLS] and [SEP]; "
            "max_seq_length must be at least 2 for one text, 3 for a pair"
        )
    length_b = 0 if ids_b is None else len(ids_b)
    keep_a, keep_b = kept_lengths(len(ids_a), length_b, max_tokens)
    was_cut = keep_a < len(ids_a) or keep_b < length_b
    a = _keep(ids_a, keep_a, strategy)
    b = None if ids_b is None else _keep(ids_b, keep_b, strategy)
    return a, b, was_cut


def _keep(ids: Sequence[int], keep: int, strategy: str) -> list[int]:
    if strategy == "tail":
        head = 0
    elif strategy == "head_tail":
        head = (keep + 3) // 4
    else:
        head = keep
    if keep == len(ids):
        head = keep
    return [*ids[:head], *ids[len(ids) - (keep - head) :]]


def pack(
    ids_a: Sequence[int], ids_b: Sequence[int] | None, cls_id: int, sep_id: int
) -> tuple[np.ndarray, np.ndarray]:
    """Makes `[CLS] A [SEP]` or `[CLS] A [SEP] B [SEP]`, not padded.

    Args:
      ids_a: ids of the first text, cut to fit.
      ids_b: ids of the second text, or None; an empty one gets no [SEP] (the original's rule).
      cls_id, sep_id: `BertTokenizer.cls_id` and `.sep_id`.

    Returns:
      input_ids: int32 [T].
      segment_ids: int32 [T], 0 up to the first [SEP] and 1 after it.
    """
    first = len(ids_a) + 2
    ids = [cls_id, *ids_a, sep_id]
    if ids_b is not None and len(ids_b):
        ids += [*ids_b, sep_id]
    input_ids = np.array(ids, np.int32)
    segment_ids = np.zeros(len(ids), np.int32)
    segment_ids[first:] = 1
    return input_ids, segment_ids


def pad(
    input_ids: np.ndarray, segment_ids: np.ndarray, length: int, pad_id: int = 0
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Pads an example to `length`.

    Args:
      input_ids, segment_ids: int32 [T], from `pack`.
      length: L, at least T.
      pad_id: the id to pad with; the original always takes 0.

    Returns:
      input_ids: int32 [L].
      input_mask: int32 [L], 1 for tokens and 0 for padding.
      segment_ids: int32 [L], 0 in the padding.

    Raises:
      ValueError: the example is longer than `length`.
    """
    tokens = len(input_ids)
    if tokens > length:
        raise ValueError(
            f"an example of {tokens} tokens does not fit into {length}; cut its texts first "
            "(truncate_pair)"
        )
    padded = np.full(length, pad_id, np.int32)
    padded[:tokens] = input_ids
    input_mask = np.zeros(length, np.int32)
    input_mask[:tokens] = 1
    segments = np.zeros(length, np.int32)
    segments[:tokens] = segment_ids
    return padded, input_mask, segments
