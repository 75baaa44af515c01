"""Time KerasHub's BertMaskedLM on JAX; it has no next sentence prediction.

Needs keras-hub, keras and jax. Prints one JSON line; see gpu_step.py.
"""

import os
import sys

os.environ["KERAS_BACKEND"] = "jax"

import gpu_common
import pretraining_common as common


def main() -> None:
    args = gpu_common.peer_flags(__doc__)
    if args.attention_dropout != args.dropout:
        sys.exit("KerasHub's BertBackbone has one dropout for hidden states and probabilities")

    import jax
    import keras
    import keras_hub

    if args.dtype == "bf16":
        keras.config.set_dtype_policy("mixed_bfloat16")
    backbone = keras_hub.models.BertBackbone(
        vocabulary_size=args.vocab,
        num_layers=args.layers,
        num_heads=args.heads,
        hidden_dim=args.hidden,
        intermediate_dim=args.intermediate,
        dropout=args.dropout,
        max_sequence_length=common.MAX_POSITIONS,
    )
    model = keras_hub.models.BertMaskedLM(backbone=backbone)
    optimizer = keras.optimizers.AdamW(
        common.LEARNING_RATE, weight_decay=common.WEIGHT_DECAY, global_clipnorm=common.CLIP_NORM
    )
    optimizer.exclude_from_weight_decay(var_names=["bias", "beta", "gamma"])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=optimizer, loss=loss, weighted_metrics=[], jit_compile=True)

    batch = common.make_batch(args)
    names = {
        "token_ids": "input_ids",
        "padding_mask": "input_mask",
        "segment_ids": "segment_ids",
        "mask_positions": "masked_lm_positions",
    }
    features = {name: jax.numpy.asarray(batch[ours]) for name, ours in names.items()}
    labels = jax.numpy.asarray(batch["masked_lm_ids"])
    weights = jax.numpy.asarray(batch["masked_lm_weights"])

    def step() -> float:
        return model.train_on_batch(features, labels, sample_weight=weights)

    peer = f"keras-hub {keras_hub.__version__}, keras {keras.__version__}, jax {jax.__version__}"
    common.time_steps(args, step, peer)


main()
