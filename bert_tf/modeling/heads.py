"""What stands on the encoder.

Letters in shape comments: B batch, T tokens, H hidden size, L outputs, P predictions, V vocabulary.
"""

from typing import Any

import keras
from keras import ops

from bert_tf.config import BertConfig
from bert_tf.modeling import kernels
from bert_tf.modeling.layers import Dense, LayerNorm, derive_seed, initializer


class OutputProjection(keras.layers.Layer):
    """x @ output_weights^T + output_bias, in float32: the classifier, NSP and SQuAD outputs.

    Args:
      outputs: L.
      stddev: deviation of the initial weights; the bias begins at zero.
      seed: of the initial weights.

    Shapes: [B, H] -> [B, L]; output_weights [L, H], output_bias [L].
    """

    def __init__(self, outputs: int, stddev: float = 0.02, seed: int = 0, **kwargs: Any):
        super().__init__(**kwargs)
        self.outputs = outputs
        self.stddev = stddev
        self.seed = seed

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        self.output_weights = self.add_weight(
            name="output_weights",
            shape=(self.outputs, input_shape[-1]),
            initializer=initializer(self.stddev, self.seed),
        )
        self.output_bias = self.add_weight(
            name="output_bias", shape=(self.outputs,), initializer="zeros"
        )

    def call(self, x: Any) -> Any:
        logits = ops.matmul(x, ops.transpose(self.output_weights)) + self.output_bias
        return ops.cast(logits, "float32")

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "outputs": self.outputs,
            "stddev": self.stddev,
            "seed": self.seed,
        }


class BiLSTM(keras.layers.Layer):
    """Bidirectional LSTM layers on the encoder's output (sections 5.1 and 5.3 of the paper).

    Args:
      units: U, of each direction of each layer.
      num_layers: number of layers.
      seed: of the initial weights.

    Call:
      x: float [B, T, H].
      input_mask: int32 [B, T], 1 for tokens; padding stands behind them and is not read.

    Returns a dict:
      sequence: float32 [B, T, 2U], zeros in padding.
      final: float32 [B, 2U], the last layer's states after the whole text in each direction.
    """

    def __init__(self, units: int, num_layers: int = 1, seed: int = 0, **kwargs: Any):
        super().__init__(**kwargs)
        self.units = units
        self.num_layers = num_layers
        self.seed = seed

        def lstm(index: int, direction: str) -> keras.layers.LSTM:
            name = f"layer_{index}_{direction}"
            return keras.layers.LSTM(
                units,
                return_sequences=True,
                return_state=True,
                go_backwards=direction == "backward",
                kernel_initializer=keras.initializers.GlorotUniform(derive_seed(seed, name)),
                recurrent_initializer=keras.initializers.Orthogonal(
                    seed=derive_seed(seed, f"{name}/recurrent")
                ),
                name=name,
                # The recurrence adds up rounding over the length.
                dtype="float32",
            )

        self.forwards = [lstm(index, "forward") for index in range(num_layers)]
        self.backwards = [lstm(index, "backward") for index in range(num_layers)]

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        size = input_shape[-1]
        for forward, backward in zip(self.forwards, self.backwards, strict=True):
            for direction in (forward, backward):
                direction.build((None, None, size))
            size = 2 * self.units

    def call(self, x: Any, input_mask: Any = None) -> dict[str, Any]:
        x = ops.cast(x, "float32")
        kept = None
        if input_mask is not None:
            kept = ops.cast(input_mask, "bool")
            # cuDNN refuses a text without a token, such as a row that fills up a batch.
            kept = ops.concatenate([ops.ones_like(kept[:, :1]), kept[:, 1:]], axis=1)
        final = None
        for forward, backward in zip(self.forwards, self.backwards, strict=True):
            ahead, ahead_final, _ = forward(x, mask=kept)
            back, back_final, _ = backward(x, mask=kept)
            x = ops.concatenate([ahead, ops.flip(back, axis=1)], axis=-1)  # [B, T, 2U]
            if input_mask is not None:
                x = x * ops.cast(ops.expand_dims(input_mask, -1), "float32")
            final = ops.concatenate([ahead_final, back_final], axis=-1)  # [B, 2U]
        return {"sequence": x, "final": final}

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "units": self.units,
            "num_layers": self.num_layers,
            "seed": self.seed,
        }


class MaskedLMHead(keras.layers.Layer):
    """Scores of all pieces at the masked positions, by the word embeddings themselves.

    Args:
      config: a `BertConfig`.
      seed: of the initial weights.

    Call:
      sequence_output: float [B, T, H].
      positions: int32 [B, P].
      word_embeddings: float [V, H].

    Returns: float32 [B*P, V], row = example * P + slot. Only the P positions meet the vocabulary.
    """

    def __init__(self, config: BertConfig, seed: int = 0, **kwargs: Any):
        super().__init__(**kwargs)
        self.config = config
        dtype = kwargs.get("dtype")
        self.dense = Dense(
            config.hidden_size,
            config.hidden_act,
            config.initializer_range,
            derive_seed(seed, "transform"),
            name="dense",
            dtype=dtype,
        )
        self.layer_norm = LayerNorm(config.layer_norm_eps, name="LayerNorm", dtype=dtype)

    def build(self, input_shape: Any = None) -> None:
        del input_shape
        hidden = (None, self.config.hidden_size)
        with keras.name_scope("transform"):
            self.dense.build(hidden)
            self.layer_norm.build(hidden)
        self.output_bias = self.add_weight(
            name="output_bias", shape=(self.config.vocab_size,), initializer="zeros"
        )

    def call(self, sequence_output: Any, positions: Any, word_embeddings: Any) -> Any:
        hidden = self.config.hidden_size
        batch, length = ops.shape(sequence_output)[0], ops.shape(sequence_output)[1]
        flat = ops.reshape(sequence_output, (-1, hidden))  # [B*T, H]
        first = ops.expand_dims(ops.arange(batch, dtype=positions.dtype) * length, 1)  # [B, 1]
        rows = ops.reshape(positions + first, (-1,))
        x = ops.take(flat, rows, axis=0)  # [B*P, H]
        x = self.layer_norm(self.dense(x))
        table = ops.cast(word_embeddings, x.dtype)  # [V, H]
        logits = kernels.tied_product(x, table)  # [B*P, V]
        return ops.cast(kernels.bias_add(logits, ops.copy(self.output_bias)), "float32")
