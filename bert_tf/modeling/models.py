"""Whole models: the encoder with a head.

A model is called with a dict of features: input_ids, input_mask, segment_ids, int32 [B, T] each.
The parts are built outside the model's own scope, so that a variable's path is its name in an
original checkpoint.

Letters in shape comments: B batch, T tokens, H hidden size, L labels, P predictions, V vocabulary.
"""

from typing import Any

import keras
from keras import ops

from bert_tf.config import BertConfig
from bert_tf.modeling.encoder import BertEncoder
from bert_tf.modeling.heads import BiLSTM, MaskedLMHead, OutputProjection
from bert_tf.modeling.layers import DROPOUT_STREAMS, Dropout, derive_seed, initializer
from bert_tf.modeling.losses import mask_choices
from bert_tf.modeling.rows import TokenRows

# The original's classifier drops 10% of the pooled output, whatever the config says.
CLASSIFIER_DROPOUT = 0.1

# The layer that holds a classifier's output; the original has no scope there.
_CLASSIFIER = "classifier"


def named_variables(model: keras.layers.Layer) -> dict[str, Any]:
    """Returns the model's variables by their names in an original checkpoint."""
    # Not `variables`: an LSTM keeps a state of random numbers there, which nothing here draws.
    return {variable.path.removeprefix(f"{_CLASSIFIER}/"): variable for variable in model.weights}


class _BertModel(keras.Model):
    """The encoder, and what all models share."""

    # Prefixes of variables that the loss does not reach: they get no slots and no decay.
    without_gradient: tuple[str, ...] = ()

    def __init__(self, config: BertConfig, seed: int, dtype: Any, **kwargs: Any):
        super().__init__(dtype=dtype, **kwargs)
        self.config = config
        self.bert = BertEncoder(config, derive_seed(seed, "bert"), name="bert", dtype=dtype)
        self.bert.build()

    def _encode(self, inputs: dict[str, Any], dropout_key: Any) -> dict[str, Any]:
        return self.bert(
            inputs["input_ids"],
            input_mask=inputs.get("input_mask"),
            segment_ids=inputs.get("segment_ids"),
            dropout_key=dropout_key,
            rows=TokenRows.of(inputs),
        )


def _bilstm(config: BertConfig, seed: int) -> BiLSTM:
    """Makes the LSTM that may stand between the encoder and an output."""
    layer = BiLSTM(config.hidden_size, seed=derive_seed(seed, "bilstm"), name="bilstm")
    layer.build((None, None, config.hidden_size))
    return layer


class BertClassifier(_BertModel):
    """Classification, regression or multi-label classification of a text or a pair.

    Args:
      config: a `BertConfig`.
      num_labels: L; 1 for regression.
      seed: of the initial values.
      dtype: a Keras dtype policy; "mixed_bfloat16" computes in bfloat16 with float32 weights.
      bilstm: whether a bidirectional LSTM of `config.hidden_size` units a direction stands between
        the encoder and the output, as in the paper's section 5.1; the output then reads its
        final states in place of the pooled output.

    Call: a dict of input_ids [B, T] and, where there is any, input_mask and segment_ids;
      dropout_key: int32 [2] in training (see `layers.Dropout`), None for inference.

    Returns a dict: logits float32 [B, L], and the encoder's outputs (see `BertEncoder`).

    Example:
      >>> model = BertClassifier(BertConfig(vocab_size=30522), num_labels=2)
      >>> model({"input_ids": ids, "input_mask": mask})["logits"]
    """

    def __init__(
        self,
        config: BertConfig,
        num_labels: int,
        seed: int = 0,
        dtype: Any = None,
        bilstm: bool = False,
        **kwargs: Any,
    ):
        super().__init__(config, seed, dtype, **kwargs)
        self.num_labels = num_labels
        self.dropout = Dropout(CLASSIFIER_DROPOUT, stream=DROPOUT_STREAMS - 1, dtype=dtype)
        self.head = OutputProjection(
            num_labels, seed=derive_seed(seed, _CLASSIFIER), name=_CLASSIFIER, dtype=dtype
        )
        self.bilstm = _bilstm(config, seed) if bilstm else None
        if bilstm:
            self.without_gradient = ("bert/pooler/",)
        self.head.build((None, (2 if bilstm else 1) * config.hidden_size))
        self.built = True

    def call(self, inputs: dict[str, Any], dropout_key: Any = None) -> dict[str, Any]:
        outputs = self._encode(inputs, dropout_key)
        if self.bilstm is None:
            read = outputs["pooled_output"]
        else:
            read = self.bilstm(outputs["sequence_output"], inputs.get("input_mask"))["final"]
        pooled = self.dropout(read, key=dropout_key)
        return {**outputs, "logits": self.head(pooled)}


class BertForSquad(_BertModel):
    """Start and end of an answer within the text.

    Args and call: as `BertClassifier`, without num_labels; the LSTM's outputs of each token are
      read in place of the encoder's.

    Returns a dict: start_logits, end_logits float32 [B, T], and the encoder's outputs.
    """

    without_gradient = ("bert/pooler/",)

    def __init__(
        self,
        config: BertConfig,
        seed: int = 0,
        dtype: Any = None,
        bilstm: bool = False,
        **kwargs: Any,
    ):
        super().__init__(config, seed, dtype, **kwargs)
        self.head = OutputProjection(2, seed=derive_seed(seed, "squad"), name="squad", dtype=dtype)
        self.bilstm = _bilstm(config, seed) if bilstm else None
        with keras.name_scope("cls"):
            self.head.build((None, (2 if bilstm else 1) * config.hidden_size))
        self.built = True

    def call(self, inputs: dict[str, Any], dropout_key: Any = None) -> dict[str, Any]:
        outputs = self._encode(inputs, dropout_key)
        read = outputs["sequence_output"]
        if self.bilstm is not None:
            read = self.bilstm(read, inputs.get("input_mask"))["sequence"]
        flat = ops.reshape(read, (-1, read.shape[-1]))  # [B*T, H or 2H]
        logits = ops.reshape(self.head(flat), (*ops.shape(read)[:2], 2))  # [B, T, 2]
        return {**outputs, "start_logits": logits[:, :, 0], "end_logits": logits[:, :, 1]}


class BertPretrainer(_BertModel):
    """Masked LM and next sentence prediction (section 3.1).

    Args: as `BertClassifier`, without num_labels and bilstm.
      next_sentence: False leaves the next sentence out ("No NSP", section 5.1). The pooler keeps
        its initial weights then.

    Call: as `BertClassifier`; the dict has masked_lm_positions, int32 [B, P], too.

    Returns a dict: masked_lm_logits float32 [B*P, V] (row = example * P + slot),
      next_sentence_logits float32 [B, 2] (1 is a random next), and the encoder's outputs.
    """

    def __init__(
        self,
        config: BertConfig,
        seed: int = 0,
        dtype: Any = None,
        next_sentence: bool = True,
        **kwargs: Any,
    ):
        super().__init__(config, seed, dtype, **kwargs)
        self.masked_lm = MaskedLMHead(
            config, derive_seed(seed, "predictions"), name="predictions", dtype=dtype
        )
        self.next_sentence = None
        if next_sentence:
            self.next_sentence = OutputProjection(
                2,
                config.initializer_range,
                derive_seed(seed, "seq_relationship"),
                name="seq_relationship",
                dtype=dtype,
            )
        else:
            self.without_gradient = ("bert/pooler/",)
        with keras.name_scope("cls"):
            self.masked_lm.build()
            if self.next_sentence is not None:
                self.next_sentence.build((None, config.hidden_size))
        self.built = True

    def call(self, inputs: dict[str, Any], dropout_key: Any = None) -> dict[str, Any]:
        outputs = self._encode(inputs, dropout_key)
        outputs["masked_lm_logits"] = self.masked_lm(
            outputs["sequence_output"],
            inputs["masked_lm_positions"],
            self.bert.embeddings.word_embeddings,
        )
        if self.next_sentence is not None:
            outputs["next_sentence_logits"] = self.next_sentence(outputs["pooled_output"])
        return outputs


class BertTokenClassifier(_BertModel):
    """A label for each token (the paper's section 5.3, with fine-tuning).

    Args and call: as `BertClassifier`; the LSTM's outputs of each token are read in place of the
      encoder's.

    Returns a dict: logits float32 [B, T, L], and the encoder's outputs.
    """

    without_gradient = ("bert/pooler/",)

    def __init__(
        self,
        config: BertConfig,
        num_labels: int,
        seed: int = 0,
        dtype: Any = None,
        bilstm: bool = False,
        **kwargs: Any,
    ):
        super().__init__(config, seed, dtype, **kwargs)
        self.num_labels = num_labels
        self.dropout = Dropout(CLASSIFIER_DROPOUT, stream=DROPOUT_STREAMS - 1, dtype=dtype)
        self.head = OutputProjection(
            num_labels, seed=derive_seed(seed, _CLASSIFIER), name=_CLASSIFIER, dtype=dtype
        )
        self.bilstm = _bilstm(config, seed) if bilstm else None
        self.head.build((None, (2 if bilstm else 1) * config.hidden_size))
        self.built = True

    def call(self, inputs: dict[str, Any], dropout_key: Any = None) -> dict[str, Any]:
        outputs = self._encode(inputs, dropout_key)
        read = outputs["sequence_output"]
        if self.bilstm is not None:
            read = self.bilstm(read, inputs.get("input_mask"))["sequence"]
        read = self.dropout(read, key=dropout_key)
        return {**outputs, "logits": _by_token(self.head, read)}


def _by_token(head: OutputProjection, read: Any) -> Any:
    """Projects each token: [B, T, D] -> [B, T, L]."""
    logits = head(ops.reshape(read, (-1, read.shape[-1])))  # [B*T, L]
    return ops.reshape(logits, (*ops.shape(read)[:2], head.outputs))


class _LayerMix(keras.layers.Layer):
    """A mean of layers with learned weights: [B, T, N*H] -> [B, T, H].

    The weights are a softmax of `layer_weights` [N], which begin at zero.
    """

    def __init__(self, num_layers: int, **kwargs: Any):
        super().__init__(**kwargs)
        self.num_layers = num_layers

    def build(self, input_shape: Any = None) -> None:
        self.layer_weights = self.add_weight(
            name="layer_weights", shape=(self.num_layers,), initializer="zeros"
        )

    def call(self, x: Any) -> Any:
        shape = (*ops.shape(x)[:2], self.num_layers, x.shape[-1] // self.num_layers)
        weights = ops.softmax(self.layer_weights)[:, None]  # [N, 1]
        return ops.sum(ops.reshape(x, shape) * weights, axis=2)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "num_layers": self.num_layers}


class BertFeatureTagger(_BertModel):
    """A label for each word, from features of an encoder that is not trained (section 5.3).

    Two bidirectional LSTM layers read the features. The encoder belongs to the model, so that a
    checkpoint is whole, but is not run here: features are computed once, by its user.

    Args:
      config: of the encoder.
      num_labels: L.
      feature_size: D, numbers of a word.
      mixed_layers: N where the features are those of N layers behind each other, of which a mean
        with learned weights is to be read; 0 takes the features as they are.
      units: of each direction of each LSTM layer.
      seed, dtype: as `BertClassifier`.

    Call: a dict of features float [B, T, D] and input_mask int32 [B, T]; dropout_key as for
      `BertClassifier`.

    Returns a dict: logits float32 [B, T, L].
    """

    without_gradient = ("bert/",)

    def __init__(
        self,
        config: BertConfig,
        num_labels: int,
        feature_size: int,
        mixed_layers: int = 0,
        units: int = 768,
        seed: int = 0,
        dtype: Any = None,
        **kwargs: Any,
    ):
        super().__init__(config, seed, dtype, **kwargs)
        self.num_labels = num_labels
        self.dropout = Dropout(CLASSIFIER_DROPOUT, stream=DROPOUT_STREAMS - 1, dtype=dtype)
        self.mix = None
        if mixed_layers:
            self.mix = _LayerMix(mixed_layers, name="layer_mix", dtype="float32")
            self.mix.build()
            feature_size //= mixed_layers
        self.bilstm = BiLSTM(units, 2, derive_seed(seed, "bilstm"), name="bilstm")
        self.bilstm.build((None, None, feature_size))
        self.head = OutputProjection(
            num_labels, seed=derive_seed(seed, _CLASSIFIER), name=_CLASSIFIER, dtype=dtype
        )
        self.head.build((None, 2 * units))
        self.built = True

    def call(self, inputs: dict[str, Any], dropout_key: Any = None) -> dict[str, Any]:
        x = ops.cast(inputs["features"], "float32")
        if self.mix is not None:
            x = self.mix(x)  # [B, T, H]
        x = self.bilstm(x, inputs["input_mask"])["sequence"]
        return {"logits": _by_token(self.head, self.dropout(x, key=dropout_key))}


class _ScoringVector(keras.layers.Layer):
    """x @ output_weights^T, in float32: [B, H] -> [B, 1].

    No bias: it would add the same to each choice, which a softmax over them does not see.
    """

    def __init__(self, seed: int = 0, **kwargs: Any):
        super().__init__(**kwargs)
        self.seed = seed

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        self.output_weights = self.add_weight(
            name="output_weights",
            shape=(1, input_shape[-1]),
            initializer=initializer(0.02, self.seed),
        )

    def call(self, x: Any) -> Any:
        return ops.cast(ops.matmul(x, ops.transpose(self.output_weights)), "float32")

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "seed": self.seed}


class BertForMultipleChoice(_BertModel):
    """The best of several choices, each read with the same context (section 4.4 of the paper).

    The score of a choice is the product of its pooled output and one vector, the only new weights;
    there is no bias.

    Args: as `BertClassifier`, without num_labels and bilstm.

    Call: a dict of input_ids [B, C, T] and, where there is any, input_mask and segment_ids of that
      shape, and choice_mask int32 [B, C], 1 for choices and 0 for padding; dropout_key as for
      `BertClassifier`. C choices at most.

    Returns a dict: logits float32 [B, C], NO_CHOICE_SCORE for padding, and the encoder's outputs
      with B*C rows (row = example * C + choice).
    """

    def __init__(self, config: BertConfig, seed: int = 0, dtype: Any = None, **kwargs: Any):
        super().__init__(config, seed, dtype, **kwargs)
        self.dropout = Dropout(CLASSIFIER_DROPOUT, stream=DROPOUT_STREAMS - 1, dtype=dtype)
        self.head = _ScoringVector(derive_seed(seed, _CLASSIFIER), name=_CLASSIFIER, dtype=dtype)
        self.head.build((None, config.hidden_size))
        self.built = True

    def call(self, inputs: dict[str, Any], dropout_key: Any = None) -> dict[str, Any]:
        length = ops.shape(inputs["input_ids"])[-1]
        flat = {
            name: ops.reshape(inputs[name], (-1, length))  # [B*C, T]
            for name in ("input_ids", "input_mask", "segment_ids")
            if inputs.get(name) is not None
        }
        outputs = self._encode(flat, dropout_key)
        scores = self.head(self.dropout(outputs["pooled_output"], key=dropout_key))  # [B*C, 1]
        scores = ops.reshape(scores, ops.shape(inputs["input_ids"])[:2])  # [B, C]
        return {**outputs, "logits": mask_choices(scores, inputs.get("choice_mask"))}
