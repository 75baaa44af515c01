"""SQuAD beside transformers + torch: windows, decoding, and a whole prediction, in one run.

- windows: questions and contexts, already read, to token ids of windows;
- decoding: start and end logits (random, the same kind for all) to n-best lists; also the plain
  loops of tests/squad_plain.py, which do what the original does, character by character too;
- prediction: `run_squad.py --do_predict` and the peer's script, whole processes from the files to
  the n-best file, start and imports included.

Windows and decoding run in one thread and are measured in CPU seconds, which other processes on
the machine hardly change; only the peer's tokenizer on all cores and the prediction are measured
by the clock. Each measurement is a process of its own, one after another and in turn; the table
has medians.

    python benchmarks/squad.py --data=dev-v1.1.json --model=<Hugging Face folder with vocab.txt> \
        --peer_python=<a python with torch and transformers> --repeats=3

Without --peer_python the peer is left out, without --prediction_questions the prediction.
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
# Plain loops take milliseconds a question: these many are enough.
PLAIN_QUESTIONS = 200


def cut(data: str, questions: int, folder: str) -> tuple[str, int]:
    """Writes a file with the first questions of `data`; returns its path and their number."""
    with open(data, encoding="utf-8-sig") as handle:
        content = json.load(handle)
    left = questions or sys.maxsize
    kept = 0
    for article in content["data"]:
        for paragraph in article["paragraphs"]:
            paragraph["qas"] = paragraph["qas"][: left - kept]
            kept += len(paragraph["qas"])
        article["paragraphs"] = [p for p in article["paragraphs"] if p["qas"]]
    path = os.path.join(folder, f"first-{questions}.json")
    with open(path, "w", encoding="utf-8") as handle:
        json.dump(content, handle)
    return path, kept


def scored(examples: list[Any], maker: Any, length: int) -> list[tuple[Any, ...]]:
    """Returns examples, windows and random logits as a trained model's may look: with a peak."""
    import numpy as np

    rng = np.random.RandomState(0)
    result = []
    for example in examples:
        windows = maker(example)
        logits = rng.randn(2, len(windows), length).astype(np.float32)
        for number, window in enumerate(windows):
            logits[:, number, window.length :] -= 8
            at = window.doc_offset + rng.randint(window.doc_length)
            logits[0, number, max(0, at - 5) : at + 5] += 3
            logits[1, number, at : at + 10] += 3
        result.append((example, windows, *logits))
    return result


def ours(args: argparse.Namespace) -> dict[str, Any]:
    """Measures in this process."""
    sys.path.insert(0, ROOT)
    from bert_tf.tokenization import BertTokenizer
    from data_prep.squad import answers, reading, windows

    tokenizer = BertTokenizer(args.vocab_file)
    start = time.process_time()
    examples = list(reading.read_examples(args.data, False))
    result: dict[str, Any] = {"reading_seconds": time.process_time() - start}
    maker = windows.WindowMaker(tokenizer, args.max_seq_length, args.doc_stride)
    start = time.process_time()
    ids = [window.input_ids for example in examples for window in maker(example)]
    result |= {"windows": len(ids), "windows_seconds": time.process_time() - start}

    items = scored(examples, maker, args.max_seq_length)
    for _ in range(2):  # The first pass warms up.
        decoder = answers.Decoder(tokenizer, args.n_best_size, args.max_answer_length)
        start = time.process_time()
        predictions = []
        for number, (_, prediction) in enumerate(decoder(items)):
            if number < PLAIN_QUESTIONS:  # the others would be written and forgotten
                predictions.append(prediction)
        result["decoding_seconds"] = time.process_time() - start

    sys.path.insert(0, os.path.join(ROOT, "tests"))
    import squad_plain

    from bert_tf.tokenization.wordpiece import BasicTokenizer

    basic = BasicTokenizer(tokenizer.do_lower_case)
    some = items[:PLAIN_QUESTIONS]
    inputs = [
        (
            example,
            [windows.original_fields(window, tokenizer, args.max_seq_length) for window in its],
            [row.tolist() for row in starts],
            [row.tolist() for row in ends],
        )
        for example, its, starts, ends in some
    ]
    for _ in range(2):
        start = time.process_time()
        plain = [
            squad_plain.decode(*each, basic, args.n_best_size, args.max_answer_length)
            for each in inputs
        ]
    result["plain_decoding_seconds"] = (time.process_time() - start) / len(some) * len(items)
    for (text, nbest, _), prediction in zip(plain, predictions):
        if prediction.text != text or [tuple(entry) for entry in prediction.nbest] != nbest:
            raise SystemExit("the plain decoder says something else")
    return result


def run(command: list[str], **environment: str) -> dict[str, Any]:
    """Runs a worker; returns the JSON object that is its last line."""
    done = subprocess.run(
        command, stdout=subprocess.PIPE, text=True, check=True, env={**os.environ, **environment}
    )
    return json.loads(done.stdout.strip().splitlines()[-1])


def whole_prediction(args: argparse.Namespace, data: str) -> dict[str, Any]:
    """Runs run_squad.py from its start to its end."""
    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable,
            os.path.join(ROOT, "run_squad.py"),
            f"--vocab_file={args.vocab_file}",
            f"--bert_config_file={args.bert_config_file}",
            f"--init_checkpoint={args.model}",
            "--do_predict",
            f"--predict_file={data}",
            f"--output_dir={folder}",
            f"--max_seq_length={args.max_seq_length}",
            f"--doc_stride={args.doc_stride}",
            f"--predict_batch_size={args.batch_size}",
            *args.run_squad_flag,
        ]
        start = time.perf_counter()
        subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
        seconds = time.perf_counter() - start
        if not os.path.exists(os.path.join(folder, "nbest_predictions.json")):
            raise SystemExit("run_squad.py wrote no nbest_predictions.json")
    return {"prediction_seconds": seconds}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", required=True, help="a SQuAD file")
    parser.add_argument("--model", required=True, help="Hugging Face folder of the encoder")
    parser.add_argument("--vocab_file", help="by default the model's vocab.txt")
    parser.add_argument("--bert_config_file", help="by default the model's config.json")
    parser.add_argument("--peer_python", help="interpreter with torch and transformers")
    parser.add_argument("--questions", type=int, default=0, help="the first so many; 0: all")
    parser.add_argument(
        "--prediction_questions", type=int, default=0, help="for the prediction; 0: leave it out"
    )
    parser.add_argument("--max_seq_length", type=int, default=384)
    parser.add_argument("--doc_stride", type=int, default=128)
    parser.add_argument("--n_best_size", type=int, default=20)
    parser.add_argument("--max_answer_length", type=int, default=30)
    parser.add_argument("--batch_size", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument(
        "--run_squad_flag", action="append", default=[], help="a flag more for run_squad.py"
    )
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    args.vocab_file = args.vocab_file or os.path.join(args.model, "vocab.txt")
    args.bert_config_file = args.bert_config_file or os.path.join(args.model, "config.json")
    if args.worker:
        print(json.dumps(ours(args)))
        return

    def peer(data: str, what: str, **environment: str) -> dict[str, Any]:
        script = os.path.join(HERE, "peers", "squad_torch.py")
        flags = [f"--data={data}", f"--model={args.model}", f"--what={what}"]
        flags += [
            f"--{name}={getattr(args, name)}"
            for name in (
                "max_seq_length",
                "doc_stride",
                "n_best_size",
                "max_answer_length",
                "batch_size",
            )
        ]
        return run([args.peer_python, script, *flags], **environment)

    found: dict[tuple[str, str], list[dict[str, Any]]] = {}

    def note(what: str, who: str, questions: int, windows: int, seconds: float) -> None:
        row = {"questions": questions, "windows": windows, "seconds": seconds}
        found.setdefault((what, who), []).append(row)
        print(f"{what}, {who}: {seconds:.3f} s", file=sys.stderr, flush=True)

    with tempfile.TemporaryDirectory() as folder:
        data, total = cut(args.data, args.questions, folder)
        short, few = cut(args.data, args.prediction_questions, folder)
        worker = [sys.executable, os.path.abspath(__file__), "--worker", f"--data={data}"]
        worker += [
            f"--{name}={getattr(args, name)}"
            for name in (
                "model",
                "vocab_file",
                "max_seq_length",
                "doc_stride",
                "n_best_size",
                "max_answer_length",
            )
        ]
        for _ in range(args.repeats):
            own = run(worker)
            windows = own["windows"]
            note("windows", "ours", total, windows, own["windows_seconds"])
            note("decoding", "ours", total, windows, own["decoding_seconds"])
            note("decoding", "plain loops", total, windows, own["plain_decoding_seconds"])
            if args.peer_python:
                theirs = peer(data, "data", RAYON_NUM_THREADS="1")
                windows = theirs["windows"]
                note("windows", theirs["peer"], total, windows, theirs["windows_seconds"])
                note("decoding", theirs["peer"], total, windows, theirs["decoding_seconds"])
                many = peer(data, "windows")
                name = f"{theirs['peer']}, {many['cores']} cores, clock"
                note("windows", name, total, many["windows"], many["windows_clock_seconds"])
            if args.prediction_questions:
                seconds = whole_prediction(args, short)["prediction_seconds"]
                note("prediction", "ours", few, 0, seconds)
                if args.peer_python:
                    start = time.perf_counter()
                    theirs = peer(short, "prediction")
                    seconds = time.perf_counter() - start
                    note("prediction", theirs["peer"], few, 0, seconds)

    print(
        f"\nmax_seq_length {args.max_seq_length}, doc_stride {args.doc_stride}, n_best_size "
        f"{args.n_best_size}, max_answer_length {args.max_answer_length}, {args.repeats} repeats"
    )
    if not args.peer_python:
        print("transformers + torch: left out (no --peer_python)")
    if not args.prediction_questions:
        print("prediction: left out (no --prediction_questions)")
    print(f"{'':12} {'':44} {'questions':>9} {'windows':>8} {'questions/s':>12} {'over ours':>10}")
    medians = {
        key: statistics.median(row["seconds"] for row in rows) for key, rows in found.items()
    }
    for (what, who), rows in sorted(found.items(), key=lambda item: item[0][0] != "windows"):
        row, seconds = rows[0], medians[what, who]
        print(
            f"{what:12} {who:44} {row['questions']:9,} {row['windows'] or '-':>8} "
            f"{row['questions'] / seconds:12,.0f} {seconds / medians[what, 'ours']:10.2f}"
        )


if __name__ == "__main__":
    main()
