"""Losses as pairs of weights and values.

A loss is sum(weights * values) / sum(weights). The weights come from the labels alone, so that
the sum below the line can be taken over all replicas and micro-batches before the backward pass:
the gradient is then that of the global mean, however the batch was cut.

Letters in shape comments: B batch, L labels, P predictions, V vocabulary.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from keras import ops

from bert_tf.modeling import kernels


def softmax_cross_entropy(logits: Any, label_ids: Any) -> Any:
    """Returns -log softmax(logits)[label]: logits float [B, L], label_ids int [B] -> [B]."""
    return kernels.cross_entropy(logits, label_ids)


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
      epsilon: added below the line of the losses named.
      metrics: a function (outputs, batch) -> {name: (values, name of the loss whose weights
        average them)}; shown beside the losses, or None.
      metric_names: their names.
    """

    weights: Callable[[Mapping[str, Any]], dict[str, Any]]
    values: Callable[[Mapping[str, Any], Mapping[str, Any]], dict[str, Any]]
    names: tuple[str, ...] = ("loss",)
    epsilon: Mapping[str, float] = dataclasses.field(default_factory=dict)
    metrics: Callable[[Mapping[str, Any], Mapping[str, Any]], dict[str, tuple[Any, str]]] | None = (
        None
    )
    metric_names: tuple[str, ...] = ()


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


def pretraining_loss(next_sentence: bool = True) -> Loss:
    """Returns the losses of a `BertPretrainer`, and its accuracies as metrics.

    The batch has masked_lm_ids int32 and masked_lm_weights float32 [B, P], and
    next_sentence_labels int32 [B, 1]. As in the original, 1e-5 is added to the number of masked
    tokens, against a batch that has none.

    Args:
      next_sentence: False leaves the next sentence out.
    """

    def weights(batch: Mapping[str, Any]) -> dict[str, Any]:
        found = {"masked_lm_loss": ops.reshape(batch["masked_lm_weights"], (-1,))}  # [B*P]
        if next_sentence:
            found["next_sentence_loss"] = ops.ones(ops.shape(batch["next_sentence_labels"])[:1])
        return found

    def values(outputs: Mapping[str, Any], batch: Mapping[str, Any]) -> dict[str, Any]:
        labels = ops.reshape(batch["masked_lm_ids"], (-1,))
        found = {"masked_lm_loss": softmax_cross_entropy(outputs["masked_lm_logits"], labels)}
        if next_sentence:
            found["next_sentence_loss"] = softmax_cross_entropy(
                outputs["next_sentence_logits"], batch["next_sentence_labels"][:, 0]
            )
        return found

    def metrics(outputs: Mapping[str, Any], batch: Mapping[str, Any]) -> dict[str, tuple[Any, str]]:
        labels = ops.reshape(batch["masked_lm_ids"], (-1,))
        right = {"masked_lm": _is_best(outputs["masked_lm_logits"], labels)}
        if next_sentence:
            right["next_sentence"] = _is_best(
                outputs["next_sentence_logits"], batch["next_sentence_labels"][:, 0]
            )
        return {f"{name}_accuracy": (value, f"{name}_loss") for name, value in right.items()}

    kinds = ("masked_lm", "next_sentence") if next_sentence else ("masked_lm",)
    return Loss(
        weights,
        values,
        tuple(f"{kind}_loss" for kind in kinds),
        {"masked_lm_loss": 1e-5},
        metrics,
        tuple(f"{kind}_accuracy" for kind in kinds),
    )


def pretraining_scores(
    outputs: Mapping[str, Any], batch: Mapping[str, Any], next_sentence: bool = True
) -> dict[str, Any]:
    """Returns sums over each example of a pre-training evaluation, float32 [B] each.

    masked_lm_count: number of predictions. masked_lm_loss, masked_lm_right: sums over them.
    next_sentence_loss, next_sentence_right: of the one prediction.
    """
    weights = ops.cast(batch["masked_lm_weights"], "float32")  # [B, P]
    labels = ops.reshape(batch["masked_lm_ids"], (-1,))
    logits = outputs["masked_lm_logits"]
    found = {
        "masked_lm_loss": softmax_cross_entropy(logits, labels),
        "masked_lm_right": _is_first_best(logits, labels),
    }
    found = {
        name: ops.sum(ops.reshape(value, ops.shape(weights)) * weights, axis=1)
        for name, value in found.items()
    }
    found["masked_lm_count"] = ops.sum(weights, axis=1)
    if next_sentence:
        logits, labels = outputs["next_sentence_logits"], batch["next_sentence_labels"][:, 0]
        found["next_sentence_loss"] = softmax_cross_entropy(logits, labels)
        found["next_sentence_right"] = _is_first_best(logits, labels)
    return found


def _is_first_best(logits: Any, label_ids: Any) -> Any:
    """1.0 where the label is the first of the highest scores: [N, V], [N] -> float32 [N]."""
    return ops.cast(ops.equal(ops.argmax(logits, axis=-1), ops.cast(label_ids, "int64")), "float32")


def _is_best(logits: Any, label_ids: Any) -> Any:
    """As `_is_first_best`, but ties count; a maximum takes a tenth of argmax's time."""
    own = ops.take_along_axis(logits, ops.expand_dims(label_ids, 1), axis=1)[:, 0]
    return ops.cast(own >= ops.max(logits, axis=-1), "float32")


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


# The score of what is no choice: its exponential is 0.
NO_CHOICE_SCORE = -1e9


def mask_choices(scores: Any, choice_mask: Any) -> Any:
    """Returns float32 scores [B, C] with NO_CHOICE_SCORE where choice_mask, int [B, C], is 0.

    A mask that is None masks nothing.
    """
    scores = ops.cast(scores, "float32")
    if choice_mask is None:
        return scores
    return ops.where(ops.cast(choice_mask, "bool"), scores, NO_CHOICE_SCORE)


def multiple_choice_loss() -> Loss:
    """Returns the loss of a `BertForMultipleChoice`: the softmax goes over an example's choices.

    The batch has label_ids int32 [B], is_real_example float32 [B] and, where examples have
    different numbers of choices, choice_mask int32 [B, C]: padding takes no part.
    """

    def values(outputs: Mapping[str, Any], batch: Mapping[str, Any]) -> dict[str, Any]:
        scores = mask_choices(outputs["logits"], batch.get("choice_mask"))
        return {"loss": softmax_cross_entropy(scores, batch["label_ids"])}

    return Loss(weights=lambda batch: {"loss": batch["is_real_example"]}, values=values)


def token_loss() -> Loss:
    """Returns the loss of a `BertTokenClassifier`: its mean over the tokens that are counted.

    The batch has label_ids int32 [B, T], negative at tokens that are not counted, padding among
    them. Weights and values are [B, T].
    """

    def values(outputs: Mapping[str, Any], batch: Mapping[str, Any]) -> dict[str, Any]:
        # Some label for the others: their weight is 0.
        labels = ops.maximum(batch["label_ids"], 0)
        return {"loss": softmax_cross_entropy(outputs["logits"], labels)}

    return Loss(
        weights=lambda batch: {"loss": ops.cast(batch["label_ids"] >= 0, "float32")},
        values=values,
    )
