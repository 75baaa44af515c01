"""The signatures of all heads but tagging and question answering.

Each function here returns functions by the names of their signatures. What they take and return is
in docs/export.md.

Letters in shape comments: N texts, T tokens, L labels, C choices, P masks, K candidates,
V vocabulary, H hidden size.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from bert_tf.export.network import FEATURES, Network, as_features
from bert_tf.tokenization.in_graph import InGraphTokenizer

TEXTS = "serving_default"
IDS = "ids"

Signatures = dict[str, Any]
Outputs = dict[str, tf.Tensor]

# What `str.strip` and `str.split` take for white space, for RE2.
WHITE_SPACE = (
    r"[\x09-\x0d\x1c-\x20\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}"
    r"\x{3000}]"
)

# Stands for an input that was left out; as long as all others.
_NONE = tf.constant([""])


def strings(name: str, rank: int = 1) -> tf.TensorSpec:
    """Describes an input of strings."""
    return tf.TensorSpec([None] * rank, tf.string, name)


def ids_signature(rank: int = 2, *more: str) -> list[tf.TensorSpec]:
    """Describes the three inputs of ids, and others of two axes."""
    return [
        *(tf.TensorSpec([None] * rank, tf.int32, name) for name in FEATURES),
        *(tf.TensorSpec([None, None], tf.int32, name) for name in more),
    ]


class Reader:
    """Makes ids of texts as a run did.

    Args:
      tokenizer: the run's.
      max_seq_length: longest input in tokens.
      truncation: what stays of longer texts.
    """

    def __init__(
        self, tokenizer: InGraphTokenizer, max_seq_length: int, truncation: str = "longest_first"
    ):
        self.tokenizer = tokenizer
        self.max_seq_length = max_seq_length
        self.truncation = truncation

    def __call__(self, text: tf.Tensor, text_pair: tf.Tensor | None = None) -> dict[str, tf.Tensor]:
        """Returns a model's features, int32 [N, T] each, T that of the longest row.

        Args:
          text: string [N].
          text_pair: string [N], "" for none; or [1] for all.
        """
        a = self.tokenizer.tokenize(text)
        b = None
        if text_pair is not None:
            b = self.tokenizer.tokenize(tf.broadcast_to(text_pair, tf.shape(text)))
        ids, mask, segments = self.tokenizer.pack(a, b, self.max_seq_length, self.truncation)
        longest = tf.maximum(tf.reduce_max(tf.reduce_sum(mask, axis=1)), 2)
        return as_features(*(part[:, :longest] for part in (ids, mask, segments)))


def _of_texts(
    reader: Reader, run: Callable[[Mapping[str, tf.Tensor]], Outputs], shown: Sequence[str] = ()
) -> Signatures:
    """Signatures that take a text or a pair, or its ids; `shown` are features to return, too."""

    @tf.function(autograph=False, input_signature=[strings("text"), strings("text_pair")])
    def texts(text: tf.Tensor, text_pair: tf.Tensor = _NONE) -> Outputs:
        features = reader(text, text_pair)
        return {**run(features), **{name: features[name] for name in shown}}

    @tf.function(autograph=False, input_signature=ids_signature())
    def ids(input_ids: tf.Tensor, input_mask: tf.Tensor, segment_ids: tf.Tensor) -> Outputs:
        return run(as_features(input_ids, input_mask, segment_ids))

    return {TEXTS: texts, IDS: ids}


def logits_of(network: Network) -> Callable[[Mapping[str, tf.Tensor]], tf.Tensor]:
    """Returns a function from features to a model's logits."""

    def call(features: Mapping[str, tf.Tensor]) -> Outputs:
        return {"logits": network.model(features)["logits"]}

    return lambda features: network.checked(features, call)["logits"]


def label_names(labels: Sequence[str], count: tf.Tensor) -> tf.Tensor:
    """Returns the labels for each row: string [count, L]."""
    return tf.tile(tf.constant(list(labels))[None], [count, 1])


def classifier(network: Network, reader: Reader, kind: str, labels: Sequence[str]) -> Signatures:
    """Classification, regression and multi-label classification, as `kind` says."""
    logits_for = logits_of(network)

    def run(features: Mapping[str, tf.Tensor]) -> Outputs:
        logits = logits_for(features)  # [N, L]
        if kind == "regression":
            return {"value": logits[:, 0]}
        names = label_names(labels, tf.shape(logits)[0])
        if kind == "multilabel":
            probabilities = tf.sigmoid(logits)
            own: Outputs = {"is_chosen": logits > 0}
        else:
            probabilities = tf.nn.softmax(logits)
            own = {"label": tf.gather(tf.constant(list(labels)), tf.argmax(logits, axis=-1))}
        return {**own, "labels": names, "probabilities": probabilities, "logits": logits}

    return _of_texts(reader, run)


def features(network: Network, reader: Reader, has_pooler: bool) -> Signatures:
    """The encoder's outputs."""

    def call(features: Mapping[str, tf.Tensor]) -> Outputs:
        outputs = network.model(
            features["input_ids"], features["input_mask"], features["segment_ids"]
        )
        names = ["sequence_output"] + ["pooled_output"] * has_pooler
        return {name: outputs[name] for name in names}

    return _of_texts(
        reader, lambda given: network.checked(given, call), ("input_ids", "input_mask")
    )


def multiple_choice(network: Network, reader: Reader, fills_blanks: bool) -> Signatures:
    """The best of several choices.

    Args:
      network: a `BertForMultipleChoice`.
      reader: as the run's.
      fills_blanks: whether the choice takes the place of a "_" in the question (RACE).
    """
    logits_for = logits_of(network)

    def run(given: Mapping[str, tf.Tensor]) -> Outputs:
        is_choice = tf.reduce_max(given["input_mask"], axis=-1)  # [N, C]
        logits = logits_for({**given, "choice_mask": is_choice})
        return {
            "choice": tf.argmax(logits, axis=-1, output_type=tf.int32),
            "probabilities": tf.nn.softmax(logits),
            "logits": logits,
        }

    def second_texts(choices: tf.Tensor, question: tf.Tensor) -> tf.Tensor:
        joined = tf.where(question == "", choices, tf.strings.join([question, " ", choices]))
        if not fills_blanks:
            return joined
        head = tf.strings.regex_replace(question, "(?s)_.*", "")
        tail = tf.strings.regex_replace(question, "^[^_]*_+", "", replace_global=False)
        has_blank = tf.strings.regex_full_match(question, "(?s).*_.*")
        return tf.where(has_blank, tf.strings.join([head, choices, tail]), joined)

    @tf.function(
        autograph=False,
        input_signature=[strings("context"), strings("choices", 2), strings("question")],
    )
    def texts(context: tf.Tensor, choices: tf.Tensor, question: tf.Tensor = _NONE) -> Outputs:
        shape = tf.shape(choices)
        choices = stripped(choices)
        question = tf.broadcast_to(stripped(question)[:, None], shape)
        given = reader(
            tf.repeat(context, shape[1]), tf.reshape(second_texts(choices, question), [-1])
        )  # [N*C, T]
        is_choice = tf.cast(choices != "", tf.int32)[:, :, None]
        longest = tf.shape(given["input_ids"])[-1:]
        given = {
            name: tf.reshape(value, tf.concat([shape, longest], 0)) * is_choice
            for name, value in given.items()
        }
        return run(given)

    @tf.function(autograph=False, input_signature=ids_signature(3))
    def ids(input_ids: tf.Tensor, input_mask: tf.Tensor, segment_ids: tf.Tensor) -> Outputs:
        return run(as_features(input_ids, input_mask, segment_ids))

    return {TEXTS: texts, IDS: ids}


def stripped(texts: tf.Tensor) -> tf.Tensor:
    """As `str.strip`."""
    return tf.strings.regex_replace(texts, f"^{WHITE_SPACE}+|{WHITE_SPACE}+$", "")


def masked_lm(
    network: Network,
    reader: Reader,
    mask_id: int,
    tokens: Mapping[int, str],
    top_k: int,
    says_next: bool,
) -> Signatures:
    """Candidates for each [MASK].

    Args:
      network: a `BertPretrainer`.
      reader: its tokenizer does not split [MASK].
      mask_id: the id of [MASK].
      tokens: of each id.
      top_k: candidates of each mask.
      says_next: whether the model says at a token what comes next (left to right).
    """
    rows = network.model.config.vocab_size
    table = tf.constant([tokens.get(number, "") for number in range(rows)])
    # Rows of the embeddings without a token of their own are no candidates.
    known = np.isin(np.arange(rows), list(tokens))
    count = min(top_k, int(known.sum()))

    def run(given: Mapping[str, tf.Tensor]) -> Outputs:
        ids = given["input_ids"]
        is_mask = (ids == mask_id) & (given["input_mask"] > 0)
        found = tf.where(is_mask)
        places = tf.RaggedTensor.from_value_rowids(
            tf.cast(found[:, 1], tf.int32), found[:, 0], tf.shape(ids, tf.int64)[0], validate=False
        )
        positions = places.to_tensor(-1)  # [N, P]
        is_there = positions >= 0
        read = tf.maximum(positions - (1 if says_next else 0), 0)

        def call(features: Mapping[str, tf.Tensor]) -> Outputs:
            scores = network.model(features)["masked_lm_logits"]  # [N*P, V]
            scores = tf.where(known, scores, -np.inf)
            best, candidates = tf.math.top_k(scores, count)  # [N*P, K]
            total = tf.reduce_logsumexp(scores, axis=-1, keepdims=True)
            shape = tf.concat([tf.shape(features["masked_lm_positions"]), [count]], axis=0)
            return {
                "tokens": tf.reshape(tf.gather(table, candidates), shape),
                "probabilities": tf.reshape(tf.exp(best - total), shape),
            }

        outputs = network.checked({**given, "masked_lm_positions": read}, call)
        there = is_there[:, :, None]
        return {
            "tokens": tf.where(there, outputs["tokens"], ""),
            "probabilities": tf.where(there, outputs["probabilities"], 0.0),
            "positions": positions,
        }

    @tf.function(autograph=False, input_signature=[strings("text")])
    def texts(text: tf.Tensor) -> Outputs:
        return run(reader(text))

    @tf.function(autograph=False, input_signature=ids_signature())
    def ids(input_ids: tf.Tensor, input_mask: tf.Tensor, segment_ids: tf.Tensor) -> Outputs:
        return run(as_features(input_ids, input_mask, segment_ids))

    return {TEXTS: texts, IDS: ids}
