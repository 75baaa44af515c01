"""bert_tf.cli.answer: its flags and files, and what it shows."""

import subprocess
import sys

import pytest
import script_flags

from bert_tf.cli import answer
from bert_tf.cli.command_line import CommandLineError


def test_every_flag_is_in_the_help(capsys):
    script_flags.check_help(answer, capsys)


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
    with pytest.raises(CommandLineError, match=r"--context_file=.*none\.txt: there is no such"):
        answer.main([*flags, f"--context_file={tmp_path / 'none.txt'}"])
    with pytest.raises(CommandLineError, match="is a folder; name a file"):
        answer.main([*flags, f"--context_file={tmp_path}"])
    (tmp_path / "bad.txt").write_bytes(b"Kim\xff")
    with pytest.raises(ValueError, match=r"bad\.txt is not UTF-8 text"):
        answer.main([*flags, f"--context_file={tmp_path / 'bad.txt'}"])


def test_what_is_shown():
    nbest = [{"text": "K\ud800", "probability": 0.75}, {"text": "", "probability": 0.25}]
    assert answer.show({"answer": "", "nbest": nbest, "null_odds": 1.5}, 0.5) == (
        "(no answer)\n  0.7500  K\\ud800\n  0.2500  (no answer)\n"
        "  no answer against the best: +1.50 (threshold +0.50)"
    )


@pytest.mark.parametrize("command", ["answer", "classify", "fill_mask"])
def test_a_wrong_flag_is_answered_without_tensorflow(command):
    code = (
        "import sys\n"
        f"from bert_tf.cli import {command} as command\n"
        "sys.argv = ['command', '--batch_size=3']\n"
        "try:\n"
        "    command.CLI.run(command.main)\n"
        "except SystemExit as exit:\n"
        "    print(exit.code, 'tensorflow' in sys.modules or 'keras' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "1 False", done.stderr
    assert done.stderr.startswith(f"bert_tf.cli.{command}: error: ")
    assert "--model_dir" in done.stderr
    assert "Traceback" not in done.stderr
