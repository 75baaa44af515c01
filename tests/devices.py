"""Runs what needs several devices or workers, each in a process of its own.

Logical devices and workers have to be set up before TensorFlow is used: never within pytest.
"""

import json
import os
import pathlib
import subprocess
import sys

import numpy as np


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


def arrays_of(script, output):
    """Runs a Python file that writes its results to the .npz file it is given; returns these."""
    tests = pathlib.Path(__file__).parent
    search = [str(tests.parent), str(tests), os.environ.get("PYTHONPATH", "")]
    done = subprocess.run(
        [sys.executable, str(script), str(output)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, search))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    with np.load(output) as arrays:
        return dict(arrays)


def assert_fine(ends):
    """Checks that every process of some groups ended well."""
    for group in ends:
        for end in group:
            assert (end["signal"], end["status"]) == (0, 0), end["log"][-4000:]
