"""run_pretraining.py says what is wrong, where, and what to do, before anything is lost."""

import contextlib
import gzip
import shutil

import numpy as np
import pytest
from classifier_runs import snapshot, write_vocabulary
from pretraining_runs import main, make_example, write_config, write_examples, write_records

import run_pretraining
from data_prep import records


@contextlib.contextmanager
def refused(folder, *words, error=(ValueError, OSError)):
    """Expects a message of one line with the words, and a folder left as it was."""
    before = snapshot(folder)
    with pytest.raises(error) as caught:
        yield
    message = str(caught.value)
    assert "\n" not in message
    for word in words:
        assert str(word) in message, message
    assert snapshot(folder) == before


@pytest.fixture
def run(tmp_path):
    """Trains on tmp_path/*.tfrecord; what a test gives comes last and wins."""
    config = write_config(tmp_path)

    def run(*flags):
        return main(
            f"--input_file={tmp_path}/*.tfrecord",
            config,
            f"--output_dir={tmp_path / 'output'}",
            "--num_train_steps=2",
            *flags,
        )

    return run


@pytest.fixture
def good(tmp_path):
    return write_records(tmp_path / "good.tfrecord", 5)


# Records.


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--max_seq_length=15"], ["input_ids has 16 values, expected 15 (by --max_seq_length)"]),
        (["--max_seq_length=32"], ["segment_ids has 16 values, expected 32"]),
        (["--max_predictions_per_seq=3"], ["4 values, expected 3 (by --max_predictions_per_seq)"]),
        (["--max_predictions_per_seq=20"], ["masked_lm_ids has 4 values, expected 20"]),
    ],
)
@pytest.mark.parametrize("action", ["--do_train", "--do_eval"])
def test_lengths_that_are_not_the_flags(tmp_path, good, run, flags, words, action):
    if action == "--do_eval":
        flags = [*flags, init_checkpoint(tmp_path)]
    with refused(tmp_path, good, "do not fit the flags", *words, "make them anew"):
        run(action, *flags)


def init_checkpoint(folder):
    """Writes new weights of the model as a checkpoint of the original."""
    from pretraining_runs import CONFIG

    from bert_tf.checkpoint import original
    from bert_tf.modeling.models import BertPretrainer, named_variables

    values = {k: v.numpy() for k, v in named_variables(BertPretrainer(CONFIG)).items()}
    original.write(str(folder / "bert_model.ckpt"), values)
    return f"--init_checkpoint={folder / 'bert_model.ckpt'}"


def mixed(path, wrong, at=5, **changes):
    """A file of seven records, of which one is not like the others."""
    examples = [make_example(number) for number in range(7)]
    examples[at] = make_example(at, **wrong) | changes
    return write_examples(path, examples)


# Found by the thread that reads the records, in the middle of a run.
@pytest.mark.parametrize("action", ["--do_train", "--do_eval"])
def test_a_later_record_of_another_length(tmp_path, good, run, action):
    path = mixed(tmp_path / "mixed.tfrecord", {"length": 24})
    init = init_checkpoint(tmp_path)
    message = f"{path}: record 5 does not fit the flags: input_ids has 24 values, expected 16"
    with pytest.raises(ValueError) as caught:
        run(action, init, "--num_train_steps=20")
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)
    assert not list((tmp_path / "output").glob("*.index"))
    assert not (tmp_path / "output/eval_results.txt").exists()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"input_ids": np.full(16, 120)}, "input_ids has 120, but it must be from 0 to 119; the r"),
        ({"masked_lm_ids": np.array([1, -2, 3, 4])}, "masked_lm_ids has -2"),
        ({"masked_lm_positions": np.array([16, 0, 0, 0])}, "positions has 16, .*from 0 to 15"),
        ({"next_sentence_labels": np.array([2])}, "next_sentence_labels has 2, .*from 0 to 1"),
    ],
)
def test_values_out_of_range(tmp_path, changes, words):
    from data_prep.pretraining_input import PretrainingData

    good = write_records(tmp_path / "good.tfrecord", 5)
    path = mixed(tmp_path / "mixed.tfrecord", {}, at=4, **changes)
    data = PretrainingData([str(good), str(path)], 16, 4, 120)
    data.batch(np.array([0, 8, -1]))
    with pytest.raises(ValueError, match=rf"mixed\.tfrecord: record 4: .*{words}"):
        data.batch(np.array([8, 9, -1]))


def test_ids_beyond_the_model_in_a_run(tmp_path, run):
    path = mixed(tmp_path / "mixed.tfrecord", {}, input_ids=np.full(16, 30000))
    with pytest.raises(ValueError) as caught:
        run("--do_eval", init_checkpoint(tmp_path))
    for word in (f"{path}: record 5: input_ids has 30000", "0 to 119", "larger vocabulary"):
        assert word in str(caught.value)


def damaged(name, path):
    """Damages a file of five records."""
    content = bytearray(path.read_bytes())
    ends, at = [], 0
    for record in records.read_records(str(path)):
        at += len(record) + 16
        ends.append(at)
    if name == "cut off":
        content = content[: ends[3] - 20]
    elif name == "corrupt":
        content[ends[2] + 40] ^= 1
    elif name == "corrupt length":
        content[ends[2]] ^= 1
    elif name == "compressed and cut off":
        content = gzip.compress(content)[:-9]
    elif name == "a text":
        content = b"[CLS] this is no file of records [SEP]\n" * 9
    elif name == "another kind":
        content = records.frame(b"\xff\xff no protobuf")
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("cut off", ["record 3 at byte", "cut off", "make it anew"]),
        ("corrupt", ["record 3 at byte", "checksum is wrong", "make the file anew"]),
        ("corrupt length", ["record 3 at byte", "length is damaged"]),
        ("compressed and cut off", ["gzip data is damaged or cut off"]),
        ("a text", ["this is no TFRecord file"]),
        ("another kind", ["record 0: the record is no tf.train.Example"]),
    ],
)
def test_damaged_files(tmp_path, good, run, name, words):
    path = write_records(tmp_path / "other.tfrecord", 5)
    damaged(name, path)
    with refused(tmp_path, path, *words):
        run("--do_train")


def test_files_that_are_not_there_or_empty(tmp_path, good, run):
    with refused(tmp_path, "no input file matches", tmp_path / "no*.tfrecord"):
        run("--do_train", f"--input_file={good},{tmp_path}/no*.tfrecord")
    with refused(tmp_path, "is a folder; name the files in it"):
        run("--do_train", f"--input_file={tmp_path}")
    with refused(tmp_path, "no input file matches", "absent"):
        run("--do_train", "--eval_steps=1", f"--eval_input_file={tmp_path}/absent")
    for name in ("one", "two"):
        (tmp_path / f"{name}.empty").write_bytes(b"")
    empty = f"--input_file={tmp_path}/*.empty"
    with refused(tmp_path, "one.empty", "two.empty", "there is no record in it"):
        run("--do_train", empty)


def test_records_of_both_kinds(tmp_path, good, run):
    path = write_records(tmp_path / "new.tfrecord", 3, masked=False)
    with refused(tmp_path, f"{path} holds records without masks", f"{good} records with masks"):
        run("--do_train")


# The model.


def test_vocabulary_that_is_not_the_models(tmp_path, good, run):
    path = write_vocabulary(tmp_path / "long.txt", 121)
    with refused(tmp_path, path, "121 tokens", "vocab_size 120", "belongs to the checkpoint"):
        run("--do_train", f"--vocab_file={path}")


def test_length_over_the_positions(tmp_path, good, run):
    with refused(tmp_path, "--max_seq_length=65", "max_position_embeddings, 64"):
        run("--do_train", "--max_seq_length=65")


def test_nothing_to_evaluate(tmp_path, good, run):
    with refused(tmp_path, "no checkpoint in", tmp_path / "output", "--init_checkpoint"):
        run("--do_eval")


def test_no_masked_token_in_the_evaluation(tmp_path, run):
    nothing = {"masked_lm_weights": np.zeros(4, np.float32)}
    write_examples(
        tmp_path / "none.tfrecord", [make_example(number) | nothing for number in (1, 2)]
    )
    with refused(tmp_path / "output", "none of the 2 records has a masked token"):
        run("--do_eval", init_checkpoint(tmp_path))


# The run.


def test_a_batch_that_cannot_be_cut(tmp_path, good, run):
    words = ["--train_batch_size=4", "multiple", "--gradient_accumulation_steps=3"]
    with refused(tmp_path, *words):
        run("--do_train", "--gradient_accumulation_steps=3")


def test_a_loss_that_is_not_finite(tmp_path, good, run):
    # Nothing moves in the first step of a warm-up, too far in the second.
    flags = ["--num_warmup_steps=1000", "--learning_rate=1e38", "--num_train_steps=9"]
    with pytest.raises(ValueError) as caught:
        run("--do_train", *flags, "--save_checkpoints_steps=1")
    good_one = f"The last good checkpoint is {tmp_path / 'output/model.ckpt-2'}. "
    for word in ("not finite at step 2 (in the loop of steps 2 to 2)", good_one, "lower learning"):
        assert word in str(caught.value)
    assert not (tmp_path / "output/model.ckpt-3.index").exists()


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A folder with a run of one step, and its records."""
    folder = tmp_path_factory.mktemp("finished")
    flags = [f"--input_file={write_records(folder / 'good.tfrecord', 5)}", write_config(folder)]
    flags += ["--num_train_steps=1", "--do_train", f"--output_dir={folder / 'output'}"]
    main(*flags)
    return folder, flags


def test_another_model_in_the_same_folder(tmp_path, finished, caplog):
    folder, flags = finished
    other = write_config(tmp_path, hidden_act="relu")
    with refused(folder / "output", "another model", "hidden_act gelu -> relu", "--output_dir"):
        main(*flags, other)
    other = write_config(tmp_path, num_hidden_layers=2)
    before = snapshot(folder)
    with pytest.raises(ValueError, match=r"another model .*\(num_hidden_layers 1 -> 2\)"):
        main(*flags, other)
    assert snapshot(folder) == before
    with caplog.at_level("INFO", logger="absl"):
        main(*flags, "--seed=5", "--learning_rate=0")
    assert "goes on with other settings" in caplog.text
    assert "learning_rate 0.01 -> 0.0" in caplog.text
    assert "seed 12345 -> 5" in caplog.text
    assert "is at step 1 of 1: there is nothing to train" in caplog.text
    # It keeps the settings it began with on record.
    assert snapshot(folder) == before


def test_a_broken_checkpoint(tmp_path, finished):
    folder, flags = finished
    shutil.copytree(folder / "output", tmp_path / "broken")
    path = tmp_path / "broken/model.ckpt-1.data-00000-of-00001"
    path.write_bytes(path.read_bytes()[:-500])
    with refused(tmp_path, path.name, "cut short"):
        main(*flags, f"--output_dir={tmp_path / 'broken'}")


def test_an_error_of_the_script_is_one_line(tmp_path, good, monkeypatch, capsys):
    write_config(tmp_path)
    argv = [
        "run_pretraining.py", f"--input_file={good}", f"--output_dir={tmp_path / 'output'}",
        f"--bert_config_file={tmp_path / 'bert_config.json'}", "--do_train",
    ]  # fmt: skip
    monkeypatch.setattr("sys.argv", argv)
    with pytest.raises(SystemExit) as caught:
        run_pretraining.CLI.run(run_pretraining.main)
    assert caught.value.code == 1
    shown = capsys.readouterr().err
    assert "run_pretraining.py: error: --max_seq_length=128 is over the model's" in shown
    assert "Traceback" not in shown
