import json
import pathlib

import pytest

from bert_tf.checkpoint import names
from bert_tf.config import BertConfig

GOLDEN = pathlib.Path(__file__).parents[2] / "golden"
PRETRAINING = (names.MASKED_LM, names.NEXT_SENTENCE)


def test_base_training_run_has_exactly_these_variables():
    config = BertConfig(vocab_size=30522, type_vocab_size=2)
    expected = names.expected_names_and_shapes(config, PRETRAINING, optimizer=True)
    listed = json.loads((GOLDEN / "checkpoint" / "base_training_run_variables.json").read_text())
    assert len(expected) == 619
    assert expected == {name: tuple(shape) for name, shape in listed.items()}


def test_third_party_training_run():
    listed = json.loads((GOLDEN / "checkpoint" / "third_party_tiny_variables.json").read_text())
    config = BertConfig.from_dict(listed["bert_config"])
    expected = names.expected_names_and_shapes(config, PRETRAINING, optimizer=True)
    assert expected == {entry["name"]: tuple(entry["shape"]) for entry in listed["variables"]}


@pytest.mark.parametrize(
    ("folder", "heads", "labels"),
    [
        ("tiny_pretraining", PRETRAINING, None),
        ("tiny_classifier", (names.CLASSIFIER,), 3),
        ("tiny_squad", (names.SQUAD,), None),
    ],
)
def test_golden_folders(folder, heads, labels):
    listed = json.loads((GOLDEN / "checkpoint" / folder / "variables.json").read_text())
    config = BertConfig.from_json_file(str(GOLDEN / "checkpoint" / folder / "bert_config.json"))
    expected = names.expected_names_and_shapes(config, heads, labels)
    assert expected == {entry["name"]: tuple(entry["shape"]) for entry in listed}
    assert names.heads_in(expected) == heads


def test_name_map_both_ways():
    entries = json.loads((GOLDEN / "conversions" / "name_map.json").read_text())
    assert len(entries) == 62
    for entry in entries:
        theirs, ours, transposed = entry["hf"], entry["original"], entry["transposed"]
        assert names.from_huggingface(theirs) == (ours, transposed)
        assert names.to_huggingface(ours) == (theirs, transposed)


def test_table_is_one_to_one():
    config = BertConfig(vocab_size=9, num_hidden_layers=12)
    expected = names.expected_names_and_shapes(config, names.HEADS, 2)
    theirs = {name: names.to_huggingface(name) for name in expected}
    assert len({entry[0] for entry in theirs.values()}) == len(expected)
    for name, (translated, transposed) in theirs.items():
        assert names.from_huggingface(translated) == (name, transposed)


@pytest.mark.parametrize(
    ("old", "ours"),
    [
        ("embeddings.LayerNorm.gamma", "bert/embeddings/LayerNorm/gamma"),
        (
            "bert.encoder.layer.11.output.LayerNorm.beta",
            "bert/encoder/layer_11/output/LayerNorm/beta",
        ),
        ("encoder.layer.0.output.dense.bias", "bert/encoder/layer_0/output/dense/bias"),
        ("pooler.dense.bias", "bert/pooler/dense/bias"),
        (
            "cls.predictions.transform.LayerNorm.beta",
            "cls/predictions/transform/LayerNorm/beta",
        ),
    ],
)
def test_old_and_short_huggingface_names(old, ours):
    assert names.from_huggingface(old) == (ours, False)


@pytest.mark.parametrize(
    "name", ["lm_head.weight", "bert.encoder.layer.x.output.dense.bias", "classifier.gamma", ""]
)
def test_unknown_names(name):
    assert names.from_huggingface(name) is None
    assert names.to_huggingface(name) is None
    assert names.part_of(name) is None


def test_slots_and_global_step_are_excluded_weights_are_not():
    config = BertConfig(vocab_size=9)
    weights = names.expected_names_and_shapes(config, names.HEADS, 2)
    for name in names.expected_names_and_shapes(config, names.HEADS, 2, optimizer=True):
        assert (names.excluded(name, names.EXCLUDED_ORIGINAL) is None) == (name in weights)


def test_expected_needs_the_number_of_labels_and_known_heads():
    config = BertConfig(vocab_size=9)
    with pytest.raises(ValueError, match="number of labels"):
        names.expected_names_and_shapes(config, (names.CLASSIFIER,))
    with pytest.raises(ValueError, match="pretraining"):
        names.expected_names_and_shapes(config, ("pretraining",))


def test_own_heads():
    assert names.is_own("bilstm/forward/kernel")
    assert names.is_own("layer_mix/layer_weights")
    assert not names.is_own("bilstm/forward/kernel/adam_m")
    assert not names.is_own("output_weights")
