"""The layers that BERT is made of.

Letters in shape comments: B batch, T tokens, H hidden size, N heads, D size of a head,
I intermediate size, V vocabulary.

A layer's variables carry the original release's names: layers are built under name scopes so that
`variable.path`, less the model's own name, is the name in an original checkpoint.
"""

import zlib
from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from bert_tf.modeling import kernels
from bert_tf.modeling.rows import TokenRows

# Dropout layers of one model have streams below this; see `Dropout`.
DROPOUT_STREAMS = 256

# Added to the attention scores of masked positions, as in the original: a mask that replaces
# scores would give another result for a row that is all padding.
MASKED_SCORE = -10000.0


def _gelu_tanh(x: Any) -> Any:
    return keras.activations.gelu(x, approximate=True)


def _gelu_erf(x: Any) -> Any:
    return keras.activations.gelu(x, approximate=False)


ACTIVATIONS: dict[str, Callable[[Any], Any]] = {
    "gelu": _gelu_tanh,
    "gelu_erf": _gelu_erf,
    "relu": keras.activations.relu,
    "tanh": keras.activations.tanh,
    "linear": lambda x: x,
}


def get_activation(name: str) -> Callable[[Any], Any]:
    """Returns the function of a `hidden_act`; "gelu" is the tanh form, as in the original.

    Raises:
      ValueError: for a name that is not known; lists those that are.
    """
    if name not in ACTIVATIONS:
        raise ValueError(f"hidden_act {name!r} is not known; known: {', '.join(ACTIVATIONS)}")
    return ACTIVATIONS[name]


def derive_seed(seed: int, name: str) -> int:
    """Returns the seed of a part called `name`: the same in every process and Python."""
    return zlib.crc32(f"{seed}/{name}".encode()) & 0x7FFFFFFF


def initializer(stddev: float, seed: int) -> keras.initializers.Initializer:
    """Returns the original's initialiser, a normal distribution cut at two deviations."""
    return keras.initializers.TruncatedNormal(stddev=stddev, seed=seed)


class Dropout(keras.layers.Layer):
    """Dropout whose mask is a function of the key it is given.

    Keras's own dropout keeps a counter in a variable: masks are then the same on each replica,
    and a resumed run needs the counter. Here the same key gives the same mask, always.

    Args:
      rate: share of the values set to zero; the others are scaled by 1 / (1 - rate).
      stream: number of this layer within the model, so that no two layers share a mask.

    Call:
      x: any float tensor.
      key: int32 [2], or None for inference. The second value must advance by
        `DROPOUT_STREAMS` from step to step.

    Example:
      >>> y = Dropout(0.1, stream=0)(x, key=keras.ops.convert_to_tensor([seed, step * 256]))
    """

    def __init__(self, rate: float, stream: int, **kwargs: Any):
        # x keeps its type, whatever the policy.
        super().__init__(autocast=False, **kwargs)
        if not 0 <= stream < DROPOUT_STREAMS:
            raise ValueError(f"stream is {stream}; it must be 0 to {DROPOUT_STREAMS - 1}")
        self.rate = rate
        self.stream = stream
        self.built = True

    def call(self, x: Any, key: Any = None) -> Any:
        return kernels.dropout(x, self.own_key(key), self.rate)

    def own_key(self, key: Any) -> Any:
        """Returns this layer's part of a key, for the functions of `kernels`; None for None."""
        if key is None:
            return None
        return key + ops.convert_to_tensor([0, self.stream], dtype=key.dtype)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "rate": self.rate, "stream": self.stream}


class Dense(keras.layers.Layer):
    """A dense projection on the last axis: `activation(x @ kernel + bias)`.

    Args:
      units: size of the output.
      activation: a name from `ACTIVATIONS`.
      stddev: deviation of the kernel's initial values; the bias begins at zero.
      seed: of the initial values.

    Shapes: [..., in] -> [..., units]; kernel [in, units], bias [units]. Give it two axes where
    speed matters: a product of [B*T, in] is one matrix product, forwards and backwards.
    """

    def __init__(
        self,
        units: int,
        activation: str = "linear",
        stddev: float = 0.02,
        seed: int = 0,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        self.units = units
        self.activation = activation
        self.stddev = stddev
        self.seed = seed
        self._function = get_activation(activation)

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        self.kernel = self.add_weight(
            name="kernel",
            shape=(input_shape[-1], self.units),
            initializer=initializer(self.stddev, self.seed),
        )
        self.bias = self.add_weight(name="bias", shape=(self.units,), initializer="zeros")

    def call(self, x: Any) -> Any:
        x = ops.matmul(x, self.kernel)
        bias = ops.copy(self.bias)
        if self.activation in ("gelu", "gelu_erf"):
            return kernels.bias_gelu(x, bias, approximate=self.activation == "gelu")
        return self._function(kernels.bias_add(x, bias))

    def product(self, x: Any) -> tuple[Any, Any]:
        """Returns x @ kernel and the bias, for a caller that adds it with more."""
        return ops.matmul(x, self.kernel), ops.copy(self.bias)

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "units": self.units,
            "activation": self.activation,
            "stddev": self.stddev,
            "seed": self.seed,
        }


class LayerNorm(keras.layers.Layer):
    """Layer normalisation over the last axis, in float32 whatever the precision around it.

    Keras's own layer has epsilon 1e-3 and names its variables the same; this one has the
    original's epsilon, 1e-12, which lies outside what float16 can hold.

    Args:
      epsilon: added to the variance.

    Shapes: [..., H] -> [..., H]; gamma [H], beta [H].
    """

    def __init__(self, epsilon: float = 1e-12, **kwargs: Any):
        super().__init__(**kwargs)
        self.epsilon = epsilon

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        shape = (input_shape[-1],)
        self.beta = self.add_weight(name="beta", shape=shape, initializer="zeros", autocast=False)
        self.gamma = self.add_weight(name="gamma", shape=shape, initializer="ones", autocast=False)

    def call(self, x: Any) -> Any:
        return kernels.layer_norm(x, *self.parameters(), self.epsilon)

    def parameters(self) -> tuple[Any, Any]:
        """Returns gamma and beta as tensors, for a caller that normalises with more."""
        return ops.copy(self.gamma), ops.copy(self.beta)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "epsilon": self.epsilon}


class Embeddings(keras.layers.Layer):
    """Word, token type and position embeddings, summed, normalised, with dropout (section 3.2).

    Args:
      config: a `BertConfig`.
      seed: of the initial values.

    Call:
      input_ids: int32 [B, T].
      segment_ids: int32 [B, T].
      dropout_key: see `Dropout`.

    Returns: float [B*T, H].
    """

    def __init__(self, config: Any, seed: int = 0, **kwargs: Any):
        super().__init__(**kwargs)
        self.config = config
        self.seed = seed
        self.layer_norm = LayerNorm(
            config.layer_norm_eps, name="LayerNorm", dtype=kwargs.get("dtype")
        )
        self.dropout = Dropout(config.hidden_dropout_prob, stream=0)

    def _table(self, name: str, rows: int) -> Any:
        # Rows are looked up in float32 and narrowed after: to narrow a whole table for a few
        # rows would cost more than the rows, and their gradients' sums would lose digits.
        return self.add_weight(
            name=name,
            shape=(rows, self.config.hidden_size),
            initializer=initializer(self.config.initializer_range, derive_seed(self.seed, name)),
            autocast=False,
        )

    def build(self, input_shape: Any = None) -> None:
        del input_shape
        config = self.config
        self.word_embeddings = self._table("word_embeddings", config.vocab_size)
        self.token_type_embeddings = self._table("token_type_embeddings", config.type_vocab_size)
        self.position_embeddings = self._table(
            "position_embeddings", config.max_position_embeddings
        )
        self.layer_norm.build((None, config.hidden_size))

    def call(self, input_ids: Any, segment_ids: Any, dropout_key: Any = None) -> Any:
        config = self.config
        length = ops.shape(input_ids)[1]
        words = ops.take(self.word_embeddings, input_ids, axis=0)  # [B, T, H]
        # There are few types: a product with one-hot rows has a dense gradient and no scatter.
        types = ops.one_hot(
            ops.reshape(segment_ids, (-1,)), config.type_vocab_size, dtype=words.dtype
        )  # [B*T, types]
        types = ops.matmul(types, self.token_type_embeddings)  # [B*T, H]
        summed = words + self.position_embeddings[:length]  # [B, T, H] + [T, H]
        summed = ops.reshape(summed, (-1, config.hidden_size)) + types  # [B*T, H]
        normalised = ops.cast(self.layer_norm(summed), self.compute_dtype)
        return self.dropout(normalised, key=dropout_key)


class TransformerLayer(keras.layers.Layer):
    """One layer of the encoder: self-attention and a feed-forward net, each normalised after.

    Args:
      config: a `BertConfig`.
      index: number of the layer, from 0; sets its dropout streams.
      seed: of the initial values.

    Call:
      x: float [B*T, H].
      attention_bias: float32 [B, 1, 1 or T, T], added to the scores, or None.
      batch: B, an int or a scalar tensor.
      dropout_key: see `Dropout`.
      rows: None, or which of the B*T positions x holds. It is [R, H] then.

    Returns: float as x.
    """

    def __init__(self, config: Any, index: int, seed: int = 0, **kwargs: Any):
        super().__init__(**kwargs)
        self.config = config
        self.index = index
        self.seed = seed
        dtype = kwargs.get("dtype")

        def dense(units: int, name: str, path: str, activation: str = "linear") -> Dense:
            return Dense(
                units,
                activation,
                config.initializer_range,
                derive_seed(seed, path),
                name=name,
                dtype=dtype,
            )

        hidden = config.hidden_size
        self.query = dense(hidden, "query", "attention/query")
        self.key = dense(hidden, "key", "attention/key")
        self.value = dense(hidden, "value", "attention/value")
        self.attention_output = dense(hidden, "dense", "attention/output")
        self.attention_norm = LayerNorm(config.layer_norm_eps, name="LayerNorm", dtype=dtype)
        self.intermediate = dense(
            config.intermediate_size, "dense", "intermediate", config.hidden_act
        )
        self.output_dense = dense(hidden, "dense", "output")
        self.output_norm = LayerNorm(config.layer_norm_eps, name="LayerNorm", dtype=dtype)
        first = 1 + 3 * index
        self.probs_dropout = Dropout(config.attention_probs_dropout_prob, first)
        self.attention_dropout = Dropout(config.hidden_dropout_prob, first + 1)
        self.output_dropout = Dropout(config.hidden_dropout_prob, first + 2)

    def build(self, input_shape: Any = None) -> None:
        del input_shape
        hidden = (None, self.config.hidden_size)
        with keras.name_scope("attention"):
            with keras.name_scope("self"):
                for projection in (self.query, self.key, self.value):
                    projection.build(hidden)
            with keras.name_scope("output"):
                self.attention_output.build(hidden)
                self.attention_norm.build(hidden)
        with keras.name_scope("intermediate"):
            self.intermediate.build(hidden)
        with keras.name_scope("output"):
            self.output_dense.build((None, self.config.intermediate_size))
            self.output_norm.build(hidden)

    def call(
        self,
        x: Any,
        attention_bias: Any = None,
        batch: Any = -1,
        dropout_key: Any = None,
        rows: TokenRows | None = None,
    ) -> Any:
        hidden, heads = self.config.hidden_size, self.config.num_attention_heads

        def heads_of(projection: Dense) -> Any:
            projected = projection(x) if rows is None else rows.spread(projection(x))
            return ops.reshape(projected, (batch, -1, heads, hidden // heads))  # [B, T, N, D]

        query, key, value = heads_of(self.query), heads_of(self.key), heads_of(self.value)
        context = self.attend(query, key, value, attention_bias, dropout_key)  # [B, T, N, D]
        context = ops.reshape(context, (-1, hidden))  # [B*T, H]
        context = context if rows is None else rows.pick(context)

        def close(x: Any, dense: Dense, dropout: Dropout, residual: Any, norm: LayerNorm) -> Any:
            own_key = dropout.own_key(dropout_key)
            return kernels.residual_norm(
                *dense.product(x), residual, *norm.parameters(), own_key, dropout.rate, norm.epsilon
            )

        attended = close(
            context, self.attention_output, self.attention_dropout, x, self.attention_norm
        )
        wide = self.intermediate(attended)  # [B*T, I]
        return close(wide, self.output_dense, self.output_dropout, attended, self.output_norm)

    def attend(
        self, query: Any, key: Any, value: Any, attention_bias: Any, dropout_key: Any
    ) -> Any:
        """Returns the weighted means of the values: query, key, value and result [B, T, N, D]."""
        query = ops.transpose(query * (query.shape[-1] ** -0.5), (0, 2, 1, 3))  # [B, N, T, D]
        key = ops.transpose(key, (0, 2, 3, 1))  # [B, N, D, T]
        value = ops.transpose(value, (0, 2, 1, 3))  # [B, N, T, D]
        probs = kernels.attention_probs(
            ops.matmul(query, key),  # [B, N, T, T]
            attention_bias,
            value.dtype,
            self.probs_dropout.own_key(dropout_key),
            self.probs_dropout.rate,
        )
        return ops.transpose(ops.matmul(probs, value), (0, 2, 1, 3))
