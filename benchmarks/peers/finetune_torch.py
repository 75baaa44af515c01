"""Fine-tune a BERT with transformers + torch: the peer of our own run_classifier.py.

A plain loop with no trainer in it, so that what is measured is the model and the optimizer:
AdamW, linear warm-up over the first tenth of the steps and linear decay after it, gradients
clipped to norm 1, shuffled batches that are padded to their own longest example.

Needs torch, transformers, scipy and scikit-learn. Prints one JSON line:

    python benchmarks/peers/finetune_torch.py --task=MRPC --data_dir=glue/MRPC \
        --model=<folder with config.json, model.safetensors, tokenizer.json>
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")


# Per task: columns of text a, text b (None: single sentences) and the label, and whether a header
# line comes first. Columns are numbers, or names to be looked up in the header.
TASKS: dict[str, tuple[int | str, int | str | None, int | str, bool]] = {
    "MRPC": ("#1 String", "#2 String", "Quality", True),
    "RTE": ("sentence1", "sentence2", "label", True),
    "STS-B": ("sentence1", "sentence2", "score", True),
    "COLA": (3, None, 1, False),
    "TSV": ("sentence1", "sentence2", "label", True),
}


def read_rows(path: Path, task: str) -> tuple[list[tuple[str, ...]], list[str]]:
    """Returns the texts (one or two each row) and the labels as written in the file."""
    column_a, column_b, column_label, has_header = TASKS[task]
    lines = path.read_text(encoding="utf-8-sig").split("\n")
    rows = [line.rstrip("\r").split("\t") for line in lines if line.strip()]
    if has_header:
        header = rows.pop(0)

        def index(column: int | str) -> int:
            return header.index(column) if isinstance(column, str) else column

    else:

        def index(column: int | str) -> int:
            return int(column)

    text_columns = [index(c) for c in (column_a, column_b) if c is not None]
    label_column = index(column_label)
    texts = [tuple(row[c] for c in text_columns) for row in rows]
    return texts, [row[label_column] for row in rows]


def evaluate(task: str, outputs, targets) -> dict[str, float]:
    """GLUE's metrics for the task; `outputs` [N, labels] logits (or [N, 1] scores)."""
    from scipy import stats
    from sklearn import metrics

    if task == "STS-B":
        scores = outputs[:, 0]
        return {
            "pearson": float(stats.pearsonr(scores, targets)[0]),
            "spearman": float(stats.spearmanr(scores, targets)[0]),
        }
    predicted = outputs.argmax(axis=-1)
    result = {"accuracy": float(metrics.accuracy_score(targets, predicted))}
    if task == "MRPC":
        result["f1"] = float(metrics.f1_score(targets, predicted))
    if task == "COLA":
        result["matthews"] = float(metrics.matthews_corrcoef(targets, predicted))
    return result


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Fine-tune a BERT with transformers and torch.")
    parser.add_argument("--task", required=True, choices=sorted(TASKS), type=str.upper)
    parser.add_argument("--data_dir", required=True, type=Path, help="has train.tsv and dev.tsv")
    parser.add_argument("--model", required=True, help="a Hugging Face model folder")
    parser.add_argument("--learning_rate", type=float, default=1e-4)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch_size", type=int, default=32)
    parser.add_argument("--max_seq_length", type=int, default=128)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=0, help="0: torch's own choice")
    args = parser.parse_args(argv)

    import numpy as np
    import torch
    import transformers

    if args.threads:
        torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)

    train_texts, train_labels = read_rows(args.data_dir / "train.tsv", args.task)
    dev_texts, dev_labels = read_rows(args.data_dir / "dev.tsv", args.task)
    regression = args.task == "STS-B"
    names = [] if regression else sorted(set(train_labels))

    def targets(labels: list[str]) -> torch.Tensor:
        if regression:
            return torch.tensor([float(label) for label in labels])
        return torch.tensor([names.index(label) for label in labels])

    train_targets, dev_targets = targets(train_labels), targets(dev_labels)

    tokenizer = transformers.AutoTokenizer.from_pretrained(args.model, use_fast=True)

    def encode(texts: list[tuple[str, ...]]) -> list[dict[str, list[int]]]:
        encoded = tokenizer(
            *(list(column) for column in zip(*texts)),
            truncation=True,
            max_length=args.max_seq_length,
        )
        keys = list(encoded.keys())
        return [dict(zip(keys, values)) for values in zip(*(encoded[key] for key in keys))]

    start = time.perf_counter()
    train_set, dev_set = encode(train_texts), encode(dev_texts)
    tokenization_seconds = time.perf_counter() - start

    model = transformers.BertForSequenceClassification.from_pretrained(
        args.model,
        num_labels=1 if regression else len(names),
        problem_type="regression" if regression else "single_label_classification",
    )
    decayed: list[torch.Tensor] = []
    not_decayed: list[torch.Tensor] = []
    for name, parameter in model.named_parameters():
        (not_decayed if "LayerNorm" in name or name.endswith("bias") else decayed).append(parameter)
    optimizer = torch.optim.AdamW(
        [
            {"params": decayed, "weight_decay": 0.01},
            {"params": not_decayed, "weight_decay": 0.0},
        ],
        lr=args.learning_rate,
    )
    steps_per_epoch = -(-len(train_set) // args.batch_size)
    steps = steps_per_epoch * args.epochs
    schedule = transformers.get_linear_schedule_with_warmup(optimizer, int(0.1 * steps), steps)

    def batch_of(examples, indices) -> dict[str, torch.Tensor]:
        return tokenizer.pad([examples[i] for i in indices], return_tensors="pt")

    epoch_seconds: list[float] = []
    for epoch in range(args.epochs):
        model.train()
        start = time.perf_counter()
        order = torch.randperm(len(train_set)).tolist()
        for first in range(0, len(order), args.batch_size):
            indices = order[first : first + args.batch_size]
            loss = model(**batch_of(train_set, indices), labels=train_targets[indices]).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        epoch_seconds.append(time.perf_counter() - start)
        print(
            f"epoch {epoch + 1}/{args.epochs}: {epoch_seconds[-1]:.1f} s, "
            f"last loss {loss.item():.3f}",
            file=sys.stderr,
        )

    model.eval()
    outputs = []
    with torch.inference_mode():
        for first in range(0, len(dev_set), args.batch_size):
            indices = range(first, min(first + args.batch_size, len(dev_set)))
            outputs.append(model(**batch_of(dev_set, indices)).logits.numpy())
    result = {
        "peer": f"transformers {transformers.__version__} + torch {torch.__version__}",
        "task": args.task,
        "learning_rate": args.learning_rate,
        "epochs": args.epochs,
        "batch_size": args.batch_size,
        "seed": args.seed,
        "threads": torch.get_num_threads(),
        "train_examples": len(train_set),
        "mean_length": round(float(np.mean([len(e["input_ids"]) for e in train_set])), 1),
        "tokenization_seconds": round(tokenization_seconds, 3),
        "epoch_seconds": [round(s, 2) for s in epoch_seconds],
        "dev": {
            key: round(value, 4)
            for key, value in evaluate(
                args.task, np.concatenate(outputs), dev_targets.numpy()
            ).items()
        },
    }
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
