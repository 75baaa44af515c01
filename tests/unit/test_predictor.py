import json
import pathlib
import shutil

import numpy as np
import pytest

from bert_tf import paths
from bert_tf.checkpoint import original, restore
from bert_tf.predictor import Classifier, read_task_file

TINY = pathlib.Path(__file__).parents[1] / "golden" / "checkpoint" / "tiny_classifier"
TASK = {
    "task": "TSV",
    "kind": "classification",
    "labels": ["no", "yes", "perhaps"],
    "max_seq_length": 16,
    "truncation": "longest_first",
    "do_lower_case": True,
    "strip_accents": True,
    "never_split": [],
}


def write_task(folder, **changes):
    values = {name: value for name, value in (TASK | changes).items() if value is not ...}
    (folder / "task.json").write_text(json.dumps(values))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A run's folder: the latest weights, and best ones with other biases."""
    path = tmp_path_factory.mktemp("run")
    shutil.copy(TINY / "bert_config.json", path)
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "he", "left", "went"]
    tokens = special + [f"w{i}" for i in range(120 - len(special))]
    (path / "vocab.txt").write_text("".join(f"{token}\n" for token in tokens))
    write_task(path)
    tensors = restore.load(str(TINY)).tensors()
    for where, step, bias in ((path, 8, [0, 0, 0]), (path / "best", 4, [0, 99, 0])):
        where.mkdir(exist_ok=True)
        prefix = str(where / f"model.ckpt-{step}")
        original.write(prefix, tensors | {"output_bias": np.array(bias, np.float32)})
        original.write_state(str(where), prefix)
    paths.write_json(str(path / "model.ckpt-8.state.json"), {"best_step": 4})
    return path


@pytest.fixture(scope="module")
def classifier(folder):
    return Classifier(folder)


def test_task_file_with_keys_of_its_own(tmp_path):
    write_task(tmp_path, training={"seed": 1})
    assert read_task_file(str(tmp_path)) == TASK | {"training": {"seed": 1}}
    write_task(tmp_path, kind="regression", labels=[])
    assert read_task_file(str(tmp_path))["labels"] == []


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *((key, ...) for key in TASK),
        ("task", 1),
        ("kind", "regresion"),
        ("kind", ["regression"]),
        ("labels", "no"),
        ("labels", [0, 1]),
        ("labels", []),
        ("max_seq_length", 2),
        ("max_seq_length", True),
        ("max_seq_length", 16.0),
        ("max_seq_length", "16"),
        ("truncation", None),
        ("truncation", "middle"),
        ("do_lower_case", 1),
        ("strip_accents", "no"),
        ("never_split", "[X]"),
        ("never_split", None),
    ],
)
def test_task_file_names_what_is_wrong(key, value, tmp_path):
    write_task(tmp_path, **{key: value})
    with pytest.raises(ValueError, match=rf"task\.json: {key} is "):
        read_task_file(str(tmp_path))


def test_task_file_that_is_none(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no task\.json.*--output_dir"):
        read_task_file(str(tmp_path))
    with pytest.raises(FileNotFoundError, match=r"There is no folder .*away"):
        read_task_file(str(tmp_path / "away"))
    (tmp_path / "task.json").write_text("[]")
    with pytest.raises(ValueError, match=r"task\.json: expected a JSON object"):
        Classifier(tmp_path)


@pytest.mark.parametrize("size", [0, -1])
def test_batch_size_below_one(size, folder):
    with pytest.raises(ValueError, match=f"batch_size is {size}"):
        Classifier(folder, batch_size=size)


def test_folder_without_a_checkpoint(tmp_path):
    write_task(tmp_path)
    with pytest.raises(FileNotFoundError, match="no checkpoint"):
        Classifier(tmp_path)


def test_best_weights_of_the_run_are_used(classifier):
    """The folder was given as a pathlib.Path."""
    found = classifier.predict(["he left", ("he", "went"), ["he", ""]])
    assert [each["label"] for each in found] == ["yes"] * 3
    assert classifier.predict([]) == []


def test_a_stale_best_is_not_used(folder, tmp_path):
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    (tmp_path / "model.ckpt-8.state.json").unlink()
    found = Classifier(str(tmp_path)).predict(["he left"])
    assert found[0]["probabilities"]["yes"] < 0.9


@pytest.mark.parametrize("texts", ["he left", "", b"he left"])
def test_a_bare_text_is_no_list(texts, classifier):
    with pytest.raises(TypeError, match=r"a list of texts .*give \[text\]"):
        classifier.predict(texts)


@pytest.mark.parametrize(
    "item", [None, 1, b"he", (), ("he",), ("he", "left", "went"), ("he", None), (1, "he"), {"he"}]
)
def test_an_element_that_is_neither_a_text_nor_a_pair(item, classifier):
    with pytest.raises(TypeError, match=r"position 1 is .*neither a str nor a pair of str"):
        classifier.predict(["he left", item])
