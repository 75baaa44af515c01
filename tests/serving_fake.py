"""Predictors without a model, and the application on a port, for tests of the service."""

import contextlib
import http.client
import json
import socket
import threading
import time

import uvicorn

FIELDS = {
    "classification": {"text": str, "text_pair": str},
    "multilabel": {"text": str, "text_pair": str},
    "regression": {"text": str, "text_pair": str},
    "tagging": {"text": str, "tokens": list},
    "choice": {"context": str, "choices": list, "question": str},
    "question_answering": {"question": str, "context": str},
    "masked_lm": {"text": str},
}
OPTIONAL = {"text_pair", "tokens", "question"}


class Fake:
    """Answers by plain rules of the words. `hold` keeps batches back; "boom" makes one fail."""

    def __init__(self, kind="classification"):
        self.kind = kind
        self.batches = []
        self.hold = threading.Event()
        self.hold.set()
        self.entered = threading.Semaphore(0)

    def check(self, instance):
        fields = FIELDS[self.kind]
        if not isinstance(instance, dict):
            raise ValueError("an instance is an object")
        for field, value in instance.items():
            if field not in fields:
                raise ValueError(f"unknown field {field!r}; known are {', '.join(fields)}")
            if not isinstance(value, fields[field]):
                raise ValueError(f"{field} must be a {fields[field].__name__}")
        needed = set(fields) - (OPTIONAL if self.kind != "question_answering" else set())
        for field in sorted(needed - set(instance)):
            raise ValueError(f"{field} is missing")

    def predict_instances(self, instances):
        self.batches.append(list(instances))
        self.entered.release()
        assert self.hold.wait(60)
        if any("boom" in str(instance) for instance in instances):
            raise RuntimeError("secret place in the code")
        return [getattr(self, self.kind)(instance) for instance in instances]

    def classification(self, instance):
        text = instance["text"]
        good = 0.5 + 0.4 * ("good" in text) - 0.3 * ("bad" in text)
        if text == "nan":
            good = float("nan")
        label = text if text.startswith("echo") else "good"
        values = {label: good, "<b>bad</b>": 1 - good}
        return {"label": max(values, key=values.get), "probabilities": values}

    def multilabel(self, instance):
        values = {f"label {n}": 1 / (1 + n) for n in range(14)}
        return {"labels": ["label 0", "label 1"], "probabilities": values}

    def regression(self, instance):
        return {"value": len(instance["text"]) / 7}

    def tagging(self, instance):
        tokens = instance["tokens"] if "tokens" in instance else instance["text"].split()
        tags = ["B-PER" if token[0].isupper() else "O" for token in tokens]
        entities = []
        for number, (token, tag) in enumerate(zip(tokens, tags, strict=True)):
            if tag == "B-PER":
                if number and tags[number - 1] != "O":
                    tags[number] = "I-PER"
                    entities[-1]["last"] = number
                    entities[-1]["text"] += f" {token}"
                else:
                    kind = "LOC" if number else "PER"
                    entities.append({"type": kind, "first": number, "last": number, "text": token})
        probabilities = [0.9] * len(tokens)
        return {
            "tokens": tokens, "tags": tags, "probabilities": probabilities, "entities": entities,
        }  # fmt: skip

    def choice(self, instance):
        lengths = [len(choice) + 1 for choice in instance["choices"]]
        values = [length / sum(lengths) for length in lengths]
        return {"choice": values.index(max(values)), "probabilities": values}

    def question_answering(self, instance):
        """The question's words, where they stand in the context, one answer each."""
        context = instance["context"]
        nbest = []
        for rank, word in enumerate(instance["question"].split()):
            start = context.find(word)
            if start >= 0:
                nbest.append(
                    {
                        "text": word,
                        "start": start,
                        "end": start + len(word),
                        "probability": 0.5 ** (rank + 1),
                        "start_logit": 1.0,
                        "end_logit": 1.0,
                    }
                )
        none = {"text": "", "start": None, "end": None, "probability": 0.01}
        nbest.append(none | {"start_logit": 0.0, "end_logit": 0.0})
        best = nbest[0]
        return {
            "answer": best["text"], "start": best["start"], "end": best["end"], "nbest": nbest,
            "null_odds": -3.5,
        }  # fmt: skip

    def masked_lm(self, instance):
        candidates = [
            {"token": token, "probability": 0.5 / (1 + rank)}
            for rank, token in enumerate(["cat", "##s", "<i>", "."])
        ]
        return {"masks": [{"candidates": candidates}] * instance["text"].count("[MASK]")}


@contextlib.contextmanager
def running(app):
    """Serves an application in a thread; yields its port."""
    bound = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    bound.bind(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_config=None, access_log=False, lifespan="on"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]})
    thread.start()
    try:
        while not server.started and thread.is_alive():
            time.sleep(0.005)
        assert server.started
        yield bound.getsockname()[1]
    finally:
        server.should_exit = True
        thread.join(60)
    assert not thread.is_alive()


class Client:
    """Asks a server on this machine; each call is a connection of its own."""

    def __init__(self, port):
        self.port = port

    def ask(self, method, path, body=None, **headers):
        """Returns status, headers, and the JSON of the body (its bytes where it is none)."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request(method, path, body, headers)
            response = connection.getresponse()
            content = response.read()
            if response.headers.get_content_type() == "application/json":
                content = json.loads(content)
            return response.status, response.headers, content
        finally:
            connection.close()

    def predict(self, *instances, name="tiny"):
        """Returns status and content."""
        body = json.dumps({"instances": list(instances)})
        status, _, content = self.ask("POST", f"/v1/models/{name}:predict", body)
        return status, content
