"""bert_tf.cli.json_lines, with a predictor that needs no model."""

import io
import json
import subprocess
import sys
import types

import pytest

from bert_tf.cli import json_lines
from bert_tf.cli.command_line import CommandLineError
from bert_tf.predictor import Predictor


class Echo(Predictor):
    """Says the text again, in capitals; takes no text "bad"."""

    kind = "echo"
    needed = ("text",)
    optional = ("more",)
    fields = "text and perhaps more"

    def __init__(self):
        self.sizes = []

    def _item(self, instance):
        found = self._object(instance)
        if found["text"] == "bad":
            raise ValueError("text is bad")
        return found["text"] + found.get("more", "")

    def _predict(self, items):
        self.sizes.append(len(items))
        return [{"said": item.upper()} for item in items]


def flags(**values):
    return types.SimpleNamespace(**({"input_file": None, "output_file": None} | values))


def test_flags_of_files(tmp_path):
    path = tmp_path / "in.jsonl"
    path.write_text("{}")
    json_lines.check_files(flags())
    json_lines.check_files(flags(input_file=str(path), output_file=str(tmp_path / "out")))
    json_lines.check_files(flags(input_file="-", output_file=str(tmp_path / "out")))
    for values, words in (
        ({"output_file": "out"}, "--output_file needs --input_file"),
        ({"input_file": str(tmp_path)}, "is a folder; name a file"),
        ({"input_file": str(tmp_path / "none")}, "none: there is no such file"),
        ({"input_file": str(path), "output_file": str(tmp_path)}, "is a folder; name a file"),
        ({"input_file": str(path), "output_file": str(tmp_path / "x/../in.jsonl")}, "is --input"),
    ):
        (tmp_path / "x").mkdir(exist_ok=True)
        with pytest.raises(CommandLineError, match=words):
            json_lines.check_files(flags(**values))


@pytest.mark.parametrize(
    "name",
    [
        "vocab.txt",
        "task.json",
        "bert_config.json",
        "checkpoint",
        "model.ckpt-5.index",
        "model.ckpt-5.data-00000-of-00001",
        "model.safetensors",
        "pytorch_model.bin",
    ],
)
def test_results_do_not_replace_a_file_of_a_model(tmp_path, name):
    target = tmp_path / name
    wanted = flags(input_file="-", output_file=str(target))
    json_lines.check_files(wanted)  # none is there
    target.write_text("kept")
    with pytest.raises(CommandLineError, match="would replace a file of a model"):
        json_lines.check_files(wanted)
    link = tmp_path / "results.jsonl"
    link.symlink_to(target)
    with pytest.raises(CommandLineError, match="would replace a file of a model"):
        json_lines.check_files(flags(input_file="-", output_file=str(link)))


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{", ["is no JSON"]),
        ("[1]", ["must be an object", "[1]"]),
        ("null", ["must be an object", "null"]),
        ('{"text": NaN}', ["is no JSON: NaN is no number"]),
        ('{"id": 1e999, "text": "a"}', ["is no JSON: the number 1e999 is too large"]),
        ('{"id": -Infinity, "text": "a"}', ["is no JSON: -Infinity is no number"]),
        ('{"id": %s}' % ("9" * 5000), ["is no JSON", "4300 digits"]),
        ("[" * 100_000, ["is no JSON: nested too deeply"]),
        ('{"more": "a"}', ["the field text is missing", "text and perhaps more"]),
        ('{"text": "bad"}', ["text is bad"]),
    ],
)
def test_bad_lines(tmp_path, line, words):
    path, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    good = json.dumps({"text": "a"})
    path.write_text(f"{good}\n\n{line}\n{good}\n")
    target.write_text("old\n")
    with pytest.raises(ValueError) as error:
        json_lines.predict_file(Echo(), str(path), str(target))
    assert str(error.value).startswith(f"{path}: line 3")
    assert len(str(error.value)) < 300 + len(str(path))
    for word in words:
        assert word in str(error.value)
    assert target.read_text() == "old\n"
    assert sorted(each.name for each in tmp_path.iterdir()) == ["in.jsonl", "out.jsonl"]


def test_lines_that_are_not_utf_8(tmp_path):
    path = tmp_path / "in.jsonl"
    path.write_bytes('{"text": "là"}\n'.encode("latin-1"))
    with pytest.raises(ValueError, match=r"in\.jsonl is not UTF-8 text"):
        json_lines.predict_file(Echo(), str(path), None)


def test_lines_in_their_order(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(json_lines, "_POOL", 4)
    items = [{"id": n, "text": f"船{n}", "more": "!", "label": "x"} for n in range(9)]
    del items[5]["id"], items[5]["more"]
    items[6]["more"] = None
    items[7]["id"] = {"a": [2**70, "\ud800"]}
    source, target = tmp_path / "in.jsonl", tmp_path / "new" / "out.jsonl"
    lines = "\n \n".join(map(json.dumps, items))
    source.write_text("\ufeff" + lines, encoding="utf-8")
    echo = Echo()
    json_lines.predict_file(echo, str(source), str(target), kept=("text", "none"))
    text = target.read_text(encoding="utf-8")
    assert text.endswith("\n")
    assert "船3" in text
    found = [json.loads(line) for line in text.splitlines()]
    for item, line in zip(items, found, strict=True):
        said = {"text": item["text"], "said": item["text"] + (item.get("more") or "")}
        assert line == ({"id": item["id"]} | said if "id" in item else said)
    assert echo.sizes == [4, 4, 1]
    # Once for all lines.
    assert [record.getMessage() for record in caplog.records] == [
        f"{source}: line 1: nothing is done with label"
    ]


def test_pools_of_long_texts_are_small(tmp_path, monkeypatch):
    monkeypatch.setattr(json_lines, "_POOL_SIZE", 100)
    source = tmp_path / "in.jsonl"
    sizes = [5, 5, 120, 5, 50, 50, 5]
    source.write_text("".join(json.dumps({"text": "a" * size}) + "\n" for size in sizes))
    echo = Echo()
    json_lines.predict_file(echo, str(source), str(tmp_path / "out.jsonl"))
    assert echo.sizes == [3, 3, 1]


def test_standard_input_and_output(monkeypatch, capsys):
    monkeypatch.setattr("sys.stdin", io.StringIO('{"text": "é"}\n'))
    json_lines.predict_file(Echo(), "-", None)
    assert capsys.readouterr().out == '{"said": "É"}\n'
    monkeypatch.setattr("sys.stdin", io.StringIO("{\n"))
    with pytest.raises(ValueError, match=r"^standard input: line 1 is no JSON"):
        json_lines.predict_file(Echo(), "-", None)


def test_an_output_of_few_characters_gets_escapes(monkeypatch):
    """Not Python's, which would be no JSON."""
    monkeypatch.setattr("sys.stdin", io.StringIO('{"text": "é"}\n'))
    output = io.TextIOWrapper(io.BytesIO(), encoding="ascii", errors="backslashreplace")
    monkeypatch.setattr("sys.stdout", output)
    json_lines.predict_file(Echo(), "-", None)
    assert json.loads(output.buffer.getvalue()) == {"said": "É"}


# Lines of text.


def run_lines(monkeypatch, text):
    monkeypatch.setattr("sys.stdin", text if not isinstance(text, str) else io.StringIO(text))
    echo = Echo()
    json_lines.predict_lines(
        echo,
        lambda line: {"text": line},
        lambda result: f"<{result['said']}>",
        lambda result: result["said"],
        "text> ",
    )
    return echo


def test_a_pipe_gets_a_line_for_each(monkeypatch, capsys):
    monkeypatch.setattr(json_lines, "_POOL", 3)
    echo = run_lines(monkeypatch, "a\n\n \nb\x85 \u2028c\n\ud800\nd")
    assert capsys.readouterr().out.split("\n") == [
        "A", "", "", "B\x85 \u2028C", "\\ud800", "D", ""
    ]  # fmt: skip
    assert echo.sizes == [1, 3]
    run_lines(monkeypatch, "")
    assert capsys.readouterr().out == ""


def test_a_bad_line_of_a_pipe(monkeypatch, capsys):
    with pytest.raises(ValueError, match=r"^standard input: line 3: text is bad$"):
        run_lines(monkeypatch, "a\n\nbad\n")
    odd = io.TextIOWrapper(io.BytesIO(b"a\nl\xe0\n"), encoding="ascii")
    with pytest.raises(ValueError, match=r"^standard input is not UTF-8 text"):
        run_lines(monkeypatch, odd)
    good = io.TextIOWrapper(io.BytesIO("\ufeffé\r\nb".encode()), encoding="ascii")
    run_lines(monkeypatch, good)
    assert capsys.readouterr().out.endswith("É\nB\n")


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize("shown", [True, False])
def test_a_terminal_is_asked(monkeypatch, capsys, shown):
    """A bad line does no harm; the prompt is not among what goes to a file."""
    answers = iter(["a", " ", "bad", "b"])
    prompts = []

    def reply(prompt):
        prompts.append(prompt)
        try:
            return next(answers)
        except StopIteration:
            raise EOFError from None

    monkeypatch.setattr("builtins.input", reply)
    if shown:
        monkeypatch.setattr("sys.stdout", Terminal())
    run_lines(monkeypatch, Terminal())
    captured = capsys.readouterr()
    out = sys.stdout.getvalue() if shown else captured.out
    assert out == "<A>\n<B>\n"
    assert "text is bad\n" in captured.err
    assert "instance" not in captured.err
    assert set(prompts) == {"text> " if shown else ""}
    assert captured.err.count("text> ") == (0 if shown else 5)


def test_an_output_that_was_closed():
    """As `head` does: no traceback, and the status of a command that a pipe ended."""
    code = (
        "import sys\n"
        "sys.path.insert(0, sys.argv.pop())\n"
        "from test_json_lines import Echo\n"
        "from bert_tf.cli import json_lines\n"
        "from bert_tf.cli.command_line import CommandLine\n"
        "def main(argv):\n"
        "    json_lines.predict_file(Echo(), '-', None)\n"
        "CommandLine('-m echo', '', '').run(main)\n"
    )
    folder = __file__.rpartition("/")[0]
    command = [sys.executable, "-c", code, folder]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe) as process:
        process.stdin.write(b'{"text": "a"}\n' * 300)
        process.stdin.flush()
        assert json.loads(process.stdout.readline()) == {"said": "A"}
        process.stdout.close()
        errors = b""
        try:
            process.stdin.write(b'{"text": "a"}\n' * 20_000)
            process.stdin.close()
        except BrokenPipeError:
            pass
        errors = process.stderr.read()
        assert process.wait(60) == 141
    assert errors == b""
