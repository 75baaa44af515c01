import json
import pathlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_tf.config import HIDDEN_ACTS, BertConfig

GOLDEN = pathlib.Path(__file__).parents[1] / "golden"

RELEASED_CHINESE = {
    "attention_probs_dropout_prob": 0.1,
    "directionality": "bidi",
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "hidden_size": 768,
    "initializer_range": 0.02,
    "intermediate_size": 3072,
    "max_position_embeddings": 512,
    "num_attention_heads": 12,
    "num_hidden_layers": 12,
    "pooler_fc_size": 768,
    "pooler_num_attention_heads": 12,
    "pooler_num_fc_layers": 3,
    "pooler_size_per_head": 128,
    "pooler_type": "first_token_transform",
    "type_vocab_size": 2,
    "vocab_size": 21128,
}


def test_defaults_are_the_originals():
    config = BertConfig.from_dict({"vocab_size": 30522})
    assert config.type_vocab_size == 16
    assert config.hidden_act == "gelu"
    assert config.layer_norm_eps == 1e-12
    assert "layer_norm_eps" not in config.to_dict()


def test_released_files_extra_keys_are_allowed():
    config = BertConfig.from_dict(RELEASED_CHINESE)
    assert config.vocab_size == 21128
    assert set(config.to_dict()) < set(RELEASED_CHINESE)


def test_json_file_round_trip_is_the_golden_file(tmp_path):
    golden = GOLDEN / "checkpoint" / "tiny_pretraining" / "bert_config.json"
    config = BertConfig.from_json_file(str(golden))
    path = tmp_path / "bert_config.json"
    config.to_json_file(str(path))
    assert json.loads(path.read_text()) == json.loads(golden.read_text())
    assert path.read_text().split() == golden.read_text().split()
    assert BertConfig.from_json_file(str(path)) == config


def test_layer_norm_eps_is_written_where_it_differs(tmp_path):
    config = BertConfig(vocab_size=5, layer_norm_eps=1e-5)
    config.to_json_file(str(tmp_path / "c.json"))
    assert BertConfig.from_json_file(str(tmp_path / "c.json")).layer_norm_eps == 1e-5


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("vocab_size", 0),
        ("vocab_size", "30522"),
        ("vocab_size", True),
        ("vocab_size", 30522.0),
        ("vocab_size", None),
        ("hidden_size", 770),
        ("num_hidden_layers", -1),
        ("num_attention_heads", [12]),
        ("hidden_dropout_prob", 1.0),
        ("hidden_dropout_prob", -0.1),
        ("hidden_dropout_prob", "0.1"),
        ("attention_probs_dropout_prob", True),
        ("attention_probs_dropout_prob", float("nan")),
        ("initializer_range", float("inf")),
        ("layer_norm_eps", 0.0),
        ("hidden_act", "gelu_new"),
        ("hidden_act", 3),
    ],
)
def test_wrong_value_names_key_expected_and_found(tmp_path, key, value):
    path = tmp_path / "bert_config.json"
    path.write_text(json.dumps({"vocab_size": 30522, key: value}))
    with pytest.raises(ValueError, match=rf"bert_config\.json: {key}: expected .*, found"):
        BertConfig.from_json_file(str(path))


def test_missing_vocab_size():
    with pytest.raises(ValueError, match=r"vocab_size: expected .* found no such key"):
        BertConfig.from_dict({"hidden_size": 768})


def test_unknown_key_is_named(tmp_path):
    path = tmp_path / "bert_config.json"
    path.write_text('{"vocab_size": 5, "hiden_size": 768}')
    with pytest.raises(ValueError, match=r"bert_config\.json: unknown key hiden_size"):
        BertConfig.from_json_file(str(path))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", r"not valid JSON.*line 1"),
        (b"", "not valid JSON"),
        (b"[1]", r"expected a JSON object, found \[1\]"),
        (b"\xff\xfe\x00", "not UTF-8"),
    ],
)
def test_not_json(tmp_path, content, message):
    path = tmp_path / "bert_config.json"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message) as caught:
        BertConfig.from_json_file(str(path))
    assert str(path) in str(caught.value)


def test_byte_order_mark_is_skipped(tmp_path):
    path = tmp_path / "bert_config.json"
    path.write_bytes(b'\xef\xbb\xbf{"vocab_size": 5}')
    assert BertConfig.from_json_file(str(path)).vocab_size == 5


def test_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere"):
        BertConfig.from_json_file(str(tmp_path / "nowhere.json"))


def test_replace_checks_again():
    config = BertConfig(vocab_size=5)
    assert config.replace(num_hidden_layers=2).num_hidden_layers == 2
    with pytest.raises(ValueError, match="multiple of num_attention_heads"):
        config.replace(num_attention_heads=7)
    with pytest.raises(ValueError, match="no field named depth"):
        config.replace(depth=3)


def test_frozen():
    with pytest.raises(AttributeError):
        BertConfig(vocab_size=5).vocab_size = 6  # type: ignore[misc]


def test_numpy_numbers_are_taken_and_become_plain():
    config = BertConfig(vocab_size=np.int64(5), hidden_dropout_prob=np.float32(0))
    assert type(config.vocab_size) is int
    assert type(config.hidden_dropout_prob) is float


@pytest.mark.parametrize(
    ("theirs", "ours", "back"),
    [
        ("gelu", "gelu_erf", "gelu"),
        ("gelu_python", "gelu_erf", "gelu"),
        ("gelu_new", "gelu", "gelu_new"),
        ("gelu_fast", "gelu", "gelu_new"),
        ("gelu_pytorch_tanh", "gelu", "gelu_new"),
        ("relu", "relu", "relu"),
        ("tanh", "tanh", "tanh"),
    ],
)
def test_huggingface_gelu_rule(theirs, ours, back):
    config = BertConfig.from_huggingface({"vocab_size": 5, "hidden_act": theirs})
    assert config.hidden_act == ours
    assert config.to_huggingface()["hidden_act"] == back


def test_huggingface_golden_configs():
    folder = GOLDEN / "conversions" / "huggingface"
    tanh = BertConfig.from_json_file(str(folder / "config.json"))
    erf = BertConfig.from_json_file(str(folder / "config_gelu_erf.json"))
    tiny = GOLDEN / "checkpoint" / "tiny_pretraining" / "bert_config.json"
    assert tanh == BertConfig.from_json_file(str(tiny))
    assert erf == tanh.replace(hidden_act="gelu_erf")
    assert tanh.to_huggingface().items() <= json.loads((folder / "config.json").read_text()).items()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("position_embedding_type", "relative_key"),
        ("model_type", "roberta"),
        ("tie_word_embeddings", False),
        ("hidden_act", "silu"),
        ("quantization_config", {}),
    ],
)
def test_huggingface_models_of_another_kind_are_refused(key, value):
    with pytest.raises(ValueError, match=key):
        BertConfig.from_huggingface({"vocab_size": 5, key: value})


def test_huggingface_absent_type_vocab_size_is_two():
    assert BertConfig.from_huggingface({"vocab_size": 5}).type_vocab_size == 2


@settings(deadline=None, max_examples=50)
@given(
    heads=st.integers(1, 16),
    size=st.integers(1, 8),
    layers=st.integers(1, 24),
    act=st.sampled_from(HIDDEN_ACTS),
    rate=st.floats(0, 1, exclude_max=True),
    eps=st.floats(1e-15, 1e-3),
)
def test_round_trips(heads, size, layers, act, rate, eps):
    config = BertConfig(
        vocab_size=7,
        hidden_size=heads * size,
        num_attention_heads=heads,
        num_hidden_layers=layers,
        hidden_act=act,
        hidden_dropout_prob=rate,
        layer_norm_eps=eps,
    )
    assert BertConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config
    theirs = json.loads(json.dumps(config.to_huggingface()))
    assert BertConfig.from_huggingface(theirs) == config


def test_causal_attention_round_trips():
    config = BertConfig(vocab_size=7, causal_attention=True)
    # The original's files have no such key: it is there only where it means something.
    assert config.to_dict()["causal_attention"] is True
    assert "causal_attention" not in BertConfig(vocab_size=7).to_dict()
    assert BertConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config
    theirs = json.loads(json.dumps(config.to_huggingface()))
    assert theirs["is_decoder"] is True
    assert "causal_attention" not in theirs
    assert BertConfig.from_huggingface(theirs) == config
    assert "is_decoder" not in BertConfig(vocab_size=7).to_huggingface()


def test_huggingface_decoders_are_causal():
    for value in (False, True):
        config = BertConfig.from_huggingface({"vocab_size": 5, "is_decoder": value})
        assert config.causal_attention is value
    # One that attends to an encoder is no BERT.
    with pytest.raises(ValueError, match="add_cross_attention"):
        BertConfig.from_huggingface(
            {"vocab_size": 5, "is_decoder": True, "add_cross_attention": True}
        )


@pytest.mark.parametrize("value", [1, "true", None, 0.0])
def test_causal_attention_is_true_or_false(value):
    with pytest.raises(ValueError, match="causal_attention: expected true or false, found"):
        BertConfig(vocab_size=5, causal_attention=value)
