"""Multiple choice: SWAG's CSV files, RACE's JSON files, and their packing.

A choice is read as a pair of texts: the context, which all choices of an example share, and the
choice itself.

Letters: N examples, M choices of all examples, B batch, C most choices of an example, T padded
length.
"""

import array
import dataclasses
import functools
import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from bert_tf import paths
from bert_tf.tokenization import BertTokenizer, packing
from data_prep.input_pipeline import Signature
from data_prep.tasks import metrics as metric_functions
from data_prep.tasks import rows
from data_prep.tasks.base import MainMetric, Task

_SWAG_COLUMNS = ("sent1", "sent2", "ending0", "ending1")
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_BLANK = "_"


@dataclasses.dataclass(slots=True)
class MultipleChoiceExample:
    """One question.

    Attributes:
      guid: its id.
      context: the first text, the same for all choices.
      choices: the second text of each, two or more; a question or the beginning of a sentence
        is already in front of them.
      label: number of the right one, or None where it is not known.
    """

    guid: str
    context: str
    choices: tuple[str, ...]
    label: int | None = None


# Reading.


def read_swag(path: str, set_name: str, labelled: bool = True) -> Iterator[MultipleChoiceExample]:
    """Yields the examples of a CSV file with SWAG's header.

    The columns are found by name: sent1 (the context), sent2 (how each continuation begins; may
    be empty), ending0, ending1 and so on, label. An example may have fewer endings than the
    header: the last fields are then empty.

    Args:
      path: the file.
      set_name: for the ids, "train-0".
      labelled: whether there has to be a label; False leaves that column unread.

    Raises:
      ValueError: for a header without these columns, a row with fewer or more columns, fewer
        than two endings, an empty ending before another one, a label that is none of the
        endings' numbers; names the file and the line.
    """
    table = rows.read_rows(path, quoted=True)
    first = next(table, None)
    if first is None:
        return
    line, header = first[0], [name.strip() for name in first[1]]
    needed = [*_SWAG_COLUMNS, *(["label"] if labelled else [])]
    if lacking := [name for name in needed if name not in header]:
        raise ValueError(
            f"{path}, line {line}: the header has no column {', '.join(lacking)}; it has "
            f"{', '.join(name or '(no name)' for name in header)}. SWAG's files have sent1, sent2, "
            "ending0, ending1, ..., label, separated by commas."
        )
    place = {name: number for number, name in enumerate(header)}
    endings: list[int] = []
    while f"ending{len(endings)}" in place:
        endings.append(place[f"ending{len(endings)}"])
    if len(endings) < sum(re.fullmatch("ending[0-9]+", name) is not None for name in header):
        raise ValueError(
            f"{path}, line {line}: the header has no ending{len(endings)}, though there are "
            "endings behind it."
        )
    for index, (line, fields) in enumerate(table):
        if len(fields) != len(header):
            raise rows.row_error(path, line, fields, str(len(header)), "as the header has")
        texts = [fields[column].strip() for column in endings]
        while texts and not texts[-1]:
            texts.pop()
        where = f"{path}, line {line}"
        if len(texts) < 2:
            raise ValueError(
                f"{where}: an example needs two endings or more, there is "
                f"{len(texts) or 'none'}: ending{len(texts)} is empty."
            )
        if "" in texts:
            raise ValueError(
                f"{where}: ending{texts.index('')} is empty, though there are endings behind it."
            )
        begin = fields[place["sent2"]].strip()
        choices = tuple(f"{begin} {text}" if begin else text for text in texts)
        label = _number(where, fields[place["label"]], len(texts)) if labelled else None
        yield MultipleChoiceExample(
            f"{set_name}-{index}", fields[place["sent1"]].strip(), choices, label
        )


def _number(where: str, text: str, count: int) -> int:
    text = text.strip()
    if not text.isascii() or not text.isdigit() or int(text) >= count:
        raise ValueError(
            f"{where}: the label is {text!r}, but the endings are numbered 0 to {count - 1}."
        )
    return int(text)


def read_race(path: str, set_name: str, labelled: bool = True) -> Iterator[MultipleChoiceExample]:
    """Yields the questions of RACE's layout.

    A JSON object has `article`, `questions`, `options` (a list of texts for each question),
    `answers` (a letter for each) and perhaps `id`. A "_" in a question is the place of the
    option; else the option follows the question.

    Args:
      path: a file with one object, a list of them, or one a line; or a folder, in which every
        .txt and .json file is read, those of its subfolders too, in order of their names.
      set_name: for the ids of objects without one.
      labelled: whether there have to be answers; False leaves them unread.

    Raises:
      ValueError: for what is not JSON or lacks a part, numbers that do not match, fewer than two
        options, an empty one, an answer that is none of the options' letters; names the file and
        the question.
    """
    number = 0
    for file in _race_files(path):
        for place, item in _json_objects(file):
            yield from _race_questions(item, place, f"{set_name}-{number}", labelled)
            number += 1


def _race_files(path: str) -> list[str]:
    if not paths.is_dir(path):
        return [path]
    found = []
    for name in sorted(paths.list_dir(path)):
        inner = paths.join(path, name)
        if paths.is_dir(inner):
            found += _race_files(inner)
        elif name.endswith((".txt", ".json", ".jsonl")):
            found.append(inner)
    return found


def _json_objects(path: str) -> Iterator[tuple[str, Any]]:
    """Yields (place, object) of a file with an object, a list, or an object a line."""
    text = "".join(rows._lines(path))
    if not text.strip():
        return
    try:
        parsed = json.loads(text)
    except json.JSONDecodeError as error:
        lines = [(n, line) for n, line in enumerate(text.split("\n"), 1) if line.strip()]
        objects = []
        for number, line in lines:
            try:
                objects.append((f"{path}, line {number}", json.loads(line)))
            except json.JSONDecodeError as inner:
                # The first line tells what kind of file it was meant to be.
                at, what = (number, inner.msg) if objects else (error.lineno, error.msg)
                raise ValueError(f"{path}, line {at}: not JSON ({what}).") from None
        yield from objects
        return
    if isinstance(parsed, list):
        yield from ((f"{path}, object {number} (from 0)", one) for number, one in enumerate(parsed))
    else:
        yield path, parsed


def _race_questions(
    item: Any, place: str, guid: str, labelled: bool
) -> Iterator[MultipleChoiceExample]:
    needed = ["article", "questions", "options", *(["answers"] if labelled else [])]
    if not isinstance(item, dict) or (lacking := [key for key in needed if key not in item]):
        what = f"has no {', '.join(lacking)}" if isinstance(item, dict) else "is not an object"
        raise ValueError(f"{place}: this {what}; RACE's objects have {', '.join(needed)}.")
    lists = {key: item[key] for key in needed[1:]}
    wrong = [key for key, value in lists.items() if not isinstance(value, list)]
    if wrong or not isinstance(item["article"], str):
        raise ValueError(
            f"{place}: {wrong[0] if wrong else 'article'} is not a {'list' if wrong else 'text'}."
        )
    counts = {key: len(value) for key, value in lists.items()}
    if len(set(counts.values())) > 1:
        found = ", ".join(f"{count} {key}" for key, count in counts.items())
        raise ValueError(f"{place}: there must be as many of each: {found}.")
    for number, question in enumerate(item["questions"]):
        where = f"{place}, question {number} (from 0)"
        options = item["options"][number]
        if not isinstance(question, str) or not (
            isinstance(options, list) and all(isinstance(one, str) for one in options)
        ):
            raise ValueError(f"{where}: the question must be a text, its options a list of texts.")
        options = [one.strip() for one in options]
        if len(options) < 2 or "" in options:
            what = f"option {options.index('')} is empty" if "" in options else f"{len(options)}"
            raise ValueError(f"{where}: a question needs two options or more, none empty: {what}.")
        label = _letter(where, item["answers"][number], len(options)) if labelled else None
        yield MultipleChoiceExample(
            f"{item.get('id') or guid}-{number}",
            item["article"].strip(),
            tuple(filled(question.strip(), option) for option in options),
            label,
        )


def _letter(where: str, answer: Any, count: int) -> int:
    letters = _LETTERS[:count]
    if not isinstance(answer, str) or len(answer) != 1 or answer not in letters:
        raise ValueError(
            f"{where}: the answer is {answer!r}, but there are {count} options, {letters[0]} to "
            f"{letters[-1]}."
        )
    return letters.index(answer)


def filled(question: str, option: str) -> str:
    if _BLANK in question:
        head, _, tail = question.partition(_BLANK)
        return f"{head}{option}{tail.lstrip(_BLANK)}"
    return f"{question} {option}" if question else option


# Features.


@dataclasses.dataclass
class ChoiceFeatures:
    """Examples as ids, a sequence for each choice.

    What `data_prep.input_pipeline` needs of features is here.

    Attributes:
      input_ids: int32 [total tokens], one sequence after the other.
      offsets: int64 [M + 1], where each begins.
      first_lengths: int32 [M], tokens of segment 0.
      choice_offsets: int64 [N + 1], where each example's sequences begin among the M.
      labels: int32 [N], 0 where not known.
      guids: N.
      max_seq_length: no sequence is longer.
      num_truncated: sequences whose texts were cut.
    """

    input_ids: np.ndarray
    offsets: np.ndarray
    first_lengths: np.ndarray
    choice_offsets: np.ndarray
    labels: np.ndarray
    guids: list[str]
    max_seq_length: int
    num_truncated: int = 0
    example_weights: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.guids)

    @property
    def signature(self) -> Signature:
        """What `dense` returns, for `data_prep.input_pipeline`."""
        names = ("input_ids", "input_mask", "segment_ids")
        text: Signature = dict.fromkeys(names, ((self.num_choices, None), np.int32))
        return {**text, "choice_mask": ((self.num_choices,), np.int32)}

    @functools.cached_property
    def lengths(self) -> np.ndarray:
        """Tokens of each example's longest choice: int32 [N]."""
        return np.maximum.reduceat(np.diff(self.offsets), self.choice_offsets[:-1]).astype(np.int32)

    @functools.cached_property
    def counts(self) -> np.ndarray:
        """Choices of each example: int32 [N]."""
        return np.diff(self.choice_offsets).astype(np.int32)

    @functools.cached_property
    def num_choices(self) -> int:
        """C, the most choices that an example has."""
        return int(self.counts.max())

    @functools.cached_property
    def choice_mask(self) -> np.ndarray:
        """int32 [N, C], 1 for choices and 0 for padding."""
        return (np.arange(self.num_choices) < self.counts[:, None]).astype(np.int32)

    def dense(self, indices: np.ndarray, length: int) -> dict[str, np.ndarray]:
        """Pads some examples to one length and to C choices.

        Args:
          indices: [B] int; -1 stands for a row of zeros, which fills up a batch.
          length: T, at least that of the longest choice among them.

        Returns:
          input_ids, input_mask, segment_ids: int32 [B, C, T], zeros in the padding.
          choice_mask: int32 [B, C], 1 for choices and 0 for padding.

        Raises:
          ValueError: if a choice is longer than `length`.
        """
        indices = np.asarray(indices)
        chosen = self.choice_mask[indices] * (indices >= 0)[:, None]  # [B, C]
        # Sequence numbers, any one where there is no choice: [B, C].
        numbers = np.where(
            chosen > 0, self.choice_offsets[indices][:, None] + np.arange(self.num_choices), 0
        )
        start = self.offsets[numbers]
        tokens = np.where(chosen > 0, self.offsets[numbers + 1] - start, 0)
        if tokens.size and tokens.max() > length:
            raise ValueError(f"A choice of {tokens.max()} tokens does not fit into {length}.")
        column = np.arange(length)
        real = column < tokens[..., None]  # [B, C, T]
        ids = np.zeros(real.shape, np.int32)
        ids[real] = self.input_ids[(start[..., None] + column)[real]]
        second = real & (column >= self.first_lengths[numbers][..., None])
        return {
            "input_ids": ids,
            "input_mask": real.astype(np.int32),
            "segment_ids": second.astype(np.int32),
            "choice_mask": chosen.astype(np.int32),
        }


def featurize(
    examples: Sequence[MultipleChoiceExample],
    tokenizer: BertTokenizer,
    max_seq_length: int,
    truncation: str = "longest_first",
) -> ChoiceFeatures:
    """Turns examples into ids: `[CLS] context [SEP] choice [SEP]` for each choice.

    Args:
      examples: N of them; their choices may differ in number.
      tokenizer: the tokenizer.
      max_seq_length: longest sequence, [CLS] and [SEP] included.
      truncation: what stays of longer texts, one of `packing.TRUNCATIONS`.

    Raises:
      ValueError: for no examples, a max_seq_length with no room for a token of each text, an
        unknown truncation, fewer than two choices, a label that is none of them.
    """
    if not examples:
        raise ValueError("There are no examples.")
    if max_seq_length < 5:
        raise ValueError(
            f"max_seq_length is {max_seq_length}, but a context and a choice with [CLS] and [SEP] "
            "need at least 5."
        )
    if truncation not in packing.TRUNCATIONS:
        raise ValueError(
            f"There is no truncation {truncation!r}; it is one of {', '.join(packing.TRUNCATIONS)}."
        )
    ids, offsets, first_lengths = array.array("i"), array.array("q", [0]), array.array("i")
    choice_offsets, labels = array.array("q", [0]), array.array("i")
    num_truncated = 0
    for example in examples:
        count = len(example.choices)
        if count < 2:
            raise ValueError(f"{example.guid}: an example needs two choices or more, not {count}.")
        if example.label is not None and not 0 <= example.label < count:
            raise ValueError(
                f"{example.guid}: the label is {example.label}, but the choices are numbered 0 to "
                f"{count - 1}."
            )
        context = tokenizer.encode(example.context)
        for choice in example.choices:
            a, b = context, tokenizer.encode(choice) or None
            a, b, was_cut = packing.truncate_pair(
                a, b, max_seq_length - (3 if b else 2), truncation
            )
            num_truncated += was_cut
            packed, _ = packing.pack(a, b, tokenizer.cls_id, tokenizer.sep_id)
            ids.frombytes(packed.tobytes())
            offsets.append(len(ids))
            first_lengths.append(len(a) + 2)
        choice_offsets.append(len(offsets) - 1)
        labels.append(example.label or 0)
    return ChoiceFeatures(
        np.frombuffer(ids, np.int32),
        np.frombuffer(offsets, np.int64),
        np.frombuffer(first_lengths, np.int32),
        np.frombuffer(choice_offsets, np.int64),
        np.frombuffer(labels, np.int32),
        [example.guid for example in examples],
        max_seq_length,
        num_truncated,
    )


# The tasks.


class _ChoiceTask(Task):
    """What SWAG and RACE share. There are no labels by name: each example has its own choices."""

    kind = "choice"
    metric_names = ("accuracy",)
    main_metric = MainMetric("accuracy")
    takes_pairs = True

    @property
    def num_outputs(self) -> int:
        """One score a choice."""
        return 1

    def metrics(self, logits: np.ndarray, labels: np.ndarray) -> dict[str, float]:
        """Scores a model's outputs.

        Args:
          logits: [N, C], padding far below the choices, as `BertForMultipleChoice` returns them.
          labels: int [N].

        Returns: accuracy.
        """
        return {"accuracy": metric_functions.accuracy(labels, np.argmax(logits, axis=-1))}

    def evaluate_test(self, data_dir: str) -> None:
        """Has the test set evaluated if it is there with labels."""
        name, file = next(iter(self.predict_sets.items()))
        names = (file, *self.alternatives.get(file, ()))
        found = [paths.join(data_dir, each) for each in names]
        path = next((each for each in found if paths.exists(each)), None)
        if path is not None and self._is_labelled(path):
            self.eval_sets = {**self.eval_sets, name: file}

    def _is_labelled(self, path: str) -> bool:
        """Whether a file or folder has labels."""
        raise NotImplementedError

    def report(self, logits: np.ndarray, labels: np.ndarray) -> dict[str, dict[str, float]]:
        """Returns {}: a choice's number means nothing."""
        return {}


class SwagTask(_ChoiceTask):
    """SWAG, and files of one's own in its layout, with any number of endings."""

    name = "SWAG"
    train_file = "train.csv"
    eval_sets = {"dev": "val.csv"}
    predict_sets = {"test": "test.csv"}
    alternatives = {"val.csv": ("dev.csv",)}

    def __init__(
        self,
        train_file: str | None = None,
        dev_file: str | None = None,
        test_file: str | None = None,
    ) -> None:
        """Takes other names for train.csv, val.csv (or dev.csv) and test.csv."""
        self.train_file = train_file or self.train_file
        self.eval_sets = {"dev": dev_file} if dev_file else self.eval_sets
        self.predict_sets = {"test": test_file} if test_file else self.predict_sets

    def predicted(self, logits: np.ndarray) -> list[str]:
        """Returns the number of the best choice of each row, as text."""
        return [str(index) for index in np.argmax(logits, axis=-1)]

    def _is_labelled(self, path: str) -> bool:
        header = next(rows.read_rows(path, quoted=True), (0, []))[1]
        return "label" in [name.strip() for name in header]

    def _parse(self, path: str, set_name: str) -> Iterator[Any]:
        return read_swag(path, set_name, self.has_labels(set_name))


class RaceTask(_ChoiceTask):
    """RACE, and files of one's own in its layout: folders or files of JSON."""

    name = "RACE"
    train_file = "train"
    eval_sets = {"dev": "dev"}
    predict_sets = {"test": "test"}
    alternatives = {name: (f"{name}.json", f"{name}.jsonl") for name in ("train", "dev", "test")}

    def __init__(
        self,
        train_file: str | None = None,
        dev_file: str | None = None,
        test_file: str | None = None,
    ) -> None:
        """Takes other names for train, dev and test, each a folder, or a file with .json."""
        self.train_file = train_file or self.train_file
        self.eval_sets = {"dev": dev_file} if dev_file else self.eval_sets
        self.predict_sets = {"test": test_file} if test_file else self.predict_sets

    def predicted(self, logits: np.ndarray) -> list[str]:
        """Returns the letter of the best choice of each row."""
        return [_LETTERS[index] for index in np.argmax(logits, axis=-1)]

    def _is_labelled(self, path: str) -> bool:
        first = next((item for file in _race_files(path) for _, item in _json_objects(file)), None)
        return isinstance(first, dict) and "answers" in first

    def _parse(self, path: str, set_name: str) -> Iterator[Any]:
        return read_race(path, set_name, self.has_labels(set_name))
