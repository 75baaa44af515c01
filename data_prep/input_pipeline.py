"""Batches as functions of (seed, step), grouped by length, and as tf.data.

Which examples stand in a batch is computed here from the seed and the batch's number alone, so a
run that is resumed at any step sees what it would have seen. TensorFlow is imported only where a
tf.data.Dataset is built.

Letters: N examples, B batch, C choices, T padded length, L labels.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

if TYPE_CHECKING:
    import tensorflow as tf

# Batches whose examples are sorted by length together.
POOL_BATCHES = 32
# Batches are padded to multiples of this, so that few shapes occur.
BUCKET = 8


# Name of an array of `Batchable.dense` -> its shape behind B, None for T, and its dtype.
Signature = Mapping[str, tuple[tuple[int | None, ...], Any]]
TEXT: Signature = dict.fromkeys(("input_ids", "input_mask", "segment_ids"), ((None,), np.int32))


class Batchable(Protocol):
    """What the datasets need of features; `data_prep.tasks.featurize.Features` is one."""

    max_seq_length: int
    example_weights: np.ndarray | None

    @property
    def labels(self) -> np.ndarray | None:
        """[N, ...], one for each example; None where `dense` returns label_ids."""

    @property
    def lengths(self) -> np.ndarray:
        """[N] int."""

    @property
    def signature(self) -> Signature:
        """What `dense` returns."""

    def dense(self, indices: np.ndarray, length: int) -> dict[str, np.ndarray]:
        """Arrays [B, ...] for some examples; -1 is a row of padding."""


def bucket_length(longest: int, max_seq_length: int) -> int:
    """Rounds a batch's longest example up to the length that it is padded to."""
    return min(-(-longest // BUCKET) * BUCKET, max_seq_length)


def _random(count: int, *key: int) -> np.ndarray:
    """Returns `count` random uint64 that depend on the key alone, whatever NumPy's version.

    A bit generator's raw stream is fixed by NumPy; that of Generator.permutation is not.
    """
    return np.random.Philox(np.random.SeedSequence(key)).random_raw(count)


class TrainBatches:
    """The batches of a training run: which examples, in which order.

    The stream of examples is one permutation of all of them after another; batch `step` covers
    the stream's positions step * B to (step + 1) * B - 1, so it may run over the end of an epoch.
    With grouping, each pool of 32 batches of one epoch is sorted by length before it is cut into
    batches, and these are shuffled: an epoch still holds each example once. A batch that runs
    over the end of an epoch belongs to no pool and stays as it is.
    """

    def __init__(
        self, lengths: np.ndarray, batch_size: int, seed: int, group_by_length: bool = True
    ) -> None:
        """Takes what the order depends on.

        Args:
          lengths: [N] int, tokens of each example.
          batch_size: B, over all replicas and hosts.
          seed: any non-negative int.
          group_by_length: whether to sort within pools.

        Raises:
          ValueError: if there are no examples, or `batch_size` or `seed` is out of range.
        """
        if not len(lengths):
            raise ValueError("There are no examples to train on.")
        if batch_size < 1:
            raise ValueError(f"The batch size is {batch_size}; it must be at least 1.")
        if seed < 0:
            raise ValueError(f"The seed is {seed}; it must not be negative.")
        self.batch_size = batch_size
        self._lengths = np.asarray(lengths)
        self._seed, self._group = seed, group_by_length
        self._epochs: dict[int, np.ndarray] = {}
        self._pool: tuple[tuple[int, int], np.ndarray] = ((-1, -1), np.zeros((0, 0), np.int64))

    def indices(self, step: int) -> np.ndarray:
        """Returns batch `step` (from 0): the numbers of its examples, int64 [B]."""
        n, size = len(self._lengths), self.batch_size
        start = step * size
        epoch = start // n
        if self._group and start + size <= (epoch + 1) * n:
            first = -(-epoch * n // size)  # The first batch that lies in this epoch.
            pool, row = divmod(step - first, POOL_BATCHES)
            return self._grouped(epoch, first, pool)[row]
        return self._stream(start, start + size)

    def _grouped(self, epoch: int, first: int, pool: int) -> np.ndarray:
        """Returns the batches of one pool: [batches, B]."""
        if self._pool[0] != (epoch, pool):
            n, size = len(self._lengths), self.batch_size
            last = (epoch + 1) * n // size  # The first batch no longer in this epoch.
            begin = first + pool * POOL_BATCHES
            end = min(begin + POOL_BATCHES, last)
            members = self._stream(begin * size, end * size)
            members = members[np.argsort(self._lengths[members], kind="stable")]
            order = np.argsort(_random(end - begin, self._seed, 1, epoch, pool), kind="stable")
            self._pool = (epoch, pool), members.reshape(-1, size)[order]
        return self._pool[1]

    def _stream(self, start: int, end: int) -> np.ndarray:
        n = len(self._lengths)
        parts = []
        while start < end:
            epoch, place = divmod(start, n)
            stop = min(n, place + end - start)
            parts.append(self._permutation(epoch)[place:stop])
            start += stop - place
        return np.concatenate(parts)

    def _permutation(self, epoch: int) -> np.ndarray:
        if epoch not in self._epochs:
            if len(self._epochs) >= 2:
                del self._epochs[min(self._epochs)]
            self._epochs[epoch] = np.argsort(
                _random(len(self._lengths), self._seed, 0, epoch), kind="stable"
            )
        return self._epochs[epoch]


class EvalBatches:
    """Every example once, the longest first, so that neighbours have about the same length."""

    def __init__(self, lengths: np.ndarray, batch_size: int) -> None:
        """Takes the lengths, [N] int, and B. Raises ValueError if either is empty or 0."""
        if not len(lengths):
            raise ValueError("There are no examples to evaluate or predict.")
        if batch_size < 1:
            raise ValueError(f"The batch size is {batch_size}; it must be at least 1.")
        self.batch_size = batch_size
        self._order = np.argsort(-np.asarray(lengths), kind="stable")

    def __len__(self) -> int:
        return -(-len(self._order) // self.batch_size)

    def indices(self, step: int) -> tuple[np.ndarray, int]:
        """Returns (int64 [B], number of real ones); -1 fills up the last batch."""
        real = self._order[step * self.batch_size : (step + 1) * self.batch_size]
        batch = np.full(self.batch_size, -1, np.int64)
        batch[: len(real)] = real
        return batch, len(real)

    def __iter__(self) -> Iterator[tuple[np.ndarray, int]]:
        return map(self.indices, range(len(self)))


def shard(batch: np.ndarray, index: int, count: int) -> np.ndarray:
    """Returns host `index`'s rows of a global batch: [B] -> [B / count].

    Raises:
      ValueError: if B is not a multiple of `count`.
    """
    if len(batch) % count:
        raise ValueError(
            f"The global batch of {len(batch)} cannot be divided evenly among {count} hosts."
        )
    size = len(batch) // count
    return batch[index * size : (index + 1) * size]


def host_batch(
    features: Batchable,
    indices: np.ndarray,
    *,
    pad_to_max_length: bool = False,
    shard_index: int = 0,
    shard_count: int = 1,
) -> dict[str, np.ndarray]:
    """Makes one host's part of a batch as arrays.

    Args:
      features: the examples.
      indices: int64 [B], the global batch; -1 is a row of padding.
      pad_to_max_length: T is `features.max_seq_length` rather than the batch's own.
      shard_index: this host's number.
      shard_count: number of hosts. T is the same on all of them.

    Returns:
      what `features.dense` returns; for texts input_ids, input_mask, segment_ids, int32
        [B / count, T].
      label_ids: int32 or float32 [B / count], float32 [B / count, L] or int32 [B / count, T].
      is_real_example: float32 [B / count], 0 in rows of padding.
      example_index: int32 [B / count], the numbers of the examples, -1 in rows of padding.
      example_weight: float32 [B / count]; only if the features have weights.
    """
    length = features.max_seq_length
    if not pad_to_max_length:
        longest = features.lengths[indices[indices >= 0]].max(initial=1)
        length = bucket_length(int(longest), length)
    rows = shard(indices, shard_index, shard_count)
    real = rows >= 0
    batch = features.dense(rows, length)
    if features.labels is not None:
        labels = features.labels[rows]
        labels[~real] = 0
        batch["label_ids"] = labels
    batch["is_real_example"] = real.astype(np.float32)
    batch["example_index"] = rows.astype(np.int32)
    if features.example_weights is not None:
        batch["example_weight"] = features.example_weights[rows] * batch["is_real_example"]
    return batch


def train_dataset(
    features: Batchable,
    batches: TrainBatches,
    start_step: int,
    end_step: int,
    *,
    pad_to_max_length: bool = False,
    shard_index: int = 0,
    shard_count: int = 1,
) -> "tf.data.Dataset":
    """Returns the batches of steps start_step to end_step - 1.

    The elements are those of `host_batch` without example_index; T is None in their
    specification unless `pad_to_max_length`.
    """

    def generate() -> Iterator[dict[str, np.ndarray]]:
        for step in range(start_step, end_step):
            batch = host_batch(
                features,
                batches.indices(step),
                pad_to_max_length=pad_to_max_length,
                shard_index=shard_index,
                shard_count=shard_count,
            )
            del batch["example_index"]
            yield batch

    shard(np.zeros(batches.batch_size), shard_index, shard_count)
    rows = batches.batch_size // shard_count
    dataset = _dataset(generate, features, rows, pad_to_max_length, with_index=False)
    return counted(dataset, max(0, end_step - start_step))


def eval_dataset(
    features: Batchable,
    batches: EvalBatches,
    *,
    pad_to_max_length: bool = False,
    shard_index: int = 0,
    shard_count: int = 1,
) -> "tf.data.Dataset":
    """Returns every example once; the elements are those of `host_batch`."""

    def generate() -> Iterator[dict[str, np.ndarray]]:
        for indices, _ in batches:
            yield host_batch(
                features,
                indices,
                pad_to_max_length=pad_to_max_length,
                shard_index=shard_index,
                shard_count=shard_count,
            )

    shard(np.zeros(batches.batch_size), shard_index, shard_count)
    rows = batches.batch_size // shard_count
    dataset = _dataset(generate, features, rows, pad_to_max_length, with_index=True)
    return counted(dataset, len(batches))


def _dataset(
    generate: Callable[[], Iterator[dict[str, np.ndarray]]],
    features: Batchable,
    rows: int,
    pad_to_max_length: bool,
    with_index: bool,
) -> "tf.data.Dataset":
    import tensorflow as tf

    length = features.max_seq_length if pad_to_max_length else None
    signature: dict[str, Any] = {
        name: tf.TensorSpec(
            [rows, *(length if size is None else size for size in shape)], tf.as_dtype(dtype)
        )
        for name, (shape, dtype) in features.signature.items()
    }
    if features.labels is not None:
        signature["label_ids"] = tf.TensorSpec(
            [rows, *features.labels.shape[1:]], tf.as_dtype(features.labels.dtype)
        )
    signature["is_real_example"] = tf.TensorSpec([rows], tf.float32)
    if with_index:
        signature["example_index"] = tf.TensorSpec([rows], tf.int32)
    if features.example_weights is not None:
        signature["example_weight"] = tf.TensorSpec([rows], tf.float32)
    return tf.data.Dataset.from_generator(generate, output_signature=signature)


def counted(dataset: "tf.data.Dataset", count: int) -> "tf.data.Dataset":
    """Tells a dataset of batches how many there are, and fetches ahead of the training."""
    import tensorflow as tf

    options = tf.data.Options()
    # The hosts' parts are cut above: TensorFlow must not cut them again.
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    dataset = dataset.apply(tf.data.experimental.assert_cardinality(count))
    return dataset.prefetch(2).with_options(options)
