"""Records of several files as one sequence; damage is found before a run begins."""

import gzip
import os
import tempfile

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep import record_files, records
from data_prep.record_files import RecordFiles


def framed(*data):
    return b"".join(map(records.frame, data))


@settings(deadline=None, max_examples=30)
@given(
    contents=st.lists(
        st.tuples(st.lists(st.binary(max_size=30), max_size=5), st.booleans()), max_size=5
    ),
    data=st.data(),
)
def test_any_record_of_any_file(contents, data):
    with tempfile.TemporaryDirectory() as folder:
        files, every, places = [], [], []
        for number, (parts, compressed) in enumerate(contents):
            path = os.path.join(folder, f"{number}.tfrecord")
            with open(path, "wb") as handle:
                handle.write(gzip.compress(framed(*parts)) if compressed else framed(*parts))
            files.append(path)
            every += parts
            places += [f"{path}: record {at}" for at in range(len(parts))]
        if not every:
            with pytest.raises(ValueError, match=r"there is no (record in it|file of records)"):
                RecordFiles(files)
            return
        found = RecordFiles(files)
        assert len(found) == len(every)
        assert [found.where(index) for index in range(len(every))] == places
        wanted = data.draw(st.lists(st.integers(0, len(every) - 1), min_size=1, max_size=8))
        assert found.read(np.array(wanted)) == [every[index] for index in wanted]


def test_as_tensorflow_writes_and_reads(tmp_path):
    import tensorflow as tf

    written = [b"one", b"", b"x" * 5000]
    for name, kind in (("plain", ""), ("compressed", "GZIP")):
        options = tf.io.TFRecordOptions(compression_type=kind)
        with tf.io.TFRecordWriter(str(tmp_path / name), options) as writer:
            for record in written:
                writer.write(record)
    found = RecordFiles([str(tmp_path / "plain"), str(tmp_path / "compressed")])
    assert found.read(np.arange(6)) == 2 * written


def test_files_may_be_gone_once_they_are_open(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    path = tmp_path / "a.gz"
    path.write_bytes(gzip.compress(framed(b"abc", b"de")))
    found = RecordFiles([str(path)])
    # Nothing is left in the folder for temporary files.
    assert list((tmp_path / "temporary").iterdir()) == []
    path.unlink()
    assert found.read(np.array([1, 0])) == [b"de", b"abc"]


def test_an_address(tmp_path):
    files = pytest.importorskip("fsspec").filesystem("memory")
    files.pipe("/records/a", framed(b"abc", b"de"))
    try:
        found = RecordFiles(["memory://records/a"])
        assert found.read(np.array([1])) == [b"de"]
        assert found.where(1) == "memory://records/a: record 1"
    finally:
        files.rm("/records", recursive=True)


GOOD = framed(b"abc", b"defg")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"This is a text.", "this is no TFRecord file"),
        (b"short", "record 0 at byte 0: the file is cut off"),
        (GOOD[:-1], "record 1 at byte 19: the file is cut off"),
        (GOOD[:25], "record 1 at byte 19: the file is cut off"),
        (GOOD[:12] + b"x" + GOOD[13:], "record 0 at byte 0: the checksum is wrong"),
        (GOOD[:-1] + b"x", "record 1 at byte 19: the checksum is wrong"),
        (GOOD + b"x" * 30, "record 2 at byte 39: its length is damaged"),
        (gzip.compress(GOOD, mtime=0)[:-9], "gzip data is damaged or cut off"),
        (
            gzip.compress(GOOD, mtime=0)[:10] + b"nonsense" + gzip.compress(GOOD, mtime=0)[18:],
            "gzip data is damag",
        ),
        (gzip.compress(GOOD[:-1], mtime=0), "record 1 at byte 19: the file is cut off"),
    ],
)
def test_damage(tmp_path, content, message):
    (tmp_path / "good").write_bytes(GOOD)
    (tmp_path / "bad").write_bytes(content)
    with pytest.raises(ValueError, match=message) as caught:
        RecordFiles([str(tmp_path / "good"), str(tmp_path / "bad")])
    assert str(caught.value).startswith(str(tmp_path / "bad"))
    assert "\n" not in str(caught.value)


def test_files_without_a_record(tmp_path):
    with pytest.raises(ValueError, match="there is no file of records"):
        RecordFiles([])
    for name in ("a", "b"):
        (tmp_path / name).write_bytes(b"")
    with pytest.raises(ValueError, match=rf"{tmp_path}/a, {tmp_path}/b: there is no record in it"):
        RecordFiles([str(tmp_path / "a"), str(tmp_path / "b")])


def test_no_room_to_unpack(tmp_path, monkeypatch):
    (tmp_path / "a.gz").write_bytes(gzip.compress(GOOD))

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(record_files, "_unpack", full)
    with pytest.raises(OSError, match=r"No space left on device.*TMPDIR.*free some space"):
        RecordFiles([str(tmp_path / "a.gz")])


def test_progress(tmp_path, monkeypatch):
    for name in ("a", "b"):
        (tmp_path / name).write_bytes(framed(*[b"x"] * 25_000))
    now = [0.0]

    def clock():
        now[0] += 10
        return now[0]

    monkeypatch.setattr(record_files.time, "monotonic", clock)
    said = []
    RecordFiles([str(tmp_path / "a"), str(tmp_path / "b")], lambda *both: said.append(both))
    size = 25_000 * 17
    assert said == [
        (10_000 * 17, 2 * size), (20_000 * 17, 2 * size),
        (size + 10_000 * 17, 2 * size), (size + 20_000 * 17, 2 * size),
    ]  # fmt: skip


def test_fingerprint(tmp_path):
    def of(*parts):
        (tmp_path / "f").write_bytes(framed(*parts))
        return RecordFiles([str(tmp_path / "f")]).fingerprint()

    first = of(b"abc", b"de")
    assert first == of(b"abc", b"de")
    # Another first record, another number of them, other sizes.
    assert len({first, of(b"abd", b"de"), of(b"abc", b"de", b""), of(b"abc", b"def")}) == 4
