"""Restores and writes checkpoints with tf-models-official; the process of
test_garden_checkpoint.py.

It needs Keras 2, which is chosen when TensorFlow is imported, so it cannot share a process with
ours. Argument: a folder with inputs.npz, bert_config.json and the checkpoints that ours wrote, a
folder each (encoder, masked_lm, pretrainer). Writes outputs.npz (<checkpoint>/<output>, and
<checkpoint>_v2/... for BertEncoderV2), and checkpoints of random weights into `theirs_<kind>`.
"""

import os
import sys

os.environ["TF_USE_LEGACY_KERAS"] = "1"

import json

import numpy as np
import tensorflow as tf
import tf_keras
from official.core import config_definitions
from official.modeling import hyperparams
from official.nlp.configs import bert, encoders
from official.nlp.tasks import masked_lm


class Garden:
    def __init__(self, folder):
        self.folder = folder
        with np.load(os.path.join(folder, "inputs.npz")) as arrays:
            self.inputs = {name: tf.constant(value) for name, value in arrays.items()}
        with open(os.path.join(folder, "bert_config.json")) as handle:
            self.config = json.load(handle)
        self.outputs = {}

    def encoder_config(self, kind="bert"):
        config = self.config
        sizes = encoders.BertEncoderConfig(
            vocab_size=config["vocab_size"],
            hidden_size=config["hidden_size"],
            num_layers=config["num_hidden_layers"],
            num_attention_heads=config["num_attention_heads"],
            intermediate_size=config["intermediate_size"],
            max_position_embeddings=config["max_position_embeddings"],
            type_vocab_size=config["type_vocab_size"],
        )
        return encoders.EncoderConfig(type=kind, **{kind: sizes})

    def task(self, next_sentence, init_checkpoint=""):
        head = bert.ClsHeadConfig(
            inner_dim=self.config["hidden_size"], num_classes=2, name="next_sentence"
        )
        model = bert.PretrainerConfig(
            encoder=self.encoder_config(), cls_heads=[head] if next_sentence else []
        )
        return masked_lm.MaskedLMConfig(model=model, init_checkpoint=init_checkpoint)

    def run(self, model, name):
        """Calls a model, which also makes its variables."""
        outputs = model(self.inputs, training=False)
        for key, value in outputs.items():
            if not isinstance(value, list):
                self.outputs[f"{name}/{key}"] = value.numpy()

    def pretrainer(self, next_sentence, init_checkpoint=""):
        task = masked_lm.MaskedLMTask(self.task(next_sentence, init_checkpoint))
        model = task.build_model()
        model(self.inputs)
        return task, model

    def prefix(self, name):
        return tf.train.latest_checkpoint(os.path.join(self.folder, name))

    def read_ours(self):
        for kind, ending in (("bert", ""), ("bert_v2", "_v2")):
            encoder = encoders.build_encoder(self.encoder_config(kind))
            encoder(self.inputs)
            checkpoint = tf.train.Checkpoint(encoder=encoder)
            checkpoint.restore(self.prefix("encoder")).assert_consumed()
            self.run(encoder, f"encoder{ending}")

        _, model = self.pretrainer(next_sentence=False)
        checkpoint = tf.train.Checkpoint(**model.checkpoint_items)
        checkpoint.restore(self.prefix("masked_lm")).assert_consumed()
        self.run(model, "masked_lm")

        # As its training loop goes on with a checkpoint of its own.
        _, model = self.pretrainer(next_sentence=True)
        checkpoint = tf.train.Checkpoint(model=model, **model.checkpoint_items)
        checkpoint.restore(self.prefix("pretrainer")).assert_consumed()
        self.run(model, "pretrainer")
        # As its tasks begin with one of another run; the head's output is not taken over.
        task, model = self.pretrainer(True, os.path.join(self.folder, "pretrainer"))
        task.initialize(model)
        head = model.classification_heads[0]
        self.run(model, "initialized")
        self.outputs["initialized/head_pooler"] = head(
            model.encoder_network(self.inputs)["sequence_output"], only_project=True
        ).numpy()

    def randomise(self, model):
        rng = np.random.default_rng(1)
        for variable in model.variables:
            mean = 1.0 if "gamma" in variable.name else 0.0
            variable.assign(rng.normal(mean, 0.2, variable.shape).astype(np.float32))

    def write_theirs(self):
        for kind in ("bert", "bert_v2"):
            encoder = encoders.build_encoder(self.encoder_config(kind))
            encoder(self.inputs)
            self.randomise(encoder)
            folder = os.path.join(self.folder, f"theirs_{kind}")
            tf.train.Checkpoint(encoder=encoder).save(os.path.join(folder, "ckpt"))
            hyperparams.save_params_dict_to_yaml(
                self.encoder_config(kind), os.path.join(folder, "params.yaml")
            )
            self.run(encoder, f"theirs_{kind}")

        # As a training run of it leaves its folder.
        folder = os.path.join(self.folder, "theirs_run")
        _, model = self.pretrainer(next_sentence=True)
        self.randomise(model)
        optimizer = tf_keras.optimizers.legacy.Adam(0.0)
        optimizer.apply_gradients((tf.ones_like(v), v) for v in model.trainable_variables)
        step = tf.Variable(7, dtype=tf.int64)
        checkpoint = tf.train.Checkpoint(
            global_step=step, model=model, optimizer=optimizer, **model.checkpoint_items
        )
        checkpoint.save(os.path.join(folder, "ckpt"))
        experiment = config_definitions.ExperimentConfig(task=self.task(next_sentence=True))
        hyperparams.save_params_dict_to_yaml(experiment, os.path.join(folder, "params.yaml"))
        self.run(model, "theirs_run")


if __name__ == "__main__":
    garden = Garden(sys.argv[1])
    garden.read_ours()
    garden.write_theirs()
    np.savez(os.path.join(garden.folder, "outputs.npz"), **garden.outputs)
