"""What a hostile test found: settings that change between commands, shared folders, old results."""

import fcntl
import json
import logging
import os

import numpy as np
import pytest
from classifier_runs import main

import run_classifier
from bert_tf.checkpoint import original


@pytest.fixture
def train(sentiment, small_model, tmp_path):
    def run(*flags, output=None):
        return main(
            "--task_name=TSV",
            f"--data_dir={sentiment}",
            f"--output_dir={output or tmp_path / 'run'}",
            f"--init_checkpoint={small_model}",
            "--do_train",
            "--do_eval",
            "--train_batch_size=4",
            "--learning_rate=1e-3",
            *flags,
        )

    return run


def test_the_best_of_an_earlier_command_is_not_used(train, tmp_path):
    train("--num_train_epochs=1", "--eval_steps=1")
    assert original.latest_checkpoint(str(tmp_path / "run" / "best"))
    results = train("--num_train_epochs=3")
    latest = original.latest_checkpoint(str(tmp_path / "run"))
    assert results["global_step"] == original.step_of(latest)


def test_other_settings_are_named_at_a_resume(train, tmp_path, caplog):
    train("--num_train_epochs=1", "--seed=1")
    with caplog.at_level(logging.WARNING, logger="absl"):
        train("--num_train_epochs=2", "--seed=2", "--warmup_proportion=0.2")
    assert "seed 1 -> 2" in caplog.text
    assert "warmup_proportion 0.1 -> 0.2" in caplog.text
    assert "num_train_epochs 1.0 -> 2.0" in caplog.text


@pytest.mark.parametrize("change", ["config", "vocabulary"])
def test_another_model_is_refused_at_a_resume(train, tmp_path, small_model, change):
    train("--num_train_epochs=1")
    folder = tmp_path / "run"
    before = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    if change == "config":
        config = json.loads((folder / "bert_config.json").read_text())
        config["hidden_act"] = "relu" if config["hidden_act"] != "relu" else "tanh"
        other = tmp_path / "other.json"
        other.write_text(json.dumps(config))
        flag, message = f"--bert_config_file={other}", "hidden_act gelu -> relu"
    else:
        lines = (folder / "vocab.txt").read_text().splitlines()
        other = tmp_path / "other.txt"
        other.write_text("\n".join([*lines[:5], *reversed(lines[5:])]) + "\n")
        flag, message = f"--vocab_file={other}", "not the vocabulary"
    with pytest.raises(ValueError, match=message):
        train("--num_train_epochs=2", flag)
    after = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    assert after == before


def test_two_processes_do_not_share_a_folder(train, tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    handle = os.open(folder, os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    try:
        with pytest.raises(OSError, match="another process works in"):
            train("--num_train_epochs=1")
    finally:
        os.close(handle)
    train("--num_train_epochs=1")


def test_a_search_with_other_data_or_settings_is_refused(train, tmp_path):
    flags = ["--num_train_epochs=1", "--learning_rates=1e-3,1e-3"]
    train(*flags)
    table = (tmp_path / "run" / "search_runs.tsv").read_text()
    assert len(table.splitlines()) == 2  # the same rate twice is one run
    task = (tmp_path / "run" / "task.json").read_text()
    with pytest.raises(ValueError, match=r"other data or settings \(.*warmup_proportion 0\.1 -> 0"):
        train(*flags, "--warmup_proportion=0")
    assert (tmp_path / "run" / "task.json").read_text() == task


def test_a_run_of_a_search_that_fails_does_not_stop_the_others(train, tmp_path):
    results = train("--num_train_epochs=1", "--learning_rates=1e30,1e-3", "--warmup_proportion=0")
    assert np.isfinite(results["loss"])
    rows = (tmp_path / "run" / "search_runs.tsv").read_text().splitlines()
    assert "nan" in rows[1]
    assert "nan" not in rows[2]


def test_checkpoints_that_nothing_names_are_named(train, tmp_path, caplog):
    train("--num_train_epochs=1")
    (tmp_path / "run" / "checkpoint").unlink()
    with caplog.at_level(logging.WARNING, logger="absl"):
        train("--num_train_epochs=1")
    assert "no `checkpoint` file" in caplog.text


@pytest.mark.parametrize("flag", ["num_train_epochs", "warmup_proportion", "learning_rate"])
@pytest.mark.parametrize("value", ["nan", "inf", "1e400"])
def test_numbers_are_finite(flag, value):
    with pytest.raises(ValueError, match=f"--{flag}=.*finite"):
        run_classifier.CLI.parse(["run_classifier.py", f"--{flag}={value}"])
