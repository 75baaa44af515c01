"""What a training run leaves in its output folder, read again."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from bert_tf import paths
from bert_tf.checkpoint import restore
from bert_tf.config import BertConfig
from bert_tf.tokenization import BertTokenizer, packing

TASK_FILE = "task.json"
# The same of run_squad.py.
SQUAD_FILE = "squad.json"
TASK_KINDS = ("classification", "regression", "multilabel", "tagging", "choice")
# They have no labels by name.
_WITHOUT_LABELS = ("regression", "choice")

_Rule = tuple[str, Callable[[Any], bool]]


def _is_list_of_str(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _whole(least: int) -> _Rule:
    words = f"an integer of {least} or more"
    return words, lambda value: type(value) is int and value >= least


_SWITCH: _Rule = ("true or false", lambda value: isinstance(value, bool))
_TOKENIZER: dict[str, _Rule] = {
    "do_lower_case": _SWITCH,
    "strip_accents": _SWITCH,
    "never_split": ("a list of strings", _is_list_of_str),
}
# What each key must hold: in words, and the test of it.
_TASK_KEYS: dict[str, _Rule] = {
    "task": ("a string", lambda value: isinstance(value, str)),
    "kind": (f"one of {', '.join(TASK_KINDS)}", lambda value: value in TASK_KINDS),
    "labels": ("a list of strings", _is_list_of_str),
    "max_seq_length": _whole(3),
    "truncation": (
        f"one of {', '.join(packing.TRUNCATIONS)}",
        lambda value: value in packing.TRUNCATIONS,
    ),
    **_TOKENIZER,
}
_SQUAD_KEYS: dict[str, _Rule] = {
    "version_2_with_negative": _SWITCH,
    "null_score_diff_threshold": (
        "a finite number",
        lambda value: (
            isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        ),
    ),
    "max_seq_length": _whole(5),
    "doc_stride": _whole(1),
    "max_query_length": _whole(1),
    "n_best_size": _whole(1),
    "max_answer_length": _whole(1),
    "character_level": _SWITCH,
    **_TOKENIZER,
}


def read_task_file(
    folder: str, kinds: Sequence[str] = TASK_KINDS, reader: str = ""
) -> dict[str, Any]:
    """Reads the task.json that run_classifier.py leaves in its output folder.

    Args:
      folder: the output folder.
      kinds: which kinds of task will do.
      reader: name of the class that they are for.

    Returns:
      the file's object: task, kind, labels, max_seq_length, truncation, do_lower_case,
      strip_accents, never_split, and whatever else it holds.

    Raises:
      FileNotFoundError: there is none.
      ValueError: it is no JSON object, or a key is missing or wrong, or the kind is another; names
        the file and the key.
    """
    task = _read(folder, TASK_FILE, "run_classifier.py")
    path = paths.join(folder, TASK_FILE)
    for key, (wanted, fits) in _TASK_KEYS.items():
        if key not in task:
            raise ValueError(f"{path}: {key} is missing; it must be {wanted}.")
        if not fits(task[key]):
            raise ValueError(f"{path}: {key} is {show(task[key])}; it must be {wanted}.")
    if task["kind"] not in kinds:
        raise ValueError(
            f"{path}: kind is {task['kind']}, which is not for {reader}; "
            "bert_tf.predictor.load finds the class that is."
        )
    if task["kind"] not in _WITHOUT_LABELS and not task["labels"]:
        raise ValueError(f"{path}: labels is []; a {task['kind']} task has at least one.")
    if len(set(task["labels"])) < len(task["labels"]):
        raise ValueError(f"{path}: labels has one of them twice: {show(task['labels'])}.")
    return task


def read_squad_file(folder: str) -> dict[str, Any]:
    """Reads the squad.json that run_squad.py leaves in its output folder.

    Raises:
      FileNotFoundError, ValueError: as `read_task_file`.
    """
    settings = _read(folder, SQUAD_FILE, "run_squad.py")
    path = paths.join(folder, SQUAD_FILE)
    if missing := [key for key in _SQUAD_KEYS if key not in settings]:
        raise ValueError(f"{path}: {', '.join(missing)} is missing; train anew.")
    for key, (wanted, fits) in _SQUAD_KEYS.items():
        if not fits(settings[key]):
            raise ValueError(f"{path}: {key} is {show(settings[key])}; it must be {wanted}.")
    return settings


def _read(folder: str, name: str, script: str) -> dict[str, Any]:
    path = paths.join(folder, name)
    if paths.exists(folder) and not paths.is_dir(folder):
        raise ValueError(f"{folder} is a file; give its folder.")
    if not paths.exists(folder):
        raise FileNotFoundError(f"There is no folder {folder}.")
    if not paths.exists(path):
        raise FileNotFoundError(
            f"{folder} has no {name}: give the --output_dir of a {script} that trained."
        )
    return paths.read_json(path)


def show(value: Any) -> str:
    """Returns a value for a message, cut where it is long."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def check_at_least_one(**values: int | None) -> None:
    """Raises a ValueError for a number below 1; None is fine."""
    for name, value in values.items():
        if value is not None and value < 1:
            raise ValueError(f"{name} is {value}; it must be 1 or more.")


def make_tokenizer(checkpoint: restore.Checkpoint, settings: Mapping[str, Any]) -> BertTokenizer:
    """Makes the tokenizer of a run, by the settings it left; checks it against the model.

    Args:
      checkpoint: with its configuration and vocabulary.
      settings: the run's, of which do_lower_case, strip_accents and never_split are read.

    Raises:
      ValueError: the vocabulary has no special tokens, or is not the model's.
    """
    assert checkpoint.vocab_file is not None
    assert checkpoint.config is not None
    names = ("do_lower_case", "strip_accents", "never_split")
    tokenizer = BertTokenizer(checkpoint.vocab_file, **{name: settings[name] for name in names})
    # Each raises an error where the vocabulary lacks it: now, not at some text.
    _ = tokenizer.cls_id, tokenizer.sep_id, tokenizer.unk_id
    rows, size = checkpoint.config.vocab_size, tokenizer.vocab_size
    # Tables are at times padded to a multiple of 8 to 128 rows.
    if not 0 <= rows - size < 128:
        raise ValueError(
            f"{checkpoint.vocab_file} has {size} tokens, but the model's configuration has "
            f"vocab_size {rows}: it needs the vocabulary that belongs to it."
        )
    return tokenizer


def open_run(
    model_dir: str, settings: Mapping[str, Any], name: str
) -> tuple[restore.Checkpoint, BertConfig, BertTokenizer]:
    """Opens what a run has trained, with the tokenizer of its settings.

    Args:
      model_dir: its output folder.
      settings: what it left in the file `name`: those of `make_tokenizer`, and max_seq_length.
      name: TASK_FILE or SQUAD_FILE.

    Raises:
      FileNotFoundError: there is no checkpoint, or no configuration or vocabulary beside it.
      ValueError: as `make_tokenizer`, or inputs would be longer than the model's positions.
    """
    prefix = restore.trained_checkpoint(model_dir)
    if prefix is None:
        raise FileNotFoundError(f"{model_dir} has no checkpoint: train first.")
    checkpoint = restore.load(
        prefix,
        config_file=paths.join(model_dir, restore.ORIGINAL_CONFIG_FILE),
        vocab_file=paths.join(model_dir, restore.VOCAB_FILE),
    )
    config = checkpoint.config
    assert config is not None
    length, most = settings["max_seq_length"], config.max_position_embeddings
    if length > most:
        raise ValueError(
            f"{paths.join(model_dir, name)}: max_seq_length is {length}, over the model's "
            f"max_position_embeddings, {most}: the configuration there is not the run's."
        )
    return checkpoint, config, make_tokenizer(checkpoint, settings)


def set_weights(
    model: Any,
    checkpoint: restore.Checkpoint,
    may_miss: Iterable[str] = (),
    may_be_left: Iterable[str] = (),
) -> None:
    """Sets a model's weights from a checkpoint; patterns as for `restore.merge`.

    Raises:
      RestoreError: they do not fit.
      CheckpointError: a weight is not finite.
    """
    from bert_tf.modeling.models import named_variables

    variables = named_variables(model)
    report = restore.merge(
        {name: tuple(variable.shape) for name, variable in variables.items()},
        checkpoint,
        allow_missing=may_miss,
        allow_extra=may_be_left,
    )
    for name, value in restore.finite_values(checkpoint, report):
        variables[name].assign(value)
