"""examples/compare_checkpoints.py: its rows, tables and processes; one real comparison."""

import importlib.util
import json
import math
import pathlib
import shutil
import signal
import string
import subprocess
import sys
import time

import pytest

from bert_tf.cli.command_line import CommandLineError

ROOT = pathlib.Path(__file__).parents[2]
SCRIPT = ROOT / "examples" / "compare_checkpoints.py"
GOLDEN = ROOT / "tests" / "golden" / "checkpoint" / "tiny_pretraining"
DATA = ROOT / "examples" / "paraphrase"
# The columns of run_classifier.py's table of runs for a task of two labels.
SETTINGS = ["learning_rate", "train_batch_size", "num_train_epochs"]
METRICS = ["accuracy", "f1", "macro_f1", "matthews", "loss"]


@pytest.fixture(scope="module")
def compare():
    spec = importlib.util.spec_from_file_location("compare_checkpoints", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses looks its module up there
    spec.loader.exec_module(module)
    return module


def write_vocabulary(path, size=120):
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokens += [*string.ascii_lowercase, *(f"##{letter}" for letter in string.ascii_lowercase)]
    tokens += [f"[unused{number}]" for number in range(size - len(tokens))]
    path.write_text("\n".join(tokens) + "\n")
    return path


def write_checkpoint(folder, name):
    """Writes files that look like a checkpoint of the golden tiny model."""
    folder.mkdir(exist_ok=True)
    for ending in (".index", ".data-00000-of-00001"):
        (folder / (name + ending)).write_bytes(b"weights")
    (folder / f"{name}.state.json").write_text("{}")
    shutil.copy2(GOLDEN / "bert_config.json", folder)


@pytest.fixture
def models(tmp_path):
    """A folder pt of three checkpoints, one released/bert_model.ckpt and a vocabulary."""
    for step in (400, 800, 1200):
        write_checkpoint(tmp_path / "pt", f"model.ckpt-{step}")
    write_checkpoint(tmp_path / "released", "bert_model.ckpt")
    write_vocabulary(tmp_path / "vocab.txt")
    return tmp_path


class FakeRunner:
    """Stands for run_classifier.py: writes the table of runs that a command asks for.

    Args:
      scores: the accuracy of each restart of a row by the last part of its checkpoint's name;
        NaN for a run that diverged.
      statuses: exit status by the same part; 0 by default.
    """

    def __init__(self, scores=None, statuses=None):
        self.scores = scores or {}
        self.statuses = statuses or {}
        self.commands = []

    def __call__(self, command, log):
        self.commands.append(command)
        values = dict(word.removeprefix("--").partition("=")[::2] for word in command[2:])
        model = values.get("init_checkpoint") or values["bert_config_file"]
        key = pathlib.Path(model).name.rpartition("-")[2]
        status = self.statuses.get(key, 0)
        pathlib.Path(log).write_text(f"begin\nrun_classifier.py: error: no luck with {key}\n\n")
        if status:
            return status
        lines = ["\t".join([*SETTINGS, "seed", *METRICS])]
        for rate in values.get("learning_rates", "5e-05").split(","):
            for restart in range(int(values["num_restarts"])):
                scores = self.scores.get((key, rate)) or self.scores.get(key) or [0.5, 0.6, 0.7]
                values_of_run = [scores[restart]] + [0.25] * (len(METRICS) - 2) + [restart]
                cells = [rate, "32", "3", str(restart), *(f"{x:.6f}" for x in values_of_run)]
                lines.append("\t".join(cells))
        path = pathlib.Path(values["output_dir"], "search_runs.tsv")
        path.write_text("\n".join(lines) + "\n")
        return 0


def run(compare, models, runner, *flags, task="TSV", passed=()):
    return compare.main(
        [
            "compare_checkpoints.py",
            f"--task_name={task}",
            f"--data_dir={DATA}",
            f"--output_dir={models / 'out'}",
            *map(str, flags),
            "--",
            f"--vocab_file={models / 'vocab.txt'}",
            *passed,
        ],
        runner,
    )


def read_table(models):
    header, *lines = (
        line.split("\t") for line in (models / "out" / "results.tsv").read_text().splitlines()
    )
    return {line[0]: dict(zip(header, line, strict=True)) for line in lines}


# Rows.


def described(rows):
    return [(row.name, row.series, row.kind, row.step) for row in rows]


def test_a_pattern_is_a_series_in_order_of_its_steps(compare, models):
    rows = compare.read_rows(f"{models}/pt/model.ckpt-*", None)
    assert described(rows) == [
        (f"pt/{step}", "pt", "checkpoint", step) for step in (400, 800, 1200)
    ]
    assert rows[0].path == f"{models}/pt/model.ckpt-400"
    named = compare.read_rows(f" MLM & NSP = {models}/pt/model.ckpt-*00", None)
    assert [row.name for row in named] == [f"MLM & NSP/{step}" for step in (400, 800, 1200)]
    assert {row.series for row in named} == {"MLM & NSP"}


def test_single_paths(compare, models):
    (models / "pt" / "checkpoint").write_text('model_checkpoint_path: "model.ckpt-800"\n')
    rows = compare.read_rows(
        f"{models}/released/bert_model.ckpt,latest={models}/pt,"
        f"{models}/pt/model.ckpt-400.index,{ROOT}/configs/tiny.json",
        [f"LTR + BiLSTM={models}/pt/model.ckpt-1200; --bilstm_head ;--learning_rate=1e-4;"],
    )
    assert described(rows) == [
        ("released", "released", "checkpoint", None),
        ("latest", "latest", "checkpoint", 800),
        ("pt/400", "pt", "checkpoint", 400),
        ("tiny", "configs", "configuration", None),
        ("LTR + BiLSTM", "LTR + BiLSTM", "checkpoint", 1200),
    ]
    assert rows[-1].flags == ("--bilstm_head", "--learning_rate=1e-4")
    assert all(row.flags == () for row in rows[:-1])


def test_patterns_of_configurations_and_folders(compare, tmp_path):
    rows = compare.read_rows(f"{ROOT}/configs/*.json", None)
    assert {row.name for row in rows} == {"tiny", "mini", "small", "medium", "base", "large"}
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text("{}")
        (tmp_path / name / "model.safetensors").write_bytes(b"")
    assert described(compare.read_rows(f"{tmp_path}/*", None)) == [
        ("a", "a", "huggingface", None),
        ("b", "b", "huggingface", None),
    ]


def test_a_path_may_hold_an_equals_sign(compare, models):
    write_checkpoint(models / "lr=1", "model.ckpt-3")
    assert described(compare.read_rows(f"{models}/lr=1/model.ckpt-3", None)) == [
        ("lr=1/3", "lr=1", "checkpoint", 3)
    ]


@pytest.mark.parametrize(
    ("checkpoints", "more", "error", "message"),
    [
        ("{m}/pt/model.ckpt-5", None, FileNotFoundError, "no checkpoint .*model.ckpt-5"),
        ("{m}/pt/other-*", None, FileNotFoundError, "other-.* matches no checkpoint"),
        ("{m}/nothing.json", None, FileNotFoundError, "no configuration .*nothing.json"),
        ("a=", None, CommandLineError, "'a=' has no path"),
        (" , ", None, CommandLineError, "name nothing"),
        (None, ["a={m}/pt;bilstm_head"], CommandLineError, "'bilstm_head' is no flag"),
        (
            "a={m}/pt/model.ckpt-400,a={m}/pt/model.ckpt-800",
            None,
            CommandLineError,
            "several rows are called a:",
        ),
    ],
)
def test_wrong_rows(compare, models, checkpoints, more, error, message):
    with pytest.raises(error, match=message):
        compare.read_rows(
            checkpoints and checkpoints.format(m=models),
            more and [x.format(m=models) for x in more],
        )


def test_folders_of_rows_are_safe_and_differ(compare):
    def folder(name):
        return compare.Row(name, name, "x", "checkpoint").folder

    assert folder("tiny") == "tiny"
    found = {folder(name) for name in ("a/b", "a b", "a_b", "../a", "…", "LTR & No NSP")}
    assert len(found) == 6
    assert all(set(name) <= set(string.ascii_letters + string.digits + "._-") for name in found)
    assert all(name[0] not in ".-" for name in found)


# Commands and results.


def test_commands(compare, models):
    runner = FakeRunner()
    run(
        compare,
        models,
        runner,
        f"--checkpoints={models}/pt/model.ckpt-400,tiny={GOLDEN}/bert_config.json",
        f"--row=x={models}/pt/model.ckpt-800;--bilstm_head;--num_train_epochs=2.5",
        "--num_restarts=1",
        passed=["--num_train_epochs=4", "--seed=3"],
    )
    first, second, third = runner.commands
    assert first[:2] == [sys.executable, str(ROOT / "run_classifier.py")]
    assert first[2:] == [
        "--task_name=TSV",
        f"--data_dir={DATA}",
        f"--init_checkpoint={models}/pt/model.ckpt-400",
        f"--vocab_file={models}/vocab.txt",
        "--num_train_epochs=4",
        "--seed=3",
        "--do_train",
        "--num_restarts=1",
        f"--output_dir={models}/out/rows/{compare.Row('pt/400', '', '', '').folder}",
        "--epochs=4.0",  # a search of one run
    ]
    assert f"--bert_config_file={GOLDEN}/bert_config.json" in second
    assert not any(word.startswith("--init_checkpoint") for word in second)
    assert "--bilstm_head" in third
    assert "--epochs=2.5" in third


def test_tables(compare, models):
    runner = FakeRunner(
        {"400": [0.5, 0.7], "800": [math.nan, 0.8], "bert_model.ckpt": [0.25, 0.75]}
    )
    results = run(
        compare,
        models,
        runner,
        f"--checkpoints={models}/pt/model.ckpt-[48]00,a|b={models}/released/bert_model.ckpt",
        "--num_restarts=2",
    )
    assert list(results) == ["pt/400", "pt/800", "a|b"]
    # The sample's deviation of 0.5 and 0.7: 0.2 / sqrt(2).
    assert (models / "out" / "results.md").read_text() == (
        "TSV, dev set, accuracy: mean ± standard deviation over n restarts.\n\n"
        "| row | parameters | pre-training step | accuracy | n |\n"
        "| --- | --- | --- | --- | --- |\n"
        "| pt/400 | {0} | 400 | 0.6000 ± 0.1414 | 2 |\n"
        "| pt/800 | {0} | 800 | 0.8000 | 1 (1 diverged) |\n"
        "| a\\|b | {0} | – | 0.5000 ± 0.3536 | 2 |\n"
    ).format(f"{compare.parameter_count(config_of_golden(compare)):,}")
    table = read_table(models)
    assert table["pt/400"]["series"] == "pt"
    assert table["pt/400"]["step"] == "400"
    assert table["pt/400"]["accuracy_mean"] == "0.600000"
    assert table["pt/400"]["accuracy_deviation"] == f"{0.2 / math.sqrt(2):.6f}"
    assert table["pt/400"]["accuracy_lowest"] == "0.500000"
    assert table["pt/400"]["accuracy_highest"] == "0.700000"
    assert table["pt/400"]["loss_mean"] == "0.500000"
    assert table["pt/400"]["learning_rate"] == "5e-05"
    assert table["pt/800"]["runs"] == "1"
    assert table["pt/800"]["diverged"] == "1"
    assert table["pt/800"]["accuracy_deviation"] == "nan"
    assert table["a|b"]["step"] == ""


def config_of_golden(compare):
    return compare.BertConfig.from_json_file(str(GOLDEN / "bert_config.json"))


@pytest.mark.parametrize(("metric", "rate"), [("accuracy", "2e-05"), ("loss", "5e-05")])
def test_of_a_search_the_best_combination_by_mean_is_shown(compare, models, metric, rate):
    # The highest single run is of the rate with the lower mean.
    scores = {("400", "5e-05"): [0.9, 0.1], ("400", "2e-05"): [0.6, 0.8]}
    results = run(
        compare,
        models,
        FakeRunner(scores),
        f"--checkpoints={models}/pt/model.ckpt-400",
        "--num_restarts=2",
        passed=["--learning_rates=5e-05,2e-05", f"--best_metric={metric}"],
    )
    assert results["pt/400"].settings["learning_rate"] == rate
    text = (models / "out" / "results.md").read_text()
    assert "| rate, batch, epochs |" in text
    assert f"| {rate}, 32, 3 |" in text
    assert "the settings with the best mean on the same set" in text


def test_of_combinations_one_that_always_diverges_is_not_chosen(compare, models):
    scores = {("400", "5e-05"): [math.nan] * 2, ("400", "2e-05"): [0.2, 0.4]}
    results = run(
        compare,
        models,
        FakeRunner(scores),
        f"--checkpoints={models}/pt/model.ckpt-400",
        "--num_restarts=2",
        passed=["--learning_rates=5e-05,2e-05"],
    )
    assert results["pt/400"].mean("accuracy") == pytest.approx(0.3)


# What is run, and run again.


def test_finished_rows_are_not_run_again(compare, models):
    flags = [f"--checkpoints={models}/pt/model.ckpt-*"]
    first = run(compare, models, FakeRunner(), *flags)
    again = FakeRunner()
    assert run(compare, models, again, *flags) == first
    assert again.commands == []
    # More restarts: run_classifier.py is asked, and does only what is missing.
    more = FakeRunner()
    run(compare, models, more, *flags, "--num_restarts=2")
    assert len(more.commands) == 3
    # A new checkpoint of the series, and one that was written anew.
    write_checkpoint(models / "pt", "model.ckpt-1600")
    (models / "pt" / "model.ckpt-800.data-00000-of-00001").write_bytes(b"other weights")
    new = FakeRunner()
    run(compare, models, new, *flags, "--num_restarts=2")
    assert [
        word for command in new.commands for word in command if word.startswith("--init_ch")
    ] == [f"--init_checkpoint={models}/pt/model.ckpt-{step}" for step in (800, 1600)]


def test_a_row_that_fails_does_not_stop_the_others(compare, models):
    flags = [f"--checkpoints={models}/pt/model.ckpt-*"]
    with pytest.raises(
        ValueError, match=r"rows failed:\n  pt/800: .*no luck with 800 \(exit st.* 1;"
    ):
        run(compare, models, FakeRunner(statuses={"800": 1}), *flags)
    text = (models / "out" / "results.md").read_text()
    assert text.count("0.6000 ± 0.1000 | 3 |") == 2
    assert "| 800 | – | failed |" in text
    assert read_table(models)["pt/800"]["accuracy_mean"] == "nan"
    # The same command tries the failed row alone.
    again = FakeRunner()
    run(compare, models, again, *flags)
    assert len(again.commands) == 1


def test_a_run_told_to_end_ends_all(compare, models):
    flags = [f"--checkpoints={models}/pt/model.ckpt-*"]
    runner = FakeRunner(statuses={"800": 143})
    with pytest.raises(SystemExit) as caught:
        run(compare, models, runner, *flags)
    assert caught.value.code == 143
    assert len(runner.commands) == 2
    # What is finished is in the table already; the other rows have none yet.
    assert "| 400 | 0.6000 ± 0.1000 | 3 |" in (models / "out" / "results.md").read_text()
    assert "| 1,200 | – | – |" in (models / "out" / "results.md").read_text()
    again = FakeRunner()
    run(compare, models, again, *flags)
    assert len(again.commands) == 2


@pytest.mark.parametrize(
    ("checkpoint", "flag", "message"),
    [
        ("pt/model.ckpt-400", "--bilstm_head", "bilstm_head None in place of True"),
        ("released/bert_model.ckpt", "--seed=1", "num_hidden_layers 5 in place of"),
    ],
)
def test_a_row_is_not_mixed_with_another(compare, models, checkpoint, flag, message):
    config = json.loads((GOLDEN / "bert_config.json").read_text())
    (models / "pt" / "bert_config.json").write_text(json.dumps({**config, "num_hidden_layers": 5}))
    run(compare, models, FakeRunner(), f"--row=a={models}/pt/model.ckpt-400;--seed=1")
    other = FakeRunner()
    with pytest.raises(ValueError, match=message):
        run(
            compare,
            models,
            other,
            f"--checkpoints=new={models}/pt/model.ckpt-800",
            f"--row=a={models}/{checkpoint};--seed=1;{flag}",
        )
    # Found before anything is run.
    assert other.commands == []


@pytest.mark.parametrize(
    ("passed", "message"),
    [
        (["--learning_rat=1"], "the row pt/400: .*learning_rat"),
        (["--do_predict"], "--do_predict is set by this script"),
        (["--num_restarts=2"], "--num_restarts is set by this script"),
        (["--best_metric=f2"], "f2"),
        (["--warmup_proportion=2"], "warmup_proportion"),
        (["--bert_config_file=nowhere.json"], "nowhere.json"),
    ],
)
def test_wrong_flags_are_found_before_anything_is_run(compare, models, passed, message):
    runner = FakeRunner()
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        run(compare, models, runner, f"--checkpoints={models}/pt/model.ckpt-400", passed=passed)
    assert runner.commands == []
    assert not (models / "out").exists()


def test_missing_flags_and_files(compare, models):
    with pytest.raises(CommandLineError, match=r"--task_name(.|\n)*--checkpoints or --row"):
        compare.main(["compare_checkpoints.py"])
    with pytest.raises(FileNotFoundError, match="no folder nowhere"):
        compare.main(
            ["c", "--task_name=TSV", "--data_dir=nowhere", "--output_dir=o", "--checkpoints=a"]
        )
    (models / "pt" / "bert_config.json").unlink()
    with pytest.raises(CommandLineError, match=r"no bert_config.json beside .*model.ckpt-400"):
        run(compare, models, FakeRunner(), f"--checkpoints={models}/pt/model.ckpt-400")
    with pytest.raises(CommandLineError, match=r"the row tiny(.|\n)*--vocab_file"):
        compare.main(
            [
                *("c", "--task_name=TSV", f"--data_dir={DATA}", f"--output_dir={models}/out"),
                f"--checkpoints={ROOT}/configs/tiny.json",
            ]
        )


# The plot.


def test_the_axis_of_the_plot(compare):
    def row(series, step=None):
        return compare.Row(f"{series}/{step}", series, "x", "checkpoint", step)

    assert compare.axis_of([(row("a", 1), 5), (row("a", 2), 5), (row("b"), 5)]) == "step"
    assert compare.axis_of([(row("a", 1), 5), (row("b", 2), 6)]) == "parameters"
    assert compare.axis_of([(row("a", 1), 5), (row("b", 2), 5)]) == "row"


def test_without_matplotlib_the_tables_are_written(compare, models, monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with caplog.at_level("WARNING", logger="absl"):
        run(compare, models, FakeRunner(), f"--checkpoints={models}/pt/model.ckpt-*")
    assert "pip install 'matplotlib>=3.8'" in caplog.text
    assert (models / "out" / "results.md").exists()
    assert not (models / "out" / "results.png").exists()


@pytest.mark.parametrize(
    "rows",
    [
        ["pt/model.ckpt-*", "released/bert_model.ckpt"],
        ["pt/model.ckpt-400", "sizes/small.json"],
        ["a=pt/model.ckpt-400", "b=released/bert_model.ckpt"],
    ],
    ids=["step", "parameters", "row"],
)
def test_plots(compare, models, rows):
    pytest.importorskip("matplotlib")
    (models / "sizes").mkdir()
    config = json.loads((GOLDEN / "bert_config.json").read_text())
    (models / "sizes" / "small.json").write_text(json.dumps({**config, "num_hidden_layers": 1}))
    entries = [
        "=".join([*name, f"{models}/{path}"])
        for *name, path in (entry.split("=") for entry in rows)
    ]
    run(compare, models, FakeRunner(), f"--checkpoints={','.join(entries)}")
    assert (models / "out" / "results.png").read_bytes().startswith(b"\x89PNG")


# Processes.


def test_a_process_writes_to_its_log_and_its_status_is_returned(compare, tmp_path):
    log = tmp_path / "log.txt"
    code = "import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)"
    assert compare.run_process([sys.executable, "-c", code], str(log)) == 3
    assert compare.run_process([sys.executable, "-c", "print('more')"], str(log)) == 0
    assert sorted(log.read_text().split()) == ["err", "more", "out"]
    assert compare.last_line(str(log)) == "more"


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_reaches_the_run_as_sigterm_and_waits_for_it(tmp_path, number, status):
    child = (
        "import pathlib, signal, sys, time\n"
        "def end(*_):\n    time.sleep(0.3)\n    pathlib.Path('saved').touch()\n    sys.exit(143)\n"
        "signal.signal(signal.SIGTERM, end)\n"
        "pathlib.Path('started').touch()\n"
        "time.sleep(60)\n"
    )
    parent = (
        "import signal, sys\n"
        # A test run in the background has it ignored, and its processes take that over.
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        f"sys.path.insert(0, {str(SCRIPT.parent)!r})\n"
        "import compare_checkpoints\n"
        f"command = [sys.executable, '-c', {child!r}]\n"
        "compare_checkpoints.CLI.run(\n"
        "    lambda _: compare_checkpoints.run_process(command, 'log'))\n"
    )
    process = subprocess.Popen([sys.executable, "-c", parent], cwd=tmp_path)
    try:
        for _ in range(600):
            if (tmp_path / "started").exists():
                break
            time.sleep(0.1)
        process.send_signal(number)
        assert process.wait(60) == status
    finally:
        process.kill()
        process.wait()
    assert (tmp_path / "saved").exists()


def test_a_real_comparison(compare, tmp_path):
    """One checkpoint, one restart: the table holds what run_classifier.py found."""
    data = tmp_path / "data"
    data.mkdir()
    for name, count in (("train", 24), ("dev", 12)):
        lines = (DATA / f"{name}.tsv").read_text().splitlines(keepends=True)
        (data / f"{name}.tsv").write_text("".join(lines[: count + 1]))
    model = tmp_path / "pt"
    shutil.copytree(GOLDEN / "training", model)
    shutil.copy(GOLDEN / "bert_config.json", model)
    write_vocabulary(model / "vocab.txt")
    argv = [
        *("compare_checkpoints.py", "--task_name=TSV", f"--data_dir={data}"),
        *(f"--checkpoints={model}/model.ckpt-*", f"--output_dir={tmp_path}/out"),
        *("--num_restarts=1", "--", "--num_train_epochs=1", "--train_batch_size=8"),
        "--max_seq_length=32",
    ]
    result = compare.main(argv)["pt/8"]
    assert result is not None
    (path,) = tmp_path.glob("out/rows/*/runs/*/result.json")
    found = json.loads(path.read_text())
    assert result.values["accuracy"] == [pytest.approx(found["metrics"]["accuracy"], abs=1e-6)]
    assert result.values["loss"] == [pytest.approx(found["metrics"]["loss"], abs=1e-6)]
    assert found["settings"]["num_train_epochs"] == 1
    assert "| pt/8 | " in (tmp_path / "out" / "results.md").read_text()

    def never(command, log):
        raise AssertionError(command)

    assert compare.main(argv, never)["pt/8"] == result
