import json
import pathlib

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from bert_tf import paths
from bert_tf.checkpoint import huggingface, original
from bert_tf.config import BertConfig

GOLDEN = pathlib.Path(__file__).parents[2] / "golden"
FOLDER = GOLDEN / "conversions" / "huggingface"
TINY = GOLDEN / "checkpoint" / "tiny_pretraining"


@pytest.fixture(scope="module")
def tiny():
    reader = original.Reader(str(TINY))
    return {name: reader.get(name) for name in reader.shapes}


def assert_same(found, expected):
    assert set(found) == set(expected)
    for name, array in expected.items():
        assert found[name].dtype == array.dtype
        np.testing.assert_array_equal(found[name], array, err_msg=name)


def folder_of(tmp_path, tensors, **config):
    """Writes a folder by safetensors alone."""
    values = json.loads((FOLDER / "config.json").read_text()) | config
    (tmp_path / "config.json").write_text(json.dumps(values))
    save_file(tensors, tmp_path / "model.safetensors")
    return str(tmp_path)


def test_golden_folder_is_the_original_bit_for_bit(tiny):
    config, tensors = huggingface.read(str(FOLDER))
    assert config == BertConfig.from_json_file(str(TINY / "bert_config.json"))
    assert_same(tensors, tiny)


def test_shapes_and_dtypes_are_known_without_values(tiny):
    reader = huggingface.Reader(str(FOLDER))
    assert reader.shapes == {name: array.shape for name, array in tiny.items()}
    assert set(reader.dtypes.values()) == {"float32"}


def test_written_folder_is_the_golden_one(tiny, tmp_path):
    (tmp_path / "v.txt").write_text("[PAD]\n[UNK]\n")
    folder = tmp_path / "out"
    config = BertConfig.from_json_file(str(TINY / "bert_config.json"))
    huggingface.write(str(folder), config, tiny, str(tmp_path / "v.txt"), do_lower_case=False)
    golden, written = (load_file(path / "model.safetensors") for path in (FOLDER, folder))
    assert_same(written, golden)
    theirs = json.loads((FOLDER / "config.json").read_text())
    ours = json.loads((folder / "config.json").read_text())
    assert ours.items() <= theirs.items()
    assert ours["architectures"] == ["BertForPreTraining"]
    assert (folder / "vocab.txt").read_bytes() == b"[PAD]\n[UNK]\n"
    assert huggingface.read_do_lower_case(str(folder)) is False
    assert sorted(str(path) for path in folder.iterdir()) == sorted(
        huggingface.files_of(str(folder))
    )
    assert_same(huggingface.read(str(folder))[1], tiny)


@pytest.mark.parametrize(
    ("golden", "architecture"),
    [
        ("tiny_classifier", "BertForSequenceClassification"),
        ("tiny_squad", "BertForQuestionAnswering"),
    ],
)
def test_heads_round_trip(golden, architecture, tmp_path):
    reader = original.Reader(str(GOLDEN / "checkpoint" / golden))
    tensors = {name: reader.get(name) for name in reader.shapes}
    config = BertConfig.from_json_file(str(GOLDEN / "checkpoint" / golden / "bert_config.json"))
    dropped = huggingface.write(str(tmp_path), config, tensors)
    # Their class for questions has no pooler.
    without = ["bert/pooler/dense/bias", "bert/pooler/dense/kernel"]
    assert dropped == ([] if golden == "tiny_classifier" else without)
    written = json.loads((tmp_path / "config.json").read_text())
    assert written["architectures"] == [architecture]
    if golden == "tiny_classifier":
        assert written["id2label"] == {"0": "LABEL_0", "1": "LABEL_1", "2": "LABEL_2"}
        # Not transposed: both have one row a label.
        head = load_file(tmp_path / "model.safetensors")["classifier.weight"]
        np.testing.assert_array_equal(head, tensors["output_weights"])
    back, read = huggingface.read(str(tmp_path))
    assert back == config
    assert_same(read, {name: value for name, value in tensors.items() if name not in dropped})


@pytest.mark.parametrize(
    ("head", "causal", "architecture"),
    [
        ("cls/", False, "BertForPreTraining"),
        ("cls/predictions/", False, "BertForMaskedLM"),
        ("cls/predictions/", True, "BertLMHeadModel"),
        ("cls/seq_relationship/", False, "BertForNextSentencePrediction"),
    ],
)
def test_heads_of_pre_training(head, causal, architecture, tiny, tmp_path):
    tensors = {name: value for name, value in tiny.items() if name.startswith(("bert/", head))}
    config = huggingface.read_config(str(FOLDER)).replace(causal_attention=causal)
    dropped = huggingface.write(str(tmp_path), config, tensors)
    assert json.loads((tmp_path / "config.json").read_text())["architectures"] == [architecture]
    assert bool(dropped) == (head == "cls/predictions/")
    for name in dropped:
        del tensors[name]
    back, read = huggingface.read(str(tmp_path))
    assert back == config
    assert_same(read, tensors)


@pytest.mark.parametrize(
    ("kind", "labels", "problem_type"),
    [
        ("classification", ["no", "yes", "maybe"], "single_label_classification"),
        ("multilabel", ["a", "b", "c"], "multi_label_classification"),
        ("tagging", ["O", "B-X", "I-X"], None),
        ("", ["x", "y", "z"], None),
    ],
)
def test_task_round_trip(kind, labels, problem_type, tmp_path):
    reader = original.Reader(str(GOLDEN / "checkpoint" / "tiny_classifier"))
    tensors = {name: reader.get(name) for name in reader.shapes}
    config = huggingface.read_config(str(FOLDER))
    huggingface.write(str(tmp_path), config, tensors, labels=labels, kind=kind)
    written = json.loads((tmp_path / "config.json").read_text())
    assert written.get("problem_type") == problem_type
    assert huggingface.read_task(str(tmp_path)) == (labels, kind)


@pytest.mark.parametrize("values", [{}, {"id2label": 3}, {"id2label": {"a": 1}, "problem_type": 2}])
def test_task_of_a_folder_that_names_none(values, tmp_path):
    assert huggingface.read_task(str(tmp_path)) == ([], "")
    (tmp_path / "config.json").write_text(json.dumps(values))
    assert huggingface.read_task(str(tmp_path)) == ([], "")


def test_encoder_alone_is_written_without_the_prefix(tiny, tmp_path):
    encoder = {name: array for name, array in tiny.items() if name.startswith("bert/")}
    huggingface.write(str(tmp_path), huggingface.read_config(str(FOLDER)), encoder)
    assert "pooler.dense.weight" in load_file(tmp_path / "model.safetensors")
    assert json.loads((tmp_path / "config.json").read_text())["architectures"] == ["BertModel"]
    assert_same(huggingface.read(str(tmp_path))[1], encoder)


def test_short_and_old_names_and_buffers(tiny, tmp_path):
    stored = {}
    for name, array in load_file(FOLDER / "model.safetensors").items():
        if name.startswith("bert."):
            name = name.removeprefix("bert.")
            name = name.replace("LayerNorm.weight", "LayerNorm.gamma")
            stored[name.replace("LayerNorm.bias", "LayerNorm.beta")] = array
    stored["embeddings.position_ids"] = np.arange(64)[None]
    folder = folder_of(tmp_path, stored)
    expected = {name: array for name, array in tiny.items() if name.startswith("bert/")}
    assert_same(huggingface.read(folder)[1], expected)
    assert list(huggingface.Reader(folder).left_out) == ["embeddings.position_ids"]


def test_sharded_folder(tiny, tmp_path):
    tensors = load_file(FOLDER / "model.safetensors")
    weight_map = {}
    for number, name in enumerate(tensors):
        weight_map[name] = f"model-0000{number % 2 + 1}-of-00002.safetensors"
    for file in set(weight_map.values()):
        part = {name: array for name, array in tensors.items() if weight_map[name] == file}
        save_file(part, tmp_path / file)
    (tmp_path / "config.json").write_bytes((FOLDER / "config.json").read_bytes())
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    assert huggingface.is_folder(str(tmp_path))
    assert_same(huggingface.read(str(tmp_path))[1], tiny)
    (tmp_path / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match=r"model-00002-of-00002\.safetensors is missing"):
        huggingface.Reader(str(tmp_path))
    index.write_text("{}")
    with pytest.raises(original.CheckpointError, match="weight_map"):
        huggingface.Reader(str(tmp_path))


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_half_precision_is_read_as_float32(tiny, tmp_path, dtype):
    golden = load_file(FOLDER / "model.safetensors")
    folder = folder_of(tmp_path, {name: array.astype(dtype) for name, array in golden.items()})
    assert set(huggingface.Reader(folder).dtypes.values()) == {np.dtype(dtype).name}
    expected = {name: array.astype(dtype).astype(np.float32) for name, array in tiny.items()}
    assert_same(huggingface.read(folder)[1], expected)


def test_tied_decoder_is_left_out_and_must_be_tied(tiny, tmp_path):
    tensors = load_file(FOLDER / "model.safetensors")
    words = tensors["bert.embeddings.word_embeddings.weight"]
    tensors["cls.predictions.decoder.weight"] = words.copy()
    tensors["cls.predictions.decoder.bias"] = tensors["cls.predictions.bias"].copy()
    folder = folder_of(tmp_path, tensors)
    assert_same(huggingface.read(folder)[1], tiny)
    assert len(huggingface.Reader(folder).left_out) == 2
    del tensors["cls.predictions.bias"]
    assert_same(huggingface.read(folder_of(tmp_path, tensors))[1], tiny)
    tensors["cls.predictions.decoder.weight"] = words + 1
    with pytest.raises(original.CheckpointError, match=r"decoder\.weight is not the same"):
        huggingface.Reader(folder_of(tmp_path, tensors))


def test_unknown_tensors_keep_their_names(tmp_path):
    tensors = load_file(FOLDER / "model.safetensors") | {"crf.weight": np.ones(3, np.float32)}
    reader = huggingface.Reader(folder_of(tmp_path, tensors))
    assert reader.shapes["crf.weight"] == (3,)
    with pytest.raises(KeyError, match="no weight nothing"):
        reader.get("nothing")


def test_pytorch_file_alone_says_how_to_convert_it(tmp_path):
    (tmp_path / "config.json").write_bytes((FOLDER / "config.json").read_bytes())
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    assert huggingface.is_folder(str(tmp_path))
    with pytest.raises(original.CheckpointError, match=r"save_file.*model\.safetensors"):
        huggingface.Reader(str(tmp_path))


@pytest.mark.parametrize("keep", [0, 4, 1000, -1])
def test_truncated_file(tmp_path, keep):
    content = (FOLDER / "model.safetensors").read_bytes()[:keep]
    (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(
        original.CheckpointError,
        match=rf"model\.safetensors \({len(content)} bytes\) is cut short",
    ):
        huggingface.Reader(str(tmp_path))


def test_config_error_names_the_file(tmp_path):
    (tmp_path / "config.json").write_text('{"vocab_size": 5, "model_type": "gpt2"}')
    with pytest.raises(ValueError, match=r"config\.json: model_type: expected \"bert\""):
        huggingface.read_config(str(tmp_path))


def test_write_refuses_names_outside_the_table(tiny, tmp_path):
    config = huggingface.read_config(str(FOLDER))
    extra = {"global_step": np.int64(3), "bert/pooler/dense/bias/adam_m": np.zeros(32)}
    with pytest.raises(ValueError, match=r"adam_m, global_step"):
        huggingface.write(str(tmp_path / "out"), config, tiny | extra)
    assert not (tmp_path / "out").exists()


def test_interrupted_write_leaves_nothing(tiny, tmp_path, monkeypatch):
    def fail(source, target):
        if target.endswith("model.safetensors"):
            raise OSError("no space left")
        pathlib.Path(source).rename(target)

    monkeypatch.setattr(paths, "rename", fail)
    with pytest.raises(OSError, match="no space left"):
        huggingface.write(str(tmp_path), huggingface.read_config(str(FOLDER)), tiny)
    assert list(tmp_path.iterdir()) == []
    assert not huggingface.is_folder(str(tmp_path))


def test_remote_folder(tiny):
    pytest.importorskip("fsspec")
    folder = "memory://test_huggingface/model"
    config = huggingface.read_config(str(FOLDER))
    huggingface.write(folder, config, tiny)
    back, tensors = huggingface.read(folder)
    assert back == config
    assert_same(tensors, tiny)


@pytest.mark.parametrize("file", [1, None, ["model.safetensors"]])
def test_index_with_something_else_than_file_names(file, tmp_path):
    (tmp_path / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": {"bert.pooler.dense.bias": file}})
    )
    message = r"index\.json: weight_map: bert\.pooler\.dense\.bias: expected a file name"
    with pytest.raises(original.CheckpointError, match=message):
        huggingface.Reader(str(tmp_path))
