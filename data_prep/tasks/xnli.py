"""XNLI: natural language inference in 15 languages, in the layout that the original reads."""

from collections.abc import Iterator

from data_prep.tasks import rows
from data_prep.tasks.base import Example, Task

_HINT = "is --task_name=XNLI right for this file?"


class XnliTask(Task):
    """Machine-translated MultiNLI for training, XNLI's own sets for evaluation and prediction.

    Attributes:
      language: "zh", "en", "de", ...: the training file's, and the rows taken from the others.
    """

    name = "XNLI"
    labels = ("contradiction", "entailment", "neutral")
    eval_sets = {"dev": "xnli.dev.tsv"}
    predict_sets = {"test": "xnli.test.tsv"}

    def __init__(self, language: str = "zh") -> None:
        self.language = language
        self.train_file = f"multinli/multinli.train.{language}.tsv"

    def _parse(self, path: str, set_name: str) -> Iterator[Example]:
        return self._training(path) if set_name == "train" else self._filtered(path, set_name)

    def _training(self, path: str) -> Iterator[Example]:
        for index, (line, fields) in enumerate(rows.read_rows(path)):
            if index == 0 or not any(map(str.strip, fields)):
                continue
            if len(fields) < 3:
                raise rows.row_error(path, line, fields, "at least 3", _HINT)
            label = fields[2].strip()
            if label == "contradictory":
                label = "contradiction"
            yield Example(f"train-{index}", fields[0], fields[1], self._label(label, path, line))

    def _filtered(self, path: str, set_name: str) -> Iterator[Example]:
        others = set()
        found = False
        for index, (line, fields) in enumerate(rows.read_rows(path)):
            if index == 0 or not any(map(str.strip, fields)):
                continue
            if fields[0] != self.language and len(fields) >= 8:
                others.add(fields[0])
                continue
            if len(fields) < 8:
                raise rows.row_error(path, line, fields, "at least 8", _HINT)
            found = True
            label = self._label(fields[1], path, line) if self.has_labels(set_name) else None
            yield Example(f"{set_name}-{index}", fields[6], fields[7], label)
        if others and not found:
            raise ValueError(
                f"{path} has no rows in the language {self.language!r}; "
                f"it has {', '.join(sorted(others))}."
            )
