import json
import pathlib
import shutil

import numpy as np
import pytest
import script_flags
from safetensors.numpy import load_file, save_file

from bert_tf import paths
from bert_tf.checkpoint import original, restore
from bert_tf.cli import convert_checkpoint
from bert_tf.cli.command_line import CommandLineError
from bert_tf.config import BertConfig

GOLDEN = pathlib.Path(__file__).parents[2] / "golden"
TINY = GOLDEN / "checkpoint" / "tiny_pretraining"
HUGGINGFACE = GOLDEN / "conversions" / "huggingface"


def convert(**values):
    convert_checkpoint.main(["convert_checkpoint", *(f"--{k}={v}" for k, v in values.items())])


def tensors_of(path):
    return restore.load(str(path)).tensors()


def assert_same(found, expected):
    assert set(found) == set(expected)
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array, err_msg=name)


@pytest.mark.parametrize("folder", ["tiny_pretraining", "tiny_classifier"])
def test_to_huggingface_and_back(folder, tmp_path, capsys):
    source = GOLDEN / "checkpoint" / folder
    (tmp_path / "v.txt").write_text("x\n" * 120)
    middle, back = tmp_path / "hf", tmp_path / "back"
    vocab = str(tmp_path / "v.txt")
    convert(input=source, output=middle, to="huggingface", vocab_file=vocab, do_lower_case=False)
    convert(input=middle, output=back, to="original")
    for ending in (".index", ".data-00000-of-00001"):
        golden = (source / f"bert_model.ckpt{ending}").read_bytes()
        assert (back / f"bert_model.ckpt{ending}").read_bytes() == golden
    config = BertConfig.from_json_file(str(back / "bert_config.json"))
    assert config == BertConfig.from_json_file(str(source / "bert_config.json"))
    assert (back / "vocab.txt").read_text() == "x\n" * 120
    output = capsys.readouterr()
    assert "weights loaded from" in output.out
    assert "--do_lower_case=False" in output.out


def test_training_run_is_slimmed_by_default(tmp_path, capsys):
    config = TINY / "bert_config.json"
    convert(input=TINY / "training", output=tmp_path, to="original", config_file=config)
    expected = tensors_of(TINY)
    assert_same(tensors_of(tmp_path), expected)
    size = (TINY / "training" / "model.ckpt-8.data-00000-of-00001").stat().st_size
    assert (tmp_path / "bert_model.ckpt.data-00000-of-00001").stat().st_size < size / 2.9
    output = capsys.readouterr()
    assert "125 left out on purpose" in output.out
    assert "no vocab.txt" in output.err


@pytest.mark.parametrize("folder", ["tiny_pretraining", "tiny_classifier", "tiny_squad"])
def test_keep_optimizer(folder, tmp_path):
    source = GOLDEN / "checkpoint" / folder
    convert(
        input=source / "training",
        output=tmp_path,
        to="original",
        config_file=source / "bert_config.json",
        keep_optimizer=True,
    )
    # SQuAD's pooler has no slots.
    assert_same(tensors_of(tmp_path), tensors_of(source / "training"))


def test_keep_optimizer_needs_slots_and_the_original_layout(tmp_path):
    with pytest.raises(ValueError, match="no optimizer's slots"):
        convert(input=TINY, output=tmp_path, to="original", keep_optimizer=True)
    for to in ("huggingface", "garden"):
        with pytest.raises(CommandLineError, match="weights only"):
            convert(input=TINY, output=tmp_path, to=to, keep_optimizer=True)
    assert list(tmp_path.iterdir()) == []


def erf_folder(tmp_path):
    folder = tmp_path / "erf"
    folder.mkdir()
    shutil.copy(HUGGINGFACE / "model.safetensors", folder)
    shutil.copy(HUGGINGFACE / "config_gelu_erf.json", folder / "config.json")
    return folder


def test_exact_gelu_to_original_must_be_asked_for_and_warns(tmp_path, capsys):
    source, out = erf_folder(tmp_path), tmp_path / "out"
    with pytest.raises(ValueError, match=r"exact GELU .*--hidden_act=gelu"):
        convert(input=source, output=out, to="original")
    assert not out.exists()
    convert(input=source, output=out, to="original", hidden_act="gelu")
    assert "WARNING: the input says that it uses the exact GELU" in capsys.readouterr().err
    assert json.loads((out / "bert_config.json").read_text())["hidden_act"] == "gelu"


def test_exact_gelu_stays_in_huggingface_folders(tmp_path):
    source = erf_folder(tmp_path)
    convert(input=source, output=tmp_path / "same", to="huggingface")
    assert json.loads((tmp_path / "same" / "config.json").read_text())["hidden_act"] == "gelu"
    convert(input=source, output=tmp_path / "tanh", to="huggingface", hidden_act="gelu")
    assert json.loads((tmp_path / "tanh" / "config.json").read_text())["hidden_act"] == "gelu_new"


def test_no_overwriting_unless_asked(tmp_path):
    convert(input=TINY, output=tmp_path, to="original")
    before = (tmp_path / "bert_model.ckpt.index").stat().st_mtime_ns
    with pytest.raises(ValueError, match=r"bert_model\.ckpt\.index would be replaced.*--overwrite"):
        convert(input=TINY, output=tmp_path, to="original")
    assert (tmp_path / "bert_model.ckpt.index").stat().st_mtime_ns == before
    convert(input=TINY, output=tmp_path, to="original", overwrite=True)
    # Onto itself.
    convert(input=tmp_path, output=tmp_path, to="original", overwrite=True)
    assert_same(tensors_of(tmp_path), tensors_of(TINY))


def test_unknown_tensors_stop_unless_allowed(tmp_path):
    source = erf_folder(tmp_path)
    tensors = load_file(source / "model.safetensors") | {"crf.weight": np.ones(3, np.float32)}
    save_file(tensors, source / "model.safetensors")
    flags_ = {"input": source, "to": "original", "hidden_act": "gelu"}
    with pytest.raises(restore.RestoreError, match=r"crf\.weight"):
        convert(output=tmp_path / "out", **flags_)
    assert not (tmp_path / "out").exists()
    convert(output=tmp_path / "out", allow_extra="crf.*", **flags_)
    assert_same(tensors_of(tmp_path / "out"), tensors_of(TINY))


def test_half_a_head_stops(tmp_path):
    source = erf_folder(tmp_path)
    tensors = load_file(source / "model.safetensors")
    del tensors["cls.seq_relationship.bias"]
    save_file(tensors, source / "model.safetensors")
    with pytest.raises(restore.RestoreError, match="cls/seq_relationship/output_bias"):
        convert(input=source, output=tmp_path / "out", to="huggingface")


def test_folder_without_a_pooler_warns(tmp_path, capsys):
    source = erf_folder(tmp_path)
    tensors = load_file(source / "model.safetensors")
    kept = {name: array for name, array in tensors.items() if "pooler" not in name}
    save_file(kept, source / "model.safetensors")
    convert(input=source, output=tmp_path / "out", to="original", hidden_act="gelu")
    assert "no pooler" in capsys.readouterr().err
    assert len(original.Reader(str(tmp_path / "out")).shapes) == 60


def test_vocabulary_of_another_model(tmp_path):
    (tmp_path / "v.txt").write_text("x\n" * 121)
    with pytest.raises(ValueError, match=r"121 lines, more than .*vocab_size 120"):
        convert(
            input=TINY,
            output=tmp_path / "out",
            to="huggingface",
            vocab_file=tmp_path / "v.txt",
        )
    assert not (tmp_path / "out").exists()


def test_missing_flags_are_listed_together():
    with pytest.raises(CommandLineError) as caught:
        convert()
    for part in ("--input: ", "--output: ", "--to: ", "python -m bert_tf.cli.convert_checkpoint"):
        assert part in str(caught.value)
    with pytest.raises(CommandLineError, match="bogus"):
        convert(bogus=1)
    with pytest.raises(CommandLineError, match="pytorch"):
        convert(input=TINY, output="x", to="pytorch")


def test_help_shows_every_flag(capsys):
    script_flags.check_help(convert_checkpoint, capsys)


def test_no_configuration(tmp_path):
    with pytest.raises(ValueError, match="--config_file"):
        convert(input=TINY / "training", output=tmp_path, to="original")


def test_output_that_is_a_prefix(tmp_path):
    with pytest.raises(ValueError, match="is a folder"):
        convert(input=TINY, output=tmp_path / "bert_model.ckpt", to="original")


SAME_ANYWAY = ("model.safetensors", "checkpoint")


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("to", ["original", "huggingface", "garden"])
def test_weights_that_cannot_be_written_leave_the_folder_as_it_was(to, tmp_path, monkeypatch):
    old, new, vocab = tmp_path / "old", tmp_path / "new", tmp_path / "v.txt"
    vocab.write_text("x\n" * 120)
    convert(input=TINY, output=old, to=to, vocab_file=vocab, hidden_act="relu")
    before = contents(old)
    new.mkdir()
    (new / "v.txt").write_text("y\n" * 120)
    flags_ = {"input": TINY, "output": old, "to": to, "overwrite": True}
    flags_ |= {"vocab_file": new / "v.txt", "do_lower_case": False}
    rename = paths.rename

    def full_disk(source, target):
        if "bert_model.ckpt" in target or target.endswith(".safetensors"):
            raise OSError(28, "No space left on device")
        rename(source, target)

    publish = original.publish

    def full_publish(prefix, save):
        def fail(staged):
            save(staged)
            raise OSError(28, "No space left on device")

        publish(prefix, fail)

    with monkeypatch.context() as patch:
        patch.setattr(paths, "rename", full_disk)
        patch.setattr(original, "publish", full_publish)
        with pytest.raises(OSError, match="No space left"):
            convert(**flags_)
    assert contents(old) == before
    # The same without the fault replaces all of them but the weights, which are the same.
    convert(**flags_)
    after = contents(old)
    same = {name for name in before if before[name] == after[name]}
    assert same == {name for name in before if "bert_model.ckpt" in name or name in SAME_ANYWAY}
    assert after["vocab.txt"] == b"y\n" * 120


@pytest.mark.parametrize("to", ["original", "huggingface", "garden"])
def test_a_disk_that_fills_up_later_leaves_nothing(to, tmp_path, monkeypatch):
    vocab = tmp_path / "v.txt"
    vocab.write_text("x\n" * 120)
    flags_ = {"input": TINY, "output": tmp_path / "new", "to": to, "vocab_file": vocab}
    flags_["hidden_act"] = "relu"

    def full_disk(source, target):
        raise OSError(28, "No space left on device", target)

    with monkeypatch.context() as patch:
        patch.setattr(paths, "copy", full_disk)
        with pytest.raises(OSError, match="No space left"):
            convert(**flags_)
    assert list(tmp_path.iterdir()) == [vocab]
    # What a command that was killed left is no hindrance.
    left = tmp_path / "new" / f"{original._ASIDE}x"
    left.mkdir(parents=True)
    (left / "half").touch()
    convert(**flags_)
    names = {path.name for path in (tmp_path / "new").iterdir()}
    assert "vocab.txt" in names
    assert left.name not in names
    # A model without a vocabulary does not keep that of another.
    vocab.unlink()
    without = tmp_path / "without"
    shutil.copytree(TINY, without, ignore=shutil.ignore_patterns("vocab.txt"))
    del flags_["vocab_file"]
    convert(**{**flags_, "input": without, "overwrite": True})
    assert {path.name for path in (tmp_path / "new").iterdir()} == names - {
        "vocab.txt",
        "tokenizer_config.json",
    }


@pytest.mark.parametrize("to", ["original", "huggingface", "garden"])
@pytest.mark.parametrize("where", ["local", "memory"])
def test_a_model_is_converted_in_its_place(to, where, tmp_path):
    folder = f"memory://in_place_{to}" if where == "memory" else str(tmp_path / "model")
    for path in TINY.iterdir():
        if path.is_file():
            paths.make_dirs(folder)
            paths.copy(str(path), paths.join(folder, path.name))
    (tmp_path / "vocab.txt").write_text("x\n" * 120)
    paths.copy(str(tmp_path / "vocab.txt"), paths.join(folder, "vocab.txt"))
    expected = tensors_of(TINY)
    convert(input=folder, output=folder, to=to, overwrite=True, hidden_act="relu")
    with paths.open_file(paths.join(folder, "vocab.txt")) as file:
        assert file.read() == "x\n" * 120
    assert not [name for name in paths.list_dir(folder) if name.startswith(".")]
    if to == "huggingface":
        for name in paths.list_dir(folder):
            if name.startswith(("bert_model", "checkpoint", "bert_config")):
                paths.remove(paths.join(folder, name))
    assert_same(restore.load(folder).tensors(), expected)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_weights_that_are_no_numbers(value, tmp_path):
    source = erf_folder(tmp_path)
    tensors = load_file(source / "model.safetensors")
    tensors["bert.pooler.dense.bias"][3] = value
    save_file(tensors, source / "model.safetensors")
    message = r"model\.safetensors: bert\.pooler\.dense\.bias holds NaN or infinity \(1 of 32"
    with pytest.raises(ValueError, match=message):
        convert(input=source, output=tmp_path / "out", to="huggingface")
    assert not (tmp_path / "out").exists()


def test_quantized_weights(tmp_path):
    source = erf_folder(tmp_path)
    tensors = load_file(source / "model.safetensors")
    name = "bert.pooler.dense.weight"
    tensors[name] = tensors[name].astype(np.int8)
    save_file(tensors, source / "model.safetensors")
    with pytest.raises(ValueError, match=r"bert\.pooler\.dense\.weight has the dtype int8"):
        convert(input=source, output=tmp_path / "out", to="huggingface")
    assert not (tmp_path / "out").exists()


def test_float64_weights_are_written_in_float32(tmp_path):
    source = erf_folder(tmp_path)
    tensors = load_file(source / "model.safetensors")
    wide = {name: array.astype(np.float64) for name, array in tensors.items()}
    save_file(wide, source / "model.safetensors")
    convert(input=source, output=tmp_path / "out", to="huggingface")
    assert_same(load_file(tmp_path / "out" / "model.safetensors"), tensors)
    assert {a.dtype.name for a in load_file(tmp_path / "out" / "model.safetensors").values()} == {
        "float32"
    }


def test_deeply_nested_configuration(tmp_path):
    source = erf_folder(tmp_path)
    (source / "config.json").write_text('{"a":' + "[" * 100_000 + "]" * 100_000 + "}")
    with pytest.raises(ValueError, match=r"config\.json: not valid JSON: nested too deeply"):
        convert(input=source, output=tmp_path / "out", to="huggingface")


SETTINGS = {
    "max_seq_length": 32,
    "truncation": "longest_first",
    "do_lower_case": False,
    "strip_accents": False,
    "never_split": [],
    "training": {"seed": 1},
}


def write_run(folder, head, **settings):
    """As a script leaves its output folder: the tiny encoder with a head, slots and settings."""
    source = GOLDEN / "checkpoint" / "tiny_classifier"
    tensors = {
        name: value for name, value in tensors_of(source).items() if name.startswith("bert/")
    }
    rng = np.random.default_rng(3)
    for name, shape in head.items():
        tensors[name] = rng.normal(size=shape).astype(np.float32)
    slots = {
        f"{name}/{slot}": np.ones_like(value)
        for name, value in tensors.items()
        for slot in ("adam_m", "adam_v")
    }
    prefix = str(folder / "model.ckpt-3")
    original.write(prefix, {**tensors, **slots, "global_step": 3})
    original.write_state(str(folder), prefix)
    shutil.copy(source / "bert_config.json", folder)
    (folder / "vocab.txt").write_text("x\n" * 120)
    if settings:
        file = settings.pop("file", "task.json")
        paths.write_json(str(folder / file), {**SETTINGS, **settings})
    return tensors


def run_folder(folder, outputs, bias=True, **task):
    """The same of run_classifier.py, with a number of outputs."""
    head = {"output_weights": (outputs, 32), **({"output_bias": (outputs,)} if bias else {})}
    write_run(folder, head, **task)
    return folder


def write_best(folder):
    """Weights of an earlier step in the run's best/; returns them."""
    tensors = weights_of(folder)
    tensors = {name: value + 1 for name, value in tensors.items()}
    prefix = str(folder / "best" / "model.ckpt-2")
    original.write(prefix, tensors)
    original.write_state(str(folder / "best"), prefix)
    paths.write_json(str(folder / "model.ckpt-3.state.json"), {"best_step": 2})
    return tensors


def weights_of(path):
    return {
        name: value
        for name, value in tensors_of(path).items()
        if "/adam_" not in name and name != "global_step"
    }


def test_multiple_choice_gets_a_bias_there_and_loses_it_here(tmp_path):
    source = run_folder(tmp_path, 1, bias=False, kind="choice", labels=[])
    middle, back = tmp_path / "hf", tmp_path / "back"
    convert(input=source, output=middle, to="huggingface")
    config = json.loads((middle / "config.json").read_text())
    assert config["architectures"] == ["BertForMultipleChoice"]
    assert "id2label" not in config
    stored = load_file(middle / "model.safetensors")
    assert stored["classifier.weight"].shape == (1, 32)
    assert stored["classifier.bias"].tolist() == [0.0]
    # Theirs learns one, though it has no effect.
    stored["classifier.bias"][:] = 3.0
    save_file(stored, middle / "model.safetensors")
    convert(input=middle, output=back, to="original")
    assert_same(tensors_of(back), weights_of(source))


def test_one_output_with_a_bias_is_a_regression(tmp_path):
    source = run_folder(tmp_path, 1, kind="regression", labels=[])
    convert(input=source, output=tmp_path / "hf", to="huggingface")
    config = json.loads((tmp_path / "hf" / "config.json").read_text())
    assert config["architectures"] == ["BertForSequenceClassification"]
    assert config["id2label"] == {"0": "LABEL_0"}
    assert config["problem_type"] == "regression"
    assert_same(tensors_of(tmp_path / "hf"), weights_of(source))


@pytest.mark.parametrize("kind", ["tagging", "classification", "multilabel"])
@pytest.mark.parametrize("best", [False, True])
def test_labels_of_a_run(kind, best, tmp_path, capsys):
    """They lie beside the run; best/ holds weights alone."""
    source = run_folder(tmp_path, 3, kind=kind, labels=["O", "B-X", "I-X"])
    expected = write_best(source) if best else weights_of(source)
    convert(input=source / "best" if best else source, output=tmp_path / "hf", to="huggingface")
    config = json.loads((tmp_path / "hf" / "config.json").read_text())
    name = "Token" if kind == "tagging" else "Sequence"
    assert config["architectures"] == [f"BertFor{name}Classification"]
    assert config["id2label"] == {"0": "O", "1": "B-X", "2": "I-X"}
    assert config["label2id"] == {"O": 0, "B-X": 1, "I-X": 2}
    if kind == "tagging":
        expected = {name: value for name, value in expected.items() if "/pooler/" not in name}
    assert_same(tensors_of(tmp_path / "hf"), expected)
    tokenizer = json.loads((tmp_path / "hf" / "tokenizer_config.json").read_text())
    assert tokenizer["do_lower_case"] is False
    assert tokenizer["strip_accents"] is False
    # A folder made of that one has them too.
    convert(input=tmp_path / "hf", output=tmp_path / "hf2", to="huggingface")
    assert json.loads((tmp_path / "hf2" / "config.json").read_text()) == config
    capsys.readouterr()
    convert(input=tmp_path / "hf", output=tmp_path / "back", to="original")
    assert "names of its 3 labels (O, B-X, I-X) are not in it" in capsys.readouterr().out
    assert not (tmp_path / "back" / "task.json").exists()


def test_labels_that_are_not_as_many_as_outputs(tmp_path):
    source = run_folder(tmp_path, 3, kind="tagging", labels=["O", "B-X"])
    with pytest.raises(ValueError, match="2 labels, but 3 outputs"):
        convert(input=source, output=tmp_path / "hf", to="huggingface")
    assert not (tmp_path / "hf").exists()


def test_several_outputs_without_their_bias_stop(tmp_path):
    source = run_folder(tmp_path, 3, bias=False, kind="classification", labels=[])
    with pytest.raises(restore.RestoreError, match="output_bias"):
        convert(input=source, output=tmp_path / "hf", to="huggingface")


def test_a_given_case_wins_over_the_runs(tmp_path):
    source = run_folder(tmp_path, 2, kind="classification", labels=["a", "b"])
    convert(input=source, output=tmp_path / "hf", to="huggingface", do_lower_case=True)
    tokenizer = json.loads((tmp_path / "hf" / "tokenizer_config.json").read_text())
    assert tokenizer["do_lower_case"] is True
    assert tokenizer["strip_accents"] is None


CLASSIFIER = {"output_weights": (3, 32), "output_bias": (3,)}
MASKED_LM = {
    "cls/predictions/transform/dense/kernel": (32, 32),
    "cls/predictions/transform/dense/bias": (32,),
    "cls/predictions/transform/LayerNorm/gamma": (32,),
    "cls/predictions/transform/LayerNorm/beta": (32,),
    "cls/predictions/output_bias": (120,),
}
NEXT_SENTENCE = {
    "cls/seq_relationship/output_weights": (2, 32),
    "cls/seq_relationship/output_bias": (2,),
}
SQUAD = {"cls/squad/output_weights": (2, 32), "cls/squad/output_bias": (2,)}
LABELS = ["a", "b", "c"]

# What each script leaves, the class of Hugging Face, and whether that has a pooler.
RUNS = {
    "classification": (CLASSIFIER, {"kind": "classification", "labels": LABELS}, "Sequence"),
    "multilabel": (CLASSIFIER, {"kind": "multilabel", "labels": LABELS}, "Sequence"),
    "regression": (
        {"output_weights": (1, 32), "output_bias": (1,)},
        {"kind": "regression", "labels": []},
        "Sequence",
    ),
    "tagging": (CLASSIFIER, {"kind": "tagging", "labels": LABELS}, "Token"),
    "choice": ({"output_weights": (1, 32)}, {"kind": "choice", "labels": []}, "MultipleChoice"),
    "squad": (SQUAD, {"file": "squad.json"}, "QuestionAnswering"),
    "pretraining": (MASKED_LM | NEXT_SENTENCE, {"file": "pretraining.json"}, "PreTraining"),
    "no_next_sentence": (MASKED_LM, {"file": "pretraining.json"}, "MaskedLM"),
}
WITHOUT_POOLER = ("tagging", "squad", "no_next_sentence")


@pytest.mark.parametrize("run", RUNS)
def test_every_run_through_every_layout(run, tmp_path):
    """Run -> original -> Hugging Face -> original -> Model Garden -> original, bit for bit."""
    head, settings, architecture = RUNS[run]
    expected = write_run(tmp_path, head, **settings)
    release, middle, back = tmp_path / "release", tmp_path / "hf", tmp_path / "back"
    pretraining = run in ("pretraining", "no_next_sentence")

    convert(input=tmp_path, output=release, to="original")
    assert_same(tensors_of(release), expected)
    files = {path.name for path in release.iterdir()}
    three = {"bert_config.json", "vocab.txt", "bert_model.ckpt.index"}
    three |= {"bert_model.ckpt.data-00000-of-00001"}
    # The labels of a head, and what names its weights.
    more = set() if pretraining else {settings.get("file", "task.json"), "checkpoint"}
    assert files == three | more
    assert (release / "vocab.txt").read_bytes() == (tmp_path / "vocab.txt").read_bytes()

    convert(input=release, output=middle, to="huggingface")
    config = json.loads((middle / "config.json").read_text())
    name = {"Sequence": "SequenceClassification", "Token": "TokenClassification"}
    assert config["architectures"] == [f"BertFor{name.get(architecture, architecture)}"]
    if settings.get("labels"):
        assert list(config["label2id"]) == LABELS
    convert(input=middle, output=back, to="original")
    if run in WITHOUT_POOLER:
        expected = {name: value for name, value in expected.items() if "/pooler/" not in name}
    else:
        for ending in (".index", ".data-00000-of-00001"):
            name = f"bert_model.ckpt{ending}"
            assert (back / name).read_bytes() == (release / name).read_bytes()
    assert_same(tensors_of(back), expected)

    garden, last = tmp_path / "garden", tmp_path / "last"
    if not pretraining:
        with pytest.raises(ValueError, match=r"no place for this checkpoint's head.*encoder_only"):
            convert(input=back, output=garden, to="garden")
        assert not garden.exists()
        expected = {name: value for name, value in expected.items() if name.startswith("bert/")}
    convert(input=back, output=garden, to="garden", encoder_only=not pretraining)
    assert {path.name for path in garden.iterdir()} == {
        "bert_config.json",
        "vocab.txt",
        "checkpoint",
        "bert_model.ckpt-1.index",
        "bert_model.ckpt-1.data-00000-of-00001",
    }
    assert restore.load(str(garden)).kind == "garden"
    convert(input=garden, output=last, to="original")
    assert_same(tensors_of(last), expected)
    assert (last / "bert_config.json").read_bytes() == (release / "bert_config.json").read_bytes()


def test_release_of_a_head_can_be_predicted_with(tmp_path):
    """Its settings go along, without those of the training, and name its weights."""
    source = run_folder(tmp_path, 3, kind="classification", labels=LABELS)
    convert(input=source, output=tmp_path / "out", to="original")
    prefix = str(tmp_path / "out" / "bert_model.ckpt")
    assert restore.trained_checkpoint(str(tmp_path / "out")) == prefix
    task = json.loads((tmp_path / "out" / "task.json").read_text())
    expected = json.loads((tmp_path / "task.json").read_text())
    assert expected.pop("training")
    assert task == expected
    # Nothing of it is left where another model takes its place.
    flags_ = {"output": tmp_path / "out", "to": "original"}
    with pytest.raises(CommandLineError, match=r"task\.json.* would be replaced"):
        convert(input=TINY, **flags_)
    convert(input=TINY, overwrite=True, **flags_)
    assert not (tmp_path / "out" / "task.json").exists()
    assert_same(tensors_of(tmp_path / "out"), tensors_of(TINY))


@pytest.mark.parametrize("to", ["original", "huggingface", "garden"])
def test_encoder_only(to, tmp_path):
    source = run_folder(tmp_path, 3, kind="tagging", labels=LABELS)
    convert(input=source, output=tmp_path / "out", to=to, encoder_only=True)
    expected = {n: v for n, v in weights_of(source).items() if n.startswith("bert/")}
    assert_same(tensors_of(tmp_path / "out"), expected)
    assert not (tmp_path / "out" / "task.json").exists()


def test_best_weights_are_taken(tmp_path):
    source = run_folder(tmp_path, 3, kind="classification", labels=LABELS)
    best = write_best(source)
    convert(input=source, output=tmp_path / "best_ones", to="original")
    assert_same(tensors_of(tmp_path / "best_ones"), best)
    convert(input=source, output=tmp_path / "latest", to="original", use_best=False)
    assert_same(tensors_of(tmp_path / "latest"), weights_of(source))
    # Only the latest have slots.
    convert(input=source, output=tmp_path / "slots", to="original", keep_optimizer=True)
    assert_same(tensors_of(tmp_path / "slots"), tensors_of(source))
    assert (tmp_path / "best_ones" / "task.json").exists()


def test_a_search_has_best_alone(tmp_path):
    source = run_folder(tmp_path, 3, kind="classification", labels=LABELS)
    best = write_best(source)
    for path in [*source.glob("model.ckpt*"), source / "checkpoint"]:
        path.unlink()
    convert(input=source, output=tmp_path / "out", to="original")
    assert_same(tensors_of(tmp_path / "out"), best)


@pytest.mark.parametrize("file", ["task.json", "squad.json"])
def test_a_head_behind_an_lstm(file, tmp_path, capsys):
    name = "output" if file == "task.json" else "cls/squad/output"
    head = {f"{name}_weights": (2, 64), f"{name}_bias": (2,), "bilstm/forward/kernel": (32, 128)}
    settings = {"kind": "classification", "labels": ["a", "b"]} if file == "task.json" else {}
    expected = write_run(tmp_path, head, file=file, bilstm_head=True, **settings)
    for to in ("huggingface", "garden"):
        with pytest.raises(ValueError, match=r"LSTM stands between.*--encoder_only"):
            convert(input=tmp_path, output=tmp_path / to, to=to)
        assert not (tmp_path / to).exists()
        convert(input=tmp_path, output=tmp_path / to, to=to, encoder_only=True)
        encoder = {n: v for n, v in expected.items() if n.startswith("bert/")}
        assert_same(tensors_of(tmp_path / to), encoder)
    capsys.readouterr()
    convert(input=tmp_path, output=tmp_path / "slim", to="original")
    assert_same(tensors_of(tmp_path / "slim"), expected)
    assert json.loads((tmp_path / "slim" / file).read_text())["bilstm_head"] is True
    assert "only the scripts of this project" in capsys.readouterr().err


@pytest.mark.parametrize("to", ["original", "garden"])
def test_a_runs_folder_is_no_output(to, tmp_path):
    """The run would go on from what is written there, or not at all."""
    source = run_folder(tmp_path, 3, kind="classification", labels=LABELS)
    before = contents(source)
    with pytest.raises(CommandLineError, match=r"checkpoints of a run, the latest .*ckpt-3"):
        convert(input=TINY, output=source, to=to, overwrite=True)
    assert contents(source) == before
    with pytest.raises(CommandLineError, match="is a file"):
        convert(input=TINY, output=source / "vocab.txt", to=to)


@pytest.mark.parametrize("folder", ["tiny_garden", "tiny_garden_pretrainer"])
def test_golden_garden_to_original_and_back(folder, tmp_path):
    source = GOLDEN / "checkpoint" / folder
    convert(input=source, output=tmp_path / "original", to="original")
    expected = tensors_of(TINY)
    assert_same(tensors_of(tmp_path / "original"), {n: expected[n] for n in tensors_of(source)})
    convert(input=tmp_path / "original", output=tmp_path / "garden", to="garden")
    golden, written = (
        original.Reader(str(path)) for path in (source, tmp_path / "garden" / "bert_model.ckpt-1")
    )
    assert written.shapes == golden.shapes
    for name in golden.shapes:
        if golden.dtypes[name] != "string":
            np.testing.assert_array_equal(written.get(name), golden.get(name))
    state = (tmp_path / "garden" / "checkpoint").read_text()
    assert state == (source / "checkpoint").read_text()


def test_exact_gelu_to_garden_must_be_asked_for(tmp_path):
    source = erf_folder(tmp_path)
    with pytest.raises(ValueError, match=r"Model Garden's layout .*--hidden_act=gelu"):
        convert(input=source, output=tmp_path / "out", to="garden")
    convert(input=source, output=tmp_path / "out", to="garden", hidden_act="gelu")
    assert_same(tensors_of(tmp_path / "out"), tensors_of(TINY))


def test_reading_from_left_to_right(tmp_path, capsys):
    """Only Hugging Face's models can do it too; their pooler reads another token."""
    config_file = tmp_path / "causal.json"
    config = BertConfig.from_json_file(str(TINY / "bert_config.json"))
    config.replace(causal_attention=True).to_json_file(str(config_file))
    flags_ = {"input": TINY, "config_file": config_file}
    with pytest.raises(ValueError, match="reads from left to right"):
        convert(output=tmp_path / "garden", to="garden", **flags_)
    convert(output=tmp_path / "hf", to="huggingface", **flags_)
    assert json.loads((tmp_path / "hf" / "config.json").read_text())["is_decoder"] is True
    assert "reads the last token here" in capsys.readouterr().err
    convert(output=tmp_path / "out", to="original", **flags_)
    assert "would read in both directions" in capsys.readouterr().err
