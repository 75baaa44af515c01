"""Learning-rate schedules, the original's Adam, and LAMB; keras and numpy only.

Both are plain arithmetic on tensors: who owns the variables, sums the gradients over replicas and
writes the results is the training step's business (bert_tf/training/step.py).
"""

import dataclasses
import math
import re
from typing import Any

import keras
from keras import ops


@dataclasses.dataclass(frozen=True)
class WarmupDecay:
    """Linear warm-up from 0, then a fall from `peak` at step 0 to `end` at the last step.

    lr(step) = end + (peak - end) * (1 - step / num_train_steps) ** power, and for
    step < num_warmup_steps peak * step / num_warmup_steps. As in the original, the decay does not
    begin anew after the warm-up, the first step with warm-up has rate 0, and a warm-up longer than
    the training goes on past its end.

    Args:
      peak: the learning rate that the flags name.
      num_train_steps: steps of the whole training.
      num_warmup_steps: steps of the warm-up, 0 for none.
      power: 1 falls along a line, as in the original; 0 stays at the peak.
      end: the rate at the end.

    Raises:
      ValueError: if a number is negative or not finite: the first update would spoil the weights.
    """

    peak: float
    num_train_steps: int
    num_warmup_steps: int = 0
    power: float = 1.0
    end: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.power < math.inf or not 0 <= self.end < math.inf:
            raise ValueError(
                f"the decay has power {self.power} and end {self.end}; both must be finite numbers "
                "of at least 0"
            )
        if not 0 <= self.peak < math.inf:
            raise ValueError(
                f"the learning rate is {self.peak}; it must be a number of at least 0, and finite"
            )

    def __call__(self, step: Any) -> Any:
        """Returns the learning rate of a step (an int, or an integer tensor of any shape)."""
        step = ops.cast(step, "float32")
        done = ops.minimum(step, float(self.num_train_steps)) / float(max(1, self.num_train_steps))
        left = 1.0 - done
        if self.power == 0:
            left = ops.ones_like(left)
        elif self.power != 1:
            left = ops.power(left, self.power)
        rate = (self.peak - self.end) * left + self.end if self.end else self.peak * left
        if self.num_warmup_steps:
            warm = self.peak * (step / float(self.num_warmup_steps))
            rate = ops.where(step < float(self.num_warmup_steps), warm, rate)
        return rate


def global_norm(gradients: list[Any]) -> Any:
    """Returns the root of the summed squares of all gradients, a float32 scalar."""
    total = ops.zeros((), dtype="float32")
    for gradient in gradients:
        total = total + ops.sum(ops.square(ops.cast(gradient, "float32")))
    return ops.sqrt(total)


def clip_scale(norm: Any, clip_norm: float) -> Any:
    """Returns the factor that brings gradients of norm `norm` down to `clip_norm` at most."""
    return clip_norm / ops.maximum(norm, clip_norm)


@dataclasses.dataclass(frozen=True)
class BertAdam:
    """Adam as the original has it ("AdamWeightDecayOptimizer").

    No bias correction; epsilon is added outside the root; the decay is added to Adam's update and
    so is scaled by the learning rate; it spares variables whose name matches `exclude` anywhere.
    The gradients are clipped by their global norm first.

    Without the correction, the first few hundred updates are larger than the learning rate says
    (five times at step 35): on small data sets, runs fail at rates at which corrected ones do not
    (Mosbach et al., 2021, "On the Stability of Fine-tuning BERT"). `bias_correction` restores it.

    Args:
      learning_rate: a function of the step, such as `WarmupDecay`.
      weight_decay: decay of the weights, in units of the learning rate.
      beta_1, beta_2: decay of the means of gradients and of their squares.
      epsilon: added to the root.
      exclude: regular expressions.
      clip_norm: the largest global norm.
      bias_correction: whether to divide the means by 1 - beta^t (Kingma and Ba, 2015).
    """

    learning_rate: Any
    weight_decay: float = 0.01
    beta_1: float = 0.9
    beta_2: float = 0.999
    epsilon: float = 1e-6
    exclude: tuple[str, ...] = ("LayerNorm", "layer_norm", "bias")
    clip_norm: float = 1.0
    bias_correction: bool = False

    # Names of a variable's slots in a checkpoint: <variable>/adam_m.
    slot_names = ("adam_m", "adam_v")

    def decays(self, name: str) -> bool:
        """Tells whether the variable of this name is decayed."""
        return self.weight_decay > 0 and not self.spares(name)

    def spares(self, name: str) -> bool:
        """Tells whether `exclude` has a pattern for this name."""
        return any(re.search(pattern, name) for pattern in self.exclude)

    def make_slots(self, variables: dict[str, Any]) -> dict[str, Any]:
        """Makes the slots of named variables: {"<name>/adam_m": zeros, "<name>/adam_v": zeros}."""
        return {
            f"{name}/{slot}": keras.Variable(
                ops.zeros(variable.shape, dtype="float32"),
                trainable=False,
                name=slot,
                dtype="float32",
            )
            for name, variable in variables.items()
            for slot in self.slot_names
        }

    def update(
        self,
        name: str,
        value: Any,
        gradient: Any,
        slots: tuple[Any, Any],
        rate: Any,
        step: Any = 0,
    ) -> tuple[Any, tuple[Any, Any]]:
        """Returns the new value and the new slots of one variable.

        Args:
          name: of the variable; decides about the decay.
          value: the variable's value.
          gradient: clipped, of the same shape.
          slots: (adam_m, adam_v).
          rate: the step's learning rate, a scalar.
          step: the step's number, from 0; used by the bias correction alone.
        """
        change, slots = self._change(name, value, gradient, slots, step)
        return value - rate * change, slots

    def _change(
        self, name: str, value: Any, gradient: Any, slots: tuple[Any, Any], step: Any
    ) -> tuple[Any, tuple[Any, Any]]:
        """Returns the update of one variable in units of the rate, and the new slots."""
        m, v = slots
        m = self.beta_1 * m + (1.0 - self.beta_1) * gradient
        v = self.beta_2 * v + (1.0 - self.beta_2) * ops.square(gradient)
        if self.bias_correction:
            taken = ops.cast(step, "float32") + 1.0
            m_hat = m / (1.0 - ops.power(self.beta_1, taken))
            v_hat = v / (1.0 - ops.power(self.beta_2, taken))
        else:
            m_hat, v_hat = m, v
        change = m_hat / (ops.sqrt(v_hat) + self.epsilon)
        if self.decays(name):
            change = change + self.weight_decay * value
        return change, (m, v)


@dataclasses.dataclass(frozen=True)
class Lamb(BertAdam):
    """LAMB: Adam whose update of each variable has a norm in proportion to the variable's.

    Algorithm 2 of You et al. (2020), "Large Batch Optimization for Deep Learning": Adam's update
    with its bias corrected, plus the decay, times ||value|| / ||update|| (1 where either norm
    is 0). Variables that are not decayed are not scaled either, as in the authors' runs of BERT.
    """

    bias_correction: bool = True

    def update(
        self,
        name: str,
        value: Any,
        gradient: Any,
        slots: tuple[Any, Any],
        rate: Any,
        step: Any = 0,
    ) -> tuple[Any, tuple[Any, Any]]:
        """As `BertAdam.update`."""
        change, slots = self._change(name, value, gradient, slots, step)
        if not self.spares(name):
            weight_norm, norm = _norm(value), _norm(change)
            usable = ops.logical_and(weight_norm > 0, norm > 0)
            ratio = ops.where(usable, weight_norm / ops.where(usable, norm, 1.0), 1.0)
            change = ratio * change
        return value - rate * change, slots


def _norm(x: Any) -> Any:
    return ops.sqrt(ops.sum(ops.square(x)))
