"""What the commands that predict share: JSON lines in and out, texts line by line.

Both are read and predicted in pools, so that memory does not grow with the input, and written in
their order.
"""

import contextlib
import importlib
import io
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import IO, Any

from absl import logging

from bert_tf import paths
from bert_tf.cli.command_line import CommandLine, CommandLineError
from bert_tf.predictor import Predictor
from data_prep import records

STANDARD_INPUT = "-"

# What a model consists of, by name: results are never written over it.
_MODEL_FILE = re.compile(
    r"(task|squad|pretraining|bert_config|config|tokenizer_config)\.json|vocab\.txt|checkpoint"
    r"|.*\.(index|meta|data-\d+-of-\d+|safetensors|safetensors\.index\.json)|pytorch_model\.bin"
)

# What is predicted together: inputs of like length share a batch.
_POOL = 256
# Characters; a pool of long texts has fewer of them.
_POOL_SIZE = 1 << 22


def file_flags(cli: CommandLine, fields: str) -> None:
    """Adds the flags of JSON lines; `fields` is what each of them holds."""
    cli.string(
        "input_file",
        None,
        f"JSON lines: an object each with {fields}, perhaps an id; - is standard input.",
    )
    cli.string("output_file", None, "Where to write JSON lines; by default standard output.")


def check_files(flags: Any) -> None:
    """Checks the flags of `file_flags`.

    Raises:
      CommandLineError: there is no such file, one is a folder, both are the same, or the output
        is a file of a model.
    """
    source, target = flags.input_file, flags.output_file
    if target and not source:
        raise CommandLineError("--output_file needs --input_file: the rest goes to the terminal")
    if source and source != STANDARD_INPUT:
        check_file("input_file", source)
    if target:
        if paths.is_dir(target):
            raise CommandLineError(f"--output_file={target} is a folder; name a file")
        if source != STANDARD_INPUT and records.real_path(source) == records.real_path(target):
            raise CommandLineError("--output_file is --input_file: name another")
        name = paths.basename(records.real_path(target))
        if paths.exists(target) and _MODEL_FILE.fullmatch(name):
            raise CommandLineError(
                f"--output_file={target} would replace a file of a model: name another"
            )


def check_file(flag: str, path: str) -> None:
    """Checks that a flag names a file.

    Raises:
      CommandLineError: it does not.
    """
    if paths.is_dir(path):
        raise CommandLineError(f"--{flag}={path} is a folder; name a file")
    if not paths.exists(path):
        raise CommandLineError(f"--{flag}={path}: there is no such file")


# JSON lines.


def predict_file(
    predictor: Predictor, source: str, target: str | None, kept: Sequence[str] = ()
) -> None:
    """Predicts the lines of a file, in their order.

    Args:
      predictor: what takes them.
      source: the file, or "-".
      target: the file to write, which appears when it is complete; None is standard output.
      kept: fields that are written again before the result, besides id.

    Raises:
      ValueError: a line is no JSON, or not what the predictor takes; names it.
    """
    if target is None:
        _write(predictor, source, sys.stdout, kept)
        return
    if folder := paths.dirname(target):
        paths.make_dirs(folder)
    with paths.atomic_write(target) as handle:
        _write(predictor, source, handle, kept)


def _write(predictor: Predictor, source: str, handle: IO[str], kept: Sequence[str]) -> None:
    fields = {*predictor.needed, *predictor.optional}
    unused: set[str] = set()

    def instances() -> Iterator[tuple[dict[str, Any], dict[str, Any], int]]:
        """Yields what is kept of each line, the instance, and how long the line is."""
        for place, item, size in read_objects(source):
            if more := item.keys() - fields - unused - {"id"}:
                unused.update(more)
                logging.warning("%s: nothing is done with %s", place, ", ".join(sorted(more)))
            instance = {name: value for name, value in item.items() if name in fields}
            try:
                predictor.check(instance)
            except ValueError as error:
                raise ValueError(f"{place}: {error}") from None
            names = [name for name in ("id", *kept) if name in item]
            yield {name: item[name] for name in names}, instance, size

    for pool in pools(instances(), lambda each: each[2]):
        results = predictor.predict_instances([instance for _, instance, _ in pool])
        for (own, _, _), result in zip(pool, results, strict=True):
            handle.write(to_json({**own, **result}, handle) + "\n")
        handle.flush()


def read_objects(source: str) -> Iterator[tuple[str, dict[str, Any], int]]:
    """Yields the objects of JSON lines, each with its place for messages and its length.

    Blank lines are left out.

    Raises:
      ValueError: a line is no JSON object, or the file is not UTF-8; names it.
    """
    for place, line in read_lines(source):
        if not line.strip():
            continue
        try:
            item = json.loads(line, parse_constant=_refuse, parse_float=_finite)
        except RecursionError:
            raise ValueError(f"{place} is no JSON: nested too deeply") from None
        except ValueError as error:
            # Not only JSONDecodeError: an integer may have more digits than Python takes.
            raise ValueError(f"{place} is no JSON: {_first_sentence(error)}") from None
        if not isinstance(item, dict):
            raise ValueError(f"{place} must be an object; found {line.strip():.60}")
        yield place, item, len(line)


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is no number in JSON")


def _finite(text: str) -> float:
    value = float(text)
    if value in (float("inf"), float("-inf")):
        raise ValueError(f"the number {text:.40} is too large")
    return value


def _first_sentence(error: ValueError) -> str:
    # Python's message on long integers goes on with what a programmer may do.
    return str(error).partition(";")[0]


def read_lines(source: str) -> Iterator[tuple[str, str]]:
    """Yields the lines of a file, or of standard input, each with its place for messages.

    Raises:
      ValueError: it is not UTF-8 text; names it.
    """
    name = "standard input" if source == STANDARD_INPUT else source
    with contextlib.ExitStack() as stack:
        if source == STANDARD_INPUT:
            lines = standard_input()
        else:
            lines = stack.enter_context(paths.open_file(source, encoding="utf-8-sig"))
        try:
            for number, line in enumerate(lines, 1):
                yield f"{name}: line {number}", line.removesuffix("\n")
        except UnicodeDecodeError as error:
            raise ValueError(f"{name} is not UTF-8 text: {error}") from None


def standard_input() -> IO[str]:
    """Returns standard input, which is UTF-8 whatever the locale says, but for a terminal's."""
    if isinstance(sys.stdin, io.TextIOWrapper) and not sys.stdin.isatty():
        sys.stdin.reconfigure(encoding="utf-8-sig", errors="strict")
    return sys.stdin


def to_json(value: Any, handle: IO[str]) -> str:
    """Returns JSON of one line, with the characters as they are where `handle` can hold them."""
    text = json.dumps(value, ensure_ascii=False)
    try:
        text.encode(getattr(handle, "encoding", None) or "utf-8")
    except UnicodeEncodeError:  # Half of a surrogate pair, or an encoding of few characters.
        text = json.dumps(value)
    return text


def pools(items: Iterable[Any], size_of: Callable[[Any], int]) -> Iterator[list[Any]]:
    """Cuts items into lists of up to `_POOL`, fewer where they are large."""
    pool: list[Any] = []
    size = 0
    for item in items:
        pool.append(item)
        size += size_of(item)
        if len(pool) >= _POOL or size >= _POOL_SIZE:
            yield pool
            pool, size = [], 0
    if pool:
        yield pool


# Lines of text.


def predict_lines(
    predictor: Predictor,
    instance_of: Callable[[str], dict[str, Any]],
    show: Callable[[dict[str, Any]], str],
    one_line: Callable[[dict[str, Any]], str],
    prompt: str,
) -> None:
    """Predicts the lines of standard input.

    At a terminal each line is asked for and answered at once, and a bad one does no harm. From a
    pipe there is a line out for each line in, a blank one for a blank one.

    Args:
      predictor: what takes them.
      instance_of: from a line to an instance.
      show: from a result to the text for a terminal.
      one_line: from a result to the line for a pipe.
      prompt: what stands before the line that is asked for.

    Raises:
      ValueError: a line of a pipe is not what the predictor takes; names it.
    """
    if sys.stdin.isatty():
        for line in ask(prompt):
            try:
                print(show(predictor.predict_instances([instance_of(line)])[0]), flush=True)
            except ValueError as error:
                print(str(error).removeprefix("instance 0: "), file=sys.stderr, flush=True)
        return

    def instances() -> Iterator[tuple[dict[str, Any] | None, int]]:
        for place, line in read_lines(STANDARD_INPUT):
            instance = instance_of(line) if line.strip() else None
            try:
                if instance is not None:
                    predictor.check(instance)
            except ValueError as error:
                raise ValueError(f"{place}: {error}") from None
            yield instance, len(line)

    for pool in pools(instances(), lambda each: each[1]):
        results = iter(predictor.predict_instances([each for each, _ in pool if each is not None]))
        for instance, _ in pool:
            text = "" if instance is None else one_line(next(results))
            print(printable(text))
        sys.stdout.flush()


def printable(text: str) -> str:
    """Returns a text that any UTF-8 output takes: half a surrogate pair as its escape."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def ask(prompt: str) -> Iterator[str]:
    """Asks for lines at a terminal until its input ends; yields those that are not blank."""
    shown = sys.stdout.isatty()
    if shown:
        # Lines can then be edited. Windows has none.
        with contextlib.suppress(ImportError):
            importlib.import_module("readline")
    while True:
        if not shown:
            print(prompt, end="", file=sys.stderr, flush=True)
        try:
            line = input(prompt if shown else "")
        except EOFError:
            print(file=sys.stderr)
            return
        if line.strip():
            yield line
