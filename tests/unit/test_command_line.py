import logging
import os
import subprocess
import sys

import pytest
import tensorflow as tf
from absl import logging as absl_logging

from bert_tf.cli import command_line
from bert_tf.cli.command_line import CommandLine, CommandLineError

EXAMPLE = "python script.py --data_dir=data --rate=0.1"


def make(script="script.py"):
    cli = CommandLine(script, "Does something.\n\nIn detail.", EXAMPLE)
    with cli.group("Files"):
        cli.string("data_dir", None, "Folder with the files.")
        cli.string("output_dir", None, "Folder for the results.")
    with cli.group("Training"):
        cli.float("rate", 0.5, "Learning rate.", 0.0)
        cli.integer("steps", 10, "Steps of the training.", 1)
        cli.boolean("do_train", False, "Whether to train.")
        cli.enum("device", "cpu", ["cpu", "gpu"], "Where.")
    return cli


@pytest.fixture
def cli():
    return make()


def parse(cli, *arguments):
    return cli.parse(["script.py", *arguments])


def test_defaults_and_values(cli):
    found = parse(cli)
    assert (found.data_dir, found.rate, found.steps, found.do_train, found.device) == (
        None, 0.5, 10, False, "cpu",
    )  # fmt: skip
    found = parse(
        cli, "--data_dir", "a b", "--rate=1e-4", "--steps=3", "--do_train", "--device=gpu"
    )
    assert (found.data_dir, found.rate, found.steps, found.do_train, found.device) == (
        "a b", 1e-4, 3, True, "gpu",
    )  # fmt: skip
    assert parse(cli, "--do_train=true").do_train is True
    assert parse(cli, "--do_train=True").do_train is True
    assert parse(cli, "--nodo_train").do_train is False


def test_a_second_command_line_starts_anew(cli):
    assert parse(cli, "--steps=3", "--do_train").steps == 3
    assert cli.given("steps")
    again = parse(cli, "--rate=2")
    assert (again.steps, again.do_train, again.rate) == (10, False, 2.0)
    assert not cli.given("steps")
    assert cli.given("rate")


def test_two_scripts_do_not_clash():
    first, second = make("first.py"), make("second.py")
    second.string("only_here", "x", "A flag of one script.")
    assert parse(first, "--steps=3").steps == 3
    assert parse(second).steps == 10
    assert parse(second, "--only_here=y").only_here == "y"
    with pytest.raises(CommandLineError, match="only_here"):
        parse(first, "--only_here=y")


def test_all_missing_flags_at_once(cli):
    with pytest.raises(CommandLineError) as caught:
        cli.require([("data_dir", "the texts"), ("output_dir", "the results")])
    assert str(caught.value).split("\n") == [
        "these flags are missing:",
        "  --data_dir: the texts",
        "  --output_dir: the results",
        "For example:",
        EXAMPLE,
        "All flags: python script.py --help",
    ]
    cli.require([])
    cli.require(iter(()))


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("--otput_dir=a", r"flag 'otput_dir'\. Did you mean: output_dir"),
        ("--steps=three", "steps.*three"),
        ("--steps=0", "steps.*0"),
        ("--rate=-1", "rate.*-1"),
        ("--device=tpu", "device.*cpu.*gpu"),
        ("--do_train=maybe", "do_train.*maybe"),
        ("--data_dir", "data_dir"),
    ],
)
def test_a_wrong_flag(cli, argument, message):
    with pytest.raises(CommandLineError, match=message) as caught:
        parse(cli, argument)
    assert str(caught.value).endswith("All flags: python script.py --help")


@pytest.mark.parametrize(
    "words", [["train"], ["--steps=3", "train", "now"], ["--do_train", "True"]]
)
def test_a_word_that_is_no_flag(cli, words):
    with pytest.raises(CommandLineError, match="belongs to no flag; flags are given as --name=val"):
        parse(cli, *words)


def test_help_is_grouped(cli, capsys):
    with pytest.raises(SystemExit) as caught:
        parse(cli, "--help")
    assert caught.value.code == 0
    text = capsys.readouterr().out
    assert text.startswith("Does something.\n\nIn detail.\n\nFor example:\n" + EXAMPLE)
    # fmt: off
    places = [
        text.index(part)
        for part in (
            "\nFiles:\n", "  --data_dir\n", "  --output_dir\n",
            "\nTraining:\n", "  --rate\n", "  --[no]do_train\n",
        )
    ]
    # fmt: on
    assert places == sorted(places)
    assert "Learning rate. [0.5]" in text
    assert "Steps of the training. [10]" in text
    assert "  --device\n      <cpu|gpu>: Where. [cpu]\n" in text
    assert "Whether to train. [false]" in text
    assert "Folder with the files.\n" in text
    for name in cli.flags:
        assert f"--{name}\n" in text or f"--[no]{name}\n" in text
    assert max(map(len, text.splitlines())) <= 100


@pytest.fixture
def run(monkeypatch):
    """Runs main with arguments; puts the logging back as it was."""
    root, handler = logging.root, absl_logging.get_absl_handler()
    before = root.handlers[:], root.level, absl_logging.get_verbosity()
    formatter = handler.formatter

    def run(main, *arguments):
        monkeypatch.setattr(sys, "argv", ["script.py", *arguments])
        make().run(main)

    yield run
    root.handlers[:] = before[0]
    root.setLevel(before[1])
    absl_logging.set_verbosity(before[2])
    handler.setFormatter(formatter)


def failing(error):
    def main(argv):
        raise error

    return main


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("the rate is wrong"), "the rate is wrong"),
        (CommandLineError("these flags are missing:\n  --a"), "these flags are missing:\n  --a"),
        (FileNotFoundError(2, "No such file", "x.tsv"), "[Errno 2] No such file: 'x.tsv'"),
        (ImportError("s3:// needs fsspec"), "s3:// needs fsspec"),
    ],
)
def test_what_a_user_can_mend_has_no_traceback(run, capsys, error, text):
    with pytest.raises(SystemExit) as caught:
        run(failing(error))
    assert caught.value.code == 1
    assert caught.value.__suppress_context__
    assert capsys.readouterr().err == f"script.py: error: {text}\n"


def in_graph(*lines):
    """A message as TensorFlow gives it for an error within a graph."""
    where = [
        "Graph execution error:",
        "",
        "Detected at node IteratorGetNext defined at (most recent call last):",
        '  File "/somewhere/script.py", line 16, in <module>',
        "",
    ]
    return "\n".join([*where, *lines])


@pytest.mark.parametrize(
    ("message", "told"),
    [
        (
            in_graph(
                "corrupted record at 0 (Is this even a TFRecord file?)",
                "\t [[{{node IteratorGetNext}}]] [Op:__inference_r_42]",
            ),
            "corrupted record at 0 (Is this even a TFRecord file?)",
        ),
        (
            in_graph(
                "2 root error(s) found.",
                "  (0) INTERNAL:  the device is gone",
                "\t [[{{node MatMul}}]]",
                "  (1) CANCELLED:  cancelled",
                "0 successful operations.",
                "0 derived errors ignored. [Op:__inference_f_1]",
            ),
            "INTERNAL: the device is gone",
        ),
        ("No such bucket [Op:ReadFile]", "No such bucket"),
        ("Graph execution error:\n", "Graph execution error:"),
        ("", "UnknownError"),
    ],
)
def test_an_error_of_tensorflow_says_what_happened(run, capsys, message, told):
    error = tf.errors.UnknownError(None, None, message)
    with pytest.raises(SystemExit) as caught:
        run(failing(error))
    assert caught.value.code == 1
    assert capsys.readouterr().err == f"script.py: error: {told}\n"
    with pytest.raises(tf.errors.UnknownError):
        run(failing(error), "--traceback")


def test_too_little_memory_names_the_flags_that_help(run, capsys, monkeypatch):
    message = in_graph(
        "OOM when allocating tensor with shape[64,512] and type float on GPU:0",
        "\t [[{{node MatMul}}]]",
        "Hint: If you want to see a list of allocated tensors when OOM happens, add ...",
        " [Op:__inference_f_1]",
    )
    main = failing(tf.errors.ResourceExhaustedError(None, None, message))
    told = (
        "script.py: error: there is too little memory: "
        "OOM when allocating tensor with shape[64,512] and type float on GPU:0\n"
    )
    with pytest.raises(SystemExit):
        run(main)
    assert capsys.readouterr().err == told

    add = CommandLine.__init__

    def with_flags(cli, *arguments):
        add(cli, *arguments)
        cli.integer("train_batch_size", 32, "Examples of a step.", 1)
        cli.boolean("recompute", False, "Compute again.")

    monkeypatch.setattr(CommandLine, "__init__", with_flags)
    with pytest.raises(SystemExit):
        run(main)
    assert capsys.readouterr().err == (
        f"{told}What makes a step smaller: --recompute, --train_batch_size (docs/memory.md)\n"
    )


def test_a_full_disk_or_memory_of_python(run, capsys):
    text = "{{function_node __wrapped__SaveV2}} m; No space left on device [Op:SaveV2]"
    for error, told in [
        (tf.errors.ResourceExhaustedError(None, None, text), "m; No space left on device; free "),
        (OSError(28, "No space left on device"), "[Errno 28] No space left on device; free some "),
        (MemoryError("Unable to allocate 4 TiB"), "there is too little memory: Unable to allocat"),
        (OverflowError("int too big"), "a number or a file is too large: int too big"),
    ]:
        with pytest.raises(SystemExit):
            run(failing(error))
        assert capsys.readouterr().err.startswith(f"script.py: error: {told}")


@pytest.mark.parametrize("error", [ValueError, MemoryError, tf.errors.OpError])
@pytest.mark.parametrize("flag", ["--traceback", "--traceback=True", "-traceback=1"])
def test_a_traceback_on_request(run, error, flag):
    error = error(None, None, "x", 1) if error is tf.errors.OpError else error("the rate")
    with pytest.raises(type(error)):
        run(failing(error), flag)


def test_a_bug_keeps_its_traceback(run):
    with pytest.raises(TypeError):
        run(failing(TypeError("a bug")))


def test_interrupted(run, capsys):
    with pytest.raises(SystemExit) as caught:
        run(failing(KeyboardInterrupt()))
    assert caught.value.code == 130
    assert capsys.readouterr().err == "script.py: interrupted\n"


def test_main_gets_the_arguments(run):
    seen = []
    run(seen.extend, "--steps=3")
    assert seen == ["script.py", "--steps=3"]


PIPED = """
from absl import logging
from bert_tf.cli.command_line import CommandLine

def main(argv):
    logging.info("step %d", 3)
    logging.warning("careful")
    while True:
        print("x" * 1000)

CommandLine("script.py", "", "").run(main)
"""


def test_log_lines_and_a_pager_that_was_left():
    with subprocess.Popen(
        [sys.executable, "-c", PIPED],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    ) as process:
        process.stdout.readline()
        process.stdout.close()
        error = process.stderr.read()
    assert error == b"step 3\nWARNING: careful\n"
    assert process.returncode == 141


CLOSED_STREAMS = """
import sys
from bert_tf.cli.command_line import CommandLine

def main(argv):
    with open(argv[1], "w") as results:
        results.write(f"{results.fileno() > 2} {sys.stdin.read()!r}")
        sys.stdout.flush()
        print("seen", file=sys.stderr)

CommandLine("script.py", "", "").run(main)
"""


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams_do_no_harm(tmp_path, closed):
    results = tmp_path / "results"
    command = f'exec "$0" -c "$1" "$2" {closed}'
    done = subprocess.run(
        ["sh", "-c", command, sys.executable, CLOSED_STREAMS, str(results)],
        input="",
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr == ("" if "2>&-" in closed else "seen\n")
    assert results.read_text() == "True ''"


def test_noise_is_dropped_and_the_rest_is_passed_on(capfd):
    with command_line._filtered_stderr():
        os.write(2, b"2026 oneDNN custom operations are on. You may see\n")
        os.write(2, b"a warning that matters\n")
    os.write(2, b"afterwards\n")
    found = capfd.readouterr().err
    assert found == "a warning that matters\nafterwards\n"
