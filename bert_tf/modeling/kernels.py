"""The arithmetic around the matrix products of a training step, with gradients of its own.

On a CPU a step's time beyond its matrix products is memory traffic: a dozen small ops for GELU,
each over megabytes. Here each chain of such ops is one function, with its gradient written down
and from few saved tensors, so that a compiler can make one pass over memory of it.

Outside `fused` the same values come of plain ops, and their gradients of automatic
differentiation; `fused` and `inference` change rounding and nothing else.

Letters in shape comments: R rows, D numbers of a row.
"""

import contextlib
import contextvars
import dataclasses
import functools
import math
import operator
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
from keras import ops


@dataclasses.dataclass(frozen=True)
class Fusion:
    """How functions are fused.

    Args:
      compiler: takes a function of tensors and returns it compiled, such as
        `tf.function(..., jit_compile=True)`; the same object for the same compiler. None runs
        the functions op by op, for a caller that compiles the whole step.
      sums_by_product: whether sums over rows and columns are products with ones. XLA adds up a
        row on a CPU one number after the other, but multiplies matrices fast. Not for devices
        whose products round their inputs (TF32, bfloat16 passes).
    """

    compiler: Callable[[Callable[..., Any]], Callable[..., Any]] | None = None
    sums_by_product: bool = False

    def run(self, function: Callable[..., Any], *args: Any) -> Any:
        """Returns function(self, *args), compiled if there is a compiler."""
        if self.compiler is None:
            return function(self, *args)
        return _compiled(self, function)(*args)

    def sum_rows(self, x: Any) -> Any:
        """Adds up each row: float32 [R, D] -> [R, 1]."""
        if self.sums_by_product:
            return ops.matmul(x, ops.ones((ops.shape(x)[-1], 1), dtype=x.dtype))
        return ops.sum(x, axis=-1, keepdims=True)

    def bias_gradient(self, change: Any, bias: Any) -> Any:
        """Adds up the columns of a gradient that lies in memory: [R, D] -> [D], as the bias."""
        if self.sums_by_product:
            total = ops.matmul(ops.ones((1, ops.shape(change)[0]), dtype=change.dtype), change)[0]
        else:
            total = _sum_columns(change)
        return ops.cast(total, bias.dtype)


@functools.cache
def _compiled(fusion: Fusion, function: Callable[..., Any]) -> Callable[..., Any]:
    """One compiled function for all layers: they share its programs."""
    assert fusion.compiler is not None
    return fusion.compiler(functools.partial(function, fusion))


_FUSION: contextvars.ContextVar[Fusion | None] = contextvars.ContextVar("fusion", default=None)


@contextlib.contextmanager
def fused(fusion: Fusion) -> Iterator[None]:
    """Within it, models that are called (or traced) use the fused functions."""
    token = _FUSION.set(fusion)
    try:
        yield
    finally:
        _FUSION.reset(token)


# Adds a bias to rows, where a backend has an op for it that is fused with others.
_BIAS_ADD: contextvars.ContextVar[Callable[[Any, Any], Any]] = contextvars.ContextVar(
    "bias_add", default=operator.add
)


@contextlib.contextmanager
def inference(bias_add: Callable[[Any, Any], Any]) -> Iterator[None]:
    """Within it, models add biases by the given function.

    With `tf.nn.bias_add` TensorFlow computes a product, its bias and a GELU on a CPU in one op;
    it does not know a plain sum for a bias there.
    """
    token = _BIAS_ADD.set(bias_add)
    try:
        yield
    finally:
        _BIAS_ADD.reset(token)


def _sum_columns(x: Any) -> Any:
    return ops.sum(_wide(x), axis=0)


def upstream_of(args: tuple[Any, ...], upstream: Any) -> Any:
    """The gradient that a backend hands over, by position (TensorFlow, JAX) or by name."""
    return args[0] if upstream is None else upstream


def _wide(x: Any) -> Any:
    return ops.cast(x, "float32")


# Multipliers of MurmurHash3's finaliser, which spreads each bit of a number over all of them.
_SPREAD_1, _SPREAD_2 = np.uint32(0x85EBCA6B), np.uint32(0xC2B2AE35)
_GOLDEN = np.uint32(0x9E3779B1)


def _spread(x: Any, between: Any = None) -> Any:
    """Mixes uint32 numbers: one to one, but with no pattern left. `between` is mixed in midway."""
    x = ops.bitwise_xor(x, ops.bitwise_right_shift(x, np.uint32(16)))
    x = x * _SPREAD_1
    if between is not None:
        x = ops.bitwise_xor(x, between)
    x = ops.bitwise_xor(x, ops.bitwise_right_shift(x, np.uint32(13)))
    x = x * _SPREAD_2
    return ops.bitwise_xor(x, ops.bitwise_right_shift(x, np.uint32(16)))


def keep_mask(shape: tuple[Any, ...], key: Any, rate: float) -> Any:
    """Returns where dropout keeps a value, bool of that shape: a function of the key alone.

    A value is kept if a hash of its place and the key is not below `rate` of the range: as good
    as random for this use, the same on every device, at a fraction of a generator's time.

    Args:
      shape: of the tensor, which holds fewer than 2^31 values.
      key: int32 [2].
      rate: share of the values that are dropped, 0 to below 1.
    """
    key = ops.cast(key, "uint32")
    # The key goes in at two places: with one alone, a mask would be another's, shifted.
    first = _spread(key[0] * _GOLDEN + key[1])
    second = _spread(first + _GOLDEN, key[1])
    count = functools.reduce(operator.mul, shape)
    place = ops.cast(ops.arange(count, dtype="int32"), "uint32")
    hashed = _spread(place * _GOLDEN + first, second)
    return ops.reshape(hashed >= np.uint32(min(round(rate * 2**32), 2**32 - 1)), shape)


def _drop(x: Any, key: Any, rate: float) -> Any:
    if key is None or rate == 0:
        return x
    kept = keep_mask(ops.shape(x), key, rate)
    return ops.where(kept, x * (1.0 / (1.0 - rate)), ops.zeros((), dtype=x.dtype))


def _dropout(fusion: Fusion, x: Any, key: Any, rate: float) -> Any:
    del fusion
    return _drop(x, key, rate)


def dropout(x: Any, key: Any, rate: float) -> Any:
    """Sets a share of the values to zero and scales the others by 1 / (1 - rate).

    Args:
      x: float, any shape.
      key: int32 [2], or None to return x.
      rate: 0 to below 1.
    """
    fusion = _FUSION.get()
    if key is None or rate == 0:
        return x
    if fusion is None:
        return _drop(x, key, rate)

    # The key is an argument: JAX may take the gradient when what a closure holds is gone.
    @ops.custom_gradient
    def function(x: Any, key: Any) -> Any:
        def gradient(*args: Any, upstream: Any = None) -> Any:
            return fusion.run(_dropout, upstream_of(args, upstream), key, rate), None

        return fusion.run(_dropout, x, key, rate), gradient

    return function(x, key)


# sqrt(2 / pi), and the factor of the cube in GELU's tanh form (Hendrycks and Gimpel, 2016).
_GELU_SCALE, _GELU_CUBE = math.sqrt(2.0 / math.pi), 0.044715


def _bias_gelu(fusion: Fusion, x: Any, bias: Any, approximate: bool) -> Any:
    del fusion
    wide = _wide(x) + _wide(bias)
    if approximate:
        share = ops.tanh(_GELU_SCALE * (wide + _GELU_CUBE * wide * wide * wide))
    else:
        share = ops.erf(wide * math.sqrt(0.5))
    return ops.cast(wide * (0.5 + 0.5 * share), x.dtype)


def _bias_gelu_gradient(fusion: Fusion, x: Any, bias: Any, upstream: Any, approximate: bool) -> Any:
    del fusion
    wide = _wide(x) + _wide(bias)
    square = wide * wide
    if approximate:
        share = ops.tanh(_GELU_SCALE * (wide + _GELU_CUBE * wide * square))
        inner = _GELU_SCALE * (1.0 + 3.0 * _GELU_CUBE * square)
        slope = 0.5 * (1.0 + share) + 0.5 * wide * (1.0 - share * share) * inner
    else:
        density = ops.exp(-0.5 * square) * (1.0 / math.sqrt(2.0 * math.pi))
        slope = 0.5 + 0.5 * ops.erf(wide * math.sqrt(0.5)) + wide * density
    return ops.cast(_wide(upstream) * slope, x.dtype)


def bias_gelu(x: Any, bias: Any, approximate: bool) -> Any:
    """GELU of x + bias: float [R, D], [D] -> [R, D]; in its tanh form if `approximate`."""
    fusion = _FUSION.get()
    if fusion is None:
        return keras.activations.gelu(_BIAS_ADD.get()(x, bias), approximate=approximate)

    @ops.custom_gradient
    def function(x: Any, bias: Any) -> Any:
        def gradient(*args: Any, upstream: Any = None) -> Any:
            upstream = upstream_of(args, upstream)
            change = fusion.run(_bias_gelu_gradient, x, bias, upstream, approximate)
            return change, fusion.bias_gradient(change, bias)

        return fusion.run(_bias_gelu, x, bias, approximate), gradient

    return function(x, bias)


def bias_add(x: Any, bias: Any) -> Any:
    """x + bias: float [R, D], [D] -> [R, D]."""
    fusion = _FUSION.get()
    if fusion is None:
        return _BIAS_ADD.get()(x, bias)

    @ops.custom_gradient
    def function(x: Any, bias: Any) -> Any:
        def gradient(*args: Any, upstream: Any = None) -> Any:
            change = upstream_of(args, upstream)
            return change, fusion.bias_gradient(change, bias)

        return x + bias, gradient

    return function(x, bias)


def _normalise(fusion: Fusion, x: Any, epsilon: float) -> tuple[Any, Any]:
    """Returns (x - mean) / deviation of each row, and 1 / deviation [R, 1], in float32."""
    wide, size = _wide(x), x.shape[-1]
    centred = wide - fusion.sum_rows(wide) / size
    scale = ops.rsqrt(fusion.sum_rows(centred * centred) / size + epsilon)
    return centred * scale, scale


def _norm(fusion: Fusion, x: Any, gamma: Any, beta: Any, epsilon: float) -> Any:
    return ops.cast(_normalise(fusion, x, epsilon)[0] * gamma + beta, x.dtype)


def _norm_gradient(
    fusion: Fusion, x: Any, gamma: Any, upstream: Any, epsilon: float
) -> tuple[Any, Any, Any]:
    normal, scale = _normalise(fusion, x, epsilon)
    upstream, size = _wide(upstream), x.shape[-1]
    inner = upstream * gamma
    mean, along = fusion.sum_rows(inner) / size, fusion.sum_rows(inner * normal) / size
    change = ops.cast(scale * (inner - mean - normal * along), x.dtype)
    return change, _sum_columns(upstream * normal), _sum_columns(upstream)


def layer_norm(x: Any, gamma: Any, beta: Any, epsilon: float) -> Any:
    """Layer normalisation in float32: float [R, D], float32 [D], float32 [D] -> [R, D] as x."""
    fusion = _FUSION.get()
    if fusion is None:
        wide = _wide(x)
        centred = wide - ops.mean(wide, axis=-1, keepdims=True)
        variance = ops.mean(ops.square(centred), axis=-1, keepdims=True)
        return ops.cast(centred * ops.rsqrt(variance + epsilon) * gamma + beta, x.dtype)

    @ops.custom_gradient
    def function(x: Any, gamma: Any, beta: Any) -> Any:
        def gradient(*args: Any, upstream: Any = None) -> Any:
            return fusion.run(_norm_gradient, x, gamma, upstream_of(args, upstream), epsilon)

        return fusion.run(_norm, x, gamma, beta, epsilon), gradient

    return function(x, gamma, beta)


def _residual(
    fusion: Fusion,
    x: Any,
    bias: Any,
    residual: Any,
    gamma: Any,
    beta: Any,
    key: Any,
    rate: float,
    epsilon: float,
) -> tuple[Any, Any]:
    total = _drop(_wide(x) + _wide(bias), key, rate) + _wide(residual)
    total = ops.cast(total, x.dtype)
    return _norm(fusion, total, gamma, beta, epsilon), total


def _residual_gradient(
    fusion: Fusion,
    total: Any,
    bias: Any,
    gamma: Any,
    upstream: Any,
    key: Any,
    rate: float,
    epsilon: float,
) -> tuple[Any, Any, Any, Any, Any]:
    change, of_gamma, of_beta = _norm_gradient(fusion, total, gamma, upstream, epsilon)
    dropped = _drop(change, key, rate)
    of_bias = ops.cast(_sum_columns(dropped), bias.dtype)
    return dropped, of_bias, change, of_gamma, of_beta


def residual_norm(
    x: Any, bias: Any, residual: Any, gamma: Any, beta: Any, key: Any, rate: float, epsilon: float
) -> Any:
    """The end of both halves of a transformer layer: layer_norm(dropout(x + bias) + residual).

    Args:
      x: float [R, D].
      bias: float [D].
      residual: float [R, D].
      gamma, beta: float32 [D].
      key, rate: see `dropout`.
      epsilon: see `layer_norm`.

    Returns: float [R, D].
    """
    fusion = _FUSION.get()
    if fusion is None:
        dropped = dropout(_BIAS_ADD.get()(x, bias), key, rate)
        return layer_norm(dropped + residual, gamma, beta, epsilon)

    @ops.custom_gradient
    def function(x: Any, bias: Any, residual: Any, gamma: Any, beta: Any, *keys: Any) -> Any:
        key = keys[0] if keys else None
        y, total = fusion.run(_residual, x, bias, residual, gamma, beta, key, rate, epsilon)

        def gradient(*args: Any, upstream: Any = None) -> Any:
            upstream = upstream_of(args, upstream)
            change = fusion.run(
                _residual_gradient, total, bias, gamma, upstream, key, rate, epsilon
            )
            return *change, *[None for _ in keys]

        return y, gradient

    return function(x, bias, residual, gamma, beta, *([] if key is None else [key]))


def _probs_gradient(fusion: Fusion, probs: Any, upstream: Any, key: Any, rate: float) -> Any:
    upstream = _wide(_drop(upstream, key, rate))
    wide = _wide(probs)
    shape = ops.shape(probs)
    product = ops.reshape(upstream * wide, (-1, shape[-1]))
    along = ops.reshape(fusion.sum_rows(product), (*shape[:-1], 1))
    return wide * (upstream - along)


def attention_probs(scores: Any, bias: Any, dtype: Any, key: Any, rate: float) -> Any:
    """Attention probabilities after dropout.

    Args:
      scores: float [B, N, T, T].
      bias: float32 [B, 1, 1 or T, T], added to the scores, or None; it has no gradient.
      dtype: of the result.
      key, rate: see `dropout`.

    Returns: [B, N, T, T] of that dtype.
    """
    fusion = _FUSION.get()

    def softmax(scores: Any, bias: Any) -> Any:
        scores = _wide(scores)
        return ops.cast(ops.softmax(scores if bias is None else scores + _wide(bias)), dtype)

    if fusion is None:
        return dropout(softmax(scores, bias), key, rate)
    given = {"bias": bias, "key": key}
    names = [name for name, value in given.items() if value is not None]

    @ops.custom_gradient
    def function(scores: Any, *values: Any) -> Any:
        found = dict(zip(names, values, strict=True))
        key = found.get("key")
        probs = softmax(scores, found.get("bias"))

        def gradient(*args: Any, upstream: Any = None) -> Any:
            upstream = upstream_of(args, upstream)
            change = fusion.run(_probs_gradient, probs, upstream, key, rate)
            return ops.cast(change, scores.dtype), *[None for _ in values]

        dropped = fusion.run(_dropout, probs, key, rate) if key is not None else probs
        return dropped, gradient

    return function(scores, *[given[name] for name in names])


def tied_product(x: Any, table: Any) -> Any:
    """x @ table^T: [R, D], [V, D] -> [R, V]. The gradient of the table comes as it lies."""
    fusion = _FUSION.get()
    if fusion is None:
        return ops.matmul(x, ops.transpose(table))

    @ops.custom_gradient
    def function(x: Any, table: Any) -> Any:
        def gradient(*args: Any, upstream: Any = None) -> Any:
            change = upstream_of(args, upstream)
            return ops.matmul(change, table), ops.matmul(ops.transpose(change), x)

        return ops.matmul(x, ops.transpose(table)), gradient

    return function(x, table)


def _cross_entropy(fusion: Fusion, logits: Any, label_ids: Any) -> tuple[Any, Any]:
    logits = _wide(logits)
    most = ops.max(logits, axis=-1, keepdims=True)
    log_sum = ops.log(fusion.sum_rows(ops.exp(logits - most))) + most  # [..., 1]
    own = ops.take_along_axis(logits, ops.expand_dims(label_ids, -1), axis=-1)
    return (log_sum - own)[..., 0], log_sum


def _cross_entropy_gradient(
    fusion: Fusion, logits: Any, label_ids: Any, log_sum: Any, upstream: Any
) -> Any:
    del fusion
    probs = ops.exp(_wide(logits) - log_sum)
    own = ops.arange(ops.shape(logits)[-1], dtype="int32") == ops.expand_dims(label_ids, -1)
    change = (probs - _wide(own)) * ops.expand_dims(upstream, -1)
    return ops.cast(change, logits.dtype)


def cross_entropy(logits: Any, label_ids: Any) -> Any:
    """-log softmax(logits)[label]: float [..., D], int [...] -> float32 [...]."""
    fusion = _FUSION.get()
    if fusion is None:
        return ops.sparse_categorical_crossentropy(label_ids, _wide(logits), from_logits=True)
    label_ids = ops.cast(label_ids, "int32")

    @ops.custom_gradient
    def function(logits: Any) -> Any:
        losses, log_sum = fusion.run(_cross_entropy, logits, label_ids)

        def gradient(*args: Any, upstream: Any = None) -> Any:
            upstream = upstream_of(args, upstream)
            return fusion.run(_cross_entropy_gradient, logits, label_ids, log_sum, upstream)

        return losses, gradient

    return function(logits)
