"""Every kind of predictor: what it takes, what it gives, errors, threads."""

import json
import shutil
import threading

import numpy as np
import pytest
from predictor_folders import INSTANCES, KINDS, LABELS, config, vocabulary, write_folder

from bert_tf import predictor
from bert_tf.checkpoint import original, restore

GOLDEN_HF = "conversions/huggingface"


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    top = tmp_path_factory.mktemp("folders")
    return {kind: write_folder(top / kind, kind) for kind in KINDS}


@pytest.fixture(scope="module")
def loaded(folders):
    return {kind: predictor.load(folder, batch_size=4) for kind, folder in folders.items()}


def assert_close(found, expected, atol=1e-6):
    """Compares results: numbers nearly, all else exactly."""
    assert type(found) is type(expected)
    if isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for key, value in expected.items():
            assert_close(found[key], value, atol)
    elif isinstance(expected, list):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_close(one, other, atol)
    elif isinstance(expected, float):
        assert found == pytest.approx(expected, abs=atol)
    else:
        assert found == expected


RESULT_KEYS = {
    "classification": {"label", "probabilities"},
    "multilabel": {"labels", "probabilities"},
    "regression": {"value"},
    "tagging": {"tokens", "tags", "probabilities", "entities"},
    "choice": {"choice", "probabilities"},
    "question_answering": {"answer", "start", "end", "nbest"},
    "masked_lm": {"masks"},
}


@pytest.mark.parametrize("kind", KINDS)
def test_results_are_json(kind, loaded, folders):
    model = loaded[kind]
    assert model.kind == kind == predictor.kind_of(folders[kind])
    assert model.check(INSTANCES[kind]) is None
    [found] = model.predict_instances([INSTANCES[kind]])
    assert found.keys() == RESULT_KEYS[kind]
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert model.predict_instances([]) == []


def test_what_results_hold(loaded):
    found = {kind: model.predict_instances([INSTANCES[kind]])[0] for kind, model in loaded.items()}
    for kind in ("classification", "multilabel"):
        assert list(found[kind]["probabilities"]) == LABELS[kind]
    values = found["classification"]["probabilities"]
    assert found["classification"]["label"] == max(values, key=values.__getitem__)
    assert sum(values.values()) == pytest.approx(1)
    assert len(found["choice"]["probabilities"]) == 3
    tagged = found["tagging"]
    assert len(tagged["tags"]) == len(tagged["probabilities"]) == 4
    assert all(1 / 5 <= value <= 1 for value in tagged["probabilities"])
    for mask in found["masked_lm"]["masks"]:
        values = [each["probability"] for each in mask["candidates"]]
        assert len(values) == 10
        assert values == sorted(values, reverse=True)
    assert len(found["masked_lm"]["masks"]) == 2


@pytest.mark.parametrize("kind", KINDS)
def test_a_result_does_not_depend_on_its_neighbours(kind, loaded):
    model = loaded[kind]
    instances = many(kind)
    together = model.predict_instances(instances)
    assert_close([model.predict_instances([each])[0] for each in instances], together, 1e-5)
    assert_close(model.predict_instances(instances[::-1])[::-1], together, 1e-5)
    assert len({json.dumps(each) for each in together}) > 5


def many(kind, count=11):
    """Instances of a kind that differ in length, the longest longer than an input."""
    made = []
    for number in range(count):
        words = ["good", "bad", "max", "a", "船", "x9"] * (number**2 // 6 + 1)
        text = " ".join(words[: number**2 + 1])
        if kind == "choice":
            choices = [text, "not " + text, "it"][: 2 + number % 2]
            made.append({"context": text, "choices": choices, "question": "who"[: number % 4]})
        elif kind == "question_answering":
            made.append({"question": f"who is {number} ?", "context": f"{text}. It was {number}"})
        elif kind == "masked_lm":
            made.append({"text": "[MASK] " * (number % 3 + 1) + text})
        elif kind == "tagging":
            made.append({"text": text} if number % 2 else {"tokens": text.split()})
        else:
            made.append({"text": text, "text_pair": text[::-1]} if number % 2 else {"text": text})
    return made


@pytest.mark.parametrize("kind", KINDS)
def test_threads_get_what_one_would(kind, folders, loaded):
    """Loaded anew: the first calls, which trace, come from all threads at once."""
    instances = many(kind)
    expected = loaded[kind].predict_instances(instances)
    model = predictor.load(folders[kind], batch_size=4)
    start = threading.Barrier(6)
    found, errors = {}, []

    def run(number):
        try:
            start.wait()
            for time in range(3):
                turned = instances[number:] + instances[:number]
                results = model.predict_instances(turned)
                at = len(instances) - number
                found[number, time] = results[at:] + results[:at]
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert len(found) == 18
    for results in found.values():
        assert_close(results, expected, 1e-5)


@pytest.mark.parametrize(
    ("kind", "instance", "words"),
    [
        ("classification", "good", ["an object with text", "'good'"]),
        ("classification", None, ["an object with text"]),
        ("classification", ["good"], ["an object with text"]),
        ("classification", {}, ["the field text is missing", "text_pair"]),
        ("classification", {"text": None}, ["text must be a string, not None"]),
        ("classification", {"text": 3}, ["text must be a string, not 3"]),
        ("classification", {"text": "a", "text_pair": ["b"]}, ["text_pair must be a string"]),
        ("classification", {"text": "a", "txt": "b"}, ["no field 'txt'", "text_pair"]),
        ("multilabel", {"text": "a", 3: "b"}, ["no field 3"]),
        ("regression", {"text_pair": "a"}, ["the field text is missing"]),
        ("tagging", {}, ["one of the fields tokens and text"]),
        ("tagging", {"text": "a", "tokens": ["a"]}, ["one of the fields tokens and text"]),
        ("tagging", {"text": " \n"}, ["text must have a word"]),
        ("tagging", {"tokens": []}, ["tokens must be a list of 1 string or more, not []"]),
        ("tagging", {"tokens": "a b"}, ["tokens must be a list"]),
        ("tagging", {"tokens": ["a", ""]}, ["tokens[1] must be a string that is not blank"]),
        ("tagging", {"tokens": ["a", 2]}, ["tokens[1] must be a string"]),
        ("tagging", {"tokens": ["a"], "tags": ["O"]}, ["no field 'tags'"]),
        ("choice", {"context": "a"}, ["the field choices is missing"]),
        ("choice", {"context": "a", "choices": ["b"]}, ["choices must be a list of 2 texts"]),
        ("choice", {"context": "a", "choices": ["b", " "]}, ["choices[1] must be a string"]),
        ("choice", {"context": "a", "choices": ["b", "c"], "question": 1}, ["question must be"]),
        ("choice", {"context": 1, "choices": ["b", "c"]}, ["context must be a string"]),
        ("question_answering", {"question": "Who?"}, ["the field context is missing"]),
        ("question_answering", {"question": 1, "context": "a"}, ["question must be a string"]),
        ("question_answering", {"question": "?", "context": b"a"}, ["context must be a string"]),
        ("masked_lm", {"text": "a MASK"}, ["text must have [MASK] in it"]),
        ("masked_lm", {"text": ""}, ["text must have [MASK] in it"]),
        ("masked_lm", {"text": "a " * 62 + "[MASK]"}, ["[MASK] at token 63", "reads 62"]),
    ],
)
def test_bad_instances(kind, instance, words, loaded):
    model = loaded[kind]
    with pytest.raises(ValueError) as checked:
        model.check(instance)
    with pytest.raises(ValueError) as predicted:
        model.predict_instances([INSTANCES[kind], INSTANCES[kind], instance])
    assert str(predicted.value) == f"instance 2: {checked.value}"
    for word in words:
        assert word in str(checked.value)


@pytest.mark.parametrize(
    ("kind", "instance"),
    [
        ("classification", {"text": "", "text_pair": None}),
        ("classification", {"text": "\ud800 \x00 good", "text_pair": "\udfff"}),
        ("tagging", {"tokens": ["\u200b", "\ud800", "good max"]}),
        ("tagging", {"text": "good", "tokens": None}),
        ("choice", {"context": "", "choices": ["\ud800", "\u200b"], "question": None}),
        ("question_answering", {"question": "", "context": "good \ud800max"}),
        ("question_answering", {"question": "who?", "context": " \n"}),
        ("masked_lm", {"text": "\ud800[MASK]good" + " a" * 200}),
    ],
)
def test_odd_instances(kind, instance, loaded):
    [found] = loaded[kind].predict_instances([instance])
    assert found.keys() == RESULT_KEYS[kind]
    json.dumps(found, allow_nan=False)


# Tags and choices.


def test_logits_of_words_are_the_models(loaded):
    """In one window; beside the model itself, fed by hand."""
    words = ["good", "xy", "\u200b", "max"]
    tagger = loaded["tagging"]
    [found] = tagger.logits([words])
    pieces = ["[CLS]", "good", "x", "##y", "[UNK]", "max", "[SEP]"]
    ids = np.array([tagger.tokenizer.convert_tokens_to_ids(pieces)], np.int32)
    expected = tagger.model({"input_ids": ids})["logits"].numpy()[0, [1, 2, 4, 5]]
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_entities_are_told_by_tokens(loaded, monkeypatch):
    tagger = loaded["tagging"]
    tags = ["I-PER", "I-PER", "O", "B-LOC", "B-LOC", "I-LOC", "I-PER"]
    logits = 9.0 * np.eye(5, dtype=np.float32)[[LABELS["tagging"].index(tag) for tag in tags]]
    monkeypatch.setattr(tagger, "logits", lambda sentences, documents: [logits])
    [found] = tagger.tag([list("abcdefg")])
    assert found["tags"] == tags
    assert found["entities"] == [
        {"type": "PER", "first": 0, "last": 1, "text": "a b"},
        {"type": "LOC", "first": 3, "last": 3, "text": "d"},
        {"type": "LOC", "first": 4, "last": 5, "text": "e f"},
        {"type": "PER", "first": 6, "last": 6, "text": "g"},
    ]
    sure = np.exp(9) / (np.exp(9) + 4)
    assert found["probabilities"] == pytest.approx([sure] * 7)


def test_words_that_are_none(loaded):
    tagger = loaded["tagging"]
    for sentences in (["good max"], [["good"], []]):
        with pytest.raises(ValueError, match="must be a list of words"):
            tagger.tag(sentences)
    for documents in ([0], [1, 0], [0, 0, 0]):
        with pytest.raises(ValueError, match="documents must be 2 numbers"):
            tagger.tag([["good"], ["bad"]], documents)


def test_a_question_stands_before_each_choice(loaded, folders, tmp_path):
    chooser = loaded["choice"]
    context = "he was in it"
    [whole] = chooser.choose([(context, ["she is good", "she is bad"])])
    parts = {"context": context, "question": " she is ", "choices": ["good ", "bad"]}
    assert_close(chooser.predict_instances([parts]), [whole])
    # A blank is the place of a choice in RACE alone.
    race = shutil.copytree(folders["choice"], tmp_path / "race")
    task = json.loads((race / "task.json").read_text())
    (race / "task.json").write_text(json.dumps(task | {"task": "RACE"}))
    blank = {"context": context, "question": "she _ is", "choices": ["good", "bad"]}
    [filled] = predictor.load(race).predict_instances([blank])
    [expected] = chooser.choose([(context, ["she good is", "she bad is"])])
    assert_close(filled, expected)
    [expected] = chooser.choose([(context, ["she _ is good", "she _ is bad"])])
    assert_close(chooser.predict_instances([blank]), [expected])


# Masks.


def mask_probabilities(model, text_ids, positions):
    """float64 [P, V] of the model itself, fed by hand."""
    ids = np.array([text_ids], np.int32)
    batch = {"input_ids": ids, "masked_lm_positions": np.array([positions], np.int32)}
    logits = model(batch)["masked_lm_logits"].numpy().astype(np.float64)
    values = np.exp(logits - logits.max(axis=1, keepdims=True))
    return values / values.sum(axis=1, keepdims=True)


@pytest.mark.parametrize("causal", [False, True])
def test_candidates_are_the_models(causal, loaded, tmp_path):
    filler = loaded["masked_lm"]
    if causal:
        folder = write_folder(tmp_path / "ltr", "masked_lm", causal_attention=True)
        filler = predictor.load(folder)
    [found] = filler.fill(["He [MASK]was[MASK] [mask]"])
    pieces = "[CLS] he [MASK] was [MASK] [UNK] m ##a ##s ##k [UNK] [SEP]".split()
    ids = filler.tokenizer.convert_tokens_to_ids(pieces)
    # What comes next is said at the token before.
    positions = [1, 3] if causal else [2, 4]
    expected = mask_probabilities(filler.model, ids, positions)
    assert len(found["masks"]) == 2
    for mask, row in zip(found["masks"], expected, strict=True):
        best = np.argsort(-row)[:10]
        assert [each["token"] for each in mask["candidates"]] == [
            vocabulary()[number] for number in best
        ]
        values = [each["probability"] for each in mask["candidates"]]
        np.testing.assert_allclose(values, row[best], atol=1e-5)


def test_many_masks_in_small_parts(loaded, monkeypatch):
    filler = loaded["masked_lm"]
    texts = ["[MASK] " * (1 + number * 7 % 60) + "good" * (number % 2) for number in range(9)]
    expected = filler.fill(texts)
    sizes = []
    real = filler._run

    def recorded(batch):
        sizes.append(batch["masked_lm_positions"].shape)
        return real(batch)

    monkeypatch.setattr(filler, "_run", recorded)
    monkeypatch.setattr(predictor.masks, "_MASKS", 64)
    assert_close(filler.fill(texts), expected, 1e-5)
    assert all(rows == 1 or rows * masks <= 64 for rows, masks in sizes)
    assert any(rows > 1 for rows, _ in sizes)
    assert [len(each["masks"]) for each in expected] == [text.count("[MASK]") for text in texts]


def test_a_bare_text_is_no_list(loaded):
    with pytest.raises(TypeError, match="give \\['he \\[MASK\\]'\\]"):
        loaded["masked_lm"].fill("he [MASK]")


def test_rows_without_a_token_are_no_candidates(folders, tmp_path):
    """A vocabulary that is shorter than the table, with a token that stands twice."""
    folder = shutil.copytree(folders["masked_lm"], tmp_path / "short")
    tokens = vocabulary()[:115]
    tokens[50] = tokens[60]
    (folder / "vocab.txt").write_text("".join(f"{token}\n" for token in tokens))
    filler = predictor.MaskFiller(folder, top_k=500)
    [found] = filler.fill(["[MASK] good"])
    names = [each["token"] for each in found["masks"][0]["candidates"]]
    assert sorted(names) == sorted(set(tokens))
    assert sum(each["probability"] for each in found["masks"][0]["candidates"]) == pytest.approx(1)


def test_case_is_told_by_the_vocabulary(folders, tmp_path):
    assert predictor.MaskFiller(folders["masked_lm"]).tokenizer.do_lower_case
    assert not predictor.MaskFiller(
        folders["masked_lm"], do_lower_case=False
    ).tokenizer.do_lower_case
    folder = shutil.copytree(folders["masked_lm"], tmp_path / "cased")
    tokens = vocabulary()
    tokens[110] = "##Xy"
    (folder / "vocab.txt").write_text("".join(f"{token}\n" for token in tokens))
    assert not predictor.load(folder).tokenizer.do_lower_case


def test_original_checkpoints_and_hugging_face_folders(tmp_path):
    """Without a pooler, or with the head of the next sentence."""
    import tiny

    golden = tiny.GOLDEN / "checkpoint" / "tiny_pretraining"
    vocab = "".join(f"{token}\n" for token in vocabulary())
    found = []
    for name, source in (("original", golden), ("hf", tiny.GOLDEN / GOLDEN_HF)):
        folder = tmp_path / name
        folder.mkdir()
        for path in source.iterdir():
            if path.is_file():
                shutil.copy(path, folder)
        (folder / "vocab.txt").write_text(vocab, encoding="utf-8")
        filler = predictor.load(folder)
        assert filler.kind == "masked_lm"
        found.append(filler.fill(["he was [MASK]"]))
    prefix = str(tmp_path / "original" / "bert_model.ckpt")
    assert_close(predictor.load(prefix).fill(["he was [MASK]"]), found[0])
    reader = restore.load(prefix)
    tensors = {
        name: value
        for name, value in reader.tensors().items()
        if not name.startswith(("bert/pooler", "cls/seq_relationship"))
    }
    (tmp_path / "less").mkdir()
    for name in ("bert_config.json", "vocab.txt"):
        shutil.copy(tmp_path / "original" / name, tmp_path / "less")
    original.write(str(tmp_path / "less" / "bert_model.ckpt"), tensors)
    assert_close(predictor.load(tmp_path / "less").fill(["he was [MASK]"]), found[0])


# Folders.


def test_folders_that_hold_nothing_to_predict_with(folders, tmp_path):
    with pytest.raises(FileNotFoundError, match="no checkpoint"):
        predictor.load(tmp_path)
    with pytest.raises(FileNotFoundError, match="no checkpoint"):
        predictor.load(tmp_path / "none")
    both = shutil.copytree(folders["tagging"], tmp_path / "both")
    shutil.copy(folders["question_answering"] / "squad.json", both)
    with pytest.raises(ValueError, match=r"both task\.json and squad\.json"):
        predictor.load(both)
    for name in ("task.json", "squad.json"):
        (both / name).unlink()
    with pytest.raises(ValueError, match="no masked-LM head"):
        predictor.load(both)
    with pytest.raises(ValueError, match="no masked-LM head"):
        predictor.MaskFiller(both)
    with pytest.raises(ValueError, match=r"task\.json is a file; give its folder"):
        predictor.load(folders["tagging"] / "task.json")
    with pytest.raises(ValueError, match=r"squad\.json is a file; give its folder"):
        predictor.QuestionAnswerer(folders["question_answering"] / "squad.json")
    for name in ("vocab.txt", "bert_config.json"):
        bare = shutil.copytree(folders["masked_lm"], tmp_path / f"no_{name}")
        (bare / name).unlink()
        with pytest.raises(FileNotFoundError, match=name):
            predictor.load(bare)


@pytest.mark.parametrize("kind", KINDS)
def test_batch_sizes_below_one(kind, folders):
    with pytest.raises(ValueError, match="batch_size is 0"):
        predictor.load(folders[kind], batch_size=0)


@pytest.mark.parametrize(
    ("cls", "kind"),
    [
        (predictor.Classifier, "tagging"),
        (predictor.Tagger, "choice"),
        (predictor.MultipleChooser, "classification"),
    ],
)
def test_the_wrong_class(cls, kind, folders):
    with pytest.raises(ValueError, match=rf"kind is {kind}, which is not for {cls.__name__}"):
        cls(folders[kind])


@pytest.mark.parametrize(
    ("kind", "key", "value", "words"),
    [
        ("tagging", "labels", ["B-PER", "I-PER"], "labels of NER are O first"),
        ("tagging", "labels", ["O", "B-PER", "B-PER"], "twice"),
        ("tagging", "max_seq_length", 65, "over the model's max_position_embeddings, 64"),
        ("tagging", "feature_based", "lats", "feature_based is 'lats'"),
        ("choice", "max_seq_length", 65, "max_position_embeddings"),
        ("classification", "max_seq_length", 65, "max_position_embeddings"),
        ("question_answering", "max_seq_length", 65, "max_position_embeddings"),
        ("question_answering", "doc_stride", "8", "doc_stride is '8'"),
        ("question_answering", "doc_stride", 0, "doc_stride is 0; it must be an integer of 1"),
        ("question_answering", "null_score_diff_threshold", None, "a finite number"),
        ("question_answering", "null_score_diff_threshold", float("nan"), "a finite number"),
    ],
)
def test_settings_that_do_not_fit(kind, key, value, words, folders, tmp_path):
    folder = shutil.copytree(folders[kind], tmp_path / "run")
    path = folder / ("squad.json" if kind == "question_answering" else "task.json")
    path.write_text(json.dumps(json.loads(path.read_text()) | {key: value}))
    with pytest.raises(ValueError, match=words) as error:
        predictor.load(folder)
    assert path.name in str(error.value)


def test_files_that_do_not_belong_together(folders, tmp_path):
    folder = shutil.copytree(folders["classification"], tmp_path / "run")
    vocab = (folder / "vocab.txt").read_text()
    (folder / "vocab.txt").write_text(vocab + "more\n")
    with pytest.raises(ValueError, match=r"121 tokens, but .* vocab_size 120"):
        predictor.load(folder)
    (folder / "vocab.txt").write_text(vocab.replace("[CLS]", "[XYZ]"))
    with pytest.raises(ValueError, match=r"no token '\[CLS\]'"):
        predictor.load(folder)
    (folder / "vocab.txt").write_text(vocab)
    config(hidden_size=32).to_json_file(str(folder / "bert_config.json"))
    with pytest.raises(ValueError, match="model of another size"):
        predictor.load(folder)


def test_weights_that_are_not_finite(folders, tmp_path):
    folder = shutil.copytree(folders["classification"], tmp_path / "run")
    tensors = restore.load(str(folder)).tensors()
    tensors["output_bias"][1] = np.nan
    original.write(str(folder / "model.ckpt-6"), tensors)
    original.write_state(str(folder), str(folder / "model.ckpt-6"))
    with pytest.raises(ValueError, match="output_bias holds NaN or infinity"):
        predictor.load(folder)
