"""Question answering in the graph: windows, the best spans of all of them, their text.

The rules are those of `data_prep.squad`, but for one: an answer stands where its tokens are, also
where the same letters stand in the same word before.

Letters in shape comments: N questions, D tokens of all contexts, C characters of them, W words of
them, S windows, T tokens of a window, K best positions of a window, P spans, E answers.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from bert_tf.export import heads
from bert_tf.export.heads import Outputs, Signatures
from bert_tf.export.network import Network, as_features, in_parts
from bert_tf.tokenization import BertTokenizer
from bert_tf.tokenization.in_graph import InGraphTokenizer
from bert_tf.tokenization.wordpiece import UNK_TOKEN
from data_prep.squad.answers import NO_ANSWER_TEXT, NO_WINDOW_NULL_ODDS

# Windows that are computed together.
_PART = 32
# What separates words, see `data_prep.squad.reading`.
_BLANKS = (0x20, 0x09, 0x0D, 0x0A, 0x202F)
_BLANKS_PATTERN = r"[ \t\r\n\x{202f}]+"
_INF = float("inf")


class Windows(NamedTuple):
    """Windows over contexts; int32 [S] each, but for `row`, int64.

    row: which question each is for. offset: where the context begins in it. start, length: which
    of the context's tokens it shows.
    """

    row: tf.Tensor
    offset: tf.Tensor
    start: tf.Tensor
    length: tf.Tensor


def windows(
    question_lengths: tf.Tensor, context_lengths: tf.Tensor, max_seq_length: int, stride: int
) -> Windows:
    """Cuts contexts into windows: int32 [N] tokens of each question and context."""
    room = max_seq_length - question_lengths - 3
    step = tf.minimum(room, stride)
    rest = context_lengths - room
    count = tf.where(
        rest > 0, (rest + step - 1) // step + 1, tf.cast(context_lengths > 0, tf.int32)
    )
    row = tf.repeat(tf.range(tf.size(count)), count)
    index = tf.range(tf.size(row)) - tf.repeat(tf.cumsum(count) - count, count)
    start = index * tf.gather(step, row)
    length = tf.minimum(tf.gather(room, row), tf.gather(context_lengths, row) - start)
    offset = tf.gather(question_lengths, row) + 2
    return Windows(tf.cast(row, tf.int64), offset, start, length)


def max_context(
    shown: Windows, position: tf.Tensor, token: tf.Tensor, is_context: tf.Tensor, count: tf.Tensor
) -> tf.Tensor:
    """Tells which tokens have no more context in another window: bool [S, T].

    Args:
      shown: the windows.
      position: int32 [S, T], in the window's part of the context.
      token: int32 [S, T], number of each token among those of all contexts.
      is_context: bool [S, T], where there are such.
      count: D.
    """
    length = shown.length[:, None]
    nearer = tf.cast(tf.minimum(position, length - 1 - position), tf.float64)
    score = tf.where(is_context, nearer + 0.01 * tf.cast(length, tf.float64), -1.0)
    segments = tf.where(is_context, token, count)
    best = tf.gather(tf.math.unsorted_segment_max(score, segments, count + 1), segments)
    # Of equal ones it is the first window.
    number = tf.broadcast_to(tf.range(tf.size(shown.row))[:, None], tf.shape(segments))
    able = tf.where(score == best, number, tf.int32.max)
    first = tf.math.unsorted_segment_min(able, segments, count + 1)
    return is_context & (tf.gather(first, segments) == number)


class Texts:
    """The contexts' texts, and where in them the tokens are.

    At word level the original lays the words that a span is of beside what the tokenizer makes of
    them, character by character; if they have not as many, or the span has a token that is not
    made of letters of the text, the answer is these words as a whole.

    Args:
      contexts: string [N], UTF-8.
      graph: the tokenizer.
      says_nothing: bool [V], of which ids the token does not say what the text has.
      character_level: whether a word is a character.

    Attributes:
      ids: ragged int32 [N, (tokens)].
    """

    def __init__(
        self,
        contexts: tf.Tensor,
        graph: InGraphTokenizer,
        says_nothing: np.ndarray,
        character_level: bool,
    ):
        self.ids, starts, ends = graph.tokenize_with_offsets(contexts)
        self._contexts = contexts
        self._character_level = character_level
        decoded = tf.strings.unicode_decode(contexts, "UTF-8")
        code_points = decoded.values  # [C]
        self._text_starts = tf.cast(decoded.row_starts(), tf.int32)  # [N], in characters
        bounds = (0, 0x80, 0x800, 0x10000)
        self._bytes_before = _before(
            tf.add_n([tf.cast(code_points >= least, tf.int32) for least in bounds])
        )
        # In characters of all contexts.
        shift = tf.repeat(self._text_starts, self.ids.row_lengths())
        self._begins, self._ends = starts.values + shift, ends.values + shift
        if character_level:
            return
        is_blank = tf.reduce_any(code_points[:, None] == tf.constant(_BLANKS)[None], axis=1)
        self._places = tf.cast(tf.where(~is_blank)[:, 0], tf.int32)  # of all others
        self._places_before = _before(~is_blank)
        counts = graph.character_counts(code_points)
        self._made_before = _before(tf.where(is_blank, 0, counts))
        text_of = decoded.value_rowids()
        size = tf.size(is_blank)
        begins_text = tf.concat([[True], text_of[1:] != text_of[:-1]], 0)[:size]
        is_behind_blank = tf.concat([[True], is_blank[:-1]], 0)[:size]
        begins_word = ~is_blank & (begins_text | is_behind_blank)
        self._word_begins = tf.cast(tf.where(begins_word)[:, 0], tf.int32)  # [W]
        word = tf.cumsum(tf.cast(begins_word, tf.int32)) - 1
        self._word_ends = self._word_begins + tf.math.unsorted_segment_sum(
            tf.cast(~is_blank, tf.int32),
            tf.where(is_blank, -1, word),
            tf.size(self._word_begins),
        )
        self._word = tf.gather(word, self._begins)  # [D]
        self._nothing_before = _before(tf.gather(tf.constant(says_nothing), self.ids.values))

    def cut(
        self, row: tf.Tensor, first: tf.Tensor, last: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Returns the text of spans, and begin and end in their context, in characters.

        Args:
          row: int64 [P], which context.
          first, last: int32 [P], tokens among those of all contexts.
        """
        begin, end = tf.gather(self._begins, first), tf.gather(self._ends, last)
        if not self._character_level:
            begin, end = self._beside(first, last, begin, end)
        text_start = tf.gather(self._text_starts, row)
        byte_begin = tf.gather(self._bytes_before, begin)
        text = tf.strings.substr(
            tf.gather(self._contexts, row),
            byte_begin - tf.gather(self._bytes_before, text_start),
            tf.gather(self._bytes_before, end) - byte_begin,
        )
        if not self._character_level:
            text = tf.strings.regex_replace(text, _BLANKS_PATTERN, " ")
        return text, begin - text_start, end - text_start

    def _beside(
        self, first: tf.Tensor, last: tf.Tensor, begin: tf.Tensor, end: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Lays words and tokens side by side; `begin` and `end` are those of the tokens."""
        words_begin = tf.gather(self._word_begins, tf.gather(self._word, first))
        words_end = tf.gather(self._word_ends, tf.gather(self._word, last))

        def between(sums: tf.Tensor, start: tf.Tensor, stop: tf.Tensor) -> tf.Tensor:
            return tf.gather(sums, stop) - tf.gather(sums, start)

        place = tf.gather(self._places_before, words_begin)
        last_place = place + between(self._made_before, words_begin, end) - 1
        place += between(self._made_before, words_begin, begin)
        is_whole = between(self._nothing_before, first, last + 1) > 0
        is_whole |= between(self._made_before, words_begin, words_end) != between(
            self._places_before, words_begin, words_end
        )
        place, last_place = tf.where(is_whole, 0, place), tf.where(is_whole, 0, last_place)
        return (
            tf.where(is_whole, words_begin, tf.gather(self._places, place)),
            tf.where(is_whole, words_end, tf.gather(self._places, last_place) + 1),
        )


def _before(counts: tf.Tensor) -> tf.Tensor:
    """int32 [n + 1]: the sums of bool or int32 [n] before each place."""
    return tf.concat([[0], tf.cumsum(tf.cast(counts, tf.int32))], 0)


class Entries(NamedTuple):
    """Answers of all questions, in no order; [E] each.

    row: int64. text: string, "" for no answer. begin, end: int32, -1 for no answer.
    start_logit, end_logit: float64.
    """

    row: tf.Tensor
    text: tf.Tensor
    begin: tf.Tensor
    end: tf.Tensor
    start_logit: tf.Tensor
    end_logit: tf.Tensor

    @property
    def score(self) -> tf.Tensor:
        """float64 [E]."""
        return self.start_logit + self.end_logit

    def at(self, places: tf.Tensor) -> "Entries":
        """Returns some of them."""
        return Entries(*(tf.gather(column, places) for column in self))

    def where(self, chosen: tf.Tensor) -> "Entries":
        """Returns those for which bool [E] is true."""
        return self.at(tf.where(chosen)[:, 0])

    def with_others(self, others: "Entries") -> "Entries":
        """Returns these, then others."""
        return Entries(*(tf.concat(pair, 0) for pair in zip(self, others, strict=True)))

    def by_row(self) -> "Entries":
        """Returns them sorted by rows, those of a row as they are."""
        return self.at(tf.argsort(self.row, stable=True))

    def rank(self, count: tf.Tensor) -> tf.Tensor:
        """Returns the place of each within its row, from 0; they are sorted by rows."""
        starts = tf.searchsorted(self.row, tf.range(count), out_type=tf.int64)
        return tf.range(tf.size(self.row, tf.int64)) - tf.gather(starts, self.row)


def without_text(row: tf.Tensor, start: tf.Tensor, end: tf.Tensor, text: str = "") -> Entries:
    """Makes entries that stand nowhere in a context."""
    nowhere = tf.fill(tf.shape(row), -1)
    return Entries(row, tf.fill(tf.shape(row), text), nowhere, nowhere, start, end)


class Answerer:
    """Questions and contexts to answers.

    Args:
      network: a `BertForSquad`.
      graph: the tokenizer, in the graph.
      tokenizer: the same.
      settings: the run's, of squad.json.
    """

    def __init__(
        self,
        network: Network,
        graph: InGraphTokenizer,
        tokenizer: BertTokenizer,
        settings: Mapping[str, Any],
    ):
        self._network = network
        self._graph = graph
        self._tokenizer = tokenizer
        self._settings = settings
        self._says_nothing = np.zeros(tokenizer.vocab_size, bool)
        for token in (UNK_TOKEN, *tokenizer.never_split):
            self._says_nothing[tokenizer.vocab[token]] = True

    def logits(self, features: Mapping[str, tf.Tensor]) -> Outputs:
        """Returns start_logits and end_logits, float32 [B, T]."""

        def call(features: Mapping[str, tf.Tensor]) -> Outputs:
            outputs = self._network.model(features)
            return {name: outputs[name] for name in ("start_logits", "end_logits")}

        return self._network.checked(features, call)

    def __call__(self, question: tf.Tensor, context: tf.Tensor) -> Outputs:
        """Answers N questions, as docs/export.md says."""
        settings = self._settings
        count = tf.size(question, tf.int64)
        context = tf.strings.unicode_transcode(context, "UTF-8", "UTF-8", errors="replace")
        asked = self._graph.tokenize(question)[:, : settings["max_query_length"]]
        texts = Texts(context, self._graph, self._says_nothing, settings["character_level"])
        ids = texts.ids
        shown = windows(
            tf.cast(asked.row_lengths(), tf.int32),
            tf.cast(ids.row_lengths(), tf.int32),
            settings["max_seq_length"],
            settings["doc_stride"],
        )
        doc_start = tf.cast(tf.gather(ids.row_starts(), shown.row), tf.int32)

        # The windows as ids, and where the context is in them.
        offset, length = shown.offset[:, None], shown.length[:, None]
        longest = tf.maximum(tf.reduce_max(shown.offset + shown.length), 1) + 1
        place = tf.range(longest)[None]
        position = place - offset
        is_context = (position >= 0) & (position < length)
        token = tf.where(is_context, (doc_start + shown.start)[:, None] + position, 0)
        in_question = tf.cast(tf.gather(asked.row_starts(), shown.row), tf.int32)[:, None] + place
        is_question = (place > 0) & (place < offset - 1)
        window_ids = tf.gather(tf.concat([ids.values, [0]], 0), token)
        window_ids = tf.where(
            is_question,
            tf.gather(tf.concat([asked.values, [0]], 0), tf.where(is_question, in_question - 1, 0)),
            window_ids,
        )
        window_ids = tf.where(place == 0, self._tokenizer.cls_id, window_ids)
        is_separator = (place == offset - 1) | (position == length)
        window_ids = tf.where(is_separator, self._tokenizer.sep_id, window_ids)
        is_token = position <= length
        mask = tf.cast(is_token, tf.int32)
        segments = tf.cast(is_token & (position >= 0), tf.int32)

        def both(part: dict[str, tf.Tensor]) -> tf.Tensor:
            found = self.logits(part)
            return tf.stack([found["start_logits"], found["end_logits"]], axis=-1)

        logits = in_parts(as_features(window_ids * mask, mask, segments), _PART, both, [None, 2])
        logits = tf.where(is_token[:, :, None], logits, -np.inf)
        is_start = max_context(shown, position, token, is_context, tf.size(ids.values))
        return self._decode(count, shown, texts, token, is_start, is_context, logits)

    def _decode(
        self,
        count: tf.Tensor,
        shown: Windows,
        texts: Texts,
        token: tf.Tensor,
        is_start: tf.Tensor,
        is_end: tf.Tensor,
        logits: tf.Tensor,
    ) -> Outputs:
        """From logits [S, T, 2] to the outputs.

        `token` int32 [S, T] numbers the tokens of all contexts; `is_start` and `is_end`, bool
        [S, T], tell where a span may start and end.
        """
        settings = self._settings
        n_best, version_2 = settings["n_best_size"], settings["version_2_with_negative"]
        spans = self._best_spans(shown, texts, token, is_start, is_end, logits)
        has_window = tf.math.unsorted_segment_sum(tf.ones_like(shown.row), shown.row, count) > 0
        rows = tf.range(count)
        zeros = tf.zeros([count], tf.float64)
        null = without_text(rows, zeros, zeros)
        if version_2:
            null = self._null(count, shown, logits).where(has_window)
            spans = spans.with_others(null)  # behind all spans of the same score
        order = tf.argsort(spans.score, direction="DESCENDING", stable=True)
        spans = spans.at(order).by_row()
        # Of equal texts of a question the first one stays.
        keys = tf.strings.join([tf.strings.as_string(spans.row), spans.text], "\n")
        unique, which = tf.unique(keys, tf.int64)
        place = tf.range(tf.size(keys, tf.int64))
        spans = spans.at(tf.math.unsorted_segment_min(place, which, tf.size(unique, tf.int64)))
        spans = spans.where(spans.rank(count) < n_best)

        def lacks(chosen: tf.Tensor) -> tf.Tensor:
            found = tf.math.unsorted_segment_max(tf.cast(chosen, tf.int32), spans.row, count)
            return found <= 0

        if version_2:
            no_null, no_text = lacks(spans.text == ""), lacks(spans.text != "")
            spans = spans.with_others(null.where(tf.gather(no_null, null.row)))
            needed = no_text & has_window
            spans = tf.cond(
                tf.reduce_any(needed),
                lambda: spans.with_others(
                    self._best_of_all(shown, texts, token, is_start, is_end, logits, needed)
                ),
                lambda: spans,
            )
            blank = without_text(rows, zeros, zeros).where(~has_window)
        else:
            has_none = lacks(tf.fill(tf.shape(spans.row), True))
            blank = without_text(rows, zeros, zeros, NO_ANSWER_TEXT).where(has_none)
        return self._outputs(count, spans.with_others(blank).by_row(), null, has_window)

    def _best_spans(
        self,
        shown: Windows,
        texts: Texts,
        token: tf.Tensor,
        is_start: tf.Tensor,
        is_end: tf.Tensor,
        logits: tf.Tensor,
    ) -> Entries:
        """All spans between the best starts and ends of each window, in the original's order."""
        best = tf.minimum(self._settings["n_best_size"], tf.shape(logits)[1])

        def positions(side: int, allowed: tf.Tensor) -> tuple[tf.Tensor, ...]:
            values, at = tf.math.top_k(logits[:, :, side], best)  # [S, K]
            return (
                tf.cast(values, tf.float64),
                tf.gather(token, at, batch_dims=1),
                tf.gather(allowed, at, batch_dims=1),
            )

        start_logit, first, start_ok = positions(0, is_start)
        end_logit, last, end_ok = positions(1, is_end)
        length = last[:, None, :] - first[:, :, None]  # [S, K, K], minus 1
        allowed = (length >= 0) & (length < self._settings["max_answer_length"])
        allowed &= start_ok[:, :, None] & end_ok[:, None, :]
        window, start, end = tf.unstack(tf.where(allowed), axis=1)  # [P]
        starts, ends = tf.stack([window, start], axis=1), tf.stack([window, end], axis=1)
        row = tf.gather(shown.row, window)
        text, begin, stop = texts.cut(row, tf.gather_nd(first, starts), tf.gather_nd(last, ends))
        return Entries(
            row, text, begin, stop, tf.gather_nd(start_logit, starts), tf.gather_nd(end_logit, ends)
        )

    def _null(self, count: tf.Tensor, shown: Windows, logits: tf.Tensor) -> Entries:
        """No answer: of each question the window where it has the least score; N of them."""
        at_cls = tf.cast(logits[:, 0], tf.float64)  # [S, 2]
        score = at_cls[:, 0] + at_cls[:, 1]
        least = tf.gather(tf.math.unsorted_segment_min(score, shown.row, count), shown.row)
        number = tf.range(tf.size(shown.row))
        able = tf.where(score == least, number, tf.int32.max)
        window = tf.math.unsorted_segment_min(able, shown.row, count)
        # A question without windows has none; what stands here then is not used.
        padded = tf.concat([at_cls, tf.zeros([1, 2], tf.float64)], 0)
        chosen = tf.gather(padded, tf.minimum(window, tf.size(number)))
        return without_text(tf.range(count), chosen[:, 0], chosen[:, 1])

    def _best_of_all(
        self,
        shown: Windows,
        texts: Texts,
        token: tf.Tensor,
        is_start: tf.Tensor,
        is_end: tf.Tensor,
        logits: tf.Tensor,
        needed: tf.Tensor,
    ) -> Entries:
        """The best of all spans of the questions for which bool [N] is true."""
        chosen = tf.where(tf.gather(needed, shown.row))[:, 0]  # [S]
        row, token = tf.gather(shown.row, chosen), tf.gather(token, chosen)
        allowed = tf.stack([is_start, is_end], axis=-1)
        wide = tf.gather(tf.where(allowed, tf.cast(logits, tf.float64), -_INF), chosen)
        longest = self._settings["max_answer_length"]
        length = tf.shape(wide)[1]
        ends = tf.pad(wide[:, :, 1], [[0, 0], [0, longest]], constant_values=-_INF)
        # [S, lengths, T], in the order in which they are looked at.
        sums = tf.stack(
            [wide[:, :, 0] + ends[:, more : more + length] for more in range(longest)], axis=1
        )
        sums = tf.reshape(sums, [tf.size(row), longest * length])
        at = tf.argmax(sums, axis=1, output_type=tf.int32)
        best = tf.reduce_max(sums, axis=1)
        count = tf.size(needed, tf.int64)
        most = tf.gather(tf.math.unsorted_segment_max(best, row, count), row)
        number = tf.range(tf.size(row))
        able = tf.where(best == most, number, tf.int32.max)
        window = tf.boolean_mask(tf.math.unsorted_segment_min(able, row, count), needed)
        at, row = tf.gather(at, window), tf.gather(row, window)
        start, more = at % length, at // length
        starts = tf.stack([window, start], axis=1)
        ends = tf.stack([window, start + more], axis=1)
        text, begin, stop = texts.cut(row, tf.gather_nd(token, starts), tf.gather_nd(token, ends))
        return Entries(
            row,
            text,
            begin,
            stop,
            tf.gather_nd(wide[:, :, 0], starts),
            tf.gather_nd(wide[:, :, 1], ends),
        )

    def _outputs(
        self, count: tf.Tensor, entries: Entries, null: Entries, has_window: tf.Tensor
    ) -> Outputs:
        """`entries` are sorted by rows, the best first; each row has one."""
        score = entries.score
        most = tf.math.unsorted_segment_max(score, entries.row, count)
        shares = tf.exp(score - tf.gather(most, entries.row))
        total = tf.math.unsorted_segment_sum(shares, entries.row, count)
        shares /= tf.gather(total, entries.row)

        def dense(column: tf.Tensor, default: Any) -> tf.Tensor:
            return tf.RaggedTensor.from_value_rowids(
                column, entries.row, count, validate=False
            ).to_tensor(default)

        outputs = {
            "nbest_text": dense(entries.text, ""),
            "nbest_start": dense(entries.begin, -1),
            "nbest_end": dense(entries.end, -1),
            "nbest_probability": dense(tf.cast(shares, tf.float32), 0.0),
            "nbest_start_logit": dense(tf.cast(entries.start_logit, tf.float32), 0.0),
            "nbest_end_logit": dense(tf.cast(entries.end_logit, tf.float32), 0.0),
        }
        if not self._settings["version_2_with_negative"]:
            best = entries.where(entries.rank(count) == 0)
            return {"answer": best.text, "start": best.begin, "end": best.end, **outputs}
        spans = entries.where(entries.text != "")
        best = spans.where(spans.rank(count) == 0)
        # Rows without windows have neither: they stay at what no window means.
        missing = tf.where(~has_window)[:, 0]
        zeros = tf.zeros_like(missing, tf.float64)
        best = best.with_others(without_text(missing, zeros, zeros)).by_row()
        certain = zeros + NO_WINDOW_NULL_ODDS
        null = null.with_others(without_text(missing, certain, zeros)).by_row()
        odds = null.score - best.start_logit - best.end_logit
        is_answer = odds <= self._settings["null_score_diff_threshold"]
        return {
            "answer": tf.where(is_answer, best.text, ""),
            "start": tf.where(is_answer, best.begin, -1),
            "end": tf.where(is_answer, best.end, -1),
            "null_odds": tf.cast(odds, tf.float32),
            **outputs,
        }


def question_answering(answerer: Answerer) -> Signatures:
    """An answer to each question, from its context."""

    @tf.function(
        autograph=False, input_signature=[heads.strings("question"), heads.strings("context")]
    )
    def texts(question: tf.Tensor, context: tf.Tensor) -> Outputs:
        return answerer(question, context)

    @tf.function(autograph=False, input_signature=heads.ids_signature())
    def ids(input_ids: tf.Tensor, input_mask: tf.Tensor, segment_ids: tf.Tensor) -> Outputs:
        return answerer.logits(as_features(input_ids, input_mask, segment_ids))

    return {heads.TEXTS: texts, heads.IDS: ids}
