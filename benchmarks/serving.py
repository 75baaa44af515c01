"""Serving beside transformers + torch: requests a second and how long each takes, on loopback.

Clients in one process ask a server for one instance at a time and wait for the answer; every tenth
request is a bad one, to be refused. Each arm is a server of its own, one after another and round by
round; the table has medians of the rounds. What is asked is the same everywhere:

- ours: `python -m bert_tf.cli.serve`, as it is by default;
- torch, pipeline: starlette + uvicorn, a `transformers.pipeline` called for each request in
  starlette's pool of threads, as the usual recipe has it;
- torch, batched: our own application and batcher over the same torch model.

A good request that is not answered, or otherwise than when it was asked alone, is counted. At the
end ours is asked --memory_requests times, and its resident memory before and after is shown.

    make demo
    python benchmarks/serving.py --model_dir=demo_output \
        --peer_python=<a python with torch, transformers, starlette and uvicorn>

The peer needs a classifier (kind "classification"); it gets the same weights, converted. Other
kinds run without the peer and need --instances, a file of JSON lines, an instance each.
"""

import argparse
import asyncio
import contextlib
import csv
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Any

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)
WARM_UP_REQUESTS = 200
# Different ones that are asked, in turn; each first alone, for what is right.
MAX_INSTANCES = 50
# What a prediction says, in any kind, and what may differ by rounding.
DECISIONS = ("label", "labels", "answer", "choice", "tags")
NUMBERS = ("probabilities", "value")
TOLERANCE = 1e-3


def read_instances(path: str | None) -> list[dict[str, Any]]:
    """Returns the instances of a file of JSON lines; by default the pairs of the demo."""
    if path:
        with open(path, encoding="utf-8") as file:
            return [json.loads(line) for line in file if line.strip()]
    pairs = os.path.join(ROOT, "examples", "paraphrase", "test.tsv")
    with open(pairs, encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    return [{"text": row["sentence1"], "text_pair": row["sentence2"]} for row in rows]


def bad_bodies(instance: dict[str, Any]) -> list[bytes]:
    """Returns bodies that have to be refused."""
    field = next(iter(instance))
    bad: list[Any] = [
        {"instances": []},
        {"instances": [instance | {field: 5}]},
        {"instances": [instance, {"nothing": 1}]},
        {"instances": [instance] * 200},
        {"instances": [instance | {field: "long " * 10_000}]},
    ]
    return [b'{"instances": [', *(json.dumps(content).encode() for content in bad)]


# The client: a process of its own, so that it shares no interpreter with what it measures.


async def ask(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes
) -> tuple[int, bytes]:
    """Sends a request and returns status and body of the answer."""
    writer.write(request)
    head = await reader.readuntil(b"\r\n\r\n")
    length = re.search(rb"(?i)\r\ncontent-length: *(\d+)", head)
    assert length, head
    return int(head[9:12]), await reader.readexactly(int(length[1]))


def requests_of(path: str, bodies: list[bytes]) -> list[bytes]:
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    return [f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body for body in bodies]


def differs(found: Any, expected: Any) -> bool:
    """Tells whether a prediction is another than when it was asked for alone."""
    for key in DECISIONS:
        if found.get(key) != expected.get(key):
            return True
    for key in NUMBERS:
        first, second = found.get(key, 0.0), expected.get(key, 0.0)
        if isinstance(first, dict):
            first, second = list(first.values()), [second[name] for name in first]
        if not isinstance(first, list):
            first, second = [first], [second]
        if any(abs(a - b) > TOLERANCE for a, b in zip(first, second, strict=True)):
            return True
    return False


async def load(task: dict[str, Any]) -> dict[str, Any]:
    """Asks as a task says; see `measure`."""
    instances = task["instances"]
    bodies = [json.dumps({"instances": [instance]}).encode() for instance in instances]
    good = requests_of(task["path"], bodies)
    bad = requests_of(task["path"], bad_bodies(instances[0]))

    expected = []
    reader, writer = await asyncio.open_connection("127.0.0.1", task["port"])
    for request in good:
        status, body = await ask(reader, writer, request)
        assert status == 200, body
        expected.append(json.loads(body)["predictions"][0])
    writer.close()

    numbers = iter(range(task["requests"]))
    answers: list[tuple[int, int, bytes]] = []
    latencies: list[float] = []
    lost = 0
    refused = {"right": 0, "wrong": 0}
    end = time.perf_counter() + task["seconds"]

    async def client() -> None:
        nonlocal lost
        reader, writer = await asyncio.open_connection("127.0.0.1", task["port"])
        for number in numbers:
            if time.perf_counter() > end:
                break
            is_bad = number % task["bad_every"] == 0
            request = (bad if is_bad else good)[number % len(bad if is_bad else good)]
            start = time.perf_counter()
            try:
                status, body = await ask(reader, writer, request)
            except (OSError, asyncio.IncompleteReadError):
                lost += 1
                writer.close()
                reader, writer = await asyncio.open_connection("127.0.0.1", task["port"])
                continue
            if is_bad:
                refused["right" if status in (400, 413) else "wrong"] += 1
            else:
                latencies.append(time.perf_counter() - start)
                answers.append((number % len(good), status, body))
        writer.close()

    start = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(task["clients"])))
    seconds = time.perf_counter() - start
    failed = sum(status != 200 for _, status, _ in answers)
    other = sum(
        differs(json.loads(body)["predictions"][0], expected[place])
        for place, status, body in answers
        if status == 200
    )
    latencies.sort()
    return {
        "requests": len(answers) + sum(refused.values()) + lost,
        "rate": (len(answers) + sum(refused.values())) / seconds,
        "p50": 1000 * statistics.median(latencies),
        "p99": 1000 * latencies[int(0.99 * (len(latencies) - 1))],
        "failed": failed + lost,
        "other": other,
        "not_refused": refused["wrong"],
    }


def measure(args: argparse.Namespace, port: int, path: str, clients: int, requests: int) -> Any:
    """Asks a server `requests` times, with `clients` at once, for args.seconds at most.

    Returns requests (asked), rate (answers a second, refusals too), p50 and p99 (milliseconds of
    the good ones), failed (good ones without an answer), other (good ones with another answer),
    not_refused (bad ones).
    """
    task = {
        "instances": args.read_instances,
        "port": port,
        "path": path,
        "clients": clients,
        "requests": requests,
        "seconds": args.seconds,
        "bad_every": args.bad_every,
    }
    done = subprocess.run(
        [sys.executable, os.path.abspath(__file__), "--client"],
        input=json.dumps(task),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)


# Servers.


@contextlib.contextmanager
def server(command: list[str]) -> Iterator[tuple[int, str, int]]:
    """Starts a server, which prints its address; yields port, path and process id."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert process.stdout is not None
    try:
        for line in process.stdout:
            if found := re.search(r"POST http://127\.0\.0\.1:(\d+)(\S+)", line):
                yield int(found[1]), found[2], process.pid
                break
        else:
            raise SystemExit(f"the server ended: {' '.join(command)}")
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()


def resident_mb(process_id: int) -> float:
    with open(f"/proc/{process_id}/status", encoding="ascii") as file:
        for line in file:
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) / 1024
    raise SystemExit("no VmRSS: the memory can be read on Linux only")


def convert(model_dir: str, folder: str) -> str:
    """Writes the model as a Hugging Face folder for the peer."""
    target = os.path.join(folder, "huggingface")
    subprocess.run(
        [
            *(sys.executable, "-m", "bert_tf.cli.convert_checkpoint"),
            *(f"--input={os.path.abspath(model_dir)}", f"--output={target}", "--to=huggingface"),
        ],
        stdout=subprocess.DEVNULL,
        check=True,
        cwd=ROOT,
    )
    return target


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model_dir", help="folder of a trained model")
    parser.add_argument("--instances", help="JSON lines; by default the demo's sentence pairs")
    parser.add_argument("--peer_python", help="interpreter with torch, transformers and starlette")
    parser.add_argument("--clients", default="1,8,32", help="how many at once, by commas")
    parser.add_argument("--requests", type=int, default=2000, help="of a measurement")
    parser.add_argument("--seconds", type=float, default=60, help="of a measurement, at most")
    parser.add_argument("--bad_every", type=int, default=10, help="one in so many is a bad one")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument(
        "--memory_requests", type=int, default=10_000, help="0: leave this part out"
    )
    parser.add_argument("--client", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.client:
        print(json.dumps(asyncio.run(load(json.load(sys.stdin)))))
        return
    if not args.model_dir:
        parser.error("--model_dir is missing: a folder that run_classifier.py or make demo wrote")
    args.read_instances = read_instances(args.instances)[:MAX_INSTANCES]
    levels = [int(level) for level in args.clients.split(",")]

    own = [sys.executable, "-m", "bert_tf.cli.serve", "--port=0"]
    own.append(f"--model_dir={os.path.abspath(args.model_dir)}")
    arms = {"ours": own}
    found: dict[tuple[str, int], list[dict[str, Any]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        if args.peer_python:
            with open(os.path.join(args.model_dir, "task.json"), encoding="utf-8") as file:
                length = json.load(file)["max_seq_length"]
            peer = [args.peer_python, os.path.join(HERE, "peers", "serving_torch.py")]
            peer += [f"--model={convert(args.model_dir, folder)}", f"--max_seq_length={length}"]
            arms["torch, pipeline"] = [*peer, "--how=pipeline"]
            arms["torch, batched"] = [*peer, "--how=batched"]
        for _ in range(args.repeats):
            for name, command in arms.items():
                with server(command) as (port, path, _process):
                    measure(args, port, path, 8, WARM_UP_REQUESTS)
                    for level in levels:
                        row = measure(args, port, path, level, args.requests)
                        found.setdefault((name, level), []).append(row)
                        print(f"{name}, {level} clients: {row}", file=sys.stderr, flush=True)

    print(f"\n{args.model_dir}, {args.requests} requests, {args.repeats} repeats, medians")
    if not args.peer_python:
        print("transformers + torch: left out (no --peer_python)")
    print(
        f"{'':16} {'clients':>7} {'requests/s':>10} {'over ours':>9} {'p50 ms':>8} {'p99 ms':>8} "
        f"{'failed':>6} {'other':>5} {'not refused':>11}"
    )
    for level in levels:
        for name in arms:
            rows = found[name, level]
            middle = {key: statistics.median(row[key] for row in rows) for key in rows[0]}
            ours = statistics.median(row["rate"] for row in found["ours", level])
            wrong = {key: sum(row[key] for row in rows) for key in rows[0]}
            print(
                f"{name:16} {level:7} {middle['rate']:10.1f} {middle['rate'] / ours:9.2f} "
                f"{middle['p50']:8.1f} {middle['p99']:8.1f} {wrong['failed']:6} "
                f"{wrong['other']:5} {wrong['not_refused']:11}"
            )

    if args.memory_requests:
        with server(own) as (port, path, process):
            args.seconds = max(args.seconds, 600)
            measure(args, port, path, 8, 1000)
            before = resident_mb(process)
            row = measure(args, port, path, 8, args.memory_requests)
            after = resident_mb(process)
        print(
            f"\nmemory of ours: {before:.1f} MB after 1,000 requests, {after:.1f} MB after "
            f"{row['requests']:,} more; failed {row['failed']}, other {row['other']}"
        )


if __name__ == "__main__":
    main()
