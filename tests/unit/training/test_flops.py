"""The count of operations against one product after the other."""

import math

import pytest

from bert_tf.config import BertConfig
from bert_tf.training import flops


def products(config, batch, length, predictions):
    """Every matrix product of a forward pass as (rows, inner, columns)."""
    hidden, wide, tokens = config.hidden_size, config.intermediate_size, batch * length
    size = hidden // config.num_attention_heads
    for _ in range(config.num_hidden_layers):
        for _ in ("query", "key", "value", "output"):
            yield tokens, hidden, hidden
        for _ in range(batch * config.num_attention_heads):
            yield length, size, length
            yield length, length, size
        yield tokens, hidden, wide
        yield tokens, wide, hidden
    yield batch * predictions, hidden, hidden
    yield batch * predictions, hidden, config.vocab_size


@pytest.mark.parametrize(
    ("config", "batch", "length", "predictions"),
    [
        (BertConfig(vocab_size=30522, type_vocab_size=2), 32, 128, 20),
        (BertConfig(vocab_size=30522, type_vocab_size=2), 8, 512, 76),
        (
            BertConfig(
                vocab_size=99, hidden_size=24, num_hidden_layers=3, num_attention_heads=3,
                intermediate_size=56,
            ),
            1, 7, 2,
        ),
    ],
)  # fmt: skip
def test_step_flops(config, batch, length, predictions):
    forward = sum(2 * rows * k * n for rows, k, n in products(config, batch, length, predictions))
    found = flops.step_flops(config, batch, length, predictions)
    assert found == pytest.approx(3 * forward, rel=1e-12)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_matmul_rate(dtype, monkeypatch):
    import itertools

    # A clock of ours: each look is a second later, so each run of four products takes one.
    ticks = itertools.count()
    monkeypatch.setattr(flops.time, "monotonic", lambda: float(next(ticks)))
    rate = flops.matmul_rate(dtype, 16, 8, 32, seconds=5.0)
    assert rate == 4 * 2 * 16 * 8 * 32
    assert math.isfinite(rate)
