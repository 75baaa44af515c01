"""Files by path or by address: one small set of functions wherever a user gives a path.

Local paths go straight to the operating system. `gs://` is TensorFlow's own file system; every
other scheme (`s3://`, `hdfs://`, `memory://`, ...) goes through fsspec, an optional dependency.
What only TensorFlow can write or read (checkpoints, events) is staged in a local folder where
TensorFlow does not know the scheme: `stage_in`, `copy`.
"""

import contextlib
import fnmatch
import glob as _glob
import io
import json
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterator, Mapping
from typing import IO, Any

from bert_tf import errors

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

# Whether this system has the locks of `lock`.
HAS_LOCKS = fcntl is not None

_SCHEME = re.compile(r"^([A-Za-z][A-Za-z0-9+.\-]+)://")


def scheme(path: str) -> str:
    """Returns the scheme in lower case ("gs", "s3", ...), or "" for a local path or `file://`."""
    match = _SCHEME.match(path)
    name = match.group(1).lower() if match else ""
    return "" if name == "file" else name


def has_scheme(path: str) -> bool:
    """Tells whether `path` is an address rather than a local path."""
    return scheme(path) != ""


def tensorflow_reads(path: str) -> bool:
    """Tells whether TensorFlow's own file system can read and write `path`."""
    return scheme(path) in ("", "gs")


def local(path: str) -> str:
    """Returns a local path without its `file://`; `~` stays as it is, as the shell expands it."""
    return path[len("file://") :] if path.lower().startswith("file://") else path


def _gfile() -> Any:
    import tensorflow as tf

    return tf.io.gfile


def _fs(path: str) -> tuple[Any, str]:
    """Returns the fsspec file system of an address and the path inside it."""
    try:
        import fsspec
    except ImportError as error:
        raise ImportError(
            f"{path}: paths that begin with {scheme(path)}:// need fsspec and its driver; "
            f"install them with: pip install fsspec[{scheme(path)}]"
        ) from error
    try:
        return fsspec.core.url_to_fs(path)
    except ImportError as error:
        raise ImportError(
            f"{path}: paths that begin with {scheme(path)}:// need a driver ({error}); "
            f"install it with: pip install fsspec[{scheme(path)}]"
        ) from error
    except ValueError as error:
        raise ValueError(f"{path} is no address that fsspec reads: {error}") from error


def _full(path: str, inner: str, found: str) -> str:
    """Makes an address of `found`, which fsspec returned for `path` (`inner` to fsspec)."""
    start = len(scheme(path)) + 3
    host = path[start:].split("/", 1)[0]
    if inner.lstrip("/").split("/", 1)[0] == host:
        return path[:start] + found.lstrip("/")
    # hdfs, sftp: the host is no part of the path.
    return path[:start] + host + found


def join(path: str, *parts: str) -> str:
    """Joins path components; an address is always joined with "/"."""
    if has_scheme(path):
        return "/".join([path.rstrip("/"), *parts])
    return os.path.join(local(path), *parts)


def dirname(path: str) -> str:
    """Returns the folder of a path, "" for a bare local name."""
    if has_scheme(path):
        return path.rpartition("/")[0]
    return os.path.dirname(local(path))


def basename(path: str) -> str:
    """Returns the last component of a path."""
    return (
        path.rstrip("/").rpartition("/")[2] if has_scheme(path) else os.path.basename(local(path))
    )


def exists(path: str) -> bool:
    """Tells whether a file or folder is there."""
    kind = scheme(path)
    if not kind:
        return os.path.exists(local(path))
    if kind == "gs":
        return _gfile().exists(path)
    fs, inner = _fs(path)
    return fs.exists(inner)


def is_dir(path: str) -> bool:
    """Tells whether a folder is there."""
    kind = scheme(path)
    if not kind:
        return os.path.isdir(local(path))
    if kind == "gs":
        return _gfile().isdir(path)
    fs, inner = _fs(path)
    return fs.isdir(inner)


def size(path: str) -> int:
    """Returns a file's size in bytes."""
    kind = scheme(path)
    if not kind:
        return os.path.getsize(local(path))
    if kind == "gs":
        return _gfile().stat(path).length
    fs, inner = _fs(path)
    return fs.size(inner)


def list_dir(path: str) -> list[str]:
    """Returns the names in a folder, sorted."""
    kind = scheme(path)
    if not kind:
        return sorted(os.listdir(local(path)))
    if kind == "gs":
        return sorted(name.rstrip("/") for name in _gfile().listdir(path))
    fs, inner = _fs(path)
    # Object stores cache their listings: what was just written must be seen.
    fs.invalidate_cache()
    return sorted(basename(name) for name in fs.ls(inner, detail=False))


def glob(pattern: str) -> list[str]:
    """Returns the paths that match a shell pattern, sorted; a path without wildcards is one."""
    kind = scheme(pattern)
    if not kind:
        pattern = local(pattern)
        # A file whose own name holds "[" is meant before the pattern is.
        return [pattern] if os.path.exists(pattern) else sorted(_glob.glob(pattern, recursive=True))
    if kind == "gs":
        return sorted(_gfile().glob(pattern))
    fs, inner = _fs(pattern)
    return sorted(_full(pattern, inner, name) for name in fs.glob(inner))


def make_dirs(path: str) -> None:
    """Makes a folder and its parents; one that exists is fine.

    Raises:
      OSError: if the folder cannot be made; the message names it.
    """
    kind = scheme(path)
    if not kind:
        os.makedirs(local(path) or ".", exist_ok=True)
    elif kind == "gs":
        _gfile().makedirs(path)
    else:
        fs, inner = _fs(path)
        fs.makedirs(inner, exist_ok=True)


def rename(source: str, target: str) -> None:
    """Moves a file over `target`; atomic on a local disk."""
    kind = scheme(source)
    if not kind:
        os.replace(local(source), local(target))
    elif kind == "gs":
        _gfile().rename(source, target, overwrite=True)
    else:
        fs, inner = _fs(source)
        fs.mv(inner, _fs(target)[1])


def remove(path: str) -> None:
    """Deletes a file; one that is not there is fine."""
    kind = scheme(path)
    if not kind:
        with contextlib.suppress(FileNotFoundError):
            os.remove(local(path))
    elif exists(path):
        if kind == "gs":
            _gfile().remove(path)
        else:
            fs, inner = _fs(path)
            fs.rm_file(inner)


def open_file(
    path: str, mode: str = "r", encoding: str | None = None, newline: str | None = None
) -> IO[Any]:
    """Opens a file as the builtin does; text is UTF-8 unless told otherwise.

    Args:
      path: a local path or an address.
      mode: as for `open`; "b" for bytes.
      encoding: of text, "utf-8" by default, whatever the locale says.
      newline: as for `open`.

    Raises:
      FileNotFoundError, PermissionError, IsADirectoryError: as the builtin does.
      ImportError: if the scheme needs fsspec or a driver of it; names the package.
    """
    binary = "b" in mode
    if not binary:
        encoding = encoding or "utf-8"
    kind = scheme(path)
    if not kind:
        return open(local(path), mode, encoding=encoding, newline=newline)
    if kind == "gs":
        if not binary and "r" in mode:
            # Decoded here: gfile knows neither encodings nor newlines.
            with _gfile().GFile(path, "rb") as raw:
                return io.TextIOWrapper(io.BytesIO(raw.read()), encoding=encoding, newline=newline)
        return _gfile().GFile(path, mode)
    fs, inner = _fs(path)
    if binary:
        return fs.open(inner, mode)
    return io.TextIOWrapper(
        fs.open(inner, mode.replace("t", "") + "b"), encoding=encoding, newline=newline
    )


def _is_special(path: str) -> bool:
    """Tells whether a local path leads to something else than a file or a folder."""
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError):
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))


@contextlib.contextmanager
def atomic_write(path: str, mode: str = "w", newline: str | None = None) -> Iterator[IO[Any]]:
    """Opens a file to be written whole or not at all.

    The handle writes to a temporary name in the same folder, which takes the place of `path`
    when the block ends well and is deleted when it does not. A link is written through. On an
    object store a file appears when it is closed, and is renamed all the same. A device or a pipe
    (/dev/null, /dev/stdout) is written to as it is: a file must not take its place.
    """
    if not has_scheme(path) and _is_special(local(path)):
        with errors.writing(path), open_file(path, mode, newline=newline) as handle:
            yield handle
        return
    if not has_scheme(path):
        path = os.path.realpath(local(path))
    temporary = f"{path}.tmp-{os.getpid()}"
    try:
        with errors.writing(path), open_file(temporary, mode, newline=newline) as handle:
            yield handle
            handle.flush()
            if not has_scheme(path):
                os.fsync(handle.fileno())
        rename(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            remove(temporary)
        raise


def check_writable(folder: str, flag: str) -> None:
    """Makes a folder and writes to it, so that a run does not find out after its first hour.

    Raises:
      OSError: names the folder and what to do: to give another `flag`, among others.
    """
    probe = join(folder, ".writable")
    try:
        make_dirs(folder)
        with open_file(probe, "w") as handle:
            handle.write("")
        remove(probe)
    except OSError as error:
        raise OSError(
            f"cannot write to the output folder {folder}: {error.strerror or error}; "
            f"give another {flag}, or change the folder's permissions"
        ) from error


def read_json(path: str) -> dict[str, Any]:
    """Reads a JSON file that holds one object.

    Raises:
      FileNotFoundError: there is no such file.
      ValueError: the file is not JSON, or holds something else than an object.
    """
    if not exists(path):
        raise FileNotFoundError(f"There is no file {path}.")
    try:
        with open_file(path, encoding="utf-8-sig") as handle:
            values = json.load(handle)
    except json.JSONDecodeError as error:
        raise ValueError(
            f"{path}: not valid JSON: {error.msg} (line {error.lineno}, column {error.colno})."
        ) from None
    except UnicodeDecodeError:
        raise ValueError(f"{path}: not valid JSON: not UTF-8 text.") from None
    except RecursionError:
        raise ValueError(f"{path}: not valid JSON: nested too deeply.") from None
    if not isinstance(values, dict):
        text = json.dumps(values)
        text = text if len(text) <= 60 else text[:57] + "..."
        raise ValueError(f"{path}: expected a JSON object, found {text}.")
    return values


def write_json(path: str, values: Mapping[str, Any]) -> None:
    """Writes an object as sorted, indented JSON, whole or not at all."""
    with atomic_write(path) as handle:
        handle.write(json.dumps(values, indent=2, sort_keys=True) + "\n")


def copy(source: str, target: str) -> None:
    """Copies one file, between any two places; the target appears whole."""
    with open_file(source, "rb") as reader, atomic_write(target, "wb") as writer:
        shutil.copyfileobj(reader, writer, 1 << 22)


@contextlib.contextmanager
def stage_in(prefix: str) -> Iterator[str]:
    """Yields a prefix that TensorFlow can read, for files that begin with `prefix`.

    A local or gs:// prefix is yielded as it is. From elsewhere, every file whose name is the
    prefix's or begins with it and a dot is copied to a temporary folder for the block's time. So
    are, as links, local files whose path TensorFlow would take for a pattern ("run [1]").
    """
    pattern = _glob.has_magic(prefix) or "\\" in prefix or "{" in prefix
    if tensorflow_reads(prefix) and not (pattern and not has_scheme(prefix)):
        yield local(prefix)
        return
    folder, name = dirname(prefix), basename(prefix)
    plain = "checkpoint" if pattern else name
    with tempfile.TemporaryDirectory(prefix="bert_tf_") as temporary:
        for entry in list_dir(folder or "."):
            if entry == name or fnmatch.fnmatchcase(entry, _glob.escape(name) + ".*"):
                target = os.path.join(temporary, plain + entry[len(name) :])
                if has_scheme(prefix):
                    copy(join(folder, entry), target)
                else:
                    os.symlink(os.path.abspath(local(join(folder, entry))), target)
        yield os.path.join(temporary, plain)


def lock(descriptor: int, taken: str) -> None:
    """Locks an open file or folder, until it is closed or the process ends.

    Systems and file systems without locks are not locked.

    Args:
      descriptor: of the open file.
      taken: what to say if another process has it.

    Raises:
      OSError: another process has it.
    """
    if fcntl is None:
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise OSError(taken) from None
    except OSError:
        pass  # A file system without locks.
