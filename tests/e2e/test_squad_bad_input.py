"""run_squad.py says what is wrong, where, and what to do, before it trains; nothing is lost."""

import json
import os
import shutil
import sys

import pytest
from classifier_runs import snapshot
from squad_runs import english, main, question, read, write, write_model, write_run

import run_squad
from bert_tf.checkpoint import original
from data_prep.squad import evaluation


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("model"), head=False)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder as training leaves it."""
    return write_run(tmp_path_factory.mktemp("trained") / "run")


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    folder = tmp_path_factory.mktemp("good")
    return {
        "v1": write(folder / "v1.json", english()),
        "v2": write(folder / "v2.json", english(True)),
    }


@pytest.fixture
def error(capsys, monkeypatch):
    """Runs the command as a user does; returns the error that it ends with, one line.

    A training that begins is a failure.
    """

    def no_training(*_):
        raise AssertionError("the training began")

    monkeypatch.setattr("bert_tf.training.loop.train", no_training)
    # The log of the tests that come after stays as it is.
    monkeypatch.setattr("absl.logging.use_absl_handler", lambda: None)
    monkeypatch.setattr("absl.logging.set_verbosity", lambda level: None)

    def run(*flags, lines=1):
        argv = ["run_squad.py", "--max_seq_length=40", "--doc_stride=12", "--max_query_length=12"]
        monkeypatch.setattr(sys, "argv", [*argv, *map(str, flags)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            run_squad.CLI.run(run_squad.main)
        assert end.value.code == 1
        shown = capsys.readouterr().err.strip().split("\n")
        assert "Traceback" not in shown
        places = [place for place, line in enumerate(shown) if "run_squad.py: error: " in line]
        assert len(places) == 1, shown
        assert len(shown) - places[0] == lines, shown
        return "\n".join(shown[places[0] :])

    return run


def train(folder, model, file):
    return [f"--train_file={file}", f"--output_dir={folder}", f"--init_checkpoint={model}"] + [
        "--do_train",
        "--train_batch_size=4",
    ]


def assert_holds(text, *words):
    for word in words:
        assert str(word) in text, text


def changed(data, change):
    """A copy of a SQuAD file's object, changed."""
    data = json.loads(json.dumps(data))
    change(data)
    return data


def paragraph(data, number=0):
    return data["data"][0]["paragraphs"][number]


def without(key, number=0):
    return lambda data: paragraph(data)["qas"][number].pop(key)


BAD = {
    "no data": (lambda data: data.pop("data"), ["'data' is missing", "'version'"]),
    "no context": (
        lambda data: paragraph(data, 1).pop("context"),
        ["article 1 ('Boxes 0'), paragraph 2", "'context' is missing", "'qas'"],
    ),
    "no qas": (lambda data: paragraph(data).pop("qas"), ["paragraph 1", "'qas' is missing"]),
    "no question": (without("question", 2), ["question 3 (id 'q0-2')", "'question' is missing"]),
    "no id": (without("id", 1), ["paragraph 1, question 2", "'id' is missing"]),
    "no paragraphs": (
        lambda data: data["data"][0].pop("paragraphs"),
        ["article 1", "'paragraphs' is missing"],
    ),
    "id twice": (
        lambda data: paragraph(data, 3)["qas"][0].update(id="q0-1"),
        ["paragraph 4, question 1 (id 'q0-1')", "there before", "article 1, paragraph 1"],
    ),
    "no questions": (lambda data: data["data"].clear(), ["there are no questions"]),
    "text of another type": (
        lambda data: paragraph(data)["qas"][0].update(question=["Who?"]),
        ["(id 'q0-0')", "'question' must be a string", "['Who?']"],
    ),
}


@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize("kind", ["train", "predict"])
def test_what_is_wrong_with_a_file(error, tmp_path, model, good, name, kind):
    change, words = BAD[name]
    file = write(tmp_path / "bad.json", changed(english(), change))
    folder = tmp_path / "run"
    flags = train(folder, model, file if kind == "train" else good["v1"])
    if kind == "predict":
        flags += ["--do_predict", f"--predict_file={file}"]
    assert_holds(error(*flags), file, *words)
    assert snapshot(folder) == {}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", ["the file is empty", "SQuAD file"]),
        (b"{", ["not valid JSON", "line 1"]),
        (b"[]", ["expected a JSON object", "[]"]),
        (b"\xff\xfe{}", ["not valid JSON", "UTF-8"]),
        (None, ["no file"]),
    ],
)
@pytest.mark.parametrize("kind", ["train", "predict"])
def test_files_that_are_none(error, tmp_path, model, good, content, words, kind):
    file = tmp_path / "bad.json"
    if content is not None:
        file.write_bytes(content)
    flags = train(tmp_path / "run", model, file if kind == "train" else good["v1"])
    if kind == "predict":
        flags += ["--do_predict", f"--predict_file={file}"]
    assert_holds(error(*flags), file, *words)
    assert snapshot(tmp_path / "run") == {}


def test_version_2_without_its_flag_and_the_reverse(error, tmp_path, model, good):
    flags = train(tmp_path / "run", model, good["v2"])
    assert_holds(
        error(*flags), good["v2"], "q0-none", "has no answer", "use --version_2_with_negative"
    )
    flags = train(tmp_path / "run", model, good["v1"])
    assert_holds(
        error(*flags, "--version_2_with_negative"),
        good["v1"],
        "q0-0",
        "'is_impossible' is missing",
        "leave out --version_2_with_negative",
    )


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("answers", ["(id 'q0-1')", "'answers' is missing", "training"]),
        ("answer_start", ["(id 'q0-1')", "'answer_start' is missing", "training"]),
        ("text", ["(id 'q0-1')", "answer 1", "'text' is missing"]),
    ],
)
def test_answers_that_training_needs(error, tmp_path, model, key, words):
    def change(data):
        item = paragraph(data)["qas"][1]
        del (item if key == "answers" else item["answers"][0])[key]

    file = write(tmp_path / "bad.json", changed(english(), change))
    assert_holds(error(*train(tmp_path / "run", model, file)), *words)


def test_nothing_to_learn(error, tmp_path, model):
    text = "Kim has 3 red hats."
    item = question("Who?", "Kim", text, "a1")
    item["answers"][0]["answer_start"] = 4000
    file = write(
        tmp_path / "t.json", {"data": [{"paragraphs": [{"context": text, "qas": [item]}]}]}
    )
    assert_holds(error(*train(tmp_path / "run", model, file)), file, "no answer was found")
    blank = question("Who?", None, "\u200b", "b1", True)
    paragraphs = [{"context": "\u200b", "qas": [blank]}]
    file = write(tmp_path / "b.json", {"data": [{"paragraphs": paragraphs}]})
    flags = train(tmp_path / "run", model, file)
    assert_holds(error(*flags, "--version_2_with_negative"), file, "no tokens")
    assert snapshot(tmp_path / "run") == {}


def test_too_few_for_a_step(error, tmp_path, model, good):
    flags = train(tmp_path / "run", model, good["v1"])
    text = error(*flags, "--train_batch_size=99", "--num_train_epochs=1")
    assert_holds(text, "windows in batches of 99 for 1 epochs make no step", "--train_batch_size")
    assert_holds(
        error(*flags, "--train_batch_size=99", "--num_train_epochs=1", "--steps_from_examples"),
        "18 questions in batches",
    )


def test_lengths(error, tmp_path, model, good):
    flags = train(tmp_path / "run", model, good["v1"])
    assert_holds(
        error(*flags, "--max_seq_length=65"), "--max_seq_length=65", "max_position_embeddings, 64"
    )
    assert_holds(error(*flags, "--max_query_length=37"), "max_query_length=37", "less than 37")
    assert snapshot(tmp_path / "run") == {}


def test_vocabularies(error, tmp_path, model, good):
    flags = train(tmp_path / "run", model, good["v1"])
    long = tmp_path / "long.txt"
    tokens = (model / "vocab.txt").read_text(encoding="utf-8")
    long.write_text(tokens + "more\n", encoding="utf-8")
    assert_holds(
        error(*flags, f"--vocab_file={long}"), long, "121 tokens", "vocab_size 120", "belongs"
    )
    assert_holds(error(*flags, f"--vocab_file={tmp_path / 'none.txt'}"), "none.txt")
    assert snapshot(tmp_path / "run") == {}


def test_a_run_goes_on_with_its_own_model(error, tmp_path, trained, good):
    folder = shutil.copytree(trained, tmp_path / "run")
    before = snapshot(folder)
    other = tmp_path / "vocab.txt"
    tokens = (folder / "vocab.txt").read_text(encoding="utf-8").replace("kim\n", "tim\n")
    other.write_text(tokens, encoding="utf-8")
    flags = [f"--train_file={good['v1']}", f"--output_dir={folder}", "--do_train"]
    text = error(*flags, f"--vocab_file={other}", "--num_train_epochs=9", "--train_batch_size=4")
    assert_holds(text, other, "not the vocabulary", folder)
    assert snapshot(folder) == before


def test_missing_checkpoints(error, tmp_path, good, model):
    flags = [f"--predict_file={good['v1']}", f"--output_dir={tmp_path / 'run'}", "--do_predict"]
    files = [f"--bert_config_file={model / 'bert_config.json'}"]
    files += [f"--vocab_file={model / 'vocab.txt'}"]
    assert_holds(error(*flags, *files), "no checkpoint", tmp_path / "run", "train first")
    text = error(*flags, *files, f"--init_checkpoint={tmp_path / 'nowhere.ckpt'}")
    assert_holds(text, "nowhere.ckpt")
    assert snapshot(tmp_path / "run") == {}


def test_missing_flags_are_listed_at_once(error):
    found = error("--do_train", "--do_predict", lines=13)
    for name in ("output_dir", "train_file", "predict_file", "bert_config_file", "vocab_file"):
        assert f"\n  --{name}: " in found


# Thresholds, scores.


def test_a_threshold_needs_answers_to_tune_by(error, tmp_path, model, good):
    flags = train(tmp_path / "run", model, good["v2"])
    file = write(tmp_path / "bare.json", changed(english(True), without("answers", 1)))
    flags += [f"--predict_file={file}", "--do_predict", "--tune_threshold=f1"]
    text = error(*flags, "--version_2_with_negative")
    assert_holds(text, file, "(id 'q0-1')", "'answers' is missing", "tune")
    assert_holds(error(*flags), "--tune_threshold needs --version_2_with_negative")
    assert snapshot(tmp_path / "run") == {}


def test_mixed_segments_need_answers(error, tmp_path, model, good):
    flags = train(tmp_path / "run", model, good["v2"])
    flags += [f"--predict_file={good['v2']}", "--do_predict", "--segments=mixed"]
    text = error(*flags, "--version_2_with_negative")
    assert_holds(text, good["v2"], "(id 'q0-none')", "has no answer", "--segments=mixed")


def test_predictions_that_lack_ids(tmp_path, trained, good, capsys):
    folder = shutil.copytree(trained, tmp_path / "run")
    whole = main(f"--output_dir={folder}", f"--predict_file={good['v1']}", "--do_predict")
    predictions = read(folder / "predictions.json")
    assert evaluation.main([str(good["v1"]), str(folder / "predictions.json")]) == whole
    lost = ["q2-1", "q5-0"]
    some = {name: text for name, text in predictions.items() if name not in lost}
    file = write(tmp_path / "some.json", some | {"other": "x"})
    capsys.readouterr()
    scores = evaluation.main([str(good["v1"]), str(file)])
    shown = capsys.readouterr().err
    assert_holds(shown, "without a prediction 2, predictions of no question 1", "q2-1, q5-0")
    # SQuAD 1.1 counts them as wrong.
    assert scores["f1"] <= whole["f1"]
    file = write(tmp_path / "none.json", {"other": "x"})
    with pytest.raises(ValueError, match=r"none of the ids is in"):
        evaluation.main([str(good["v1"]), str(file)])


def test_a_failed_prediction_leaves_the_files_as_they_were(
    tmp_path, trained, good, model, monkeypatch
):
    folder = shutil.copytree(trained, tmp_path / "run")
    main(f"--output_dir={folder}", f"--predict_file={good['v1']}", "--do_predict")
    before = snapshot(folder)
    real = run_squad.scored_pool

    def stops(pool, runs):
        yield from list(real(pool, runs))[:3]
        raise OSError("the disk is full")

    monkeypatch.setattr(run_squad, "scored_pool", stops)
    with pytest.raises(OSError, match="the disk is full"):
        main(f"--output_dir={folder}", f"--predict_file={good['v2']}", "--do_predict")
    assert snapshot(folder) == before


def test_weights_that_are_not_finite(error, tmp_path, trained, good):
    folder = shutil.copytree(trained, tmp_path / "run")
    prefix = original.latest_checkpoint(str(folder))
    reader = original.Reader(prefix)
    values = {name: reader.get(name) for name in reader.shapes}
    values["cls/squad/output_bias"] = values["cls/squad/output_bias"] * 0 + float("nan")
    original.write(prefix, values)
    before = snapshot(folder)
    text = error(f"--output_dir={folder}", f"--predict_file={good['v1']}", "--do_predict")
    assert_holds(text, "question 'q0-0', window 0", "not finite")
    assert snapshot(folder) == before


# Ensembles.


def test_ensembles(error, tmp_path, trained, good, model):
    def run(*members, flags=()):
        joined = ",".join(map(str, members))
        return error(
            f"--ensemble={joined}",
            f"--predict_file={good['v1']}",
            f"--output_dir={tmp_path / 'out'}",
            "--do_predict",
            *flags,
        )

    assert_holds(run(trained), f"--ensemble={trained}", "at least two folders")
    for other in (tmp_path / "nowhere", model):
        assert_holds(run(trained, other), other, "no output folder of run_squad.py that trained")
    assert_holds(run(trained, ""), "an empty name is no output folder")
    other = shutil.copytree(trained, tmp_path / "other")
    tokens = (other / "vocab.txt").read_text(encoding="utf-8").replace("kim\n", "tim\n")
    (other / "vocab.txt").write_text(tokens, encoding="utf-8")
    assert_holds(run(trained, other), other, trained, "another vocabulary or tokenization")
    cased = shutil.copytree(trained, tmp_path / "kept")
    settings = read(cased / "squad.json") | {"do_lower_case": False, "strip_accents": False}
    (cased / "squad.json").write_text(json.dumps(settings))
    assert_holds(run(trained, cased), cased, "another vocabulary or tokenization")
    assert_holds(
        run(trained, trained, flags=["--do_train", f"--train_file={good['v1']}"]),
        "--ensemble",
        "--do_train",
    )
    assert not os.path.exists(tmp_path / "out") or snapshot(tmp_path / "out") == {}
