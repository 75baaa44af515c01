"""Seconds for an epoch of fine-tuning: ours, ours padded to the full length, transformers + torch.

Each is a process of its own on the same data, one after another, in as many rounds as asked for;
what is timed is the second epoch (ours compiles in the first), without reading and tokenizing.

    python benchmarks/finetune.py --task=MRPC --data_dir=glue/MRPC --model=<Hugging Face folder> \
        --peer_python=<a python with torch, transformers, scipy and scikit-learn>

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

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)


def ours(args: argparse.Namespace, padded: bool) -> dict[str, float]:
    """Trains two epochs in this process; returns the seconds of the second."""
    sys.path.insert(0, ROOT)
    import run_classifier

    marks: list[tuple[int, float]] = []
    run_classifier.AFTER_LOOP = lambda step: marks.append((step, time.perf_counter()))
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        run_classifier.main(
            [
                "run_classifier.py",
                f"--task_name={args.task}",
                f"--data_dir={args.data_dir}",
                f"--init_checkpoint={args.model}",
                f"--output_dir={folder}/out",
                "--do_train",
                f"--train_batch_size={args.batch_size}",
                f"--learning_rate={args.learning_rate}",
                f"--max_seq_length={args.max_seq_length}",
                "--num_train_epochs=2",
                # The default, but for the steps at which the clock is read.
                "--steps_per_loop=10",
                "--save_checkpoints_steps=1000000",
                f"--num_threads={args.threads}",
                *(["--pad_to_max_length"] if padded else []),
            ]
        )
    # The last mark is taken after the final save; the one before it ends the measured steps.
    end_step, end = marks[-2]
    total = marks[-1][0]
    start_step, start = next(mark for mark in marks if mark[0] >= total // 2)
    seconds = (end - start) / (end_step - start_step) * (total / 2)
    return {"epoch": seconds, "start_and_compile": marks[0][1] - began}


def run(command: list[str]) -> dict[str, float]:
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
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--worker", choices=["grouped", "padded"], help=argparse.SUPPRESS)
    args = parser.parse_args()
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
    ]
    arms = {
        "ours": [sys.executable, os.path.abspath(__file__), *common, "--worker=grouped"],
        "ours, padded to max_seq_length": [
            sys.executable,
            os.path.abspath(__file__),
            *common,
            "--worker=padded",
        ],
    }
    if args.peer_python:
        peer = os.path.join(HERE, "peers", "finetune_torch.py")
        arms["transformers + torch, dynamic padding"] = [
            args.peer_python,
            peer,
            *common,
            "--epochs=2",
        ]
    else:
        print("transformers + torch: left out (no --peer_python)")
    seconds: dict[str, list[float]] = {name: [] for name in arms}
    for round_number in range(args.rounds):
        for name, command in arms.items():
            print(f"round {round_number + 1} of {args.rounds}: {name}", file=sys.stderr, flush=True)
            result = run(command)
            epoch = result["epoch"] if "epoch" in result else result["epoch_seconds"][-1]
            seconds[name].append(epoch)
    base = statistics.median(seconds["ours"])
    print(f"\n{args.task}, batch {args.batch_size}, {args.threads} threads, float32")
    print(f"{'':40} {'seconds/epoch':>14} {'over ours':>10}")
    for name, values in seconds.items():
        median = statistics.median(values)
        print(f"{name:40} {median:14.1f} {median / base:10.2f}")


if __name__ == "__main__":
    main()
