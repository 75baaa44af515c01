"""Runs tf-models-official's encoder; the process of test_garden_encoder.py.

It needs Keras 2, which is chosen when TensorFlow is imported, so it cannot share a process with
ours. Arguments: the checkpoint's prefix, bert_config.json, an npz file of inputs
(<case>/input_ids, ...), an npz file to write (<case>/sequence_output, ...).
"""

import os
import sys

os.environ["TF_USE_LEGACY_KERAS"] = "1"

import json

import numpy as np
import tensorflow as tf
from official.nlp.modeling import networks


def main(prefix, config_file, inputs_file, output_file):
    with open(config_file) as handle:
        config = json.load(handle)
    encoder = networks.BertEncoder(
        vocab_size=config["vocab_size"],
        hidden_size=config["hidden_size"],
        num_layers=config["num_hidden_layers"],
        num_attention_heads=config["num_attention_heads"],
        max_sequence_length=config["max_position_embeddings"],
        type_vocab_size=config["type_vocab_size"],
        inner_dim=config["intermediate_size"],
        dict_outputs=True,
    )
    status = tf.train.Checkpoint(encoder=encoder).restore(prefix)
    status.assert_existing_objects_matched().expect_partial()
    with np.load(inputs_file) as arrays:
        inputs = dict(arrays)
    results = {}
    for case in sorted({name.split("/")[0] for name in inputs}):
        outputs = encoder(
            {
                "input_word_ids": inputs[f"{case}/input_ids"],
                "input_mask": inputs[f"{case}/input_mask"],
                "input_type_ids": inputs[f"{case}/segment_ids"],
            },
            training=False,
        )
        for name in ("sequence_output", "pooled_output"):
            results[f"{case}/{name}"] = outputs[name].numpy()
        for index, value in enumerate(outputs["encoder_outputs"]):
            results[f"{case}/layer_{index}"] = value.numpy()
    np.savez(output_file, **results)


if __name__ == "__main__":
    main(*sys.argv[1:])
