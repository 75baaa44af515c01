"""Runs run_classifier.py in lives, each a process of its own that may kill itself.

    python kill_driver.py lives.json log.txt

lives.json holds a list of {"argv": [...], "kill": null or {"step": N} or {"before" or "after":
the end of a file's path}}: SIGKILL after N steps, or before or after a file is renamed into its
place. Prints a list of {"signal", "status", "files", "latest"} as JSON: how each life ended and
what it left in its output folder.

TensorFlow is imported once and each life is forked before it starts any thread; that is why the
tests do not do this themselves.
"""

import json
import os
import pathlib
import signal
import sys
import traceback

# Threads do not survive a fork, nor does CUDA.
os.environ.update(
    OPENBLAS_NUM_THREADS="1", OMP_NUM_THREADS="1", CUDA_VISIBLE_DEVICES="-1",
    TF_CPP_MIN_LOG_LEVEL="2",
)  # fmt: skip
sys.path.insert(0, str(pathlib.Path(__file__).parents[2]))

# What a life would import, so that it need not.
import keras  # noqa: F401

import bert_tf.training.distribution
import bert_tf.training.loop  # noqa: F401
import run_classifier
from bert_tf import paths


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def arm(kill):
    """Sets the place where this process will end."""
    if "step" in kill:
        run_classifier.AFTER_LOOP = lambda step: die() if step == kill["step"] else None
        return
    rename = paths.rename

    def deadly_rename(source, target):
        if "before" in kill and target.endswith(kill["before"]):
            die()
        rename(source, target)
        if "after" in kill and target.endswith(kill["after"]):
            die()

    paths.rename = deadly_rename


def live(life):
    if life["kill"]:
        arm(life["kill"])
    try:
        run_classifier.main(["run_classifier.py", *life["argv"]])
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def describe(status, folder):
    state = folder / "checkpoint"
    return {
        "signal": os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0,
        "status": os.WEXITSTATUS(status) if os.WIFEXITED(status) else None,
        "files": sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()),
        "latest": state.read_text().split('"')[1] if state.exists() else None,
    }


def main():
    lives = json.loads(pathlib.Path(sys.argv[1]).read_text())
    ends = []
    for life in lives:
        child = os.fork()
        if child == 0:
            log = os.open(sys.argv[2], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(log, 1)
            os.dup2(log, 2)
            code = live(life)
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
        _, status = os.waitpid(child, 0)
        folder = next(a for a in life["argv"] if a.startswith("--output_dir="))
        ends.append(describe(status, pathlib.Path(folder.removeprefix("--output_dir="))))
    print(json.dumps(ends))


if __name__ == "__main__":
    main()
