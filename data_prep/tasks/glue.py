"""The nine GLUE tasks and their diagnostic set (AX), in GLUE's own TSV layouts."""

import dataclasses
import functools
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from data_prep.tasks import rows
from data_prep.tasks.base import Example, Kind, MainMetric, Submission, Task

_NLI = ("contradiction", "entailment", "neutral")
_ENTAILMENT = ("entailment", "not_entailment")
_BINARY = ("0", "1")


@dataclasses.dataclass(frozen=True)
class Columns:
    """Where the fields of a row are: by number, as in the original, or by the header's names."""

    text_a: int | str
    text_b: int | str | None = None
    label: int | str | None = None
    header: bool = True


class GlueTask(Task):
    """A task of GLUE."""

    def __init__(
        self,
        name: str,
        columns: Columns,
        labels: tuple[str, ...] = _BINARY,
        *,
        kind: Kind = "classification",
        metric_names: tuple[str, ...] = ("accuracy",),
        test_columns: Columns | None = None,
        train_file: str = "train.tsv",
        eval_sets: Mapping[str, str] | None = None,
        predict_sets: Mapping[str, str] | None = None,
        optional_sets: frozenset[str] = frozenset(),
        alternatives: Mapping[str, tuple[str, ...]] | None = None,
        submissions: Mapping[str, str] | None = None,
        broken_rows: bool = False,
    ) -> None:
        """Describes a task.

        Args:
          name: GLUE's name.
          columns: of the training and evaluation files.
          labels: in the order of the model's outputs.
          kind: as for `Task`.
          metric_names: as for `Task`; the last is the main metric, and higher is better.
          test_columns: of the prediction files, if they are laid out in another way.
          train_file: as for `Task`, like the four that follow.
          eval_sets: set name -> file.
          predict_sets: set name -> file.
          optional_sets: sets whose file may be missing.
          alternatives: file -> other names for it.
          submissions: prediction set -> file name that GLUE wants, if it is not the task's.
          broken_rows: whether GLUE's own training file has rows cut by a line end; they are
            left out and counted.
        """
        self.name, self.labels, self.kind = name, labels, kind
        self.takes_pairs = columns.text_b is not None
        self.metric_names = metric_names
        self.main_metric = MainMetric(metric_names[-1])
        self.train_file = train_file
        self.eval_sets = {"dev": "dev.tsv"} if eval_sets is None else eval_sets
        self.predict_sets = {"test": "test.tsv"} if predict_sets is None else predict_sets
        self.optional_sets = optional_sets
        self.alternatives = alternatives or {}
        self._columns = columns
        self._test_columns = test_columns or dataclasses.replace(columns, label=None)
        self._submissions = submissions or {}
        self._broken_rows = broken_rows

    def _parse(self, path: str, set_name: str) -> Iterator[Example]:
        labelled = self.has_labels(set_name)
        columns = self._columns if labelled else self._test_columns
        table = enumerate(rows.read_rows(path))
        first = next(table, None) if columns.header else (0, (0, []))
        if first is None:
            return
        by_name = isinstance(columns.text_a, str)
        if by_name:
            line, header = first[1]
            a, b, label = self._resolve(columns, path, line, header)
            width = least = len(header)
            expected = str(width)
        else:
            a, b, label = (
                None if c is None else int(c)
                for c in (columns.text_a, columns.text_b, columns.label)
            )
            width, least = 0, max(a or 0, b or 0, label or 0) + 1
            expected = f"at least {least}"
        assert a is not None
        # The original's ids: MNLI's come from the file, the others count rows from 0.
        prefix = "test" if set_name == "test_matched" else set_name
        own_id = self.name == "MNLI"
        broken: list[ValueError] = []
        total = 0
        for index, (line, fields) in table:
            # A spreadsheet's empty rows.
            if labelled and not any(map(str.strip, fields)):
                continue
            total += 1
            if len(fields) < least or (width and len(fields) != width):
                hint = f"is this a file of another task than {self.name} (--task_name)?"
                broken.append(rows.row_error(path, line, fields, expected, hint))
                if not (labelled and self._broken_rows):
                    raise broken[0]
                continue
            yield Example(
                f"{prefix}-{fields[0] if own_id else index}",
                fields[a],
                None if b is None else fields[b],
                None if label is None else self._label(fields[label], path, line),
            )
        if len(broken) > 0.01 * total:
            raise broken[0]
        if broken:
            logging.getLogger(__name__).warning(
                "%s: left out %d of %d rows that a line end cuts in two, as is known of %s. The "
                "first: %s",
                path,
                len(broken),
                total,
                self.name,
                broken[0],
            )

    def _resolve(
        self, columns: Columns, path: str, line: int, header: list[str]
    ) -> list[int | None]:
        """Finds the three columns in a header."""
        names = [name.strip() for name in header]
        wanted = (columns.text_a, columns.text_b, columns.label)
        for name in wanted:
            if name is None or name in names:
                continue
            if len(names) == 1:
                listed = ", ".join(str(w) for w in wanted if w is not None)
                raise rows.row_error(path, line, header, f"a header with {listed}: several")
            raise ValueError(
                f"{path}, line {line}: the header has no column {name!r}, which {self.name} "
                f"needs; it has {', '.join(map(repr, names))}. Is --task_name right?"
            )
        return [None if name is None else names.index(str(name)) for name in wanted]

    def submission(self, set_name: str, guids: Sequence[str], logits: np.ndarray) -> Submission:
        """Returns the file that GLUE's server takes: index from 0 and prediction."""
        names = self.predicted(logits)
        if len(names) != len(guids):
            raise ValueError(f"There are {len(guids)} ids and {len(names)} predictions.")
        return Submission(
            self._submissions.get(set_name, f"{self.name}.tsv"),
            ("index", "prediction"),
            [(str(index), name) for index, name in enumerate(names)],
        )

    def predicted(self, logits: np.ndarray) -> list[str]:
        """As `Task.predicted`; STS-B's scores lie in 0..5 and have three decimals."""
        if self.kind == "regression":
            return [f"{value:.3f}" for value in np.clip(np.reshape(logits, [-1]), 0.0, 5.0)]
        return super().predicted(logits)


_F1 = ("accuracy", "f1", "accuracy_f1_mean")

# Task name without dashes, in lower case -> its maker.
TASKS: dict[str, Callable[[], GlueTask]] = {
    "cola": functools.partial(
        GlueTask,
        "CoLA",
        Columns(3, None, 1, header=False),
        test_columns=Columns(1),
        metric_names=("accuracy", "matthews"),
    ),
    "sst2": functools.partial(GlueTask, "SST-2", Columns("sentence", None, "label")),
    "mrpc": functools.partial(GlueTask, "MRPC", Columns(3, 4, 0), metric_names=_F1),
    "stsb": functools.partial(
        GlueTask,
        "STS-B",
        Columns("sentence1", "sentence2", "score"),
        (),
        kind="regression",
        metric_names=("pearson", "spearman", "pearson_spearman_mean"),
    ),
    "qqp": functools.partial(
        GlueTask,
        "QQP",
        Columns("question1", "question2", "is_duplicate"),
        metric_names=_F1,
        broken_rows=True,
    ),
    "mnli": functools.partial(
        GlueTask,
        "MNLI",
        Columns(8, 9, -1),
        _NLI,
        eval_sets={"dev_matched": "dev_matched.tsv", "dev_mismatched": "dev_mismatched.tsv"},
        predict_sets={"test_matched": "test_matched.tsv", "test_mismatched": "test_mismatched.tsv"},
        optional_sets=frozenset({"dev_mismatched", "test_mismatched"}),
        submissions={"test_matched": "MNLI-m.tsv", "test_mismatched": "MNLI-mm.tsv"},
    ),
    "qnli": functools.partial(
        GlueTask, "QNLI", Columns("question", "sentence", "label"), _ENTAILMENT
    ),
    "rte": functools.partial(
        GlueTask, "RTE", Columns("sentence1", "sentence2", "label"), _ENTAILMENT
    ),
    "wnli": functools.partial(GlueTask, "WNLI", Columns("sentence1", "sentence2", "label")),
    "ax": functools.partial(
        GlueTask,
        "AX",
        Columns("sentence1", "sentence2"),
        _NLI,
        train_file="",
        eval_sets={},
        predict_sets={"test": "AX.tsv"},
        alternatives={"AX.tsv": ("diagnostic.tsv",)},
    ),
}
