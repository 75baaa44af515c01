"""Runs the application until a signal ends it."""

import signal
import socket
from typing import Any

import uvicorn

# How long a request may still run when the server is to end, over its own timeout.
_GRACE_SECONDS = 5
# The root logger's lines, which the scripts use, leave tracebacks out.
_LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"lines": {"format": "%(asctime)s %(levelname)s %(message)s"}},
    "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "lines"}},
    "loggers": {
        name: {"handlers": ["stderr"], "level": "WARNING", "propagate": False}
        for name in ("uvicorn", "bert_tf.serving")
    },
}


class _Server(uvicorn.Server):
    """Says where it can be found, once it can be."""

    def __init__(self, config: uvicorn.Config, lines: list[str]):
        super().__init__(config)
        self._lines = lines

    async def startup(self, sockets: Any = None) -> None:
        await super().startup(sockets)
        print("\n".join(self._lines), flush=True)


def serve(app: Any, bound: socket.socket, name: str, kind: str, timeout: float) -> None:
    """Serves until SIGTERM or Ctrl-C, and answers what has come by then; again ends at once.

    Args:
      app: the application (see `bert_tf.serving.app.make_app`).
      bound: a socket that is bound, and does not listen yet.
      name, kind: the model's, for the lines that say where it is served.
      timeout: seconds that a request may take.
    """
    config = uvicorn.Config(
        app,
        log_config=_LOGGING,
        log_level="warning",
        access_log=False,
        server_header=False,
        lifespan="on",
        ws="none",
        timeout_graceful_shutdown=int(timeout) + _GRACE_SECONDS,
    )
    host, port = bound.getsockname()[:2]
    place = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    lines = [
        f"Serving {name} ({kind.replace('_', ' ')}). Ctrl-C ends it.",
        f"Page: {place}/",
        f"API:  POST {place}/v1/models/{name}:predict",
    ]
    for number in (signal.SIGINT, signal.SIGTERM):
        # uvicorn handles them while it runs, and at its end raises them once more.
        signal.signal(number, lambda *_: None)
    _Server(config, lines).run(sockets=[bound])
    print("Ended.", flush=True)
