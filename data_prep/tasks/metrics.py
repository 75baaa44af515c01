"""Scores, in numpy. Whatever is undefined (0/0, a constant column) is 0, never NaN."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


class PerClass(NamedTuple):
    """One value a class: [L] float64 each."""

    precision: np.ndarray
    recall: np.ndarray
    f1: np.ndarray
    support: np.ndarray


def _ratio(above: np.ndarray, below: np.ndarray) -> np.ndarray:
    return np.divide(above, below, out=np.zeros(np.shape(above)), where=below != 0)


def accuracy(labels: np.ndarray, predictions: np.ndarray) -> float:
    """Share of equal entries of two [N] arrays; of equal rows for [N, L] (subset accuracy)."""
    equal = np.asarray(labels) == np.asarray(predictions)
    if equal.size == 0:
        return 0.0
    return float(np.mean(equal.all(axis=-1) if equal.ndim > 1 else equal))


def one_hot(labels: np.ndarray, num_classes: int) -> np.ndarray:
    """Turns [N] class ids into [N, num_classes] bool."""
    return np.asarray(labels)[:, None] == np.arange(num_classes)


def per_class(labels: np.ndarray, predictions: np.ndarray) -> PerClass:
    """Precision, recall, F1 and number of true examples of each class, from [N, L] 0/1 arrays."""
    labels, predictions = np.asarray(labels, bool), np.asarray(predictions, bool)
    hits = (labels & predictions).sum(0).astype(float)
    support, guessed = labels.sum(0).astype(float), predictions.sum(0).astype(float)
    return PerClass(
        _ratio(hits, guessed), _ratio(hits, support), _ratio(2 * hits, support + guessed), support
    )


def macro_f1(labels: np.ndarray, predictions: np.ndarray) -> float:
    """Mean F1 over all classes, absent ones (F1 = 0) included, from [N, L] 0/1 arrays."""
    return float(per_class(labels, predictions).f1.mean())


def micro_f1(labels: np.ndarray, predictions: np.ndarray) -> float:
    """F1 of all decisions taken together, from [N, L] 0/1 arrays."""
    return f1(np.ravel(labels), np.ravel(predictions))


def f1(labels: np.ndarray, predictions: np.ndarray) -> float:
    """F1 of class 1, from [N] arrays."""
    truth, guess = np.asarray(labels) == 1, np.asarray(predictions) == 1
    total = int(truth.sum() + guess.sum())
    return 2.0 * int((truth & guess).sum()) / total if total else 0.0


def matthews(labels: np.ndarray, predictions: np.ndarray) -> float:
    """Matthews correlation of two [N] arrays of class ids, for any number of classes."""
    classes = int(max(np.max(labels, initial=0), np.max(predictions, initial=0))) + 1
    truth = one_hot(labels, classes).astype(float)
    guess = one_hot(predictions, classes).astype(float)
    n = len(truth)
    t, p = truth.sum(0), guess.sum(0)
    covariance = (truth * guess).sum() * n - t @ p
    spread = (n * n - t @ t) * (n * n - p @ p)
    return float(covariance / np.sqrt(spread)) if spread > 0 else 0.0


def pearson(x: np.ndarray, y: np.ndarray) -> float:
    """Pearson correlation of two [N] arrays; 0 if one of them is constant."""
    x, y = np.asarray(x, float), np.asarray(y, float)
    # A constant's mean may be off by a rounding error: ask before subtracting it.
    if len(x) < 2 or (x == x[0]).all() or (y == y[0]).all():
        return 0.0
    x, y = x - x.mean(), y - y.mean()
    # Scaled first, so that tiny or huge values neither vanish nor overflow when squared.
    x, y = x / np.abs(x).max(), y / np.abs(y).max()
    return float(np.clip(x @ y / np.sqrt((x @ x) * (y @ y)), -1.0, 1.0))


def ranks(x: np.ndarray) -> np.ndarray:
    """Ranks from 1 of an [N] array; equal values share the mean of their ranks."""
    _, where, counts = np.unique(x, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return (last - (counts - 1) / 2)[where.reshape(-1)]


def spearman(x: np.ndarray, y: np.ndarray) -> float:
    """Spearman correlation of two [N] arrays, ties averaged; 0 if one of them is constant."""
    return pearson(ranks(x), ranks(y))


def indicators(kind: str, logits: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns (labels, predictions) as [N, L] 0/1 arrays.

    Args:
      kind: "classification" or "multilabel".
      logits: [N, L]; the largest is the prediction, or every one above 0 (probability 0.5).
      labels: [N] int or [N, L] 0/1.
    """
    if kind == "multilabel":
        return np.asarray(labels) > 0.5, np.asarray(logits) > 0
    classes = np.shape(logits)[-1]
    return one_hot(labels, classes), one_hot(np.argmax(logits, -1), classes)


def compute(
    names: Sequence[str], kind: str, logits: np.ndarray, labels: np.ndarray
) -> dict[str, float]:
    """Computes metrics by name.

    Args:
      names: accuracy, f1 (of class 1), accuracy_f1_mean, matthews, macro_f1 and micro_f1 for
        classification; pearson, spearman, pearson_spearman_mean, mse and mae for regression;
        subset_accuracy, micro_f1 and macro_f1 for multi-label.
      kind: "classification", "regression" or "multilabel".
      logits: [N, L], or [N, 1] for regression.
      labels: [N] int, [N] float or [N, L] 0/1.

    Raises:
      ValueError: if the numbers of rows differ or are 0.
    """
    logits, labels = np.asarray(logits), np.asarray(labels)
    if len(logits) != len(labels) or not len(labels):
        raise ValueError(
            f"Metrics need as many outputs as labels, and at least one; there are {len(logits)} "
            f"outputs and {len(labels)} labels."
        )
    if kind == "regression":
        values = logits.reshape(-1).astype(float)
        targets = labels.reshape(-1).astype(float)
        found = {
            "pearson": pearson(values, targets),
            "spearman": spearman(values, targets),
            "mse": float(np.mean((values - targets) ** 2)),
            "mae": float(np.mean(np.abs(values - targets))),
        }
        found["pearson_spearman_mean"] = (found["pearson"] + found["spearman"]) / 2
    else:
        truth, guess = indicators(kind, logits, labels)
        found = {"macro_f1": macro_f1(truth, guess), "micro_f1": micro_f1(truth, guess)}
        if kind == "multilabel":
            found["subset_accuracy"] = accuracy(truth, guess)
        else:
            predictions = np.argmax(logits, -1)
            found["accuracy"] = accuracy(labels, predictions)
            found["f1"] = f1(labels, predictions)
            found["accuracy_f1_mean"] = (found["accuracy"] + found["f1"]) / 2
            found["matthews"] = matthews(labels, predictions)
    return {name: found[name] for name in names}
