import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from keras import ops

from bert_tf.config import BertConfig
from bert_tf.modeling import layers
from bert_tf.modeling.layers import DROPOUT_STREAMS, Dense, Dropout, LayerNorm
from bert_tf.modeling.models import BertClassifier

INT32 = st.integers(-(2**31), 2**31 - 1)
STREAMS = st.integers(0, DROPOUT_STREAMS - 1)


def mask_of(key, stream=0, rate=0.5, shape=(40, 8)):
    """What a dropout layer keeps, as bools."""
    x = np.ones(shape, np.float32)
    return np.asarray(Dropout(rate, stream)(x, key=tf.constant(key, tf.int32))) != 0


@settings(deadline=None, max_examples=25)
@given(first=INT32, second=st.integers(0, 2**31 - 1 - DROPOUT_STREAMS), stream=STREAMS)
def test_dropout_is_a_function_of_its_key(first, second, stream):
    np.testing.assert_array_equal(
        mask_of([first, second], stream), mask_of([first, second], stream)
    )


@settings(deadline=None, max_examples=25)
@given(
    seeds=st.lists(INT32, min_size=2, max_size=2, unique=True),
    steps=st.lists(st.integers(0, 2**22), min_size=2, max_size=2, unique=True),
    streams=st.lists(STREAMS, min_size=2, max_size=2, unique=True),
)
def test_another_seed_step_or_stream_gives_another_mask(seeds, steps, streams):
    def mask(seed, step, stream):
        return mask_of([seeds[seed], steps[step] * DROPOUT_STREAMS], streams[stream])

    base = mask(0, 0, 0)
    # 320 values: equal by chance once in 2^320.
    for other in (mask(1, 0, 0), mask(0, 1, 0), mask(0, 0, 1)):
        assert (base != other).any()


def test_masks_of_neighbours_are_independent():
    shape = (100_000,)
    base = mask_of([5, 256], 3, 0.5, shape)
    neighbours = [mask_of([5, 512], 3, 0.5, shape), mask_of([5, 256], 4, 0.5, shape)]
    neighbours += [mask_of([5 ^ 256, 256], 3, 0.5, shape), mask_of([6, 256], 3, 0.5, shape)]
    for other in neighbours:
        # Five deviations of a correlation of independent values.
        assert abs(np.corrcoef(base, other)[0, 1]) < 5 / np.sqrt(len(base))


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_dropout_rate_and_scale(rate):
    size = 200_000
    x = np.random.default_rng(0).normal(3.0, 1.0, size).astype(np.float32)
    y = np.asarray(Dropout(rate, 1)(x, key=tf.constant([1, 0], tf.int32)))
    kept = y != 0
    deviation = np.sqrt(rate * (1 - rate) / size)
    assert abs(kept.mean() - (1 - rate)) < 5 * deviation
    np.testing.assert_allclose(y[kept], x[kept] / (1 - rate), rtol=1e-6)
    # The expectation is kept: mean of x times the mask's own deviation.
    assert abs(y.mean() - x.mean()) < 5 * np.sqrt((x**2).mean() * rate / (1 - rate) / size)


def test_dropout_masks_the_gradient_too():
    x = tf.Variable(tf.ones([1000]))
    with tf.GradientTape() as tape:
        y = Dropout(0.25, 0)(x.value(), key=tf.constant([3, 0], tf.int32))
        total = tf.reduce_sum(y)
    np.testing.assert_array_equal(tape.gradient(total, x), y)


@pytest.mark.parametrize(("rate", "key"), [(0.5, None), (0.0, [1, 0])])
def test_no_dropout(rate, key):
    x = np.random.default_rng(0).normal(size=(4, 5)).astype(np.float32)
    key = None if key is None else tf.constant(key, tf.int32)
    np.testing.assert_array_equal(Dropout(rate, 0)(x, key=key), x)


@pytest.mark.parametrize("stream", [-1, DROPOUT_STREAMS])
def test_stream_out_of_range(stream):
    with pytest.raises(ValueError, match=rf"stream is {stream}; it must be 0 to 255"):
        Dropout(0.1, stream)


def test_no_two_layers_share_a_stream():
    config = BertConfig(
        vocab_size=10, hidden_size=8, num_hidden_layers=12, num_attention_heads=2,
        intermediate_size=8, max_position_embeddings=8,
    )  # fmt: skip
    model = BertClassifier(config, 2)
    streams = [layer.stream for layer in model._flatten_layers() if isinstance(layer, Dropout)]
    assert len(streams) == 12 * 3 + 2
    assert len(set(streams)) == len(streams)


def test_unknown_activation():
    with pytest.raises(ValueError, match=r"'swish' is not known; known: gelu, gelu_erf, relu"):
        layers.get_activation("swish")


def test_gelu_forms():
    x = np.linspace(-6, 6, 241)
    erf = np.array([keras.ops.erf(value / np.sqrt(2)) for value in x])
    np.testing.assert_allclose(
        layers.get_activation("gelu_erf")(x.astype(np.float32)), x / 2 * (1 + erf), atol=2e-6
    )
    tanh = x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
    np.testing.assert_allclose(layers.get_activation("gelu")(x.astype(np.float32)), tanh, atol=2e-6)
    assert np.abs(x / 2 * (1 + erf) - tanh).max() > 1e-4


def test_initial_values():
    a, b, c = (Dense(200, stddev=0.02, seed=seed) for seed in (1, 1, 2))
    for layer in (a, b, c):
        layer.build((None, 300))
    kernel = np.asarray(a.kernel)
    np.testing.assert_array_equal(kernel, b.kernel)
    assert (kernel != np.asarray(c.kernel)).mean() > 0.99
    np.testing.assert_array_equal(a.bias, np.zeros(200))
    # A normal distribution cut at two deviations; what is left deviates by 0.8796.
    assert np.abs(kernel).max() <= 0.04
    assert np.abs(kernel).max() > 0.0399
    assert kernel.std() == pytest.approx(0.02 * 0.8796, rel=0.01)
    assert abs(kernel.mean()) < 5 * kernel.std() / np.sqrt(kernel.size)


def test_derived_seeds():
    # The same in every process: written down once.
    assert layers.derive_seed(0, "bert") == 0x637B86C9
    names = [f"layer_{index}" for index in range(100)]
    assert len({layers.derive_seed(seed, name) for seed in range(5) for name in names}) == 500


def test_layer_norm_in_half_precision_computes_in_float32():
    layer = LayerNorm(1e-12, dtype="mixed_float16")
    layer.build((None, 64))
    # Squares up to 1e8: over float16's 65504.
    x = np.random.default_rng(0).normal(0, 2000, (3, 64)).astype(np.float16)
    y = layer(ops.convert_to_tensor(x))
    assert y.dtype == tf.float16
    assert layer.gamma.dtype == "float32"
    wide = x.astype(np.float64)
    exact = (wide - wide.mean(-1, keepdims=True)) / wide.std(-1, keepdims=True)
    np.testing.assert_allclose(y, exact, atol=2e-3)


@pytest.mark.parametrize(
    "layer", [Dense(3, "gelu", 0.1, 5), LayerNorm(1e-6), Dropout(0.2, 7)], ids=lambda x: x.name
)
def test_config_round_trip(layer):
    again = type(layer).from_config(layer.get_config())
    assert again.get_config() == layer.get_config()
