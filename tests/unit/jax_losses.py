"""What gpu_step.py computes on JAX; the process of test_gpu_step.py, whose own Keras is another.

Reads an npz file of the model's weights by name. Writes one of losses [steps, 2], with and without
recomputation, and of the masked LM's scores by way of computing attention.
"""

import os
import sys

os.environ["KERAS_BACKEND"] = "jax"

import argparse

import gpu_step
import jax
import numpy as np
from jax import numpy as jnp
from peers import gpu_common, pretraining_common

from bert_tf.modeling.losses import pretraining_loss
from bert_tf.modeling.models import named_variables
from bert_tf.optimization import BertAdam, WarmupDecay

STEPS, SEED = 3, 11  # as in test_gpu_step.py


def make(weights, attention, attention_dropout, recompute=False):
    """A model, the values of its variables, and a batch."""
    flags = argparse.Namespace(
        dtype="f32",
        dropout=0.1,
        attention_dropout=attention_dropout,
        attention=attention,
        recompute=recompute,
    )
    args = gpu_common.take_shape(flags, "tiny")
    model = gpu_step.make_model(args)
    variables = named_variables(model)
    assert variables.keys() == weights.keys()
    for name, variable in variables.items():
        variable.assign(weights[name])
    batch = {name: jnp.asarray(v) for name, v in pretraining_common.make_batch(args).items()}
    return model, [jnp.array(variable.value) for variable in variables.values()], batch


def losses(weights, recompute):
    model, values, batch = make(weights, "scores", 0.1, recompute)
    slots = [jnp.zeros(value.shape) for value in values for _ in range(2)]
    step = gpu_step.make_step(model, pretraining_loss(), BertAdam(WarmupDecay(1e-3, 20)), SEED)
    found = []
    for number in range(STEPS):
        values, slots, parts = step(values, slots, number, batch)
        found.append([float(parts[name]) for name in pretraining_loss().names])
    return found


def scores(weights, attention):
    model, _, batch = make(weights, attention, 0.0)
    return jax.jit(lambda batch: model(batch)["masked_lm_logits"])(batch)


def main(weights_file, output):
    with np.load(weights_file) as arrays:
        weights = dict(arrays)
    found = {kind: scores(weights, kind) for kind in gpu_step.ATTENTION}
    found.update(plain=losses(weights, False), recomputed=losses(weights, True))
    assert "tensorflow" not in sys.modules
    np.savez(output, **found)


main(*sys.argv[1:])
