import json
import pathlib
import shutil

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_tf import paths
from bert_tf.checkpoint import original

GOLDEN = pathlib.Path(__file__).parents[2] / "golden" / "checkpoint"
PRETRAINING = GOLDEN / "tiny_pretraining"
PREFIX = str(PRETRAINING / "bert_model.ckpt")
TENSORS = {"b": np.arange(6, dtype=np.float32).reshape(2, 3), "a/adam_m": np.float32(2)}

LISTINGS = [
    (folder, within)
    for folder in ("tiny_pretraining", "tiny_classifier", "tiny_squad")
    for within in (".", "training")
]


def read_all(path):
    reader = original.Reader(str(path))
    return {name: reader.get(name) for name in reader.shapes}


@pytest.mark.parametrize(("folder", "within"), LISTINGS)
def test_golden_values(folder, within):
    directory = GOLDEN / folder / within
    listed = json.loads((directory / "variables.json").read_text())
    reader = original.Reader(str(directory))
    assert list(reader.shapes) == sorted(entry["name"] for entry in listed)
    for entry in listed:
        name = entry["name"]
        array = reader.get(name)
        assert array.shape == reader.shapes[name] == tuple(entry["shape"])
        assert array.dtype.name == reader.dtypes[name] == entry["dtype"]
        assert np.float64(array.astype(np.float64).sum()) == pytest.approx(entry["sum"], abs=1e-9)
        absolute = np.abs(array.astype(np.float64)).sum()
        assert absolute == pytest.approx(entry["abs_sum"], abs=1e-9)


@pytest.mark.parametrize(("folder", "within"), LISTINGS)
def test_written_files_are_the_bytes_of_tf1s_saver(folder, within, tmp_path):
    prefix = original.resolve(str(GOLDEN / folder / within))
    copy = str(tmp_path / "out" / pathlib.Path(prefix).name)
    original.write(copy, read_all(prefix))
    for ending in (".index", ".data-00000-of-00001"):
        golden = pathlib.Path(prefix + ending)
        assert pathlib.Path(copy + ending).read_bytes() == golden.read_bytes()
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == sorted(
        pathlib.Path(copy + ending).name for ending in (".index", ".data-00000-of-00001")
    )


def test_saver_reads_what_is_written(tmp_path):
    import tensorflow as tf

    original.write(str(tmp_path / "model.ckpt-3"), {**TENSORS, "global_step": 3})
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        v1 = tf.compat.v1
        b = v1.get_variable("b", [2, 3])
        step = v1.get_variable("global_step", [], tf.int64, trainable=False)
        v1.train.Saver([b, step]).restore(session, str(tmp_path / "model.ckpt-3"))
        values = session.run([b, step])
    np.testing.assert_array_equal(values[0], TENSORS["b"])
    assert values[1] == 3


@pytest.mark.parametrize("ending", ["", ".index", ".data-00000-of-00001", ".meta"])
def test_path_forms(ending):
    assert original.resolve(PREFIX + ending) == PREFIX


def test_directory_forms(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    for step in (9, 10):
        original.write(str(folder / f"model.ckpt-{step}"), TENSORS)
    assert original.resolve(str(folder)) == str(folder / "model.ckpt-10")
    original.write(str(folder / "bert_model.ckpt"), TENSORS)
    assert original.resolve(str(folder) + "/") == str(folder / "bert_model.ckpt")
    original.write_state(str(folder), str(folder / "model.ckpt-9"))
    assert original.resolve(str(folder)) == str(folder / "model.ckpt-9")


def test_directory_with_one_checkpoint_of_another_name(tmp_path):
    original.write(str(tmp_path / "mine"), TENSORS)
    assert original.resolve(str(tmp_path)) == str(tmp_path / "mine")
    original.write(str(tmp_path / "yours"), TENSORS)
    with pytest.raises(FileNotFoundError, match="several checkpoints: mine, yours"):
        original.resolve(str(tmp_path))


def test_relative_paths(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    original.write("model.ckpt-1", TENSORS)
    original.write_state(".", "model.ckpt-1")
    assert original.resolve("model.ckpt-1.index") == "model.ckpt-1"
    assert pathlib.Path(original.resolve(".")) == pathlib.Path("model.ckpt-1")
    assert set(read_all("model.ckpt-1")) == set(TENSORS)


def test_not_found_says_what_is_there(tmp_path):
    (tmp_path / "vocab.txt").write_text("")
    with pytest.raises(FileNotFoundError, match=r"no checkpoint .*bert_model\.ckpt.*vocab\.txt"):
        original.resolve(str(tmp_path / "bert_model.ckpt"))
    with pytest.raises(FileNotFoundError, match=r"no checkpoint in .*vocab\.txt"):
        original.resolve(str(tmp_path))
    with pytest.raises(FileNotFoundError, match=r"no folder .*/nowhere either"):
        original.resolve(str(tmp_path / "nowhere" / "bert_model.ckpt"))


def test_files_missing(tmp_path):
    prefix = str(tmp_path / "m")
    original.write(prefix, TENSORS)
    data = pathlib.Path(prefix + ".data-00000-of-00001")
    content = data.read_bytes()
    data.unlink()
    with pytest.raises(FileNotFoundError, match=r"m\.data-00000-of-00001 is missing"):
        original.resolve(prefix)
    data.write_bytes(content)
    pathlib.Path(prefix + ".index").unlink()
    with pytest.raises(FileNotFoundError, match=r"m\.index is missing"):
        original.resolve(prefix)
    assert not original.is_complete(prefix)


def test_sharded_data_files(tmp_path):
    import tensorflow as tf

    parts = []
    for number, (name, value) in enumerate(sorted(TENSORS.items())):
        part = str(tmp_path / f"part{number}")
        tf.raw_ops.SaveV2(
            prefix=part, tensor_names=[name], shape_and_slices=[""], tensors=[tf.constant(value)]
        )
        parts.append(part)
    prefix = str(tmp_path / "sharded")
    tf.raw_ops.MergeV2Checkpoints(checkpoint_prefixes=parts, destination_prefix=prefix)
    assert len(original.shard_files(prefix)) == 2
    read = read_all(prefix + ".data-00001-of-00002")
    for name, value in TENSORS.items():
        np.testing.assert_array_equal(read[name], value)
    pathlib.Path(prefix + ".data-00001-of-00002").unlink()
    with pytest.raises(FileNotFoundError, match="data-00001-of-00002 is missing"):
        original.Reader(prefix)


def copied(tmp_path):
    for ending in (".index", ".data-00000-of-00001"):
        shutil.copy(PREFIX + ending, tmp_path)
    return tmp_path / "bert_model.ckpt"


def test_truncated_data_file(tmp_path):
    prefix = str(copied(tmp_path))
    data = pathlib.Path(prefix + ".data-00000-of-00001")
    content = data.read_bytes()
    data.write_bytes(content[:-1])
    with pytest.raises(
        original.CheckpointError,
        match=rf"data-00000-of-00001: cut short: {len(content) - 1} bytes.* {len(content)}",
    ):
        original.Reader(prefix)


@pytest.mark.parametrize("keep", [0, 100, -1])
def test_truncated_index(tmp_path, keep):
    prefix = str(copied(tmp_path))
    index = pathlib.Path(prefix + ".index")
    content = index.read_bytes()[:keep]
    index.write_bytes(content)
    with pytest.raises(
        original.CheckpointError, match=rf"ckpt\.index \({len(content)} bytes\) is cut short"
    ):
        original.Reader(prefix)


def test_corrupt_data_is_found_by_its_checksum(tmp_path):
    prefix = str(copied(tmp_path))
    data = pathlib.Path(prefix + ".data-00000-of-00001")
    content = bytearray(data.read_bytes())
    content[10] ^= 1
    data.write_bytes(content)
    with pytest.raises(original.CheckpointError, match=r"data-00000-of-00001 .* corrupt"):
        read_all(prefix)


def test_unknown_variable():
    with pytest.raises(KeyError, match="no variable nothing"):
        original.Reader(PREFIX).get("nothing")


@settings(deadline=None, max_examples=20)
@given(
    shapes=st.dictionaries(
        st.text("abc/_0", min_size=1, max_size=12),
        st.lists(st.integers(0, 4), max_size=3),
        min_size=1,
        max_size=5,
    ),
    dtype=st.sampled_from(["float32", "int64", "int32", "float64", "float16"]),
    seed=st.integers(0, 99),
)
def test_write_and_read_are_bit_exact(tmp_path_factory, shapes, dtype, seed):
    rng = np.random.default_rng(seed)
    tensors = {
        name: (rng.standard_normal(shape) * 100).astype(dtype) for name, shape in shapes.items()
    }
    prefix = str(tmp_path_factory.mktemp("w") / "model.ckpt-1")
    original.write(prefix, tensors)
    read = read_all(prefix)
    assert set(read) == set(tensors)
    for name, array in tensors.items():
        assert read[name].dtype == array.dtype
        np.testing.assert_array_equal(read[name], array)


class Killed(BaseException):
    """Stands for the process's end: nothing catches it."""


@pytest.mark.parametrize("moves", [0, 1])
@pytest.mark.parametrize("existed", [False, True])
def test_interrupted_write_leaves_nothing_that_looks_finished(
    tmp_path, monkeypatch, moves, existed
):
    prefix = str(tmp_path / "model.ckpt-2")
    if existed:
        original.write(prefix, {"b": np.zeros([100], np.float32)})
    done = []

    def rename(source, target):
        if len(done) == moves:
            raise Killed
        done.append(target)
        shutil.move(source, target)

    # A killed process cleans nothing up either.
    with monkeypatch.context() as patch:
        patch.setattr(paths, "rename", rename)
        patch.setattr(shutil, "rmtree", lambda *args, **kwargs: None)
        with pytest.raises(Killed):
            original.write(prefix, TENSORS)
    assert not original.is_complete(prefix)
    with pytest.raises(FileNotFoundError):
        original.resolve(prefix)
    with pytest.raises(FileNotFoundError):
        original.resolve(str(tmp_path))

    original.write(prefix, TENSORS)
    np.testing.assert_array_equal(read_all(prefix)["b"], TENSORS["b"])
    assert len(list(tmp_path.iterdir())) == 2


def test_failed_write_leaves_nothing(tmp_path, monkeypatch):
    def fail(prefix, arrays):
        pathlib.Path(prefix + ".data-00000-of-00001").write_bytes(b"half")
        raise OSError("no space left")

    monkeypatch.setattr(original, "_save", fail)
    with pytest.raises(OSError, match="no space left"):
        original.write(str(tmp_path / "m"), TENSORS)
    assert list(tmp_path.iterdir()) == []


def test_write_refuses_what_is_no_tensor(tmp_path):
    with pytest.raises(ValueError, match="no variables"):
        original.write(str(tmp_path / "m"), {})
    with pytest.raises(ValueError, match="b: expected numbers"):
        original.write(str(tmp_path / "m"), {"b": object()})
    assert list(tmp_path.iterdir()) == []


def test_write_replaces_shards_of_another_count(tmp_path):
    prefix = str(tmp_path / "m")
    for number in range(2):
        pathlib.Path(f"{prefix}.data-{number:05d}-of-00002").write_bytes(b"old")
    original.write(prefix, TENSORS)
    assert original.shard_files(prefix) == [prefix + ".data-00000-of-00001"]
    assert len(list(tmp_path.iterdir())) == 2


def test_delete(tmp_path):
    for name in ("model.ckpt-1", "model.ckpt-10"):
        original.write(str(tmp_path / name), TENSORS)
    (tmp_path / "model.ckpt-1.meta").write_bytes(b"")
    (tmp_path / "model.ckpt-1.incomplete").mkdir()
    original.delete(str(tmp_path / "model.ckpt-1"))
    original.delete(str(tmp_path / "model.ckpt-1"))
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "model.ckpt-10.data-00000-of-00001",
        "model.ckpt-10.index",
    ]


def test_state_file_is_tf1s(tmp_path):
    import tensorflow as tf

    prefixes = [str(tmp_path / f"model.ckpt-{step}") for step in (2, 4, 8)]
    for prefix in prefixes:
        original.write(prefix, TENSORS)
    original.write_state(str(tmp_path), prefixes[-1], prefixes)
    lines = (tmp_path / "checkpoint").read_text().splitlines()
    assert lines[0] == 'model_checkpoint_path: "model.ckpt-8"'
    assert lines[1] == 'all_model_checkpoint_paths: "model.ckpt-2"'
    assert original.latest_checkpoint(str(tmp_path)) == prefixes[-1]
    assert original.all_checkpoints(str(tmp_path)) == prefixes
    assert tf.train.latest_checkpoint(str(tmp_path)) == prefixes[-1]
    state = tf.train.get_checkpoint_state(str(tmp_path))
    assert list(state.all_model_checkpoint_paths) == prefixes
    original.delete(prefixes[0])
    assert original.all_checkpoints(str(tmp_path)) == prefixes[1:]


def test_golden_state_file_is_written_again_byte_for_byte(tmp_path):
    golden = PRETRAINING / "training" / "checkpoint"
    original.write_state(str(tmp_path), str(tmp_path / "model.ckpt-8"))
    assert (tmp_path / "checkpoint").read_bytes() == golden.read_bytes()


@pytest.mark.parametrize("name", ['mo"del', "mo\\del", "modèle", "模型"])
def test_state_file_with_odd_names(tmp_path, name):
    import tensorflow as tf

    prefix = str(tmp_path / name)
    original.write(prefix, TENSORS)
    original.write_state(str(tmp_path), prefix)
    assert original.latest_checkpoint(str(tmp_path)) == prefix
    # TensorFlow's latest_checkpoint would take a backslash for a pattern's.
    assert tf.train.get_checkpoint_state(str(tmp_path)).model_checkpoint_path == prefix
    tf.compat.v1.train.update_checkpoint_state(str(tmp_path), prefix)
    assert original.latest_checkpoint(str(tmp_path)) == prefix


def test_state_file_of_a_moved_folder(tmp_path):
    original.write(str(tmp_path / "model.ckpt-5"), TENSORS)
    (tmp_path / "checkpoint").write_text('model_checkpoint_path: "/old/run/model.ckpt-5"\n')
    assert original.latest_checkpoint(str(tmp_path)) == str(tmp_path / "model.ckpt-5")


def test_no_state_file(tmp_path):
    assert original.latest_checkpoint(str(tmp_path)) is None
    assert original.all_checkpoints(str(tmp_path)) == []


def test_state_file_names_a_checkpoint_that_is_gone(tmp_path):
    original.write(str(tmp_path / "model.ckpt-1"), TENSORS)
    prefixes = [str(tmp_path / f"model.ckpt-{step}") for step in (1, 2)]
    original.write_state(str(tmp_path), prefixes[1], prefixes)
    with pytest.raises(FileNotFoundError, match=r"model\.ckpt-2.*complete are: .*model\.ckpt-1"):
        original.latest_checkpoint(str(tmp_path))


def test_empty_state_file(tmp_path):
    (tmp_path / "checkpoint").write_text("")
    with pytest.raises(original.CheckpointError, match="cut short or corrupt"):
        original.latest_checkpoint(str(tmp_path))


def test_state_file_that_is_no_text(tmp_path):
    (tmp_path / "checkpoint").write_bytes(b"\x00\xff\xfe")
    with pytest.raises(original.CheckpointError, match=r"checkpoint names no .*corrupt"):
        original.latest_checkpoint(str(tmp_path))


def test_step_of():
    assert original.step_of("a/model.ckpt-12") == 12
    assert original.step_of("a/bert_model.ckpt") is None


def test_remote_paths():
    pytest.importorskip("fsspec")
    directory = "memory://test_original/run"
    prefix = directory + "/model.ckpt-7"
    original.write(prefix, TENSORS)
    original.write_state(directory, prefix)
    assert original.resolve(directory) == prefix
    assert original.all_checkpoints(directory) == [prefix]
    np.testing.assert_array_equal(read_all(directory)["b"], TENSORS["b"])
    original.write(prefix, {"b": np.float32(1)})
    assert read_all(prefix) == {"b": np.float32(1)}
    original.delete(prefix)
    assert paths.list_dir(directory) == ["checkpoint"]


@pytest.mark.parametrize("name", ["run [1]", "a{b,c}", "what?", "back\\slash"])
def test_a_folder_whose_name_looks_like_a_pattern(tmp_path, name):
    (tmp_path / name).mkdir()
    prefix = str(tmp_path / name / "model.ckpt-3")
    original.write(prefix, TENSORS)
    found = read_all(prefix)
    assert found.keys() == TENSORS.keys()
    np.testing.assert_array_equal(found["b"], TENSORS["b"])
