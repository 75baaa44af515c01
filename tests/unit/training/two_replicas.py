"""Runs of one device and of two mirrored ones; the process of test_replicas.py.

Logical devices have to be set up before TensorFlow is used, so this cannot run within pytest.
Writes an npz file: <run>/<variable>, <run>/metrics and what test_replicas.py asks for more.
"""

import dataclasses
import sys

import numpy as np
import tensorflow as tf
import tiny

from bert_tf.modeling.layers import Dropout
from bert_tf.modeling.losses import classifier_loss, pretraining_loss
from bert_tf.modeling.models import BertClassifier, BertPretrainer, named_variables
from bert_tf.optimization import BertAdam, WarmupDecay
from bert_tf.training.step import EvalStep, TrainStep

STEPS = 20
LENGTH, SLOTS = 16, 5


@dataclasses.dataclass(frozen=True)
class PlainSGD(BertAdam):
    """No division by a norm: a gradient that is twice too large moves twice too far."""

    clip_norm: float = 1e30

    def update(self, name, value, gradient, slots, rate, step):
        return value - rate * gradient, slots


def batches():
    """STEPS global batches of 4; the halves have different numbers of masked tokens."""
    rng = np.random.default_rng(1)
    words = tiny.CONFIG.vocab_size
    for _ in range(STEPS):
        weights = np.zeros((4, SLOTS), np.float32)
        for row, used in enumerate(rng.permutation([5, 4, 1, 1])):
            weights[row, :used] = 1
        mask = np.arange(LENGTH) < rng.integers(8, LENGTH + 1, (4, 1))
        yield {
            "input_ids": rng.integers(5, words, (4, LENGTH), np.int32) * mask.astype(np.int32),
            "input_mask": mask.astype(np.int32),
            "segment_ids": rng.integers(0, 2, (4, LENGTH), np.int32),
            "masked_lm_positions": rng.integers(0, 8, (4, SLOTS), np.int32),
            "masked_lm_ids": rng.integers(5, words, (4, SLOTS), np.int32),
            "masked_lm_weights": weights,
            "next_sentence_labels": rng.integers(0, 2, (4, 1), np.int32),
        }


def dataset_of(make, strategy):
    signature = tf.nest.map_structure(
        lambda value: tf.TensorSpec(value.shape, value.dtype), next(iter(make()))
    )
    dataset = tf.data.Dataset.from_generator(make, output_signature=signature)
    return strategy.experimental_distribute_dataset(dataset)


def train(strategy, optimizer):
    with strategy.scope():
        model = BertPretrainer(tiny.CONFIG)
    step = TrainStep(model, pretraining_loss(), optimizer, strategy, dropout=False)
    tiny.assign(step.variables, "tiny_pretraining/bert_model.ckpt")
    iterator = iter(dataset_of(batches, strategy))
    metrics = [step.run(iterator, 1) for _ in range(STEPS)]
    names = (*step.loss.names, "grad_norm")
    found = {name: value for name, value in step.tensors().items() if "/adam_" not in name}
    found["metrics"] = np.array([[each[name] for name in names] for each in metrics])
    return found


def replica():
    return tf.cast(tf.distribute.get_replica_context().replica_id_in_sync_group, tf.int32)


def masks(strategy):
    """The dropout masks of two steps on every replica: [step, replica, value]."""
    with strategy.scope():
        model = BertClassifier(tiny.CONFIG.replace(num_hidden_layers=1), 2)
    loss = classifier_loss("classification")
    step = TrainStep(model, loss, BertAdam(WarmupDecay(1.0, 2)), strategy, seed=3)

    @tf.function
    def draw(number):
        def on_replica():
            key = step._dropout_key(number, replica(), 0)
            return Dropout(0.5, 1)(tf.ones([1000]), key=key)

        return strategy.experimental_local_results(strategy.run(on_replica))

    return np.array([[value.numpy() for value in draw(tf.constant(i, tf.int64))] for i in (0, 1)])


def evaluate(strategy):
    """Seven examples in batches of four."""
    with strategy.scope():
        model = BertClassifier(tiny.CONFIG, 3)
    tiny.assign(named_variables(model), "tiny_classifier/bert_model.ckpt")

    def make():
        for step in range(2):
            batch = tiny.classifier_batch(3 * step)
            batch["example_index"] = np.array([[6, 1, 4, 0], [2, 5, 3, -1]][step], np.int32)
            yield batch

    evaluator = EvalStep(model, strategy, classifier_loss("classification").values)
    return evaluator.run(dataset_of(make, strategy), 7)


def main(output):
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    two = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    assert two.num_replicas_in_sync == 2
    results = {"masks": masks(two)}
    for name, strategy in (("one", tf.distribute.get_strategy()), ("two", two)):
        runs = {
            "adam": train(strategy, BertAdam(WarmupDecay(1e-3, 2 * STEPS, 5))),
            "sgd": train(strategy, PlainSGD(WarmupDecay(2e-2, 2 * STEPS, 0))),
            "evaluation": evaluate(strategy),
        }
        for run, found in runs.items():
            results.update({f"{name}/{run}/{key}": value for key, value in found.items()})
    np.savez(output, **results)


if __name__ == "__main__":
    main(sys.argv[1])
