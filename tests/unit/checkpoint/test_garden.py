"""Model Garden's layout; tests/parity/test_garden_checkpoint.py has Model Garden itself read it."""

import functools
import json
import pathlib
import shutil

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_tf import paths
from bert_tf.checkpoint import garden, names, original, restore
from bert_tf.config import BertConfig
from tests import tiny

CHECKPOINTS = tiny.GOLDEN / "checkpoint"
GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"
HEADS = (names.MASKED_LM, names.NEXT_SENTENCE)


@functools.cache
def pretrained():
    return restore.load(str(CHECKPOINTS / "tiny_pretraining")).tensors()


def tensors_of_golden(folder):
    absent = json.loads((CHECKPOINTS / folder / "variables.json").read_text())
    return {
        name: value
        for name, value in pretrained().items()
        if name not in absent["original_variables_absent"]
    }


def stored(prefix):
    reader = original.Reader(str(prefix))
    return {name: reader.get(name) for name in reader.shapes if name != GRAPH}


def load(prefix):
    config_file = CHECKPOINTS / "tiny_pretraining/bert_config.json"
    return restore.load(str(prefix), config_file=str(config_file))


@pytest.mark.parametrize("folder", ["tiny_garden", "tiny_garden_pretrainer"])
def test_golden_is_the_original_bit_for_bit(folder):
    checkpoint = restore.load(str(CHECKPOINTS / folder))
    assert checkpoint.kind == "garden"
    assert checkpoint.config == tiny.CONFIG
    assert checkpoint.global_step is None
    assert list(checkpoint.left_out) == ["save_counter"]
    tiny.assert_same(checkpoint.tensors(), tensors_of_golden(folder))
    assert {name: value.shape for name, value in checkpoint.tensors().items()} == checkpoint.shapes
    assert set(checkpoint.dtypes.values()) == {"float32"}


@pytest.mark.parametrize("folder", ["tiny_garden", "tiny_garden_pretrainer"])
def test_written_tensors_are_the_golden_ones(folder, tmp_path):
    garden.write(str(tmp_path / "x"), tiny.CONFIG, tensors_of_golden(folder))
    tiny.assert_same(stored(tmp_path / "x"), stored(CHECKPOINTS / folder / "bert_model.ckpt-1"))


def test_next_sentence_head_and_its_pooler(tmp_path):
    garden.write(str(tmp_path / "x"), tiny.CONFIG, pretrained())
    found = stored(tmp_path / "x")
    end = "/.ATTRIBUTES/VARIABLE_VALUE"
    output = found[f"model/classification_heads/0/out_proj/kernel{end}"]
    np.testing.assert_array_equal(output.T, pretrained().get("cls/seq_relationship/output_weights"))
    # Theirs trains the head's pooler, not the encoder's.
    pooler = f"next_sentence..pooler_dense/kernel{end}"
    np.testing.assert_array_equal(found[pooler], pretrained().get("bert/pooler/dense/kernel"))
    checkpoint = load(tmp_path / "x")
    tiny.assert_same(checkpoint.tensors(), pretrained())
    assert restore.whole(checkpoint, tiny.CONFIG).keys() == checkpoint.shapes.keys()


def test_the_encoders_own_pooler_is_left_out_beside_the_heads(tmp_path):
    root = garden._objects(tiny.CONFIG, pretrained(), set(HEADS))
    root.encoder._pooler_layer.kernel.assign(np.full([32, 32], 7.0, np.float32))
    root.write(str(tmp_path / "x"))
    checkpoint = load(tmp_path / "x")
    tiny.assert_same(checkpoint.tensors(), pretrained())
    assert set(checkpoint.left_out) == {
        "encoder/layer_with_weights-7/kernel",
        "encoder/layer_with_weights-7/bias",
    }


@settings(max_examples=8, deadline=None)
@given(
    heads=st.integers(1, 3),
    size=st.integers(1, 4),
    layers=st.integers(1, 12),
    masked_lm=st.booleans(),
    next_sentence=st.booleans(),
    pooler=st.booleans(),
    seed=st.integers(0, 9),
)
def test_any_size_comes_back(
    tmp_path_factory, heads, size, layers, masked_lm, next_sentence, pooler, seed
):
    config = BertConfig(
        vocab_size=7,
        hidden_size=heads * size,
        num_attention_heads=heads,
        num_hidden_layers=layers,
        intermediate_size=5,
        max_position_embeddings=6,
        type_vocab_size=2,
    )
    kept = HEADS[: masked_lm + (masked_lm and next_sentence)]
    shapes = names.expected_names_and_shapes(config, kept, pooler=pooler)
    rng = np.random.default_rng(seed)
    tensors = {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    folder = tmp_path_factory.mktemp("any")
    garden.write(str(folder / "x"), config, tensors)
    config.to_json_file(str(folder / "bert_config.json"))
    checkpoint = restore.load(str(folder / "x"))
    tiny.assert_same(checkpoint.tensors(), tensors)
    reader = garden.Reader(original.Reader(str(folder / "x")))
    config_of_shapes = config.replace(**reader.sizes())
    assert config_of_shapes == config
    assert set(reader.sizes()) == {
        "vocab_size", "hidden_size", "num_attention_heads", "num_hidden_layers",
        "intermediate_size", "max_position_embeddings", "type_vocab_size",
    }  # fmt: skip


# Checkpoints of other forms.


def save(folder, **items):
    """Writes with tf.train.Checkpoint itself."""
    import tensorflow as tf

    return tf.train.Checkpoint(**items).save(str(folder / "ckpt"))


def parts():
    """Our object of an encoder, and its parts by number."""
    root = garden._objects(tiny.CONFIG, tensors_of_golden("tiny_garden"), set())
    return root.encoder, [getattr(root.encoder, f"layer_with_weights-{n}") for n in range(8)]


def numbered_encoder():
    import tensorflow as tf

    _, numbered = parts()
    return tf.train.Checkpoint(
        **{f"layer_with_weights-{n}": part for n, part in enumerate(numbered)}
    )


def attribute_encoder():
    import tensorflow as tf

    encoder, _ = parts()
    edges = ("pooler_layer", "transformer_layers", "embedding_norm_layer", "embedding_layer",
             "position_embedding_layer", "type_embedding_layer")  # fmt: skip
    return tf.train.Checkpoint(**{f"_{edge}": getattr(encoder, f"_{edge}") for edge in edges})


@pytest.mark.parametrize("make", [numbered_encoder, attribute_encoder])
@pytest.mark.parametrize("where", ["encoder", "model", "model/_network", "model/encoder_network"])
def test_encoders_of_either_form_wherever_they_are(make, where, tmp_path):
    import tensorflow as tf

    made = make()
    for edge in reversed(where.split("/")[1:]):
        made = tf.train.Checkpoint(**{edge: made})
    save(tmp_path, **{where.split("/")[0]: made})
    tiny.assert_same(load(tmp_path).tensors(), tensors_of_golden("tiny_garden"))


def test_what_a_training_run_leaves(tmp_path):
    import tensorflow as tf

    encoder, _ = parts()
    output = tf.train.Checkpoint(kernel=tf.Variable(tf.ones([32, 3])))
    save(
        tmp_path,
        encoder=encoder,
        global_step=tf.Variable(12, dtype=tf.int64),
        optimizer=tf.train.Checkpoint(iterations=tf.Variable(12)),
        model=tf.train.Checkpoint(classifier=output),
    )
    checkpoint = load(tmp_path)
    assert checkpoint.global_step == 12
    assert set(checkpoint.left_out) == {"save_counter", "global_step", "optimizer/iterations"}
    # A head for which there is no place is named, not lost.
    with pytest.raises(restore.RestoreError, match="model/classifier/kernel") as caught:
        restore.merge(restore.whole(checkpoint, tiny.CONFIG), checkpoint)
    assert caught.value.report.extra == ("model/classifier/kernel",)
    np.testing.assert_array_equal(checkpoint.get("model/classifier/kernel"), np.ones([32, 3]))


def test_other_object_based_checkpoints_are_refused(tmp_path):
    import tensorflow as tf

    layers = [tf.train.Checkpoint(kernel=tf.Variable(1.0)) for _ in range(12)]
    save(tmp_path, **{f"dense_{number}": layer for number, layer in enumerate(layers)})
    message = r"holds no encoder of Model Garden's BERT.*dense_0/kernel, .* and 3 more"
    with pytest.raises(original.CheckpointError, match=message):
        restore.load(str(tmp_path))


def test_broken_graph(tmp_path):
    import tensorflow as tf

    prefix = str(tmp_path / "x")
    tf.raw_ops.SaveV2(
        prefix=prefix, tensor_names=[GRAPH], shape_and_slices=[""], tensors=[tf.constant(b"\xff")]
    )
    with pytest.raises(original.CheckpointError, match="graph of objects cannot be read"):
        restore.load(prefix)


# The configuration.


def test_another_number_of_heads_is_found_out(tmp_path):
    shutil.copytree(CHECKPOINTS / "tiny_garden", tmp_path, dirs_exist_ok=True)
    tiny.CONFIG.replace(num_attention_heads=8).to_json_file(str(tmp_path / "bert_config.json"))
    with pytest.raises(ValueError, match=r"num_attention_heads 8, but .* has 4"):
        restore.load(str(tmp_path))


@pytest.fixture
def bare(tmp_path):
    """A checkpoint without a configuration."""
    shutil.copytree(CHECKPOINTS / "tiny_garden", tmp_path / "bare")
    (tmp_path / "bare" / "bert_config.json").unlink()
    return tmp_path / "bare"


def test_no_configuration(bare):
    with pytest.raises(
        ValueError, match=r"neither a bert_config\.json nor a params\.yaml"
    ) as caught:
        restore.load(str(bare))
    start, end = str(caught.value).index("{"), str(caught.value).index("}") + 1
    # With these in a bert_config.json it is one.
    (bare / "bert_config.json").write_text(str(caught.value)[start:end])
    assert restore.load(str(bare)).config == tiny.CONFIG


PARAMS = """\
runtime:
  num_gpus: 0
task:
  init_checkpoint: ''
  model:
    cls_heads: [{activation: tanh, cls_token_idx: 0, dropout_rate: 0.0, inner_dim: 32,
        name: next_sentence, num_classes: 2}]
    encoder:
      bert:
        attention_dropout_rate: 0.1
        dropout_rate: 0.2   # of the outputs
        embedding_size: null
        hidden_activation: gelu
        hidden_size: 32
        initializer_range: 2.0e-02
        intermediate_size: 96
        max_position_embeddings: 64
        norm_first: false
        num_attention_heads: 4
        num_layers: 3
        output_range: null
        type_vocab_size: 2
        vocab_size: 120
      type: bert
    mlm_activation: gelu
trainer:
  train_steps: 0
"""
FROM_PARAMS = tiny.CONFIG.replace(hidden_dropout_prob=0.2)


def test_params_of_a_run(bare):
    (bare / "params.yaml").write_text(PARAMS)
    assert restore.load(str(bare)).config == FROM_PARAMS
    # What is given wins.
    config_file = str(CHECKPOINTS / "tiny_garden/bert_config.json")
    assert restore.load(str(bare), config_file=config_file).config == tiny.CONFIG
    assert restore.load(str(bare), hidden_act="relu").config.hidden_act == "relu"


def test_params_of_an_encoder_alone(tmp_path):
    start = PARAMS.index("      bert:")
    lines = PARAMS[start : PARAMS.index("    mlm_activation")].splitlines()
    text = "\n".join(line[6:] for line in lines).replace("bert", "bert_v2")
    (tmp_path / "params.yaml").write_text(text)
    assert garden.read_params(str(tmp_path / "params.yaml")) == FROM_PARAMS


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("norm_first: false", "norm_first: true", "norm_first: expected false, found true"),
        ("embedding_size: null", "embedding_size: 16", "embedding_size: expected null, found 16"),
        ("type: bert", "type: albert", "found the type albert"),
        ("hidden_activation: gelu", "hidden_activation: swish", "hidden_act: expected one of"),
        ("num_layers: 3", "num_layers: many", "num_hidden_layers: expected a whole number"),
        ("encoder:", "decoder:", "found none"),
        (PARAMS, "", "found none"),
    ],
)
def test_params_that_are_no_bert(old, new, message, tmp_path):
    path = tmp_path / "params.yaml"
    path.write_text(PARAMS.replace(old, new))
    with pytest.raises(ValueError, match=f"params.yaml: .*{message}"):
        garden.read_params(str(path))


def test_params_that_say_the_hidden_size_once_more(tmp_path):
    path = tmp_path / "params.yaml"
    path.write_text(PARAMS.replace("embedding_size: null", "embedding_size: 32"))
    assert garden.read_params(str(path)) == FROM_PARAMS
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ValueError, match="not UTF-8"):
        garden.read_params(str(path))


# Writing.


def test_write_refuses_what_theirs_does_not_have(tmp_path):
    classifier = restore.load(str(CHECKPOINTS / "tiny_classifier")).tensors()
    with pytest.raises(ValueError, match="lack: output_bias, output_weights"):
        garden.write(str(tmp_path / "out" / "x"), tiny.CONFIG, classifier)
    no_masked_lm = {n: v for n, v in pretrained().items() if "predictions" not in n}
    with pytest.raises(ValueError, match="lack: cls/seq_relationship/output_bias, "):
        garden.write(str(tmp_path / "out" / "x"), tiny.CONFIG, no_masked_lm)
    assert not (tmp_path / "out").exists()


def test_interrupted_write_leaves_nothing(tmp_path, monkeypatch):
    def fail(source, target):
        if target.endswith(".index"):
            raise OSError("no space left")
        pathlib.Path(source).rename(target)

    monkeypatch.setattr(paths, "rename", fail)
    with pytest.raises(OSError, match="no space left"):
        garden.write(str(tmp_path / "x"), tiny.CONFIG, pretrained())
    assert not list(tmp_path.glob("*.index"))
    assert not list(tmp_path.glob("*incomplete*"))


def test_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError):
        garden.write(str(tmp_path / "file" / "x"), tiny.CONFIG, pretrained())


def test_remote_folder():
    pytest.importorskip("fsspec")
    prefix = "memory://test_garden/model/bert_model.ckpt-1"
    garden.write(prefix, tiny.CONFIG, pretrained())
    tiny.CONFIG.to_json_file("memory://test_garden/model/bert_config.json")
    tiny.assert_same(restore.load(prefix).tensors(), pretrained())
