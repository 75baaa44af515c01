"""The rules of the house (CONTRIBUTING.md): who may import what, and what may be committed."""

import ast
import configparser
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("bert_tf", "data_prep")

# What each part of bert_tf may import of it, besides itself. A new part gets a line here.
MAY_IMPORT: dict[str, set[str]] = {
    "errors": set(),
    "paths": {"errors"},
    "config": {"paths"},
    "tokenization": {"paths"},
    "modeling": {"config"},
    "optimization": set(),
    "checkpoint": {"errors", "paths", "config", "modeling"},
    "training": {"errors", "paths", "config", "modeling", "optimization", "checkpoint"},
    "features": {"errors", "paths", "config", "tokenization", "modeling", "checkpoint"},
    "predictor": {"paths", "config", "tokenization", "modeling", "checkpoint", "features"},
    "export": {"paths", "config", "tokenization", "modeling", "checkpoint", "predictor"},
    # Over HTTP; what it serves is handed to it.
    "serving": set(),
    "cli": {
        "errors",
        "paths",
        "config",
        "tokenization",
        "modeling",
        "optimization",
        "checkpoint",
        "training",
        "features",
        "predictor",
        "export",
        "serving",
    },
}
# The only parts of bert_tf that may import data_prep, and what data_prep may import of bert_tf.
MAY_IMPORT_DATA_PREP = {"cli", "predictor", "export"}
DATA_PREP_MAY_IMPORT = {"tokenization", "paths", "errors"}
# Those of data_prep that are run by name (python -m data_prep.inspect) read flags as scripts do.
DATA_PREP_PROGRAMS = {"data_prep/inspect.py"}

# All that the Keras-only parts may import from outside the standard library.
KERAS_ONLY = {"modeling": {"keras", "numpy"}, "optimization": {"keras", "numpy"}}
# The only files of tokenization and data_prep with TensorFlow in them; in the latter only inside
# functions, where tf.data is built.
TENSORFLOW_ALLOWED = {
    "bert_tf/tokenization/in_graph.py",
    "data_prep/feature_spec.py",
    "data_prep/input_pipeline.py",
    "data_prep/pretraining_input.py",
}
# Imports an optional dependency ([beam]) at its head, so that it cannot be imported in .venv.
NEEDS_EXTRA = {"data_prep/beam_pipeline.py"}
HEAVY = {"tensorflow", "tensorflow_text", "keras", "tf_keras", "official", "torch", "transformers"}

MAX_FILE_BYTES = 500_000
# The original's outputs are kept whole.
MAX_GOLDEN_BYTES = 1_100_000
# Written in two parts, so that this file does not match itself.
MACHINE_PATH = re.compile(r"(?<![\w.~$})/-])/" + r"(?:work|root|home|Users|opt|mnt)/\w")


class Import(NamedTuple):
    file: str  # relative to the root, with slashes
    line: int
    module: str  # dotted; for `from a import b` both "a" and "a.b" are given
    at_import: bool  # runs when the file is imported: not in a function, nor for types only

    def __str__(self) -> str:
        return f"{self.file}:{self.line} imports {self.module}"


def imports_of(path: Path, root: Path = ROOT) -> list[Import]:
    file = path.relative_to(root).as_posix()
    package = file.split("/")[:-1]
    found: list[Import] = []

    def visit(node: ast.AST, at_import: bool) -> None:
        if isinstance(node, ast.Import):
            found.extend(Import(file, node.lineno, each.name, at_import) for each in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            modules = [base, *(f"{base}.{alias.name}" for alias in node.names)]
            found.extend(Import(file, node.lineno, module, at_import) for module in modules)
        later: list[ast.stmt] = []
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or (
            isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")
        ):
            later = node.body
        for child in ast.iter_child_nodes(node):
            visit(child, at_import and child not in later)

    visit(ast.parse(path.read_text(encoding="utf-8"), filename=str(path)), True)
    return found


def sources(*folders: str) -> list[Path]:
    files = [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]
    assert files, f"no Python files found in {folders}: is {ROOT} the project's root?"
    return files


def scripts() -> list[Path]:
    files = sorted(ROOT.glob("*.py"))
    assert files, f"no scripts found in {ROOT}"
    return files


def all_imports(paths: list[Path]) -> list[Import]:
    found = [each for path in paths for each in imports_of(path)]
    assert found
    return found


def top(module: str) -> str:
    return module.split(".")[0]


def part(dotted: str) -> str | None:
    """bert_tf.modeling.layers -> modeling; None for bert_tf itself."""
    names = dotted.split(".")
    return names[1] if len(names) > 1 else None


def part_of_file(file: str) -> str:
    return part(file.removesuffix(".py").replace("/", ".")) or ""


def parts_on_disk() -> set[str]:
    names = {part_of_file(path.relative_to(ROOT).as_posix()) for path in sources("bert_tf")}
    return names - {"__init__"}


def listing(found: list[Import]) -> str:
    return "\n".join(str(each) for each in found)


def test_imports_are_read_as_python_would(tmp_path):
    (tmp_path / "a" / "b").mkdir(parents=True)
    path = tmp_path / "a" / "b" / "c.py"
    path.write_text(
        "import one.two\nfrom three import four\nfrom . import five\nfrom ..six import seven\n"
        "if TYPE_CHECKING:\n    import eight\nelse:\n    import nine\n"
        "def f():\n    import ten\nclass C:\n    import eleven\n"
        "try:\n    import twelve\nexcept ImportError:\n    pass\n"
    )
    found = {(each.module, each.at_import) for each in imports_of(path, tmp_path)}
    assert found == {
        ("one.two", True),
        ("three", True),
        ("three.four", True),
        ("a.b", True),
        ("a.b.five", True),
        ("a.six", True),
        ("a.six.seven", True),
        ("eight", False),
        ("nine", True),
        ("ten", False),
        ("eleven", True),
        ("twelve", True),
    }


def test_every_part_of_bert_tf_has_its_place():
    unknown = parts_on_disk() - set(MAY_IMPORT)
    assert not unknown, f"say in MAY_IMPORT what these may import: {sorted(unknown)}"


def test_imports_inside_bert_tf_point_one_way():
    # No two parts import each other, directly or around.
    def reach(name: str) -> set[str]:
        return MAY_IMPORT[name].union(*(reach(below) for below in MAY_IMPORT[name]))

    assert not [name for name in MAY_IMPORT if name in reach(name)]

    wrong = []
    for each in all_imports(sources("bert_tf")):
        if top(each.module) != "bert_tf" or (target := part(each.module)) is None:
            continue
        own = part_of_file(each.file)
        is_module = target in MAY_IMPORT  # else a name of bert_tf/__init__.py, as __version__
        if is_module and target != own and target not in MAY_IMPORT.get(own, set()):
            wrong.append(each)
    assert not wrong, listing(wrong)


def test_bert_tf_imports_data_prep_in_its_outermost_places_only():
    wrong = [
        each
        for each in all_imports(sources("bert_tf"))
        if top(each.module) == "data_prep" and part_of_file(each.file) not in MAY_IMPORT_DATA_PREP
    ]
    assert not wrong, listing(wrong)


def test_data_prep_imports_tokenization_and_paths_only():
    ours = [each for each in all_imports(sources("data_prep")) if top(each.module) == "bert_tf"]
    assert ours
    wrong = [
        each
        for each in ours
        if part(each.module) is not None
        and part(each.module) not in DATA_PREP_MAY_IMPORT
        and not (
            each.file in DATA_PREP_PROGRAMS
            and "bert_tf.cli.command_line".startswith(each.module.removesuffix(".CommandLine"))
        )
    ]
    assert not wrong, listing(wrong)


def test_nothing_imports_a_script():
    names = {path.stem for path in scripts()}
    wrong = [
        each for each in all_imports(sources(*PACKAGES) + scripts()) if top(each.module) in names
    ]
    assert not wrong, listing(wrong)


def test_modeling_and_optimization_import_keras_and_numpy_only():
    checked = set()
    wrong = []
    for each in all_imports(sources("bert_tf")):
        allowed = KERAS_ONLY.get(part_of_file(each.file))
        if allowed is None:
            continue
        checked.add(part_of_file(each.file))
        name = top(each.module)
        if name not in allowed | {"bert_tf"} and name not in sys.stdlib_module_names:
            wrong.append(each)
    assert checked == set(KERAS_ONLY)
    assert not wrong, listing(wrong)


def test_tokenization_and_data_prep_are_free_of_tensorflow():
    wrong = [
        each
        for each in all_imports(sources("bert_tf/tokenization", "data_prep"))
        if top(each.module) in HEAVY
        and each.file != "bert_tf/tokenization/in_graph.py"
        and (each.at_import or each.file not in TENSORFLOW_ALLOWED)
    ]
    assert not wrong, listing(wrong)


def test_nothing_heavy_in_init_files():
    inits = [path for path in sources(*PACKAGES) if path.name == "__init__.py"]
    assert inits
    wrong = [
        each
        for path in inits
        for each in imports_of(path)
        if top(each.module) in HEAVY and each.at_import
    ]
    assert not wrong, listing(wrong)


def test_torch_and_transformers_are_not_used():
    wrong = [
        each
        for each in all_imports(sources(*PACKAGES) + scripts())
        if top(each.module) in {"torch", "transformers"}
        # Trains vocabularies; texts are cut by our own rules everywhere.
        or (top(each.module) == "tokenizers" and each.file != "bert_tf/cli/train_vocabulary.py")
    ]
    assert not wrong, listing(wrong)


def test_what_is_imported_is_declared_in_setup_cfg():
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg", encoding="utf-8")
    extras = config["options.extras_require"]
    requirements = [
        config["options"]["install_requires"],
        *(extras[name] for name in extras if name not in {"test", "lint"}),
    ]
    declared = {
        re.split(r"[^\w.-]", line.strip())[0].lower().replace("-", "_")
        for line in "\n".join(requirements).splitlines()
    }
    distributions = {
        "absl": "absl_py",
        "apache_beam": "apache_beam",
        "official": "tf_models_official",
        "tf_keras": "tf_models_official",
    }
    own = {*PACKAGES, *(path.stem for path in scripts())}
    wrong = [
        each
        for each in all_imports(sources(*PACKAGES) + scripts())
        if (name := top(each.module)) not in own
        and name not in sys.stdlib_module_names
        and distributions.get(name, name) not in declared
    ]
    assert not wrong, listing(wrong)


def test_importing_what_needs_no_tensorflow_loads_none():
    packages = [
        ".".join(path.relative_to(ROOT).parent.parts)
        for path in sources(*PACKAGES)
        if path.name == "__init__.py"
    ]
    light = [
        ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for path in sources("bert_tf/tokenization", "data_prep")
        if path.name not in ("__init__.py", "in_graph.py")
        and path.relative_to(ROOT).as_posix() not in NEEDS_EXTRA
    ]
    modules = [*packages, "bert_tf.paths", "bert_tf.config", *light]
    assert {"bert_tf", "bert_tf.tokenization.tokenizer", "data_prep.tasks"} <= set(modules)
    code = (
        "import importlib, sys\n"
        f"for name in {modules!r}:\n"
        "    importlib.import_module(name)\n"
        f"    loaded = {HEAVY!r} & sys.modules.keys()\n"
        "    assert not loaded, f'{name} loads {sorted(loaded)}'\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr


def committed_files() -> list[Path]:
    """The files in git's index; without git or a repository (a source archive), all of them."""
    if shutil.which("git") and (ROOT / ".git").exists():
        out = subprocess.run(
            ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
        ).stdout
        files = [ROOT / name for name in out.split("\0") if name]
    else:
        made = re.compile(r"\.(venv.*|git|.*_cache|hypothesis)|__pycache__|.*\.egg-info|build|dist")
        files = [
            path
            for path in ROOT.rglob("*")
            if not any(made.fullmatch(name) for name in path.relative_to(ROOT).parts)
        ]
    files = [path for path in files if path.is_file()]
    assert files, f"no files found in {ROOT}"
    return files


def test_no_large_files():
    large = [
        str(path)
        for path in committed_files()
        if path.stat().st_size > (MAX_GOLDEN_BYTES if "golden" in path.parts else MAX_FILE_BYTES)
    ]
    assert not large


@pytest.mark.parametrize(
    ("text", "matches"),
    [
        ("see /" + "root/envs", True),
        ('open("/' + 'work/main/x")', True),
        ("--data=/" + "home/me/glue", True),
        ("../work/x", False),
        ("https://example.org/work/x", False),
        ("$ROOT/root/x", False),
        ("homework/x", False),
    ],
)
def test_machine_path_pattern(text, matches):
    assert bool(MACHINE_PATH.search(text)) == matches


def test_no_machine_paths():
    found = []
    checked = 0
    for path in committed_files():
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue  # binary: a checkpoint, a weights file
        checked += 1
        for number, line in enumerate(text.split("\n"), 1):
            if match := MACHINE_PATH.search(line):
                found.append(f"{path.relative_to(ROOT)}:{number}: {match[0]}...")
    assert checked
    assert not found, "\n".join(found[:20])
