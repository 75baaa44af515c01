import builtins
import os
import re
import stat

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_tf import errors, paths

fsspec = pytest.importorskip("fsspec")


@pytest.fixture(params=["local", "file", "memory"])
def root(request, tmp_path):
    """A folder of each kind, as a user would give it."""
    if request.param == "local":
        yield str(tmp_path)
    elif request.param == "file":
        yield f"file://{tmp_path}"
    else:
        yield "memory://bucket/folder"
        files = fsspec.filesystem("memory")
        if files.exists("/bucket"):
            files.rm("/bucket", recursive=True)


def write(path, text):
    with paths.open_file(path, "w") as handle:
        handle.write(text)


def read(path):
    with paths.open_file(path) as handle:
        return handle.read()


@pytest.mark.parametrize(
    ("path", "scheme", "by_tensorflow"),
    [
        ("/a/b", "", True),
        ("a://b"[1:], "", True),
        ("file:///a/b", "", True),
        ("FILE:///a/b", "", True),
        ("gs://bucket/a", "gs", True),
        ("s3://bucket/a", "s3", False),
        ("S3://bucket/a", "s3", False),
        ("memory://a", "memory", False),
        ("C:/windows", "", True),
        ("a/s3://b", "", True),
    ],
)
def test_schemes(path, scheme, by_tensorflow):
    assert paths.scheme(path) == scheme
    assert paths.has_scheme(path) is bool(scheme)
    assert paths.tensorflow_reads(path) is by_tensorflow


def test_join_and_its_parts():
    assert paths.join("a", "b", "c") == os.path.join("a", "b", "c")
    assert paths.join("file:///a", "b") == "/a/b"
    assert paths.join("s3://bucket/a/", "b", "c") == "s3://bucket/a/b/c"
    assert paths.dirname("s3://bucket/a/b") == "s3://bucket/a"
    assert paths.basename("s3://bucket/a/b") == "b"
    assert paths.basename("s3://bucket/a/") == "a"
    assert paths.dirname("file:///a/b") == "/a"
    assert paths.dirname("name") == ""


NAMES = st.text("abc.-_[]* é", min_size=1, max_size=8).filter(lambda name: name.strip("."))


@settings(deadline=None, max_examples=50)
@given(folder=st.sampled_from(["/a/b", "a", "s3://bucket/a", "memory://a"]), name=NAMES)
def test_a_joined_path_comes_apart(folder, name):
    path = paths.join(folder, name)
    assert (paths.dirname(path), paths.basename(path)) == (folder, name)


def test_files_of_every_kind(root):
    folder = paths.join(root, "new", "folder")
    assert not paths.exists(folder)
    assert not paths.is_dir(folder)
    paths.make_dirs(folder)
    paths.make_dirs(folder)
    assert paths.is_dir(folder)
    first, second = paths.join(folder, "b.txt"), paths.join(folder, "a.txt")
    write(first, "größer\n")
    write(second, "")
    assert read(first) == "größer\n"
    assert paths.exists(first)
    assert not paths.is_dir(first)
    assert paths.size(first) == 9  # UTF-8, whatever the locale says.
    assert paths.size(second) == 0
    assert paths.list_dir(folder) == ["a.txt", "b.txt"]
    assert paths.glob(paths.join(folder, "*.txt")) == [
        paths.local(second), paths.local(first),
    ]  # fmt: skip
    assert paths.glob(paths.join(folder, "c*")) == []
    paths.rename(first, second)
    assert paths.list_dir(folder) == ["a.txt"]
    assert read(second) == "größer\n"
    paths.copy(second, first)
    with paths.open_file(first, "rb") as handle:
        assert handle.read() == "größer\n".encode()
    paths.remove(first)
    paths.remove(first)
    assert paths.list_dir(folder) == ["a.txt"]


def test_a_found_path_can_be_used(root):
    paths.make_dirs(root)
    for name in ("x-1", "x-2"):
        write(paths.join(root, name), name)
    assert [read(path) for path in paths.glob(paths.join(root, "x-?"))] == ["x-1", "x-2"]


def test_newlines_and_bytes(root):
    paths.make_dirs(root)
    path = paths.join(root, "file")
    with paths.open_file(path, "wb") as handle:
        handle.write(b"a\r\nb\xe2\x80\xa8c\n")
    with paths.open_file(path, newline="") as handle:
        assert handle.read() == "a\r\nb\u2028c\n"
    with paths.open_file(path) as handle:
        assert list(handle) == ["a\n", "b\u2028c\n"]


def test_a_file_that_is_not_there(root):
    with pytest.raises(FileNotFoundError):
        paths.open_file(paths.join(root, "nothing"))


def test_brackets_in_a_name(tmp_path):
    path = str(tmp_path / "train[1].tsv")
    write(path, "")
    assert paths.glob(path) == [path]
    write(str(tmp_path / "train1.tsv"), "")
    assert paths.glob(path) == [path]
    os.remove(path)
    assert paths.glob(path) == [str(tmp_path / "train1.tsv")]


def test_atomic_write(root):
    paths.make_dirs(root)
    path = paths.join(root, "file")
    with paths.atomic_write(path) as handle:
        handle.write("ü")
        assert not paths.exists(path)
    assert read(path) == "ü"
    with paths.atomic_write(path, "wb") as handle:
        handle.write(b"second")
        handle.flush()
        assert read(path) == "ü"
    assert read(path) == "second"
    assert paths.list_dir(root) == ["file"]


@pytest.mark.parametrize("error", [ValueError, OSError, KeyboardInterrupt])
def test_atomic_write_that_fails_leaves_the_old_file(root, error):
    paths.make_dirs(root)
    path = paths.join(root, "file")
    write(path, "old")

    def fail_midway():
        with paths.atomic_write(path) as handle:
            handle.write("half of the new")
            raise error("in the middle")

    with pytest.raises(error):
        fail_midway()
    assert read(path) == "old"
    assert paths.list_dir(root) == ["file"]


def test_atomic_write_of_a_new_file_that_fails(root):
    paths.make_dirs(root)
    with pytest.raises(ValueError), paths.atomic_write(paths.join(root, "file")):
        raise ValueError
    assert paths.list_dir(root) == []


def test_atomic_write_leaves_a_pipe_a_pipe(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    link = tmp_path / "link"
    link.symlink_to(pipe)
    for path in (pipe, link):
        # Without waiting for the writer, which waits for a reader.
        reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
        try:
            with paths.atomic_write(str(path)) as handle:
                handle.write("through it")
            assert os.read(reader, 100) == b"through it"
        finally:
            os.close(reader)
        assert stat.S_ISFIFO(pipe.stat().st_mode)
    assert paths.list_dir(str(tmp_path)) == ["link", "pipe"]


def test_atomic_write_through_a_link(tmp_path):
    target, link = tmp_path / "real/file", tmp_path / "link"
    target.parent.mkdir()
    target.write_text("old")
    link.symlink_to(target)
    with paths.atomic_write(str(link)) as handle:
        handle.write("new")
    assert link.is_symlink()
    assert target.read_text() == "new"
    assert [path.name for path in target.parent.iterdir()] == ["file"]


def test_json(root):
    paths.make_dirs(root)
    path = paths.join(root, "values.json")
    values = {"b": 0.1 + 0.2, "a": [1, None, "ü"], "c": {"d": True}}
    paths.write_json(path, values)
    assert paths.read_json(path) == values
    assert read(path).index('"a"') < read(path).index('"b"')
    with pytest.raises(TypeError):
        paths.write_json(path, {"a": object()})
    assert paths.read_json(path) == values


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", r"not valid JSON: Expecting value \(line 1, column 1\)"),
        (b'{\n"a": 1,}', r"not valid JSON: .*\(line 2, column"),
        (b"\xff\xfe{}", "not valid JSON: not UTF-8 text"),
        (b"[1, 2]", r"expected a JSON object, found \[1, 2\]"),
        (b'"' + b"x" * 100 + b'"', r'expected a JSON object, found "x{56}\.\.\.'),
    ],
)
def test_what_is_no_json_object(tmp_path, content, message):
    path = tmp_path / "values.json"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=rf"values\.json: {message}"):
        paths.read_json(str(path))


def test_json_with_a_byte_order_mark(tmp_path):
    path = tmp_path / "values.json"
    path.write_bytes(b'\xef\xbb\xbf{"a": 1}')
    assert paths.read_json(str(path)) == {"a": 1}
    with pytest.raises(FileNotFoundError, match=r"There is no file .*nothing\.json"):
        paths.read_json(str(tmp_path / "nothing.json"))


def test_copy_that_fails_leaves_the_old_file(root):
    paths.make_dirs(root)
    target = paths.join(root, "file")
    write(target, "old")
    with pytest.raises(FileNotFoundError):
        paths.copy(paths.join(root, "nothing"), target)
    assert read(target) == "old"
    assert paths.list_dir(root) == ["file"]


def test_copy_between_two_kinds(tmp_path):
    source, target = str(tmp_path / "file"), "memory://between/file"
    with paths.open_file(source, "wb") as handle:
        handle.write(bytes(range(256)) * 20_000)
    paths.copy(source, target)
    again = f"file://{tmp_path}/again"
    paths.copy(target, again)
    assert (tmp_path / "again").read_bytes() == (tmp_path / "file").read_bytes()
    fsspec.filesystem("memory").rm("/between", recursive=True)


def test_stage_in(root):
    paths.make_dirs(root)
    for name in ("ckpt.index", "ckpt.data-00000-of-00001", "ckpt-2.index", "other", "ckpt"):
        write(paths.join(root, name), name)
    prefix = paths.join(root, "ckpt")
    with paths.stage_in(prefix) as staged:
        # What TensorFlow is given is a plain path.
        assert not paths.has_scheme(staged)
        assert "://" not in staged
        folder = os.path.dirname(staged)
        if paths.has_scheme(root):
            assert sorted(os.listdir(folder)) == ["ckpt", "ckpt.data-00000-of-00001", "ckpt.index"]
        for name in ("ckpt.index", "ckpt.data-00000-of-00001", "ckpt"):
            with open(os.path.join(folder, name)) as handle:
                assert handle.read() == name
    assert os.path.exists(folder) is not paths.has_scheme(root)
    assert len(paths.list_dir(root)) == 5


def test_stage_in_takes_names_literally(root):
    paths.make_dirs(root)
    for name in ("model[1].index", "model1.index"):
        write(paths.join(root, name), name)
    with paths.stage_in(paths.join(root, "model[1]")) as staged, open(f"{staged}.index") as handle:
        assert handle.read() == "model[1].index"


def test_without_fsspec(monkeypatch):
    real = builtins.__import__

    def missing(name, *rest, **more):
        if name == "fsspec":
            raise ImportError("No module named 'fsspec'")
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(ImportError, match=r"s3://bucket/a: .*pip install fsspec\[s3\]"):
        paths.open_file("s3://bucket/a")
    assert paths.exists("/")


@pytest.mark.parametrize("inner", ["x", "x/y"])
def test_a_folder_below_a_file(tmp_path, inner):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        paths.make_dirs(str(tmp_path / "file" / inner))


def test_check_writable(tmp_path):
    paths.check_writable(str(tmp_path / "a/b"), "--output_dir")
    assert list((tmp_path / "a/b").iterdir()) == []


@pytest.mark.parametrize("inner", ["", "out", "out/deeper"])
def test_a_folder_that_cannot_be_written(tmp_path, inner):
    # Below a file: permissions would not stop root.
    file = tmp_path / "file"
    file.write_text("kept")
    folder = str(file / inner) if inner else str(file)
    message = f"cannot write to the output folder {re.escape(folder)}: .*give another --output_dir"
    with pytest.raises(OSError, match=message):
        paths.check_writable(folder, "--output_dir")
    assert file.read_text() == "kept"


def test_a_full_disk_names_the_file(tmp_path, monkeypatch):
    def full(descriptor):
        raise OSError(28, "No space left on device")

    path = str(tmp_path / "out")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(errors.WriteError, match=rf"No space left.*free some space.*{path}"):
        paths.write_json(path, {"a": 1})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", ["ram", "nothing-of-the-kind"])
def test_an_address_of_no_kind(kind):
    with pytest.raises(ValueError, match=rf"{kind}://a/b is no address that fsspec reads"):
        paths.exists(f"{kind}://a/b")


def test_a_driver_that_is_missing(monkeypatch):
    import fsspec

    def without(path):
        raise ModuleNotFoundError("No module named 'pyarrow'")

    monkeypatch.setattr(fsspec.core, "url_to_fs", without)
    message = r"hdfs://a/b: .* need a driver \(No module named 'pyarrow'\).*fsspec\[hdfs\]"
    with pytest.raises(ImportError, match=message):
        paths.exists("hdfs://a/b")
