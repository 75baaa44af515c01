"""Does run_squad.py learn as well as transformers + torch, and how long do both take?

    python benchmarks/squad_training.py --train=train.json --data=dev.json \
        --model=<encoder folder> --peer_python=<a python with torch and transformers>

Both train on the same questions from the same weights, with the same lengths, batch, rate and
number of epochs; both predictions are scored by data_prep.squad.evaluation. Prints a table.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def run(command: list[str]) -> str:
    """Runs a command; returns its standard output, or ends with its errors."""
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr[-3000:]}")
    return done.stdout + done.stderr


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--train", required=True, help="SQuAD 1.1 file to train on")
    parser.add_argument("--data", required=True, help="SQuAD 1.1 file to answer")
    parser.add_argument("--model", required=True, help="Hugging Face folder of the encoder")
    parser.add_argument("--peer_python", help="interpreter with torch and transformers")
    parser.add_argument("--max_seq_length", type=int, default=256)
    parser.add_argument("--doc_stride", type=int, default=128)
    parser.add_argument("--batch_size", type=int, default=16)
    parser.add_argument("--learning_rate", type=float, default=2e-4)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--seeds", default="1", help="comma-separated")
    args = parser.parse_args()
    sys.path.insert(0, ROOT)

    from data_prep.squad import evaluation

    gold = evaluation.read_gold(args.data)
    print("who, seed: exact match, F1; training and prediction in seconds")
    for seed in args.seeds.split(","):
        with tempfile.TemporaryDirectory() as folder:
            flags = [f"--train_file={args.train}", f"--predict_file={args.data}", "--do_train"]
            flags += [f"--init_checkpoint={args.model}", f"--output_dir={folder}/ours"]
            flags += [f"--max_seq_length={args.max_seq_length}", f"--doc_stride={args.doc_stride}"]
            flags += [f"--train_batch_size={args.batch_size}", f"--seed={seed}", "--do_predict"]
            flags += [f"--learning_rate={args.learning_rate}", "--predict_batch_size=32"]
            flags += [f"--num_train_epochs={args.epochs}", "--adam_bias_correction"]
            flags += ["--several_answers=first"]
            start = time.perf_counter()
            output = run([sys.executable, "run_squad.py", *flags])
            seconds = time.perf_counter() - start
            scores = dict(re.findall(r"  (exact_match|f1) = ([\d.]+)", output))
            print(
                f"ours, {seed}: {float(scores['exact_match']):.1f}, {float(scores['f1']):.1f}; "
                f"{seconds:.0f} s, start included",
                flush=True,
            )
            if not args.peer_python:
                continue
            predictions = f"{folder}/torch.json"
            peer = [args.peer_python, f"{ROOT}/benchmarks/peers/squad_train_torch.py"]
            peer += [f"--train={args.train}", f"--data={args.data}", f"--model={args.model}"]
            peer += [f"--predictions={predictions}", f"--max_seq_length={args.max_seq_length}"]
            peer += [f"--doc_stride={args.doc_stride}", f"--batch_size={args.batch_size}"]
            peer += [f"--learning_rate={args.learning_rate}", f"--epochs={args.epochs}"]
            peer += [f"--seed={seed}"]
            start = time.perf_counter()
            output = run(peer)
            seconds = time.perf_counter() - start
            facts = json.loads(next(x for x in output.splitlines() if x.startswith("{")))
            with open(predictions, encoding="utf-8") as handle:
                scores = evaluation.evaluate(gold, json.load(handle), version="1.1")
            print(
                f"{facts['peer']}, {seed}: {scores['exact_match']:.1f}, {scores['f1']:.1f}; "
                f"{seconds:.0f} s, of which training {facts['seconds']:.0f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
