"""run_pretraining.py: its flags against the original's, and what needs no TensorFlow."""

import pathlib

import pytest
import script_flags

import run_pretraining
from bert_tf.cli.command_line import CommandLineError

# Name -> (type, default) of every flag of the original's run_pretraining.py.
ORIGINAL_FLAGS = {
    "bert_config_file": ("string", None),
    "input_file": ("string", None),
    "output_dir": ("string", None),
    "init_checkpoint": ("string", None),
    "max_seq_length": ("int", 128),
    "max_predictions_per_seq": ("int", 20),
    "do_train": ("bool", False),
    "do_eval": ("bool", False),
    "train_batch_size": ("int", 32),
    "eval_batch_size": ("int", 8),
    "learning_rate": ("float", 5e-5),
    "num_train_steps": ("int", 100000),
    "num_warmup_steps": ("int", 10000),
    "save_checkpoints_steps": ("int", 1000),
    "iterations_per_loop": ("int", 1000),
    "max_eval_steps": ("int", 100),
    "use_tpu": ("bool", False),
    "tpu_name": ("string", None),
    "tpu_zone": ("string", None),
    "gcp_project": ("string", None),
    "master": ("string", None),
    "num_tpu_cores": ("int", 8),
}


@pytest.mark.parametrize("name", ORIGINAL_FLAGS)
def test_original_flag(name):
    script_flags.check_original_flag(run_pretraining, name, *ORIGINAL_FLAGS[name])


def test_original_command_line_is_understood():
    flags = run_pretraining.CLI.parse(
        "run_pretraining.py --input_file=/tmp/tf_examples.tfrecord --output_dir=/tmp/o "
        "--do_train=True --do_eval=True --bert_config_file=b --init_checkpoint=i "
        "--train_batch_size=32 --max_seq_length=128 --max_predictions_per_seq=20 "
        "--num_train_steps=20 --num_warmup_steps=10 --learning_rate=2e-5 --use_tpu=False".split()
    )
    assert flags.do_train is True
    assert flags.do_eval is True
    assert flags.learning_rate == 2e-5
    assert flags.objective is None
    run_pretraining.check_flags(flags)


def test_every_flag_is_in_the_help(capsys):
    titles = ("Data:", "Model:", "Training:", "Evaluation:", "Optimizer and precision:")
    script_flags.check_help(run_pretraining, capsys, titles)


def test_missing_flags_are_listed_at_once_and_early():
    errors = script_flags.errors_of(run_pretraining, "--learning_rate=1e-4")
    for name in ("input_file", "output_dir", "bert_config_file", "do_train or --do_eval"):
        assert f"--{name}:" in errors
    assert "python run_pretraining.py --input_file=" in errors


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--no_such_flag=1"], ["no_such_flag", "--help"]),
        (["--max_predictions_per_seq=0"], ["max_predictions_per_seq"]),
        (["--train_batch_size=0"], ["train_batch_size"]),
        (["--gradient_accumulation_steps=0"], ["gradient_accumulation_steps"]),
        (["--learning_rate=-1"], ["learning_rate"]),
        (["--learning_rate=nan"], ["learning_rate", "finite"]),
        (["--objective=nsp"], ["objective", "mlm_nsp"]),
        (["--optimizer=sgd"], ["optimizer", "lamb"]),
        (["--precision=float64"], ["precision", "bfloat16"]),
        (["--masking=spans"], ["masking", "ngram"]),
    ],
)
def test_wrong_flags(flags, words):
    with pytest.raises(CommandLineError) as error:
        run_pretraining.main(["run_pretraining.py", *flags])
    for word in words:
        assert word in str(error.value)


def complete(*more):
    return [
        "run_pretraining.py",
        "--input_file=no_records",
        "--output_dir=no_output",
        "--bert_config_file=c",
        *more,
    ]


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ([], ["--do_train or --do_eval"]),
        (["--do_train", "--eval_steps=5"], ["--eval_steps needs --eval_input_file"]),
        (["--do_train", "--init_slots"], ["--init_slots", "need --init_checkpoint"]),
        (["--do_train", "--init_step"], ["--init_step", "need --init_checkpoint"]),
        (["--do_train", "--lr_decay_power=2"], ["--lr_decay_power needs --lr_decay=polynomial"]),
        (
            ["--do_train", "--lr_decay=constant", "--end_learning_rate=1"],
            ["--end_learning_rate does not go with --lr_decay=constant"],
        ),
    ],
)
def test_values_that_make_no_sense(flags, words):
    with pytest.raises(CommandLineError) as error:
        run_pretraining.main(complete(*flags))
    for word in words:
        assert word in str(error.value)
    assert not pathlib.Path("no_output").exists()


@pytest.mark.parametrize(
    ("flags", "missing"),
    [
        (["--do_eval", "--eval_input_file=e"], set()),
        (["--do_eval"], {"input_file"}),
        # What is trained on has to be named, whatever is evaluated on.
        (["--do_train", "--do_eval", "--eval_input_file=e"], {"input_file"}),
    ],
)
def test_which_records_are_needed(flags, missing):
    argv = [each for each in complete(*flags) if "input_file=no" not in each]
    parsed = run_pretraining.CLI.parse(argv)
    if missing:
        with pytest.raises(CommandLineError, match="--input_file: the records to train on"):
            run_pretraining.check_flags(parsed)
    else:
        run_pretraining.check_flags(parsed)


def test_a_run_folder_stands_for_the_configuration(tmp_path):
    argv = ["run_pretraining.py", "--input_file=i", f"--output_dir={tmp_path}", "--do_eval"]
    with pytest.raises(CommandLineError, match="--bert_config_file: the model's sizes"):
        run_pretraining.check_flags(run_pretraining.CLI.parse(argv))
    (tmp_path / "pretraining.json").write_text("{}")
    run_pretraining.check_flags(run_pretraining.CLI.parse(argv))
