"""Examples to windows: `[CLS] question [SEP] part of the context [SEP]`.

A context that is too long is read through several windows that overlap. A `Window` does not hold
its tokens: it points into the context's, which are made once for all its questions, so that all
windows of 100,000 questions fit into memory beside their examples.

Letters: T tokens of a window, D tokens of a context, B windows of a batch, L padded length.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from bert_tf.tokenization import BertTokenizer
from data_prep.squad.reading import Context, Example, Report

FIRST_UNIQUE_ID = 1000000000
_MAX_CACHED_WORDS = 1 << 17


class ContextTokens:
    """The tokens of a context.

    Attributes:
      ids: int32 [D].
      first_words, last_words: int32 [D], the words that a token comes from. They differ only at
        character level, where a word is a character.
      word_starts: int32 [words + 1], at word level the first token of each word, D at the end.
    """

    __slots__ = ("first_words", "ids", "last_words", "spans", "word_starts")

    def __init__(
        self,
        ids: np.ndarray,
        first_words: np.ndarray,
        last_words: np.ndarray,
        word_starts: np.ndarray | None,
    ):
        self.ids = ids
        self.first_words = first_words
        self.last_words = last_words
        self.word_starts = word_starts
        # Room for context tokens -> (start, length, max context) of each window.
        self.spans: dict[int, list[tuple[int, int, np.ndarray | None]]] = {}


class Window:
    """One part of a context with the question: what a model reads at a time.

    Attributes:
      unique_id: from 1000000000 on, in order.
      example_index: the example's place among those that were given.
      doc_span_index: the window's place among the example's.
      qas_id: the question's id.
      question_ids: int32, the question's tokens.
      doc: the context's tokens.
      doc_start, doc_length: which of them the window shows.
      doc_offset: where these begin in the window: question tokens + 2.
      length: T.
      max_context: bool [doc_length], which of them have no more context in another window; None
        if it is all of them.
      start_position, end_position: the answer in the window, 0 if it is not in it; None in
        prediction.
      is_impossible: as the example's.
    """

    __slots__ = (
        "_special",
        "doc",
        "doc_length",
        "doc_span_index",
        "doc_start",
        "end_position",
        "example_index",
        "is_impossible",
        "max_context",
        "qas_id",
        "question_ids",
        "start_position",
        "unique_id",
    )

    unique_id: int
    example_index: int
    doc_span_index: int
    qas_id: str
    question_ids: np.ndarray
    doc: ContextTokens
    doc_start: int
    doc_length: int
    max_context: np.ndarray | None
    start_position: int | None
    end_position: int | None
    is_impossible: bool
    _special: tuple[int, int]  # the ids of [CLS] and [SEP]

    @property
    def doc_offset(self) -> int:
        return len(self.question_ids) + 2

    @property
    def length(self) -> int:
        return len(self.question_ids) + self.doc_length + 3

    @property
    def input_ids(self) -> np.ndarray:
        """The ids, int32 [T], not padded; made anew at each call."""
        ids = np.empty(self.length, np.int32)
        self.write_ids(ids)
        return ids

    def write_ids(self, row: np.ndarray) -> None:
        """Writes the ids into the head of `row`, which has room for T."""
        offset = len(self.question_ids) + 2
        end = offset + self.doc_length
        row[0], separator = self._special
        row[1 : offset - 1] = self.question_ids
        row[offset - 1] = separator
        row[offset:end] = self.doc.ids[self.doc_start : self.doc_start + self.doc_length]
        row[end] = separator

    @property
    def segment_ids(self) -> np.ndarray:
        """int32 [T]: 0 up to the first [SEP], 1 after it."""
        segments = np.zeros(self.length, np.int32)
        segments[len(self.question_ids) + 2 :] = 1
        return segments


class WindowMaker:
    """Cuts examples into windows.

    Args:
      tokenizer: the model's.
      max_seq_length: the most tokens of a window.
      doc_stride: how far the next window begins after the last one, in tokens of the context (or
        the last one's length, if that is less).
      max_query_length: longer questions are cut.
      is_training: whether to find the answers' tokens.
      report: counts into this one.

    Raises:
      ValueError: the lengths do not go together.

    Example:
      >>> make = WindowMaker(tokenizer, 384, 128, 64, is_training=False)
      >>> example = Example("q1", "Who wrote it?", Context("Ann wrote it."))
      >>> [window] = make(example)
      >>> tokenizer.convert_ids_to_tokens(window.input_ids.tolist())
      ['[CLS]', 'who', 'wrote', 'it', '?', '[SEP]', 'ann', 'wrote', 'it', '.', '[SEP]']
    """

    def __init__(
        self,
        tokenizer: BertTokenizer,
        max_seq_length: int = 384,
        doc_stride: int = 128,
        max_query_length: int = 64,
        is_training: bool = False,
        report: Report | None = None,
    ):
        check_lengths(max_seq_length, doc_stride, max_query_length)
        self.tokenizer = tokenizer
        self.max_seq_length = max_seq_length
        self.doc_stride = doc_stride
        self.max_query_length = max_query_length
        self.is_training = is_training
        self.report = Report() if report is None else report
        self._special = tokenizer.cls_id, tokenizer.sep_id
        self._next_example = 0
        self._next_id = FIRST_UNIQUE_ID
        self._words: dict[str, list[int]] = {}

    def __call__(self, example: Example) -> list[Window]:
        """Returns the windows of the next example, none if its context has no tokens.

        Raises:
          ValueError: in training, the example has no answer positions.
        """
        doc = self._tokens(example.context)
        encoded = self.tokenizer.encode(example.question_text)
        question = np.array(encoded[: self.max_query_length], np.int32)
        room = self.max_seq_length - len(question) - 3
        spans = doc.spans.get(room)
        if spans is None:
            spans = doc.spans[room] = _spans(len(doc.ids), room, self.doc_stride)
        is_impossible = example.is_impossible
        answer = None
        if self.is_training and not is_impossible:
            if example.start_position is None or example.end_position is None:
                raise ValueError(
                    f"question {example.qas_id!r}: training needs answers; read the file with "
                    "is_training."
                )
            answer = self._answer_tokens(example, doc)
        windows = []
        for index, (start, length, max_context) in enumerate(spans):
            window = Window()
            window.unique_id = self._next_id + index
            window.example_index = self._next_example
            window.doc_span_index = index
            window.qas_id = example.qas_id
            window.question_ids = question
            window.doc = doc
            window.doc_start = start
            window.doc_length = length
            window.max_context = max_context
            window.is_impossible = is_impossible
            window._special = self._special
            first = last = 0 if self.is_training else None
            if answer and answer[0] >= start and answer[1] < start + length:
                shift = len(question) + 2 - start
                first, last = answer[0] + shift, answer[1] + shift
            window.start_position, window.end_position = first, last
            windows.append(window)
        self._next_id += len(windows)
        self._next_example += 1
        report = self.report
        report.windows += len(windows)
        report.windows_per_question[len(windows)] += 1
        if len(encoded) > self.max_query_length:
            report.truncated_questions.append(example.qas_id)
        report.gaps += len(windows) > 1 and self.doc_stride >= room
        return windows

    def _tokens(self, context: Context) -> ContextTokens:
        # Kept at the context, so that they go when it goes, in whatever order examples come.
        if context.tokens is None or context.tokens[0] is not self:
            make = self._by_characters if context.character_level else self._by_words
            context.tokens = self, make(context)
        return context.tokens[1]

    def _by_words(self, context: Context) -> ContextTokens:
        known = self._words
        ids: list[int] = []
        starts = [0]
        for word in context.words:
            pieces = known.get(word)
            if pieces is None:
                pieces = self.tokenizer.encode(word)
                if len(known) >= _MAX_CACHED_WORDS:
                    known.clear()
                known[word] = pieces
            ids += pieces
            starts.append(len(ids))
        word_starts = np.array(starts, np.int32)
        words = np.repeat(np.arange(len(starts) - 1, dtype=np.int32), np.diff(word_starts))
        return ContextTokens(np.array(ids, np.int32), words, words, word_starts)

    def _by_characters(self, context: Context) -> ContextTokens:
        ids, spans = self.tokenizer.encode_with_offsets(context.text)
        bounds = np.array(spans, np.int32).reshape(-1, 2)
        return ContextTokens(np.array(ids, np.int32), bounds[:, 0].copy(), bounds[:, 1] - 1, None)

    def _answer_tokens(self, example: Example, doc: ContextTokens) -> tuple[int, int]:
        """Returns the first and last token of the answer, in the context."""
        start, end = example.start_position, example.end_position
        assert start is not None
        assert end is not None
        if doc.word_starts is None:
            # All tokens that have a character of the answer in them.
            first = int(np.searchsorted(doc.last_words, start))
            last = int(np.searchsorted(doc.first_words, end, side="right")) - 1
            # None has, if the tokenizer drops them: then no window shows the answer.
            return (first, last) if first <= last else (-1, -1)
        first, last = int(doc.word_starts[start]), int(doc.word_starts[end + 1]) - 1
        # The words may say more than the answer ("1895" of "(1895-1943)."): take the part with
        # the answer's own tokens, if there is one.
        wanted = self.tokenizer.encode(example.orig_answer_text or "")
        size = len(wanted)
        if size and last - first + 1 > size:
            shown = doc.ids[first : last + 1].tolist()
            for at in range(len(shown) - size + 1):
                if shown[at : at + size] == wanted:
                    return first + at, first + at + size - 1
        return first, last


def check_lengths(max_seq_length: int, doc_stride: int, max_query_length: int) -> None:
    """Raises a ValueError if no windows can be made with these lengths."""
    if max_query_length < 1:
        raise ValueError(f"max_query_length={max_query_length}: it must be at least 1.")
    if max_seq_length <= max_query_length + 3:
        raise ValueError(
            f"max_seq_length={max_seq_length} leaves no room for the context beside a question of "
            f"max_query_length={max_query_length} tokens, [CLS] and two [SEP]: it must be greater "
            f"than {max_query_length + 3}, or max_query_length less than {max_seq_length - 3}."
        )
    if doc_stride < 1:
        raise ValueError(f"doc_stride={doc_stride}: it must be at least 1.")


def _spans(size: int, room: int, stride: int) -> list[tuple[int, int, np.ndarray | None]]:
    """Returns (start, length, max context) of each window over `size` tokens."""
    if size <= room:
        return [(0, size, None)] if size else []
    starts = list(range(0, size - room, min(room, stride)))
    starts.append(starts[-1] + min(room, stride))
    lengths = [min(room, size - start) for start in starts]
    # A token belongs to the window where the shorter of its two sides is longest; the window's
    # length decides between equals, then the first window.
    scores = np.full((len(starts), size), -1.0)
    for row, start, length in zip(scores, starts, lengths):
        left = np.arange(length)
        row[start : start + length] = np.minimum(left, left[::-1]) + 0.01 * length
    best = scores.argmax(axis=0)
    return [
        (start, length, best[start : start + length] == number)
        for number, (start, length) in enumerate(zip(starts, lengths))
    ]


def windows_by_example(
    examples: Iterable[Example], make: WindowMaker
) -> Iterator[tuple[Example, list[Window]]]:
    """Yields each example with its windows, as `answers.Decoder` takes them; streams."""
    for example in examples:
        yield example, make(example)


def make_windows(
    examples: Iterable[Example],
    tokenizer: BertTokenizer,
    max_seq_length: int = 384,
    doc_stride: int = 128,
    max_query_length: int = 64,
    is_training: bool = False,
    report: Report | None = None,
) -> Iterator[Window]:
    """Yields the windows of all examples, one after the other; arguments as `WindowMaker`'s."""
    make = WindowMaker(tokenizer, max_seq_length, doc_stride, max_query_length, is_training, report)
    for example in examples:
        yield from make(example)


def batch(windows: Sequence[Window], length: int | None = None) -> dict[str, np.ndarray]:
    """Makes the arrays that a model takes.

    Args:
      windows: B of them, at least one.
      length: L; by default the longest window's.

    Returns:
      unique_ids int32 [B]; input_ids, input_mask, segment_ids int32 [B, L], padded with 0; in
      training also start_positions and end_positions, int32 [B].

    Raises:
      ValueError: a window is longer than `length`.
    """
    longest = max(window.length for window in windows)
    length = longest if length is None else length
    if longest > length:
        raise ValueError(f"a window of {longest} tokens does not fit into {length}.")
    input_ids = np.zeros((len(windows), length), np.int32)
    for row, window in zip(input_ids, windows):
        window.write_ids(row)
    lengths = np.array([window.length for window in windows])[:, None]
    offsets = np.array([window.doc_offset for window in windows])[:, None]
    at = np.arange(length)
    result = {
        "unique_ids": np.array([window.unique_id for window in windows], np.int32),
        "input_ids": input_ids,
        "input_mask": (at < lengths).astype(np.int32),
        "segment_ids": ((at >= offsets) & (at < lengths)).astype(np.int32),
    }
    if windows[0].start_position is not None:
        result["start_positions"] = np.array([w.start_position for w in windows], np.int32)
        result["end_positions"] = np.array([w.end_position for w in windows], np.int32)
    return result


def original_fields(
    window: Window, tokenizer: BertTokenizer, max_seq_length: int
) -> dict[str, Any]:
    """Returns a window as the original's InputFeatures has it, padded lists and dicts."""
    arrays = {name: rows[0].tolist() for name, rows in batch([window], max_seq_length).items()}
    shown = slice(window.doc_start, window.doc_start + window.doc_length)
    places = range(window.doc_offset, window.doc_offset + window.doc_length)
    kept = [True] * window.doc_length
    if window.max_context is not None:
        kept = window.max_context.tolist()
    return {
        "unique_id": window.unique_id,
        "example_index": window.example_index,
        "doc_span_index": window.doc_span_index,
        "tokens": tokenizer.convert_ids_to_tokens(window.input_ids.tolist()),
        "token_to_orig_map": dict(zip(places, window.doc.first_words[shown].tolist())),
        "token_is_max_context": dict(zip(places, kept)),
        "input_ids": arrays["input_ids"],
        "input_mask": arrays["input_mask"],
        "segment_ids": arrays["segment_ids"],
        "start_position": window.start_position,
        "end_position": window.end_position,
        "is_impossible": window.is_impossible,
    }
