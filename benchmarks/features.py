"""Extracting features: texts a second, from the lines of a file to the lines of another.

Each arm is a process of its own, one after another, round by round, so that all share the machine's
moods. Seconds leave out the imports and the reading of the model; they contain reading, tokenizing,
computing (in ours, tracing too), and writing the same JSON lines. The original's way is to pad each
text to max_seq_length, take the texts in the order of the file, and write by Python's json.

    python benchmarks/features.py --input_file=<texts, one a line> --model=<Hugging Face folder> \
        --peer_python=<a python with torch and transformers>

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


def plain_json(record: Any, names: Any) -> str:
    """Writes a record as the original does; stands in for `to_json`."""
    rows = [
        {
            "token": token,
            "layers": [
                {"index": name, "values": [round(float(x), 6) for x in row]}
                for name, row in zip(names, states, strict=True)
            ],
        }
        for token, states in zip(record.tokens, record.values, strict=True)
    ]
    return json.dumps({"linex_index": record.index, "features": rows})


def ours(args: argparse.Namespace) -> dict[str, Any]:
    """Runs extract_features.py in this process; returns seconds, texts and tokens."""
    sys.path.insert(0, ROOT)
    import extract_features
    from bert_tf import features

    flags: list[str] = []
    if args.worker in ("padded", "original"):
        flags.append("--pad_to_max_length")
    if args.worker == "original":
        features.formats.to_json = plain_json
        FileOrder.install(features)
    if args.worker == "npz":
        flags.append("--output_format=npz")
    extract, seconds = features.extract, []

    def timed(*arguments: Any) -> Any:
        start = time.perf_counter()
        done = extract(*arguments)
        seconds.append(time.perf_counter() - start)
        return done

    features.extract = timed
    with tempfile.TemporaryDirectory() as folder:
        done = extract_features.main(
            [
                "extract_features.py",
                f"--input_file={args.input_file}",
                f"--output_file={folder}/features",
                f"--init_checkpoint={args.model}",
                f"--max_seq_length={args.max_seq_length}",
                f"--batch_size={args.batch_size}",
                f"--num_threads={args.threads}",
                f"--layers={args.layers}",
                *flags,
            ]
        )
    return {"seconds": seconds[0], "texts": done.lines, "tokens": done.tokens}


class FileOrder:
    """Takes the place of sorting by length, for the original's way: batches in file order."""

    @staticmethod
    def install(features: Any) -> None:
        call = features.FeatureExtractor.__call__

        def in_order(self: Any, texts: Any) -> list[Any]:
            size = self.batch_size
            parts = [texts[at : at + size] for at in range(0, len(texts), size)]
            return [value for part in parts for value in call(self, part)]

        features.FeatureExtractor.__call__ = in_order


def run(command: list[str]) -> dict[str, Any]:
    """Runs a worker; returns the JSON object that is its last line."""
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.strip().splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--input_file", required=True)
    parser.add_argument("--model", required=True, help="Hugging Face folder of the encoder")
    parser.add_argument("--peer_python", help="interpreter with torch and transformers")
    parser.add_argument("--layers", default="-1,-2,-3,-4")
    parser.add_argument("--batch_size", type=int, default=32)
    parser.add_argument("--max_seq_length", type=int, default=128)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--worker", choices=["grouped", "npz", "padded", "original"], help=argparse.SUPPRESS
    )
    args = parser.parse_args()
    if args.worker:
        with contextlib.redirect_stdout(sys.stderr):
            result = ours(args)
        print(json.dumps(result))
        return

    common = [
        f"--input_file={args.input_file}",
        f"--model={args.model}",
        f"--layers={args.layers}",
        f"--batch_size={args.batch_size}",
        f"--max_seq_length={args.max_seq_length}",
        f"--threads={args.threads}",
    ]
    own = [sys.executable, os.path.abspath(__file__), *common]
    arms = {
        "ours": [*own, "--worker=grouped"],
        "ours, npz": [*own, "--worker=npz"],
        "ours, padded to max_seq_length": [*own, "--worker=padded"],
        "ours, in the original's way": [*own, "--worker=original"],
    }
    if args.peer_python:
        peer = [args.peer_python, os.path.join(HERE, "peers", "features_torch.py"), *common]
        arms["torch, padded to max_seq_length"] = peer
        arms["torch, sorted, padded to the batch"] = [*peer, "--dynamic"]
        arms["the same, without writing JSON"] = [*peer, "--dynamic", "--no_json"]
    else:
        print("transformers + torch: left out (no --peer_python)")
    results: dict[str, list[dict[str, Any]]] = {name: [] for name in arms}
    for number in range(args.rounds):
        for name, command in arms.items():
            results[name].append(run(command))
            print(f"round {number}, {name}: {results[name][-1]}", file=sys.stderr, flush=True)

    first = results["ours"][0]
    print(
        f"\n{first['texts']} texts, {first['tokens'] / first['texts']:.1f} tokens each on average "
        f"(max_seq_length {args.max_seq_length}), layers {args.layers}, batch {args.batch_size}, "
        f"{args.threads} threads, float32; medians of {args.rounds} rounds"
    )
    base = statistics.median(result["seconds"] for result in results["ours"])
    print(f"{'':36} {'texts/s':>9} {'tokens/s':>9} {'over ours':>10}")
    for name, found in results.items():
        seconds = statistics.median(result["seconds"] for result in found)
        texts, tokens = found[0]["texts"] / seconds, found[0]["tokens"] / seconds
        print(f"{name:36} {texts:9.1f} {tokens:9.0f} {seconds / base:10.2f}")


if __name__ == "__main__":
    main()
