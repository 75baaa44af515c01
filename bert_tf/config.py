"""BertConfig: the sizes and rates of a model, validated, with its JSON form.

Reads and writes the original's bert_config.json, and the config.json of Hugging Face folders.
"""

from __future__ import annotations

import dataclasses
import json
import math
import numbers
from collections.abc import Mapping
from typing import Any

from bert_tf import paths

# `gelu` is the tanh form, as in the original; `gelu_erf` is the exact one.
HIDDEN_ACTS = ("gelu", "gelu_erf", "relu", "tanh", "linear")

# Keys of the released bert_config.json files that the original itself never reads.
_UNUSED_ORIGINAL_KEYS = frozenset(
    {
        "directionality",
        "pooler_fc_size",
        "pooler_num_attention_heads",
        "pooler_num_fc_layers",
        "pooler_size_per_head",
        "pooler_type",
    }
)

# Keys of a Hugging Face config.json that do not change what the encoder computes. Those that
# could are in _HUGGINGFACE_REQUIRED; a key in neither is refused.
_UNUSED_HUGGINGFACE_KEYS = _UNUSED_ORIGINAL_KEYS | frozenset(
    {
        "architectures",
        "attn_implementation",
        "bos_token_id",
        "chunk_size_feed_forward",
        "classifier_dropout",
        "cls_token_id",
        "dtype",
        "embedding_size",
        "eos_token_id",
        "finetuning_task",
        "gradient_checkpointing",
        "id2label",
        "label2id",
        "language",
        "mask_token_id",
        "name",
        "num_labels",
        "output_attentions",
        "output_hidden_states",
        "output_past",
        "pad_token_id",
        "problem_type",
        "return_dict",
        "sep_token_id",
        "summary_activation",
        "summary_first_dropout",
        "summary_proj_to_labels",
        "summary_type",
        "summary_use_proj",
        "task_specific_params",
        "tokenizer_class",
        "torch_dtype",
        "torchscript",
        "transformers_version",
        "use_bfloat16",
        "use_cache",
        "use_return_dict",
        "vocab_file",
    }
)

# What other values of these keys would mean is not built here.
_HUGGINGFACE_REQUIRED: dict[str, tuple[Any, ...]] = {
    "model_type": ("bert",),
    "position_embedding_type": ("absolute",),
    "add_cross_attention": (False,),
    "cross_attention_hidden_size": (None,),
    "is_encoder_decoder": (False,),
    "pruned_heads": (None, {}),
    "tie_word_embeddings": (True,),
}

# Any of these marks a file as Hugging Face's, whatever it is called.
_HUGGINGFACE_MARKS = ("model_type", "architectures", "transformers_version")

_ACT_FROM_HUGGINGFACE = {
    "gelu": "gelu_erf",
    "gelu_python": "gelu_erf",
    "gelu_new": "gelu",
    "gelu_fast": "gelu",
    "gelu_pytorch_tanh": "gelu",
    "gelu_python_tanh": "gelu",
    "gelu_accurate": "gelu",
    "relu": "relu",
    "tanh": "tanh",
    "linear": "linear",
}
_ACT_TO_HUGGINGFACE = {
    "gelu": "gelu_new",
    "gelu_erf": "gelu",
    "relu": "relu",
    "tanh": "tanh",
    "linear": "linear",
}

_DEFAULT_LAYER_NORM_EPS = 1e-12


@dataclasses.dataclass(frozen=True)
class BertConfig:
    """Sizes and rates of a BERT model. Immutable; every value is checked on construction.

    Args:
        vocab_size: number of word pieces, V.
        hidden_size: width of the encoder, H; a multiple of num_attention_heads.
        num_hidden_layers: number of transformer layers.
        num_attention_heads: attention heads a layer, N.
        intermediate_size: width of the feed-forward layer.
        hidden_act: "gelu" (tanh form), "gelu_erf", "relu", "tanh" or "linear".
        hidden_dropout_prob: dropout of the hidden layers, in [0, 1).
        attention_probs_dropout_prob: dropout of the attention weights, in [0, 1).
        max_position_embeddings: the longest sequence the model can take.
        type_vocab_size: number of segment ids.
        initializer_range: standard deviation of the weights' initialisation.
        layer_norm_eps: epsilon of every LayerNorm. Not a key of the original's files; written
            only where it is not 1e-12.
        causal_attention: every token sees itself and those before it alone (section 5.1 of the
            paper, "LTR"); the pooler then reads the last token. Not a key of the original's files;
            written only where it is true.

    Raises:
        ValueError: a value has the wrong type or is out of range; names the key, what was
            expected and what was found.

    Example:
        >>> BertConfig(vocab_size=30522).replace(num_hidden_layers=6).num_hidden_layers
        6
    """

    vocab_size: int
    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    intermediate_size: int = 3072
    hidden_act: str = "gelu"
    hidden_dropout_prob: float = 0.1
    attention_probs_dropout_prob: float = 0.1
    max_position_embeddings: int = 512
    type_vocab_size: int = 16
    initializer_range: float = 0.02
    layer_norm_eps: float = _DEFAULT_LAYER_NORM_EPS
    causal_attention: bool = False

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.name == "hidden_act":
                value = _check_hidden_act(value)
            elif field.type == "bool":
                if not isinstance(value, bool):
                    raise ValueError(f"{field.name}: expected true or false, found {_show(value)}.")
            elif field.name.endswith("_prob"):
                value = _check_float(field.name, value, "a number in [0, 1)", below_one=True)
            elif field.type == "float":
                positive = field.name == "layer_norm_eps"
                expected = "a number above 0" if positive else "a number of at least 0"
                value = _check_float(field.name, value, expected, positive=positive)
            else:
                value = _check_positive_int(field.name, value)
            object.__setattr__(self, field.name, value)
        if self.hidden_size % self.num_attention_heads:
            raise ValueError(
                f"hidden_size: expected a multiple of num_attention_heads "
                f"({self.num_attention_heads}), found {self.hidden_size}."
            )

    def replace(self, **changes: Any) -> BertConfig:
        """A copy with the given fields changed, checked again."""
        unknown = sorted(set(changes) - _FIELD_NAMES)
        if unknown:
            raise ValueError(f"BertConfig has no field named {', '.join(unknown)}.")
        return dataclasses.replace(self, **changes)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> BertConfig:
        """Builds a configuration from the keys of the original's bert_config.json.

        Raises:
            ValueError: vocab_size is missing, a key is unknown, or a value is wrong.
        """
        _check_is_mapping(values)
        known = {key: value for key, value in values.items() if key in _FIELD_NAMES}
        unknown = sorted(set(values) - _FIELD_NAMES - _UNUSED_ORIGINAL_KEYS)
        if unknown:
            raise ValueError(_unknown_keys_message(unknown, "bert_config.json"))
        _check_has_vocab_size(known)
        return cls(**known)

    @classmethod
    def from_huggingface(cls, values: Mapping[str, Any]) -> BertConfig:
        """Builds a configuration from the keys of a Hugging Face config.json.

        Their `gelu` is the exact form and becomes "gelu_erf"; `gelu_new`, `gelu_fast` and
        `gelu_pytorch_tanh` become "gelu".

        Raises:
            ValueError: not a BERT encoder with absolute positions, a key is unknown, or a value
                is wrong.
        """
        _check_is_mapping(values)
        for key, allowed in _HUGGINGFACE_REQUIRED.items():
            if key in values and values[key] not in allowed:
                raise ValueError(
                    f"{key}: expected {_show(allowed[0])}, found {_show(values[key])}; only BERT "
                    f"encoders with absolute positions can be read."
                )
        unknown = sorted(
            key
            for key in set(values) - _FIELD_NAMES - _UNUSED_HUGGINGFACE_KEYS
            if key not in (*_HUGGINGFACE_REQUIRED, "is_decoder") and not key.startswith("_")
        )
        if unknown:
            raise ValueError(_unknown_keys_message(unknown, "config.json"))
        # Where the key is absent, transformers takes 2 and not the original's 16.
        known = {"type_vocab_size": 2, "hidden_act": "gelu"}
        known.update({key: value for key, value in values.items() if key in _FIELD_NAMES})
        _check_has_vocab_size(known)
        # A decoder of theirs without an encoder is this encoder with a causal mask.
        known["causal_attention"] = values.get("is_decoder", False)
        act = known["hidden_act"]
        if act not in _ACT_FROM_HUGGINGFACE:
            raise ValueError(
                f"hidden_act: expected one of {', '.join(sorted(_ACT_FROM_HUGGINGFACE))}, "
                f"found {_show(act)}."
            )
        known["hidden_act"] = _ACT_FROM_HUGGINGFACE[act]
        return cls(**known)  # type: ignore[arg-type]

    @classmethod
    def from_json_file(cls, path: str) -> BertConfig:
        """Reads bert_config.json, or a Hugging Face config.json (told by its own keys).

        Raises:
            FileNotFoundError: there is no such file.
            ValueError: not JSON, or not a valid configuration; names the file and the key.
        """
        values = paths.read_json(path)
        try:
            if any(mark in values for mark in _HUGGINGFACE_MARKS):
                return cls.from_huggingface(values)
            return cls.from_dict(values)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None

    def to_dict(self) -> dict[str, Any]:
        """The original's keys and values; keys of our own only where they change something."""
        values = dataclasses.asdict(self)
        if self.layer_norm_eps == _DEFAULT_LAYER_NORM_EPS:
            del values["layer_norm_eps"]
        if not self.causal_attention:
            del values["causal_attention"]
        return values

    def to_huggingface(self) -> dict[str, Any]:
        """The keys and values of a Hugging Face config.json, without "architectures"."""
        values = dataclasses.asdict(self)
        values["hidden_act"] = _ACT_TO_HUGGINGFACE[self.hidden_act]
        if values.pop("causal_attention"):
            values["is_decoder"] = True
        values.update(model_type="bert", pad_token_id=0, position_embedding_type="absolute")
        return values

    def to_json_file(self, path: str) -> None:
        """Writes bert_config.json: the original's keys, sorted, two spaces of indent."""
        paths.write_json(path, self.to_dict())


_FIELD_NAMES = frozenset(field.name for field in dataclasses.fields(BertConfig))


def _show(value: Any) -> str:
    text = json.dumps(value, default=repr)
    return text if len(text) <= 60 else text[:57] + "..."


def _check_is_mapping(values: Any) -> None:
    if not isinstance(values, Mapping):
        raise ValueError(f"A configuration must be a mapping, found {_show(values)}.")


def _check_has_vocab_size(known: Mapping[str, Any]) -> None:
    if "vocab_size" not in known:
        raise ValueError(
            "vocab_size: expected a whole number of at least 1, found no such key "
            "(it is the number of lines of vocab.txt)."
        )


def _unknown_keys_message(unknown: list[str], file_kind: str) -> str:
    return (
        f"unknown key{'s' if len(unknown) > 1 else ''} {', '.join(unknown)}; expected only those "
        f"of {file_kind}: {', '.join(sorted(_FIELD_NAMES))}. Correct the spelling, or remove a "
        f"key that does not change the model."
    )


def _check_hidden_act(value: Any) -> str:
    # The original takes no activation for linear, and any case.
    if value is None or value == "":
        return "linear"
    if isinstance(value, str) and value.lower() in HIDDEN_ACTS:
        return value.lower()
    raise ValueError(f"hidden_act: expected one of {', '.join(HIDDEN_ACTS)}, found {_show(value)}.")


def _check_positive_int(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < 1:
        raise ValueError(f"{name}: expected a whole number of at least 1, found {_show(value)}.")
    return int(value)


def _check_float(
    name: str, value: Any, expected: str, below_one: bool = False, positive: bool = False
) -> float:
    number = math.nan
    if isinstance(value, numbers.Real) and not isinstance(value, bool):
        number = float(value)
    # Not a number fails every comparison.
    lowest_fits = number > 0 if positive else number >= 0
    if not (lowest_fits and number < (1 if below_one else math.inf)):
        raise ValueError(f"{name}: expected {expected}, found {_show(value)}.")
    return number
