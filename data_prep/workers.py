"""Worker processes that are told what to do one task at a time, and are missed when they die.

Processes are started anew ("spawn"), so nothing of the parent's threads or libraries is carried
over, and all systems behave alike.
"""

import multiprocessing
import multiprocessing.connection
import os
import pickle
import signal
from collections.abc import Callable, Iterable, Iterator
from typing import Any


class WorkerError(ChildProcessError):
    """A worker process died; the message says which one, of what and at which task."""


def _main(connection: Any) -> None:
    # Ctrl-C reaches all processes of a terminal; the parent ends the workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    state: Any = None
    try:
        make, arguments = connection.recv()
    except (EOFError, OSError):
        return
    while True:
        try:
            method, task = connection.recv()
        except (EOFError, OSError):  # The parent is gone.
            return
        try:
            if state is None:
                state = make(*arguments)
            answer = True, getattr(state, method)(*task)
        except BaseException as error:
            try:
                # Some errors can be written but not read.
                pickle.loads(pickle.dumps(error))
            except Exception:
                error = RuntimeError(f"{type(error).__name__}: {error}")
            answer = False, error
        connection.send(answer)


class Pool:
    """A number of workers, each with an object of its own.

    Args:
      count: how many.
      make, arguments: in each worker `make(*arguments, its number)` makes the object that
        tasks are methods of. They must be picklable.

    Use as a context manager.
    """

    def __init__(self, count: int, make: Callable[..., Any], arguments: tuple[Any, ...]):
        self._context = multiprocessing.get_context("spawn")
        self._processes: list[Any] = []
        self._connections: list[Any] = []
        for number in range(count):
            ours, theirs = self._context.Pipe()
            process = self._context.Process(
                target=_main,
                args=(theirs,),
                name=f"worker {number}",
                daemon=True,
            )
            process.start()
            theirs.close()
            self._processes.append(process)
            self._connections.append(ours)
        for number, connection in enumerate(self._connections):
            # Not as arguments of the process: the library would wait for ever for a process that
            # dies before it has read them.
            try:
                connection.send((make, (*arguments, number)))
            except OSError:
                raise self._death(number, "its start") from None

    def __enter__(self) -> "Pool":
        return self

    def __exit__(self, *_: Any) -> None:
        for connection in self._connections:
            connection.close()
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            process.join()

    def run(
        self, method: str, tasks: Iterable[tuple[str, tuple[Any, ...]]]
    ) -> Iterator[tuple[int, Any]]:
        """Has the workers do tasks; yields (number of the task, result) as they are done.

        Args:
          method: name of the object's method.
          tasks: (what it is, for messages; arguments). Read as workers become free, one ahead.

        Raises:
          WorkerError: a worker died.
          Exception: what a task raised.
        """
        waiting = enumerate(tasks)
        following = next(waiting, None)
        free = list(range(len(self._processes)))
        busy: dict[int, tuple[int, str]] = {}
        while following is not None or busy:
            while following is not None and free:
                number, (what, arguments) = following
                worker = free.pop(0)
                busy[worker] = number, what
                try:
                    self._connections[worker].send((method, arguments))
                except OSError:
                    raise self._death(worker, what) from None
                following = next(waiting, None)
            ready = multiprocessing.connection.wait(
                [self._connections[worker] for worker in busy]
                + [self._processes[worker].sentinel for worker in busy]
            )
            for worker in list(busy):
                connection = self._connections[worker]
                if connection in ready or self._processes[worker].sentinel in ready:
                    number, what = busy.pop(worker)
                    try:
                        good, result = connection.recv()
                    except (EOFError, OSError):
                        raise self._death(worker, what) from None
                    if not good:
                        raise result
                    free.append(worker)
                    yield number, result

    def _death(self, worker: int, what: str) -> WorkerError:
        process = self._processes[worker]
        process.join(5)
        code = process.exitcode
        if code is None or code >= 0:
            how = f"ended with exit code {code}"
        else:
            how = f"was ended by {signal.Signals(-code).name}"
            if -code == signal.SIGKILL:
                how += " (the system does so when memory runs out)"
        return WorkerError(
            f"worker {worker} (process {process.pid}) {how} at {what}; no output file was "
            f"written. Run the command again, with fewer workers than {len(self._processes)} if "
            "memory ran out."
        )


def default_count() -> int:
    """Returns the number of CPUs that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
