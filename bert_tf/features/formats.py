"""The features of a line, and the formats in which they are written and read.

Letters in shape comments: T tokens, L chosen layers, H hidden size, N texts.
"""

import dataclasses
import functools
import io
import json
from collections.abc import Iterable, Iterator, Sequence
from typing import IO, Any

import numpy as np

from bert_tf.features.extractor import Layer


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
    arrays: dict[str, Any] = {
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
    np.savez(buffer, **arrays)
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


def from_json(lines: Iterable[bytes]) -> Iterator[Record]:
    """Reads what `to_json` wrote, line by line."""
    for line in lines:
        found = json.loads(line)
        rows = found.get("features")
        groups = [found["layers"]] if rows is None else [row["layers"] for row in rows]
        values = np.array([[each["values"] for each in group] for group in groups], np.float32)
        if rows is None:
            yield Record(found["linex_index"], None, values[0])
        else:
            yield Record(found["linex_index"], [row["token"] for row in rows], values)


def from_npz(file: IO[bytes]) -> Iterator[Record]:
    """Reads what `to_npz` wrote."""
    with np.load(io.BytesIO(file.read())) as part:
        values, indices = part["values"], part["linex_index"].tolist()
        if "offsets" not in part:
            yield from (Record(i, None, row) for i, row in zip(indices, values, strict=True))
            return
        tokens, offsets = part["tokens"].tolist(), part["offsets"].tolist()
    for index, start, end in zip(indices, offsets, offsets[1:]):
        yield Record(index, tokens[start:end], values[start:end])


def from_parquet(file: IO[bytes]) -> Iterator[Record]:
    """Reads what `to_parquet` wrote."""
    _, parquet = import_pyarrow()
    table = parquet.read_table(io.BytesIO(file.read()))
    tokens = table["tokens"].to_pylist() if "tokens" in table.column_names else None
    found = []
    for name in table.column_names:
        if not name.startswith("layer_"):
            continue
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
