"""The BiLSTM against plain float64 arithmetic; the other heads have goldens."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_tf.modeling.heads import BiLSTM

SIZE, UNITS = 5, 3


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def plain_lstm(x, kernel, recurrent, bias):
    """One direction over one text: [T, H] -> [T, U], gates in the order i, f, c, o."""
    h, c = np.zeros(UNITS), np.zeros(UNITS)
    states = []
    for row in x:
        i, f, g, o = np.split(row @ kernel + h @ recurrent + bias, 4)
        c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
        h = sigmoid(o) * np.tanh(c)
        states.append(h)
    return np.stack(states)


def plain_bilstm(layers, x):
    """Layers of both directions over one text without padding: sequence and final states."""
    for forward, backward in layers:
        ahead = plain_lstm(x, *forward)
        back = plain_lstm(x[::-1], *backward)[::-1]
        x = np.concatenate([ahead, back], axis=1)
    return x, np.concatenate([ahead[-1], back[0]])


@pytest.fixture(scope="module", params=[1, 2])
def bilstm(request):
    layer = BiLSTM(UNITS, request.param, seed=1, name="bilstm")
    layer.build((None, None, SIZE))
    rng = np.random.default_rng(0)
    for variable in layer.weights:
        variable.assign(rng.normal(0, 0.7, variable.shape))
    weights = {variable.path: np.asarray(variable, np.float64) for variable in layer.weights}
    layers = [
        [
            [
                weights[f"bilstm/layer_{index}_{direction}/lstm_cell/{name}"]
                for name in ("kernel", "recurrent_kernel", "bias")
            ]
            for direction in ("forward", "backward")
        ]
        for index in range(request.param)
    ]
    return layer, layers


@settings(deadline=None, max_examples=8)
@given(lengths=st.lists(st.integers(1, 6), min_size=1, max_size=3), padding=st.integers(0, 3))
def test_bilstm_against_plain_arithmetic(bilstm, lengths, padding):
    layer, layers = bilstm
    longest = max(lengths) + padding
    x = np.random.default_rng(sum(lengths)).normal(size=(len(lengths), longest, SIZE))
    mask = (np.arange(longest) < np.array(lengths)[:, None]).astype(np.int32)
    found = layer(x.astype(np.float32), input_mask=mask)
    for row, length in enumerate(lengths):
        sequence, final = plain_bilstm(layers, x[row, :length])
        np.testing.assert_allclose(found["sequence"][row, :length], sequence, atol=1e-5)
        np.testing.assert_array_equal(found["sequence"][row, length:], 0.0)
        np.testing.assert_allclose(found["final"][row], final, atol=1e-5)


def test_bilstm_without_a_mask(bilstm):
    layer, layers = bilstm
    x = np.random.default_rng(1).normal(size=(2, 4, SIZE))
    found = layer(x.astype(np.float32))
    sequence, final = plain_bilstm(layers, x[1])
    np.testing.assert_allclose(found["sequence"][1], sequence, atol=1e-5)
    np.testing.assert_allclose(found["final"][1], final, atol=1e-5)


def test_a_row_without_a_token(bilstm, monkeypatch):
    """It fills up a batch; cuDNN, on a GPU, refuses a mask that is all zeros."""
    layer, layers = bilstm
    x = np.random.default_rng(2).normal(size=(2, 4, SIZE))
    mask = np.array([[1, 1, 1, 0], [0, 0, 0, 0]], np.int32)
    masks = []

    def noting(own):
        def call(inputs, mask):
            masks.append(np.asarray(mask))
            return own(inputs, mask=mask)

        return call

    for name in ("forwards", "backwards"):
        monkeypatch.setattr(layer, name, [noting(each) for each in getattr(layer, name)])
    found = layer(x.astype(np.float32), input_mask=mask)
    assert len(masks) == 2 * len(layers)
    for each in masks:
        assert each.tolist() == [[True, True, True, False], [True, False, False, False]]
    sequence, _ = plain_bilstm(layers, x[0, :3])
    np.testing.assert_allclose(found["sequence"][0, :3], sequence, atol=1e-5)
    np.testing.assert_array_equal(found["sequence"][1], 0.0)


def test_new_weights_of_a_bilstm():
    def weights(seed):
        layer = BiLSTM(UNITS, 2, seed=seed)
        layer.build((None, None, SIZE))
        return [np.asarray(variable) for variable in layer.weights]

    first, again, other = weights(1), weights(1), weights(2)
    for a, b, c in zip(first, again, other, strict=True):
        np.testing.assert_array_equal(a, b)
        assert a.ndim == 1 or (a != c).mean() > 0.9
    kernels = [value for value in first if value.ndim == 2]
    assert len({value.tobytes() for value in kernels}) == len(kernels) == 8
