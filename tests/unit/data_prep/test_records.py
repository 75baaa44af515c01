"""TFRecord files without TensorFlow, read back by TensorFlow; damage; atomic sets of files."""

import errno
import gzip
import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pretraining_texts import GOLDEN, RUNS, read

from data_prep import feature_spec, records

INT64 = st.integers(-(2**63), 2**63 - 1)


@settings(deadline=None, max_examples=50)
@given(st.lists(INT64, max_size=20), st.lists(st.floats(width=32, allow_nan=False), max_size=20))
def test_examples_as_tensorflow_parses_them(ints, floats):
    import tensorflow as tf

    ours = records.encode_example({"é": np.array(ints, np.int64), "b": np.array(floats, "f4")})
    theirs = tf.train.Example.FromString(ours)
    assert list(theirs.features.feature["é"].int64_list.value) == ints
    assert list(theirs.features.feature["b"].float_list.value) == floats
    parsed = records.parse_example(theirs.SerializeToString())
    assert parsed["é"].tolist() == ints
    assert parsed["b"].tolist() == floats
    assert records.parse_example(ours).keys() == parsed.keys()


def test_bytes_lists_and_unpacked_ints():
    import tensorflow as tf

    theirs = tf.train.Example()
    theirs.features.feature["t"].bytes_list.value.extend([b"a", b""])
    parsed = records.parse_example(theirs.SerializeToString())
    assert parsed["t"].tolist() == [b"a", b""]
    # A list that is not packed: field 1 as single varints.
    feature = records._field(3, b"\x08\x05\x08\xac\x02")
    entry = records._field(1, records._field(1, b"n") + records._field(2, feature))
    assert records.parse_example(records._field(1, entry))["n"].tolist() == [5, 300]


@pytest.mark.parametrize("compress", [False, True])
def test_files_as_tensorflow_reads_them(tmp_path, compress):
    import tensorflow as tf

    written = [b"", b"x" * 70000, b"abc"]
    file = tmp_path / "f"
    if compress:
        # Pieces that were compressed apart, one after the other, as the streaming mode does.
        file.write_bytes(b"".join(gzip.compress(records.frame(record)) for record in written))
    else:
        file.write_bytes(b"".join(map(records.frame, written)))
    kind = "GZIP" if compress else None
    dataset = tf.data.TFRecordDataset(str(file), compression_type=kind)
    assert list(dataset.as_numpy_iterator()) == written
    assert list(records.read_records(str(file))) == written
    with tf.io.TFRecordWriter(str(file)) as writer:
        for record in written:
            writer.write(record)
    assert list(records.read_records(str(file))) == written
    assert file.read_bytes() == b"".join(map(records.frame, written))


@pytest.mark.parametrize("run", RUNS)
def test_golden_shards(run):
    import json

    for file in sorted((GOLDEN / run).glob("*.tfrecord")):
        text = (GOLDEN / run / f"{file.stem}_instances.jsonl").read_text("utf-8")
        rows = [json.loads(line) for line in text.splitlines()]
        found = read(file)
        assert len(found) == len(rows)
        for record, row in zip(found, rows):
            assert len(record) == 7
            for name, values in record.items():
                assert values == row[name]


def test_golden_records_encode_to_the_same_size():
    for record in records.read_records(str(GOLDEN / RUNS[0] / "shard0.tfrecord")):
        example = records.parse_example(record)
        ours = records.encode_example(example)
        # The order of the features is the only freedom.
        assert len(ours) == len(record)
        assert sorted(ours) == sorted(record)


def test_spec_is_parsed_by_tensorflow():
    import tensorflow as tf

    spec = feature_spec.parsing(feature_spec.pretraining(128, 20))
    record = next(records.read_records(str(GOLDEN / RUNS[0] / "shard0.tfrecord")))
    parsed = tf.io.parse_single_example(record, spec)
    assert parsed["input_ids"].numpy()[0] == 101


def framed(*data: bytes) -> bytes:
    return b"".join(map(records.frame, data))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"This is a text.", "no TFRecord file"),
        (b"short", "cut off"),
        (framed(b"abc", b"defg")[:-1], "record 1 at byte 19: the file is cut off"),
        (framed(b"abc", b"defg")[:25], "record 1 at byte 19: the file is cut off"),
        (framed(b"abc")[:12] + b"x" + framed(b"abc")[13:], "record 0 at byte 0: the checksum"),
        (framed(b"abc") + b"x" * 30, "record 1 at byte 19: its length is damaged"),
        (gzip.compress(framed(b"abc", b"defg"), mtime=0)[:-9], "gzip data is damaged or cut off"),
    ],
)
def test_damage(tmp_path, content, message):
    file = tmp_path / "f"
    file.write_bytes(content)
    with pytest.raises(ValueError, match=message) as caught:
        list(records.read_records(str(file)))
    assert str(file) in str(caught.value)


def test_a_flipped_byte_in_gzip(tmp_path):
    data = gzip.compress(framed(*(bytes([i]) * 50 for i in range(200))))
    file = tmp_path / "f"
    for place in range(10, len(data)):
        file.write_bytes(data[:place] + bytes([data[place] ^ 0xFF]) + data[place + 1 :])
        with pytest.raises(ValueError, match=r"anew|no TFRecord file") as caught:
            list(records.read_records(str(file)))
        assert str(file) in str(caught.value)


@pytest.mark.parametrize("record", [b"\xff", b"\x0a\x05abc", b"\x0a\x04\x0a\x02\x0a\x09"])
def test_no_example(record):
    with pytest.raises(ValueError, match=r"no tf\.train\.Example"):
        records.parse_example(record)


def test_output_files():
    assert records.output_files("a, b/c") == ["a", "b/c"]
    assert records.output_files("x@2,y@1.tfrecord") == [
        "x-00000-of-00002",
        "x-00001-of-00002",
        "y-00000-of-00001.tfrecord",
    ]
    assert records.output_files("gs://user@host/x") == ["gs://user@host/x"]
    for wrong, message in (
        ("", "no output"),
        ("x@0", "after @"),
        ("a,b,a", "a is named twice"),
        ("a,./a", r"\./a is named twice among the output files, also as a"),
        ("memory://p/a,memory:///p/a", "named twice"),
    ):
        with pytest.raises(ValueError, match=message):
            records.output_files(wrong)


def test_real_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a").write_text("")
    (tmp_path / "link").symlink_to("a")
    one = {"a", "./a", "x/../a", "link", str(tmp_path / "a"), f"file://{tmp_path}/a"}
    assert len(set(map(records.real_path, one))) == 1
    one = {"memory://p/a", "memory:///p/a", "MEMORY://p//a", "memory://p/./b/../a"}
    assert len(set(map(records.real_path, one))) == 1
    other = ["a", "b", "memory://a", "memory://p/a", "s3://p/a", "gs://p/a", "gs://p/A"]
    assert len(set(map(records.real_path, other))) == len(other)


def test_a_set_of_files_appears_together(tmp_path):
    files = [str(tmp_path / "new" / name) for name in "ab"]
    with records.Shards(files) as shards:
        for number in range(2):
            with shards.open(number) as handle:
                handle.write(b"x")
            assert not any(map(os.path.exists, files))
    assert sorted(os.listdir(tmp_path / "new")) == ["a", "b"]


def test_an_error_leaves_no_file(tmp_path):
    files = [str(tmp_path / name) for name in "ab"]

    def write():
        with records.Shards(files) as shards:
            with shards.open(0) as handle:
                handle.write(b"x")
            with shards.open(1) as handle:
                raise KeyError

    with pytest.raises(KeyError):
        write()
    assert os.listdir(tmp_path) == []


def test_a_full_disk_is_named(tmp_path, monkeypatch):
    file = str(tmp_path / "a")
    error = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    message = "while writing; free some space"
    shards = records.Shards([file])
    with pytest.raises(OSError, match=message) as caught, shards, shards.open(0):
        raise error
    assert caught.value.filename == file
    assert os.listdir(tmp_path) == []


def test_an_address_as_output():
    pytest.importorskip("fsspec")
    with records.Shards(["memory://records_test/a"]) as shards, shards.open(0) as handle:
        handle.write(framed(b"abc"))
    assert list(records.read_records("memory://records_test/a")) == [b"abc"]
