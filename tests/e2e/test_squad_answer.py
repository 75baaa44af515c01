"""bert_tf.cli.answer and QuestionAnswerer with a model, beside what run_squad.py predicts."""

import io
import json
import shutil

import pytest
from squad_runs import (
    FILES,
    chinese,
    english,
    main,
    question,
    read,
    write,
    write_run,
)

from bert_tf.cli import answer, json_lines
from bert_tf.predictor import QuestionAnswerer


def pairs(data):
    """(id, question, context) of each question."""
    return [
        (item["id"], item["question"], paragraph["context"])
        for article in data["data"]
        for paragraph in article["paragraphs"]
        for item in paragraph["qas"]
    ]


def check(found, names, folder, version_2, shown=99):
    """Compares results with what run_squad.py wrote, of each n-best list the first `shown`."""
    texts, nbest = (read(folder / name) for name in FILES)
    odds = read(folder / "null_odds.json") if version_2 else {}
    assert len(found) == len(names)
    for name, result in zip(names, found, strict=True):
        assert result["answer"] == texts[name]
        expected = nbest[name][:shown]
        assert [each["text"] for each in result["nbest"]] == [each["text"] for each in expected]
        for key in ("probability", "start_logit", "end_logit"):
            values = [each[key] for each in result["nbest"]]
            assert values == pytest.approx([each[key] for each in expected], abs=1e-6)
        if version_2:
            assert result["null_odds"] == pytest.approx(odds[name], abs=1e-5)
        else:
            assert "null_odds" not in result


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Folders with predictions, and what was asked: {kind: (folder, data)}."""
    folder = tmp_path_factory.mktemp("runs")
    v2 = english(True)
    odd = "Zoë's (3.50) \u00a0cups — naïve, “Kim”!"
    v2["data"][0]["paragraphs"].append(
        {"context": odd, "qas": [question("Who has cups?" * 5, "Kim", odd, "odd", False)]}
    )
    kinds = {
        "v1": (english(), {}, [], {}),
        "v2": (
            v2,
            {"version_2_with_negative": True, "null_score_diff_threshold": -0.1},
            ["--version_2_with_negative", "--null_score_diff_threshold=-0.1"],
            {"seed": 5},
        ),
        "chinese": (
            chinese(),
            {"character_level": True, "n_best_size": 5},
            ["--character_level", "--n_best_size=5"],
            {"bilstm": True},
        ),
    }
    made = {}
    for kind, (data, settings, flags, model) in kinds.items():
        run = write_run(folder / kind, settings, **model)
        file = write(folder / f"{kind}.json", data)
        main(f"--output_dir={run}", f"--predict_file={file}", "--do_predict", *flags)
        made[kind] = run, data
    return made


@pytest.mark.parametrize("kind", ["v1", "v2", "chinese"])
def test_answers_are_those_of_run_squad(runs, kind):
    folder, data = runs[kind]
    asked = pairs(data)
    answerer = QuestionAnswerer(folder, batch_size=5)
    found = answerer.answer([(text, context) for _, text, context in asked])
    names = [name for name, _, _ in asked]
    check(found, names, folder, kind == "v2")
    if kind == "v2":
        answers = read(folder / FILES[0])
        assert {bool(text) for text in answers.values()} == {True, False}
    # One at a time, and in another order.
    for number in (len(asked) - 1, 0):
        name, text, context = asked[number]
        check(answerer.answer([(text, context)]), [name], folder, kind == "v2")
    assert answerer.answer([]) == []


def test_fewer_answers_are_the_first_of_all(runs):
    folder, data = runs["v1"]
    asked = [(text, context) for _, text, context in pairs(data)]
    every = QuestionAnswerer(folder).answer(asked)
    first = QuestionAnswerer(folder, n_best_size=2).answer(asked)
    for few, all_of_them in zip(first, every, strict=True):
        assert few["answer"] == all_of_them["answer"]
        assert few["nbest"] == all_of_them["nbest"][:2]


def test_the_tuned_threshold_is_used(runs, tmp_path):
    folder, data = runs["v2"]
    run = shutil.copytree(folder, tmp_path / "run")
    file = write(tmp_path / "v2.json", data)
    main(
        f"--output_dir={run}",
        f"--predict_file={file}",
        "--do_predict",
        "--version_2_with_negative",
        "--tune_threshold=exact",
    )
    assert read(run / FILES[0]) != read(folder / FILES[0])
    asked = pairs(data)
    found = QuestionAnswerer(run).answer([(text, context) for _, text, context in asked])
    check(found, [name for name, _, _ in asked], run, True)


@pytest.mark.parametrize(
    "item", [None, "Who?", ("Who?",), ("Who?", None), ("Who?", "Kim", "Bo"), (1, "Kim")]
)
def test_what_is_no_pair(runs, item):
    answerer = QuestionAnswerer(runs["v1"][0])
    with pytest.raises(TypeError, match=r"pairs of a question and a text; at position 1"):
        answerer.answer([("Who?", "Kim has hats."), item])


def test_wrong_arguments(runs, tmp_path):
    folder, _ = runs["v1"]
    with pytest.raises(ValueError, match="batch_size is 0"):
        QuestionAnswerer(folder, batch_size=0)
    with pytest.raises(ValueError, match="n_best_size is 0"):
        QuestionAnswerer(folder, n_best_size=0)
    with pytest.raises(FileNotFoundError, match=r"no squad\.json.*run_squad\.py"):
        QuestionAnswerer(tmp_path)
    (tmp_path / "squad.json").write_text((folder / "squad.json").read_text())
    with pytest.raises(FileNotFoundError, match="no checkpoint"):
        QuestionAnswerer(tmp_path)
    settings = read(folder / "squad.json")
    del settings["doc_stride"], settings["n_best_size"]
    (tmp_path / "squad.json").write_text(json.dumps(settings))
    with pytest.raises(ValueError, match=r"squad\.json: doc_stride, n_best_size is missing"):
        QuestionAnswerer(tmp_path)


# The command.


def command(*flags):
    answer.main(["answer", *map(str, flags)])


def test_one_question(runs, capsys):
    folder, data = runs["v1"]
    name, text, context = pairs(data)[4]
    command(f"--model_dir={folder}", f"--question={text}", f"--context={context}")
    shown = capsys.readouterr().out.splitlines()
    nbest = read(folder / FILES[1])[name][:3]
    assert shown[0] == read(folder / FILES[0])[name]
    assert len(shown) == 4
    for line, entry in zip(shown[1:], nbest, strict=True):
        assert line == f"  {entry['probability']:.4f}  {entry['text']}"


def test_questions_from_the_terminal(runs, tmp_path, capsys, monkeypatch):
    folder, data = runs["v2"]
    context = tmp_path / "text.txt"
    asked = [item for item in pairs(data) if item[0].startswith("q3")]
    context.write_text(asked[0][2], encoding="utf-8-sig")
    lines = "\n\n".join(text for _, text, _ in asked) + "\n"
    monkeypatch.setattr("sys.stdin", io.StringIO(lines))
    command(f"--model_dir={folder}", f"--context_file={context}", "--n_best_size=1")
    shown = capsys.readouterr().out.splitlines()
    answers = read(folder / FILES[0])
    odds = read(folder / "null_odds.json")
    threshold = read(folder / "squad.json")["null_score_diff_threshold"]
    assert shown[::3] == [answers[name] or "(no answer)" for name, _, _ in asked]
    assert shown[2::3] == [
        f"  no answer against the best: {odds[name]:+.2f} (threshold {threshold:+.2f})"
        for name, _, _ in asked
    ]


@pytest.mark.parametrize("pool", [2, 256])
def test_a_file_of_questions(runs, tmp_path, monkeypatch, pool):
    monkeypatch.setattr(json_lines, "_POOL", pool)
    folder, data = runs["v2"]
    asked = pairs(data)[::-1]
    lines = [
        json.dumps({"id": name, "question": text, "context": context, "more": 1})
        for name, text, context in asked
    ]
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text("\ufeff" + "\n\n".join(lines) + "\n", encoding="utf-8")
    command(
        f"--model_dir={folder}",
        f"--input_file={source}",
        f"--output_file={target}",
        "--n_best_size=4",
    )
    found = [json.loads(line) for line in target.read_text(encoding="utf-8").splitlines()]
    names = [name for name, _, _ in asked]
    assert [line["id"] for line in found] == names
    assert [line["question"] for line in found] == [text for _, text, _ in asked]
    check(found, names, folder, True, shown=4)


def test_a_bad_line_leaves_the_old_file(runs, tmp_path, monkeypatch):
    monkeypatch.setattr(json_lines, "_POOL", 1)
    folder, _ = runs["v1"]
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    line = json.dumps({"question": "Who?", "context": "Kim has hats."})
    source.write_text(f"{line}\n{line}\n{{\n")
    target.write_text("old\n")
    with pytest.raises(ValueError, match=r"in\.jsonl: line 3 is no JSON"):
        command(f"--model_dir={folder}", f"--input_file={source}", f"--output_file={target}")
    assert target.read_text() == "old\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.jsonl", "out.jsonl"]


def test_a_folder_that_is_no_run(tmp_path):
    with pytest.raises(FileNotFoundError, match="There is no checkpoint in"):
        command(f"--model_dir={tmp_path}", "--question=Who?", "--context=Kim.")
