"""TFRecord files of tf.train.Example without TensorFlow: the bytes, the checksums, the shards.

A TFRecord file is a sequence of: length (uint64), masked CRC-32C of the length (uint32), the
record, masked CRC-32C of the record (uint32), all little-endian. A tf.train.Example is a protobuf
message that holds a map from names to lists of int64, float or bytes.
"""

import contextlib
import gzip
import os
import posixpath
import re
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import IO, Any

import google_crc32c
import numpy as np

from bert_tf import errors, paths

_HEADER = struct.Struct("<QI")
_CRC = struct.Struct("<I")
_crc32c = google_crc32c.value
_LONGEST = 1 << 30


def masked_crc(data: bytes) -> int:
    """Returns the checksum of TFRecord files."""
    crc = _crc32c(data)
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def frame(record: bytes) -> bytes:
    """Returns a record with its length and checksums, as it stands in a file."""
    length = struct.pack("<Q", len(record))
    return b"".join((length, _CRC.pack(masked_crc(length)), record, _CRC.pack(masked_crc(record))))


def open_records(path: str) -> IO[bytes]:
    """Opens a TFRecord file, gzip or not, to be read."""
    handle = paths.open_file(path, "rb")
    magic = handle.read(2)
    handle.seek(0)
    if magic == b"\x1f\x8b":
        # GzipFile closes only what it opened itself.
        reader: Any = gzip.GzipFile(fileobj=handle)
        reader.myfileobj = handle
        return reader
    return handle


def read_records(path: str) -> Iterator[bytes]:
    """Yields the records of a TFRecord file, gzip or not, with all checksums checked.

    Raises:
      ValueError: the file is no TFRecord file, damaged or cut off; names the file, the record and
        the byte where it begins (in the uncompressed data).
    """
    offset = 0
    number = 0
    with open_records(path) as handle:
        try:
            while header := handle.read(_HEADER.size):
                where = f"{path}: record {number} at byte {offset}"
                if len(header) < _HEADER.size:
                    raise ValueError(f"{where}: the file is cut off; make it anew.")
                length, crc = _HEADER.unpack(header)
                if crc != masked_crc(header[:8]) or length > _LONGEST:
                    if number == 0:
                        raise ValueError(f"{path}: this is no TFRecord file.")
                    raise ValueError(f"{where}: its length is damaged; make the file anew.")
                record = handle.read(length)
                end = handle.read(_CRC.size)
                if len(record) < length or len(end) < _CRC.size:
                    raise ValueError(f"{where}: the file is cut off; make it anew.")
                if _CRC.unpack(end)[0] != masked_crc(record):
                    raise ValueError(f"{where}: the checksum is wrong; make the file anew.")
                yield record
                offset += _HEADER.size + length + _CRC.size
                number += 1
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise ValueError(
                f"{path}: record {number} at byte {offset}: the gzip data is damaged or cut off "
                f"({error}); make the file anew."
            ) from None


# Protobuf.


def varint(value: int) -> bytes:
    """Returns an int64 as a varint."""
    value &= 0xFFFFFFFFFFFFFFFF
    parts = bytearray()
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)


def _field(number: int, data: bytes) -> bytes:
    """Returns a length-delimited field."""
    return b"".join((varint(number << 3 | 2), varint(len(data)), data))


def encode_feature(name: str, kind_field: int, packed: bytes) -> bytes:
    """Returns one entry of an Example's map. kind_field: 2 float list, 3 int64 list."""
    feature = _field(kind_field, _field(1, packed))
    return _field(1, _field(1, name.encode()) + _field(2, feature))


def encode_example(features: Mapping[str, np.ndarray]) -> bytes:
    """Returns the bytes of a tf.train.Example: int arrays as int64 lists, float ones as float.

    The features stand in the order of their names.
    """
    entries = []
    for name in sorted(features):
        values = np.asarray(features[name])
        if values.dtype.kind == "f":
            entries.append(encode_feature(name, 2, values.astype("<f4").tobytes()))
        else:
            entries.append(encode_feature(name, 3, b"".join(map(varint, values.tolist()))))
    return _field(1, b"".join(entries))


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at += 1
        if byte < 0x80:
            return value, at
        shift += 7


def _fields(data: bytes) -> Iterator[tuple[int, int, Any]]:
    """Yields (field number, wire type, value) of a message."""
    at = 0
    while at < len(data):
        key, at = _read_varint(data, at)
        wire = key & 7
        value: Any
        if wire == 0:
            value, at = _read_varint(data, at)
        elif wire == 2:
            length, at = _read_varint(data, at)
            if at + length > len(data):
                raise IndexError
            value = data[at : at + length]
            at += length
        elif wire in (1, 5):
            size = 8 if wire == 1 else 4
            value = data[at : at + size]
            at += size
        else:
            raise IndexError
        yield key >> 3, wire, value


def _int64_list(data: bytes) -> np.ndarray:
    values: list[np.ndarray] = []
    for number, wire, value in _fields(data):
        if number != 1:
            continue
        if wire == 0:
            values.append(np.array([value], np.uint64))
            continue
        raw = np.frombuffer(value, np.uint8)
        ends = np.flatnonzero(raw < 0x80)
        if len(raw) and (not len(ends) or ends[-1] != len(raw) - 1):
            raise IndexError
        starts = np.concatenate([[0], ends[:-1] + 1]) if len(ends) else ends
        shifts = 7 * (np.arange(len(raw)) - np.repeat(starts, ends - starts + 1))
        bits = (raw & 0x7F).astype(np.uint64) << shifts.astype(np.uint64)
        values.append(np.add.reduceat(bits, starts) if len(ends) else bits)
    joined = np.concatenate(values) if values else np.zeros(0, np.uint64)
    return joined.astype(np.int64)


def _float_list(data: bytes) -> np.ndarray:
    parts = [np.frombuffer(value, "<f4") for number, _, value in _fields(data) if number == 1]
    return np.concatenate(parts).astype(np.float32) if parts else np.zeros(0, np.float32)


def _bytes_list(data: bytes) -> np.ndarray:
    return np.array([value for number, _, value in _fields(data) if number == 1], object)


_LISTS = {1: _bytes_list, 2: _float_list, 3: _int64_list}


def parse_example(record: bytes) -> dict[str, np.ndarray]:
    """Returns the features of a tf.train.Example: int64, float32 or bytes objects, each 1-D.

    Raises:
      ValueError: the record is no tf.train.Example.
    """
    result: dict[str, np.ndarray] = {}
    try:
        for number, _, features in _fields(record):
            if number != 1:
                continue
            for entry_number, _, entry in _fields(features):
                if entry_number != 1:
                    continue
                parts = {n: value for n, _, value in _fields(entry)}
                name = parts.get(1, b"").decode()
                kinds = list(_fields(parts.get(2, b"")))
                result[name] = (
                    _LISTS[kinds[-1][0]](kinds[-1][2]) if kinds else np.zeros(0, np.int64)
                )
    except (IndexError, KeyError, ValueError, TypeError, AttributeError):
        raise ValueError("the record is no tf.train.Example") from None
    return result


# Shards.

_AT_N = re.compile(r"^(.*)@(\d+)(\.[^/@]*)?$")


def real_path(path: str) -> str:
    """Returns one spelling for all paths of a file: links are followed, addresses normalised."""
    kind = paths.scheme(path)
    if not kind:
        return os.path.realpath(paths.local(path))
    # An object's name may hold "//" or "..": names that differ in these alone count as one file.
    kind = {"s3a": "s3", "gcs": "gs"}.get(kind, kind)
    return f"{kind}:/{posixpath.normpath('/' + path.split('://', 1)[1].lstrip('/'))}"


def output_files(patterns: str | Sequence[str]) -> list[str]:
    """Returns the files that an output flag means.

    Args:
      patterns: paths, comma-separated if one string. `name@4` stands for name-00000-of-00004 to
        name-00003-of-00004, `name@4.tfrecord` for name-00000-of-00004.tfrecord and so on.

    Raises:
      ValueError: no file, @0, or a file twice, however it is spelled.
    """
    if isinstance(patterns, str):
        patterns = patterns.split(",")
    files: list[str] = []
    for pattern in filter(None, (pattern.strip() for pattern in patterns)):
        match = _AT_N.match(pattern)
        if not match:
            files.append(pattern)
            continue
        stem, count, end = match.group(1), int(match.group(2)), match.group(3) or ""
        if not 1 <= count <= 99999:
            raise ValueError(f"{pattern}: the number of files after @ must be from 1 to 99999.")
        files += [f"{stem}-{i:05d}-of-{count:05d}{end}" for i in range(count)]
    if not files:
        raise ValueError("no output file is named.")
    named: dict[str, str] = {}
    for file in files:
        real = real_path(file)
        before = named.get(real)
        if before is None:
            named[real] = file
        else:
            also = "" if before == file else f", also as {before}"
            raise ValueError(f"{file} is named twice among the output files{also}.")
    return files


class Shards:
    """Writes a set of output files that get their names together, when all are complete.

    Args:
      files: the paths. Folders are made.

    Use as a context manager. On success every file is renamed from its temporary name, on an
    error all temporary files are deleted; a process that is killed leaves temporary names only.
    """

    def __init__(self, files: Sequence[str]):
        self.files = [file if paths.has_scheme(file) else paths.local(file) for file in files]
        self._temporary: dict[str, str] = {}

    def __enter__(self) -> "Shards":
        for file in self.files:
            if paths.is_dir(file):
                raise ValueError(f"{file} is a folder; name an output file.")
            if paths.dirname(file):
                paths.make_dirs(paths.dirname(file))
        return self

    @contextlib.contextmanager
    def open(self, number: int) -> Iterator[IO[bytes]]:
        """Opens file `number` to be written, once."""
        file = self.files[number]
        temporary = self._temporary[file] = f"{file}.tmp-{os.getpid()}"
        with errors.writing(file), paths.open_file(temporary, "wb") as handle:
            yield handle
            handle.flush()
            if not paths.has_scheme(file):
                os.fsync(handle.fileno())

    def __exit__(self, error: Any, *_: Any) -> None:
        if error is None and len(self._temporary) == len(self.files):
            for file, temporary in self._temporary.items():
                paths.rename(temporary, file)
            return
        for temporary in self._temporary.values():
            with contextlib.suppress(OSError):
                paths.remove(temporary)
        if error is None:
            raise RuntimeError("not all output files were written")


def compressor(raw: IO[bytes]) -> gzip.GzipFile:
    """Returns a gzip stream whose bytes do not depend on the time or the file's name."""
    return gzip.GzipFile("", "wb", compresslevel=6, fileobj=raw, mtime=0)
