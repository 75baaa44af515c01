"""Schedule and Adam against the original's, and against plain float64 arithmetic."""

import math

import keras
import numpy as np
import pytest
import tiny
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_tf.optimization import BertAdam, Lamb, WarmupDecay, clip_scale, global_norm

SCHEDULES = [
    (0.001, 20, 5),
    (0.001, 20, 0),
    (5e-05, 1000, 100),
    (2e-05, 20, 20),
    (0.001, 10, 15),
    (0.0001, 7, 1),
]


@pytest.mark.parametrize(("peak", "steps", "warmup"), SCHEDULES)
def test_golden_schedules(peak, steps, warmup):
    golden = tiny.read_arrays("optimizer/schedules.npz")
    assert len(golden) == 2 * len(SCHEDULES)
    case = f"lr{peak}_steps{steps}_warmup{warmup}"
    schedule = WarmupDecay(peak, steps, warmup)
    expected = golden[f"{case}/learning_rate"]
    np.testing.assert_allclose(schedule(golden[f"{case}/step"]), expected, rtol=1e-6, atol=1e-11)
    # One step at a time, as training asks.
    for step, rate in zip(golden[f"{case}/step"], expected, strict=True):
        assert float(schedule(int(step))) == pytest.approx(rate, rel=1e-6, abs=1e-11)


@settings(deadline=None, max_examples=50)
@given(
    peak=st.floats(1e-7, 1.0),
    steps=st.integers(1, 10**6),
    share=st.floats(0, 1),
    step=st.integers(0, 2 * 10**6),
)
def test_schedule(peak, steps, share, step):
    warmup = int(steps * share)
    rate = float(WarmupDecay(peak, steps, warmup)(step))
    exact = peak * step / warmup if step < warmup else peak * max(0.0, 1 - step / steps)
    assert rate == pytest.approx(exact, rel=1e-5, abs=peak * 2e-7)


@pytest.mark.parametrize("peak", [math.nan, math.inf, -1e-5])
def test_a_rate_that_would_spoil_the_weights(peak):
    with pytest.raises(ValueError, match=r"learning rate is .*; it must be a number of at least 0"):
        WarmupDecay(peak, 10)


@settings(deadline=None, max_examples=60)
@given(
    peak=st.floats(1e-6, 1.0),
    steps=st.integers(1, 10**6),
    share=st.floats(0, 1),
    at=st.floats(0, 1.5),
    power=st.sampled_from([0.0, 0.5, 1.0, 2.0, 3.7]),
    low=st.sampled_from([0.0, 0.1, 1.0]),
)
def test_decays(peak, steps, share, at, power, low):
    warmup, step = int(steps * share), int(steps * at)
    rate = float(WarmupDecay(peak, steps, warmup, power, low * peak)(step))
    left = max(0.0, 1 - step / steps)
    exact = low * peak + (1 - low) * peak * left**power
    if step < warmup:
        exact = peak * step / warmup
    # Near the end 1 - step / steps has lost digits, and a root makes much of it.
    lost = 1e-3 if power == 0.5 else 1e-6
    assert rate == pytest.approx(exact, rel=1e-5, abs=peak * lost)


def test_the_ends_of_decays():
    rates = [float(WarmupDecay(1e-3, 100, 10, 2.0, 1e-5)(step)) for step in (0, 5, 50, 100, 200)]
    assert rates == pytest.approx([0, 5e-4, 1e-5 + 9.9e-4 * 0.25, 1e-5, 1e-5], rel=1e-5)
    # Constant: to the end and after it.
    constant = WarmupDecay(1e-3, 100, 10, 0.0)
    assert [float(constant(step)) for step in (5, 10, 99, 100, 200)] == pytest.approx(
        [5e-4, 1e-3, 1e-3, 1e-3, 1e-3]
    )
    # Many steps at once, as a plot asks.
    np.testing.assert_allclose(
        WarmupDecay(1.0, 10, 0, 2.0)(np.arange(11)), (1 - np.arange(11) / 10) ** 2, atol=1e-6
    )


@pytest.mark.parametrize(
    "more", [{"power": -1.0}, {"power": math.inf}, {"end": -1e-9}, {"end": math.nan}]
)
def test_a_decay_that_makes_no_sense(more):
    with pytest.raises(ValueError, match="both must be finite numbers of at least 0"):
        WarmupDecay(1e-3, 10, **more)


TOYS = (
    "warmup0_clipped", "warmup0_epsilon", "warmup0_small", "warmup0_sparse",
    "warmup5_clipped", "warmup5_mixed", "warmup5_small",
)  # fmt: skip


def gradients_of(golden, step):
    gradients = {
        name.removeprefix("gradient/"): value[step]
        for name, value in golden.items()
        if name.startswith("gradient/")
    }
    if "gradient_ids/embedding_table" in golden:
        dense = np.zeros_like(golden["value/embedding_table"][0])
        ids = golden["gradient_ids/embedding_table"][step]
        np.add.at(dense, ids, golden["gradient_rows/embedding_table"][step])
        gradients["embedding_table"] = dense
    return gradients


@pytest.mark.parametrize("toy", TOYS)
def test_golden_toys(toy):
    golden = tiny.read_arrays(f"optimizer/toy_{toy}.npz")
    adam = BertAdam(WarmupDecay(1e-3, 20, 5 if "warmup5" in toy else 0))
    names = {name.removeprefix("value/") for name in golden if name.startswith("value/")}
    trained = names - {"unused/kernel"}
    assert {name for name in names if adam.decays(name)} >= {"dense/kernel", "embedding_table"}
    values = {name: golden[f"value/{name}"][0] for name in names}
    slots = {name: tuple(golden[f"adam_{s}/{name}"][0] for s in "mv") for name in trained}
    for name in trained:
        assert not np.any(slots[name])
    for step in range(20):
        rate = adam.learning_rate(step)
        assert float(rate) == pytest.approx(golden["learning_rate"][step], rel=1e-6, abs=1e-11)
        gradients = gradients_of(golden, step)
        assert gradients.keys() == trained
        norm = global_norm(list(gradients.values()))
        if toy == "warmup0_sparse":
            # The original's norm adds the rows of a repeated id one by one; ours, by decision,
            # adds their sum. The update is the same by either, so the golden's own norm shows
            # the rest; that ours differs is shown here.
            assert abs(float(norm) / golden["global_norm"][step] - 1) > 1e-3
            norm = golden["global_norm"][step]
        assert float(norm) == pytest.approx(golden["global_norm"][step], rel=2e-7)
        scale = clip_scale(norm, adam.clip_norm)
        for name, gradient in gradients.items():
            values[name], slots[name] = adam.update(
                name, values[name], gradient * scale, slots[name], rate
            )
            for found, key in (
                (values[name], f"value/{name}"),
                (slots[name][0], f"adam_m/{name}"),
                (slots[name][1], f"adam_v/{name}"),
            ):
                np.testing.assert_allclose(
                    found, golden[key][step + 1], rtol=1e-6, atol=3e-7, err_msg=f"{key}, {step}"
                )
                if not key.startswith("value"):
                    # Slots may be tiny: squares of 1e-7.
                    largest = np.abs(golden[key][step + 1]).max()
                    np.testing.assert_allclose(
                        found, golden[key][step + 1], rtol=1e-5, atol=1e-6 * largest, err_msg=key
                    )
    np.testing.assert_array_equal(golden["value/unused/kernel"][20], values["unused/kernel"])


@settings(deadline=None, max_examples=30)
@given(seed=st.integers(0, 10**6), scale=st.sampled_from([1e-7, 1e-3, 1.0, 100.0]))
def test_update_against_plain_arithmetic(seed, scale):
    rng = np.random.default_rng(seed)
    value, gradient, m = (rng.normal(0, scale, (3, 4)).astype(np.float32) for _ in range(3))
    v = np.square(rng.normal(0, scale, (3, 4))).astype(np.float32)
    adam = BertAdam(None, weight_decay=0.1, beta_1=0.8, beta_2=0.95, epsilon=1e-4)
    found, (found_m, found_v) = adam.update("a/kernel", value, gradient, (m, v), np.float32(0.01))
    wide_m = 0.8 * m.astype(np.float64) + 0.2 * gradient
    wide_v = 0.95 * v.astype(np.float64) + 0.05 * np.square(gradient.astype(np.float64))
    exact = value - 0.01 * (wide_m / (np.sqrt(wide_v) + 1e-4) + 0.1 * value)
    np.testing.assert_allclose(found_m, wide_m, rtol=1e-5, atol=1e-6 * scale)
    np.testing.assert_allclose(found_v, wide_v, rtol=1e-5)
    np.testing.assert_allclose(found, exact, rtol=1e-5, atol=1e-6 * max(scale, 0.1))


def test_bias_correction():
    """Adam of Kingma and Ba (2015), algorithm 1, in plain float64."""
    adam = BertAdam(None, weight_decay=0.0, epsilon=1e-8, bias_correction=True)
    rng = np.random.default_rng(0)
    start = rng.normal(size=5).astype(np.float32)
    value, slots = start, (np.zeros(5, np.float32), np.zeros(5, np.float32))
    exact, m, v = start.astype(np.float64), np.zeros(5), np.zeros(5)
    for step in range(50):
        gradient = rng.normal(size=5).astype(np.float32)
        value, slots = adam.update("a/kernel", value, gradient, slots, np.float32(0.1), step)
        m = 0.9 * m + 0.1 * gradient
        v = 0.999 * v + 0.001 * gradient.astype(np.float64) ** 2
        exact -= (
            0.1 * (m / (1 - 0.9 ** (step + 1))) / (np.sqrt(v / (1 - 0.999 ** (step + 1))) + 1e-8)
        )
        np.testing.assert_allclose(value, exact, atol=2e-5, rtol=0)
        np.testing.assert_allclose(slots[0], m, rtol=1e-4, atol=1e-6)
        if step == 0:
            # The first step is the rate itself, whatever the gradient.
            np.testing.assert_allclose(np.abs(value - start), 0.1, rtol=1e-4)


def plain_lamb(start, gradients, rates, excluded, decay=0.01, b1=0.9, b2=0.999, epsilon=1e-6):
    """Algorithm 2 of You et al. (2020) in float64, with phi(z) = z; one variable."""
    x = start.astype(np.float64)
    m, v = np.zeros_like(x), np.zeros_like(x)
    for number, (gradient, rate) in enumerate(zip(gradients, rates, strict=True), 1):
        g = gradient.astype(np.float64)
        m = b1 * m + (1 - b1) * g
        v = b2 * v + (1 - b2) * g * g
        r = m / (1 - b1**number) / (np.sqrt(v / (1 - b2**number)) + epsilon)
        ratio = 1.0
        if not excluded:
            r = r + decay * x
            sizes = np.linalg.norm(x), np.linalg.norm(r)
            ratio = sizes[0] / sizes[1] if min(sizes) > 0 else 1.0
        x = x - rate * ratio * r
    return x, m, v


@settings(deadline=None, max_examples=20)
@given(
    seed=st.integers(0, 10**6),
    scale=st.sampled_from([1e-6, 1e-2, 1.0, 100.0]),
    name=st.sampled_from(["dense/kernel", "dense/bias", "a/LayerNorm/gamma"]),
)
def test_lamb_against_the_paper(seed, scale, name):
    rng = np.random.default_rng(seed)
    start = rng.normal(0, 1, (3, 4)).astype(np.float32)
    gradients = rng.normal(0, scale, (6, 3, 4)).astype(np.float32)
    lamb = Lamb(WarmupDecay(1e-2, 8, 3))
    rates = [float(lamb.learning_rate(step)) for step in range(6)]
    value, slots = start, (np.zeros_like(start), np.zeros_like(start))
    for step in range(6):
        value, slots = lamb.update(name, value, gradients[step], slots, rates[step], step)
    exact, m, v = plain_lamb(start, gradients, rates, name != "dense/kernel")
    np.testing.assert_allclose(value, exact, rtol=2e-5, atol=2e-6)
    np.testing.assert_allclose(slots[0], m, rtol=1e-4, atol=1e-6 * scale)
    np.testing.assert_allclose(slots[1], v, rtol=1e-4, atol=1e-6 * scale**2)
    assert np.abs(exact - start).max() > 1e-3 * np.abs(start).max() or scale == 1e-6


def test_lamb_moves_a_kernel_by_its_own_size():
    # The norm of a step is rate * ||x||, whatever the gradient's size; Adam's is not.
    value = np.full((2, 8), 0.5, np.float32)
    zeros = np.zeros_like(value)
    for size in (1e-3, 10.0):
        gradient = np.full_like(value, size)
        moved, _ = Lamb(None).update("kernel", value, gradient, (zeros, zeros), np.float32(0.1), 0)
        step = np.linalg.norm(moved - value)
        assert step == pytest.approx(0.1 * np.linalg.norm(value), rel=1e-5)


@pytest.mark.parametrize("step", [0, 7])
def test_lamb_where_a_norm_is_zero(step):
    zeros, ones = np.zeros(4, np.float32), np.ones(4, np.float32)
    rate = np.float32(0.1)
    # New weights of 0: the ratio is 1, and they can leave 0.
    moved, slots = Lamb(None).update("kernel", zeros, ones, (zeros, zeros), rate, step)
    adam = BertAdam(None, bias_correction=True)
    expected, _ = adam.update("kernel", zeros, ones, (zeros, zeros), rate, step)
    np.testing.assert_allclose(moved, expected, rtol=1e-6)
    assert np.abs(moved).min() > 0.01
    # No gradient and no decay: an update of 0.
    still, _ = Lamb(None, weight_decay=0.0).update("kernel", ones, zeros, (zeros, zeros), rate)
    np.testing.assert_array_equal(still, ones)
    # Both.
    still, _ = Lamb(None).update("kernel", zeros, zeros, (zeros, zeros), rate)
    np.testing.assert_array_equal(still, zeros)
    assert all(np.isfinite(slot).all() for slot in slots)


@pytest.mark.parametrize(
    ("name", "decayed"),
    [
        ("bert/embeddings/word_embeddings", True),
        ("bert/encoder/layer_0/attention/self/query/kernel", True),
        ("output_weights", True),
        ("bert/encoder/layer_0/attention/self/query/bias", False),
        ("bert/embeddings/LayerNorm/gamma", False),
        ("block/layer_norm/scale", False),
        ("cls/predictions/output_bias", False),
        # Anywhere in the name.
        ("unbiased/kernel", False),
    ],
)
def test_decay(name, decayed):
    assert BertAdam(None).decays(name) is decayed
    assert not BertAdam(None, weight_decay=0.0).decays(name)
    one = np.ones(2, np.float32)
    zeros = np.zeros(2, np.float32)
    moved, _ = BertAdam(None).update(name, one, zeros, (zeros, zeros), np.float32(0.5))
    np.testing.assert_allclose(moved, one - 0.5 * 0.01 * decayed, rtol=1e-6)


def test_slots():
    variables = {"a/kernel": keras.Variable(np.ones((2, 3))), "b": keras.Variable(np.ones(4))}
    slots = BertAdam(None).make_slots(variables)
    assert {name: tuple(slot.shape) for name, slot in slots.items()} == {
        "a/kernel/adam_m": (2, 3),
        "a/kernel/adam_v": (2, 3),
        "b/adam_m": (4,),
        "b/adam_v": (4,),
    }
    for slot in slots.values():
        assert not slot.trainable
        np.testing.assert_array_equal(slot, np.zeros(slot.shape))


@settings(deadline=None, max_examples=50)
@given(norm=st.floats(0, 1e30), clip=st.floats(1e-3, 1e3))
def test_clipping(norm, clip):
    scale = float(clip_scale(np.float32(norm), clip))
    assert scale <= 1
    assert scale * norm == pytest.approx(min(norm, clip), rel=1e-5)


def test_global_norm():
    gradients = [np.full((2, 2), 1.5, np.float32), np.array([4.0], np.float32)]
    assert float(global_norm(gradients)) == pytest.approx(5.0)
    half = [keras.ops.cast(np.full(1000, 300.0), "float16")]  # Squares over float16's range.
    assert float(global_norm(half)) == pytest.approx(300 * math.sqrt(1000), rel=1e-3)
