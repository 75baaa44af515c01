"""What several devices cost on one machine: seconds for a step at the same global batch.

One device, two mirrored CPUs in one process, and two workers in two processes that talk over
loopback. All train the same model on the same batches with the same number of threads in all: on
one machine nothing can get faster, so what a row takes over the first one is the overhead of its
strategy (the exchange of gradients, the second copy of the weights and their update). Each row is
a process, or two, of its own; the rows are gone through in rounds, every other round backwards, so
that all share the machine's moods. A row's seconds are the median of its rounds' medians.

    python benchmarks/scaling.py --threads=2 --hidden=256 --layers=4 --batch=32
"""

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from typing import Any

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)
ARMS = {
    "one device": ("one", 1),
    "mirrored, 2 logical CPUs": ("mirrored", 1),
    "multi_worker_mirrored, 2 processes": ("workers", 2),
}


def worker(args: argparse.Namespace) -> None:
    """Times the steps of one process; the chief prints its seconds as JSON."""
    sys.path.insert(0, ROOT)
    import numpy as np
    import tensorflow as tf

    from bert_tf.config import BertConfig
    from bert_tf.modeling.losses import pretraining_loss
    from bert_tf.modeling.models import BertPretrainer
    from bert_tf.optimization import BertAdam, WarmupDecay
    from bert_tf.training import distribution
    from bert_tf.training.step import TrainStep

    # The threads of an operation are shared by all devices of a process. An operation of each
    # device may run beside another's.
    processes = 2 if args.worker == "workers" else 1
    tf.config.threading.set_intra_op_parallelism_threads(max(1, args.threads // processes))
    tf.config.threading.set_inter_op_parallelism_threads(max(1, args.threads // processes))
    if args.worker == "mirrored":
        cpu = tf.config.list_physical_devices("CPU")[0]
        logical = [tf.config.LogicalDeviceConfiguration()] * 2
        tf.config.set_logical_device_configuration(cpu, logical)
    kind = {"one": "off", "mirrored": "mirrored", "workers": "multi_worker_mirrored"}
    strategy = distribution.make_strategy(kind[args.worker])
    expected = 1 if args.worker == "one" else 2
    assert strategy.num_replicas_in_sync == expected, strategy.num_replicas_in_sync
    config = BertConfig(
        vocab_size=args.vocab,
        hidden_size=args.hidden,
        num_hidden_layers=args.layers,
        num_attention_heads=max(1, args.hidden // 64),
        intermediate_size=4 * args.hidden,
    )
    with strategy.scope():
        model = BertPretrainer(config)
    step = TrainStep(model, pretraining_loss(), BertAdam(WarmupDecay(1e-4, 10**6)), strategy)
    rng = np.random.default_rng(1)
    slots = max(1, args.length // 7)
    batch = {
        "input_ids": rng.integers(5, args.vocab, (args.batch, args.length), np.int32),
        "input_mask": np.ones((args.batch, args.length), np.int32),
        "segment_ids": np.zeros((args.batch, args.length), np.int32),
        "masked_lm_positions": rng.integers(0, args.length, (args.batch, slots), np.int32),
        "masked_lm_ids": rng.integers(5, args.vocab, (args.batch, slots), np.int32),
        "masked_lm_weights": np.ones((args.batch, slots), np.float32),
        "next_sentence_labels": rng.integers(0, 2, (args.batch, 1), np.int32),
    }

    def of_host(shard_index: int, shard_count: int) -> Any:
        rows = args.batch // shard_count
        own = slice(shard_index * rows, (shard_index + 1) * rows)
        part = {name: each[own] for name, each in batch.items()}
        return tf.data.Dataset.from_tensors(part).repeat()

    batches = iter(distribution.distribute(strategy, of_host))
    step.run(batches, 2)  # Traced and compiled.
    seconds = []
    for _ in range(args.steps):
        start = time.perf_counter()
        step.run(batches, 1)
        seconds.append(time.perf_counter() - start)
    if distribution.is_chief(strategy):
        weights = sum(int(np.prod(each.shape)) for each in step.trained.values())
        print(json.dumps({"seconds": seconds, "weights": weights}), flush=True)


def run(arm: str, processes: int) -> dict[str, Any]:
    """Runs one row's process or processes; returns what the chief measured."""
    sockets = [socket.socket() for _ in range(processes)]
    for each in sockets:
        each.bind(("localhost", 0))
    addresses = [f"localhost:{each.getsockname()[1]}" for each in sockets]
    for each in sockets:
        each.close()
    command = [sys.executable, os.path.abspath(__file__), *sys.argv[1:], f"--worker={arm}"]
    started = []
    for index in range(processes):
        environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "2"}
        environment.pop("TF_CONFIG", None)
        if processes > 1:
            environment["TF_CONFIG"] = json.dumps(
                {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}
            )
        started.append(
            subprocess.Popen(
                command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
        )
    outputs = [each.communicate() for each in started]
    for process, (_, errors) in zip(started, outputs, strict=True):
        if process.returncode:
            raise SystemExit(f"{arm} failed:\n{errors[-3000:]}")
    return json.loads(outputs[0][0].strip().splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--batch", type=int, default=32, help="over all devices; an even number")
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--vocab", type=int, default=30522)
    parser.add_argument("--steps", type=int, default=10, help="timed steps of a round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--threads", type=int, default=os.cpu_count(), help="of all processes of a row together"
    )
    parser.add_argument("--worker", choices=[each[0] for each in ARMS.values()],
                        help=argparse.SUPPRESS)  # fmt: skip
    args = parser.parse_args()
    if args.batch % 2:
        parser.error("--batch must be even: it is divided between two devices")
    if args.worker:
        worker(args)
        return

    medians: dict[str, list[float]] = {name: [] for name in ARMS}
    weights = 0
    for number in range(args.rounds):
        order = list(ARMS.items())
        for name, (arm, processes) in order if number % 2 == 0 else reversed(order):
            result = run(arm, processes)
            medians[name].append(statistics.median(result["seconds"]))
            weights = result["weights"]
            print(f"round {number + 1}, {name}: {medians[name][-1]:.3f} s", file=sys.stderr)

    print(
        f"\nPre-training step, global batch {args.batch} x {args.length}, {args.layers} layers of "
        f"{args.hidden}, {weights / 1e6:.1f} M weights, {args.threads} threads in all, float32, "
        f"{args.rounds} rounds of {args.steps} steps"
    )
    print(f"{'':36} {'s/step':>8} {'over one device':>16} {'rounds':>18}")
    base = statistics.median(medians["one device"])
    for name, found in medians.items():
        spread = f"{min(found):.3f} to {max(found):.3f}"
        middle = statistics.median(found)
        print(f"{name:36} {middle:8.3f} {middle / base:16.2f} {spread:>18}")


if __name__ == "__main__":
    main()
