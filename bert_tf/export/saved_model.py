"""From the output folder of a run to a SavedModel.

It is written beside its place and renamed when it is whole. docs/export.md has its signatures.
"""

import contextlib
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import tensorflow as tf

import bert_tf
from bert_tf import paths, predictor
from bert_tf.checkpoint import names, restore
from bert_tf.export import answers, heads, tags
from bert_tf.export.network import FEATURES, WEIGHTS_DTYPES, Network
from bert_tf.modeling.encoder import BertEncoder
from bert_tf.predictor import folder, masks
from bert_tf.tokenization import BertTokenizer
from bert_tf.tokenization.in_graph import InGraphTokenizer
from data_prep.tasks import word_features

INFO_FILE = "export.json"
# Where a SavedModel keeps what it does not read itself.
EXTRA_FOLDER = "assets.extra"
ONNX_FILE = "model.onnx"

_SAVED_MODEL_FILE = "saved_model.pb"


class _Source(NamedTuple):
    """What is exported: a trained model of a kind, and what belongs to it."""

    kind: str
    model: Any
    tokenizer: BertTokenizer
    vocab_file: str
    settings: Mapping[str, Any]
    max_seq_length: int
    has_pooler: bool = True


def export(
    model_dir: str,
    export_dir: str,
    weights_dtype: str = "float32",
    features: bool = False,
    overwrite: bool = False,
    onnx: bool = False,
) -> dict[str, Any]:
    """Writes a trained model as a SavedModel with two signatures, for texts and for ids.

    Args:
      model_dir: as for `predictor.load`, or any checkpoint of an encoder.
      export_dir: the folder to write; it must not be there, or be empty.
      weights_dtype: "float32", "bfloat16" or "int8": how tables and kernels are stored. All is
        computed in float32.
      features: export the encoder, whatever head there is. A checkpoint without a head is
        exported so in any case.
      overwrite: replace a SavedModel in export_dir.
      onnx: also write the signature for ids as an ONNX model, into assets.extra.

    Returns:
      what is written to assets/export.json: kind, labels, max_seq_length and so on.

    Raises:
      FileNotFoundError: there is no checkpoint, or a file that belongs to it is missing.
      ValueError: a file is wrong, export_dir is not empty, or the vocabulary cannot be used in a
        graph; says which.
      ImportError: tensorflow-text, or tf2onnx for `onnx`, is missing.
    """
    if weights_dtype not in WEIGHTS_DTYPES:
        raise ValueError(
            f"weights_dtype is {weights_dtype!r}; it must be one of {', '.join(WEIGHTS_DTYPES)}."
        )
    if onnx:
        if weights_dtype != "float32":
            raise ValueError(
                f"The ONNX model has float32 weights: it does not go with {weights_dtype}."
            )
        _tf2onnx()
    _check_target(model_dir, export_dir, overwrite)
    source = _open(model_dir, features)
    if onnx and source.kind == "tagging" and source.settings.get("feature_based", "off") != "off":
        raise ValueError(
            f"{model_dir}: a tagger of --feature_based has no ONNX model, as it is two: one of "
            "tokens and one of words. Leave out --onnx."
        )
    # Refuses what a graph cannot tokenize, before anything is computed.
    try:
        graph = InGraphTokenizer(source.tokenizer)
    except ValueError as error:
        raise ValueError(f"{source.vocab_file}: {error}") from None
    network = Network(source.model, weights_dtype, source.model.config.max_position_embeddings)
    signatures = _signatures(source, network, graph)
    info = _info(source, weights_dtype, signatures)
    with _aside(export_dir, overwrite) as target:
        module = tf.Module()
        module.weights, module.tokenizer = network.weights, graph
        with tempfile.TemporaryDirectory(prefix="bert_tf_") as assets:
            info_file = os.path.join(assets, INFO_FILE)
            vocab_file = os.path.join(assets, restore.VOCAB_FILE)
            paths.write_json(info_file, info)
            paths.copy(source.vocab_file, vocab_file)
            module.assets = [tf.saved_model.Asset(info_file), tf.saved_model.Asset(vocab_file)]
            tf.saved_model.save(module, target, signatures=signatures)
        if onnx:
            _write_onnx(source, network, os.path.join(target, EXTRA_FOLDER))
    return info


# Reading.


def _open(model_dir: str, features: bool) -> _Source:
    is_run = any(
        paths.exists(paths.join(model_dir, name))
        for name in (predictor.TASK_FILE, predictor.SQUAD_FILE)
    )
    if not features and not is_run:
        checkpoint = restore.load(masks.checkpoint_of(model_dir))
        features = names.MASKED_LM not in names.heads_in(checkpoint.shapes)
    if features:
        return _open_encoder(model_dir)
    loaded: Any = predictor.load(model_dir)
    vocab_file = paths.join(model_dir, restore.VOCAB_FILE)
    if loaded.kind == "masked_lm":
        found = restore.load(masks.checkpoint_of(model_dir)).vocab_file
        assert found is not None
        limit = loaded.model.config.max_position_embeddings
        settings = {"top_k": loaded.top_k}
        return _Source(loaded.kind, loaded.model, loaded.tokenizer, found, settings, limit)
    settings = loaded.settings if loaded.kind == "question_answering" else loaded.task
    return _Source(
        loaded.kind,
        loaded.model,
        loaded.tokenizer,
        vocab_file,
        settings,
        settings["max_seq_length"],
    )


def _open_encoder(model_dir: str) -> _Source:
    checkpoint = restore.load(masks.checkpoint_of(model_dir))
    config, vocab_file = checkpoint.config, checkpoint.vocab_file
    if config is None or vocab_file is None:
        missing = restore.VOCAB_FILE if config else restore.ORIGINAL_CONFIG_FILE
        raise FileNotFoundError(
            f"There is no {missing} beside the checkpoint {checkpoint.prefix}: put it there."
        )
    settings: dict[str, Any] = {"strip_accents": None, "never_split": []}
    for name in (predictor.TASK_FILE, predictor.SQUAD_FILE):
        path = paths.join(model_dir, name)
        if paths.exists(path):
            settings.update(paths.read_json(path))
    if "do_lower_case" not in settings:
        lower = checkpoint.do_lower_case
        settings["do_lower_case"] = masks._is_uncased(vocab_file) if lower is None else lower
    encoder = BertEncoder(config, name="bert")
    encoder.build()
    folder.set_weights(
        encoder, checkpoint, ("bert/pooler/*",), ("cls/*", "output_*", "bilstm/*", "layer_mix/*")
    )
    return _Source(
        "features",
        encoder,
        folder.make_tokenizer(checkpoint, settings),
        vocab_file,
        settings,
        config.max_position_embeddings,
        "bert/pooler/dense/kernel" in checkpoint.shapes,
    )


# Signatures.


def _signatures(source: _Source, network: Network, graph: InGraphTokenizer) -> heads.Signatures:
    kind, settings, limit = source.kind, source.settings, source.max_seq_length
    reader = heads.Reader(graph, limit, settings.get("truncation", "longest_first"))
    if kind == "features":
        return heads.features(network, reader, source.has_pooler)
    if kind == "masked_lm":
        tokenizer = source.tokenizer
        return heads.masked_lm(
            network,
            reader,
            tokenizer.mask_id,
            tokenizer.inv_vocab,
            settings["top_k"],
            source.model.config.causal_attention,
        )
    if kind == "choice":
        return heads.multiple_choice(network, reader, settings["task"] == "RACE")
    if kind == "question_answering":
        answerer = answers.Answerer(network, graph, source.tokenizer, settings)
        return answers.question_answering(answerer)
    if kind == "tagging":
        choice = settings.get("feature_based", "off")
        layers: tuple[int | str, ...] = ()
        if choice != "off":
            layers = word_features.layers_of(choice, source.model.config.num_hidden_layers)
        return tags.tagger(
            network,
            graph,
            source.tokenizer,
            limit,
            settings["labels"],
            layers,
            choice == "sum_last_4",
        )
    return heads.classifier(network, reader, kind, settings["labels"])


def _info(source: _Source, weights_dtype: str, signatures: heads.Signatures) -> dict[str, Any]:
    with paths.open_file(source.vocab_file, "rb") as handle:
        checksum = hashlib.sha256(handle.read()).hexdigest()
    described = {}
    for name, function in signatures.items():
        concrete = function.get_concrete_function()
        described[name] = {
            "inputs": [spec.name for spec in function.input_signature],
            "outputs": sorted(concrete.structured_outputs),
        }
    tokenizer = source.tokenizer
    return {
        "bert_tf": bert_tf.__version__,
        "tensorflow": tf.__version__,
        "kind": source.kind,
        "labels": list(source.settings.get("labels", ())),
        "max_seq_length": source.max_seq_length,
        "weights_dtype": weights_dtype,
        "vocab_sha256": checksum,
        "do_lower_case": tokenizer.do_lower_case,
        "strip_accents": tokenizer.strip_accents,
        "never_split": list(tokenizer.never_split),
        "signatures": described,
    }


# Writing.


def _check_target(model_dir: str, export_dir: str, overwrite: bool) -> None:
    if not paths.exists(export_dir):
        return
    if not paths.is_dir(export_dir):
        raise ValueError(f"{export_dir} is a file; name a folder for the SavedModel.")
    if not paths.list_dir(export_dir):
        return
    if not overwrite:
        raise ValueError(
            f"{export_dir} is not empty: name another folder, or give --overwrite to replace the "
            "SavedModel in it."
        )
    # What is replaced is deleted.
    if not paths.exists(paths.join(export_dir, _SAVED_MODEL_FILE)):
        raise ValueError(
            f"{export_dir} holds no SavedModel, so --overwrite does not replace it: name another "
            "folder."
        )
    if not paths.has_scheme(export_dir) and not paths.has_scheme(model_dir):
        inner, outer = (os.path.realpath(paths.local(each)) for each in (model_dir, export_dir))
        if os.path.commonpath([inner, outer]) == outer:
            raise ValueError(f"{export_dir} holds the model {model_dir}: name another folder.")


@contextlib.contextmanager
def _aside(export_dir: str, overwrite: bool) -> Iterator[str]:
    """Yields a local folder, whose files become those of export_dir when the block ends well."""
    if paths.has_scheme(export_dir):
        with tempfile.TemporaryDirectory(prefix="bert_tf_") as temporary:
            yield os.path.join(temporary, "model")
            _upload(os.path.join(temporary, "model"), export_dir)
        return
    target = os.path.realpath(paths.local(export_dir))
    os.makedirs(os.path.dirname(target), exist_ok=True)
    temporary, old = f"{target}.tmp-{os.getpid()}", f"{target}.old-{os.getpid()}"
    try:
        yield temporary
        if overwrite and os.path.isdir(target):
            os.rename(target, old)
        os.rename(temporary, target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        if not os.path.exists(target) and os.path.isdir(old):
            os.rename(old, target)
        shutil.rmtree(old, ignore_errors=True)


def _upload(source: str, export_dir: str) -> None:
    """Copies a folder; the file that makes it a SavedModel comes last."""
    found = [
        os.path.relpath(os.path.join(place, name), source)
        for place, _, files in os.walk(source)
        for name in files
    ]
    paths.remove(paths.join(export_dir, _SAVED_MODEL_FILE))
    for name in sorted(found, key=lambda name: name == _SAVED_MODEL_FILE):
        path = paths.join(export_dir, *name.split(os.sep))
        paths.make_dirs(paths.dirname(path))
        paths.copy(os.path.join(source, name), path)


# ONNX.


def _tf2onnx() -> Any:
    try:
        import tf2onnx
    except ImportError as error:
        raise ImportError(f"--onnx needs tf2onnx ({error}): pip install -e '.[onnx]'") from error
    return tf2onnx


def _write_onnx(source: _Source, network: Network, target: str) -> None:
    """Writes what the signature for ids computes, numbers alone."""
    kind = source.kind
    rank = 3 if kind == "choice" else 2
    more = {"masked_lm": ["masked_lm_positions"]}.get(kind, [])
    wanted = {
        "features": ["sequence_output"] + ["pooled_output"] * source.has_pooler,
        "masked_lm": ["masked_lm_logits"],
        "question_answering": ["start_logits", "end_logits"],
    }.get(kind, ["logits"])

    def call(given: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        if kind == "features":
            outputs = source.model(*(given[name] for name in FEATURES))
        elif kind == "choice":
            is_choice = tf.reduce_max(given["input_mask"], axis=-1)
            outputs = source.model({**given, "choice_mask": is_choice})
        else:
            outputs = source.model(given)
        return {name: outputs[name] for name in wanted}

    signature = heads.ids_signature(rank, *more)

    @tf.function(autograph=False, input_signature=signature)
    def run(*values: tf.Tensor) -> dict[str, tf.Tensor]:
        given = dict(zip((*FEATURES, *more), values, strict=True))
        return network(given, call)

    os.makedirs(target, exist_ok=True)
    _tf2onnx().convert.from_function(
        run, input_signature=signature, opset=17, output_path=os.path.join(target, ONNX_FILE)
    )
