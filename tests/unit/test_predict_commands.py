"""bert_tf.cli.classify, answer and fill_mask: flags, what is shown, and runs on tiny models."""

import io
import json

import pytest
import script_flags
from predictor_folders import INSTANCES, write_folder

from bert_tf import predictor
from bert_tf.cli import answer, classify, fill_mask
from bert_tf.cli.command_line import CommandLineError


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    top = tmp_path_factory.mktemp("commands")
    kinds = ("classification", "tagging", "choice", "question_answering", "masked_lm")
    return {kind: write_folder(top / kind, kind) for kind in kinds}


@pytest.mark.parametrize("command", [classify, fill_mask])
def test_every_flag_is_in_the_help(command, capsys):
    script_flags.check_help(command, capsys)


@pytest.mark.parametrize(
    ("command", "flags", "words"),
    [
        (classify, [], ["--model_dir"]),
        (classify, ["--model_dir=m", "--text_pair=b"], ["--text_pair needs --text"]),
        (classify, ["--model_dir=m", "--text=a", "--input_file=f"], ["leave out --text"]),
        (classify, ["--model_dir=m", "--output_file=o"], ["--output_file needs --input_file"]),
        (classify, ["--model_dir=m", "--batch_size=0"], ["batch_size"]),
        (fill_mask, ["--text=a"], ["--model_dir"]),
        (fill_mask, ["--model_dir=m", "--text=a", "--input_file=f"], ["leave out --text"]),
        (fill_mask, ["--model_dir=m", "--top_k=0"], ["top_k"]),
    ],
)
def test_wrong_flags(command, flags, words):
    with pytest.raises(CommandLineError) as error:
        command.main(["command", *flags])
    for word in words:
        assert word in str(error.value)


@pytest.mark.parametrize(
    ("kind", "flags", "words"),
    [
        ("question_answering", ["--text=a"], "is for python -m bert_tf.cli.answer"),
        ("masked_lm", ["--text=a"], "is for python -m bert_tf.cli.fill_mask"),
        ("choice", ["--text=a"], "--input_file with JSON lines"),
        ("tagging", ["--text=a", "--text_pair=b"], "tags words"),
    ],
)
def test_models_of_another_kind(kind, flags, words, folders):
    with pytest.raises(CommandLineError, match=words):
        classify.main(["classify", f"--model_dir={folders[kind]}", *flags])


@pytest.mark.parametrize(("kind", "name"), [("tagging", "classify"), ("masked_lm", "fill_mask")])
def test_answer_names_the_command_of_another_kind(kind, name, folders):
    with pytest.raises(CommandLineError, match=f"is for python -m bert_tf.cli.{name}"):
        answer.main(["answer", f"--model_dir={folders[kind]}", "--question=a", "--context=b"])


def test_what_classify_shows():
    two = {"label": "b\ud800", "probabilities": {"a": 0.25, "b\ud800": 0.75}}
    assert classify.show(two) == "b\\ud800\n  0.7500  b\\ud800\n  0.2500  a"
    assert classify.one_line(two) == "b\ud800\t0.7500"
    some = {"labels": ["a", "b"], "probabilities": {"a": 0.6, "b": 0.9, "c": 0.1}}
    assert classify.show(some) == "a,b\n  0.9000  b\n  0.6000  a\n  0.1000  c"
    assert classify.one_line(some | {"labels": []}) == "(none)"
    assert classify.show({"value": 2.5}) == classify.one_line({"value": 2.5}) == "2.5"
    tagged = {
        "tokens": ["Ann", "left"],
        "tags": ["B-PER", "O"],
        "probabilities": [0.9, 0.8],
        "entities": [{"type": "PER", "first": 0, "last": 0, "text": "Ann"}],
    }
    assert classify.show(tagged) == "Ann/B-PER left/O\n  PER  Ann"
    assert classify.one_line(tagged) == "B-PER O"


def test_what_fill_mask_shows():
    mask = {
        "candidates": [{"token": "a", "probability": 0.5}, {"token": "##b", "probability": 0.25}]
    }
    block = "  0.5000  a\n  0.2500  ##b"
    assert fill_mask.show({"masks": [mask]}) == block
    assert fill_mask.show({"masks": [mask, mask]}) == f"mask 1\n{block}\nmask 2\n{block}"
    assert (
        fill_mask.one_line({"masks": [mask, mask]}) == "a 0.5000, ##b 0.2500\ta 0.5000, ##b 0.2500"
    )


def test_one_text(folders, capsys):
    folder = folders["classification"]
    given = INSTANCES["classification"]
    flags = [f"--{name}={value}" for name, value in given.items()]
    classify.main(["classify", f"--model_dir={folder}", *flags])
    model = predictor.load(folder)
    assert capsys.readouterr().out == classify.show(model.predict_instances([given])[0]) + "\n"
    classify.main(["classify", f"--model_dir={folder}", "--text="])
    assert capsys.readouterr().out == classify.show(model.predict([""])[0]) + "\n"


def test_pairs_from_a_pipe(folders, capsys, monkeypatch):
    folder = folders["classification"]
    monkeypatch.setattr("sys.stdin", io.StringIO("he was\tgood\tmax\n\nbad\n"))
    classify.main(["classify", f"--model_dir={folder}", "--batch_size=1"])
    first, second = predictor.load(folder).predict([("he was", "good\tmax"), "bad"])
    lines = [classify.one_line(first), "", classify.one_line(second)]
    assert capsys.readouterr().out == "".join(f"{line}\n" for line in lines)


def test_words_from_a_pipe(folders, capsys, monkeypatch):
    """A tab is white space between words."""
    monkeypatch.setattr("sys.stdin", io.StringIO("he was\tgood\n"))
    classify.main(["classify", f"--model_dir={folders['tagging']}"])
    [found] = predictor.load(folders["tagging"]).tag([["he", "was", "good"]])
    assert capsys.readouterr().out == " ".join(found["tags"]) + "\n"


@pytest.mark.parametrize("kind", ["classification", "tagging", "choice", "masked_lm"])
def test_json_lines(kind, folders, tmp_path):
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    items = [{"id": number, **INSTANCES[kind]} for number in range(3)]
    source.write_text("".join(json.dumps(item) + "\n" for item in items))
    command = fill_mask if kind == "masked_lm" else classify
    files = [f"--input_file={source}", f"--output_file={target}"]
    command.main(["command", f"--model_dir={folders[kind]}", *files])
    [expected] = predictor.load(folders[kind]).predict_instances([INSTANCES[kind]])
    if kind == "masked_lm":
        for mask in expected["masks"]:
            del mask["candidates"][5:]
    found = [json.loads(line) for line in target.read_text().splitlines()]
    assert [line.pop("id") for line in found] == [0, 1, 2]
    for line in found:
        assert line.keys() == expected.keys()
        for key in ("label", "tags", "choice"):
            assert line.get(key) == expected.get(key)
        probabilities = line.get("probabilities") or [
            each["probability"] for mask in line["masks"] for each in mask["candidates"]
        ]
        wanted = expected.get("probabilities") or [
            each["probability"] for mask in expected["masks"] for each in mask["candidates"]
        ]
        assert probabilities == pytest.approx(wanted, abs=1e-6)


def test_masks(folders, capsys, monkeypatch):
    folder = folders["masked_lm"]
    text = INSTANCES["masked_lm"]["text"]
    flags = ["fill_mask", f"--model_dir={folder}", "--top_k=2"]
    fill_mask.main([*flags, f"--text={text}"])
    [found] = predictor.MaskFiller(folder, top_k=2).fill([text])
    assert capsys.readouterr().out == fill_mask.show(found) + "\n"
    with pytest.raises(ValueError, match=r"text must have \[MASK\] in it"):
        fill_mask.main([*flags, "--text=no mask"])
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{text}\n\n{text}\n"))
    fill_mask.main(flags)
    line = fill_mask.one_line(found)
    assert capsys.readouterr().out == f"{line}\n\n{line}\n"
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{text}\nno mask\n"))
    with pytest.raises(ValueError, match=r"^standard input: line 2: text must have \[MASK\]"):
        fill_mask.main(flags)
