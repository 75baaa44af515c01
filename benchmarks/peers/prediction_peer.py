"""Classify texts with transformers + torch or ONNX Runtime: the peer of prediction.py.

Batches are sorted by length and padded to their longest text, or taken in the order of the file
with --in_order. Needs torch and transformers; --runtime=onnx also onnx and onnxruntime, whose model
is exported from torch before the clock starts. Prints one JSON line.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")


def onnx_session(model: Any, batch: Any, folder: str, threads: int) -> Any:
    import onnxruntime
    import torch

    path = os.path.join(folder, "model.onnx")
    names = ["input_ids", "attention_mask", "token_type_ids"]  # the order of forward's arguments
    torch.onnx.export(
        model,
        tuple(batch[name] for name in names),
        path,
        input_names=names,
        output_names=["logits"],
        dynamic_axes={name: {0: "batch", 1: "tokens"} for name in names} | {"logits": {0: "batch"}},
        opset_version=17,
        dynamo=False,
    )
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--input_file", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--batch_size", type=int, default=32)
    parser.add_argument("--max_seq_length", type=int, default=128)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--runtime", choices=["torch", "onnx"], default="torch")
    parser.add_argument("--in_order", action="store_true")
    args = parser.parse_args()

    import torch
    import transformers

    torch.set_num_threads(args.threads)
    tokenizer = transformers.AutoTokenizer.from_pretrained(args.model)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(
        args.model,
        dtype=torch.float32,
        # The exporter drops the mask of the other.
        attn_implementation="eager" if args.runtime == "onnx" else "sdpa",
    ).eval()
    with open(args.input_file, encoding="utf-8") as file:
        texts = [line.rstrip("\n").split("\t") for line in file]

    def logits_by_torch(batch: Any) -> Any:
        with torch.inference_mode():
            return model(**batch).logits.numpy()

    compute: Callable[[Any], Any] = logits_by_torch
    name = f"transformers {transformers.__version__}, torch {torch.__version__}"
    if args.runtime == "onnx":
        import onnxruntime

        folder = tempfile.TemporaryDirectory()
        example = tokenizer(["a b", "a"], ["c d", "c"], padding=True, return_tensors="pt")
        session = onnx_session(model, example, folder.name, args.threads)
        taken = [value.name for value in session.get_inputs()]

        def logits_by_onnx(batch: Any) -> Any:
            return session.run(None, {key: batch[key].numpy() for key in taken})[0]

        compute, name = logits_by_onnx, f"onnxruntime {onnxruntime.__version__}"

    def predict() -> tuple[list[Any], int]:
        """Returns the logits of each text, and how many tokens they have."""
        encoded = tokenizer(
            *([list(column) for column in zip(*texts, strict=True)]),
            truncation="longest_first",
            max_length=args.max_seq_length,
        )
        lengths = [len(ids) for ids in encoded["input_ids"]]
        order = list(range(len(texts)))
        if not args.in_order:
            order.sort(key=lambda i: -lengths[i])
        results: list[Any] = [None] * len(texts)
        for at in range(0, len(order), args.batch_size):
            rows = order[at : at + args.batch_size]
            batch = tokenizer.pad(
                {key: [encoded[key][row] for row in rows] for key in encoded}, return_tensors="pt"
            )
            for row, value in zip(rows, compute(dict(batch)), strict=True):
                results[row] = [float(x) for x in value]
        return results, sum(lengths)

    seconds = []
    for _ in range(2):
        start = time.perf_counter()
        results, tokens = predict()
        seconds.append(time.perf_counter() - start)
    print(json.dumps({"peer": name, "seconds": seconds, "tokens": tokens, "logits": results}))


if __name__ == "__main__":
    main()
