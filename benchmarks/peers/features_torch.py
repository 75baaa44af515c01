"""Extract features with transformers + torch: the peer of our own extract_features.py.

A plain loop: the tokenizers library, batches padded to max_seq_length in the order of the file or,
with --dynamic, sorted by length and padded to their longest text; hidden states of the layers asked
for, written as the same JSON lines by Python's json. Lines are taken as texts, never as pairs.

Needs torch and transformers. Prints one JSON line:

    python benchmarks/peers/features_torch.py --input_file=texts.txt \
        --model=<folder with config.json, model.safetensors, tokenizer.json>
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")


def main() -> None:
    parser = argparse.ArgumentParser(description="Features by transformers + torch.")
    parser.add_argument("--input_file", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--layers", default="-1,-2,-3,-4")
    parser.add_argument("--batch_size", type=int, default=32)
    parser.add_argument("--max_seq_length", type=int, default=128)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--dynamic", action="store_true")
    parser.add_argument("--no_json", action="store_true")
    args = parser.parse_args()

    import torch
    from transformers import AutoModel, AutoTokenizer

    torch.set_num_threads(args.threads)
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = AutoModel.from_pretrained(args.model, dtype=torch.float32).eval().to(device)
    layers = [int(layer) for layer in args.layers.split(",")]

    start = time.perf_counter()
    with open(args.input_file, encoding="utf-8") as file:
        texts = [line.strip() for line in file]
    encoded = tokenizer(texts, truncation=True, max_length=args.max_seq_length)
    lengths = [len(ids) for ids in encoded["input_ids"]]
    order = list(range(len(texts)))
    if args.dynamic:
        order.sort(key=lambda i: -lengths[i])
    results: list = [None] * len(texts)
    with torch.inference_mode():
        for at in range(0, len(order), args.batch_size):
            rows = order[at : at + args.batch_size]
            batch = tokenizer.pad(
                {key: [encoded[key][row] for row in rows] for key in encoded},
                padding="longest" if args.dynamic else "max_length",
                max_length=args.max_seq_length,
                return_tensors="pt",
            ).to(device)
            states = model(**batch, output_hidden_states=True).hidden_states
            # The first of them is the embeddings' output.
            chosen = [states[layer + 1 if layer >= 0 else layer] for layer in layers]
            found = torch.stack(chosen, dim=2).cpu().numpy()
            for row, value in zip(rows, found, strict=True):
                results[row] = value[: lengths[row]].copy()
    if not args.no_json:
        with tempfile.TemporaryFile("w") as output:
            for number, value in enumerate(results):
                tokens = tokenizer.convert_ids_to_tokens(encoded["input_ids"][number])
                features = [
                    {
                        "token": token,
                        "layers": [
                            {"index": layer, "values": [round(float(x), 6) for x in values]}
                            for layer, values in zip(layers, rows, strict=True)
                        ],
                    }
                    for token, rows in zip(tokens, value, strict=True)
                ]
                output.write(json.dumps({"linex_index": number, "features": features}) + "\n")
    seconds = time.perf_counter() - start
    print(json.dumps({"seconds": seconds, "texts": len(texts), "tokens": sum(lengths)}))


if __name__ == "__main__":
    main()
