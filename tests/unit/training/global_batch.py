"""The same training on one device, on mirrored ones, and on workers; see test_global_batch.py.

Run by tests/devices_driver.py, since devices have to be set up before TensorFlow is used. Writes
an npz file of <run>/<replicas>/<what>.
"""

import dataclasses
import pathlib
from typing import Any

import numpy as np
import tensorflow as tf
from keras import ops

from bert_tf.config import BertConfig
from bert_tf.modeling.layers import Dropout
from bert_tf.modeling.losses import classifier_loss, pretraining_loss, squad_loss
from bert_tf.modeling.models import BertClassifier, BertForSquad, BertPretrainer
from bert_tf.optimization import BertAdam, Lamb, WarmupDecay
from bert_tf.training import cluster, distribution
from bert_tf.training.run_folder import RunFolder
from bert_tf.training.step import TrainStep

STEPS, BATCH, LENGTH, LABELS, SLOTS = 20, 12, 16, 3, 5
CONFIG = BertConfig(
    vocab_size=60, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
    intermediate_size=32, max_position_embeddings=32, type_vocab_size=2, initializer_range=0.2,
)  # fmt: skip
LOSSES = {
    "classifier": lambda: classifier_loss("classification"),
    # The same with batches of one length, and one row that weighs much.
    "heavy": lambda: classifier_loss("classification"),
    "pretrainer": pretraining_loss,
    "squad": squad_loss,
}
# The step at which one row, on the last replica, weighs so much that its gradient overflows.
OVERFLOW_STEP = 3


# Peaks of their learning rates.
RULES = {"adam": 1e-3, "descent": 2e-2, "lamb": 1e-2}


@dataclasses.dataclass(frozen=True)
class AnyRule(BertAdam):
    """BERT's Adam, plain descent without clipping, or LAMB, as a variable says: one trace."""

    rules: tuple[str, ...] = ()
    rule: Any = None

    def update(self, name, value, gradient, slots, rate, step=0):
        adam, new = super().update(name, value, gradient, slots, rate, step)
        updates = [adam, value - rate * gradient]
        if "lamb" in self.rules:
            updates.append(Lamb(None).update(name, value, gradient, slots, rate, step)[0])
        return tf.stack(updates)[self.rule], new


def any_rule(rules=("adam", "descent")):
    rule, clip_norm = tf.Variable(0), tf.Variable(1.0)
    schedules = [WarmupDecay(RULES[each], 2 * STEPS, 5) for each in rules]
    return AnyRule(
        lambda step: ops.stack([each(step) for each in schedules])[rule],
        clip_norm=clip_norm,
        rules=rules,
        rule=rule,
    )


def batch_of(task, step):
    """The global batch of a step."""
    rng = np.random.default_rng(step)
    length = 8 + 4 * (step % 3) if task == "classifier" else LENGTH
    shape = (BATCH, length)
    mask = (np.arange(length) < rng.integers(length // 2, length + 1, (BATCH, 1))).astype(np.int32)
    batch = {
        "input_ids": rng.integers(5, CONFIG.vocab_size, shape, np.int32) * mask,
        "input_mask": mask,
        "segment_ids": rng.integers(0, 2, shape, np.int32) * mask,
    }
    if task in ("classifier", "heavy"):
        batch["label_ids"] = rng.integers(0, LABELS, BATCH, np.int32)
        batch["is_real_example"] = np.ones(BATCH, np.float32)
        batch["example_weight"] = rng.uniform(0.1, 3.0, BATCH).astype(np.float32)
        if task == "heavy":
            last = (np.arange(BATCH) == BATCH - 1) & (step == OVERFLOW_STEP)
            batch["example_weight"] = np.where(last, 1e4, 1.0).astype(np.float32)
    elif task == "squad":
        batch["start_positions"] = rng.integers(0, 8, BATCH, np.int32)
        batch["end_positions"] = rng.integers(0, 8, BATCH, np.int32)
    else:
        # The parts of the batch have different numbers of masked tokens.
        used = np.sort(rng.integers(1, SLOTS + 1, (BATCH, 1)), axis=0)
        batch["masked_lm_positions"] = rng.integers(0, 8, (BATCH, SLOTS), np.int32)
        batch["masked_lm_ids"] = rng.integers(5, CONFIG.vocab_size, (BATCH, SLOTS), np.int32)
        batch["masked_lm_weights"] = (np.arange(SLOTS) < used).astype(np.float32)
        batch["next_sentence_labels"] = rng.integers(0, 2, (BATCH, 1), np.int32)
    return batch


def batches(strategy, task, first, end):
    """The iterator of the batches of steps `first` to `end` - 1, as the scripts make it."""

    def make(shard_index, shard_count):
        rows = BATCH // shard_count

        def generate():
            for step in range(first, end):
                whole = batch_of(task, step)
                part = slice(shard_index * rows, (shard_index + 1) * rows)
                yield {name: value[part] for name, value in whole.items()}

        signature = {}
        for name, value in batch_of(task, 0).items():
            varies = task == "classifier" and value.ndim == 2
            shape = [rows, None] if varies else [rows, *value.shape[1:]]
            signature[name] = tf.TensorSpec(shape, value.dtype)
        dataset = tf.data.Dataset.from_generator(generate, output_signature=signature)
        options = tf.data.Options()
        options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
        return dataset.with_options(options)

    return iter(distribution.distribute(strategy, make))


def make_step(strategy, task, optimizer=None, dtype=None, **options):
    with strategy.scope():
        if task in ("classifier", "heavy"):
            model = BertClassifier(CONFIG, LABELS, seed=4, dtype=dtype)
        else:
            kind = {"squad": BertForSquad, "pretrainer": BertPretrainer}[task]
            model = kind(CONFIG, seed=4, dtype=dtype)
    optimizer = optimizer or any_rule()
    return TrainStep(model, LOSSES[task](), optimizer, strategy, dropout=False, **options)


class Runs:
    """Trains a step in several ways and takes note of the results."""

    def __init__(self, strategy, name, task, **options):
        self.strategy, self.name, self.task = strategy, name, task
        self.step = make_step(strategy, task, **options)
        self.start = self.step.tensors()

    def choose(self, rule):
        self.step.optimizer.rule.assign(self.step.optimizer.rules.index(rule))
        self.step.optimizer.clip_norm.assign(1e30 if rule == "descent" else 1.0)

    def reset(self, rule):
        step = self.step
        self.choose(rule)
        for name, variable in {**step.variables, **step.slots}.items():
            variable.assign(self.start[name])
        step.global_step.assign(0)

    def train(self, end=STEPS):
        first = int(self.step.global_step.numpy())
        found = self.step.run(batches(self.strategy, self.task, first, end), end - first)
        return {k: v for k, v in self.step.tensors().items() if "/adam_" not in k}, found

    def all_rules(self):
        results = {}
        for rule in self.step.optimizer.rules:
            self.reset(rule)
            weights, metrics = self.train()
            metrics = {f"metric {name}": value for name, value in metrics.items()}
            results[f"{self.name}_{rule}"] = {**weights, **metrics}
        return results

    def save_halfway(self, folder):
        self.reset("adam")
        self.train(STEPS // 2)
        RunFolder(folder).save(self.step, {})

    def resume(self, folder):
        self.choose("adam")
        for variable in [*self.step.variables.values(), *self.step.slots.values()]:
            variable.assign(np.full(variable.shape, 7.0, np.float32))
        RunFolder(folder).restore(self.step)
        assert int(self.step.global_step.numpy()) == STEPS // 2
        return self.train()[0]


def float16(strategy, use_xla):
    """Micro-batches in float16; a step is skipped since one row overflows."""
    step = make_step(
        strategy, "heavy", BertAdam(WarmupDecay(1e-3, 20)), "mixed_float16", accumulation=3,
        scale_loss=True, use_xla=use_xla,
    )  # fmt: skip
    # The gradient of a logit is at most 1: times this it is below 65504 / 4 for a row among
    # twelve, and above 65504 for one that has all the weight.
    step.set_state({"loss_scale": 2.0**17, "loss_scale_good_steps": 0})
    iterator = batches(strategy, "heavy", 0, 8)
    before, skipped = None, []
    for number in range(8):
        if number == OVERFLOW_STEP:
            before = step.tensors()
        skipped.append(step.run(iterator, 1)["skipped_steps"])
        if number == OVERFLOW_STEP:
            del before["global_step"]
            after = step.tensors()
            unchanged = all(np.array_equal(after[name], value) for name, value in before.items())
    found = {k: v for k, v in step.tensors().items() if "/adam_" not in k}
    return {**found, "skipped": skipped, "unchanged": unchanged, **step.state()}


def masks(strategy):
    """The dropout masks of two steps on this process's replicas: [step, replica, value]."""
    optimizer = BertAdam(WarmupDecay(1.0, 2))
    with strategy.scope():
        model = BertClassifier(CONFIG, 2)
    step = TrainStep(model, classifier_loss("classification"), optimizer, strategy, seed=3)

    @tf.function
    def draw(number):
        def on_replica():
            replica = tf.distribute.get_replica_context().replica_id_in_sync_group
            key = step._dropout_key(number, tf.cast(replica, tf.int32), 0)
            return Dropout(0.5, 1)(tf.ones([1000]), key=key)

        return strategy.experimental_local_results(strategy.run(on_replica))

    return np.array([[value.numpy() for value in draw(tf.constant(i, tf.int64))] for i in (0, 1)])


def flat(results, count):
    return {
        f"{run}/{count}/{name}": value
        for run, found in results.items()
        for name, value in found.items()
    }


def mirrored(count):
    if count == 1:
        return tf.distribute.get_strategy()
    strategy = tf.distribute.MirroredStrategy(
        [f"CPU:{number}" for number in range(count)],
        cross_device_ops=tf.distribute.ReductionToOneDevice(),
    )
    assert strategy.num_replicas_in_sync == count
    return strategy


def pretraining(output, *folders):
    """One, two and four CPUs, and micro-batches; the folders hold checkpoints of other runs."""
    output, saved = pathlib.Path(output), {}
    own = output.parent / "of_mirrored"
    for count in (2, 1, 4):
        runs = Runs(
            mirrored(count), "pretrainer", "pretrainer",
            optimizer=any_rule(tuple(RULES) if count < 4 else ("adam", "descent")),
        )  # fmt: skip
        saved.update(flat(runs.all_rules(), count))
        if count == 2:
            own.mkdir()
            runs.save_halfway(str(own))
            continue
        resumed = {
            f"resumed_{pathlib.Path(folder).name}": runs.resume(folder)
            for folder in (str(own), *folders)
        }
        saved.update(flat(resumed, count))
    runs = Runs(mirrored(1), "accumulated", "pretrainer", accumulation=2)
    saved.update(flat(runs.all_rules(), 1))
    np.savez(output, **saved)


def fine_tuning(output):
    """One and two CPUs: two tasks, and float16, with XLA on several devices."""
    saved = {}
    for count in (1, 2):
        strategy = mirrored(count)
        results = {"float16": float16(strategy, use_xla=count > 1)}
        for task in ("classifier", "squad"):
            results.update(Runs(strategy, task, task).all_rules())
        saved.update(flat(results, count))
    np.savez(output, **saved, masks=masks(strategy))


def on_workers(output, folder):
    """One of the workers that TF_CONFIG names; each writes <output>_<its number>.npz."""
    workers = cluster.from_environment()
    count = len(workers.addresses)
    strategy = distribution.make_strategy()
    assert strategy.num_replicas_in_sync == count
    rules = tuple(RULES) if count == 2 else ("adam", "descent")
    runs = Runs(strategy, "pretrainer", "pretrainer", optimizer=any_rule(rules))
    results = runs.all_rules()
    if count == 2:
        runs.save_halfway(folder)
        results["float16"] = float16(strategy, use_xla=True)
    saved = flat(results, count)
    np.savez(f"{output}_{workers.index}.npz", **saved, masks=masks(strategy))
