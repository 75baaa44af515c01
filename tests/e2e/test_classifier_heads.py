"""run_classifier.py on a left-to-right checkpoint, and with a BiLSTM on top."""

import numpy as np
import pytest
from classifier_runs import (
    main,
    probabilities,
    read_table,
    task_settings,
    weights,
)

import run_classifier
import run_pretraining
from bert_tf.config import BertConfig
from bert_tf.predictor import Classifier


class Killed(BaseException):
    """What no handler catches."""


@pytest.fixture
def flags(sentiment):
    return ["--task_name=TSV", f"--data_dir={sentiment}", "--train_batch_size=8"]


def check_predictor(folder, sentiment):
    """The predictor, which reads the folder alone, agrees with the script."""
    classifier = Classifier(folder)
    rows = read_table(sentiment / "test.tsv")[1:]
    labels = task_settings(folder)["labels"]
    found = [
        [each["probabilities"][label] for label in labels]
        for each in classifier.predict([row[0] for row in rows])
    ]
    expected = probabilities(folder / "test_results.tsv")
    np.testing.assert_allclose(found, expected, atol=1e-6)
    assert len(np.unique(expected)) > len(expected)
    return classifier


def test_a_left_to_right_checkpoint(tmp_path, small_model, sentiment, flags):
    from pretraining_runs import write_records

    write_records(tmp_path / "records", 4)
    run_pretraining.main(
        [
            "run_pretraining.py",
            f"--input_file={tmp_path / 'records'}",
            f"--output_dir={tmp_path / 'ltr'}",
            f"--init_checkpoint={small_model}",
            "--objective=ltr",
            "--do_train",
            "--num_train_steps=1",
            "--train_batch_size=4",
            "--max_seq_length=16",
            "--max_predictions_per_seq=4",
        ]
    )
    output = tmp_path / "output"
    flags += [f"--output_dir={output}", f"--init_checkpoint={tmp_path / 'ltr'}"]
    main(*flags, "--do_train", "--do_predict", "--num_train_epochs=1")
    assert BertConfig.from_json_file(str(output / "bert_config.json")).causal_attention
    assert check_predictor(output, sentiment).model.config.causal_attention
    # Another head does not go with it.
    with pytest.raises(ValueError, match="bilstm"):
        main(*flags, "--do_train", "--num_train_epochs=2", "--bilstm_head")


def test_bilstm_head(tmp_path, small_model, sentiment, flags, monkeypatch):
    train = [
        *flags,
        f"--init_checkpoint={small_model}",
        "--do_train",
        "--do_predict",
        "--num_train_epochs=3",
        "--learning_rate=1e-2",
        "--save_checkpoints_steps=2",
        "--steps_per_loop=1",
    ]
    output = tmp_path / "output"
    train.append(f"--output_dir={output}")

    def die(step):
        if step == 5:
            raise Killed

    monkeypatch.setattr(run_classifier, "AFTER_LOOP", die)
    with pytest.raises(Killed):
        main(*train, "--bilstm_head")
    monkeypatch.setattr(run_classifier, "AFTER_LOOP", None)
    assert task_settings(output)["bilstm_head"] is True
    before = weights(output)
    assert before["global_step"] == 4
    kernels = {name for name in before if "bilstm" in name and "adam" not in name}
    assert kernels == {
        f"bilstm/layer_0_{direction}/lstm_cell/{name}"
        for direction in ("forward", "backward")
        for name in ("kernel", "recurrent_kernel", "bias")
    }
    assert before["output_weights"].shape == (2, 32)
    # The pooler has no part in it.
    assert "bert/pooler/dense/kernel/adam_m" not in before
    # The folder knows the head, whatever the initial checkpoint is.
    main(*train)
    after = weights(output)
    assert after["global_step"] == 9
    assert after.keys() == before.keys()
    for name in kernels:
        assert (after[name] != before[name]).any()
        assert after[f"{name}/adam_m"].any()
    check_predictor(output, sentiment)

    expected = probabilities(output / "test_results.tsv")
    main(*flags, f"--output_dir={output}", "--do_predict")
    np.testing.assert_array_equal(probabilities(output / "test_results.tsv"), expected)
