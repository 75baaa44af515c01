"""Answers to questions, from a text.

Letters in shape comments: T tokens of a window.
"""

import os
import re
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

from bert_tf import paths
from bert_tf.predictor import folder
from bert_tf.predictor.base import Forward, Predictor, text_of
from bert_tf.tokenization import BertTokenizer
from data_prep.squad import answers, reading, windows

_BLANKS = "[ \t\r\n\u202f]+"  # What separates words, see `reading`.

Span = tuple[int, int]


class QuestionAnswerer(Predictor):
    """Answers questions about texts with what run_squad.py left in its output folder.

    Args:
      model_dir: the output folder.
      batch_size: windows of a batch, 1 or more.
      n_best_size: answers to give of each question; by default as many as the run's flag says.

    Raises:
      FileNotFoundError: if the folder is not one of run_squad.py; says what is missing.
      ValueError: a number is below 1, or a file of the folder is wrong; names it.

    Example:
      >>> answerer = QuestionAnswerer("squad_output")
      >>> answerer.answer([("Who wrote it?", "Ann wrote it in May.")])
      [{'answer': 'Ann', 'start': 0, 'end': 3, 'nbest': [{'text': 'Ann', ...}, ...]}]
    """

    kind = "question_answering"
    needed = ("question", "context")
    fields = "question and context, both strings"

    def __init__(
        self,
        model_dir: str | os.PathLike[str],
        batch_size: int = 16,
        n_best_size: int | None = None,
    ):
        folder.check_at_least_one(batch_size=batch_size, n_best_size=n_best_size)
        model_dir = os.fspath(model_dir)
        self.settings = settings = folder.read_squad_file(model_dir)
        squad_file = paths.join(model_dir, folder.SQUAD_FILE)
        lengths = [settings[f"{name}_length"] for name in ("max_seq", "max_query")]
        try:
            windows.check_lengths(lengths[0], settings["doc_stride"], lengths[1])
        except ValueError as error:
            raise ValueError(f"{squad_file}: {error}") from None
        checkpoint, config, self.tokenizer = folder.open_run(model_dir, settings, folder.SQUAD_FILE)

        import tensorflow as tf

        from bert_tf.modeling.models import BertForSquad

        self.model = BertForSquad(config, bilstm=settings.get("bilstm_head", False))
        folder.set_weights(self.model, checkpoint)
        self.batch_size = batch_size
        # Fewer answers to look at would change the first one and all probabilities.
        looked_at = max(settings["n_best_size"], n_best_size or 1)
        self._shown = n_best_size
        self._decoder = answers.Decoder(
            self.tokenizer,
            looked_at,
            settings["max_answer_length"],
            settings["version_2_with_negative"],
            settings["null_score_diff_threshold"],
        )
        # The decoder keeps contexts from call to call.
        self._decoding = threading.Lock()

        def both(batch: dict[str, Any]) -> Any:
            outputs = self.model(batch)
            return tf.stack([outputs["start_logits"], outputs["end_logits"]], axis=1)  # [B, 2, T]

        self._forward = Forward(both, batch_size)

    def answer(self, questions: Sequence[tuple[str, str]]) -> list[dict[str, Any]]:
        """Answers pairs of a question and a text, in their order.

        Returns a dict for each:
          answer: "" if the model was trained on SQuAD 2.0 and finds none.
          start, end: where it is in the text, in characters, `end` behind its last; None where
            there is no answer. `text[start:end]` is the answer, but for blanks between words,
            each of which the answer has as one space.
          nbest: a list of text, start, end, probability, start_logit and end_logit, best first.
          null_odds: the score of no answer against the best one (SQuAD 2.0 only).

        Raises:
          TypeError: something else than pairs of strings; names its position.
        """
        for position, item in enumerate(questions):
            pair = isinstance(item, tuple | list) and len(item) == 2
            if not (pair and all(isinstance(part, str) for part in item)):
                raise TypeError(
                    f"Expected pairs of a question and a text; at position {position} is "
                    f"{folder.show(item)}."
                )
        settings = self.settings
        make = windows.WindowMaker(
            self.tokenizer,
            settings["max_seq_length"],
            settings["doc_stride"],
            settings["max_query_length"],
        )
        contexts: dict[str, reading.Context] = {}
        examples = []
        for number, (question, text) in enumerate(questions):
            if text not in contexts:
                contexts[text] = reading.Context(text, settings["character_level"])
            examples.append(reading.Example(str(number), question, contexts[text]))
        pairs = list(windows.windows_by_example(examples, make))
        flat = [window for _, its in pairs for window in its]
        logits = self._forward([(window.input_ids, window.segment_ids) for window in flat])
        scored = list(
            answers.by_example(pairs, [each[0] for each in logits], [each[1] for each in logits])
        )
        with self._decoding:
            predictions = [prediction for _, prediction in self._decoder(scored)]
        places: dict[int, _Places] = {}
        results = []
        for one, prediction in zip(scored, predictions, strict=True):
            context = one[0].context
            if id(context) not in places:
                places[id(context)] = _Places(context, self.tokenizer)
            results.append(self._describe(one, prediction, places[id(context)]))
        return results

    def _describe(
        self, scored: answers.Scored, prediction: answers.Prediction, places: "_Places"
    ) -> dict[str, Any]:
        nbest: list[dict[str, Any]] = []
        spans: dict[str, Span | None] = {}
        for entry in prediction.nbest:
            shown = self._shown is None or len(nbest) < self._shown
            if not shown and prediction.text in spans:
                break
            span = self._span(scored, entry, places)
            spans[entry.text] = span
            if shown:
                start, end = span or (None, None)
                nbest.append(
                    {
                        "text": entry.text,
                        "start": start,
                        "end": end,
                        "probability": entry.probability,
                        "start_logit": entry.start_logit,
                        "end_logit": entry.end_logit,
                    }
                )
        start, end = spans.get(prediction.text) or (None, None)
        result: dict[str, Any] = {
            "answer": prediction.text,
            "start": start,
            "end": end,
            "nbest": nbest,
        }
        if prediction.null_odds is not None:
            result["null_odds"] = prediction.null_odds
        return result

    def _span(
        self, scored: answers.Scored, entry: answers.NBestAnswer, places: "_Places"
    ) -> Span | None:
        """Finds the span that an answer was made of by its logits; None for no answer."""
        if not entry.text:
            return None
        _, its, all_starts, all_ends = scored
        near = None
        for window, starts, ends in zip(its, all_starts, all_ends, strict=True):
            shown = slice(window.doc_offset, window.doc_offset + window.doc_length)
            begins = starts[shown] == entry.start_logit
            if window.max_context is not None:
                begins = begins & window.max_context
            stops = np.flatnonzero(ends[shown] == entry.end_logit)
            for first in np.flatnonzero(begins).tolist():
                least, most = np.searchsorted(
                    stops, (first, first + self.settings["max_answer_length"])
                )
                for last in stops[least:most].tolist():
                    span, is_exact = places.find(
                        window.doc, first + window.doc_start, last + window.doc_start, entry.text
                    )
                    if is_exact:
                        return span
                    near = near or span
        return near

    def _item(self, instance: Any) -> Any:
        found = self._object(instance)
        return text_of(found, "question"), text_of(found, "context")

    def _predict(self, items: list[Any]) -> list[dict[str, Any]]:
        return self.answer(items)


class _Places:
    """Where tokens of a context are in its text."""

    def __init__(self, context: reading.Context, tokenizer: BertTokenizer):
        self._context = context
        self._tokenizer = tokenizer
        self._words: list[tuple[str, int]] = []  # and where each begins
        self._pieces: dict[int, list[Span]] = {}

    def find(
        self, doc: windows.ContextTokens, first: int, last: int, text: str
    ) -> tuple[Span | None, bool]:
        """Returns where in the context an answer is that was made of some of its tokens.

        Args:
          doc: the context's tokens.
          first, last: the tokens.
          text: the answer.

        Returns:
          begin and end, and whether that is what the tokens were made of. Where they say other
          than the answer, which is then more of the words that they are of, or another part, it
          is where the answer first occurs in these words; None if it does not.
        """
        context = self._context
        if context.character_level:
            begin, end = int(doc.first_words[first]), int(doc.last_words[last]) + 1
            return ((begin, end), True) if context.text[begin:end] == text else (None, False)
        if not self._words:
            at = 0
            for word in context.words:
                at = context.text.index(word, at)
                self._words.append((word, at))
                at += len(word)
        begin, _ = self._piece(doc, first)
        _, end = self._piece(doc, last)
        if " ".join(reading.Context(context.text[begin:end]).words) == text:
            return (begin, end), True
        word, at = self._words[doc.first_words[last]]
        pattern = re.compile(_BLANKS.join(map(re.escape, text.split(" "))))
        found = pattern.search(context.text, self._words[doc.first_words[first]][1], at + len(word))
        return (found.span() if found else None), False

    def _piece(self, doc: windows.ContextTokens, token: int) -> Span:
        assert doc.word_starts is not None
        number = int(doc.first_words[token])
        word, at = self._words[number]
        if number not in self._pieces:
            self._pieces[number] = self._tokenizer.encode_with_offsets(word)[1]
        begin, end = self._pieces[number][token - int(doc.word_starts[number])]
        return at + begin, at + end
