"""Tagging in the graph: words to windows, windows to a tag for each word.

The windows are those of `data_prep.tasks.ner`, for one sentence at a time.

Letters in shape comments: N sentences, W words of all of them, M the most words of one,
P pieces, S windows, T tokens, L labels, D numbers of a word's features.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from bert_tf.export import heads
from bert_tf.export.heads import Outputs, Signatures
from bert_tf.export.network import Network, as_features, in_parts
from bert_tf.tokenization import BertTokenizer
from bert_tf.tokenization.in_graph import InGraphTokenizer

TOKENS = "tokens"

# Windows that are computed together.
_PART = 32


class Windows(NamedTuple):
    """Which words each window shows, and which are counted in it; int64 [S] each."""

    first: tf.Tensor
    end: tf.Tensor
    counted: tf.Tensor
    counted_end: tf.Tensor


def windows(starts: tf.Tensor, sentences: tf.Tensor, room: int) -> Windows:
    """Cuts sentences into windows, in the order of their words.

    Args:
      starts: int64 [W + 1], where each word's pieces begin; each has one or more, `room` at most.
      sentences: int64 [N + 1], where each one's words begin.
      room: pieces of a window.
    """
    # Twice the middle of each word, to tell which end of a window it is nearer to.
    middles = starts[:-1] + starts[1:]
    is_sentence = sentences[1:] > sentences[:-1]
    first = tf.boolean_mask(sentences[:-1], is_sentence)
    end = tf.boolean_mask(sentences[1:], is_sentence)

    def at(words: tf.Tensor) -> tf.Tensor:
        return tf.gather(starts, words)

    def search(values: tf.Tensor, side: str) -> tf.Tensor:
        return tf.searchsorted(starts, values, side, tf.int64)

    def stop_of(begin: tf.Tensor, end: tf.Tensor) -> tf.Tensor:
        return tf.minimum(search(at(begin) + room, "right") - 1, end)

    def emit(found: tf.TensorArray, *columns: tf.Tensor) -> tf.TensorArray:
        return found.write(found.size(), tf.stack(columns, axis=1))

    # Of each sentence: where the next window would begin and end; the last window that is not
    # yet written, and its first counted word. All sentences go on at the same time.
    def step(*state: Any) -> tuple[Any, ...]:
        first, end, begin, stop, shown, shown_stop, counted, found = state
        half = tf.minimum(search(at(begin) + (room + 1) // 2, "left"), end)
        begin = tf.minimum(tf.maximum(half, begin + 1), stop)
        stop = stop_of(begin, end)
        is_last = stop == end
        # The last one goes back as far as it can.
        back = tf.clip_by_value(search(at(end) - room, "left"), first, end)
        next_shown = tf.where(is_last, back, begin)
        # One that ends where the one before did would show nothing new.
        is_new = is_last | (stop > shown_stop)
        # The first word that has more context in the next window.
        bound = tf.searchsorted(middles, at(next_shown) + at(shown_stop), "right", tf.int64)
        bound = tf.minimum(tf.maximum(bound, tf.maximum(counted, next_shown)), shown_stop)
        ready = [tf.boolean_mask(each, is_new) for each in (shown, shown_stop, counted, bound)]
        found = emit(found, *ready)
        shown = tf.where(is_new, next_shown, shown)
        shown_stop = tf.where(is_new, stop, shown_stop)
        counted = tf.where(is_new, bound, counted)
        done = [tf.boolean_mask(each, is_last) for each in (shown, shown_stop, counted, end)]
        found = emit(found, *done)
        goes_on = [first, end, begin, stop, shown, shown_stop, counted]
        return *(tf.boolean_mask(each, ~is_last) for each in goes_on), found

    found = tf.TensorArray(
        tf.int64, 0, dynamic_size=True, element_shape=[None, 4], infer_shape=False
    )
    fits = at(end) - at(first) <= room
    whole = [tf.boolean_mask(each, fits) for each in (first, end, first, end)]
    found = emit(found, *whole)
    first, end = tf.boolean_mask(first, ~fits), tf.boolean_mask(end, ~fits)
    stop = stop_of(first, end)
    state = (first, end, first, stop, first, stop, first, found)
    *_, found = tf.while_loop(lambda *state: tf.size(state[0]) > 0, step, state)
    rows = found.concat()
    rows = tf.boolean_mask(rows, rows[:, 3] > rows[:, 2])  # As there, each counts a word.
    return Windows(*tf.unstack(tf.gather(rows, tf.argsort(rows[:, 2], stable=True)), axis=1))


def tagger(
    network: Network,
    tokenizer: InGraphTokenizer,
    specials: BertTokenizer,
    max_seq_length: int,
    labels: Sequence[str],
    layers: Sequence[int | str] = (),
    adds_layers: bool = False,
) -> Signatures:
    """A tag for each word.

    Args:
      network: a `BertTokenClassifier`, or a `BertFeatureTagger`.
      tokenizer: words are tokenized one by one.
      specials: has the ids of the special tokens.
      max_seq_length: longest window, [CLS] and [SEP] included.
      labels: the tags.
      layers: what a `BertFeatureTagger` reads of the encoder, as `bert_tf.features` names them.
      adds_layers: whether it reads their sum.
    """
    room = max_seq_length - 2
    names = tf.constant(list(labels))
    hidden = network.model.config.hidden_size
    size = hidden * (1 if adds_layers else len(layers)) if layers else len(labels)

    def states(features: Mapping[str, tf.Tensor]) -> Outputs:
        outputs = network.model.bert(
            features["input_ids"], features["input_mask"], features["segment_ids"]
        )
        chosen = [
            outputs["embedding_output"]
            if layer == "embeddings"
            else outputs["encoder_outputs"][layer]
            for layer in layers
        ]
        added = tf.add_n(chosen) if adds_layers else tf.concat(chosen, axis=-1)
        return {"states": added}

    logits_for = heads.logits_of(network)

    def by_token(features: Mapping[str, tf.Tensor]) -> tf.Tensor:
        """Logits [S, T, L], or what the layers say, [S, T, D]."""
        return network.checked(features, states)["states"] if layers else logits_for(features)

    def by_word(vectors: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
        """Logits [N, M, L] of words with features [N, M, D]."""
        vectors = tf.ensure_shape(vectors, [None, None, size])
        return network({"features": vectors, "input_mask": mask})["logits"]

    def of_words(values: tf.Tensor, sentences: tf.Tensor) -> tf.Tensor:
        """Makes logits [W, L] of what `by_token` says of each word."""
        if not layers:
            return values
        # A very long sentence is read in parts of as many words as a window has tokens.
        lengths = sentences[1:] - sentences[:-1]
        parts = (lengths + max_seq_length - 1) // max_seq_length
        number = tf.range(tf.reduce_sum(parts)) - tf.repeat(tf.cumsum(parts) - parts, parts)
        limits = tf.concat(
            [tf.repeat(sentences[:-1], parts) + number * max_seq_length, sentences[-1:]], 0
        )
        ragged = tf.RaggedTensor.from_row_splits(values, limits, validate=False)
        mask = tf.RaggedTensor.from_row_splits(
            tf.ones_like(values[:, 0], tf.int32), limits, validate=False
        ).to_tensor()
        return tf.boolean_mask(by_word(ragged.to_tensor(), mask), mask > 0)

    def chosen(logits: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        best = tf.reduce_max(tf.nn.softmax(logits), axis=-1)
        return tf.gather(names, tf.argmax(logits, axis=-1)), best

    def tag(words: tf.RaggedTensor) -> Outputs:
        """`words` are string [N, (words)]."""
        sentences = tf.cast(words.row_splits, tf.int64)
        pieces = tokenizer.tokenize(words.values)
        # [UNK] stands for what the tokenizer leaves nothing of.
        unknown = tf.cast(pieces.row_lengths() == 0, tf.int64)
        unknown = tf.RaggedTensor.from_row_lengths(
            tf.fill([tf.reduce_sum(unknown)], specials.unk_id), unknown, validate=False
        )
        pieces = tf.concat([pieces[:, :room], unknown], axis=1)
        starts = tf.cast(pieces.row_splits, tf.int64)
        shown = windows(starts, sentences, room)
        # The windows as ids.
        begin = tf.gather(starts, shown.first)[:, None]
        length = tf.gather(starts, shown.end)[:, None] - begin  # [S, 1]
        longest = tf.maximum(tf.reduce_max(length), 0) + 2
        position = tf.range(longest)[None] - 1
        padded = tf.concat([pieces.values, [0]], 0)
        place = tf.where((position >= 0) & (position < length), begin + position, 0)
        ids = tf.gather(padded, place)
        ids = tf.where(position < 0, specials.cls_id, ids)
        ids = tf.where(position == length, specials.sep_id, ids)
        mask = tf.cast(position <= length, tf.int32)
        features = as_features(ids * mask, mask, tf.zeros_like(mask))

        def run() -> tf.Tensor:
            values = in_parts(features, _PART, by_token, [None, size])
            number = shown.counted_end - shown.counted
            of_word = tf.repeat(tf.range(tf.size(number)), number)
            in_window = starts[:-1] - tf.gather(begin[:, 0], of_word) + 1
            picked = tf.gather_nd(values, tf.stack([tf.cast(of_word, tf.int64), in_window], axis=1))
            return of_words(picked, sentences)

        def nothing() -> tf.Tensor:
            return tf.zeros([0, len(labels)])

        # Without a word there would be no shapes inside of the model.
        logits = tf.cond(tf.size(words.values) > 0, run, nothing)
        logits = tf.ensure_shape(logits, [None, len(labels)])
        tags, best = chosen(logits)
        return {
            "tokens": words.to_tensor(""),
            "tags": words.with_values(tags).to_tensor(""),
            "probabilities": words.with_values(best).to_tensor(0.0),
        }

    @tf.function(autograph=False, input_signature=[heads.strings("text")])
    def texts(text: tf.Tensor) -> Outputs:
        blanks = tf.strings.regex_replace(text, f"{heads.WHITE_SPACE}+", " ")
        return tag(tf.strings.split(blanks))

    @tf.function(autograph=False, input_signature=[heads.strings("tokens", 2)])
    def words(tokens: tf.Tensor) -> Outputs:
        return tag(tf.RaggedTensor.from_tensor(tokens, padding=""))

    signatures = {heads.TEXTS: texts, TOKENS: words}

    def described(logits: tf.Tensor) -> Outputs:
        tags, best = chosen(logits)
        return {"tags": tags, "probabilities": best, "logits": logits}

    @tf.function(autograph=False, input_signature=heads.ids_signature())
    def ids(input_ids: tf.Tensor, input_mask: tf.Tensor, segment_ids: tf.Tensor) -> Outputs:
        return described(logits_for(as_features(input_ids, input_mask, segment_ids)))

    @tf.function(autograph=False, input_signature=heads.ids_signature(2, "word_positions"))
    def ids_of_words(
        input_ids: tf.Tensor,
        input_mask: tf.Tensor,
        segment_ids: tf.Tensor,
        word_positions: tf.Tensor,
    ) -> Outputs:
        values = by_token(as_features(input_ids, input_mask, segment_ids))
        vectors = tf.gather(values, tf.maximum(word_positions, 0), batch_dims=1)
        return described(by_word(vectors, tf.cast(word_positions >= 0, tf.int32)))

    return {**signatures, heads.IDS: ids_of_words if layers else ids}
