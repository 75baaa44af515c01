"""bert_tf.cli.serve: its flags, and the process with a predictor that needs no model."""

import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import threading

import pytest
import script_flags
from predictor_folders import INSTANCES, KINDS, write_folder
from serving_fake import Client, running

import bert_tf.serving
from bert_tf.cli import serve
from bert_tf.cli.command_line import CommandLineError

TESTS = pathlib.Path(__file__).parents[1]
# Runs the command with a fake in the place of the model; a text of "slow" takes half a second.
DRIVER = f"""
import sys, time, types
sys.path[:0] = [{str(TESTS)!r}, {str(TESTS.parent)!r}]
from serving_fake import Fake
from bert_tf.cli import serve

class Slow(Fake):
    def predict_instances(self, instances):
        if {{"text": "slow"}} in instances:
            print("computing", flush=True)
            time.sleep(0.5)
        return super().predict_instances(instances)

sys.modules["bert_tf.predictor"] = types.SimpleNamespace(load=lambda *_, **__: Slow())
import bert_tf
bert_tf.predictor = sys.modules["bert_tf.predictor"]
serve.import_tensorflow = lambda: None
serve.CLI.run(serve.main)
"""


class Process:
    """The command in a process of its own; its lines up to the one about the API are read."""

    def __init__(self, *command):
        self.process = subprocess.Popen(
            [sys.executable, *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self.lines = []
        for line in self.process.stdout:
            self.lines.append(line)
            if line.startswith("API:"):
                self.port = int(re.search(r":(\d+)/v1", line)[1])
                break

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()


def command(*flags):
    serve.main(["serve", *map(str, flags)])


def test_every_flag_is_in_the_help(capsys):
    script_flags.check_help(serve, capsys)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ([], ["--model_dir"]),
        (["--model_dir=m", "--port=65536"], ["--port=65536", "65535"]),
        (["--model_dir=m", "--port=-1"], ["port"]),
        (["--model_dir=m", "--timeout=0"], ["--timeout=0.0"]),
        (["--model_dir=m", "--max_waiting=5"], ["--max_waiting=5", "--max_instances=128"]),
        (["--model_dir=m", "--max_characters=0"], ["max_characters"]),
        (["--model_dir=m", "--model_name=a/b"], ["--model_name=a/b"]),
        (["--model_dir=m", "--model_name=.."], ["--model_name=.."]),
    ],
)
def test_wrong_flags(flags, words):
    with pytest.raises(CommandLineError) as error:
        command(*flags)
    for word in words:
        assert word in str(error.value)


@pytest.mark.parametrize(
    ("folder", "name"),
    [
        ("runs/mrpc_output", "mrpc_output"),
        ("runs/mrpc_output/", "mrpc_output"),
        ("gs://bucket/my run: 2/", "my_run__2"),
        ("/", "model"),
    ],
)
def test_the_name_is_the_folder_s(folder, name):
    assert serve.default_name(folder) == name


def test_the_name_of_here(monkeypatch, tmp_path):
    (tmp_path / ".best").mkdir()
    monkeypatch.chdir(tmp_path / ".best")
    assert serve.default_name(".") == "best"


def test_a_port_that_is_taken():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match=rf"--port={port}: .*in use.*another --port"):
            command("--model_dir=m", f"--port={port}")


def test_answers_are_not_held_back_by_tcp():
    with serve.listen("127.0.0.1", 0) as bound:
        assert bound.proto == socket.IPPROTO_TCP  # asyncio looks at this.


def test_an_address_that_is_none():
    with pytest.raises(OSError, match=r"--host=no\.such\.host\.invalid .*no such address"):
        command("--model_dir=m", "--host=no.such.host.invalid")


def test_without_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    monkeypatch.delitem(sys.modules, "bert_tf.serving.server", raising=False)
    monkeypatch.delattr(bert_tf.serving, "server", raising=False)
    with pytest.raises(ImportError, match=r"uvicorn.*pip install -e '\.\[serve\]'"):
        command("--model_dir=m")


def test_a_folder_that_is_no_run(tmp_path):
    with pytest.raises((FileNotFoundError, ValueError), match=re.escape(str(tmp_path))):
        command(f"--model_dir={tmp_path}", "--port=0")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_after_the_requests_in_flight(number):
    flags = ["--model_dir=some/tiny", "--port=0", "--batch_size=1"]
    with Process("-c", DRIVER, *flags) as server:
        client = Client(server.port)
        assert server.lines[-3:] == [
            "Serving tiny (classification). Ctrl-C ends it.\n",
            f"Page: http://127.0.0.1:{server.port}/\n",
            f"API:  POST http://127.0.0.1:{server.port}/v1/models/tiny:predict\n",
        ]
        answers = []
        asking = threading.Thread(target=lambda: answers.append(client.predict({"text": "slow"})))
        asking.start()
        assert server.process.stdout.readline() == "computing\n"
        os.kill(server.process.pid, number)
        asking.join(60)
        out, errors = server.process.communicate(timeout=60)
        assert [status for status, _ in answers] == [200]
        assert server.process.returncode == 0, errors
        assert out == "Ended.\n"
        assert errors == ""
        with pytest.raises(ConnectionRefusedError):
            client.ask("GET", "/healthz")


def test_a_failure_s_traceback_is_in_the_log():
    with Process("-c", DRIVER, "--model_dir=tiny", "--port=0") as server:
        status, content = Client(server.port).predict({"text": "boom"})
        assert status == 500
        assert "secret" not in content["error"]
        server.process.terminate()
        _, errors = server.process.communicate(timeout=60)
    assert "Traceback" in errors
    assert "RuntimeError: secret place in the code" in errors


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_served(kind, tmp_path, monkeypatch):
    from bert_tf import predictor
    from bert_tf.serving import server

    loaded = []
    real = predictor.load
    monkeypatch.setattr(
        predictor, "load", lambda *a, **k: loaded.append(real(*a, **k)) or loaded[0]
    )
    served = []

    def ask(app, bound, *_):
        with running(app) as port:
            client = Client(port)
            served.append(client.predict(INSTANCES[kind], INSTANCES[kind]))
            served.append(client.predict(INSTANCES[kind] | {"more": 1}))

    monkeypatch.setattr(server, "serve", ask)
    command(f"--model_dir={write_folder(tmp_path / 'tiny', kind)}", "--port=0")
    (status, content), (wrong, refusal) = served
    assert status == 200
    assert content == {"predictions": loaded[0].predict_instances([INSTANCES[kind]] * 2)}
    assert wrong == 400
    assert "instances[0]" in refusal["error"]
    assert "more" in refusal["error"]
