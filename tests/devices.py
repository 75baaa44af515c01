"""Runs what needs several devices or workers, each in a process of its own.

Logical devices and workers have to be set up before TensorFlow is used: never within pytest.
"""

import json
import pathlib
import subprocess
import sys


def workers(count, call, *argv, chief=False):
    """A group of processes that are the workers of one run."""
    one = {"call": call, "argv": [*map(str, argv)], "workers": True, "chief": chief}
    return [{**one, "argv": [*one["argv"]]} for _ in range(count)]


def alone(call, *argv, cpus=1):
    """A process by itself, with so many logical CPUs."""
    return {"call": call, "argv": [*map(str, argv)], "cpus": cpus}


def run(plan, folder):
    """Runs groups of processes, see devices_driver.py; returns how they ended.

    Args:
      plan: a list of groups.
      folder: for the plan and the logs.
    """
    folder.mkdir(exist_ok=True)
    (folder / "plan.json").write_text(json.dumps(plan))
    driver = pathlib.Path(__file__).with_name("devices_driver.py")
    command = [sys.executable, str(driver), str(folder / "plan.json"), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1500)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def assert_fine(ends):
    """Checks that every process of some groups ended well."""
    for group in ends:
        for end in group:
            assert (end["signal"], end["status"]) == (0, 0), end["log"][-4000:]
