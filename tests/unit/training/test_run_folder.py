import json

import numpy as np
import pytest
import tensorflow as tf
import tiny

from bert_tf.checkpoint import original, restore
from bert_tf.checkpoint.restore import RestoreError
from bert_tf.modeling.losses import classifier_loss
from bert_tf.modeling.models import BertClassifier
from bert_tf.optimization import BertAdam, WarmupDecay
from bert_tf.training.run_folder import RunFolder, replace_best, take_over
from bert_tf.training.step import TrainStep


def save_steps(trainer, folder, steps):
    for step in steps:
        trainer.global_step.assign(step)
        folder.save(trainer, {"best_value": step / 10})


def kept_in(path):
    return sorted(int(file.stem.rpartition("-")[2]) for file in path.glob("model.ckpt-*.index"))


def test_save_and_restore(trainer, tmp_path):
    folder = RunFolder(str(tmp_path))
    assert folder.latest() is None
    assert folder.restore(trainer) == {}
    rng = np.random.default_rng(0)
    for variable in [*trainer.variables.values(), *trainer.slots.values()]:
        variable.assign(rng.normal(size=variable.shape))
    trainer.global_step.assign(2**40)
    saved = trainer.tensors()
    state = {"best_value": 0.1 + 0.2, "best_metric": "f1", "best_step": 3}
    prefix = folder.save(trainer, state)
    assert prefix == folder.latest() == str(tmp_path / f"model.ckpt-{2**40}")
    tiny.scramble(trainer)
    assert folder.restore(trainer) == state
    tiny.assert_same(trainer.tensors(), saved)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "checkpoint",
        f"model.ckpt-{2**40}.data-00000-of-00001",
        f"model.ckpt-{2**40}.index",
        f"model.ckpt-{2**40}.state.json",
    ]
    # What the original's own reader makes of it.
    assert tf.train.latest_checkpoint(str(tmp_path)) == prefix
    dtypes = tf.train.load_checkpoint(prefix).get_variable_to_dtype_map()
    assert dtypes.pop("global_step") == tf.int64
    assert set(dtypes.values()) == {tf.float32}


def test_the_loss_scale_is_saved_and_restored(tmp_path):
    step = TrainStep(
        BertClassifier(tiny.CONFIG.replace(num_hidden_layers=1), 2, dtype="mixed_float16"),
        classifier_loss("classification"),
        BertAdam(WarmupDecay(1e-3, 10)),
        tf.distribute.get_strategy(),
        scale_loss=True,
    )
    folder = RunFolder(str(tmp_path))
    state = {"loss_scale": 2.0**-3 + 2.0**20, "loss_scale_good_steps": 1997}
    step.set_state(state)
    folder.save(step, {"best_value": 0.5, "loss_scale": 1.0})
    saved = json.loads((tmp_path / "model.ckpt-0.state.json").read_text())
    assert saved == {"best_value": 0.5, **state}
    step.set_state({"loss_scale": 4.0, "loss_scale_good_steps": 0})
    assert folder.restore(step) == saved
    assert step.state() == state
    # Not in the checkpoint itself, which the original reads.
    assert not [name for name in original.Reader(str(tmp_path)).shapes if "scale" in name]
    # A run that began in float32 has none: the new one stays.
    (tmp_path / "model.ckpt-0.state.json").write_text("{}")
    step.set_state({"loss_scale": 4.0, "loss_scale_good_steps": 3})
    assert folder.restore(step) == {}
    assert step.state() == {"loss_scale": 4.0, "loss_scale_good_steps": 3}


@pytest.mark.parametrize(
    ("slots", "number"), [(False, False), (True, False), (False, True), (True, True)]
)
def test_take_over(trainer, slots, number):
    source = tiny.GOLDEN / "checkpoint/tiny_classifier/training"
    reader = original.Reader(str(source))
    before = trainer.tensors()
    take_over(trainer, restore.load(str(source)), slots, number)
    after = trainer.tensors()
    for name, value in after.items():
        taken = slots if "/adam_" in name else number and name == "global_step"
        expected = reader.get(name) if taken else before[name]
        np.testing.assert_array_equal(value, expected, err_msg=name)
    assert after["global_step"] == (6 if number else 0)
    moved = sum("/adam_" in name and bool(value.any()) for name, value in after.items())
    assert moved > 100 if slots else moved == 0


@pytest.mark.parametrize(("slots", "missing"), [(True, "adam_m"), (False, "global_step")])
def test_take_over_from_a_release(trainer, slots, missing):
    checkpoint = restore.load(str(tiny.GOLDEN / "checkpoint/tiny_classifier/bert_model.ckpt"))
    before = trainer.tensors()
    with pytest.raises(RestoreError, match=missing):
        take_over(trainer, checkpoint, slots, not slots)
    tiny.assert_same(trainer.tensors(), before)


@pytest.mark.parametrize(
    ("keep", "kept"), [(1, [9]), (2, [7, 9]), (5, [2, 4, 7, 9]), (0, [2, 4, 7, 9])]
)
def test_keep_checkpoint_max(trainer, tmp_path, keep, kept):
    folder = RunFolder(str(tmp_path), keep)
    save_steps(trainer, folder, [2, 4, 7, 9])
    assert kept_in(tmp_path) == kept
    assert original.all_checkpoints(str(tmp_path)) == [
        str(tmp_path / f"model.ckpt-{step}") for step in kept
    ]
    assert len(list(tmp_path.iterdir())) == 3 * len(kept) + 1
    assert folder.restore(trainer) == {"best_value": 0.9}


def test_a_step_that_is_saved_again_is_kept_once(trainer, tmp_path):
    folder = RunFolder(str(tmp_path), 2)
    save_steps(trainer, folder, [2, 4, 2, 2])
    assert kept_in(tmp_path) == [2, 4]
    assert folder.latest() == str(tmp_path / "model.ckpt-2")


def test_a_save_that_fails_midway(trainer, tmp_path, monkeypatch):
    folder = RunFolder(str(tmp_path), 1)
    save_steps(trainer, folder, [3])
    saved = trainer.tensors()
    tiny.scramble(trainer)

    def full(*_):
        raise OSError(28, "No space left on device")

    for name in ("write", "write_state"):
        with monkeypatch.context() as patch:
            patch.setattr(original, name, full)
            with pytest.raises(OSError, match="No space left on device"):
                folder.save(trainer, {})
        assert folder.latest() == str(tmp_path / "model.ckpt-3")
    assert folder.restore(trainer) == {"best_value": 0.3}
    tiny.assert_same(trainer.tensors(), saved)


def test_a_folder_of_another_model(trainer, tmp_path):
    folder = RunFolder(str(tmp_path))
    folder.save(trainer, {})
    config = tiny.CONFIG.replace(num_hidden_layers=1)
    other = TrainStep(
        BertClassifier(config, 2),
        classifier_loss("classification"),
        BertAdam(WarmupDecay(1e-3, 10)),
        tf.distribute.get_strategy(),
    )
    before = other.tensors()
    with pytest.raises(RestoreError) as caught:
        folder.restore(other)
    message = str(caught.value)
    assert f"The checkpoint {tmp_path / 'model.ckpt-0'} does not fit the model" in message
    assert "output_weights: [2, 32] in the model, [3, 32] in the checkpoint" in message
    assert "bert/encoder/layer_1/attention/self/query/kernel" in message
    tiny.assert_same(other.tensors(), before)


def test_a_folder_with_weights_but_no_slots(trainer, tmp_path):
    original.write(
        str(tmp_path / "model.ckpt-5"),
        {name: variable.numpy() for name, variable in trainer.variables.items()},
    )
    original.write_state(str(tmp_path), str(tmp_path / "model.ckpt-5"))
    with pytest.raises(RestoreError, match="adam_m"):
        RunFolder(str(tmp_path)).restore(trainer)


def test_replace_best(trainer, tmp_path):
    for number in (3, 1):
        prefix = replace_best(str(tmp_path), trainer.model, number, {"f1": number / 4})
        assert prefix == str(tmp_path / "best" / f"model.ckpt-{number}")
        assert kept_in(tmp_path / "best") == [number]
        facts = json.loads((tmp_path / "best/best.json").read_text())
        assert facts == {"f1": number / 4, "step": number}
    # Weights alone: no slots, no step.
    assert original.Reader(str(tmp_path / "best")).shapes.keys() == trainer.variables.keys()
