"""A model's start and end logits to answers, by the original's rules and to its last digit.

For each question the best spans of all its windows are put in order, turned into text of the
context, and the first `n_best_size` different texts kept. Spans are looked for with numpy, some
dozens of windows at a time; the text of a span is cut out of strings that are made once a
context.

Letters: T tokens of a window, D tokens of a context, W windows at a time, L logits a window,
N n_best_size or L if that is less.
"""

import dataclasses
import itertools
import json
import math
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import IO, Any, NamedTuple

import numpy as np

from bert_tf import paths
from bert_tf.tokenization import BertTokenizer
from bert_tf.tokenization.wordpiece import BasicTokenizer
from data_prep.squad.reading import Context, Example
from data_prep.squad.windows import ContextTokens, Window

# What the original writes for SQuAD 1.1 where no span can be had. 2.0 says "" there.
NO_ANSWER_TEXT = "empty"
# The null odds of a question without windows, which has no scores: as good as certain.
NO_WINDOW_NULL_ODDS = 1e6
# Windows decoded at a time.
_CHUNK = 64
_MAX_CACHED_TEXTS = 1 << 16

# An example, its windows, and start and end logits [T or more] of each.
Scored = tuple[Example, Sequence[Window], Sequence[Any], Sequence[Any]]


class NBestAnswer(NamedTuple):
    """One of the best answers; text "" stands for no answer."""

    text: str
    probability: float
    start_logit: float
    end_logit: float


@dataclasses.dataclass(slots=True)
class Prediction:
    """What is predicted for a question.

    Attributes:
      text: the answer; for SQuAD 2.0 "" where `null_odds` is over the threshold.
      best_text: the best answer that has text, whatever the threshold; "" if there is none.
      null_odds: for SQuAD 2.0 the score of no answer minus that of `best_text`, else None.
      nbest: the best answers, best first, not empty.
    """

    text: str
    best_text: str
    null_odds: float | None
    nbest: list[NBestAnswer]


class _Word(NamedTuple):
    """How a word's tokens lie in its tokenized text, "(no." -> "( no ."."""

    text: str
    starts: tuple[int, ...]  # of each token in `text`
    ends: tuple[int, ...]
    word_starts: tuple[int, ...]  # of each token in the word
    word_ends: tuple[int, ...]
    is_plain: bool  # character by character the word is its tokens


class _ContextText:
    """A context's words and tokens as two strings, and where each token is in them."""

    __slots__ = ("begin", "end", "joined", "odd", "t_begin", "t_end", "t_word", "tokenized")

    def __init__(self, words: Sequence[str], parts: Sequence[_Word]):
        self.joined = " ".join(words)
        # A space after each word, so that tokens of different words stay apart.
        self.tokenized = " ".join([part.text for part in parts])
        counts = [len(part.starts) for part in parts]
        word_at = np.cumsum([0, *(len(word) + 1 for word in words)])[:-1]
        text_at = np.cumsum([0, *(len(part.text) + 1 for part in parts)])[:-1]
        of_word = np.repeat(np.arange(len(parts)), counts)

        def flat(lists: list[tuple[int, ...]]) -> np.ndarray:
            return np.fromiter(itertools.chain.from_iterable(lists), np.int64, len(of_word))

        self.t_word = text_at[of_word]
        self.t_begin = self.t_word + flat([part.starts for part in parts])
        self.t_end = self.t_word + flat([part.ends for part in parts])
        self.begin = word_at[of_word] + flat([part.word_starts for part in parts])
        self.end = word_at[of_word] + flat([part.word_ends for part in parts])
        # Words that are not plain, up to each word.
        self.odd = np.cumsum([0, *(not part.is_plain for part in parts)])


class Decoder:
    """Turns logits into predictions.

    Args:
      tokenizer: the one that the windows were made with.
      n_best_size: answers to keep of each question, and positions to look at in each window.
      max_answer_length: the most tokens of an answer.
      version_2_with_negative: whether "no answer" is an answer.
      null_score_diff_threshold: 2.0 only: "" is predicted if the null odds are over it.

    Raises:
      ValueError: `n_best_size` or `max_answer_length` is below 1.

    Example:
      >>> decoder = Decoder(tokenizer, version_2_with_negative=True)
      >>> for example, prediction in decoder(scored):
      ...     print(example.qas_id, prediction.text)
    """

    def __init__(
        self,
        tokenizer: BertTokenizer,
        n_best_size: int = 20,
        max_answer_length: int = 30,
        version_2_with_negative: bool = False,
        null_score_diff_threshold: float = 0.0,
    ):
        for name, value in (
            ("n_best_size", n_best_size),
            ("max_answer_length", max_answer_length),
        ):
            if value < 1:
                raise ValueError(f"{name}={value}: it must be at least 1.")
        self.tokenizer = tokenizer
        self.n_best_size = n_best_size
        self.max_answer_length = max_answer_length
        self.version_2_with_negative = version_2_with_negative
        self.null_score_diff_threshold = null_score_diff_threshold
        self._basic = BasicTokenizer(tokenizer.do_lower_case, tokenizer.strip_accents)
        self._words: dict[str, _Word] = {}
        self._texts: dict[tuple[str, str], str] = {}
        self._contexts: OrderedDict[int, tuple[ContextTokens, _ContextText, list[str]]]
        self._contexts = OrderedDict()

    def __call__(self, scored: Iterable[Scored]) -> Iterator[tuple[Example, Prediction]]:
        """Yields each example with its prediction, in order; holds some dozens at a time.

        Args:
          scored: examples, their windows, and for each window its start and end logits, T or more
            of them (the rest belongs to padding). An example without windows (a blank context)
            is fine.

        Raises:
          ValueError: logits are missing, too few, or not finite; names the question.
        """
        chunk: list[Scored] = []
        size = 0
        for item in scored:
            chunk.append(item)
            size += len(item[1])
            if size >= _CHUNK:
                yield from self._decode(chunk)
                chunk, size = [], 0
        if chunk:
            yield from self._decode(chunk)

    def _decode(self, chunk: list[Scored]) -> Iterator[tuple[Example, Prediction]]:
        windows = [window for item in chunk for window in item[1]]
        found = _find_spans(chunk, windows, self.n_best_size, self.max_answer_length)
        # Spans and windows before each example.
        last_windows = np.cumsum([len(item[1]) for item in chunk])
        bounds = np.searchsorted(found.window, [0, *last_windows]).tolist()
        first = 0
        for number, (example, its, _, _) in enumerate(chunk):
            spans = slice(bounds[number], bounds[number + 1])
            prediction = self._predict(example, its, found, spans, first)
            first += len(its)
            yield example, prediction

    def _predict(
        self,
        example: Example,
        windows: Sequence[Window],
        found: "_Spans",
        spans: slice,
        first: int,
    ) -> Prediction:
        version_2 = self.version_2_with_negative
        if not windows:
            text = "" if version_2 else NO_ANSWER_TEXT
            odds = NO_WINDOW_NULL_ODDS if version_2 else None
            return Prediction(text, "", odds, [NBestAnswer(text, 1.0, 0.0, 0.0)])
        scores = found.score[spans]
        null = (0.0, 0.0)
        null_score = 0.0
        if version_2:
            null_scores = found.null[first : first + len(windows), 0]
            least = first + int(null_scores.argmin())
            null_score, *null_logits = found.null[least].tolist()
            null = (null_logits[0], null_logits[1])
            scores = np.append(scores, null_score)
        order = np.argsort(-scores, kind="stable")
        entries = self._different_texts(example, windows[0].doc, found, spans, order, null)
        if version_2:
            if all(text for text, _, _ in entries):
                entries.append(("", *null))
            if not any(text for text, _, _ in entries):
                # The original stops here. No span was among the best positions: look at all.
                entries.append(self._best_of_all(example, windows, found, first))
        elif not entries:
            entries.append((NO_ANSWER_TEXT, 0.0, 0.0))
        probabilities = _softmax([start + end for _, start, end in entries])
        nbest = [
            NBestAnswer(text, probability, start, end)
            for (text, start, end), probability in zip(entries, probabilities)
        ]
        if not version_2:
            return Prediction(nbest[0].text, nbest[0].text, None, nbest)
        best_text, start, end = next((entry for entry in entries if entry[0]), ("", *null))
        odds = null_score - start - end
        text = "" if odds > self.null_score_diff_threshold else best_text
        return Prediction(text, best_text, odds, nbest)

    def _different_texts(
        self,
        example: Example,
        doc: ContextTokens,
        found: "_Spans",
        spans: slice,
        order: np.ndarray,
        null: tuple[float, float],
    ) -> list[tuple[str, float, float]]:
        """Returns the first texts of the spans in `order`, no text twice, with their logits."""
        entries: list[tuple[str, float, float]] = []
        seen: set[str] = set()
        count = spans.stop - spans.start
        step = 2 * self.n_best_size
        for at in range(0, len(order), step):
            some = order[at : at + step]
            # The null entry comes after all spans.
            null_at = np.flatnonzero(some == count)
            chosen = some[some < count] + spans.start
            logits = zip(found.start_logit[chosen].tolist(), found.end_logit[chosen].tolist())
            texts = self._texts_of(example, doc, found.first[chosen], found.last[chosen])
            rows: Iterable[tuple[str, tuple[float, float]]] = zip(texts, logits)
            if len(null_at):
                split = int(null_at[0])
                rows = itertools.chain(itertools.islice(rows, split), [("", null)], rows)
            for text, (start, end) in rows:
                if text in seen:
                    continue
                seen.add(text)
                entries.append((text, start, end))
                if len(entries) >= self.n_best_size:
                    return entries
        return entries

    def _texts_of(
        self, example: Example, doc: ContextTokens, first: np.ndarray, last: np.ndarray
    ) -> Iterator[str]:
        """Yields the text of spans, given their first and last token in the context."""
        context = example.context
        if context.character_level:
            text = context.text
            ends = (doc.last_words[last] + 1).tolist()
            for start, end in zip(doc.first_words[first].tolist(), ends):
                yield text[start:end]
            return
        source, words = self._context_text(context, doc)
        first_words, last_words = doc.first_words[first], doc.first_words[last]
        odd = source.odd[last_words + 1] - source.odd[first_words]
        joined, tokenized = source.joined, source.tokenized
        for begin, end, t_begin, t_end, t_word, is_odd, number in zip(
            source.begin[first].tolist(),
            source.end[last].tolist(),
            source.t_begin[first].tolist(),
            source.t_end[last].tolist(),
            source.t_word[first].tolist(),
            odd.tolist(),
            range(len(first)),
        ):
            # The original looks for the answer's tokens in the tokenized words and takes the first
            # place: the right one, or one before it in the same word.
            if not is_odd and (
                t_begin == t_word or tokenized.find(tokenized[t_begin:t_end], t_word) == t_begin
            ):
                yield joined[begin:end]
            else:
                ids = doc.ids[int(first[number]) : int(last[number]) + 1].tolist()
                predicted = join_pieces(self.tokenizer.convert_ids_to_tokens(ids))
                original = " ".join(words[int(first_words[number]) : int(last_words[number]) + 1])
                yield self._aligned(predicted, original)

    def _aligned(self, predicted: str, original: str) -> str:
        key = predicted, original
        text = self._texts.get(key)
        if text is None:
            if len(self._texts) >= _MAX_CACHED_TEXTS:
                self._texts.clear()
            text = self._texts[key] = align(predicted, original, self._basic)
        return text

    def _context_text(self, context: Context, doc: ContextTokens) -> tuple[_ContextText, list[str]]:
        # Questions of a context come one after the other: a few contexts are enough.
        kept = self._contexts.get(id(doc))
        if kept is None or kept[0] is not doc:
            words = context.words
            known = self._words
            parts = []
            assert doc.word_starts is not None
            starts = doc.word_starts.tolist()
            for number, word in enumerate(words):
                part = known.get(word)
                if part is None:
                    if len(known) >= _MAX_CACHED_TEXTS:
                        known.clear()
                    ids = doc.ids[starts[number] : starts[number + 1]].tolist()
                    part = known[word] = self._word(word, ids)
                parts.append(part)
            kept = self._contexts[id(doc)] = doc, _ContextText(words, parts), words
            if len(self._contexts) > 8:
                self._contexts.popitem(last=False)
        return kept[1], kept[2]

    def _word(self, word: str, ids: list[int]) -> _Word:
        text = " ".join(self._basic.tokenize(word))
        starts, ends, word_starts, word_ends = [], [], [], []
        at = word_at = 0
        is_plain = True
        for number, piece in enumerate(self.tokenizer.convert_ids_to_tokens(ids)):
            if piece.startswith("##"):
                piece = piece[2:]
            elif number:
                at += 1  # the space
            starts.append(at)
            word_starts.append(word_at)
            is_plain &= text.startswith(piece, at)
            at += len(piece)
            word_at += len(piece)
            ends.append(at)
            word_ends.append(word_at)
        is_plain &= at == len(text) and word_at == len(word)
        return _Word(
            text, tuple(starts), tuple(ends), tuple(word_starts), tuple(word_ends), is_plain
        )

    def _best_of_all(
        self, example: Example, windows: Sequence[Window], found: "_Spans", first: int
    ) -> tuple[str, float, float]:
        """Returns the best of all spans, not only of those between the best positions."""
        best: tuple[float, int, float, float, int, int] | None = None
        for number, window in enumerate(windows, first):
            offset, size = window.doc_offset, window.doc_length
            starts = found.starts[number, offset : offset + size]
            ends = found.ends[number, offset : offset + size]
            if window.max_context is not None:
                starts = np.where(window.max_context, starts, -np.inf)
            for length in range(min(self.max_answer_length, size)):
                sums = starts[: size - length] + ends[length:]
                at = int(sums.argmax())
                if best is None or sums[at] > best[0]:
                    at_doc = window.doc_start + at
                    best = (
                        float(sums[at]), number, float(starts[at]), float(ends[at + length]),
                        at_doc, at_doc + length,
                    )  # fmt: skip
        assert best is not None
        tokens = np.array([best[4]]), np.array([best[5]])
        [text] = self._texts_of(example, windows[0].doc, *tokens)
        return text, best[2], best[3]


class _Spans(NamedTuple):
    """The spans of W windows, in the order in which the original meets them, and null scores."""

    window: np.ndarray  # [spans], which window
    first: np.ndarray  # [spans], first and last token in the context
    last: np.ndarray
    start_logit: np.ndarray  # float64 [spans]
    end_logit: np.ndarray
    score: np.ndarray  # float64 [spans], their sum
    null: np.ndarray  # float64 [W, 3], sum, start and end logit of [CLS]
    starts: np.ndarray  # float64 [W, L], all logits, -inf where there are none
    ends: np.ndarray


def _find_spans(
    chunk: list[Scored], windows: list[Window], n_best: int, max_answer_length: int
) -> _Spans:
    starts = _stack([(example, its, logits) for example, its, logits, _ in chunk], "start")
    ends = _stack([(example, its, logits) for example, its, _, logits in chunk], "end")
    if not windows:
        none = np.zeros(0, np.int64)
        empty = np.zeros(0)
        return _Spans(none, none, none, empty, empty, empty, np.zeros((0, 3)), starts, ends)
    offset = np.array([window.doc_offset for window in windows])[:, None]
    size = np.array([window.doc_length for window in windows])[:, None]
    at_start = _best_positions(starts, n_best)  # [W, N]
    at_end = _best_positions(ends, n_best)
    in_start = at_start - offset  # in the window's part of the context
    in_end = at_end - offset
    start_ok = (in_start >= 0) & (in_start < size)
    end_ok = (in_end >= 0) & (in_end < size)
    for number, window in enumerate(windows):
        if window.max_context is not None:
            ok = start_ok[number]
            ok[ok] = window.max_context[in_start[number][ok]]
    length = at_end[:, None, :] - at_start[:, :, None]  # [W, N, N], minus 1
    ok_pairs = (
        start_ok[:, :, None] & end_ok[:, None, :] & (length >= 0) & (length < max_answer_length)
    )
    window_at, start_at, end_at = np.nonzero(ok_pairs)
    first, last = in_start[window_at, start_at], in_end[window_at, end_at]
    doc_start = np.array([window.doc_start for window in windows])[window_at]
    start_logit = starts[window_at, at_start[window_at, start_at]]
    end_logit = ends[window_at, at_end[window_at, end_at]]
    null = np.stack([starts[:, 0] + ends[:, 0], starts[:, 0], ends[:, 0]], axis=1)
    return _Spans(
        window_at,
        doc_start + first,
        doc_start + last,
        start_logit,
        end_logit,
        start_logit + end_logit,
        null,
        starts,
        ends,
    )


def _stack(
    chunk: Iterable[tuple[Example, Sequence[Window], Sequence[Any]]], name: str
) -> np.ndarray:
    """Returns the logits of all windows, float64 [W, L], -inf where a row is shorter."""
    rows = []
    for example, windows, logits in chunk:
        if len(logits) != len(windows):
            raise ValueError(
                f"question {example.qas_id!r}: {len(windows)} windows, but {name} logits of "
                f"{len(logits)}; each window needs its own."
            )
        for window, row in zip(windows, logits):
            array = np.asarray(row, np.float64)
            where = f"question {example.qas_id!r}, window {window.doc_span_index}"
            if array.ndim != 1 or len(array) < window.length:
                raise ValueError(
                    f"{where}: {name} logits of shape {array.shape} for {window.length} tokens."
                )
            if not np.isfinite(array).all():
                raise ValueError(
                    f"{where}: a {name} logit is not finite; the model's weights are not right."
                )
            rows.append(array)
    longest = max(map(len, rows), default=1)
    if rows and all(len(row) == longest for row in rows):
        return np.stack(rows)
    stacked = np.full((len(rows), longest), -np.inf)
    for target, row in zip(stacked, rows):
        target[: len(row)] = row
    return stacked


def _best_positions(logits: np.ndarray, n_best: int) -> np.ndarray:
    """Returns the positions of the N greatest logits of each row, equal ones in order: [W, N]."""
    width = logits.shape[1]
    if n_best >= width:
        return np.argsort(-logits, axis=1, kind="stable")
    split = width - n_best
    found = np.argpartition(logits, split, axis=1)[:, split:]
    least = np.take_along_axis(logits, found[:, :1], 1)
    # Where the least of them occurs again outside, which one was taken is left to chance.
    unclear = np.flatnonzero((logits >= least).sum(axis=1) > n_best)
    found.sort(axis=1)
    order = np.argsort(-np.take_along_axis(logits, found, 1), axis=1, kind="stable")
    found = np.take_along_axis(found, order, 1)
    if len(unclear):
        found[unclear] = np.argsort(-logits[unclear], axis=1, kind="stable")[:, :n_best]
    return found


def _softmax(scores: Sequence[float]) -> list[float]:
    # math.exp and a plain sum, as the original: numpy's may differ in the last digit.
    most = max(scores)
    exponentials = [math.exp(score - most) for score in scores]
    total = 0.0
    for value in exponentials:
        total += value
    return [value / total for value in exponentials]


def join_pieces(tokens: Iterable[str]) -> str:
    """Puts WordPiece tokens together to words with single spaces between them."""
    text = " ".join(tokens).replace(" ##", "").replace("##", "")
    return " ".join(text.split())


def align(predicted: str, original: str, basic: BasicTokenizer) -> str:
    """Returns the part of `original` that `predicted` was made from.

    `original` are whole words of the context ("(Heron's,"), `predicted` are tokens that were put
    together ("heron"): the result has the context's capitals and accents and no more punctuation
    than the tokens have ("Heron"). If the two cannot be laid side by side, `original` is returned
    as it is.

    Args:
      predicted: tokens, from `join_pieces`.
      original: the words, single spaces between them.
      basic: tokenizes as the tokens were made.
    """
    tokenized = " ".join(basic.tokenize(original))
    start = tokenized.find(predicted)
    if start < 0:
        return original
    last = start + len(predicted) - 1
    places = [place for place, character in enumerate(original) if character != " "]
    if len(places) != len(tokenized) - tokenized.count(" "):
        return original
    # An empty or blank text has no first or last character.
    if last < 0 or tokenized[start] == " " or tokenized[last] == " ":
        return original
    begin = places[start - tokenized.count(" ", 0, start)]
    end = places[last - tokenized.count(" ", 0, last)]
    return original[begin : end + 1]


def best_answers(
    example: Example,
    windows: Sequence[Window],
    start_logits: Sequence[Any],
    end_logits: Sequence[Any],
    tokenizer: BertTokenizer,
    n_best_size: int = 20,
    max_answer_length: int = 30,
    version_2_with_negative: bool = False,
    null_score_diff_threshold: float = 0.0,
) -> Prediction:
    """Returns the prediction for one question; for many of them use `Decoder`.

    Args:
      example: the question.
      windows: all of its windows.
      start_logits, end_logits: for each window [T] or more floats.
      the others: as `Decoder`'s.

    Raises:
      ValueError: as `Decoder`.
    """
    decoder = Decoder(
        tokenizer,
        n_best_size,
        max_answer_length,
        version_2_with_negative,
        null_score_diff_threshold,
    )
    [(_, prediction)] = decoder([(example, windows, start_logits, end_logits)])
    return prediction


def average_logits(
    logits: Sequence[np.ndarray], lengths: Sequence[int] | np.ndarray | None = None
) -> np.ndarray:
    """Merges several models' start (or end) logits of the same windows into one model's.

    Each model's logits become probabilities over the tokens of a window, these are averaged, and
    their logarithm is returned. Probabilities say nothing of how sure a model is of one window
    against another, which decides between windows; so the models' mean level (the logarithm of
    the sum of exponentials) is added again. One model alone keeps its logits.

    Args:
      logits: for each model an array [T], or [B, L] for B windows.
      lengths: [B], the tokens of each window if some are padded; padding gets no probability and
        keeps the mean of its logits.

    Returns:
      float64, of the same shape.

    Raises:
      ValueError: no models, or their shapes differ.
    """
    shapes = {np.shape(each) for each in logits}
    if len(shapes) != 1:
        raise ValueError(
            f"logits of shapes {sorted(shapes)}: give each model's for the same windows."
            if shapes
            else "no model's logits were given."
        )
    stacked = np.stack([np.asarray(each, np.float64) for each in logits])  # [models, ...]
    if len(stacked) == 1:
        return stacked[0]
    shown = np.ones(stacked.shape[1:], bool)
    if lengths is not None:
        shown = np.arange(stacked.shape[-1]) < np.asarray(lengths)[..., None]
    masked = np.where(shown, stacked, -np.inf)
    level = _log_sum_exp(masked, -1)  # [models, ..., 1]
    mean = _log_sum_exp(masked - level, 0)[0] - math.log(len(stacked))
    return np.where(shown, mean + level.mean(axis=0), stacked.mean(axis=0))


def _log_sum_exp(values: np.ndarray, axis: int) -> np.ndarray:
    most = values.max(axis=axis, keepdims=True)
    most = np.where(np.isfinite(most), most, 0.0)
    with np.errstate(divide="ignore"):  # padding: log(0)
        return most + np.log(np.exp(values - most).sum(axis=axis, keepdims=True))


class _JsonObject:
    """Writes a JSON object entry by entry, as json.dumps(..., indent=4) would write it whole."""

    def __init__(self, handle: IO[str]):
        self._handle = handle
        self._is_empty = True

    def add(self, key: str, value: str) -> None:
        """`value` is JSON, indented to stand in the object."""
        self._handle.write("{" if self._is_empty else ",")
        self._handle.write(f"\n    {json.dumps(key)}: {value}")
        self._is_empty = False

    def close(self) -> None:
        self._handle.write("{}\n" if self._is_empty else "\n}\n")


def _nbest_json(nbest: Iterable[NBestAnswer]) -> str:
    entries = ",\n".join(
        f'        {{\n            "text": {json.dumps(text)},\n'
        f'            "probability": {probability!r},\n'
        f'            "start_logit": {start!r},\n'
        f'            "end_logit": {end!r}\n        }}'
        for text, probability, start, end in nbest
    )
    return f"[\n{entries}\n    ]"


@dataclasses.dataclass
class Written:
    """What `write_predictions` wrote, by question id.

    Attributes:
      texts: the predictions.
      best_texts: the best answer with text, for `evaluation.best_threshold`.
      null_odds: for SQuAD 2.0, else empty.
    """

    texts: dict[str, str] = dataclasses.field(default_factory=dict)
    best_texts: dict[str, str] = dataclasses.field(default_factory=dict)
    null_odds: dict[str, float] = dataclasses.field(default_factory=dict)


def write_predictions(
    predictions: Iterable[tuple[Example, Prediction]],
    predictions_file: str,
    nbest_file: str,
    null_odds_file: str | None = None,
) -> Written:
    """Writes the files of the original, as the predictions come.

    Args:
      predictions: from a `Decoder`.
      predictions_file: id -> text.
      nbest_file: id -> list of text, probability, start_logit, end_logit.
      null_odds_file: SQuAD 2.0: id -> null odds. None: no such file.

    Returns:
      texts and null odds by id (the n-best lists are not kept).

    Raises:
      OSError: a file cannot be written. None of the files is left half-written.
    """
    written = Written()
    with paths.atomic_write(nbest_file) as handle:
        entries = _JsonObject(handle)
        for example, prediction in predictions:
            name = example.qas_id
            entries.add(name, _nbest_json(prediction.nbest))
            written.texts[name] = prediction.text
            written.best_texts[name] = prediction.best_text
            if prediction.null_odds is not None:
                written.null_odds[name] = prediction.null_odds
        entries.close()
    write_by_id(predictions_file, written.texts)
    if null_odds_file is not None:
        write_by_id(null_odds_file, written.null_odds)
    return written


def write_by_id(path: str, values: Mapping[str, Any]) -> None:
    """Writes a prediction or null odds file as the original does: indent 4, ASCII escapes."""
    with paths.atomic_write(path) as handle:
        entries = _JsonObject(handle)
        for key, value in values.items():
            entries.add(key, json.dumps(value))
        entries.close()


def apply_threshold(
    best_texts: Mapping[str, str], null_odds: Mapping[str, float], threshold: float
) -> dict[str, str]:
    """Returns the predictions with another threshold: "" where the null odds are over it."""
    return {name: "" if null_odds[name] > threshold else text for name, text in best_texts.items()}
