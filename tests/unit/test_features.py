"""bert_tf.features: lines to inputs, states to vectors, records to files and back."""

import json
import shutil

import numpy as np
import pytest
import tiny
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_tf import features, paths
from bert_tf.tokenization.tokenizer import BertTokenizer

GOLDEN = tiny.GOLDEN / "extract_features"
SETTINGS = {"layers": "-1", "weights_crc32": 5}


def golden_rows():
    with open(GOLDEN / "features.jsonl", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


@pytest.fixture(scope="module")
def tokenizer():
    """Knows the tokens of the golden texts, with the ids that they have there."""
    vocab = {"[UNK]": 100}
    for row in golden_rows():
        vocab.update(zip(row["tokens"], row["input_ids"]))
    return BertTokenizer.from_vocab(vocab)


# Texts.


@pytest.mark.parametrize("max_seq_length", [16, 64])
def test_lines_become_the_originals_features(tokenizer, max_seq_length):
    expected = [row for row in golden_rows() if row["seq_length"] == max_seq_length]
    with features.LineReader(str(GOLDEN / "input.txt")) as reader:
        lines = list(reader)
    assert len(lines) == len(expected) == 14
    for line, row in zip(lines, expected, strict=True):
        assert features.split_pair(line) == (row["text_a"], row["text_b"])
        text = features.encode(tokenizer, line, max_seq_length)
        padding = [0] * (max_seq_length - len(text.ids))
        assert tokenizer.convert_ids_to_tokens(text.ids.tolist()) == row["tokens"]
        assert [*text.ids.tolist(), *padding] == row["input_ids"]
        assert [*[1] * len(text.ids), *padding] == row["input_mask"]
        assert [*text.segments.tolist(), *padding] == row["input_type_ids"]
        assert text.was_cut == (max_seq_length == 16 and "longer than sixteen" in line)


def read(path, data):
    path.write_bytes(data)
    with features.LineReader(str(path)) as reader:
        return list(reader)


def test_a_line_ends_at_a_newline_alone(tmp_path):
    data = "\ufeffone\r\ntw\ro\u2028\x0b\n\n  \nlast".encode()
    assert read(tmp_path / "x", data) == ["one", "two\u2028\x0b", "", "  ", "last"]
    assert read(tmp_path / "x", b"a\n") == ["a"]
    assert read(tmp_path / "x", b"\n") == [""]


def test_a_line_that_is_not_utf8_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"x, line 3: byte 2 of the line \(0xe9\) is not UTF-8"):
        read(tmp_path / "x", b"a\n\nca\xe9\n")
    with pytest.raises(ValueError, match=r"line 1: .* looks like UTF-16"):
        read(tmp_path / "x", "text\n".encode("utf-16"))


def test_a_reader_knows_what_it_read(tmp_path):
    path = tmp_path / "x"
    path.write_bytes(b"a\nb\r\nc\nd\n")
    with features.LineReader(str(path)) as reader:
        lines = iter(reader)
        assert [next(lines), next(lines)] == ["a", "b"]
        digest = reader.digest()
        assert reader.count == 2
    # What comes later has no part in it.
    path.write_bytes(b"a\nb\r\nother\n")
    with features.LineReader(str(path)) as reader:
        reader.skip(2)
        assert reader.digest() == digest
        assert list(reader) == ["other"]
        reader.skip(100)
        assert reader.count == 3


def test_input_that_is_none(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"There is no input file .*missing"):
        features.LineReader(str(tmp_path / "missing"))
    with pytest.raises(IsADirectoryError, match="is a folder"):
        features.LineReader(str(tmp_path))
    (tmp_path / "empty").touch()
    with pytest.raises(ValueError, match="empty is empty; it must hold a text"):
        features.LineReader(str(tmp_path / "empty"))


# Layers.


def test_layers_are_read_as_given():
    assert features.parse_layers("-1,-2,-3,-4", 12) == (-1, -2, -3, -4)
    assert features.parse_layers("0, 11,-12,embeddings", 12) == (0, 11, -12, "embeddings")


@pytest.mark.parametrize("layers", ["-13", "12", "-1,12", "", "-1,", "1.0", "last"])
def test_layers_that_are_none_name_the_range(layers):
    with pytest.raises(ValueError, match=r"the model has 12 layers: 0 to 11 .* or -1 to -12"):
        features.parse_layers(layers, 12)


# The model.

LENGTHS = (2, 3, 9, 17, 33, 64)


@pytest.fixture(scope="module")
def states():
    return tiny.read_arrays("extract_features/huggingface_states.npz")


@pytest.fixture(scope="module")
def texts(states):
    return [features.Text(states[f"ids_{n}"], states[f"segments_{n}"], False) for n in LENGTHS]


def make_encoder(folder, hidden_act=None):
    from bert_tf.checkpoint import restore
    from bert_tf.modeling.encoder import BertEncoder
    from bert_tf.modeling.models import named_variables

    checkpoint = restore.load(str(folder), hidden_act=hidden_act)
    encoder = BertEncoder(checkpoint.config, name="bert")
    encoder.build()
    for name, variable in named_variables(encoder).items():
        variable.assign(checkpoint.get(name))
    return encoder


@pytest.fixture(scope="module")
def encoder():
    return make_encoder(tiny.GOLDEN / "conversions" / "huggingface")


@pytest.fixture(scope="module")
def plain(encoder, texts):
    return features.FeatureExtractor(encoder, ("embeddings", 0, 1, -1))(texts)


def largest_difference(found, expected):
    assert [value.shape for value in found] == [value.shape for value in expected]
    return max(np.abs(a - b).max() for a, b in zip(found, expected, strict=True))


def test_states_are_those_of_transformers(plain, states):
    expected = [states[f"gelu_{n}"] for n in LENGTHS]
    assert expected[0].shape == (2, 4, 32)
    assert largest_difference(plain, expected) < 1e-5
    assert all(value.dtype == np.float32 for value in plain)


def test_a_hugging_face_gelu_is_the_erf_form(tmp_path, texts, plain, states):
    source = tiny.GOLDEN / "conversions" / "huggingface"
    shutil.copy(source / "model.safetensors", tmp_path)
    shutil.copy(source / "config_gelu_erf.json", tmp_path / "config.json")
    erf = features.FeatureExtractor(make_encoder(tmp_path), ("embeddings", 0, 1, 2))(texts)
    expected = [states[f"gelu_erf_{n}"] for n in LENGTHS]
    assert largest_difference(erf, expected) < 1e-5
    assert largest_difference(plain, expected) > 1e-4


@pytest.mark.parametrize(("batch_size", "pad_to"), [(1, None), (4, None), (4, 64)])
def test_batches_and_padding_change_nothing(encoder, texts, plain, batch_size, pad_to):
    extractor = features.FeatureExtractor(
        encoder, ("embeddings", 0, 1, 2), batch_size=batch_size, pad_to=pad_to
    )
    assert largest_difference(extractor(texts), plain) < 1e-5


def test_pooling(encoder, texts, plain):
    first = features.FeatureExtractor(encoder, ("embeddings", 0, 1, 2), "cls")(texts)
    assert largest_difference(first, [value[0] for value in plain]) < 1e-6
    means = features.FeatureExtractor(encoder, ("embeddings", 0, 1, 2), "mean")(texts)
    assert largest_difference(means, [value.mean(axis=0) for value in plain]) < 1e-5
    with pytest.raises(ValueError, match="needs four layers; the model has 3"):
        features.FeatureExtractor(encoder, (-1,), "concat_last_4")
    with pytest.raises(ValueError, match="one of none, cls, mean, concat_last_4"):
        features.FeatureExtractor(encoder, (-1,), "max")


def test_the_last_four_layers_joined(texts):
    from bert_tf.modeling.encoder import BertEncoder

    encoder = BertEncoder(tiny.CONFIG.replace(num_hidden_layers=5), seed=3, name="bert")
    encoder.build()
    means = features.FeatureExtractor(encoder, (4, 3, 2, 1), "mean")(texts)
    extractor = features.FeatureExtractor(encoder, (-1,), "concat_last_4")
    assert largest_difference(extractor(texts), [v.reshape(1, -1) for v in means]) < 1e-6
    assert features.layer_names((-1,), "concat_last_4") == ("concat_last_4",)


# Records.


def plain_json(record, names):
    """The same by Python's json."""

    def layers(values):
        return [
            {"index": name, "values": [round(float(x), 6) for x in row]}
            for name, row in zip(names, values, strict=True)
        ]

    if record.tokens is None:
        return json.dumps({"linex_index": record.index, "layers": layers(record.values)})
    rows = [
        {"token": token, "layers": layers(values)}
        for token, values in zip(record.tokens, record.values, strict=True)
    ]
    return json.dumps({"linex_index": record.index, "features": rows})


FLOATS = st.one_of(
    st.floats(width=32, allow_nan=False, allow_infinity=False),
    st.floats(-4, 4, width=32),
    st.floats(-(2.0**-13), 2.0**-13, width=32),
    st.integers(-(10**6), 10**6).map(lambda n: n / 128),  # ties of rounding
    st.integers(-(10**6), 10**6).map(lambda n: n / 10**6),
    st.sampled_from([0.0, -0.0, 998.99994, 999.0, -999.0, 1e-6, -4e-7, 9.95e-5, 1e-4, 3e38]),
)


@settings(max_examples=200, deadline=None)
@given(st.lists(FLOATS, min_size=12, max_size=12))
def test_json_is_what_python_writes(values):
    names = (-1, 0, "embeddings")
    numbers = np.array(values, np.float32).reshape(2, 3, 2)
    record = features.Record(7, ['a"\\', "\u00e9\U0001f600"], numbers)
    assert features.to_json(record, names) == plain_json(record, names)
    record = features.Record(8, None, numbers[0])
    assert features.to_json(record, names) == plain_json(record, names)


def test_json_of_many_values():
    # More than are formatted together, with some rows beyond the tables.
    values = np.random.default_rng(1).normal(size=(40, 2, 1200)).astype(np.float32)
    values[13, 1, 5] = 1e7
    record = features.Record(0, ["x"] * 40, values)
    assert features.to_json(record, (0, 1)) == plain_json(record, (0, 1))


def make_records(start, count, pooled=False):
    rng = np.random.default_rng(start)
    for index in range(start, start + count):
        tokens = ["[CLS]", *["é"] * (index % 3), "[SEP]"]
        shape = (2, 8) if pooled else (len(tokens), 2, 8)
        values = rng.normal(size=shape).astype(np.float32)
        yield features.Record(index, None if pooled else tokens, values)


def write(output, start, count, pooled=False):
    records = list(make_records(start, count, pooled))
    output.write(records, features.Progress(start + count, f"digest {start + count}"))
    return records


def assert_same(found, expected, tolerance=0.0):
    found = list(found)
    assert [(r.index, r.tokens) for r in found] == [(r.index, r.tokens) for r in expected]
    for a, b in zip(found, expected, strict=True):
        assert a.values.dtype == np.float32
        np.testing.assert_allclose(a.values, b.values, atol=tolerance, rtol=0)


@pytest.fixture(params=features.FORMATS)
def output_format(request):
    if request.param == "parquet":
        pytest.importorskip("pyarrow")
    return request.param


@pytest.mark.parametrize("pooled", [False, True])
@pytest.mark.parametrize("where", ["local", "memory"])
def test_what_is_written_is_read_again(tmp_path, output_format, pooled, where):
    path = f"memory://features/{tmp_path.name}" if where == "memory" else str(tmp_path / "out")
    output = features.open_output(path, output_format, (-1, "embeddings"), SETTINGS)
    expected = write(output, 0, 3, pooled) + write(output, 3, 2, pooled)
    assert not paths.exists(path)
    output.finish()
    output.close()
    assert_same(features.read_features(path), expected, 1e-6 if output_format == "jsonl" else 0.0)
    assert list(tmp_path.iterdir()) == ([] if where == "memory" else [tmp_path / "out"])
    if output_format != "jsonl":
        info = paths.read_json(paths.join(path, "_info.json"))
        assert (info["parts"], info["texts"], info["layers"]) == (2, 5, [-1, "embeddings"])
        names = [f"part-0000{number}.{output_format}" for number in (0, 1)]
        assert paths.list_dir(path) == ["_info.json", *names]


def test_npz_layout(tmp_path):
    output = features.open_output(str(tmp_path / "out"), "npz", (-1, -2), SETTINGS)
    records = write(output, 4, 3)
    output.finish()
    with np.load(tmp_path / "out" / "part-00000.npz") as part:
        assert part["linex_index"].tolist() == [4, 5, 6]
        assert part["offsets"].tolist() == [0, 3, 7, 9]
        assert part["layers"].tolist() == ["-1", "-2"]
        assert part["tokens"].tolist() == [token for record in records for token in record.tokens]
        assert part["values"].shape == (9, 2, 8)


def test_parquet_columns(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    output = features.open_output(str(tmp_path / "out"), "parquet", (-1, "embeddings"), SETTINGS)
    records = write(output, 0, 3)
    output.finish()
    table = parquet.read_table(tmp_path / "out" / "part-00000.parquet")
    assert table.column_names == ["linex_index", "tokens", "layer_-1", "layer_embeddings"]
    found = table["layer_embeddings"].to_pylist()
    for lists, record in zip(found, records, strict=True):
        np.testing.assert_array_equal(np.array(lists, np.float32), record.values[:, 1])
    # The folder as a whole is a table, too.
    assert parquet.read_table(tmp_path / "out").equals(table)


def test_parquet_without_its_package_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(ImportError, match=r"pip install -e '\.\[parquet\]'"):
        features.check_output(str(tmp_path / "out"), "parquet", [])


# Runs that end early.


def leave(output):
    """Ends as a killed process does: without finish."""
    output.close()


def test_a_later_run_goes_on(tmp_path, output_format):
    path = str(tmp_path / "out")

    def open_it():
        return features.open_output(path, output_format, (-1, -2), SETTINGS)

    output = open_it()
    expected = write(output, 0, 3)
    done = output.progress
    leave(output)
    # A pool that was written when the run died, before its progress was.
    output = open_it()
    state = paths.join(output.partial, "_progress.json")
    state = state if output_format != "jsonl" else f"{output.partial}.json"
    saved = paths.read_json(state)
    write(output, 3, 4)
    leave(output)
    paths.write_json(state, saved)
    output = open_it()
    assert output.progress == done
    assert (done.lines, done.digest) == (3, "digest 3")
    expected += write(output, 3, 2)
    output.finish()
    assert_same(features.read_features(path), expected, 1e-6 if output_format == "jsonl" else 0.0)
    assert [each.name for each in tmp_path.iterdir()] == ["out"]


def test_a_run_that_ends_as_its_files_get_their_place_goes_on(tmp_path, monkeypatch):
    path = f"memory://features/{tmp_path.name}"
    output = features.open_output(path, "npz", (-1, -2), SETTINGS)
    expected = write(output, 0, 3) + write(output, 3, 2)
    copy, left = paths.copy, [1]

    def copy_one(source, target):
        left[0] -= 1
        if left[0] < 0:
            raise OSError("the network is gone")
        copy(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(paths, "copy", copy_one)
        with pytest.raises(OSError, match="the network"):
            output.finish()
    output.close()
    assert paths.list_dir(path) == ["part-00000.npz"]
    features.check_output(path, "npz", [])
    output = features.open_output(path, "npz", (-1, -2), SETTINGS)
    assert output.progress.lines == 5
    output.finish()
    assert_same(features.read_features(path), expected)
    with pytest.raises(ValueError, match="there already"):
        features.check_output(path, "npz", [])
    # Of another run, or of none, what lies there is not written over.
    other = f"memory://features/{tmp_path.name}-other"
    with paths.open_file(f"{other}/part-00000.npz", "wb") as file:
        file.write(b"mine")
    with pytest.raises(ValueError, match="there already"):
        features.check_output(other, "npz", [])


def test_nothing_is_left_of_a_run_that_did_nothing(tmp_path, output_format):
    leave(features.open_output(str(tmp_path / "out"), output_format, (-1, -2), SETTINGS))
    assert list(tmp_path.iterdir()) == []


def test_other_settings_are_refused(tmp_path, output_format):
    path = str(tmp_path / "out")
    output = features.open_output(path, output_format, (-1, -2), SETTINGS)
    write(output, 0, 3)
    leave(output)
    other = {**SETTINGS, "layers": "-2"}
    with pytest.raises(ValueError, match=r"another layers \(then '-1', now '-2'\).*delete"):
        features.open_output(path, output_format, (-1, -2), other)
    # And are no harm to the run that they do not fit.
    assert features.open_output(path, output_format, (-1, -2), SETTINGS).progress.lines == 3


def test_two_processes_do_not_write_one_output(tmp_path, output_format):
    path = str(tmp_path / "out")
    output = features.open_output(path, output_format, (-1, -2), SETTINGS)
    write(output, 0, 3)
    with pytest.raises(OSError, match="another process writes"):
        features.open_output(path, output_format, (-1, -2), SETTINGS)
    write(output, 3, 1)
    output.finish()
    assert len(list(features.read_features(path))) == 4


def test_a_file_that_lost_its_end_is_written_anew(tmp_path, caplog):
    output = features.open_output(str(tmp_path / "out"), "jsonl", (-1, -2), SETTINGS)
    write(output, 0, 3)
    leave(output)
    partial = tmp_path / "out.partial"
    partial.write_bytes(partial.read_bytes()[:-9])
    with caplog.at_level("WARNING", logger="absl"):
        output = features.open_output(str(tmp_path / "out"), "jsonl", (-1, -2), SETTINGS)
    assert "starting over" in caplog.text
    assert output.progress == features.Progress()


def test_output_that_cannot_be(tmp_path):
    source = tmp_path / "in"
    source.write_text("text\n")
    (tmp_path / "link").symlink_to(source)
    for path in (source, tmp_path / "link"):
        with pytest.raises(ValueError, match="is also read"):
            features.check_output(str(path), "jsonl", [str(source)])
    with pytest.raises(ValueError, match="is a folder"):
        features.check_output(str(tmp_path), "jsonl", [])
    with pytest.raises(ValueError, match="there already"):
        features.check_output(str(source), "npz", [])
    with pytest.raises(ValueError, match="not a regular file"):
        features.check_output("/dev/null", "jsonl", [])
    with pytest.raises(OSError, match=r"cannot write .*No such file or directory"):
        features.check_output(str(tmp_path / "no" / "out"), "jsonl", [])
    assert source.read_text() == "text\n"


def test_a_folder_that_is_not_finished_is_not_read(tmp_path):
    output = features.open_output(str(tmp_path / "out"), "npz", (-1, -2), SETTINGS)
    write(output, 0, 3)
    leave(output)
    with pytest.raises(FileNotFoundError, match="no finished features"):
        next(features.read_features(output.partial))
