import json
import pathlib
import shutil

import numpy as np
import pytest
from absl import flags
from safetensors.numpy import load_file, save_file

from bert_tf import paths
from bert_tf.checkpoint import original, restore
from bert_tf.cli import convert_checkpoint
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


@pytest.mark.parametrize("folder", ["tiny_pretraining", "tiny_classifier", "tiny_squad"])
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
    with pytest.raises(ValueError, match="weights only"):
        convert(input=TINY, output=tmp_path, to="huggingface", keep_optimizer=True)
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
    with pytest.raises(ValueError, match=r"--input, --output, --to\. For example: python -m"):
        convert()
    with pytest.raises(flags.Error, match="bogus"):
        convert(bogus=1)


def test_no_configuration(tmp_path):
    with pytest.raises(ValueError, match="--config_file"):
        convert(input=TINY / "training", output=tmp_path, to="original")


def test_output_that_is_a_prefix(tmp_path):
    with pytest.raises(ValueError, match="is a folder"):
        convert(input=TINY, output=tmp_path / "bert_model.ckpt", to="original")


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("to", ["original", "huggingface"])
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

    save = original._save

    def full_save(prefix, arrays):
        save(prefix, arrays)
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(paths, "rename", full_disk)
        patch.setattr(original, "_save", full_save)
        with pytest.raises(OSError, match="No space left"):
            convert(**flags_)
    assert contents(old) == before
    # The same without the fault replaces all of them but the weights, which are the same.
    convert(**flags_)
    after = contents(old)
    same = {name for name in before if before[name] == after[name]}
    assert same == {name for name in before if "bert_model.ckpt" in name or "safetensors" in name}
    assert after["vocab.txt"] == b"y\n" * 120


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


def run_folder(folder, outputs, bias=True, **task):
    """As run_classifier.py leaves it: the tiny encoder with a head of some outputs."""
    source = GOLDEN / "checkpoint" / "tiny_classifier"
    tensors = {name: value for name, value in tensors_of(source).items() if "output" not in name
               or name.startswith("bert/")}  # fmt: skip
    tensors["output_weights"] = np.arange(outputs * 32, dtype=np.float32).reshape(outputs, -1)
    if bias:
        tensors["output_bias"] = np.arange(outputs, dtype=np.float32)
    original.write(str(folder / "model.ckpt-3"), tensors)
    original.write_state(str(folder), str(folder / "model.ckpt-3"), [str(folder / "model.ckpt-3")])
    shutil.copy(source / "bert_config.json", folder)
    paths.write_json(str(folder / "task.json"), task)
    return folder


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
    assert_same(tensors_of(back), tensors_of(source))


def test_one_output_with_a_bias_is_a_regression(tmp_path):
    source = run_folder(tmp_path, 1, kind="regression", labels=[])
    convert(input=source, output=tmp_path / "hf", to="huggingface")
    config = json.loads((tmp_path / "hf" / "config.json").read_text())
    assert config["architectures"] == ["BertForSequenceClassification"]
    assert config["id2label"] == {"0": "LABEL_0"}
    assert_same(tensors_of(tmp_path / "hf"), tensors_of(source))


@pytest.mark.parametrize("kind", ["tagging", "classification"])
def test_labels_of_a_run(kind, tmp_path):
    source = run_folder(tmp_path, 3, kind=kind, labels=["O", "B-X", "I-X"])
    convert(input=source, output=tmp_path / "hf", to="huggingface")
    config = json.loads((tmp_path / "hf" / "config.json").read_text())
    name = {"tagging": "Token", "classification": "Sequence"}[kind]
    assert config["architectures"] == [f"BertFor{name}Classification"]
    assert config["id2label"] == {"0": "O", "1": "B-X", "2": "I-X"}
    assert config["label2id"] == {"O": 0, "B-X": 1, "I-X": 2}
    assert_same(tensors_of(tmp_path / "hf"), tensors_of(source))


def test_labels_that_are_not_as_many_as_outputs(tmp_path):
    source = run_folder(tmp_path, 3, kind="tagging", labels=["O", "B-X"])
    with pytest.raises(ValueError, match="2 labels, but 3 outputs"):
        convert(input=source, output=tmp_path / "hf", to="huggingface")
    assert not (tmp_path / "hf").exists()


def test_several_outputs_without_their_bias_stop(tmp_path):
    source = run_folder(tmp_path, 3, bias=False, kind="classification", labels=[])
    with pytest.raises(restore.RestoreError, match="output_bias"):
        convert(input=source, output=tmp_path / "hf", to="huggingface")
