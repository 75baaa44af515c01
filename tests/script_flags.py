"""What the tests of every script's flags have in common."""

import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[1]


def check_original_flag(script, name, kind, default):
    """Checks a flag that the original has: its type and its default."""
    flag = script.CLI.flags[name]
    assert flag.flag_type() == kind
    assert flag.default == default
    assert type(flag.default) is type(default)
    assert flag.help


def check_help(script, capsys, titles=()):
    """Checks that --help shows every flag, under these titles."""
    with pytest.raises(SystemExit) as exit:
        script.main([f"{script.__name__}.py", "--help"])
    assert exit.value.code == 0
    shown = capsys.readouterr().out
    for name in script.CLI.flags:
        assert f"{name}\n" in shown
    for title in titles:
        assert title in shown


def errors_of(script, *flags):
    """Returns what a script prints for a command that it refuses before TensorFlow is loaded."""
    name = f"{script.__name__}.py"
    code = (
        "import sys, runpy\n"
        f"sys.argv = {[name, *flags]!r}\n"
        "try:\n"
        f"    runpy.run_path({name!r}, run_name='__main__')\n"
        "except SystemExit as exit:\n"
        "    assert exit.code == 1, exit.code\n"
        "    print('tensorflow' in sys.modules or 'keras' in sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert done.stdout.strip() == "False", done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr
