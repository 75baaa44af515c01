"""Seconds for a pre-training step, beside KerasHub, the Model Garden and transformers.

Masked LM and next sentence prediction on one fixed batch, dropout 0.1, Adam with decoupled weight
decay and clipped gradients in every row. Each row is a process of its own; the rows are gone
through in rounds, every other round backwards, so that all share the machine's moods. A row's
seconds are the lowest of its rounds' medians; "best" is its fastest single step, "cpu" the lowest
of its rounds' medians of processor time, summed over the threads: steadier where others are at
work.

The share is of the machine's matmul rate in that precision, measured before and after every round
by plain TensorFlow products at the model's sizes (the highest rate found counts). Where these
measurements differ by much, or a share is above 100%, others were using the machine: the report
says so, and its ratios are then not to be relied on. The work counted is that of the matrix
products, forward and backward: B T L (24 H^2 + 12 H I + 12 T H) for the encoder and
6 B P (H V + H^2) for the masked positions, whatever a peer computes beyond it.

The peers' environments, each with the packages named:

    python -m venv kerashub && kerashub/bin/pip install tensorflow~=2.21.0 keras-hub~=0.32.0
    python -m venv garden && garden/bin/pip install tf-models-official~=2.20.0
    python -m venv hf4 && hf4/bin/pip install transformers==4.57.6 tensorflow~=2.21.0 tf-keras
    python -m venv torch && torch/bin/pip install torch transformers   # and g++, for --compile

    python benchmarks/pretraining_step.py --keras_hub_python=kerashub/bin/python \
        --garden_python=garden/bin/python --transformers_tf_python=hf4/bin/python \
        --torch_python=torch/bin/python

A peer whose python is not given is left out, and the table says so.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from typing import Any

from peers import pretraining_common as common

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)
DTYPES = {"f32": "float32", "bf16": "bfloat16"}
# The slowest measurement of the matmul over the fastest, on a machine that is left alone.
QUIET = 0.9

# By flag: the peer's script, the name of its rows, and its rows as (dtype, flags).
PEERS: dict[str, tuple[str, str, list[tuple[str, list[str]]]]] = {
    "keras_hub_python": (
        "pretraining_keras_hub.py",
        "KerasHub BertMaskedLM (a)",
        [("f32", []), ("bf16", []), ("f32", ["--compile"])],
    ),
    "garden_python": (
        "pretraining_garden.py",
        "tf-models-official BertPretrainerV2",
        [("f32", []), ("bf16", []), ("f32", ["--compile"])],
    ),
    "transformers_tf_python": (
        "pretraining_transformers_tf.py",
        "transformers TFBertForPreTraining (b)",
        [("f32", []), ("bf16", [])],
    ),
    "torch_python": (
        "pretraining_transformers_torch.py",
        "transformers + torch (b)",
        [("f32", []), ("bf16", []), ("f32", ["--compile"]), ("bf16", ["--compile"])],
    ),
}


# What each row is told.
FLAGS = (*common.SHAPE, "padding", "steps", "warmup")


def ours(args: argparse.Namespace) -> None:
    """Times our own step in this process."""
    sys.path.insert(0, ROOT)
    import keras
    import tensorflow as tf

    from bert_tf.config import BertConfig
    from bert_tf.modeling.losses import pretraining_loss
    from bert_tf.modeling.models import BertPretrainer
    from bert_tf.optimization import BertAdam, WarmupDecay
    from bert_tf.training.step import TrainStep

    config = BertConfig(
        **common.config_sizes(args),
        hidden_dropout_prob=common.DROPOUT,
        attention_probs_dropout_prob=common.DROPOUT,
    )
    # The one place that knows how our step is told its precision.
    precision = {"f32": "float32", "bf16": "mixed_bfloat16"}[args.dtype]
    model = BertPretrainer(config, dtype=precision)
    optimizer = BertAdam(
        WarmupDecay(common.LEARNING_RATE, 1_000_000),
        weight_decay=common.WEIGHT_DECAY,
        clip_norm=common.CLIP_NORM,
    )
    strategy = tf.distribute.get_strategy()
    # As run_pretraining.py does on a CPU.
    trainer = TrainStep(model, pretraining_loss(), optimizer, strategy, skip_padding=True)
    batches = iter(tf.data.Dataset.from_tensors(common.make_batch(args)).repeat())

    def step() -> float:
        values = trainer.run(batches, 1)
        return sum(values[name] for name in trainer.loss.names)

    common.time_steps(args, step, f"ours, keras {keras.__version__}, tensorflow {tf.__version__}")


def matmul(args: argparse.Namespace) -> None:
    """Prints the FLOP/s of plain products at the model's sizes, by size, as JSON."""
    import tensorflow as tf

    tokens, slots = args.batch * args.length, args.batch * args.predictions
    sizes = [
        (tokens, args.hidden, args.hidden),
        (tokens, args.hidden, args.intermediate),
        (tokens, args.intermediate, args.hidden),
        (slots, args.hidden, args.vocab),
    ]
    rates = {}
    for m, k, n in sizes:
        a = tf.cast(tf.random.normal((m, k)), DTYPES[args.dtype])
        b = tf.cast(tf.random.normal((k, n)), DTYPES[args.dtype])
        seconds = []
        for _ in range(args.warmup + 10 * args.steps):
            start = time.perf_counter()
            product = tf.matmul(a, b)
            float(product[0, 0])  # waits for the product
            seconds.append(time.perf_counter() - start)
        rates[f"[{m},{k}]x[{k},{n}]"] = 2 * m * k * n / statistics.median(seconds[args.warmup :])
    print(json.dumps({"peer": "matmul", "rates": rates}))


def work(args: argparse.Namespace) -> float:
    """Returns the FLOPs of a step's matrix products, forward and backward."""
    hidden, tokens = args.hidden, args.batch * args.length
    layer = 24 * hidden**2 + 12 * hidden * args.intermediate + 12 * args.length * hidden
    head = 6 * args.batch * args.predictions * (hidden * args.vocab + hidden**2)
    return tokens * args.layers * layer + head


def run(command: list[str]) -> dict[str, Any]:
    """Runs a row; returns the JSON object that is its last line.

    Raises:
      RuntimeError: if it fails; with the end of what it said.
    """
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    lines = done.stdout.strip().splitlines()
    if done.returncode or not lines:
        raise RuntimeError(f"exit status {done.returncode}: {done.stderr.strip()[-1000:]}")
    return json.loads(lines[-1])


def processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            names = [line.split(":")[1] for line in file if line.startswith("model name")]
        return names[0].strip()
    except (OSError, IndexError):
        return platform.processor() or platform.machine()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    common.add_flags(parser)
    parser.add_argument("--rounds", type=int, default=3, help="each row runs once in each")
    parser.add_argument("--keras_hub_python", help="interpreter with keras-hub and tensorflow")
    parser.add_argument("--garden_python", help="interpreter with tf-models-official")
    parser.add_argument(
        "--transformers_tf_python", help="interpreter with transformers 4.57, tf-keras, tensorflow"
    )
    parser.add_argument("--torch_python", help="interpreter with torch and transformers")
    parser.add_argument("--row", choices=["ours", "matmul"], help=argparse.SUPPRESS)
    parser.add_argument("--dtype", choices=list(DTYPES), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if not 0 <= args.padding <= 0.5:
        parser.error("--padding must be from 0 to 0.5")
    if args.predictions >= args.length // 2:
        parser.error("--predictions must be below half of --length")
    if args.row:
        {"ours": ours, "matmul": matmul}[args.row](args)
        return

    flags = [f"--{name}={getattr(args, name)}" for name in FLAGS]
    own = [sys.executable, os.path.abspath(__file__), *flags]
    rows: dict[tuple[str, str], list[str]] = {}
    matmuls: dict[tuple[str, str], list[str]] = {}
    for dtype in DTYPES:
        matmuls["matmul", dtype] = [*own, "--row=matmul", f"--dtype={dtype}"]
    for dtype in DTYPES:
        rows["ours", dtype] = [*own, "--row=ours", f"--dtype={dtype}"]
    left_out = []
    for flag, (script, name, its_rows) in PEERS.items():
        python = getattr(args, flag)
        if not python:
            left_out.append(f"{name}: left out (no --{flag})")
            continue
        for dtype, more in its_rows:
            label = f"{name}, compiled" if more else name
            path = os.path.join(HERE, "peers", script)
            rows[label, dtype] = [python, path, *flags, f"--dtype={dtype}", *more]

    results: dict[tuple[str, str], list[dict[str, Any]]] = {row: [] for row in [*matmuls, *rows]}
    failed: dict[tuple[str, str], str] = {}
    for number in range(args.rounds):
        order = list(rows) if number % 2 == 0 else list(reversed(rows))
        for row in [*matmuls, *order, *matmuls]:
            if row in failed:
                continue
            label = f"round {number + 1}, {row[0]}, {row[1]}"
            try:
                result = run({**matmuls, **rows}[row])
            except RuntimeError as error:
                failed[row] = str(error)
                print(f"{label}: {error}", file=sys.stderr, flush=True)
                continue
            results[row].append(result)
            if row in matmuls:
                said = ", ".join(f"{s} {r / 1e9:.0f}" for s, r in result["rates"].items())
                said += " GFLOP/s"
            else:
                said = f"{statistics.median(result['seconds']):.3f} s, loss "
                said += f"{result['losses'][0]:.3f} to {result['losses'][-1]:.3f}"
            print(f"{label}: {said}", file=sys.stderr, flush=True)

    def seconds(row: tuple[str, str]) -> float | None:
        medians = [statistics.median(result["seconds"]) for result in results[row]]
        return min(medians) if medians and row not in failed else None

    print(
        f"\n{args.layers} layers, hidden {args.hidden}, {args.heads} heads, intermediate "
        f"{args.intermediate}, vocabulary {args.vocab}, batch {args.batch}, {args.length} tokens, "
        f"{args.predictions} predictions: {work(args) / 1e9:.0f} GFLOP a step, padding and all; "
        f"{1 - common.make_batch(args)['input_mask'].mean():.1%} is padding\n"
        f"{processor()}, {len(os.sched_getaffinity(0))} cores; "
        f"{args.rounds} rounds of {args.steps} steps"
    )
    peak: dict[str, float] = {}
    noisy = False
    for dtype in DTYPES:
        rates = [max(result["rates"].values()) for result in results["matmul", dtype]]
        if rates:
            peak[dtype] = max(rates)
            noisy |= min(rates) < QUIET * max(rates)
            print(
                f"matmul, {dtype}: {max(rates) / 1e9:.0f} GFLOP/s, "
                f"at the worst of {len(rates)} times {min(rates) / 1e9:.0f}"
            )
    print(f"\n{'':51} {'median':>7} {'best':>7} {'cpu':>7} {'over ours':>10} {'of matmul':>10}")
    for dtype in DTYPES:
        reference = seconds(("ours", dtype))
        for row in rows:
            if row[1] != dtype:
                continue
            median = seconds(row)
            if median is None:
                print(f"{dtype:4} {row[0]:46}  failed")
                continue
            best = min(value for result in results[row] for value in result["seconds"])
            cpu = min(statistics.median(result["cpu"]) for result in results[row])
            ratio = f"{median / reference:10.2f}" if reference else f"{'-':>10}"
            share = f"{'-':>10}"
            if dtype in peak:
                share = f"{work(args) / median / peak[dtype]:10.0%}"
                noisy |= work(args) / median > peak[dtype]
            print(f"{dtype:4} {row[0]:46} {median:7.3f} {best:7.3f} {cpu:7.3f} {ratio} {share}")
    print("\n(a) masked LM alone, on the masked positions; it has no next sentence prediction")
    print("(b) the vocabulary matrix at all positions, as transformers does it")
    if noisy:
        print("NOT A QUIET MACHINE: the matmul's rate varied, or a row beat it; measure again")
    for line in left_out:
        print(line)
    for name in dict.fromkeys(result["peer"] for found in results.values() for result in found):
        if name != "matmul":
            print(f"with {name}")
    if failed:
        sys.exit("failed: " + ", ".join(" ".join(row) for row in failed))


if __name__ == "__main__":
    main()
