"""Losses as pairs of weights and values.

A loss is sum(weights * values) / sum(weights). The weights come from the labels alone, so that
the sum below the line can be taken over all replicas and micro-batches before the backward pass:
the gradient is then that of the global mean, however the batch was cut.

Letters in shape comments: B batch, L labels.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from keras import ops


def softmax_cross_entropy(logits: Any, label_ids: Any) -> Any:
    """Returns -log softmax(logits)[label]: logits float [B, L], label_ids int [B] -> [B]."""
    log_probs = ops.log_softmax(ops.cast(logits, "float32"), axis=-1)
    one_hot = ops.one_hot(label_ids, logits.shape[-1], dtype="float32")
    return -ops.sum(one_hot * log_probs, axis=-1)


def squared_error(logits: Any, targets: Any) -> Any:
    """Returns (logits - targets)^2: logits float [B, 1], targets float [B] -> [B]."""
    return ops.square(ops.cast(logits, "float32")[:, 0] - targets)


def sigmoid_cross_entropy(logits: Any, targets: Any) -> Any:
    """Returns the mean over labels of the binary cross-entropy.

    Args:
      logits: float [B, L].
      targets: float [B, L], 0 or 1.

    Returns: float32 [B].
    """
    logits = ops.cast(logits, "float32")
    # max(x, 0) - x z + log(1 + exp(-|x|)): no overflow at either end.
    losses = ops.relu(logits) - logits * targets + ops.softplus(-ops.abs(logits))
    return ops.mean(losses, axis=-1)


_CLASSIFIER_VALUES = {
    "classification": softmax_cross_entropy,
    "regression": squared_error,
    "multilabel": sigmoid_cross_entropy,
}


@dataclasses.dataclass(frozen=True)
class Loss:
    """The losses of a model by name; what is minimised is their sum.

    Args:
      weights: a function batch -> {name: weights}.
      values: a function (outputs, batch) -> {name: values}, shaped as the weights.
      names: the names, in the order of reports.
      epsilon: added below the line of every loss.
    """

    weights: Callable[[Mapping[str, Any]], dict[str, Any]]
    values: Callable[[Mapping[str, Any], Mapping[str, Any]], dict[str, Any]]
    names: tuple[str, ...] = ("loss",)
    epsilon: Mapping[str, float] = dataclasses.field(default_factory=dict)


def classifier_loss(kind: str) -> Loss:
    """Returns the loss of a `BertClassifier`.

    The batch has label_ids (int32 [B], float32 [B] or float32 [B, L] by kind), is_real_example
    float32 [B] and, where examples weigh differently, example_weight float32 [B].

    Raises:
      ValueError: if `kind` is not classification, regression or multilabel.
    """
    if kind not in _CLASSIFIER_VALUES:
        raise ValueError(f"kind {kind!r} is not one of {', '.join(_CLASSIFIER_VALUES)}")
    function = _CLASSIFIER_VALUES[kind]

    def weights(batch: Mapping[str, Any]) -> dict[str, Any]:
        real = batch["is_real_example"]
        return {"loss": real * batch["example_weight"] if "example_weight" in batch else real}

    return Loss(
        weights=weights,
        values=lambda outputs, batch: {"loss": function(outputs["logits"], batch["label_ids"])},
    )


def pretraining_loss() -> Loss:
    """Returns the losses of a `BertPretrainer`.

    The batch has masked_lm_ids int32 and masked_lm_weights float32 [B, P], and
    next_sentence_labels int32 [B, 1]. As in the original, 1e-5 is added to the number of masked
    tokens, against a batch that has none.
    """

    def weights(batch: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "masked_lm_loss": ops.reshape(batch["masked_lm_weights"], (-1,)),  # [B*P]
            "next_sentence_loss": ops.ones(ops.shape(batch["next_sentence_labels"])[:1]),  # [B]
        }

    def values(outputs: Mapping[str, Any], batch: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "masked_lm_loss": softmax_cross_entropy(
                outputs["masked_lm_logits"], ops.reshape(batch["masked_lm_ids"], (-1,))
            ),
            "next_sentence_loss": softmax_cross_entropy(
                outputs["next_sentence_logits"], batch["next_sentence_labels"][:, 0]
            ),
        }

    return Loss(weights, values, ("masked_lm_loss", "next_sentence_loss"), {"masked_lm_loss": 1e-5})


def squad_loss() -> Loss:
    """Returns the loss of a `BertForSquad`, the mean of the start's and the end's.

    The batch has start_positions and end_positions, int32 [B].
    """

    def values(outputs: Mapping[str, Any], batch: Mapping[str, Any]) -> dict[str, Any]:
        start = softmax_cross_entropy(outputs["start_logits"], batch["start_positions"])
        end = softmax_cross_entropy(outputs["end_logits"], batch["end_positions"])
        return {"loss": (start + end) / 2.0}

    return Loss(
        weights=lambda batch: {"loss": ops.ones(ops.shape(batch["start_positions"]))},
        values=values,
    )
