"""Model Garden's checkpoints (tf-models-official): those of its BertEncoder and BertPretrainerV2.

They are object-based: a graph of Python objects, stored as a protocol buffer among the tensors,
says which tensor is whose. Here they are read and written by that graph, with TensorFlow alone.
The values are the original's; only shapes differ:

    query, key, value   kernels [H, N, D] and biases [N, D] for [H, N*D] and [N*D]
    attention output    kernel [N, D, H] for [N*D, H]
    next sentence       kernel [H, 2] for output_weights [2, H]

Letters: H hidden size, N attention heads, D size of a head. Model Garden's GELU is the tanh form,
as the original's, and its LayerNorms have epsilon 1e-12.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from bert_tf import paths
from bert_tf.checkpoint import names, original
from bert_tf.config import BertConfig

PARAMS_FILE = "params.yaml"
# As the converter of Model Garden calls what it writes.
NAME = "bert_model.ckpt-1"

_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"
_VALUE = "VARIABLE_VALUE"
_KEY_END = "/.ATTRIBUTES/VARIABLE_VALUE"
_SHOWN = 10

# The parts of a transformer block: edge by edge in the graph, beside our name. A part's variables
# (kernel, bias, gamma, beta) have the same names in both.
_BLOCK = {
    "_attention_layer/_query_dense": "attention/self/query",
    "_attention_layer/_key_dense": "attention/self/key",
    "_attention_layer/_value_dense": "attention/self/value",
    "_attention_layer/_output_dense": "attention/output/dense",
    "_attention_layer_norm": "attention/output/LayerNorm",
    "_intermediate_dense": "intermediate/dense",
    "_output_dense": "output/dense",
    "_output_layer_norm": "output/LayerNorm",
}
_VARIABLES = ("kernel", "bias", "gamma", "beta")
# The next sentence head that its pre-training makes. Its dense layer is BERT's pooler: the
# encoder's own gets no gradient there.
_NEXT_SENTENCE = "next_sentence"
_NEXT_SENTENCE_POOLER = f"{_NEXT_SENTENCE}.pooler_dense"

_TRANSPOSED = "cls/seq_relationship/output_weights"

# A BertEncoderConfig's keys beside ours, and those of which one value alone is BERT.
_PARAMS = {
    "vocab_size": "vocab_size",
    "hidden_size": "hidden_size",
    "num_layers": "num_hidden_layers",
    "num_attention_heads": "num_attention_heads",
    "hidden_activation": "hidden_act",
    "intermediate_size": "intermediate_size",
    "dropout_rate": "hidden_dropout_prob",
    "attention_dropout_rate": "attention_probs_dropout_prob",
    "max_position_embeddings": "max_position_embeddings",
    "type_vocab_size": "type_vocab_size",
    "initializer_range": "initializer_range",
}
_PARAMS_REQUIRED: dict[str, Any] = {"norm_first": False, "output_range": None}
# What a file that was written by hand may leave out.
_PARAMS_DEFAULTS = {"vocab_size": 30522, "type_vocab_size": 2}


def is_object_based(reader: original.Reader) -> bool:
    """Whether a checkpoint was written by tf.train.Checkpoint rather than by a Saver."""
    return _GRAPH in reader.shapes


class _Graph:
    """The graph of objects of a checkpoint; nodes are numbers, 0 is the root."""

    def __init__(self, reader: original.Reader) -> None:
        from tensorflow.core.protobuf import trackable_object_graph_pb2

        graph = trackable_object_graph_pb2.TrackableObjectGraph()
        try:
            graph.ParseFromString(reader.get(_GRAPH).item())
        except Exception as error:  # Protocol buffers' own class, of a package not declared.
            raise original.CheckpointError(
                f"{reader.prefix}: its graph of objects cannot be read ({error}). Copy or download "
                f"the checkpoint again."
            ) from None
        self._edges = [
            {child.local_name: child.node_id for child in node.children} for node in graph.nodes
        ]
        self._keys = [
            next((each.checkpoint_key for each in node.attributes if each.name == _VALUE), None)
            for node in graph.nodes
        ]

    def edges(self, node: int) -> dict[str, int]:
        return self._edges[node]

    def find(self, node: int | None, *edges: str) -> int | None:
        """The node at the end of a path of edges, or None."""
        for edge in edges:
            node = None if node is None else self._edges[node].get(edge)
        return node

    def key(self, node: int | None) -> str | None:
        """The tensor that holds the values of a node that is a variable."""
        return None if node is None else self._keys[node]

    def keys_below(self, node: int) -> set[str]:
        """The tensors of all variables that a node leads to."""
        found, seen, rest = set(), {node}, [node]
        while rest:
            node = rest.pop()
            key = self._keys[node]
            if key is not None:
                found.add(key)
            new = set(self._edges[node].values()) - seen
            seen |= new
            rest += new
        return found


def _blocks(graph: _Graph, encoder: int | None) -> list[int]:
    """The transformer blocks of an encoder, in order."""
    if encoder is None:
        return []
    listed = graph.find(encoder, "_transformer_layers")
    edges = graph.edges(encoder if listed is None else listed)
    pattern = re.compile(r"layer_with_weights-(\d+)" if listed is None else r"(\d+)")
    numbered = sorted(
        (int(match.group(1)), node)
        for edge, node in edges.items()
        if (match := pattern.fullmatch(edge))
    )
    return [node for _, node in numbered if "_attention_layer" in graph.edges(node)]


def _find_encoder(graph: _Graph) -> int | None:
    """The encoder's node, where Model Garden's tools and training loop put it."""
    for path in (("encoder",), ("model", "encoder_network"), ("model", "_network"), ("model",), ()):
        node = graph.find(0, *path)
        if _blocks(graph, node):
            return node
    return None


def _variables(graph: _Graph, node: int | None, name: str) -> Iterator[tuple[str, str]]:
    """Our name and the tensor of each variable of a dense layer or a LayerNorm."""
    for variable in _VARIABLES:
        key = graph.key(graph.find(node, variable))
        if key is not None:
            yield f"{name}/{variable}", key


def _encoder_keys(graph: _Graph, encoder: int) -> dict[str, str]:
    """Our name -> tensor of an encoder's weights."""
    found: dict[str, str] = {}
    blocks = _blocks(graph, encoder)

    def part(attribute: str, number: int) -> int | None:
        # BertEncoderV2 has the attributes alone, early versions of BertEncoder the numbers alone.
        node = graph.find(encoder, attribute)
        return graph.find(encoder, f"layer_with_weights-{number}") if node is None else node

    tables = ("word", "position", "token_type")
    attributes = ("_embedding_layer", "_position_embedding_layer", "_type_embedding_layer")
    for number, (table, attribute) in enumerate(zip(tables, attributes)):
        key = graph.key(graph.find(part(attribute, number), "embeddings"))
        if key is not None:
            found[f"bert/embeddings/{table}_embeddings"] = key
    norm = part("_embedding_norm_layer", 3)
    found.update(_variables(graph, norm, "bert/embeddings/LayerNorm"))
    for number, block in enumerate(blocks):
        for path, name in _BLOCK.items():
            node = graph.find(block, *path.split("/"))
            found.update(_variables(graph, node, f"bert/encoder/layer_{number}/{name}"))
    pooler = part("_pooler_layer", 4 + len(blocks))
    found.update(_variables(graph, pooler, "bert/pooler/dense"))
    return found


def _head_keys(graph: _Graph) -> dict[str, str]:
    """Our name -> tensor of the heads of pre-training; the pooler too where they have their own."""
    found: dict[str, str] = {}
    masked_lm = graph.find(0, "masked_lm")
    if masked_lm is None:
        masked_lm = graph.find(0, "model", "masked_lm")
    if masked_lm is not None:
        transform = "cls/predictions/transform"
        dense, norm = graph.find(masked_lm, "dense"), graph.find(masked_lm, "layer_norm")
        found.update(_variables(graph, dense, f"{transform}/dense"))
        found.update(_variables(graph, norm, f"{transform}/LayerNorm"))
        key = graph.key(graph.find(masked_lm, "bias"))
        if key is not None:
            found["cls/predictions/output_bias"] = key
    heads = graph.find(0, "model", "classification_heads")
    nodes = [] if heads is None else list(graph.edges(heads).values())
    head = nodes[0] if len(nodes) == 1 else None
    pooler = graph.find(0, _NEXT_SENTENCE_POOLER)
    if pooler is None:
        pooler = graph.find(head, "dense")
    found.update(_variables(graph, pooler, "bert/pooler/dense"))
    for variable, name in (("kernel", "output_weights"), ("bias", "output_bias")):
        key = graph.key(graph.find(head, "out_proj", variable))
        if key is not None:
            found[f"cls/seq_relationship/{name}"] = key
    return found


class Reader:
    """Reads a Model Garden checkpoint under the original's names and in its shapes.

    A weight of none of the parts that we have (a head for fine-tuning, a projection of the
    embeddings) keeps its own name.

    Args:
        stored: the checkpoint's tensors as they lie there.

    Attributes:
        prefix: the checkpoint's.
        shapes: shape of each weight by the original's name.
        dtypes: dtype of each weight, in numpy's names.
        places: the prefix, and the name there, of each weight by the original's name.
        left_out: reason by name of each tensor left out.
        num_attention_heads: as the attention's shapes say; None where they do not.
        global_step: step of the run that wrote it, or None.

    Raises:
        CheckpointError: it holds no BERT encoder of Model Garden's; names what it does hold.
    """

    def __init__(self, stored: original.Reader) -> None:
        self._stored = stored
        self.prefix = stored.prefix
        self.left_out: dict[str, str] = {}
        graph = _Graph(stored)
        encoder = _find_encoder(graph)
        tensors = [name for name in stored.shapes if name != _GRAPH]
        if encoder is None:
            shown = [name.removesuffix(_KEY_END) for name in tensors[:_SHOWN]]
            more = f", and {len(tensors) - _SHOWN} more" if len(tensors) > _SHOWN else ""
            raise original.CheckpointError(
                f"{stored.prefix} was written by tf.train.Checkpoint or Keras, and holds no "
                f"encoder of Model Garden's BERT. Its variables are {', '.join(shown)}{more}. Give "
                f"a checkpoint of Model Garden's BertEncoder or BertPretrainerV2, an original one, "
                f"or a Hugging Face folder."
            )
        self._keys = _encoder_keys(graph, encoder)
        heads = _head_keys(graph)
        for name, key in self._keys.items():
            if heads.get(name, key) != key:
                self.left_out[_plain(key)] = "untrained there; the next sentence's is taken"
        self._keys.update(heads)
        self._sort_rest(graph, tensors)
        self.shapes = {name: self._shape(name, key) for name, key in self._keys.items()}
        self.dtypes = {name: stored.dtypes[key] for name, key in self._keys.items()}
        self.places = {name: (stored.prefix, key) for name, key in self._keys.items()}
        bias = self._keys.get("bert/encoder/layer_0/attention/self/query/bias")
        shape = stored.shapes[bias] if bias else ()
        self.num_attention_heads = shape[0] if len(shape) == 2 else None
        step = graph.key(graph.find(0, "global_step"))
        self.global_step = int(stored.get(step)) if step in stored.shapes else None

    def _sort_rest(self, graph: _Graph, tensors: list[str]) -> None:
        """Of the tensors that are no weights of ours: which are left out, which are extra."""
        reasons: dict[str, str] = {}
        for edge, reason in (
            ("save_counter", "number of times that the checkpoint was written"),
            ("global_step", "step of the run that wrote the checkpoint"),
            ("optimizer", "the optimizer's"),
        ):
            node = graph.find(0, edge)
            if node is not None:
                reasons.update(dict.fromkeys(graph.keys_below(node), reason))
        known = set(self._keys.values())
        for key in tensors:
            if key in known:
                continue
            if "/.OPTIMIZER_SLOT/" in key:
                self.left_out[_plain(key)] = "slot of the optimizer"
            elif key in reasons:
                self.left_out[_plain(key)] = reasons[key]
            elif _plain(key) not in self.left_out:
                self._keys[_plain(key)] = key

    def _shape(self, name: str, key: str) -> tuple[int, ...]:
        shape = self._stored.shapes[key]
        if name == _TRANSPOSED:
            return shape[::-1]
        if "/attention/self/" in name and len(shape) == (3 if name.endswith("kernel") else 2):
            return (*shape[:-2], shape[-2] * shape[-1])
        if name.endswith("/attention/output/dense/kernel") and len(shape) == 3:
            return (shape[0] * shape[1], shape[2])
        return shape

    def get(self, name: str) -> np.ndarray:
        """One weight by the original's name, in the original's shape.

        Raises:
            KeyError: there is no such weight.
            CheckpointError: its values cannot be read.
        """
        if name not in self._keys:
            raise KeyError(f"{self.prefix} has no weight {name}.")
        array = self._stored.get(self._keys[name])
        if name == _TRANSPOSED:
            array = np.ascontiguousarray(array.T)
        return array.reshape(self.shapes[name])

    def check(self, config: BertConfig) -> None:
        """Raises ValueError if a configuration splits the attention into another number of heads.

        The shapes that we use do not show it, but the outputs would be others.
        """
        if self.num_attention_heads not in (None, config.num_attention_heads):
            raise ValueError(
                f"The configuration has num_attention_heads {config.num_attention_heads}, but the "
                f"attention of {self.prefix} has {self.num_attention_heads}. Give the "
                f"configuration that belongs to the checkpoint."
            )

    def sizes(self) -> dict[str, int]:
        """What the shapes say of the configuration, by the keys of bert_config.json."""
        found: dict[str, int] = {}
        blocks = [re.match(r"bert/encoder/layer_(\d+)/", name) for name in self.shapes]
        numbers = {int(match.group(1)) for match in blocks if match}
        found["num_hidden_layers"] = len(numbers)
        if self.num_attention_heads is not None:
            found["num_attention_heads"] = self.num_attention_heads
        for weight in names.WEIGHTS:
            shape = self.shapes.get(weight.original.replace("{layer}", "0"), ())
            found.update(
                (row, size) for row, size in zip(weight.shape, shape) if isinstance(row, str)
            )
        return found


def _plain(key: str) -> str:
    return key.removesuffix(_KEY_END)


def no_configuration(reader: Reader) -> str:
    """What to say where no configuration is found: with the sizes that the shapes show."""
    sizes = json.dumps(reader.sizes(), sort_keys=True)
    return (
        f"{reader.prefix} is a Model Garden checkpoint, which holds no configuration, and neither "
        f"a bert_config.json nor a {PARAMS_FILE} lies beside it. Put a bert_config.json there or "
        f"name one on the command line. Its shapes say {sizes}; hidden_act is gelu, unless it was "
        f"trained with another."
    )


def read_params(path: str) -> BertConfig:
    """Reads the encoder's configuration from the params.yaml of a Model Garden run.

    Of YAML only what such a file consists of is understood: keys with plain values, by indent.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is not UTF-8, describes no BERT encoder, or a value is wrong; names the
            file and the key.
    """
    values: Any = _read_yaml(path)
    for key in ("task", "model", "encoder"):
        inner = values.get(key)
        values = inner if isinstance(inner, dict) else values
    kind = values.get("type", "bert")
    block = values.get(kind) if kind in ("bert", "bert_v2") else None
    if not isinstance(block, dict):
        raise ValueError(
            f"{path}: expected the encoder's sizes under task: model: encoder: bert, found "
            f"{'the type ' + str(kind) if block is None and 'type' in values else 'none'}. Give a "
            f"bert_config.json in its place."
        )
    for key, wanted in {**_PARAMS_REQUIRED, "embedding_size": None}.items():
        allowed = [wanted, block.get("hidden_size")] if key == "embedding_size" else [wanted]
        if block.get(key, wanted) not in allowed:
            raise ValueError(
                f"{path}: {key}: expected {json.dumps(wanted)}, found {json.dumps(block[key])}: "
                f"the encoder is a variant that BERT's layout cannot hold."
            )
    found = {ours: block[theirs] for theirs, ours in _PARAMS.items() if theirs in block}
    try:
        return BertConfig.from_dict({**_PARAMS_DEFAULTS, **found})
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


_YAML_LINE = re.compile(r"( *)([\w.-]+):(?:\s+(.*?))?\s*(?:\s#.*)?")


def _read_yaml(path: str) -> dict[str, Any]:
    try:
        with paths.open_file(path, encoding="utf-8-sig") as handle:
            lines = handle.read().splitlines()
    except UnicodeDecodeError:
        raise ValueError(f"{path}: not UTF-8 text.") from None
    root: dict[str, Any] = {}
    open_blocks: list[tuple[int, dict[str, Any]]] = [(-1, root)]
    for line in lines:
        # Lists and lines that go on are passed over: the encoder has none.
        match = _YAML_LINE.fullmatch(line)
        if not match:
            continue
        indent, key, value = len(match.group(1)), match.group(2), match.group(3)
        while open_blocks[-1][0] >= indent:
            open_blocks.pop()
        block = open_blocks[-1][1]
        if value:
            block[key] = _scalar(value)
        else:
            block[key] = {}
            open_blocks.append((indent, block[key]))
    return root


def _scalar(text: str) -> Any:
    if text in ("null", "~"):
        return None
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for number in (int, float):
        try:
            return number(text)
        except ValueError:
            pass
    return text.strip("'\"")


def write(prefix: str, config: BertConfig, tensors: Mapping[str, Any]) -> None:
    """Writes a checkpoint that Model Garden restores.

    From an encoder's weights it is one of `tf.train.Checkpoint(encoder=encoder)`. With the masked
    LM's head it is one of a pre-trainer's `checkpoint_items` and of `model=pretrainer`; with the
    next sentence's too, the pre-trainer has a ClassificationHead of the name next_sentence.

    The files appear whole or not at all (see `original.publish`); the `checkpoint` file beside
    them is the caller's.

    Args:
        prefix: where; the folder is made.
        config: the model's configuration.
        tensors: weights by the original's names.

    Raises:
        ValueError: a weight is one of no encoder and no head of pre-training.
        OSError: the files cannot be written; nothing is left of them.
    """
    heads = set(names.heads_in(tensors))
    kept = {names.ENCODER, names.POOLER, names.MASKED_LM}
    if names.MASKED_LM in heads:
        kept.add(names.NEXT_SENTENCE)
    unknown = sorted(name for name in tensors if names.part_of(name) not in kept)
    if unknown:
        raise ValueError(f"Model Garden's encoder and pre-trainer lack: {', '.join(unknown)}.")

    def save(staged: str) -> None:
        import tensorflow as tf

        with tf.device("/CPU:0"):
            root = _objects(config, tensors, heads)
            # Its own files say that they were written once.
            root.save_counter.assign_add(1)
            root.write(staged)

    original.publish(prefix, save)


def _objects(config: BertConfig, tensors: Mapping[str, Any], heads: set[str]) -> Any:
    """The objects to save. The order of the edges decides the tensors' names in the file."""
    import tensorflow as tf

    size = config.hidden_size // config.num_attention_heads

    def value(name: str) -> Any:
        array = np.asarray(tensors[name], np.float32)
        if name == _TRANSPOSED:
            array = array.T
        elif "/attention/self/" in name:
            array = array.reshape(*array.shape[:-1], config.num_attention_heads, size)
        elif name.endswith("/attention/output/dense/kernel"):
            array = array.reshape(config.num_attention_heads, size, -1)
        return tf.Variable(array)

    def layer(name: str) -> Any:
        """A dense layer or a LayerNorm."""
        variables = {edge: f"{name}/{edge}" for edge in _VARIABLES}
        return tf.train.Checkpoint(
            **{edge: value(full) for edge, full in variables.items() if full in tensors}
        )

    def block(number: int) -> Any:
        made = tf.train.Checkpoint()
        made._attention_layer = tf.train.Checkpoint()
        for path, name in _BLOCK.items():
            *inner, edge = path.split("/")
            owner = made._attention_layer if inner else made
            setattr(owner, edge, layer(f"bert/encoder/layer_{number}/{name}"))
        return made

    tables = [
        tf.train.Checkpoint(embeddings=value(f"bert/embeddings/{table}_embeddings"))
        for table in ("word", "position", "token_type")
    ]
    blocks = [block(number) for number in range(config.num_hidden_layers)]
    norm, pooler = layer("bert/embeddings/LayerNorm"), layer("bert/pooler/dense")
    encoder = tf.train.Checkpoint()
    for number, part in enumerate([*tables, norm, *blocks, pooler]):
        setattr(encoder, f"layer_with_weights-{number}", part)
    # The same once more, as attributes: BertEncoderV2 knows no other edges.
    encoder._pooler_layer = pooler
    encoder._transformer_layers = blocks
    encoder._embedding_norm_layer = norm
    encoder._embedding_layer, encoder._position_embedding_layer = tables[:2]
    encoder._type_embedding_layer = tables[2]
    if names.MASKED_LM not in heads:
        return tf.train.Checkpoint(encoder=encoder)

    masked_lm = tf.train.Checkpoint(
        embedding_table=tables[0].embeddings,
        dense=layer("cls/predictions/transform/dense"),
        layer_norm=layer("cls/predictions/transform/LayerNorm"),
    )
    bias = value("cls/predictions/output_bias")
    for edge in ("output_bias/bias", "bias"):
        setattr(masked_lm, edge, bias)
    root = tf.train.Checkpoint(encoder=encoder, masked_lm=masked_lm)
    model = tf.train.Checkpoint(encoder_network=encoder, masked_lm=masked_lm)
    if names.NEXT_SENTENCE in heads:
        # A variable of its own: two of their objects do not restore from one.
        own_pooler = layer("bert/pooler/dense")
        output = tf.train.Checkpoint(
            kernel=value(_TRANSPOSED), bias=value("cls/seq_relationship/output_bias")
        )
        setattr(root, _NEXT_SENTENCE_POOLER, own_pooler)
        model.classification_heads = [tf.train.Checkpoint(dense=own_pooler, out_proj=output)]
    root.model = model
    return root
