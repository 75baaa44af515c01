"""One table of weight names: the original's, which are ours too, beside Hugging Face's.

A variable of our Keras models has the original's name as its path (without the model's own
name), so the table's `original` column serves both. `{layer}` stands for a layer's number.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import re
from collections.abc import Iterable, Mapping

from bert_tf.config import BertConfig

ENCODER = "encoder"
POOLER = "pooler"
MASKED_LM = "masked_lm"
NEXT_SENTENCE = "next_sentence"
CLASSIFIER = "classifier"
SQUAD = "squad"

HEADS = (MASKED_LM, NEXT_SENTENCE, CLASSIFIER, SQUAD)

SLOTS = ("adam_m", "adam_v")
GLOBAL_STEP = "global_step"


@dataclasses.dataclass(frozen=True)
class Weight:
    """One row of the table.

    Attributes:
        part: the part of a model that it belongs to: ENCODER, POOLER or one of HEADS.
        original: name in the original's checkpoints, and in our models.
        shape: its shape there, in field names of BertConfig, numbers, or "num_labels".
        huggingface: name of the tensor in Hugging Face's model.safetensors.
        transposed: the Hugging Face tensor is the transpose.
    """

    part: str
    original: str
    shape: tuple[str | int, ...]
    huggingface: str
    transposed: bool = False


@dataclasses.dataclass(frozen=True)
class Exclusion:
    """A name that is in files and left out on purpose.

    Attributes:
        pattern: shell pattern of the name.
        reason: why it is left out, for the report.
        same_as: the Hugging Face tensor whose values it must repeat, "" if there is none.
    """

    pattern: str
    reason: str
    same_as: str = ""


def _dense(
    part: str, original: str, huggingface: str, rows: str, columns: str
) -> tuple[Weight, Weight]:
    return (
        Weight(part, f"{original}/kernel", (rows, columns), f"{huggingface}.weight", True),
        Weight(part, f"{original}/bias", (columns,), f"{huggingface}.bias"),
    )


def _layer_norm(part: str, original: str, huggingface: str) -> tuple[Weight, Weight]:
    return (
        Weight(part, f"{original}/gamma", ("hidden_size",), f"{huggingface}.weight"),
        Weight(part, f"{original}/beta", ("hidden_size",), f"{huggingface}.bias"),
    )


_H = "hidden_size"
_O = "bert/encoder/layer_{layer}"
_F = "bert.encoder.layer.{layer}"

WEIGHTS: tuple[Weight, ...] = (
    Weight(
        ENCODER,
        "bert/embeddings/word_embeddings",
        ("vocab_size", _H),
        "bert.embeddings.word_embeddings.weight",
    ),
    Weight(
        ENCODER,
        "bert/embeddings/token_type_embeddings",
        ("type_vocab_size", _H),
        "bert.embeddings.token_type_embeddings.weight",
    ),
    Weight(
        ENCODER,
        "bert/embeddings/position_embeddings",
        ("max_position_embeddings", _H),
        "bert.embeddings.position_embeddings.weight",
    ),
    *_layer_norm(ENCODER, "bert/embeddings/LayerNorm", "bert.embeddings.LayerNorm"),
    *_dense(ENCODER, f"{_O}/attention/self/query", f"{_F}.attention.self.query", _H, _H),
    *_dense(ENCODER, f"{_O}/attention/self/key", f"{_F}.attention.self.key", _H, _H),
    *_dense(ENCODER, f"{_O}/attention/self/value", f"{_F}.attention.self.value", _H, _H),
    *_dense(ENCODER, f"{_O}/attention/output/dense", f"{_F}.attention.output.dense", _H, _H),
    *_layer_norm(ENCODER, f"{_O}/attention/output/LayerNorm", f"{_F}.attention.output.LayerNorm"),
    *_dense(
        ENCODER, f"{_O}/intermediate/dense", f"{_F}.intermediate.dense", _H, "intermediate_size"
    ),
    *_dense(ENCODER, f"{_O}/output/dense", f"{_F}.output.dense", "intermediate_size", _H),
    *_layer_norm(ENCODER, f"{_O}/output/LayerNorm", f"{_F}.output.LayerNorm"),
    *_dense(POOLER, "bert/pooler/dense", "bert.pooler.dense", _H, _H),
    *_dense(
        MASKED_LM, "cls/predictions/transform/dense", "cls.predictions.transform.dense", _H, _H
    ),
    *_layer_norm(
        MASKED_LM, "cls/predictions/transform/LayerNorm", "cls.predictions.transform.LayerNorm"
    ),
    Weight(MASKED_LM, "cls/predictions/output_bias", ("vocab_size",), "cls.predictions.bias"),
    Weight(
        NEXT_SENTENCE,
        "cls/seq_relationship/output_weights",
        (2, _H),
        "cls.seq_relationship.weight",
    ),
    Weight(NEXT_SENTENCE, "cls/seq_relationship/output_bias", (2,), "cls.seq_relationship.bias"),
    Weight(CLASSIFIER, "output_weights", ("num_labels", _H), "classifier.weight"),
    Weight(CLASSIFIER, "output_bias", ("num_labels",), "classifier.bias"),
    Weight(SQUAD, "cls/squad/output_weights", (2, _H), "qa_outputs.weight"),
    Weight(SQUAD, "cls/squad/output_bias", (2,), "qa_outputs.bias"),
)

# Parts of heads that the original does not have; no other layout has a place for them.
OWN_HEADS = ("bilstm/*", "layer_mix/*")

# Never taken as a model's weights, whatever file they come from.
EXCLUDED_ORIGINAL: tuple[Exclusion, ...] = (
    Exclusion("*/adam_m", "slot of the optimizer"),
    Exclusion("*/adam_v", "slot of the optimizer"),
    Exclusion(GLOBAL_STEP, "step of the run that wrote the checkpoint"),
)

EXCLUDED_HUGGINGFACE: tuple[Exclusion, ...] = (
    Exclusion("bert.embeddings.position_ids", "the numbers 0, 1, 2, ..., not a weight"),
    Exclusion("bert.embeddings.token_type_ids", "zeros, not a weight"),
    Exclusion(
        "cls.predictions.decoder.weight",
        "tied: the word embeddings once more",
        same_as="bert.embeddings.word_embeddings.weight",
    ),
    Exclusion(
        "cls.predictions.decoder.bias",
        "tied: cls.predictions.bias once more",
        same_as="cls.predictions.bias",
    ),
)

# Ends of Hugging Face names in files converted before 2019.
_OLD_ENDS = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}

_LAYER = re.compile(r"(?<=encoder/layer_)\d+|(?<=encoder\.layer\.)\d+")
_BY_ORIGINAL = {weight.original: weight for weight in WEIGHTS}
_BY_HUGGINGFACE = {weight.huggingface: weight for weight in WEIGHTS}


def excluded(name: str, exclusions: Iterable[Exclusion]) -> Exclusion | None:
    """The first exclusion that fits a name."""
    for exclusion in exclusions:
        if fnmatch.fnmatchcase(name, exclusion.pattern):
            return exclusion
    return None


def slot_names(name: str) -> tuple[str, ...]:
    """The names of the optimizer's slots of a weight."""
    return tuple(f"{name}/{slot}" for slot in SLOTS)


def is_slot(name: str) -> bool:
    """Whether a name is that of a slot of the optimizer."""
    return name.rpartition("/")[2] in SLOTS


def complete_huggingface_name(name: str) -> str:
    """The name as this table has it: with the `bert.` prefix, and no gamma or beta."""
    for old, new in _OLD_ENDS.items():
        if name.endswith(old):
            name = name[: -len(old)] + new
    if name.startswith(("embeddings.", "encoder.", "pooler.")):
        name = "bert." + name
    return name


def from_huggingface(name: str) -> tuple[str, bool] | None:
    """The original's name for a Hugging Face tensor, and whether to transpose it.

    None where the table has no such tensor.
    """
    return _translate(complete_huggingface_name(name), _BY_HUGGINGFACE, "original")


def to_huggingface(name: str) -> tuple[str, bool] | None:
    """Hugging Face's name for one of the original's variables, and whether to transpose it.

    None where the table has no such variable.
    """
    return _translate(name, _BY_ORIGINAL, "huggingface")


def _translate(name: str, table: dict[str, Weight], column: str) -> tuple[str, bool] | None:
    layer = _LAYER.search(name)
    weight = table.get(_LAYER.sub("{layer}", name, count=1))
    if weight is None:
        return None
    translated = getattr(weight, column)
    if layer:
        translated = translated.replace("{layer}", layer.group())
    return translated, weight.transposed


def part_of(name: str) -> str | None:
    """The part that one of the original's variables belongs to; None for an unknown name."""
    weight = _BY_ORIGINAL.get(_LAYER.sub("{layer}", name, count=1))
    return weight.part if weight else None


def is_own(name: str) -> bool:
    """Whether a name is that of a weight of a head that the original does not have."""
    return not is_slot(name) and any(fnmatch.fnmatchcase(name, each) for each in OWN_HEADS)


def heads_in(original_names: Iterable[str]) -> tuple[str, ...]:
    """The heads of which at least one weight is among the names, in the order of HEADS."""
    parts = {part_of(name) for name in original_names}
    return tuple(head for head in HEADS if head in parts)


def is_multiple_choice(shapes: Mapping[str, tuple[int, ...]]) -> bool:
    """Whether shapes by the original's names have a head for multiple choice.

    That is a classifier's weights of one row, without a bias.
    """
    rows = shapes.get("output_weights", (0,))[0]
    return rows == 1 and "output_bias" not in shapes


def expected_names_and_shapes(
    config: BertConfig,
    heads: Iterable[str] = (),
    num_labels: int | None = None,
    pooler: bool = True,
    optimizer: bool = False,
) -> dict[str, tuple[int, ...]]:
    """What a checkpoint of a model holds, in the order in which the original made it.

    Args:
        config: sizes of the model.
        heads: which of HEADS it has.
        num_labels: rows of the classifier's weights; needed with CLASSIFIER.
        pooler: whether it has the pooler.
        optimizer: also two slots for each weight, and global_step, as in a training run where
            every weight has a gradient.

    Returns:
        shapes by the original's names.
    """
    parts = {ENCODER, *heads} | ({POOLER} if pooler else set())
    unknown = parts - {ENCODER, POOLER, *HEADS}
    if unknown:
        raise ValueError(f"Unknown heads {sorted(unknown)}; there are {', '.join(HEADS)}.")
    if CLASSIFIER in parts and num_labels is None:
        raise ValueError("The number of labels is needed for a classifier's weights.")
    sizes = {**dataclasses.asdict(config), "num_labels": num_labels}

    def shape_of(weight: Weight) -> tuple[int, ...]:
        return tuple(size if isinstance(size, int) else sizes[size] for size in weight.shape)

    shapes: dict[str, tuple[int, ...]] = {}
    in_layers = [weight for weight in WEIGHTS if "{layer}" in weight.original]
    for weight in WEIGHTS:
        if weight.part not in parts or weight in in_layers[1:]:
            continue
        if weight is not in_layers[0]:
            shapes[weight.original] = shape_of(weight)
            continue
        for layer in range(config.num_hidden_layers):
            for inner in in_layers:
                shapes[inner.original.replace("{layer}", str(layer))] = shape_of(inner)
    if optimizer:
        for name, shape in list(shapes.items()):
            shapes.update(dict.fromkeys(slot_names(name), shape))
        shapes[GLOBAL_STEP] = ()
    return shapes
