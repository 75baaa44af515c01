"""Which tokens are masked, and what is put in their place, for many instances at once.

Used when records are made (`instances`, all modes but the exact one) and when masking is left to
the training. The paper's rule: 15% of the tokens are chosen; of these 80% become [MASK], 10% a
random token, 10% stay.

Letters: B instances, S max_seq_length, P max_predictions_per_seq, V vocabulary size.
"""

import dataclasses
import random
from collections.abc import Callable, Mapping, Sequence

import numpy as np

STATIC = "static"
WHOLE_WORD = "whole_word"
NGRAM = "ngram"
KINDS = (STATIC, WHOLE_WORD, NGRAM)


@dataclasses.dataclass(frozen=True)
class Masking:
    """The rule of masking.

    Attributes:
      kind: STATIC: single tokens. WHOLE_WORD: a word's pieces all or none. NGRAM: one to
        `max_ngram` whole words in a row, n with a probability in proportion to 1/n.
      max_predictions: P, the most tokens that are masked in an instance.
      prob: the share of an instance's tokens ([CLS] and [SEP] counted, as in the original).
      mask_share: share of the chosen tokens that become [MASK].
      random_share: share that become a random token; the others stay.
      max_ngram: the longest n-gram.
    """

    kind: str = STATIC
    max_predictions: int = 20
    prob: float = 0.15
    mask_share: float = 0.8
    random_share: float = 0.1
    max_ngram: int = 3

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"masking is {self.kind!r}; choose one of {', '.join(KINDS)}.")
        if self.max_predictions < 1:
            raise ValueError(
                f"max_predictions_per_seq is {self.max_predictions}; it must be at least 1."
            )
        if not 0 < self.prob < 1:
            raise ValueError(f"masked_lm_prob is {self.prob}; it must lie between 0 and 1.")
        shares = (
            ("--mask_token_share", self.mask_share),
            ("--random_token_share", self.random_share),
        )
        for flag, share in shares:
            if not 0 <= share <= 1:
                raise ValueError(f"{flag} is {share}; it must be from 0 to 1.")
        if self.mask_share + self.random_share > 1 + 1e-9:
            raise ValueError(
                f"--mask_token_share={self.mask_share} and "
                f"--random_token_share={self.random_share} are over 1 together; what they "
                "leave is the share of tokens that stay as they are."
            )
        if self.max_ngram < 1:
            raise ValueError(f"max_ngram is {self.max_ngram}; it must be at least 1.")


# Returns [count] random uint64; numpy.random.Philox(...).random_raw is one. The stream of a bit
# generator is fixed, that of Generator's methods is not.
RandomBits = Callable[[int], np.ndarray]


@dataclasses.dataclass
class Masked:
    """Masked instances.

    Attributes:
      input_ids: int64 [B, S], with replacements.
      positions: int64 [B, P], ascending, padded with 0.
      labels: int64 [B, P], the tokens that stood there, padded with 0.
      counts: int64 [B], how many of the P are real.
    """

    input_ids: np.ndarray
    positions: np.ndarray
    labels: np.ndarray
    counts: np.ndarray


def budgets(lengths: np.ndarray, rule: Masking) -> np.ndarray:
    """Returns int64 [B]: how many tokens to mask at most, at least 1; rounds half to even."""
    wanted = np.maximum(1, np.rint(lengths * rule.prob).astype(np.int64))
    return np.minimum(wanted, np.minimum(rule.max_predictions, lengths - 3))


def mask(
    input_ids: np.ndarray,
    lengths: np.ndarray,
    starts_b: np.ndarray,
    continues: np.ndarray | None,
    rule: Masking,
    mask_id: int,
    replacements: np.ndarray,
    bits: RandomBits,
) -> Masked:
    """Masks a batch.

    Args:
      input_ids: int [B, S]: [CLS] A [SEP] B [SEP] and padding.
      lengths: int [B], tokens with specials, without padding.
      starts_b: int [B], where the second segment begins.
      continues: bool [B, S], which tokens go on with a word (`packed_text.continues` of the
        ids); may be None for STATIC.
      rule: what to mask.
      mask_id: the id of [MASK].
      replacements: int64 [R], the ids that a random token is drawn from.
      bits: the source of randomness.
    """
    rows, size = input_ids.shape
    predictions = rule.max_predictions
    if rule.kind == STATIC:
        positions, counts = _tokens(lengths, starts_b, size, rule, bits)
    else:
        if continues is None:
            raise ValueError("whole words can be masked only where it is known what goes on.")
        positions, counts = _words(lengths, starts_b, size, continues, rule, bits)
    real = np.arange(predictions) < counts[:, None]
    row = np.arange(rows)[:, None]
    labels = np.where(real, input_ids[row, positions], 0).astype(np.int64)
    first = _uniform(bits, rows * predictions).reshape(rows, predictions)
    draws = bits(rows * predictions) % np.uint64(len(replacements))
    random_ids = replacements[draws.astype(np.int64)].reshape(rows, predictions)
    new = np.where(
        first < rule.mask_share,
        mask_id,
        np.where(first < rule.mask_share + rule.random_share, random_ids, labels),
    )
    result = input_ids.astype(np.int64)
    at = np.nonzero(real)
    result[at[0], positions[at]] = new[at]
    return Masked(result, positions, labels, counts)


def mask_batch(
    batch: Mapping[str, np.ndarray],
    rule: Masking,
    mask_id: int,
    replacements: np.ndarray,
    continues: np.ndarray | None,
    key: Sequence[int],
) -> dict[str, np.ndarray]:
    """Masks a batch of records that were made with --dynamic_masking.

    Args:
      batch: input_ids, input_mask, segment_ids: int [B, S], and whatever else, which is passed on.
      rule, mask_id, replacements: as for `mask`.
      continues: bool [V], which ids go on with a word (`packed_text.continues`); may be None for
        STATIC.
      key: numbers that the result depends on, such as the seed and the step.

    Returns:
      The batch with input_ids replaced, and masked_lm_positions, masked_lm_ids: int64 [B, P],
      masked_lm_weights: float32 [B, P].
    """
    ids = batch["input_ids"]
    found = mask(
        ids,
        batch["input_mask"].sum(axis=1),
        batch["segment_ids"].argmax(axis=1),
        None if continues is None else continues[ids],
        rule,
        mask_id,
        replacements,
        np.random.Philox(np.random.SeedSequence(list(key))).random_raw,
    )
    real = np.arange(rule.max_predictions) < found.counts[:, None]
    return {
        **batch,
        "input_ids": found.input_ids.astype(ids.dtype),
        "masked_lm_positions": found.positions,
        "masked_lm_ids": found.labels,
        "masked_lm_weights": real.astype(np.float32),
    }


def _uniform(bits: RandomBits, count: int) -> np.ndarray:
    return (bits(count) >> np.uint64(11)) * 2.0**-53


def _candidates(lengths: np.ndarray, starts_b: np.ndarray, size: int) -> np.ndarray:
    """bool [B, S]: neither padding nor [CLS] nor [SEP]."""
    column = np.arange(size)
    inside = (column > 0) & (column < lengths[:, None] - 1)
    return inside & (column != starts_b[:, None] - 1)


def _sorted_padded(positions: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Sorts each row's first `counts` positions; 0 behind them."""
    real = np.arange(positions.shape[1]) < counts[:, None]
    far = np.iinfo(np.int64).max
    ordered = np.sort(np.where(real, positions, far), axis=1)
    return np.where(real, ordered, 0)


def _tokens(
    lengths: np.ndarray, starts_b: np.ndarray, size: int, rule: Masking, bits: RandomBits
) -> tuple[np.ndarray, np.ndarray]:
    rows = len(lengths)
    # The position is the low end of a random key: the keys in order are a random choice.
    keys = bits(rows * size).reshape(rows, size) & ~np.uint64(0xFFFF) | np.arange(
        size, dtype=np.uint64
    )
    keys[~_candidates(lengths, starts_b, size)] = np.uint64(2**64 - 1)
    keys.sort(axis=1)
    chosen = (keys[:, : rule.max_predictions] & np.uint64(0xFFFF)).astype(np.int64)
    missing = rule.max_predictions - chosen.shape[1]
    chosen = np.pad(chosen, ((0, 0), (0, missing))) if missing > 0 else chosen
    counts = budgets(lengths, rule)
    return _sorted_padded(chosen, counts), counts


def _words(
    lengths: np.ndarray,
    starts_b: np.ndarray,
    size: int,
    continues: np.ndarray,
    rule: Masking,
    bits: RandomBits,
) -> tuple[np.ndarray, np.ndarray]:
    rows = len(lengths)
    candidates = _candidates(lengths, starts_b, size)
    # What a cut left of a word's end is a word of its own: no word runs over a [SEP].
    starts = candidates & ~continues
    starts[:, 1] = candidates[:, 1]
    inner = starts_b < size
    starts[np.flatnonzero(inner), starts_b[inner]] = candidates[
        np.flatnonzero(inner), starts_b[inner]
    ]
    rng = random.Random(int(bits(1)[0]))
    positions = np.zeros((rows, rule.max_predictions), np.int64)
    counts = np.zeros(rows, np.int64)
    longest = rule.max_ngram if rule.kind == NGRAM else 1
    weights = [1 / n for n in range(1, longest + 1)]
    row_budgets = budgets(lengths, rule).tolist()
    for row in range(rows):
        begins = np.flatnonzero(starts[row]).tolist()
        end_a, end = int(starts_b[row]) - 1, int(lengths[row]) - 1
        # Words that do not touch, as on two sides of a [SEP], are in no n-gram together.
        ends = [min(b, end_a) if a < end_a else b for a, b in zip(begins, [*begins[1:], end])]
        chosen = _choose_words(begins, ends, weights, row_budgets[row], rng)
        positions[row, : len(chosen)] = chosen
        counts[row] = len(chosen)
    return positions, counts


def _choose_words(
    begins: list[int], ends: list[int], weights: list[float], budget: int, rng: random.Random
) -> list[int]:
    """Returns the positions to mask, ascending: whole words up to the budget."""
    # Not rng.shuffle and rng.choices: only random() is the same in every Python.
    order = sorted(range(len(begins)), key=lambda _: rng.random())
    total = sum(weights)
    taken = [False] * len(begins)
    chosen: list[int] = []
    for word in order:
        if len(chosen) >= budget:
            break
        if taken[word]:
            continue
        n, draw = 1, rng.random() * total if len(weights) > 1 else 0.0
        while n < len(weights) and draw >= weights[n - 1]:
            draw -= weights[n - 1]
            n += 1
        last = word
        while (
            last + 1 < len(begins)
            and last + 1 - word < n
            and not taken[last + 1]
            and begins[last + 1] == ends[last]
        ):
            last += 1
        # An n-gram over the budget loses its last words.
        while last >= word and len(chosen) + ends[last] - begins[word] > budget:
            last -= 1
        if last < word:
            continue
        for covered in range(word, last + 1):
            taken[covered] = True
        chosen += range(begins[word], ends[last])
    return sorted(chosen)
