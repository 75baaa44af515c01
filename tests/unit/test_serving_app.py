"""The application over HTTP, with predictors that need no model."""

import json
import logging
import re
import socket
import threading
import time

import pytest
from serving_fake import FIELDS, Client, Fake, running

from bert_tf.serving.app import Limits, make_app

PREDICT = "/v1/models/tiny:predict"
LIMITS = Limits(body_bytes=5000, instances=4, characters=300, waiting=6, batch=2, timeout=30)


@pytest.fixture(scope="module")
def fake():
    return Fake()


@pytest.fixture(scope="module")
def port(fake):
    with running(make_app(fake, "tiny", LIMITS)) as port:
        yield port


@pytest.fixture
def client(port):
    return Client(port)


def post(client, body):
    """Returns status and error of a body; checks that nothing of the code is shown."""
    status, headers, content = client.ask("POST", PREDICT, body)
    assert headers["Content-Type"] == "application/json"
    assert list(content) == ["error"]
    assert "Traceback" not in content["error"]
    return status, content["error"]


# What is right.


def test_predictions_in_order(client, fake):
    texts = ["a good day", "a bad day", "a day", "good and bad"]
    status, content = client.predict(*({"text": text} for text in texts))
    assert status == 200
    assert list(content) == ["predictions"]
    assert content["predictions"] == [fake.classification({"text": text}) for text in texts]


def test_the_request_forms_of_tf_serving(client, fake):
    expected = {"predictions": [fake.classification({"text": "é"})]}
    for body in (
        b'{"instances": [{"text": "\\u00e9"}]}',
        '{"instances": [{"text": "é"}], "signature_name": "serving_default"}'.encode(),
        '\ufeff {"signature_name": "", "instances": [{"text": "é"}]}\n'.encode(),
    ):
        assert client.ask("POST", PREDICT, body)[::2] == (200, expected)
    headers = {"Content-Type": "application/x-www-form-urlencoded"}  # What curl -d sends.
    assert client.ask("POST", PREDICT, body, **headers)[0] == 200


def test_a_body_in_chunks(client):
    body = json.dumps({"instances": [{"text": "good"}]}).encode()
    chunks = iter([body[:5], body[5:]])
    assert client.ask("POST", PREDICT, chunks)[0] == 200


@pytest.mark.parametrize("text", ["echo 😀 é 한 مرحبا \u2028\u0000", "echo \ud800 half"])
def test_odd_unicode_comes_back(client, text):
    status, content = client.predict({"text": text})
    assert status == 200
    assert text in content["predictions"][0]["probabilities"]


def test_status_and_health(client):
    status, _, content = client.ask("GET", "/v1/models/tiny")
    assert status == 200
    version = {
        "version": "1",
        "state": "AVAILABLE",
        "status": {"error_code": "OK", "error_message": ""},
    }
    assert content["model_version_status"] == [version]
    assert content["kind"] == "classification"
    assert content["limits"]["instances"] == 4
    assert client.ask("GET", "/healthz")[::2] == (200, {"status": "ok"})


# What is wrong.


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", ["no JSON", '{"instances": [...]}']),
        (b"{", ["no JSON", '{"instances": [...]}']),
        (b'{"instances": [{"text": "\xff"}]}', ["no JSON"]),
        (b'{"instances": [' + b"9" * 4900 + b"]}", ["no JSON"]),
        (b"[" * 4900, ["nested"]),
        (b"[1]", ["must be an object"]),
        (b"{}", ["instances is missing"]),
        (b'{"inputs": {"text": ["a"]}}', ["inputs", "rows"]),
        (b'{"instances": [{"text": "a"}], "more": 1}', ["'more'"]),
        (b'{"instances": [{"text": "a"}], "signature_name": "x"}', ["signature_name"]),
        (b'{"instances": {"text": "a"}}', ["instances must be a list"]),
        (b'{"instances": []}', ["one or more"]),
        (b'{"instances": [{"text": "a"}, "b"]}', ["instances[1]: an instance is an object"]),
        (b'{"instances": [{"text": "a"}, {"text": 5}]}', ["instances[1]: text must be"]),
        (b'{"instances": [{"txt": "a"}]}', ["instances[0]: unknown field 'txt'", "text_pair"]),
        (b'{"instances": [{}]}', ["instances[0]: text is missing"]),
        (b'{"instances": [1, 2, 3, 4, 5]}', ["5 of them", "limit is 4"]),
    ],
)
def test_bad_requests(client, fake, body, words):
    before = len(fake.batches)
    status, error = post(client, body)
    assert status == 400
    for word in words:
        assert word in error
    assert len(fake.batches) == before


def test_a_text_that_is_too_long(client):
    ok = {"text": "é" * 300}
    assert client.predict(ok)[0] == 200
    status, content = client.predict(ok, {"text": "a", "text_pair": "é" * 301})
    assert status == 400
    assert content["error"] == "instances[1].text_pair: 301 characters; the limit is 300."


@pytest.mark.parametrize("times", [1, 20])
def test_a_body_that_is_too_large(client, times):
    status, error = post(client, b" " * (LIMITS.body_bytes * times + 1))
    assert status == 413
    assert "5,000 bytes" in error


def test_a_large_body_is_read_to_its_end():
    # Else the client would be cut off while it sends, and not see the answer.
    with running(make_app(Fake(), "tiny", Limits(body_bytes=1_000_000))) as port:
        assert post(Client(port), b" " * 15_000_000)[0] == 413


def test_an_encoded_body(client):
    status, _, content = client.ask("POST", PREDICT, b"x", **{"Content-Encoding": "gzip"})
    assert status == 415
    assert "gzip" in content["error"]


@pytest.mark.parametrize(
    ("method", "path", "status", "word"),
    [
        ("GET", "/nothing", 404, "/nothing"),
        ("GET", "/page/app.py", 404, "/page/app.py"),
        ("GET", "/page/..%2Fapp.py", 404, "nothing at"),
        ("GET", "/v1/models/other", 404, "'tiny'"),
        ("POST", "/v1/models/other:predict", 404, "'tiny'"),
        ("GET", PREDICT, 405, "GET"),
        ("POST", "/v1/models/tiny", 405, "POST"),
        ("DELETE", "/", 405, "DELETE"),
    ],
)
def test_wrong_addresses(client, method, path, status, word):
    found, _, content = client.ask(method, path)
    assert found == status
    assert word in content["error"]


def test_a_model_that_fails_says_so_in_the_log_only(client, caplog):
    with caplog.at_level(logging.ERROR):
        status, content = client.predict({"text": "boom"})
    assert status == 500
    assert "secret" not in content["error"]
    # The answer comes before the log's line.
    wait_until(lambda: "secret place in the code" in caplog.text)
    assert client.predict({"text": "good"})[0] == 200


def test_a_number_that_json_has_not(client, caplog):
    with caplog.at_level(logging.ERROR):
        assert client.predict({"text": "nan"})[0] == 500
    assert client.predict({"text": "good"})[0] == 200


def test_a_client_that_goes_away(client, port):
    with socket.create_connection(("127.0.0.1", port)) as gone:
        gone.sendall(
            f"POST {PREDICT} HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\n{{".encode()
        )
    assert client.predict({"text": "good"})[0] == 200


def test_choices_count_as_instances():
    with running(make_app(Fake("choice"), "tiny", LIMITS)) as port:
        client = Client(port)
        two = {"context": "a", "choices": ["b", "c"]}
        assert client.predict(two, two)[0] == 200
        status, content = client.predict(two, two, {"context": "a", "choices": ["b"]})
        assert status == 400
        assert content["error"] == "instances: 5 choices; the limit is 4 a request."
        status, content = client.predict({"context": "a", "choices": ["b" * 100] * 3})
        assert status == 400
        assert "instances[0].choices: 303 characters" in content["error"]


# Waiting.


@pytest.fixture
def held():
    """A fake that is held back in its first batch, its port, and how many wait there."""
    fake = Fake()
    fake.hold.clear()
    limits = Limits(instances=4, waiting=6, batch=2, timeout=30)
    app = make_app(fake, "tiny", limits)
    with running(app) as port:
        first = Asking(port, {"text": "first"})
        assert fake.entered.acquire(timeout=60)
        yield fake, port, lambda: app.state.batcher.waiting
        fake.hold.set()
        assert first.result()[0] == 200


class Asking(threading.Thread):
    """A request in a thread."""

    def __init__(self, port, *instances):
        super().__init__()
        self._asked = port, instances
        self.start()

    def run(self):
        port, instances = self._asked
        self.answer = Client(port).predict(*instances)

    def result(self):
        self.join(60)
        return self.answer


def wait_until(true):
    end = time.monotonic() + 60
    while not true():
        assert time.monotonic() < end
        time.sleep(0.005)


def test_requests_that_wait_are_batched_and_a_full_queue_refuses(held):
    fake, port, waiting = held
    client = Client(port)
    texts = [f"text {number}" for number in range(6)]
    asking = []
    for text in texts:
        asking.append(Asking(port, {"text": text}))
        wait_until(lambda: waiting() == len(asking))
    status, headers, content = client.ask("POST", PREDICT, b'{"instances": [{"text": "a"}]}')
    assert status == 503
    assert headers["Retry-After"] == "1"
    assert "6 instances wait" in content["error"]
    assert client.ask("GET", "/healthz")[0] == 200
    assert client.predict({"text": 5})[0] == 400  # Refused for what it is, not for the queue.
    fake.hold.set()
    for text, each in zip(texts, asking, strict=True):
        assert each.result() == (200, {"predictions": [fake.classification({"text": text})]})
    pairs = [[{"text": text} for text in texts[at : at + 2]] for at in (0, 2, 4)]
    assert fake.batches[1:] == pairs


def test_one_failure_leaves_the_others_of_its_batch(held):
    fake, port, waiting = held
    good, bad = Asking(port, {"text": "good"}), Asking(port, {"text": "boom"})
    wait_until(lambda: waiting() == 2)
    fake.hold.set()
    assert good.result()[0] == 200
    assert bad.result()[0] == 500


def test_timeouts():
    fake = Fake()
    fake.hold.clear()
    with running(make_app(fake, "tiny", Limits(timeout=0.3))) as port:
        client = Client(port)
        first = client.predict({"text": "slow"})
        assert first == (504, {"error": "No answer within 0.3 seconds."})
        # This one waits behind the first, gives up, and is never computed.
        assert client.predict({"text": "late"})[0] == 504
        with socket.create_connection(("127.0.0.1", port), timeout=60) as slow:
            head = f"POST {PREDICT} HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\n{{"
            slow.sendall(head.encode())
            assert b" 408 " in slow.recv(1000)
        fake.hold.set()
        wait_until(lambda: client.predict({"text": "good"})[0] == 200)
    assert [{"text": "late"}] not in fake.batches


def test_what_is_in_flight_at_the_end_is_answered():
    def batchers():
        return sum(thread.name == "batcher" for thread in threading.enumerate())

    before = batchers()
    fake = Fake()
    fake.hold.clear()
    app = make_app(fake, "tiny")
    with running(app) as port:
        assert batchers() == before + 1
        asking = [Asking(port, {"text": "first"})]
        assert fake.entered.acquire(timeout=60)
        asking += [Asking(port, {"text": "second"}), Asking(port, {"text": "third"})]
        wait_until(lambda: app.state.batcher.waiting == 2)
        threading.Timer(0.3, fake.hold.set).start()
    assert [each.result()[0] for each in asking] == [200, 200, 200]
    assert batchers() == before


# The page.


@pytest.mark.parametrize("kind", list(FIELDS))
def test_the_page_has_the_form_of_the_kind(kind):
    with running(make_app(Fake(kind), "tiny")) as port:
        status, headers, content = Client(port).ask("GET", "/")
    assert status == 200
    assert headers["Content-Type"] == "text/html; charset=utf-8"
    text = content.decode()
    assert f'data-kind="{kind}"' in text
    templates = re.findall(r'<template data-kinds="([^"]*)">(.*?)</template>', text, re.DOTALL)
    [form] = [body for kinds, body in templates if kind in kinds.split()]
    fields = set(re.findall(r' name="(\w+)"', form))
    # The page makes the inputs of choices, and cuts a text into tokens by spaces.
    assert fields == set(FIELDS[kind]) - {"choices", "tokens"}


def test_the_page_loads_nothing_from_elsewhere(client):
    _, headers, content = client.ask("GET", "/")
    assert headers["Content-Security-Policy"].startswith("default-src 'self';")
    loaded = re.findall(r'(?:src|href)="([^"]*)"', content.decode())
    assert sorted(loaded) == ["page/icon.svg", "page/page.js", "page/style.css"]
    for file in loaded:
        status, headers, data = client.ask("GET", f"/{file}")
        assert status == 200
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert not re.search(rb"https?://(?!www\.w3\.org/2000/svg)|@import|url\(", data)


def test_the_name_is_escaped():
    name = """a<b>'"&"""
    with running(make_app(Fake(), name)) as port:
        text = Client(port).ask("GET", "/")[2].decode()
        assert "<b>" not in text
        assert 'data-name="a&lt;b&gt;&#x27;&quot;&amp;"' in text


@pytest.mark.parametrize("name", ["", "a/b", "a:b", "..", "a?b"])
def test_names_that_do_not_do(name):
    with pytest.raises(ValueError, match="cannot be called"):
        make_app(Fake(), name)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"body_bytes": 0}, "body_bytes is 0"),
        ({"timeout": float("inf")}, "timeout is inf"),
        ({"waiting": 5}, "waiting is 5, less than the 128 instances"),
    ],
)
def test_wrong_limits(change, words):
    with pytest.raises(ValueError, match=words):
        Limits(**change)
