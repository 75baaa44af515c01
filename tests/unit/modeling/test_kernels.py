"""The fused functions against plain ops: values, gradients, and the mask against numpy's own."""

import operator

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_tf.modeling import kernels
from bert_tf.training.step import _compile

FUSIONS = [
    kernels.Fusion(),
    kernels.Fusion(_compile),
    kernels.Fusion(_compile, sums_by_product=True),
]
FUSION_IDS = ["op by op", "compiled", "compiled, products"]
KEY = (7, 3 * 256 + 5)
R, D = 12, 24


def normal(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def key_of(key=KEY):
    return tf.constant(key, tf.int32)


def numpy_mask(size, key, rate):
    """What keep_mask is documented to be, in numpy with 64-bit numbers."""

    def spread(x, between=0):
        x = x ^ (x >> 16)
        x = (x * 0x85EBCA6B) % 2**32
        x = x ^ between
        x = x ^ (x >> 13)
        x = (x * 0xC2B2AE35) % 2**32
        return x ^ (x >> 16)

    seed, step = (int(number) % 2**32 for number in key)
    first = spread((seed * 0x9E3779B1 + step) % 2**32)
    second = spread((first + 0x9E3779B1) % 2**32, step)
    place = np.arange(size, dtype=np.uint64) * np.uint64(0x9E3779B1) + np.uint64(first)
    return spread(place % np.uint64(2**32), np.uint64(second)) >= round(rate * 2**32)


@settings(deadline=None, max_examples=30)
@given(
    shape=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    key=st.tuples(*[st.integers(-(2**31), 2**31 - 1)] * 2),
    rate=st.sampled_from([0.0, 0.1, 0.5, 0.999]),
)
def test_the_mask(shape, key, rate):
    found = np.asarray(kernels.keep_mask(tuple(shape), key_of(key), rate))
    expected = numpy_mask(int(np.prod(shape)), key, rate).reshape(shape)
    np.testing.assert_array_equal(found, expected)


def test_the_mask_is_as_good_as_random():
    size, keys = (
        2**16,
        [(seed, step * 256 + s) for seed in (0, 1) for step in (0, 1) for s in (0, 9)],
    )
    masks = np.array([kernels.keep_mask((size,), key_of(key), 0.1) for key in keys], np.float64)
    masks = (masks - 0.9) / np.sqrt(0.09)  # mean 0, variance 1
    bound = 5 / np.sqrt(size)
    assert np.abs(masks.mean(1)).max() < bound
    # No two keys, and no two places at any of these distances, have to do with each other.
    assert np.abs(np.corrcoef(masks) - np.eye(len(keys))).max() < bound
    for distance in (1, 2, 8, 64, 128, 512, 4096):
        for mask in masks:
            assert abs((mask[distance:] * mask[:-distance]).mean()) < 5 / np.sqrt(size - distance)
    # Nor is one mask another, shifted: the largest of 65,536 correlations at any shift.
    spectrum = np.fft.rfft(masks, axis=1)
    for i in range(len(keys)):
        for j in range(i):
            shifted = np.fft.irfft(spectrum[i] * spectrum[j].conj(), size) / size
            assert np.abs(shifted).max() < 6.5 / np.sqrt(size)


# name -> (the function, its inputs with a gradient)
FUNCTIONS = {
    "dropout": (lambda x: kernels.dropout(x, key_of(), 0.3), [normal(3, 5, 7)]),
    "gelu": (
        lambda x, bias: kernels.bias_gelu(x, bias, approximate=True),
        [3 * normal(R, D), normal(D, seed=1)],
    ),
    "gelu_erf": (
        lambda x, bias: kernels.bias_gelu(x, bias, approximate=False),
        [3 * normal(R, D), normal(D, seed=1)],
    ),
    "bias": (kernels.bias_add, [normal(R, D), normal(D, seed=1)]),
    "layer norm": (
        lambda *args: kernels.layer_norm(*args, 1e-12),
        [2 + normal(R, D), normal(D, seed=1), normal(D, seed=2)],
    ),
    "residual": (
        lambda *args: kernels.residual_norm(*args, key_of(), 0.3, 1e-12),
        [normal(R, D), normal(D, seed=1), *(normal(R, D, seed=2), normal(D, seed=3), normal(D))],
    ),
    "residual without dropout": (
        lambda *args: kernels.residual_norm(*args, None, 0.3, 1e-12),
        [normal(R, D), normal(D, seed=1), *(normal(R, D, seed=2), normal(D, seed=3), normal(D))],
    ),
    "attention": (
        lambda x: kernels.attention_probs(
            x, tf.constant(-10000.0 * (normal(2, 1, 1, 6) > 1)), x.dtype, key_of(), 0.3
        ),
        [normal(2, 3, 6, 6)],
    ),
    "attention without mask and dropout": (
        lambda x: kernels.attention_probs(x, None, x.dtype, None, 0.3),
        [normal(2, 3, 6, 6)],
    ),
    "tied product": (kernels.tied_product, [normal(R, D), normal(40, D, seed=1)]),
    "cross-entropy": (
        lambda x: kernels.cross_entropy(x, tf.constant(np.arange(R) % D)),
        [5 * normal(R, D)],
    ),
    "cross-entropy of places": (
        lambda x: kernels.cross_entropy(x, tf.constant(np.arange(R) % D)),
        [5 * normal(R, D)],
    ),
    "cross-entropy of tokens": (
        lambda x: kernels.cross_entropy(x, tf.constant([[0, 1, 4], [2, 2, 3]])),
        [normal(2, 3, 5)],
    ),
}


def value_and_gradients(name, fusion, dtype="float32"):
    """The function's value, and the gradients of a weighted sum of it."""
    function, inputs = FUNCTIONS[name]

    # Shapes are not known when it is traced, but for the last axis: as in training.
    free = [tf.TensorSpec([None] * (x.ndim - 1) + [x.shape[-1]], dtype) for x in inputs]
    if name.startswith(("attention", "cross-entropy of places")):
        free = [tf.TensorSpec([None] * x.ndim, dtype) for x in inputs]

    @tf.function(input_signature=free)
    def run(*inputs):
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            if fusion is None:
                value = function(*inputs)
            else:
                with kernels.fused(fusion):
                    value = function(*inputs)
            wide = tf.cast(value, tf.float32)
            weights = tf.reshape(tf.sin(tf.range(tf.size(wide), dtype=tf.float32)), tf.shape(wide))
            total = tf.reduce_sum(wide * weights)
        return value, tape.gradient(total, inputs)

    value, gradients = run(*[tf.cast(x, dtype) for x in inputs])
    assert value.dtype == ("float32" if name.startswith("cross") else dtype)
    assert all(gradient.dtype == dtype for gradient in gradients)
    return [np.asarray(tf.cast(x, tf.float32)) for x in (value, *gradients)]


@pytest.mark.parametrize("fusion", FUSIONS, ids=FUSION_IDS)
@pytest.mark.parametrize("name", list(FUNCTIONS))
def test_fused_as_plain(name, fusion):
    expected = value_and_gradients(name, None)
    found = value_and_gradients(name, fusion)
    assert all(np.abs(value).max() > 0.05 for value in expected)
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-6 * max(1.0, np.abs(b).max()))


@pytest.mark.parametrize(
    "name", ["dropout", "gelu", "gelu_erf", "bias", "attention", "tied product"]
)
def test_in_bfloat16_as_in_float32(name):
    expected = value_and_gradients(name, None)
    for a, b in zip(value_and_gradients(name, FUSIONS[-1], "bfloat16"), expected, strict=True):
        # bfloat16 has 8 bits; a sum of R of them may lose more.
        np.testing.assert_allclose(a, b, rtol=0.03, atol=0.02 * np.abs(b).max())


def test_cross_entropy_of_large_logits():
    """No overflow, at either end."""
    logits = np.array([[1000.0, -1000.0, 0.0], [-1e30, 0.0, 1e30]], np.float32)
    for fusion in FUSIONS:
        with kernels.fused(fusion):
            found = kernels.cross_entropy(tf.constant(logits), tf.constant([1, 2]))
        np.testing.assert_allclose(found, [2000.0, 0.0])


def test_fusion_ends_with_its_block():
    with (
        pytest.raises(RuntimeError),
        kernels.fused(FUSIONS[0]),
        kernels.inference(tf.nn.bias_add),
    ):
        raise RuntimeError
    assert kernels._FUSION.get() is None
    assert kernels._BIAS_ADD.get() is operator.add


@pytest.mark.parametrize("name", ["gelu", "gelu_erf", "bias", "residual without dropout"])
def test_inference_as_ever(name):
    function, inputs = FUNCTIONS[name]
    expected = function(*map(tf.constant, inputs))
    with kernels.inference(tf.nn.bias_add):
        found = function(*map(tf.constant, inputs))
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)


def test_compiled_once_for_all_layers():
    traces = []

    def compiler(function):
        def count(*args):
            traces.append(1)
            return function(*args)

        return tf.function(count, jit_compile=True, autograph=False)

    fusion = kernels.Fusion(compiler)

    @tf.function
    def model(x):
        for number in range(4):
            with kernels.fused(fusion):
                x = kernels.dropout(x, tf.constant([1, number], tf.int32), 0.1)
        return x

    model(tf.ones([4, 4]))
    assert len(traces) == 1
