"""Leaving padding out: which positions are computed, and that the others have no part."""

import numpy as np
import pytest
import tensorflow as tf
import tiny
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from bert_tf.modeling import rows
from bert_tf.modeling.losses import pretraining_loss
from bert_tf.modeling.models import BertPretrainer
from bert_tf.optimization import BertAdam, WarmupDecay
from bert_tf.training.step import TrainStep, token_rows

masks = st.tuples(st.integers(1, 9), st.integers(1, 40)).flatmap(
    lambda shape: arrays(np.int32, shape, elements=st.integers(0, 1))
)


@settings(max_examples=60, deadline=None)
@given(masks, st.data())
def test_what_is_read_has_a_row(mask, data):
    batch = {"input_mask": tf.constant(mask)}
    examples, length = mask.shape
    predicted = weights = np.zeros((examples, 0), np.int32)
    if data.draw(st.booleans()):
        shape = (examples, data.draw(st.integers(1, 4)))
        predicted = data.draw(arrays(np.int32, shape, elements=st.integers(0, length - 1)))
        weights = data.draw(arrays(np.float32, shape, elements=st.sampled_from([0.0, 0.5, 1.0])))
        batch["masked_lm_positions"] = tf.constant(predicted)
        batch["masked_lm_weights"] = tf.constant(weights)
    needed = np.zeros(mask.shape, bool)
    for number, row in enumerate(mask):
        used = np.flatnonzero(row)
        needed[number, : used[-1] + 1 if len(used) else length] = True
        needed[number, predicted[number][weights[number] > 0]] = True
    needed = needed.reshape(-1)

    found = {name: value.numpy() for name, value in token_rows(batch).items()}
    positions, places, kept = (found[name] for name in (rows.POSITIONS, rows.PLACES, rows.KEPT))
    assert places.shape == kept.shape == needed.shape
    # Each position once at most, what is needed before padding and in order.
    assert len(set(positions)) == len(positions) == kept.sum()
    assert positions[: needed.sum()].tolist() == np.flatnonzero(needed).tolist()
    assert kept[needed].all()
    np.testing.assert_array_equal(places[positions], np.arange(len(positions)))
    # No more padding than the rounding needs.
    part = max(needed.size // 32, 16)
    assert len(positions) - needed.sum() < part
    assert len(positions) % part == 0 or len(positions) == needed.size


def some_rows(mask):
    """Those of the tokens alone, whatever the rounding would add."""
    flat = np.reshape(mask, -1).astype(bool)
    places = np.where(flat, np.cumsum(flat) - 1, 0).astype(np.int32)
    values = np.flatnonzero(flat).astype(np.int32), places, flat
    return rows.TokenRows(*map(tf.constant, values))


def test_rows_and_their_gradients():
    mask = np.array([[1, 1, 1, 1], [1, 1, 0, 0], [1, 0, 0, 0]])
    few, kept = some_rows(mask), mask.reshape(-1).astype(bool)
    x = tf.constant(np.arange(24.0).reshape(12, 2))
    slope = tf.constant(np.arange(24.0)[::-1].reshape(12, 2) + 1)
    with tf.GradientTape() as tape:
        tape.watch(x)
        picked = few.pick(x)
        spread = few.spread(picked * picked)
        total = tf.reduce_sum(spread * slope * kept[:, None])
    np.testing.assert_array_equal(picked, x.numpy()[kept])
    np.testing.assert_array_equal(spread.numpy()[kept], x.numpy()[kept] ** 2)
    gradient = tape.gradient(total, x)
    np.testing.assert_array_equal(gradient, (2 * x * slope).numpy() * kept[:, None])


def test_nothing_comes_from_what_has_no_row():
    """The gradient at a position without a row is left out, whatever flows there."""
    few = some_rows(np.array([[1, 1, 1, 0, 0, 0, 0, 0]]))
    x = tf.ones([3, 2])
    with tf.GradientTape() as tape:
        tape.watch(x)
        total = tf.reduce_sum(few.spread(x) * tf.constant([[1.0]] * 3 + [[100.0]] * 5))
    np.testing.assert_array_equal(tape.gradient(total, x), np.ones([3, 2]))


def batch_with_gaps():
    """Four examples of 24: full, short, with holes and without a first token, without any."""
    rng = np.random.default_rng(3)
    mask = np.zeros((4, 24), np.int32)
    mask[0], mask[1, :5], mask[2, [1, 2, 7, 9]] = 1, 1, 1
    return {
        "input_ids": rng.integers(5, tiny.CONFIG.vocab_size, mask.shape, np.int32),
        "input_mask": mask,
        "segment_ids": rng.integers(0, 2, mask.shape, np.int32),
        # One of them behind the last token.
        "masked_lm_positions": np.array([[3, 0], [4, 20], [5, 9], [2, 23]], np.int32),
        "masked_lm_ids": rng.integers(5, tiny.CONFIG.vocab_size, (4, 2), np.int32),
        "masked_lm_weights": np.ones((4, 2), np.float32),
        "next_sentence_labels": np.array([[0], [1], [1], [0]], np.int32),
    }


@pytest.mark.parametrize("causal", [False, True])
def test_outputs(causal):
    """All that is read, in each layer, whatever the mask."""
    config = tiny.CONFIG.replace(causal_attention=causal)
    model = BertPretrainer(config, seed=2)
    batch = {name: tf.constant(value) for name, value in batch_with_gaps().items()}
    extra = token_rows(batch)
    expected, found = model(batch), model({**batch, **extra})
    kept = extra[rows.KEPT].numpy().reshape(4, 24)
    assert not kept.all()
    assert kept[[1, 2], [20, 5]].all()
    for name in ("masked_lm_logits", "next_sentence_logits", "pooled_output"):
        np.testing.assert_allclose(found[name], expected[name], atol=2e-6, err_msg=name)
    for a, b in zip(found["encoder_outputs"], expected["encoder_outputs"], strict=True):
        np.testing.assert_allclose(a.numpy()[kept], b.numpy()[kept], atol=2e-6)


@pytest.mark.parametrize("what", ["gaps", "no token at all", "a place without a weight"])
def test_a_training_step(what):
    batch = batch_with_gaps()
    if what == "no token at all":
        batch["input_mask"][:] = 0
    if what == "a place without a weight":
        batch["masked_lm_weights"][1, 1] = 0
        assert not token_rows(batch)[rows.KEPT].numpy().reshape(4, 24)[1, 20]
    found = []
    for skip_padding in (False, True):
        model = BertPretrainer(tiny.CONFIG, seed=2)
        optimizer = BertAdam(WarmupDecay(1e-3, 20))
        options = {"dropout": False, "skip_padding": skip_padding}
        strategy = tf.distribute.get_strategy()
        step = TrainStep(model, pretraining_loss(), optimizer, strategy, **options)
        metrics = step.run(iter(tf.data.Dataset.from_tensors(batch).repeat()), 1)
        means = {name: v for name, v in step.tensors().items() if name.endswith("adam_m")}
        found.append((metrics, means))
    (expected, gradients), (metrics, same) = found
    assert metrics == pytest.approx(expected, rel=1e-5)
    for name, value in gradients.items():
        np.testing.assert_allclose(same[name], value, atol=1e-7, err_msg=name)
    assert max(np.abs(value).max() for value in gradients.values()) > 1e-3


def test_not_with_xla(trainer):
    with pytest.raises(ValueError, match="use_xla without skip_padding"):
        TrainStep(
            trainer.model,
            trainer.loss,
            BertAdam(WarmupDecay(1e-3, 10)),
            tf.distribute.get_strategy(),
            use_xla=True,
            skip_padding=True,
        )
