"""The feature-based tagger of section 5.3, and the LSTM of a tagger that is fine-tuned."""

import numpy as np
import pytest
import tensorflow as tf
import tiny
from keras import ops

from bert_tf.modeling.losses import token_loss
from bert_tf.modeling.models import BertFeatureTagger, BertTokenClassifier, named_variables
from bert_tf.optimization import BertAdam, WarmupDecay
from bert_tf.training.step import TrainStep

H = tiny.CONFIG.hidden_size
UNITS = 5


def make(mixed=0, seed=0, size=H):
    return BertFeatureTagger(tiny.CONFIG, 3, size, mixed, UNITS, seed=seed)


def batch_of(size=H, seed=0):
    rng = np.random.default_rng(seed)
    mask = np.array([[1, 1, 1, 1], [1, 1, 0, 0]], np.int32)
    return {
        "features": rng.normal(size=(2, 4, size)).astype(np.float32),
        "input_mask": mask,
        "label_ids": np.array([[0, 2, 1, 0], [1, 2, -1, -1]], np.int32),
    }


def sigmoid(x):
    return 1.0 / (1.0 + np.exp(-x))


def lstm(x, weights):
    """One direction over one text, by the book: [T, D] -> [T, U]."""
    kernel, recurrent, bias = weights
    hidden = cell = np.zeros(recurrent.shape[0])
    states = []
    for row in x:
        i, f, c, o = np.split(row @ kernel + hidden @ recurrent + bias, 4)
        cell = sigmoid(f) * cell + sigmoid(i) * np.tanh(c)
        hidden = sigmoid(o) * np.tanh(cell)
        states.append(hidden)
    return np.array(states)


def test_logits_are_those_of_two_layers_by_the_book():
    model, batch = make(mixed=2, size=2 * H), batch_of(2 * H)
    values = {name: np.asarray(value) for name, value in named_variables(model).items()}
    named_variables(model)["layer_mix/layer_weights"].assign([0.3, -0.5])
    share = np.exp([0.3, -0.5]) / np.exp([0.3, -0.5]).sum()
    logits = np.asarray(model(batch)["logits"])
    assert logits.shape == (2, 4, 3)
    for row, length in enumerate((4, 2)):
        x = batch["features"][row, :length].astype(np.float64)
        x = share[0] * x[:, :H] + share[1] * x[:, H:]
        for layer in range(2):
            parts = []
            for direction in ("forward", "backward"):
                cell = f"bilstm/layer_{layer}_{direction}/lstm_cell"
                weights = [values[f"{cell}/{name}"] for name in
                           ("kernel", "recurrent_kernel", "bias")]  # fmt: skip
                step = 1 if direction == "forward" else -1
                parts.append(lstm(x[::step], weights)[::step])
            x = np.concatenate(parts, axis=1)
        expected = x @ values["output_weights"].T + values["output_bias"]
        np.testing.assert_allclose(logits[row, :length], expected, atol=1e-5)


def test_the_encoder_is_kept_but_not_trained():
    model, batch = make(mixed=2, size=2 * H), batch_of(2 * H)
    step = TrainStep(
        model, token_loss(), BertAdam(WarmupDecay(1e-2, 10, 0)), tf.distribute.get_strategy()
    )
    assert any(name.startswith("bert/encoder/") for name in step.variables)
    assert not any(name.startswith("bert/") for name in [*step.trained, *step.slots])
    before = {name: variable.numpy() for name, variable in step.variables.items()}
    dataset = tf.data.Dataset.from_tensors(batch).repeat()
    step.run(iter(dataset), 2)
    after = {name: variable.numpy() for name, variable in step.variables.items()}
    moved = {name for name in before if not np.array_equal(before[name], after[name])}
    assert moved == {name for name in before if not name.startswith("bert/")}
    assert {"layer_mix/layer_weights", "output_weights", "output_bias"} < moved


def test_new_weights_are_a_function_of_the_seed():
    one, same, other = (
        {name: value.numpy() for name, value in named_variables(make(seed=seed)).items()}
        for seed in (3, 3, 4)
    )
    tiny.assert_same(one, same)
    assert "layer_mix/layer_weights" not in one
    kernels = [name for name in one if name.endswith(("kernel", "output_weights"))]
    assert [name for name in kernels if np.array_equal(one[name], other[name])] == []


def test_a_mean_of_layers_begins_as_their_mean():
    model = make(mixed=3, size=3 * H)
    same = make()
    for name, variable in named_variables(same).items():
        variable.assign(named_variables(model)[name])
    batch = batch_of(3 * H)
    mean = batch["features"].reshape(2, 4, 3, H).mean(axis=2)
    np.testing.assert_allclose(
        np.asarray(model(batch)["logits"]),
        np.asarray(same({**batch, "features": mean})["logits"]),
        atol=1e-5,
    )


@pytest.mark.parametrize("bilstm", [False, True])
def test_padding_changes_no_tag(bilstm):
    model = BertTokenClassifier(tiny.CONFIG, 3, bilstm=bilstm)
    rng = np.random.default_rng(1)
    ids = rng.integers(5, tiny.CONFIG.vocab_size, (1, 6), np.int32)
    short = {"input_ids": ids, "input_mask": np.ones((1, 6), np.int32)}
    padded = {name: np.pad(value, [(0, 0), (0, 4)]) for name, value in short.items()}
    expected = np.asarray(model(short)["logits"])
    found = np.asarray(model(padded)["logits"])[:, :6]
    np.testing.assert_allclose(found, expected, atol=1e-5)
    kernel = named_variables(model)["output_weights"]
    assert kernel.shape == (3, 2 * H if bilstm else H)
    # The LSTM reads both sides: the first tag depends on the last token.
    other = {**short, "input_ids": np.concatenate([ids[:, :-1], ids[:, -1:] - 1], axis=1)}
    assert ops.max(ops.abs(model(other)["logits"][0, 0] - expected[0, 0])) > 1e-4
