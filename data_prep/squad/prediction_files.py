"""The original's files of predictions, n-best lists and null odds, to the byte."""

import dataclasses
import json
from collections.abc import Iterable, Mapping
from typing import IO, Any

from bert_tf import paths
from data_prep.squad.answers import NBestAnswer, Prediction
from data_prep.squad.reading import Example


class _JsonObject:
    """Writes a JSON object entry by entry, as json.dumps(..., indent=4) would write it whole."""

    def __init__(self, handle: IO[str]):
        self._handle = handle
        self._is_empty = True

    def add(self, key: str, value: str) -> None:
        """`value` is JSON, indented to stand in the object."""
        self._handle.write("{" if self._is_empty else ",")
        self._handle.write(f"\n    {json.dumps(key)}: {value}")
        self._is_empty = False

    def close(self) -> None:
        self._handle.write("{}\n" if self._is_empty else "\n}\n")


def _nbest_json(nbest: Iterable[NBestAnswer]) -> str:
    entries = ",\n".join(
        f'        {{\n            "text": {json.dumps(text)},\n'
        f'            "probability": {probability!r},\n'
        f'            "start_logit": {start!r},\n'
        f'            "end_logit": {end!r}\n        }}'
        for text, probability, start, end in nbest
    )
    return f"[\n{entries}\n    ]"


@dataclasses.dataclass
class Written:
    """What `write_predictions` wrote, by question id.

    Attributes:
      texts: the predictions.
      best_texts: the best answer with text, for `evaluation.best_threshold`.
      null_odds: for SQuAD 2.0, else empty.
    """

    texts: dict[str, str] = dataclasses.field(default_factory=dict)
    best_texts: dict[str, str] = dataclasses.field(default_factory=dict)
    null_odds: dict[str, float] = dataclasses.field(default_factory=dict)


def write_predictions(
    predictions: Iterable[tuple[Example, Prediction]],
    predictions_file: str,
    nbest_file: str,
    null_odds_file: str | None = None,
) -> Written:
    """Writes the files of the original, as the predictions come.

    Args:
      predictions: from a `Decoder`.
      predictions_file: id -> text.
      nbest_file: id -> list of text, probability, start_logit, end_logit.
      null_odds_file: SQuAD 2.0: id -> null odds. None: no such file.

    Returns:
      texts and null odds by id (the n-best lists are not kept).

    Raises:
      OSError: a file cannot be written. None of the files is left half-written.
    """
    written = Written()
    with paths.atomic_write(nbest_file) as handle:
        entries = _JsonObject(handle)
        for example, prediction in predictions:
            name = example.qas_id
            entries.add(name, _nbest_json(prediction.nbest))
            written.texts[name] = prediction.text
            written.best_texts[name] = prediction.best_text
            if prediction.null_odds is not None:
                written.null_odds[name] = prediction.null_odds
        entries.close()
    write_by_id(predictions_file, written.texts)
    if null_odds_file is not None:
        write_by_id(null_odds_file, written.null_odds)
    return written


def write_by_id(path: str, values: Mapping[str, Any]) -> None:
    """Writes a prediction or null odds file as the original does: indent 4, ASCII escapes."""
    with paths.atomic_write(path) as handle:
        entries = _JsonObject(handle)
        for key, value in values.items():
            entries.add(key, json.dumps(value))
        entries.close()


def apply_threshold(
    best_texts: Mapping[str, str], null_odds: Mapping[str, float], threshold: float
) -> dict[str, str]:
    """Returns the predictions with another threshold: "" where the null odds are over it."""
    return {name: "" if null_odds[name] > threshold else text for name, text in best_texts.items()}
