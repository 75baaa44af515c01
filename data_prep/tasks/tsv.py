"""Tables of one's own, TSV or CSV: columns by name or number, labels from the training file."""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from bert_tf import paths
from data_prep.tasks import rows
from data_prep.tasks.base import Example, Kind, Label, MainMetric, Task

# Header names that are understood without being told.
_TEXT_A = ("sentence1", "text_a", "text", "sentence")
_TEXT_B = ("sentence2", "text_b")
_LABEL = ("label", "labels", "score")
_ID = ("id", "guid", "index")

_MAIN = {
    "classification": MainMetric("accuracy"),
    "regression": MainMetric("pearson_spearman_mean"),
    "multilabel": MainMetric("micro_f1"),
}

Column = str | int


class _Where(NamedTuple):
    """Column numbers in one file. `width` is 0 where rows may have more than is needed."""

    text_a: int
    text_b: int | None
    label: tuple[int, ...]
    id: int | None
    width: int
    label_names: tuple[str, ...]


class TsvTask(Task):
    """A task whose files have any columns.

    With a header, `sentence1 sentence2 label` and `text label` (and `text_a`, `text_b`,
    `sentence`, `labels`, `score`, `id`, `guid`, `index`) are found by themselves.
    """

    def __init__(
        self,
        name: str,
        data_dir: str | None = None,
        *,
        kind: Kind = "classification",
        text_a_column: Column | None = None,
        text_b_column: Column | None = None,
        label_column: Column | Sequence[Column] | None = None,
        id_column: Column | None = None,
        header: bool = True,
        labels: Sequence[str] | None = None,
        label_separator: str = ",",
        train_file: str | None = None,
        dev_file: str | None = None,
        test_file: str | None = None,
    ) -> None:
        """Looks at the training file for the labels and for whether there are pairs.

        Args:
          name: "TSV" (tabs, quotes mean nothing) or "CSV" (commas, quoted fields).
          data_dir: the folder of the files; may be None if `labels` are given.
          kind: "classification", "regression" or "multilabel".
          text_a_column: the text's column: a header name, or a number from 0 (-1 is the last).
          text_b_column: the second text's; "" for none though the header has one.
          label_column: the label's; for multi-label also several, each holding 0 or 1, whose
            names are then the labels.
          id_column: the ids'; rows are numbered ("train-1") without it.
          header: whether each file begins with one.
          labels: the labels in the order of the model's outputs; by default those of the
            training file, sorted (by value if all are whole numbers).
          label_separator: between the labels in one multi-label field; an empty field has none.
          train_file: "train.tsv" or "train.csv" by default.
          dev_file: "dev.tsv" or "dev.csv" by default.
          test_file: "test.tsv" or "test.csv" by default.

        Raises:
          FileNotFoundError: if the training file is needed and missing.
          ValueError: for columns that are not there, labels that do not fit the kind.
        """
        if kind not in _MAIN:
            raise ValueError(f"There is no kind of task {kind!r}; it is one of {', '.join(_MAIN)}.")
        self.name, self.kind = name, kind
        ending = "csv" if name == "CSV" else "tsv"
        self.train_file = train_file or f"train.{ending}"
        self.eval_sets = {"dev": dev_file or f"dev.{ending}"}
        self.predict_sets = {"test": test_file or f"test.{ending}"}
        self.main_metric = _MAIN[kind]
        several = isinstance(label_column, Sequence) and not isinstance(label_column, str)
        label_columns: list[Column] | None = None
        if label_column is not None:
            label_columns = list(label_column) if several else [label_column]  # type: ignore
        if label_columns and len(label_columns) > 1 and kind != "multilabel":
            raise ValueError(
                f"The label columns {', '.join(map(str, label_columns))}: "
                "more than one is for multi-label tasks only."
            )
        if not header and (text_a_column is None or label_columns is None):
            raise ValueError(
                "A file without a header needs the numbers of its columns, from 0: "
                "the text's and the label's at least."
            )
        self._text_a, self._text_b, self._id = text_a_column, text_b_column, id_column
        self._label_columns = label_columns
        # Several columns of 0 and 1, a label each.
        self._flags = several and kind == "multilabel"
        self._header, self._separator = header, label_separator
        self._pairs: bool | None = None
        if labels is not None:
            self.labels = tuple(labels)
            if self._flags and len(self.labels) != len(self._label_columns or ()):
                raise ValueError(
                    f"There are {len(self.labels)} labels for "
                    f"{len(self._label_columns or ())} label columns: {', '.join(self.labels)}."
                )
        if data_dir is not None and (
            labels is None or paths.exists(paths.join(data_dir, self.train_file))
        ):
            self._look_at_training(data_dir, find_labels=labels is None)
        elif labels is None and kind != "regression":
            raise ValueError(f"The task {name} needs either data_dir or the list of labels.")
        if kind == "regression" and self.labels:
            raise ValueError("A regression task has no list of labels.")
        if kind != "regression" and len(set(self.labels)) != len(self.labels):
            raise ValueError(f"A label is listed twice: {', '.join(self.labels)}.")
        if kind == "classification" and len(self.labels) < 2:
            raise ValueError(
                f"A classification task needs two labels or more, found in "
                f"{'--labels' if labels is not None else self.train_file}: "
                f"{', '.join(self.labels) or 'none'}. Is the label column right?"
            )
        self.takes_pairs = bool(self._pairs)
        if kind == "regression":
            self.metric_names = ("pearson", "spearman", "pearson_spearman_mean", "mse", "mae")
        elif kind == "multilabel":
            self.metric_names = ("subset_accuracy", "micro_f1", "macro_f1")
        elif len(self.labels) == 2:
            self.metric_names = ("accuracy", "f1", "macro_f1", "matthews")
        else:
            self.metric_names = ("accuracy", "macro_f1", "matthews")

    def _look_at_training(self, data_dir: str, find_labels: bool) -> None:
        path = self._path(data_dir, "train")
        table, where = self._table(path, labelled=True)
        if not find_labels or self.kind == "regression":
            return
        if self._flags:
            self.labels = where.label_names
            return
        seen: set[str] = set()
        count = 0
        for _, line, fields in table:
            count += 1
            text = fields[where.label[0]]
            if self.kind == "classification" and not text.strip():
                raise ValueError(f"{path}, line {line}: the label is empty.")
            if any(mark in text.strip() for mark in "\t\n\r"):
                raise ValueError(
                    f"{path}, line {line}: the label {text.strip()!r} holds a tab or a line end, "
                    "which the files of results could not hold."
                )
            seen.update(self._split(text) if self.kind == "multilabel" else [text.strip()])
        if not count:
            raise ValueError(f"{path} has no examples (it is empty, or has a header only).")
        if len(seen) > 50 and len(seen) > count / 2:
            raise ValueError(
                f"{path} has {len(seen)} different labels in {count} rows. Is the label column "
                "right? Numbers are predicted with the kind regression."
            )
        self.labels = tuple(_sorted(seen))

    def _split(self, text: str) -> list[str]:
        return [name for part in text.split(self._separator) if (name := part.strip())]

    def _table(
        self, path: str, labelled: bool
    ) -> tuple[Iterable[tuple[int, int, list[str]]], _Where]:
        """Returns (index, line, fields) of the rows below the header, and the columns."""
        table = (
            (index, line, fields)
            for index, (line, fields) in enumerate(rows.read_rows(path, self.name == "CSV"))
            # A spreadsheet's empty rows, where they cannot be meant.
            if not labelled or any(map(str.strip, fields))
        )
        first = next(table, None)
        if first is None:
            return (), _Where(0, None, (0,), None, 0, ())
        where = self._locate(path, first[1], first[2], labelled)
        if not self._header:
            return self._checked(path, where, [first], table), where
        return self._checked(path, where, [], table), where

    def _checked(
        self,
        path: str,
        where: _Where,
        first: list[tuple[int, int, list[str]]],
        rest: Iterator[tuple[int, int, list[str]]],
    ) -> Iterator[tuple[int, int, list[str]]]:
        for part in (first, rest):
            for row in part:
                if len(row[2]) != where.width:
                    hint = f"the {'header' if self._header else 'first row'} has as many"
                    if len(row[2]) > where.width and self.name == "CSV":
                        hint += '; a text with a comma in it must stand in "quotes"'
                    raise rows.row_error(path, row[1], row[2], str(where.width), hint)
                yield row

    def _locate(self, path: str, line: int, first: list[str], labelled: bool) -> _Where:
        names = [name.strip() for name in first] if self._header else []
        other = "CSV" if self.name == "TSV" else "TSV"
        hint = ""
        if len(first) == 1 and ("," if other == "CSV" else "\t") in first[0]:
            hint = f" The file looks like a {other}: use --task_name={other}."
        elif len(first) == 1 and ";" in first[0]:
            hint = " Fields separated by semicolons are not read."

        def find(role: str, column: Column | None, defaults: Sequence[str]) -> int | None:
            if column is None:
                return next((names.index(name) for name in defaults if name in names), None)
            if column == "":
                return None
            if column in names:
                return names.index(str(column))
            text = str(column)
            if text.removeprefix("-").isdecimal():
                number = int(text)
                if -len(first) <= number < len(first):
                    return number % len(first)
                raise ValueError(
                    f"{path}, line {line}: the {role} column is number {number}, "
                    f"but the row has {len(first)} columns (numbered from 0).{hint}"
                )
            raise missing(role, text)

        def missing(role: str, wanted: str) -> ValueError:
            if not self._header:
                return ValueError(
                    f"The {role} column {wanted!r} must be a number, as the files have no header."
                )
            return ValueError(
                f"{path}, line {line}: the header has no {role} column ({wanted}); "
                f"it has {', '.join(map(repr, names))}. Name it by a flag.{hint}"
            )

        text_a = find("text", self._text_a, _TEXT_A)
        if text_a is None:
            raise missing("text", " or ".join(_TEXT_A))
        text_b = find("second text", self._text_b, _TEXT_B)
        if self._pairs is None:
            self._pairs = text_b is not None
        elif self._pairs != (text_b is not None):
            raise ValueError(
                f"{path}, line {line}: there is {'no' if self._pairs else 'a'} column for a "
                f"second text here, unlike in the training file."
            )
        label: list[int] = []
        if labelled:
            if self._label_columns is None:
                found = find("label", None, _LABEL)
                if found is None:
                    raise missing("label", " or ".join(_LABEL))
                label = [found]
            else:
                label = [
                    found
                    for column in self._label_columns
                    if (found := find("label", column, ())) is not None
                ]
        row_id = find("id", self._id, _ID)
        label_names = tuple(names[i] if names else str(i) for i in label)
        return _Where(text_a, text_b, tuple(label), row_id, len(first), label_names)

    def _parse(self, path: str, set_name: str) -> Iterator[Example]:
        labelled = self.has_labels(set_name)
        table, where = self._table(path, labelled)
        for index, line, fields in table:
            label: Label = None
            if labelled and self._flags:
                label = self._flagged(path, line, where, fields)
            elif labelled:
                label = self._label(fields[where.label[0]], path, line)
            yield Example(
                f"{set_name}-{index}" if where.id is None else fields[where.id],
                fields[where.text_a],
                None if where.text_b is None else fields[where.text_b],
                label,
            )

    def _label(self, text: str, path: str, line: int) -> Label:
        if self.kind != "multilabel":
            return super()._label(text, path, line)
        found = tuple(self._split(text))
        for name in found:
            if name not in self.labels:
                raise self._unknown_label(f"{path}, line {line}", name)
        return found

    def _flagged(self, path: str, line: int, where: _Where, fields: list[str]) -> Label:
        found = []
        for name, column in zip(self.labels, where.label, strict=True):
            value = fields[column].strip()
            if value not in ("0", "1", "0.0", "1.0"):
                raise ValueError(
                    f"{path}, line {line}: the label column {name!r} holds {value!r}, not 0 or 1."
                )
            if value.startswith("1"):
                found.append(name)
        return tuple(found)


def _sorted(labels: set[str]) -> list[str]:
    if all(label.removeprefix("-").isdecimal() for label in labels):
        return sorted(labels, key=lambda label: (int(label), label))
    return sorted(labels)
