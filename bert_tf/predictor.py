"""Fine-tuned models, loaded once and called many times: a classifier, one that answers.

Letters in shape comments: N texts, L outputs.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from bert_tf import paths
from bert_tf.checkpoint import restore
from bert_tf.tokenization import packing
from bert_tf.tokenization.tokenizer import BertTokenizer

TASK_FILE = "task.json"
# The same of run_squad.py.
SQUAD_FILE = "squad.json"
TASK_KINDS = ("classification", "regression", "multilabel")


def _is_list_of_str(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


# What each key must hold: in words, and the test of it.
_TASK_KEYS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "task": ("a string", lambda value: isinstance(value, str)),
    "kind": (f"one of {', '.join(TASK_KINDS)}", lambda value: value in TASK_KINDS),
    "labels": ("a list of strings", _is_list_of_str),
    "max_seq_length": ("an integer of 3 or more", lambda value: type(value) is int and value >= 3),
    "truncation": (
        f"one of {', '.join(packing.TRUNCATIONS)}",
        lambda value: value in packing.TRUNCATIONS,
    ),
    "do_lower_case": ("true or false", lambda value: isinstance(value, bool)),
    "strip_accents": ("true or false", lambda value: isinstance(value, bool)),
    "never_split": ("a list of strings", _is_list_of_str),
}


def read_task_file(folder: str) -> dict[str, Any]:
    """Reads the task.json that run_classifier.py leaves in its output folder.

    Returns:
      the file's object: task, kind, labels, max_seq_length, truncation, do_lower_case,
      strip_accents, never_split, and whatever else it holds.

    Raises:
      FileNotFoundError: there is none.
      ValueError: it is no JSON object, or a key is missing or wrong; names the file and the key.
    """
    path = paths.join(folder, TASK_FILE)
    if not paths.exists(path):
        raise FileNotFoundError(
            f"{folder} has no {TASK_FILE}: give the --output_dir of a run_classifier.py that "
            "trained."
        )
    task = paths.read_json(path)
    for key, (wanted, fits) in _TASK_KEYS.items():
        if key not in task:
            raise ValueError(f"{path}: {key} is missing; it must be {wanted}.")
        if not fits(task[key]):
            raise ValueError(f"{path}: {key} is {_show(task[key])}; it must be {wanted}.")
    if task["kind"] != "regression" and not task["labels"]:
        raise ValueError(f"{path}: labels is []; a {task['kind']} task has at least one.")
    return task


def _show(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _open(model_dir: str) -> Any:
    """Opens the trained checkpoint of an output folder, with its configuration."""
    prefix = restore.trained_checkpoint(model_dir)
    if prefix is None:
        raise FileNotFoundError(f"{model_dir} has no checkpoint: train first.")
    return restore.load(
        prefix,
        config_file=paths.join(model_dir, restore.ORIGINAL_CONFIG_FILE),
        vocab_file=paths.join(model_dir, restore.VOCAB_FILE),
    )


def _tokenizer(checkpoint: Any, settings: Mapping[str, Any]) -> BertTokenizer:
    names = ("do_lower_case", "strip_accents", "never_split")
    return BertTokenizer(checkpoint.vocab_file, **{name: settings[name] for name in names})


def _set_weights(model: Any, checkpoint: Any) -> None:
    from bert_tf.modeling.models import named_variables

    variables = named_variables(model)
    report = restore.merge(
        {name: tuple(variable.shape) for name, variable in variables.items()}, checkpoint
    )
    for name, value in restore.values(checkpoint, report):
        variables[name].assign(value)


class Classifier:
    """Classifies texts and pairs with what run_classifier.py left in its output folder.

    Args:
      model_dir: the output folder; the best weights of its last run where that kept some, or
        its latest (see restore.trained_checkpoint).
      batch_size: texts of a batch, 1 or more.

    Raises:
      FileNotFoundError: if the folder is not one of run_classifier.py; says what is missing.
      ValueError: `batch_size` is below 1, or a file of the folder is wrong; names it.

    Example:
      >>> classifier = Classifier("mrpc_output")
      >>> classifier.predict([("He left.", "He went away.")])
      [{'label': '1', 'probabilities': {'0': 0.02, '1': 0.98}}]
    """

    def __init__(self, model_dir: str | os.PathLike[str], batch_size: int = 32):
        if batch_size < 1:
            raise ValueError(f"batch_size is {batch_size}; it must be 1 or more.")
        model_dir = os.fspath(model_dir)
        self.task = read_task_file(model_dir)
        checkpoint = _open(model_dir)

        from bert_tf.modeling.models import BertClassifier

        self.tokenizer = _tokenizer(checkpoint, self.task)
        outputs = 1 if self.task["kind"] == "regression" else len(self.task["labels"])
        self.model = BertClassifier(
            checkpoint.config, outputs, bilstm=self.task.get("bilstm_head", False)
        )
        _set_weights(self.model, checkpoint)
        self.batch_size = batch_size
        self._run: Any = None

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
        texts = _check_texts(texts)
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


def _check_texts(texts: Any) -> list[Any]:
    wanted = "a list of texts or of pairs of texts"
    if isinstance(texts, str | bytes):
        raise TypeError(f"Expected {wanted}, found {_show(texts)}. For one text, give [text].")
    texts = list(texts)
    for position, item in enumerate(texts):
        is_pair = isinstance(item, tuple | list) and len(item) == 2
        if not (isinstance(item, str) or (is_pair and all(isinstance(s, str) for s in item))):
            raise TypeError(
                f"Expected {wanted}; at position {position} is {_show(item)}, which is neither a "
                f"str nor a pair of str."
            )
    return texts


_SQUAD_KEYS = (
    "version_2_with_negative",
    "null_score_diff_threshold",
    "max_seq_length",
    "doc_stride",
    "max_query_length",
    "n_best_size",
    "max_answer_length",
    "character_level",
    "do_lower_case",
    "strip_accents",
    "never_split",
)


class QuestionAnswerer:
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
      [{'answer': 'Ann', 'nbest': [{'text': 'Ann', 'probability': 0.97, ...}, ...]}]
    """

    def __init__(
        self,
        model_dir: str | os.PathLike[str],
        batch_size: int = 16,
        n_best_size: int | None = None,
    ):
        from data_prep.squad import answers

        for name, value in (("batch_size", batch_size), ("n_best_size", n_best_size)):
            if value is not None and value < 1:
                raise ValueError(f"{name} is {value}; it must be 1 or more.")
        model_dir = os.fspath(model_dir)
        path = paths.join(model_dir, SQUAD_FILE)
        if not paths.exists(path):
            raise FileNotFoundError(
                f"{model_dir} has no {SQUAD_FILE}: give the --output_dir of a run_squad.py that "
                "trained."
            )
        self.settings = paths.read_json(path)
        missing = [key for key in _SQUAD_KEYS if key not in self.settings]
        if missing:
            raise ValueError(f"{path}: {', '.join(missing)} is missing; train anew.")
        checkpoint = _open(model_dir)

        from bert_tf.modeling.models import BertForSquad

        self.tokenizer = _tokenizer(checkpoint, self.settings)
        self.model = BertForSquad(checkpoint.config, bilstm=self.settings.get("bilstm_head", False))
        _set_weights(self.model, checkpoint)
        self.batch_size = batch_size
        # Fewer answers to look at would change the first one and all probabilities.
        looked_at = max(self.settings["n_best_size"], n_best_size or 1)
        self._shown = n_best_size
        self._decoder = answers.Decoder(
            self.tokenizer,
            looked_at,
            self.settings["max_answer_length"],
            self.settings["version_2_with_negative"],
            self.settings["null_score_diff_threshold"],
        )
        self._run: Any = None

    def answer(self, questions: Sequence[tuple[str, str]]) -> list[dict[str, Any]]:
        """Answers pairs of a question and a text, in their order.

        Returns a dict for each: answer, "" if the model was trained on SQuAD 2.0 and finds none;
        nbest, a list of text, probability, start_logit and end_logit, the best first; null_odds,
        the score of no answer against the best one (SQuAD 2.0 only).

        Raises:
          TypeError: something else than pairs of strings; names its position.
        """
        from data_prep.squad import answers, reading, windows

        for position, item in enumerate(questions):
            pair = isinstance(item, tuple | list) and len(item) == 2
            if not (pair and all(isinstance(part, str) for part in item)):
                raise TypeError(
                    f"Expected pairs of a question and a text; at position {position} is "
                    f"{_show(item)}."
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
        starts, ends = self._logits(flat)
        results = []
        for _, prediction in self._decoder(answers.by_example(pairs, starts, ends)):
            result: dict[str, Any] = {
                "answer": prediction.text,
                "nbest": [entry._asdict() for entry in prediction.nbest[: self._shown]],
            }
            if prediction.null_odds is not None:
                result["null_odds"] = prediction.null_odds
            results.append(result)
        return results

    def _logits(self, flat: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """Returns start and end logits of windows, float32 [T] or, with padding, more each."""
        import tensorflow as tf

        from data_prep.squad import windows

        names = ("input_ids", "input_mask", "segment_ids")
        if self._run is None:
            self._run = tf.function(
                lambda batch: [self.model(batch)[f"{end}_logits"] for end in ("start", "end")],
                input_signature=[{name: tf.TensorSpec([None, None], tf.int32) for name in names}],
            )
        starts: list[Any] = [None] * len(flat)
        ends: list[Any] = [None] * len(flat)
        order = sorted(range(len(flat)), key=lambda number: flat[number].length)
        for at in range(0, len(order), self.batch_size):
            rows = order[at : at + self.batch_size]
            batch = windows.batch([flat[row] for row in rows])
            found = self._run({name: batch[name] for name in names})
            for row, start, end in zip(rows, *(each.numpy() for each in found), strict=True):
                starts[row], ends[row] = start, end
        return starts, ends
