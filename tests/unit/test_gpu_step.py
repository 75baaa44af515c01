"""benchmarks/gpu_step.py on JAX's CPU backend: the losses of the TensorFlow step, and its table."""

import argparse
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from benchmarks.peers import gpu_common, pretraining_common
from bert_tf.config import BertConfig
from bert_tf.modeling.losses import pretraining_loss
from bert_tf.modeling.models import BertPretrainer
from bert_tf.optimization import BertAdam, WarmupDecay
from bert_tf.training.step import TrainStep

ROOT = pathlib.Path(__file__).parents[2]
SCRIPT = ROOT / "benchmarks" / "gpu_step.py"
STEPS, SEED = 3, 11  # as in jax_losses.py
TINY = gpu_common.take_shape(argparse.Namespace(), "tiny")


def run(*command):
    search = [str(ROOT), str(ROOT / "benchmarks"), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, search))}
    # What the tests' own process is told is not for that one.
    environment.pop("KERAS_BACKEND", None)
    return subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, env=environment
    )


@pytest.fixture(scope="module")
def tensorflow_run():
    """The losses of STEPS steps, [steps, 2], and the weights before them by name."""
    config = BertConfig(
        **pretraining_common.config_sizes(TINY),
        # Large weights: attention is then far from even, and what it loses matters.
        initializer_range=0.2,
    )
    step = TrainStep(
        BertPretrainer(config, seed=3),
        pretraining_loss(),
        BertAdam(WarmupDecay(1e-3, 20)),
        tf.distribute.get_strategy(),
        seed=SEED,
    )
    weights = {name: variable.numpy() for name, variable in step.variables.items()}
    batches = iter(tf.data.Dataset.from_tensors(pretraining_common.make_batch(TINY)).repeat())
    found = [step.run(batches, 1) for _ in range(STEPS)]
    return np.array([[each[name] for name in step.loss.names] for each in found]), weights


@pytest.fixture(scope="module")
def jax_run(tensorflow_run, tmp_path_factory):
    """What jax_losses.py found, from the same weights."""
    folder = tmp_path_factory.mktemp("gpu_step")
    np.savez(folder / "weights.npz", **tensorflow_run[1])
    program = pathlib.Path(__file__).with_name("jax_losses.py")
    done = run(str(program), str(folder / "weights.npz"), str(folder / "found.npz"))
    assert done.returncode == 0, done.stderr[-4000:]
    with np.load(folder / "found.npz") as arrays:
        return dict(arrays)


# Dropout masks are a function of (seed, step, layer), the same one on each backend.
@pytest.mark.parametrize("case", ["plain", "recomputed"])
def test_the_losses_are_those_of_tensorflow(tensorflow_run, jax_run, case):
    expected = tensorflow_run[0]
    np.testing.assert_allclose(jax_run[case], expected, atol=1e-5, rtol=0)
    # Steps that learned nothing would show.
    assert np.abs(np.diff(expected, axis=0)).min() > 1e-3


@pytest.mark.parametrize("kind", ["dot_product", "cudnn"])
def test_ways_to_compute_attention(jax_run, kind):
    expected = jax_run["scores"]
    np.testing.assert_allclose(jax_run[kind], expected, atol=2e-5, rtol=0)
    assert np.abs(expected).max() > 1


def test_the_table():
    done = run(str(SCRIPT), "--shape=tiny", "--steps=8", "--warmup=2")
    assert done.returncode == 0, done.stderr[-4000:]
    lines = done.stdout.splitlines()
    assert "TFLOP/s on cpu" in lines[0]
    assert lines[1] == "dropout 0.1, of attention 0.1, in each row"
    (row,) = (line.split() for line in lines if line.startswith("tiny "))
    assert row[:3] == ["tiny", "ours,", "scores"]
    seconds, rate, share = float(row[3]), float(row[4]), float(row[5].rstrip("%"))
    assert rate == pytest.approx(TINY.batch / seconds, rel=0.2)
    assert 0 < share < 100
    assert sum("left out" in line for line in lines) == 2


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("--shape=base128,huge", "--shape: 'huge' is not one of base128, base512"),
        ("--attention=flash", "--attention: 'flash' is not one of scores"),
        ("--attention=scores,cudnn", "needs --attention_dropout=0"),
    ],
)
def test_flags_that_are_refused(flag, message):
    done = run(str(SCRIPT), flag)
    assert done.returncode == 2
    assert message in done.stderr
