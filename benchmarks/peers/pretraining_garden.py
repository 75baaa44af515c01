"""Time BertPretrainerV2 of tf-models-official, the TensorFlow Model Garden.

Needs tf-models-official. Prints one JSON line; see pretraining_step.py.
"""

import importlib.metadata

import pretraining_common as common


def main() -> None:
    args = common.peer_flags(__doc__, compile="the step through XLA")

    import tensorflow as tf
    import tf_keras
    from official.modeling.optimization.legacy_adamw import AdamWeightDecay
    from official.nlp.modeling import layers, models, networks

    if args.dtype == "bf16":
        tf_keras.mixed_precision.set_global_policy("mixed_bfloat16")
    deviation = tf_keras.initializers.TruncatedNormal(stddev=0.02)
    encoder = networks.BertEncoderV2(
        vocab_size=args.vocab,
        hidden_size=args.hidden,
        num_layers=args.layers,
        num_attention_heads=args.heads,
        max_sequence_length=common.MAX_POSITIONS,
        type_vocab_size=2,
        inner_dim=args.intermediate,
        output_dropout=common.DROPOUT,
        attention_dropout=common.DROPOUT,
        initializer=deviation,
    )
    next_sentence = layers.ClassificationHead(
        inner_dim=args.hidden, num_classes=2, initializer=deviation, name="next_sentence"
    )
    model = models.BertPretrainerV2(
        encoder,
        mlm_activation=lambda x: tf_keras.activations.gelu(x, approximate=True),
        mlm_initializer=deviation,
        classification_heads=[next_sentence],
    )
    optimizer = AdamWeightDecay(
        common.LEARNING_RATE,
        epsilon=1e-6,
        weight_decay_rate=common.WEIGHT_DECAY,
        exclude_from_weight_decay=["LayerNorm", "layer_norm", "bias"],
        gradient_clip_norm=common.CLIP_NORM,
    )
    cross_entropy = tf_keras.losses.sparse_categorical_crossentropy

    batch = common.make_batch(args)
    names = {
        "input_word_ids": "input_ids",
        "input_mask": "input_mask",
        "input_type_ids": "segment_ids",
        "masked_lm_positions": "masked_lm_positions",
    }
    features = {name: tf.constant(batch[ours]) for name, ours in names.items()}
    labels = tf.constant(batch["masked_lm_ids"])
    weights = tf.constant(batch["masked_lm_weights"])
    next_labels = tf.constant(batch["next_sentence_labels"][:, 0])

    @tf.function(jit_compile=args.compile)
    def step():
        with tf.GradientTape() as tape:
            outputs = model(features, training=True)
            logits = tf.cast(outputs["mlm_logits"], tf.float32)
            values = cross_entropy(labels, logits, from_logits=True)
            loss = tf.reduce_sum(values * weights) / tf.reduce_sum(weights)
            logits = tf.cast(outputs["next_sentence"], tf.float32)
            loss += tf.reduce_mean(cross_entropy(next_labels, logits, from_logits=True))
        # The encoder's own pooler is not on the way to the loss: the head has one.
        pairs = zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
        optimizer.apply_gradients(
            [(tf.convert_to_tensor(gradient), v) for gradient, v in pairs if gradient is not None]
        )
        return loss

    version = importlib.metadata.version("tf-models-official")
    common.time_steps(
        args,
        step,
        f"tf-models-official {version}, tf_keras {tf_keras.__version__}, "
        f"tensorflow {tf.__version__}",
    )


main()
