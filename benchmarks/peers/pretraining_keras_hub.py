"""Time KerasHub's BertMaskedLM on TensorFlow; it has no next sentence prediction.

Needs keras-hub and tensorflow. Prints one JSON line; see pretraining_step.py.
"""

import os

os.environ["KERAS_BACKEND"] = "tensorflow"

import keras_hub_model
import pretraining_common as common


def main() -> None:
    args = common.peer_flags(__doc__, compile="the step through XLA")

    import keras
    import keras_hub
    import tensorflow as tf

    model, optimizer = keras_hub_model.make_model(args, common.DROPOUT)
    optimizer.build(model.trainable_variables)
    cross_entropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    features, labels, weights = tf.nest.map_structure(tf.constant, keras_hub_model.make_batch(args))

    @tf.function(jit_compile=args.compile)
    def step():
        variables = [variable.value for variable in model.trainable_variables]
        with tf.GradientTape() as tape:
            loss = cross_entropy(labels, model(features, training=True), weights)
        gradients = tape.gradient(loss, variables)
        # The backbone's pooler is not on the way to the loss.
        pairs = [(g, v) for g, v in zip(gradients, model.trainable_variables) if g is not None]
        optimizer.apply_gradients([(tf.convert_to_tensor(g), v) for g, v in pairs])
        return loss

    common.time_steps(
        args,
        step,
        f"keras-hub {keras_hub.__version__}, keras {keras.__version__}, "
        f"tensorflow {tf.__version__}",
    )


main()
