"""Runs the scripts on several devices: groups of processes that are the workers of one run.

    python devices_driver.py plan.json folder

plan.json holds a list of groups, run one after another. A group is a list of processes that start
together. A process is an object of

    call: a script's module, or "module:function", to be run with `argv`.
    argv: its arguments.
    workers: whether the group's processes are the workers of one run (TF_CONFIG).
    chief: whether the first of them is a chief by name.
    cpus: how many logical CPUs it has; 1 by default.
    kill, terminate: the step after which it sends itself SIGKILL, or SIGTERM.
    temp: its folder for temporary files.
    untouchable: a folder in which it must not write; it fails if it does.

Prints a list of groups of {"signal", "status", "seconds", "log"}: how each process ended, how long
after the first of its group, and what it said. A process that does not end is killed.

TensorFlow is imported once and each process is forked before it starts any thread.
"""

import importlib
import json
import os
import pathlib
import signal
import socket
import sys
import tempfile
import time
import traceback

# Threads do not survive a fork, nor does CUDA.
os.environ.update(
    OPENBLAS_NUM_THREADS="1", OMP_NUM_THREADS="1", CUDA_VISIBLE_DEVICES="-1",
    TF_CPP_MIN_LOG_LEVEL="2",
)  # fmt: skip
sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
sys.path.insert(0, str(pathlib.Path(__file__).parent))
sys.path.insert(0, str(pathlib.Path(__file__).parent / "unit" / "training"))

# What a process would import, so that it need not.
import keras  # noqa: F401
import tensorflow as tf

import data_prep.input_pipeline  # noqa: F401
from bert_tf import paths
from bert_tf.checkpoint import original

# Of a group, on a machine that does much else.
TIMEOUT_SECONDS = 500


def free_ports(count):
    """Ports that nobody listens on; all are held until the last is found."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            each.bind(("localhost", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


def set_up(process, index, ports):
    """Makes this process what the plan says, before TensorFlow looks at its devices."""
    os.environ.pop("TF_CONFIG", None)
    if process.get("workers"):
        addresses = [f"localhost:{port}" for port in ports]
        task = {"type": "worker", "index": index}
        cluster = {"worker": addresses}
        if process.get("chief"):
            cluster = {"chief": addresses[:1], "worker": addresses[1:]}
            task = {"type": "worker" if index else "chief", "index": max(0, index - 1)}
        os.environ["TF_CONFIG"] = json.dumps({"cluster": cluster, "task": task})
    if "temp" in process:
        tempfile.tempdir = process["temp"]
    if "untouchable" in process:
        forbid_writing(process["untouchable"])
    cpu = tf.config.list_physical_devices("CPU")[0]
    count = process.get("cpus", 1)
    logical = [tf.config.LogicalDeviceConfiguration()] * count
    tf.config.set_logical_device_configuration(cpu, logical)


def forbid_writing(folder):
    """Makes all that the project writes files with fail in a folder."""
    open_file, write = paths.open_file, original.write

    def checked_open(path, mode="r", *more, **options):
        assert mode in ("r", "rb") or not path.startswith(folder), f"{path} is written"
        return open_file(path, mode, *more, **options)

    def checked_write(prefix, *more, **options):
        assert not prefix.startswith(folder), f"{prefix} is written"
        return write(prefix, *more, **options)

    paths.open_file, original.write = checked_open, checked_write


def hook(process):
    """Returns what the scripts' AFTER_LOOP is to be."""

    def after_loop(step):
        if step == process.get("kill"):
            os.kill(os.getpid(), signal.SIGKILL)
        if step == process.get("terminate"):
            os.kill(os.getpid(), signal.SIGTERM)

    return after_loop


def live(process, index, ports):
    """Does what a process is to do; returns its exit status."""
    set_up(process, index, ports)
    module_name, _, function = process["call"].partition(":")
    module = importlib.import_module(module_name)
    argv = [f"{module_name}.py", *map(str, process["argv"])]
    try:
        if hasattr(module, "CLI"):
            module.AFTER_LOOP = hook(process)
            sys.argv = argv
            module.CLI.run(module.main)
        else:
            getattr(module, function)(*argv[1:])
    except SystemExit as end:
        return end.code or 0
    except BaseException:
        traceback.print_exc()
        return 70
    return 0


def start(process, index, ports, log):
    child = os.fork()
    if child:
        return child
    handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    # Not os._exit: how TensorFlow ends belongs to what is tested.
    sys.exit(live(process, index, ports))


def run_group(group, name, folder):
    ports = free_ports(len(group))
    logs = [folder / f"{name}_{index}.log" for index in range(len(group))]
    began = time.monotonic()
    running = {start(each, i, ports, logs[i]): i for i, each in enumerate(group)}
    ends, first = {}, None
    while running:
        for child, index in list(running.items()):
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                del running[child]
                now = time.monotonic()
                first = first or now
                ends[index] = {
                    "signal": os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0,
                    "status": os.WEXITSTATUS(status) if os.WIFEXITED(status) else None,
                    "seconds": now - first,
                    "log": logs[index].read_text(errors="replace"),
                }
        if time.monotonic() - began > TIMEOUT_SECONDS:
            for child in running:
                os.kill(child, signal.SIGKILL)
        time.sleep(0.02)
    return [ends[index] for index in range(len(group))]


def main():
    plan, folder = json.loads(pathlib.Path(sys.argv[1]).read_text()), pathlib.Path(sys.argv[2])
    ends = []
    for number, group in enumerate(plan):
        ends.append(run_group(group, number, folder))
    print(json.dumps(ends))


if __name__ == "__main__":
    main()
