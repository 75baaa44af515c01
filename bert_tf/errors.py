"""What the system and TensorFlow say went wrong, in a line: what, where, and what to do."""

import contextlib
import errno
import re
from collections.abc import Iterator

_FREE = "free some space, and give the same command again"
_ADVICE = {
    errno.ENOSPC: _FREE,
    errno.EDQUOT: _FREE,
    errno.EFBIG: "the system allows no larger file here (ulimit -f)",
    errno.EMFILE: "the system allows too few open files (ulimit -n)",
}

# Of a message about an error within a graph: where it was defined, and what nobody can act on.
_WHERE_IN_GRAPH = re.compile(
    r"Graph execution error:|Detected at node|<stack traces unavailable>|  File \"|    |\s*\[\["
    r"|\s*\[Op:|Hint: If you want|.*root error\(s\) found"
    r"|\d+ (successful operations|derived errors)"
)


class WriteError(OSError):
    """Something cannot be written; the message names it and says what to do."""


@contextlib.contextmanager
def writing(path: str, hint: str = "") -> Iterator[None]:
    """Within the block, errors of a full disk say what is written and what to do.

    The system names no file in them.

    Args:
      path: what is written.
      hint: put behind "while writing".

    Raises:
      WriteError: there is no space, the file is too large, or too many are open.
    """
    try:
        yield
    except WriteError:
        raise
    except OSError as error:
        advice = _ADVICE.get(error.errno or 0)
        if not advice:
            raise
        text = f"{error.strerror} while writing{hint}; {advice}"
        raise WriteError(error.errno, text, path) from error


def message(error: BaseException) -> str:
    """Returns what an error says, with what to do where the system says what is wrong alone."""
    if isinstance(error, OSError) and not isinstance(error, WriteError):
        advice = _ADVICE.get(error.errno or 0)
        return f"{error}; {advice}" if advice else str(error)
    if not type(error).__module__.startswith("tensorflow."):
        return str(error)
    text = _of_tensorflow(str(getattr(error, "message", error))) or type(error).__name__
    # TensorFlow has one class for both kinds of space.
    if "No space left on device" in text:
        return f"{text}; {_FREE}"
    return text


def is_of_memory(error: BaseException) -> bool:
    """Tells whether a device had too little memory for TensorFlow."""
    return type(error).__name__ == "ResourceExhaustedError" and "No space left" not in str(error)


def _of_tensorflow(text: str) -> str:
    """Returns what happened, of a message of TensorFlow's that may say where in a graph first."""
    lines = [line for line in text.splitlines() if line.strip()]
    told = [line for line in lines if not _WHERE_IN_GRAPH.match(line)] or lines[:1]
    if told and re.match(r"\s*\(0\) ", told[0]):
        told = told[:1]  # The first of several, each of which is numbered.
    what = " ".join(" ".join(told).split()).removeprefix("(0) ")
    # The op's name stands before and behind.
    what = re.sub(r"^\{\{function_node [^}]*\}\} ", "", what)
    return re.sub(r" ?\[Op:\w+\]( name:.*)?$", "", what)
