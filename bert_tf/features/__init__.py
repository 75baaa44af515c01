"""Hidden states of texts: from the lines of a file to a file of vectors (docs/features.md).

`texts` reads lines, `extractor` runs the model, `formats` writes and reads vectors, `output` is the
file that grows, `extraction` a whole run. Reading features back imports no TensorFlow.
"""

from bert_tf.features.extraction import checksum, checksum_of_tokens, extract
from bert_tf.features.extractor import (
    EMBEDDINGS,
    LAST_FOUR,
    POOLINGS,
    FeatureExtractor,
    Layer,
    layer_names,
    parse_layers,
)
from bert_tf.features.formats import Record, to_json
from bert_tf.features.output import FORMATS, Progress, check_output, open_output, read_features
from bert_tf.features.texts import LineReader, Text, check_input, encode, split_pair

__all__ = [
    "LineReader",
    "Text",
    "check_input",
    "encode",
    "split_pair",
    "EMBEDDINGS",
    "LAST_FOUR",
    "POOLINGS",
    "FeatureExtractor",
    "Layer",
    "layer_names",
    "parse_layers",
    "Record",
    "to_json",
    "FORMATS",
    "Progress",
    "check_output",
    "open_output",
    "read_features",
    "checksum",
    "checksum_of_tokens",
    "extract",
]
