"""From a checkpoint to a model: what is taken, what is missing, what does not fit.

Works on names, shapes and arrays; the names are the original's, which are those of our models.
"""

from __future__ import annotations

import dataclasses
import fnmatch
from collections.abc import Iterable, Iterator, Mapping
from typing import Protocol

import numpy as np

from bert_tf import paths
from bert_tf.checkpoint import garden, huggingface, names, original
from bert_tf.config import BertConfig

ORIGINAL_CONFIG_FILE = "bert_config.json"
VOCAB_FILE = "vocab.txt"
BEST_FOLDER = "best"
WORD_EMBEDDINGS = "bert/embeddings/word_embeddings"

_WEIGHT_DTYPES = ("float32", "float16", "bfloat16", "float64")


class RestoreError(ValueError):
    """A checkpoint does not fit a model. `report` holds the lists that the message prints."""

    def __init__(self, report: Report) -> None:
        super().__init__(str(report))
        self.report = report


class _Reader(Protocol):
    shapes: dict[str, tuple[int, ...]]
    dtypes: dict[str, str]

    def get(self, name: str) -> np.ndarray: ...


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """An opened checkpoint; values are read when asked for.

    Attributes:
        prefix: the original's or Model Garden's prefix, or the Hugging Face folder.
        folder: where it lies.
        kind: "original", "huggingface" or "garden" (Model Garden's).
        config: configuration found beside it, or None.
        vocab_file: path of vocab.txt found beside it, or None.
        do_lower_case: as the folder's tokenizer_config.json says, or None.
        global_step: step of the run that wrote it, or None.
        shapes: shape of each tensor by the original's name.
        dtypes: dtype of each, in numpy's names.
        left_out: reason by name of each tensor that the reader left out.
    """

    prefix: str
    folder: str
    kind: str
    config: BertConfig | None
    vocab_file: str | None
    do_lower_case: bool | None
    global_step: int | None
    shapes: Mapping[str, tuple[int, ...]]
    dtypes: Mapping[str, str]
    left_out: Mapping[str, str]
    _reader: _Reader = dataclasses.field(repr=False)

    def get(self, name: str) -> np.ndarray:
        """Values of one tensor, in the original's layout."""
        return self._reader.get(name)

    def tensors(self, wanted: Iterable[str] | None = None) -> dict[str, np.ndarray]:
        """Values by name of the wanted tensors, or of all."""
        return {name: self.get(name) for name in (self.shapes if wanted is None else wanted)}


def load(
    path: str,
    hidden_act: str | None = None,
    config_file: str | None = None,
    vocab_file: str | None = None,
) -> Checkpoint:
    """Opens an original or a Model Garden checkpoint, or a Hugging Face folder.

    Which of them it is, is told by what is there.

    Args:
        path: a prefix, a checkpoint's file or a folder (see original.resolve), or a Hugging Face
            folder or its model.safetensors.
        hidden_act: overrides the configuration's (decision 10: labels are often wrong).
        config_file: configuration to read in place of the one beside the checkpoint.
        vocab_file: vocabulary in place of the one beside the checkpoint.

    Raises:
        FileNotFoundError: there is no checkpoint, or a file named is not there.
        ValueError: the checkpoint or its configuration cannot be read; names the file. Or it is
            Model Garden's, and no configuration is given or found.
    """
    reader: original.Reader | huggingface.Reader | garden.Reader
    folder = _huggingface_folder(path)
    if folder is not None:
        reader = huggingface.Reader(folder)
        kind, prefix, step = "huggingface", folder, None
        left_out = reader.left_out
        do_lower_case = huggingface.read_do_lower_case(folder)
        config = None if config_file else huggingface.read_config(folder)
    else:
        reader = stored = original.Reader(path)
        kind, prefix, left_out, do_lower_case = "original", stored.prefix, {}, None
        folder = paths.dirname(prefix)
        config = None if config_file else _config_beside(folder)
        if garden.is_object_based(stored):
            reader = garden.Reader(stored)
            kind, left_out, step = "garden", reader.left_out, reader.global_step
            params = beside(folder, garden.PARAMS_FILE)
            if config is None and config_file is None:
                if params is None:
                    raise ValueError(garden.no_configuration(reader))
                config = garden.read_params(params)
        else:
            has_step = names.GLOBAL_STEP in stored.shapes
            step = int(stored.get(names.GLOBAL_STEP)) if has_step else None
    if config_file:
        config = BertConfig.from_json_file(config_file)
    if config and hidden_act:
        config = config.replace(hidden_act=hidden_act)
    if config and isinstance(reader, garden.Reader):
        reader.check(config)
    if vocab_file is None:
        vocab_file = beside(folder, VOCAB_FILE)
    elif not paths.exists(vocab_file):
        raise FileNotFoundError(f"There is no vocabulary file {vocab_file}.")
    return Checkpoint(
        prefix=prefix,
        folder=folder,
        kind=kind,
        config=config,
        vocab_file=vocab_file,
        do_lower_case=do_lower_case,
        global_step=step,
        shapes=reader.shapes,
        dtypes=reader.dtypes,
        left_out=left_out,
        _reader=reader,
    )


def _huggingface_folder(path: str) -> str | None:
    if path.endswith(".safetensors"):
        return paths.dirname(path) or "."
    if not huggingface.is_folder(path):
        return None
    # Where both are in one folder, the original's files are the ones that a run wrote.
    has_original = any(name.endswith(".index") for name in paths.list_dir(path))
    return None if has_original else path


def beside(folder: str, name: str) -> str | None:
    """The path of a file that belongs to the checkpoints in a folder; None where there is none.

    Those in a folder best/ belong to the run around it, where the file may lie too.
    """
    folders = [folder]
    if paths.basename(folder) == BEST_FOLDER:
        folders.append(paths.dirname(folder))
    found = (paths.join(each, name) for each in folders)
    return next((path for path in found if paths.exists(path)), None)


def _config_beside(folder: str) -> BertConfig | None:
    for name in (ORIGINAL_CONFIG_FILE, huggingface.CONFIG_FILE):
        path = beside(folder, name)
        if path is not None:
            return BertConfig.from_json_file(path)
    return None


def trained_checkpoint(folder: str, use_best: bool = True) -> str | None:
    """The prefix of the weights to use from a training run's folder; None where it has none.

    The best ones lie in the subfolder best/. They count only where the latest checkpoint's
    `<prefix>.state.json` says that this run made them: a best/ of an earlier run may be left
    over. A folder with nothing but best/ is a search's, and best/ is what it found.

    Args:
        folder: the folder with the file `checkpoint`.
        use_best: whether to prefer best/; else the latest checkpoint is the one.

    Raises:
        FileNotFoundError: a checkpoint that is named as the latest is not all there.
        ValueError: a file cannot be understood; names it.
    """
    latest = original.latest_checkpoint(folder)
    best = original.latest_checkpoint(paths.join(folder, BEST_FOLDER)) if use_best else None
    if latest is None or best is None:
        return latest or best
    state_file = f"{latest}.state.json"
    state = paths.read_json(state_file) if paths.exists(state_file) else {}
    step = original.step_of(best)
    return best if step is not None and state.get("best_step") == step else latest


@dataclasses.dataclass(frozen=True)
class Report:
    """What a merge found. Names are the original's.

    Attributes:
        source: the checkpoint's prefix or folder.
        loaded: names whose values are taken.
        missing: names that the model has and the checkpoint has not, and that may not be missing.
        extra: names that the checkpoint has and the model has not, and that may not be extra.
        misshapen: (name, the model's shape, the checkpoint's shape) of those that do not fit.
        newly_made: names that keep the model's own initial values; each was allowed to.
        left_out: reason by name of what the checkpoint has and was left out on purpose.
        hint: what is most likely wrong, "" where that is not known.
    """

    source: str
    loaded: tuple[str, ...]
    missing: tuple[str, ...]
    extra: tuple[str, ...]
    misshapen: tuple[tuple[str, tuple[int, ...], tuple[int, ...]], ...]
    newly_made: tuple[str, ...]
    left_out: Mapping[str, str]
    hint: str = ""

    @property
    def ok(self) -> bool:
        """Whether the checkpoint fits."""
        return not (self.missing or self.extra or self.misshapen)

    def __str__(self) -> str:
        lines = []
        if not self.ok:
            lines.append(f"The checkpoint {self.source} does not fit the model.")
        if self.hint:
            lines.append(self.hint)
        lines.append(f"{len(self.loaded)} weights loaded from {self.source}")
        if self.misshapen:
            lines.append(f"{len(self.misshapen)} with another shape:")
            lines += [
                f"  {name}: {list(ours)} in the model, {list(theirs)} in the checkpoint"
                for name, ours, theirs in self.misshapen
            ]
        if self.missing:
            lines.append(f"{len(self.missing)} missing in the checkpoint:")
            lines += [f"  {name}" for name in self.missing]
        if self.extra:
            lines.append(f"{len(self.extra)} in the checkpoint, not in the model:")
            lines += [f"  {name}" for name in self.extra]
        if self.newly_made:
            lines.append(f"WARNING: {len(self.newly_made)} not loaded, NEWLY MADE (untrained):")
            lines += [f"  {name}" for name in self.newly_made]
        if self.left_out:
            lines.append(f"{len(self.left_out)} left out on purpose:")
            for reason in dict.fromkeys(self.left_out.values()):
                having = [name for name, why in self.left_out.items() if why == reason]
                shown = ", ".join(having[:3]) + (", ..." if len(having) > 3 else "")
                lines.append(f"  {len(having)} ({reason}): {shown}")
        return "\n".join(lines)


def merge(
    expected: Mapping[str, tuple[int, ...]],
    checkpoint: Checkpoint,
    allow_missing: Iterable[str] = (),
    allow_extra: Iterable[str] = (),
    allow_misshapen: Iterable[str] = (),
) -> Report:
    """Compares what a model has with what a checkpoint has, strictly.

    Patterns are the shell's, where `*` also matches `/`: "cls/*", "output_*".

    The optimizer's slots and global_step are left out unless they are expected: a fresh run
    starts without them, one that is resumed expects them.

    Args:
        expected: shapes by name of the model's weights.
        checkpoint: an opened checkpoint.
        allow_missing: patterns of names that keep the model's initial values when the checkpoint
            lacks them.
        allow_extra: patterns of names in the checkpoint that the model may lack.
        allow_misshapen: patterns of names that keep the model's initial values when the shapes
            differ (a head for another number of labels).

    Returns:
        a report without missing, extra and misshapen names.

    Raises:
        RestoreError: something is missing, extra or misshapen that no pattern allows.
        CheckpointError: a weight to load is no floating-point number; names file and dtype.
    """
    allow_missing, allow_extra = tuple(allow_missing), tuple(allow_extra)
    allow_misshapen = tuple(allow_misshapen)
    loaded: list[str] = []
    missing: list[str] = []
    misshapen: list[tuple[str, tuple[int, ...], tuple[int, ...]]] = []
    newly_made: list[str] = []
    for name, ours in expected.items():
        theirs = checkpoint.shapes.get(name)
        if theirs is None:
            (newly_made if _fits(name, allow_missing) else missing).append(name)
        elif tuple(ours) == tuple(theirs):
            loaded.append(name)
        elif _fits(name, allow_misshapen):
            newly_made.append(name)
        else:
            misshapen.append((name, tuple(ours), tuple(theirs)))
    left_out, extra = dict(checkpoint.left_out), []
    for name in checkpoint.shapes:
        if name in expected:
            continue
        exclusion = names.excluded(name, names.EXCLUDED_ORIGINAL)
        if exclusion:
            left_out[name] = exclusion.reason
        elif _fits(name, allow_extra):
            left_out[name] = "the model has no use for it"
        else:
            extra.append(name)
    report = Report(
        source=checkpoint.prefix,
        loaded=tuple(loaded),
        missing=tuple(missing),
        extra=tuple(extra),
        misshapen=tuple(misshapen),
        newly_made=tuple(newly_made),
        left_out=left_out,
        hint=_hint(misshapen, missing, extra, checkpoint),
    )
    if not report.ok:
        raise RestoreError(report)
    for name in report.loaded:
        dtype = checkpoint.dtypes[name]
        if name != names.GLOBAL_STEP and dtype not in _WEIGHT_DTYPES:
            raise original.CheckpointError(
                f"{_place(checkpoint, name)} has the dtype {dtype}, but weights are "
                f"{', '.join(_WEIGHT_DTYPES[:-1])} or {_WEIGHT_DTYPES[-1]}. A quantized "
                f"checkpoint cannot be read: give the one that it was made from."
            )
    return report


def whole(checkpoint: Checkpoint, config: BertConfig) -> dict[str, tuple[int, ...]]:
    """Shapes by name of what a whole checkpoint with the parts that this one has must hold.

    A head that reads a layer of our own (names.OWN_HEADS) is taken as it is.
    """
    heads = names.heads_in(checkpoint.shapes)
    num_labels = None
    if names.CLASSIFIER in heads:
        shape = checkpoint.shapes.get("output_bias") or checkpoint.shapes["output_weights"]
        num_labels = shape[0]
    pooler = any(names.part_of(name) == names.POOLER for name in checkpoint.shapes)
    expected = names.expected_names_and_shapes(config, heads, num_labels, pooler)
    if names.is_multiple_choice(checkpoint.shapes):
        del expected["output_bias"]
    own = {name: shape for name, shape in checkpoint.shapes.items() if names.is_own(name)}
    if own:
        # Its width is that layer's, not the encoder's.
        for name in ("output_weights", "cls/squad/output_weights"):
            if name in expected and name in checkpoint.shapes:
                expected[name] = checkpoint.shapes[name]
        expected.update(own)
    return expected


def _place(checkpoint: Checkpoint, name: str) -> str:
    """The file of a tensor and its name there, for messages."""
    places = getattr(checkpoint._reader, "places", {})
    return ": ".join(places.get(name, (checkpoint.prefix, name)))


def _fits(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def _hint(
    misshapen: list[tuple[str, tuple[int, ...], tuple[int, ...]]],
    missing: list[str],
    extra: list[str],
    checkpoint: Checkpoint,
) -> str:
    shapes = {name: (ours, theirs) for name, ours, theirs in misshapen}
    if WORD_EMBEDDINGS in shapes:
        ours, theirs = shapes[WORD_EMBEDDINGS]
        if ours[1:] == theirs[1:]:
            lines = _vocabulary_length(checkpoint)
            return (
                f"The vocabulary's length and the configuration's vocab_size disagree: the model "
                f"has vocab_size {ours[0]}, the checkpoint's word embeddings have {theirs[0]} "
                f"rows{lines}. Give the bert_config.json and vocab.txt that belong to the "
                f"checkpoint."
            )
        return (
            f"The configuration is that of a model of another size: word embeddings of "
            f"{list(ours)} in the model, {list(theirs)} in the checkpoint. Give the "
            f"bert_config.json that belongs to the checkpoint."
        )
    if any(name in ("output_weights", "output_bias") for name in shapes):
        ours, theirs = shapes.get("output_bias") or shapes["output_weights"]
        return (
            f"The task has {ours[0]} labels, the checkpoint was trained for {theirs[0]}: another "
            f"task or another set of labels."
        )
    if "layer_" in "".join(missing + extra):
        return (
            "The number of layers differs: give the bert_config.json that belongs to the "
            "checkpoint."
        )
    return ""


def _vocabulary_length(checkpoint: Checkpoint) -> str:
    if checkpoint.vocab_file is None:
        return ""
    return f" and {checkpoint.vocab_file} has {count_vocabulary(checkpoint.vocab_file)} lines"


def count_vocabulary(vocab_file: str) -> int:
    """The number of ids that a vocabulary file gives out: its lines, blank ones included."""
    with paths.open_file(vocab_file, "rb") as handle:
        content = handle.read()
    return content.count(b"\n") + (not content.endswith(b"\n") and content != b"")


def values(checkpoint: Checkpoint, report: Report) -> Iterator[tuple[str, np.ndarray]]:
    """Reads the loaded names one by one: (name, values), weights in float32.

    What float32 cannot hold (of float64 weights) becomes an infinity.
    """
    for name in report.loaded:
        array = checkpoint.get(name)
        if name != names.GLOBAL_STEP:
            with np.errstate(over="ignore"):
                array = array.astype(np.float32, copy=False)
        yield name, array


def finite_values(checkpoint: Checkpoint, report: Report) -> Iterator[tuple[str, np.ndarray]]:
    """As `values`, for what must hold numbers alone.

    Raises:
        CheckpointError: a tensor holds NaN or an infinity; names it.
    """
    for name, array in values(checkpoint, report):
        if not np.isfinite(array).all():
            count = array.size - np.count_nonzero(np.isfinite(array))
            raise original.CheckpointError(
                f"{_place(checkpoint, name)} holds NaN or infinity ({count} of {array.size} "
                f"values): the run that wrote it diverged, or the file is damaged. Give an "
                f"earlier checkpoint."
            )
        yield name, array
