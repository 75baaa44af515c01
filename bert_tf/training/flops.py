"""Floating-point operations of a step, and what the machine's matrix products reach.

The count is that of the matrix products a step needs, forwards and backwards (three times the
forward pass), whatever a program computes besides: a share of the machine's measured rate then says
how near to its limit a run is.
"""

import time
from typing import Any

import tensorflow as tf

from bert_tf.config import BertConfig


def step_flops(config: BertConfig, batch: int, length: int, predictions: int) -> float:
    """Returns the operations of one pre-training step; a multiplication and an addition are two.

    Args:
      config: sizes of the model.
      batch: B, over all replicas.
      length: T.
      predictions: P, positions that meet the vocabulary in each example.
    """
    hidden, wide = config.hidden_size, config.intermediate_size
    layer = 24 * hidden**2 + 12 * hidden * wide + 12 * length * hidden
    head = 6 * (hidden * config.vocab_size + hidden**2)
    return float(batch * (length * config.num_hidden_layers * layer + predictions * head))


def matmul_rate(dtype: Any, rows: int, hidden: int, wide: int, seconds: float = 1.0) -> float:
    """Measures a plain matrix product [rows, hidden] x [hidden, wide]: operations per second.

    Args:
      dtype: "float32", "bfloat16" or "float16".
      rows: tokens of a batch on one device.
      hidden: hidden size.
      wide: intermediate size.
      seconds: how long to measure; the fastest of several parts counts.
    """
    a = tf.cast(tf.random.stateless_uniform([rows, hidden], [0, 1]), dtype)
    b = tf.cast(tf.random.stateless_uniform([hidden, wide], [0, 2]), dtype)

    @tf.function(autograph=False)
    def product() -> Any:
        total = tf.zeros((), dtype)
        for number in range(4):
            # Each product needs the one before, so that none is left out or shared.
            total += tf.matmul(a + total * tf.cast(0.0 * number, dtype), b)[0, 0]
        return total

    product().numpy()
    best, end = float("inf"), time.monotonic() + seconds
    while time.monotonic() < end:
        start = time.monotonic()
        product().numpy()
        best = min(best, time.monotonic() - start)
    return 4 * 2.0 * rows * hidden * wide / best
