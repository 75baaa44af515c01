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
from bert_tf.modeling.layers import DROPOUT_STREAMS, Dropout, derive_seed

# The original's classifier drops 10% of the pooled output, whatever the config says.
CLASSIFIER_DROPOUT = 0.1

# The layer that holds a classifier's output; the original has no scope there.
_CLASSIFIER = "classifier"


def named_variables(model: keras.layers.Layer) -> dict[str, Any]:
    """Returns the model's variables by their names in an original checkpoint."""
    return {variable.path.removeprefix(f"{_CLASSIFIER}/"): variable for variable in model.variables}


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
