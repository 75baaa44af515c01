"""Batches formed from what waits: while one is computed, the next one gathers.

There is no artificial wait: a request that comes alone is computed alone, at once.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

_LOG = logging.getLogger(__name__)

Predict = Callable[[list[Any]], Sequence[Any]]


class QueueFull(Exception):
    """As many instances wait as may; try again later."""


class Stopped(Exception):
    """The batcher takes nothing more."""


class _Request:
    """Instances of one caller, of which `taken` are in a batch or done."""

    def __init__(self, instances: list[Any]):
        self.instances = instances
        self.results: list[Any] = []
        self.taken = 0
        self.future: Future[list[Any]] = Future()

    @property
    def left(self) -> int:
        return len(self.instances) - self.taken


class Batcher:
    """Runs a function over the instances of many callers, in one thread.

    A request of more instances than a batch holds is computed in turns with the others, so that
    it does not keep them waiting. A batch that fails is computed again caller by caller: only a
    caller whose own instances fail gets the error. A future that is cancelled while it waits
    costs nothing.

    Args:
      predict: a list of instances to as many results.
      max_batch: instances of a batch, 1 or more.
      max_waiting: instances that may wait, 1 or more; further ones are refused.

    Raises:
      ValueError: a number is below 1.
    """

    def __init__(self, predict: Predict, max_batch: int = 32, max_waiting: int = 512):
        for name, value in (("max_batch", max_batch), ("max_waiting", max_waiting)):
            if value < 1:
                raise ValueError(f"{name} is {value}; it must be 1 or more.")
        self._predict = predict
        self._max_batch = max_batch
        self._max_waiting = max_waiting
        self._queue: deque[_Request] = deque()
        self._changed = threading.Condition()
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="batcher", daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether requests are taken."""
        return self._thread.is_alive() and not self._stopped

    @property
    def waiting(self) -> int:
        """Instances that wait now, those in the batch that is computed left out."""
        with self._changed:
            return self._count()

    def _count(self) -> int:
        return sum(request.left for request in self._queue if not request.future.cancelled())

    def submit(self, instances: Sequence[Any]) -> "Future[list[Any]]":
        """Queues instances; the future gets their results, in their order.

        Raises:
          QueueFull: so many wait already that these do not fit.
          Stopped: after `stop`.
        """
        request = _Request(list(instances))
        if not request.instances:
            request.future.set_result([])
            return request.future
        with self._changed:
            if not self.alive:
                raise Stopped("The service is stopping.")
            waiting = self._count()
            if waiting + request.left > self._max_waiting:
                raise QueueFull(
                    f"{waiting} instances wait, with these {request.left} they would be more "
                    f"than {self._max_waiting}."
                )
            self._queue.append(request)
            self._changed.notify()
        return request.future

    def stop(self) -> None:
        """Takes nothing more, computes what waits, and returns when that is done."""
        with self._changed:
            self._stopped = True
            self._changed.notify()
        self._thread.join()

    def _take(self) -> list[tuple[_Request, list[Any]]]:
        """Waits for a batch: some instances of one or more requests. Empty: the end."""
        with self._changed:
            while True:
                batch: list[tuple[_Request, list[Any]]] = []
                room = self._max_batch
                unfinished = []
                while self._queue and room:
                    request = self._queue.popleft()
                    if request.future.cancelled():
                        continue
                    part = request.instances[request.taken : request.taken + room]
                    request.taken += len(part)
                    room -= len(part)
                    batch.append((request, part))
                    if request.left:
                        unfinished.append(request)
                self._queue.extend(unfinished)  # Behind the others: they have a turn first.
                if batch or self._stopped:
                    return batch
                self._changed.wait()

    def _run(self) -> None:
        while batch := self._take():
            try:
                self._compute(batch)
            except Exception as error:
                if len(batch) == 1:
                    self._fail(batch[0][0], error)
                    continue
                _LOG.warning("A batch failed; its requests are computed one by one.", exc_info=True)
                for each in batch:
                    try:
                        self._compute([each])
                    except Exception as own_error:
                        self._fail(each[0], own_error)

    def _compute(self, batch: list[tuple[_Request, list[Any]]]) -> None:
        flat = [instance for _, part in batch for instance in part]
        results = list(self._predict(flat))
        if len(results) != len(flat):
            raise RuntimeError(f"the model gave {len(results)} results for {len(flat)} instances")
        at = 0
        for request, part in batch:
            request.results += results[at : at + len(part)]
            at += len(part)
            # False: its caller has given up.
            if len(request.results) == len(request.instances) and (
                request.future.set_running_or_notify_cancel()
            ):
                request.future.set_result(request.results)

    def _fail(self, request: _Request, error: Exception) -> None:
        with self._changed:
            if request in self._queue:
                self._queue.remove(request)
        if request.future.set_running_or_notify_cancel():
            request.future.set_exception(error)
