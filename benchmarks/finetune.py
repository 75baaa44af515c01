"""Fine-tuning beside transformers + torch: seconds for an epoch, and what comes out on dev.

Ours, ours padded to the full length, and transformers + torch with dynamic padding: each run is a
process of its own, one after another, seed by seed, so that all share the machine's moods. Seconds
leave out reading, tokenizing and the first epoch, in which ours compiles. All use Adam with bias
correction (--adam_bias_correction), as torch's.

    python benchmarks/finetune.py --task=MRPC --data_dir=glue/MRPC --model=<Hugging Face folder> \
        --seeds=1,2,3 --peer_python=<a python with torch, transformers, scipy and scikit-learn>

Without --peer_python the peer is left out, and the table says so.
"""

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)


def ours(args: argparse.Namespace, padded: bool) -> dict[str, Any]:
    """Trains and evaluates in this process; returns epoch_seconds and dev."""
    sys.path.insert(0, ROOT)
    import run_classifier

    marks: list[tuple[int, float]] = []
    run_classifier.AFTER_LOOP = lambda step: marks.append((step, time.perf_counter()))
    with tempfile.TemporaryDirectory() as folder:
        metrics = run_classifier.main(
            [
                "run_classifier.py",
                f"--task_name={args.task}",
                f"--data_dir={args.data_dir}",
                f"--init_checkpoint={args.model}",
                f"--output_dir={folder}/out",
                "--do_train",
                "--do_eval",
                "--eval_batch_size=32",
                "--adam_bias_correction",
                f"--train_batch_size={args.batch_size}",
                f"--learning_rate={args.learning_rate}",
                f"--max_seq_length={args.max_seq_length}",
                f"--num_train_epochs={args.epochs}",
                f"--seed={args.seed}",
                "--save_checkpoints_steps=1000000",
                f"--num_threads={args.threads}",
                *(["--pad_to_max_length"] if padded else []),
            ]
        )
    # The last mark is taken after the final save; the one before it ends the measured steps.
    end_step, end = marks[-2]
    epoch = marks[-1][0] / args.epochs
    start_step, start = next(mark for mark in marks if mark[0] >= epoch)
    return {"epoch_seconds": [(end - start) / (end_step - start_step) * epoch], "dev": metrics}


def run(command: list[str]) -> dict[str, Any]:
    """Runs a worker; returns the JSON object that is its last line."""
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.strip().splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--task", default="MRPC")
    parser.add_argument("--data_dir", required=True)
    parser.add_argument("--model", required=True, help="Hugging Face folder of the encoder")
    parser.add_argument("--peer_python", help="interpreter with torch and transformers")
    parser.add_argument("--batch_size", type=int, default=32)
    parser.add_argument("--learning_rate", type=float, default=1e-4)
    parser.add_argument("--max_seq_length", type=int, default=128)
    parser.add_argument("--epochs", type=int, default=3, help="2 or more: the first is not timed")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--seeds", default="1", help="comma-separated")
    parser.add_argument("--padded_seeds", type=int, default=1, help="runs of ours padded")
    parser.add_argument("--worker", choices=["grouped", "padded"], help=argparse.SUPPRESS)
    parser.add_argument("--seed", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.epochs < 2:
        parser.error("--epochs must be 2 or more: the first epoch is not timed")
    if args.worker:
        with contextlib.redirect_stdout(sys.stderr):
            result = ours(args, padded=args.worker == "padded")
        print(json.dumps(result))
        return

    common = [
        f"--task={args.task}",
        f"--data_dir={args.data_dir}",
        f"--model={args.model}",
        f"--batch_size={args.batch_size}",
        f"--learning_rate={args.learning_rate}",
        f"--max_seq_length={args.max_seq_length}",
        f"--threads={args.threads}",
        f"--epochs={args.epochs}",
    ]
    own = [sys.executable, os.path.abspath(__file__), *common]
    seeds = args.seeds.split(",")
    arms = {"ours": ([*own, "--worker=grouped"], seeds)}
    if args.padded_seeds:
        padded = [*own, "--worker=padded"]
        arms["ours, padded to max_seq_length"] = (padded, seeds[: args.padded_seeds])
    if args.peer_python:
        peer = [args.peer_python, os.path.join(HERE, "peers", "finetune_torch.py"), *common]
        arms["transformers + torch, dynamic padding"] = (peer, seeds)
    else:
        print("transformers + torch: left out (no --peer_python)")
    results: dict[str, list[dict[str, Any]]] = {name: [] for name in arms}
    for seed in seeds:
        for name, (command, its_seeds) in arms.items():
            if seed in its_seeds:
                results[name].append(run([*command, f"--seed={seed}"]))
                print(f"seed {seed}, {name}: {results[name][-1]}", file=sys.stderr, flush=True)

    def seconds(name: str) -> float:
        return statistics.median(
            value
            for result in results[name]
            for value in (result["epoch_seconds"][1:] or result["epoch_seconds"])
        )

    print(f"\n{args.task}, batch {args.batch_size}, {args.threads} threads, float32")
    names = [
        name
        for name in ("accuracy", "f1", "matthews", "pearson", "spearman")
        if all(name in result["dev"] for found in results.values() for result in found)
    ]
    print(f"{'':38} {'s/epoch':>8} {'over ours':>10} {'seeds':>6}", *(f"{n:>9}" for n in names))
    for name, found in results.items():
        means = [statistics.mean(result["dev"][metric] for result in found) for metric in names]
        print(
            f"{name:38} {seconds(name):8.1f} {seconds(name) / seconds('ours'):10.2f} "
            f"{len(found):6}",
            *(f"{100 * mean:9.1f}" for mean in means),
        )


if __name__ == "__main__":
    main()
