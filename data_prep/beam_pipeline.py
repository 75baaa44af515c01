"""The streaming mode's instances on Apache Beam: one machine, Flink, Spark, Dataflow.

Files are the units of reading: a corpus in many files is read in parallel, and a document does not
go on from one file to the next. A unit is a chunk of a file and a duplicate, as in `parallel`; each
chunk sends random places of its documents to random units, which take their random second segments
from what they are sent. Which instances are made depends on the texts and the seed alone; in which
file and order they stand is up to the runner.
"""

import dataclasses
import hashlib
import json
import os
import random
import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from bert_tf import paths
from bert_tf.tokenization import BertTokenizer
from data_prep import corpus, instances
from data_prep.corpus import Corpus
from data_prep.instances import Counts, RecordEncoder, Settings, Vocabulary
from data_prep.packed_text import PackedText, Packer
from data_prep.parallel import TokenSettings, chunks, random_bits, seed_of

try:
    import apache_beam as beam
    from apache_beam.options.pipeline_options import PipelineOptions, SetupOptions
except ImportError as error:
    raise ImportError(
        "--runner needs Apache Beam; install it, in an environment apart from TensorFlow Model "
        "Garden's, with: pip install -e '.[beam]' (apache-beam and google-crc32c)"
    ) from error

# (random sorting key, document, packed tokens as bytes, ends of its sentences).
_Place = tuple[int, bytes, bytes, tuple[int, ...]]
# A file, and the number of a chunk in it.
_Chunk = tuple[str, int]


# What an error in a worker says last: "ValueError: text [while running 'tokenize']".
_RAISED = re.compile(r"^\w*(?:Error|Exception): (.*?) \[while running", re.MULTILINE | re.DOTALL)


def _key(*parts: object) -> bytes:
    return hashlib.sha256(repr(parts).encode()).digest()[:12]


class ReadTexts(beam.DoFn):
    """File name -> ((file, chunk), PackedText): its documents, tokenized."""

    def __init__(self, tokenizer: BertTokenizer, settings: TokenSettings):
        self._tokenizer = tokenizer
        self._settings = settings

    def setup(self) -> None:
        language = self._settings.split_sentences
        split = corpus.sentence_splitter(language) if language else None
        self._packer = Packer(self._tokenizer, self._settings.pre_segmented, split)

    def process(self, file: str) -> Iterator[tuple[_Chunk, PackedText]]:
        text = Corpus([file], self._settings.input_format, self._settings.errors, 1 << 22)
        for number, chunk in enumerate(chunks(text)):
            packed = self._packer.pack(chunk)
            if packed.documents:
                yield (file, number), packed


def _unit(chunk: _Chunk, duplicate: int) -> str:
    return f"{duplicate}\n{chunk[1]}\n{chunk[0]}"


def units(
    element: tuple[_Chunk, PackedText], duplicates: int
) -> Iterator[tuple[str, tuple[_Chunk, int, PackedText]]]:
    """Yields a chunk once for each duplicate."""
    chunk, text = element
    for duplicate in range(duplicates):
        yield _unit(chunk, duplicate), (chunk, duplicate, text)


def places(
    element: tuple[_Chunk, PackedText], all_chunks: list[_Chunk], settings: Settings
) -> Iterator[tuple[str, _Place]]:
    """Yields random places in a chunk's documents, each for a random unit.

    A chunk gives about as many as it needs itself.
    """
    (file, chunk), text = element
    room = settings.max_seq_length - 3
    all_chunks = sorted(all_chunks)
    bounds, ends = text.document_ends.tolist(), text.sentence_ends
    for duplicate in range(settings.dupe_factor):
        rng = random.Random(seed_of(settings.seed, 4, duplicate, file, chunk))
        bits = rng.getrandbits
        for _ in range(16 + len(text.tokens) // room):
            document = instances.below(bits, text.documents)
            first, last = bounds[document], bounds[document + 1]
            sentence = first + instances.below(bits, last - first)
            start = int(ends[sentence])
            some = ends[sentence : min(last, sentence + room) + 1] - start
            some = some[: int(np.searchsorted(some, room)) + 1].tolist()
            unit = _unit(all_chunks[instances.below(bits, len(all_chunks))], duplicate)
            yield (
                unit,
                (
                    bits(62),
                    _key(file, int(text.numbers[document])),
                    text.tokens[start : start + some[-1]].tobytes(),
                    tuple(some[1:]),
                ),
            )


class MakeInstances(beam.DoFn):
    """A unit and the places that it was sent -> records.

    Also counts, as the tagged output "counts".
    """

    def __init__(self, settings: Settings, vocabulary: Vocabulary):
        self._settings = settings
        self._vocabulary = vocabulary
        self._encoder: RecordEncoder | None = None

    def process(self, element: tuple[str, dict[str, Iterable[Any]]]) -> Iterator[Any]:
        _, grouped = element
        if self._encoder is None:
            self._encoder = RecordEncoder(self._settings, self._vocabulary.size)
        # In an order of their own, since the runner's is any.
        sent: list[_Place] = sorted(grouped["places"])
        for chunk, duplicate, text in grouped["units"]:
            packed, counts = make_unit(
                chunk, duplicate, text, sent, self._settings, self._vocabulary
            )
            yield from map(self._encoder.example, packed)
            yield beam.pvalue.TaggedOutput("counts", counts)


def make_unit(
    chunk: _Chunk,
    duplicate: int,
    text: PackedText,
    sent: Sequence[_Place],
    settings: Settings,
    vocabulary: Vocabulary,
) -> tuple[list[bytes], Counts]:
    """Returns a unit's packed instances, and counts."""
    file = chunk[0]
    rng = random.Random(seed_of(settings.seed, 2, duplicate, *chunk))
    bits = random_bits(settings.seed, 2, int.from_bytes(_key(duplicate, *chunk), "big"))
    parts = [text.tokens]
    size = len(text.tokens)
    used = 0
    own = b""

    def random_next() -> tuple[int, list[int]] | None:
        nonlocal size, used
        for _ in sent:
            _, document, tokens, ends = sent[used % len(sent)]
            used += 1
            if document != own:
                start = size
                parts.append(np.frombuffer(tokens, text.tokens.dtype))
                size += ends[-1]
                return start, [start + end for end in ends]
        return None

    counts = Counts()
    if duplicate == 0:
        counts.add_text(text)
    bounds, all_ends = text.document_ends.tolist(), text.sentence_ends
    pairs: list[instances.Pair] = []
    for document, number in enumerate(text.numbers.tolist()):
        own = _key(file, number)
        ends = all_ends[bounds[document] : bounds[document + 1] + 1].tolist()
        made, dropped = instances.pair_document(ends, settings, rng, random_next)
        pairs += made
        counts.dropped += dropped
    tokens = np.concatenate(parts)
    packed: list[bytes] = []
    for first in range(0, len(pairs), 1024):
        batch = pairs[first : first + 1024]
        packed += instances.build(tokens, batch, settings, vocabulary, bits)
    counts.add_packed(packed)
    return packed, counts


def _add(all_counts: Iterable[Counts]) -> Counts:
    total = Counts()
    for counts in all_counts:
        total.add(counts)
    return total


def run(
    files: Sequence[str],
    tokenizer: BertTokenizer,
    settings: Settings,
    outputs: Sequence[str],
    *,
    token_settings: TokenSettings | None = None,
    compress: bool = False,
    runner: str = "DirectRunner",
    options: str = "",
) -> Counts:
    """Makes the records of a corpus with Beam.

    Args:
      files: the input files, which all workers can read.
      tokenizer, settings, token_settings: the options.
      outputs: the files of one `name@N` pattern, or a single file.
      compress: whether to write gzip.
      runner: Beam's runner.
      options: more options for Beam, as on a command line.

    Raises:
      ValueError: the corpus is empty; standard input; outputs that Beam cannot name.
    """
    if corpus.STDIN in files:
        raise ValueError("Beam cannot read standard input; name files.")
    prefix, suffix = _beam_names(outputs)
    vocabulary = Vocabulary.of(tokenizer)
    given = [f"--runner={runner}", *shlex.split(options)]
    if "--default_sdk_harness_log_level" not in options:
        # At INFO each worker tells of every connection.
        given.append("--default_sdk_harness_log_level=WARNING")
    pipeline_options = PipelineOptions(given)
    pipeline_options.view_as(SetupOptions).save_main_session = False
    counts_folder = paths.dirname(outputs[0]) or "."
    counts_prefix = paths.join(counts_folder, f".counts-{os.getpid()}")
    if not paths.has_scheme(counts_folder):
        paths.make_dirs(counts_folder)
    pipeline = beam.Pipeline(options=pipeline_options)
    texts = (
        pipeline
        | "files" >> beam.Create(list(files))
        | "spread files" >> beam.Reshuffle()
        | "tokenize" >> beam.ParDo(ReadTexts(tokenizer, token_settings or TokenSettings()))
    )
    all_chunks = texts | "names" >> beam.Keys() | "all names" >> beam.combiners.ToList()
    grouped = {
        "units": texts | "units" >> beam.FlatMap(units, settings.dupe_factor),
        "places": texts
        | "places" >> beam.FlatMap(places, beam.pvalue.AsSingleton(all_chunks), settings),
    } | "send" >> beam.CoGroupByKey()
    made = grouped | "instances" >> beam.ParDo(MakeInstances(settings, vocabulary)).with_outputs(
        "counts", main="records"
    )
    _ = (
        made.records
        # A random key from the record itself: the shuffle puts neighbours far apart.
        | "key" >> beam.Map(lambda record: (_key(record), record))
        | "shuffle" >> beam.GroupByKey()
        | "values" >> beam.FlatMap(lambda item: item[1])
        | "write"
        >> beam.io.WriteToTFRecord(
            prefix,
            file_name_suffix=suffix,
            num_shards=len(outputs),
            shard_name_template="" if len(outputs) == 1 else "-SSSSS-of-NNNNN",
            compression_type="gzip" if compress else "uncompressed",
        )
    )
    _ = (
        made.counts
        | "add" >> beam.CombineGlobally(_add)
        | "as text" >> beam.Map(lambda counts: json.dumps(dataclasses.asdict(counts)))
        | "write counts" >> beam.io.WriteToText(counts_prefix, shard_name_template="")
    )
    try:
        pipeline.run().wait_until_finish()
    except Exception as error:
        # The text of a worker's error is its traceback; what was raised is at the end.
        found = _RAISED.findall(str(error))
        if not found:
            raise
        raise ValueError(f"Beam stopped: {found[-1]}") from error
    with paths.open_file(counts_prefix) as handle:
        counts = Counts(**json.loads(handle.read()))
    paths.remove(counts_prefix)
    if not counts.documents:
        for output in outputs:
            paths.remove(output)
        raise ValueError("the corpus is empty: the input files hold no text.")
    return counts


def _beam_names(outputs: Sequence[str]) -> tuple[str, str]:
    """Returns what Beam makes the names of the output files of: a prefix and a suffix."""
    if len(outputs) == 1:
        return outputs[0], ""
    prefix, _, suffix = outputs[0].rpartition(f"-00000-of-{len(outputs):05d}")
    named = [f"{prefix}-{i:05d}-of-{len(outputs):05d}{suffix}" for i in range(len(outputs))]
    if named != list(outputs):
        raise ValueError("with --runner name the output files by a pattern: name@16.tfrecord")
    return prefix, suffix
