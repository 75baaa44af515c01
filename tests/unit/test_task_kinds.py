"""bert_tf.cli.task_kinds: which class stands for a task, what it saves, what it writes."""

import types

import numpy as np
import pytest
import tiny

from bert_tf.cli import task_kinds
from bert_tf.cli.command_line import CommandLineError
from data_prep.tasks import get_task

LABELS = ["O", "B-X", "I-X"]


class Data(types.SimpleNamespace):
    """As much of a set's features as predictions are written from."""

    def __len__(self):
        return len(self.guids)


def kind_of(task, flags=(), **chosen):
    flags = types.SimpleNamespace(lstm_units=768, **dict(flags))
    return task_kinds.make_kind(
        flags, task, tiny.CONFIG, None, lambda name, default: chosen.get(name, default)
    )


def test_kinds():
    every = {"bilstm_head": True, "document_context": True}
    for name in ("MRPC", "STS-B"):
        kind = kind_of(get_task(name), **every)
        assert type(kind) is task_kinds.Texts
        assert (kind.bilstm, kind.settings(), kind.task_entries()) == (True, {}, {})
    kind = kind_of(get_task("SWAG"), **every)
    assert type(kind) is task_kinds.Choice
    assert not kind.bilstm
    task = get_task("NER", labels=LABELS, scheme="IOB1", tag_column=3)
    kind = kind_of(task, **every)
    assert type(kind) is task_kinds.Tagging
    assert kind.bilstm
    assert kind.settings() == {"document_context": True, "feature_based": "off"}
    assert list(kind.task_entries().items()) == [
        ("scheme", "IOB1"),
        ("word_column", 0),
        ("tag_column", 3),
        ("document_context", True),
        ("feature_based", "off"),
    ]
    kind = kind_of(task, feature_based="weighted_sum")
    assert type(kind) is task_kinds.FeatureTagging
    assert kind.settings() == {
        "document_context": False,
        "feature_based": "weighted_sum",
        "lstm_units": 768,
    }
    assert kind.feature_size == (tiny.CONFIG.num_hidden_layers + 1) * tiny.CONFIG.hidden_size


def test_feature_based_has_to_fit():
    task = get_task("NER", labels=LABELS)
    with pytest.raises(CommandLineError, match="no --bilstm_head"):
        kind_of(task, feature_based="last", bilstm_head=True)
    too_few = tiny.CONFIG.replace(num_hidden_layers=3)
    with pytest.raises(ValueError, match="sum_last_4 needs 4 layers; the model has 3"):
        task_kinds.FeatureTagging(None, task, too_few, None, layers="sum_last_4")


def test_probabilities():
    logits = np.array([[1000.0, 0.0, -1000.0], [1.0, 1.0, 1.0]], np.float32)
    shares = task_kinds.probabilities("classification", logits)
    np.testing.assert_allclose(shares, [[1, 0, 0], [1 / 3] * 3], atol=1e-7)
    each = task_kinds.probabilities("multilabel", np.array([[0.0, 2.0]], np.float32))
    np.testing.assert_allclose(each, [[0.5, 0.880797]], rtol=1e-6)
    np.testing.assert_array_equal(task_kinds.probabilities("regression", logits), logits)


@pytest.mark.parametrize(
    ("task", "flag", "expected"),
    [
        ("MRPC", None, ("accuracy_f1_mean", True)),
        ("MRPC", "accuracy_f1_mean", ("accuracy_f1_mean", True)),
        ("MRPC", "f1", ("f1", True)),
        ("MRPC", "loss", ("loss", False)),
        ("STS-B", "loss", ("loss", False)),
        ("SWAG", None, ("accuracy", True)),
    ],
)
def test_best_metric(task, flag, expected):
    assert kind_of(get_task(task), {"best_metric": flag}).best_metric() == expected


def test_predictions_of_two_sets_and_of_ax(tmp_path, capsys):
    """A file each; AX's not over those of MNLI, whose model it is predicted with."""
    flags = {"data_dir": str(tmp_path), "write_predictions": True, "write_submission": False}
    (tmp_path / "test_mismatched.tsv").write_text("")
    logits = np.array([[0.0, 0.0, 0.0], [9.0, 0.0, 0.0]], np.float32)
    data = Data(guids=["a 1", "a\t2"])
    for task, sets in (("MNLI", ("test_matched", "test_mismatched")), ("AX", ("test",))):
        kind = kind_of(get_task(task), flags)
        for name in sets:
            kind.write_predictions(name, data, {"logits": logits}, str(tmp_path))
    for ending in ("", "_mismatched", "_ax"):
        first = (tmp_path / f"test_results{ending}.tsv").read_text().splitlines()[0]
        np.testing.assert_allclose([float(part) for part in first.split("\t")], [1 / 3] * 3)
        rows = (tmp_path / f"test_predictions{ending}.tsv").read_text().splitlines()
        assert rows[0] == "id\tprediction\tcontradiction\tentailment\tneutral"
        assert rows[2].startswith("a 2\tcontradiction\t0.9997")
    assert f"2 rows in {tmp_path / 'test_results_ax.tsv'}" in capsys.readouterr().out


def test_predictions_of_choices_name_the_choices(tmp_path):
    flags = {"data_dir": str(tmp_path), "write_predictions": True, "write_submission": False}
    logits = np.array([[0.0, 9.0, -1e4]], np.float32)
    kind_of(get_task("SWAG"), flags).write_predictions(
        "test", Data(guids=["q"]), {"logits": logits}, str(tmp_path)
    )
    header, row = (tmp_path / "test_predictions.tsv").read_text().splitlines()
    assert header == "id\tprediction\tchoice0\tchoice1\tchoice2"
    assert row.startswith("q\t1\t")
    assert row.endswith("\t0.0")
