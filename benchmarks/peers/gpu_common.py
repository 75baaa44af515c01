"""What all rows of gpu_step.py share: the shapes and the flags."""

from __future__ import annotations

import argparse

_BASE = {"layers": 12, "hidden": 768, "heads": 12, "intermediate": 3072, "vocab": 30522}
_LARGE = {**_BASE, "layers": 24, "hidden": 1024, "heads": 16, "intermediate": 4096}
_TINY = {"layers": 2, "hidden": 32, "heads": 2, "intermediate": 64, "vocab": 100}
SHAPES: dict[str, dict[str, int]] = {
    "base128": {**_BASE, "batch": 256, "length": 128, "predictions": 20},
    "base512": {**_BASE, "batch": 64, "length": 512, "predictions": 80},
    "large128": {**_LARGE, "batch": 128, "length": 128, "predictions": 20},
    "tiny": {**_TINY, "batch": 4, "length": 16, "predictions": 3},
}


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--dtype", choices=["bf16", "f32"], default="bf16")
    parser.add_argument("--dropout", type=float, default=0.1, help="of hidden states")
    parser.add_argument("--attention_dropout", type=float, default=0.1, help="of probabilities")
    parser.add_argument("--steps", type=int, default=20, help="timed steps of a run")
    parser.add_argument("--warmup", type=int, default=5, help="steps before them, compiling too")


def take_shape(args: argparse.Namespace, shape: str) -> argparse.Namespace:
    """Returns the flags with the sizes of a shape by name: layers, hidden, batch, ..."""
    return argparse.Namespace(**{**vars(args), **SHAPES[shape], "shape": shape})


def peer_flags(description: str | None) -> argparse.Namespace:
    """Returns the parsed flags of a peer, with the sizes of its shape."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shape", choices=list(SHAPES), required=True)
    add_flags(parser)
    args = parser.parse_args()
    return take_shape(args, args.shape)
