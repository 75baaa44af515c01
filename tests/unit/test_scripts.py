"""What the run_*.py scripts share."""

import json
import logging
import pathlib
import types

import pytest
import tiny

import run_squad
from bert_tf import paths
from bert_tf.checkpoint import original
from bert_tf.cli import scripts
from bert_tf.cli.command_line import CommandLine, CommandLineError
from bert_tf.config import BertConfig
from bert_tf.optimization import BertAdam, Lamb, WarmupDecay

RELEASE = tiny.GOLDEN / "checkpoint/tiny_pretraining"
CONFIG = BertConfig(vocab_size=120)


def parse(*argv):
    cli = CommandLine("run.py", "A script.", "python run.py")
    scripts.model_flags(cli)
    cli.string("output_dir", None, "A folder.")
    cli.integer("train_batch_size", 32, "Of a step.")
    cli.integer("eval_batch_size", 8, "Of an evaluation.")
    scripts.run_flags(cli)
    scripts.optimizer_flags(cli)
    scripts.device_flags(cli)
    return cli, cli.parse(["run.py", *map(str, argv)])


def test_settings_of_the_best_weights(tmp_path):
    """They may lie in the run's folder."""
    (tmp_path / "best").mkdir()
    folders = (str(tmp_path / "best"), str(tmp_path))
    assert [scripts.read_settings(folder, "task.json") for folder in folders] == [None, None]
    (tmp_path / "task.json").write_text('{"a": 1}')
    assert [scripts.read_settings(folder, "task.json") for folder in folders] == [{"a": 1}] * 2
    (tmp_path / "best" / "task.json").write_text('{"a": 2}')
    assert scripts.read_settings(folders[0], "task.json") == {"a": 2}


def test_read_if_there(tmp_path):
    path = str(tmp_path / "x.json")
    assert scripts.read_if_there(path) is None
    paths.write_json(path, {"b": 1, "a": [2]})
    assert scripts.read_if_there(path) == {"a": [2], "b": 1}
    pathlib.Path(path).write_text('{"a": 1')
    with pytest.raises(ValueError, match=r"x\.json: not valid JSON"):
        scripts.read_if_there(path)


# The model's files.


def test_what_lies_beside_a_checkpoint(tmp_path):
    for path in RELEASE.glob("bert_*"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    _, flags = parse(f"--init_checkpoint={tmp_path}", f"--output_dir={tmp_path / 'none'}")
    files = scripts.open_model(flags)
    assert files.config == tiny.CONFIG
    assert files.init.prefix == str(tmp_path / "bert_model.ckpt")
    assert files.vocab_file is None
    (tmp_path / "vocab.txt").write_text("a\n")
    assert scripts.open_model(flags).vocab_file == str(tmp_path / "vocab.txt")
    # What is given wins.
    other = tiny.CONFIG.replace(hidden_act="relu")
    other.to_json_file(str(tmp_path / "other.json"))
    (tmp_path / "other.txt").write_text("a\n")
    more = [f"--bert_config_file={tmp_path}/other.json", f"--vocab_file={tmp_path}/other.txt"]
    _, flags = parse(f"--init_checkpoint={tmp_path}", f"--output_dir={tmp_path}", *more)
    files = scripts.open_model(flags)
    assert (files.config, files.vocab_file) == (other, str(tmp_path / "other.txt"))
    _, flags = parse(f"--init_checkpoint={tmp_path}", "--output_dir=o", "--hidden_act=gelu_erf")
    assert scripts.open_model(flags).config.hidden_act == "gelu_erf"


def test_what_lies_in_the_output_folder(tmp_path):
    _, flags = parse(f"--output_dir={tmp_path}", "--hidden_act=tanh")
    with pytest.raises(FileNotFoundError, match=r"bert_config\.json"):
        scripts.open_model(flags)
    tiny.CONFIG.to_json_file(str(tmp_path / "bert_config.json"))
    files = scripts.open_model(flags)
    assert (files.config.hidden_act, files.init, files.vocab_file) == ("tanh", None, None)
    (tmp_path / "vocab.txt").write_text("a\n")
    assert scripts.open_model(flags).vocab_file == str(tmp_path / "vocab.txt")


def test_a_checkpoint_without_a_configuration(tmp_path):
    original.write(str(tmp_path / "model.ckpt"), {"a": [1.0]})
    _, flags = parse(f"--init_checkpoint={tmp_path}", f"--output_dir={tmp_path}")
    with pytest.raises(CommandLineError, match=r"no bert_config\.json beside.*--bert_config_file"):
        scripts.open_model(flags)


@pytest.mark.parametrize(("size", "good"), [(120, True), (119, True), (121, False), (1, True)])
def test_check_vocabulary(size, good, caplog):
    with caplog.at_level(logging.WARNING, logger="absl"):
        if good:
            scripts.check_vocabulary(CONFIG, size, "v.txt")
        else:
            with pytest.raises(ValueError, match=r"v\.txt has 121 tokens.*vocab_size 120: give"):
                scripts.check_vocabulary(CONFIG, size, "v.txt")
    # A table may be padded.
    assert ("the rows left over are never used" in caplog.text) == (size < 120)


def test_a_table_is_padded_by_less_than_128_rows():
    config = BertConfig(vocab_size=1024)
    scripts.check_vocabulary(config, 1024 - 127, "v.txt")
    with pytest.raises(ValueError, match="belongs to the checkpoint or, for a new model"):
        scripts.check_vocabulary(config, 1024 - 128, "v.txt")


def test_check_length():
    scripts.check_length(512, CONFIG)
    with pytest.raises(ValueError, match=r"--max_seq_length=513 is over .*embeddings, 512: give"):
        scripts.check_length(513, CONFIG)


def test_check_same_model(tmp_path):
    folder, vocab = str(tmp_path / "run"), tmp_path / "v.txt"
    vocab.write_text("a\nb\n")
    # A folder without a run.
    scripts.check_same_model(folder, CONFIG, str(vocab))
    scripts.write_model_files(folder, CONFIG, str(vocab))
    scripts.check_same_model(folder, CONFIG, str(vocab))
    scripts.check_same_model(folder, CONFIG, None)
    # Another dropout is another training of the same model.
    scripts.check_same_model(folder, CONFIG.replace(hidden_dropout_prob=0.3), str(vocab))
    for changes, words in (
        ({"hidden_act": "relu"}, "hidden_act gelu -> relu"),
        ({"causal_attention": True}, "causal_attention None -> True"),
        ({"layer_norm_eps": 1e-5}, "layer_norm_eps None -> 1e-05"),
    ):
        with pytest.raises(ValueError, match=rf"another model than this command \({words}\): give"):
            scripts.check_same_model(folder, CONFIG.replace(**changes), str(vocab))
    vocab.write_text("a\nc\n")
    with pytest.raises(ValueError, match=r"v\.txt is not the vocabulary that the run in"):
        scripts.check_same_model(folder, CONFIG, str(vocab))


def test_write_model_files_into_the_folder_they_came_from(tmp_path):
    (tmp_path / "vocab.txt").write_text("a\n")
    scripts.write_model_files(str(tmp_path), CONFIG, str(tmp_path / "vocab.txt"))
    assert (tmp_path / "vocab.txt").read_text() == "a\n"
    assert BertConfig.from_json_file(str(tmp_path / "bert_config.json")) == CONFIG
    scripts.write_model_files(str(tmp_path / "other"), CONFIG, None)
    assert [path.name for path in (tmp_path / "other").iterdir()] == ["bert_config.json"]


def test_warn_of_changes(caplog):
    began = {"seed": 1, "learning_rate": 0.1, "gone": 3}
    with caplog.at_level(logging.WARNING, logger="absl"):
        scripts.warn_of_changes("run", began, {"seed": 1, "learning_rate": 0.1, "new": 4})
        assert caplog.text == ""
        scripts.warn_of_changes("run", began, {"seed": 2, "learning_rate": 0.5})
    assert "run goes on with other settings" in caplog.text
    assert "seed 1 -> 2, learning_rate 0.1 -> 0.5" in caplog.text


# Optimizer and devices.


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        ([], BertAdam(WarmupDecay(1e-3, 100, 10, 1.0, 0.0))),
        (["--adam_bias_correction"], BertAdam(WarmupDecay(1e-3, 100, 10), bias_correction=True)),
        (["--optimizer=lamb"], Lamb(WarmupDecay(1e-3, 100, 10))),
        (["--lr_decay=constant"], BertAdam(WarmupDecay(1e-3, 100, 10, 0.0))),
        (
            ["--lr_decay=polynomial", "--lr_decay_power=2", "--end_learning_rate=1e-5"],
            BertAdam(WarmupDecay(1e-3, 100, 10, 2.0, 1e-5)),
        ),
        (["--end_learning_rate=1e-4"], BertAdam(WarmupDecay(1e-3, 100, 10, 1.0, 1e-4))),
    ],
)
def test_make_optimizer(argv, expected):
    cli, flags = parse(*argv)
    scripts.check_optimizer_flags(cli, flags)
    found = scripts.make_optimizer(flags, 1e-3, 100, 10)
    assert type(found) is type(expected)
    assert found == expected


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--lr_decay_power=2"], "--lr_decay_power needs --lr_decay=polynomial"),
        (["--lr_decay_power=1", "--lr_decay=constant"], "needs --lr_decay=polynomial"),
        (["--lr_decay=constant", "--end_learning_rate=1e-5"], "does not go with --lr_decay=const"),
    ],
)
def test_optimizer_flags_that_contradict_each_other(argv, message):
    with pytest.raises(CommandLineError, match=message):
        scripts.check_optimizer_flags(*parse(*argv))


def test_settings_of_the_optimizer_are_all_noted():
    _, flags = parse()
    settings = scripts.optimizer_settings(flags)
    assert settings["gradient_accumulation_steps"] == 1
    cli = CommandLine("run.py", "A script.", "python run.py")
    before = set(cli.flags)
    scripts.optimizer_flags(cli)
    # A flag that is added has its part in the weights, and is to be warned about.
    assert settings.keys() == set(cli.flags) - before


def test_precisions_are_policies_of_keras():
    import keras

    for name, policy in scripts.PRECISIONS.items():
        found = keras.dtype_policies.get(policy or "float32")
        assert (found.compute_dtype, found.variable_dtype) == (name, "float32")


# The tokenizer.


def test_tokenizer_settings_are_read_again(tmp_path):
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "é", "e"]
    (tmp_path / "vocab.txt").write_text("".join(f"{token}\n" for token in tokens))

    def make(*argv):
        cli = CommandLine("run.py", "A script.", "python run.py")
        scripts.model_flags(cli)
        cli.string("output_dir", None, "A folder.")
        scripts.text_flags(cli)
        flags = cli.parse(["run.py", f"--output_dir={tmp_path}", *argv])
        files = types.SimpleNamespace(init=None, vocab_file=str(tmp_path / "vocab.txt"))
        return scripts.make_tokenizer(cli, flags, files, "task.json")

    first = make("--nodo_lower_case", "--strip_accents=true", "--never_split=[MASK]")
    settings = scripts.tokenizer_settings(first)
    assert settings == {"do_lower_case": False, "strip_accents": True, "never_split": ["[MASK]"]}
    paths.write_json(str(tmp_path / "task.json"), settings)
    assert scripts.tokenizer_settings(make()) == settings
    # A flag wins.
    assert make("--do_lower_case").do_lower_case is True


NAMES = ("character_level", "max_seq_length", "doc_stride")


@pytest.mark.parametrize("where", ["output_dir", "init_checkpoint", "its best", "given"])
def test_a_trained_folder_says_how_its_texts_are_cut(tmp_path, where, caplog):
    settings = {"character_level": True, "max_seq_length": 96, "doc_stride": 32}
    run = tmp_path / "run"
    run.mkdir()
    (run / "squad.json").write_text(json.dumps(settings))
    flag = {
        "output_dir": f"--output_dir={run}",
        "init_checkpoint": f"--init_checkpoint={run}/model.ckpt-3",
        "its best": f"--init_checkpoint={run}/best/model.ckpt-2",
        "given": f"--output_dir={tmp_path}",
    }[where]
    command = ["run_squad.py", f"--output_dir={tmp_path / 'new'}", flag, "--doc_stride=16"]
    flags = run_squad.CLI.parse([*command, "--do_predict"])
    init = flags.init_checkpoint and scripts.folder_of(flags.init_checkpoint)
    folders = [str(run)] if where == "given" else [flags.output_dir, init]
    with caplog.at_level("INFO", logger="absl"):
        scripts.take_saved_settings(run_squad.CLI, flags, "squad.json", NAMES, folders)
    assert (flags.character_level, flags.max_seq_length, flags.doc_stride) == (True, 96, 16)
    assert "was trained: --character_level=True, --max_seq_length=96" in caplog.text
    assert "Other than the run" in caplog.text
    assert "--doc_stride=16 (then 32)" in caplog.text
    for value in (None, "a", 2.5, 0):
        (run / "squad.json").write_text(json.dumps({**settings, "max_seq_length": value}))
        flags = run_squad.CLI.parse([*command, "--do_predict"])
        with pytest.raises(
            ValueError, match=rf"squad\.json: max_seq_length is '?{value}'?: .*give --"
        ):
            scripts.take_saved_settings(run_squad.CLI, flags, "squad.json", NAMES, folders)
    # A command that trains says for itself.
    flags = run_squad.CLI.parse([*command, "--do_train"])
    scripts.take_saved_settings(run_squad.CLI, flags, "squad.json", NAMES, folders)
    assert (flags.character_level, flags.max_seq_length) == (False, 384)
