"""Leaving padding out: which positions are computed, and that the others have no part."""

import numpy as np
import pytest
import tensorflow as tf
import tiny
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from bert_tf.modeling import rows
from bert_tf.modeling.models import BertForSquad, named_variables
from bert_tf.optimization import BertAdam, WarmupDecay
from bert_tf.training.step import TrainStep, token_rows

masks = st.tuples(st.integers(1, 9), st.integers(1, 40)).flatmap(
    lambda shape: arrays(np.int32, shape, elements=st.integers(0, 1))
)


@settings(max_examples=60, deadline=None)
@given(masks)
def test_every_token_has_a_row(mask):
    found = {name: value.numpy() for name, value in token_rows(tf.constant(mask)).items()}
    positions, places = found[rows.POSITIONS], found[rows.PLACES]
    kept, flat = found[rows.KEPT], mask.reshape(-1)
    assert places.shape == kept.shape == flat.shape
    # Each position once at most, tokens before padding and in order.
    assert len(set(positions)) == len(positions) == kept.sum()
    assert positions[: flat.sum()].tolist() == np.flatnonzero(flat).tolist()
    assert kept[flat == 1].all()
    np.testing.assert_array_equal(places[positions], np.arange(len(positions)))
    # No more padding than the rounding needs.
    part = max(flat.size // 32, 1)
    assert len(positions) - flat.sum() < part
    assert len(positions) % part == 0 or len(positions) == flat.size


def some_rows(mask):
    return rows.TokenRows.of(token_rows(tf.constant(mask)))


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


@pytest.mark.parametrize("causal", [False, True])
def test_outputs_of_tokens(causal):
    """All of them, in each layer; and the pooled output, which reads the first or last token."""
    config = tiny.CONFIG.replace(causal_attention=causal)
    model = BertForSquad(config, seed=2)
    batch = {name: tf.constant(value) for name, value in tiny.classifier_batch(4).items()}
    expected = model(batch)
    found = model({**batch, **token_rows(batch["input_mask"])})
    mask = batch["input_mask"].numpy().astype(bool)
    assert not mask.all()
    for name in ("start_logits", "end_logits", "sequence_output"):
        np.testing.assert_allclose(found[name][mask], expected[name][mask], atol=2e-6)
    for a, b in zip(found["encoder_outputs"], expected["encoder_outputs"], strict=True):
        np.testing.assert_allclose(a[mask], b[mask], atol=2e-6)
    np.testing.assert_allclose(found["pooled_output"], expected["pooled_output"], atol=2e-6)
    assert len(named_variables(model)) > 40


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
