"""tools/make_env.sh, which builds the Makefile's environments, run on stand-ins for Python."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "tools" / "make_env.sh"

# Says yes to every check, and logs instead of building or installing. `python -m venv --clear
# FOLDER` leaves a copy of itself; pip fails while a file named fail exists.
STAND_IN = """#!/bin/sh
case "$1 $2" in
"-m venv") echo "venv $4" >>log; rm -rf "$4"; mkdir -p "$4/bin"; cp "$0" "$4/bin/python" ;;
"-m pip") [ "$3" = --version ] && exit 0; shift 3; echo "pip $*" >>log; [ ! -e fail ] ;;
esac
"""
# A real Python that takes itself for another version, or has lost a module.
PRETENDS = """#!{executable}
import sys
{pretence}
source, sys.argv = sys.argv[2], ["-c", *sys.argv[3:]]
exec(source)
"""


class MakeEnv:
    """Runs the script in a folder of its own."""

    def __init__(self, root):
        self.root = root
        self.folder = root / "env"
        self.write("stand_in", STAND_IN)

    def write(self, name, text):
        path = self.root / name
        path.write_text(text)
        path.chmod(0o755)
        return path

    def __call__(self, python="./stand_in", path=None):
        env = {**os.environ, "PYTHON": python}
        if path is not None:
            env["PATH"] = path
        return subprocess.run(
            ["/bin/sh", SCRIPT, "env", "test", "extra==1"],
            cwd=self.root,
            env=env,
            capture_output=True,
            text=True,
            check=False,
        )

    def log(self):
        """What the stand-in was asked to do since the last call."""
        path = self.root / "log"
        lines = path.read_text().splitlines() if path.exists() else []
        path.unlink(missing_ok=True)
        return lines


@pytest.fixture
def make_env(tmp_path):
    return MakeEnv(tmp_path)


INSTALLS = ["pip install -e .[test]", "pip install --no-deps extra==1"]


def test_builds_installs_and_marks_as_finished_last(make_env):
    result = make_env()
    assert result.returncode == 0, result.stderr
    assert make_env.log() == ["venv env", *INSTALLS]
    assert (make_env.folder / ".finished").exists()
    assert not (make_env.folder / ".unfinished").exists()


def test_a_finished_environment_is_only_brought_up_to_date(make_env):
    make_env()
    make_env.log()
    assert make_env().returncode == 0
    assert make_env.log() == INSTALLS


def test_a_failed_install_is_not_taken_for_finished_and_is_built_anew(make_env):
    fail = make_env.write("fail", "")
    assert make_env().returncode != 0
    assert not (make_env.folder / ".finished").exists()
    fail.unlink()
    make_env.log()
    assert make_env().returncode == 0
    assert make_env.log() == ["venv env", *INSTALLS]


def test_a_failed_update_is_not_taken_for_finished(make_env):
    make_env()
    make_env.write("fail", "")
    assert make_env().returncode != 0
    assert not (make_env.folder / ".finished").exists()


def test_an_environment_whose_python_is_gone_is_built_anew(make_env):
    make_env()
    (make_env.folder / "bin" / "python").unlink()
    make_env.log()
    assert make_env().returncode == 0
    assert make_env.log() == ["venv env", *INSTALLS]


@pytest.mark.parametrize(
    ("pretence", "message"),
    [
        ("sys.version_info = (3, 10, 4)", "./other is Python 3.10.4; 3.11, 3.12 or 3.13 is needed"),
        ("sys.version_info = (3, 14, 0)", "./other is Python 3.14.0; 3.11, 3.12 or 3.13 is needed"),
        (
            "sys.version_info = (3, 12, 1); sys.modules['ensurepip'] = None",
            "apt-get install python3.12-venv",
        ),
    ],
)
def test_an_unfit_python_is_named_with_the_remedy(make_env, pretence, message):
    make_env.write("other", PRETENDS.format(executable=sys.executable, pretence=pretence))
    result = make_env("./other")
    assert result.returncode != 0
    assert message in result.stderr
    assert "make PYTHON=/path/to/python3.12" in result.stderr
    assert not make_env.folder.exists()


def test_a_python_that_is_not_there(make_env):
    result = make_env("no_such_python")
    assert result.returncode != 0
    assert "PYTHON=no_such_python" in result.stderr
    assert "no such command" in result.stderr


def test_the_first_that_fits_is_taken(make_env, tmp_path):
    """A shim that does not run and an old version come first on PATH."""
    make_env.write("python3.13", "#!/bin/sh\nexit 127\n")
    pretence = "sys.version_info = (3, 9, 1)"
    make_env.write("python3.12", PRETENDS.format(executable=sys.executable, pretence=pretence))
    make_env.write("python3.11", STAND_IN)
    result = make_env(python="", path=f"{tmp_path}:/usr/bin:/bin")
    assert result.returncode == 0, result.stderr
    assert f"({tmp_path}/python3.11)" in result.stdout
