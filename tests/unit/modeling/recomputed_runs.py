"""Mirrored runs with and without recomputation; the process of test_recompute.py.

Logical devices have to be set up before TensorFlow is used, so this cannot run within pytest.
Writes an npz file: <plain or recomputed>/<variable>, and <...>/losses.
"""

import sys

import numpy as np
import tensorflow as tf
import tiny

from bert_tf.modeling.losses import pretraining_loss
from bert_tf.modeling.models import BertPretrainer
from bert_tf.optimization import BertAdam, WarmupDecay
from bert_tf.training.step import TrainStep

STEPS = 2


def run(strategy, recompute):
    config = tiny.CONFIG.replace(
        num_hidden_layers=1, hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1
    )
    with strategy.scope():
        model = BertPretrainer(config)
    model.bert.recompute = recompute
    adam = BertAdam(WarmupDecay(1e-3, 20))
    step = TrainStep(model, pretraining_loss(), adam, strategy, seed=5)
    batch = {
        name: np.concatenate([value, value[::-1]])
        for name, value in tiny.read_batch("model/inputs.json").items()
    }
    dataset = tf.data.Dataset.from_tensors(batch).repeat()
    batches = iter(strategy.experimental_distribute_dataset(dataset))
    losses = [step.run(batches, 1)["loss"] for _ in range(STEPS)]
    return {"losses": losses, **{name: value.numpy() for name, value in step.variables.items()}}


def main(output):
    cpus = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(
        cpus[0], [tf.config.LogicalDeviceConfiguration()] * 2
    )
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    results = {}
    for name, recompute in (("plain", False), ("recomputed", True)):
        results.update({f"{name}/{key}": value for key, value in run(strategy, recompute).items()})
    np.savez(output, **results)


main(sys.argv[1])
