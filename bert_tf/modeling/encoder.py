"""The BERT encoder: ids to hidden states (section 3.1 of the paper).

Letters in shape comments: B batch, T tokens, H hidden size.
"""

import contextvars
from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from bert_tf.config import BertConfig
from bert_tf.modeling.layers import (
    MASKED_SCORE,
    Dense,
    Embeddings,
    TransformerLayer,
    derive_seed,
)
from bert_tf.modeling.rows import TokenRows


def _recomputed(layer: TransformerLayer) -> Callable[..., Any]:
    """Returns a layer's call, which a backward pass will make once more."""

    def call(x: Any, **inputs: Any) -> Any:
        # The backward pass may come when `kernels.fused` is over: the layer is fused all the same.
        context = contextvars.copy_context()

        def function(x: Any, *values: Any) -> Any:
            with keras.StatelessScope(list(zip(layer.variables, values, strict=True))):
                return context.run(layer, x, **inputs)

        # The weights as arguments: gradients then reach them on each backend and replica alike.
        # Dropout needs no care, for its masks depend on their key alone.
        values = [ops.copy(variable) for variable in layer.variables]
        return keras.remat(function)(x, *values)

    return call


class BertEncoder(keras.layers.Layer):
    """Embeddings, transformer layers and the pooler.

    Args:
      config: a `BertConfig`.
      seed: of the initial values.
      recompute: whether a backward pass computes what is inside a transformer layer anew, so that
        a forward pass keeps each layer's input alone. Gradients stay the same. May be set later.

    Call:
      input_ids: int32 [B, T]; T is at most `config.max_position_embeddings`.
      input_mask: int32 [B, T], 1 for tokens and 0 for padding; None means no padding.
      segment_ids: int32 [B, T]; None means all zeros.
      dropout_key: int32 [2] in training, see `layers.Dropout`; None for inference.
      rows: which positions are computed, see `TokenRows`; None for all.

    Returns a dict:
      embedding_output: [B, T, H], after the embeddings' normalisation.
      encoder_outputs: a list of [B, T, H], one for each layer.
      sequence_output: [B, T, H], the last of them.
      pooled_output: [B, H], tanh of a projection of the first token; of the last token that is
        no padding under `config.causal_attention`, as the first one sees nothing but itself.

    Example:
      >>> encoder = BertEncoder(BertConfig(vocab_size=30522), name="bert")
      >>> encoder(ids)["pooled_output"].shape
    """

    def __init__(self, config: BertConfig, seed: int = 0, recompute: bool = False, **kwargs: Any):
        kwargs.setdefault("name", "bert")
        super().__init__(**kwargs)
        self.config = config
        self.seed = seed
        self.recompute = recompute
        dtype = kwargs.get("dtype")
        self.embeddings = Embeddings(
            config, derive_seed(seed, "embeddings"), name="embeddings", dtype=dtype
        )
        self.layers = [
            TransformerLayer(
                config,
                index,
                derive_seed(seed, f"layer_{index}"),
                name=f"layer_{index}",
                dtype=dtype,
            )
            for index in range(config.num_hidden_layers)
        ]
        self.pooler = Dense(
            config.hidden_size,
            "tanh",
            config.initializer_range,
            derive_seed(seed, "pooler"),
            name="dense",
            dtype=dtype,
        )

    def build(self, input_shape: Any = None) -> None:
        del input_shape
        self.embeddings.build()
        with keras.name_scope("encoder"):
            for layer in self.layers:
                layer.build()
        with keras.name_scope("pooler"):
            self.pooler.build((None, self.config.hidden_size))

    def call(
        self,
        input_ids: Any,
        input_mask: Any = None,
        segment_ids: Any = None,
        dropout_key: Any = None,
        rows: TokenRows | None = None,
    ) -> dict[str, Any]:
        static_length = input_ids.shape[1]
        if static_length is not None and static_length > self.config.max_position_embeddings:
            raise ValueError(
                f"the input has {static_length} tokens, but the model has positions for "
                f"{self.config.max_position_embeddings} (max_position_embeddings)"
            )
        hidden = self.config.hidden_size
        batch, length = ops.shape(input_ids)[0], ops.shape(input_ids)[1]
        if segment_ids is None:
            segment_ids = ops.zeros_like(input_ids)
        bias = None
        if input_mask is not None:
            bias = (1.0 - ops.cast(input_mask, "float32")) * MASKED_SCORE  # [B, T]
            bias = ops.expand_dims(bias, (1, 2))  # [B, 1, 1, T]
        if self.config.causal_attention:
            place = ops.arange(length)
            later = ops.cast(place[None, :] > place[:, None], "float32") * MASKED_SCORE  # [T, T]
            bias = later[None, None] if bias is None else bias + later  # [B, 1, T, T]

        def with_tokens(flat: Any) -> Any:
            return ops.reshape(flat, (batch, length, hidden))  # [B, T, H]

        x = self.embeddings(input_ids, segment_ids, dropout_key=dropout_key)  # [B*T, H]
        embedding_output = with_tokens(x)
        x = x if rows is None else rows.pick(x)  # [R, H]
        encoder_outputs = []
        for layer in self.layers:
            call = _recomputed(layer) if self.recompute else layer
            x = call(x, attention_bias=bias, batch=batch, dropout_key=dropout_key, rows=rows)
            encoder_outputs.append(with_tokens(x if rows is None else rows.spread(x)))
        sequence_output = encoder_outputs[-1]
        if self.config.causal_attention and input_mask is not None:
            last = ops.maximum(ops.sum(ops.cast(input_mask, "int32"), axis=1) - 1, 0)  # [B]
            flat = ops.reshape(sequence_output, (-1, hidden))
            pooled_from = ops.take(flat, ops.arange(batch) * length + last, axis=0)
        else:
            pooled_from = sequence_output[:, -1 if self.config.causal_attention else 0]
        return {
            "embedding_output": embedding_output,
            "encoder_outputs": encoder_outputs,
            "sequence_output": sequence_output,
            "pooled_output": self.pooler(pooled_from),  # [B, H]
        }
