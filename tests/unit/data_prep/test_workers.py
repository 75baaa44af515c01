"""Worker processes: results, errors, deaths."""

import os
import re
import signal
import time

import pytest

from data_prep.workers import Pool, WorkerError, default_count


class Calculator:
    """What the workers of these tests hold."""

    def __init__(self, base, number):
        if base is None:
            raise ValueError("no base")
        self.base, self.number = base, number

    def add(self, x):
        return self.base + x

    def whoami(self):
        time.sleep(0.05)
        return os.getpid()

    def fail(self, x):
        raise KeyError(x)

    def fail_oddly(self):
        class Odd(Exception):
            pass

        raise Odd("odd")

    def die(self, how):
        if isinstance(how, signal.Signals):
            os.kill(os.getpid(), how)
        os._exit(how)


def test_results_and_errors():
    with Pool(2, Calculator, (100,)) as pool:
        tasks = ((f"task {i}", (i,)) for i in range(20))
        assert dict(pool.run("add", tasks)) == {i: 100 + i for i in range(20)}
        used = {pid for _, pid in pool.run("whoami", [("w", ())] * 6)}
        assert len(used) == 2
        assert os.getpid() not in used
        with pytest.raises(KeyError, match="7"):
            list(pool.run("fail", [("f", (7,))]))
        with pytest.raises(RuntimeError, match="Odd: odd"):
            list(pool.run("fail_oddly", [("f", ())]))
        # It goes on after errors.
        assert list(pool.run("add", [("a", (1,))])) == [(0, 101)]
        assert list(pool.run("add", [])) == []


@pytest.mark.parametrize(
    ("how", "message"),
    [
        (signal.SIGKILL, r"was ended by SIGKILL \(the system does so when memory runs out\)"),
        (signal.SIGSEGV, "was ended by SIGSEGV"),
        (3, "ended with exit code 3"),
    ],
)
def test_a_death_is_named(how, message):
    with Pool(1, Calculator, (0,)) as pool, pytest.raises(WorkerError) as caught:
        list(pool.run("die", [("chunk 5 of the text", (how,))]))
    text = str(caught.value)
    assert text.startswith("worker 0 (process ")
    assert "at chunk 5 of the text" in text
    assert re.search(message, text)


def test_a_worker_that_dies_between_tasks():
    with Pool(1, Calculator, (0,)) as pool:
        ((_, pid),) = pool.run("whoami", [("w", ())])
        os.kill(pid, signal.SIGKILL)
        pool._processes[0].join()
        with pytest.raises(WorkerError, match=r"worker 0 .* SIGKILL"):
            list(pool.run("add", [("sum", (1,))]))


class DiesAtStart:
    """Large, and deadly to read."""

    def __init__(self):
        self.data = b"x" * 1_000_000

    def __reduce__(self):
        return os._exit, (7,)


def test_a_worker_that_dies_at_its_start():
    with pytest.raises(WorkerError, match=r"worker 0 .* ended with exit code 7"):  # noqa: SIM117
        with Pool(1, Calculator, (DiesAtStart(), b"x" * 1_000_000)) as pool:
            list(pool.run("add", [("a", (1,))]))


def test_an_error_of_the_maker():
    with Pool(1, Calculator, (None,)) as pool, pytest.raises(ValueError, match="no base"):
        list(pool.run("add", [("a", (1,))]))


def test_an_error_of_the_tasks_ends_the_run():
    def tasks():
        yield "a", (1,)
        raise ValueError("reading failed")

    with Pool(1, Calculator, (0,)) as pool, pytest.raises(ValueError, match="reading failed"):
        list(pool.run("add", tasks()))


def test_default_count():
    assert default_count() >= 1
