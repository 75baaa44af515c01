"""What all scripts share: their own flags, a help by groups, errors without tracebacks.

Every script has a FlagValues of its own, so that tests and programs can import several.
"""

import contextlib
import io
import logging as std_logging
import math
import os
import re
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from absl import flags, logging

from bert_tf import errors

_TRACEBACK = re.compile(r"--?traceback(=(true|t|yes|y|1))?", re.IGNORECASE)


class CommandLineError(ValueError):
    """The command line is not right; the message says what is and shows one that works."""


class _Lines(std_logging.Formatter):
    """A log line is its text; a warning says that it is one."""

    def format(self, record: std_logging.LogRecord) -> str:
        text = record.getMessage()
        return f"WARNING: {text}" if record.levelno >= std_logging.WARNING else text


# What TensorFlow and its libraries say at start on any machine, and nobody can act on.
_NOISE = re.compile(
    rb"oneDNN custom operations|Could not find cuda drivers|failed call to cuInit"
    rb"|absl::InitializeLog|To enable the following instructions|optimized to use available CPU"
    rb"|cuda_dnn|cufft|cublas|computation placer|TensorRT|NUMA node|gpu_device.cc"
)


# What makes a step smaller, in the order of docs/memory.md.
_MEMORY_FLAGS = (
    "precision",
    "max_seq_length",
    "recompute",
    "gradient_accumulation_steps",
    "train_batch_size",
    "eval_batch_size",
    "predict_batch_size",
    "batch_size",
)


def import_tensorflow() -> Any:
    """Imports TensorFlow without its lines of no use; passes on what else it says."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    with _filtered_stderr():
        import tensorflow as tf

        # Some of the lines come when it first looks for devices.
        tf.config.list_physical_devices()
    return tf


@contextlib.contextmanager
def _filtered_stderr() -> Iterator[None]:
    sys.stderr.flush()
    with contextlib.ExitStack() as stack:
        try:
            kept = stack.enter_context(tempfile.TemporaryFile())
        except OSError:
            yield  # There is no place for it: a machine whose disks are read-only.
            return
        original = os.dup(2)
        os.dup2(kept.fileno(), 2)
        try:
            yield
        finally:
            sys.stderr.flush()
            os.dup2(original, 2)
            os.close(original)
            kept.seek(0)
            for line in kept:
                if not _NOISE.search(line):
                    os.write(2, line)


def _open_closed_streams() -> None:
    """Makes standard streams that were closed (`<&-`) empty ones, instead of None.

    In their order: each gets its own number, which the next file that is opened had otherwise.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            nothing = os.open(os.devnull, os.O_RDWR)
            setattr(sys, name, os.fdopen(nothing, mode, encoding="utf-8"))


class CommandLine:
    """The flags of one script.

    Args:
      script: how the script is called, for messages ("run_classifier.py").
      description: what it does, for --help.
      example: a command that works.

    Example:
      >>> CLI = CommandLine("run_classifier.py", __doc__, "python run_classifier.py ...")
      >>> with CLI.group("Files"):
      ...     CLI.string("data_dir", None, "Folder with the task's files.")
      >>> flags = CLI.parse(sys.argv)
    """

    def __init__(self, script: str, description: str, example: str):
        self.script = script
        # In front of messages; with "python" before it, `script` is a command.
        self._name = script.removeprefix("-m ")
        self.description = description
        self.example = example
        self.flags = flags.FlagValues()
        self._groups: dict[str, list[str]] = {}
        self._group = "Flags"
        with self.group("Help and messages"):
            self.boolean("help", False, "Show this help.")
            self.boolean("traceback", False, "Show where in the code an error arose.")

    @contextlib.contextmanager
    def group(self, title: str) -> Iterator[None]:
        """Puts the flags that are defined within the block under a title of the help."""
        before, self._group = self._group, title
        try:
            yield
        finally:
            self._group = before

    def _note(self, name: str) -> None:
        self._groups.setdefault(self._group, []).append(name)

    def string(self, name: str, default: str | None, help: str) -> None:
        flags.DEFINE_string(name, default, help, flag_values=self.flags)
        self._note(name)

    def boolean(self, name: str, default: bool, help: str) -> None:
        flags.DEFINE_bool(name, default, help, flag_values=self.flags)
        self._note(name)

    def integer(
        self, name: str, default: int | None, help: str, lower_bound: int | None = None
    ) -> None:
        flags.DEFINE_integer(name, default, help, lower_bound=lower_bound, flag_values=self.flags)
        self._note(name)

    def float(
        self, name: str, default: float | None, help: str, lower_bound: "float | None" = None
    ) -> None:
        flags.DEFINE_float(name, default, help, lower_bound=lower_bound, flag_values=self.flags)
        self._note(name)

    def enum(self, name: str, default: str | None, values: Sequence[str], help: str) -> None:
        flags.DEFINE_enum(name, default, list(values), help, flag_values=self.flags)
        self._note(name)

    def parse(self, argv: Sequence[str]) -> flags.FlagValues:
        """Reads a command line: argv[0] is the program.

        Raises:
          CommandLineError: for an unknown flag, a value that does not fit, or a word that is no
            flag.
        """
        for name in self.flags:
            self.flags[name].unparse()
        try:
            rest = self.flags(list(argv))
        except flags.Error as error:
            raise CommandLineError(f"{error}\nAll flags: python {self.script} --help") from error
        if self.flags["help"].value:
            print(self.help())
            raise SystemExit(0)
        for name in self.flags:
            value = self.flags[name].value
            if isinstance(value, float) and not math.isfinite(value):
                raise CommandLineError(f"--{name}={value}: give a finite number")
        if len(rest) > 1:
            raise CommandLineError(
                f"{' '.join(rest[1:])!r} belongs to no flag; flags are given as --name=value "
                f"(a switch as --name or --noname)"
            )
        return self.flags

    def given(self, name: str) -> bool:
        """Tells whether a flag stood on the command line."""
        return self.flags[name].present > 0

    def require(self, missing: Iterable[tuple[str, str]]) -> None:
        """Raises one error for all flags that are missing.

        Args:
          missing: pairs of a flag and what it is for; none is fine.

        Raises:
          CommandLineError: lists them with an example that works.
        """
        missing = list(missing)
        if not missing:
            return
        lines = "\n".join(f"  --{name}: {what}" for name, what in missing)
        raise CommandLineError(
            f"these flags are missing:\n{lines}\nFor example:\n{self.example}\n"
            f"All flags: python {self.script} --help"
        )

    def help(self) -> str:
        """Returns the help, by groups."""
        parts = [self.description.strip(), "", "For example:", self.example]
        for title, names in self._groups.items():
            parts += ["", f"{title}:"]
            for name in names:
                flag = self.flags[name]
                default = str(flag.default).lower() if flag.boolean else flag.default
                text = flag.help if default in (None, "") else f"{flag.help} [{default}]"
                parts.append(f"  --{'[no]' if flag.boolean else ''}{name}")
                parts += textwrap.wrap(text, 88, initial_indent=" " * 6, subsequent_indent=" " * 6)
        return "\n".join(parts)

    def _told(self, error: Exception) -> str | None:
        """Returns what to say of an error that a user can mend, None for one of the code."""
        if isinstance(error, MemoryError) or errors.is_of_memory(error):
            what = errors.message(error) or "a number or a file may be too large"
            return f"there is too little memory: {what}{self._smaller()}"
        if isinstance(error, OverflowError | RecursionError):
            return f"a number or a file is too large: {error or type(error).__name__}"
        # TensorFlow's own errors (an address that cannot be reached) are no OSErrors.
        mine = isinstance(error, ValueError | OSError | ImportError)
        if mine or type(error).__module__.startswith("tensorflow."):
            return errors.message(error)
        return None

    def _smaller(self) -> str:
        """Returns what to do where a step does not fit into memory, by the flags there are."""
        known = [f"--{name}" for name in _MEMORY_FLAGS if name in self.flags]
        if not any(name.endswith("batch_size") for name in known):
            return ""
        return f"\nWhat makes a step smaller: {', '.join(known)} (docs/memory.md)"

    def run(self, main: Callable[[Sequence[str]], Any]) -> None:
        """Runs a script's main with sys.argv; what a user can mend ends without a traceback."""
        _open_closed_streams()
        flags.FLAGS(sys.argv[:1])  # absl's own flags: its log is silent before it has them.
        logging.set_verbosity(logging.INFO)
        logging.use_absl_handler()
        logging.get_absl_handler().setFormatter(_Lines())
        for stream in (sys.stdout, sys.stderr):
            # A label that the terminal cannot show is no reason to lose a run's results.
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="backslashreplace")
        try:
            main(sys.argv)
        except BrokenPipeError:
            # The reader of the output went away (a pager that was left).
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise SystemExit(141) from None
        except Exception as error:
            text = self._told(error)
            if text is None or any(map(_TRACEBACK.fullmatch, sys.argv[1:])):
                raise
            with contextlib.suppress(OSError):
                sys.stdout.flush()  # It may be what cannot be written.
            print(f"{self._name}: error: {text}", file=sys.stderr)
            raise SystemExit(1) from None
        except KeyboardInterrupt:
            print(f"{self._name}: interrupted", file=sys.stderr)
            raise SystemExit(130) from None
