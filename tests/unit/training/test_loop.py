"""The life of a run: interrupted, resumed, spoilt, finished."""

import functools
import json
import logging
import math
import os
import shutil
import signal

import numpy as np
import pytest
import tiny
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_tf.checkpoint import original
from bert_tf.training import loop
from bert_tf.training.loop import Evaluation, Preempted, Schedule, TrainingError
from bert_tf.training.run_folder import RunFolder

STEPS = 8


class Killed(BaseException):
    """What no handler catches."""


def train(trainer, folder, *, steps=STEPS, save=3, per_loop=1, **more):
    """Trains as a new process would: nothing but the folder and the first weights is known."""
    tiny.scramble(trainer)
    tiny.reset(trainer, "tiny_classifier/bert_model.ckpt")
    state = loop.train(
        trainer,
        tiny.classifier_dataset,
        folder if isinstance(folder, RunFolder) else RunFolder(str(folder)),
        Schedule(steps, {"examples_per_second": tiny.BATCH_SIZE}, save, per_loop),
        **more,
    )
    return state, trainer.tensors()


def stop_at(step):
    def after_loop(done):
        if done >= step:
            raise Killed

    return after_loop


@pytest.fixture(scope="module")
def uninterrupted(_traced_trainer, tmp_path_factory):
    return train(_traced_trainer, tmp_path_factory.mktemp("reference"))[1]


@pytest.mark.parametrize("per_loop", [2, 5, 100])
def test_steps_per_loop_changes_nothing(trainer, tmp_path, uninterrupted, per_loop):
    tiny.assert_same(train(trainer, tmp_path, per_loop=per_loop)[1], uninterrupted)


@pytest.mark.parametrize("kill", range(1, STEPS))
def test_interrupted_and_resumed(trainer, tmp_path, uninterrupted, kill):
    with pytest.raises(Killed):
        train(trainer, tmp_path, after_loop=stop_at(kill))
    latest = RunFolder(str(tmp_path)).latest()
    saved = kill // 3 * 3
    assert latest == (str(tmp_path / f"model.ckpt-{saved}") if saved else None)
    first = []
    tensors = train(trainer, tmp_path, per_loop=2, after_loop=first.append)[1]
    assert first[0] == min(saved + 2, saved + 3)
    tiny.assert_same(tensors, uninterrupted)
    reader = original.Reader(str(tmp_path / f"model.ckpt-{STEPS}"))
    tiny.assert_same({name: reader.get(name) for name in reader.shapes}, uninterrupted)


def test_killed_again_and_again(trainer, tmp_path, uninterrupted):
    for kill in (2, 3, 4, 7):
        with pytest.raises(Killed):
            train(trainer, tmp_path, save=1, after_loop=stop_at(kill))
    tiny.assert_same(train(trainer, tmp_path, save=1)[1], uninterrupted)


def terminate_at(step):
    def after_loop(done):
        if done == step:
            os.kill(os.getpid(), signal.SIGTERM)

    return after_loop


@pytest.mark.parametrize("step", [1, 2, 4])
def test_sigterm_saves_and_ends(trainer, tmp_path, uninterrupted, caplog, step):
    before = signal.getsignal(signal.SIGTERM)
    # It comes between two loops, and is answered after the next one.
    with caplog.at_level(logging.WARNING, logger="absl"), pytest.raises(Preempted) as caught:
        train(trainer, tmp_path, after_loop=terminate_at(step))
    assert caught.value.code == 143
    assert isinstance(caught.value, SystemExit)
    assert signal.getsignal(signal.SIGTERM) == before
    assert RunFolder(str(tmp_path)).latest() == str(tmp_path / f"model.ckpt-{step + 1}")
    assert f"SIGTERM: saved at step {step + 1} of {STEPS}. The same command goes on" in caplog.text
    tiny.assert_same(train(trainer, tmp_path)[1], uninterrupted)


def test_sigterm_in_the_last_loop(trainer, tmp_path, uninterrupted):
    _, tensors = train(trainer, tmp_path, after_loop=terminate_at(STEPS - 1))
    tiny.assert_same(tensors, uninterrupted)


def test_sigterm_keeps_the_best(trainer, tmp_path):
    values = {2: 0.5, 4: 0.9, 6: 0.6, 8: 0.7}
    with pytest.raises(Preempted):
        train(
            trainer,
            tmp_path,
            evaluation=evaluation_of(trainer, values),
            after_loop=terminate_at(4),
        )
    state = json.loads((tmp_path / "model.ckpt-5.state.json").read_text())
    assert state["best_step"] == 4
    state, _ = train(trainer, tmp_path, evaluation=evaluation_of(trainer, values))
    assert state["best_step"] == 4


def test_another_thread_takes_no_signals(trainer, tmp_path, uninterrupted):
    import threading

    found = []
    thread = threading.Thread(target=lambda: found.append(train(trainer, tmp_path)[1]))
    thread.start()
    thread.join()
    tiny.assert_same(found[0], uninterrupted)


@pytest.mark.parametrize("function", ["write", "write_state"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_killed_while_it_saves(trainer, tmp_path, uninterrupted, monkeypatch, function, when):
    real = getattr(original, function)

    def killed(path, *rest):
        last = [str(path), *map(str, rest)]
        if not any("model.ckpt-6" in part for part in last[:2]):
            return real(path, *rest)
        if when == "after":
            real(path, *rest)
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(original, function, killed)
        with pytest.raises(Killed):
            train(trainer, tmp_path)
    finished = function == "write_state" and when == "after"
    latest = RunFolder(str(tmp_path)).latest()
    assert latest == str(tmp_path / f"model.ckpt-{6 if finished else 3}")
    tiny.assert_same(train(trainer, tmp_path)[1], uninterrupted)


def test_a_full_disk_leaves_the_last_checkpoint(trainer, tmp_path, uninterrupted, monkeypatch):
    import tensorflow as tf

    real = tf.raw_ops.SaveV2

    def full(prefix, **more):
        if "model.ckpt-6" in prefix:
            with open(f"{prefix}.data-00000-of-00001", "wb") as handle:
                handle.write(b"half")
            raise tf.errors.ResourceExhaustedError(None, None, "No space left on device")
        return real(prefix=prefix, **more)

    with monkeypatch.context() as patch:
        patch.setattr(tf.raw_ops, "SaveV2", full)
        with pytest.raises(OSError, match=r"model\.ckpt-6 could not be written: No space left"):
            train(trainer, tmp_path)
    assert RunFolder(str(tmp_path)).latest() == str(tmp_path / "model.ckpt-3")
    assert not list(tmp_path.glob("*-6*"))
    tiny.assert_same(train(trainer, tmp_path)[1], uninterrupted)


def test_events_that_cannot_be_written(trainer, tmp_path, monkeypatch):
    import tensorflow as tf

    def full(folder):
        raise tf.errors.ResourceExhaustedError(None, None, f"{folder}; No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(tf.summary, "create_file_writer", full)
        with pytest.raises(OSError, match=r"events cannot be written.*No space left.*free some"):
            train(trainer, tmp_path)


def test_a_folder_that_is_deleted_meanwhile(trainer, tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()

    def delete(done):
        if done == 3:
            shutil.rmtree(folder)

    with pytest.raises(FileNotFoundError, match="run is gone: was it deleted"):
        train(trainer, folder, after_loop=delete)
    assert not folder.exists()


def test_a_finished_run(trainer, tmp_path, caplog):
    _, tensors = train(trainer, tmp_path, steps=3)
    with caplog.at_level(logging.INFO, logger="absl"):
        state, found = train(trainer, tmp_path, steps=3, after_loop=stop_at(0))
    assert state == {}
    tiny.assert_same(found, tensors)
    assert "is at step 3 of 3: there is nothing to train" in caplog.text
    assert "--output_dir" in caplog.text


def test_a_finished_run_trains_on_to_a_later_end(trainer, tmp_path, uninterrupted):
    train(trainer, tmp_path, steps=4)
    tiny.assert_same(train(trainer, tmp_path)[1], uninterrupted)


def test_a_loss_that_is_not_finite(trainer, tmp_path):
    def spoil(done):
        if done == 5:
            bias = trainer.variables["bert/pooler/dense/bias"]
            bias.assign(np.full(bias.shape, np.nan, np.float32))

    message = r"not finite at step 5 \(in the loop of steps 5 to 5\).*model\.ckpt-3\. Try a lower"
    with pytest.raises(TrainingError, match=message):
        train(trainer, tmp_path, after_loop=spoil)
    assert RunFolder(str(tmp_path)).latest() == str(tmp_path / "model.ckpt-3")
    assert len(list(tmp_path.glob("*.index"))) == 1


def test_a_loss_that_is_not_finite_at_once(trainer, tmp_path):
    tiny.reset(trainer, "tiny_classifier/bert_model.ckpt")
    table = trainer.variables["bert/embeddings/position_embeddings"]
    table.assign(np.full(table.shape, np.inf, np.float32))
    with pytest.raises(TrainingError, match=r"at step 0 .*steps 0 to 2\).*no checkpoint yet"):
        loop.train(
            trainer,
            tiny.classifier_dataset,
            RunFolder(str(tmp_path)),
            Schedule(STEPS, {"examples_per_second": tiny.BATCH_SIZE}, 3, 10),
        )
    assert not list(tmp_path.glob("*.index"))


def evaluation_of(trainer, values, every=2, **more):
    """An evaluation that finds the given values, by step."""
    return Evaluation(
        # NumPy's number, as metrics often are.
        lambda: {"accuracy": np.float32(values[int(trainer.global_step)]), "other": 0.0},
        every,
        "accuracy",
        **more,
    )


@pytest.mark.parametrize(
    ("values", "higher", "best"),
    [
        ({2: 0.5, 4: 0.7, 6: 0.7, 8: 0.6}, True, 4),
        ({2: 0.5, 4: 0.7, 6: 0.2, 8: 0.3}, False, 6),
        ({2: math.nan, 4: 0.0, 6: math.nan, 8: -0.1}, True, 4),
        ({2: -0.5, 4: -0.4, 6: -0.3, 8: -0.2}, True, 8),
    ],
)
def test_the_best_weights_are_kept(trainer, tmp_path, values, higher, best):
    seen = {}

    def note(done):
        seen[done] = trainer.tensors()

    evaluation = evaluation_of(trainer, values, higher_is_better=higher)
    state, _ = train(trainer, tmp_path, evaluation=evaluation, after_loop=note)
    value = float(np.float32(values[best]))
    assert state == {"best_value": value, "best_step": best, "best_metric": "accuracy"}
    folder = tmp_path / "best"
    assert sorted(path.name for path in folder.iterdir()) == [
        "best.json",
        "checkpoint",
        f"model.ckpt-{best}.data-00000-of-00001",
        f"model.ckpt-{best}.index",
    ]
    facts = json.loads((folder / "best.json").read_text())
    assert facts == {"accuracy": value, "step": best}
    reader = original.Reader(str(folder))
    tiny.assert_same(
        {name: reader.get(name) for name in reader.shapes},
        {name: seen[best][name] for name in trainer.variables},
    )


@pytest.mark.parametrize("kill", range(1, STEPS))
def test_the_best_survives_an_interruption(trainer, tmp_path, kill):
    values = {2: 0.5, 4: 0.9, 6: 0.6, 8: 0.7}
    run = functools.partial(train, trainer, tmp_path)
    with pytest.raises(Killed):
        run(evaluation=evaluation_of(trainer, values), after_loop=stop_at(kill))
    state, _ = run(evaluation=evaluation_of(trainer, values))
    assert state["best_step"] == 4
    assert original.latest_checkpoint(str(tmp_path / "best")).endswith("model.ckpt-4")
    assert json.loads((tmp_path / f"model.ckpt-{STEPS}.state.json").read_text()) == state


def test_a_finished_run_knows_its_best(trainer, tmp_path):
    evaluation = evaluation_of(trainer, {2: 0.5, 3: 0.25})
    state, _ = train(trainer, tmp_path, steps=3, evaluation=evaluation)
    assert state["best_step"] == 2
    again, _ = train(trainer, tmp_path, steps=3, evaluation=evaluation)
    assert again == state


def test_evaluated_at_its_steps_and_at_the_end(trainer, tmp_path):
    asked, values = [], dict.fromkeys(range(20), 0.5)

    def run():
        asked.append(int(trainer.global_step))
        return {"accuracy": values[asked[-1]]}

    train(trainer, tmp_path, per_loop=100, evaluation=Evaluation(run, 3, "accuracy"))
    assert asked == [3, 6, 8]


def test_a_run_of_the_original_is_continued(trainer, tmp_path):
    source = tiny.GOLDEN / "checkpoint/tiny_classifier/training"
    for path in source.iterdir():
        if path.name != "variables.json":
            (tmp_path / path.name).write_bytes(path.read_bytes())
    done = []
    state, found = train(trainer, tmp_path, after_loop=done.append)
    assert done == [7, 8]
    assert state == {}
    assert original.all_checkpoints(str(tmp_path)) == [
        str(tmp_path / f"model.ckpt-{number}") for number in (6, 8)
    ]
    # By hand: its weights, slots and step, then two steps.
    tiny.assign(
        {**trainer.variables, **trainer.slots, "global_step": trainer.global_step},
        "tiny_classifier/training/model.ckpt-6",
    )
    trainer.run(iter(tiny.classifier_dataset(6, 8)), 2)
    tiny.assert_same(found, trainer.tensors())


@pytest.mark.parametrize("scheme", ["file", "memory"])
def test_a_folder_by_its_address(trainer, tmp_path, uninterrupted, scheme):
    files = pytest.importorskip("fsspec").filesystem(scheme)
    address = f"{scheme}://{tmp_path}" if scheme == "file" else "memory://loop/run"
    folder = RunFolder(address, keep_checkpoint_max=1)
    values = {2: 0.5, 4: 0.9, 6: 0.6, 8: 0.7}
    try:
        with pytest.raises(Killed):
            train(
                trainer,
                folder,
                evaluation=evaluation_of(trainer, values),
                after_loop=stop_at(5),
            )
        state, tensors = train(trainer, folder, evaluation=evaluation_of(trainer, values))
        assert state["best_step"] == 4
        tiny.assert_same(tensors, uninterrupted)
        found = files.find(str(tmp_path) if scheme == "file" else "/loop")
        names = {name.rpartition("/")[2] for name in found}
        events = {name for name in names if name.startswith("events.out.tfevents")}
        assert len(events) == 2
        assert names - events == {
            "best.json",
            "checkpoint",
            "model.ckpt-4.data-00000-of-00001",
            "model.ckpt-4.index",
            "model.ckpt-8.data-00000-of-00001",
            "model.ckpt-8.index",
            "model.ckpt-8.state.json",
        }
    finally:
        if scheme == "memory":
            files.rm("/loop", recursive=True)


@settings(deadline=None, max_examples=100)
@given(
    total=st.integers(1, 60),
    save=st.integers(1, 70),
    per_loop=st.integers(1, 70),
    every=st.integers(0, 70),
)
def test_loops_stop_wherever_something_is_due(total, save, per_loop, every):
    schedule = Schedule(total, {}, save, per_loop)
    stops, done = [], 0
    while done < total:
        stop = schedule.next_stop(done, every)
        assert done < stop <= done + per_loop
        stops.append(done := stop)
    due = {*range(save, total, save), *(range(every, total, every) if every else ()), total}
    assert due <= set(stops)
    assert stops[-1] == total
