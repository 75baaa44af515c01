"""A training step of transformers' BertForPreTraining on torch."""

from __future__ import annotations

import argparse
from typing import Any

import pretraining_common as common


def time_model(
    args: argparse.Namespace,
    compiled: bool,
    dropout: float = common.DROPOUT,
    attention_dropout: float = common.DROPOUT,
    **config: Any,
) -> None:
    """Times the steps of a new model and prints one JSON line; `config` has more of its settings.

    The model is on the GPU, if there is one.
    """
    import torch
    import transformers

    torch.manual_seed(1)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    settings = transformers.BertConfig(
        **common.config_sizes(args),
        hidden_act="gelu_pytorch_tanh",  # the tanh form, as the original and the other rows
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=attention_dropout,
        **config,
    )
    model = transformers.BertForPreTraining(settings).to(device).train()
    decayed, spared = [], []
    for name, parameter in model.named_parameters():
        (spared if "LayerNorm" in name or "bias" in name else decayed).append(parameter)
    optimizer = torch.optim.AdamW(
        [
            {"params": decayed, "weight_decay": common.WEIGHT_DECAY},
            {"params": spared, "weight_decay": 0.0},
        ],
        lr=common.LEARNING_RATE,
        eps=1e-6,
        fused=True,
    )
    forward = torch.compile(model) if compiled else model

    batch = common.make_batch(args)
    arrays = {
        "input_ids": batch["input_ids"].astype("int64"),
        "attention_mask": batch["input_mask"].astype("int64"),
        "token_type_ids": batch["segment_ids"].astype("int64"),
        "labels": common.labels_everywhere(batch),
        "next_sentence_label": batch["next_sentence_labels"][:, 0].astype("int64"),
    }
    features = {name: torch.from_numpy(value).to(device) for name, value in arrays.items()}

    def step() -> float:
        with torch.autocast(device, torch.bfloat16, enabled=args.dtype == "bf16"):
            loss = forward(**features).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), common.CLIP_NORM)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.item()

    common.time_steps(
        args, step, f"transformers {transformers.__version__}, torch {torch.__version__}"
    )
