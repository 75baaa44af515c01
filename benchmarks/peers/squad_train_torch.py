"""Fine-tunes BERT on SQuAD with transformers + torch, then answers another file.

The usual recipe: AdamW, linear warm-up and decay, clipping at 1, batches padded to their longest
window. Prints one JSON line; the predictions go to a file, to be scored by any scorer.

    python benchmarks/peers/squad_train_torch.py --train=train.json --data=dev.json \
        --model=<Hugging Face folder> --predictions=predictions.json
"""

from __future__ import annotations

import argparse
import json
import random
import time
from pathlib import Path

from squad_torch import decode, read


def answers_of(path: Path) -> list[tuple[str, int]]:
    """Returns the first answer of each question: text and place."""
    content = json.loads(path.read_text(encoding="utf-8-sig"))
    return [
        (question["answers"][0]["text"], question["answers"][0]["answer_start"])
        for article in content["data"]
        for paragraph in article["paragraphs"]
        for question in paragraph["qas"]
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--train", required=True, type=Path)
    parser.add_argument("--data", required=True, type=Path)
    parser.add_argument("--model", required=True)
    parser.add_argument("--predictions", required=True)
    parser.add_argument("--max_seq_length", type=int, default=256)
    parser.add_argument("--doc_stride", type=int, default=128)
    parser.add_argument("--batch_size", type=int, default=16)
    parser.add_argument("--learning_rate", type=float, default=2e-4)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()

    import torch
    import transformers

    random.seed(args.seed)
    torch.manual_seed(args.seed)
    tokenizer = transformers.AutoTokenizer.from_pretrained(args.model, use_fast=True)
    model = transformers.BertForQuestionAnswering.from_pretrained(args.model)

    def windows(questions, contexts):
        return tokenizer(
            [question.lstrip() for question in questions],
            contexts,
            truncation="only_second",
            max_length=args.max_seq_length,
            # The library's stride is how much windows overlap; ours how far they advance.
            stride=max(1, args.max_seq_length - 64 - 3 - args.doc_stride),
            return_overflowing_tokens=True,
            return_offsets_mapping=True,
        )

    _, questions, contexts = read(args.train)
    answers = answers_of(args.train)
    encoded = windows(questions, contexts)
    labels = []
    for window, question in enumerate(encoded["overflow_to_sample_mapping"]):
        text, start = answers[question]
        end = start + len(text)
        parts = encoded.sequence_ids(window)
        spans = encoded["offset_mapping"][window]
        inside = [at for at, part in enumerate(parts) if part == 1]
        first = next((at for at in inside if spans[at][0] <= start < spans[at][1]), 0)
        last = next((at for at in inside if spans[at][0] < end <= spans[at][1]), 0)
        labels.append((first, last) if first and last else (0, 0))
    count = len(labels)
    steps = int(count / args.batch_size * args.epochs)
    decayed = [p for n, p in model.named_parameters() if "LayerNorm" not in n and "bias" not in n]
    others = [p for n, p in model.named_parameters() if "LayerNorm" in n or "bias" in n]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": 0.01}, {"params": others, "weight_decay": 0.0}],
        lr=args.learning_rate,
        eps=1e-6,
    )
    schedule = transformers.get_linear_schedule_with_warmup(optimizer, int(0.1 * steps), steps)
    names = ("input_ids", "attention_mask", "token_type_ids")
    model.train()
    start_time, taken, order = time.perf_counter(), 0, []
    for _ in range(steps):
        if len(order) < args.batch_size:
            order = random.sample(range(count), count)
        some, order = order[: args.batch_size], order[args.batch_size :]
        rows = tokenizer.pad(
            {name: [encoded[name][at] for at in some] for name in names}, return_tensors="pt"
        )
        first, last = torch.tensor([labels[at] for at in some]).T
        loss = model(**rows, start_positions=first, end_positions=last).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        taken += 1
    seconds = time.perf_counter() - start_time

    ids, questions, contexts = read(args.data)
    encoded = windows(questions, contexts)
    model.eval()
    found: dict[str, list] = {}
    of_question: list[list[int]] = [[] for _ in ids]
    for window, question in enumerate(encoded["overflow_to_sample_mapping"]):
        of_question[question].append(window)
    outputs = [None] * len(encoded["input_ids"])
    by_length = sorted(range(len(outputs)), key=lambda at: -len(encoded["input_ids"][at]))
    with torch.inference_mode():
        for at in range(0, len(by_length), 32):
            some = by_length[at : at + 32]
            rows = {name: [encoded[name][each] for each in some] for name in names}
            output = model(**tokenizer.pad(rows, return_tensors="pt"))
            for each, first, last in zip(some, output.start_logits, output.end_logits):
                outputs[each] = (first.numpy(), last.numpy())
    for name, context, its in zip(ids, contexts, of_question):
        places = [
            [s if part == 1 else None for s, part in zip(spans, encoded.sequence_ids(at))]
            for at, spans in ((at, encoded["offset_mapping"][at]) for at in its)
        ]
        starts, ends = [outputs[at][0] for at in its], [outputs[at][1] for at in its]
        found[name] = decode(context, places, starts, ends, 20, 30)
    with open(args.predictions, "w", encoding="utf-8") as handle:
        json.dump({name: best[0]["text"] if best else "" for name, best in found.items()}, handle)
    versions = f"transformers {transformers.__version__} + torch {torch.__version__}"
    print(json.dumps({"peer": versions, "steps": taken, "seconds": seconds, "windows": count}))


if __name__ == "__main__":
    main()
