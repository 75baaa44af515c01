"""run_classifier.py: its flags against the original's, and what needs no TensorFlow."""

import pathlib

import numpy as np
import pytest
import script_flags

import run_classifier
from bert_tf.cli.command_line import CommandLineError
from bert_tf.training import search
from data_prep.tasks import get_task

# Name -> (type, default) of every flag of the original's run_classifier.py.
ORIGINAL_FLAGS = {
    "data_dir": ("string", None),
    "bert_config_file": ("string", None),
    "task_name": ("string", None),
    "vocab_file": ("string", None),
    "output_dir": ("string", None),
    "init_checkpoint": ("string", None),
    "do_lower_case": ("bool", True),
    "max_seq_length": ("int", 128),
    "do_train": ("bool", False),
    "do_eval": ("bool", False),
    "do_predict": ("bool", False),
    "train_batch_size": ("int", 32),
    "eval_batch_size": ("int", 8),
    "predict_batch_size": ("int", 8),
    "learning_rate": ("float", 5e-5),
    "num_train_epochs": ("float", 3.0),
    "warmup_proportion": ("float", 0.1),
    "save_checkpoints_steps": ("int", 1000),
    "iterations_per_loop": ("int", 1000),
    "use_tpu": ("bool", False),
    "tpu_name": ("string", None),
    "tpu_zone": ("string", None),
    "gcp_project": ("string", None),
    "master": ("string", None),
    "num_tpu_cores": ("int", 8),
}


@pytest.mark.parametrize("name", ORIGINAL_FLAGS)
def test_original_flag(name):
    script_flags.check_original_flag(run_classifier, name, *ORIGINAL_FLAGS[name])


def test_original_command_line_is_understood():
    flags = run_classifier.CLI.parse(
        "run_classifier.py --task_name=MRPC --do_train=true --do_eval=True --nodo_lower_case "
        "--data_dir=d --vocab_file=v --bert_config_file=b --init_checkpoint=i "
        "--max_seq_length=64 --train_batch_size=16 --learning_rate=2e-5 --num_train_epochs=3 "
        "--output_dir=o --use_tpu=False --tpu_name t".split()
    )
    assert flags.do_train is True
    assert flags.do_predict is False
    assert flags.do_lower_case is False
    assert flags.num_train_epochs == 3.0
    assert flags.learning_rate == 2e-5
    assert flags.tpu_name == "t"


def test_a_parse_forgets_the_one_before():
    run_classifier.CLI.parse(["run_classifier.py", "--do_train", "--max_seq_length=64"])
    assert run_classifier.CLI.given("do_train")
    flags = run_classifier.CLI.parse(["run_classifier.py"])
    assert flags.do_train is False
    assert flags.max_seq_length == 128
    assert not run_classifier.CLI.given("do_train")


def test_every_flag_is_in_the_help(capsys):
    titles = ("Task and data:", "Training:", "Search", "TPU:", "Devices:")
    script_flags.check_help(run_classifier, capsys, titles)


def test_missing_flags_are_listed_at_once_and_early():
    errors = script_flags.errors_of(run_classifier, "--task_name=MRPC")
    for name in ("data_dir", "output_dir", "bert_config_file", "vocab_file", "do_train"):
        assert f"--{name}" in errors
    assert "--task_name:" not in errors
    assert "python run_classifier.py --task_name=MRPC --data_dir=" in errors


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--no_such_flag=1"], ["no_such_flag", "--help"]),
        (["--max_seq_length=many"], ["max_seq_length", "many"]),
        (["--max_seq_length=2"], ["max_seq_length", "3"]),
        (["--train_batch_size=0"], ["train_batch_size"]),
        (["--learning_rate=-1"], ["learning_rate"]),
        (["--truncation=middle"], ["truncation", "head_tail"]),
        (["--task_kind=ranking"], ["task_kind", "regression"]),
        (["do_train"], ["do_train", "belongs to no flag"]),
    ],
)
def test_wrong_flags(flags, words):
    with pytest.raises(CommandLineError) as error:
        run_classifier.main(["run_classifier.py", *flags])
    for word in words:
        assert word in str(error.value)


def complete(*more):
    return [
        "run_classifier.py",
        "--task_name=MRPC",
        "--data_dir=no_data",
        "--output_dir=no_output",
        "--bert_config_file=c",
        "--vocab_file=v",
        *more,
    ]


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--do_train", "--warmup_proportion=2"], ["warmup_proportion", "2", "0 to 1"]),
        (["--do_train", "--num_train_epochs=0"], ["num_train_epochs", "nothing to train"]),
        ([], ["--do_train", "--do_eval", "--do_predict"]),
    ],
)
def test_values_that_make_no_sense(flags, words):
    with pytest.raises(CommandLineError) as error:
        run_classifier.main(complete(*flags))
    for word in words:
        assert word in str(error.value)
    assert not pathlib.Path("no_output").exists()


def test_a_run_folder_stands_for_config_and_vocabulary(tmp_path):
    (tmp_path / "task.json").write_text("{}")
    flags = run_classifier.CLI.parse(
        ["run_classifier.py", "--task_name=MRPC", "--data_dir=d", f"--output_dir={tmp_path}"]
        + ["--do_eval"]
    )
    run_classifier.check_flags(flags)


@pytest.mark.parametrize("text", ["", "1,2", "1,2,3,4", "1,x,2", "1,0,2", "1,-1,2", "1,nan,2"])
def test_class_weights_have_to_fit(text):
    labels = np.array([0, 1, 2])
    with pytest.raises(CommandLineError) as error:
        run_classifier.example_weights(text, get_task("MNLI"), labels)
    for word in ("class_weights", text, "3 positive", "contradiction, entailment, neutral"):
        assert word in str(error.value)


def test_class_weights():
    task = get_task("MRPC")
    labels = np.array([0, 1, 1, 1])
    found = run_classifier.example_weights("0.5,2", task, labels)
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, [0.5, 2, 2, 2])
    balanced = run_classifier.example_weights("balanced", task, labels)
    np.testing.assert_allclose(balanced, [2, 2 / 3, 2 / 3, 2 / 3], rtol=1e-6)
    with pytest.raises(CommandLineError, match=r"STS-B is regression"):
        run_classifier.example_weights("1,1", get_task("STS-B"), labels)


@pytest.mark.parametrize("text", ["1e-5,fast", "0", "1e-5,-1e-5", "1e-5,,2e-5"])
def test_lists_of_numbers(text):
    assert search.numbers(None, 3.0, float, "epochs") == [3.0]
    assert search.numbers("16,32", 8, int, "train_batch_sizes") == [16, 32]
    with pytest.raises(ValueError, match=r"--learning_rates=.*positive numbers"):
        search.numbers(text, 1.0, float, "learning_rates")


def test_columns():
    assert run_classifier.column("3") == 3
    assert run_classifier.column("-1") == -1
    assert run_classifier.column("#1 String") == "#1 String"
