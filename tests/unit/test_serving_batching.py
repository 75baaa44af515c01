"""Batches formed from what waits."""

import threading
from concurrent.futures import CancelledError, wait

import pytest

from bert_tf.serving.batching import Batcher, QueueFull, Stopped


class Doubler:
    """Doubles numbers; waits where told, fails on 13."""

    def __init__(self):
        self.batches = []
        self.go = threading.Event()
        self.entered = threading.Semaphore(0)

    def __call__(self, instances):
        self.batches.append(instances)
        self.entered.release()
        assert self.go.wait(60)
        if 13 in instances:
            raise RuntimeError("thirteen")
        return [2 * instance for instance in instances]


@pytest.fixture
def doubler():
    return Doubler()


@pytest.fixture
def held(doubler):
    """A batcher of four a batch and ten waiting, whose thread is held in a first batch [0]."""
    batcher = Batcher(doubler, max_batch=4, max_waiting=10)
    batcher.submit([0])
    assert doubler.entered.acquire(timeout=60)
    yield batcher
    doubler.go.set()
    batcher.stop()


def test_one_alone_is_computed_at_once(doubler):
    doubler.go.set()
    batcher = Batcher(doubler)
    assert batcher.submit([3]).result(60) == [6]
    assert batcher.submit([]).result(60) == []
    batcher.stop()
    assert doubler.batches == [[3]]


def test_what_waits_is_one_batch(held, doubler):
    futures = [held.submit(each) for each in ([1], [2, 3], [4, 5, 6])]
    assert held.waiting == 6
    doubler.go.set()
    assert [future.result(60) for future in futures] == [[2], [4, 6], [8, 10, 12]]
    assert doubler.batches == [[0], [1, 2, 3, 4], [5, 6]]
    assert held.waiting == 0


def test_a_large_request_lets_others_pass(held, doubler):
    large = held.submit(range(20, 29))
    small = held.submit([1])
    doubler.go.set()
    assert large.result(60) == [2 * number for number in range(20, 29)]
    assert small.result(60) == [2]
    assert doubler.batches[1:] == [[20, 21, 22, 23], [1, 24, 25, 26], [27, 28]]


def test_only_who_fails_gets_the_error(held, doubler):
    futures = [held.submit(each) for each in ([1], [13], [2])]
    doubler.go.set()
    assert futures[0].result(60) == [2]
    assert futures[2].result(60) == [4]
    with pytest.raises(RuntimeError, match="thirteen"):
        futures[1].result(60)
    assert held.submit([5]).result(60) == [10]


def test_the_rest_of_a_failed_request_is_not_computed(held, doubler):
    failing = held.submit([13, 1, 1, 1, 7, 7])
    doubler.go.set()
    with pytest.raises(RuntimeError, match="thirteen"):
        failing.result(60)
    assert held.submit([5]).result(60) == [10]
    assert [7, 7] not in doubler.batches


def test_a_wrong_number_of_results_is_an_error():
    batcher = Batcher(lambda instances: [1])
    with pytest.raises(RuntimeError, match="1 results for 2 instances"):
        batcher.submit([1, 2]).result(60)
    batcher.stop()


def test_cancelled_ones_cost_nothing(held, doubler):
    first, second = held.submit([1] * 9), held.submit([2])
    with pytest.raises(QueueFull):
        held.submit([3])
    assert first.cancel()
    third = held.submit([3])
    doubler.go.set()
    assert wait([second, third], 60).not_done == set()
    assert (second.result(), third.result()) == ([4], [6])
    assert doubler.batches == [[0], [2, 3]]
    with pytest.raises(CancelledError):
        first.result()


def test_cancelled_while_a_part_is_computed(held, doubler):
    large = held.submit([9] * 4 + [8] * 4)
    doubler.entered = threading.Semaphore(0)
    real = doubler.go
    doubler.go = threading.Event()
    real.set()
    assert doubler.entered.acquire(timeout=60)  # In its first part.
    assert large.cancel()
    doubler.go.set()
    assert held.submit([5]).result(60) == [10]
    assert [8] * 4 not in doubler.batches


def test_the_queue_is_bounded(held):
    held.submit([1] * 6)
    with pytest.raises(
        QueueFull, match="6 instances wait, with these 5 they would be more than 10"
    ):
        held.submit([1] * 5)
    held.submit([1] * 4)
    with pytest.raises(QueueFull):
        held.submit([1])


def test_stop_computes_what_waits(doubler):
    batcher = Batcher(doubler, max_batch=1)
    futures = [batcher.submit([number]) for number in range(5)]
    stopping = threading.Thread(target=batcher.stop)
    stopping.start()
    while batcher.alive:
        pass
    with pytest.raises(Stopped, match="stopping"):
        batcher.submit([1])
    doubler.go.set()
    stopping.join(60)
    assert [future.result(0) for future in futures] == [[0], [2], [4], [6], [8]]


@pytest.mark.parametrize("name", ["max_batch", "max_waiting"])
def test_wrong_numbers(name):
    with pytest.raises(ValueError, match=f"{name} is 0"):
        Batcher(list, **{name: 0})


def test_many_threads_get_their_own_results():
    batcher = Batcher(lambda instances: [-each for each in instances], 7, 10_000)
    wrong = []

    def call(number):
        for size in range(30):
            asked = [number * 1000 + each for each in range(size % 11)]
            if batcher.submit(asked).result(60) != [-each for each in asked]:
                wrong.append(asked)

    threads = [threading.Thread(target=call, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    batcher.stop()
    assert not wrong
