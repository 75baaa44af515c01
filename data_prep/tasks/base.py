"""What a task is: its files, its labels, how its rows become examples, how it is scored."""

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from bert_tf import paths
from data_prep.tasks import metrics as metric_functions
from data_prep.tasks import rows

Kind = Literal["classification", "regression", "multilabel", "tagging", "choice"]
Label = str | float | tuple[str, ...] | None

_LARGEST = float(np.finfo(np.float32).max)


@dataclasses.dataclass(slots=True)
class Example:
    """One row of a data set.

    Attributes:
      guid: its id, the original's where it has one ("train-1").
      text_a: the text, or the first of two.
      text_b: the second text, or None.
      label: a label's name (classification), a number (regression), a tuple of names
        (multi-label), or None where it is not known.
    """

    guid: str
    text_a: str
    text_b: str | None = None
    label: Label = None


class MainMetric(NamedTuple):
    """The metric by which the best checkpoint is kept."""

    name: str
    higher_is_better: bool = True


class Submission(NamedTuple):
    """Predictions as a table of text, to be written tab-separated under its header."""

    file_name: str
    header: tuple[str, ...]
    rows: list[tuple[str, ...]]


class Task:
    """One task. Subclasses say how the rows of a file become examples.

    Attributes:
      name: as users write it.
      kind: "classification", "regression" or "multilabel"; "tagging" (a label for each word) and
        "choice" (the best of several texts) have examples of their own.
      labels: label names in the order of the model's outputs; () for regression.
      train_file: file name of the training set, whose set name is "train"; "" if there is none.
      eval_sets: set name -> file name; the first decides which checkpoint is the best.
      predict_sets: set name -> file name.
      optional_sets: sets that are left out when their file is not there.
      alternatives: file name -> other names under which it is also found.
      metric_names: what `metrics` returns.
      main_metric: one of them, and its direction.
      takes_pairs: whether examples have a second text.
    """

    name: str
    kind: Kind = "classification"
    labels: tuple[str, ...] = ()
    train_file: str = "train.tsv"
    eval_sets: Mapping[str, str] = {"dev": "dev.tsv"}
    predict_sets: Mapping[str, str] = {"test": "test.tsv"}
    optional_sets: frozenset[str] = frozenset()
    alternatives: Mapping[str, tuple[str, ...]] = {}
    metric_names: tuple[str, ...] = ("accuracy",)
    main_metric: MainMetric = MainMetric("accuracy")
    takes_pairs: bool = True

    @property
    def num_outputs(self) -> int:
        """Outputs of the model's head: one a label, 1 for regression."""
        return len(self.labels) if self.kind != "regression" else 1

    def has_labels(self, set_name: str) -> bool:
        """Tells whether the examples of a set carry labels."""
        return set_name == "train" or set_name in self.eval_sets

    def sets(self, data_dir: str, which: Literal["eval", "predict"]) -> list[str]:
        """Returns the names of the evaluation or prediction sets to be read, in order.

        Optional ones (MNLI's mismatched) are named only if their file is in `data_dir`.
        """
        chosen = self.eval_sets if which == "eval" else self.predict_sets
        return [
            name
            for name, file in chosen.items()
            if name not in self.optional_sets or paths.exists(paths.join(data_dir, file))
        ]

    def evaluate_test(self, data_dir: str) -> None:
        """Makes prediction sets whose files have labels evaluation sets too.

        Tasks whose test files come without labels have none.
        """

    def read_examples(self, data_dir: str, set_name: str) -> list[Example]:
        """Reads one set.

        Args:
          data_dir: the folder with the task's files.
          set_name: "train", or a key of `eval_sets` or `predict_sets`.

        Returns:
          The examples in file order; their labels are None in a prediction set.

        Raises:
          FileNotFoundError: if the file is missing; says what is wanted and what is there.
          ValueError: for a file without examples, a row with the wrong number of columns, an
            unknown label, text that is not UTF-8; names the file and the line.
        """
        path = self._path(data_dir, set_name)
        examples = list(self._parse(path, set_name))
        if not examples:
            raise ValueError(
                f"{path} has no examples (it is empty, or has a header only); "
                f"the {set_name} set of {self.name} needs at least one."
            )
        return examples

    def label_id(self, example: Example) -> int | float | list[float]:
        """Returns the label as the model wants it; one that is not known counts as 0.

        Returns:
          An index into `labels`, the number itself (regression), or a 0/1 list as long as
          `labels` (multi-label).

        Raises:
          ValueError: if the label is not one of `labels`.
        """
        label = example.label
        if self.kind == "regression":
            return 0.0 if label is None else float(label)  # type: ignore[arg-type]
        if self.kind == "multilabel":
            names = () if label is None else label
            if unknown := set(names) - set(self.labels):  # type: ignore[arg-type]
                raise self._unknown_label(example.guid, sorted(unknown)[0])
            return [float(name in names) for name in self.labels]  # type: ignore[operator]
        if label is None:
            return 0
        if label not in self.labels:
            raise self._unknown_label(example.guid, str(label))
        return self.labels.index(label)  # type: ignore[arg-type]

    def metrics(self, logits: np.ndarray, labels: np.ndarray) -> dict[str, float]:
        """Scores a model's outputs.

        Args:
          logits: [N, num_outputs], float.
          labels: [N] int (classification), [N] float (regression), [N, L] 0/1 (multi-label).

        Returns:
          `metric_names` -> value, in that order.
        """
        return metric_functions.compute(self.metric_names, self.kind, logits, labels)

    def report(self, logits: np.ndarray, labels: np.ndarray) -> dict[str, dict[str, float]]:
        """Returns label -> precision, recall, f1 and support; {} for regression.

        Arguments as for `metrics`.
        """
        if self.kind == "regression":
            return {}
        truth, guess = metric_functions.indicators(self.kind, logits, labels)
        table = metric_functions.per_class(truth, guess)
        return {
            name: {key: float(values[i]) for key, values in table._asdict().items()}
            for i, name in enumerate(self.labels)
        }

    def submission(self, set_name: str, guids: Sequence[str], logits: np.ndarray) -> Submission:
        """Returns predictions with ids and label names.

        Args:
          set_name: the set that was predicted.
          guids: of its examples, N.
          logits: [N, num_outputs].
        """
        return Submission(
            f"{set_name}_submission.tsv",
            ("id", "prediction"),
            list(zip(guids, self.predicted(logits), strict=True)),
        )

    def predicted(self, logits: np.ndarray) -> list[str]:
        """Returns each row's prediction in words: label, labels joined by commas, or number."""
        if self.kind == "regression":
            return [f"{value:.6g}" for value in np.reshape(logits, [-1])]
        if self.kind == "multilabel":
            return [
                ",".join(name for name, value in zip(self.labels, row, strict=True) if value > 0)
                for row in logits
            ]
        return [self.labels[index] for index in np.argmax(logits, axis=-1)]

    # For subclasses.

    def _parse(self, path: str, set_name: str) -> Iterator[Example]:
        """Yields the examples of a file."""
        raise NotImplementedError

    def _label(self, text: str, path: str, line: int) -> Label:
        """Returns a field's text as this task's label, or raises with the place."""
        text = text.strip()
        if self.kind == "regression":
            try:
                value = float(text)
            except ValueError:
                value = math.nan
            if not abs(value) <= _LARGEST:
                raise ValueError(
                    f"{path}, line {line}: the label {text!r} is not a finite number of float32."
                )
            return value
        if not text:
            raise ValueError(f"{path}, line {line}: the label is empty.")
        if text not in self.labels:
            raise self._unknown_label(f"{path}, line {line}", text)
        return text

    def _unknown_label(self, place: str, label: str) -> ValueError:
        return ValueError(
            f"{place}: the label {label!r} is not one of the labels of {self.name}: "
            f"{', '.join(self.labels)}. Is --task_name right for this file?"
        )

    def _file(self, set_name: str) -> str:
        known: dict[str, Any] = {**self.eval_sets, **self.predict_sets}
        if self.train_file:
            known["train"] = self.train_file
        if set_name not in known:
            raise ValueError(
                f"{self.name} has no {set_name} set; it has {', '.join(sorted(known))}."
            )
        return known[set_name]

    def _path(self, data_dir: str, set_name: str) -> str:
        file = self._file(set_name)
        for name in (file, *self.alternatives.get(file, ())):
            path = paths.join(data_dir, name)
            if paths.exists(path):
                return path
        expected = [f"{self.train_file} (training)"] if self.train_file else []
        expected += [f"{name} (evaluation)" for name in self.eval_sets.values()]
        expected += [f"{name} (prediction)" for name in self.predict_sets.values()]
        raise rows.missing_file(
            paths.join(data_dir, file), data_dir, self.name, expected, subfolder=self.name
        )
