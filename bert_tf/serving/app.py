"""The web application: a page for people, and a JSON API with TF Serving's request form.

    GET  /                               the page
    GET  /healthz                        {"status": "ok"}
    GET  /v1/models/<name>               the model's status
    POST /v1/models/<name>:predict       {"instances": [...]} -> {"predictions": [...]}

What an instance and a prediction are depends on the model's kind; see `bert_tf.predictor.load`.
Every error is {"error": "..."}.
"""

import asyncio
import contextlib
import dataclasses
import html
import importlib.resources
import json
import math
from collections.abc import AsyncIterator
from typing import Any, Protocol

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from bert_tf.serving.batching import Batcher, QueueFull, Stopped

_PAGE_FILES = {"page.js": "text/javascript", "style.css": "text/css", "icon.svg": "image/svg+xml"}
# The page works without anything from elsewhere, and the browser holds it to that.
_PAGE_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; frame-ancestors 'self'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-cache",
}
# A client that sends too much is listened to this much longer, so that it can read the answer.
_DRAINED = 16
_RETRY_AFTER = "1"


class Predictor(Protocol):
    """What the service needs of a model; see `bert_tf.predictor.load`."""

    @property
    def kind(self) -> str: ...

    def check(self, instance: Any) -> None: ...

    def predict_instances(self, instances: list[Any]) -> list[dict[str, Any]]: ...


@dataclasses.dataclass(frozen=True)
class Limits:
    """What a client may ask for.

    Attributes:
      body_bytes: bytes of a request's body.
      instances: instances of a request; of a choice model, choices.
      characters: characters of a text; of a list of strings, of all together, each with one more.
      waiting: instances that wait for their batch, of all requests.
      batch: instances of a batch.
      timeout: seconds until an answer, and until a body has arrived.

    Raises:
      ValueError: a number is not above 0.
    """

    body_bytes: int = 1_000_000
    instances: int = 128
    characters: int = 20_000
    waiting: int = 512
    batch: int = 32
    timeout: float = 60.0

    def __post_init__(self) -> None:
        for name, value in dataclasses.asdict(self).items():
            if not (value > 0 and math.isfinite(value)):
                raise ValueError(f"{name} is {value}; it must be above 0.")
        if self.waiting < self.instances:
            raise ValueError(
                f"waiting is {self.waiting}, less than the {self.instances} instances of one "
                "request: such a request would never be taken."
            )


class _Refused(Exception):
    """An answer that is an error: its status and what to tell the client."""

    def __init__(self, status: int, message: str, headers: dict[str, str] | None = None):
        super().__init__(message)
        self.status = status
        self.headers = headers


class _Json(Response):
    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        try:
            return json.dumps(content, ensure_ascii=False, allow_nan=False).encode()
        except UnicodeEncodeError:  # Half of a surrogate pair, which the request held.
            return json.dumps(content, allow_nan=False).encode()


def _error(status: int, message: str, headers: Any = None) -> Response:
    return _Json({"error": message}, status, headers)


async def _body(request: Request, limits: Limits) -> bytes:
    """Reads a request's body; raises _Refused."""
    encoding = request.headers.get("content-encoding", "identity")
    if encoding != "identity":
        raise _Refused(415, f"The body is encoded as {encoding:.40}; send it as it is.")
    parts = []
    size = 0
    try:
        async with asyncio.timeout(limits.timeout):
            async for part in request.stream():
                size += len(part)
                if size <= limits.body_bytes:
                    parts.append(part)
                elif size > _DRAINED * limits.body_bytes:
                    break
    except TimeoutError:
        raise _Refused(
            408,
            f"The body has not arrived within {limits.timeout:g} seconds.",
            {"Connection": "close"},
        ) from None
    if size > limits.body_bytes:
        raise _Refused(
            413,
            f"The body is larger than {limits.body_bytes:,} bytes. Send fewer instances a request.",
            {"Connection": "close"},
        )
    return b"".join(parts)


def _instances(body: bytes, predictor: Predictor, limits: Limits) -> list[Any]:
    """Reads and checks the instances of a body; raises _Refused."""
    wanted = '{"instances": [...]}'
    try:
        content = json.loads(body)
    except RecursionError:
        raise _Refused(400, "The body is nested too deeply.") from None
    except ValueError as error:  # No UTF-8, no JSON, or a number of thousands of digits.
        raise _Refused(400, f"The body is no JSON: {error}. Send {wanted}.") from None
    if not isinstance(content, dict):
        raise _Refused(400, f"The body must be an object: {wanted}.")
    if "inputs" in content:
        raise _Refused(
            400,
            f'"inputs", the form by columns, is not supported: send {wanted}, the form by rows.',
        )
    if unknown := [key for key in content if key not in ("instances", "signature_name")]:
        raise _Refused(400, f"Unknown field {unknown[0]!r:.60}: send {wanted}.")
    if content.get("signature_name", "serving_default") not in ("", "serving_default"):
        raise _Refused(
            400, 'signature_name: this model has one signature, "serving_default"; leave it out.'
        )
    if "instances" not in content:
        raise _Refused(400, f"instances is missing: send {wanted}.")
    instances = content["instances"]
    if not isinstance(instances, list) or not instances:
        raise _Refused(400, "instances must be a list of one or more instances.")
    if len(instances) > limits.instances:
        raise _Refused(
            400,
            f"instances: {len(instances):,} of them; the limit is {limits.instances:,} a request.",
        )
    costs = 0
    for number, instance in enumerate(instances):
        if isinstance(instance, dict):
            for field, value in instance.items():
                _check_size(f"instances[{number}].{field:.40}", value, limits)
        try:
            predictor.check(instance)
        except (ValueError, TypeError) as error:
            raise _Refused(400, f"instances[{number}]: {error}") from None
        costs += len(instance["choices"]) if predictor.kind == "choice" else 1
    if costs > limits.instances:  # Each choice is read with the whole context.
        raise _Refused(
            400, f"instances: {costs:,} choices; the limit is {limits.instances:,} a request."
        )
    return instances


def _check_size(where: str, value: Any, limits: Limits) -> None:
    if isinstance(value, list):
        size = len(value) + sum(len(item) for item in value if isinstance(item, str))
    else:
        size = len(value) if isinstance(value, str) else 0
    if size > limits.characters:
        raise _Refused(400, f"{where}: {size:,} characters; the limit is {limits.characters:,}.")


def _page(name: str, predictor: Predictor, limits: Limits) -> tuple[str, dict[str, bytes]]:
    """Returns the page with the model's data in it, and the files that it loads."""
    folder = importlib.resources.files("bert_tf.serving") / "page"
    text = (folder / "index.html").read_text(encoding="utf-8")
    for key, value in (
        ("name", name),
        ("kind", predictor.kind),
        ("characters", str(limits.characters)),
    ):
        text = text.replace("{{" + key + "}}", html.escape(value, quote=True))
    return text, {file: (folder / file).read_bytes() for file in _PAGE_FILES}


def make_app(predictor: Predictor, name: str, limits: Limits | None = None) -> Starlette:
    """Makes the application of one model.

    Its batches are computed in a thread that starts with the application's lifespan and ends with
    it, when all that was taken is answered.

    Args:
      predictor: the model.
      name: what the model is called in addresses; without slashes and colons.
      limits: what a client may ask for.

    Raises:
      ValueError: the name does not do.
    """
    if not name or set(name) & set("/:?#%") or name in (".", ".."):
        raise ValueError(
            f"A model cannot be called {name!r} in an address: use letters and digits."
        )
    limits = limits or Limits()
    page, files = _page(name, predictor, limits)

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        batcher = Batcher(predictor.predict_instances, limits.batch, limits.waiting)
        app.state.batcher = batcher
        try:
            yield
        finally:
            await asyncio.to_thread(batcher.stop)

    def check_name(request: Request) -> None:
        asked = request.path_params["name"]
        if asked != name:
            raise _Refused(404, f"There is no model {asked!r:.80} here; this one is {name!r}.")

    async def show_page(request: Request) -> Response:
        return Response(page, media_type="text/html", headers=_PAGE_HEADERS)

    async def page_file(request: Request) -> Response:
        file = request.path_params["file"]
        if file not in files:
            raise HTTPException(404)
        return Response(files[file], media_type=_PAGE_FILES[file], headers=_PAGE_HEADERS)

    async def health(request: Request) -> Response:
        if not request.app.state.batcher.alive:
            return _error(503, "The service is stopping.")
        return _Json({"status": "ok"})

    async def status(request: Request) -> Response:
        if request.path_params["name"].endswith(":predict"):
            raise HTTPException(405, headers={"Allow": "POST"})
        check_name(request)
        state = {"error_code": "OK", "error_message": ""}
        return _Json(
            {
                "model_version_status": [{"version": "1", "state": "AVAILABLE", "status": state}],
                "kind": predictor.kind,
                "limits": dataclasses.asdict(limits),
            }
        )

    async def predict(request: Request) -> Response:
        check_name(request)
        instances = _instances(await _body(request, limits), predictor, limits)
        try:
            future = asyncio.wrap_future(request.app.state.batcher.submit(instances))
        except (QueueFull, Stopped) as error:
            raise _Refused(503, str(error), {"Retry-After": _RETRY_AFTER}) from None
        try:
            # On time-out the future is cancelled, and what of it waits is not computed.
            results = await asyncio.wait_for(future, limits.timeout)
        except TimeoutError:
            raise _Refused(
                504, f"No answer within {limits.timeout:g} seconds.", {"Retry-After": _RETRY_AFTER}
            ) from None
        return _Json({"predictions": results})

    async def refused(request: Request, error: Exception) -> Response:
        assert isinstance(error, _Refused)
        return _error(error.status, str(error), error.headers)

    async def http_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        message = {
            404: f"There is nothing at {request.url.path:.120}. See / and /v1/models/{name}.",
            405: f"{request.method} is not for {request.url.path:.120}.",
        }.get(error.status_code, error.detail)
        return _error(error.status_code, message, error.headers)

    async def gone(request: Request, error: Exception) -> Response:
        return _error(400, "The client went away.")

    async def failed(request: Request, error: Exception) -> Response:
        return _error(500, "The model failed on this request; the server's log says why.")

    return Starlette(
        routes=[
            Route("/", show_page),
            Route("/healthz", health),
            Route("/page/{file}", page_file),
            Route("/v1/models/{name}:predict", predict, methods=["POST"]),
            Route("/v1/models/{name}", status),
        ],
        exception_handlers={
            _Refused: refused,
            HTTPException: http_error,
            ClientDisconnect: gone,
            Exception: failed,
        },
        lifespan=lifespan,
    )
