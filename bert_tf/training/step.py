"""Steps of training and evaluation as graphs, written for any tf.distribute strategy.

A training step takes the gradient of the loss of the whole global batch: the sums below the
losses' line are reduced over replicas before the backward pass, gradients are summed over replicas
once, then clipped, then applied. The result does not depend on the number of replicas.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from bert_tf.modeling import kernels, rows
from bert_tf.modeling.layers import DROPOUT_STREAMS, derive_seed
from bert_tf.modeling.losses import Loss
from bert_tf.modeling.models import named_variables
from bert_tf.optimization import BertAdam, clip_scale
from bert_tf.training.distribution import Agreement, naming_workers, several_workers

# Where the number of the first bad step stands while there is none.
_NEVER = tf.int64.max


def _compile(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compiles one function of `kernels` with XLA."""
    return tf.function(function, jit_compile=True, autograph=False)


def _fusion() -> kernels.Fusion:
    """Returns how the replicas' arithmetic is fused, by the kind of this machine's devices."""
    if tf.config.list_logical_devices("TPU"):
        return kernels.Fusion()  # all is compiled there
    return kernels.Fusion(_compile, sums_by_product=not tf.config.list_logical_devices("GPU"))


def token_rows(batch: dict[str, Any]) -> dict[str, Any]:
    """Returns what a batch tells of its rows, see `rows.TokenRows`.

    What has no row is padding behind an example's last token that no prediction with a weight
    reads: masks with holes and examples without any token, which the original takes, are computed
    in full.
    As much padding is computed too as makes the number of rows a multiple of a 32nd of all
    positions, and of 16 at least: each number is compiled for itself.

    Args:
      batch: input_mask [B, T]; masked_lm_positions and masked_lm_weights [B, P], if there are any.
    """
    mask = tf.cast(batch["input_mask"] > 0, tf.int32)
    needed = (tf.cumsum(mask, axis=1, reverse=True) > 0) | (
        tf.reduce_max(mask, axis=1, keepdims=True) == 0
    )
    if "masked_lm_positions" in batch:
        places = tf.where(batch["masked_lm_weights"] != 0, batch["masked_lm_positions"], -1)
        predicted = tf.one_hot(places, tf.shape(mask)[1], True, False)
        needed |= tf.reduce_any(predicted, axis=1)  # of [B, P, T]
    is_needed = tf.reshape(needed, [-1])
    order = tf.concat([tf.where(is_needed)[:, 0], tf.where(~is_needed)[:, 0]], 0)
    order = tf.cast(order, tf.int32)  # [B*T], what is needed first
    positions = tf.size(order)
    part = tf.maximum(positions // 32, 16)
    least = tf.math.count_nonzero(is_needed, dtype=tf.int32)
    count = tf.minimum(-(-least // part) * part, positions)
    places = tf.math.invert_permutation(order)
    kept = places < count
    return {
        rows.POSITIONS: order[:count],
        rows.PLACES: tf.where(kept, places, 0),
        rows.KEPT: kept,
    }


class LossScale:
    """The factor that keeps float16 gradients from vanishing, and its growth and fall.

    It starts at 2^15, doubles after 2,000 steps without an overflow, and halves at each one, when
    the step is skipped on all replicas (Micikevicius et al., 2018, "Mixed Precision Training").
    """

    GROWS_AFTER = 2000
    LARGEST = 2.0**24

    def __init__(self) -> None:
        first = tf.VariableAggregation.ONLY_FIRST_REPLICA
        self.value = tf.Variable(2.0**15, trainable=False, name="loss_scale", aggregation=first)
        self.good_steps = tf.Variable(
            0, dtype=tf.int64, trainable=False, name="good_steps", aggregation=first
        )

    def advance(self, finite: Any) -> None:
        """Takes note of a step: whether its gradient was finite."""
        value, good = tf.identity(self.value), self.good_steps + 1
        grows = good >= self.GROWS_AFTER
        higher = tf.where(grows, tf.minimum(2.0 * value, self.LARGEST), value)
        self.value.assign(tf.where(finite, higher, tf.maximum(value / 2.0, 1.0)))
        self.good_steps.assign(tf.where(finite & ~grows, good, tf.zeros_like(good)))


class TrainStep:
    """Runs training steps of one model; owns the optimizer's slots and the step counter.

    Args:
      model: a model of bert_tf.modeling.models, built under `strategy.scope()`.
      loss: what to minimise.
      optimizer: a `BertAdam` or `Lamb`.
      strategy: a tf.distribute strategy; tf.distribute.get_strategy() for one device.
      seed: dropout masks are a function of (seed, step, replica, micro-batch, layer).
      dropout: False trains without any (the tests' way to compare runs).
      accumulation: micro-batches into which each replica cuts its part of a batch, one after
        another; the gradient is that of the whole batch all the same.
      scale_loss: whether to scale the loss, for a model that computes in float16.
      use_xla: whether to compile the forward and the backward pass with XLA.
      skip_padding: whether to leave padding out of all but attention. It is worth its rearranging
        where a twentieth of a batch or more is padding; not with `use_xla`, nor on a TPU.

    Raises:
      ValueError: `use_xla` and `skip_padding` are both asked for.
    """

    def __init__(
        self,
        model: Any,
        loss: Loss,
        optimizer: BertAdam,
        strategy: Any,
        seed: int = 0,
        dropout: bool = True,
        accumulation: int = 1,
        scale_loss: bool = False,
        use_xla: bool = False,
        skip_padding: bool = False,
    ):
        if use_xla and skip_padding:
            raise ValueError("XLA compiles for one number of rows: use_xla without skip_padding")
        self.model = model
        self.skip_padding = skip_padding
        self.loss = loss
        self.optimizer = optimizer
        self.strategy = strategy
        self.seed = seed
        self.dropout = dropout
        self.accumulation = accumulation
        self.agreement = Agreement(strategy)
        self.variables = named_variables(model)
        self.trained = {
            name: variable
            for name, variable in self.variables.items()
            if not name.startswith(model.without_gradient or ("\0",))
        }
        with strategy.scope():
            self.slots = optimizer.make_slots(self.trained)
            self.global_step = tf.Variable(
                0,
                dtype=tf.int64,
                trainable=False,
                name="global_step",
                aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
            )
            self.loss_scale = LossScale() if scale_loss else None
        self._fusion = _fusion()
        # Traced once: the batch's length and the number of steps vary without a new trace. Not by
        # way of AutoGraph, which takes more than half of the time that it takes to trace a model.
        self._run = tf.function(self._steps, autograph=False)
        self._gradients = (
            tf.function(self._batch_gradients, jit_compile=True, autograph=False)
            if use_xla
            else self._batch_gradients
        )

    def run(self, iterator: Any, steps: int) -> dict[str, float]:
        """Takes `steps` steps from the iterator of a (distributed) dataset.

        Returns:
          The means over these steps of each loss (and of their sum, where there are several), of
          each metric and of grad_norm (the global norm before clipping); learning_rate of the
          last step; first_bad_step: the number of the first step whose loss or gradient was not
          finite, or -1. With a loss scale also loss_scale, and skipped_steps: how many of the
          steps had a gradient that overflowed, and changed nothing.
        """
        sums = self._run(iterator, tf.constant(steps, tf.int32))
        bad, skipped = int(sums.pop("bad")), int(sums.pop("skipped"))
        result = {name: float(value) / steps for name, value in sums.items()}
        if len(self.loss.names) > 1:
            result = {"loss": sum(result[name] for name in self.loss.names), **result}
        last = int(self.global_step.numpy()) - 1
        result["learning_rate"] = float(self.optimizer.learning_rate(last))
        result["first_bad_step"] = -1 if bad == _NEVER else bad
        if self.loss_scale is not None:
            result["grad_norm"] *= steps / max(1, steps - skipped)
            result["loss_scale"] = float(self.loss_scale.value.numpy())
            result["skipped_steps"] = skipped
        return result

    def tensors(self) -> dict[str, Any]:
        """Returns all that a checkpoint holds, as arrays: weights, slots, global_step."""
        values = {**self.variables, **self.slots, "global_step": self.global_step}
        return {name: value.numpy() for name, value in values.items()}

    def state(self) -> dict[str, Any]:
        """Returns what an exact resume needs beside `tensors`."""
        if self.loss_scale is None:
            return {}
        return {
            "loss_scale": float(self.loss_scale.value.numpy()),
            "loss_scale_good_steps": int(self.loss_scale.good_steps.numpy()),
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Takes over what `state` returned; what is not there stays as it is."""
        if self.loss_scale is not None and "loss_scale" in state:
            self.loss_scale.value.assign(state["loss_scale"])
            self.loss_scale.good_steps.assign(state["loss_scale_good_steps"])

    def _steps(self, iterator: Any, steps: Any) -> dict[str, Any]:
        names = [*self.loss.names, *self.loss.metric_names, "grad_norm"]

        def one(done: Any, bad: Any, skipped: Any, sums: dict[str, Any]) -> tuple[Any, ...]:
            values = self.strategy.run(self._replica_step, args=(next(iterator),))
            # The values are sums over replicas already, the same on each.
            values = {
                name: self.strategy.experimental_local_results(value)[0]
                for name, value in values.items()
            }
            finite = tf.math.is_finite(values["grad_norm"])
            good = tf.reduce_all(
                tf.math.is_finite(tf.stack([values[name] for name in self.loss.names]))
            )
            if self.loss_scale is None:
                good = good & finite
            else:
                # An overflow of the scaled gradient is no fault while the scale can fall.
                good = good & (finite | (self.loss_scale.value > 1.0))
                values["grad_norm"] = tf.where(finite, values["grad_norm"], 0.0)
                skipped += tf.cast(~finite, tf.int32)
                self.loss_scale.advance(finite)
            bad = tf.where(good, bad, tf.minimum(bad, self.global_step))
            sums = {name: sums[name] + values[name] for name in names}
            self.global_step.assign_add(1)
            return done + 1, bad, skipped, sums

        first = (
            tf.constant(0),
            tf.constant(_NEVER, tf.int64),
            tf.constant(0),
            {name: tf.zeros((), tf.float32) for name in names},
        )
        _, bad, skipped, sums = tf.while_loop(lambda done, *_: done < steps, one, first)
        return {**sums, "bad": bad, "skipped": skipped}

    def _replica_step(self, batch: dict[str, Any]) -> dict[str, Any]:
        context = tf.distribute.get_replica_context()
        step = tf.identity(self.global_step)
        scale = None if self.loss_scale is None else tf.identity(self.loss_scale.value)
        totals = context.all_reduce(
            tf.distribute.ReduceOp.SUM,
            {name: tf.reduce_sum(weight) for name, weight in self.loss.weights(batch).items()},
        )
        replica = tf.cast(context.replica_id_in_sync_group, tf.int32)
        gradients, sums = self._gradients(batch, totals, step, replica, scale)
        gradients, sums = context.all_reduce(tf.distribute.ReduceOp.SUM, (gradients, sums))
        norm = tf.sqrt(2.0 * tf.add_n([tf.nn.l2_loss(gradient) for gradient in gradients]))
        if scale is not None:
            norm = norm / scale
        factor = clip_scale(norm, self.optimizer.clip_norm)
        if scale is not None:
            factor = factor / scale
        rate = self.optimizer.learning_rate(step)
        context.merge_call(self._apply, args=(gradients, norm, factor, rate, step))
        return {**sums, "grad_norm": norm}

    def _batch_gradients(
        self, batch: dict[str, Any], totals: dict[str, Any], step: Any, replica: Any, scale: Any
    ) -> tuple[list[Any], dict[str, Any]]:
        """Returns the gradients of one replica's batch, and its part of the losses and metrics."""
        count = self.accumulation
        if count == 1:
            key = self._dropout_key(step, replica, 0)
            return self._micro_batch_gradients(batch, totals, key, scale)
        size = next(iter(batch.values())).shape[0]
        if size is None or size % count:
            raise ValueError(
                f"a replica's batch of {size} cannot be cut into {count} equal micro-batches"
            )
        # [B, ...] -> [count, B / count, ...]: XLA cannot cut a piece whose place it does not know.
        stacked = {
            name: tf.reshape(value, tf.concat([[count, size // count], tf.shape(value)[1:]], 0))
            for name, value in batch.items()
        }

        def part(number: Any) -> tuple[list[Any], dict[str, Any]]:
            cut = {name: value[number] for name, value in stacked.items()}
            for name, value in cut.items():
                value.set_shape([size // count, *batch[name].shape[1:]])
            key = self._dropout_key(step, replica, number)
            return self._micro_batch_gradients(cut, totals, key, scale)

        def more(number: Any, gradients: list[Any], sums: dict[str, Any]) -> tuple[Any, Any, Any]:
            new, values = part(number)
            gradients = [a + b for a, b in zip(gradients, new, strict=True)]
            return number + 1, gradients, {name: sums[name] + values[name] for name in sums}

        gradients, sums = part(tf.constant(0))
        _, gradients, sums = tf.while_loop(
            lambda number, *_: number < count, more, (tf.constant(1), gradients, sums)
        )
        return gradients, sums

    def _micro_batch_gradients(
        self, batch: dict[str, Any], totals: dict[str, Any], key: Any, scale: Any
    ) -> tuple[list[Any], dict[str, Any]]:
        variables = [variable.value for variable in self.trained.values()]
        weights = self.loss.weights(batch)

        def mean(values: Any, name: str) -> Any:
            total = totals[name] + self.loss.epsilon.get(name, 0.0)
            return tf.reduce_sum(weights[name] * values) / total

        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(variables)
            with kernels.fused(self._fusion):
                extra = token_rows(batch) if self.skip_padding else {}
                outputs = self.model({**batch, **extra}, dropout_key=key)
                losses = self.loss.values(outputs, batch)
            parts = {name: mean(values, name) for name, values in losses.items()}
            loss = tf.add_n(list(parts.values()))
            if scale is not None:
                loss = loss * scale
        gradients = tape.gradient(loss, variables)
        if self.loss.metrics is not None:
            found = self.loss.metrics(outputs, batch)
            parts.update({name: mean(values, of) for name, (values, of) in found.items()})
        # Dense before the norm: rows of a repeated token count once, as their sum.
        return [tf.convert_to_tensor(gradient) for gradient in gradients], parts

    def _dropout_key(self, step: Any, replica: Any, micro_batch: Any) -> Any:
        if not self.dropout:
            return None
        seed = derive_seed(self.seed, "dropout")
        return tf.stack(
            [
                tf.bitwise.bitwise_xor(seed, replica * 65536 + micro_batch),
                tf.cast(step, tf.int32) * DROPOUT_STREAMS,
            ]
        )

    def _apply(
        self, strategy: Any, gradients: list[Any], norm: Any, factor: Any, rate: Any, step: Any
    ) -> None:
        """Updates every variable where it lives; called once for all replicas."""
        if strategy.num_replicas_in_sync == 1:
            self._apply_fused(gradients, norm, factor, rate, step)
            return
        for (name, variable), gradient in zip(self.trained.items(), gradients, strict=True):
            m, v = (self.slots[f"{name}/{slot}"].value for slot in self.optimizer.slot_names)
            strategy.extended.update(
                variable.value,
                self._update_one,
                args=(name, gradient, m, v, norm, factor, rate, step),
                group=False,
            )

    @tf.function(jit_compile=True, autograph=False)
    def _apply_fused(
        self, gradients: list[Any], norm: Any, factor: Any, rate: Any, step: Any
    ) -> None:
        """The same as one XLA program: each variable is read and written once, not ten times."""
        for (name, variable), gradient in zip(self.trained.items(), gradients, strict=True):
            m, v = (self.slots[f"{name}/{slot}"].value for slot in self.optimizer.slot_names)
            self._update_one(variable.value, name, gradient, m, v, norm, factor, rate, step)

    def _update_one(
        self,
        variable: Any,
        name: str,
        gradient: Any,
        m: Any,
        v: Any,
        norm: Any,
        factor: Any,
        rate: Any,
        step: Any,
    ) -> None:
        before = (tf.identity(variable), tf.identity(m), tf.identity(v))
        value, slots = self.optimizer.update(
            name, before[0], gradient * factor, before[1:], rate, step
        )
        after = (value, *slots)
        if self.loss_scale is not None:
            # Not a cond: each replica sees the same norm, and a merge_call cannot stand in one.
            finite = tf.math.is_finite(norm)
            after = tuple(tf.where(finite, new, old) for new, old in zip(after, before))
        for target, new in zip((variable, m, v), after, strict=True):
            target.assign(new)


def _put(results: np.ndarray, rows: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Sets rows of an array, which grows where its second axis is too short; returns it."""
    if values.ndim == 1 or values.shape[1] == results.shape[1]:
        results[rows] = values
        return results
    missing = values.shape[1] - results.shape[1]
    if missing > 0:
        results = np.pad(results, [(0, 0), (0, missing)] + [(0, 0)] * (results.ndim - 2))
    results[rows, : values.shape[1]] = values
    return results


class EvalStep:
    """Runs a model without dropout over a dataset in which each example stands once.

    Args:
      model: a model of bert_tf.modeling.models.
      strategy: as for `TrainStep`.
      values: a function (outputs, batch) -> {name: [B, ...]} such as `Loss.values`, or None.
      outputs: names of the model's outputs to return.
    """

    def __init__(
        self,
        model: Any,
        strategy: Any,
        values: Callable[[Any, Any], dict[str, Any]] | None,
        outputs: tuple[str, ...] = ("logits",),
    ):
        self.model = model
        self.strategy = strategy
        self.values = values
        self.outputs = outputs
        self._run = tf.function(self._step, autograph=False)

    def run(self, dataset: Any, examples: int, batches: int | None = None) -> dict[str, np.ndarray]:
        """Returns the outputs and the values by name, in the order of the examples.

        Args:
          dataset: batches with example_index int32 [B], -1 in rows of padding.
          examples: N; every index from 0 to N - 1 has to occur once.
          batches: how many to take; None for all of a dataset that ends.

        Returns: arrays of N rows each. Rows that are shorter than others, of batches of shorter
          texts, end in zeros.
        """
        results: dict[str, np.ndarray] = {}
        seen = np.zeros(examples, np.int64)
        iterator = iter(dataset)
        if not isinstance(iterator, (tf.data.Iterator, tf.distribute.DistributedIterator)):
            raise TypeError(f"dataset must be a (distributed) tf.data.Dataset, not {dataset!r}")
        taken = 0
        while batches is None or taken < batches:
            taken += 1
            try:
                with naming_workers(self.strategy):
                    values = self._run(iterator)
                    found = {name: np.asarray(value) for name, value in values.items()}
            except tf.errors.OutOfRangeError:
                break
            index = found.pop("example_index")
            real = index >= 0
            np.add.at(seen, index[real], 1)
            for name, value in found.items():
                if name not in results:
                    results[name] = np.zeros((examples, *value.shape[1:]), value.dtype)
                results[name] = _put(results[name], index[real], value[real])
        if not (seen == 1).all():
            raise RuntimeError(
                f"of {examples} examples, {int((seen == 0).sum())} were left out and "
                f"{int((seen > 1).sum())} occurred more than once: this is a bug, please report it"
            )
        return results

    def _step(self, batches: Any) -> dict[str, Any]:
        # The iterator rather than a batch: its shapes are known to vary, so one trace will do.
        values = self.strategy.run(self._replica_step, args=(next(batches),))
        parts = {
            name: self.strategy.experimental_local_results(value) for name, value in values.items()
        }
        if several_workers(self.strategy):
            return {name: part[0] for name, part in parts.items()}
        return {name: tf.concat(part, axis=0) for name, part in parts.items()}

    def _replica_step(self, batch: dict[str, Any]) -> dict[str, Any]:
        with kernels.inference(tf.nn.bias_add):
            outputs = self.model(batch)
        result = {name: outputs[name] for name in self.outputs}
        if self.values is not None:
            result.update(self.values(outputs, batch))
        result["example_index"] = batch["example_index"]
        if several_workers(self.strategy):
            # Every worker sees all results: the same files come of them, whoever writes.
            context = tf.distribute.get_replica_context()
            # The identity gives what comes from the batch itself a device to gather from.
            result = {
                name: context.all_gather(tf.identity(value), axis=0)
                for name, value in result.items()
            }
        return result
