"""Where features go: a file or a folder that grows under another name until it is finished.

What is written after each pool of lines says how far a run came, so that one that was killed goes
on from there.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import IO, Any

from absl import logging

from bert_tf import errors, paths
from bert_tf.features import formats
from bert_tf.features.extractor import Layer
from bert_tf.features.formats import Record

FORMATS = ("jsonl", "npz", "parquet")

_INFO = "_info.json"  # Readers of parquet folders pass over names with a "_".
_PROGRESS = "_progress.json"


@dataclasses.dataclass
class Progress:
    """How far a run came.

    Attributes:
      lines: of the input that are done.
      digest: SHA-256 of these lines.
      tokens, truncated, blank: tokens seen, lines that were cut, lines without a token.
      written: bytes of the JSON lines, or number of parts.
    """

    lines: int = 0
    digest: str = ""
    tokens: int = 0
    truncated: int = 0
    blank: int = 0
    written: int = 0


class JsonLines:
    """A file of JSON lines that grows under another name until it is finished.

    `<path>.partial` grows, and `<path>.partial.json` says how much of it counts. Of an address the
    two lie in the system's folder for temporary files, since what is there cannot grow.

    Args:
      path: the file to write; one that exists is replaced at the end.
      names: from `layer_names`.
      settings: all that the values depend on, as JSON has it; a run goes on under the same only.

    Raises:
      ValueError: what is there was begun with other settings; says which.
      OSError: the file cannot be written, or another process writes it.
    """

    def __init__(self, path: str, names: Sequence[Layer], settings: Mapping[str, Any]):
        self._path, self._names, self._settings = path, names, settings
        self.partial = f"{_staged(path)}.partial"
        self._state = f"{self.partial}.json"
        self._file = _open_locked(self.partial, path)
        try:
            self.progress = _read_progress(self._state, settings, self.partial)
        except BaseException:
            self._file.close()
            raise
        if os.path.getsize(self.partial) < self.progress.written:
            logging.warning("%s is shorter than it should be: starting over", self.partial)
            self.progress = Progress()
        self._file.truncate(self.progress.written)

    def write(self, records: Sequence[Record], progress: Progress) -> None:
        """Adds records; `progress` is how far they take the run, less `written`."""
        with errors.writing(self.partial):
            for record in records:
                self._file.write(formats.to_json(record, self._names).encode("ascii") + b"\n")
            self._file.flush()
            os.fsync(self._file.fileno())
        self.progress = dataclasses.replace(progress, written=self._file.tell())
        _write_progress(self._state, self.progress, self._settings)

    def finish(self) -> None:
        """Gives the file its name."""
        if not paths.HAS_LOCKS:
            self._file.close()  # Windows renames no open file.
        if paths.has_scheme(self._path):
            paths.copy(self.partial, self._path)
            paths.remove(self.partial)
        else:
            paths.rename(self.partial, _staged(self._path))
        paths.remove(self._state)
        paths.remove(f"{self._state}.new")
        self._file.close()

    def close(self) -> None:
        """Leaves the file for another run, unless there is nothing in it."""
        if not self.progress.lines and not self._file.closed:
            for path in (self.partial, self._state, f"{self._state}.new"):
                paths.remove(path)
        self._file.close()


class Parts:
    """A folder of files, a pool of lines each, that has another name until it is finished.

    `<path>.partial` holds the parts so far and _progress.json; at the end _info.json is added and
    the folder becomes `path`. At an address, where folders cannot be renamed, the files are moved
    one by one, _info.json last.

    Args and Raises: as `JsonLines`; `path` must not exist.
      kind: "npz" or "parquet".
    """

    def __init__(
        self, path: str, names: Sequence[Layer], settings: Mapping[str, Any], kind: str
    ) -> None:
        self._path = path.rstrip("/")
        self._names, self._settings, self._kind = names, settings, kind
        make: dict[str, Callable[..., memoryview]] = {
            "npz": formats.to_npz,
            "parquet": formats.to_parquet,
        }
        self._make = make[kind]
        self.partial = f"{self._path}.partial"
        self._state = paths.join(self.partial, _PROGRESS)
        paths.make_dirs(self.partial)
        self._lock: int | None = None
        try:
            if not paths.has_scheme(path) and paths.HAS_LOCKS:
                self._lock = os.open(paths.local(self.partial), os.O_RDONLY)
                _lock(self._lock, path)
            self.progress = _read_progress(self._state, settings, self.partial)
        except BaseException:
            self._unlock()
            raise

    def _part(self, folder: str, number: int) -> str:
        return paths.join(folder, f"part-{number:05d}.{self._kind}")

    def write(self, records: Sequence[Record], progress: Progress) -> None:
        """Adds records as a part; `progress` is how far they take the run, less `written`."""
        number = self.progress.written
        content = self._make(records, self._names)
        with paths.atomic_write(self._part(self.partial, number), "wb") as file:
            file.write(content)
        self.progress = dataclasses.replace(progress, written=number + 1)
        _write_progress(self._state, self.progress, self._settings)

    def finish(self) -> None:
        """Gives the folder its name."""
        parts = self.progress.written
        # A run that was killed may have left one more, or one half-written under another name.
        known = {paths.basename(self._part("", number)) for number in range(parts)}
        for name in paths.list_dir(self.partial):
            if name not in known and name != _PROGRESS:
                paths.remove(paths.join(self.partial, name))
        info = {
            "format": self._kind,
            "layers": list(self._names),
            "texts": self.progress.lines,
            "tokens": self.progress.tokens,
            "truncated": self.progress.truncated,
            "parts": parts,
            "settings": self._settings,
        }
        paths.write_json(paths.join(self.partial, _INFO), info)
        if paths.has_scheme(self._path):
            # All are copied before one is deleted: a run that ends here goes on with the copies.
            for name in [*sorted(known), _INFO]:
                paths.copy(paths.join(self.partial, name), paths.join(self._path, name))
            # What tells of a run to go on with goes first.
            for name in [_PROGRESS, *sorted(known), _INFO]:
                paths.remove(paths.join(self.partial, name))
        else:
            paths.rename(self.partial, self._path)
            paths.remove(paths.join(self._path, _PROGRESS))
        self._unlock()

    def close(self) -> None:
        """Leaves the folder for another run, unless there is nothing in it."""
        if not self.progress.lines and not paths.has_scheme(self._path):
            with contextlib.suppress(OSError):
                os.rmdir(paths.local(self.partial))
        self._unlock()

    def _unlock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def _staged(path: str) -> str:
    """Returns the local path at which a file grows, less its ending."""
    if not paths.has_scheme(path):
        return os.path.realpath(paths.local(path))
    name = hashlib.sha256(path.encode()).hexdigest()[:16]
    return os.path.join(tempfile.gettempdir(), f"bert_tf_features_{name}")


def _open_locked(partial: str, path: str) -> IO[bytes]:
    """Opens a file that this process alone makes longer."""
    while True:
        file = paths.open_file(partial, "ab")
        try:
            _lock(file.fileno(), path)
            # Else another process has finished it and given it its name.
            if os.path.samestat(os.fstat(file.fileno()), os.stat(partial)):
                return file
        except FileNotFoundError:
            pass
        except BaseException:
            file.close()
            raise
        file.close()


def _lock(descriptor: int, path: str) -> None:
    paths.lock(
        descriptor, f"another process writes {path}: wait until it ends, or give another file"
    )


def _write_progress(path: str, progress: Progress, settings: Mapping[str, Any]) -> None:
    # Not by atomic_write: a name that is always the same leaves nothing behind in the end.
    temporary = f"{path}.new"
    with errors.writing(path), paths.open_file(temporary, "w") as file:
        json.dump({"progress": dataclasses.asdict(progress), "settings": settings}, file)
        file.flush()
        if not paths.has_scheme(path):
            os.fsync(file.fileno())
    paths.rename(temporary, path)


def _read_progress(path: str, settings: Mapping[str, Any], partial: str) -> Progress:
    """Returns where a run stands: at its beginning where there is no file."""
    if not paths.exists(path):
        return Progress()
    saved = paths.read_json(path)
    began = saved.get("settings", {})
    now = json.loads(json.dumps(settings))
    changed = [
        f"{name} (then {began.get(name)!r}, now {now.get(name)!r})"
        for name in sorted({*began, *now})
        if began.get(name) != now.get(name)
    ]
    if changed:
        raise ValueError(
            f"{partial} was begun by a run with another {', another '.join(changed)}. To go on, "
            f"give what it had; to start over, delete {partial} and {path}."
        )
    return Progress(**saved["progress"])


def open_output(
    path: str, output_format: str, names: Sequence[Layer], settings: Mapping[str, Any]
) -> JsonLines | Parts:
    """Opens what features are written to, new or where a run that was killed left it."""
    if output_format == "jsonl":
        return JsonLines(path, names, settings)
    return Parts(path, names, settings, output_format)


def check_output(path: str, output_format: str, inputs: Sequence[str]) -> None:
    """Checks that a file can be written, before the first hour of work.

    Args:
      path: the file or, for npz and parquet, the folder.
      output_format: one of FORMATS.
      inputs: files that are read, and must not be the output.

    Raises:
      ValueError: it is one of the inputs, or there already.
      OSError: it cannot be written.
      ImportError: parquet needs a package that is not installed.
    """
    if output_format == "parquet":
        formats.import_pyarrow()
    for each in inputs:
        local = not (paths.has_scheme(path) or paths.has_scheme(each))
        if (_real(path) == _real(each)) if local else path == each:
            raise ValueError(f"The output file {path} is also read; give another --output_file.")
    if output_format != "jsonl":
        if paths.exists(path) and not _is_half_copied(path):
            raise ValueError(
                f"{path} is there already; {output_format} output is a new folder of that name. "
                "Delete it, or give another --output_file."
            )
    elif paths.is_dir(path):
        raise ValueError(f"The output file {path} is a folder; name a file in it.")
    elif not paths.has_scheme(path) and paths.exists(path) and not os.path.isfile(_real(path)):
        raise ValueError(f"The output file {path} is not a regular file; name one.")
    # Writing the probe names the reason; an address is asked when the first part is written.
    if not paths.has_scheme(path):
        probe = f"{_real(path)}.writable"
        try:
            with open(probe, "wb"):
                pass
            os.remove(probe)
        except OSError as error:
            raise OSError(
                f"cannot write {path}: {error.strerror}; give another --output_file, or make its "
                "folder and the permissions right"
            ) from error


def _is_half_copied(path: str) -> bool:
    """Tells whether an address holds what a run that ended in `Parts.finish` copied there."""
    return (
        paths.has_scheme(path)
        and not paths.exists(paths.join(path, _INFO))
        and paths.exists(paths.join(f"{path.rstrip('/')}.partial", _PROGRESS))
    )


def _real(path: str) -> str:
    return os.path.realpath(paths.local(path)).rstrip("/")


def read_features(path: str) -> Iterator[Record]:
    """Reads what a finished run wrote, of any format, a line's features at a time.

    Raises:
      FileNotFoundError: there is no such file, or a folder is not finished.
      ValueError: a folder is not one of features.
    """
    if not paths.is_dir(path):
        with paths.open_file(path, "rb") as file:
            yield from formats.from_json(file)
        return
    info_file = paths.join(path, _INFO)
    if not paths.exists(info_file):
        raise FileNotFoundError(f"{path} has no {_INFO}: it holds no finished features.")
    info = paths.read_json(info_file)
    read = {"npz": formats.from_npz, "parquet": formats.from_parquet}.get(info.get("format", ""))
    if read is None:
        raise ValueError(f"{info_file}: format is {info.get('format')!r}.")
    for number in range(info["parts"]):
        name = paths.join(path, f"part-{number:05d}.{info['format']}")
        with paths.open_file(name, "rb") as file:
            yield from read(file)
