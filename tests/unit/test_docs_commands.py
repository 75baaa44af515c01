"""The commands in README.md and docs/: every script is there, every flag and value fits it."""

import ast
import importlib
import importlib.util
import pathlib
import re
import shlex
import sys
from typing import NamedTuple

import pytest

import run_classifier
from bert_tf.cli.command_line import CommandLineError

ROOT = pathlib.Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
# Programs that others made.
FOREIGN = ("-m pytest", "-m venv")
TAKES_FILES = "-m data_prep.inspect"


class Command(NamedTuple):
    place: str  # "docs/squad.md:3"
    program: str  # "run_squad.py", "-m data_prep.inspect"
    arguments: list[str]


def blocks(text):
    """Yields (number of the first line, lines) of code: between ``` or 4 or more spaces in."""
    lines = text.split("\n")
    number = 0
    while number < len(lines):
        start = number
        if lines[number].startswith("```"):
            number += 1
            while not lines[number].startswith("```"):
                number += 1
            yield start + 2, lines[start + 1 : number]
        elif lines[number].startswith("    "):
            while number < len(lines) and lines[number].startswith("    "):
                number += 1
            yield start + 1, lines[start:number]
        number += 1


def commands(text, name="page"):
    """Returns the commands that run Python programs in a page's blocks."""
    found = []
    for first, lines in blocks(text):
        program = None
        joined, number = "", first
        for offset, line in enumerate(lines):
            number = number if joined else first + offset
            joined += line.removesuffix("\\")
            if line.endswith("\\"):
                continue
            # "... --flag" is the command before with other flags.
            joined = re.sub(r"^\s*\.\.\. ", f"python {program} ", joined)
            for part in re.split(r"(?:^|(?<=[\s/']))python (?=-m |\S+\.py\b)", joined)[1:]:
                part = re.sub(r"<(?! )[^<>]+>", "X", part)  # <the model folder>
                part = re.split(r"\s(?:&&|[<>|])\s", part)[0]
                if part.count("'") % 2:  # bash -c 'python ...'
                    part = part.rpartition("'")[0]
                words = [word for word in shlex.split(part, comments=True) if word != "..."]
                size = 2 if words[0] == "-m" else 1
                program = " ".join(words[:size])
                if program not in FOREIGN:
                    found.append(Command(f"{name}:{number}", program, words[size:]))
            joined = ""
    return found


def path_of(program):
    if program.startswith("-m "):
        return ROOT / (program.removeprefix("-m ").replace(".", "/") + ".py")
    return ROOT / program


def module_of(program):
    if program.startswith("-m "):
        return importlib.import_module(program.removeprefix("-m "))
    path = path_of(program)
    if path.parent == ROOT:
        return importlib.import_module(path.stem)
    name = f"docs_{path.stem}"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, path)
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module  # dataclasses looks its module up there
        spec.loader.exec_module(module)
    return sys.modules[name]


def argparse_flags(source):
    """Returns the flags that calls of add_argument name, without running anything."""
    return {
        argument.value
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "add_argument"
        for argument in node.args
        if isinstance(argument, ast.Constant) and str(argument.value).startswith("-")
    }


def check(command):
    """Raises AssertionError for a program that is not there, and what it does not take."""
    path = path_of(command.program)
    assert path.is_file(), f"{command.place}: there is no {path.relative_to(ROOT)}"
    source = path.read_text()
    if "add_argument(" in source:
        names = {word.partition("=")[0] for word in command.arguments if word.startswith("--")}
        known = argparse_flags(source)
        # What a benchmark shares with its peers.
        for shared in path.parent.glob("peers/*_common.py"):
            if shared.stem in source:
                known |= argparse_flags(shared.read_text())
        unknown = names - known
        assert not unknown, f"{command.place}: {command.program} has no {sorted(unknown)}"
        return
    own, rest = command.arguments, []
    if "--" in own:  # examples/compare_checkpoints.py: what follows is for run_classifier.py.
        place = own.index("--")
        own, rest = own[:place], own[place + 1 :]
    if command.program == TAKES_FILES:
        own = [word for word in own if word.startswith("-")]
    for word in own:
        if word.startswith("--row="):
            rest += word.split(";")[1:]
    try:
        module_of(command.program).CLI.parse([command.program, *own])
        run_classifier.CLI.parse(["run_classifier.py", *rest])
    except CommandLineError as error:
        raise AssertionError(f"{command.place}: {command.program}: {error}") from None


def all_commands():
    return [
        command
        for page in PAGES
        for command in commands(page.read_text(), page.relative_to(ROOT).as_posix())
    ]


@pytest.mark.parametrize("command", all_commands(), ids=lambda command: command.place)
def test_command(command):
    check(command)


def test_every_script_is_shown():
    shown = {command.program for command in all_commands()}
    assert {path.name for path in ROOT.glob("*.py")} <= shown


def test_flags_in_sentences():
    """Every `--flag` in running text is a flag of some program, but in others' commands."""
    known = {"help", "no", "enable_batching"}  # The last is TensorFlow Serving's.
    folders = ("bert_tf", "data_prep", "examples", "benchmarks")
    files = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    for path in [*ROOT.glob("*.py"), *files]:
        source = path.read_text()
        known |= {flag.lstrip("-") for flag in argparse_flags(source)}
        if re.search(r"^CLI = ", source, flags=re.M):
            program = path.relative_to(ROOT).as_posix()
            if program.startswith("bert_tf"):
                program = "-m " + program.removesuffix(".py").replace("/", ".")
            known |= set(module_of(program).CLI.flags)
    unknown = []
    for page in PAGES:
        text = re.sub(r"```.*?```", "", page.read_text(), flags=re.S)
        for span in re.findall(r"`([^`]+)`", text):
            if not (span.startswith("--") or ".py" in span or "bert_tf" in span):
                continue
            names = re.findall(r"(?<![\w'-])--(?:no(?!_))?([a-z]\w*)", re.sub(r"'[^']*'", "", span))
            unknown += [f"{page.name}: {name}" for name in names if name not in known]
    assert not unknown


PAGE = """Text `python a.py --x`.

    python run_squad.py --train_file=a.json ... \\
        --learning_rate=1e-5  # as above
    python -m data_prep.inspect <a file> && python run_squad.py < a > b

```
TF_CONFIG='{"a": 1}' python run_pretraining.py ...
srun bash -c 'python run_pretraining.py --do_train ...'
... --do_eval
python -m pytest -q
```
"""


def test_commands_are_found():
    assert commands(PAGE) == [
        ("page:3", "run_squad.py", ["--train_file=a.json", "--learning_rate=1e-5"]),
        ("page:5", "-m data_prep.inspect", ["X"]),
        ("page:5", "run_squad.py", []),
        ("page:8", "run_pretraining.py", []),
        ("page:9", "run_pretraining.py", ["--do_train"]),
        ("page:10", "run_pretraining.py", ["--do_eval"]),
    ]


COMPARE = "python examples/compare_checkpoints.py --task_name=RTE "


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("python run_glue.py", "there is no run_glue.py"),
        ("python run_squad.py --no_such=1", "no_such"),
        ("python run_squad.py --tune_threshold=f2", "tune_threshold"),
        ("python run_squad.py --learning_rate=fast", "learning_rate"),
        ("python run_squad.py do_train", "belongs to no flag"),
        ("python -m data_prep.squad.evaluation a b --no_such=1", "no_such"),
        (COMPARE + "--no_such=1", "no_such"),
        (COMPARE + "-- --no_such=1", "no_such"),
        (COMPARE + "--row='a=b;--no_such'", "no_such"),
    ],
)
def test_what_does_not_fit_is_found(command, message):
    (found,) = commands(f"    {command}\n")
    with pytest.raises(AssertionError, match=message):
        check(found)
