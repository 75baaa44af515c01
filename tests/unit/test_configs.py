"""The configurations in configs/: the paper's two and the smaller ones, and their sizes."""

import importlib.util
import json
import pathlib
import sys

import numpy as np
import pytest

from bert_tf.config import BertConfig

ROOT = pathlib.Path(__file__).parents[2]
# Layers, hidden size, attention heads, parameters of the encoder with its pooler.
SIZES = {
    "tiny": (2, 128, 2, 4_385_920),
    "mini": (4, 256, 4, 11_170_560),
    "small": (4, 512, 8, 28_763_648),
    "medium": (8, 512, 8, 41_373_184),
    "base": (12, 768, 12, 109_482_240),
    "large": (24, 1024, 16, 335_141_888),
}


@pytest.fixture(scope="module")
def compare():
    path = ROOT / "examples" / "compare_checkpoints.py"
    spec = importlib.util.spec_from_file_location("compare_checkpoints_sizes", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses looks its module up there
    spec.loader.exec_module(module)
    return module


def read(name):
    return BertConfig.from_json_file(str(ROOT / "configs" / f"{name}.json"))


def test_these_are_all():
    assert {path.stem for path in (ROOT / "configs").iterdir()} == set(SIZES)


@pytest.mark.parametrize("name", SIZES)
def test_sizes(name):
    layers, hidden, heads, _ = SIZES[name]
    config = read(name)
    assert config == BertConfig(
        vocab_size=30522,
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=4 * hidden,
        max_position_embeddings=512,
        type_vocab_size=2,
    )
    assert config.hidden_size // config.num_attention_heads == 64


@pytest.mark.parametrize("name", SIZES)
def test_files_are_as_we_write_them(name):
    text = (ROOT / "configs" / f"{name}.json").read_text()
    assert text == json.dumps(read(name).to_dict(), indent=2, sort_keys=True) + "\n"


@pytest.mark.parametrize("name", SIZES)
def test_parameters(name, compare):
    assert compare.parameter_count(read(name)) == SIZES[name][3]


@pytest.mark.parametrize(
    ("name", "text"),
    [("tiny", "4.4M"), ("mini", "11M"), ("base", "110M"), ("large", "340M")],
)
def test_parameters_as_in_the_paper(name, text, compare):
    assert compare.rounded(SIZES[name][3]) == text


@pytest.mark.parametrize(
    "config",
    [
        read("tiny"),
        BertConfig(
            vocab_size=31,
            hidden_size=12,
            num_hidden_layers=3,
            num_attention_heads=2,
            intermediate_size=20,
            max_position_embeddings=17,
            type_vocab_size=5,
        ),
    ],
    ids=["tiny", "odd sizes"],
)
def test_the_count_is_that_of_a_model(config, compare):
    from bert_tf.modeling.models import BertClassifier, named_variables

    variables = named_variables(BertClassifier(config, 3))
    count = sum(
        int(np.prod(variable.shape))
        for name, variable in variables.items()
        if name.startswith("bert/")
    )
    assert compare.parameter_count(config) == count
