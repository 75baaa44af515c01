"""extract_features.py from texts to files: the original's lines, bad input, runs that are killed.

Run as a program it is the driver of the kills: it forks the lives of a plan, as kill_driver.py.
"""

import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import traceback

import numpy as np
import pytest
from absl import logging

sys.path.insert(0, str(pathlib.Path(__file__).parents[2]))

import extract_features
from bert_tf import features, paths

POOL = 4
LINES = [
    "the good",
    "is it ||| it is not",
    "",
    "a b c d e f g h i j k l m n o p q r s t u v w x y z",
    "  spaces outside ||| and a very long second text that is cut  ",
    "船 是 她",
    "|||",
    "no blanks|||here",
    "one ||| two ||| three",
    "the end of it.",
]


# The driver.


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def arm(kill):
    """Sets the place where this process will end."""
    if "lines" in kill:
        extract_features.AFTER_POOL = lambda lines: die() if lines == kill["lines"] else None
        return
    rename, left = paths.rename, [kill.get("times", 1)]

    def deadly_rename(source, target):
        if target.endswith(kill["before"]):
            left[0] -= 1
            if not left[0]:
                die()
        rename(source, target)

    paths.rename = deadly_rename


def drive(plan, log):
    """Runs lives one after another; prints how each ended."""
    # Imported once. What starts threads is left to the lives: threads do not survive a fork.
    import keras  # noqa: F401

    import bert_tf.modeling.encoder
    import bert_tf.training.distribution  # noqa: F401

    features.extraction.POOL_TEXTS = POOL
    logging.set_verbosity(logging.INFO)
    ends = []
    for life in json.loads(pathlib.Path(plan).read_text()):
        child = os.fork()
        if child == 0:
            descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(descriptor, 1)
            os.dup2(descriptor, 2)
            code = 0
            try:
                if life["kill"]:
                    arm(life["kill"])
                extract_features.main(["extract_features.py", *life["argv"]])
            except BaseException:
                traceback.print_exc()
                code = 1
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
        _, status = os.waitpid(child, 0)
        ends.append(os.WTERMSIG(status) if os.WIFSIGNALED(status) else -os.WEXITSTATUS(status))
    print(json.dumps(ends))


# What the tests share.


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A checkpoint of four layers with all that belongs to it."""
    from classifier_runs import write_vocabulary

    from bert_tf.checkpoint import original
    from bert_tf.config import BertConfig
    from bert_tf.modeling.encoder import BertEncoder
    from bert_tf.modeling.models import named_variables

    folder = tmp_path_factory.mktemp("model")
    config = BertConfig(
        vocab_size=120,
        hidden_size=16,
        num_hidden_layers=4,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=64,
        type_vocab_size=2,
        initializer_range=0.2,
    )
    encoder = BertEncoder(config, seed=3, name="bert")
    encoder.build()
    values = {name: variable.numpy() for name, variable in named_variables(encoder).items()}
    original.write(str(folder / "bert_model.ckpt"), values)
    config.to_json_file(str(folder / "bert_config.json"))
    write_vocabulary(folder / "vocab.txt")
    return folder


@pytest.fixture
def run(tmp_path, model, monkeypatch):
    """Runs the script on texts, in pools of four; returns what it did and the features."""
    monkeypatch.setattr(features.extraction, "POOL_TEXTS", POOL)

    def main(*flags, lines=LINES, name="out"):
        if lines is not None:
            (tmp_path / "in.txt").write_text("".join(f"{line}\n" for line in lines), "utf-8")
        done = extract_features.main(
            [
                "extract_features.py",
                f"--input_file={tmp_path / 'in.txt'}",
                f"--output_file={tmp_path / name}",
                f"--init_checkpoint={model / 'bert_model.ckpt'}",
                "--max_seq_length=24",
                *map(str, flags),
            ]
        )
        return done, list(features.read_features(str(tmp_path / name)))

    return main


def assert_close(found, expected, tolerance=5e-6):
    assert [(each.index, each.tokens) for each in found] == [
        (each.index, each.tokens) for each in expected
    ]
    for a, b in zip(found, expected, strict=True):
        assert a.values.shape == b.values.shape
        np.testing.assert_allclose(a.values, b.values, atol=tolerance, rtol=0)


# What comes out.


def test_a_line_of_the_originals_for_each_line(run, tmp_path, model):
    done, records = run("--layers=-1,0")
    assert (done.lines, done.truncated, done.blank) == (10, 2, 1)
    rows = [json.loads(line) for line in (tmp_path / "out").read_text().splitlines()]
    assert [list(row) for row in rows] == [["linex_index", "features"]] * 10
    assert [row["linex_index"] for row in rows] == list(range(10))
    for row in rows:
        for each in row["features"]:
            assert list(each) == ["token", "layers"]
            assert [list(layer) for layer in each["layers"]] == [["index", "values"]] * 2
            assert [layer["index"] for layer in each["layers"]] == [-1, 0]
            assert all(v == round(v, 6) for layer in each["layers"] for v in layer["values"])
    assert [each.tokens for each in records[:3]] == [
        ["[CLS]", "the", "good", "[SEP]"],
        ["[CLS]", "is", "it", "[SEP]", "it", "is", "not", "[SEP]"],
        ["[CLS]", "[SEP]"],
    ]
    assert [len(each.tokens) for each in records[3:5]] == [24, 24]

    # Each line on its own, by the model alone.
    from bert_tf.checkpoint import restore
    from bert_tf.modeling.encoder import BertEncoder
    from bert_tf.modeling.models import named_variables
    from bert_tf.tokenization.tokenizer import BertTokenizer

    checkpoint = restore.load(str(model / "bert_model.ckpt"))
    encoder = BertEncoder(checkpoint.config, name="bert")
    encoder.build()
    for name, variable in named_variables(encoder).items():
        variable.assign(checkpoint.get(name))
    tokenizer = BertTokenizer(str(model / "vocab.txt"))
    for line, record in zip(LINES, records, strict=True):
        text = features.encode(tokenizer, line, 24)
        outputs = encoder(text.ids[None], segment_ids=text.segments[None])["encoder_outputs"]
        expected = np.stack([outputs[-1][0], outputs[0][0]], axis=1)
        np.testing.assert_allclose(record.values, expected, atol=2e-6, rtol=0)


def test_batch_size_padding_and_pools_change_nothing(run, monkeypatch):
    _, expected = run("--layers=-1,embeddings")
    for number, flags in enumerate((["--batch_size=1"], ["--batch_size=3", "--pad_to_max_length"])):
        assert_close(run("--layers=-1,embeddings", *flags, name=f"x{number}")[1], expected)
    monkeypatch.setattr(features.extraction, "POOL_BYTES", 1)
    assert_close(run("--layers=-1,embeddings", name="single")[1], expected)


def test_formats_and_poolings(run):
    _, plain = run()
    _, npz = run("--output_format=npz", name="npz")
    assert_close(npz, plain, 1e-6)
    assert plain[0].values.shape == (4, 4, 16)
    for pooling, expected in {
        "cls": [each.values[0] for each in plain],
        "mean": [each.values.mean(axis=0) for each in plain],
        "concat_last_4": [each.values.mean(axis=0).reshape(1, -1) for each in plain],
    }.items():
        for output_format in ("jsonl", "npz"):
            flags = [f"--pooling={pooling}", f"--output_format={output_format}"]
            _, found = run(*flags, name=f"{pooling}_{output_format}")
            wanted = [features.Record(i, None, value) for i, value in enumerate(expected)]
            assert_close(found, wanted)


def test_parquet(run):
    pytest.importorskip("pyarrow")
    _, plain = run()
    assert_close(run("--output_format=parquet", name="parquet")[1], plain, 1e-6)


def test_cut_texts_are_told_once_and_counted(run, caplog):
    with caplog.at_level("WARNING", logger="absl"):
        run()
    assert caplog.text.count("Line 4 has more than 24 tokens") == 1
    assert "2 of 10 texts had more than 24 tokens and were cut" in caplog.text
    caplog.clear()
    with caplog.at_level("WARNING", logger="absl"):
        run("--max_seq_length=64", name="whole")
    assert "cut" not in caplog.text


def test_lines_are_written_as_they_are_read(run, tmp_path, monkeypatch):
    seen = []

    def look(lines):
        partial = (tmp_path / "out.partial").read_text()
        seen.append((lines, partial.count("\n"), (tmp_path / "out").exists()))

    monkeypatch.setattr(extract_features, "AFTER_POOL", look)
    run()
    assert seen == [(4, 4, False), (8, 8, False), (10, 10, False)]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.txt", "out"]


def test_hugging_face_folder(run, tmp_path):
    from classifier_runs import GOLDEN, write_vocabulary

    folder = tmp_path / "converted"
    folder.mkdir()
    for name in ("config.json", "model.safetensors"):
        shutil.copy(GOLDEN / "conversions" / "huggingface" / name, folder)
    write_vocabulary(folder / "vocab.txt")
    _, found = run(f"--init_checkpoint={folder}", "--layers=-1,1")
    pretrained = GOLDEN / "checkpoint" / "tiny_pretraining" / "bert_model.ckpt"
    flags = [f"--init_checkpoint={pretrained}", f"--vocab_file={folder / 'vocab.txt'}"]
    _, expected = run(*flags, "--layers=-1,1", name="original")
    assert_close(found, expected)


def test_fine_tuned_checkpoint_and_precision(run, model):
    from classifier_runs import FINE_TUNED

    flags = [f"--init_checkpoint={FINE_TUNED}", f"--vocab_file={model / 'vocab.txt'}"]
    _, expected = run(*flags, "--layers=-1")
    _, found = run(*flags, "--layers=-1", "--precision=bfloat16", name="bfloat16")
    assert_close(found, expected, 0.1)
    assert any(np.abs(a.values - b.values).max() > 1e-4 for a, b in zip(found, expected))


def test_flags_are_the_originals():
    originals = {
        "input_file": None,
        "output_file": None,
        "layers": "-1,-2,-3,-4",
        "bert_config_file": None,
        "max_seq_length": 128,
        "init_checkpoint": None,
        "vocab_file": None,
        "do_lower_case": True,
        "batch_size": 32,
        "use_tpu": False,
        "master": None,
        "num_tpu_cores": 8,
        "use_one_hot_embeddings": False,
    }
    flags = extract_features.CLI.flags
    assert {name: flags[name].default for name in originals} == originals


def test_one_hot_embeddings_are_said_to_be_of_no_effect(run, caplog):
    with caplog.at_level("WARNING", logger="absl"):
        run("--use_one_hot_embeddings")
    assert "--use_one_hot_embeddings has no effect" in caplog.text


# What is wrong.


def refused(run, tmp_path, *flags, match, lines=LINES, error=ValueError):
    with pytest.raises(error, match=match):
        run(*flags, lines=lines)
    assert {path.name for path in tmp_path.iterdir()} <= {"in.txt"}


@pytest.mark.parametrize(
    ("flags", "match"),
    [
        (["--layers=-5"], "there is no layer -5; the model has 4 layers: 0 to 3 .* or -1 to -4"),
        (["--layers=4"], "there is no layer 4"),
        (["--layers=-1,top"], "'top' is no layer"),
        (["--max_seq_length=65"], "--max_seq_length=65 is over the model's"),
        (["--max_seq_length=2"], "max_seq_length"),
        (["--batch_size=0"], "batch_size"),
        (["--init_checkpoint="], "flags are missing:\n  --init_checkpoint: the model"),
        (["--pooling=concat_last_4", "--layers=-1"], "leave --layers out"),
        (["--pooling=max"], "pooling"),
        (["--vocab_file=none.txt"], "no vocabulary file none.txt"),
    ],
)
def test_wrong_flags(run, tmp_path, flags, match):
    refused(run, tmp_path, *flags, match=match, error=(ValueError, OSError))


def test_wrong_files(run, tmp_path):
    refused(run, tmp_path, match="There is no input file", lines=None, error=FileNotFoundError)
    refused(run, tmp_path, match="in.txt is empty", lines=[])
    source = tmp_path / "in.txt"
    refused(run, tmp_path, f"--output_file={source}", match="is also read")
    assert source.read_text().split("\n")[0] == LINES[0]
    missing = tmp_path / "no" / "out"
    refused(run, tmp_path, f"--output_file={missing}", match="cannot write", error=OSError)


def test_the_model_is_not_written_over(run, tmp_path, model):
    """Not its files that no flag names, either; and a folder's own best/ has some above it."""
    data = next(path.name for path in model.glob("bert_model.ckpt.data*"))
    for name in ("bert_config.json", "vocab.txt", "bert_model.ckpt.index", data):
        before = (model / name).read_bytes()
        refused(run, tmp_path, f"--output_file={model / name}", match="is also read")
        assert (model / name).read_bytes() == before
    assert not list(model.glob("*.partial"))
    best = tmp_path / "run" / "best"
    best.mkdir(parents=True)
    for path in model.iterdir():
        shutil.copy(path, best if path.name.startswith("bert_model.ckpt") else best.parent)
    for name in ("bert_config.json", "vocab.txt"):
        with pytest.raises(ValueError, match="is also read"):
            run(f"--init_checkpoint={best}", f"--output_file={best.parent / name}")
        assert (best.parent / name).read_bytes() == (model / name).read_bytes()
    done, _ = run(f"--init_checkpoint={best}", name="run/features.jsonl")
    assert done.lines == len(LINES)


def test_parquet_columns_need_names(run, tmp_path):
    pytest.importorskip("pyarrow")
    flags = ["--layers=-1,-1", "--output_format=parquet"]
    refused(run, tmp_path, *flags, match="names a layer twice")
    _, records = run("--layers=-1,-1")
    assert (records[0].values[:, 0] == records[0].values[:, 1]).all()


def test_weights_that_are_no_numbers(run, tmp_path, model):
    from bert_tf.checkpoint import original

    reader = original.Reader(str(model / "bert_model.ckpt"))
    values = {name: reader.get(name) for name in reader.shapes}
    values["bert/encoder/layer_3/output/dense/bias"] = np.full(16, np.nan, np.float32)
    folder = tmp_path / "broken"
    folder.mkdir()
    original.write(str(folder / "bert_model.ckpt"), values)
    for name in ("vocab.txt", "bert_config.json"):
        shutil.copy(model / name, folder)
    flag = f"--init_checkpoint={folder / 'bert_model.ckpt'}"
    with pytest.raises(ValueError, match=r"in.txt, line 1: its features are not finite"):
        run(flag)
    # Layers below are as good as they were.
    assert len(run(flag, "--layers=2")[1]) == 10


def test_a_line_that_is_not_utf8_can_be_mended(run, tmp_path):
    _, expected = run()
    source = tmp_path / "in.txt"
    data = source.read_bytes()
    source.write_bytes(data.replace(b"one |||", b"on\xe9 |||"))
    with pytest.raises(ValueError, match=r"in.txt, line 9: byte 2 .* is not UTF-8"):
        run(lines=None, name="mended")
    assert (tmp_path / "mended.partial").read_text().count("\n") == 8
    assert not (tmp_path / "mended").exists()
    source.write_bytes(data)
    done, found = run(lines=None, name="mended")
    assert (done.lines, done.truncated, done.blank) == (10, 2, 1)
    assert_close(found, expected, 0.0)


def test_what_does_not_go_on_says_why(run, tmp_path, monkeypatch):
    def stop(lines):
        raise KeyboardInterrupt

    monkeypatch.setattr(extract_features, "AFTER_POOL", stop)
    with pytest.raises(KeyboardInterrupt):
        run()
    monkeypatch.setattr(extract_features, "AFTER_POOL", None)
    with pytest.raises(ValueError, match=r"another layers \(then '-1,-2,-3,-4', now '-1'\)"):
        run("--layers=-1")
    with pytest.raises(ValueError, match=r"first 4 lines of .* are not those"):
        run(lines=["other", *LINES])
    # Later lines may change, and so may the batch size.
    done, records = run("--batch_size=2", lines=[*LINES, "one more"])
    assert (done.lines, len(records)) == (11, 11)


# Runs that are killed.

# Where a life ends, and the lines that count afterwards.
KILLS = {
    "jsonl": [
        ({"before": "out.partial.json", "times": 2}, 4),
        ({"lines": 8}, 8),
        ({"before": "/out"}, 10),
    ],
    "npz": [
        ({"before": "_progress.json", "times": 2}, 4),
        ({"before": "part-00002.npz"}, 8),
        ({"before": "/out"}, 10),
    ],
}


@pytest.fixture(scope="module")
def lives(tmp_path_factory, model):
    """Runs each format once whole, and once through all kills."""
    folder = tmp_path_factory.mktemp("lives")
    (folder / "in.txt").write_text("".join(f"{line}\n" for line in LINES), "utf-8")
    plan = []
    for output_format, kills in KILLS.items():
        for name, its_kills in (("whole", [None]), ("killed", [*(k for k, _ in kills), None])):
            place = folder / output_format / name
            place.mkdir(parents=True)
            argv = [
                f"--input_file={folder / 'in.txt'}",
                f"--output_file={place / 'out'}",
                f"--init_checkpoint={model / 'bert_model.ckpt'}",
                "--max_seq_length=24",
                "--batch_size=3",
                "--layers=-1,-2",
                "--num_threads=1",
                f"--output_format={output_format}",
            ]
            plan += [{"argv": argv, "kill": kill} for kill in its_kills]
    (folder / "plan.json").write_text(json.dumps(plan))
    environment = {
        **os.environ,
        "OPENBLAS_NUM_THREADS": "1",
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "-1",
        "TF_CPP_MIN_LOG_LEVEL": "2",
    }
    done = subprocess.run(
        [sys.executable, __file__, folder / "plan.json", folder / "log.txt"],
        capture_output=True,
        text=True,
        timeout=500,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    return folder, json.loads(done.stdout), (folder / "log.txt").read_text()


def test_each_life_ended_where_it_was_meant_to(lives):
    _, ends, log = lives
    expected = []
    for kills in KILLS.values():
        expected += [0, *[int(signal.SIGKILL)] * len(kills), 0]
    assert ends == expected, log
    # Each life but a first one says where it goes on.
    went_on = [lines for kills in KILLS.values() for _, lines in kills]
    found = [line for line in log.splitlines() if "Going on after line" in line]
    assert [int(line.split("after line ")[1].split(",")[0]) for line in found] == went_on


@pytest.mark.parametrize("output_format", KILLS)
def test_a_killed_run_ends_in_the_same_bits(lives, output_format):
    from classifier_runs import snapshot

    folder = lives[0] / output_format
    whole, killed = snapshot(folder / "whole"), snapshot(folder / "killed")
    assert whole.keys() == killed.keys()
    if output_format == "jsonl":
        assert whole == killed
        assert list(whole) == ["out"]
    else:
        assert list(whole) == ["out/_info.json", *(f"out/part-0000{n}.npz" for n in range(3))]
        assert whole["out/_info.json"] == killed["out/_info.json"]
        for name in list(whole)[1:]:
            with np.load(folder / "whole" / name) as a, np.load(folder / "killed" / name) as b:
                assert a.files == b.files
                for array in a.files:
                    np.testing.assert_array_equal(a[array], b[array])


if __name__ == "__main__":
    drive(*sys.argv[1:])
