"""Runs tf-models-official's LAMB; the process of test_garden_lamb.py.

It needs Keras 2, which is chosen when TensorFlow is imported. Arguments: an npz file of
<variable> (where it starts) and <variable>/gradients [steps, ...] and rates [steps], an npz file
to write: <variable> [steps, ...], <variable>/m and <variable>/v after the last step. "|" stands for
"/" in variables' names.
"""

import os
import sys

os.environ["TF_USE_LEGACY_KERAS"] = "1"

import numpy as np
import tensorflow as tf
from official.modeling.optimization import lamb


def main(inputs_file, output_file):
    with np.load(inputs_file) as arrays:
        inputs = dict(arrays)
    rates = inputs.pop("rates")
    names = [name for name in inputs if not name.endswith("/gradients")]
    variables = {name: tf.Variable(inputs[name], name=name.replace("|", "/")) for name in names}
    patterns = ["LayerNorm", "layer_norm", "bias"]
    rate = tf.Variable(0.0)
    optimizer = lamb.LAMB(
        learning_rate=lambda: rate,
        beta_1=0.9,
        beta_2=0.999,
        epsilon=1e-6,
        weight_decay_rate=0.01,
        exclude_from_weight_decay=patterns,
        exclude_from_layer_adaptation=patterns,
    )
    results = {name: [] for name in names}
    for step, value in enumerate(rates):
        rate.assign(value)
        optimizer.apply_gradients(
            [
                (tf.constant(inputs[f"{name}/gradients"][step]), variable)
                for name, variable in variables.items()
            ]
        )
        for name, variable in variables.items():
            results[name].append(variable.numpy())
    for name, variable in variables.items():
        for slot in "mv":
            results[f"{name}/{slot}"] = optimizer.get_slot(variable, slot).numpy()
    np.savez(output_file, **results)


if __name__ == "__main__":
    main(*sys.argv[1:])
