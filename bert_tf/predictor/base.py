"""What all predictors share: instances in JSON's terms, and batches by length.

Letters in shape comments: B batch, T tokens.
"""

import abc
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

import numpy as np

from bert_tf.predictor.folder import show

FEATURES = ("input_ids", "input_mask", "segment_ids")

# Ids and segments of a text or a pair, int32 [T] each.
Row = tuple[np.ndarray, np.ndarray]


class Predictor(abc.ABC):
    """A trained model that takes and returns objects as JSON has them.

    Attributes:
      kind: "classification", "regression", "multilabel", "tagging", "choice",
        "question_answering" or "masked_lm".
      needed, optional: names of the fields that an instance has to hold, and may hold.
      fields: the same as a message says it.
      tokenizer: the model's `BertTokenizer`.
      model: the Keras model.
      batch_size: the most texts (windows, choices) that are computed together.
    """

    kind: str
    needed: ClassVar[tuple[str, ...]]
    optional: ClassVar[tuple[str, ...]] = ()
    fields: ClassVar[str]
    tokenizer: Any
    model: Any
    batch_size: int

    def check(self, instance: Any) -> None:
        """Checks one instance without computing anything.

        Raises:
          ValueError: it is not what `predict_instances` takes; names the field.
        """
        self._item(instance)

    def predict_instances(self, instances: Sequence[Any]) -> list[dict[str, Any]]:
        """Predicts for instances, in their order; several threads may do so at once.

        Args:
          instances: dicts, with the fields of this `kind` (docs/prediction.md).

        Returns a dict for each, of strings, numbers, lists and dicts alone.

        Raises:
          ValueError: as `check`, with the instance's number, from 0, in front.
        """
        items = []
        for number, instance in enumerate(instances):
            try:
                items.append(self._item(instance))
            except ValueError as error:
                raise ValueError(f"instance {number}: {error}") from None
        return self._predict(items)

    @abc.abstractmethod
    def _item(self, instance: Any) -> Any:
        """Checks an instance and makes of it what `_predict` takes."""

    @abc.abstractmethod
    def _predict(self, items: list[Any]) -> list[dict[str, Any]]:
        """Returns the results of checked instances."""

    def _object(self, instance: Any) -> dict[str, Any]:
        """Checks which fields an instance has; optional ones that are None are left out."""
        if not isinstance(instance, dict):
            raise ValueError(
                f"an instance must be an object with {self.fields}; found {show(instance)}."
            )
        if unknown := [name for name in instance if name not in (*self.needed, *self.optional)]:
            raise ValueError(
                f"there is no field {show(unknown[0])}; the fields of a {self.kind} instance are "
                f"{self.fields}."
            )
        if missing := [name for name in self.needed if name not in instance]:
            raise ValueError(
                f"the field {missing[0]} is missing; the fields of a {self.kind} instance are "
                f"{self.fields}."
            )
        return {
            name: value
            for name, value in instance.items()
            if name in self.needed or value is not None
        }


def text_of(instance: dict[str, Any], field: str) -> str:
    """Returns a field that must be a string.

    Raises:
      ValueError: it is none; names the field.
    """
    value = instance[field]
    if not isinstance(value, str):
        raise ValueError(f"{field} must be a string, not {show(value)}.")
    return value


def texts_of(instance: dict[str, Any], field: str, least: int, what: str) -> list[str]:
    """Returns a field that must be a list of strings that are not blank.

    Args:
      instance: the object.
      field: name of the field.
      least: how many there must be.
      what: what each is, for messages.

    Raises:
      ValueError: it is none; names the field.
    """
    value = instance[field]
    if not isinstance(value, list) or len(value) < least:
        raise ValueError(
            f"{field} must be a list of {least} {what}{'s' * (least > 1)} or more, not "
            f"{show(value)}."
        )
    for number, item in enumerate(value):
        if not isinstance(item, str) or not item.strip():
            raise ValueError(
                f"{field}[{number}] must be a string that is not blank, not {show(item)}."
            )
    return value


def groups(lengths: Sequence[int], batch_size: int) -> Iterator[list[int]]:
    """Yields the numbers of texts that are to be computed together: those of like length.

    The longest come first: what does not fit into memory shows at once.
    """
    order = sorted(range(len(lengths)), key=lambda number: -lengths[number])
    for start in range(0, len(order), batch_size):
        yield order[start : start + batch_size]


def padded(rows: Sequence[Row]) -> dict[str, np.ndarray]:
    """Makes a batch: input_ids, input_mask, segment_ids, int32 [B, T] of the longest row."""
    shape = len(rows), max(len(ids) for ids, _ in rows)
    batch = {name: np.zeros(shape, np.int32) for name in FEATURES}
    for place, (ids, segments) in enumerate(rows):
        batch["input_ids"][place, : len(ids)] = ids
        batch["input_mask"][place, : len(ids)] = 1
        batch["segment_ids"][place, : len(ids)] = segments
    return batch


def graph(outputs: Callable[[dict[str, Any]], Any], features: dict[str, Any]) -> Any:
    """Makes one graph of a model for batches of any number and length.

    Args:
      outputs: from a batch to tensors.
      features: name -> (shape, dtype) of what a batch holds.

    Returns:
      a function of a dict of arrays, which is traced by the first call.
    """
    import tensorflow as tf

    from bert_tf.modeling import kernels

    def run(batch: dict[str, Any]) -> Any:
        with kernels.inference(tf.nn.bias_add):
            return outputs(batch)

    signature = {name: tf.TensorSpec(*spec) for name, spec in features.items()}
    return tf.function(run, autograph=False, input_signature=[signature])


class Forward:
    """Runs a model over texts of any number and length with one graph.

    Args:
      outputs: from a batch of `padded`, as tensors, to one tensor [B, ...].
      batch_size: B at most.
    """

    def __init__(self, outputs: Callable[[dict[str, Any]], Any], batch_size: int):
        self.batch_size = batch_size
        self._run = graph(outputs, dict.fromkeys(FEATURES, ([None, None], "int32")))

    def __call__(self, rows: Sequence[Row]) -> list[np.ndarray]:
        """Returns the outputs of each text, in order; an axis of tokens is as long as padded."""
        results: list[Any] = [None] * len(rows)
        for group in groups([len(ids) for ids, _ in rows], self.batch_size):
            found = self._run(padded([rows[number] for number in group])).numpy()
            for number, value in zip(group, found, strict=True):
                results[number] = value
        return results


def softmax(logits: np.ndarray) -> np.ndarray:
    """Returns probabilities over the last axis, float64."""
    shifted = np.exp((logits - logits.max(axis=-1, keepdims=True)).astype(np.float64))
    return shifted / shifted.sum(axis=-1, keepdims=True)
