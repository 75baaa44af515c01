"""What a record holds, declared once: the writer, the reader and the checks all use it.

Letters: S max_seq_length, P max_predictions_per_seq.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

INT64 = "int64"
FLOAT = "float32"


@dataclasses.dataclass(frozen=True)
class Feature:
    """One entry of a record.

    Attributes:
      name: its key.
      kind: INT64 or FLOAT.
      length: the number of values, the same in every record.
      flag: what sets the length, for messages; "" where it is fixed.
    """

    name: str
    kind: str
    length: int
    flag: str = ""


Spec = tuple[Feature, ...]


def pretraining(max_seq_length: int, max_predictions_per_seq: int, masked: bool = True) -> Spec:
    """Returns the features of a pre-training record.

    input_ids, input_mask, segment_ids: int64 [S], padded with 0. next_sentence_labels: int64 [1],
    1 for a random second segment. masked_lm_positions, masked_lm_ids: int64 [P],
    masked_lm_weights: float [P], padded with 0; these three are missing if masking is left to the
    training.

    Args:
      max_seq_length: S.
      max_predictions_per_seq: P.
      masked: whether masked tokens were chosen when the records were made.
    """
    spec: Spec = tuple(
        Feature(name, INT64, max_seq_length, "max_seq_length")
        for name in ("input_ids", "input_mask", "segment_ids")
    )
    if masked:
        spec += (
            Feature("masked_lm_positions", INT64, max_predictions_per_seq, "max_predictions"),
            Feature("masked_lm_ids", INT64, max_predictions_per_seq, "max_predictions"),
            Feature("masked_lm_weights", FLOAT, max_predictions_per_seq, "max_predictions"),
        )
    return (*spec, Feature("next_sentence_labels", INT64, 1))


_FLAGS = {"max_seq_length": "--max_seq_length", "max_predictions": "--max_predictions_per_seq"}


def mismatch(spec: Sequence[Feature], example: Mapping[str, np.ndarray]) -> str:
    """Says what of a record does not fit; "" if all does. Other features are fine.

    Args:
      spec: what is expected.
      example: the record's arrays, from `records.parse_example`.
    """
    problems = []
    for feature in spec:
        if feature.name not in example:
            problems.append(f"{feature.name} is missing")
            continue
        values = example[feature.name]
        kind = FLOAT if values.dtype.kind == "f" else INT64
        if kind != feature.kind:
            problems.append(f"{feature.name} is {kind}, expected {feature.kind}")
        elif len(values) != feature.length:
            cause = f" (by {_FLAGS[feature.flag]})" if feature.flag else ""
            problems.append(
                f"{feature.name} has {len(values)} values, expected {feature.length}{cause}"
            )
    return "; ".join(problems)


def check_files(spec: Sequence[Feature], files: Sequence[str]) -> None:
    """Checks the first record of each file, before a run begins.

    Raises:
      ValueError: a record lacks a feature or has one of another length or kind; names the file,
        the feature and both values. Also a file that is no TFRecord file.
    """
    from data_prep import records

    for file in files:
        for record in records.read_records(file):
            try:
                example = records.parse_example(record)
            except ValueError as error:
                raise ValueError(f"{file}: record 0: {error}; is it a file of records?") from None
            problem = mismatch(spec, example)
            if problem:
                raise ValueError(
                    f"{file}: the records do not fit the flags: {problem}. Give the lengths that "
                    "the records were made with, or make them anew."
                )
            break


def parsing(spec: Sequence[Feature]) -> dict[str, Any]:
    """Returns the features as tf.io.parse_example takes them."""
    import tensorflow as tf

    kinds = {INT64: tf.int64, FLOAT: tf.float32}
    return {f.name: tf.io.FixedLenFeature([f.length], kinds[f.kind]) for f in spec}
