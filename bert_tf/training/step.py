"""Steps of training and evaluation as graphs, written for any tf.distribute strategy.

A training step takes the gradient of the loss of the whole global batch: the sums below the
losses' line are reduced over replicas before the backward pass, gradients are summed over replicas
once, then clipped, then applied. The result does not depend on the number of replicas.
"""

from typing import Any

import numpy as np
import tensorflow as tf

from bert_tf.modeling.layers import DROPOUT_STREAMS, derive_seed
from bert_tf.modeling.losses import Loss
from bert_tf.modeling.models import named_variables
from bert_tf.optimization import BertAdam, clip_scale

# Where the number of the first bad step stands while there is none.
_NEVER = tf.int64.max


class TrainStep:
    """Runs training steps of one model; owns the optimizer's slots and the step counter.

    Args:
      model: a model of bert_tf.modeling.models, built under `strategy.scope()`.
      loss: what to minimise.
      optimizer: a `BertAdam`.
      strategy: a tf.distribute strategy; tf.distribute.get_strategy() for one device.
      seed: dropout masks are a function of (seed, step, replica, layer).
      dropout: False trains without any (the tests' way to compare runs).
    """

    def __init__(
        self,
        model: Any,
        loss: Loss,
        optimizer: BertAdam,
        strategy: Any,
        seed: int = 0,
        dropout: bool = True,
    ):
        self.model = model
        self.loss = loss
        self.optimizer = optimizer
        self.strategy = strategy
        self.seed = seed
        self.dropout = dropout
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
        # Traced once: the batch's length and the number of steps vary without a new trace.
        self._run = tf.function(self._steps)

    def run(self, iterator: Any, steps: int) -> dict[str, float]:
        """Takes `steps` steps from the iterator of a (distributed) dataset.

        Returns:
          The means over these steps of each loss and of grad_norm (the global norm before
          clipping); learning_rate of the last step; first_bad_step: the number of the first
          step whose loss or gradient was not finite, or -1.
        """
        sums = self._run(iterator, tf.constant(steps, tf.int32))
        result = {name: float(value) / steps for name, value in sums.items() if name != "bad"}
        last = int(self.global_step.numpy()) - 1
        result["learning_rate"] = float(self.optimizer.learning_rate(last))
        bad = int(sums["bad"])
        result["first_bad_step"] = -1 if bad == _NEVER else bad
        return result

    def tensors(self) -> dict[str, Any]:
        """Returns all that a checkpoint holds, as arrays: weights, slots, global_step."""
        values = {**self.variables, **self.slots, "global_step": self.global_step}
        return {name: value.numpy() for name, value in values.items()}

    def _steps(self, iterator: Any, steps: Any) -> dict[str, Any]:
        names = [*self.loss.names, "grad_norm"]
        sums = {name: tf.zeros((), tf.float32) for name in names}
        bad = tf.constant(_NEVER, tf.int64)
        for _ in tf.range(steps):
            values = self.strategy.run(self._replica_step, args=(next(iterator),))
            # The values are sums over replicas already, the same on each.
            values = {
                name: self.strategy.experimental_local_results(value)[0]
                for name, value in values.items()
            }
            finite = tf.reduce_all(tf.math.is_finite(tf.stack([values[name] for name in names])))
            bad = tf.where(finite, bad, tf.minimum(bad, self.global_step))
            sums = {name: sums[name] + values[name] for name in names}
            self.global_step.assign_add(1)
        return {**sums, "bad": bad}

    def _replica_step(self, batch: dict[str, Any]) -> dict[str, Any]:
        context = tf.distribute.get_replica_context()
        step = tf.identity(self.global_step)
        key = self._dropout_key(step, context) if self.dropout else None
        weights = self.loss.weights(batch)
        totals = context.all_reduce(
            tf.distribute.ReduceOp.SUM,
            {name: tf.reduce_sum(weight) for name, weight in weights.items()},
        )
        variables = [variable.value for variable in self.trained.values()]
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(variables)
            outputs = self.model(batch, dropout_key=key)
            parts = {
                name: tf.reduce_sum(weights[name] * values)
                / (totals[name] + self.loss.epsilon.get(name, 0.0))
                for name, values in self.loss.values(outputs, batch).items()
            }
            loss = tf.add_n(list(parts.values()))
        gradients = tape.gradient(loss, variables)
        # Dense before the norm: rows of a repeated token count once, as their sum.
        gradients = [tf.convert_to_tensor(gradient) for gradient in gradients]
        gradients, parts = context.all_reduce(tf.distribute.ReduceOp.SUM, (gradients, parts))
        norm = tf.sqrt(2.0 * tf.add_n([tf.nn.l2_loss(gradient) for gradient in gradients]))
        scale = clip_scale(norm, self.optimizer.clip_norm)
        rate = self.optimizer.learning_rate(step)
        context.merge_call(self._apply, args=(gradients, scale, rate, step))
        return {**parts, "grad_norm": norm}

    def _dropout_key(self, step: Any, context: Any) -> Any:
        seed = derive_seed(self.seed, "dropout")
        replica = tf.cast(context.replica_id_in_sync_group, tf.int32)
        return tf.stack(
            [tf.bitwise.bitwise_xor(seed, replica * 256), tf.cast(step, tf.int32) * DROPOUT_STREAMS]
        )

    def _apply(self, strategy: Any, gradients: list[Any], scale: Any, rate: Any, step: Any) -> None:
        """Updates every variable where it lives; called once for all replicas."""
        if strategy.num_replicas_in_sync == 1:
            self._apply_fused(gradients, scale, rate, step)
            return
        for (name, variable), gradient in zip(self.trained.items(), gradients, strict=True):
            m, v = (self.slots[f"{name}/{slot}"].value for slot in self.optimizer.slot_names)
            strategy.extended.update(
                variable.value,
                self._update_one,
                args=(name, gradient, m, v, scale, rate, step),
                group=False,
            )

    @tf.function(jit_compile=True)
    def _apply_fused(self, gradients: list[Any], scale: Any, rate: Any, step: Any) -> None:
        """The same as one XLA program: each variable is read and written once, not ten times."""
        for (name, variable), gradient in zip(self.trained.items(), gradients, strict=True):
            m, v = (self.slots[f"{name}/{slot}"].value for slot in self.optimizer.slot_names)
            self._update_one(variable.value, name, gradient, m, v, scale, rate, step)

    def _update_one(
        self,
        variable: Any,
        name: str,
        gradient: Any,
        m: Any,
        v: Any,
        scale: Any,
        rate: Any,
        step: Any,
    ) -> None:
        value, slots = self.optimizer.update(
            name,
            tf.identity(variable),
            gradient * scale,
            (tf.identity(m), tf.identity(v)),
            rate,
            step,
        )
        for target, new in zip((variable, m, v), (value, *slots), strict=True):
            target.assign(new)


class EvalStep:
    """Runs a model without dropout over a dataset in which each example stands once.

    Args:
      model: a model of bert_tf.modeling.models.
      strategy: as for `TrainStep`.
      loss: for the losses of each example, or None.
      outputs: names of the model's outputs to return.
    """

    def __init__(
        self, model: Any, strategy: Any, loss: Loss | None, outputs: tuple[str, ...] = ("logits",)
    ):
        self.model = model
        self.strategy = strategy
        self.loss = loss
        self.outputs = outputs
        self._run = tf.function(self._step)

    def run(self, dataset: Any, examples: int) -> dict[str, np.ndarray]:
        """Returns the outputs, and the losses' values by name, in the order of the examples.

        Args:
          dataset: batches with example_index int32 [B], -1 in rows of padding.
          examples: N; every index from 0 to N - 1 has to occur once.

        Returns: arrays of N rows each.
        """
        results: dict[str, np.ndarray] = {}
        seen = np.zeros(examples, np.int64)
        batches = iter(dataset)
        if not isinstance(batches, (tf.data.Iterator, tf.distribute.DistributedIterator)):
            raise TypeError(f"dataset must be a (distributed) tf.data.Dataset, not {dataset!r}")
        while True:
            try:
                found = {name: np.asarray(value) for name, value in self._run(batches).items()}
            except tf.errors.OutOfRangeError:
                break
            index = found.pop("example_index")
            real = index >= 0
            np.add.at(seen, index[real], 1)
            for name, value in found.items():
                if name not in results:
                    results[name] = np.zeros((examples, *value.shape[1:]), value.dtype)
                results[name][index[real]] = value[real]
        if not (seen == 1).all():
            raise RuntimeError(
                f"of {examples} examples, {int((seen == 0).sum())} were left out and "
                f"{int((seen > 1).sum())} occurred more than once: this is a bug, please report it"
            )
        return results

    def _step(self, batches: Any) -> dict[str, Any]:
        # The iterator rather than a batch: its shapes are known to vary, so one trace will do.
        values = self.strategy.run(self._replica_step, args=(next(batches),))
        return {
            name: tf.concat(self.strategy.experimental_local_results(value), axis=0)
            for name, value in values.items()
        }

    def _replica_step(self, batch: dict[str, Any]) -> dict[str, Any]:
        outputs = self.model(batch)
        result = {name: outputs[name] for name in self.outputs}
        if self.loss is not None:
            result.update(self.loss.values(outputs, batch))
        result["example_index"] = batch["example_index"]
        return result
