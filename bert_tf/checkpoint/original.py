"""The original's checkpoints: tensor bundles and the `checkpoint` state file.

A checkpoint is named by its prefix: `<prefix>.index` and `<prefix>.data-00000-of-00001` (or more
of these). Files are written with TensorFlow's own ops, so that its Saver reads them; TensorFlow
is imported when a file is opened or written, not before.
"""

from __future__ import annotations

import contextlib
import glob
import math
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from bert_tf import errors, paths

STATE_FILE = "checkpoint"
RELEASED_NAME = "bert_model.ckpt"

_ENDING = re.compile(r"\.(index|meta|data-\d{5}-of-\d{5})$")
_SHARD = re.compile(r"\.data-(\d{5})-of-(\d{5})$")
_STEP = re.compile(r"-(\d+)$")
_INCOMPLETE = ".incomplete"
# How the folder begins that a whole folder is written to first.
_ASIDE = ".bert_tf_incomplete_"


class CheckpointError(ValueError):
    """A checkpoint's files are cut short, corrupt, or not what they are taken for."""


def resolve(path: str) -> str:
    """Finds the checkpoint that a user's path means.

    Args:
        path: a prefix; or one of the checkpoint's files (.index, .meta, .data-00000-of-00001);
            or a folder, where the `checkpoint` file decides, else bert_model.ckpt is taken, else
            the model.ckpt-N of the highest N, else the only checkpoint there is.

    Returns:
        the prefix, whose files are all there.

    Raises:
        FileNotFoundError: there is none; says what is there instead.
    """
    prefix = _ENDING.sub("", path)
    if paths.exists(prefix + ".index"):
        shard_files(prefix)
        return prefix
    if prefix == path and paths.is_dir(path):
        return _resolve_directory(path)
    folder = paths.dirname(prefix)
    if _shards_in(_names_in(folder), paths.basename(prefix)):
        raise FileNotFoundError(
            f"{prefix}.index is missing, though a data file is there: the checkpoint was copied "
            f"or written only in part."
        )
    raise FileNotFoundError(f"There is no checkpoint {prefix}. {_describe(folder)}")


def _resolve_directory(directory: str) -> str:
    latest = latest_checkpoint(directory)
    if latest:
        return latest
    found = [name[: -len(".index")] for name in _names_in(directory) if name.endswith(".index")]
    runs = [name for name in found if re.fullmatch(r"model\.ckpt-\d+", name)]
    if RELEASED_NAME in found:
        chosen = RELEASED_NAME
    elif runs:
        chosen = max(runs, key=lambda name: step_of(name) or 0)
    elif len(found) == 1:
        chosen = found[0]
    elif found:
        raise FileNotFoundError(
            f"The folder {directory} holds several checkpoints: {', '.join(found)}. Name one."
        )
    else:
        raise FileNotFoundError(f"There is no checkpoint in {directory}. {_describe(directory)}")
    prefix = paths.join(directory, chosen)
    shard_files(prefix)
    return prefix


def _names_in(folder: str) -> list[str]:
    folder = folder or "."
    return paths.list_dir(folder) if paths.is_dir(folder) else []


def _describe(folder: str) -> str:
    folder = folder or "."
    if not paths.is_dir(folder):
        return f"There is no folder {folder} either."
    entries = _names_in(folder)
    if not entries:
        return f"The folder {folder} is empty."
    shown = ", ".join(entries[:20]) + (", ..." if len(entries) > 20 else "")
    return f"The folder {folder} holds: {shown}."


def _shards_in(entries: Sequence[str], name: str) -> list[tuple[int, int]]:
    """(number, count) of each data file of the checkpoint `name` among a folder's entries."""
    found = []
    for entry in entries:
        match = _SHARD.search(entry)
        if match and entry[: match.start()] == name:
            found.append((int(match.group(1)), int(match.group(2))))
    return found


def shard_files(prefix: str) -> list[str]:
    """The paths of a checkpoint's data files.

    Raises:
        FileNotFoundError: one is missing; names it.
    """
    found = _shards_in(_names_in(paths.dirname(prefix)), paths.basename(prefix))
    if not found:
        raise FileNotFoundError(
            f"{prefix}.data-00000-of-00001 is missing, though {prefix}.index is there: the "
            f"checkpoint was copied only in part."
        )
    # Files of two counts can stand side by side where a checkpoint was written twice.
    counts = sorted({count for _, count in found})
    for count in counts:
        if all((number, count) in found for number in range(count)):
            return [f"{prefix}.data-{number:05d}-of-{count:05d}" for number in range(count)]
    count = counts[0]
    number = min(number for number in range(count) if (number, count) not in found)
    raise FileNotFoundError(
        f"{prefix}.data-{number:05d}-of-{count:05d} is missing: the checkpoint was copied only "
        f"in part."
    )


def is_complete(prefix: str) -> bool:
    """Whether all files of a checkpoint are there."""
    try:
        shard_files(prefix)
    except FileNotFoundError:
        return False
    return paths.exists(prefix + ".index")


def step_of(prefix: str) -> int | None:
    """The N of a prefix that ends in -N."""
    match = _STEP.search(prefix)
    return int(match.group(1)) if match else None


class Reader:
    """Reads one checkpoint; a tensor's values only when asked for.

    Args:
        path: as for `resolve`.

    Attributes:
        prefix: the checkpoint's prefix.
        shapes: shape of each variable by name, in order of the names.
        dtypes: numpy's name of each variable's dtype ("float32", "int64"; "string").

    Raises:
        FileNotFoundError: there is no such checkpoint.
        CheckpointError: a file is cut short or corrupt; names it with its size.

    Example:
        >>> reader = Reader("uncased_L-12_H-768_A-12")
        >>> reader.get("bert/pooler/dense/bias").shape
        (768,)
    """

    def __init__(self, path: str) -> None:
        import tensorflow as tf

        self.prefix = resolve(path)
        # A staged copy lives as long as the reader does.
        self._stack = contextlib.ExitStack()
        staged = self._stack.enter_context(paths.stage_in(self.prefix))
        try:
            self._reader = tf.train.load_checkpoint(staged)
            shapes = self._reader.get_variable_to_shape_map()
            dtypes = self._reader.get_variable_to_dtype_map()
        except Exception as error:
            index = self.prefix + ".index"
            raise CheckpointError(
                f"{index} ({paths.size(index)} bytes) is cut short or corrupt, or no checkpoint "
                f"at all: {_one_line(error)}. Copy or download the checkpoint again."
            ) from None
        self.shapes: dict[str, tuple[int, ...]] = {
            name: tuple(shapes[name]) for name in sorted(shapes)
        }
        self.dtypes: dict[str, str] = {name: dtypes[name].name for name in sorted(shapes)}
        self._check_size({name: dtypes[name].size for name in shapes})

    def _check_size(self, item_sizes: Mapping[str, int]) -> None:
        needed = sum(
            math.prod(self.shapes[name]) * item_sizes[name]
            for name in self.shapes
            if self.dtypes[name] != "string"
        )
        files = shard_files(self.prefix)
        actual = sum(paths.size(file) for file in files)
        if actual < needed:
            raise CheckpointError(
                f"{', '.join(files)}: cut short: {actual} bytes, but the variables that the index "
                f"lists take {needed}. Copy or download the checkpoint again."
            )

    def get(self, name: str) -> np.ndarray:
        """One variable's values, in the dtype that they are stored in.

        Raises:
            KeyError: there is no such variable.
            CheckpointError: its values cannot be read, or do not fit their checksum.
        """
        if name not in self.shapes:
            raise KeyError(f"{self.prefix} has no variable {name}.")
        try:
            return np.asarray(self._reader.get_tensor(name))
        except Exception as error:
            sizes = ", ".join(f"{file} ({paths.size(file)} bytes)" for file in self._files())
            raise CheckpointError(
                f"{sizes}: the values of {name} cannot be read, the file is corrupt: "
                f"{_one_line(error)}. Copy or download the checkpoint again."
            ) from None

    def _files(self) -> list[str]:
        return shard_files(self.prefix)


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split()).rstrip(".") or type(error).__name__


def write(prefix: str, tensors: Mapping[str, Any]) -> None:
    """Writes a checkpoint that TensorFlow's Saver and checkpoint readers can read.

    The files are written in a folder beside and moved, the index last: an interrupted write
    leaves no index, so nothing that could be taken for a checkpoint. One of the same prefix is
    replaced.

    Args:
        prefix: where; the folder is made.
        tensors: values by variable name, in the dtype to store (a plain int becomes int64).

    Raises:
        ValueError: there is nothing to write.
        OSError: the files cannot be written; nothing is left of them.
    """
    if not tensors:
        raise ValueError(f"{prefix}: there are no variables to write.")
    arrays = {name: _as_array(name, tensors[name]) for name in sorted(tensors)}
    publish(prefix, lambda staged: _save(staged, arrays))


def publish(prefix: str, save: Callable[[str], None]) -> None:
    """Lets `save` write a checkpoint's files elsewhere and moves them, the index last.

    Args:
        prefix: where the checkpoint is to be; the folder is made, one of the same prefix replaced.
        save: writes a checkpoint at the prefix that it is given.

    Raises:
        OSError: TensorFlow cannot write it; nothing is left of it.
    """
    import tensorflow as tf

    try:
        _publish_saved(prefix, save)
    except tf.errors.OpError as error:
        raise OSError(f"{prefix} could not be written: {errors.message(error)}") from None


def _publish_saved(prefix: str, save: Callable[[str], None]) -> None:
    scheme = paths.scheme(prefix)
    if scheme == "gs":
        # TensorFlow writes there itself: data first, each object whole when it is closed.
        paths.remove(prefix + ".index")
        save(prefix)
    elif scheme:
        with tempfile.TemporaryDirectory(prefix="bert_tf_") as folder:
            name = paths.basename(prefix)
            save(os.path.join(folder, name))
            paths.make_dirs(paths.dirname(prefix))
            _publish(os.path.join(folder, name), prefix, paths.copy)
    else:
        prefix = paths.local(prefix)
        folder = prefix + _INCOMPLETE
        os.makedirs(os.path.dirname(prefix) or ".", exist_ok=True)
        # What a killed run may have left.
        shutil.rmtree(folder, ignore_errors=True)
        os.mkdir(folder)
        try:
            staged = os.path.join(folder, os.path.basename(prefix))
            save(staged)
            for file in (*shard_files(staged), staged + ".index"):
                _sync(file)
            _publish(staged, prefix, paths.rename)
        finally:
            shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def whole_folder(folder: str, replaced: Sequence[str] = ()) -> Iterator[str]:
    """Yields a local folder to write to, whose files take their places in `folder` in the end.

    Until then `folder` is as it was; on an error it stays so.

    Args:
        folder: where they are to be; it is made.
        replaced: paths in it of which nothing is left, whether there is a new file of the name or
            not: labels or a vocabulary would pass for the new model's.
    """
    with contextlib.ExitStack() as stack:
        if paths.has_scheme(folder):
            aside = stack.enter_context(tempfile.TemporaryDirectory(prefix="bert_tf_"))
            move = paths.copy
        else:
            # In the folder itself, which may be a disk of its own, or in one not to be written to.
            folder = paths.local(folder)
            if not os.path.isdir(folder):
                stack.callback(_remove_if_empty, folder)
            paths.make_dirs(folder)
            for left in glob.glob(paths.join(glob.escape(folder), f"{_ASIDE}*")):
                shutil.rmtree(left, ignore_errors=True)  # Of a command that was killed.
            aside = tempfile.mkdtemp(prefix=_ASIDE, dir=folder)
            stack.callback(shutil.rmtree, aside, ignore_errors=True)
            move = paths.rename
        yield aside
        names = paths.list_dir(aside)
        for path in replaced:
            # An old index beside new data would look finished.
            if paths.basename(path) not in names or path.endswith(".index"):
                paths.remove(path)
        for name in sorted(names, key=lambda name: name.endswith(".index")):
            move(paths.join(aside, name), paths.join(folder, name))


def _remove_if_empty(folder: str) -> None:
    with contextlib.suppress(OSError):
        os.rmdir(folder)


def _as_array(name: str, value: Any) -> np.ndarray:
    array = np.asarray(value)
    if array.dtype == object:
        raise ValueError(f"{name}: expected numbers, found {type(value).__name__}.")
    return array


def _save(prefix: str, arrays: Mapping[str, np.ndarray]) -> None:
    import tensorflow as tf

    with tf.device("/CPU:0"):
        tf.raw_ops.SaveV2(
            prefix=prefix,
            tensor_names=list(arrays),
            shape_and_slices=[""] * len(arrays),
            tensors=[tf.constant(array) for array in arrays.values()],
        )


def _sync(file: str) -> None:
    with open(file, "rb+") as handle:
        os.fsync(handle.fileno())


def _publish(staged: str, prefix: str, move: Any) -> None:
    """Moves or copies a finished checkpoint to its place, the index last."""
    folder = paths.dirname(prefix)
    old = _shards_in(_names_in(folder), paths.basename(prefix))
    # An old index beside new data would look finished.
    paths.remove(prefix + ".index")
    new = []
    for file in shard_files(staged):
        match = _SHARD.search(file)
        assert match is not None
        move(file, prefix + match.group())
        new.append((int(match.group(1)), int(match.group(2))))
    for number, count in old:
        if (number, count) not in new:
            paths.remove(f"{prefix}.data-{number:05d}-of-{count:05d}")
    move(staged + ".index", prefix + ".index")


def delete(prefix: str) -> None:
    """Deletes a checkpoint's files, the index first; what is not there is fine."""
    for ending in (".index", ".meta"):
        paths.remove(prefix + ending)
    for number, count in _shards_in(_names_in(paths.dirname(prefix)), paths.basename(prefix)):
        paths.remove(f"{prefix}.data-{number:05d}-of-{count:05d}")
    if not paths.has_scheme(prefix):
        shutil.rmtree(paths.local(prefix) + _INCOMPLETE, ignore_errors=True)


# The `checkpoint` file: a text protocol buffer of which two fields matter here.
_FIELD = re.compile(
    r"^\s*(model_checkpoint_path|all_model_checkpoint_paths)\s*:\s*"
    r"(?:\"((?:[^\"\\]|\\.)*)\"|'((?:[^'\\]|\\.)*)')\s*$"
)
_ESCAPE = re.compile(r"\\(?:([0-7]{1,3})|x([0-9a-fA-F]{1,2})|(.))", re.DOTALL)
_SIMPLE_ESCAPES = {"n": "\n", "r": "\r", "t": "\t"}


def _unescape(text: str) -> str:
    """Undoes a text protocol buffer's escapes, which stand for bytes of UTF-8."""

    def byte(match: re.Match[str]) -> str:
        octal, hexadecimal, other = match.groups()
        if octal:
            return chr(int(octal, 8) & 0xFF)
        if hexadecimal:
            return chr(int(hexadecimal, 16))
        return _SIMPLE_ESCAPES.get(other, other)

    as_bytes = text.encode("utf-8").decode("latin-1")
    return _ESCAPE.sub(byte, as_bytes).encode("latin-1").decode("utf-8", "replace")


def _escape(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return escaped.replace("\n", "\\n").replace("\r", "\\r")


def _read_state(directory: str) -> tuple[str | None, list[str]]:
    """(latest, all) as full prefixes from the `checkpoint` file; (None, []) where there is none."""
    path = paths.join(directory, STATE_FILE)
    if not paths.exists(path):
        return None, []
    latest, every = None, []
    try:
        with paths.open_file(path) as handle:
            lines = handle.read().split("\n")
    except UnicodeDecodeError:
        lines = []
    for line in lines:
        match = _FIELD.match(line)
        if match:
            name = _unescape(match.group(2) if match.group(2) is not None else match.group(3))
            prefix = _in_directory(directory, name)
            if match.group(1) == "model_checkpoint_path":
                latest = prefix
            else:
                every.append(prefix)
    if latest is None:
        raise CheckpointError(
            f"{path} names no model_checkpoint_path: it is cut short or corrupt. Remove it to "
            f"start anew, or write the latest checkpoint's name into it."
        )
    return latest, every


def _in_directory(directory: str, name: str) -> str:
    if not (os.path.isabs(name) or paths.has_scheme(name)):
        return paths.join(directory, name)
    # A folder that was moved keeps its old absolute paths.
    beside = paths.join(directory, paths.basename(name))
    return beside if not is_complete(name) and is_complete(beside) else name


def latest_checkpoint(directory: str) -> str | None:
    """The prefix of the latest checkpoint by the `checkpoint` file; None without such a file.

    Raises:
        FileNotFoundError: the file names a checkpoint whose files are not all there.
        CheckpointError: the file cannot be understood.
    """
    latest, every = _read_state(directory)
    if latest is None or is_complete(latest):
        return latest
    others = [prefix for prefix in every if is_complete(prefix)]
    advice = f"complete are: {', '.join(others)}" if others else "no other is complete"
    state = paths.join(directory, STATE_FILE)
    raise FileNotFoundError(
        f"{state} says that the latest checkpoint is {latest}, but its files are not all there; "
        f"{advice}. Bring the files back, or correct or remove {state}."
    )


def all_checkpoints(directory: str) -> list[str]:
    """The prefixes in the `checkpoint` file whose files are there, oldest first."""
    latest, every = _read_state(directory)
    if latest is not None and latest not in every:
        every.append(latest)
    return [prefix for prefix in every if is_complete(prefix)]


def write_state(directory: str, latest: str, every: Sequence[str] = ()) -> None:
    """Writes the `checkpoint` file, whole or not at all.

    Args:
        directory: the folder; checkpoints inside it are named relative to it.
        latest: prefix of the latest checkpoint.
        every: prefixes of all that are kept, oldest first; `latest` is added if it is missing.
    """

    def relative(prefix: str) -> str:
        inside = paths.dirname(prefix).rstrip("/") == paths.local(directory).rstrip("/")
        if inside or paths.has_scheme(prefix):
            return paths.basename(prefix) if inside else prefix
        return os.path.relpath(os.path.abspath(prefix), os.path.abspath(directory))

    names = [relative(prefix) for prefix in every]
    if relative(latest) not in names:
        names.append(relative(latest))
    lines = [f'model_checkpoint_path: "{_escape(relative(latest))}"']
    lines += [f'all_model_checkpoint_paths: "{_escape(name)}"' for name in names]
    with paths.atomic_write(paths.join(directory, STATE_FILE)) as handle:
        handle.write("\n".join(lines) + "\n")
