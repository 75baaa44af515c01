"""Time KerasHub's BertMaskedLM on TensorFlow; it has no next sentence prediction.

Needs keras-hub and tensorflow. Prints one JSON line; see pretraining_step.py.
"""

import os

os.environ["KERAS_BACKEND"] = "tensorflow"

import pretraining_common as common


def main() -> None:
    args = common.peer_flags(__doc__, compile="the step through XLA")

    import keras
    import keras_hub
    import tensorflow as tf

    if args.dtype == "bf16":
        keras.config.set_dtype_policy("mixed_bfloat16")
    backbone = keras_hub.models.BertBackbone(
        vocabulary_size=args.vocab,
        num_layers=args.layers,
        num_heads=args.heads,
        hidden_dim=args.hidden,
        intermediate_dim=args.intermediate,
        dropout=common.DROPOUT,
        max_sequence_length=common.MAX_POSITIONS,
    )
    model = keras_hub.models.BertMaskedLM(backbone=backbone)
    optimizer = keras.optimizers.AdamW(
        common.LEARNING_RATE, weight_decay=common.WEIGHT_DECAY, global_clipnorm=common.CLIP_NORM
    )
    optimizer.exclude_from_weight_decay(var_names=["bias", "beta", "gamma"])
    optimizer.build(model.trainable_variables)
    cross_entropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    batch = common.make_batch(args)
    names = {
        "token_ids": "input_ids",
        "padding_mask": "input_mask",
        "segment_ids": "segment_ids",
        "mask_positions": "masked_lm_positions",
    }
    features = {name: tf.constant(batch[ours]) for name, ours in names.items()}
    labels = tf.constant(batch["masked_lm_ids"])
    weights = tf.constant(batch["masked_lm_weights"])

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
