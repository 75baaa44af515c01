"""Hugging Face folders: config.json, model.safetensors, vocab.txt, tokenizer_config.json."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

import ml_dtypes  # noqa: F401 - gives numpy its bfloat16
import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from bert_tf import paths
from bert_tf.checkpoint import names
from bert_tf.checkpoint.original import CheckpointError
from bert_tf.config import BertConfig

CONFIG_FILE = "config.json"
WEIGHTS_FILE = "model.safetensors"
TORCH_FILE = "pytorch_model.bin"
INDEX_FILE = "model.safetensors.index.json"
TOKENIZER_CONFIG_FILE = "tokenizer_config.json"

_SPECIAL_TOKENS = {
    "unk_token": "[UNK]",
    "sep_token": "[SEP]",
    "pad_token": "[PAD]",
    "cls_token": "[CLS]",
    "mask_token": "[MASK]",
}
_DTYPES = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "I64": "int64",
    "I32": "int32",
    "I16": "int16",
    "I8": "int8",
    "U64": "uint64",
    "U32": "uint32",
    "U16": "uint16",
    "U8": "uint8",
    "BOOL": "bool",
}

# Both have a classifier's weights; what they are of is told from elsewhere.
_TOKEN_CLASSIFICATION = "BertForTokenClassification"
_MULTIPLE_CHOICE = "BertForMultipleChoice"
_CHOICE_BIAS = "classifier.bias"
# The masked LM from left to right.
_CAUSAL_LM = "BertLMHeadModel"

# What a task.json of run_classifier.py calls the kind of task.
_PROBLEM_TYPES = {
    "classification": "single_label_classification",
    "multilabel": "multi_label_classification",
    "regression": "regression",
}
_KINDS = {
    **{theirs: ours for ours, theirs in _PROBLEM_TYPES.items()},
    _TOKEN_CLASSIFICATION: "tagging",
    _MULTIPLE_CHOICE: "choice",
}

# The first whose heads are all there names the class that transformers loads by default.
_ARCHITECTURES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("BertForSequenceClassification", (names.CLASSIFIER,)),
    ("BertForQuestionAnswering", (names.SQUAD,)),
    ("BertForPreTraining", (names.MASKED_LM, names.NEXT_SENTENCE)),
    ("BertForMaskedLM", (names.MASKED_LM,)),
    ("BertForNextSentencePrediction", (names.NEXT_SENTENCE,)),
    ("BertModel", ()),
)
_WITHOUT_POOLER = frozenset(
    {_TOKEN_CLASSIFICATION, "BertForQuestionAnswering", "BertForMaskedLM", _CAUSAL_LM}
)


def is_folder(path: str) -> bool:
    """Whether `path` is a folder with a config.json and weights in one of the usual files."""
    return (
        paths.is_dir(path)
        and paths.exists(paths.join(path, CONFIG_FILE))
        and any(
            paths.exists(paths.join(path, name)) for name in (WEIGHTS_FILE, INDEX_FILE, TORCH_FILE)
        )
    )


class Reader:
    """Reads the weights of a folder under the original's names, transposed to its layout.

    A tensor that the table does not know keeps its own name; one of names.EXCLUDED_HUGGINGFACE
    is left out. bfloat16 and float16 are read as float32.

    Args:
        folder: a folder with model.safetensors, whole or in shards.

    Attributes:
        folder: as given.
        shapes: shape of each weight by the original's name.
        dtypes: dtype of each weight in the file, in numpy's names.
        places: the file of each weight and its name there, by the original's name.
        left_out: reason by Hugging Face name of each tensor left out.

    Raises:
        FileNotFoundError: a file is missing.
        CheckpointError: a file is cut short or corrupt, or only PyTorch's own format is there,
            or the MLM decoder is not tied to the word embeddings.
    """

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.dtypes: dict[str, str] = {}
        self.places: dict[str, tuple[str, str]] = {}
        self.left_out: dict[str, str] = {}
        self._sources: dict[str, tuple[Any, str, bool]] = {}
        # Files copied from elsewhere live as long as the reader does.
        self._stack = contextlib.ExitStack()
        stored: dict[str, tuple[Any, str]] = {}
        files: dict[str, str] = {}
        for file in _weight_files(folder):
            opened = self._open(file)
            for name in opened.keys():  # noqa: SIM118 - not a mapping
                stored[names.complete_huggingface_name(name)] = (opened, name)
                files[name] = file
        bias, alias = "cls.predictions.bias", "cls.predictions.decoder.bias"
        if alias in stored and bias not in stored:
            stored[bias] = stored.pop(alias)
        if _CHOICE_BIAS in stored and _MULTIPLE_CHOICE in _architectures(folder):
            _, theirs = stored.pop(_CHOICE_BIAS)
            self.left_out[theirs] = "the same for every choice"
        for name in sorted(stored):
            self._add(name, stored)
        self.places = {
            name: (files[theirs], theirs) for name, (_, theirs, _) in self._sources.items()
        }

    def _open(self, file: str) -> Any:
        local = paths.local(file)
        if paths.has_scheme(file):
            folder = self._stack.enter_context(tempfile.TemporaryDirectory(prefix="bert_tf_"))
            local = os.path.join(folder, paths.basename(file))
            paths.copy(file, local)
        try:
            return safe_open(local, framework="numpy")
        except (SafetensorError, OSError) as error:
            raise CheckpointError(
                f"{file} ({paths.size(file)} bytes) is cut short or corrupt: {error}. Copy or "
                f"download it again."
            ) from None

    def _add(self, name: str, stored: Mapping[str, tuple[Any, str]]) -> None:
        opened, stored_name = stored[name]
        exclusion = names.excluded(name, names.EXCLUDED_HUGGINGFACE)
        if exclusion:
            if exclusion.same_as in stored:
                other, other_name = stored[exclusion.same_as]
                if not np.array_equal(opened.get_tensor(stored_name), other.get_tensor(other_name)):
                    raise CheckpointError(
                        f"{self.folder}: {name} is not the same as {exclusion.same_as}; BERT ties "
                        f"the two, a model with both cannot be read."
                    )
            self.left_out[stored_name] = exclusion.reason
            return
        ours, transposed = names.from_huggingface(name) or (stored_name, False)
        view = opened.get_slice(stored_name)
        shape = tuple(view.get_shape())
        self.shapes[ours] = shape[::-1] if transposed else shape
        self.dtypes[ours] = _DTYPES.get(view.get_dtype(), view.get_dtype().lower())
        self._sources[ours] = (opened, stored_name, transposed)

    def get(self, name: str) -> np.ndarray:
        """One weight by the original's name, in the original's layout.

        Raises:
            KeyError: there is no such weight.
        """
        if name not in self._sources:
            raise KeyError(f"{self.folder} has no weight {name}.")
        opened, stored_name, transposed = self._sources[name]
        array = opened.get_tensor(stored_name)
        if array.dtype.name in ("float16", "bfloat16"):
            array = array.astype(np.float32)
        return np.ascontiguousarray(array.T) if transposed else array


def _weight_files(folder: str) -> list[str]:
    whole = paths.join(folder, WEIGHTS_FILE)
    if paths.exists(whole):
        return [whole]
    index = paths.join(folder, INDEX_FILE)
    if paths.exists(index):
        weight_map = paths.read_json(index).get("weight_map")
        if not isinstance(weight_map, dict) or not weight_map:
            raise CheckpointError(f"{index}: expected a weight_map of names to files.")
        for name, file in weight_map.items():
            if not isinstance(file, str):
                raise CheckpointError(
                    f"{index}: weight_map: {name}: expected a file name, found {file!r}."
                )
        files = [paths.join(folder, name) for name in sorted(set(weight_map.values()))]
        for file in files:
            if not paths.exists(file):
                raise FileNotFoundError(f"{file} is missing, though {index} lists it.")
        return files
    torch_file = paths.join(folder, TORCH_FILE)
    if paths.exists(torch_file):
        raise CheckpointError(
            f"{torch_file} holds the weights in PyTorch's pickle format, which is not read here. "
            f'Convert it where torch and safetensors are installed: python -c "import torch, '
            f"safetensors.torch as s; w = torch.load('{torch_file}', map_location='cpu', "
            f"weights_only=True); s.save_file({{k: v.clone().contiguous() for k, v in w.items()}}, "
            f"'{whole}')\""
        )
    raise FileNotFoundError(f"There is no {WEIGHTS_FILE} in {folder}.")


def _architectures(folder: str) -> list[str]:
    """The classes that a folder's config.json names."""
    path = paths.join(folder, CONFIG_FILE)
    found = paths.read_json(path).get("architectures") if paths.exists(path) else None
    return found if isinstance(found, list) else []


def read_config(folder: str) -> BertConfig:
    """Reads a folder's config.json by Hugging Face's rules (its `gelu` is the exact form).

    Raises:
        FileNotFoundError: there is none.
        ValueError: it is no configuration of a BERT encoder; names the file and the key.
    """
    path = paths.join(folder, CONFIG_FILE)
    values = paths.read_json(path)
    try:
        return BertConfig.from_huggingface(values)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def read_do_lower_case(folder: str) -> bool | None:
    """do_lower_case of a folder's tokenizer_config.json; None where it does not say."""
    path = paths.join(folder, TOKENIZER_CONFIG_FILE)
    if not paths.exists(path):
        return None
    value = paths.read_json(path).get("do_lower_case")
    return value if isinstance(value, bool) else None


def read_task(folder: str) -> tuple[list[str], str]:
    """What a folder's config.json says of a classifier's outputs.

    Returns:
        their labels in order, [] where it names none; and the kind of task, as a task.json of
        run_classifier.py calls it, "" where it does not say.
    """
    path = paths.join(folder, CONFIG_FILE)
    values = paths.read_json(path) if paths.exists(path) else {}
    labels = values.get("id2label")
    named = labels if isinstance(labels, dict) else {}
    ordered = [named.get(str(index)) for index in range(len(named))]
    kinds = [_KINDS.get(name) for name in (*_architectures(folder), values.get("problem_type"))
             if isinstance(name, str)]  # fmt: skip
    return (
        [label for label in ordered if isinstance(label, str)],
        next((kind for kind in kinds if kind), ""),
    )


def read(folder: str) -> tuple[BertConfig, dict[str, np.ndarray]]:
    """Reads a folder whole: its configuration, and its weights by the original's names.

    Raises:
        FileNotFoundError, ValueError: as `Reader` and `read_config`.
    """
    config = read_config(folder)
    reader = Reader(folder)
    return config, {name: reader.get(name) for name in reader.shapes}


def files_of(folder: str) -> list[str]:
    """The files that `write` makes in a folder, vocab.txt included."""
    return [
        paths.join(folder, name)
        for name in ("vocab.txt", TOKENIZER_CONFIG_FILE, CONFIG_FILE, WEIGHTS_FILE)
    ]


def write(
    folder: str,
    config: BertConfig,
    tensors: Mapping[str, Any],
    vocab_file: str | None = None,
    do_lower_case: bool = True,
    labels: Sequence[str] = (),
    kind: str = "",
    strip_accents: bool | None = None,
) -> list[str]:
    """Writes a folder that transformers loads. The weights come first, whole or not at all.

    Where they cannot be written, the other files of a folder that is there stay as they are.

    Args:
        folder: where; it is made.
        config: the model's configuration.
        tensors: values by the original's names, without slots and global_step.
        vocab_file: vocabulary to copy; with None the folder has no tokenizer.
        do_lower_case: for tokenizer_config.json.
        labels: names of a classifier's outputs, in order; LABEL_0 and so on by default.
        kind: what a classifier's weights are for: "classification", "multilabel", "regression" or
            "tagging"; "" if that is not known.
        strip_accents: for tokenizer_config.json; None follows do_lower_case.

    A classifier's weights without a bias are one vector for multiple choice. The class of
    transformers has a bias: it is written as zero, which changes nothing.

    Returns:
        the weights that are not written, as the class that transformers loads has no place for
        them: the pooler, where the head does not read it.

    Raises:
        ValueError: a name is not in the table, or there are not as many labels as outputs.
    """
    unknown = [name for name in tensors if names.to_huggingface(name) is None]
    if unknown:
        raise ValueError(f"Hugging Face has no name for: {', '.join(sorted(unknown))}.")
    heads = names.heads_in(tensors)
    architecture = next(name for name, needs in _ARCHITECTURES if set(needs) <= set(heads))
    stored: dict[str, np.ndarray] = {}
    choice = names.is_multiple_choice({name: np.shape(value) for name, value in tensors.items()})
    if choice:
        architecture = _MULTIPLE_CHOICE
        stored[_CHOICE_BIAS] = np.zeros(1, np.float32)
    elif names.CLASSIFIER in heads and kind == "tagging":
        architecture = _TOKEN_CLASSIFICATION
    elif architecture == "BertForMaskedLM" and config.causal_attention:
        architecture = _CAUSAL_LM
    dropped = []
    for name, value in tensors.items():
        if architecture in _WITHOUT_POOLER and names.part_of(name) == names.POOLER:
            dropped.append(name)
            continue
        theirs, transposed = names.to_huggingface(name) or ("", False)
        if architecture == "BertModel":
            theirs = theirs.removeprefix("bert.")
        # The contiguous copy matters: safetensors writes the memory as it lies.
        stored[theirs] = np.ascontiguousarray(np.asarray(value).T if transposed else value)

    values = config.to_huggingface()
    values["architectures"] = [architecture]
    values["dtype"] = "float32"
    if names.CLASSIFIER in heads and not choice:
        count = np.shape(tensors["output_bias"])[0]
        labels = labels or [f"LABEL_{index}" for index in range(count)]
        if len(labels) != count:
            raise ValueError(f"There are {len(labels)} labels, but {count} outputs.")
        values["id2label"] = {str(index): label for index, label in enumerate(labels)}
        values["label2id"] = {label: index for index, label in enumerate(labels)}
        if kind in _PROBLEM_TYPES:
            values["problem_type"] = _PROBLEM_TYPES[kind]

    paths.make_dirs(folder)
    # A new configuration beside old weights would pass for a model.
    with paths.atomic_write(paths.join(folder, WEIGHTS_FILE), "wb") as handle:
        handle.write(save(stored, metadata={"format": "pt"}))
    if vocab_file:
        paths.copy(vocab_file, paths.join(folder, "vocab.txt"))
        tokenizer = {
            "tokenizer_class": "BertTokenizer",
            "do_lower_case": do_lower_case,
            "tokenize_chinese_chars": True,
            "strip_accents": strip_accents,
            "model_max_length": config.max_position_embeddings,
            **_SPECIAL_TOKENS,
        }
        paths.write_json(paths.join(folder, TOKENIZER_CONFIG_FILE), tokenizer)
    paths.write_json(paths.join(folder, CONFIG_FILE), values)
    return dropped
