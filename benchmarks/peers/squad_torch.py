"""SQuAD with transformers + torch: the peer of our own windows, decoding and prediction.

Windows come from the library's fast tokenizer (overflowing tokens, offsets); decoding is the usual
search over the best starts and ends in numpy and loops, with the text cut out by the offsets (so
no words have to be aligned). Prediction is a loop over batches padded to their longest window.

Needs torch and transformers. Prints one JSON line:

    python benchmarks/peers/squad_torch.py --data=dev.json --what=data \
        --model=<folder with config.json, model.safetensors, tokenizer.json>
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")


def read(path: Path) -> tuple[list[str], list[str], list[str]]:
    """Returns ids, questions and contexts."""
    content = json.loads(path.read_text(encoding="utf-8-sig"))
    rows = [
        (question["id"], question["question"], paragraph["context"])
        for article in content["data"]
        for paragraph in article["paragraphs"]
        for question in paragraph["qas"]
    ]
    ids, questions, contexts = (list(column) for column in zip(*rows))
    return ids, questions, contexts


def decode(
    context: str,
    offsets: list[list[tuple[int, int] | None]],
    starts,
    ends,
    n_best_size: int,
    max_answer_length: int,
) -> list[dict[str, object]]:
    """Returns the n-best list of a question; `offsets` is None outside of the context."""
    import numpy as np

    found = []
    for places, start_logits, end_logits in zip(offsets, starts, ends):
        best_starts = np.argsort(start_logits)[: -n_best_size - 1 : -1].tolist()
        best_ends = np.argsort(end_logits)[: -n_best_size - 1 : -1].tolist()
        for start in best_starts:
            for end in best_ends:
                if start >= len(places) or end >= len(places):
                    continue
                if places[start] is None or places[end] is None:
                    continue
                if end < start or end - start + 1 > max_answer_length:
                    continue
                found.append(
                    {
                        "text": context[places[start][0] : places[end][1]],
                        "score": float(start_logits[start] + end_logits[end]),
                        "start_logit": float(start_logits[start]),
                        "end_logit": float(end_logits[end]),
                    }
                )
    found = sorted(found, key=lambda each: each["score"], reverse=True)[:n_best_size]
    if found:
        scores = np.array([each.pop("score") for each in found])
        weights = np.exp(scores - scores.max())
        for each, probability in zip(found, weights / weights.sum()):
            each["probability"] = float(probability)
    return found


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="SQuAD windows, decoding and prediction.")
    parser.add_argument("--data", required=True, type=Path)
    parser.add_argument("--model", required=True, help="a Hugging Face model folder")
    parser.add_argument("--what", choices=["windows", "data", "prediction"], default="data")
    parser.add_argument("--max_seq_length", type=int, default=384)
    parser.add_argument("--doc_stride", type=int, default=128)
    parser.add_argument("--n_best_size", type=int, default=20)
    parser.add_argument("--max_answer_length", type=int, default=30)
    parser.add_argument("--batch_size", type=int, default=32)
    args = parser.parse_args(argv)

    import numpy as np
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(args.model, use_fast=True)
    ids, questions, contexts = read(args.data)

    start, start_clock = time.process_time(), time.perf_counter()
    encoded = tokenizer(
        [question.lstrip() for question in questions],
        contexts,
        truncation="only_second",
        max_length=args.max_seq_length,
        # The library's stride is how much windows overlap.
        stride=args.doc_stride,
        return_overflowing_tokens=True,
        return_offsets_mapping=True,
    )
    windows_seconds = time.process_time() - start
    windows_clock_seconds = time.perf_counter() - start_clock
    of_question: list[list[int]] = [[] for _ in ids]
    for window, question in enumerate(encoded["overflow_to_sample_mapping"]):
        of_question[question].append(window)
    result = {
        "questions": len(ids),
        "windows": len(encoded["input_ids"]),
        "windows_seconds": windows_seconds,  # CPU
        "windows_clock_seconds": windows_clock_seconds,
        "cores": os.cpu_count(),
    }
    versions = f"transformers {transformers.__version__}"
    if args.what == "windows":
        print(json.dumps({"peer": versions, **result}), flush=True)
        return

    places = [
        [span if part == 1 else None for span, part in zip(spans, encoded.sequence_ids(window))]
        for window, spans in enumerate(encoded["offset_mapping"])
    ]

    def decode_all(logits) -> dict[str, list[dict[str, object]]]:
        return {
            name: decode(
                context,
                [places[window] for window in windows],
                [logits[window][0] for window in windows],
                [logits[window][1] for window in windows],
                args.n_best_size,
                args.max_answer_length,
            )
            for name, context, windows in zip(ids, contexts, of_question)
        }

    if args.what == "data":
        rng = np.random.RandomState(0)
        logits = []
        for window in range(result["windows"]):
            rows = rng.randn(2, args.max_seq_length).astype(np.float32)
            rows[:, len(places[window]) :] -= 8
            inside = [at for at, span in enumerate(places[window]) if span is not None]
            at = inside[rng.randint(len(inside))]
            rows[0, max(0, at - 5) : at + 5] += 3
            rows[1, at : at + 10] += 3
            logits.append(rows)
        for _ in range(2):  # The first pass warms up.
            start = time.process_time()
            decode_all(logits)
        result["decoding_seconds"] = time.process_time() - start
        print(json.dumps({"peer": versions, **result}), flush=True)
        return

    import torch

    model = transformers.BertForQuestionAnswering.from_pretrained(args.model).eval()
    order = sorted(range(result["windows"]), key=lambda window: -len(encoded["input_ids"][window]))
    outputs: list[np.ndarray | None] = [None] * len(order)
    start = time.perf_counter()
    names = ("input_ids", "attention_mask", "token_type_ids")
    with torch.inference_mode():
        for first in range(0, len(order), args.batch_size):
            some = order[first : first + args.batch_size]
            rows = {name: [encoded[name][window] for window in some] for name in names}
            output = model(**tokenizer.pad(rows, return_tensors="pt"))
            both = torch.stack([output.start_logits, output.end_logits], 1).numpy()
            for window, row in zip(some, both):
                outputs[window] = row[:, : len(encoded["input_ids"][window])]
    result["model_seconds"] = time.perf_counter() - start
    nbest = decode_all(outputs)
    with open(os.devnull, "w", encoding="utf-8") as handle:
        json.dump(nbest, handle, indent=4)
    print(json.dumps({"peer": f"{versions} + torch {torch.__version__}", **result}), flush=True)


if __name__ == "__main__":
    main()
