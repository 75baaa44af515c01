"""Values worked out by hand."""

import numpy as np
import pytest

from data_prep.tasks import metrics

# Confusion of class 1: 2 true positives, 1 false positive, 2 false negatives, 3 true negatives.
LABELS = np.array([1, 1, 1, 1, 0, 0, 0, 0])
GUESSES = np.array([1, 1, 0, 0, 1, 0, 0, 0])


def test_two_classes():
    assert metrics.accuracy(LABELS, GUESSES) == 5 / 8
    assert metrics.f1(LABELS, GUESSES) == pytest.approx(4 / 7)
    # (TP TN - FP FN) / sqrt(...) = (6 - 2) / sqrt(3 * 4 * 4 * 5)
    assert metrics.matthews(LABELS, GUESSES) == pytest.approx(4 / np.sqrt(240))


def test_per_class():
    labels, guesses = np.array([0, 0, 1, 2, 2, 2]), np.array([0, 1, 1, 2, 2, 0])
    table = metrics.per_class(metrics.one_hot(labels, 4), metrics.one_hot(guesses, 4))
    np.testing.assert_allclose(table.precision, [1 / 2, 1 / 2, 1, 0])
    np.testing.assert_allclose(table.recall, [1 / 2, 1, 2 / 3, 0])
    np.testing.assert_allclose(table.f1, [1 / 2, 2 / 3, 4 / 5, 0])
    assert table.support.tolist() == [2, 1, 3, 0]
    macro = metrics.macro_f1(metrics.one_hot(labels, 4), metrics.one_hot(guesses, 4))
    assert macro == pytest.approx((1 / 2 + 2 / 3 + 4 / 5) / 4)
    # With one label each, micro F1 is accuracy.
    micro = metrics.micro_f1(metrics.one_hot(labels, 4), metrics.one_hot(guesses, 4))
    assert micro == pytest.approx(4 / 6)


def test_matthews_of_three_classes():
    # c s = 4 * 6, t = (2, 1, 3), p = (2, 2, 2): (24 - 12) / sqrt((36 - 14)(36 - 12))
    labels, guesses = np.array([0, 0, 1, 2, 2, 2]), np.array([0, 1, 1, 2, 2, 0])
    assert metrics.matthews(labels, guesses) == pytest.approx(12 / np.sqrt(22 * 24))


def test_correlations():
    x = np.array([1.0, 2.0, 3.0, 4.0])
    assert metrics.pearson(x, 3 * x - 1) == pytest.approx(1)
    assert metrics.pearson(x, -x) == pytest.approx(-1)
    assert metrics.pearson(x, np.array([1.0, 3.0, 2.0, 4.0])) == pytest.approx(0.8)
    assert metrics.spearman(x, np.exp(x)) == pytest.approx(1)
    assert metrics.ranks(np.array([10.0, 30.0, 20.0, 20.0])).tolist() == [1, 4, 2.5, 2.5]
    # Ranks 1, 2.5, 2.5, 4 against 1, 2, 3, 4: 4.5 / sqrt(4.5 * 5)
    assert metrics.spearman(np.array([1, 2, 2, 5]), x) == pytest.approx(4.5 / np.sqrt(22.5))


def test_undefined_is_zero():
    zeros, ones = np.zeros(4, int), np.ones(4, int)
    assert metrics.f1(zeros, zeros) == 0
    assert metrics.matthews(zeros, zeros) == 0
    assert metrics.matthews(LABELS, np.ones(8, int)) == 0
    assert metrics.pearson(ones * 0.1, np.arange(4)) == 0
    assert metrics.pearson(np.arange(4), ones * 0.1) == 0
    assert metrics.spearman(ones, np.arange(4)) == 0
    assert metrics.pearson(np.array([1.0]), np.array([2.0])) == 0
    table = metrics.per_class(np.zeros((3, 2)), np.zeros((3, 2)))
    assert not np.any(table)


def test_compute_classification():
    logits = np.stack([1 - GUESSES, GUESSES], 1) * 2.0 - 7
    names = ("f1", "accuracy", "accuracy_f1_mean", "matthews")
    found = metrics.compute(names, "classification", logits, LABELS)
    assert list(found) == list(names)
    assert found["accuracy_f1_mean"] == pytest.approx((5 / 8 + 4 / 7) / 2)
    assert all(type(value) is float for value in found.values())


def test_compute_regression():
    found = metrics.compute(
        ("mse", "mae", "pearson_spearman_mean"),
        "regression",
        np.array([[1.0], [2.0], [4.0]]),
        np.array([1.0, 3.0, 2.0]),
    )
    assert found["mse"] == pytest.approx(5 / 3)
    assert found["mae"] == pytest.approx(1)
    # Ranks 1 2 3 and 1 3 2: 0.5; values: covariance 1, spreads 14/3 and 2.
    assert found["pearson_spearman_mean"] == pytest.approx((0.5 + 1 / np.sqrt(28 / 3)) / 2)


def test_compute_multilabel():
    logits = np.array([[3.0, -1.0], [0.1, 0.2], [-5.0, -0.1]])
    labels = np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    found = metrics.compute(
        ("subset_accuracy", "micro_f1", "macro_f1"), "multilabel", logits, labels
    )
    assert found["subset_accuracy"] == pytest.approx(1 / 3)
    assert found["micro_f1"] == pytest.approx(4 / 6)
    assert found["macro_f1"] == pytest.approx((1 + 0) / 2)


@pytest.mark.parametrize("rows", [(2, 3), (0, 0)])
def test_rows_must_fit(rows):
    with pytest.raises(ValueError, match=f"{rows[0]} outputs and {rows[1]} labels"):
        metrics.compute(("accuracy",), "classification", np.zeros((rows[0], 2)), np.zeros(rows[1]))
