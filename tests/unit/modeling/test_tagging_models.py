"""Token classification and multiple choice: outputs, losses, gradients."""

import numpy as np
import pytest
import tensorflow as tf
import tiny
from keras import ops

from bert_tf.modeling.losses import NO_CHOICE_SCORE, multiple_choice_loss, token_loss
from bert_tf.modeling.models import (
    BertClassifier,
    BertForMultipleChoice,
    BertTokenClassifier,
    named_variables,
)
from bert_tf.optimization import BertAdam, WarmupDecay
from bert_tf.training.step import TrainStep

H = tiny.CONFIG.hidden_size
KEY = np.array([3, 256], np.int32)


def rng_of(seed):
    return np.random.default_rng(seed)


def inputs_of(shape, lengths, seed=0):
    """Random ids of these lengths: the last axis is padded behind them."""
    mask = (np.arange(shape[-1]) < np.asarray(lengths)[..., None]).astype(np.int32)
    rng = rng_of(seed)
    return {
        "input_ids": rng.integers(5, tiny.CONFIG.vocab_size, shape, np.int32) * mask,
        "input_mask": mask,
        "segment_ids": rng.integers(0, 2, shape, np.int32) * mask,
    }


def token_batch():
    batch = inputs_of((2, 8), [8, 5])
    batch["label_ids"] = np.array(
        [[-1, 0, 2, -1, 1, -1, 2, -1], [-1, 1, -1, 0, -1, -1, -1, -1]], np.int32
    )
    return batch


def choice_batch():
    batch = inputs_of((3, 4, 8), [[8, 7, 6, 5], [5, 6, 0, 0], [8, 8, 8, 0]])
    batch["choice_mask"] = (batch["input_mask"].sum(-1) > 0).astype(np.int32)
    batch["label_ids"] = np.array([3, 1, 0], np.int32)
    batch["is_real_example"] = np.ones(3, np.float32)
    return batch


def log_softmax(logits):
    wide = np.asarray(logits, np.float64)
    return wide - np.logaddexp.reduce(wide, axis=-1, keepdims=True)


# Names and shapes.


def test_variables():
    encoder = {name for name in named_variables(BertClassifier(tiny.CONFIG, 3)) if "bert/" in name}
    for _ in range(2):
        tokens = named_variables(BertTokenClassifier(tiny.CONFIG, 5))
        assert tokens.keys() == encoder | {"output_weights", "output_bias"}
        assert tokens["output_weights"].shape == (5, H)
        assert tokens["output_bias"].shape == (5,)
        choice = named_variables(BertForMultipleChoice(tiny.CONFIG))
        # One vector: the paper's only new weights.
        assert choice.keys() == encoder | {"output_weights"}
        assert choice["output_weights"].shape == (1, H)


@pytest.mark.parametrize(
    "make",
    [
        lambda seed: BertTokenClassifier(tiny.CONFIG, 3, seed),
        lambda seed: BertForMultipleChoice(tiny.CONFIG, seed),
    ],
)
def test_new_weights_are_a_function_of_the_seed(make):
    first, again, other = (named_variables(make(seed)) for seed in (5, 5, 6))
    for name, variable in first.items():
        np.testing.assert_array_equal(variable, again[name])
    assert (np.asarray(first["output_weights"]) != np.asarray(other["output_weights"])).all()
    assert 0.01 < np.asarray(first["output_weights"]).std() < 0.03


# Token classification.


def test_token_logits():
    model = BertTokenClassifier(tiny.CONFIG, 3)
    outputs = model(batch := token_batch())
    assert outputs["logits"].shape == (2, 8, 3)
    assert outputs["logits"].dtype == "float32"
    variables = named_variables(model)
    expected = np.asarray(outputs["sequence_output"]) @ np.asarray(variables["output_weights"]).T
    expected += np.asarray(variables["output_bias"])
    np.testing.assert_allclose(outputs["logits"], expected, atol=1e-6)
    # Padding changes nothing.
    short = {name: value[1:, :5] for name, value in batch.items()}
    np.testing.assert_allclose(model(short)["logits"], outputs["logits"][1:, :5], atol=1e-5)


def test_dropout_of_token_logits():
    model = BertTokenClassifier(tiny.CONFIG, 3)
    model.head.output_weights.assign(np.ones((3, H), np.float32))
    batch = token_batch()
    one, same, other, none = (
        np.asarray(model(batch, dropout_key=key)["logits"])
        for key in (KEY, KEY, KEY + [0, 256], None)
    )
    np.testing.assert_array_equal(one, same)
    assert (one != other).mean() > 0.9
    assert (one != none).mean() > 0.9


def test_token_loss():
    batch = token_batch()
    loss = token_loss()
    logits = rng_of(1).normal(0, 3, (2, 8, 3)).astype(np.float32)
    weights = np.asarray(loss.weights(batch)["loss"])
    values = np.asarray(loss.values({"logits": ops.convert_to_tensor(logits)}, batch)["loss"])
    assert weights.shape == values.shape == (2, 8)
    labels = batch["label_ids"]
    np.testing.assert_array_equal(weights, labels >= 0)
    assert weights.sum() == 6
    exact = -np.take_along_axis(log_softmax(logits), np.maximum(labels, 0)[..., None], -1)[..., 0]
    np.testing.assert_allclose(values[labels >= 0], exact[labels >= 0], rtol=1e-5)
    assert np.isfinite(values).all()


def test_gradient_of_the_token_loss():
    """(softmax - one hot) / number of counted tokens at these, 0 elsewhere."""
    batch = token_batch()
    loss = token_loss()
    logits = tf.Variable(rng_of(2).normal(0, 2, (2, 8, 3)).astype(np.float32))
    with tf.GradientTape() as tape:
        values = loss.values({"logits": logits}, batch)["loss"]
        weights = loss.weights(batch)["loss"]
        value = tf.reduce_sum(weights * values) / tf.reduce_sum(weights)
    found = tape.gradient(value, logits).numpy()
    labels = batch["label_ids"]
    expected = (np.exp(log_softmax(logits.numpy())) - np.eye(3)[labels]) / 6
    expected[labels < 0] = 0
    np.testing.assert_allclose(found, expected, atol=1e-6)


# Multiple choice.


def test_choice_scores():
    model = BertForMultipleChoice(tiny.CONFIG)
    outputs = model(batch := choice_batch())
    logits = np.asarray(outputs["logits"])
    assert logits.shape == (3, 4)
    assert outputs["logits"].dtype == "float32"
    mask = batch["choice_mask"] > 0
    assert (logits[~mask] == np.float32(NO_CHOICE_SCORE)).all()
    vector = np.asarray(named_variables(model)["output_weights"])[0]
    scores = (np.asarray(outputs["pooled_output"]) @ vector).reshape(3, 4)
    np.testing.assert_allclose(logits[mask], scores[mask], atol=1e-6)
    # Each choice as if it were read alone.
    for row, choice in np.argwhere(mask):
        alone = {
            name: batch[name][row : row + 1, choice : choice + 1]
            for name in ("input_ids", "input_mask", "segment_ids")
        }
        found = model(alone)["logits"]
        assert found.shape == (1, 1)
        np.testing.assert_allclose(found[0, 0], logits[row, choice], atol=1e-5)


def test_choices_without_masks():
    model = BertForMultipleChoice(tiny.CONFIG)
    batch = choice_batch()
    full = {name: batch[name][:1] for name in ("input_ids", "input_mask", "segment_ids")}
    np.testing.assert_allclose(model(full)["logits"], model(batch)["logits"][:1], atol=1e-6)
    assert model({"input_ids": batch["input_ids"]})["logits"].shape == (3, 4)


def test_dropout_of_choices():
    model = BertForMultipleChoice(tiny.CONFIG)
    batch = choice_batch()
    one, same, none = (
        np.asarray(model(batch, dropout_key=key)["logits"]) for key in (KEY, KEY, None)
    )
    np.testing.assert_array_equal(one, same)
    assert (one[0] != none[0]).all()


def test_multiple_choice_loss():
    """Scores of padding, whatever they are, take no part; nor do rows of padding."""
    batch = choice_batch()
    loss = multiple_choice_loss()
    scores = rng_of(3).normal(0, 2, (3, 4)).astype(np.float32)
    found = np.asarray(loss.values({"logits": ops.convert_to_tensor(scores)}, batch)["loss"])
    expected = [
        -log_softmax(row[mask > 0])[label]
        for row, mask, label in zip(scores, batch["choice_mask"], batch["label_ids"], strict=True)
    ]
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    np.testing.assert_array_equal(loss.weights(batch)["loss"], np.ones(3))
    batch["choice_mask"][2] = 0
    batch["is_real_example"][2] = 0
    found = loss.values({"logits": ops.convert_to_tensor(scores)}, batch)["loss"]
    assert np.isfinite(found).all()
    np.testing.assert_array_equal(loss.weights(batch)["loss"], [1, 1, 0])
    # Without a mask all are choices.
    del batch["choice_mask"]
    found = np.asarray(loss.values({"logits": ops.convert_to_tensor(scores)}, batch)["loss"])
    np.testing.assert_allclose(found[1], -log_softmax(scores[1])[1], rtol=1e-5)


def test_gradient_of_the_multiple_choice_loss():
    batch = choice_batch()
    batch["is_real_example"][2] = 0
    batch["choice_mask"][2] = 0
    loss = multiple_choice_loss()
    scores = tf.Variable(rng_of(4).normal(0, 2, (3, 4)).astype(np.float32))
    with tf.GradientTape() as tape:
        values = loss.values({"logits": scores}, batch)["loss"]
        weights = loss.weights(batch)["loss"]
        value = tf.reduce_sum(weights * values) / tf.reduce_sum(weights)
    found = tape.gradient(value, scores).numpy()
    expected = np.zeros((3, 4))
    expected[0] = (np.exp(log_softmax(scores[0])) - np.eye(4)[3]) / 2
    expected[1, :2] = (np.exp(log_softmax(scores[1, :2])) - np.eye(2)[1]) / 2
    np.testing.assert_allclose(found, expected, atol=1e-6)


# Both in training.

MODELS = {
    "tokens": (lambda: BertTokenClassifier(tiny.CONFIG, 3), token_loss, token_batch),
    "choice": (lambda: BertForMultipleChoice(tiny.CONFIG), multiple_choice_loss, choice_batch),
}


@pytest.mark.parametrize("kind", MODELS)
def test_learning_by_heart(kind):
    make, loss, make_batch = MODELS[kind]
    optimizer = BertAdam(WarmupDecay(3e-3, 100, 0))
    step = TrainStep(make(), loss(), optimizer, tf.distribute.get_strategy(), dropout=False)
    batch = make_batch()
    batches = iter(tf.data.Dataset.from_tensors(batch).repeat())
    before = step.tensors()
    first = step.run(batches, 1)["loss"]
    step.run(batches, 40)
    last = step.run(batches, 1)["loss"]
    assert last < 0.05 < 0.5 < first
    after = step.tensors()
    still = {name for name, value in before.items() if np.array_equal(value, after[name])}
    pooler = {"bert/pooler/dense/kernel", "bert/pooler/dense/bias"}
    # What no loss reaches; the tokens' does not read the pooler.
    assert still & set(step.variables) == (pooler if kind == "tokens" else set())
    logits = np.asarray(step.model(batch)["logits"])
    labels = batch["label_ids"]
    assert (logits.argmax(-1) == labels)[labels >= 0].all()


@pytest.mark.parametrize("kind", MODELS)
def test_denominators_are_those_of_the_whole_batch(kind):
    """Parts of a batch that count differently: the mean is over all, however it is cut."""
    make, make_loss, make_batch = MODELS[kind]
    model, loss = make(), make_loss()
    # Two rows, of which the second counts less or not at all.
    batch = {name: value[:2].copy() for name, value in make_batch().items()}
    if kind == "choice":
        batch["is_real_example"][1] = 0.0
    variables = [variable.value for variable in model.trainable_variables]
    total = float(ops.sum(loss.weights(batch)["loss"]))
    assert total == (1 if kind == "choice" else 6)

    def gradients(part):
        with tf.GradientTape() as tape:
            values = loss.values(model(part), part)["loss"]
            value = tf.reduce_sum(loss.weights(part)["loss"] * values) / total
        found = tape.gradient(value, variables, unconnected_gradients="zero")
        return float(value), [np.asarray(tf.convert_to_tensor(one)) for one in found]

    whole, whole_gradients = gradients(batch)
    parts = [
        gradients({name: value[row : row + 1] for name, value in batch.items()}) for row in (0, 1)
    ]
    assert sum(value for value, _ in parts) == pytest.approx(whole, rel=1e-5)
    for one, first, second in zip(whole_gradients, parts[0][1], parts[1][1], strict=True):
        np.testing.assert_allclose(first + second, one, atol=1e-5)
    assert max(np.abs(one).max() for one in whole_gradients) > 0.05
    # The loss as computed here.
    logits = np.asarray(model(batch)["logits"])
    labels = batch["label_ids"]
    if kind == "choice":
        expected = -log_softmax(logits[0])[labels[0]]
    else:
        rows = log_softmax(logits)[labels >= 0]
        expected = -np.mean(np.take_along_axis(rows, labels[labels >= 0][:, None], -1))
    assert whole == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("kind", MODELS)
def test_half_precision(kind):
    make, loss, make_batch = MODELS[kind]
    dtype = "mixed_bfloat16"
    model = (
        BertTokenClassifier(tiny.CONFIG, 3, dtype=dtype)
        if kind == "tokens"
        else BertForMultipleChoice(tiny.CONFIG, dtype=dtype)
    )
    batch = make_batch()
    logits = model(batch, dropout_key=KEY)["logits"]
    assert logits.dtype == "float32"
    assert loss().values({"logits": logits}, batch)["loss"].dtype == "float32"
    close = np.asarray(model(batch)["logits"]), np.asarray(make()(batch)["logits"])
    np.testing.assert_allclose(*close, atol=0.05)
