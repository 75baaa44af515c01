"""A Keras model that reads its weights from variables as an exported file keeps them.

Letters in shape comments: B batch, T tokens, H hidden size.
"""

from collections.abc import Callable, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from bert_tf.checkpoint import restore
from bert_tf.modeling import kernels
from bert_tf.modeling.models import named_variables

WEIGHTS_DTYPES = ("float32", "bfloat16", "int8")
FEATURES = ("input_ids", "input_mask", "segment_ids")

_INT8_MAX = 127


class StoredWeight(tf.Module):
    """One weight. It is always float32 when it is used.

    Tables of embeddings and kernels, nearly all of a model, are kept as `dtype` says; the rest
    (biases, normalisation, outputs) is small and stays float32.

    Args:
      name: its name in an original checkpoint.
      value: float32.
      dtype: one of WEIGHTS_DTYPES. int8 is symmetric, with a scale for each row of a table and
        each column (output) of a kernel.
    """

    def __init__(self, name: str, value: np.ndarray, dtype: str):
        super().__init__()
        is_table = name.endswith("_embeddings")
        is_wide = value.ndim == 2 and (is_table or name.endswith("kernel"))
        self.is_narrow = is_wide and dtype != "float32"
        self.scale = None
        if not self.is_narrow:
            self.kept = tf.Variable(value, trainable=False)
        elif dtype == "bfloat16":
            self.kept = tf.Variable(tf.cast(value, tf.bfloat16), trainable=False)
        else:
            scale = np.abs(value).max(axis=1 if is_table else 0, keepdims=True) / _INT8_MAX
            scale = np.where(scale > 0, scale, 1).astype(np.float32)
            self.scale = tf.Variable(scale, trainable=False)
            self.kept = tf.Variable(np.rint(value / scale).astype(np.int8), trainable=False)

    def value(self) -> tf.Tensor:
        """Returns the whole weight."""
        if not self.is_narrow:
            return tf.convert_to_tensor(self.kept)
        wide = tf.cast(self.kept, tf.float32)
        return wide if self.scale is None else wide * self.scale

    def rows(self, numbers: tf.Tensor) -> tf.Tensor:
        """Returns some rows of a table, without making the others wide."""
        wide = tf.cast(tf.gather(self.kept, numbers), tf.float32)
        return wide if self.scale is None else wide * tf.gather(self.scale, numbers)


class Network:
    """A model with stored weights; not a `tf.Module`, so that no Keras object is saved.

    Args:
      model: the Keras model, or the encoder alone, with its weights.
      weights_dtype: one of WEIGHTS_DTYPES.
      max_positions: the most tokens that it reads.

    Attributes:
      model: the same.
      weights: by names in an original checkpoint; to be kept by the module that is saved.
    """

    def __init__(self, model: Any, weights_dtype: str, max_positions: int):
        self.model = model
        self.max_positions = max_positions
        self._variables = named_variables(model)
        self.weights = {
            name: StoredWeight(name, np.asarray(variable.value), weights_dtype)
            for name, variable in self._variables.items()
        }

    def __call__(
        self,
        features: Mapping[str, tf.Tensor],
        call: Callable[[Mapping[str, tf.Tensor]], Any] | None = None,
    ) -> Any:
        """Runs the model within a `tf.function`, dropout off.

        Args:
          features: what the model takes.
          call: takes them in the model's place, where that is not to be called itself.
        """
        scope = keras.StatelessScope()
        features = dict(features)
        for name, variable in self._variables.items():
            weight = self.weights[name]
            ids = features.get("input_ids")
            reads_rows = name == restore.WORD_EMBEDDINGS and "masked_lm_positions" not in features
            if weight.is_narrow and reads_rows and ids is not None:
                # The rows that are looked up are the whole table then, and ids number them.
                scope.add_update((variable, weight.rows(tf.reshape(ids, [-1]))))
                features["input_ids"] = tf.reshape(tf.range(tf.size(ids)), tf.shape(ids))
            else:
                scope.add_update((variable, weight.value()))
        with scope, kernels.inference(tf.nn.bias_add):
            return (call or self.model)(features)

    def checked(
        self,
        features: Mapping[str, tf.Tensor],
        call: Callable[[Mapping[str, tf.Tensor]], Any] | None = None,
    ) -> dict[str, tf.Tensor]:
        """As calling it, for features from outside: any batch, also an empty one.

        `call` returns a dict of tensors [B, ...].

        Raises (when it runs):
          tf.errors.InvalidArgumentError: the input is longer than the model reads.
        """
        ids = features["input_ids"]
        tf.debugging.assert_less_equal(
            tf.shape(ids)[-1],
            self.max_positions,
            f"input_ids: a row has more tokens than the {self.max_positions} that the model reads",
        )
        count = tf.shape(ids)[0]
        # Shapes of an empty batch cannot be inferred inside of the model.
        added = tf.maximum(1 - count, 0)
        filled = {
            name: tf.pad(value, [[0, added]] + [[0, 0]] * (value.shape.rank - 1))
            for name, value in features.items()
        }
        return {name: value[:count] for name, value in self(filled, call).items()}


def as_features(
    input_ids: tf.Tensor, input_mask: tf.Tensor, segment_ids: tf.Tensor
) -> dict[str, tf.Tensor]:
    """Returns them by their names, int32."""
    return dict(zip(FEATURES, (input_ids, input_mask, segment_ids), strict=True))


def in_parts(
    features: Mapping[str, tf.Tensor],
    size: int,
    run: Callable[[dict[str, tf.Tensor]], tf.Tensor],
    shape: list[int | None],
) -> tf.Tensor:
    """Runs rows some at a time, so that a long text needs no more memory than a batch.

    Args:
      features: [B, ...] each.
      size: rows of a part.
      run: returns float32 [rows, *shape] for a part.
      shape: of a row's result; None for what is the same for all parts.
    """
    count = tf.shape(features["input_ids"])[0]
    number = tf.maximum((count + size - 1) // size, 1)
    results = tf.TensorArray(tf.float32, number, element_shape=[None, *shape], infer_shape=False)

    def step(part: tf.Tensor, found: tf.TensorArray) -> tuple[tf.Tensor, tf.TensorArray]:
        rows = {name: value[part * size : (part + 1) * size] for name, value in features.items()}
        return part + 1, found.write(part, run(rows))

    _, results = tf.while_loop(lambda part, _: part < number, step, (tf.constant(0), results))
    return results.concat()
