import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from keras import ops

from bert_tf.modeling.losses import (
    classifier_loss,
    pretraining_loss,
    pretraining_scores,
    squad_loss,
)


def rng_of(seed):
    return np.random.default_rng(seed)


def values_of(loss, logits, labels, **more):
    batch = {"label_ids": labels, "is_real_example": np.ones(len(labels), np.float32), **more}
    values = loss.values({"logits": ops.convert_to_tensor(logits)}, batch)["loss"]
    return ops.convert_to_numpy(values), ops.convert_to_numpy(loss.weights(batch)["loss"])


@settings(deadline=None, max_examples=30)
@given(seed=st.integers(0, 10**6), scale=st.sampled_from([0.1, 3.0, 100.0]))
def test_classification(seed, scale):
    logits = rng_of(seed).normal(0, scale, (5, 4)).astype(np.float32)
    labels = rng_of(seed).integers(0, 4, 5, np.int32)
    found, weights = values_of(classifier_loss("classification"), logits, labels)
    wide = logits.astype(np.float64)
    exact = np.logaddexp.reduce(wide, axis=-1) - wide[np.arange(5), labels]
    np.testing.assert_allclose(found, exact, rtol=1e-5, atol=2e-5)
    np.testing.assert_array_equal(weights, np.ones(5))


def test_regression():
    logits = rng_of(0).normal(0, 3, (6, 1)).astype(np.float32)
    targets = rng_of(1).normal(0, 3, 6).astype(np.float32)
    found, _ = values_of(classifier_loss("regression"), logits, targets)
    assert found.shape == (6,)
    np.testing.assert_allclose(found, (logits[:, 0] - targets) ** 2, rtol=1e-6)


@pytest.mark.parametrize("scale", [1.0, 500.0])
def test_multilabel(scale):
    logits = rng_of(0).normal(0, scale, (6, 3)).astype(np.float32)
    targets = rng_of(1).integers(0, 2, (6, 3)).astype(np.float32)
    found, _ = values_of(classifier_loss("multilabel"), logits, targets)
    wide = np.where(targets == 1, -1.0, 1.0) * logits.astype(np.float64)
    np.testing.assert_allclose(found, np.logaddexp(0, wide).mean(-1), rtol=1e-5, atol=1e-30)
    assert np.isfinite(found).all()


def test_padding_and_weights_of_examples():
    labels = np.array([0, 1, 1], np.int32)
    real = np.array([1, 1, 0], np.float32)
    loss = classifier_loss("classification")
    batch = {"label_ids": labels, "is_real_example": real}
    np.testing.assert_array_equal(loss.weights(batch)["loss"], real)
    batch["example_weight"] = np.array([0.5, 2, 3], np.float32)
    np.testing.assert_array_equal(loss.weights(batch)["loss"], [0.5, 2, 0])


def test_unknown_kind():
    with pytest.raises(ValueError, match="'ranking' is not one of classification, regression, mul"):
        classifier_loss("ranking")


def test_half_precision_logits_are_widened():
    logits = ops.cast(rng_of(0).normal(0, 3, (4, 1000)), "bfloat16")
    batch = {"label_ids": np.zeros(4, np.int32)}
    for kind in ("classification", "regression"):
        value = classifier_loss(kind).values({"logits": logits}, batch)["loss"]
        assert value.dtype == "float32"


def test_pretraining():
    rng = rng_of(3)
    outputs = {
        "masked_lm_logits": rng.normal(size=(6, 7)).astype(np.float32),
        "next_sentence_logits": rng.normal(size=(2, 2)).astype(np.float32),
    }
    batch = {
        "masked_lm_ids": rng.integers(0, 7, (2, 3), np.int32),
        "masked_lm_weights": np.array([[1, 1, 0], [1, 0, 0]], np.float32),
        "next_sentence_labels": np.array([[1], [0]], np.int32),
    }
    loss = pretraining_loss()
    weights, values = loss.weights(batch), loss.values(outputs, batch)
    assert tuple(weights) == tuple(values) == loss.names
    np.testing.assert_array_equal(weights["masked_lm_loss"], [1, 1, 0, 1, 0, 0])
    np.testing.assert_array_equal(weights["next_sentence_loss"], [1, 1])
    for name, logits, labels in (
        ("masked_lm_loss", outputs["masked_lm_logits"], batch["masked_lm_ids"].ravel()),
        ("next_sentence_loss", outputs["next_sentence_logits"], [1, 0]),
    ):
        exact = np.logaddexp.reduce(logits, axis=-1) - logits[np.arange(len(labels)), labels]
        np.testing.assert_allclose(values[name], exact, rtol=1e-5)
    # A batch without a masked token has loss 0, not 0 / 0.
    assert loss.epsilon == {"masked_lm_loss": 1e-5}


@pytest.mark.parametrize("next_sentence", [True, False])
def test_pretraining_metrics_and_scores(next_sentence):
    rng = rng_of(5)
    words = rng.normal(size=(12, 9)).astype(np.float32)
    pairs = rng.normal(size=(4, 2)).astype(np.float32)
    batch = {
        "masked_lm_ids": rng.integers(0, 9, (4, 3), np.int32),
        # The last example has no prediction.
        "masked_lm_weights": np.array([[1, 1, 1], [1, 0, 0], [1, 1, 0], [0, 0, 0]], np.float32),
        "next_sentence_labels": rng.integers(0, 2, (4, 1), np.int32),
    }
    batch["masked_lm_ids"][0, :2] = words[:2].argmax(-1)
    outputs = {"masked_lm_logits": words}
    if next_sentence:
        outputs["next_sentence_logits"] = pairs
    labels, weights = batch["masked_lm_ids"].ravel(), batch["masked_lm_weights"].ravel()
    hits = words.argmax(-1) == labels
    wide = words.astype(np.float64)
    losses = np.logaddexp.reduce(wide, axis=-1) - wide[np.arange(12), labels]
    pair_labels = batch["next_sentence_labels"][:, 0]
    pair_hits = pairs.argmax(-1) == pair_labels

    loss = pretraining_loss(next_sentence)
    found = loss.metrics(outputs, batch)
    assert tuple(found) == loss.metric_names
    values, of = found["masked_lm_accuracy"]
    assert of == "masked_lm_loss"
    np.testing.assert_array_equal(values, hits)
    assert 0 < hits.mean() < 1

    scores = pretraining_scores(outputs, batch, next_sentence)
    expected = {
        "masked_lm_loss": (losses * weights).reshape(4, 3).sum(1),
        "masked_lm_right": (hits * weights).reshape(4, 3).sum(1),
        "masked_lm_count": [3, 1, 2, 0],
    }
    if next_sentence:
        np.testing.assert_array_equal(found["next_sentence_accuracy"][0], pair_hits)
        wide = pairs.astype(np.float64)
        expected["next_sentence_right"] = pair_hits
        expected["next_sentence_loss"] = (
            np.logaddexp.reduce(wide, axis=-1) - wide[np.arange(4), pair_labels]
        )
    else:
        assert loss.names == ("masked_lm_loss",)
        assert loss.weights(batch).keys() == {"masked_lm_loss"}
        assert loss.values(outputs, batch).keys() == {"masked_lm_loss"}
    assert scores.keys() == expected.keys()
    for name, value in expected.items():
        assert scores[name].dtype == "float32"
        np.testing.assert_allclose(scores[name], value, rtol=1e-5, err_msg=name)


def test_ties_in_the_evaluation_are_the_first_ones():
    batch = {
        "masked_lm_ids": np.array([[1, 2]], np.int32),
        "masked_lm_weights": np.ones((1, 2), np.float32),
    }
    outputs = {"masked_lm_logits": np.array([[0, 5, 5], [0, 5, 5]], np.float32)}
    # As the original's argmax: a model that says the same of all is not always right.
    assert pretraining_scores(outputs, batch, False)["masked_lm_right"].numpy() == [1.0]


def test_squad():
    rng = rng_of(4)
    start, end = rng.normal(size=(2, 3, 9)).astype(np.float32)
    batch = {
        "start_positions": np.array([0, 8, 4], np.int32),
        "end_positions": np.array([0, 8, 5], np.int32),
    }
    loss = squad_loss()
    found = loss.values({"start_logits": start, "end_logits": end}, batch)["loss"]
    rows = np.arange(3)
    exact = (
        np.logaddexp.reduce(start, axis=-1)
        - start[rows, batch["start_positions"]]
        + np.logaddexp.reduce(end, axis=-1)
        - end[rows, batch["end_positions"]]
    ) / 2
    np.testing.assert_allclose(found, exact, rtol=1e-5)
    np.testing.assert_array_equal(loss.weights(batch)["loss"], np.ones(3))
