"""A fine-tuned classifier, loaded once and called many times.

Letters in shape comments: N texts, L outputs.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from bert_tf import paths
from bert_tf.checkpoint import original, restore
from bert_tf.tokenization import packing
from bert_tf.tokenization.tokenizer import BertTokenizer

TASK_FILE = "task.json"


class Classifier:
    """Classifies texts and pairs with what run_classifier.py left in its output folder.

    Args:
      model_dir: the output folder; its best weights where it has some, or its latest.
      batch_size: texts of a batch.

    Raises:
      FileNotFoundError: if the folder is not one of run_classifier.py; says what is missing.

    Example:
      >>> classifier = Classifier("mrpc_output")
      >>> classifier.predict([("He left.", "He went away.")])
      [{'label': '1', 'probabilities': {'0': 0.02, '1': 0.98}}]
    """

    def __init__(self, model_dir: str, batch_size: int = 32):
        from bert_tf.modeling.models import BertClassifier, named_variables

        task_file = paths.join(model_dir, TASK_FILE)
        if not paths.exists(task_file):
            raise FileNotFoundError(
                f"{model_dir} has no {TASK_FILE}: give the --output_dir of a run_classifier.py "
                "that trained"
            )
        self.task = paths.read_json(task_file)
        best = paths.join(model_dir, "best")
        prefix = original.latest_checkpoint(best) or original.latest_checkpoint(model_dir)
        if prefix is None:
            raise FileNotFoundError(f"{model_dir} has no checkpoint: train first")
        checkpoint = restore.load(
            prefix,
            config_file=paths.join(model_dir, restore.ORIGINAL_CONFIG_FILE),
            vocab_file=paths.join(model_dir, restore.VOCAB_FILE),
        )
        assert checkpoint.config is not None
        assert checkpoint.vocab_file is not None
        self.tokenizer = BertTokenizer(
            checkpoint.vocab_file,
            do_lower_case=self.task["do_lower_case"],
            strip_accents=self.task["strip_accents"],
            never_split=self.task["never_split"],
        )
        outputs = 1 if self.task["kind"] == "regression" else len(self.task["labels"])
        self.model = BertClassifier(checkpoint.config, outputs)
        variables = named_variables(self.model)
        report = restore.merge(
            {name: tuple(variable.shape) for name, variable in variables.items()}, checkpoint
        )
        for name, value in restore.values(checkpoint, report):
            variables[name].assign(value)
        self.batch_size = batch_size
        self._run: Any = None

    def predict(self, texts: Sequence[str | tuple[str, str]]) -> list[dict[str, Any]]:
        """Classifies texts, or pairs of texts, in their order.

        Returns a dict for each: label and probabilities by label (classification), labels and
        probabilities (multi-label: those over one half), or value (regression).
        """
        return [self._describe(row) for row in self.logits(texts)]

    def logits(self, texts: Sequence[str | tuple[str, str]]) -> np.ndarray:
        """Returns the model's outputs, float32 [N, L]."""
        packed = [self._pack(text) for text in texts]
        order = sorted(range(len(packed)), key=lambda i: len(packed[i][0]))
        outputs = int(self.model.num_labels)
        result = np.zeros((len(packed), outputs), np.float32)
        for start in range(0, len(order), self.batch_size):
            rows = order[start : start + self.batch_size]
            longest = max(len(packed[i][0]) for i in rows)
            features = {
                name: np.zeros((len(rows), longest), np.int32)
                for name in ("input_ids", "input_mask", "segment_ids")
            }
            for row, i in enumerate(rows):
                ids, segments = packed[i]
                features["input_ids"][row, : len(ids)] = ids
                features["input_mask"][row, : len(ids)] = 1
                features["segment_ids"][row, : len(ids)] = segments
            result[rows] = self._forward(features)
        return result

    def _pack(self, text: str | tuple[str, str]) -> tuple[Any, Any]:
        first, second = (text, None) if isinstance(text, str) else text
        a = self.tokenizer.encode(first)
        b = (self.tokenizer.encode(second) or None) if second else None
        room = self.task["max_seq_length"] - (2 if b is None else 3)
        a, b, _ = packing.truncate_pair(a, b, room, self.task["truncation"])
        return packing.pack(a, b, self.tokenizer.cls_id, self.tokenizer.sep_id)

    def _forward(self, features: dict[str, np.ndarray]) -> np.ndarray:
        import tensorflow as tf

        if self._run is None:
            self._run = tf.function(
                lambda batch: self.model(batch)["logits"],
                input_signature=[
                    {name: tf.TensorSpec([None, None], tf.int32) for name in features}
                ],
            )
        return self._run(features).numpy()

    def _describe(self, row: np.ndarray) -> dict[str, Any]:
        kind, labels = self.task["kind"], self.task["labels"]
        if kind == "regression":
            return {"value": float(row[0])}
        if kind == "multilabel":
            values = 1.0 / (1.0 + np.exp(-row.astype(np.float64)))
            chosen = [name for name, value in zip(labels, values, strict=True) if value > 0.5]
            return {"labels": chosen, "probabilities": dict(zip(labels, values.tolist()))}
        shifted = np.exp((row - row.max()).astype(np.float64))
        values = shifted / shifted.sum()
        return {
            "label": labels[int(np.argmax(row))],
            "probabilities": dict(zip(labels, values.tolist(), strict=True)),
        }
