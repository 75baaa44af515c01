"""Time transformers' TFBertForPreTraining; transformers 5 has none, 4.57 is the last.

Needs transformers 4.57, tensorflow and tf-keras. Prints one JSON line; see pretraining_step.py.
"""

import os

os.environ["TF_USE_LEGACY_KERAS"] = "1"
os.environ["USE_TORCH"] = "0"

import pretraining_common as common


def main() -> None:
    args = common.peer_flags(__doc__)

    import tensorflow as tf
    import tf_keras
    import transformers

    if args.dtype == "bf16":
        tf_keras.mixed_precision.set_global_policy("mixed_bfloat16")
    config = transformers.BertConfig(
        **common.config_sizes(args),
        hidden_act="gelu_new",  # the tanh form, as the original and the other rows
        hidden_dropout_prob=common.DROPOUT,
        attention_probs_dropout_prob=common.DROPOUT,
    )
    model = transformers.TFBertForPreTraining(config)
    optimizer = transformers.AdamWeightDecay(
        common.LEARNING_RATE,
        epsilon=1e-6,
        weight_decay_rate=common.WEIGHT_DECAY,
        exclude_from_weight_decay=["LayerNorm", "layer_norm", "bias"],
    )

    batch = common.make_batch(args)
    features = {
        "input_ids": tf.constant(batch["input_ids"]),
        "attention_mask": tf.constant(batch["input_mask"]),
        "token_type_ids": tf.constant(batch["segment_ids"]),
        "labels": tf.constant(common.labels_everywhere(batch).astype("int32")),
        "next_sentence_label": tf.constant(batch["next_sentence_labels"][:, 0]),
    }

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model(features, training=True).loss)
        gradients = [tf.convert_to_tensor(g) for g in tape.gradient(loss, model.trainable_weights)]
        gradients, _ = tf.clip_by_global_norm(gradients, common.CLIP_NORM)
        optimizer.apply_gradients(zip(gradients, model.trainable_weights))
        return loss

    common.time_steps(
        args,
        step,
        f"transformers {transformers.__version__}, tf_keras {tf_keras.__version__}, "
        f"tensorflow {tf.__version__}",
    )


main()
