"""Classification, regression and multi-label classification of texts and pairs.

Letters in shape comments: N texts, L outputs.
"""

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from bert_tf.predictor import folder
from bert_tf.predictor.base import Forward, Predictor, Row, softmax, text_of
from bert_tf.tokenization import packing

_KINDS = ("classification", "regression", "multilabel")


class Classifier(Predictor):
    """Classifies texts and pairs with what run_classifier.py left in its output folder.

    Args:
      model_dir: the output folder; the best weights of its last run where that kept some, or
        its latest (see restore.trained_checkpoint).
      batch_size: texts of a batch, 1 or more.

    Raises:
      FileNotFoundError: if the folder is not one of run_classifier.py; says what is missing.
      ValueError: `batch_size` is below 1, or a file of the folder is wrong or for another class;
        names it.

    Example:
      >>> classifier = Classifier("mrpc_output")
      >>> classifier.predict([("He left.", "He went away.")])
      [{'label': '1', 'probabilities': {'0': 0.02, '1': 0.98}}]
    """

    needed = ("text",)
    optional = ("text_pair",)
    fields = "text and, for a pair, text_pair, both strings"

    def __init__(self, model_dir: str | os.PathLike[str], batch_size: int = 32):
        folder.check_at_least_one(batch_size=batch_size)
        model_dir = os.fspath(model_dir)
        self.task = folder.read_task_file(model_dir, _KINDS, type(self).__name__)
        self.kind = self.task["kind"]
        checkpoint, config, self.tokenizer = folder.open_run(model_dir, self.task, folder.TASK_FILE)

        from bert_tf.modeling.models import BertClassifier

        outputs = 1 if self.kind == "regression" else len(self.task["labels"])
        self.model = BertClassifier(config, outputs, bilstm=self.task.get("bilstm_head", False))
        folder.set_weights(self.model, checkpoint)
        self.batch_size = batch_size
        self._forward = Forward(lambda batch: self.model(batch)["logits"], batch_size)

    def predict(self, texts: Sequence[str | tuple[str, str]]) -> list[dict[str, Any]]:
        """Classifies texts, or pairs of texts, in their order.

        Returns a dict for each: label and probabilities by label (classification), labels and
        probabilities (multi-label: those over one half), or value (regression).

        Raises:
          TypeError: `texts` is a bare string, or holds something else than strings and pairs of
            strings; names its position.
        """
        return [self._describe(row) for row in self.logits(texts)]

    def logits(self, texts: Sequence[str | tuple[str, str]]) -> np.ndarray:
        """Returns the model's outputs, float32 [N, L]. Errors as in `predict`."""
        rows = [self._pack(text) for text in _check_texts(texts)]
        if not rows:
            return np.zeros((0, int(self.model.num_labels)), np.float32)
        return np.stack(self._forward(rows))

    def _item(self, instance: Any) -> Any:
        found = self._object(instance)
        text = text_of(found, "text")
        return (text, text_of(found, "text_pair")) if "text_pair" in found else text

    def _predict(self, items: list[Any]) -> list[dict[str, Any]]:
        return self.predict(items)

    def _pack(self, text: str | tuple[str, str]) -> Row:
        first, second = (text, None) if isinstance(text, str) else text
        a = self.tokenizer.encode(first)
        b = (self.tokenizer.encode(second) or None) if second else None
        room = self.task["max_seq_length"] - (2 if b is None else 3)
        a, b, _ = packing.truncate_pair(a, b, room, self.task["truncation"])
        return packing.pack(a, b, self.tokenizer.cls_id, self.tokenizer.sep_id)

    def _describe(self, row: np.ndarray) -> dict[str, Any]:
        labels = self.task["labels"]
        if self.kind == "regression":
            return {"value": float(row[0])}
        if self.kind == "multilabel":
            with np.errstate(over="ignore"):
                values = 1.0 / (1.0 + np.exp(-row.astype(np.float64)))
            chosen = [name for name, logit in zip(labels, row, strict=True) if logit > 0]
            return {"labels": chosen, "probabilities": dict(zip(labels, values.tolist()))}
        return {
            "label": labels[int(np.argmax(row))],
            "probabilities": dict(zip(labels, softmax(row).tolist(), strict=True)),
        }


def _check_texts(texts: Any) -> list[Any]:
    wanted = "a list of texts or of pairs of texts"
    if isinstance(texts, str | bytes):
        raise TypeError(
            f"Expected {wanted}, found {folder.show(texts)}. For one text, give [text]."
        )
    texts = list(texts)
    for position, item in enumerate(texts):
        is_pair = isinstance(item, tuple | list) and len(item) == 2
        if not (isinstance(item, str) or (is_pair and all(isinstance(s, str) for s in item))):
            raise TypeError(
                f"Expected {wanted}; at position {position} is {folder.show(item)}, which is "
                "neither a str nor a pair of str."
            )
    return texts
