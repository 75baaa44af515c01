"""Classifying texts of mixed lengths: texts a second, beside transformers + torch and ONNX Runtime.

The same weights and texts in each row, float32, the same number of threads; each row is a process
of its own, one after another, round by round. Seconds go from strings to probabilities and leave
out imports and the reading of the model. The texts are classified twice: the first time ours traces
its graph, and every runtime warms up. All logits have to agree within 1e-3.

    python benchmarks/prediction.py --model_dir=<output folder of a run_classifier.py> \
        --input_file=<texts, or pairs with a tab between them, one a line> \
        --peer_python=<a python with torch, transformers, onnx and onnxruntime>
"""

import argparse
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


def ours(args: argparse.Namespace) -> dict[str, Any]:
    """Classifies the texts in this process."""
    sys.path.insert(0, ROOT)
    import tensorflow as tf

    from bert_tf.predictor import Classifier

    tf.config.threading.set_intra_op_parallelism_threads(args.threads)
    classifier = Classifier(args.model_dir, batch_size=args.batch_size)
    with open(args.input_file, encoding="utf-8") as file:
        texts = [tuple(line.rstrip("\n").split("\t")) for line in file]
    items = [text if len(text) > 1 else text[0] for text in texts]
    seconds = []
    for _ in range(2):
        start = time.perf_counter()
        logits = classifier.logits(items)
        seconds.append(time.perf_counter() - start)
    peer = f"ours, tensorflow {tf.__version__}"
    return {"peer": peer, "seconds": seconds, "logits": logits.tolist()}


def run(command: list[str]) -> dict[str, Any]:
    """Runs a row; returns the JSON object that is its last line."""
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2"}
    done = subprocess.run(
        command, stdout=subprocess.PIPE, text=True, check=True, env=environment, cwd=ROOT
    )
    return json.loads(done.stdout.strip().splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model_dir", required=True)
    parser.add_argument("--input_file", required=True)
    parser.add_argument("--peer_python")
    parser.add_argument("--batch_size", type=int, default=32)
    parser.add_argument("--max_seq_length", type=int, default=128, help="that of the run")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--row", choices=["ours"], help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.row:
        print(json.dumps(ours(args)))
        return

    common = [
        f"--input_file={os.path.abspath(args.input_file)}",
        f"--batch_size={args.batch_size}",
        f"--threads={args.threads}",
    ]
    model_dir = os.path.abspath(args.model_dir)
    rows = {
        "ours": [
            *(sys.executable, os.path.abspath(__file__), "--row=ours"),
            *(f"--model_dir={model_dir}", *common),
        ]
    }
    with tempfile.TemporaryDirectory() as folder:
        if args.peer_python:
            subprocess.run(
                [
                    *(sys.executable, "-m", "bert_tf.cli.convert_checkpoint"),
                    *(f"--input={model_dir}", f"--output={folder}/hf", "--to=huggingface"),
                ],
                check=True,
                cwd=ROOT,
                stdout=subprocess.DEVNULL,
            )
            peer = [
                *(args.peer_python, os.path.join(HERE, "peers", "prediction_peer.py"), *common),
                *(f"--model={folder}/hf", f"--max_seq_length={args.max_seq_length}"),
            ]
            rows["transformers + torch, in order"] = [*peer, "--in_order"]
            rows["transformers + torch, sorted by length"] = peer
            rows["ONNX Runtime, sorted by length"] = [*peer, "--runtime=onnx"]
        else:
            print("peers: left out (no --peer_python)")
        results: dict[str, list[dict[str, Any]]] = {name: [] for name in rows}
        for number in range(args.rounds):
            for name, command in rows.items():
                results[name].append(run(command))
                said = ", ".join(f"{seconds:.2f}" for seconds in results[name][-1]["seconds"])
                print(f"round {number + 1}, {name}: {said} s", file=sys.stderr, flush=True)

    def seconds(name: str) -> list[float]:
        """The median of the rounds, of the first time and of the second."""
        passes = zip(*(result["seconds"] for result in results[name]), strict=True)
        return [statistics.median(values) for values in passes]

    first = results["ours"][0]["logits"]
    print(f"\n{len(first)} texts, batch {args.batch_size}, {args.threads} threads, float32; ")
    print(f"medians of {args.rounds} rounds, the first time and again")
    print(f"{'':40} {'texts/s':>9} {'again':>9} {'over ours':>10} {'again':>9}")
    for name, found in results.items():
        speeds = "".join(f" {len(first) / value:9.1f}" for value in seconds(name))
        ratios = [value / own for value, own in zip(seconds(name), seconds("ours"), strict=True)]
        print(f"{name:40}{speeds} {ratios[0]:10.2f} {ratios[1]:9.2f}")
        for result in found:
            pairs = zip(result["logits"], first, strict=True)
            worst = max(abs(a - b) for one, other in pairs for a, b in zip(one, other, strict=True))
            if not worst < 1e-3:
                sys.exit(f"{name}: logits differ from ours by up to {worst:.2g}")
    for name in dict.fromkeys(result["peer"] for found in results.values() for result in found):
        print(f"with {name}")


if __name__ == "__main__":
    main()
