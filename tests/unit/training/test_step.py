"""Training steps: the original's trajectories, and what a step may not depend on."""

import functools

import numpy as np
import pytest
import tensorflow as tf
import tiny

from bert_tf.modeling.losses import classifier_loss, pretraining_loss, squad_loss
from bert_tf.modeling.models import BertClassifier, BertForSquad, BertPretrainer
from bert_tf.optimization import BertAdam, WarmupDecay
from bert_tf.training.step import TrainStep

ONE_DEVICE = tf.distribute.get_strategy()


@functools.cache
def golden_step(task, peak, warmup):
    """A traced step, shared by the trajectories that differ in their start alone."""
    model = {"pretraining": BertPretrainer, "squad": BertForSquad}[task](tiny.CONFIG)
    loss = {"pretraining": pretraining_loss, "squad": squad_loss}[task]()
    adam = BertAdam(WarmupDecay(peak, 20, warmup))
    return TrainStep(model, loss, adam, ONE_DEVICE, dropout=False)


# The trajectories that differ through the original's norm of repeated rows (squad_warmup0) or
# through the other order of step and rate are left out; see golden/optimizer/README.md.
TRAJECTORIES = {
    "pretraining_warmup5": "tiny_pretraining/bert_model.ckpt",
    "pretraining_warmup5_one_hot": "tiny_pretraining/bert_model.ckpt",
    "pretraining_warmup0": "tiny_pretraining/bert_model.ckpt",
    "pretraining_resume": "tiny_pretraining/training/model.ckpt-8",
    "squad_warmup0_one_hot": "tiny_squad/bert_model.ckpt",
}


@pytest.mark.parametrize("case", TRAJECTORIES)
def test_trajectory(case):
    golden = tiny.read_json(f"optimizer/{case}.json")
    step = golden_step(golden["task"], golden["init_learning_rate"], golden["num_warmup_steps"])
    tiny.reset(step, TRAJECTORIES[case])
    if case == "pretraining_resume":
        tiny.assign({**step.slots, "global_step": step.global_step}, TRAJECTORIES[case])
    assert int(step.global_step) == golden["global_step_before"]
    labels = ["heads/labels_squad.json"] if golden["task"] == "squad" else []
    batch = tiny.read_batch("model/inputs.json", *labels)
    batches = iter(tf.data.Dataset.from_tensors(batch).repeat())
    expected = golden["per_step"]
    for index in range(golden["steps"]):
        found = step.run(batches, 1)
        assert found.pop("first_bad_step") == -1
        assert found["learning_rate"] == pytest.approx(expected["learning_rate"][index], rel=1e-6)
        assert found["grad_norm"] == pytest.approx(expected["global_norm"][index], abs=3.5e-5)
        total = 0.0
        for name in step.loss.names:
            total += found[name]
            if name in expected:
                assert found[name] == pytest.approx(expected[name][index], abs=2e-6), name
        assert total == pytest.approx(expected["total_loss"][index], abs=2e-6)
    assert int(step.global_step) == golden["global_step_after"]

    weights = tiny.read_arrays(f"optimizer/{case}_variables.npz")
    assert weights.keys() == step.variables.keys()
    differences = []
    for name, value in weights.items():
        found = step.variables[name].numpy()
        # The key biases are the worst: their true gradient is 0.
        np.testing.assert_allclose(found, value, atol=1e-5, rtol=0, err_msg=name)
        differences.append(np.abs(found - value).max())
    assert np.median(differences) < 1e-6
    slots = {name: slot.numpy().astype(np.float64) for name, slot in step.slots.items()}
    assert slots.keys() == golden["slots_after"].keys()
    for name, sums in golden["slots_after"].items():
        found = np.linalg.norm(slots[name])
        assert found == pytest.approx(sums["l2"], rel=1e-3, abs=1e-6), name
    without = set(step.variables) - {name.rsplit("/", 1)[0] for name in slots}
    assert without == set(golden["variables_without_slots"])


def test_variables_without_gradient_never_move():
    step = golden_step("squad", 2e-4, 0)
    tiny.reset(step, TRAJECTORIES["squad_warmup0_one_hot"])
    before = step.tensors()
    batch = tiny.read_batch("model/inputs.json", "heads/labels_squad.json")
    step.run(iter(tf.data.Dataset.from_tensors(batch).repeat()), 2)
    after = step.tensors()
    still = {name for name, value in before.items() if np.array_equal(value, after[name])}
    assert still == {"bert/pooler/dense/kernel", "bert/pooler/dense/bias"}


def run(trainer, loops, first=0):
    """Metrics of each loop and the tensors at the end."""
    tiny.reset(trainer, "tiny_classifier/bert_model.ckpt")
    trainer.global_step.assign(first)
    batches = iter(tiny.classifier_dataset(first, first + sum(loops)))
    return [trainer.run(batches, steps) for steps in loops], trainer.tensors()


def test_results_do_not_depend_on_the_loop(trainer):
    singles, expected = run(trainer, [1] * 7)
    traces = trainer._run.experimental_get_tracing_count()
    for loops in ([7], [3, 4], [2, 1, 4]):
        metrics, found = run(trainer, loops)
        tiny.assert_same(found, expected)
        at = 0
        for steps, means in zip(loops, metrics, strict=True):
            part = singles[at : at + steps]
            for name in ("loss", "grad_norm"):
                mean = np.mean([single[name] for single in part])
                assert means[name] == pytest.approx(mean, rel=1e-5)
            assert means["learning_rate"] == part[-1]["learning_rate"]
            at += steps
    # Neither the number of steps nor the batch's length makes a new graph.
    assert trainer._run.experimental_get_tracing_count() == traces == 1


def test_dropout_is_a_function_of_seed_and_step(trainer):
    (first,), weights = run(trainer, [1], first=2)
    (again,), same = run(trainer, [1], first=2)
    assert first == again
    tiny.assert_same(same, weights)
    # The same batch at other steps.
    losses = set()
    for number in (2, 3, 4):
        tiny.reset(trainer, "tiny_classifier/bert_model.ckpt")
        trainer.global_step.assign(number)
        batches = tiny.as_dataset(lambda: [tiny.classifier_batch(2)])
        losses.add(trainer.run(iter(batches), 1)["loss"])
    assert len(losses) == 3


def test_the_step_of_a_bad_loss_is_named(trainer):
    bad = trainer.variables["bert/pooler/dense/bias"]
    bad.assign(np.full(bad.shape, np.nan, np.float32))
    trainer.global_step.assign(5)
    found = trainer.run(iter(tiny.classifier_dataset(5, 9)), 4)
    assert found["first_bad_step"] == 5
    assert np.isnan(found["loss"])


def test_mixed_bfloat16_trains():
    config = tiny.CONFIG.replace(num_hidden_layers=1)
    step = TrainStep(
        BertClassifier(config, 3, dtype="mixed_bfloat16"),
        classifier_loss("classification"),
        BertAdam(WarmupDecay(5e-3, 40)),
        ONE_DEVICE,
        dropout=False,
    )
    for variable in [*step.variables.values(), *step.slots.values()]:
        assert variable.dtype == "float32"
    batches = iter(tf.data.Dataset.from_tensors(tiny.classifier_batch(0)).repeat())
    losses = [step.run(batches, 4) for _ in range(5)]
    assert all(metrics["first_bad_step"] == -1 for metrics in losses)
    losses = [metrics["loss"] for metrics in losses]
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < 0.2 * losses[0]
