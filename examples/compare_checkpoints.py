"""Fine-tune several checkpoints or model sizes on one task; a table and a plot of the results.

Every row is a checkpoint, or a configuration that is trained from random weights. For each,
run_classifier.py is started once, in a process of its own, with the same flags: those after a
lone -- on the command line. It trains all restarts (and, with --learning_rates and the like, all
combinations; the best one on the dev set is shown). Finished rows are not done again, and one that
was stopped goes on where it stood.

Written to output_dir: results.tsv (all metrics), results.md (the one that decides: the task's main
one, or that of run_classifier.py's --best_metric), results.png, and rows/ with each row's runs. The
plot has the pre-training step as its axis where rows of one series differ in it, else the number of
parameters where that differs, else the rows.
"""

import contextlib
import dataclasses
import math
import os
import re
import signal
import statistics
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from absl import flags as absl_flags
from absl import logging

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, ROOT)

import run_classifier  # noqa: E402  (the scripts are no package: their folder comes first)
from bert_tf import paths  # noqa: E402
from bert_tf.checkpoint import huggingface, original, restore  # noqa: E402
from bert_tf.cli import scripts  # noqa: E402
from bert_tf.cli.command_line import CommandLine, CommandLineError  # noqa: E402
from bert_tf.config import BertConfig  # noqa: E402
from bert_tf.training.search import RUNS_FILE  # noqa: E402

CLI = CommandLine(
    "examples/compare_checkpoints.py",
    __doc__,
    """\
python examples/compare_checkpoints.py --task_name=MRPC --data_dir=glue/MRPC \\
    --checkpoints='pretrained/model.ckpt-*,released=uncased_L-12_H-768_A-12' \\
    --row='LTR + BiLSTM=ltr/model.ckpt-2000;--bilstm_head' \\
    --num_restarts=3 --output_dir=comparison -- --num_train_epochs=3 --learning_rate=5e-5""",
)
with CLI.group("What is compared, and on which task"):
    CLI.string("task_name", None, "The task, as for run_classifier.py.")
    CLI.string("data_dir", None, "Folder with the task's files.")
    CLI.string(
        "checkpoints",
        None,
        "Rows, comma-separated, as PATH or NAME=PATH. PATH is a checkpoint (prefix or folder), a "
        "Hugging Face folder, a configuration (.json: trained from random weights), or a pattern, "
        "such as pretrained/model.ckpt-*, for a series with a row for each checkpoint. Without a "
        "NAME, rows are called by their folder and step.",
    )
    absl_flags.DEFINE_multi_string(
        "row",
        None,
        "One more entry, with flags of its own for run_classifier.py after semicolons: "
        "NAME=PATH;--flag=value;... May be given several times.",
        flag_values=CLI.flags,
    )
    CLI._note("row")
    CLI.integer("num_restarts", 3, "Runs of each row, with seed, seed+1, ...", 1)
    CLI.string("output_dir", None, "Folder for the tables, the plot and the runs.")

TSV_FILE, MARKDOWN_FILE, PLOT_FILE = "results.tsv", "results.md", "results.png"
ROW_FILE, LOG_FILE = "row.json", "log.txt"
# Given to run_classifier.py by this script.
OWN_FLAGS = (
    *("task_name", "data_dir", "output_dir", "init_checkpoint", "num_restarts"),
    *("do_train", "do_eval", "do_predict"),
)
# May change between two calls: they add runs, say how a run lives, or name files, whose content
# run_classifier.py compares itself.
FREE_FLAGS = (
    *OWN_FLAGS,
    *("bert_config_file", "vocab_file", "learning_rates", "train_batch_sizes", "epochs"),
    *("save_checkpoints_steps", "keep_checkpoint_max", "steps_per_loop", "log_steps"),
    *("num_threads", "eval_batch_size", "predict_batch_size", "traceback", "help"),
)
_STOPPED = (143, -signal.SIGTERM)


@dataclasses.dataclass(frozen=True)
class Row:
    """One line of the table.

    Attributes:
      name: unique in a table.
      series: rows of one series are one line in the plot.
      path: a checkpoint's prefix, a Hugging Face folder or a configuration file.
      kind: "checkpoint", "huggingface" or "configuration".
      step: the checkpoint's pre-training step, or None.
      flags: flags of its own for run_classifier.py.
    """

    name: str
    series: str
    path: str
    kind: str
    step: int | None = None
    flags: tuple[str, ...] = ()

    @property
    def folder(self) -> str:
        """Its folder's name: the row's, with what a file system may not take replaced."""
        safe = re.sub(r"[^A-Za-z0-9._-]+", "_", self.name).strip("._") or "row"
        # Two names must not share a folder.
        return safe if safe == self.name else f"{safe}-{zlib.crc32(self.name.encode()):08x}"

    @property
    def model_flag(self) -> str:
        name = "bert_config_file" if self.kind == "configuration" else "init_checkpoint"
        return f"--{name}={self.path}"


@dataclasses.dataclass(frozen=True)
class Job:
    """A row and how it is run.

    Attributes:
      row: the row.
      output_dir: the folder of its runs.
      arguments: of run_classifier.py.
      setup: what its results depend on and run_classifier.py does not compare itself.
      files: file -> size and time of what it reads.
      parameters: of the encoder with its pooler.
    """

    row: Row
    output_dir: str
    arguments: tuple[str, ...]
    setup: Mapping[str, Any]
    files: Mapping[str, Any]
    parameters: int


@dataclasses.dataclass(frozen=True)
class Result:
    """What a row's runs came to; of several combinations, the best one by mean.

    Attributes:
      values: metric -> its value in each restart that did not diverge.
      settings: of the combination.
      diverged: restarts of it that did.
      combinations: how many there were.
    """

    values: Mapping[str, Sequence[float]]
    settings: Mapping[str, str]
    diverged: int
    combinations: int

    @property
    def runs(self) -> int:
        return len(next(iter(self.values.values()), ()))

    def mean(self, metric: str) -> float:
        values = self.values.get(metric)
        return statistics.mean(values) if values else math.nan

    def deviation(self, metric: str) -> float:
        """The sample's standard deviation; NaN for fewer than two runs."""
        values = self.values.get(metric, ())
        return statistics.stdev(values) if len(values) > 1 else math.nan


Runner = Callable[[Sequence[str], str], int]


def main(argv: Sequence[str], runner: Runner | None = None) -> dict[str, Result | None]:
    """Runs the command.

    Args:
      argv: the command line.
      runner: runs a command (a list of words) with its output in a file, and returns its exit
        status; by default in a process.

    Returns: row name -> its result, in the order of the rows.

    Raises:
      CommandLineError, ValueError, FileNotFoundError: a flag, a row or a file is wrong, found
        before anything is run; or a row failed, after the others were run.
    """
    own, passed = split_arguments(argv)
    flags = CLI.parse(own)
    missing = [
        (name, what)
        for name, what in (
            ("task_name", "which task"),
            ("data_dir", "the folder with its files"),
            ("output_dir", "the folder for the tables and the runs"),
        )
        if not getattr(flags, name)
    ]
    if not (flags.checkpoints or flags.row):
        missing.append(("checkpoints or --row", "what to compare"))
    CLI.require(missing)
    if not paths.is_dir(flags.data_dir):
        raise FileNotFoundError(f"There is no folder {flags.data_dir} (--data_dir).")
    rows = read_rows(flags.checkpoints, flags.row)
    jobs = [make_job(row, flags, passed) for row in rows]
    for job in jobs:
        check_same_row(job)
    # The same for all rows: they share the task. Asked last, as parsing forgets what was before.
    metric, higher, metrics = metric_of(jobs[0])
    table = Table(flags.task_name, metric, metrics, jobs)
    results: dict[str, Result | None] = {}
    failed = []
    for number, job in enumerate(jobs, 1):
        start = f"[{number}/{len(jobs)}] {job.row.name}"
        error = run_job(job, start, runner or run_process)
        results[job.row.name] = None
        if error is None:
            runs = paths.join(job.output_dir, RUNS_FILE)
            results[job.row.name] = result = read_result(runs, metrics, metric, higher)
            logging.info("%s: %s = %s, n = %d", start, metric, shown(result, metric), result.runs)
        else:
            failed.append(f"  {job.row.name}: {error}")
            logging.warning("%s failed: %s", start, error)
        table.write(flags.output_dir, results)
    print(table.markdown(results))
    print(f"Tables: {paths.join(flags.output_dir, TSV_FILE)} and {MARKDOWN_FILE}")
    if any(result and result.runs for result in results.values()):
        plot = paths.join(flags.output_dir, PLOT_FILE)
        try:
            write_plot(plot, table, results)
            print(f"Plot: {plot}")
        except ImportError as error:
            logging.warning("No plot: %s", error)
    if failed:
        raise ValueError("these rows failed:\n" + "\n".join(failed))
    return results


# The command line.


def split_arguments(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """Splits a command line at the first lone -- into our flags and run_classifier.py's."""
    argv = list(argv)
    if "--" not in argv:
        return argv, []
    at = argv.index("--")
    return argv[:at], argv[at + 1 :]


def read_rows(checkpoints: str | None, more: Sequence[str] | None) -> list[Row]:
    """Reads --checkpoints and --row.

    Args:
      checkpoints: entries, comma-separated, as NAME=PATH or PATH.
      more: entries as NAME=PATH;--flag;--flag=value.

    Raises:
      CommandLineError: an entry cannot be understood, or two rows have one name.
      FileNotFoundError: a path is not there, or a pattern matches nothing.
    """
    rows = []
    for entry in (checkpoints or "").split(","):
        if entry.strip():
            rows += rows_of("checkpoints", entry, ())
    for text in more or ():
        entry, *own_flags = (part.strip() for part in text.split(";"))
        own_flags = [part for part in own_flags if part]
        wrong = [part for part in own_flags if not part.startswith("--")]
        if wrong:
            raise CommandLineError(
                f"--row={text}: {wrong[0]!r} is no flag; write NAME=PATH;--flag=value;--flag"
            )
        rows += rows_of("row", entry, tuple(own_flags))
    if not rows:
        raise CommandLineError("--checkpoints and --row name nothing")
    names = [row.name for row in rows]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise CommandLineError(
            f"several rows are called {', '.join(twice)}: give each a name of its own, NAME=PATH"
        )
    return rows


def rows_of(flag: str, entry: str, own_flags: tuple[str, ...]) -> list[Row]:
    """Returns the rows of one entry: one, or one for each match of a pattern."""
    name, found, path = entry.partition("=")
    # A = inside a path names nothing.
    if not found or "/" in name:
        name, path = "", entry
    name, path = name.strip(), path.strip()
    if not path:
        raise CommandLineError(f"--{flag}: {entry.strip()!r} has no path; write NAME=PATH or PATH")
    if any(character in name for character in "\t\n"):
        raise CommandLineError(f"--{flag}: the name {name!r} holds a tab or a line break")
    is_pattern = any(character in path for character in "*?[") and not paths.exists(path)
    rows = []
    for model in matches(path) if is_pattern else [path]:
        kind, model, step = find_model(model)
        folder, own_name = folder_and_name(kind, model)
        series = name or folder
        row_name = own_name if step is None else f"{folder}/{step}"
        if name:
            row_name = f"{name}/{own_name if step is None else step}" if is_pattern else name
        rows.append(Row(row_name, series, model, kind, step, own_flags))
    return sorted(rows, key=lambda row: -1 if row.step is None else row.step)


def matches(pattern: str) -> list[str]:
    """Returns the checkpoints, else the folders and configurations, that match a pattern.

    Raises:
      FileNotFoundError: nothing does.
    """
    found = paths.glob(pattern)
    ends = [path for path in {*found, *paths.glob(pattern + ".index")} if path.endswith(".index")]
    prefixes = sorted(path.removesuffix(".index") for path in ends)
    models = prefixes or [
        path
        for path in found
        if paths.is_dir(path) or (path.endswith(".json") and not path.endswith(".state.json"))
    ]
    if not models:
        raise FileNotFoundError(
            f"{pattern} matches no checkpoint (no file {pattern}.index), folder or .json file."
        )
    return models


def find_model(path: str) -> tuple[str, str, int | None]:
    """Finds what a path means; returns the kind, the path to use and the step.

    Raises:
      FileNotFoundError: there is no such model.
    """
    if path.endswith(".json"):
        if not paths.exists(path):
            raise FileNotFoundError(f"There is no configuration {path}.")
        return "configuration", path, None
    if path.endswith(".safetensors") and paths.exists(path):
        return "huggingface", paths.dirname(path) or ".", None
    # Where both are in one folder, the original's files are the ones that a run wrote.
    if huggingface.is_folder(path) and not paths.glob(paths.join(path, "*.index")):
        return "huggingface", path.rstrip("/"), None
    prefix = original.resolve(path)
    return "checkpoint", prefix, original.step_of(prefix)


def folder_and_name(kind: str, path: str) -> tuple[str, str]:
    """Returns what a model's folder is called, and the model without a name by its step."""

    def called(folder: str) -> str:
        return paths.basename(folder if paths.has_scheme(folder) else os.path.abspath(folder))

    if kind == "huggingface":
        return called(path), called(path)
    folder = called(paths.dirname(path))
    stem = paths.basename(path).removesuffix(".json")
    if kind == "configuration" and path.endswith((restore.ORIGINAL_CONFIG_FILE, "/config.json")):
        return folder, folder
    return folder, stem if kind == "configuration" else folder


def make_job(row: Row, flags: Any, passed: Sequence[str]) -> Job:
    """Makes and checks the command of a row.

    Raises:
      CommandLineError, ValueError, FileNotFoundError: run_classifier.py would not take its flags,
        or the model's configuration is missing or wrong.
    """
    cli = run_classifier.CLI
    extra = [*passed, *row.flags]
    where = f"the row {row.name}: "
    try:
        parsed = cli.parse(["run_classifier.py", *extra])
    except CommandLineError as error:
        raise CommandLineError(f"{where}{error}") from None
    ours = [name for name in OWN_FLAGS if cli.given(name)]
    if ours:
        raise CommandLineError(f"{where}--{ours[0]} is set by this script; do not give it after --")
    if row.kind == "configuration" and cli.given("bert_config_file"):
        raise CommandLineError(f"{where}{row.path} is its configuration; give no other one")
    given = {name: getattr(parsed, name) for name in parsed if cli.given(name)}
    setup = {name: value for name, value in given.items() if name not in FREE_FLAGS}
    if not parsed.eval_steps:
        # It decides which weights of a run are kept only where there are several.
        setup.pop("best_metric", None)
    output_dir = paths.join(flags.output_dir, "rows", row.folder)
    arguments = [
        f"--task_name={flags.task_name}",
        f"--data_dir={flags.data_dir}",
        row.model_flag,
        *extra,
        "--do_train",
        f"--num_restarts={flags.num_restarts}",
        f"--output_dir={output_dir}",
    ]
    if flags.num_restarts == 1 and not (
        parsed.learning_rates or parsed.train_batch_sizes or parsed.epochs
    ):
        # A search of one run, so that all results are written alike.
        arguments.append(f"--epochs={parsed.num_train_epochs!r}")
    config_file = parsed.bert_config_file or config_of(row)
    vocab_file = parsed.vocab_file
    try:
        parsed = cli.parse(["run_classifier.py", *arguments])
        run_classifier.check_flags(parsed)
        run_classifier.make_task(parsed)
        config = BertConfig.from_json_file(config_file)
        if parsed.hidden_act:
            config = config.replace(hidden_act=parsed.hidden_act)
        files = stamps(row, flags.data_dir, [config_file, *([vocab_file] if vocab_file else [])])
    except CommandLineError as error:
        raise CommandLineError(f"{where}{error}") from None
    setup = {"flags": setup, "config": config.to_dict(), "name": row.name}
    return Job(row, output_dir, tuple(arguments), setup, files, parameter_count(config))


def config_of(row: Row) -> str:
    """Returns the path of a row's configuration.

    Raises:
      CommandLineError: there is none beside the checkpoint.
    """
    if row.kind == "configuration":
        return row.path
    folder = row.path if row.kind == "huggingface" else paths.dirname(row.path)
    for name in (restore.ORIGINAL_CONFIG_FILE, huggingface.CONFIG_FILE):
        path = paths.join(folder, name)
        if paths.exists(path):
            return path
    raise CommandLineError(
        f"the row {row.name}: there is no bert_config.json beside {row.path}: give its "
        "--bert_config_file, with --row or after --"
    )


def stamps(row: Row, data_dir: str, files: Sequence[str]) -> dict[str, Any]:
    """Returns file -> size and time of change, to tell whether a finished row is up to date."""
    files = list(files)
    folders = [data_dir]
    if row.kind == "checkpoint":
        files += [row.path + ".index", *original.shard_files(row.path)]
        files.append(paths.join(paths.dirname(row.path), restore.VOCAB_FILE))
    elif row.kind == "huggingface":
        folders.append(row.path)
    for folder in folders:
        files += [paths.join(folder, name) for name in paths.list_dir(folder)]
    result = {}
    for path in files:
        if paths.exists(path) and not paths.is_dir(path):
            changed = None if paths.has_scheme(path) else os.stat(paths.local(path)).st_mtime_ns
            result[path] = [paths.size(path), changed]
    return result


def metric_of(job: Job) -> tuple[str, bool, list[str]]:
    """Returns the metric that decides, whether higher is better, and the names of all."""
    parsed = run_classifier.CLI.parse(["run_classifier.py", *job.arguments])
    task = run_classifier.make_task(parsed)
    name = parsed.best_metric
    main = task.main_metric
    higher = (
        main.higher_is_better if name in (None, main.name) else name not in ("loss", "mse", "mae")
    )
    return name or main.name, higher, [*task.metric_names, "loss"]


# A row's runs.


def check_same_row(job: Job) -> None:
    """Checks that a row's folder, if it is there, holds runs of the same model and flags.

    Raises:
      ValueError: it does not; names the differences.
    """
    saved = scripts.read_if_there(paths.join(job.output_dir, ROW_FILE))
    if saved is None or saved.get("setup") == job.setup:
        return
    setup = saved.get("setup") or {}
    other = [
        f"{key} {old.get(key)} in place of {new.get(key)}"
        for part in ("flags", "config")
        for old, new in [(setup.get(part) or {}, job.setup[part])]
        for key in sorted({*old, *new})
        if old.get(key) != new.get(key)
    ]
    raise ValueError(
        f"{job.output_dir} holds runs of the row {setup.get('name')!r} with "
        f"{', '.join(other) or 'another name'}: give another --output_dir or name, or remove that "
        "folder"
    )


def run_job(job: Job, start: str, runner: Runner) -> str | None:
    """Runs a row, if it is not finished; returns what went wrong, or None.

    Args:
      job: the row.
      start: how its lines in the log begin.
      runner: as for `main`.

    Raises:
      SystemExit: its process was told to end (SIGTERM): all is to end.
    """
    path = paths.join(job.output_dir, ROW_FILE)
    saved = scripts.read_if_there(path) or {}
    finished = {"arguments": list(job.arguments), "files": dict(job.files)}
    if saved.get("finished") == finished:
        logging.info("%s was finished before", start)
        return None
    paths.make_dirs(job.output_dir)
    paths.write_json(path, {"setup": job.setup})
    log = paths.join(job.output_dir, LOG_FILE)
    logging.info("%s: training; its log is %s", start, log)
    began = time.monotonic()
    status = runner([sys.executable, os.path.join(ROOT, "run_classifier.py"), *job.arguments], log)
    if status in _STOPPED:
        logging.warning("%s was told to end; the same command goes on from there", start)
        raise SystemExit(143)
    if status != 0:
        return f"{last_line(log) or 'no message'} (exit status {status}; {log})"
    logging.info("%s: done in %.0f s", start, time.monotonic() - began)
    paths.write_json(path, {"setup": job.setup, "finished": finished})
    return None


def run_process(command: Sequence[str], log: str) -> int:
    """Runs a command with its output at the end of a file; returns its exit status.

    SIGTERM and Ctrl-C reach it as SIGTERM, at which it saves its state, and end this process when
    it has ended.
    """
    with open(paths.local(log), "ab") as output, _sigterm_ends():
        # Ctrl-C at the terminal goes to both processes; the child is told in our way below.
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
            )
        finally:
            signal.signal(signal.SIGINT, before)
        try:
            return process.wait()
        except BaseException:
            process.terminate()
            process.wait()
            raise


@contextlib.contextmanager
def _sigterm_ends() -> Iterator[None]:
    """Within the block, SIGTERM raises SystemExit."""

    def end(*_: Any) -> None:
        raise SystemExit(143)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def last_line(path: str) -> str:
    """Returns the last line of a log that says something."""
    if not paths.exists(path):
        return ""
    with paths.open_file(path, "rb") as handle:
        text = handle.read().decode("utf-8", "replace")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else ""


def read_result(path: str, metrics: Sequence[str], metric: str, higher: bool) -> Result:
    """Reads a row's result from the table of its runs (search_runs.tsv).

    Args:
      path: the table.
      metrics: names of its metrics.
      metric: the one that decides between combinations of settings, by its mean over restarts.
      higher: whether a higher value of it is better.

    Raises:
      ValueError: the table lacks a column.
    """
    with paths.open_file(path) as handle:
        header, *lines = (line.split("\t") for line in handle.read().splitlines())
    missing = [name for name in (*run_classifier.SEARCHED, *metrics) if name not in header]
    if missing:
        raise ValueError(f"{path} has no column {missing[0]}; it has: {', '.join(header)}")
    groups: dict[tuple[str, ...], list[dict[str, str]]] = {}
    for line in lines:
        cells = dict(zip(header, line, strict=True))
        groups.setdefault(tuple(cells[name] for name in run_classifier.SEARCHED), []).append(cells)
    results = []
    for key, cells_of_runs in groups.items():
        good = [cells for cells in cells_of_runs if not math.isnan(float(cells[metric]))]
        values = {name: [float(cells[name]) for cells in good] for name in metrics}
        settings = dict(zip(run_classifier.SEARCHED, key, strict=True))
        results.append(Result(values, settings, len(cells_of_runs) - len(good), len(groups)))
    sign = 1 if higher else -1
    return max(
        results,
        key=lambda result: sign * result.mean(metric) if result.runs else -math.inf,
    )


# Tables.


def parameter_count(config: BertConfig) -> int:
    """Returns the parameters of an encoder: embeddings, layers and pooler, without any head."""
    h, i = config.hidden_size, config.intermediate_size
    norm = 2 * h
    rows = config.vocab_size + config.max_position_embeddings + config.type_vocab_size
    layer = 4 * (h * h + h) + norm + (h * i + i) + (i * h + h) + norm
    return rows * h + norm + config.num_hidden_layers * layer + h * h + h


def rounded(count: int) -> str:
    """Returns a number of parameters as papers give it: in millions, to two digits."""
    millions = float(f"{count / 1e6:.2g}")
    return f"{millions:.0f}M" if millions >= 10 else f"{millions:.2g}M"


def shown(result: Result | None, metric: str) -> str:
    """Returns mean ± deviation, or what there is of them."""
    if result is None or not result.runs:
        return "–"
    deviation = result.deviation(metric)
    text = f"{result.mean(metric):.4f}"
    return text if math.isnan(deviation) else f"{text} ± {deviation:.4f}"


@dataclasses.dataclass(frozen=True)
class Table:
    """The rows of a comparison, and the tables of their results."""

    task: str
    metric: str
    metrics: Sequence[str]
    jobs: Sequence[Job]

    def write(self, folder: str, results: Mapping[str, Result | None]) -> None:
        """Writes both tables."""
        for name, text in (
            (TSV_FILE, self.tsv(results)),
            (MARKDOWN_FILE, self.markdown(results)),
        ):
            with paths.atomic_write(paths.join(folder, name)) as handle:
                handle.write(text + "\n")

    def tsv(self, results: Mapping[str, Result | None]) -> str:
        """All metrics of all rows; nan where there is no value."""
        parts = ("mean", "deviation", "lowest", "highest")
        settings = run_classifier.SEARCHED
        columns = ["row", "series", "step", "parameters", "runs", "diverged", *settings]
        columns += [f"{name}_{part}" for name in self.metrics for part in parts]
        lines = [columns]
        for job in self.jobs:
            row, result = job.row, results.get(job.row.name)
            line = [row.name, row.series, "" if row.step is None else str(row.step)]
            line += [str(job.parameters), str(result.runs if result else 0)]
            line += [str(result.diverged if result else 0)]
            line += [result.settings[name] if result else "" for name in settings]
            for name in self.metrics:
                values = result.values[name] if result and result.runs else [math.nan]
                numbers = [
                    statistics.mean(values),
                    result.deviation(name) if result else math.nan,
                    min(values),
                    max(values),
                ]
                line += [f"{number:.6f}" for number in numbers]
            lines.append(line)
        return "\n".join("\t".join(line) for line in lines)

    def markdown(self, results: Mapping[str, Result | None]) -> str:
        """The metric that decides, for a reader."""
        steps = any(job.row.step is not None for job in self.jobs)
        done = [result for result in results.values() if result]
        searched = any(result.combinations > 1 for result in done)
        header = ["row", "parameters"]
        header += ["pre-training step"] if steps else []
        header += ["rate, batch, epochs"] if searched else []
        header += [self.metric, "n"]
        lines = [header, ["---"] * len(header)]
        for job in self.jobs:
            row, result = job.row, results.get(job.row.name)
            line = [row.name.replace("|", "\\|"), f"{job.parameters:,}"]
            if steps:
                line.append("–" if row.step is None else f"{row.step:,}")
            if searched:
                line.append(", ".join(result.settings.values()) if result else "–")
            count = "–" if row.name not in results else "failed"
            if result:
                count = str(result.runs)
                count += f" ({result.diverged} diverged)" if result.diverged else ""
            lines.append([*line, shown(result, self.metric), count])
        text = "\n".join("| " + " | ".join(line) + " |" for line in lines)
        how = "mean ± standard deviation over n restarts"
        if searched:
            how += ", for the settings with the best mean on the same set"
        return f"{self.task}, dev set, {self.metric}: {how}.\n\n{text}"


# The plot.


def axis_of(rows: Sequence[tuple[Row, int]]) -> str:
    """Returns what the plot's axis is: "step", "parameters" or "row".

    Args:
      rows: rows with their numbers of parameters.
    """
    steps: dict[str, set[int]] = {}
    for row, _ in rows:
        if row.step is not None:
            steps.setdefault(row.series, set()).add(row.step)
    if any(len(values) > 1 for values in steps.values()):
        return "step"
    return "parameters" if len({parameters for _, parameters in rows}) > 1 else "row"


def write_plot(path: str, table: Table, results: Mapping[str, Result | None]) -> None:
    """Draws the metric that decides, mean and deviation, into a PNG.

    Raises:
      ImportError: matplotlib is not installed; says how to install it.
    """
    try:
        from matplotlib.figure import Figure
        from matplotlib.ticker import FuncFormatter, NullLocator
    except ImportError as error:
        raise ImportError(
            "plots need matplotlib; install it with: pip install 'matplotlib>=3.8' (or the extra "
            "[plot]), and give the same command again: what is finished is not run again"
        ) from error
    points = []
    for job in table.jobs:
        result = results.get(job.row.name)
        if result and result.runs:
            deviation = result.deviation(table.metric)
            spread = 0.0 if math.isnan(deviation) else deviation
            points.append((job.row, job.parameters, result.mean(table.metric), spread))
    axis = axis_of([(row, parameters) for row, parameters, _, _ in points])
    wide = axis != "row"
    figure = Figure(figsize=(7, 4.5 if wide else 1.5 + 0.4 * len(points)), layout="constrained")
    axes = figure.add_subplot()
    style = {"marker": "o", "markersize": 4, "capsize": 3, "linewidth": 1.2}
    if axis == "step":
        _draw_series(axes, points, style)
        axes.set_xlabel("pre-training step")
    elif axis == "parameters":
        for row, parameters, mean, spread in points:
            axes.errorbar([parameters], [mean], [spread], **style, color="C0")
            axes.annotate(
                row.name, (parameters, mean), (4, 4), textcoords="offset points", rotation=20
            )
        axes.set_xscale("log")
        axes.margins(x=0.15)
        counts = sorted({parameters for _, parameters, _, _ in points})
        axes.set_xticks(counts)
        axes.xaxis.set_major_formatter(FuncFormatter(lambda count, _: rounded(int(count))))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_xlabel("parameters")
    else:
        for number, (_, _, mean, spread) in enumerate(points):
            axes.errorbar([mean], [number], xerr=[spread], **style, color="C0")
        axes.set_yticks(range(len(points)), [row.name for row, _, _, _ in points])
        axes.set_ylim(len(points) - 0.5, -0.5)
    label = f"{table.task} dev {table.metric}"
    if wide:
        axes.set_ylabel(label)
    else:
        axes.set_xlabel(label)
    axes.grid(alpha=0.3)
    runs = sorted({result.runs for result in results.values() if result and result.runs})
    title = f"mean and standard deviation, n = {' or '.join(map(str, runs))}"
    axes.set_title("one run each" if runs == [1] else title, fontsize="medium")
    with paths.atomic_write(path, "wb") as handle:
        figure.savefig(handle, format="png", dpi=150)


def _draw_series(axes: Any, points: Sequence[Any], style: Mapping[str, Any]) -> None:
    """Draws a line for each series over its steps; a level line for a row without a step."""
    names = list(dict.fromkeys(row.series for row, *_ in points))
    for number, name in enumerate(names):
        own = [point for point in points if point[0].series == name]
        stepped = sorted((p for p in own if p[0].step is not None), key=lambda p: p[0].step)
        if stepped:
            steps = [row.step for row, _, _, _ in stepped]
            means = [mean for _, _, mean, _ in stepped]
            spreads = [spread for _, _, _, spread in stepped]
            axes.errorbar(steps, means, spreads, **style, color=f"C{number}", label=name)
        for row, _, mean, _ in own:
            if row.step is None:
                axes.axhline(mean, linestyle="--", color=f"C{number}", label=row.name)
    axes.legend()


if __name__ == "__main__":
    CLI.run(main)
