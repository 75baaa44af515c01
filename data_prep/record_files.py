"""Random access to the records of TFRecord files, so that a batch is any choice of them.

All files are read through once, with every checksum checked, before a run begins: a damaged file
is found at once, not after hours.
"""

import contextlib
import gzip
import mmap
import os
import shutil
import struct
import tempfile
import time
import zlib
from collections.abc import Callable, Sequence
from typing import IO

import numpy as np

from bert_tf import errors, paths
from data_prep import records

_HEADER = struct.Struct("<QI")
_CRC = struct.Struct("<I")


class RecordFiles:
    """The records of TFRecord files as one sequence.

    Local files are mapped into memory. Files that are compressed or that lie elsewhere are first
    unpacked or copied to a temporary folder, which is deleted at the end.

    Args:
      files: the paths, in order.
      progress: called with (bytes read, bytes in all) now and then, or None.

    Raises:
      ValueError: no file, one that is no TFRecord file or is damaged (with the record's number), or
        no record in any of them.
    """

    def __init__(
        self, files: Sequence[str], progress: Callable[[int, int], None] | None = None
    ) -> None:
        if not files:
            raise ValueError("there is no file of records.")
        self.files = list(files)
        self._maps: list[mmap.mmap | bytes] = []
        starts: list[np.ndarray] = []
        sizes: list[np.ndarray] = []
        total, done = sum(paths.size(file) for file in files), 0
        with contextlib.ExitStack() as stack:
            folder: str | None = None
            for number, file in enumerate(files):
                local = paths.local(file)
                if paths.has_scheme(file) or _is_gzip(file):
                    folder = folder or stack.enter_context(
                        tempfile.TemporaryDirectory(prefix="bert_tf_records_")
                    )
                    local = os.path.join(folder, f"{number}.tfrecord")
                    # The folder may go once the files are mapped: their bytes stay.
                    with (
                        errors.writing(local, " in the folder for temporary files (TMPDIR)"),
                        records.open_records(file) as source,
                        open(local, "wb") as target,
                    ):
                        _unpack(source, target, file)
                self._maps.append(_map(local))
                start, size = _index(file, self._maps[-1], done, total, progress)
                starts.append(start)
                sizes.append(size)
                done += paths.size(file)
        # Where each file's records begin among all of them.
        self._first = np.cumsum([0, *(len(part) for part in starts)])
        self._starts, self._sizes = np.concatenate(starts), np.concatenate(sizes)
        if not len(self):
            raise ValueError(f"{', '.join(files)}: there is no record in it.")

    def __len__(self) -> int:
        return int(self._first[-1])

    def read(self, indices: np.ndarray) -> list[bytes]:
        """Returns the records of these numbers, int [B]."""
        numbers = np.searchsorted(self._first, indices, side="right") - 1
        return [
            self._maps[file][start : start + size]
            for file, start, size in zip(
                numbers.tolist(),
                self._starts[indices].tolist(),
                self._sizes[indices].tolist(),
                strict=True,
            )
        ]

    def fingerprint(self) -> int:
        """Returns a number that tells these records from others: of their sizes and the first."""
        return zlib.crc32(self._sizes.tobytes(), zlib.crc32(self.read(np.array([0]))[0]))

    def where(self, index: int) -> str:
        """Names a record, for messages: "file: record 3"; numbers begin at 0 in each file."""
        file = int(np.searchsorted(self._first, index, side="right")) - 1
        return f"{self.files[file]}: record {index - int(self._first[file])}"


def _is_gzip(file: str) -> bool:
    with paths.open_file(file, "rb") as handle:
        return bool(handle.read(2) == b"\x1f\x8b")


def _unpack(source: IO[bytes], target: IO[bytes], file: str) -> None:
    try:
        shutil.copyfileobj(source, target, 1 << 20)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(
            f"{file}: the gzip data is damaged or cut off ({error}); make the file anew."
        ) from None


def _map(path: str) -> mmap.mmap | bytes:
    with open(path, "rb") as handle:
        if os.fstat(handle.fileno()).st_size == 0:
            return b""  # An empty file cannot be mapped.
        return mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ)


def _index(
    file: str,
    data: mmap.mmap | bytes,
    done: int,
    total: int,
    progress: Callable[[int, int], None] | None,
) -> tuple[np.ndarray, np.ndarray]:
    """Returns where the records lie, int64 [n], and their sizes, int32 [n]; checks them."""
    starts: list[int] = []
    sizes: list[int] = []
    at, end = 0, len(data)
    header = _HEADER.unpack_from
    said = time.monotonic()
    while at < end:
        where = f"{file}: record {len(starts)} at byte {at}"
        if end - at < _HEADER.size:
            raise ValueError(f"{where}: the file is cut off; make it anew.")
        size, expected = header(data, at)
        if records.masked_crc(data[at : at + 8]) != expected:
            if not starts:
                raise ValueError(f"{file}: this is no TFRecord file.")
            raise ValueError(f"{where}: its length is damaged; make the file anew.")
        start = at + _HEADER.size
        at = start + size + _CRC.size
        if at > end:
            raise ValueError(f"{where}: the file is cut off; make it anew.")
        if records.masked_crc(data[start : start + size]) != _CRC.unpack_from(data, at - 4)[0]:
            raise ValueError(f"{where}: the checksum is wrong; make the file anew.")
        starts.append(start)
        sizes.append(size)
        if progress is not None and not len(starts) % 10_000 and time.monotonic() - said > 5:
            said = time.monotonic()
            progress(done + at, total)
    return np.array(starts, np.int64), np.array(sizes, np.int32)
