"""Batches of pre-training records as functions of (seed, step), and as tf.data.

Letters: B batch, S max_seq_length, P max_predictions_per_seq, V vocabulary.
"""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from data_prep import feature_spec, masking, records
from data_prep.input_pipeline import EvalBatches, TrainBatches, counted, shard
from data_prep.record_files import RecordFiles

if TYPE_CHECKING:
    import tensorflow as tf


@dataclasses.dataclass(frozen=True)
class DynamicMasking:
    """How records that were made with --dynamic_masking are masked.

    Attributes:
      rule: what to mask.
      mask_id: the id of [MASK].
      replacements: int64 [R], ids that a random token is drawn from.
      continues: bool [V], which ids go on with a word.
      seed: the masks of a batch are a function of it and the step.
    """

    rule: masking.Masking
    mask_id: int
    replacements: np.ndarray
    continues: np.ndarray
    seed: int = 0


def is_masked(files: Sequence[str]) -> bool:
    """Tells whether the records were masked when made, by the first one of each file.

    Raises:
      ValueError: some were and some were not; names a file of each kind.
    """
    found: dict[bool, str] = {}
    for file in files:
        for record in records.read_records(file):
            with contextlib.suppress(ValueError):  # PretrainingData says what is wrong.
                found.setdefault("masked_lm_positions" in records.parse_example(record), file)
            break
    if len(found) == 2:
        raise ValueError(
            f"{found[False]} holds records without masks (--dynamic_masking), {found[True]} "
            "records with masks: give files of one kind."
        )
    return False not in found


class PretrainingData:
    """Pre-training records, ready to be taken in any order.

    Args:
      files: TFRecord files, of create_pretraining_data.py or of the original's.
      max_seq_length: S.
      max_predictions_per_seq: P.
      vocab_size: V of the model; ids have to be below it.
      type_vocab_size: number of segment ids of the model.
      dynamic: for records that hold no masks; None where they do.
      left_to_right: whether to predict each next token in place of masked ones.
      progress: as for `RecordFiles`.

    Raises:
      ValueError: a file is damaged or its records do not fit; names both.

    Attributes:
      failures: errors of the thread that reads the records, see `raising`.
    """

    def __init__(
        self,
        files: Sequence[str],
        max_seq_length: int,
        max_predictions_per_seq: int,
        vocab_size: int,
        dynamic: DynamicMasking | None = None,
        left_to_right: bool = False,
        progress: Callable[[int, int], None] | None = None,
        type_vocab_size: int = 2,
    ) -> None:
        self._spec = feature_spec.pretraining(
            max_seq_length, max_predictions_per_seq, masked=dynamic is None
        )
        feature_spec.check_files(self._spec, files)
        self._files = RecordFiles(files, progress)
        self.max_seq_length = max_seq_length
        self.predictions = max_seq_length - 1 if left_to_right else max_predictions_per_seq
        self._vocab_size = vocab_size
        self._type_vocab_size = type_vocab_size
        self._dynamic = dynamic
        self._left_to_right = left_to_right
        self._parsing: dict[str, Any] | None = None
        self.failures: list[Exception] = []

    def __len__(self) -> int:
        return len(self._files)

    def fingerprint(self) -> int:
        """Returns a number that tells these records from others."""
        return self._files.fingerprint()

    def batch(self, indices: np.ndarray, step: int = 0) -> dict[str, np.ndarray]:
        """Returns the batch of these records.

        Args:
          indices: int64 [B]; -1 is a row of padding.
          step: decides about dynamic masks, with the seed.

        Returns:
          input_ids, input_mask, segment_ids: int32 [B, S].
          masked_lm_positions, masked_lm_ids: int32 [B, P]; masked_lm_weights: float32 [B, P].
          Left to right, P is S - 1.
          next_sentence_labels: int32 [B, 1].

        Raises:
          ValueError: a record does not fit; names the file and the record.
        """
        batch = self._parse(indices)
        self._check_values(batch, indices)
        self._check_weights(batch, indices)
        dynamic = self._dynamic
        if self._left_to_right:
            batch = _left_to_right(batch)
        elif dynamic is not None:
            batch = masking.mask_batch(
                batch,
                dynamic.rule,
                dynamic.mask_id,
                dynamic.replacements,
                dynamic.continues,
                (dynamic.seed, step),
            )
        padding = indices < 0
        if padding.any():
            batch["masked_lm_weights"][padding] = 0.0
        return {
            name: value.astype(np.int32) if value.dtype.kind == "i" else value
            for name, value in batch.items()
        }

    def _parse(self, indices: np.ndarray) -> dict[str, np.ndarray]:
        import tensorflow as tf

        if self._parsing is None:
            self._parsing = feature_spec.parsing(self._spec)
        # The last rows of an evaluation are the first record again, with no weight.
        found = self._files.read(np.maximum(indices, 0))
        try:
            parsed = tf.io.parse_example(found, self._parsing)
        # TensorFlow's message quotes the record, which need not be text.
        except (tf.errors.InvalidArgumentError, UnicodeDecodeError) as error:
            for index, record in zip(indices.tolist(), found, strict=True):
                try:
                    problem = feature_spec.mismatch(self._spec, records.parse_example(record))
                except ValueError as broken:
                    problem = str(broken)
                if problem:
                    raise ValueError(
                        f"{self._files.where(max(index, 0))} does not fit the flags: {problem}."
                    ) from None
            raise ValueError(f"a record cannot be read: {error}") from None
        return {name: value.numpy() for name, value in parsed.items()}

    def _check_values(self, batch: dict[str, np.ndarray], indices: np.ndarray) -> None:
        limits = {
            "input_ids": self._vocab_size,
            "segment_ids": self._type_vocab_size,
            "input_mask": 2,
            "masked_lm_ids": self._vocab_size,
            "masked_lm_positions": self.max_seq_length,
            "next_sentence_labels": 2,
        }
        for name, limit in limits.items():
            if name not in batch:
                continue
            wrong = ((batch[name] < 0) | (batch[name] >= limit)).any(axis=1)
            if wrong.any():
                row = int(wrong.argmax())
                values = batch[name][row]
                value = int(values[(values < 0) | (values >= limit)][0])
                cause = (
                    "; the records were made with a larger vocabulary than the model's (vocab_size "
                    "in bert_config.json)"
                    if name in ("input_ids", "masked_lm_ids")
                    else ""
                )
                raise ValueError(
                    f"{self._files.where(max(int(indices[row]), 0))}: {name} has {value}, but it "
                    f"must be from 0 to {limit - 1}{cause}."
                )

    def _check_weights(self, batch: dict[str, np.ndarray], indices: np.ndarray) -> None:
        weights = batch.get("masked_lm_weights")
        if weights is None:
            return
        wrong = ~(np.isfinite(weights) & (weights >= 0)).all(axis=1)
        if wrong.any():
            raise ValueError(
                f"{self._files.where(max(int(indices[int(wrong.argmax())]), 0))}: "
                "masked_lm_weights must be numbers of at least 0."
            )

    def train_dataset(
        self,
        batches: TrainBatches,
        start_step: int,
        end_step: int,
        *,
        shard_index: int = 0,
        shard_count: int = 1,
    ) -> "tf.data.Dataset":
        """Returns this host's part of the batches of steps start_step to end_step - 1."""

        def generate() -> Iterator[dict[str, np.ndarray]]:
            for step in range(start_step, end_step):
                yield self._part(batches.indices(step), step, shard_index, shard_count)

        return self._dataset(
            generate, batches.batch_size, shard_count, max(0, end_step - start_step), False
        )

    def eval_dataset(
        self, batches: EvalBatches, *, shard_index: int = 0, shard_count: int = 1
    ) -> "tf.data.Dataset":
        """Returns this host's part of an evaluation: with example_index int32 [B], -1 in padding.

        Dynamic masks are the same in every evaluation.
        """

        def generate() -> Iterator[dict[str, np.ndarray]]:
            for number, (indices, _) in enumerate(batches):
                part = self._part(indices, number, shard_index, shard_count)
                rows = shard(indices, shard_index, shard_count)
                yield {**part, "example_index": rows.astype(np.int32)}

        return self._dataset(generate, batches.batch_size, shard_count, len(batches), True)

    def _part(
        self, indices: np.ndarray, step: int, shard_index: int, shard_count: int
    ) -> dict[str, np.ndarray]:
        if self._dynamic is None:
            return self.batch(shard(indices, shard_index, shard_count), step)
        # The whole batch's masks come from one key: they do not depend on the number of hosts.
        return {
            name: shard(value, shard_index, shard_count)
            for name, value in self.batch(indices, step).items()
        }

    def _dataset(
        self,
        generate: Callable[[], Iterator[dict[str, np.ndarray]]],
        batch_size: int,
        shard_count: int,
        count: int,
        with_index: bool,
    ) -> "tf.data.Dataset":
        import tensorflow as tf

        def noted() -> Iterator[dict[str, np.ndarray]]:
            try:
                yield from generate()
            except Exception as error:
                self.failures.append(error)
                raise

        shard(np.zeros(batch_size), 0, shard_count)
        rows = batch_size // shard_count
        size, predictions = self.max_seq_length, self.predictions
        signature = {
            "input_ids": tf.TensorSpec([rows, size], tf.int32),
            "input_mask": tf.TensorSpec([rows, size], tf.int32),
            "segment_ids": tf.TensorSpec([rows, size], tf.int32),
            "masked_lm_positions": tf.TensorSpec([rows, predictions], tf.int32),
            "masked_lm_ids": tf.TensorSpec([rows, predictions], tf.int32),
            "masked_lm_weights": tf.TensorSpec([rows, predictions], tf.float32),
            "next_sentence_labels": tf.TensorSpec([rows, 1], tf.int32),
        }
        if with_index:
            signature["example_index"] = tf.TensorSpec([rows], tf.int32)
        dataset = tf.data.Dataset.from_generator(noted, output_signature=signature)
        return counted(dataset, count)

    @contextlib.contextmanager
    def raising(self) -> Iterator[None]:
        """Within the block, an error that tf.data wraps comes out as it was raised."""
        import tensorflow as tf

        try:
            yield
        except tf.errors.OpError:
            if self.failures:
                raise self.failures[0] from None
            raise


def _left_to_right(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Undoes the masks, and makes each position predict the next token."""
    ids = batch["input_ids"].copy()
    if "masked_lm_ids" in batch:
        row, slot = np.nonzero(batch["masked_lm_weights"])
        ids[row, batch["masked_lm_positions"][row, slot]] = batch["masked_lm_ids"][row, slot]
    rows, size = ids.shape
    return {
        "input_ids": ids,
        "input_mask": batch["input_mask"],
        "segment_ids": batch["segment_ids"],
        "masked_lm_positions": np.broadcast_to(np.arange(size - 1), (rows, size - 1)).copy(),
        "masked_lm_ids": ids[:, 1:].copy(),
        "masked_lm_weights": batch["input_mask"][:, 1:].astype(np.float32),
        "next_sentence_labels": batch["next_sentence_labels"],
    }
