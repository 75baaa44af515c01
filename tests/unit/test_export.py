"""Exported models say what the predictors say."""

import itertools
import json
import re
import shutil
import sys

import numpy as np
import predictor_folders
import pytest
import tensorflow as tf
from predictor_folders import write_folder

from bert_tf import paths, predictor
from bert_tf.checkpoint import original, restore
from bert_tf.export import saved_model, tags
from bert_tf.export.network import Network, StoredWeight
from bert_tf.export.saved_model import export
from bert_tf.modeling.models import named_variables
from bert_tf.tokenization.in_graph import InGraphTokenizer
from data_prep.tasks import ner

TEXTS = [
    "it was good",
    "",
    "He was NOT good, the book\u2019s  ünïcôde \u200b \ufffd 船他書 in it! " * 3,
    "a" * 250,
    "\U0001f600 max",
    "kim",
]
PAIRS = ["", "and max was bad", "not " * 40, "", " \t", "it is"]


def signatures_of(folder, weights_dtype="float32", features=False):
    """What `export` would save."""
    source = saved_model._open(str(folder), features)
    network = Network(source.model, weights_dtype, source.model.config.max_position_embeddings)
    return saved_model._signatures(source, network, InGraphTokenizer(source.tokenizer))


def run(signature, **inputs):
    """Calls a signature; strings come back as such."""
    found = signature(**{name: tf.constant(value) for name, value in inputs.items()})
    return {name: plain(value.numpy()) for name, value in found.items()}


def plain(value):
    if value.dtype != object:
        return value
    return np.array([text.decode() for text in value.ravel()], object).reshape(value.shape)


def assert_close(found, expected):
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)


@pytest.fixture
def eagerly():
    """Spares the time to trace graphs; `test_graphs` and the tests of saved models have them."""
    tf.config.run_functions_eagerly(True)
    yield
    tf.config.run_functions_eagerly(False)


# Texts and pairs.


@pytest.mark.parametrize(
    ("kind", "settings", "sizes"),
    [
        ("classification", {}, {}),
        ("classification", {"bilstm_head": True, "truncation": "head_tail"}, {}),
        ("classification", {"never_split": ["船", "[MASK]"]}, {"causal_attention": True}),
        ("multilabel", {"do_lower_case": False, "strip_accents": False}, {}),
        ("regression", {"truncation": "tail"}, {}),
    ],
)
def test_classifiers(kind, settings, sizes, tmp_path, eagerly):
    folder = write_folder(tmp_path / "run", kind, settings, **sizes)
    found = run(signatures_of(folder)["serving_default"], text=TEXTS, text_pair=PAIRS)
    expected = predictor.load(folder).predict_instances(
        [{"text": text, "text_pair": pair} for text, pair in zip(TEXTS, PAIRS)]
    )
    if kind == "regression":
        assert_close(found["value"], [each["value"] for each in expected])
        return
    labels = predictor_folders.LABELS[kind]
    assert found["labels"].tolist() == [labels] * len(TEXTS)
    assert_close(
        found["probabilities"], [list(each["probabilities"].values()) for each in expected]
    )
    if kind == "classification":
        assert found["label"].tolist() == [each["label"] for each in expected]
    else:
        chosen = [[label in each["labels"] for label in labels] for each in expected]
        assert found["is_chosen"].tolist() == chosen


def test_ids_and_one_pair_for_all(tmp_path, eagerly):
    folder = write_folder(tmp_path / "run", "classification")
    signatures = signatures_of(folder)
    loaded = predictor.load(folder)
    text = ["it was good", "kim was not in the book"]
    expected = loaded.predict(text)
    # As of a request that leaves text_pair out.
    found = run(signatures["serving_default"], text=text, text_pair=[""])
    assert found["label"].tolist() == [each["label"] for each in expected]
    rows = [loaded._pack(each) for each in text]
    for length in (11, 40):  # padding plays no part
        batch = np.zeros((3, 2, length), np.int32)
        for number, (ids, segments) in enumerate(rows):
            batch[:, number, : len(ids)] = ids, np.ones_like(ids), segments
        features = dict(zip(("input_ids", "input_mask", "segment_ids"), batch))
        assert_close(run(signatures["ids"], **features)["logits"], found["logits"])
    longer = dict.fromkeys(features, np.ones((1, 65), np.int32))
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"input_ids: a row .* than the 64 "):
        signatures["ids"](**longer)


@pytest.mark.parametrize("task", ["SWAG", "RACE"])
def test_choices(task, tmp_path, eagerly):
    folder = write_folder(tmp_path / "run", "choice", {"task": task})
    signatures = signatures_of(folder)
    instances = [
        {"context": "kim was in it", "choices": ["good", "bad " * 40], "question": "is __ he"},
        {"context": "", "choices": ["\u00a0it ", "the", "船 他"], "question": " who is it "},
        {"context": "max " * 50, "choices": ["good", "not", "max!"]},
    ]
    expected = predictor.load(folder).predict_instances(instances)
    padded = [each["choices"] + [""] * (4 - len(each["choices"])) for each in instances]
    found = run(
        signatures["serving_default"],
        context=[each["context"] for each in instances],
        choices=padded,
        question=[each.get("question", "") for each in instances],
    )
    assert found["choice"].tolist() == [each["choice"] for each in expected]
    for row, each in zip(found["probabilities"], expected, strict=True):
        count = len(each["probabilities"])
        assert_close(row[:count], each["probabilities"])
        assert not row[count:].any()
    features = dict.fromkeys(("input_ids", "segment_ids"), np.ones((1, 3, 5), np.int32))
    mask = np.array([[[1] * 5, [1] * 4 + [0], [0] * 5]], np.int32)
    assert run(signatures["ids"], input_mask=mask, **features)["probabilities"][0, 2] == 0


# Words.


def sentences(random):
    for _ in range(60):
        words = random.integers(0, 12)
        yield random.choice([1, 1, 1, 2, 3, 6], words).tolist()


@pytest.mark.parametrize("room", [6, 7, 10])
def test_windows_of_words(room, eagerly):
    random = np.random.default_rng(room)
    lengths = list(sentences(random))
    starts = np.cumsum([0, *itertools.chain(*lengths)])
    bounds = np.cumsum([0, *map(len, lengths)])
    expected = []
    for first, end in itertools.pairwise(bounds.tolist()):
        if first < end:
            expected += ner._windows(starts.tolist(), first, end, room)
    found = tags.windows(tf.constant(starts), tf.constant(bounds), room)
    rows = np.stack([part.numpy() for part in found], axis=1).tolist()
    assert rows == list(map(list, expected))
    assert sum(row[3] - row[2] for row in rows) == bounds[-1]
    assert len(expected) > len(lengths)


LONG = ["max", "船他", "was", "a" * 40, "\u200b", "Kim-船", "good", "!"] * 6
WORDS = [["max"], LONG, ["a\u00a0b", "\u200b"], ["he", "was", "in", "it"] * 7]


def check_tags(found, expected):
    for row, each in enumerate(expected):
        count = len(each["tags"])
        assert found["tokens"][row, :count].tolist() == each["tokens"]
        assert found["tags"][row, :count].tolist() == each["tags"]
        assert_close(found["probabilities"][row, :count], each["probabilities"])
        assert set(found["tags"][row, count:].tolist()) <= {""}
        assert not found["probabilities"][row, count:].any()


@pytest.mark.parametrize(
    ("settings", "sizes"),
    [
        ({"max_seq_length": 12}, {}),
        ({"bilstm_head": True, "document_context": True}, {}),
        ({"feature_based": "weighted_sum", "lstm_units": 4, "max_seq_length": 12}, {}),
    ],
)
def test_tags(settings, sizes, tmp_path, eagerly):
    folder = write_folder(tmp_path / "run", "tagging", settings, **sizes)
    signatures = signatures_of(folder)
    loaded = predictor.load(folder)
    widest = max(map(len, WORDS))
    padded = [words + [""] * (widest - len(words)) for words in WORDS]
    found = run(signatures["tokens"], tokens=padded)
    check_tags(found, loaded.predict_instances([{"tokens": words} for words in WORDS]))
    texts = [" \u3000he was\x1fin \u2029 the\u00a0book\u0085船\n", " ".join(LONG), "max"]
    found = run(signatures["serving_default"], text=texts)
    check_tags(found, loaded.predict_instances([{"text": text} for text in texts]))
    found = run(signatures["serving_default"], text=[" ", ""])
    assert {name: value.shape for name, value in found.items()} == dict.fromkeys(found, (2, 0))


@pytest.mark.parametrize("choice", ["off", "embeddings"])
def test_tags_of_ids(choice, tmp_path, eagerly):
    settings = {"feature_based": choice, "lstm_units": 4}
    folder = write_folder(tmp_path / "run", "tagging", settings)
    loaded = predictor.load(folder)
    words = ["xa", "he"]  # the first has two pieces
    tokenizer = loaded.tokenizer
    ids = np.array([[tokenizer.cls_id, *tokenizer.encode("xa he"), tokenizer.sep_id, 0]], np.int32)
    mask = np.array([[1, 1, 1, 1, 1, 0]], np.int32)
    features = {"input_ids": ids, "input_mask": mask, "segment_ids": 0 * ids}
    if choice != "off":
        features["word_positions"] = np.array([[1, 3, -1]], np.int32)
    found = run(signatures_of(folder)["ids"], **features)
    places = [1, 3] if choice == "off" else [0, 1]
    [logits] = loaded.logits([words])
    assert_close(found["logits"][0, places], logits)
    [expected] = loaded.tag([words])
    assert found["tags"][0, places].tolist() == expected["tags"]
    assert_close(found["probabilities"][0, places], expected["probabilities"])


# Questions.

BOX = "Kim has 12 cups.  Max was in the\u202fbook,\n(he's not good) and Zoë\u0301 is \u6771bad! "
QUESTIONS = [
    ("who was in it?", "Max was in it."),
    ("who " * 20, BOX),
    ("", BOX * 6),
    ("who is good", " \n\u202f"),
    ("kim", "  船 他 \U0001f600x book \ud55c the-the-the The \u200b end"),
    ("bad?", "x"),
    ("[MASK]", "a\u00a0b ;kim;max (good) \u00df\u0149 \ud55c\u200b\u200b max\U0001f600 [MASK]he"),
    ("is it", "x y " * 40),
]


def check_answers(found, expected):
    assert found["answer"].tolist() == [each["answer"] for each in expected]
    for name in ("start", "end"):
        values = [-1 if each[name] is None else each[name] for each in expected]
        assert found[name].tolist() == values
    for row, each in enumerate(expected):
        count = len(each["nbest"])
        for name in ("text", "start", "end"):
            values = [-1 if entry[name] is None else entry[name] for entry in each["nbest"]]
            assert found[f"nbest_{name}"][row, :count].tolist() == values
        for name in ("probability", "start_logit", "end_logit"):
            values = [entry[name] for entry in each["nbest"]]
            assert_close(found[f"nbest_{name}"][row, :count], values)
        assert not found["nbest_probability"][row, count:].any()
        if "null_odds" in each:
            assert found["null_odds"][row] == pytest.approx(each["null_odds"], abs=1e-5)


@pytest.mark.parametrize(
    ("settings", "sizes"),
    [
        ({}, {}),
        ({"doc_stride": 1, "n_best_size": 3, "max_answer_length": 2}, {}),
        ({"version_2_with_negative": True, "null_score_diff_threshold": 0.02}, {}),
        (
            {"version_2_with_negative": True, "n_best_size": 1, "max_answer_length": 1},
            {"causal_attention": True},
        ),
        ({"n_best_size": 1, "max_answer_length": 1}, {}),
        ({"character_level": True, "bilstm_head": True}, {}),
        ({"never_split": ["[MASK]", "船"], "strip_accents": False, "doc_stride": 28}, {}),
    ],
)
def test_answers(settings, sizes, tmp_path, eagerly):
    folder = write_folder(tmp_path / "run", "question_answering", settings, **sizes)
    signature = signatures_of(folder)["serving_default"]
    loaded = predictor.load(folder)
    asked, contexts = (list(each) for each in zip(*QUESTIONS))
    found = run(signature, question=asked, context=contexts)
    expected = loaded.answer(QUESTIONS)
    check_answers(found, expected)
    # Where two positions alone are looked at, they seldom make an answer.
    assert {-1} < set(found["start"].tolist()) or settings.get("n_best_size") == 1
    for number in (2, 3):  # alone
        one = run(signature, question=[asked[number]], context=[contexts[number]])
        check_answers(one, loaded.answer([QUESTIONS[number]]))


def test_many_windows_are_read_in_parts(tmp_path, eagerly):
    folder = write_folder(tmp_path / "run", "question_answering", {"doc_stride": 1})
    context = " ".join(np.random.default_rng(0).choice(["kim", "max", "good", "in", "x"], 90))
    found = run(signatures_of(folder)["serving_default"], question=["who"], context=[context])
    check_answers(found, predictor.load(folder).answer([("who", context)]))


def test_logits_of_questions_as_ids(tmp_path, eagerly):
    folder = write_folder(tmp_path / "run", "question_answering")
    ids = np.array([[2, 7, 3, 8, 9, 3]], np.int32)
    features = {"input_ids": ids, "input_mask": ids * 0 + 1, "segment_ids": ids * 0}
    found = run(signatures_of(folder)["ids"], **features)
    expected = predictor.load(folder).model(features)
    for name in ("start_logits", "end_logits"):
        assert_close(found[name], expected[name])


# Masks and features.


@pytest.mark.parametrize("causal", [False, True])
def test_masks(causal, tmp_path, eagerly):
    folder = write_folder(tmp_path / "run", "masked_lm", causal_attention=causal)
    signatures = signatures_of(folder)
    texts = ["it was [MASK]", "[MASK] un[MASK]船[MASK]." + " x" * 80, "no mask", "[ mask ]"]
    found = run(signatures["serving_default"], text=texts)
    expected = predictor.load(folder).fill(texts[:2])
    assert found["positions"].tolist() == [[3, -1, -1], [1, 4, 6], [-1] * 3, [-1] * 3]
    for row, each in enumerate(expected):
        for place, mask in enumerate(each["masks"]):
            tokens = [candidate["token"] for candidate in mask["candidates"]]
            assert found["tokens"][row, place].tolist() == tokens
            values = [candidate["probability"] for candidate in mask["candidates"]]
            assert_close(found["probabilities"][row, place], values)
    assert set(found["tokens"][2:].ravel().tolist()) == {""}
    assert run(signatures["serving_default"], text=["none"])["tokens"].shape == (1, 0, 10)


@pytest.mark.parametrize("kind", ["masked_lm", "tagging"])
def test_features(kind, tmp_path, eagerly):
    folder = write_folder(tmp_path / "run", kind)
    assert saved_model._open(str(folder), True).kind == "features"
    signatures = signatures_of(folder, features=True)
    found = run(signatures["serving_default"], text=TEXTS, text_pair=PAIRS)
    ids, mask = found.pop("input_ids"), found.pop("input_mask")
    assert ids.shape[0] == len(TEXTS)
    assert mask.sum(axis=1).max() == ids.shape[1] <= 64
    features = {"input_ids": ids, "input_mask": mask, "segment_ids": 0 * ids}
    whole = run(signatures["ids"], **features)
    encoder = predictor.load(folder).model.bert
    expected = encoder(*(tf.constant(value) for value in features.values()))
    alone = [number for number, pair in enumerate(PAIRS) if not pair.strip()]
    for name in ("sequence_output", "pooled_output"):
        assert_close(whole[name], expected[name])
        assert_close(found[name][alone], expected[name].numpy()[alone])


def test_a_checkpoint_without_a_head_or_a_pooler(tmp_path, eagerly):
    folder = write_folder(tmp_path / "run", "masked_lm")
    checkpoint = restore.load(str(folder))
    kept = [name for name in checkpoint.shapes if "bert/" in name and "pooler" not in name]
    tensors = checkpoint.tensors(kept)
    for path in (*folder.glob("model*"), folder / "checkpoint", folder / "pretraining.json"):
        path.unlink()
    original.write(str(folder / "bert_model.ckpt"), tensors)
    found = run(signatures_of(folder)["serving_default"], text=["it"], text_pair=[""])
    assert found.keys() == {"input_ids", "input_mask", "sequence_output"}


# Weights.


@pytest.mark.parametrize(
    "name", ["bert/embeddings/word_embeddings", "x/kernel", "x/recurrent_kernel"]
)
@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
def test_narrow_weights(name, dtype):
    value = np.random.default_rng(1).normal(size=(5, 3)).astype(np.float32)
    value[2] = 0
    weight = StoredWeight(name, value, dtype)
    assert weight.kept.dtype == getattr(tf, dtype)
    error = np.abs(weight.value() - value)
    if dtype == "int8":
        axis = 1 if "embeddings" in name else 0
        assert (error <= np.abs(value).max(axis=axis, keepdims=True) / 254 * 1.001).all()
    else:
        assert (error <= np.abs(value) / 256).all()
    assert error.max() > 0
    if "embeddings" in name:
        rows = np.array([3, 0, 3])
        np.testing.assert_array_equal(weight.rows(rows), weight.value().numpy()[rows])


@pytest.mark.parametrize("name", ["x/bias", "output_weights", "x/LayerNorm/gamma"])
def test_small_weights_stay(name):
    value = np.ones((2, 3) if name == "output_weights" else 3, np.float32) / 3
    weight = StoredWeight(name, value, "int8")
    assert weight.kept.dtype == tf.float32
    np.testing.assert_array_equal(weight.value(), value)


@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
@pytest.mark.parametrize("kind", ["classification", "masked_lm", "choice"])
def test_models_of_narrow_weights(kind, dtype, tmp_path):
    """They compute what the model computes with the weights that were rounded."""
    source = saved_model._open(str(write_folder(tmp_path / "run", kind)), False)
    network = Network(source.model, dtype, 64)
    shape = (2, 3, 9) if kind == "choice" else (2, 9)
    ids = np.random.default_rng(0).integers(5, 120, shape).astype(np.int32)
    features = {"input_ids": ids, "input_mask": 0 * ids + 1, "segment_ids": ids % 2}
    if kind == "masked_lm":
        features["masked_lm_positions"] = np.array([[1, 2], [3, 0]], np.int32)
    features = {name: tf.constant(value) for name, value in features.items()}
    name = "masked_lm_logits" if kind == "masked_lm" else "logits"
    found = network(features)[name].numpy()
    unrounded = source.model(features)[name].numpy()
    for weight, variable in named_variables(source.model).items():
        variable.assign(network.weights[weight].value())
    assert_close(found, source.model(features)[name])
    assert 1e-6 < np.abs(found - unrounded).max() < 0.05


# Files.


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_folder(tmp_path_factory.mktemp("export") / "run", "classification")


@pytest.fixture(scope="module")
def exported(folder):
    target = folder.parent / "exported" / "1"
    return target, export(str(folder), str(target), weights_dtype="int8")


def test_what_is_written(folder, exported):
    target, info = exported
    assert [path.name for path in target.parent.iterdir()] == ["1"]
    assert {path.name for path in target.iterdir()} >= {"saved_model.pb", "variables", "assets"}
    assert json.loads((target / "assets/export.json").read_text()) == info
    assert (target / "assets/vocab.txt").read_bytes() == (folder / "vocab.txt").read_bytes()
    assert re.fullmatch("[0-9a-f]{64}", info.pop("vocab_sha256"))
    assert info["signatures"]["ids"]["inputs"] == ["input_ids", "input_mask", "segment_ids"]
    assert (info["kind"], info["labels"]) == ("classification", ["no", "yes", "perhaps"])
    assert (info["max_seq_length"], info["weights_dtype"]) == (32, "int8")
    loaded = tf.saved_model.load(str(target))
    expected = run(signatures_of(folder, "int8")["serving_default"], text=TEXTS, text_pair=PAIRS)
    found = run(loaded.signatures["serving_default"], text=TEXTS, text_pair=PAIRS)
    assert_close(found["logits"], expected["logits"])
    empty = np.zeros(0, str)
    found = run(loaded.signatures["serving_default"], text=empty, text_pair=empty)
    assert found["label"].shape == (0,)
    # As TensorFlow Serving loads it: an input that is left out gets its default.
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        graph = tf.compat.v1.saved_model.loader.load(session, ["serve"], str(target))
        signature = graph.signature_def["serving_default"]
        names = {name: info.name for name, info in signature.outputs.items()}
        alone = session.run(names, {signature.inputs["text"].name: TEXTS})
    whole = run(loaded.signatures["serving_default"], text=TEXTS, text_pair=[""] * len(TEXTS))
    assert_close(alone["logits"], whole["logits"])
    assert found["logits"].shape == (0, 3)


EMPTY = {"tokens": (0, 1), "choices": (0, 2)}


@pytest.mark.parametrize("kind", ["tagging", "choice", "masked_lm"])
def test_graphs(kind, tmp_path):
    run_folder = write_folder(tmp_path / "run", kind)
    instance = predictor_folders.INSTANCES[kind]
    signature = signatures_of(run_folder)["tokens" if kind == "tagging" else "serving_default"]
    inputs = {"question": [""]} if kind == "choice" else {}
    found = run(signature, **inputs, **{name: [value] for name, value in instance.items()})
    [expected] = predictor.load(run_folder).predict_instances([instance])
    if kind == "tagging":
        check_tags(found, [expected])
    elif kind == "choice":
        assert_close(found["probabilities"], [expected["probabilities"]])
    else:
        values = [each["candidates"][0]["probability"] for each in expected["masks"]]
        assert_close(found["probabilities"][0, :, 0], values)
    empty = {name: np.zeros(EMPTY.get(name, 0), str) for name in (*instance, *inputs)}
    assert {len(value) for value in run(signature, **empty).values()} == {0}


def test_what_is_there_stays(folder, exported, tmp_path):
    target, _ = exported
    before = (target / "saved_model.pb").read_bytes()
    with pytest.raises(ValueError, match=r"1 is not empty: .*--overwrite"):
        export(str(folder), str(target))
    assert (target / "saved_model.pb").read_bytes() == before
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(ValueError, match="is a file; name a folder"):
        export(str(folder), str(file))
    with pytest.raises(ValueError, match="holds no SavedModel, so --overwrite"):
        export(str(folder), str(folder), overwrite=True)
    (tmp_path / "saved_model.pb").write_text("")
    write_folder(tmp_path / "inner", "regression")
    with pytest.raises(ValueError, match=r"holds the model .*inner: name another"):
        export(str(tmp_path / "inner"), str(tmp_path), overwrite=True)


def test_overwriting(folder, tmp_path, monkeypatch):
    target = tmp_path / "out"
    target.mkdir()
    (target / "saved_model.pb").write_text("old")
    (target / "more").write_text("old")
    fails = True

    def save(module, target, **_):
        paths.make_dirs(target)
        paths.write_json(paths.join(target, "saved_model.pb"), {})
        if fails:
            raise KeyboardInterrupt

    monkeypatch.setattr(tf.saved_model, "save", save)
    monkeypatch.setattr(saved_model, "_info", lambda *_: {})
    with pytest.raises(KeyboardInterrupt):
        export(str(folder), str(target), overwrite=True)
    assert (target / "saved_model.pb").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    fails = False
    export(str(folder), str(target), overwrite=True)
    assert [path.name for path in target.iterdir()] == ["saved_model.pb"]
    assert (target / "saved_model.pb").read_text() == "{}\n"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_writing_to_an_address(folder, exported, monkeypatch):
    fsspec = pytest.importorskip("fsspec")
    # What was exported before, to spare the time.
    monkeypatch.setattr(
        tf.saved_model, "save", lambda _, target, **__: shutil.copytree(exported[0], target)
    )
    monkeypatch.setattr(saved_model, "_info", lambda *_: {})
    export(str(folder), "memory://models/1")
    fs = fsspec.filesystem("memory")
    found = {path.removeprefix("/models/1/") for path in fs.find("/models/1")}
    assert {"saved_model.pb", "assets/export.json", "variables/variables.index"} <= found
    with pytest.raises(ValueError, match="not empty"):
        export(str(folder), "memory://models/1")
    fs.rm("/models", recursive=True)


@pytest.mark.parametrize(
    ("token", "other", "message"),
    [
        ("船", "船" * 90, r"vocab\.txt: tokenization in the graph takes tokens of up to 256 bytes"),
        ("[UNK]", "[unknown]", r"no token '\[UNK\]'"),
    ],
)
def test_vocabularies_that_are_refused(token, other, message, tmp_path):
    run_folder = write_folder(tmp_path / "run", "regression")
    file = run_folder / "vocab.txt"
    lines = file.read_text(encoding="utf-8").replace(token, other)
    file.write_text(lines, encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        export(str(run_folder), str(tmp_path / "out"))
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_a_token_that_is_in_the_vocabulary_twice(tmp_path, eagerly):
    run_folder = write_folder(tmp_path / "run", "classification")
    file = run_folder / "vocab.txt"
    file.write_text(file.read_text(encoding="utf-8").replace("[unused5]", "good"), encoding="utf-8")
    loaded = predictor.load(run_folder)
    assert loaded.tokenizer.encode("good") == [loaded.tokenizer.vocab["[unused6]"] - 1]
    found = run(signatures_of(run_folder)["serving_default"], text=["so good"], text_pair=[""])
    [expected] = loaded.predict(["so good"])
    assert_close(found["probabilities"][0], list(expected["probabilities"].values()))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"weights_dtype": "float16"}, "weights_dtype is 'float16'; it must be one of float32, "),
        ({"weights_dtype": "int8", "onnx": True}, "float32 weights: it does not go with int8"),
    ],
)
def test_wrong_options(options, message, folder, tmp_path):
    with pytest.raises(ValueError, match=message):
        export(str(folder), str(tmp_path / "out"), **options)


def test_without_a_checkpoint(tmp_path):
    with pytest.raises(FileNotFoundError, match="checkpoint"):
        export(str(tmp_path), str(tmp_path / "out"))


def test_onnx_that_is_missing(folder, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tf2onnx", None)
    with pytest.raises(ImportError, match=r"--onnx needs tf2onnx .*pip install -e '\.\[onnx\]'"):
        export(str(folder), str(tmp_path / "out"), onnx=True)
    assert not (tmp_path / "out").exists()


def test_onnx_of_features_of_words(tmp_path, monkeypatch):
    monkeypatch.setattr(saved_model, "_tf2onnx", lambda: None)
    settings = {"feature_based": "embeddings", "lstm_units": 4}
    run_folder = write_folder(tmp_path / "run", "tagging", settings)
    with pytest.raises(ValueError, match=r"run: a tagger of --feature_based has no ONNX model"):
        export(str(run_folder), str(tmp_path / "out"), onnx=True)


@pytest.mark.parametrize("kind", predictor_folders.KINDS)
def test_onnx(kind, tmp_path):
    pytest.importorskip("tf2onnx")
    onnxruntime = pytest.importorskip("onnxruntime")
    settings = {"bilstm_head": True} if kind == "tagging" else {}
    run_folder = write_folder(tmp_path / "run", kind, settings)
    export(str(run_folder), str(tmp_path / "out"), onnx=True)
    file = str(tmp_path / "out/assets.extra/model.onnx")
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    shape = (2, 3, 9) if kind == "choice" else (2, 9)
    ids = np.random.default_rng(0).integers(5, 120, shape).astype(np.int32)
    features = {"input_ids": ids, "input_mask": 0 * ids + 1, "segment_ids": ids % 2}
    features["input_mask"][0, ..., 6:] = 0
    if kind == "masked_lm":
        features["masked_lm_positions"] = np.array([[1, 2], [3, 0]], np.int32)
    names = [output.name for output in session.get_outputs()]
    model = predictor.load(run_folder).model
    given = {**features, "choice_mask": features["input_mask"].max(axis=-1)}
    outputs = model(given)
    for name, value in zip(names, session.run(names, features), strict=True):
        assert_close(value, outputs[name])
