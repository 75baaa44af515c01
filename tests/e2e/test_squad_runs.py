"""run_squad.py from a checkpoint and a file of questions to answers and scores."""

import json
import shutil

import numpy as np
import pytest
from classifier_runs import assert_same_weights, snapshot, weights
from squad_runs import (
    CONFIG,
    FILES,
    GOLDEN,
    LENGTHS,
    assert_same_answers,
    chinese,
    english,
    ids,
    main,
    model_logits,
    plainly_decoded,
    question,
    read,
    recorded,
    tokenizer,
    write,
    write_model,
    write_run,
    write_vocabulary,
)

import run_squad
from bert_tf.checkpoint import original
from data_prep.squad import evaluation, reading, windows


def read_events(folder):
    """{name: {step: value}} of a run."""
    import tensorflow as tf

    found = {}
    for file in folder.glob("events*"):
        for record in tf.data.TFRecordDataset(str(file)):
            event = tf.compat.v1.Event.FromString(record.numpy())
            for value in event.summary.value:
                number = tf.make_ndarray(value.tensor).item()
                found.setdefault(value.tag, {})[event.step] = number
    return found


def count_windows(path, **options):
    examples = list(reading.read_examples(str(path), True, **options))
    return len(list(windows.make_windows(examples, tokenizer(), **LENGTHS, is_training=True)))


def as_lists(nbest):
    keys = ["text", "probability", "start_logit", "end_logit"]
    assert all(list(entry) == keys for entry in nbest)
    return [[entry[key] for key in keys] for entry in nbest]


def assert_format(path):
    """Checks that a file is written as json.dumps(..., indent=4) writes it."""
    text = path.read_text(encoding="ascii")
    assert text == json.dumps(json.loads(text), indent=4) + "\n"


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Files of questions by name."""
    folder = tmp_path_factory.mktemp("data")
    v1 = english()
    # An answer that reaches past the end of its context is left out in training.
    paragraph = v1["data"][0]["paragraphs"][0]
    lost = question("Who has hats?", "Kim", paragraph["context"], "lost")
    lost["answers"] = [{"text": "Kim", "answer_start": 4000}]
    with_lost = json.loads(json.dumps(v1))
    with_lost["data"][0]["paragraphs"][0]["qas"].append(lost)
    blank = json.loads(json.dumps(v1))
    blank["data"][0]["paragraphs"].append(
        {"context": " \n ", "qas": [question("Who?", "x", " \n ", "blank")]}
    )
    return {
        "v1": write(folder / "v1.json", v1),
        "v1 lost": write(folder / "v1_lost.json", with_lost),
        "v1 blank": write(folder / "v1_blank.json", blank),
        "v2": write(folder / "v2.json", english(True)),
        "chinese": write(folder / "chinese.json", chinese()),
    }


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """An --init_checkpoint with all that belongs to it, and no head."""
    return write_model(tmp_path_factory.mktemp("model"), head=False)


# SQuAD 1.1, from the original's own checkpoint.


@pytest.fixture(scope="module")
def v1(tmp_path_factory, data):
    """A trained folder, what main returned, and the logits that its predictions are made of."""
    folder = tmp_path_factory.mktemp("v1")
    flags = [
        f"--train_file={data['v1 lost']}",
        f"--predict_file={data['v1 blank']}",
        f"--output_dir={folder}",
        f"--init_checkpoint={GOLDEN / 'bert_model.ckpt'}",
        f"--vocab_file={write_vocabulary(tmp_path_factory.mktemp('vocabulary'))}",
        "--do_train",
        "--do_predict",
        "--train_batch_size=8",
        "--num_train_epochs=5",
        "--learning_rate=3e-3",
        "--steps_per_loop=1",
    ]
    with recorded() as seen:
        scores = main(*flags)
    return folder, scores, seen


def test_an_epoch_is_over_windows(v1, data):
    folder, _, _ = v1
    count = count_windows(data["v1"])
    assert count > 18  # The questions.
    saved = read(folder / "squad.json")["training"]
    assert saved["training_windows"] == count
    steps = int(count / 8 * 5)
    assert original.latest_checkpoint(str(folder)) == str(folder / f"model.ckpt-{steps}")


def test_checkpoint_has_the_originals_variables(v1):
    found = weights(v1[0])
    expected = json.loads((GOLDEN / "training" / "variables.json").read_text())
    assert {name: list(value.shape) for name, value in found.items()} == {
        entry["name"]: entry["shape"] for entry in expected
    }
    before = weights(GOLDEN / "bert_model.ckpt")
    # The pooler has no part in the loss: no slots, no decay.
    for name in ("bert/pooler/dense/kernel", "bert/pooler/dense/bias"):
        assert f"{name}/adam_m" not in found
        np.testing.assert_array_equal(found[name], before[name])
    assert not np.array_equal(found["cls/squad/output_weights"], before["cls/squad/output_weights"])


def test_the_loss_falls(v1):
    losses = list(read_events(v1[0])["loss"].values())
    assert len(losses) > 12
    assert np.mean(losses[-5:]) < 0.8 * np.mean(losses[:3])


def test_files_have_the_originals_form(v1, data):
    folder, _, _ = v1
    for name in FILES:
        assert_format(folder / name)
        assert list(read(folder / name)) == ids(read(data["v1 blank"]))
    assert not (folder / "null_odds.json").exists()
    # Nothing to find there: what the original says where it finds nothing.
    assert read(folder / FILES[0])["blank"] == "empty"


def test_answers_are_those_of_a_plain_decoder(v1):
    folder, _, seen = v1
    found, nbest = (read(folder / name) for name in FILES)
    plain = plainly_decoded(seen)
    assert {*plain, "blank"} == found.keys()
    for name, (text, entries, _) in plain.items():
        assert found[name] == text
        assert as_lists(nbest[name]) == [list(entry) for entry in entries]


def test_logits_are_the_models(v1):
    folder, _, seen = v1
    its = [window for item in seen for window in item[1]]
    starts, ends = model_logits(folder, its)
    for which, expected in ((2, starts), (3, ends)):
        rows = [row for item in seen for row in item[which]]
        for row, window, wanted in zip(rows, its, expected, strict=True):
            assert row.shape == (window.length,)
            np.testing.assert_allclose(row, wanted, atol=2e-5)


def test_scores_are_the_scorers(v1, data):
    folder, scores, _ = v1
    again = evaluation.main([str(data["v1 blank"]), str(folder / FILES[0])])
    assert read(folder / "eval_results.json") == scores == again
    assert list(scores) == ["exact_match", "f1"]
    assert 0 < scores["f1"] < 100


def predict(folder, file, output, *flags):
    """Predicts with the weights of a folder, into another one."""
    main(
        f"--init_checkpoint={folder}",
        f"--predict_file={file}",
        f"--output_dir={output}",
        "--do_predict",
        *flags,
    )


@pytest.mark.parametrize(
    "flags",
    [
        ["--predict_batch_size=1"],
        ["--predict_batch_size=64"],
        ["--pad_to_max_length"],
        ["--pad_to_max_length", "--max_seq_length=64", "--doc_stride=12"],
    ],
)
def test_answers_do_not_depend_on_batches_and_padding(v1, data, tmp_path, flags):
    folder, _, _ = v1
    expected = folder
    if "--max_seq_length=64" in flags:
        # Other windows than those of the fixture.
        expected = tmp_path / "grouped"
        predict(folder, data["v1 blank"], expected, *flags[1:])
    predict(folder, data["v1 blank"], tmp_path / "other", *flags)
    assert_same_answers(tmp_path / "other", expected)
    assert read(tmp_path / "other" / "eval_results.json") == read(expected / "eval_results.json")


@pytest.mark.parametrize("pool", [1, 7])
def test_answers_do_not_depend_on_what_is_predicted_together(v1, data, tmp_path, monkeypatch, pool):
    folder, _, _ = v1
    monkeypatch.setattr(run_squad, "PREDICTION_POOL", pool)
    predict(folder, data["v1 blank"], tmp_path)
    assert_same_answers(tmp_path, folder)
    assert list(read(tmp_path / FILES[1])) == list(read(folder / FILES[1]))


def test_prediction_in_the_folder_itself_needs_no_more_flags(v1, data):
    folder, scores, _ = v1
    before = snapshot(folder)
    again = main(f"--predict_file={data['v1 blank']}", f"--output_dir={folder}", "--do_predict")
    assert again == scores
    assert snapshot(folder) == before


def test_a_file_without_answers_is_not_scored(v1, data, tmp_path, caplog):
    caplog.set_level("INFO", logger="absl")
    folder, _, _ = v1
    bare = read(data["v1"])
    for paragraph in bare["data"][0]["paragraphs"]:
        for item in paragraph["qas"]:
            del item["answers"]
    predict(folder, write(tmp_path / "bare.json", bare), tmp_path / "out")
    assert "Not scored" in caplog.text
    assert not (tmp_path / "out" / "eval_results.json").exists()
    expected = read(folder / FILES[0])
    del expected["blank"]
    assert read(tmp_path / "out" / FILES[0]) == expected


# A second stage.


@pytest.fixture(scope="module")
def stage2(tmp_path_factory, v1, data):
    """One step from the first stage's folder, on other questions, at a rate of 0."""
    folder = tmp_path_factory.mktemp("stage2")
    file = write(folder / "second.json", english(seed=1))
    main(
        f"--init_checkpoint={v1[0]}",
        f"--train_file={file}",
        f"--output_dir={folder}",
        "--do_train",
        "--train_batch_size=16",
        f"--num_train_epochs={1.1 * 16 / count_windows(file)}",
        "--learning_rate=0",
    )
    return folder


def test_a_second_stage_takes_the_head_over(v1, stage2):
    first, second = weights(v1[0]), weights(stage2)
    kept = [name for name in first if "/adam_" not in name and name != "global_step"]
    assert "cls/squad/output_weights" in kept
    for name in kept:
        np.testing.assert_array_equal(second[name], first[name], err_msg=name)


def test_a_second_stage_begins_its_means_anew(stage2):
    found = weights(stage2)
    assert found["global_step"] == 1
    names = [name.removesuffix("/adam_m") for name in found if name.endswith("/adam_m")]
    assert len(names) > 50
    for name in names:
        # After one step from zero the means are 0.1 g and 0.001 g².
        mean, square = found[f"{name}/adam_m"], found[f"{name}/adam_v"]
        np.testing.assert_allclose(square, 0.1 * mean**2, rtol=1e-4, atol=1e-20, err_msg=name)
    assert np.abs(found["cls/squad/output_weights/adam_m"]).max() > 0


# SQuAD 2.0, killed and whole.

V2_SCORES = [
    *(f"{group}{name}" for group in ("", "HasAns_", "NoAns_") for name in ("exact", "f1", "total")),
    "best_exact",
    "best_exact_thresh",
    "best_f1",
    "best_f1_thresh",
]


def v2_flags(data, model, folder):
    return [
        f"--train_file={data['v2']}",
        f"--predict_file={data['v2']}",
        f"--output_dir={folder}",
        f"--init_checkpoint={model}",
        "--version_2_with_negative",
        "--do_train",
        "--do_predict",
        "--tune_threshold=f1",
        "--train_batch_size=8",
        "--num_train_epochs=2",
        "--learning_rate=1e-2",
        "--save_checkpoints_steps=4",
        "--steps_per_loop=2",
    ]


@pytest.fixture(scope="module")
def v2(tmp_path_factory, data, model):
    folder = tmp_path_factory.mktemp("v2")
    with recorded() as seen:
        scores = main(*v2_flags(data, model, folder))
    return folder, scores, seen


class Killed(BaseException):
    """What no handler catches."""


def test_a_killed_run_ends_in_the_same_bits(v2, data, model, tmp_path, monkeypatch):
    def die(step):
        if step == 6:
            raise Killed

    whole = v2[0]
    flags = v2_flags(data, model, tmp_path / "killed")
    monkeypatch.setattr(run_squad, "AFTER_LOOP", die)
    with pytest.raises(Killed):
        main(*flags)
    killed = tmp_path / "killed"
    assert original.latest_checkpoint(str(killed)) == str(killed / "model.ckpt-4")
    assert not (killed / FILES[0]).exists()
    monkeypatch.setattr(run_squad, "AFTER_LOOP", None)
    main(*flags)
    steps = weights(whole)["global_step"]
    assert steps > 8
    assert_same_weights(killed, whole)

    def files(folder):
        return {name: text for name, text in snapshot(folder).items() if "events" not in name}

    found, expected = files(killed), files(whole)
    assert found.keys() == expected.keys()
    assert [name for name in expected if found[name] != expected[name]] == []


def test_files_of_version_2(v2, data):
    folder, _, _ = v2
    expected = ids(read(data["v2"]))
    for name in (*FILES, "null_odds.json"):
        assert_format(folder / name)
        assert list(read(folder / name)) == expected
    assert read(folder / FILES[0])["blank"] == ""


def test_version_2_is_what_a_plain_decoder_finds(v2):
    folder, _, seen = v2
    found, nbest, odds = (read(folder / name) for name in (*FILES, "null_odds.json"))
    threshold = read(folder / "squad.json")["tuned"]["null_score_diff_threshold"]
    plain = plainly_decoded(seen, version_2=True, threshold=threshold)
    assert {*plain, "blank"} == found.keys()
    answered = 0
    for name, (text, entries, its_odds) in plain.items():
        assert text is not None
        assert found[name] == text
        assert as_lists(nbest[name]) == [list(entry) for entry in entries]
        assert odds[name] == its_odds
        answered += bool(text)
    assert answered > 0


def test_the_threshold_is_tuned_and_kept(v2, data):
    folder, scores, _ = v2
    settings = read(folder / "squad.json")
    threshold = settings["tuned"]["null_score_diff_threshold"]
    assert settings["null_score_diff_threshold"] == threshold
    assert settings["tuned"]["on"] == str(data["v2"])
    assert threshold != 0.0
    # The best of all thresholds, each tried in turn.
    gold = evaluation.read_gold(str(data["v2"]))
    odds, nbest = read(folder / "null_odds.json"), read(folder / FILES[1])
    best = {
        name: next((entry["text"] for entry in entries if entry["text"]), "")
        for name, entries in nbest.items()
    }
    tried = [
        evaluation.score_v2(gold, {n: "" if odds[n] > each else best[n] for n in odds})["f1"]
        for each in (-1e9, *odds.values())
    ]
    assert scores["f1"] == pytest.approx(max(tried), abs=1e-9)


def test_scores_of_version_2_are_the_scorers(v2, data):
    folder, scores, _ = v2
    again = evaluation.main(
        [str(data["v2"]), str(folder / FILES[0]), f"--na_prob_file={folder / 'null_odds.json'}"]
        + ["--na_prob_thresh=inf"]
    )
    assert read(folder / "eval_results.json") == scores == again
    assert list(scores) == V2_SCORES
    assert scores["total"] == len(ids(read(data["v2"])))
    assert scores["NoAns_total"] == 7


def test_a_later_run_uses_the_tuned_threshold(v2, data, tmp_path):
    folder = shutil.copytree(v2[0], tmp_path / "run")
    expected = snapshot(folder)
    flags = [f"--output_dir={folder}", "--version_2_with_negative"]
    flags += [f"--predict_file={data['v2']}", "--do_predict"]
    main(*flags)
    assert snapshot(folder) == expected
    # As the whole command again, which has nothing to train: the folder keeps its threshold.
    main(*flags, "--do_train", f"--train_file={data['v2']}", "--train_batch_size=8")
    kept = read(folder / "squad.json")
    tuned = kept["tuned"]["null_score_diff_threshold"]
    assert kept["null_score_diff_threshold"] == tuned
    # What the command line says wins.
    main(*flags, "--null_score_diff_threshold=-1e9")
    assert set(read(folder / FILES[0]).values()) == {""}
    main(*flags, "--null_score_diff_threshold=1e9")
    answers = read(folder / FILES[0])
    assert [name for name, text in answers.items() if not text] == ["blank"]
    assert read(folder / "squad.json") == kept


def test_version_2_without_the_flag_is_answered_and_warned_of(v2, data, tmp_path, caplog):
    caplog.set_level("INFO", logger="absl")
    predict(v2[0], data["v2"], tmp_path / "out")
    assert "7 questions are marked as impossible" in caplog.text
    assert "--version_2_with_negative" in caplog.text
    assert all(read(tmp_path / "out" / FILES[0]).values())
    assert "NoAns_f1" in read(tmp_path / "out" / "eval_results.json")


# Texts without spaces, and other ways to train.


def test_chinese(tmp_path, data, model):
    folder = tmp_path / "chinese"
    with recorded() as seen:
        scores = main(
            f"--train_file={data['chinese']}",
            f"--predict_file={data['chinese']}",
            f"--output_dir={folder}",
            f"--init_checkpoint={model}",
            "--character_level",
            "--segments=mixed",
            "--pad_to_max_length",
            "--do_train",
            "--do_predict",
            "--train_batch_size=9",
            "--num_train_epochs=30",
            "--learning_rate=1e-2",
        )
    answers = read(folder / FILES[0])
    by_id = {example.qas_id: example for example, *_ in seen}
    assert answers.keys() == by_id.keys()
    for name, text in answers.items():
        assert text
        assert text in by_id[name].context.text
    gold = evaluation.read_gold(str(data["chinese"]))
    assert scores == evaluation.evaluate(gold, answers, segments="mixed")
    assert read(folder / "eval_results.json") == scores
    # Characters can be learned: at word level each context is one word.
    assert scores["exact_match"] > 50
    assert read(folder / "squad.json")["character_level"] is True


def test_bilstm_head_and_steps_from_examples(tmp_path, data, model):
    folder = tmp_path / "run"
    flags = [
        f"--train_file={data['v1']}",
        f"--predict_file={data['v1']}",
        f"--output_dir={folder}",
        f"--init_checkpoint={model}",
        "--do_train",
        "--do_predict",
        "--train_batch_size=6",
        "--num_train_epochs=2",
        "--steps_from_examples",
        "--bilstm_head",
        "--learning_rate=1e-3",
    ]
    with recorded() as seen:
        main(*flags)
    # 18 questions, of more windows.
    assert original.latest_checkpoint(str(folder)) == str(folder / "model.ckpt-6")
    found = weights(folder)
    assert found["cls/squad/output_weights"].shape == (2, 2 * CONFIG.hidden_size)
    assert [name for name in found if name.startswith("bilstm/") and name.endswith("/adam_m")]
    assert read(folder / "squad.json")["bilstm_head"] is True
    its = [window for item in seen for window in item[1]]
    expected = model_logits(folder, its)[0]
    for row, wanted in zip([row for item in seen for row in item[2]], expected, strict=True):
        np.testing.assert_allclose(row, wanted, atol=2e-5)
    # The folder says what head it has, though --init_checkpoint has none.
    before = snapshot(folder)
    main(*[flag for flag in flags if flag not in ("--do_train", "--bilstm_head")])
    assert snapshot(folder) == before
    with pytest.raises(ValueError, match=r"began with --bilstm_head: go on so"):
        main(*[flag for flag in flags if flag != "--bilstm_head"], "--nobilstm_head")
    assert snapshot(folder) == before


@pytest.mark.parametrize("causal", [False, True])
def test_a_causal_model_reads_from_left_to_right(tmp_path, causal):
    run = write_run(tmp_path / "run", causal_attention=causal)
    texts = ["Kim has 3 red hats", "Kim has 3 red hats in the box ."]
    paragraphs = [
        {"context": text, "qas": [question("Who?", "Kim", text, f"q{number}")]}
        for number, text in enumerate(texts)
    ]
    file = write(tmp_path / "data.json", {"data": [{"paragraphs": paragraphs}]})
    with recorded() as seen:
        main(f"--output_dir={run}", f"--predict_file={file}", "--do_predict")
    (_, [window], [short], _), (_, _, [long], _) = seen
    shared = window.length - 1  # All but [SEP].
    difference = np.abs(short[:shared] - long[:shared]).max()
    assert (difference < 1e-5) == causal, difference


@pytest.mark.parametrize("way", ["first", "each"])
def test_several_answers(tmp_path, model, way):
    text = "Kim has 3 red hats."
    asked = [
        question("Who has hats?", "Kim", text, "one"),
        question("How many?", "3", text, "two", others=["3 red", "3"]),
    ]
    file = write(tmp_path / "t.json", {"data": [{"paragraphs": [{"context": text, "qas": asked}]}]})
    flags = [
        f"--train_file={file}",
        f"--output_dir={tmp_path / 'run'}",
        f"--init_checkpoint={model}",
        "--do_train",
        "--train_batch_size=1",
        "--num_train_epochs=1",
    ]
    with pytest.raises(ValueError, match=r"'two'.*2 different answers.*--several_answers=first"):
        main(*flags)
    assert not original.latest_checkpoint(str(tmp_path / "run"))
    # What is trained on is looked at, not the training: it is like any other.
    setups = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_squad, "train", lambda setup, model: setups.append(setup))
        main(*flags, f"--several_answers={way}")
    features, count = run_squad.read_training(setups[0])
    labels = sorted((end - start, start) for start, end in features.labels.tolist())
    assert count == len(features) == {"first": 2, "each": 3}[way]
    assert [length for length, _ in labels] == {"first": [0, 0], "each": [0, 0, 1]}[way]


def test_training_again_with_other_settings_is_warned_of(v2, data, model, tmp_path, caplog):
    folder = shutil.copytree(v2[0], tmp_path / "run")
    flags = [flag for flag in v2_flags(data, model, folder) if flag != "--do_predict"]
    flags.remove("--tune_threshold=f1")
    before = snapshot(folder)
    main(*flags, "--max_query_length=11", "--seed=1")
    assert "max_query_length 12 -> 11" in caplog.text
    assert "seed 12345 -> 1" in caplog.text
    after = snapshot(folder)
    assert [name for name in after if after[name] != before.get(name)] == ["squad.json"]
    # What the weights were trained with stays on record.
    assert read(folder / "squad.json")["training"]["seed"] == 12345


def read_only(*flags):
    """Runs a training command that only reads."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_squad, "train", lambda setup, model: run_squad.read_training(setup))
        main(*flags, "--do_train")


def test_reading_is_reported(data, model, tmp_path, caplog):
    caplog.set_level("INFO", logger="absl")
    read_only(
        f"--train_file={data['v1 lost']}",
        f"--output_dir={tmp_path}",
        f"--init_checkpoint={model}",
        "--max_query_length=7",
    )
    for line in (
        "questions 19 (0 impossible, 0 with several answers), examples 18",
        "1 questions with an answer that is not in the context where the file says, left out: lost",
        "lost: 'Kim' at 4000 reaches past the context's",
        "6 questions cut to max_query_length: q",
        "an example (examples by windows: ",
    ):
        assert f"{data['v1 lost']}: " in caplog.text
        assert line in caplog.text


def test_verbose_logging_lists_all(tmp_path, model, caplog):
    caplog.set_level("INFO", logger="absl")
    text = "Kim has 3 red hats."
    asked = [question("Who?", "Bo", text, f"n{number}") for number in range(30)]
    for item in asked:
        item["answers"][0]["answer_start"] = 4
    asked.append(question("Who?", "Kim", text, "right"))
    file = write(tmp_path / "t.json", {"data": [{"paragraphs": [{"context": text, "qas": asked}]}]})
    for flags, listed in (([], False), (["--verbose_logging"], True)):
        caplog.clear()
        read_only(
            f"--train_file={file}",
            f"--output_dir={tmp_path / 'run'}",
            f"--init_checkpoint={model}",
            *flags,
        )
        assert "30 questions with an answer that is not in the context" in caplog.text
        assert ("n29" in caplog.text) == listed
        assert ("and 10 more" in caplog.text) != listed


def test_a_checkpoint_without_a_head_is_warned_of(tmp_path, data, model, caplog):
    predict(model, data["v1"], tmp_path)
    assert "THE HEAD IS RANDOM" in caplog.text
    assert str(model) in caplog.text
    assert len(read(tmp_path / FILES[0])) == 18


def test_a_file_of_blank_texts(tmp_path, model):
    run = write_run(tmp_path / "run")
    paragraph = {"context": " \n\t", "qas": [question("Who?", "x", "x", "b1")]}
    file = write(tmp_path / "blank.json", {"data": [{"paragraphs": [paragraph]}]})
    main(f"--output_dir={run}", f"--predict_file={file}", "--do_predict")
    assert read(run / FILES[0]) == {"b1": "empty"}
    flags = ["--version_2_with_negative", "--do_predict"]
    main(f"--output_dir={run}", f"--predict_file={file}", *flags)
    assert read(run / FILES[0]) == {"b1": ""}
    assert read(run / "null_odds.json")["b1"] > 1e5


# Ensembles.


def softmax(row):
    shifted = np.exp(np.asarray(row, np.float64) - np.max(row))
    return shifted / shifted.sum()


@pytest.mark.parametrize("version_2", [False, True])
def test_an_ensemble_averages_probabilities(tmp_path, data, version_2):
    runs = [
        write_run(tmp_path / "a", seed=1),
        # The sizes may differ.
        write_run(tmp_path / "b", seed=2, hidden_size=24, num_hidden_layers=2, bilstm=True),
    ]
    flags = ["--version_2_with_negative"] if version_2 else []
    file = data["v2" if version_2 else "v1"]
    before = [snapshot(run) for run in runs]
    with recorded() as seen:
        scores = main(
            f"--ensemble={runs[0]}, {runs[1]}",
            f"--predict_file={file}",
            f"--output_dir={tmp_path / 'both'}",
            "--do_predict",
            *flags,
        )
    assert [snapshot(run) for run in runs] == before
    found, nbest = (read(tmp_path / "both" / name) for name in FILES)
    assert list(found) == ids(read(file))
    assert scores == read(tmp_path / "both" / "eval_results.json")
    its = [window for item in seen for window in item[1]]
    members = [model_logits(run, its) for run in runs]
    for which, part in ((2, 0), (3, 1)):
        rows = [row for item in seen for row in item[which]]
        for row, first, second in zip(rows, members[0][part], members[1][part], strict=True):
            assert np.abs(softmax(first) - softmax(second)).max() > 1e-3
            np.testing.assert_allclose(
                softmax(row), (softmax(first) + softmax(second)) / 2, atol=1e-6
            )
    for name, (text, entries, _) in plainly_decoded(seen, version_2=version_2).items():
        assert found[name] == text
        assert as_lists(nbest[name]) == [list(entry) for entry in entries]


def test_an_ensemble_of_one_model_twice_is_that_model(tmp_path, data):
    run = write_run(tmp_path / "a")
    main(f"--output_dir={run}", f"--predict_file={data['v1']}", "--do_predict")
    main(
        f"--ensemble={run},{run}",
        f"--predict_file={data['v1']}",
        f"--output_dir={tmp_path / 'twice'}",
        "--do_predict",
    )
    assert_same_answers(tmp_path / "twice", run)
