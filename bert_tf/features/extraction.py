"""A whole run: from the lines of a file to a file of vectors, both as streams.

Lines are read in pools, which are cut into batches of about equal length; the results leave in the
order of the lines.
"""

import json
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from absl import logging

from bert_tf.features.extractor import FeatureExtractor
from bert_tf.features.formats import Record
from bert_tf.features.output import JsonLines, Parts, Progress
from bert_tf.features.texts import LineReader, Text, encode
from bert_tf.tokenization.tokenizer import BertTokenizer

# A pool holds so many texts, or so many bytes of results, whichever is reached first.
POOL_TEXTS = 4096
POOL_BYTES = 128 << 20


def checksum(variables: Mapping[str, Any]) -> int:
    """Returns a CRC-32 over a model's weights, to tell whether two runs have the same."""
    total = 0
    for name in sorted(variables):
        total = zlib.crc32(variables[name].numpy().tobytes(), total)
    return total


def checksum_of_tokens(vocab: Mapping[str, int]) -> int:
    """Returns a CRC-32 over a vocabulary."""
    return zlib.crc32(json.dumps(vocab).encode("ascii"))


def extract(
    reader: LineReader,
    tokenizer: BertTokenizer,
    extractor: FeatureExtractor,
    output: JsonLines | Parts,
    max_seq_length: int,
    after_pool: Callable[[int], None] | None = None,
) -> Progress:
    """Writes the features of all lines, from where the output stands, and finishes it.

    Args:
      reader: the lines, from the first.
      tokenizer: the model's.
      extractor: the model.
      output: from `open_output`.
      max_seq_length: longest input in tokens.
      after_pool: called with the number of lines done after each pool.

    Returns: what was done, over all lives of the run.

    Raises:
      ValueError: the lines that are done are not those of the input any more, a line is not UTF-8,
        or its features are not finite. What was written so far stays, and a later run goes on
        after it.
    """
    progress = output.progress
    if progress.lines:
        reader.skip(progress.lines)
        if reader.digest() != progress.digest:
            raise ValueError(
                f"The first {progress.lines} lines of {reader.path} are not those that "
                f"{output.partial} was made from. To start over, delete it."
            )
        logging.info("Going on after line %d, where an earlier run ended", progress.lines)
    began, shown = time.monotonic(), time.monotonic()
    lines_before, tokens_before = progress.lines, progress.tokens
    lines = iter(reader)
    while texts := _read_pool(lines, tokenizer, extractor, max_seq_length):
        first = progress.lines
        cut = [first + i for i, text in enumerate(texts) if text.was_cut]
        if cut and not progress.truncated:
            logging.warning(
                "Line %d has more than %d tokens and is cut; so are others like it. All are "
                "counted at the end",
                cut[0] + 1,
                max_seq_length,
            )
        values = extractor(texts)
        for i, value in enumerate(values):
            if not np.isfinite(value).all():
                raise ValueError(
                    f"{reader.path}, line {first + i + 1}: its features are not finite: the "
                    "checkpoint is damaged, or the precision too low for it (float16 holds up to "
                    "65,504; try bfloat16)."
                )
        pooled = extractor.pooling != "none"
        records = [
            Record(
                first + i,
                None if pooled else tokenizer.convert_ids_to_tokens(text.ids.tolist()),
                value,
            )
            for i, (text, value) in enumerate(zip(texts, values, strict=True))
        ]
        progress = Progress(
            lines=reader.count,
            digest=reader.digest(),
            tokens=progress.tokens + sum(len(text.ids) for text in texts),
            truncated=progress.truncated + len(cut),
            blank=progress.blank + sum(len(text.ids) == 2 for text in texts),
        )
        output.write(records, progress)
        now = time.monotonic()
        if now - shown > 30:
            logging.info(
                "%d texts, %.0f a second",
                progress.lines,
                (progress.lines - lines_before) / (now - began),
            )
            shown = now
        if after_pool is not None:
            after_pool(progress.lines)
    output.finish()
    seconds = time.monotonic() - began
    logging.info(
        "%d texts, %d tokens in %.1f s (%.0f texts, %.0f tokens a second)",
        progress.lines - lines_before,
        progress.tokens - tokens_before,
        seconds,
        (progress.lines - lines_before) / seconds,
        (progress.tokens - tokens_before) / seconds,
    )
    return progress


def _read_pool(
    lines: Iterator[str], tokenizer: BertTokenizer, extractor: FeatureExtractor, max_seq_length: int
) -> list[Text]:
    """Reads lines until a pool is full or they end."""
    texts: list[Text] = []
    size = 0
    while len(texts) < POOL_TEXTS and size < POOL_BYTES:
        line = next(lines, None)
        if line is None:
            break
        texts.append(encode(tokenizer, line, max_seq_length))
        size += len(texts[-1].ids) * extractor.bytes_per_token
    return texts
