"""bert_tf.predictor beside what run_classifier.py predicts from the same folder."""

import csv
import json
import string

import numpy as np
import pytest
from classifier_runs import main, probabilities
from predictor_folders import LABELS, write_folder
from tagging_runs import write_ner, write_swag

from bert_tf import predictor


def texts(count, seed=0):
    random = np.random.default_rng(seed)
    letters = list(string.ascii_lowercase)
    return [
        " ".join(["good", *random.choice(letters, int(random.integers(0, 30)))])
        for _ in range(count)
    ]


@pytest.mark.parametrize(
    ("kind", "settings", "sizes"),
    [
        ("classification", {"truncation": "head_tail"}, {"causal_attention": True}),
        ("multilabel", {"bilstm_head": True}, {}),
        ("regression", {}, {}),
    ],
)
def test_pairs(tmp_path, kind, settings, sizes):
    folder = write_folder(tmp_path / "run", kind, settings, **sizes)
    first, second = texts(9), texts(9, 1)
    second[3] = ""
    rows = ["sentence1\tsentence2", *map("\t".join, zip(first, second, strict=True))]
    (tmp_path / "test.tsv").write_text("".join(f"{row}\n" for row in rows))
    flags = [f"--{name}={value}" for name, value in settings.items() if name == "truncation"]
    kind_flag = [] if kind == "classification" else [f"--task_kind={kind}"]
    main(
        "--task_name=TSV",
        f"--data_dir={tmp_path}",
        f"--output_dir={folder}",
        "--do_predict",
        *flags,
        *kind_flag,
    )
    expected = probabilities(folder / "test_results.tsv")
    loaded = predictor.load(folder, batch_size=4)
    assert loaded.kind == kind
    found = loaded.predict_instances(
        [{"text": a, "text_pair": b} for a, b in zip(first, second, strict=True)]
    )
    if kind == "regression":
        values = [[each["value"]] for each in found]
    else:
        values = [[each["probabilities"][label] for label in LABELS[kind]] for each in found]
    np.testing.assert_allclose(values, expected, atol=1e-5)
    assert np.ptp(np.array(values), axis=0).min() > 1e-3
    for each, row in zip(found, expected, strict=True):
        if kind == "classification":
            assert each["label"] == LABELS[kind][int(np.argmax(row))]
        if kind == "multilabel":
            chosen = [name for name, value in zip(LABELS[kind], row, strict=True) if value > 0.5]
            assert each["labels"] == chosen


@pytest.mark.parametrize(
    ("settings", "sizes"),
    [
        ({}, {}),
        ({"document_context": True, "bilstm_head": True}, {}),
        ({"feature_based": "weighted_sum", "lstm_units": 8}, {"num_hidden_layers": 2}),
        ({"feature_based": "concat_last_4", "lstm_units": 8}, {"num_hidden_layers": 4}),
    ],
)
def test_tags(tmp_path, settings, sizes):
    data = write_ner(tmp_path / "data", tagged_test=False)
    folder = write_folder(tmp_path / "run", "tagging", settings, **sizes)
    main("--task_name=NER", f"--data_dir={data}", f"--output_dir={folder}", "--do_predict")
    # Read as it stands: an I may begin an entity of a model that learnt nothing.
    blocks = (folder / "test_predictions.conll").read_text(encoding="utf-8").split("\n\n")
    expected = [[line.split(" ") for line in block.split("\n") if line] for block in blocks]
    sentences = [[word for word, _ in lines] for lines in expected]
    tagger = predictor.load(folder, batch_size=5)
    found = alone = tagger.predict_instances([{"tokens": words} for words in sentences])
    if settings.get("document_context"):
        # The file has no -DOCSTART-: it is one document.
        found = tagger.tag(sentences, [0] * len(sentences))
        assert [each["tags"] for each in alone] != [each["tags"] for each in found]
    assert [each["tokens"] for each in found] == sentences
    assert [each["tags"] for each in found] == [[tag for _, tag in lines] for lines in expected]
    used = {tag for each in found for tag in each["tags"]}
    assert len(used) > 1


def test_swag(tmp_path):
    data = write_swag(tmp_path / "data")
    folder = write_folder(tmp_path / "run", "choice")
    main("--task_name=SWAG", f"--data_dir={data}", f"--output_dir={folder}", "--do_predict")
    expected = probabilities(folder / "test_results.tsv")
    with open(data / "test.csv", newline="") as handle:
        rows = list(csv.DictReader(handle))
    instances = []
    for row in rows:
        endings = [row[f"ending{number}"] for number in range(4)]
        endings = [ending for ending in endings if ending]
        instances.append({"context": row["sent1"], "question": row["sent2"], "choices": endings})
    found = predictor.load(folder, batch_size=3).predict_instances(instances)
    assert {len(each["probabilities"]) for each in found} == {3, 4}
    for each, row in zip(found, expected, strict=True):
        values = np.array(each["probabilities"])
        np.testing.assert_allclose(values, row[: len(values)], atol=1e-5)
        assert each["choice"] == values.argmax()
    assert max(np.ptp(each["probabilities"]) for each in found) > 1e-3


def test_race(tmp_path):
    item = {
        "article": " it was good and he was in it ",
        "questions": ["it was _ .", "is it on ? "],
        "options": [["good", "bad ", "not"], ["in", "on"]],
        "answers": ["A", "B"],
    }
    for name in ("train", "dev", "test"):
        (tmp_path / f"{name}.json").write_text(json.dumps(item))
    folder = write_folder(tmp_path / "run", "choice", {"task": "RACE"})
    main("--task_name=RACE", f"--data_dir={tmp_path}", f"--output_dir={folder}", "--do_predict")
    expected = probabilities(folder / "test_results.tsv")
    found = predictor.load(folder).predict_instances(
        [
            {"context": item["article"], "question": question, "choices": options}
            for question, options in zip(item["questions"], item["options"], strict=True)
        ]
    )
    for each, row in zip(found, expected, strict=True):
        values = each["probabilities"]
        np.testing.assert_allclose(values, row[: len(values)], atol=1e-5)
