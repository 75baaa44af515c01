"""KerasHub's BertMaskedLM, its optimizer and its batch, on the Keras backend that was chosen."""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
import pretraining_common as common


def make_model(args: argparse.Namespace, dropout: float) -> tuple[Any, Any]:
    """Returns a new model and its optimizer; `dropout` is that of states and probabilities."""
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
        dropout=dropout,
        max_sequence_length=common.MAX_POSITIONS,
    )
    optimizer = keras.optimizers.AdamW(
        common.LEARNING_RATE, weight_decay=common.WEIGHT_DECAY, global_clipnorm=common.CLIP_NORM
    )
    optimizer.exclude_from_weight_decay(var_names=["bias", "beta", "gamma"])
    return keras_hub.models.BertMaskedLM(backbone=backbone), optimizer


def make_batch(args: argparse.Namespace) -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray]:
    """Returns features, labels and weights of the batch of all rows, under KerasHub's names."""
    batch = common.make_batch(args)
    features = {
        "token_ids": batch["input_ids"],
        "padding_mask": batch["input_mask"],
        "segment_ids": batch["segment_ids"],
        "mask_positions": batch["masked_lm_positions"],
    }
    return features, batch["masked_lm_ids"], batch["masked_lm_weights"]
