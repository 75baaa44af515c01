"""Time KerasHub's BertMaskedLM on JAX; it has no next sentence prediction.

Needs keras-hub, keras and jax. Prints one JSON line; see gpu_step.py.
"""

import os
import sys

os.environ["KERAS_BACKEND"] = "jax"

import gpu_common
import keras_hub_model
import pretraining_common as common


def main() -> None:
    args = gpu_common.peer_flags(__doc__)
    if args.attention_dropout != args.dropout:
        sys.exit("KerasHub's BertBackbone has one dropout for hidden states and probabilities")

    import jax
    import keras
    import keras_hub

    model, optimizer = keras_hub_model.make_model(args, args.dropout)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=optimizer, loss=loss, weighted_metrics=[], jit_compile=True)
    features, labels, weights = jax.tree.map(jax.numpy.asarray, keras_hub_model.make_batch(args))

    def step() -> float:
        return model.train_on_batch(features, labels, sample_weight=weights)

    peer = f"keras-hub {keras_hub.__version__}, keras {keras.__version__}, jax {jax.__version__}"
    common.time_steps(args, step, peer)


main()
