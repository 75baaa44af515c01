"""Metrics against scikit-learn and SciPy, on random data with ties and absent classes."""

import importlib
import warnings

import numpy as np
import pytest

from data_prep.tasks import metrics

pytestmark = pytest.mark.parity


@pytest.fixture(params=range(40))
def rng(request):
    return np.random.default_rng(request.param)


def test_classification(rng):
    sk = importlib.import_module("sklearn.metrics")
    classes = int(rng.integers(2, 6))
    size = int(rng.integers(1, 60))
    labels = rng.integers(0, int(rng.integers(1, classes + 1)), size)
    logits = rng.normal(size=(size, classes)) + 0.7 * metrics.one_hot(labels, classes)
    guesses = logits.argmax(-1)
    found = metrics.compute(
        ("accuracy", "matthews", "macro_f1", "micro_f1"), "classification", logits, labels
    )
    every = list(range(classes))
    options = {"labels": every, "zero_division": 0}
    assert found["accuracy"] == pytest.approx(sk.accuracy_score(labels, guesses))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert found["matthews"] == pytest.approx(sk.matthews_corrcoef(labels, guesses))
    assert found["macro_f1"] == pytest.approx(
        sk.f1_score(labels, guesses, average="macro", **options)
    )
    assert found["micro_f1"] == pytest.approx(
        sk.f1_score(labels, guesses, average="micro", **options)
    )
    ours = metrics.per_class(metrics.one_hot(labels, classes), metrics.one_hot(guesses, classes))
    theirs = sk.precision_recall_fscore_support(labels, guesses, **options)
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a, b)


def test_binary_f1(rng):
    sk = importlib.import_module("sklearn.metrics")
    labels, guesses = rng.integers(0, 2, (2, int(rng.integers(1, 12))))
    assert metrics.f1(labels, guesses) == pytest.approx(
        sk.f1_score(labels, guesses, zero_division=0)
    )


def test_multilabel(rng):
    sk = importlib.import_module("sklearn.metrics")
    shape = int(rng.integers(1, 30)), int(rng.integers(2, 5))
    labels = rng.integers(0, 2, shape)
    logits = rng.normal(size=shape)
    found = metrics.compute(
        ("subset_accuracy", "micro_f1", "macro_f1"), "multilabel", logits, labels
    )
    guesses = (1 / (1 + np.exp(-logits)) > 0.5).astype(int)
    assert found["subset_accuracy"] == pytest.approx(sk.accuracy_score(labels, guesses))
    for kind in ("micro", "macro"):
        assert found[f"{kind}_f1"] == pytest.approx(
            sk.f1_score(labels, guesses, average=kind, zero_division=0)
        )


def test_regression(rng):
    stats = importlib.import_module("scipy.stats")
    size = int(rng.integers(3, 60))
    targets = rng.integers(0, 6, size) / 2 + np.arange(size) % 2
    values = targets + np.round(rng.normal(size=size), 1) + 1e6
    found = metrics.compute(
        ("pearson", "spearman", "mse", "mae"), "regression", values[:, None], targets
    )
    assert found["pearson"] == pytest.approx(stats.pearsonr(values, targets).statistic)
    assert found["spearman"] == pytest.approx(stats.spearmanr(values, targets).statistic)
    assert found["mse"] == pytest.approx(np.mean((values - targets) ** 2))
    assert found["mae"] == pytest.approx(np.mean(np.abs(values - targets)))
    np.testing.assert_allclose(metrics.ranks(values), stats.rankdata(values))
