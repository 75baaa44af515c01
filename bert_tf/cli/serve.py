"""Serves a trained model on this machine: a web page, and a JSON API with TF Serving's form.

    python -m bert_tf.cli.serve --model_dir=mrpc_output

Open the address that it prints. From a program:

    curl -d '{"instances": [{"text": "He left."}]}' \\
        http://127.0.0.1:8501/v1/models/mrpc_output:predict

Ctrl-C or SIGTERM: requests that have come are answered, then it ends. Needs the extra [serve].
"""

import os
import re
import socket
import time
from collections.abc import Sequence
from typing import Any

from bert_tf import paths
from bert_tf.cli.command_line import CommandLine, CommandLineError, import_tensorflow

CLI = CommandLine(
    "-m bert_tf.cli.serve",
    __doc__,
    "python -m bert_tf.cli.serve --model_dir=mrpc_output --port=8501",
)
with CLI.group("Model"):
    CLI.string("model_dir", None, "Folder of a trained model: an --output_dir.")
    CLI.string("model_name", None, "Its name in addresses; by default the folder's.")
with CLI.group("Address"):
    CLI.integer("port", 8501, "Port; 0 takes a free one.", 0)
    CLI.string(
        "host",
        "127.0.0.1",
        "Address to listen at. By default only this machine can connect; 0.0.0.0 lets everyone on "
        "the network, and there are no passwords.",
    )
with CLI.group("Limits"):
    CLI.integer("batch_size", 32, "Instances that are computed together.", 1)
    CLI.integer("max_waiting", 512, "Instances that may wait; further requests get a 503.", 1)
    CLI.integer("max_instances", 128, "Instances of a request.", 1)
    CLI.integer("max_characters", 20_000, "Characters of a text.", 1)
    CLI.integer("max_body_bytes", 1_000_000, "Bytes of a request's body.", 1)
    CLI.float("timeout", 60.0, "Seconds until an answer; a request that takes longer gets a 504.")

# Computed once before the service begins: the first time costs seconds.
WARM_UP: dict[str, dict[str, Any]] = {
    "classification": {"text": "Hello."},
    "multilabel": {"text": "Hello."},
    "regression": {"text": "Hello."},
    "tagging": {"tokens": ["Hello"]},
    "choice": {"context": "Hello.", "choices": ["Yes.", "No."]},
    "question_answering": {"question": "Who?", "context": "Hello."},
    "masked_lm": {"text": "Hello [MASK]."},
}


def main(argv: Sequence[str]) -> None:
    """Runs the command until a signal ends it."""
    flags = CLI.parse(argv)
    CLI.require([] if flags.model_dir else [("model_dir", "the trained model")])
    if flags.port > 65535:
        raise CommandLineError(f"--port={flags.port}: a port is at most 65535")
    if flags.timeout <= 0:
        raise CommandLineError(f"--timeout={flags.timeout}: give more than 0 seconds")
    if flags.max_waiting < flags.max_instances:
        raise CommandLineError(
            f"--max_waiting={flags.max_waiting} is less than --max_instances="
            f"{flags.max_instances}: a request of so many would never be taken"
        )
    name = flags.model_name or default_name(flags.model_dir)
    if not re.fullmatch(r"(?!\.+$)[\w.-]+", name):
        raise CommandLineError(
            f"--model_name={name}: a name in an address has letters, digits, '_', '-' and '.' only"
        )
    app, server = _import_service()
    with listen(flags.host, flags.port) as bound:
        import_tensorflow()

        from bert_tf import predictor

        start = time.perf_counter()
        model = predictor.load(flags.model_dir, batch_size=flags.batch_size)
        model.predict_instances([WARM_UP[model.kind]])
        limits = app.Limits(
            body_bytes=flags.max_body_bytes,
            instances=flags.max_instances,
            characters=flags.max_characters,
            waiting=flags.max_waiting,
            batch=flags.batch_size,
            timeout=flags.timeout,
        )
        print(f"Loaded {flags.model_dir} in {time.perf_counter() - start:.1f} s.", flush=True)
        server.serve(app.make_app(model, name, limits), bound, name, model.kind, limits.timeout)


def default_name(model_dir: str) -> str:
    """Returns the folder's name with what does not belong into an address replaced."""
    folder = model_dir if paths.has_scheme(model_dir) else os.path.abspath(model_dir)
    return re.sub(r"[^\w.-]", "_", paths.basename(folder.rstrip("/"))).lstrip(".") or "model"


def _import_service() -> tuple[Any, Any]:
    """Imports the application and its server, which need the extra; says so."""
    try:
        from bert_tf.serving import app, server
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("bert_tf"):
            raise
        raise ImportError(
            f"The service needs starlette and uvicorn ({error}): pip install -e '.[serve]'"
        ) from None
    return app, server


def listen(host: str, port: int) -> socket.socket:
    """Reserves an address; connections are taken later, when the model is there.

    Raises:
      OSError: the address is not this machine's, is taken, or needs rights; names it.
    """
    where = f"--host={host} --port={port}"
    try:
        # asyncio sets TCP_NODELAY only where the protocol is given by its number; without it an
        # answer takes 40 ms more.
        found = socket.getaddrinfo(
            host, port, 0, socket.SOCK_STREAM, socket.IPPROTO_TCP, socket.AI_PASSIVE
        )
    except (OSError, UnicodeError) as error:
        raise OSError(f"{where}: no such address: {error}") from None
    family, kind, protocol, _, address = found[0]
    bound = socket.socket(family, kind, protocol)
    try:
        # A server that has just ended leaves its port waiting.
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except OSError as error:
        bound.close()
        raise OSError(f"{where}: {error.strerror}. Give another --port, or 0.") from None
    return bound


if __name__ == "__main__":
    CLI.run(main)
