"""What is wrong is said with its place and what to do, and nothing that was there is lost."""

import contextlib
import json
import shutil

import pytest
from classifier_runs import (
    DATA,
    FINE_TUNED,
    PRETRAINED,
    main,
    model_flags,
    probabilities,
    read_results,
    snapshot,
    task_settings,
    write_rows,
    write_sentiment,
    write_vocabulary,
)

HEADER = "sentence\tlabel\n"


@contextlib.contextmanager
def refused(folder, *words, error=(ValueError, OSError)):
    """Expects an error whose message holds the words, and an output folder left as it was."""
    before = snapshot(folder)
    with pytest.raises(error) as caught:
        yield
    message = str(caught.value)
    for word in words:
        assert str(word) in message, message
    assert snapshot(folder) == before


@pytest.fixture(scope="module")
def trained(tmp_path_factory, sentiment, vocab_file):
    """A folder after three steps of training on two labels."""
    folder = tmp_path_factory.mktemp("trained")
    main(
        "--task_name=TSV",
        f"--data_dir={sentiment}",
        f"--output_dir={folder}",
        *model_flags(vocab_file),
        "--do_train",
        "--do_predict",
        "--train_batch_size=8",
        "--num_train_epochs=1",
    )
    return folder


@pytest.fixture
def data(tmp_path):
    return write_sentiment(tmp_path / "data", count=8)


@pytest.fixture
def run(tmp_path, data, vocab_file):
    """Runs the TSV task in `data`; what a test gives comes last and wins."""

    def run(*flags):
        return main(
            "--task_name=TSV",
            f"--data_dir={data}",
            f"--output_dir={tmp_path / 'output'}",
            *model_flags(vocab_file),
            "--train_batch_size=4",
            "--num_train_epochs=1",
            *flags,
        )

    return run


# Data files.


def test_bom_crlf_and_blank_lines_change_nothing(tmp_path, data, run):
    flags = ["--do_eval", "--do_predict", f"--init_checkpoint={FINE_TUNED}"]
    run(*flags, f"--output_dir={tmp_path / 'clean'}")
    for name in ("train", "dev", "test"):
        text = (data / f"{name}.tsv").read_text()
        text = "\ufeff" + text.replace("\n", "\r\n\r\n") + "\r\n  \r\n"
        (data / f"{name}.tsv").write_bytes(text.encode())
    run(*flags, f"--output_dir={tmp_path / 'output'}")
    found = snapshot(tmp_path / "output")
    assert len(found["test_results.tsv"].splitlines()) == 4
    assert found == snapshot(tmp_path / "clean")


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("train.tsv", HEADER + "good\tpos\nbad\n", ["line 3", "2 columns", "found 1 column"]),
        ("train.tsv", HEADER + "good\tpos\tmore\n", ["line 2", "2 columns", "found 3"]),
        ("dev.tsv", HEADER + "good\tpos\nbad\tmeh\n", ["line 3", "'meh'", "neg, pos"]),
        ("train.tsv", "sentence,label\ngood,pos\n", ["--task_name=CSV"]),
        ("train.tsv", "", ["no examples", "empty"]),
        ("train.tsv", HEADER, ["no examples", "header only"]),
        ("dev.tsv", HEADER, ["no examples"]),
        ("dev.tsv", None, ["does not exist", "dev.tsv (evaluation)", "holds test.tsv, train.tsv"]),
        ("train.tsv", None, ["does not exist", "train.tsv (training)", "holds dev.tsv, test.tsv"]),
        ("train.tsv", "review\tverdict\ngood\tpos\n", ["text or sentence", "'review', 'verdict'"]),
        ("dev.tsv", b"sentence\tlabel\nd\xe9j\xe0\tpos\n", ["byte 16", "0xe9", "UTF-8"]),
    ],
)
def test_bad_files(tmp_path, data, run, name, content, words):
    path = data / name
    if content is None:
        path.unlink()
    elif isinstance(content, bytes):
        path.write_bytes(content)
    else:
        path.write_text(content)
    (tmp_path / "output").mkdir()
    with refused(tmp_path / "output", path, *words):
        run("--do_train", "--do_eval")


def test_training_file_with_one_label(tmp_path, data, run):
    (data / "train.tsv").write_text(HEADER + "good\tpos\nbest\tpos\n")
    with refused(tmp_path, "two labels", "found in train.tsv: pos", "label column"):
        run("--do_train")


def test_glue_file_of_another_task(tmp_path, run):
    with refused(tmp_path, "train.tsv", "line 2", "at least 5", "found 4", "--task_name"):
        run("--task_name=MRPC", f"--data_dir={DATA / 'cola'}", "--do_train")


def test_missing_data_folder(tmp_path, run):
    with refused(tmp_path, "nowhere/train.tsv", "is not a folder"):
        run(f"--data_dir={tmp_path / 'nowhere'}", "--do_train")
    with refused(tmp_path, "no task 'MRCP'", "MRPC", "TSV"):
        run("--task_name=MRCP", "--do_train")


def test_ax_cannot_be_trained_or_evaluated(tmp_path, run):
    with refused(tmp_path, "AX has no training set", "MNLI"):
        run("--task_name=AX", "--do_train")
    with refused(tmp_path, "AX has no labelled set", "--do_predict"):
        run("--task_name=AX", "--do_eval")


def test_placeholder_labels_of_a_test_file_are_not_read(tmp_path, data, run):
    write_rows(data / "test.tsv", [("sentence", "label"), ("good", "?"), ("bad", "-1")])
    run("--do_predict", f"--init_checkpoint={FINE_TUNED}")
    assert probabilities(tmp_path / "output" / "test_results.tsv").shape == (2, 2)


# Model files.


def write_config(path, **changes):
    config = json.loads((PRETRAINED / "bert_config.json").read_text())
    config.update(changes)
    path.write_text(json.dumps({k: v for k, v in config.items() if v is not None}))
    return f"--bert_config_file={path}"


def test_vocabulary_that_is_longer_than_the_model(tmp_path, run):
    path = write_vocabulary(tmp_path / "long.txt", 121)
    with refused(tmp_path, path, "121 tokens", "vocab_size 120", "belongs to the checkpoint"):
        run("--do_train", f"--vocab_file={path}")


def test_vocabulary_that_is_much_shorter_than_the_model(tmp_path, run):
    config = write_config(tmp_path / "config.json", vocab_size=300)
    with refused(tmp_path, "120 tokens", "vocab_size 300", "belongs to the checkpoint"):
        run("--do_train", config)


def test_configuration_of_another_vocabulary(tmp_path, run):
    config = write_config(tmp_path / "config.json", vocab_size=128)
    with refused(tmp_path, "vocab_size 128", "120 rows", "bert_config.json and vocab.txt"):
        run("--do_train", config)


def test_vocabulary_that_is_not_there_or_not_whole(tmp_path, run):
    with refused(tmp_path, tmp_path / "none.txt"):
        run("--do_train", f"--vocab_file={tmp_path / 'none.txt'}")
    (tmp_path / "headless.txt").write_text("\n".join(f"word{n}" for n in range(120)))
    with refused(tmp_path, "headless.txt", "[CLS]"):
        run("--do_train", f"--vocab_file={tmp_path / 'headless.txt'}")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"vocab_size": None}, ["vocab_size"]),
        ({"hidden_size": "32"}, ["hidden_size", '"32"']),
        ({"hidden_dropout_prob": 1.5}, ["hidden_dropout_prob", "1.5"]),
        ({"num_attention_heads": 5}, ["hidden_size", "num_attention_heads", "5"]),
        ({"hidden_act": "swish"}, ["hidden_act", "swish", "gelu"]),
        ({"hiden_size": 32}, ["hiden_size"]),
        ({"hidden_size": 64}, ["64", "32", "bert_config.json"]),
        ({"num_hidden_layers": 2}, ["number of layers", "layer_2"]),
    ],
)
def test_bad_configurations(tmp_path, run, changes, words):
    config = write_config(tmp_path / "config.json", **changes)
    with refused(tmp_path, *words):
        run("--do_train", config)


def test_configuration_that_is_no_json(tmp_path, run):
    (tmp_path / "config.json").write_text('{"vocab_size": 120,')
    with refused(tmp_path, "config.json", "JSON"):
        run("--do_train", f"--bert_config_file={tmp_path / 'config.json'}")
    with refused(tmp_path, "absent.json"):
        run("--do_train", f"--bert_config_file={tmp_path / 'absent.json'}")


def copy_checkpoint(source, folder):
    folder.mkdir()
    for path in source.glob("bert_*"):
        shutil.copy(path, folder)
    return folder


@pytest.mark.parametrize("ending", ["index", "data-00000-of-00001"])
def test_truncated_checkpoint(tmp_path, run, ending):
    folder = copy_checkpoint(PRETRAINED, tmp_path / "model")
    path = folder / f"bert_model.ckpt.{ending}"
    path.write_bytes(path.read_bytes()[:-1000])
    with refused(tmp_path, path.name, f"{path.stat().st_size} bytes", "cut short"):
        run("--do_train", f"--init_checkpoint={folder}")
    path.unlink()
    with refused(tmp_path, path.name, "missing"):
        run("--do_train", f"--init_checkpoint={folder / 'bert_model.ckpt'}")


def test_missing_checkpoint(tmp_path, run):
    with refused(tmp_path, "no checkpoint", tmp_path / "nothing"):
        run("--do_train", f"--init_checkpoint={tmp_path / 'nothing' / 'bert_model.ckpt'}")


def test_config_or_vocabulary_that_is_not_beside_the_checkpoint(tmp_path, data):
    folder = copy_checkpoint(PRETRAINED, tmp_path / "model")
    flags = ["--task_name=TSV", f"--data_dir={data}", f"--output_dir={tmp_path / 'output'}"]
    flags += ["--do_train", f"--init_checkpoint={folder}"]
    with refused(tmp_path, "no vocab.txt beside", "--vocab_file"):
        main(*flags)
    (folder / "bert_config.json").unlink()
    with refused(tmp_path, "no bert_config.json beside", "--bert_config_file"):
        main(*flags)


@pytest.mark.parametrize(
    ("name", "flag", "say"),
    [
        ("multi_cased_L-12", [], "--do_lower_case=false"),
        ("Uncased-tiny", ["--nodo_lower_case"], "--do_lower_case=true"),
    ],
)
@pytest.mark.parametrize("inside", ["", "bert_model.ckpt"])
def test_case_of_the_checkpoint(tmp_path, run, name, flag, say, inside):
    folder = copy_checkpoint(PRETRAINED, tmp_path / name)
    with refused(tmp_path, name, say):
        run("--do_train", f"--init_checkpoint={folder / inside}", *flag)


def test_length_over_the_positions(tmp_path, run):
    with refused(tmp_path, "--max_seq_length=65", "max_position_embeddings, 64"):
        run("--do_train", "--max_seq_length=65")


# Settings.


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--class_weights=1,2,3"], ["class_weights=1,2,3", "2 positive numbers", "neg, pos"]),
        (["--best_metric=bleu"], ["best_metric=bleu", "accuracy", "f1", "loss"]),
        (["--train_batch_size=9"], ["8 examples", "batches of 9", "no step", "train_batch_size"]),
        (["--learning_rates=1e-3,x"], ["learning_rates=1e-3,x", "positive numbers"]),
        (["--labels=neg,neg"], ["listed twice", "neg, neg"]),
        (["--text_a_column=7"], ["number 7", "2 columns"]),
        (["--task_kind=regression"], ["line 2", "'neg'", "not a finite number"]),
        (["--never_split=[NO]"], ["[NO]"]),
        (["--use_tpu"], ["--tpu_name"]),
    ],
)
def test_settings_that_do_not_fit_the_data(tmp_path, run, flags, words):
    with refused(tmp_path, *words):
        run("--do_train", *flags)


def test_columns_are_for_tables_of_ones_own(tmp_path, run):
    with refused(tmp_path, "MRPC", "text_a_column", "TSV and CSV only"):
        run("--task_name=MRPC", f"--data_dir={DATA / 'mrpc'}", "--text_a_column=1", "--do_train")


# The output folder.


def test_output_folder_of_another_set_of_labels(trained, data, run):
    rows = [("sentence", "label"), ("a", "neg"), ("b", "pos"), ("c", "meh")]
    write_rows(data / "train.tsv", rows)
    with refused(trained, trained, "neg, pos", "meh, neg, pos", "another --output_dir"):
        run("--do_train", "--train_batch_size=2", f"--output_dir={trained}")


def test_output_folder_of_another_kind(trained, data, run):
    write_rows(data / "train.tsv", [("sentence", "label"), ("a", "1"), ("b", "2")])
    with refused(trained, trained, "classification", "regression", "another --output_dir"):
        run("--do_train", "--task_kind=regression", f"--output_dir={trained}")


def test_output_folder_of_the_original_with_other_labels(tmp_path, run):
    # Two labels here, three there; and nothing but the checkpoint tells it.
    folder = tmp_path / "original"
    shutil.copytree(FINE_TUNED / "training", folder)
    for action in ("--do_train", "--do_eval", "--do_predict"):
        with refused(folder, "model.ckpt-6", "output_weights: [2, 32] in the model, [3, 32]"):
            run(action, f"--output_dir={folder}")


def test_output_folder_of_a_model_of_another_size(trained, tmp_path, data, vocab_file):
    config = write_config(tmp_path / "config.json", num_hidden_layers=2)
    flags = ["--task_name=TSV", f"--data_dir={data}", f"--output_dir={trained}", config]
    with refused(trained, "another model", "num_hidden_layers 3 -> 2"):
        main(*flags, f"--vocab_file={vocab_file}", "--do_train", "--train_batch_size=2")


def test_output_folder_that_cannot_be_written(tmp_path, run):
    (tmp_path / "file").write_text("kept")
    with refused(tmp_path, tmp_path / "file" / "output", "cannot write", "--output_dir"):
        run("--do_train", f"--output_dir={tmp_path / 'file' / 'output'}")


def test_output_folder_with_a_broken_checkpoint(trained, tmp_path, run):
    folder = tmp_path / "broken"
    shutil.copytree(trained, folder)
    path = folder / "model.ckpt-3.data-00000-of-00001"
    path.write_bytes(path.read_bytes()[:-500])
    with refused(folder, path.name, "cut short", error=ValueError):
        run("--do_train", f"--output_dir={folder}", "--train_batch_size=2")
    path.unlink()
    with refused(folder, "model.ckpt-3", "not all there", error=FileNotFoundError):
        run("--do_train", f"--output_dir={folder}", "--train_batch_size=2")


def test_output_folder_with_broken_settings(trained, tmp_path, run):
    folder = tmp_path / "broken"
    shutil.copytree(trained, folder)
    (folder / "task.json").write_text("{")
    with refused(folder, folder / "task.json", "not valid JSON"):
        run("--do_train", f"--output_dir={folder}")


def test_nothing_to_evaluate(tmp_path, data, vocab_file):
    flags = ["--task_name=TSV", f"--data_dir={data}", f"--output_dir={tmp_path / 'empty'}"]
    flags += [f"--vocab_file={vocab_file}", write_config(tmp_path / "config.json")]
    with refused(tmp_path, "no checkpoint in", tmp_path / "empty", "--init_checkpoint"):
        main(*flags, "--do_eval")


def test_random_head_is_warned_about(tmp_path, run, caplog):
    with caplog.at_level("WARNING", logger="absl"):
        run("--do_eval")
    loud = [record.getMessage() for record in caplog.records if "HEAD IS RANDOM" in record.message]
    assert len(loud) == 1
    assert str(PRETRAINED) in loud[0]
    assert "--do_train" in loud[0]
    assert read_results(tmp_path / "output" / "eval_results.txt")["global_step"] == "0"


def test_prediction_without_the_training_file(trained, sentiment, tmp_path):
    data = tmp_path / "data"
    data.mkdir()
    shutil.copy(sentiment / "test.tsv", data)
    expected = probabilities(trained / "test_results.tsv")
    main("--task_name=TSV", f"--data_dir={data}", f"--output_dir={trained}", "--do_predict")
    assert (probabilities(trained / "test_results.tsv") == expected).all()
    assert task_settings(trained)["labels"] == ["neg", "pos"]


def test_regression_is_predicted_without_the_training_file(tmp_path, data, run):
    rows = [("sentence", "label"), *((letter, str(n)) for n, letter in enumerate("abcd"))]
    write_rows(data / "train.tsv", rows)
    run("--do_train", "--task_kind=regression")
    (data / "train.tsv").unlink()
    flags = ["--task_name=TSV", f"--data_dir={data}", f"--output_dir={tmp_path / 'output'}"]
    main(*flags, "--do_predict")
    assert probabilities(tmp_path / "output" / "test_results.tsv").shape == (4, 1)
