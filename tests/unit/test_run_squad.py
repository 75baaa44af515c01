"""run_squad.py: its flags against the original's, and what needs no TensorFlow."""

import json
import types

import numpy as np
import pytest
import script_flags

import run_squad
from bert_tf.cli.command_line import CommandLineError
from bert_tf.tokenization import BertTokenizer
from data_prep.squad import windows
from data_prep.squad.features import WindowFeatures
from data_prep.squad.reading import Context, Example

# Name -> (type, default) of every flag of the original's run_squad.py.
ORIGINAL_FLAGS = {
    "bert_config_file": ("string", None),
    "vocab_file": ("string", None),
    "output_dir": ("string", None),
    "train_file": ("string", None),
    "predict_file": ("string", None),
    "init_checkpoint": ("string", None),
    "do_lower_case": ("bool", True),
    "max_seq_length": ("int", 384),
    "doc_stride": ("int", 128),
    "max_query_length": ("int", 64),
    "do_train": ("bool", False),
    "do_predict": ("bool", False),
    "train_batch_size": ("int", 32),
    "predict_batch_size": ("int", 8),
    "learning_rate": ("float", 5e-5),
    "num_train_epochs": ("float", 3.0),
    "warmup_proportion": ("float", 0.1),
    "save_checkpoints_steps": ("int", 1000),
    "iterations_per_loop": ("int", 1000),
    "n_best_size": ("int", 20),
    "max_answer_length": ("int", 30),
    "use_tpu": ("bool", False),
    "tpu_name": ("string", None),
    "tpu_zone": ("string", None),
    "gcp_project": ("string", None),
    "master": ("string", None),
    "num_tpu_cores": ("int", 8),
    "verbose_logging": ("bool", False),
    "version_2_with_negative": ("bool", False),
    "null_score_diff_threshold": ("float", 0.0),
}


@pytest.mark.parametrize("name", ORIGINAL_FLAGS)
def test_original_flag(name):
    script_flags.check_original_flag(run_squad, name, *ORIGINAL_FLAGS[name])


def test_original_command_line_is_understood():
    flags = run_squad.CLI.parse(
        "run_squad.py --vocab_file=v --bert_config_file=b --init_checkpoint=i --do_train=True "
        "--train_file=t --do_predict=True --predict_file=p --train_batch_size=24 "
        "--learning_rate=3e-5 --num_train_epochs=2.0 --max_seq_length=384 --doc_stride=128 "
        "--output_dir=o --use_tpu=False --version_2_with_negative=True "
        "--null_score_diff_threshold=-1.97 --nodo_lower_case".split()
    )
    assert flags.do_train is True
    assert flags.do_predict is True
    assert flags.do_lower_case is False
    assert flags.version_2_with_negative is True
    assert flags.null_score_diff_threshold == -1.97
    assert flags.learning_rate == 3e-5
    run_squad.check_flags(flags)


def test_every_flag_is_in_the_help(capsys):
    titles = ("Data:", "Texts:", "Training:", "Prediction and scores:", "Devices:")
    script_flags.check_help(run_squad, capsys, titles)


def test_missing_flags_are_listed_at_once_and_early():
    errors = script_flags.errors_of(run_squad, "--do_train", "--do_predict")
    for name in ("output_dir", "train_file", "predict_file", "bert_config_file", "vocab_file"):
        assert f"\n  --{name}: " in errors
    assert "\n  --do_train or" not in errors
    assert "python run_squad.py --train_file=" in errors


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--no_such_flag=1"], ["no_such_flag", "--help"]),
        (["--max_seq_length=many"], ["max_seq_length", "many"]),
        (["--n_best_size=0"], ["n_best_size"]),
        (["--max_answer_length=0"], ["max_answer_length"]),
        (["--learning_rate=-1"], ["learning_rate"]),
        (["--null_score_diff_threshold=nan"], ["null_score_diff_threshold", "finite"]),
        (["--several_answers=last"], ["several_answers", "refuse", "first", "each"]),
        (["--tune_threshold=best"], ["tune_threshold", "f1", "exact"]),
        (["--segments=chinese"], ["segments", "mixed"]),
        (["do_train"], ["do_train", "belongs to no flag"]),
    ],
)
def test_wrong_flags(flags, words):
    with pytest.raises(CommandLineError) as error:
        run_squad.main(["run_squad.py", *flags])
    for word in words:
        assert word in str(error.value)


TRAIN = ["--do_train", "--train_file=t"]
PREDICT = ["--do_predict", "--predict_file=p"]


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ([], ["--do_train or --do_predict"]),
        (["--do_train"], ["--train_file"]),
        (["--do_predict"], ["--predict_file"]),
        ([*TRAIN, "--warmup_proportion=2"], ["warmup_proportion", "2", "0 to 1"]),
        ([*TRAIN, "--num_train_epochs=0"], ["num_train_epochs", "nothing to train"]),
        (
            [*TRAIN, "--max_seq_length=64"],
            ["max_seq_length=64", "max_query_length=64", "greater than 67", "less than 61"],
        ),
        ([*TRAIN, "--max_query_length=381"], ["max_query_length=381", "max_seq_length=384"]),
        ([*TRAIN, "--max_query_length=0"], ["max_query_length=0", "at least 1"]),
        ([*TRAIN, "--doc_stride=0"], ["doc_stride=0", "at least 1"]),
        ([*PREDICT, "--tune_threshold=f1"], ["--tune_threshold", "--version_2_with_negative"]),
        (
            [*TRAIN, "--tune_threshold=f1", "--version_2_with_negative"],
            ["--tune_threshold", "--do_predict"],
        ),
        ([*TRAIN, *PREDICT, "--ensemble=a,b"], ["--ensemble", "--do_train"]),
        ([*PREDICT, "--ensemble=a,b", "--init_checkpoint=i"], ["--ensemble", "--init_checkpoint"]),
        ([*PREDICT, "--ensemble=a"], ["--ensemble=a", "at least two"]),
        ([*TRAIN, "--lr_decay_power=2"], ["--lr_decay_power", "polynomial"]),
    ],
)
def test_values_that_make_no_sense(tmp_path, flags, words):
    folder = tmp_path / "output"
    given = ["--bert_config_file=c", "--vocab_file=v", f"--output_dir={folder}"]
    with pytest.raises(ValueError) as error:
        run_squad.main(["run_squad.py", *given, *flags])
    for word in words:
        assert word in str(error.value)
    assert not folder.exists()


def test_what_stands_for_config_and_vocabulary(tmp_path):
    def check(*flags):
        parsed = run_squad.CLI.parse(["run_squad.py", *PREDICT, *flags])
        run_squad.check_flags(parsed)

    own = f"--output_dir={tmp_path}"
    with pytest.raises(CommandLineError, match=r"--bert_config_file.*\n.*--vocab_file"):
        check(own)
    check(own, "--init_checkpoint=i")
    check(own, "--ensemble=a,b")
    (tmp_path / "squad.json").write_text("{}")
    check(own)


def test_window_features():
    tokenizer = BertTokenizer.from_vocab(
        {
            token: number
            for number, token in enumerate("[PAD] [UNK] [CLS] [SEP] [MASK] who ann wrote".split())
        }
    )
    example = Example("q", "who", Context("ann wrote ann wrote"), "ann", 0, 0)
    made = list(windows.make_windows([example], tokenizer, 7, 2, 2, True))
    features = WindowFeatures(made, 7)
    assert len(features) == 2
    assert features.lengths.tolist() == [7, 6]
    # The second window, "ann wrote" from the third word on, does not have this "ann".
    assert features.labels.tolist() == [[3, 3], [0, 0]]
    batch = features.dense(np.array([1, -1, 0]), 8)
    assert batch["input_ids"].tolist() == [
        [2, 5, 3, 6, 7, 3, 0, 0],
        [0] * 8,
        [2, 5, 3, 6, 7, 6, 3, 0],
    ]
    assert batch["input_mask"].sum(axis=1).tolist() == [6, 0, 7]
    assert batch["segment_ids"][0].tolist() == [0, 0, 0, 1, 1, 1, 0, 0]
    assert {array.dtype for array in batch.values()} == {np.dtype(np.int32)}
    predicted = list(windows.make_windows([example], tokenizer, 7, 2, 2, False))
    assert WindowFeatures(predicted, 7).labels.tolist() == [[0, 0], [0, 0]]
    assert WindowFeatures([], 7).labels.shape == (0, 2)
    other = Example("q", "who", Context("ann wrote ann saw"), "ann", 0, 0)
    other = WindowFeatures(list(windows.make_windows([other], tokenizer, 7, 2, 2, True)), 7)
    assert other.fingerprint() != features.fingerprint() == WindowFeatures(made, 7).fingerprint()


def test_a_run_is_resumed_with_texts_cut_as_before(tmp_path):
    (tmp_path / "squad.json").write_text(json.dumps({"do_lower_case": True}))
    tokenizer = types.SimpleNamespace(do_lower_case=False, strip_accents=False, never_split=())
    flags = types.SimpleNamespace(output_dir=str(tmp_path), character_level=False)
    setup = types.SimpleNamespace(flags=flags, tokenizer=tokenizer)
    with pytest.raises(ValueError, match=r"another way \(do_lower_case True -> False\)"):
        run_squad.check_same_texts(setup)
    tokenizer.do_lower_case = True
    run_squad.check_same_texts(setup)
