import keras
import numpy as np
import pytest
import tiny

from bert_tf.checkpoint import names
from bert_tf.config import BertConfig
from bert_tf.modeling.models import (
    BertClassifier,
    BertForSquad,
    BertPretrainer,
    named_variables,
)

PRETRAINING = (names.MASKED_LM, names.NEXT_SENTENCE)


def shapes_of(model):
    return {name: tuple(variable.shape) for name, variable in named_variables(model).items()}


def test_base_has_exactly_the_weights_of_the_released_run():
    config = BertConfig(vocab_size=30522, type_vocab_size=2)
    # Variables of a stateless scope are not filled: 110 million values cost nothing.
    with keras.StatelessScope(initialize_variables=False):
        found = shapes_of(BertPretrainer(config))
    run = tiny.read_json("checkpoint/base_training_run_variables.json")
    expected = {
        name: tuple(shape)
        for name, shape in run.items()
        if not names.is_slot(name) and name != names.GLOBAL_STEP
    }
    assert len(expected) == 206
    assert found == expected
    assert sum(np.prod(shape, dtype=int) for shape in found.values()) == 110_106_428
    assert names.expected_names_and_shapes(config, PRETRAINING) == expected


@pytest.mark.parametrize(
    ("model", "heads", "labels"),
    [
        (lambda: BertPretrainer(tiny.CONFIG), PRETRAINING, None),
        (lambda: BertClassifier(tiny.CONFIG, 3), (names.CLASSIFIER,), 3),
        (lambda: BertForSquad(tiny.CONFIG), (names.SQUAD,), None),
    ],
    ids=["pretrainer", "classifier", "squad"],
)
def test_variables_are_named_as_in_checkpoints(model, heads, labels):
    expected = names.expected_names_and_shapes(tiny.CONFIG, heads, labels)
    # Twice: a second model of the process has the same names.
    for _ in range(2):
        assert shapes_of(model()) == expected


def test_new_weights_are_a_function_of_the_seed():
    def weights(model):
        return {name: np.asarray(value) for name, value in named_variables(model).items()}

    first, again = (weights(BertClassifier(tiny.CONFIG, 3, seed=5)) for _ in range(2))
    tiny.assert_same(first, again)
    other = weights(BertClassifier(tiny.CONFIG, 3, seed=6))
    squad = weights(BertForSquad(tiny.CONFIG, seed=5))
    tables = [name for name in first if name.endswith(("kernel", "embeddings", "weights"))]
    for name in tables:
        assert (first[name] != other[name]).mean() > 0.99, name
    # Each table has values of its own.
    kernels = [first[name] for name in tables if first[name].shape == (32, 32)]
    assert len({kernel.tobytes() for kernel in kernels}) == len(kernels) == 13
    # The encoder does not depend on the head.
    for name in first:
        if name.startswith("bert/"):
            np.testing.assert_array_equal(first[name], squad[name])


def test_pretrainer_initial_range():
    model = BertPretrainer(tiny.CONFIG.replace(initializer_range=0.5))
    for name, variable in named_variables(model).items():
        values = np.asarray(variable)
        if name.endswith("gamma"):
            assert (values == 1).all(), name
        elif name.endswith(("beta", "bias")):
            assert (values == 0).all(), name
        else:
            assert 0.3 < values.std() < 0.6, name


def test_masked_lm_takes_the_right_rows():
    model = BertPretrainer(tiny.CONFIG)
    batch = tiny.read_batch("model/inputs.json")
    every = np.asarray(model(batch)["masked_lm_logits"]).reshape(4, 6, -1)
    # Each position alone, in another slot.
    flipped = {**batch, "masked_lm_positions": batch["masked_lm_positions"][:, ::-1].copy()}
    other = np.asarray(model(flipped)["masked_lm_logits"]).reshape(4, 6, -1)
    np.testing.assert_allclose(other[:, ::-1], every, atol=1e-6)
    assert np.abs(every[0, 0] - every[0, 1]).max() > 1e-3


def test_pretrainer_without_next_sentence():
    expected = names.expected_names_and_shapes(tiny.CONFIG, (names.MASKED_LM,))
    model = BertPretrainer(tiny.CONFIG, seed=3, next_sentence=False)
    assert shapes_of(model) == expected
    assert not any("seq_relationship" in name for name in expected)
    outputs = model(tiny.read_batch("model/inputs.json"))
    assert "next_sentence_logits" not in outputs
    # What is left is what it would be with it.
    whole = named_variables(BertPretrainer(tiny.CONFIG, seed=3))
    for name, variable in named_variables(model).items():
        np.testing.assert_array_equal(variable, whole[name], err_msg=name)
    assert model.without_gradient == ("bert/pooler/",)


def test_classifier_with_a_bilstm():
    hidden = tiny.CONFIG.hidden_size
    model = BertClassifier(tiny.CONFIG, 3, seed=3, bilstm=True)
    plain = shapes_of(BertClassifier(tiny.CONFIG, 3))
    found = shapes_of(model)
    assert found["output_weights"] == (3, 2 * hidden)
    assert {name: shape for name, shape in found.items() if name not in plain} == {
        f"bilstm/layer_0_{direction}/lstm_cell/{name}": shape
        for direction in ("forward", "backward")
        for name, shape in (
            ("kernel", (hidden, 4 * hidden)),
            ("recurrent_kernel", (hidden, 4 * hidden)),
            ("bias", (4 * hidden,)),
        )
    }
    batch = tiny.read_batch("model/inputs.json")
    assert model(batch)["logits"].shape == (4, 3)
    # A function of the seed, and padding does not matter.
    again = BertClassifier(tiny.CONFIG, 3, seed=3, bilstm=True)
    padded = {
        name: np.pad(batch[name], ((0, 0), (0, 5)))
        for name in ("input_ids", "input_mask", "segment_ids")
    }
    np.testing.assert_allclose(again(padded)["logits"], model(batch)["logits"], atol=1e-5)
