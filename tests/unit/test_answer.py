"""bert_tf.cli.answer: its flags and files, with an answerer that needs no model."""

import io
import json
import subprocess
import sys

import pytest

from bert_tf.cli import answer
from bert_tf.cli.command_line import CommandLineError


class Echo:
    """Answers with the context's first word, or nothing."""

    def __init__(self):
        self.sizes = []

    def answer(self, questions):
        self.sizes.append(len(questions))
        return [
            {"answer": text.split()[0] if text.strip() else "", "nbest": []}
            for _, text in questions
        ]


def test_every_flag_is_in_the_help(capsys):
    with pytest.raises(SystemExit) as exit:
        answer.main(["answer", "--help"])
    assert exit.value.code == 0
    shown = capsys.readouterr().out
    for name in answer.CLI.flags:
        assert f"{name}\n" in shown


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ([], ["--model_dir", "--context", "--context_file", "--input_file"]),
        (["--model_dir=m", "--question=q"], ["--context, --context_file or --input_file"]),
        (["--context=c"], ["--model_dir"]),
        (
            ["--model_dir=m", "--context=c", "--context_file=f"],
            ["--context and --context_file", "not both"],
        ),
        (["--model_dir=m", "--input_file=f", "--context_file=f"], ["--context_file", "not both"]),
        (["--model_dir=m", "--input_file=f", "--question=q"], ["leave out --question"]),
        (["--model_dir=m", "--context=c", "--output_file=o"], ["--output_file", "--input_file"]),
        (["--model_dir=m", "--context=c", "--n_best_size=0"], ["n_best_size"]),
        (["--model_dir=m", "--context=c", "--batch_size=0"], ["batch_size"]),
    ],
)
def test_wrong_flags(flags, words):
    with pytest.raises(CommandLineError) as error:
        answer.main(["answer", *flags])
    for word in words:
        assert word in str(error.value)


def test_context_files_that_are_none(tmp_path):
    flags = ["answer", "--model_dir=m", "--question=q"]
    with pytest.raises(FileNotFoundError, match=r"none\.txt"):
        answer.main([*flags, f"--context_file={tmp_path / 'none.txt'}"])
    (tmp_path / "bad.txt").write_bytes(b"Kim\xff")
    with pytest.raises(ValueError, match=r"bad\.txt is not UTF-8 text"):
        answer.main([*flags, f"--context_file={tmp_path / 'bad.txt'}"])


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{", ["is no JSON"]),
        ("[1]", ["an object with a question and a context", "[1]"]),
        ('{"question": "Who?"}', ["an object with a question and a context", "Who?"]),
        ('{"question": "Who?", "context": 3}', ["both strings"]),
        ('{"question": ["Who?"], "context": "Kim"}', ["both strings"]),
        ("null", ["both strings", "null"]),
    ],
)
def test_bad_lines(tmp_path, line, words):
    path = tmp_path / "in.jsonl"
    good = json.dumps({"question": "Who?", "context": "Kim has hats."})
    path.write_text(f"{good}\n\n{line}\n{good}\n")
    with pytest.raises(ValueError) as error:
        list(answer.read_lines(str(path)))
    assert str(error.value).startswith(f"{path}: line 3 ")
    for word in words:
        assert word in str(error.value)


def test_lines_that_are_not_utf_8(tmp_path):
    path = tmp_path / "in.jsonl"
    path.write_bytes('{"question": "Où?", "context": "là"}\n'.encode("latin-1"))
    with pytest.raises(ValueError, match=r"in\.jsonl is not UTF-8 text"):
        list(answer.read_lines(str(path)))


def test_lines_in_their_order(tmp_path, monkeypatch):
    monkeypatch.setattr(answer, "_POOL", 4)
    items = [
        {"id": number, "question": f"q{number}", "context": f"船{number} is"} for number in range(9)
    ]
    del items[5]["id"]
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text("\n".join(map(json.dumps, items)), encoding="utf-8")
    echo = Echo()
    answer.answer_file(echo, str(source), str(target))
    text = target.read_text(encoding="utf-8")
    assert "船3" in text
    found = [json.loads(line) for line in text.splitlines()]
    for number, line in enumerate(found):
        expected = {"question": f"q{number}", "answer": f"船{number}", "nbest": []}
        assert line == (expected if number == 5 else {"id": number, **expected})
    assert echo.sizes == [4, 4, 1]


def test_standard_input_and_output(monkeypatch, capsys):
    line = json.dumps({"question": "Who?", "context": "Kim has hats."})
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{line}\n"))
    answer.answer_file(Echo(), "-", None)
    assert json.loads(capsys.readouterr().out)["answer"] == "Kim"
    monkeypatch.setattr("sys.stdin", io.StringIO("{\n"))
    with pytest.raises(ValueError, match=r"^-: line 1 is no JSON"):
        answer.answer_file(Echo(), "-", None)


def test_what_is_shown(capsys):
    nbest = [{"text": "Kim", "probability": 0.75}, {"text": "", "probability": 0.25}]
    answer.show({"answer": "", "nbest": nbest, "null_odds": 1.5})
    assert capsys.readouterr().out == (
        "(no answer)\n  0.7500  Kim\n  0.2500  (no answer)\n  no answer against the best: +1.50\n"
    )


def test_a_wrong_flag_is_answered_without_tensorflow():
    code = (
        "import sys\n"
        "from bert_tf.cli import answer\n"
        "sys.argv = ['answer', '--context=c']\n"
        "try:\n"
        "    answer.CLI.run(answer.main)\n"
        "except SystemExit as exit:\n"
        "    print(exit.code, 'tensorflow' in sys.modules or 'keras' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "1 False", done.stderr
    assert "--model_dir" in done.stderr
    assert "Traceback" not in done.stderr
