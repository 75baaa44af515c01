import io
import itertools
import logging
import math
import sys

import pytest
import tensorflow as tf
import tiny

from bert_tf.training import loop, progress
from bert_tf.training.loop import Evaluation, Schedule
from bert_tf.training.progress import Events, Progress, describe
from bert_tf.training.run_folder import RunFolder


def read_events(files):
    """{name: {step: value}} of the files."""
    found = {}
    for file in files:
        for record in tf.data.TFRecordDataset(str(file)):
            event = tf.compat.v1.Event.FromString(record.numpy())
            for value in event.summary.value:
                number = tf.make_ndarray(value.tensor).item()
                found.setdefault(value.tag, {})[event.step] = number
    return found


def test_events_of_a_run(trainer, tmp_path):
    seen = []
    evaluation = Evaluation(lambda: {"accuracy": 0.25}, 2, "accuracy")
    loop.train(
        trainer,
        tiny.classifier_dataset,
        RunFolder(str(tmp_path)),
        Schedule(5, {"examples_per_second": tiny.BATCH_SIZE}, 100, 2),
        evaluation,
        lambda done: seen.append(done),
    )
    events = read_events(tmp_path.glob("events.out.tfevents*"))
    assert events.keys() == {
        "loss", "grad_norm", "learning_rate", "examples_per_second", "eval/accuracy",
    }  # fmt: skip
    for name in ("loss", "grad_norm", "learning_rate", "examples_per_second"):
        assert list(events[name]) == seen == [2, 4, 5]
        assert all(value > 0 and math.isfinite(value) for value in events[name].values())
    assert events["eval/accuracy"] == {2: 0.25, 4: 0.25, 5: 0.25}
    # Of the last step of each loop: steps 1, 3 and 4.
    rates = {step: float(trainer.optimizer.learning_rate(step - 1)) for step in seen}
    assert events["learning_rate"] == pytest.approx(rates)


def test_events_of_a_killed_run_are_there(tmp_path):
    events = Events(str(tmp_path))
    events.write(3, {"loss": 1.5})
    events.flush()
    assert read_events(tmp_path.glob("events*")) == {"loss": {3: 1.5}}
    events.close()


def test_events_by_address():
    fsspec = pytest.importorskip("fsspec")
    files = fsspec.filesystem("memory")
    events = Events("memory://events/run")
    events.write(1, {"loss": 2.5})
    events.flush()
    (name,) = files.find("/events")
    size = files.size(name)
    events.write(2, {"loss": 1.5})
    events.close()
    assert files.find("/events") == [name]
    assert files.size(name) > size
    files.rm("/events", recursive=True)


@pytest.fixture
def clock(monkeypatch):
    """Ten seconds pass between two looks at the clock."""
    times = itertools.count(0, 10)
    monkeypatch.setattr(progress.time, "monotonic", lambda: float(next(times)))


@pytest.fixture
def lines(caplog):
    caplog.set_level(logging.INFO, logger="absl")
    return lambda: [record.getMessage() for record in caplog.records]


def test_lines_of_a_log(clock, lines):
    shown = Progress(100, 20, {"examples_per_second": 8}, log_steps=30)
    assert shown.rates == {}
    for step in range(30, 101, 10):
        shown.update(step, {"loss": 0.5, "learning_rate": 1e-4})
        assert shown.rates == {"examples_per_second": 8.0}
    shown.close()
    metrics = "loss 0.5, lr 1.00e-04, examples/s 8"
    assert lines() == [
        # The first at once: it tells that the run works. Its rate would be that of compiling.
        "step 30 of 100: loss 0.5, lr 1.00e-04",
        f"step 60 of 100: {metrics}, 0:00:40 left",
        f"step 90 of 100: {metrics}, 0:00:10 left",
        f"step 100 of 100: {metrics}, 0:00:00 left",
    ]


def test_time_left_out(clock):
    shown = Progress(100, 0, {"examples_per_second": 4})
    shown.update(10, {})
    assert shown.rates == {"examples_per_second": 4.0}
    shown.skip_time()
    shown.update(20, {})
    # Ten seconds since skip_time, not twenty.
    assert shown.rates == {"examples_per_second": 4.0}


def test_a_bar_in_a_terminal(monkeypatch, lines):
    terminal = io.StringIO()
    terminal.isatty = lambda: True
    monkeypatch.setattr(sys, "stderr", terminal)
    shown = Progress(10, 4, {"examples_per_second": 2})
    shown.update(7, {"loss": 0.25})
    shown.update(10, {"loss": 0.125})
    shown.close()
    assert "10/10" in terminal.getvalue()
    assert "loss 0.125" in terminal.getvalue()
    assert lines() == []


@pytest.mark.parametrize(
    ("metrics", "text"),
    [
        ({"loss": 1 / 3, "learning_rate": 2e-5}, "loss 0.3333, lr 2.00e-05"),
        (
            {"masked_lm_loss": 5.5, "next_sentence_accuracy": 0.75, "tokens_per_second": 4096.0},
            "mlm_loss 5.5, nsp_acc 0.75, tokens/s 4096",
        ),
        ({"examples/s": 12345.6, "loss": 999.94}, "examples/s 12346, loss 999.9"),
        ({"loss": math.nan, "norm": -2000.0}, "loss nan, norm -2000"),
        ({}, ""),
    ],
)
def test_describe(metrics, text):
    assert describe(metrics) == text
