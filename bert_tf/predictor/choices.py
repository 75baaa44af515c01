"""Multiple choice: the best of several texts, each read with the same context.

Letters in shape comments: C choices, T tokens.
"""

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from bert_tf.predictor import folder
from bert_tf.predictor.base import Forward, Predictor, softmax, text_of, texts_of
from data_prep.tasks import swag


class MultipleChooser(Predictor):
    """Chooses with what run_classifier.py left after --task_name=SWAG or RACE.

    Args and Raises: as `Classifier`; a choice is a text of a batch.

    Example:
      >>> chooser = MultipleChooser("swag_output")
      >>> chooser.choose([("She opens the door.", ["She goes in.", "She eats it."])])
      [{'choice': 0, 'probabilities': [0.93, 0.07]}]
    """

    kind = "choice"
    needed = ("context", "choices")
    optional = ("question",)
    fields = "context (a string), choices (a list of strings) and, if there is one, question"

    def __init__(self, model_dir: str | os.PathLike[str], batch_size: int = 32):
        folder.check_at_least_one(batch_size=batch_size)
        model_dir = os.fspath(model_dir)
        self.task = folder.read_task_file(model_dir, (self.kind,), type(self).__name__)
        checkpoint, config, self.tokenizer = folder.open_run(model_dir, self.task, folder.TASK_FILE)

        from bert_tf.modeling.models import BertForMultipleChoice

        self.model = BertForMultipleChoice(config)
        folder.set_weights(self.model, checkpoint)
        self.batch_size = batch_size

        def scores(batch: dict[str, Any]) -> Any:
            # Each choice as an example of one: no padding between examples of several.
            alone = {name: value[:, None] for name, value in batch.items()}  # [B, 1, T]
            return self.model(alone)["logits"][:, 0]  # [B]

        self._forward = Forward(scores, batch_size)

    def choose(self, questions: Sequence[tuple[str, Sequence[str]]]) -> list[dict[str, Any]]:
        """Chooses, for pairs of a context and its choices, in their order.

        A choice is the whole second text: a question, or how each goes on, stands before it.

        Returns a dict for each: choice, its number from 0, and probabilities, one for each choice.

        Raises:
          ValueError: there are fewer than two choices.
        """
        results = []
        for row in self.logits(questions):
            results.append({"choice": int(np.argmax(row)), "probabilities": softmax(row).tolist()})
        return results

    def logits(self, questions: Sequence[tuple[str, Sequence[str]]]) -> list[np.ndarray]:
        """Returns the scores of each one's choices, float32 [C]. Errors as in `choose`."""
        if not questions:
            return []
        features = swag.featurize(
            [
                swag.MultipleChoiceExample(f"question {number}", context, tuple(choices))
                for number, (context, choices) in enumerate(questions)
            ],
            self.tokenizer,
            self.task["max_seq_length"],
            self.task["truncation"],
        )
        rows = []
        for start, end, first in zip(
            features.offsets[:-1], features.offsets[1:], features.first_lengths, strict=True
        ):
            ids = features.input_ids[start:end]
            rows.append((ids, (np.arange(len(ids)) >= first).astype(np.int32)))
        scores = np.array(self._forward(rows), np.float32)
        return np.split(scores, features.choice_offsets[1:-1])

    def _item(self, instance: Any) -> Any:
        found = self._object(instance)
        context = text_of(found, "context").strip()
        choices = [text.strip() for text in texts_of(found, "choices", 2, "text")]
        question = text_of(found, "question").strip() if "question" in found else ""
        if self.task["task"] == "RACE":
            return context, [swag.filled(question, text) for text in choices]
        return context, [f"{question} {text}" if question else text for text in choices]

    def _predict(self, items: list[Any]) -> list[dict[str, Any]]:
        return self.choose(items)
