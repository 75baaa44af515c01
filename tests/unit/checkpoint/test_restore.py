import json
import pathlib
import shutil

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from bert_tf.checkpoint import names, original, restore
from bert_tf.config import BertConfig

GOLDEN = pathlib.Path(__file__).parents[2] / "golden"
TINY = GOLDEN / "checkpoint" / "tiny_pretraining"
HUGGINGFACE = GOLDEN / "conversions" / "huggingface"
CONFIG = BertConfig.from_json_file(str(TINY / "bert_config.json"))
PRETRAINING = (names.MASKED_LM, names.NEXT_SENTENCE)
CLASSIFIER = names.expected_names_and_shapes(CONFIG, (names.CLASSIFIER,), 3)
HEAD = ("output_weights", "output_bias")


@pytest.fixture(scope="module")
def pretrained():
    return restore.load(str(TINY))


def test_load_original_with_what_is_beside(tmp_path):
    for path in TINY.glob("bert_*"):
        shutil.copy(path, tmp_path)
    (tmp_path / "vocab.txt").write_text("[PAD]\n")
    checkpoint = restore.load(str(tmp_path / "bert_model.ckpt.index"))
    assert checkpoint.kind == "original"
    assert checkpoint.config == CONFIG
    assert checkpoint.vocab_file == str(tmp_path / "vocab.txt")
    assert checkpoint.prefix == str(tmp_path / "bert_model.ckpt")
    assert checkpoint.global_step is None
    assert len(checkpoint.tensors()) == 62


def test_load_training_run():
    checkpoint = restore.load(str(TINY / "training"))
    assert checkpoint.global_step == 8
    assert checkpoint.config is None
    assert checkpoint.vocab_file is None
    assert len(checkpoint.shapes) == 187


@pytest.mark.parametrize("path", [HUGGINGFACE, HUGGINGFACE / "model.safetensors"])
def test_load_huggingface(path, pretrained):
    checkpoint = restore.load(str(path))
    assert checkpoint.kind == "huggingface"
    assert checkpoint.config == CONFIG
    assert checkpoint.shapes == pretrained.shapes
    wanted = ["bert/pooler/dense/kernel", "cls/predictions/output_bias"]
    for name, array in checkpoint.tensors(wanted).items():
        np.testing.assert_array_equal(array, pretrained.get(name))


def test_a_run_beside_huggingface_files_wins(tmp_path):
    shutil.copytree(HUGGINGFACE, tmp_path, dirs_exist_ok=True)
    original.write(str(tmp_path / "model.ckpt-1"), {"global_step": 1})
    assert restore.load(str(tmp_path)).global_step == 1


def test_overrides(tmp_path):
    (tmp_path / "v.txt").write_text("a\nb")
    CONFIG.replace(num_hidden_layers=2).to_json_file(str(tmp_path / "c.json"))
    checkpoint = restore.load(
        str(HUGGINGFACE), "relu", str(tmp_path / "c.json"), str(tmp_path / "v.txt")
    )
    assert checkpoint.config == CONFIG.replace(num_hidden_layers=2, hidden_act="relu")
    assert restore.count_vocabulary(checkpoint.vocab_file) == 2
    with pytest.raises(FileNotFoundError, match="nowhere"):
        restore.load(str(HUGGINGFACE), vocab_file=str(tmp_path / "nowhere"))


def test_load_of_best_takes_what_lies_beside_the_run(tmp_path):
    original.write(str(tmp_path / "best" / "model.ckpt-4"), {"global_step": 4})
    assert restore.load(str(tmp_path / "best")).config is None
    for name in ("bert_config.json", "vocab.txt"):
        shutil.copy(TINY / "bert_config.json", tmp_path / name)
    checkpoint = restore.load(str(tmp_path / "best"))
    assert checkpoint.config == CONFIG
    assert checkpoint.vocab_file == str(tmp_path / "vocab.txt")
    assert checkpoint.folder == str(tmp_path / "best")
    assert restore.beside(checkpoint.folder, "task.json") is None
    # Its own come first.
    (tmp_path / "best" / "vocab.txt").write_text("x")
    own = str(tmp_path / "best" / "vocab.txt")
    assert restore.load(str(tmp_path / "best")).vocab_file == own
    assert restore.beside(str(tmp_path), "nowhere") is None


def test_whole_takes_a_head_of_our_own_as_it_is(tmp_path):
    """With a bidirectional LSTM the output is of another width than the encoder."""
    tensors = restore.load(str(GOLDEN / "checkpoint" / "tiny_classifier")).tensors()
    tensors["output_weights"] = np.ones((3, 64), np.float32)
    tensors["bilstm/forward/kernel"] = np.ones((32, 128), np.float32)
    tensors["bilstm/forward/kernel/adam_m"] = np.ones((32, 128), np.float32)
    original.write(str(tmp_path / "x"), tensors)
    checkpoint = restore.load(str(tmp_path / "x"))
    expected = restore.whole(checkpoint, CONFIG)
    assert expected["output_weights"] == (3, 64)
    report = restore.merge(expected, checkpoint)
    assert set(report.loaded) == tensors.keys() - {"bilstm/forward/kernel/adam_m"}


def test_merge_of_the_same_model(pretrained):
    expected = names.expected_names_and_shapes(CONFIG, PRETRAINING)
    report = restore.merge(expected, pretrained)
    assert report.loaded == tuple(expected)
    assert not report.newly_made
    assert not report.left_out
    assert dict(restore.values(pretrained, report)).keys() == expected.keys()
    assert "62 weights loaded" in str(report)


def test_fine_tuning_from_a_pretrained_run():
    """The new head is newly made, the old ones and the optimizer's state are left out."""
    checkpoint = restore.load(str(TINY / "training"))
    report = restore.merge(CLASSIFIER, checkpoint, allow_missing=HEAD, allow_extra=["cls/*"])
    assert report.newly_made == HEAD
    assert len(report.loaded) == 55
    assert "global_step" in report.left_out
    assert "bert/pooler/dense/bias/adam_v" in report.left_out
    text = str(report)
    assert "WARNING: 2 not loaded, NEWLY MADE" in text
    assert "slot of the optimizer" in text


def test_missing_and_extra_are_errors_that_list_both(pretrained):
    with pytest.raises(restore.RestoreError) as caught:
        restore.merge(CLASSIFIER, pretrained)
    report = caught.value.report
    assert report.missing == HEAD
    assert len(report.extra) == 7
    text = str(caught.value)
    for name in (*HEAD, "cls/predictions/output_bias", pretrained.prefix):
        assert name in text


def test_resuming_takes_slots_and_step():
    checkpoint = restore.load(str(TINY / "training"))
    expected = names.expected_names_and_shapes(CONFIG, PRETRAINING, optimizer=True)
    report = restore.merge(expected, checkpoint)
    assert len(report.loaded) == 187
    assert not report.left_out


def test_vocabulary_length_is_said_first(tmp_path):
    for path in TINY.glob("bert_*"):
        shutil.copy(path, tmp_path)
    (tmp_path / "vocab.txt").write_text("x\n" * 130)
    expected = names.expected_names_and_shapes(CONFIG.replace(vocab_size=130), PRETRAINING)
    with pytest.raises(restore.RestoreError) as caught:
        restore.merge(expected, restore.load(str(tmp_path)))
    lines = str(caught.value).splitlines()
    assert lines[1].startswith("The vocabulary's length and the configuration's vocab_size disagr")
    assert "vocab_size 130" in lines[1]
    assert "120 rows" in lines[1]
    assert "vocab.txt has 130 lines" in lines[1]
    shapes = "[130, 32] in the model, [120, 32] in the checkpoint"
    assert f"  bert/embeddings/word_embeddings: {shapes}" in lines


def test_model_of_another_size(pretrained):
    expected = names.expected_names_and_shapes(CONFIG.replace(hidden_size=64), PRETRAINING)
    with pytest.raises(restore.RestoreError, match="model of another size"):
        restore.merge(expected, pretrained)
    expected = names.expected_names_and_shapes(CONFIG.replace(num_hidden_layers=4), PRETRAINING)
    with pytest.raises(restore.RestoreError, match="number of layers differs") as caught:
        restore.merge(expected, pretrained)
    assert len(caught.value.report.missing) == 16


def test_another_number_of_labels():
    checkpoint = restore.load(str(GOLDEN / "checkpoint" / "tiny_classifier"))
    expected = names.expected_names_and_shapes(CONFIG, (names.CLASSIFIER,), 2)
    with pytest.raises(restore.RestoreError, match=r"task has 2 labels.* trained for 3"):
        restore.merge(expected, checkpoint)
    report = restore.merge(expected, checkpoint, allow_misshapen=HEAD)
    assert report.newly_made == HEAD
    assert len(report.loaded) == 55


def test_folder_without_a_pooler(tmp_path):
    tensors = load_file(HUGGINGFACE / "model.safetensors")
    kept = {name: array for name, array in tensors.items() if "pooler" not in name}
    save_file(kept, tmp_path / "model.safetensors")
    shutil.copy(HUGGINGFACE / "config.json", tmp_path)
    checkpoint = restore.load(str(tmp_path))
    expected = names.expected_names_and_shapes(CONFIG, PRETRAINING)
    with pytest.raises(restore.RestoreError, match="bert/pooler/dense/kernel"):
        restore.merge(expected, checkpoint)
    report = restore.merge(expected, checkpoint, allow_missing=["bert/pooler/*"])
    assert report.newly_made == ("bert/pooler/dense/kernel", "bert/pooler/dense/bias")


def run_folder(folder, latest=None, best=None, state=None):
    """A training run's folder with tiny checkpoints; returns the two prefixes."""
    prefixes = []
    for where, step in ((folder, latest), (folder / "best", best)):
        prefix = str(where / f"model.ckpt-{step}")
        if step is not None:
            where.mkdir(exist_ok=True)
            original.write(prefix, {"global_step": step})
            original.write_state(str(where), prefix)
        prefixes.append(prefix)
    if state is not None:
        pathlib.Path(f"{prefixes[0]}.state.json").write_text(json.dumps(state))
    return prefixes


def test_trained_checkpoint_of_an_empty_folder(tmp_path):
    assert restore.trained_checkpoint(str(tmp_path)) is None
    assert restore.trained_checkpoint(str(tmp_path / "nowhere")) is None


def test_trained_checkpoint_without_a_best_is_the_latest(tmp_path):
    latest, _ = run_folder(tmp_path, latest=8, state={"best_step": 4})
    assert restore.trained_checkpoint(str(tmp_path)) == latest


def test_trained_checkpoint_of_a_search_is_its_best(tmp_path):
    _, best = run_folder(tmp_path, best=4)
    assert restore.trained_checkpoint(str(tmp_path)) == best
    assert restore.trained_checkpoint(str(tmp_path), use_best=False) is None


def test_trained_checkpoint_is_the_best_of_the_same_run(tmp_path):
    latest, best = run_folder(tmp_path, latest=8, best=4, state={"best_step": 4})
    assert restore.trained_checkpoint(str(tmp_path)) == best
    assert restore.trained_checkpoint(str(tmp_path), use_best=False) == latest


@pytest.mark.parametrize("state", [None, {}, {"best_step": None}, {"best_step": 6}])
def test_trained_checkpoint_leaves_a_stale_best(state, tmp_path):
    latest, _ = run_folder(tmp_path, latest=8, best=4, state=state)
    assert restore.trained_checkpoint(str(tmp_path)) == latest


def test_trained_checkpoint_names_a_broken_state(tmp_path):
    latest, _ = run_folder(tmp_path, latest=8, best=4)
    pathlib.Path(f"{latest}.state.json").write_text("{")
    with pytest.raises(ValueError, match=r"model\.ckpt-8\.state\.json: not valid JSON"):
        restore.trained_checkpoint(str(tmp_path))


def original_folder(folder, name, array):
    """The tiny model with one tensor replaced, in the original's layout."""
    tensors = restore.load(str(TINY)).tensors() | {name: array}
    original.write(str(folder / "bert_model.ckpt"), tensors)
    shutil.copy(TINY / "bert_config.json", folder)
    return restore.load(str(folder))


def huggingface_folder(folder, name, dtype):
    tensors = load_file(HUGGINGFACE / "model.safetensors")
    tensors[name] = tensors[name].astype(dtype)
    save_file(tensors, folder / "model.safetensors")
    shutil.copy(HUGGINGFACE / "config.json", folder)
    return restore.load(str(folder))


BIAS = "bert/pooler/dense/bias"
THEIR_BIAS = "bert.pooler.dense.bias"
EXPECTED = names.expected_names_and_shapes(CONFIG, PRETRAINING)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "bool", "int64"])
def test_weights_that_are_no_floats(dtype, tmp_path):
    theirs, ours = tmp_path / "theirs", tmp_path / "ours"
    theirs.mkdir()
    ours.mkdir()
    with pytest.raises(ValueError, match=rf"model\.safetensors: {THEIR_BIAS} .*dtype {dtype},"):
        restore.merge(EXPECTED, huggingface_folder(theirs, THEIR_BIAS, dtype))
    with pytest.raises(ValueError, match=rf"bert_model\.ckpt: {BIAS} .*dtype {dtype},"):
        restore.merge(EXPECTED, original_folder(ours, BIAS, np.ones(32, dtype)))


@pytest.mark.parametrize("dtype", ["float16", "float64", ml_dtypes.bfloat16])
def test_other_floats_become_float32(dtype, tmp_path):
    array = np.linspace(-1, 1, 32).astype(dtype)
    checkpoint = original_folder(tmp_path, BIAS, array)
    found = dict(restore.values(checkpoint, restore.merge(EXPECTED, checkpoint)))
    assert {value.dtype.name for value in found.values()} == {"float32"}
    np.testing.assert_array_equal(found[BIAS], array.astype(np.float32))


def test_float64_of_a_huggingface_folder_becomes_float32(tmp_path):
    checkpoint = huggingface_folder(tmp_path, THEIR_BIAS, "float64")
    found = dict(restore.values(checkpoint, restore.merge(EXPECTED, checkpoint)))
    assert found[BIAS].dtype == np.float32


def test_the_step_stays_an_integer():
    checkpoint = restore.load(str(TINY / "training"))
    expected = names.expected_names_and_shapes(CONFIG, PRETRAINING, optimizer=True)
    found = dict(restore.values(checkpoint, restore.merge(expected, checkpoint)))
    assert found["global_step"].dtype == np.int64
    assert found["global_step"] == 8


def test_integers_that_are_left_out_do_no_harm(tmp_path):
    tensors = load_file(HUGGINGFACE / "model.safetensors")
    tensors["bert.embeddings.position_ids"] = np.arange(40)[None]
    save_file(tensors, tmp_path / "model.safetensors")
    shutil.copy(HUGGINGFACE / "config.json", tmp_path)
    report = restore.merge(EXPECTED, restore.load(str(tmp_path)))
    assert "bert.embeddings.position_ids" in report.left_out
