"""Scores of SQuAD predictions: worked by hand, and against loops over every threshold."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from squad_plain import GOLDEN

from data_prep.squad import evaluation
from data_prep.squad.evaluation import Gold, best_threshold, evaluate, score_v1, score_v2

ROOT = Path(__file__).resolve().parents[2]


def gold(is_version_2=False, **answers: list[str]) -> Gold:
    return Gold(answers, is_version_2)


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("The  Denver-Broncos!", "denverbroncos"),
        ("An apple, a day\n\u00a0the\tend", "apple day end"),
        ("a.m. theatre", "am theatre"),
        ("U.S.A.", "usa"),
        ("“the” café – a", "“ ” café –"),
        ("an a the", ""),
        ("?!", ""),
    ],
)
def test_normalize(text, normal):
    assert evaluation.normalize(text) == normal


@pytest.mark.parametrize(
    ("right", "predicted", "score"),
    [
        ("the red kite", "a red kite!", 1.0),
        ("red kite", "red", 2 * 1.0 * 0.5 / 1.5),
        ("red red kite", "red red red", 2 / 3),  # two of three both ways
        ("red", "kite", 0),
        ("", "", 1),
        ("the", "", 1),
        ("red", "the", 0),
        ("", "red", 0),
    ],
)
def test_f1(right, predicted, score):
    assert evaluation.f1(right, predicted) == score


def test_version_1():
    right = gold(
        a=["Denver Broncos", "the broncos"], b=["1902", "in 1902"], c=["blue kite"], d=["elm"]
    )
    scores = score_v1(right, {"a": "Broncos", "b": "year 1902", "c": "blue", "other": "x"})
    # a: exact; b: 1/2, 1 of its words: 2/3, or 1/2 with "in 1902"; c: 2/3; d: no prediction.
    assert scores == {"exact_match": 25.0, "f1": 100.0 * (1 + 2 / 3 + 2 / 3) / 4}
    assert list(scores) == ["exact_match", "f1"]
    # Without words on both sides the match is exact, but its F1 is 0 in 1.1, and 1 in 2.0.
    none = gold(a=["the"])
    assert score_v1(none, {"a": "a"}) == {"exact_match": 100.0, "f1": 0.0}
    assert score_v2(none, {"a": "a"})["f1"] == 100.0


def test_version_1_needs_answers():
    with pytest.raises(ValueError, match=r"question 'b' has no answer.*--version=2.0"):
        score_v1(gold(a=["x"], b=[]), {"a": "x", "b": ""})


V2 = gold(True, a=["elm"], b=["red kite", "..."], c=[], d=[], e=["the"])
V2_PREDICTIONS = {"a": "the elm", "b": "kite", "c": "", "d": "oak", "e": ""}
V2_ODDS = {"a": -3.0, "b": 0.5, "c": 4.0, "d": 2.0, "e": 9.0}


def test_version_2():
    scores = score_v2(V2, V2_PREDICTIONS)
    third = 2 / 3
    assert scores == {
        "exact": 60.0,  # a, c and e, whose answer is none after normalizing
        "f1": 100.0 * (1 + third + 1 + 0 + 1) / 5,
        "total": 5,
        "HasAns_exact": 100.0 * 2 / 3,
        "HasAns_f1": 100.0 * (1 + third + 1) / 3,
        "HasAns_total": 3,
        "NoAns_exact": 50.0,
        "NoAns_f1": 50.0,
        "NoAns_total": 2,
    }
    assert list(scores)[:4] == ["exact", "f1", "total", "HasAns_exact"]


def test_version_2_with_odds():
    scores = score_v2(V2, V2_PREDICTIONS, V2_ODDS)
    # Over 1.0 none is predicted: right for c and d, wrong for e.
    assert scores["exact"] == 60.0
    assert scores["NoAns_exact"] == 100.0
    assert scores["HasAns_exact"] == 100.0 / 3
    # None answered: 2 right (c, d). a: 3; b adds 2/3 of F1; d, at 2.0, takes 1 away; c nothing;
    # e, at 9.0, adds 1.
    assert (scores["best_exact"], scores["best_exact_thresh"]) == (60.0, -3.0)
    assert (scores["best_f1"], scores["best_f1_thresh"]) == (100.0 * (3 + 2 / 3) / 5, 0.5)
    assert score_v2(V2, V2_PREDICTIONS, V2_ODDS, 99.0)["exact"] == 60.0
    assert score_v2(V2, V2_PREDICTIONS, V2_ODDS, -9.0)["f1"] == 40.0


def test_no_threshold_beats_no_answers_at_all():
    scores = score_v2(gold(True, a=[], b=[]), {"a": "x", "b": "y"}, {"a": -1.0, "b": 2.0})
    assert (scores["best_f1"], scores["best_f1_thresh"]) == (100.0, 0.0)
    assert "HasAns_f1" not in scores
    threshold, score = best_threshold(
        gold(True, a=[], b=[]), {"a": "x", "b": "y"}, {"a": -1.0, "b": 2.0}
    )
    assert threshold < -1.0
    assert score == 100.0


def test_best_threshold():
    best = {**V2_PREDICTIONS, "c": "blue", "e": "blue"}
    threshold, score = best_threshold(V2, best, V2_ODDS)
    assert (threshold, score) == (0.5, 100.0 * (1 + 2 / 3 + 1 + 1 + 1) / 5)
    assert best_threshold(V2, best, V2_ODDS, "exact") == (-3.0, 80.0)
    # Equal odds cannot be parted.
    odds = {"a": 1.0, "d": 1.0}
    assert best_threshold(gold(True, a=["elm"], d=[]), {"a": "elm", "d": "x"}, odds)[1] == 50.0


@settings(deadline=None, max_examples=100)
@given(st.data())
def test_no_other_threshold_is_better(data):
    names = [str(i) for i in range(data.draw(st.integers(1, 8)))]
    texts = st.sampled_from(["red kite", "red", "kite", "the"])
    right = Gold({name: data.draw(st.lists(texts, max_size=2)) for name in names}, True)
    best = {name: data.draw(st.sampled_from(["red kite", "red", "the", ""])) for name in names}
    odds = {name: data.draw(st.sampled_from([-1.0, 0.0, 0.5, 3.0])) for name in names}
    metric = data.draw(st.sampled_from(["f1", "exact"]))

    def scored(threshold: float) -> float:
        final = {n: "" if odds[n] > threshold else best[n] for n in names}
        return score_v2(right, final)[metric]

    threshold, score = best_threshold(right, best, odds, metric)
    assert scored(threshold) == score
    assert all(scored(other) <= score + 1e-9 for other in (-9.0, -1.0, 0.0, 0.5, 3.0))


def test_questions_without_a_prediction():
    predictions = {"a": "elm", "d": ""}
    assert score_v2(V2, predictions)["total"] == 2
    assert score_v2(V2, predictions)["HasAns_total"] == 1
    assert evaluation.coverage(V2, {**predictions, "x": ""}) == (["b", "c", "e"], ["x"])
    assert evaluation.coverage_lines(V2, {**predictions, "x": ""}, listed=2) == [
        "questions 5, predictions 3; without a prediction 3, predictions of no question 1",
        "no prediction for: b, c, and 1 more",
        "no question for: x",
    ]
    with pytest.raises(ValueError, match="none of the 5 questions of the data has a prediction"):
        score_v2(V2, {"x": "elm"})
    with pytest.raises(ValueError, match="no question of the data has a prediction"):
        best_threshold(V2, {}, {})


def test_odds_that_do_not_fit():
    for call in (score_v2, best_threshold):
        with pytest.raises(ValueError, match="4 questions have a prediction but no null odds"):
            call(V2, V2_PREDICTIONS, {"b": 1.0})
        with pytest.raises(ValueError, match="question 'b' are not a number"):
            call(V2, V2_PREDICTIONS, {**V2_ODDS, "b": float("nan")})


def test_mixed_segments():
    assert evaluation.mixed_segments("建于1624年,BERT模型。约3,000人！a-b c?") == [
        "建", "于", "1624", "年", ",", "bert", "模", "型", "约", "3,000", "人", "ab", "c", "?",
    ]  # fmt: skip
    right = gold(a=["1624年"], b=["《望月桥》", "望月桥"], c=["居民会在桥上挂起灯笼"])
    scores = evaluate(
        right, {"a": "建于1624年", "b": "望月桥。", "c": "居民在桥上"}, segments="mixed"
    )
    # a: 2 of 4 and 2 of 2; b: punctuation does not count; c: 3 in a row ("在桥上") of 5 and of 10.
    f1 = [2 * 0.5 * 1 / 1.5, 1.0, 2 * 0.6 * 0.3 / 0.9]
    assert scores["exact_match"] == pytest.approx(100 / 3)
    assert scores["f1"] == pytest.approx(100 * sum(f1) / 3)
    assert evaluate(gold(a=["北京"]), {"a": "大学"}, segments="mixed")["f1"] == 0
    assert evaluate(gold(a=["北京"]), {"a": ""}, segments="mixed")["f1"] == 0


def test_the_rules_that_fit():
    assert "exact_match" in evaluate(gold(a=["x"]), {"a": "x"})
    assert "exact" in evaluate(gold(True, a=["x"]), {"a": "x"})
    assert "exact_match" in evaluate(gold(True, a=["x"]), {"a": "x"}, version="1.1")
    assert "exact" in evaluate(gold(a=["x"]), {"a": "x"}, version="2.0")
    for wrong in ({"version": "3"}, {"segments": "x"}):
        with pytest.raises(ValueError, match="choose"):
            evaluate(gold(a=["x"]), {"a": "x"}, **wrong)
    with pytest.raises(ValueError, match="choose f1 or exact"):
        best_threshold(V2, V2_PREDICTIONS, V2_ODDS, "em")


def test_gold_files(tmp_path):
    assert not evaluation.read_gold(str(GOLDEN / "own_v1.json")).is_version_2
    two = evaluation.read_gold(str(GOLDEN / "own_v2.json"))
    assert two.is_version_2
    assert sum(not texts for texts in two.answers.values()) == 9
    path = tmp_path / "questions.json"
    item = {"id": "a", "question": "?"}
    path.write_text(json.dumps({"data": [{"paragraphs": [{"context": "", "qas": [item]}]}]}))
    with pytest.raises(ValueError, match=r"\(id 'a'\): the key 'answers' is missing"):
        evaluation.read_gold(str(path))
    path.write_text('{"data": []}')
    with pytest.raises(ValueError, match="no questions"):
        evaluation.read_gold(str(path))


def test_the_command(tmp_path, capsys):
    folder = GOLDEN / "predictions_v2_s384_d128_q64_t0"
    files = [str(GOLDEN / "own_v2.json"), str(folder / "predictions.json")]
    scores = evaluation.main([*files, "--na_prob_file", str(folder / "null_odds.json")])
    printed = capsys.readouterr()
    assert json.loads(printed.out) == scores
    assert "questions 22, predictions 21; without a prediction 1" in printed.err
    assert "own2-022" in printed.err
    assert scores["total"] == 21
    out = tmp_path / "scores.json"
    assert evaluation.main([*files, f"--out_file={out}"]) == json.loads(out.read_text())
    # The official script's spelling.
    again = evaluation.main([*files, "--na-prob-file", str(folder / "null_odds.json")])
    assert again == scores


@pytest.mark.parametrize(
    ("predictions", "message"),
    [
        ({"x": "y"}, "none of the ids is in"),
        ({"own1-001": 3}, "'own1-001' has 3, expected a text"),
        ([], "expected a JSON object"),
    ],
)
def test_wrong_prediction_files(tmp_path, predictions, message):
    path = tmp_path / "predictions.json"
    path.write_text(json.dumps(predictions))
    with pytest.raises(ValueError, match=message):
        evaluation.main([str(GOLDEN / "own_v1.json"), str(path)])


def test_an_error_of_the_command_has_no_traceback():
    done = subprocess.run(
        [sys.executable, "-m", "data_prep.squad.evaluation", "nowhere.json", "p.json"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr.startswith("data_prep.squad.evaluation: error: There is no file nowhere")
    assert done.stdout == ""
