"""Recomputed activations: the same gradients, from layers that are computed twice."""

import argparse
import collections
import contextlib
import functools
import pathlib

import devices
import numpy as np
import pytest
import tensorflow as tf
import tiny

import run_classifier
import run_pretraining
import run_squad
from bert_tf.cli import scripts
from bert_tf.modeling import kernels
from bert_tf.modeling.encoder import BertEncoder
from bert_tf.modeling.losses import classifier_loss, pretraining_loss
from bert_tf.modeling.models import BertClassifier, BertPretrainer
from bert_tf.optimization import BertAdam, WarmupDecay
from bert_tf.training.step import TrainStep

CONFIG = tiny.CONFIG.replace(
    num_hidden_layers=2, hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1
)
KEY = (7, 3 * 256)


@functools.cache
def encoder():
    made = BertEncoder(CONFIG)
    made.build()
    return made


def encoder_gradients(recompute, compiled, fusion=None, key=KEY):
    """The gradients of one number that hangs on all outputs of the encoder."""
    model = encoder()
    model.recompute = recompute
    batch = tiny.read_batch("model/inputs.json")

    def gradients():
        weights = [variable.value for variable in model.variables]
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(weights)
            with kernels.fused(fusion) if fusion else contextlib.nullcontext():
                outputs = model(
                    batch["input_ids"],
                    batch["input_mask"],
                    batch["segment_ids"],
                    dropout_key=None if key is None else tf.constant(key, tf.int32),
                )
            total = tf.reduce_sum(outputs["pooled_output"])
            for each in outputs["encoder_outputs"]:
                total += tf.reduce_sum(tf.sin(each))
        return [total, *map(tf.convert_to_tensor, tape.gradient(total, weights))]

    return [value.numpy() for value in (tf.function(gradients) if compiled else gradients)()]


@pytest.mark.parametrize("compiled", [True, False], ids=["graph", "eager"])
@pytest.mark.parametrize(
    ("fusion", "key"),
    [(None, KEY), (None, None), (kernels.Fusion(), KEY)],
    ids=["plain", "no dropout", "fused"],
)
def test_an_encoder(compiled, fusion, key):
    expected = encoder_gradients(False, compiled, fusion, key)
    found = encoder_gradients(True, compiled, fusion, key)
    names = ["total", *(variable.path for variable in encoder().variables)]
    for name, a, b in zip(names, found, expected, strict=True):
        # Each of these sums is over hundreds of numbers of about 1.
        np.testing.assert_allclose(a, b, atol=2e-5, rtol=1e-5, err_msg=name)
    assert min(np.abs(value).max() for value in expected) > 0


def make_step(recompute, dtype=None, **options):
    model = BertPretrainer(CONFIG, dtype=dtype)
    model.bert.recompute = recompute
    optimizer = BertAdam(WarmupDecay(1e-3, 20))
    return TrainStep(model, pretraining_loss(), optimizer, tf.distribute.get_strategy(), **options)


def step_gradients(step):
    """The gradients of a batch, the losses, and how often each operation stands in the graph."""
    batch = {name: tf.constant(v) for name, v in tiny.read_batch("model/inputs.json").items()}
    totals = {name: tf.reduce_sum(each) for name, each in step.loss.weights(batch).items()}
    arguments = (batch, totals, tf.constant(3, tf.int64), tf.constant(0), None)
    function = tf.function(step._gradients)
    gradients, losses = function(*arguments)
    graph = function.get_concrete_function(*arguments).graph
    counts = collections.Counter(node.type for node in graph.get_operations())
    return [value.numpy() for value in gradients], losses, counts


@pytest.mark.parametrize(
    ("options", "tolerance"),
    [
        ({}, 1e-6),
        ({"accumulation": 2}, 1e-6),
        ({"use_xla": True}, 1e-6),
        ({"skip_padding": True}, 1e-6),
        # The gradients are rounded to three digits on their way.
        ({"dtype": "mixed_bfloat16"}, 4e-3),
    ],
    ids=str,
)
def test_a_training_step(options, tolerance):
    step, plain = make_step(True, **options), make_step(False, **options)
    found, losses, counts = step_gradients(step)
    expected, expected_losses, plain_counts = step_gradients(plain)
    for name, a, b in zip(plain.trained, found, expected, strict=True):
        np.testing.assert_allclose(a, b, atol=tolerance, rtol=0, err_msg=name)
    assert max(np.abs(value).max() for value in expected) > 0.1
    for name, value in expected_losses.items():
        assert float(losses[name]) == pytest.approx(float(value), rel=1e-6)
    if not options:
        # The products of the layers, and no others, are there once more.
        more = counts - plain_counts
        assert more["MatMul"] == 6 * CONFIG.num_hidden_layers
        assert more["BatchMatMulV2"] == 2 * CONFIG.num_hidden_layers


def test_two_replicas(tmp_path):
    output = tmp_path / "results.npz"
    results = devices.arrays_of(pathlib.Path(__file__).with_name("recomputed_runs.py"), output)
    names = [name.removeprefix("plain/") for name in results if name.startswith("plain/")]
    assert len(names) > 25
    for name in names:
        a, b = results[f"recomputed/{name}"], results[f"plain/{name}"]
        np.testing.assert_allclose(a, b, atol=1e-5, rtol=0, err_msg=name)
    losses = results["plain/losses"]
    assert losses[-1] < losses[0] - 0.01


@pytest.mark.parametrize("script", [run_classifier, run_pretraining, run_squad])
def test_the_flag(script):
    assert script.CLI.flags["recompute"].flag_type() == "bool"
    assert script.CLI.flags["recompute"].default is False


@pytest.mark.parametrize("recompute", [True, False])
def test_what_the_flag_sets(recompute):
    flags = argparse.Namespace(
        seed=1,
        gradient_accumulation_steps=1,
        recompute=recompute,
        precision="float32",
        use_xla=False,
    )
    model = BertClassifier(CONFIG, 2)
    optimizer = BertAdam(WarmupDecay(1e-3, 20))
    strategy = tf.distribute.get_strategy()
    scripts.make_step(flags, model, classifier_loss("classification"), optimizer, strategy)
    assert model.bert.recompute is recompute
