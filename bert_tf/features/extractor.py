"""Hidden states of an encoder's layers, or vectors made of them.

Letters in shape comments: B batch, T tokens, L chosen layers, H hidden size.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from bert_tf.features.texts import Text

# TensorFlow is imported where a model runs: reading features back needs none.

EMBEDDINGS = "embeddings"
POOLINGS = ("none", "cls", "mean", "concat_last_4")
LAST_FOUR = (-1, -2, -3, -4)

Layer = int | str


def parse_layers(layers: str, num_layers: int) -> tuple[Layer, ...]:
    """Reads a list of layers, such as "-1,-2,-3,-4".

    Args:
      layers: numbers with commas between: 0 for the first layer to `num_layers` - 1, or -1 for
        the last to -`num_layers`; "embeddings" is what goes into the first layer.
      num_layers: layers of the model.

    Returns: the numbers and words as they were given.

    Raises:
      ValueError: an entry is none of these.
    """
    found: list[Layer] = []
    known = (
        f"the model has {num_layers} layers: 0 to {num_layers - 1} from the first to the last, "
        f"or -1 to -{num_layers} from the last to the first; the output of the embeddings is "
        f"called {EMBEDDINGS}"
    )
    for item in layers.split(","):
        if item.strip() == EMBEDDINGS:
            found.append(EMBEDDINGS)
            continue
        try:
            number = int(item)
        except ValueError:
            raise ValueError(f"--layers={layers}: {item.strip()!r} is no layer; {known}.") from None
        if not -num_layers <= number < num_layers:
            raise ValueError(f"--layers={layers}: there is no layer {number}; {known}.")
        found.append(number)
    return tuple(found)


def layer_names(layers: Sequence[Layer], pooling: str) -> tuple[Layer, ...]:
    """Returns what the L axis of a record's values holds."""
    return ("concat_last_4",) if pooling == "concat_last_4" else tuple(layers)


class FeatureExtractor:
    """Runs an encoder over texts and returns hidden states, or vectors made of them.

    Args:
      encoder: a `BertEncoder` with its weights.
      layers: from `parse_layers`.
      pooling: "none" gives the hidden states of every token; "cls" those of [CLS]; "mean" their
        mean over all tokens, [CLS] and [SEP] included; "concat_last_4" the means of the last four
        layers in one vector, the last layer first, whatever `layers` says.
      batch_size: B, over all replicas.
      strategy: a tf.distribute strategy of one process; by default the current one.
      pad_to: pads every batch to this many tokens and to whole batches (a TPU needs that); None
        pads to the longest text of a batch.

    Raises:
      ValueError: concat_last_4 of a model with fewer than four layers.

    Example:
      >>> extractor = FeatureExtractor(encoder, (-1,), "mean")
      >>> extractor([encode(tokenizer, "A text.", 128)])[0].shape
      (1, 768)
    """

    def __init__(
        self,
        encoder: Any,
        layers: Sequence[Layer],
        pooling: str = "none",
        batch_size: int = 32,
        strategy: Any = None,
        pad_to: int | None = None,
    ):
        import tensorflow as tf

        if pooling not in POOLINGS:
            raise ValueError(f"pooling is {pooling!r}; it must be one of {', '.join(POOLINGS)}.")
        if pooling == "concat_last_4":
            if encoder.config.num_hidden_layers < 4:
                raise ValueError(
                    f"concat_last_4 needs four layers; the model has "
                    f"{encoder.config.num_hidden_layers}."
                )
            layers = LAST_FOUR
        self.encoder = encoder
        self.layers = tuple(layers)
        self.pooling = pooling
        self.batch_size = batch_size
        self._strategy = strategy or tf.distribute.get_strategy()
        self._replicas = self._strategy.num_replicas_in_sync
        if batch_size % self._replicas:
            raise ValueError(f"batch_size {batch_size} is no multiple of {self._replicas} replicas")
        self._pad_to = pad_to
        # Matrices of a GPU like multiples of 8; on a CPU they were slower in each of four rounds.
        self._multiple = 8 if tf.config.list_logical_devices("GPU") else 1
        shape = [batch_size // self._replicas if pad_to else None, pad_to]
        names = ("input_ids", "input_mask", "segment_ids")
        self._signature = {name: tf.TensorSpec(shape, tf.int32) for name in names}
        self._run = tf.function(
            self._on_replicas,
            autograph=False,
            input_signature=[[self._signature] * self._replicas],
        )

    @property
    def bytes_per_token(self) -> int:
        """Size of what is returned for a token; 0 with pooling, where length plays no part."""
        hidden = self.encoder.config.hidden_size
        return 4 * hidden * len(self.layers) if self.pooling == "none" else 0

    def __call__(self, texts: Sequence[Text]) -> list[np.ndarray]:
        """Returns for each text, in order, float32 [T, L, H]; with pooling [L, H] or, of
        concat_last_4, [1, 4H].
        """
        results: list[Any] = [None] * len(texts)
        # The longest first: what does not fit into memory shows at once.
        order = sorted(range(len(texts)), key=lambda i: -len(texts[i].ids))
        for start in range(0, len(order), self.batch_size):
            rows = order[start : start + self.batch_size]
            found = self._forward([texts[row] for row in rows])
            for row, value in zip(rows, found, strict=True):
                # A copy: a view would keep the whole batch.
                results[row] = (
                    value[: len(texts[row].ids)].copy() if self.pooling == "none" else value
                )
        return results

    def _forward(self, texts: Sequence[Text]) -> np.ndarray:
        """Runs one batch: [B, T, L, H], or [B, ...] with pooling."""
        replicas = self._replicas
        if self._pad_to:
            length, size = self._pad_to, self.batch_size
        else:
            longest = max(len(text.ids) for text in texts)
            limit = self.encoder.config.max_position_embeddings
            length = min(-(-longest // self._multiple) * self._multiple, limit)
            size = -(-len(texts) // replicas) * replicas
        batch = {name: np.zeros((size, length), np.int32) for name in self._signature}
        for row, text in enumerate(texts):
            tokens = len(text.ids)
            batch["input_ids"][row, :tokens] = text.ids
            batch["input_mask"][row, :tokens] = 1
            batch["segment_ids"][row, :tokens] = text.segments
        part = size // replicas
        parts = [
            {name: value[at : at + part] for name, value in batch.items()}
            for at in range(0, size, part)
        ]
        found = [value.numpy() for value in self._run(parts)]
        return (found[0] if replicas == 1 else np.concatenate(found))[: len(texts)]

    def _on_replicas(self, parts: list[dict[str, Any]]) -> Sequence[Any]:
        if self._replicas == 1:
            return self._strategy.experimental_local_results(
                self._strategy.run(self._outputs, args=(parts[0],))
            )
        batches = self._strategy.experimental_distribute_values_from_function(
            lambda context: parts[context.replica_id_in_sync_group]
        )
        return self._strategy.experimental_local_results(
            self._strategy.run(self._outputs, args=(batches,))
        )

    def _outputs(self, batch: dict[str, Any]) -> Any:
        import tensorflow as tf

        from bert_tf.modeling import kernels

        mask = batch["input_mask"]
        with kernels.inference(tf.nn.bias_add):
            outputs = self.encoder(
                batch["input_ids"], input_mask=mask, segment_ids=batch["segment_ids"]
            )
        states = [
            outputs["embedding_output"]
            if layer == EMBEDDINGS
            else outputs["encoder_outputs"][layer]
            for layer in self.layers
        ]
        chosen = tf.stack([tf.cast(state, tf.float32) for state in states], axis=2)  # [B, T, L, H]
        if self.pooling == "none":
            return chosen
        if self.pooling == "cls":
            return chosen[:, 0]  # [B, L, H]
        weights = tf.cast(mask, tf.float32)[:, :, None, None]  # [B, T, 1, 1]
        count = tf.maximum(tf.reduce_sum(weights, axis=1), 1.0)
        means = tf.reduce_sum(chosen * weights, axis=1) / count  # [B, L, H]
        if self.pooling == "mean":
            return means
        width = len(self.layers) * self.encoder.config.hidden_size
        return tf.reshape(means, [-1, 1, width])  # [B, 1, 4H]
