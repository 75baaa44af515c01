"""How cost grows: seconds and memory of a training step against batch, length and layers.

    python benchmarks/cost.py time     # one size after another is changed, the others stay
    python benchmarks/cost.py memory   # peak memory, with and without --recompute
    python benchmarks/cost.py table    # the largest batches for cards of 12 and 16 GB

`time` and `memory` run the classifier's training step of the scripts (dropout 0.1, no padding),
each row in a process of its own. Seconds are the median of the steps. Memory is by how much the
peak of a process's resident memory grows from a batch to one twice as large, by example: weights,
programs and libraries fall out. It stands beside the count that `table` rests on, which
docs/memory.md explains. Needs Linux. `table` counts and measures nothing.
"""

import argparse
import dataclasses
import json
import os
import statistics
import subprocess
import sys
import time
from typing import Any

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
POLICIES = {"f32": "float32", "bf16": "mixed_bfloat16"}
WIDTHS = {"f32": 4, "bf16": 2}  # bytes of an activation
GIB = 2**30
# Of a card's memory: what is left to the driver and the libraries, and the share of the rest that
# is planned with: the count is no better than that (docs/memory.md).
RESERVED, USABLE = 1 * GIB, 0.9


@dataclasses.dataclass(frozen=True)
class Sizes:
    layers: int
    hidden: int
    heads: int
    intermediate: int
    vocab: int = 30522
    positions: int = 512

    def layer_parameters(self) -> int:
        hidden, wide = self.hidden, self.intermediate
        return 4 * (hidden * hidden + hidden) + 2 * hidden * wide + wide + hidden + 4 * hidden

    def parameters(self) -> int:
        """Returns the number of the encoder's weights, the pooler's included."""
        hidden = self.hidden
        embeddings = (self.vocab + self.positions + 2 + 2) * hidden
        return embeddings + self.layers * self.layer_parameters() + hidden * hidden + hidden


BASE = Sizes(12, 768, 12, 3072)
LARGE = Sizes(24, 1024, 16, 4096)


def fixed_bytes(sizes: Sizes, width: int) -> int:
    """Returns the bytes of a training that do not grow with the batch.

    Weights, Adam's two means and gradients in float32; the word embeddings' gradient once more, as
    it comes from two places; and the layers' weights in the width of the arithmetic.
    """
    total = 16 * sizes.parameters() + 4 * sizes.vocab * sizes.hidden
    return total if width == 4 else total + width * sizes.layers * sizes.layer_parameters()


def example_bytes(sizes: Sizes, length: int, width: int, recompute: bool) -> int:
    """Returns the bytes of activations that one example of `length` tokens adds to the peak."""
    rows = length * sizes.hidden
    wide = length * sizes.intermediate
    scores = sizes.heads * length * length
    # A layer keeps eight of [T, H]: its input, query, key, value, the context and, around each
    # of the two normalisations, sum and output (the last output is the next layer's input); both
    # sides of GELU, [T, I]; the probabilities before and after dropout, [N, T, T].
    kept = 8 * rows + 2 * wide + 2 * scores
    # What is on its way through one layer's backward pass.
    moving = 4 * rows + 2 * wide + 2 * scores
    if recompute:
        return width * (sizes.layers * rows + kept + moving)
    return width * (sizes.layers * kept + moving)


def largest_batch(sizes: Sizes, length: int, width: int, recompute: bool, memory: float) -> int:
    """Returns the largest batch for a card with so many bytes; 0 where not one example fits."""
    free = USABLE * (memory - RESERVED) - fixed_bytes(sizes, width)
    return max(0, int(free / example_bytes(sizes, length, width, recompute)))


def table() -> str:
    """Returns the largest batches by length as Markdown."""
    lines = []
    for name, sizes in (("Base", BASE), ("Large", LARGE)):
        cases = [
            (memory, dtype, recompute)
            for memory in (12, 16)
            for dtype in WIDTHS
            for recompute in (False, True)
        ]
        titles = [
            f"{memory} GB, {dtype}" + (", recompute" if recompute else "")
            for memory, dtype, recompute in cases
        ]
        lines += ["", f"BERT-{name}", "", f"| tokens | {' | '.join(titles)} |"]
        lines.append("|---:" * (len(cases) + 1) + "|")
        for length in (64, 128, 256, 320, 384, 512):
            batches = [
                largest_batch(sizes, length, WIDTHS[dtype], recompute, memory * GIB)
                for memory, dtype, recompute in cases
            ]
            lines.append(f"| {length} | {' | '.join(map(str, batches))} |")
    return "\n".join(lines[1:])


def row(setting: dict[str, Any]) -> None:
    """Takes training steps; prints their seconds and the peak of resident bytes, as JSON."""
    sys.path.insert(0, ROOT)
    import numpy as np
    import tensorflow as tf

    from bert_tf.config import BertConfig
    from bert_tf.modeling.losses import classifier_loss
    from bert_tf.modeling.models import BertClassifier
    from bert_tf.optimization import BertAdam, WarmupDecay
    from bert_tf.training.step import TrainStep

    config = BertConfig(
        vocab_size=1000,
        hidden_size=setting["hidden"],
        num_hidden_layers=setting["layers"],
        num_attention_heads=setting["heads"],
        intermediate_size=setting["intermediate"],
    )
    model = BertClassifier(config, 2, dtype=POLICIES[setting["dtype"]])
    model.bert.recompute = setting["recompute"]
    adam = BertAdam(WarmupDecay(1e-4, 1000))
    loss = classifier_loss("classification")
    step = TrainStep(model, loss, adam, tf.distribute.get_strategy())
    rng = np.random.default_rng(1)

    def batch(rows: int) -> dict[str, Any]:
        shape = (rows, setting["length"])
        return {
            "input_ids": rng.integers(1, 1000, shape, np.int32),
            "input_mask": np.ones(shape, np.int32),
            "segment_ids": np.zeros(shape, np.int32),
            "label_ids": rng.integers(0, 2, (rows,), np.int32),
            "is_real_example": np.ones(rows, np.float32),
        }

    # The first batch has one example: what compiling takes is no part of what is measured.
    sizes = [1, *[setting["batch"]] * (setting["steps"] + 1)]
    signature = {
        name: tf.TensorSpec([None, *value.shape[1:]], value.dtype)
        for name, value in batch(1).items()
    }
    dataset = tf.data.Dataset.from_generator(lambda: map(batch, sizes), output_signature=signature)
    batches = iter(dataset)
    step.run(batches, 1)
    with open("/proc/self/clear_refs", "w", encoding="ascii") as file:
        file.write("5")  # The peak begins anew.
    seconds = []
    for _ in range(setting["steps"] + 1):
        start = time.perf_counter()
        step.run(batches, 1)
        seconds.append(time.perf_counter() - start)
    with open("/proc/self/status", encoding="ascii") as file:
        (peak,) = (int(line.split()[1]) * 1024 for line in file if line.startswith("VmHWM"))
    print(json.dumps({"seconds": seconds[1:], "peak": peak}))


def measure(setting: dict[str, Any], memory: bool) -> dict[str, Any]:
    """Runs a row in a process of its own."""
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2"}
    if memory:
        # What is freed goes back at once, and is not counted twice.
        environment.update(MALLOC_MMAP_THRESHOLD_="65536", MALLOC_ARENA_MAX="2")
    command = [sys.executable, os.path.abspath(__file__), "row", "--setting", json.dumps(setting)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode:
        sys.exit(f"a row failed: {setting}\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def show_time(base: dict[str, Any]) -> None:
    """Prints seconds and, for the products' work, GFLOP/s, for each size that is changed."""
    changes = {
        "batch": (4, 8, 16, 32, 64),
        "length": (32, 64, 128, 256, 512),
        "layers": (1, 2, 4, 8),
    }
    print(f"{'':18} {'s/step':>8} {'GFLOP/s':>8} {'recompute':>10} {'ratio':>6}")
    for name, values in changes.items():
        for value in values:
            setting = {**base, name: value}
            plain, again = (
                statistics.median(measure({**setting, "recompute": r}, False)["seconds"])
                for r in (False, True)
            )
            hidden, length = setting["hidden"], setting["length"]
            layer = 24 * hidden**2 + 12 * hidden * setting["intermediate"] + 12 * length * hidden
            flops = setting["batch"] * length * setting["layers"] * layer
            print(
                f"{name:8} {value:9} {plain:8.4f} {flops / plain / 1e9:8.0f} {again:10.4f} "
                f"{again / plain:6.2f}",
                flush=True,
            )


def show_memory(base: dict[str, Any]) -> None:
    """Prints megabytes by example, measured and counted."""
    print(f"{'':44} {'measured':>9} {'counted':>9} {'ratio':>6}   MB by example")
    for dtype in WIDTHS:
        for layers, length, batch in ((4, 128, 16), (8, 128, 16), (4, 512, 4)):
            for recompute in (False, True):
                setting = {
                    **base, "dtype": dtype, "layers": layers, "length": length,
                    "recompute": recompute, "steps": 1,
                }  # fmt: skip
                # Enough to stand out from what the peak varies by from run to run, some 20 MB.
                small = batch * (4 if recompute else 1) * (2 if dtype == "bf16" else 1)
                one, two = (
                    measure({**setting, "batch": size}, True)["peak"] for size in (small, 2 * small)
                )
                found = (two - one) / small
                sizes = Sizes(layers, base["hidden"], base["heads"], base["intermediate"])
                count = example_bytes(sizes, length, WIDTHS[dtype], recompute)
                label = f"{dtype:5}{layers} layers, {length} tokens"
                label += ", recompute" if recompute else ""
                print(
                    f"{label:44} {found / 1e6:9.2f} {count / 1e6:9.2f} {found / count:6.2f}",
                    flush=True,
                )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["time", "memory", "table", "row"])
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--dtype", choices=list(WIDTHS), default="f32", help="of time")
    parser.add_argument("--steps", type=int, default=5, help="timed steps of a row")
    parser.add_argument("--setting", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.hidden < 64 or args.hidden % 64:
        parser.error("--hidden has to be a multiple of 64, the size of a head")
    base = {
        "batch": 16, "length": 128, "layers": 4, "hidden": args.hidden,
        "heads": args.hidden // 64, "intermediate": 4 * args.hidden, "dtype": args.dtype,
        "recompute": False, "steps": args.steps,
    }  # fmt: skip
    if args.what == "row":
        row(json.loads(args.setting))
    elif args.what == "table":
        print(table())
    elif args.what == "time":
        show_time(base)
    else:
        show_memory(base)


if __name__ == "__main__":
    main()
