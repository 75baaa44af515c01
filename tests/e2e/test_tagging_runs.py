"""run_classifier.py on NER, SWAG and RACE: train, evaluate, predict, go on after a kill."""

import csv
import json
import pathlib
import shutil
import signal
import subprocess
import sys

import numpy as np
import pytest
from classifier_runs import (
    assert_same_weights,
    main,
    probabilities,
    read_results,
    read_table,
    task_settings,
    weights,
)
from tagging_runs import ENDINGS, conll, tagged_sentences, write_ner, write_swag

import run_classifier
from bert_tf.checkpoint import restore
from bert_tf.cli import convert_checkpoint
from data_prep.tasks import entities
from data_prep.tasks.conll import read_conll


class Killed(BaseException):
    """What no handler catches."""


@pytest.fixture(scope="module")
def ner_files(tmp_path_factory):
    return write_ner(tmp_path_factory.mktemp("ner"))


@pytest.fixture(scope="module")
def swag_files(tmp_path_factory):
    return write_swag(tmp_path_factory.mktemp("swag"))


@pytest.fixture(scope="module")
def lives(tmp_path_factory, small_model, ner_files, swag_files):
    """Each task trained at one go, and with a kill between two saves."""
    folder = tmp_path_factory.mktemp("lives")
    common = [
        f"--init_checkpoint={small_model}",
        "--max_seq_length=32",
        "--do_train",
        "--do_eval",
        "--do_predict",
        "--train_batch_size=8",
        "--learning_rate=2e-2",
        "--save_checkpoints_steps=6",
        "--steps_per_loop=3",
        "--eval_steps=12",
        "--num_threads=2",
    ]
    tasks = {
        "ner": [f"--data_dir={ner_files}", "--task_name=NER", "--num_train_epochs=6"],
        "swag": [
            f"--data_dir={swag_files}",
            "--task_name=SWAG",
            "--num_train_epochs=8",
            "--learning_rate=5e-3",
            "--write_predictions",
        ],
    }
    plan = []
    for name, flags in tasks.items():
        for run, kill in (("whole", None), ("killed", {"step": 9}), ("killed", None)):
            output = f"--output_dir={folder / name}_{run}"
            plan.append({"argv": [*common, *flags, output], "kill": kill})
    (folder / "plan.json").write_text(json.dumps(plan))
    driver = pathlib.Path(__file__).with_name("kill_driver.py")
    command = [sys.executable, driver, folder / "plan.json", folder / "log.txt"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    log = (folder / "log.txt").read_text()
    ends = [(end["signal"], end["status"]) for end in json.loads(done.stdout)]
    assert ends == [(0, 0), (signal.SIGKILL, None), (0, 0)] * 2, log
    return folder, log


RESULTS = {
    "ner": ("eval_results.txt", "eval_results_test.txt", "eval_report.tsv",
            "eval_report_test.tsv", "test_predictions.conll"),
    "swag": ("eval_results.txt", "test_results.tsv", "test_predictions.tsv"),
}  # fmt: skip


@pytest.mark.parametrize("task", RESULTS)
def test_killed_run_ends_in_the_same_bits(lives, task):
    whole, killed = (lives[0] / f"{task}_{run}" for run in ("whole", "killed"))
    assert_same_weights(killed, whole)
    assert_same_weights(killed / "best", whole / "best")
    for name in RESULTS[task]:
        assert (killed / name).read_bytes() == (whole / name).read_bytes(), name


# Tagging.


def test_entities_are_learnt(lives, ner_files):
    folder = lives[0] / "ner_whole"
    results = read_results(folder / "eval_results.txt")
    assert {"eval_f1", "eval_strict_f1", "eval_accuracy", "eval_loss"} <= results.keys()
    assert float(results["eval_f1"]) > 0.8, (folder / "eval_report.tsv").read_text()
    settings = task_settings(folder)
    assert settings["labels"] == ["O", "B-LOC", "I-LOC", "B-PER", "I-PER"]
    assert (settings["kind"], settings["scheme"]) == ("tagging", "IOB2")
    assert "the tokenizer leaves nothing of 1 words" in lives[1]


def test_predictions_are_the_file_with_a_column(lives, ner_files):
    folder = lives[0] / "ner_whole"
    given = (ner_files / "test.txt").read_text().split("\n")
    found = (folder / "test_predictions.conll").read_text().split("\n")
    assert [line.rpartition(" ")[0] if line else "" for line in found] == given
    # The scores are those of what was written.
    path = str(folder / "test_predictions.conll")
    truth = [one.tags for one in read_conll(path, tag_column=-2).sentences]
    predicted = [one.tags for one in read_conll(path, tag_column=-1).sentences]
    results = read_results(folder / "eval_results_test.txt")
    score = entities.score(truth, predicted)
    assert float(results["eval_f1"]) == pytest.approx(score[""].f1)
    table = {row[0]: row[1:] for row in read_table(folder / "eval_report_test.tsv")[1:]}
    assert table.keys() == {"LOC", "PER"}
    for kind, row in table.items():
        assert row[:3] == [f"{value:.4f}" for value in score[kind][:3]]
        assert int(row[3]) == score[kind].support


def test_predictions_do_not_depend_on_the_batch(tmp_path, lives, ner_files):
    """In a folder of its own, from the trained one alone and without its training file."""
    trained = lives[0] / "ner_whole"
    data = tmp_path / "data"
    data.mkdir()
    shutil.copy(ner_files / "test.txt", data)
    expected = (trained / "test_predictions.conll").read_text()
    for size in (1, 5, 64):
        main(
            "--task_name=NER",
            f"--data_dir={data}",
            f"--init_checkpoint={trained / 'best'}",
            f"--bert_config_file={trained / 'bert_config.json'}",
            f"--vocab_file={trained / 'vocab.txt'}",
            f"--output_dir={trained}",
            "--do_predict",
            f"--predict_batch_size={size}",
        )
        assert (trained / "test_predictions.conll").read_text() == expected
    other = tmp_path / "other"
    main(
        "--task_name=NER",
        f"--data_dir={data}",
        f"--init_checkpoint={trained}",
        f"--output_dir={other}",
        "--do_predict",
        "--pad_to_max_length",
    )
    written = (other / "test_predictions.conll").read_text().split("\n")
    assert [line.rpartition(" ")[0] for line in written if line] == [
        line.rpartition(" ")[0] for line in expected.split("\n") if line
    ]


def test_bioes_and_a_test_file_without_tags(tmp_path, small_model, caplog):
    data = tmp_path / "data"
    write_ner(data, tagged_test=False)
    for name in ("train", "dev"):
        sentences = [
            (words, entities.from_iob2(tags, "BIOES")) for words, tags in tagged_sentences(12, 3)
        ]
        text = conll(sentences).replace(" ", "\tx\t")
        (data / f"{name}.txt").write_text(text.replace("a\tx\t", "x\tx\t"))
    output = tmp_path / "output"
    with caplog.at_level("INFO", logger="absl"):
        main(
            "--task_name=NER",
            f"--data_dir={data}",
            f"--init_checkpoint={small_model}",
            f"--output_dir={output}",
            "--do_train",
            "--do_eval",
            "--do_predict",
            "--bilstm_head",
            "--document_context",
            "--learning_rate=2e-2",
            "--num_train_epochs=8",
            "--train_batch_size=4",
        )
    assert "dev.txt has no -DOCSTART- lines: --document_context" in caplog.text
    assert "test: 1 sentences are longer than --max_seq_length=32" in caplog.text
    assert task_settings(output)["scheme"] == "BIOES"
    assert task_settings(output)["document_context"] is True
    assert {name for name in weights(output) if name.startswith("bilstm")}
    assert not (output / "eval_results_test.txt").exists()
    found = (output / "test_predictions.conll").read_text()
    given = (data / "test.txt").read_text()
    assert [line.split(" ")[0] for line in found.split("\n")] == given.split("\n")
    tags = {line.split(" ")[1][0] for line in found.split("\n") if line}
    assert tags <= set("OBIES")
    assert tags & {"E", "S"}


def test_the_paper_protocol(tmp_path, small_model, ner_files):
    flags = [
        "--task_name=NER",
        f"--data_dir={ner_files}",
        f"--init_checkpoint={small_model}",
        f"--output_dir={tmp_path}",
        "--do_train",
        "--do_eval",
        "--num_train_epochs=1",
        "--train_batch_size=8",
        "--learning_rates=1e-2,1e-3",
    ]
    first = main(*flags)
    results = json.loads((tmp_path / "best" / "best.json").read_text())
    assert results["f1"] == pytest.approx(first["f1"])
    assert main(*flags) == first  # Both were finished before.


# Multiple choice.


def test_the_right_ending_is_learnt(lives, swag_files):
    folder = lives[0] / "swag_whole"
    assert float(read_results(folder / "eval_results.txt")["eval_accuracy"]) > 0.6
    saved = weights(folder)
    assert saved["output_weights"].shape == (1, 16)
    assert "output_bias" not in saved
    assert not (folder / "eval_results_test.txt").exists()


def test_probabilities_of_the_endings(lives, swag_files):
    folder = lives[0] / "swag_whole"
    with open(swag_files / "test.csv", newline="") as handle:
        rows = list(csv.DictReader(handle))
    values = probabilities(folder / "test_results.tsv")
    assert values.shape == (len(rows), ENDINGS)
    np.testing.assert_allclose(values.sum(axis=1), 1.0, atol=1e-5)
    table = read_table(folder / "test_predictions.tsv")
    assert table[0] == ["id", "prediction", "choice0", "choice1", "choice2", "choice3"]
    for number, (row, value, line) in enumerate(zip(rows, values, table[1:], strict=True)):
        assert line[:2] == [f"test-{number}", str(np.argmax(value))]
        if not row["ending3"]:
            assert value[3] == 0.0
    # Chosen by what was learnt, not by place.
    right = [
        next(i for i in range(ENDINGS) if row[f"ending{i}"].startswith("good")) for row in rows
    ]
    assert (np.argmax(values, axis=1) == right).mean() > 0.6


def test_choices_do_not_depend_on_the_batch(lives, swag_files):
    folder = lives[0] / "swag_whole"
    expected = probabilities(folder / "test_results.tsv")
    for size in (1, 3, 64):
        flags = ["--task_name=SWAG", f"--data_dir={swag_files}", f"--output_dir={folder}"]
        main(*flags, "--do_predict", f"--predict_batch_size={size}")
        found = probabilities(folder / "test_results.tsv")
        np.testing.assert_allclose(found, expected, atol=1e-6)


def test_race_with_labels_in_the_test_set(tmp_path, small_model):
    data = tmp_path / "data"
    (data / "test").mkdir(parents=True)
    item = {
        "id": "a.txt",
        "article": "it was good",
        "questions": ["it was _ .", "is it on?"],
        "options": [["good", "bad", "not"], ["in", "on"]],
        "answers": ["A", "B"],
    }
    for name in ("train.json", "dev.json", "test/a.txt"):
        (data / name).write_text(json.dumps(item))
    output = tmp_path / "output"
    main(
        "--task_name=RACE",
        f"--data_dir={data}",
        f"--init_checkpoint={small_model}",
        f"--output_dir={output}",
        "--do_train",
        "--do_eval",
        "--do_predict",
        "--write_predictions",
        "--train_batch_size=2",
        "--num_train_epochs=2",
    )
    assert "eval_accuracy" in read_results(output / "eval_results_test.txt")
    table = read_table(output / "test_predictions.tsv")
    assert [row[0] for row in table[1:]] == ["a.txt-0", "a.txt-1"]
    assert {row[1] for row in table[1:]} <= {"A", "B", "C"}


def test_hugging_face_and_back(tmp_path, lives, swag_files):
    """Their class has a bias, which no softmax sees."""
    for name, architecture in (("swag", "MultipleChoice"), ("ner", "TokenClassification")):
        folder, middle, back = lives[0] / f"{name}_whole", tmp_path / name, tmp_path / f"{name}_b"
        for source, target, to in ((folder, middle, "huggingface"), (middle, back, "original")):
            argv = [f"--input={source}", f"--output={target}", f"--to={to}", "--nouse_best"]
            convert_checkpoint.main(["convert_checkpoint", *argv])
        config = json.loads((middle / "config.json").read_text())
        assert config["architectures"] == [f"BertFor{architecture}"]
        expected = {
            key: value
            for key, value in weights(folder).items()
            if "/adam_" not in key
            and key != "global_step"
            # Their class for tokens has no pooler.
            and not (name == "ner" and "/pooler/" in key)
        }
        found = restore.load(str(back)).tensors()
        assert found.keys() == expected.keys()
        for key, value in expected.items():
            np.testing.assert_array_equal(found[key], value)
    assert [config["id2label"][str(i)] for i in range(5)] == task_settings(folder)["labels"]
    # Read as it is, too.
    flags = ["--task_name=SWAG", f"--data_dir={swag_files}", "--do_predict", "--nouse_best"]
    main(*flags, f"--output_dir={lives[0] / 'swag_whole'}")
    expected = probabilities(lives[0] / "swag_whole" / "test_results.tsv")
    main(*flags, f"--init_checkpoint={tmp_path / 'swag'}", f"--output_dir={tmp_path / 'out'}")
    found = probabilities(tmp_path / "out" / "test_results.tsv")
    np.testing.assert_allclose(found, expected, atol=1e-6)


# The feature-based approach.


def test_features_are_computed_once(tmp_path, small_model, ner_files, monkeypatch):
    train = [
        "--task_name=NER",
        f"--data_dir={ner_files}",
        f"--init_checkpoint={small_model}",
        "--do_train",
        "--do_eval",
        "--do_predict",
        "--feature_based=weighted_sum",
        "--lstm_units=8",
        "--learning_rate=2e-2",
        "--num_train_epochs=6",
        "--train_batch_size=8",
        "--save_checkpoints_steps=6",
        "--steps_per_loop=3",
    ]
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    main(*train, f"--output_dir={whole}")
    assert float(read_results(whole / "eval_results.txt")["eval_f1"]) > 0.5
    saved = weights(whole)
    # The folder is whole, but the encoder is what it was, and has no slots.
    initial = weights(small_model / "bert_model.ckpt")
    for name, value in initial.items():
        np.testing.assert_array_equal(saved[name], value)
        assert f"{name}/adam_m" not in saved
    assert saved["layer_mix/layer_weights"].shape == (2,)  # The embeddings and one layer.
    assert saved["layer_mix/layer_weights"].any()
    assert saved["bilstm/layer_1_backward/lstm_cell/kernel"].shape == (16, 32)
    assert saved["output_weights"].shape == (5, 16)

    def die(step):
        if step == 9:
            raise Killed

    monkeypatch.setattr(run_classifier, "AFTER_LOOP", die)
    with pytest.raises(Killed):
        main(*train, f"--output_dir={killed}")
    monkeypatch.setattr(run_classifier, "AFTER_LOOP", None)
    files = sorted(path.name for path in (killed / "features").iterdir())
    assert [name.rsplit("-", 1)[0] for name in files] == [
        "dev-weighted_sum", "test-weighted_sum", "train-weighted_sum"
    ]  # fmt: skip

    from bert_tf import features

    def refuse(self, texts):
        raise AssertionError("the features were there")

    with monkeypatch.context() as patch:
        patch.setattr(features.FeatureExtractor, "__call__", refuse)
        main(*train, f"--output_dir={killed}")
        with pytest.raises(AssertionError):
            main(*train[:-3], f"--output_dir={tmp_path / 'new'}")
    assert_same_weights(killed, whole)
    for name in RESULTS["ner"]:
        assert (killed / name).read_bytes() == (whole / name).read_bytes(), name

    # What the folder says is enough, and the features can be made again.
    expected = (whole / "test_predictions.conll").read_text()
    shutil.rmtree(whole / "features")
    (whole / "test_predictions.conll").unlink()
    main("--task_name=NER", f"--data_dir={ner_files}", f"--output_dir={whole}", "--do_predict")
    assert (whole / "test_predictions.conll").read_text() == expected
    # Another approach does not go on in this folder.
    for flag in ("--feature_based=last", "--feature_based=off", "--lstm_units=4"):
        with pytest.raises(ValueError, match=r"began with --(feature_based=weighted_sum|lstm_un)"):
            main(*train, f"--output_dir={whole}", flag, "--num_train_epochs=7")


def test_features_of_one_layer(tmp_path, small_model, ner_files):
    main(
        "--task_name=NER",
        f"--data_dir={ner_files}",
        f"--init_checkpoint={small_model}",
        f"--output_dir={tmp_path}",
        "--do_train",
        "--do_eval",
        "--feature_based=embeddings",
        "--lstm_units=4",
        "--learning_rate=2e-2",
        "--num_train_epochs=1",
        "--train_batch_size=8",
    )
    assert "eval_f1" in read_results(tmp_path / "eval_results.txt")
    vectors = np.load(next((tmp_path / "features").glob("train-*.npy")))
    assert vectors.shape == (sum(map(bool, (ner_files / "train.txt").read_text().split("\n"))), 16)
    assert "layer_mix/layer_weights" not in weights(tmp_path)


# Bad input.


def test_what_is_wrong_is_said_in_one_line(tmp_path, small_model, ner_files, swag_files):
    """Through the script itself: a sentence, no traceback, nothing written."""
    command = [
        sys.executable,
        pathlib.Path(run_classifier.__file__),
        "--task_name=NER",
        f"--data_dir={tmp_path}",
        f"--init_checkpoint={small_model}",
        f"--output_dir={tmp_path / 'output'}",
        "--do_train",
    ]
    (tmp_path / "train.txt").write_text("a B-X\nb\n")
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert done.returncode != 0
    assert "Traceback" not in done.stderr
    last = done.stderr.strip().split("\n")[-1]
    assert "train.txt, line 2" in last
    assert "columns" in last
    assert not (tmp_path / "output").exists()


NER_FAULTS = {
    "inconsistent columns": ({"train": "a B-X\nb c O\n"}, "train.txt, line 2"),
    "a tag that is none": ({"train": "a B-X\nb NN\n"}, "train.txt, line 2: 'NN' is not a tag"),
    "two schemes": ({"train": "a S-X\nb L-X\n"}, "train.txt, line 2"),
    "no entity": ({"train": "a O\n"}, "has no entity"),
    "no tags": ({"train": "a\nb\n"}, "no tags beside the tokens"),
    "empty": ({"train": "\n\n"}, "has no tokens"),
    "unseen in training": ({"dev": "a B-Y\n"}, "there is no label for the tag 'B-Y'"),
    "no dev file": ({"dev": None}, "dev.txt does not exist"),
}


@pytest.mark.parametrize("fault", NER_FAULTS)
def test_bad_ner_files(tmp_path, small_model, fault):
    files, message = NER_FAULTS[fault]
    for name, text in {"train": "a B-X\n", "dev": "a O\n", **files}.items():
        if text is not None:
            (tmp_path / f"{name}.txt").write_text(text)
    with pytest.raises((ValueError, OSError), match=message.replace(".", r"\.")):
        main(
            "--task_name=NER",
            f"--data_dir={tmp_path}",
            f"--init_checkpoint={small_model}",
            f"--output_dir={tmp_path / 'output'}",
            "--do_train",
            "--do_eval",
        )
    assert not [name for name in tmp_path.glob("output/*") if name.name != ".lock"]


SWAG_FAULTS = {
    "an ending is missing": (
        ["1,v,0,x,he was,she is,gold,good,,bad,not,0"], "line 2: ending1 is empty"
    ),
    "one ending": (["1,v,0,x,he was,she is,gold,good,,,,0"], "needs two endings or more"),
    "a label that is none": (["1,v,0,x,he,she,gold,a,b,c,d,4"], "the label is '4'"),
    "too few columns": (["1,v,0,x,he,she,gold,a,b,c,1"], "line 2"),
    "no examples": ([], "has no examples"),
}  # fmt: skip


@pytest.mark.parametrize("fault", SWAG_FAULTS)
def test_bad_swag_files(tmp_path, small_model, fault):
    lines, message = SWAG_FAULTS[fault]
    (tmp_path / "train.csv").write_text(
        ",video-id,fold-ind,startphrase,sent1,sent2,gold-source,"
        "ending0,ending1,ending2,ending3,label\n" + "".join(f"{line}\n" for line in lines)
    )
    with pytest.raises(ValueError, match=message):
        main(
            "--task_name=SWAG",
            f"--data_dir={tmp_path}",
            f"--init_checkpoint={small_model}",
            f"--output_dir={tmp_path / 'output'}",
            "--do_train",
        )


FLAG_FAULTS = {
    "--document_context --task_name=SWAG": "--document_context is for --task_name=NER",
    "--bilstm_head --task_name=SWAG": "--bilstm_head is not for multiple choice",
    "--feature_based=last --bilstm_head": "no --bilstm_head",
    "--feature_based=sum_last_4": "needs 4 layers; the model has 1",
    "--write_submission": "--write_submission is for GLUE's server",
    "--word_column=5": "there is no column 5",
    "--word_column=1": "both are said to be in column 1",
    "--best_metric=accurate": "NER has precision, recall, f1",
    "--class_weights=balanced": "--class_weights is for classes",
}


@pytest.mark.parametrize("flags", FLAG_FAULTS)
def test_flags_that_do_not_go_together(tmp_path, small_model, ner_files, swag_files, flags):
    data = swag_files if "SWAG" in flags else ner_files
    with pytest.raises(ValueError, match=FLAG_FAULTS[flags]):
        main(
            "--task_name=NER",
            f"--data_dir={data}",
            f"--init_checkpoint={small_model}",
            f"--output_dir={tmp_path / 'output'}",
            "--do_train",
            *flags.split(),
        )
