"""run_classifier.py from a checkpoint and a task to metrics, predictions and a checkpoint."""

import json
import shutil
import uuid

import numpy as np
import pytest
from classifier_runs import (
    DATA,
    FINE_TUNED,
    GOLDEN,
    PRETRAINED,
    assert_same_weights,
    main,
    model_flags,
    probabilities,
    read_results,
    read_table,
    snapshot,
    task_settings,
    weights,
    write_rows,
)

import run_classifier

MNLI_LABELS = ["contradiction", "entailment", "neutral"]


def task_flags(name, data_dir, output_dir):
    return [f"--task_name={name}", f"--data_dir={data_dir}", f"--output_dir={output_dir}"]


def rows_sum_to_one(path, rows, columns):
    found = probabilities(path)
    assert found.shape == (rows, columns)
    np.testing.assert_allclose(found.sum(axis=1), 1.0, atol=1e-5)


# A sentence-pair task of the original, from one of its checkpoints.


@pytest.fixture(scope="module")
def mrpc(tmp_path_factory, vocab_file):
    """A trained folder, with the metrics that were returned."""
    output = tmp_path_factory.mktemp("mrpc")
    flags = [
        *task_flags("MRPC", DATA / "mrpc", output),
        *model_flags(vocab_file),
        f"--bert_config_file={PRETRAINED / 'bert_config.json'}",
        "--do_train",
        "--do_eval",
        "--do_predict",
        "--train_batch_size=4",
        "--num_train_epochs=2",
        "--learning_rate=1e-3",
        "--write_predictions",
        "--write_submission",
    ]
    return output, main(*flags)


def test_mrpc_results(mrpc):
    output, returned = mrpc
    lines = (output / "eval_results.txt").read_text().splitlines()
    found = read_results(output / "eval_results.txt")
    assert lines == sorted(lines)
    assert {"eval_accuracy", "eval_loss", "global_step", "loss"} <= found.keys()
    # 13 examples in batches of 4, twice.
    assert found["global_step"] == "6"
    assert found["loss"] == found["eval_loss"]
    assert float(found["eval_accuracy"]) == pytest.approx(returned["accuracy"])
    report = read_table(output / "eval_report.tsv")
    assert [row[0] for row in report] == ["label", "0", "1"]
    assert sum(int(row[4]) for row in report[1:]) == 6


def test_mrpc_predictions(mrpc):
    output, _ = mrpc
    rows_sum_to_one(output / "test_results.tsv", 5, 2)
    shares = probabilities(output / "test_results.tsv")
    named = read_table(output / "test_predictions.tsv")
    assert named[0] == ["id", "prediction", "0", "1"]
    assert [row[0] for row in named[1:]] == [f"test-{number}" for number in range(1, 6)]
    best = [str(number) for number in shares.argmax(axis=1)]
    assert [row[1] for row in named[1:]] == best
    np.testing.assert_array_equal(np.array([row[2:] for row in named[1:]], float), shares)
    submission = read_table(output / "MRPC.tsv")
    assert submission[0] == ["index", "prediction"]
    assert submission[1:] == [[str(number), label] for number, label in enumerate(best)]


def test_mrpc_folder_can_be_used_alone(mrpc):
    output, _ = mrpc
    settings = task_settings(output)
    assert (settings["task"], settings["labels"]) == ("MRPC", ["0", "1"])
    before = snapshot(output)
    main(*task_flags("MRPC", DATA / "mrpc", output), "--do_eval", "--do_predict")
    assert snapshot(output) == before


def test_mrpc_again_has_nothing_to_train(mrpc, vocab_file):
    output, _ = mrpc
    before = {name: value for name, value in snapshot(output).items() if "events" not in name}
    flags = [*task_flags("MRPC", DATA / "mrpc", output), "--do_train", "--do_eval"]
    main(*flags, "--train_batch_size=4", "--num_train_epochs=2", *model_flags(vocab_file))
    after = {name: value for name, value in snapshot(output).items() if "events" not in name}
    assert after == before


def test_checkpoint_has_the_originals_variables(mrpc):
    output, _ = mrpc
    found = weights(output / "model.ckpt-6")
    expected = json.loads((FINE_TUNED / "training" / "variables.json").read_text())
    # The golden run has three labels, this one two.
    shapes = {
        entry["name"]: [2 if "output_" in entry["name"] and n == 3 else n for n in entry["shape"]]
        for entry in expected
    }
    shapes["output_bias"] = shapes["output_bias/adam_m"] = shapes["output_bias/adam_v"] = [2]
    assert {name: list(value.shape) for name, value in found.items()} == shapes
    assert found["global_step"] == 6
    assert found["global_step"].dtype == np.int64
    moved = [name for name, value in found.items() if name.endswith("adam_m") and value.any()]
    assert len(moved) > 50


def test_checkpoint_is_read_by_a_saver_of_tensorflow_1(mrpc):
    import tensorflow as tf

    output, _ = mrpc
    expected = weights(output / "model.ckpt-6")
    v1 = tf.compat.v1
    with tf.Graph().as_default(), v1.Session() as session:
        for name, value in expected.items():
            v1.get_variable(name, value.shape, value.dtype, use_resource=False)
        latest = v1.train.latest_checkpoint(str(output))
        v1.train.Saver().restore(session, latest)
        for variable in v1.global_variables():
            found = session.run(variable)
            np.testing.assert_array_equal(found, expected[variable.op.name])


def test_prediction_in_a_trained_folder_may_have_one_row(mrpc, tmp_path):
    output, _ = mrpc
    shutil.copytree(output, tmp_path / "run")
    lines = (DATA / "mrpc" / "test.tsv").read_text(encoding="utf-8").splitlines()
    (tmp_path / "test.tsv").write_text("\n".join(lines[:2]) + "\n", encoding="utf-8")
    main(*task_flags("MRPC", tmp_path, tmp_path / "run"), "--do_predict")
    rows_sum_to_one(tmp_path / "run" / "test_results.tsv", 1, 2)
    np.testing.assert_allclose(
        probabilities(tmp_path / "run" / "test_results.tsv"),
        probabilities(output / "test_results.tsv")[:1],
        atol=1e-6,
    )


# A single-sentence task, from a Hugging Face folder.


@pytest.fixture(scope="module")
def huggingface_folder(tmp_path_factory, vocab_file):
    folder = tmp_path_factory.mktemp("huggingface")
    for name in ("config.json", "model.safetensors"):
        shutil.copy(GOLDEN / "conversions" / "huggingface" / name, folder)
    shutil.copy(vocab_file, folder / "vocab.txt")
    return folder


@pytest.fixture(scope="module")
def cola_data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cola_data")
    shutil.copytree(DATA / "cola", folder, dirs_exist_ok=True)
    with open(folder / "test.tsv", "a", encoding="utf-8") as handle:
        handle.write("" if (DATA / "cola" / "test.tsv").read_text().endswith("\n") else "\n")
        handle.write("9\tA last sentence.\n")
    lines = (folder / "test.tsv").read_text(encoding="utf-8").splitlines()
    (folder / "test.tsv").write_text("\n".join(lines[:1] + lines[-5:]) + "\n", encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def cola(tmp_path_factory, huggingface_folder, cola_data):
    output = tmp_path_factory.mktemp("cola")
    main(
        *task_flags("CoLA", cola_data, output),
        f"--init_checkpoint={huggingface_folder}",
        "--do_train",
        "--do_eval",
        "--do_predict",
        "--train_batch_size=4",
        "--num_train_epochs=1",
    )
    return output


def test_cola_from_a_huggingface_folder(cola):
    found = read_results(cola / "eval_results.txt")
    assert {"eval_accuracy", "eval_matthews", "eval_loss", "global_step", "loss"} == found.keys()
    config = json.loads((cola / "bert_config.json").read_text())
    assert (config["hidden_act"], config["vocab_size"]) == ("gelu", 120)
    # The model's weights are those of the original checkpoint, two steps on.
    moved = np.abs(
        weights(cola)["bert/embeddings/word_embeddings"]
        - weights(PRETRAINED / "bert_model.ckpt")["bert/embeddings/word_embeddings"]
    )
    assert 0 < moved.max() < 1e-3


def test_cola_test_file_with_a_header_and_five_rows(cola):
    rows_sum_to_one(cola / "test_results.tsv", 5, 2)


def test_cola_test_file_with_one_row(cola, cola_data, tmp_path):
    shutil.copytree(cola, tmp_path / "run")
    lines = (cola_data / "test.tsv").read_text(encoding="utf-8").splitlines()
    (tmp_path / "test.tsv").write_text("\n".join(lines[:2]) + "\n", encoding="utf-8")
    main(*task_flags("CoLA", tmp_path, tmp_path / "run"), "--do_predict")
    rows_sum_to_one(tmp_path / "run" / "test_results.tsv", 1, 2)


# Three labels, from a fine-tuned checkpoint: its head is taken.


@pytest.fixture(scope="module")
def mnli_data(tmp_path_factory):
    """MNLI with the mismatched sets, and AX beside them."""
    folder = tmp_path_factory.mktemp("mnli_data")
    shutil.copytree(DATA / "mnli", folder, dirs_exist_ok=True)
    lines = (folder / "dev_matched.tsv").read_text(encoding="utf-8").splitlines()
    (folder / "dev_mismatched.tsv").write_text("\n".join(lines[:3]) + "\n", encoding="utf-8")
    lines = (folder / "test_matched.tsv").read_text(encoding="utf-8").splitlines()
    (folder / "test_mismatched.tsv").write_text("\n".join(lines[:4]) + "\n", encoding="utf-8")
    write_rows(
        folder / "AX.tsv",
        [("index", "sentence1", "sentence2"), ("0", "a cat", "a dog"), ("1", "one", "two")],
    )
    return folder


@pytest.fixture(scope="module")
def mnli(tmp_path_factory, mnli_data, vocab_file):
    """Evaluated and predicted without training."""
    output = tmp_path_factory.mktemp("mnli")
    returned = main(
        *task_flags("MNLI", mnli_data, output),
        *model_flags(vocab_file, FINE_TUNED / "bert_model.ckpt.index"),
        "--do_eval",
        "--do_predict",
        "--write_submission",
    )
    return output, returned


def reference_logits(data_dir, set_name, vocab_file):
    """The logits of the fine-tuned checkpoint, one example at a time."""
    from bert_tf.checkpoint import restore
    from bert_tf.modeling.models import BertClassifier, named_variables
    from bert_tf.tokenization.tokenizer import BertTokenizer
    from data_prep.tasks import get_task
    from data_prep.tasks.featurize import featurize

    checkpoint = restore.load(str(FINE_TUNED))
    model = BertClassifier(checkpoint.config, 3)
    for name, variable in named_variables(model).items():
        variable.assign(checkpoint.get(name))
    task = get_task("MNLI")
    data = featurize(
        task.read_examples(str(data_dir), set_name), task, BertTokenizer(str(vocab_file)), 32
    )
    found = [
        np.asarray(model(data.dense(np.array([number]), 32))["logits"])
        for number in range(len(data))
    ]
    return np.concatenate(found), data.labels


def test_mnli_evaluation_without_training(mnli, mnli_data, vocab_file):
    output, returned = mnli
    logits, labels = reference_logits(mnli_data, "dev_matched", vocab_file)
    shifted = logits - logits.max(axis=1, keepdims=True)
    log_shares = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    found = read_results(output / "eval_results.txt")
    assert found.keys() == {"eval_accuracy", "eval_loss", "global_step", "loss"}
    assert found["global_step"] == "0"
    assert float(found["eval_accuracy"]) == pytest.approx((logits.argmax(1) == labels).mean())
    loss = -log_shares[np.arange(len(labels)), labels].mean()
    assert float(found["eval_loss"]) == pytest.approx(loss, abs=1e-5)
    assert returned["loss"] == pytest.approx(loss, abs=1e-5)


def test_mnli_predictions_are_the_models(mnli, mnli_data, vocab_file):
    output, _ = mnli
    for set_name, ending in (("test_matched", ""), ("test_mismatched", "_mismatched")):
        logits, _ = reference_logits(mnli_data, set_name, vocab_file)
        shares = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
        path = output / f"test_results{ending}.tsv"
        rows_sum_to_one(path, len(logits), 3)
        np.testing.assert_allclose(probabilities(path), shares, atol=1e-5)
        name = "MNLI-mm.tsv" if ending else "MNLI-m.tsv"
        predicted = [MNLI_LABELS[index] for index in logits.argmax(axis=1)]
        assert [row[1] for row in read_table(output / name)[1:]] == predicted


def test_mnli_mismatched_results(mnli):
    output, _ = mnli
    found = read_results(output / "eval_results_mismatched.txt")
    assert found.keys() == {"eval_accuracy", "eval_loss", "global_step", "loss"}
    support = sum(int(row[4]) for row in read_table(output / "eval_report_mismatched.tsv")[1:])
    assert support == 2


@pytest.mark.parametrize("name", ["bert_model.ckpt.data-00000-of-00001", "."])
def test_forms_of_init_checkpoint(mnli, mnli_data, vocab_file, tmp_path, name):
    flags = model_flags(vocab_file, FINE_TUNED / name)
    main(*task_flags("MNLI", mnli_data, tmp_path), *flags, "--do_eval", "--pad_to_max_length")
    # Padded to 32 here, to the batch's own length there.
    expected = read_results(mnli[0] / "eval_results.txt")
    for key, value in read_results(tmp_path / "eval_results.txt").items():
        assert float(value) == pytest.approx(float(expected[key]), abs=1e-5)


@pytest.fixture(scope="module")
def mnli_trained(tmp_path_factory, mnli_data, vocab_file):
    """Goes on in the folder of a training run of the original."""
    output = tmp_path_factory.mktemp("mnli_trained")
    shutil.copytree(FINE_TUNED / "training", output, dirs_exist_ok=True)
    (output / "variables.json").unlink()
    seen = []
    run_classifier.AFTER_LOOP = seen.append
    try:
        main(
            *task_flags("MNLI", mnli_data, output),
            f"--vocab_file={vocab_file}",
            f"--bert_config_file={FINE_TUNED / 'bert_config.json'}",
            "--do_train",
            "--train_batch_size=2",
            "--num_train_epochs=3",
            "--steps_per_loop=1",
            "--learning_rate=1e-3",
        )
    finally:
        run_classifier.AFTER_LOOP = None
    return output, seen


def test_a_run_of_the_original_goes_on(mnli_trained):
    output, seen = mnli_trained
    # 6 examples in batches of 2, three times, of which the original did 6.
    assert seen == [7, 8, 9]
    before = weights(FINE_TUNED / "training" / "model.ckpt-6")
    assert_same_weights(output / "model.ckpt-6", FINE_TUNED / "training" / "model.ckpt-6")
    after = weights(output)
    assert after.keys() == before.keys()
    assert after["global_step"] == 9
    name = "bert/encoder/layer_0/intermediate/dense/kernel"
    # v after three steps holds 0.999^3 of what it was, and more.
    slot = f"{name}/adam_v"
    assert (after[slot] >= before[slot] * 0.999**3 * (1 - 1e-5)).all()
    assert 0 < np.abs(after[name] - before[name]).max() < 0.02


def test_ax_is_predicted_with_a_model_of_mnli(mnli_trained, mnli_data, tmp_path):
    output, _ = mnli_trained
    (output / "test_results.tsv").write_text("MNLI's own\n")
    assert task_settings(output)["labels"] == MNLI_LABELS
    main(*task_flags("AX", mnli_data, output), "--do_predict", "--write_submission")
    rows_sum_to_one(output / "test_results_ax.tsv", 2, 3)
    assert (output / "test_results.tsv").read_text() == "MNLI's own\n"
    submission = read_table(output / "AX.tsv")
    assert submission[0] == ["index", "prediction"]
    assert {row[1] for row in submission[1:]} <= set(MNLI_LABELS)
    # The same, with the folder as --init_checkpoint.
    main(*task_flags("AX", mnli_data, tmp_path), "--do_predict", f"--init_checkpoint={output}")
    expected = (output / "test_results_ax.tsv").read_text()
    assert (tmp_path / "test_results_ax.tsv").read_text() == expected


def test_xnli(tmp_path, small_model):
    data = tmp_path / "data"
    shutil.copytree(DATA / "xnli", data)
    shutil.copy(data / "xnli.dev.tsv", data / "xnli.test.tsv")
    output = tmp_path / "run"
    main(
        *task_flags("XNLI", data, output),
        f"--init_checkpoint={small_model}",
        "--do_train",
        "--do_eval",
        "--do_predict",
        "--train_batch_size=2",
        "--num_train_epochs=1",
    )
    chinese = [row for row in read_table(data / "xnli.dev.tsv") if row[0] == "zh"]
    rows_sum_to_one(output / "test_results.tsv", len(chinese), 3)
    assert read_results(output / "eval_results.txt")["global_step"] == "2"
    support = sum(int(row[4]) for row in read_table(output / "eval_report.tsv")[1:])
    assert support == len(chinese)


# Other kinds of labels.


def test_regression_in_the_layout_of_sts_b(tmp_path, small_model):
    header = ("index", "genre", "sentence1", "sentence2", "score")
    rows = [
        (str(n), "g", f"good {'a' * (n + 1)}", "good a b c", f"{5 - n / 2:.3f}") for n in range(8)
    ]
    for name in ("train", "dev"):
        write_rows(tmp_path / f"{name}.tsv", [header, *rows])
    write_rows(tmp_path / "test.tsv", [header[:4], *(row[:4] for row in rows[:5])])
    output = tmp_path / "run"
    flags = [*task_flags("STS-B", tmp_path, output), f"--init_checkpoint={small_model}"]
    more = ["--train_batch_size=4", "--num_train_epochs=20", "--learning_rate=5e-3"]
    main(*flags, *more, "--do_train", "--do_eval", "--do_predict", "--write_submission")
    found = read_results(output / "eval_results.txt")
    assert {"eval_pearson", "eval_spearman", "eval_loss", "global_step", "loss"} <= found.keys()
    # From about 8 at the start: the targets' mean square is 11.8.
    assert float(found["eval_loss"]) < 4
    values = probabilities(output / "test_results.tsv")
    assert values.shape == (5, 1)
    submitted = [float(row[1]) for row in read_table(output / "STS-B.tsv")[1:]]
    np.testing.assert_allclose(submitted, np.clip(values[:, 0], 0, 5), atol=6e-4)
    assert not (output / "eval_report.tsv").exists()


def test_multi_label(tmp_path, small_model):
    rows = [("text", "topics")]
    for number in range(12):
        topics = [name for bit, name in enumerate(("art", "law", "sea")) if number >> bit & 1]
        rows.append((" ".join(["text", *topics]), ";".join(topics)))
    for name in ("train", "dev"):
        write_rows(tmp_path / f"{name}.tsv", rows)
    write_rows(tmp_path / "test.tsv", [row[:1] for row in rows])
    output = tmp_path / "run"
    main(
        *task_flags("TSV", tmp_path, output),
        f"--init_checkpoint={small_model}",
        "--task_kind=multilabel",
        "--label_column=topics",
        "--label_separator=;",
        "--do_train",
        "--do_eval",
        "--do_predict",
        "--write_predictions",
        "--train_batch_size=4",
        "--num_train_epochs=1",
    )
    assert task_settings(output)["labels"] == ["art", "law", "sea"]
    shares = probabilities(output / "test_results.tsv")
    assert shares.shape == (12, 3)
    assert ((shares > 0) & (shares < 1)).all()
    assert not np.allclose(shares.sum(axis=1), 1, atol=1e-3)
    table = read_table(output / "test_predictions.tsv")
    assert table[0] == ["id", "prediction", "art", "law", "sea"]
    for row, share in zip(table[1:], shares, strict=True):
        names = np.array(["art", "law", "sea"])[share > 0.5]
        assert row[1] == ",".join(names)
    assert "eval_micro_f1" in read_results(output / "eval_results.txt")


def test_csv_with_columns_by_name_and_a_huge_field(tmp_path, small_model):
    huge = "good " * 40_000
    assert len(huge) > 131_072
    text = f'key,review,verdict\r\n7,"good, ""very"" good",yes\r\n8,bad,no\r\n9,"{huge}",yes\r\n'
    for name in ("learn.csv", "check.csv"):
        (tmp_path / name).write_bytes(b"\xef\xbb\xbf" + text.encode())
    (tmp_path / "guess.csv").write_text('key,review\n1,"a\nb"\n2,c\n')
    output = tmp_path / "run"
    flags = [
        *task_flags("CSV", tmp_path, output),
        "--text_a_column=review",
        "--label_column=verdict",
        "--id_column=key",
        "--train_file=learn.csv",
        "--dev_file=check.csv",
        "--test_file=guess.csv",
        "--write_predictions",
    ]
    more = ["--do_train", "--do_eval", "--train_batch_size=3", "--num_train_epochs=1"]
    main(*flags, *more, f"--init_checkpoint={small_model}", "--do_predict")
    assert task_settings(output)["labels"] == ["no", "yes"]
    expected = (output / "test_predictions.tsv").read_text()
    assert [row[0] for row in read_table(output / "test_predictions.tsv")] == ["id", "1", "2"]
    # Predicting needs neither the training file nor the model's files any more.
    (tmp_path / "learn.csv").unlink()
    main(*flags, "--do_predict")
    assert (output / "test_predictions.tsv").read_text() == expected


# Settings of the training.


@pytest.fixture(scope="module")
def seeded(tmp_path_factory, sentiment, small_model):
    """Trains for three steps with more flags; remembers what was done already."""
    done = {}

    def train(*flags):
        if flags not in done:
            output = done[flags] = tmp_path_factory.mktemp("seeded")
            main(
                *task_flags("TSV", sentiment, output),
                f"--init_checkpoint={small_model}",
                "--do_train",
                "--train_batch_size=8",
                "--num_train_epochs=1",
                "--learning_rate=1e-3",
                *flags,
            )
        return done[flags]

    return train


def test_the_same_seed_gives_the_same_bits(seeded):
    assert_same_weights(seeded(), seeded("--steps_per_loop=2", "--seed=12345"))


def test_another_seed_gives_another_result(seeded):
    first, second = weights(seeded()), weights(seeded("--seed=6"))
    for name in ("output_weights", "bert/pooler/dense/kernel"):
        assert not np.array_equal(first[name], second[name])


def test_class_weights_change_the_loss(seeded):
    assert_same_weights(seeded(), seeded("--class_weights=1,1"))
    first, second = weights(seeded()), weights(seeded("--class_weights=20,1"))
    # The head leans towards the heavier class.
    lean = [found["output_bias"][0] - found["output_bias"][1] for found in (first, second)]
    assert lean[1] > lean[0]


def test_evaluation_while_training_keeps_the_best(tmp_path, sentiment, small_model, monkeypatch):
    seen = []
    score = run_classifier.score
    monkeypatch.setattr(
        run_classifier, "score", lambda *args: seen.append(score(*args)) or seen[-1]
    )
    flags = [
        *task_flags("TSV", sentiment, tmp_path),
        "--do_eval",
        "--best_metric=loss",
    ]
    main(
        *flags,
        f"--init_checkpoint={small_model}",
        "--do_train",
        "--train_batch_size=8",
        "--num_train_epochs=4",
        "--learning_rate=2e-2",
        "--eval_steps=3",
        "--save_checkpoints_steps=5",
        "--keep_checkpoint_max=2",
    )
    losses = [metrics["loss"] for metrics in seen]
    assert len(losses) == 4  # After 3, 6, 9 and 12 steps.
    step = 3 * (1 + losses.index(min(losses)))
    facts = json.loads((tmp_path / "best" / "best.json").read_text())
    assert facts == {"loss": min(losses), "step": step}
    best = weights(tmp_path / "best")
    assert not any("adam" in name for name in best)
    found = read_results(tmp_path / "eval_results.txt")
    assert found["global_step"] == str(step)
    assert float(found["eval_loss"]) == pytest.approx(min(losses), abs=1e-6)
    assert sorted(path.name for path in tmp_path.glob("*.index")) == [
        "model.ckpt-10.index",
        "model.ckpt-12.index",
    ]
    main(*flags, "--nouse_best")
    last = read_results(tmp_path / "eval_results.txt")
    assert last["global_step"] == "12"
    assert float(last["eval_loss"]) == pytest.approx(losses[-1], abs=1e-6)
    assert min(losses) < max(losses)


def test_how_texts_are_read_is_remembered(tmp_path, small_model):
    write_rows(tmp_path / "train.tsv", [("text", "label"), ("Été A", "1"), ("x", "0")])
    write_rows(tmp_path / "test.tsv", [("text",), ("Été A" + " good bad one" * 20 + " Été A",)])
    output = tmp_path / "run"
    flags = task_flags("TSV", tmp_path, output)
    more = ["--nodo_lower_case", "--never_split=[MASK]", "--train_batch_size=2"]
    more += ["--truncation=tail"]
    main(*flags, f"--init_checkpoint={small_model}", *more, "--num_train_epochs=1", "--do_train")
    settings = task_settings(output)
    assert (settings["do_lower_case"], settings["never_split"]) == (False, ["[MASK]"])
    main(*flags, "--do_predict")
    expected = (output / "test_results.tsv").read_text()
    main(*flags, "--do_predict", *more)
    assert (output / "test_results.tsv").read_text() == expected
    for other in ("--do_lower_case", "--max_seq_length=20", "--truncation=head"):
        main(*flags, "--do_predict", other)
        assert (output / "test_results.tsv").read_text() != expected


def test_addresses(sentiment, small_model, tmp_path):
    import fsspec

    store = fsspec.filesystem("memory")
    base = f"/classifier_{uuid.uuid4().hex}"
    for name in ("train", "dev", "test"):
        store.pipe(f"{base}/data/{name}.tsv", (sentiment / f"{name}.tsv").read_bytes())
    for path in small_model.iterdir():
        store.pipe(f"{base}/model/{path.name}", path.read_bytes())
    try:
        flags = task_flags("TSV", f"memory:/{base}/data", f"memory:/{base}/run")
        flags += ["--do_train", "--do_eval", "--do_predict", "--eval_steps=2"]
        flags += ["--train_batch_size=8", "--num_train_epochs=1", "--learning_rate=1e-3"]
        main(*flags, f"--init_checkpoint=memory:/{base}/model/bert_model.ckpt")
        flags[1:3] = [f"--data_dir={sentiment}", f"--output_dir={tmp_path}"]
        main(*flags, f"--init_checkpoint={small_model}")
        names = {path.rpartition("/")[2] for path in store.find(f"{base}/run")}
        assert not [name for name in names if "tmp" in name or "incomplete" in name]
        assert any(name.startswith("events.") for name in names)
        for path in tmp_path.rglob("*"):
            if path.is_file() and "events" not in path.name:
                there = store.cat(f"{base}/run/{path.relative_to(tmp_path)}")
                assert there == path.read_bytes(), path
    finally:
        store.rm(base, recursive=True)
