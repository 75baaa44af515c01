"""What all rows of pretraining_step.py share: the flags, the batch and the clock. Needs numpy only.

One batch is trained on again and again, so that its loss has to fall: a row that times something
else than training shows.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

LEARNING_RATE = 1e-4
WEIGHT_DECAY = 0.01
CLIP_NORM = 1.0
DROPOUT = 0.1
# Positions that a model has embeddings for; the batch may be shorter.
MAX_POSITIONS = 512

SHAPE = {
    "layers": 4,
    "hidden": 512,
    "heads": 8,
    "intermediate": 2048,
    "vocab": 30522,
    "batch": 16,
    "length": 128,
    "predictions": 20,
}


def add_flags(parser: argparse.ArgumentParser) -> None:
    for name, default in SHAPE.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument(
        "--padding",
        type=float,
        default=0.0,
        help="share of positions that are padding, 0 to 0.5; 0.1 in records of "
        "create_pretraining_data.py. By default a quarter of the last example is",
    )
    parser.add_argument("--steps", type=int, default=8, help="timed steps of a run")
    parser.add_argument("--warmup", type=int, default=3, help="steps before them, the trace in it")


def peer_flags(description: str | None, dtypes: tuple[str, ...] = ("f32", "bf16"), **more: Any):
    """Returns the parsed flags of a peer; `more` are flags that are set or not, with their help."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_flags(parser)
    parser.add_argument("--dtype", choices=dtypes, default="f32")
    for name, help_text in more.items():
        parser.add_argument(f"--{name}", action="store_true", help=help_text)
    return parser.parse_args()


def config_sizes(args: argparse.Namespace) -> dict[str, int]:
    """Returns the sizes of a model under the names of the original's and transformers' config."""
    return {
        "vocab_size": args.vocab,
        "hidden_size": args.hidden,
        "num_hidden_layers": args.layers,
        "num_attention_heads": args.heads,
        "intermediate_size": args.intermediate,
        "max_position_embeddings": MAX_POSITIONS,
    }


def make_batch(args: argparse.Namespace) -> dict[str, np.ndarray]:
    """Returns a batch under the original's names, the same for all rows.

    input_ids, input_mask, segment_ids int32 [B, T]; masked_lm_positions, masked_lm_ids int32 and
    masked_lm_weights float32 [B, P]; next_sentence_labels int32 [B, 1]. The last example is
    padded in its last quarter, so that no model can leave the mask out; with `--padding` as many
    of the last are padded in their last half as make up that share.
    """
    rng = np.random.default_rng(1)
    rows, length, slots = args.batch, args.length, args.predictions
    mask = np.ones((rows, length), np.int32)
    padding = getattr(args, "padding", 0.0)
    padded, cut = (round(2 * padding * rows), length // 2) if padding else (1, length // 4)
    shortest = length - cut
    mask[rows - padded :, shortest:] = 0
    positions = [1 + rng.permutation(shortest - 1)[:slots] for _ in range(rows)]
    return {
        "input_ids": rng.integers(1, args.vocab, (rows, length), np.int32) * mask,
        "input_mask": mask,
        "segment_ids": np.tile((np.arange(length) >= length // 2).astype(np.int32), (rows, 1)),
        "masked_lm_positions": np.sort(np.stack(positions)).astype(np.int32),
        "masked_lm_ids": rng.integers(1, args.vocab, (rows, slots), np.int32),
        "masked_lm_weights": np.ones((rows, slots), np.float32),
        "next_sentence_labels": rng.integers(0, 2, (rows, 1), np.int32),
    }


def labels_everywhere(batch: dict[str, np.ndarray]) -> np.ndarray:
    """Returns the masked LM labels as int64 [B, T], -100 where nothing is predicted."""
    labels = np.full(batch["input_ids"].shape, -100, np.int64)
    np.put_along_axis(labels, batch["masked_lm_positions"], batch["masked_lm_ids"], axis=1)
    return labels


def time_steps(args: argparse.Namespace, step: Callable[[], Any], peer: str) -> None:
    """Takes the steps and prints one JSON line: peer, losses, and the timed steps' seconds and cpu.

    cpu is the processor time of all threads: other programs on the machine disturb it far less.

    Args:
      step: takes one training step on the batch and returns its loss, anything that float() takes.
        Asking for the number waits for the step; nothing else is copied to the host.
      peer: names and versions.

    Exits with an error if a loss is not finite or the last is not below the first.
    """
    seconds, cpu, losses = [], [], []
    for _ in range(args.warmup + args.steps):
        start, start_cpu = time.perf_counter(), time.process_time()
        losses.append(float(step()))
        seconds.append(time.perf_counter() - start)
        cpu.append(time.process_time() - start_cpu)
    if not all(map(math.isfinite, losses)) or not losses[-1] < losses[0]:
        sys.exit(f"{peer}: the loss does not fall: {losses}")
    timed = {"seconds": seconds[args.warmup :], "cpu": cpu[args.warmup :]}
    print(json.dumps({"peer": peer, **timed, "losses": losses}))
