"""A classifier of transformers + torch behind starlette and uvicorn: the peer of our own service.

--how=pipeline calls a `transformers.pipeline` for each request, in starlette's pool of threads.
--how=batched puts the model behind our own application: its checks, its batcher, its limits.

Needs torch, transformers, starlette and uvicorn. Prints its address, and serves until SIGTERM:

    python benchmarks/peers/serving_torch.py --how=batched \
        --model=<folder with config.json, model.safetensors, vocab.txt>
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import sys
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

NAME = "torch"
# The same limits as ours has.
MAX_INSTANCES, MAX_CHARACTERS = 128, 20_000


class TorchClassifier:
    """What `bert_tf.serving.app.make_app` needs of a model."""

    kind = "classification"

    def __init__(self, model: Any, tokenizer: Any, max_length: int):
        self._model = model
        self._tokenizer = tokenizer
        self._max_length = max_length
        self._labels = [model.config.id2label[number] for number in range(model.num_labels)]

    def check(self, instance: Any) -> None:
        if not isinstance(instance, dict) or "text" not in instance:
            raise ValueError("text is missing")
        if not all(isinstance(instance.get(key, ""), str) for key in ("text", "text_pair")):
            raise ValueError("text and text_pair must be strings")

    def predict_instances(self, instances: list[Any]) -> list[dict[str, Any]]:
        import torch

        texts = [instance["text"] for instance in instances]
        pairs = [instance.get("text_pair", "") for instance in instances]
        batch = self._tokenizer(
            texts,
            pairs if any(pairs) else None,
            padding=True,
            truncation=True,
            max_length=self._max_length,
            return_tensors="pt",
        )
        with torch.inference_mode():
            values = torch.softmax(self._model(**batch).logits, -1).tolist()
        return [
            {
                "label": self._labels[row.index(max(row))],
                "probabilities": dict(zip(self._labels, row)),
            }
            for row in values
        ]


def pipeline_app(model: Any, tokenizer: Any, max_length: int) -> Any:
    """Returns an application that calls a pipeline for each request."""
    from starlette.applications import Starlette
    from starlette.concurrency import run_in_threadpool
    from starlette.requests import Request
    from starlette.responses import JSONResponse
    from starlette.routing import Route
    from transformers import pipeline

    classify = pipeline(
        "text-classification", model=model, tokenizer=tokenizer, device="cpu", top_k=None
    )
    checks = TorchClassifier(model, tokenizer, max_length)

    def run(instances: list[dict[str, str]]) -> list[dict[str, Any]]:
        found = classify(list(instances), truncation=True, max_length=max_length)
        return [
            {
                "label": row[0]["label"],
                "probabilities": {entry["label"]: entry["score"] for entry in row},
            }
            for row in found
        ]

    async def predict(request: Request) -> JSONResponse:
        try:
            instances = json.loads(await request.body())["instances"]
            if not 0 < len(instances) <= MAX_INSTANCES:
                raise ValueError("too few or too many instances")
            for instance in instances:
                checks.check(instance)
                if any(len(text) > MAX_CHARACTERS for text in instance.values()):
                    raise ValueError("too long")
        except (ValueError, KeyError, TypeError) as error:
            return JSONResponse({"error": str(error)}, 400)
        return JSONResponse({"predictions": await run_in_threadpool(run, instances)})

    return Starlette(routes=[Route(f"/v1/models/{NAME}:predict", predict, methods=["POST"])])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", required=True, help="Hugging Face folder of a classifier")
    parser.add_argument("--how", choices=["pipeline", "batched"], required=True)
    parser.add_argument("--max_seq_length", type=int, default=128)
    args = parser.parse_args()

    import uvicorn
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    model = AutoModelForSequenceClassification.from_pretrained(args.model).eval()
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    if args.how == "pipeline":
        app = pipeline_app(model, tokenizer, args.max_seq_length)
    else:
        from bert_tf.serving.app import make_app

        predictor = TorchClassifier(model, tokenizer, args.max_seq_length)
        app = make_app(predictor, NAME)
    # The protocol by its number: asyncio sets TCP_NODELAY on no other.
    bound = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    bound.bind(("127.0.0.1", 0))
    config = uvicorn.Config(app, access_log=False, log_level="warning")
    # A client that comes early waits: the socket takes connections from here on.
    bound.listen(128)
    print(f"POST http://127.0.0.1:{bound.getsockname()[1]}/v1/models/{NAME}:predict", flush=True)
    uvicorn.Server(config).run(sockets=[bound])


if __name__ == "__main__":
    main()
