"""run_pretraining.py interrupted in every way ends in the same bits as a run that never was."""

import json
import os
import signal

import pytest
from classifier_runs import assert_same_weights, snapshot, weights
from pretraining_runs import main, write_config, write_records

import run_pretraining
from bert_tf.checkpoint import original
from bert_tf.training.step import LossScale


class Killed(BaseException):
    """What no handler catches."""


def at(step, act):
    """A hook for run_pretraining.AFTER_LOOP."""

    def after_loop(done):
        if done == step:
            act()

    return after_loop


def die():
    raise Killed


def terminate():
    os.kill(os.getpid(), signal.SIGTERM)


def fill_the_disk(patch, name):
    """Makes the saving of a checkpoint fail halfway."""
    import tensorflow as tf

    real = tf.raw_ops.SaveV2

    def full(prefix, **more):
        if name in prefix:
            with open(f"{prefix}.data-00000-of-00001", "wb") as handle:
                handle.write(b"half")
            raise tf.errors.ResourceExhaustedError(None, None, "No space left on device")
        return real(prefix=prefix, **more)

    patch.setattr(tf.raw_ops, "SaveV2", full)


@pytest.fixture(scope="module")
def flags(tmp_path_factory):
    """Eleven records in four files, one of them compressed and one empty; batches of four."""
    folder = tmp_path_factory.mktemp("records")
    write_records(folder / "a.tfrecord", 5, seed=1)
    write_records(folder / "b.tfrecord.gz", 4, seed=2)
    write_records(folder / "c.tfrecord", 0)
    write_records(folder / "d.tfrecord", 2, seed=3)
    write_records(folder / "held_out.tfrecord", 5, seed=4)
    return [
        f"--input_file={folder}/[ab].tfrecord*,{folder}/[cd].tfrecord",
        f"--eval_input_file={folder}/held_out.tfrecord",
        write_config(folder),
        "--do_train",
    ]


def lasting(folder):
    """The files without those that hold times, and what a killed process was writing."""
    return {
        name: content
        for name, content in snapshot(folder).items()
        if "events" not in name and ".tmp-" not in name
    }


@pytest.fixture(scope="module")
def lives(tmp_path_factory, flags):
    """A run of 12 steps, and one that was killed, had no room for a checkpoint and was ended."""
    folder = tmp_path_factory.mktemp("lives")
    whole, other = folder / "whole", folder / "interrupted"
    flags = [
        *flags,
        "--num_train_steps=12",
        "--num_warmup_steps=2",
        "--save_checkpoints_steps=3",
        "--keep_checkpoint_max=3",
        "--eval_steps=4",
        "--do_eval",
    ]
    expected = main(*flags, f"--output_dir={whole}", "--steps_per_loop=2")
    left = []

    def life(error, steps_per_loop=1):
        with pytest.raises(error) as caught:
            main(*flags, f"--output_dir={other}", f"--steps_per_loop={steps_per_loop}")
        left.append((original.latest_checkpoint(str(other)), caught.value))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_pretraining, "AFTER_LOOP", at(5, die))
        life(Killed)
    with pytest.MonkeyPatch.context() as patch:
        fill_the_disk(patch, "model.ckpt-6")
        life(OSError, 3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_pretraining, "AFTER_LOOP", at(7, terminate))
        life(SystemExit)
    found = main(*flags, f"--output_dir={other}", "--steps_per_loop=100")
    return whole, other, left, expected, found


def test_interruptions_left_the_last_good_checkpoint(lives):
    _, other, left, _, _ = lives
    # SIGTERM came in the loop of step 7: it was answered after the next one.
    assert [latest for latest, _ in left] == [str(other / f"model.ckpt-{n}") for n in (3, 3, 8)]
    assert "model.ckpt-6 could not be written: No space left on device" in str(left[1][1])
    assert left[2][1].code == 143


def test_interrupted_run_ends_in_the_same_bits(lives):
    whole, other, _, expected, found = lives
    assert found == expected
    for name in ("model.ckpt-9", "model.ckpt-12", "best"):
        assert_same_weights(other / name, whole / name)
    last = weights(whole)
    assert last["global_step"] == 12
    assert sum(name.endswith("adam_v") for name in last) == len(last) // 3


def test_interrupted_run_leaves_the_same_files(lives):
    whole, other, _, _, _ = lives
    found, expected = lasting(other), lasting(whole)
    # Of three checkpoints each, one was saved on SIGTERM.
    assert {name.split(".")[1] for name in expected.keys() - found.keys()} == {"ckpt-6"}
    assert {name.split(".")[1] for name in found.keys() - expected.keys()} == {"ckpt-8"}
    both = (found.keys() & expected.keys()) - {"checkpoint"}
    assert {"eval_results.txt", "pretraining.json", "best/best.json"} <= both
    assert [name for name in both if found[name] != expected[name]] == []


def test_float16_resumes_with_its_loss_scale(tmp_path, flags, monkeypatch):
    # It doubles every third step: a run that forgot the scale or the count would show.
    monkeypatch.setattr(LossScale, "GROWS_AFTER", 3)
    flags = [*flags, "--precision=float16", "--num_train_steps=6", "--save_checkpoints_steps=5"]
    flags += ["--steps_per_loop=1"]
    main(*flags, f"--output_dir={tmp_path / 'whole'}")
    monkeypatch.setattr(run_pretraining, "AFTER_LOOP", at(4, terminate))
    with pytest.raises(SystemExit):
        main(*flags, f"--output_dir={tmp_path / 'ended'}")
    state = json.loads((tmp_path / "ended/model.ckpt-5.state.json").read_text())
    assert state == {"loss_scale": 2.0**16, "loss_scale_good_steps": 2}
    monkeypatch.setattr(run_pretraining, "AFTER_LOOP", None)
    main(*flags, f"--output_dir={tmp_path / 'ended'}")
    assert_same_weights(tmp_path / "ended", tmp_path / "whole")
    for folder in ("whole", "ended"):
        state = json.loads((tmp_path / folder / "model.ckpt-6.state.json").read_text())
        assert state == {"loss_scale": 2.0**17, "loss_scale_good_steps": 0}
