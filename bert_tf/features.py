"""Hidden states of texts: from the lines of a file to a file of vectors, both as streams.

Lines are read in pools, which are cut into batches of about equal length; the results leave in the
order of the lines. What is written after each pool says how far a run came, so that one that was
killed goes on from there.

Letters in shape comments: B batch, T tokens, L chosen layers, H hidden size, N texts.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import io
import json
import os
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import IO, Any

import numpy as np
from absl import logging

from bert_tf import paths
from bert_tf.tokenization import packing
from bert_tf.tokenization.tokenizer import BertTokenizer

# TensorFlow is imported where a model runs: reading features back needs none.

EMBEDDINGS = "embeddings"
POOLINGS = ("none", "cls", "mean", "concat_last_4")
LAST_FOUR = (-1, -2, -3, -4)
FORMATS = ("jsonl", "npz", "parquet")

# A pool holds so many texts, or so many bytes of results, whichever is reached first.
POOL_TEXTS = 4096
POOL_BYTES = 128 << 20

_SEPARATOR = " ||| "
_BOM = b"\xef\xbb\xbf"
_INFO = "_info.json"  # Readers of parquet folders pass over names with a "_".
_PROGRESS = "_progress.json"

Layer = int | str


# Texts.


def split_pair(line: str) -> tuple[str, str | None]:
    """Splits a line at its last " ||| ", the original's rule.

    Returns: the text and None, or the two texts.
    """
    first, separator, second = line.strip().rpartition(_SEPARATOR)
    return (first, second) if separator else (second, None)


class LineReader:
    """The lines of a text file, one at a time, as the original reads them.

    A line ends at "\\n" alone, and every "\\r" in it is dropped. A byte order mark at the start of
    the file is dropped, too.

    Args:
      path: the file; a local path or an address.

    Attributes:
      count: lines read so far.

    Raises:
      FileNotFoundError, IsADirectoryError, PermissionError: the file cannot be read.
    """

    def __init__(self, path: str):
        check_input(path)
        self.path = path
        self.count = 0
        self._digest = hashlib.sha256()
        self._handle: IO[bytes] = paths.open_file(path, "rb")

    def __enter__(self) -> LineReader:
        return self

    def __exit__(self, *error: object) -> None:
        self._handle.close()

    def __iter__(self) -> Iterator[str]:
        """Yields the lines that are left.

        Raises:
          ValueError: a line is not UTF-8; names it.
        """
        while data := self._next():
            yield self._decode(data)

    def skip(self, count: int) -> None:
        """Reads on to line `count`, or to the end where there are fewer."""
        while self.count < count and self._next():
            pass

    def digest(self) -> str:
        """Returns the SHA-256 of all that was read so far."""
        return self._digest.hexdigest()

    def _next(self) -> bytes:
        data = self._handle.readline()
        if data:
            self._digest.update(data)
            self.count += 1
        return data

    def _decode(self, data: bytes) -> str:
        if self.count == 1:
            data = data.removeprefix(_BOM)
        try:
            return data.decode("utf-8").removesuffix("\n").replace("\r", "")
        except UnicodeDecodeError as error:
            hint = "save the file as UTF-8"
            if self.count == 1 and data[:2] in (b"\xff\xfe", b"\xfe\xff"):
                hint = "it looks like UTF-16; save it as UTF-8"
            raise ValueError(
                f"{self.path}, line {self.count}: byte {error.start} of the line "
                f"(0x{data[error.start]:02x}) is not UTF-8; {hint}."
            ) from None


def check_input(path: str) -> None:
    """Raises FileNotFoundError, IsADirectoryError or ValueError if a file holds no line."""
    if not paths.exists(path):
        raise FileNotFoundError(f"There is no input file {path}.")
    if paths.is_dir(path):
        raise IsADirectoryError(f"The input file {path} is a folder; name a file of texts.")
    # Not so for a pipe, whose size is 0 as well.
    if paths.has_scheme(path) or os.path.isfile(paths.local(path)):
        if not paths.size(path):
            raise ValueError(f"The input file {path} is empty; it must hold a text on each line.")
    else:
        raise ValueError(f"The input file {path} is not a regular file; write the texts to one.")


@dataclasses.dataclass(frozen=True)
class Text:
    """A line as the model sees it.

    Attributes:
      ids, segments: int32 [T], from `packing.pack`.
      was_cut: whether tokens were left out.
    """

    ids: np.ndarray
    segments: np.ndarray
    was_cut: bool


def encode(tokenizer: BertTokenizer, line: str, max_seq_length: int) -> Text:
    """Makes a model's input of a line: a text, or a pair with " ||| " between.

    Args:
      tokenizer: the model's.
      line: the text; an empty one makes [CLS] [SEP].
      max_seq_length: longest input in tokens, 3 or more.
    """
    first, second = split_pair(line)
    ids_a = tokenizer.encode(first)
    ids_b = (tokenizer.encode(second) or None) if second else None
    room = max_seq_length - (2 if ids_b is None else 3)
    ids_a, ids_b, was_cut = packing.truncate_pair(ids_a, ids_b, room)
    return Text(*packing.pack(ids_a, ids_b, tokenizer.cls_id, tokenizer.sep_id), was_cut)


# Layers.


def parse_layers(layers: str, num_layers: int) -> tuple[Layer, ...]:
    """Reads a list of layers, such as "-1,-2,-3,-4".

    Args:
      layers: numbers with commas between: 0 for the first layer to `num_layers` - 1, or -1 for
        the last to -`num_layers`; "embeddings" is what goes into the first layer.
      num_layers: layers of the model.

    Returns: the numbers and words as they were given.

    Raises:
      ValueError: an entry is none of these.
    """
    found: list[Layer] = []
    known = (
        f"the model has {num_layers} layers: 0 to {num_layers - 1} from the first to the last, "
        f"or -1 to -{num_layers} from the last to the first; the output of the embeddings is "
        f"called {EMBEDDINGS}"
    )
    for item in layers.split(","):
        if item.strip() == EMBEDDINGS:
            found.append(EMBEDDINGS)
            continue
        try:
            number = int(item)
        except ValueError:
            raise ValueError(f"--layers={layers}: {item.strip()!r} is no layer; {known}.") from None
        if not -num_layers <= number < num_layers:
            raise ValueError(f"--layers={layers}: there is no layer {number}; {known}.")
        found.append(number)
    return tuple(found)


class FeatureExtractor:
    """Runs an encoder over texts and returns hidden states, or vectors made of them.

    Args:
      encoder: a `BertEncoder` with its weights.
      layers: from `parse_layers`.
      pooling: "none" gives the hidden states of every token; "cls" those of [CLS]; "mean" their
        mean over all tokens, [CLS] and [SEP] included; "concat_last_4" the means of the last four
        layers in one vector, the last layer first, whatever `layers` says.
      batch_size: B, over all replicas.
      strategy: a tf.distribute strategy of one process; by default the current one.
      pad_to: pads every batch to this many tokens and to whole batches (a TPU needs that); None
        pads to the longest text of a batch.

    Raises:
      ValueError: concat_last_4 of a model with fewer than four layers.

    Example:
      >>> extractor = FeatureExtractor(encoder, (-1,), "mean")
      >>> extractor([encode(tokenizer, "A text.", 128)])[0].shape
      (1, 768)
    """

    def __init__(
        self,
        encoder: Any,
        layers: Sequence[Layer],
        pooling: str = "none",
        batch_size: int = 32,
        strategy: Any = None,
        pad_to: int | None = None,
    ):
        import tensorflow as tf

        if pooling not in POOLINGS:
            raise ValueError(f"pooling is {pooling!r}; it must be one of {', '.join(POOLINGS)}.")
        if pooling == "concat_last_4":
            if encoder.config.num_hidden_layers < 4:
                raise ValueError(
                    f"concat_last_4 needs four layers; the model has "
                    f"{encoder.config.num_hidden_layers}."
                )
            layers = LAST_FOUR
        self.encoder = encoder
        self.layers = tuple(layers)
        self.pooling = pooling
        self.batch_size = batch_size
        self._strategy = strategy or tf.distribute.get_strategy()
        self._replicas = self._strategy.num_replicas_in_sync
        if batch_size % self._replicas:
            raise ValueError(f"batch_size {batch_size} is no multiple of {self._replicas} replicas")
        self._pad_to = pad_to
        # Matrices of a GPU like multiples of 8; on a CPU they were slower in each of four rounds.
        self._multiple = 8 if tf.config.list_logical_devices("GPU") else 1
        shape = [batch_size // self._replicas if pad_to else None, pad_to]
        names = ("input_ids", "input_mask", "segment_ids")
        self._signature = {name: tf.TensorSpec(shape, tf.int32) for name in names}
        self._run = tf.function(
            self._on_replicas,
            autograph=False,
            input_signature=[[self._signature] * self._replicas],
        )

    @property
    def bytes_per_token(self) -> int:
        """Size of what is returned for a token; 0 with pooling, where length plays no part."""
        hidden = self.encoder.config.hidden_size
        return 4 * hidden * len(self.layers) if self.pooling == "none" else 0

    def __call__(self, texts: Sequence[Text]) -> list[np.ndarray]:
        """Returns for each text, in order, float32 [T, L, H]; with pooling [L, H] or, of
        concat_last_4, [1, 4H].
        """
        results: list[Any] = [None] * len(texts)
        # The longest first: what does not fit into memory shows at once.
        order = sorted(range(len(texts)), key=lambda i: -len(texts[i].ids))
        for start in range(0, len(order), self.batch_size):
            rows = order[start : start + self.batch_size]
            found = self._forward([texts[row] for row in rows])
            for row, value in zip(rows, found, strict=True):
                # A copy: a view would keep the whole batch.
                results[row] = (
                    value[: len(texts[row].ids)].copy() if self.pooling == "none" else value
                )
        return results

    def _forward(self, texts: Sequence[Text]) -> np.ndarray:
        """Runs one batch: [B, T, L, H], or [B, ...] with pooling."""
        replicas = self._replicas
        if self._pad_to:
            length, size = self._pad_to, self.batch_size
        else:
            longest = max(len(text.ids) for text in texts)
            limit = self.encoder.config.max_position_embeddings
            length = min(-(-longest // self._multiple) * self._multiple, limit)
            size = -(-len(texts) // replicas) * replicas
        batch = {name: np.zeros((size, length), np.int32) for name in self._signature}
        for row, text in enumerate(texts):
            tokens = len(text.ids)
            batch["input_ids"][row, :tokens] = text.ids
            batch["input_mask"][row, :tokens] = 1
            batch["segment_ids"][row, :tokens] = text.segments
        part = size // replicas
        parts = [
            {name: value[at : at + part] for name, value in batch.items()}
            for at in range(0, size, part)
        ]
        found = [value.numpy() for value in self._run(parts)]
        return (found[0] if replicas == 1 else np.concatenate(found))[: len(texts)]

    def _on_replicas(self, parts: list[dict[str, Any]]) -> Sequence[Any]:
        if self._replicas == 1:
            return self._strategy.experimental_local_results(
                self._strategy.run(self._outputs, args=(parts[0],))
            )
        batches = self._strategy.experimental_distribute_values_from_function(
            lambda context: parts[context.replica_id_in_sync_group]
        )
        return self._strategy.experimental_local_results(
            self._strategy.run(self._outputs, args=(batches,))
        )

    def _outputs(self, batch: dict[str, Any]) -> Any:
        import tensorflow as tf

        from bert_tf.modeling import kernels

        mask = batch["input_mask"]
        with kernels.inference(tf.nn.bias_add):
            outputs = self.encoder(
                batch["input_ids"], input_mask=mask, segment_ids=batch["segment_ids"]
            )
        states = [
            outputs["embedding_output"]
            if layer == EMBEDDINGS
            else outputs["encoder_outputs"][layer]
            for layer in self.layers
        ]
        chosen = tf.stack([tf.cast(state, tf.float32) for state in states], axis=2)  # [B, T, L, H]
        if self.pooling == "none":
            return chosen
        if self.pooling == "cls":
            return chosen[:, 0]  # [B, L, H]
        weights = tf.cast(mask, tf.float32)[:, :, None, None]  # [B, T, 1, 1]
        count = tf.maximum(tf.reduce_sum(weights, axis=1), 1.0)
        means = tf.reduce_sum(chosen * weights, axis=1) / count  # [B, L, H]
        if self.pooling == "mean":
            return means
        width = len(self.layers) * self.encoder.config.hidden_size
        return tf.reshape(means, [-1, 1, width])  # [B, 1, 4H]


# Records and their formats.


@dataclasses.dataclass(frozen=True)
class Record:
    """The features of a line.

    Attributes:
      index: number of the line, from 0.
      tokens: its tokens with [CLS] and [SEP]; None with pooling.
      values: float32 [T, L, H]; with pooling [L, H] or, of concat_last_4, [1, 4H].
    """

    index: int
    tokens: list[str] | None
    values: np.ndarray


def layer_names(layers: Sequence[Layer], pooling: str) -> tuple[Layer, ...]:
    """Returns what the L axis of a record's values holds."""
    return ("concat_last_4",) if pooling == "concat_last_4" else tuple(layers)


def to_json(record: Record, names: Sequence[Layer]) -> str:
    """Returns a record as one line of JSON, without the newline.

    Without pooling it is the original's object, byte for byte as Python's json writes it:
    linex_index and features, a list of token and layers, a list of index and values. With pooling
    it has layers in the place of features. Values are rounded to six places.
    """
    rows = _format_rows(record.values.reshape(-1, record.values.shape[-1]))
    heads = [f'{{"index": {json.dumps(name)}, "values": [' for name in names]
    cells = [f"{heads[i % len(heads)]}{row}]}}" for i, row in enumerate(rows)]
    start = f'{{"linex_index": {record.index}, '
    if record.tokens is None:
        return f'{start}"layers": [{", ".join(cells)}]}}'
    each = len(names)
    features = [
        f'{{"token": {json.dumps(token)}, "layers": [{", ".join(cells[at : at + each])}]}}'
        for token, at in zip(record.tokens, range(0, len(cells), each), strict=True)
    ]
    return f'{start}"features": [{", ".join(features)}]}}'


# Values that are turned into text together; what belongs to them stays in a CPU's cache.
_FORMAT_CHUNK = 1 << 15


def _format_rows(values: np.ndarray) -> list[str]:
    """Returns each row of a float32 array as `json.dumps([round(float(x), 6), ...])[1:-1]`.

    That takes about a microsecond for a value, more than many a model needs to compute it. A
    float32 times 10**6 is exact in float64, so all can be worked out in integers, and a value's
    text is looked up in three parts.
    """
    width = values.shape[1]
    rows = max(1, _FORMAT_CHUNK // width)
    result: list[str] = []
    for start in range(0, len(values), rows):
        chunk = values[start : start + rows]
        # Beyond the tables, and rare; NaN is, too.
        if not (np.abs(chunk) < 999.0).all():
            result += [json.dumps([round(x, 6) for x in row])[1:-1] for row in chunk.tolist()]
            continue
        scaled = np.rint(chunk.reshape(-1).astype(np.float64) * 1e6)
        negative = np.signbit(scaled).astype(np.int32)
        scaled = np.abs(scaled, out=scaled).astype(np.int32)
        whole, fraction = np.divmod(scaled, 1_000_000)
        high, low = np.divmod(fraction, 1000)
        tables = _tables()
        cells = np.empty((len(scaled), 2), np.uint64)
        words = cells.view(np.uint32)  # [values, 4]
        cells[:, 0] = tables.start[whole + 1000 * negative]
        words[:, 2] = tables.high[high + 1000 * (low == 0)]
        words[:, 3] = tables.low[low]
        small = np.flatnonzero((scaled < 100) & (scaled > 0))
        cells[small, 0] = tables.sign[negative[small]]
        cells[small, 1] = tables.small[scaled[small]]
        text = cells.view(np.uint8).reshape(len(chunk), -1)
        text[:, 0] = ord("\n")  # In the place of the first value's ", ".
        text[:, 1] = 0
        result += text.tobytes().translate(None, b"\0")[1:].decode("ascii").split("\n")
    return result


@dataclasses.dataclass(frozen=True)
class _Tables:
    """Pieces of a value's text, padded with zero bytes."""

    start: np.ndarray  # [2000] ", 12." and, from 1000 on, ", -12."
    high: np.ndarray  # [2000] three digits; from 1000 on without the zeros at their end
    low: np.ndarray  # [1000] three digits without the zeros at their end
    sign: np.ndarray  # [2] what stands before a value with an exponent
    small: np.ndarray  # [100] a value in millionths as Python writes it, "1e-06"


@functools.cache
def _tables() -> _Tables:
    def cells(texts: Sequence[str], size: int) -> np.ndarray:
        return np.array([text.encode() for text in texts], f"S{size}").view(f"u{size}")

    digits = [f"{number:03d}" for number in range(1000)]
    trimmed = [text.rstrip("0") for text in digits]
    return _Tables(
        start=cells([f", {sign}{whole}." for sign in ("", "-") for whole in range(1000)], 8),
        high=cells([*digits, *(text or "0" for text in trimmed)], 4),
        low=cells(trimmed, 4),
        sign=cells([", ", ", -"], 8),
        small=cells([repr(number / 1e6) for number in range(100)], 8),
    )


def to_npz(records: Sequence[Record], names: Sequence[Layer]) -> memoryview:
    """Returns records as the content of an npz file: see docs/features.md."""
    arrays = {
        "linex_index": np.array([record.index for record in records], np.int64),
        "layers": np.array([str(name) for name in names]),
    }
    if records[0].tokens is None:
        arrays["values"] = np.stack([record.values for record in records])
    else:
        arrays["values"] = np.concatenate([record.values for record in records])
        arrays["tokens"] = np.array([token for r in records for token in r.tokens or ()])
        lengths = [len(record.values) for record in records]
        arrays["offsets"] = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)  # type: ignore[arg-type]
    return buffer.getbuffer()


def import_pyarrow() -> tuple[Any, Any]:
    """Returns pyarrow and pyarrow.parquet."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise ImportError(
            "parquet files need pyarrow; install it with: pip install -e '.[parquet]'"
        ) from error
    return pyarrow, parquet


def to_parquet(records: Sequence[Record], names: Sequence[Layer]) -> memoryview:
    """Returns records as the content of a parquet file: see docs/features.md."""
    pa, parquet = import_pyarrow()
    columns = {"linex_index": pa.array([record.index for record in records], pa.int64())}
    has_tokens = records[0].tokens is not None
    if has_tokens:
        columns["tokens"] = pa.array([r.tokens for r in records], pa.list_(pa.string()))
    offsets = np.cumsum([0, *(len(record.values) for record in records)]).astype(np.int32)
    for number, name in enumerate(names):
        if has_tokens:
            flat = np.concatenate([record.values[:, number] for record in records])  # [sum T, H]
        else:
            flat = np.stack([record.values[number] for record in records])  # [N, H]
        column = pa.FixedSizeListArray.from_arrays(pa.array(flat.reshape(-1)), flat.shape[1])
        if has_tokens:
            column = pa.ListArray.from_arrays(pa.array(offsets), column)
        columns[f"layer_{name}"] = column
    buffer = io.BytesIO()
    parquet.write_table(pa.table(columns), buffer)
    return buffer.getbuffer()


# Files that grow.


@dataclasses.dataclass
class Progress:
    """How far a run came.

    Attributes:
      lines: of the input that are done.
      digest: SHA-256 of these lines.
      tokens, truncated, blank: tokens seen, lines that were cut, lines without a token.
      written: bytes of the JSON lines, or number of parts.
    """

    lines: int = 0
    digest: str = ""
    tokens: int = 0
    truncated: int = 0
    blank: int = 0
    written: int = 0


class JsonLines:
    """A file of JSON lines that grows under another name until it is finished.

    `<path>.partial` grows, and `<path>.partial.json` says how much of it counts. Of an address the
    two lie in the system's folder for temporary files, since what is there cannot grow.

    Args:
      path: the file to write; one that exists is replaced at the end.
      names: from `layer_names`.
      settings: all that the values depend on, as JSON has it; a run goes on under the same only.

    Raises:
      ValueError: what is there was begun with other settings; says which.
      OSError: the file cannot be written, or another process writes it.
    """

    def __init__(self, path: str, names: Sequence[Layer], settings: Mapping[str, Any]):
        self._path, self._names, self._settings = path, names, settings
        self.partial = f"{_staged(path)}.partial"
        self._state = f"{self.partial}.json"
        self._file = _open_locked(self.partial, path)
        try:
            self.progress = _read_progress(self._state, settings, self.partial)
        except BaseException:
            self._file.close()
            raise
        if os.path.getsize(self.partial) < self.progress.written:
            logging.warning("%s is shorter than it should be: starting over", self.partial)
            self.progress = Progress()
        self._file.truncate(self.progress.written)

    def write(self, records: Sequence[Record], progress: Progress) -> None:
        """Adds records; `progress` is how far they take the run, less `written`."""
        for record in records:
            self._file.write(to_json(record, self._names).encode("ascii") + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())
        self.progress = dataclasses.replace(progress, written=self._file.tell())
        _write_progress(self._state, self.progress, self._settings)

    def finish(self) -> None:
        """Gives the file its name."""
        if not paths.HAS_LOCKS:
            self._file.close()  # Windows renames no open file.
        if paths.has_scheme(self._path):
            paths.copy(self.partial, self._path)
            paths.remove(self.partial)
        else:
            paths.rename(self.partial, _staged(self._path))
        paths.remove(self._state)
        paths.remove(f"{self._state}.new")
        self._file.close()

    def close(self) -> None:
        """Leaves the file for another run, unless there is nothing in it."""
        if not self.progress.lines and not self._file.closed:
            for path in (self.partial, self._state, f"{self._state}.new"):
                paths.remove(path)
        self._file.close()


class Parts:
    """A folder of files, a pool of lines each, that has another name until it is finished.

    `<path>.partial` holds the parts so far and _progress.json; at the end _info.json is added and
    the folder becomes `path`. At an address, where folders cannot be renamed, the files are moved
    one by one, _info.json last.

    Args and Raises: as `JsonLines`; `path` must not exist.
      kind: "npz" or "parquet".
    """

    def __init__(
        self, path: str, names: Sequence[Layer], settings: Mapping[str, Any], kind: str
    ) -> None:
        self._path = path.rstrip("/")
        self._names, self._settings, self._kind = names, settings, kind
        self._make: Callable[..., memoryview] = {"npz": to_npz, "parquet": to_parquet}[kind]
        self.partial = f"{self._path}.partial"
        self._state = paths.join(self.partial, _PROGRESS)
        paths.make_dirs(self.partial)
        self._lock: int | None = None
        try:
            if not paths.has_scheme(path) and paths.HAS_LOCKS:
                self._lock = os.open(paths.local(self.partial), os.O_RDONLY)
                _lock(self._lock, path)
            self.progress = _read_progress(self._state, settings, self.partial)
        except BaseException:
            self._unlock()
            raise

    def _part(self, folder: str, number: int) -> str:
        return paths.join(folder, f"part-{number:05d}.{self._kind}")

    def write(self, records: Sequence[Record], progress: Progress) -> None:
        """Adds records as a part; `progress` is how far they take the run, less `written`."""
        number = self.progress.written
        content = self._make(records, self._names)
        with paths.atomic_write(self._part(self.partial, number), "wb") as file:
            file.write(content)
        self.progress = dataclasses.replace(progress, written=number + 1)
        _write_progress(self._state, self.progress, self._settings)

    def finish(self) -> None:
        """Gives the folder its name."""
        parts = self.progress.written
        # A run that was killed may have left one more, or one half-written under another name.
        known = {paths.basename(self._part("", number)) for number in range(parts)}
        for name in paths.list_dir(self.partial):
            if name not in known and name != _PROGRESS:
                paths.remove(paths.join(self.partial, name))
        info = {
            "format": self._kind,
            "layers": list(self._names),
            "texts": self.progress.lines,
            "tokens": self.progress.tokens,
            "truncated": self.progress.truncated,
            "parts": parts,
            "settings": self._settings,
        }
        paths.write_json(paths.join(self.partial, _INFO), info)
        if paths.has_scheme(self._path):
            for name in [*sorted(known), _INFO]:
                source = paths.join(self.partial, name)
                paths.copy(source, paths.join(self._path, name))
                paths.remove(source)
            paths.remove(self._state)
        else:
            paths.rename(self.partial, self._path)
            paths.remove(paths.join(self._path, _PROGRESS))
        self._unlock()

    def close(self) -> None:
        """Leaves the folder for another run, unless there is nothing in it."""
        if not self.progress.lines and not paths.has_scheme(self._path):
            with contextlib.suppress(OSError):
                os.rmdir(paths.local(self.partial))
        self._unlock()

    def _unlock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def _staged(path: str) -> str:
    """Returns the local path at which a file grows, less its ending."""
    if not paths.has_scheme(path):
        return os.path.realpath(paths.local(path))
    name = hashlib.sha256(path.encode()).hexdigest()[:16]
    return os.path.join(tempfile.gettempdir(), f"bert_tf_features_{name}")


def _open_locked(partial: str, path: str) -> IO[bytes]:
    """Opens a file that this process alone makes longer."""
    while True:
        file = open(partial, "ab")  # noqa: SIM115
        try:
            _lock(file.fileno(), path)
            # Else another process has finished it and given it its name.
            if os.path.samestat(os.fstat(file.fileno()), os.stat(partial)):
                return file
        except FileNotFoundError:
            pass
        except BaseException:
            file.close()
            raise
        file.close()


def _lock(descriptor: int, path: str) -> None:
    paths.lock(
        descriptor, f"another process writes {path}: wait until it ends, or give another file"
    )


def _write_progress(path: str, progress: Progress, settings: Mapping[str, Any]) -> None:
    # Not by atomic_write: a name that is always the same leaves nothing behind in the end.
    temporary = f"{path}.new"
    with paths.open_file(temporary, "w") as file:
        json.dump({"progress": dataclasses.asdict(progress), "settings": settings}, file)
        file.flush()
        if not paths.has_scheme(path):
            os.fsync(file.fileno())
    paths.rename(temporary, path)


def _read_progress(path: str, settings: Mapping[str, Any], partial: str) -> Progress:
    """Returns where a run stands: at its beginning where there is no file."""
    if not paths.exists(path):
        return Progress()
    saved = paths.read_json(path)
    began = saved.get("settings", {})
    now = json.loads(json.dumps(settings))
    changed = [
        f"{name} (then {began.get(name)!r}, now {now.get(name)!r})"
        for name in sorted({*began, *now})
        if began.get(name) != now.get(name)
    ]
    if changed:
        raise ValueError(
            f"{partial} was begun by a run with another {', another '.join(changed)}. To go on, "
            f"give what it had; to start over, delete {partial} and {path}."
        )
    return Progress(**saved["progress"])


def open_output(
    path: str, output_format: str, names: Sequence[Layer], settings: Mapping[str, Any]
) -> JsonLines | Parts:
    """Opens what features are written to, new or where a run that was killed left it."""
    if output_format == "jsonl":
        return JsonLines(path, names, settings)
    return Parts(path, names, settings, output_format)


def check_output(path: str, output_format: str, inputs: Sequence[str]) -> None:
    """Checks that a file can be written, before the first hour of work.

    Args:
      path: the file or, for npz and parquet, the folder.
      output_format: one of FORMATS.
      inputs: files that are read, and must not be the output.

    Raises:
      ValueError: it is one of the inputs, or there already.
      OSError: it cannot be written.
      ImportError: parquet needs a package that is not installed.
    """
    if output_format == "parquet":
        import_pyarrow()
    for each in inputs:
        local = not (paths.has_scheme(path) or paths.has_scheme(each))
        if (_real(path) == _real(each)) if local else path == each:
            raise ValueError(f"The output file {path} is also read; give another --output_file.")
    if output_format != "jsonl":
        if paths.exists(path):
            raise ValueError(
                f"{path} is there already; {output_format} output is a new folder of that name. "
                "Delete it, or give another --output_file."
            )
    elif paths.is_dir(path):
        raise ValueError(f"The output file {path} is a folder; name a file in it.")
    elif not paths.has_scheme(path) and paths.exists(path) and not os.path.isfile(_real(path)):
        raise ValueError(f"The output file {path} is not a regular file; name one.")
    # Writing the probe names the reason; an address is asked when the first part is written.
    if not paths.has_scheme(path):
        probe = f"{_real(path)}.writable"
        try:
            with open(probe, "wb"):
                pass
            os.remove(probe)
        except OSError as error:
            raise OSError(
                f"cannot write {path}: {error.strerror}; give another --output_file, or make its "
                "folder and the permissions right"
            ) from error


def _real(path: str) -> str:
    return os.path.realpath(paths.local(path)).rstrip("/")


def read_features(path: str) -> Iterator[Record]:
    """Reads what a finished run wrote, of any format, a line's features at a time.

    Raises:
      FileNotFoundError: there is no such file, or a folder is not finished.
      ValueError: a folder is not one of features.
    """
    if not paths.is_dir(path):
        yield from _read_json(path)
        return
    info_file = paths.join(path, _INFO)
    if not paths.exists(info_file):
        raise FileNotFoundError(f"{path} has no {_INFO}: it holds no finished features.")
    info = paths.read_json(info_file)
    read = {"npz": _read_npz, "parquet": _read_parquet}.get(info.get("format", ""))
    if read is None:
        raise ValueError(f"{info_file}: format is {info.get('format')!r}.")
    for number in range(info["parts"]):
        name = paths.join(path, f"part-{number:05d}.{info['format']}")
        with paths.open_file(name, "rb") as file:
            yield from read(file, [f"layer_{layer}" for layer in info["layers"]])


def _read_json(path: str) -> Iterator[Record]:
    with paths.open_file(path, "rb") as file:
        for line in file:
            found = json.loads(line)
            rows = found.get("features")
            groups = [found["layers"]] if rows is None else [row["layers"] for row in rows]
            values = np.array([[each["values"] for each in group] for group in groups], np.float32)
            if rows is None:
                yield Record(found["linex_index"], None, values[0])
            else:
                yield Record(found["linex_index"], [row["token"] for row in rows], values)


def _read_npz(file: IO[bytes], columns: Sequence[str]) -> Iterator[Record]:
    del columns
    with np.load(io.BytesIO(file.read())) as part:
        values, indices = part["values"], part["linex_index"].tolist()
        if "offsets" not in part:
            yield from (Record(i, None, row) for i, row in zip(indices, values, strict=True))
            return
        tokens, offsets = part["tokens"].tolist(), part["offsets"].tolist()
    for index, start, end in zip(indices, offsets, offsets[1:]):
        yield Record(index, tokens[start:end], values[start:end])


def _read_parquet(file: IO[bytes], columns: Sequence[str]) -> Iterator[Record]:
    _, parquet = import_pyarrow()
    table = parquet.read_table(io.BytesIO(file.read()))
    tokens = table["tokens"].to_pylist() if "tokens" in table.column_names else None
    found = []
    for name in columns:
        lists = table[name].combine_chunks()
        inner = lists.flatten() if tokens is not None else lists
        found.append(inner.flatten().to_numpy().reshape(-1, inner.type.list_size))
    values = np.stack(found, axis=1)  # [sum T or N, L, H]
    start = 0
    for number, index in enumerate(table["linex_index"].to_pylist()):
        if tokens is None:
            yield Record(index, None, values[number])
            continue
        end = start + len(tokens[number])
        yield Record(index, tokens[number], values[start:end])
        start = end


# A whole run.


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
