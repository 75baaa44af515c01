"""Training steps: the original's trajectories, and what a step may not depend on."""

import dataclasses
import functools

import numpy as np
import pytest
import tensorflow as tf
import tiny

from bert_tf.modeling.losses import classifier_loss, pretraining_loss, squad_loss
from bert_tf.modeling.models import BertClassifier, BertForSquad, BertPretrainer
from bert_tf.optimization import BertAdam, WarmupDecay
from bert_tf.training.step import LossScale, TrainStep

ONE_DEVICE = tf.distribute.get_strategy()


@functools.cache
def golden_step(task, peak, warmup, skip_padding):
    """A traced step, shared by the trajectories that differ in their start alone."""
    model = {"pretraining": BertPretrainer, "squad": BertForSquad}[task](tiny.CONFIG)
    loss = {"pretraining": pretraining_loss, "squad": squad_loss}[task]()
    adam = BertAdam(WarmupDecay(peak, 20, warmup))
    return TrainStep(model, loss, adam, ONE_DEVICE, dropout=False, skip_padding=skip_padding)


# The trajectories that differ through the original's norm of repeated rows (squad_warmup0) or
# through the other order of step and rate are left out; see golden/optimizer/README.md.
TRAJECTORIES = {
    "pretraining_warmup5": "tiny_pretraining/bert_model.ckpt",
    "pretraining_warmup5_one_hot": "tiny_pretraining/bert_model.ckpt",
    "pretraining_warmup0": "tiny_pretraining/bert_model.ckpt",
    "pretraining_resume": "tiny_pretraining/training/model.ckpt-8",
    "squad_warmup0_one_hot": "tiny_squad/bert_model.ckpt",
}


@pytest.mark.parametrize(
    ("case", "skip_padding"),
    [*((case, False) for case in TRAJECTORIES), ("pretraining_warmup5", True)],
)
def test_trajectory(case, skip_padding):
    golden = tiny.read_json(f"optimizer/{case}.json")
    peak, warmup = golden["init_learning_rate"], golden["num_warmup_steps"]
    step = golden_step(golden["task"], peak, warmup, skip_padding)
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
    step = golden_step("squad", 2e-4, 0, False)
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


# Parts of a batch, XLA, precision.

SMALL = tiny.CONFIG.replace(num_hidden_layers=1, initializer_range=0.3)
ROWS, LENGTH, SLOTS = 4, 12, 4


@dataclasses.dataclass(frozen=True)
class PlainSGD(BertAdam):
    """No division by a norm: a gradient that is twice too large moves twice too far."""

    clip_norm: float = 1e30

    def update(self, name, value, gradient, slots, rate, step=0):
        return value - rate * gradient, slots


def pretraining_batch(step):
    """Four examples with different numbers of masked tokens: no two parts have as many."""
    rng = np.random.default_rng(step)
    words = SMALL.vocab_size
    mask = np.arange(LENGTH) < rng.integers(LENGTH // 2, LENGTH + 1, (ROWS, 1))
    used = np.array([[4], [3], [1], [0]])
    return {
        "input_ids": rng.integers(5, words, (ROWS, LENGTH), np.int32) * mask,
        "input_mask": mask.astype(np.int32),
        "segment_ids": rng.integers(0, 2, (ROWS, LENGTH), np.int32),
        "masked_lm_positions": rng.integers(0, 6, (ROWS, SLOTS), np.int32),
        "masked_lm_ids": rng.integers(5, words, (ROWS, SLOTS), np.int32),
        "masked_lm_weights": (np.arange(SLOTS) < used).astype(np.float32),
        "next_sentence_labels": rng.integers(0, 2, (ROWS, 1), np.int32),
    }


def pretraining_batches(first, end):
    signature = {
        name: tf.TensorSpec(value.shape, value.dtype)
        for name, value in pretraining_batch(0).items()
    }
    return iter(
        tf.data.Dataset.from_generator(
            lambda: map(pretraining_batch, range(first, end)), output_signature=signature
        )
    )


def pretrainer(optimizer, dtype=None, next_sentence=True, **options):
    model = BertPretrainer(SMALL, seed=1, dtype=dtype, next_sentence=next_sentence)
    loss = pretraining_loss(next_sentence)
    return TrainStep(model, loss, optimizer, ONE_DEVICE, dropout=False, **options)


@functools.cache
def descent(**options):
    """Weights at the start and at the end, and the metrics, of six steps of plain descent."""
    step = pretrainer(PlainSGD(WarmupDecay(5e-2, 100)), **options)
    start = step.tensors()
    batches = pretraining_batches(0, 6)
    metrics = [step.run(batches, 2) for _ in range(3)]
    return start, step.tensors(), metrics


@pytest.mark.parametrize(
    "options",
    [
        {"accumulation": 2},
        {"accumulation": 4},
        {"use_xla": True},
        {"skip_padding": True},
        {"skip_padding": True, "accumulation": 2},
    ],
    ids=str,
)
def test_parts_and_xla_give_the_whole_batchs_step(options):
    start, expected, metrics = descent()
    same_start, found, same_metrics = descent(**options)
    tiny.assert_same(same_start, start)
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, atol=1e-6, rtol=0, err_msg=name)
    for found, means in zip(same_metrics, metrics, strict=True):
        assert found == pytest.approx(means, rel=1e-5, abs=1e-6)
    # The comparison means something: the weights moved ten thousand times as far.
    moved = [np.abs(expected[name] - start[name]).max() for name in start if "adam" not in name]
    assert np.median(moved) > 1e-2
    assert 0 < metrics[0]["next_sentence_accuracy"] <= 1


def test_xla_and_parts_together():
    # Of a batch whose length no graph knows.
    losses = []
    for options in ({}, {"accumulation": 2, "use_xla": True}):
        step = TrainStep(
            BertClassifier(SMALL, 3, seed=1),
            classifier_loss("classification"),
            PlainSGD(WarmupDecay(5e-2, 100)),
            ONE_DEVICE,
            dropout=False,
            **options,
        )

        def batches():
            batch = tiny.classifier_batch(0)
            # The last row is padding: its part counts for less.
            batch["is_real_example"][-1] = 0.0
            yield from [batch] * 2

        iterator = iter(tiny.as_dataset(batches))
        losses.append([step.run(iterator, 1)["loss"] for _ in range(2)])
    assert losses[1] == pytest.approx(losses[0], abs=1e-6)
    assert len(set(losses[0])) == 2


def test_a_batch_that_cannot_be_cut():
    step = pretrainer(BertAdam(WarmupDecay(1e-3, 10)), accumulation=3)
    with pytest.raises(ValueError, match="batch of 4 cannot be cut into 3 equal micro-batches"):
        step.run(pretraining_batches(0, 1), 1)


def test_parts_have_masks_of_their_own(trainer):
    keys = {
        tuple(trainer._dropout_key(tf.constant(step, tf.int64), tf.constant(replica), part).numpy())
        for step in range(3)
        for replica in range(3)
        for part in range(5)
    }
    assert len(keys) == 3 * 3 * 5


def test_without_next_sentence_the_pooler_has_no_part():
    step = pretrainer(BertAdam(WarmupDecay(1e-2, 10)), next_sentence=False)
    before = step.tensors()
    found = step.run(pretraining_batches(0, 2), 2)
    assert {"masked_lm_loss", "masked_lm_accuracy"} <= found.keys()
    assert not {"loss", "next_sentence_loss", "next_sentence_accuracy"} & found.keys()
    after = step.tensors()
    pooler = {name for name in after if "pooler" in name}
    assert pooler == {"bert/pooler/dense/kernel", "bert/pooler/dense/bias"}
    for name in pooler:
        np.testing.assert_array_equal(before[name], after[name])
    assert (
        before["bert/embeddings/word_embeddings"] != after["bert/embeddings/word_embeddings"]
    ).any()


def check_trains(step):
    for variable in [*step.variables.values(), *step.slots.values()]:
        assert variable.dtype == "float32"
    batches = iter(tf.data.Dataset.from_tensors(pretraining_batch(0)).repeat())
    found = [step.run(batches, 10) for _ in range(4)]
    assert all(metrics["first_bad_step"] == -1 for metrics in found)
    losses = [metrics["loss"] for metrics in found]
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < 0.3 * losses[0]
    return found


@pytest.mark.parametrize("dtype", [None, "mixed_bfloat16"])
def test_precisions_train(dtype):
    found = check_trains(pretrainer(BertAdam(WarmupDecay(3e-3, 100)), dtype))
    assert not {"loss_scale", "skipped_steps"} & found[0].keys()


# Float16 and its loss scale.


@pytest.fixture(scope="module")
def _traced_half():
    adam = BertAdam(WarmupDecay(3e-3, 100))
    step = pretrainer(adam, "mixed_float16", scale_loss=True)
    return step, step.tensors()


@pytest.fixture
def half(_traced_half):
    """A step in float16, as new."""
    step, start = _traced_half
    for name, variable in {**step.variables, **step.slots}.items():
        variable.assign(start[name])
    step.global_step.assign(0)
    step.set_state({"loss_scale": 2.0**15, "loss_scale_good_steps": 0})
    return step


def test_float16_trains(half):
    found = check_trains(half)
    assert sum(metrics["skipped_steps"] for metrics in found) == 0
    assert found[-1]["loss_scale"] == 2.0**15
    assert half.state() == {"loss_scale": 2.0**15, "loss_scale_good_steps": 40}


def test_the_scale_leaves_the_step_as_it_is(half):
    start, norms, weights = half.tensors(), [], []
    for scale in (2.0**4, 2.0**14):
        for name, variable in {**half.variables, **half.slots}.items():
            variable.assign(start[name])
        half.global_step.assign(0)
        half.set_state({"loss_scale": scale, "loss_scale_good_steps": 0})
        norms.append(half.run(pretraining_batches(0, 1), 1)["grad_norm"])
        weights.append(half.tensors())
    assert norms[1] == pytest.approx(norms[0], rel=5e-3)
    assert norms[0] > 1  # So that the clipping counts, too.
    # Adam's mean of the gradients is not divided by their size.
    for name, value in weights[0].items():
        if name.endswith("adam_m"):
            np.testing.assert_allclose(weights[1][name], value, atol=5e-5, err_msg=name)
    assert np.abs(weights[0]["bert/embeddings/word_embeddings/adam_m"]).max() > 2e-3


def test_an_overflow_changes_nothing_but_the_scale(half):
    half.set_state({"loss_scale": 2.0**24, "loss_scale_good_steps": 7})
    half.run(pretraining_batches(0, 1), 1)
    # With slots that are not 0.
    half.set_state({"loss_scale": 2.0**15, "loss_scale_good_steps": 0})
    half.run(pretraining_batches(1, 2), 1)
    half.set_state({"loss_scale": 2.0**24, "loss_scale_good_steps": 7})
    before = half.tensors()
    found = half.run(pretraining_batches(2, 3), 1)
    after = half.tensors()
    assert after.pop("global_step") == before.pop("global_step") + 1 == 3
    tiny.assert_same(after, before)
    assert all(np.isfinite(value).all() for value in after.values())
    assert any(value.any() for name, value in after.items() if name.endswith("adam_v"))
    assert half.state() == {"loss_scale": 2.0**23, "loss_scale_good_steps": 0}
    assert found["skipped_steps"] == 1
    assert found["loss_scale"] == 2.0**23
    # The run goes on: its loss is finite, and is shown.
    assert found["first_bad_step"] == -1
    assert 0 < found["loss"] < 30
    assert found["grad_norm"] == 0.0


def test_the_scale_falls_until_nothing_overflows(half):
    def run(steps):
        batches = iter(tf.data.Dataset.from_tensors(pretraining_batch(0)).repeat())
        return half.run(batches, steps)

    start = half.tensors()
    half.set_state({"loss_scale": 2.0**24, "loss_scale_good_steps": 0})
    singles = [run(1) for _ in range(12)]
    skipped = [metrics["skipped_steps"] for metrics in singles]
    count = sum(skipped)
    assert 4 <= count <= 9
    assert skipped == [1] * count + [0] * (12 - count)
    assert half.state() == {"loss_scale": 2.0 ** (24 - count), "loss_scale_good_steps": 12 - count}
    norms = [metrics["grad_norm"] for metrics in singles]
    assert norms[:count] == [0.0] * count
    # The same in one loop: the norm is the mean over the steps that counted.
    for name, variable in {**half.variables, **half.slots}.items():
        variable.assign(start[name])
    half.global_step.assign(0)
    half.set_state({"loss_scale": 2.0**24, "loss_scale_good_steps": 0})
    found = run(12)
    assert (found["skipped_steps"], found["first_bad_step"]) == (count, -1)
    assert found["grad_norm"] == pytest.approx(np.mean(norms[count:]), rel=1e-5)


def test_the_scale_grows(half):
    half.set_state({"loss_scale": 2.0**13, "loss_scale_good_steps": LossScale.GROWS_AFTER - 2})
    assert half.run(pretraining_batches(0, 1), 1)["loss_scale"] == 2.0**13
    assert half.state()["loss_scale_good_steps"] == LossScale.GROWS_AFTER - 1 == 1999
    assert half.run(pretraining_batches(1, 2), 1)["loss_scale"] == 2.0**14
    assert half.state() == {"loss_scale": 2.0**14, "loss_scale_good_steps": 0}


def test_the_bounds_of_the_scale():
    scale = LossScale()
    for finite, value, good, expected in (
        (True, LossScale.LARGEST, 1999, (LossScale.LARGEST, 0)),
        (True, 4.0, 1998, (4.0, 1999)),
        (False, 4.0, 1999, (2.0, 0)),
        (False, 1.0, 5, (1.0, 0)),
        (True, 1.0, 0, (1.0, 1)),
    ):
        scale.value.assign(value)
        scale.good_steps.assign(good)
        scale.advance(tf.constant(finite))
        assert (scale.value.numpy(), scale.good_steps.numpy()) == expected


def test_an_overflow_that_no_scale_mends(half):
    batch = pretraining_batch(0)
    # A sum of 1 below the line, and a weight of a million above it: the loss is finite.
    batch["masked_lm_weights"][:] = 0.0
    batch["masked_lm_weights"][0, :2] = 1e6, 1 - 1e6
    batches = iter(tf.data.Dataset.from_tensors(batch).repeat())
    half.set_state({"loss_scale": 2.0, "loss_scale_good_steps": 0})
    found = half.run(batches, 1)
    assert np.isfinite(found["loss"])
    assert (found["skipped_steps"], found["loss_scale"], found["first_bad_step"]) == (1, 1.0, -1)
    assert half.run(batches, 3)["first_bad_step"] == 1


def test_a_loss_that_is_not_finite_is_no_overflow(half):
    bias = half.variables["cls/predictions/output_bias"]
    bias.assign(np.full(bias.shape, np.nan, np.float32))
    assert half.run(pretraining_batches(0, 2), 2)["first_bad_step"] == 0


def test_states(half, trainer):
    half.set_state({"loss_scale": 2.0**9, "loss_scale_good_steps": 1234, "best_value": 1.0})
    assert half.state() == {"loss_scale": 2.0**9, "loss_scale_good_steps": 1234}
    # Of a run that had none.
    half.set_state({"best_value": 1.0})
    assert half.state() == {"loss_scale": 2.0**9, "loss_scale_good_steps": 1234}
    trainer.set_state(half.state())
    assert trainer.state() == {}
