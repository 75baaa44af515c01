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
import math
import operator
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from bert_tf.tokenization import BertTokenizer
from bert_tf.tokenization.wordpiece import UNK_TOKEN, BasicTokenizer
from data_prep.squad.reading import Context, Example
from data_prep.squad.windows import ContextTokens, Window

# What the original writes for SQuAD 1.1 where no span can be had. 2.0 says "" there.
NO_ANSWER_TEXT = "empty"
# The null odds of a question without windows, which has no scores: as good as certain.
NO_WINDOW_NULL_ODDS = 1e6
# Windows decoded at a time.
_CHUNK = 128
_MAX_CACHED_TEXTS = 1 << 16

# An example, its windows, and start and end logits [T or more] of each.
Scored = tuple[Example, Sequence[Window], Sequence[Any], Sequence[Any]]


# A text with its start and end logit.
_Row = tuple[str, float, float]
_Columns = tuple[list[str], list[float], list[float]]


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


class _ContextText:
    """A context's text, and where each token of it is there.

    A word is plain if it has as many characters as its tokens say, none of which is [UNK]. The
    original then lays them side by side, and only for plain words the places hold.

    Attributes:
      words: the words.
      joined: the words with spaces between them; at character level the text as it is.
      tokenized: the tokens put together to words, with spaces between them.
      at_first: int64 [4, D], what to know of a span's first token: where it begins in `joined` and
        in `tokenized`, where its word begins there, and how many words before are not plain.
      at_last: int64 [3, D], of a span's last token: where it ends in `joined` and in `tokenized`,
        and how many words up to its own are not plain.
      doc: the tokens.
    """

    __slots__ = (
        "at_first",
        "at_last",
        "doc",
        "joined",
        "tokenized",
        "words",
    )

    def __init__(self, context: Context, doc: ContextTokens):
        self.doc = doc
        self.joined = context.text
        self.words: list[str] = []
        self.tokenized = ""
        self.at_first = np.zeros((4, len(doc.ids)), np.int64)
        self.at_last = np.zeros((3, len(doc.ids)), np.int64)
        self.at_first[0] = doc.first_words
        self.at_last[0] = doc.last_words + 1

    def use_words(
        self,
        words: list[str],
        pieces: list[str],
        sizes: np.ndarray,
        goes_on: np.ndarray,
        says_nothing: np.ndarray,
    ) -> None:
        """Sets what is needed at word level.

        `pieces` are the tokens, `sizes` their lengths without "##", `goes_on` who has it;
        `says_nothing` who, as [UNK], is not made of the word's characters.
        """
        assert self.doc.word_starts is not None
        self.words = words
        self.joined = " ".join(words)
        self.tokenized = " ".join(pieces).replace(" ##", "")
        of_word = self.doc.first_words
        word_sizes = np.fromiter(map(len, words), np.int64, len(words))
        word_at = (word_sizes + 1).cumsum() - word_sizes - 1
        after = np.zeros(len(sizes) + 1, np.int64)  # characters of the tokens, without spaces
        sizes.cumsum(out=after[1:])
        before = after[:-1]
        first = self.doc.word_starts[of_word]  # [D], the first token of each token's word
        begin = word_at[of_word] + before - before[first]
        self.at_first[0] = begin
        self.at_last[0] = begin + sizes
        in_tokenized = before + (~goes_on).cumsum() - 1
        self.at_first[1] = in_tokenized
        self.at_first[2] = in_tokenized[first]
        self.at_last[1] = in_tokenized + sizes
        # The original lays the two side by side only if they have as many characters.
        is_odd = np.diff(after[self.doc.word_starts]) != word_sizes
        is_odd[of_word[says_nothing]] = True
        if is_odd.any():
            odd = np.zeros(len(words) + 1, np.int64)
            is_odd.cumsum(out=odd[1:])
            self.at_first[3] = odd[of_word]
            self.at_last[2] = odd[of_word + 1]


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
        self._step = n_best_size + n_best_size // 10
        self.max_answer_length = max_answer_length
        self.version_2_with_negative = version_2_with_negative
        self.null_score_diff_threshold = null_score_diff_threshold
        self._basic = BasicTokenizer(tokenizer.do_lower_case, tokenizer.strip_accents)
        self._texts: dict[tuple[str, str], str] = {}
        self._contexts: OrderedDict[int, _ContextText] = OrderedDict()
        # Of each token of the vocabulary.
        self._sizes = np.zeros(tokenizer.vocab_size, np.int64)
        self._goes_on = np.zeros(tokenizer.vocab_size, bool)
        self._says_nothing = np.zeros(tokenizer.vocab_size, bool)
        for token in (UNK_TOKEN, *tokenizer.never_split):
            if token in tokenizer.vocab:
                self._says_nothing[tokenizer.vocab[token]] = True
        for token_id, token in tokenizer.inv_vocab.items():
            self._goes_on[token_id] = token.startswith("##")
            self._sizes[token_id] = len(token.removeprefix("##"))

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
            size += max(1, len(item[1]))
            if size >= _CHUNK:
                yield from self._decode(chunk)
                chunk, size = [], 0
        if chunk:
            yield from self._decode(chunk)

    def _decode(self, chunk: list[Scored]) -> Iterator[tuple[Example, Prediction]]:
        windows = [window for item in chunk for window in item[1]]
        found = _find_spans(chunk, windows, self.n_best_size, self.max_answer_length)
        # Windows and spans before each example.
        windows_before = [0, *itertools.accumulate(len(item[1]) for item in chunk)]
        spans_before = np.searchsorted(found.window, windows_before).tolist()
        orders = []
        sources = []
        for number, (example, its, _, _) in enumerate(chunk):
            first, last = spans_before[number], spans_before[number + 1]
            orders.append((-found.score[first:last]).argsort(kind="stable") + first)
            sources.append(self._context_text(example.context, its[0].doc) if its else None)
        # The first few spans nearly always have N different texts between them.
        heads = [order[: self._step] for order in orders]
        columns = self._columns(found, heads, sources)
        for number, (source, order) in enumerate(zip(sources, orders)):
            shown = slice(windows_before[number], windows_before[number + 1])
            if source is None:
                prediction = self._without_windows()
            else:
                prediction = self._predict(
                    windows[shown], source, found, order, columns[number], shown.start
                )
            yield chunk[number][0], prediction

    def _without_windows(self) -> Prediction:
        if self.version_2_with_negative:
            return Prediction("", "", NO_WINDOW_NULL_ODDS, [NBestAnswer("", 1.0, 0.0, 0.0)])
        nbest = [NBestAnswer(NO_ANSWER_TEXT, 1.0, 0.0, 0.0)]
        return Prediction(NO_ANSWER_TEXT, NO_ANSWER_TEXT, None, nbest)

    def _predict(
        self,
        windows: Sequence[Window],
        source: _ContextText,
        found: "_Spans",
        order: np.ndarray,
        columns: _Columns,
        first: int,
    ) -> Prediction:
        """Makes a prediction of the spans in `order`; `columns` are those of the first `_step`.

        `first` is the place of the first window in `found`.
        """
        version_2 = self.version_2_with_negative
        n_best = self.n_best_size
        null = (0.0, 0.0)
        null_score = 0.0
        null_at = -1
        if version_2:
            least = first + int(found.null[first : first + len(windows), 0].argmin())
            null_score, start, end = found.null[least].tolist()
            null = (start, end)
            # It comes after all spans of its score.
            null_at = int(np.count_nonzero(found.score[order] >= null_score))
        texts, starts, ends = columns
        at = 0
        while True:
            if at <= null_at < at + self._step:
                texts.insert(null_at, "")
                starts.insert(null_at, null[0])
                ends.insert(null_at, null[1])
            different = dict.fromkeys(texts)
            at += self._step
            if len(different) >= n_best or at > len(order):
                break
            [more] = self._columns(found, [order[at : at + self._step]], [source])
            texts += more[0]
            starts += more[1]
            ends += more[2]
        if len(different) < len(texts):
            # Of equal texts the first one stays.
            places = {texts[place]: place for place in range(len(texts) - 1, -1, -1)}
            kept = [places[text] for text in different]
            texts = list(different)
            starts, ends = [starts[place] for place in kept], [ends[place] for place in kept]
        texts, starts, ends = texts[:n_best], starts[:n_best], ends[:n_best]
        more_rows: list[_Row] = []
        if version_2:
            if "" not in texts:
                more_rows.append(("", *null))
            if len(texts) + len(more_rows) == 1:
                # The original stops here. No span was among the best positions: look at all.
                more_rows.append(self._best_of_all(windows, source, found, first))
        elif not texts:
            more_rows.append((NO_ANSWER_TEXT, 0.0, 0.0))
        for text, start, end in more_rows:
            texts.append(text)
            starts.append(start)
            ends.append(end)
        probabilities = _softmax(list(map(operator.add, starts, ends)))
        nbest = list(map(NBestAnswer._make, zip(texts, probabilities, starts, ends)))
        if not version_2:
            return Prediction(texts[0], texts[0], None, nbest)
        best = nbest[0] if texts[0] else nbest[1]
        odds = null_score - best.start_logit - best.end_logit
        text = "" if odds > self.null_score_diff_threshold else best.text
        return Prediction(text, best.text, odds, nbest)

    def _columns(
        self,
        found: "_Spans",
        chosen: list[np.ndarray],
        sources: Sequence[_ContextText | None],
    ) -> list[_Columns]:
        """Returns texts, start and end logits of the spans of several examples.

        `chosen` are the places of their spans in `found`, `sources` their contexts.
        """
        first, last, starts, ends = found.look_up(np.concatenate(chosen))
        begins, stops, unclear = _places(first, last, chosen, sources)
        columns: list[_Columns] = []
        at = 0
        for source, spans in zip(sources, chosen):
            if source is None:
                columns.append(([], [], []))
                continue
            joined = source.joined
            here = slice(at, at + len(spans))
            texts = [joined[begin:stop] for begin, stop in zip(begins[here], stops[here])]
            while unclear and unclear[-1][0] < here.stop:
                number, is_plain, begin, end, word = unclear.pop()
                if not _is_found(source, is_plain, begin, end, word):
                    text = self._aligned_text(source, int(first[number]), int(last[number]))
                    texts[number - at] = text
            columns.append((texts, starts[here], ends[here]))
            at = here.stop
        return columns

    def _aligned_text(self, source: _ContextText, first: int, last: int) -> str:
        """Returns the text of a span whose places do not hold."""
        ids = source.doc.ids[first : last + 1].tolist()
        predicted = join_pieces(self.tokenizer.convert_ids_to_tokens(ids))
        of_word = source.doc.first_words
        original = " ".join(source.words[of_word[first] : of_word[last] + 1])
        return self._aligned(predicted, original)

    def _aligned(self, predicted: str, original: str) -> str:
        key = predicted, original
        text = self._texts.get(key)
        if text is None:
            if len(self._texts) >= _MAX_CACHED_TEXTS:
                self._texts.clear()
            text = self._texts[key] = align(predicted, original, self._basic)
        return text

    def _context_text(self, context: Context, doc: ContextTokens) -> _ContextText:
        # Questions of a context come one after the other: a few contexts are enough.
        kept = self._contexts.get(id(doc))
        if kept is None or kept.doc is not doc:
            kept = self._contexts[id(doc)] = _ContextText(context, doc)
            if doc.word_starts is not None:
                words = context.words
                pieces = self.tokenizer.convert_ids_to_tokens(doc.ids.tolist())
                ids = doc.ids
                kept.use_words(
                    words, pieces, self._sizes[ids], self._goes_on[ids], self._says_nothing[ids]
                )
            if len(self._contexts) > 8:
                self._contexts.popitem(last=False)
        return kept

    def _best_of_all(
        self, windows: Sequence[Window], source: _ContextText, found: "_Spans", first: int
    ) -> _Row:
        """Returns the best of all spans, not only of those between the best positions."""
        best = -math.inf
        logits = (0.0, 0.0)
        span = (0, 0)
        for number, window in enumerate(windows, first):
            offset, size = window.doc_offset, window.doc_length
            starts = found.starts[number, offset : offset + size].astype(np.float64)
            ends = found.ends[number, offset : offset + size].astype(np.float64)
            if window.max_context is not None:
                starts = np.where(window.max_context, starts, -np.inf)
            for length in range(min(self.max_answer_length, size)):
                sums = starts[: size - length] + ends[length:]
                at = int(sums.argmax())
                if sums[at] > best:
                    best = float(sums[at])
                    logits = (float(starts[at]), float(ends[at + length]))
                    span = (window.doc_start + at, window.doc_start + at + length)
        places = np.array([span[0]]), np.array([span[1]])
        [begin], [stop], unclear = _places(*places, [places[0]], [source])
        text = source.joined[begin:stop]
        if unclear and not _is_found(source, *unclear[0][1:]):
            text = self._aligned_text(source, *span)
        return (text, *logits)


# Number of a span; are all its words plain?; where it begins and ends in the tokenized words, and
# where its first word does.
_Unclear = tuple[int, bool, int, int, int]


def _is_found(source: _ContextText, is_plain: bool, begin: int, end: int, word: int) -> bool:
    """Tells whether the places of an unclear span hold.

    The original looks for the answer's tokens in the tokenized words and takes the first place:
    the right one, or one before it in the same word.
    """
    tokenized = source.tokenized
    return is_plain and tokenized.find(tokenized[begin:end], word) == begin


def _places(
    first: np.ndarray,
    last: np.ndarray,
    chosen: list[np.ndarray],
    sources: Sequence[_ContextText | None],
) -> tuple[list[int], list[int], list[_Unclear]]:
    """Looks up where spans of several examples are in their contexts.

    Args:
      first, last: their first and last tokens, one example's after the other's.
      chosen: one for each example, as long as it has spans.
      sources: the examples' contexts.

    Returns:
      begin and end of each in `joined`; which ones must be looked at closer, the last one first.
    """
    parts: list[_ContextText] = []
    offsets = []
    offset = 0
    for source in sources:
        if source is not None and (not parts or parts[-1] is not source):
            offset += len(parts[-1].doc.ids) if parts else 0
            parts.append(source)
        offsets.append(offset)
    if not parts:
        return [], [], []
    shift = np.repeat(offsets, [len(spans) for spans in chosen])
    at_first = np.concatenate([part.at_first for part in parts], axis=1)[:, first + shift]
    at_last = np.concatenate([part.at_last for part in parts], axis=1)[:, last + shift]
    is_plain = at_last[2] <= at_first[3]
    unclear = (~is_plain | (at_first[1] > at_first[2])).nonzero()[0][::-1]
    columns = unclear, is_plain[unclear], at_first[1][unclear], at_last[1][unclear]
    rows = zip(*(column.tolist() for column in columns), at_first[2][unclear].tolist())
    return at_first[0].tolist(), at_last[0].tolist(), list(rows)


class _Spans(NamedTuple):
    """The spans of W windows, in the order in which the original meets them, and null scores."""

    window: np.ndarray  # [spans], which window
    pair: np.ndarray  # [spans], place in [W, N, N]: window, start, end, best first
    score: np.ndarray  # float64 [spans], start plus end logit
    first: np.ndarray  # [W, N], the context's token at each of the best starts
    last: np.ndarray  # [W, N], and at the best ends
    start_logit: np.ndarray  # float64 [W, N]
    end_logit: np.ndarray
    null: np.ndarray  # float64 [W, 3], sum, start and end logit of [CLS]
    starts: np.ndarray  # [W, L], all logits, -inf where there are none
    ends: np.ndarray

    def look_up(self, spans: np.ndarray) -> tuple[np.ndarray, np.ndarray, list[float], list[float]]:
        """Returns first and last token, start and end logit of each."""
        size = self.first.shape[1]
        start, rank = np.divmod(self.pair[spans], size)
        end = start // size * size + rank
        return (
            self.first.ravel()[start],
            self.last.ravel()[end],
            self.start_logit.ravel()[start].tolist(),
            self.end_logit.ravel()[end].tolist(),
        )


def _find_spans(
    chunk: list[Scored], windows: list[Window], n_best: int, max_answer_length: int
) -> _Spans:
    starts = _stack([(example, its, logits) for example, its, logits, _ in chunk], "start")
    ends = _stack([(example, its, logits) for example, its, _, logits in chunk], "end")
    column = (len(windows), 1)
    offset = np.array([window.doc_offset for window in windows], np.int32).reshape(column)
    size = np.array([window.doc_length for window in windows], np.int32).reshape(column)
    doc_start = np.array([window.doc_start for window in windows], np.int32).reshape(column)
    at_start = _best_positions(starts, n_best)  # [W, N]
    at_end = _best_positions(ends, n_best)
    start_logit = np.take_along_axis(starts, at_start, 1).astype(np.float64)
    end_logit = np.take_along_axis(ends, at_end, 1).astype(np.float64)
    in_start = (at_start - offset).astype(np.int32)  # in the window's part of the context
    in_end = (at_end - offset).astype(np.int32)
    start_ok = (in_start >= 0) & (in_start < size)
    end_ok = (in_end >= 0) & (in_end < size)
    for number, window in enumerate(windows):
        if window.max_context is not None:
            ok = start_ok[number]
            ok[ok] = window.max_context[in_start[number][ok]]
    # What is no place for a start or end is put so far away that no length fits.
    far_start = np.where(start_ok, in_start, np.int32(2**30))
    far_end = np.where(end_ok, in_end, np.int32(-1))
    length = far_end[:, None, :] - far_start[:, :, None]  # [W, N, N], minus 1
    pair = ((length >= 0) & (length < max_answer_length)).ravel().nonzero()[0]
    score = (start_logit[:, :, None] + end_logit[:, None, :]).ravel()[pair]
    null = np.stack([starts[:, 0], starts[:, 0], ends[:, 0]], axis=1).astype(np.float64)
    null[:, 0] += null[:, 2]
    window_at = pair // max(1, length.shape[1] ** 2)
    return _Spans(
        window_at,
        pair,
        score,
        in_start + doc_start,
        in_end + doc_start,
        start_logit,
        end_logit,
        null,
        starts,
        ends,
    )


def _stack(
    chunk: Iterable[tuple[Example, Sequence[Window], Sequence[Any]]], name: str
) -> np.ndarray:
    """Returns the logits of all windows, [W, L], -inf where a row is shorter.

    float32 if all rows are, else float64: sums are float64 in any case.
    """
    rows: list[np.ndarray] = []
    shown: list[tuple[Example, Window]] = []
    for example, windows, logits in chunk:
        if len(logits) != len(windows):
            raise ValueError(
                f"question {example.qas_id!r}: {len(windows)} windows, but {name} logits of "
                f"{len(logits)}; each window needs its own."
            )
        rows += [np.asarray(row) for row in logits]
        shown += [(example, window) for window in windows]

    def where(number: int) -> str:
        return f"question {shown[number][0].qas_id!r}, window {shown[number][1].doc_span_index}"

    for number, ((_, window), row) in enumerate(zip(shown, rows)):
        if row.ndim != 1 or len(row) < window.length:
            raise ValueError(
                f"{where(number)}: {name} logits of shape {row.shape} for {window.length} tokens."
            )
    longest = max(map(len, rows), default=1)
    dtype = np.float32 if all(row.dtype == np.float32 for row in rows) else np.float64
    stacked = np.full((len(rows), longest), -np.inf, dtype)
    for target, row in zip(stacked, rows):
        target[: len(row)] = row
    finite = np.isfinite(stacked).sum(axis=1) == [len(row) for row in rows]
    if not finite.all():
        raise ValueError(
            f"{where(int(finite.argmin()))}: a {name} logit is not finite; the model's weights "
            "are not right."
        )
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


def by_example(
    pairs: Iterable[tuple[Example, Sequence[Window]]], starts: Any, ends: Any
) -> Iterator[Scored]:
    """Yields examples with the logits of their windows, given those of all windows in a row.

    Padding is no place for an answer, whatever a batch was padded to: its logits are cut off.
    """
    at = 0
    for example, windows in pairs:
        rows = slice(at, at + len(windows))
        at = rows.stop
        yield (
            example,
            windows,
            [row[: window.length] for window, row in zip(windows, starts[rows], strict=True)],
            [row[: window.length] for window, row in zip(windows, ends[rows], strict=True)],
        )


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
