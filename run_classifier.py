"""Fine-tune BERT to classify texts and pairs of texts, tag words, or choose; evaluate; predict.

From an original checkpoint or a Hugging Face folder to metrics, predictions and a checkpoint in
the original layout. Tasks: GLUE (CoLA, SST-2, MRPC, STS-B, QQP, MNLI, QNLI, RTE, WNLI), the AX
diagnostic, XNLI, and TSV or CSV files of your own; entities in CoNLL files (NER); multiple choice
in SWAG's or RACE's layout.
"""

import dataclasses
import functools
import itertools
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from absl import logging

from bert_tf import paths
from bert_tf.cli import scripts, task_kinds
from bert_tf.cli.command_line import CommandLine, CommandLineError, import_tensorflow
from bert_tf.config import BertConfig
from bert_tf.predictor import TASK_FILE
from bert_tf.tokenization.packing import TRUNCATIONS
from data_prep.tasks import get_task, word_features

# Keras and TensorFlow are imported where they are used: --help and a wrong flag answer at once.

CLI = CommandLine(
    "run_classifier.py",
    __doc__,
    """\
python run_classifier.py --task_name=MRPC --data_dir=glue/MRPC \\
    --init_checkpoint=uncased_L-12_H-768_A-12/bert_model.ckpt \\
    --bert_config_file=uncased_L-12_H-768_A-12/bert_config.json \\
    --vocab_file=uncased_L-12_H-768_A-12/vocab.txt \\
    --do_train --do_eval --learning_rate=2e-5 --num_train_epochs=3 --output_dir=mrpc_output""",
)
with CLI.group("Task and data"):
    CLI.string(
        "task_name",
        None,
        "CoLA, SST-2, MRPC, STS-B, QQP, MNLI, QNLI, RTE, WNLI, AX, XNLI, TSV, CSV, NER, SWAG or "
        "RACE.",
    )
    CLI.string("data_dir", None, "Folder with the task's files (train.tsv, dev.tsv, ...).")
    CLI.string("output_dir", None, "Folder for checkpoints, metrics and predictions.")
    CLI.boolean("do_train", False, "Train.")
    CLI.boolean("do_eval", False, "Evaluate on the dev set.")
    CLI.boolean("do_predict", False, "Predict the test set.")
    CLI.string("xnli_language", "zh", "XNLI: the language, as in its file names.")
scripts.model_flags(CLI)
with CLI.group("Texts"):
    scripts.text_flags(CLI)
    CLI.integer("max_seq_length", 128, "Longest input in tokens, [CLS] and [SEP] included.", 3)
    CLI.enum("truncation", "longest_first", TRUNCATIONS, "What stays of a longer text.")
    CLI.boolean(
        "pad_to_max_length",
        False,
        "Pad every batch to max_seq_length, as the original "
        "does, instead of grouping examples by length.",
    )
with CLI.group("Training"):
    CLI.integer("train_batch_size", 32, "Examples of a step, over all replicas.", 1)
    CLI.float("learning_rate", 5e-5, "Peak of the learning rate.", 0.0)
    CLI.float("num_train_epochs", 3.0, "Passes over the training set.", 0.0)
    CLI.float("warmup_proportion", 0.1, "Share of the steps in which the rate rises.", 0.0)
    scripts.run_flags(CLI)
    CLI.string(
        "class_weights",
        None,
        "Weights of the classes in the loss: numbers in the order "
        "of the labels, comma-separated, or balanced.",
    )
    CLI.boolean(
        "bilstm_head",
        False,
        "Put a bidirectional LSTM between the encoder and the output, as in section 5.1 of the "
        "paper.",
    )
scripts.optimizer_flags(CLI)
with CLI.group("Evaluation and prediction"):
    CLI.integer("eval_batch_size", 8, "Examples of an evaluation batch.", 1)
    CLI.integer("predict_batch_size", 8, "Examples of a prediction batch.", 1)
    CLI.integer(
        "eval_steps",
        0,
        "Evaluate every so many steps of training too, and keep the best "
        "weights in output_dir/best; 0 evaluates at the end only.",
        0,
    )
    CLI.string(
        "best_metric",
        None,
        "Metric that decides which weights are the best, and "
        "which run is; the task's main one by default.",
    )
    CLI.boolean("use_best", True, "Evaluate and predict with output_dir/best where it is there.")
    CLI.boolean(
        "write_predictions",
        False,
        "Also write predictions with a header, ids, label names and probabilities.",
    )
    CLI.boolean("write_submission", False, "Also write the file that GLUE's server takes.")
with CLI.group("Columns and labels of TSV and CSV"):
    CLI.enum(
        "task_kind",
        "classification",
        ["classification", "regression", "multilabel"],
        "What the labels are.",
    )
    CLI.string("text_a_column", None, "Column of the text: a name, or a number from 0.")
    CLI.string("text_b_column", None, "Column of the second text; empty for none.")
    CLI.string(
        "label_column",
        None,
        "Column of the label; several, comma-separated, for multi-label in columns of 0 and 1.",
    )
    CLI.string("id_column", None, "Column of the example's id.")
    CLI.boolean("header", True, "Whether the files begin with a header.")
    CLI.string(
        "labels",
        None,
        "The labels in order, comma-separated; by default those of the training file, sorted.",
    )
    CLI.string("label_separator", ",", "Between several labels in one field.")
with CLI.group("Files of TSV, CSV, NER, SWAG and RACE"):
    CLI.string("train_file", None, "Name of the training file in data_dir.")
    CLI.string("dev_file", None, "Name of the evaluation file in data_dir.")
    CLI.string("test_file", None, "Name of the prediction file in data_dir.")
with CLI.group("NER"):
    CLI.integer("word_column", 0, "Column of the tokens, from 0; -1 is the last.")
    CLI.integer("tag_column", -1, "Column of the tags, from 0; -1 is the last.")
    CLI.boolean(
        "document_context",
        False,
        "Fill each input up to max_seq_length with the sentences around it, of the same document.",
    )
    CLI.enum(
        "feature_based",
        "off",
        ["off", *word_features.CHOICES],
        "Section 5.3 of the paper: do not train the encoder, but two LSTM layers that read these "
        "of its layers.",
    )
    CLI.integer(
        "lstm_units", 768, "Units of each direction of an LSTM layer of --feature_based.", 1
    )
with CLI.group("Search: train every combination, keep the best on dev"):
    CLI.string("learning_rates", None, "Learning rates, comma-separated: 5e-5,4e-5,3e-5,2e-5.")
    CLI.string("train_batch_sizes", None, "Batch sizes, comma-separated: 16,32.")
    CLI.string("epochs", None, "Numbers of epochs, comma-separated: 3,4.")
    CLI.integer("num_restarts", 1, "Runs of each combination, with seed, seed+1, ...", 1)
scripts.device_flags(CLI)

RESULT_FILE = "result.json"
NER_FLAGS = ("word_column", "tag_column", "document_context", "feature_based", "lstm_units")
# What a search varies, besides the seed.
SEARCHED = ("learning_rate", "train_batch_size", "num_train_epochs")


@dataclasses.dataclass(frozen=True)
class Run:
    """One training run: what may differ between the runs of a search."""

    output_dir: str
    learning_rate: float
    train_batch_size: int
    num_train_epochs: float
    seed: int


@dataclasses.dataclass(frozen=True)
class Setup:
    """What all runs of a command share."""

    flags: Any
    task: Any
    kind: task_kinds.TaskKind  # How the task is read, computed and written.
    config: BertConfig
    tokenizer: Any
    strategy: Any
    init: Any  # bert_tf.checkpoint.restore.Checkpoint, or None
    vocab_file: str


def main(argv: Sequence[str]) -> dict[str, Any]:
    """Runs the command; returns the metrics of the evaluation, if there was one."""
    flags = CLI.parse(argv)
    init = flags.init_checkpoint and scripts.folder_of(flags.init_checkpoint)
    folders = (flags.output_dir, init)
    scripts.take_saved_settings(CLI, flags, TASK_FILE, ("max_seq_length", "truncation"), folders)
    check_flags(flags)
    import_tensorflow()

    from bert_tf.training import distribution

    # First of all: what goes wrong after it on one worker ends the others, too.
    strategy = scripts.make_strategy(
        flags,
        {
            "train_batch_size": flags.do_train,
            "eval_batch_size": flags.do_eval or flags.eval_steps or is_search(flags),
            "predict_batch_size": flags.do_predict,
        },
    )
    task = make_task(flags)
    if is_search(flags) and distribution.several_workers(strategy):
        raise CommandLineError(
            "a search (several runs) does not go with several workers: start it on one of them, or "
            "give its runs one by one"
        )
    with scripts.output_folder(flags, strategy):
        return run_command(flags, task, strategy)


def run_command(flags: Any, task: Any, strategy: Any) -> dict[str, Any]:
    """Trains, evaluates and predicts as the flags say."""
    setup = prepare(flags, task, strategy)
    features = read_features(setup)
    model = make_model(setup, flags.seed)
    if isinstance(setup.kind, task_kinds.FeatureTagging):
        features = setup.kind.encode(model, encoder_of(setup), setup.strategy, features)
    evaluator = make_evaluator(setup, model)
    if is_search(flags):
        run_search(setup, model, evaluator, features)
    elif flags.do_train:
        run = Run(
            flags.output_dir,
            flags.learning_rate,
            flags.train_batch_size,
            flags.num_train_epochs,
            flags.seed,
        )
        train(setup, run, model, evaluator, features)
    if not (flags.do_eval or flags.do_predict):
        return {}
    global_step = load_trained(setup, model)
    results: dict[str, Any] = {}
    with scripts.results_folder(flags, setup.strategy) as folder:
        if flags.do_eval:
            results = evaluate_sets(setup, evaluator, features, global_step, folder)
        if flags.do_predict:
            predict_sets(setup, evaluator, features, folder)
    return results


# Flags, files and models.


def check_flags(flags: Any) -> None:
    """Checks what can be checked before anything is read or imported."""
    in_folder = flags.output_dir and paths.exists(paths.join(flags.output_dir, TASK_FILE))
    missing = [
        (name, what)
        for name, what in (
            ("task_name", "which task"),
            ("data_dir", "the folder with its files"),
            ("output_dir", "the folder for checkpoints and results"),
        )
        if not getattr(flags, name)
    ]
    if not (flags.init_checkpoint or in_folder):
        beside = "; not needed with an --init_checkpoint that has one beside it"
        missing += [
            (name, what + beside)
            for name, what in (
                ("bert_config_file", "the model's sizes"),
                ("vocab_file", "the vocabulary"),
            )
            if not getattr(flags, name)
        ]
    if not (flags.do_train or flags.do_eval or flags.do_predict):
        missing.append(("do_train, --do_eval or --do_predict", "what to do; at least one"))
    CLI.require(missing)
    if is_search(flags) and not flags.do_train:
        raise CommandLineError("a search (several runs) needs --do_train")
    if is_search(flags) and not flags.use_best:
        raise CommandLineError(
            "--nouse_best does not go with a search: of its runs only the best weights are kept"
        )
    if flags.warmup_proportion > 1:
        raise CommandLineError(
            f"--warmup_proportion is {flags.warmup_proportion}; it is a share, from 0 to 1"
        )
    scripts.check_optimizer_flags(CLI, flags)
    if flags.do_train and flags.num_train_epochs == 0:
        raise CommandLineError("--num_train_epochs is 0: there is nothing to train")


def make_task(flags: Any) -> Any:
    """Makes the task, with the labels of an earlier run in the same output folder."""
    names = ("train_file", "dev_file", "test_file", "text_a_column", "text_b_column", "id_column")
    options: dict[str, Any] = {
        name: column(value) if name.endswith("_column") else value
        for name in names
        if (value := getattr(flags, name)) is not None
    }
    if flags.label_column is not None:
        several = [column(part) for part in flags.label_column.split(",")]
        options["label_column"] = several if len(several) > 1 else several[0]
    if flags.labels is not None:
        options["labels"] = [label.strip() for label in flags.labels.split(",")]
    for name in ("header", "label_separator", "word_column", "tag_column"):
        if CLI.given(name):
            options[name] = getattr(flags, name)
    if CLI.given("task_kind"):
        options["kind"] = flags.task_kind
    name = flags.task_name.lower().replace("-", "").replace("_", "")
    if name == "xnli":
        options["language"] = flags.xnli_language
    saved = scripts.read_if_there(paths.join(flags.output_dir, TASK_FILE))
    if name in ("tsv", "csv") and saved and not flags.do_train and "labels" not in options:
        # The training file may no longer be there.
        options.setdefault("kind", saved["kind"])
        options["labels"] = saved["labels"]
    if name == "ner":
        options = {**ner_options(flags), **options}
    elif given := [flag for flag in NER_FLAGS if CLI.given(flag)]:
        raise CommandLineError(f"--{given[0]} is for --task_name=NER")
    task = get_task(flags.task_name, flags.data_dir, **options)
    if saved and (saved["kind"] != task.kind or saved["labels"] != list(task.labels)):
        raise ValueError(
            f"{flags.output_dir} holds a run of the task {saved['task']} ({saved['kind']}, labels "
            f"{', '.join(saved['labels']) or 'none'}), which does not fit {task.name} "
            f"({task.kind}, labels {', '.join(task.labels) or 'none'}): give another --output_dir"
        )
    if flags.do_train and not task.train_file:
        raise CommandLineError(
            f"{task.name} has no training set: predict with a model trained on MNLI, given as "
            "--init_checkpoint or --output_dir"
        )
    if flags.do_eval and not task.eval_sets:
        raise CommandLineError(f"{task.name} has no labelled set: use --do_predict alone")
    if flags.bilstm_head and task.kind == "choice":
        raise CommandLineError(f"--bilstm_head is not for multiple choice ({task.name})")
    if flags.write_submission and task.kind == "tagging":
        raise CommandLineError(f"--write_submission is for GLUE's server, not for {task.name}")
    if flags.do_eval:
        task.evaluate_test(flags.data_dir)
    best = flags.best_metric
    if best and best not in (*task.metric_names, "loss"):
        raise CommandLineError(
            f"--best_metric={best}: {task.name} has {', '.join(task.metric_names)}, loss"
        )
    return task


def ner_options(flags: Any) -> dict[str, Any]:
    """Returns what an earlier run, of the output folder or the checkpoint, says of NER's files."""
    saved = scripts.read_if_there(paths.join(flags.output_dir, TASK_FILE))
    if saved is None and flags.init_checkpoint:
        saved = scripts.read_settings(folder_of(flags.init_checkpoint), TASK_FILE)
    if saved is None or saved.get("kind") != "tagging":
        return {}
    # Training finds the labels in its file. Else that may no longer be there.
    keys = ("word_column", "tag_column", *(() if flags.do_train else ("labels", "scheme")))
    return {key: saved[key] for key in keys if key in saved}


def folder_of(checkpoint: str) -> str:
    """Returns the folder that a checkpoint's flag names."""
    return checkpoint if paths.is_dir(checkpoint) else paths.dirname(checkpoint)


def column(text: str) -> str | int:
    """Reads a column's flag: a whole number, or a name."""
    return int(text) if text.removeprefix("-").isdigit() else text


def prepare(flags: Any, task: Any, strategy: Any) -> Setup:
    """Opens the checkpoint, checks that all fits together, and chooses the device."""
    from bert_tf.checkpoint import original

    files = scripts.open_model(flags)
    tokenizer = scripts.make_tokenizer(CLI, flags, files, TASK_FILE)
    assert files.vocab_file is not None
    scripts.check_vocabulary(files.config, tokenizer.vocab_size, files.vocab_file)
    scripts.check_length(flags.max_seq_length, files.config)
    if flags.do_train:
        scripts.warn_of_gelu(files.config)
    scripts.check_has_weights(flags, files)
    resumed = original.latest_checkpoint(flags.output_dir)
    saved = scripts.read_settings(flags.output_dir, TASK_FILE)
    if saved is None and files.init:
        saved = scripts.read_settings(files.init.folder, TASK_FILE)
    saved = saved or {}

    def chosen(name: str, default: Any) -> Any:
        return getattr(flags, name) if CLI.given(name) else saved.get(name, default)

    kind = task_kinds.make_kind(flags, task, files.config, tokenizer, chosen)
    setup = Setup(
        flags, task, kind, files.config, tokenizer, strategy, files.init, files.vocab_file
    )
    if isinstance(kind, task_kinds.FeatureTagging):
        check_feature_based(setup, resumed)
    if resumed:
        check_same_head(setup, flags.output_dir)
    return setup


def check_feature_based(setup: Setup, resumed: str | None) -> None:
    """Checks what --feature_based needs."""
    from bert_tf.training import distribution

    flags = setup.flags
    if setup.init is None and (resumed is None or is_search(flags)) and flags.do_train:
        raise CommandLineError(
            "--feature_based needs an --init_checkpoint: the encoder is not trained"
        )
    if distribution.several_workers(setup.strategy):
        raise CommandLineError("--feature_based does not go with several workers: use one machine")


def read_features(setup: Setup) -> dict[str, Any]:
    """Reads and tokenizes the sets that the command needs: set name -> features."""
    flags, task = setup.flags, setup.task
    wanted = ["train"] if flags.do_train else []
    if flags.do_eval or (flags.do_train and flags.eval_steps) or is_search(flags):
        wanted += task.sets(flags.data_dir, "eval")
    if flags.do_predict:
        wanted += task.sets(flags.data_dir, "predict")
    features = {name: setup.kind.read(name) for name in dict.fromkeys(wanted)}
    if flags.class_weights and "train" in features:
        features["train"].example_weights = example_weights(
            flags.class_weights, task, features["train"].labels
        )
    return features


def example_weights(text: str, task: Any, labels: np.ndarray) -> np.ndarray:
    """Returns each example's weight in the loss, float32 [N], from --class_weights."""
    if task.kind != "classification":
        raise CommandLineError(f"--class_weights is for classes, but {task.name} is {task.kind}")
    count = len(task.labels)
    if text == "balanced":
        by_class = np.bincount(labels, minlength=count)
        weights = len(labels) / (count * np.maximum(by_class, 1))
    else:
        try:
            weights = np.array([float(part) for part in text.split(",")])
        except ValueError:
            weights = np.zeros(0)
        if len(weights) != count or not (weights > 0).all() or not np.isfinite(weights).all():
            raise CommandLineError(
                f"--class_weights={text}: give balanced, or {count} positive numbers in the order "
                f"of the labels {', '.join(task.labels)}"
            )
    return weights[labels].astype(np.float32)


def encoder_of(setup: Setup) -> Any:
    """Returns the checkpoint of an encoder that is not trained."""
    from bert_tf.checkpoint import original, restore

    flags = setup.flags
    if is_search(flags):
        prefix = None  # Each run begins with the initial checkpoint.
    elif flags.do_train:
        prefix = original.latest_checkpoint(flags.output_dir)
    else:
        prefix = restore.trained_checkpoint(flags.output_dir, flags.use_best)
    return setup.init if prefix is None else restore.load(prefix)


def make_model(setup: Setup, seed: int) -> Any:
    """Makes the model with new weights."""
    with setup.strategy.scope():
        dtype = scripts.PRECISIONS[setup.flags.precision]
        return setup.kind.make_model(seed=seed, dtype=dtype)


def renew(setup: Setup, model: Any, seed: int) -> None:
    """Sets a model's weights to those that `make_model` would give it, without a new graph."""
    from bert_tf.modeling.models import named_variables

    new = named_variables(make_model(setup, seed))
    for name, variable in named_variables(model).items():
        variable.assign(new[name])


def load_weights(model: Any, checkpoint: Any, new_head: bool) -> Any:
    """Sets a model's weights from a checkpoint; returns the report.

    Args:
      model: the model.
      checkpoint: an opened checkpoint.
      new_head: whether the head may be missing or of another shape.
    """
    head = ("output_weights", "output_bias", "bilstm/*", "layer_mix/*") if new_head else ()
    return scripts.load_weights(
        model,
        checkpoint,
        may_be_new=(*head, "bert/pooler/*") if new_head else (),
        # Multiple choice has no bias.
        may_be_left=("cls/*", "output_bias", "bilstm/*", "layer_mix/*") if new_head else ("cls/*",),
        may_change=head,
    )


# Training.


def train(setup: Setup, run: Run, model: Any, evaluator: Any, features: Mapping[str, Any]) -> None:
    """Trains one run, from where it stands to its end. `model` is new."""
    from bert_tf.checkpoint import restore
    from bert_tf.training import distribution
    from bert_tf.training.loop import Evaluation
    from bert_tf.training.loop import train as train_loop
    from bert_tf.training.run_folder import RunFolder
    from data_prep.input_pipeline import TrainBatches, train_dataset

    flags, task, data = setup.flags, setup.task, features["train"]
    steps = scripts.count_steps(len(data), "examples", run.train_batch_size, run.num_train_epochs)
    warmup = int(steps * flags.warmup_proportion)
    folder = RunFolder(run.output_dir, flags.keep_checkpoint_max)
    latest = folder.latest()
    settings = settings_of(setup, run, data)
    if latest is not None:
        # Does it fit? Asked before anything in the folder is replaced.
        check_same_head(setup, run.output_dir)
        scripts.check_same_model(run.output_dir, setup.config, setup.vocab_file)
        load_weights(model, restore.load(latest), new_head=False)
        settings = scripts.began_settings(run.output_dir, TASK_FILE, settings)
    elif setup.init is not None:
        report = load_weights(model, setup.init, new_head=True)
        logging.info("%s", report)
    if distribution.is_chief(setup.strategy):
        write_setup(setup, run.output_dir, settings)
    optimizer = scripts.make_optimizer(flags, run.learning_rate, steps, warmup)
    step = scripts.make_step(flags, model, setup.kind.loss(), optimizer, setup.strategy, run.seed)
    static = flags.pad_to_max_length or scripts.uses_tpu(flags)
    batches = TrainBatches(data.lengths, run.train_batch_size, run.seed, group_by_length=not static)

    def make_dataset(start: int, end: int) -> Any:
        make = functools.partial(train_dataset, data, batches, start, end, pad_to_max_length=static)
        return distribution.distribute(setup.strategy, make)

    logging.info(
        "Training: %d examples, %d steps of %d, warm-up %d steps, learning rate %g",
        len(data),
        steps,
        run.train_batch_size,
        warmup,
        run.learning_rate,
    )
    evaluation = None
    if flags.eval_steps:
        main_set = next(iter(task.eval_sets))
        metric, higher = setup.kind.best_metric()
        evaluation = Evaluation(
            lambda: score(setup, evaluator, features[main_set]), flags.eval_steps, metric, higher
        )
    train_loop(
        step,
        make_dataset,
        folder,
        scripts.make_schedule(flags, steps, {"examples_per_second": run.train_batch_size}),
        evaluation,
        AFTER_LOOP,
    )


# A test's place to kill a run at a step; see bert_tf.training.loop.train.
AFTER_LOOP: Any = None


def settings_of(setup: Setup, run: Run, data: Any) -> dict[str, Any]:
    """Returns what the weights of a run depend on, besides the model."""
    flags = setup.flags
    return {
        **setup.kind.settings(),
        "learning_rate": run.learning_rate,
        "train_batch_size": run.train_batch_size,
        "num_train_epochs": run.num_train_epochs,
        "seed": run.seed,
        "warmup_proportion": flags.warmup_proportion,
        **scripts.optimizer_settings(flags),
        "class_weights": flags.class_weights,
        "pad_to_max_length": flags.pad_to_max_length,
        "max_seq_length": flags.max_seq_length,
        "truncation": flags.truncation,
        "training_examples": len(data),
        "training_data_crc32": checksum(setup, data),
    }


def checksum(setup: Setup, data: Any) -> int:
    """Returns the CRC-32 of a set's ids and labels."""
    return zlib.crc32(setup.kind.labels(data).tobytes(), zlib.crc32(data.input_ids))


def check_same_head(setup: Setup, folder: str) -> None:
    """Raises ValueError if the checkpoints in a folder have another head than the model."""
    saved = scripts.read_if_there(paths.join(folder, TASK_FILE)) or {}
    if saved.get("bilstm_head", False) != setup.kind.bilstm:
        raise ValueError(
            f"the run in {folder} began {'with' if saved.get('bilstm_head') else 'without'} "
            "--bilstm_head: go on so, or give another --output_dir"
        )
    now = setup.kind.settings()
    for name in ("feature_based", "lstm_units"):
        if name in saved and name in now and saved[name] != now[name]:
            raise ValueError(
                f"the run in {folder} began with --{name}={saved[name]}: go on so, or give another "
                "--output_dir"
            )


def write_setup(setup: Setup, folder: str, training: Mapping[str, Any] | None = None) -> None:
    """Writes what a later command or program needs to use the folder's checkpoints."""
    scripts.write_model_files(folder, setup.config, setup.vocab_file)
    settings = {
        "task": setup.task.name,
        "kind": setup.task.kind,
        "labels": list(setup.task.labels),
        "max_seq_length": setup.flags.max_seq_length,
        "truncation": setup.flags.truncation,
        **scripts.tokenizer_settings(setup.tokenizer),
    }
    if setup.kind.bilstm:
        settings["bilstm_head"] = True
    settings.update(setup.kind.task_entries())
    if training is not None:
        settings["training"] = dict(training)
    paths.write_json(paths.join(folder, TASK_FILE), settings)


# Evaluation and prediction.


def make_evaluator(setup: Setup, model: Any) -> Any:
    """Returns a function (features, batch size) -> what `TaskKind.gather` returns."""
    from bert_tf.training import distribution
    from data_prep.input_pipeline import EvalBatches, eval_dataset

    step = setup.kind.eval_step(model, setup.strategy)
    static = setup.flags.pad_to_max_length or scripts.uses_tpu(setup.flags)

    def evaluate(data: Any, batch_size: int) -> dict[str, np.ndarray]:
        # A batch that is larger than the data would be padding.
        replicas = setup.strategy.num_replicas_in_sync
        batch_size = min(batch_size, -(-len(data) // replicas) * replicas)
        batches = EvalBatches(data.lengths, batch_size)

        make = functools.partial(eval_dataset, data, batches, pad_to_max_length=static)
        dataset = distribution.distribute(setup.strategy, make)
        found = step.run(dataset, len(data), len(batches))
        return setup.kind.gather(data, found)

    return evaluate


def score(setup: Setup, evaluator: Any, data: Any) -> dict[str, float]:
    """Returns the task's metrics over a labelled set, and the mean loss."""
    outputs = evaluator(data, setup.flags.eval_batch_size)
    metrics = setup.kind.metrics(outputs, data)
    return {**metrics, "loss": float(outputs["loss"].mean(dtype=np.float64))}


def load_trained(setup: Setup, model: Any) -> int:
    """Sets the weights to evaluate or predict with; returns their step."""
    from bert_tf.checkpoint import original, restore

    prefix = restore.trained_checkpoint(setup.flags.output_dir, setup.flags.use_best)
    checkpoint = setup.init if prefix is None else restore.load(prefix)
    report = load_weights(model, checkpoint, new_head=prefix is None)
    if "output_weights" in report.newly_made:
        logging.warning(
            "THE HEAD IS RANDOM: %s has no classifier for these labels, so the results mean "
            "nothing. Train first (--do_train), or give a fine-tuned checkpoint.",
            checkpoint.prefix,
        )
    logging.info("Using the weights of %s", checkpoint.prefix)
    if checkpoint.global_step is not None:
        return checkpoint.global_step
    return original.step_of(checkpoint.prefix) or 0


def evaluate_sets(
    setup: Setup, evaluator: Any, features: Mapping[str, Any], global_step: int, folder: str
) -> dict[str, float]:
    """Evaluates each labelled set and writes its metrics; returns the first one's."""
    first: dict[str, float] = {}
    for number, name in enumerate(setup.task.sets(setup.flags.data_dir, "eval")):
        data = features[name]
        outputs = evaluator(data, setup.flags.eval_batch_size)
        metrics = setup.kind.metrics(outputs, data)
        loss = float(outputs["loss"].mean(dtype=np.float64))
        lines = {f"eval_{key}": value for key, value in metrics.items()}
        lines.update(eval_loss=loss, loss=loss, global_step=global_step)
        ending = "" if number == 0 else "_" + name.removeprefix("dev_")
        path = paths.join(folder, f"eval_results{ending}.txt")
        count = len(setup.kind.labels(data))
        print(f"***** Evaluation on {name}, {count} {setup.kind.counted} *****")
        with paths.atomic_write(path) as handle:
            for key in sorted(lines):
                value = lines[key]
                text = f"{key} = {value if isinstance(value, int) else str(np.float32(value))}"
                print(f"  {text}")
                handle.write(text + "\n")
        report = setup.kind.report(outputs, data)
        if report:
            write_report(paths.join(folder, f"eval_report{ending}.tsv"), report)
        if number == 0:
            first = {**metrics, "loss": loss, "global_step": global_step}
    return first


def write_report(path: str, report: Mapping[str, Mapping[str, float]]) -> None:
    """Writes and prints precision, recall, F1 and support of each label."""
    columns = ("precision", "recall", "f1", "support")
    print("  label\t" + "\t".join(columns))
    with paths.atomic_write(path) as handle:
        handle.write("label\t" + "\t".join(columns) + "\n")
        for label, values in report.items():
            row = [f"{values[name]:.4f}" for name in columns[:3]] + [str(int(values["support"]))]
            handle.write("\t".join([label, *row]) + "\n")
            print("  " + "\t".join([label, *row]))


def predict_sets(setup: Setup, evaluator: Any, features: Mapping[str, Any], folder: str) -> None:
    """Writes the predictions of each unlabelled set."""
    for name in setup.task.sets(setup.flags.data_dir, "predict"):
        outputs = evaluator(features[name], setup.flags.predict_batch_size)
        setup.kind.write_predictions(name, features[name], outputs, folder)


# The paper's protocol: a search over hyper-parameters, with restarts.


def is_search(flags: Any) -> bool:
    """Tells whether more than one run is asked for."""
    lists = (flags.learning_rates, flags.train_batch_sizes, flags.epochs)
    return any(lists) or flags.num_restarts > 1


def run_search(setup: Setup, model: Any, evaluator: Any, features: Mapping[str, Any]) -> None:
    """Trains every combination and restart, keeps the best weights, writes the tables.

    Finished runs are not done again; one that was stopped goes on where it stood.
    """
    from bert_tf.training import search

    flags = setup.flags
    combinations = list(
        itertools.product(
            search.numbers(flags.learning_rates, flags.learning_rate, float, "learning_rates"),
            search.numbers(
                flags.train_batch_sizes, flags.train_batch_size, int, "train_batch_sizes"
            ),
            search.numbers(flags.epochs, flags.num_train_epochs, float, "epochs"),
        )
    )
    metric, higher = setup.kind.best_metric()
    runs = []
    for (rate, batch, epochs), restart in itertools.product(
        combinations, range(flags.num_restarts)
    ):
        seed = flags.seed + restart
        name = f"lr{rate!r}_batch{batch}_epochs{epochs:g}_seed{seed}"
        folder = paths.join(flags.output_dir, "runs", name)
        runs.append(Run(folder, rate, batch, epochs, seed))
    finished = [finished_run(setup, run, features) for run in runs]
    write_setup(setup, flags.output_dir)
    done: list[dict[str, Any]] = []
    for run, result in zip(runs, finished, strict=True):
        name = paths.basename(run.output_dir)
        if result is None:
            logging.info("Run %d of %d: %s", len(done) + 1, len(runs), name)
            result = one_of_search(setup, run, model, evaluator, features)
        else:
            logging.info("Run %d of %d: %s was finished before", len(done) + 1, len(runs), name)
        done.append(result)
        summary = search.write_tables(
            flags.output_dir, done, SEARCHED, [*setup.task.metric_names, "loss"]
        )
        logging.info("After %d of %d runs; by %s:\n%s", len(done), len(runs), metric, summary)
    good = [result for result in done if result["metrics"] is not None]
    if not good:
        raise ValueError(f"every run failed; the last one: {done[-1]['failed']}")
    best = (max if higher else min)(good, key=lambda result: result["metrics"][metric])
    print(f"***** Best of {len(done)} runs by {metric}: {best['run']} *****")


def search_setup(setup: Setup, run: Run, features: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what a run's result depends on, the initial weights and the dev set among it."""
    from bert_tf.checkpoint.restore import WORD_EMBEDDINGS

    dev = features[next(iter(setup.task.eval_sets))]
    words = setup.init.get(WORD_EMBEDDINGS) if setup.init else np.zeros(0)
    return {
        **settings_of(setup, run, features["train"]),
        "dev_data_crc32": checksum(setup, dev),
        "init_checkpoint_crc32": zlib.crc32(np.ascontiguousarray(words).tobytes()),
        "model_crc32": zlib.crc32(repr((setup.config, setup.kind.bilstm)).encode()),
    }


def finished_run(setup: Setup, run: Run, features: Mapping[str, Any]) -> dict[str, Any] | None:
    """Returns the result of a run of a search that was finished before, or None.

    Raises:
      ValueError: if it was made with other data or settings.
    """
    path = paths.join(run.output_dir, RESULT_FILE)
    result = scripts.read_if_there(path)
    if result is None:
        return None
    if not {"run", "settings", "metrics", "setup"} <= result.keys():
        raise ValueError(f"{path} is not a run's result; remove it and the run is done again")
    now = search_setup(setup, run, features)
    other = [
        f"{key} {result['setup'].get(key)} -> {now[key]}"
        for key in now
        if result["setup"].get(key) != now[key]
    ]
    if other:
        raise ValueError(
            f"{run.output_dir} was made with other data or settings ({', '.join(other)}): give "
            "another --output_dir, or remove that folder"
        )
    return result


def one_of_search(
    setup: Setup, run: Run, model: Any, evaluator: Any, features: Mapping[str, Any]
) -> dict[str, Any]:
    """Trains and evaluates one run of a search; returns and writes its result."""
    from bert_tf.checkpoint import original, restore
    from bert_tf.training.loop import TrainingError
    from bert_tf.training.run_folder import BEST_FILE, replace_best

    flags = setup.flags
    renew(setup, model, run.seed)
    settings = {key: value for key, value in dataclasses.asdict(run).items() if key != "output_dir"}
    name = paths.basename(run.output_dir)
    result: dict[str, Any] = {
        "run": name,
        "settings": settings,
        "setup": search_setup(setup, run, features),
    }
    try:
        train(setup, run, model, evaluator, features)
    except TrainingError as error:
        # The other combinations are not to wait for one that diverges.
        logging.warning("Run %s failed: %s", name, error)
        result.update(metrics=None, failed=str(error))
        paths.write_json(paths.join(run.output_dir, RESULT_FILE), result)
        return result
    metric, higher = setup.kind.best_metric()
    own_best = original.latest_checkpoint(paths.join(run.output_dir, restore.BEST_FOLDER))
    prefix = restore.trained_checkpoint(run.output_dir)
    assert prefix is not None
    load_weights(model, restore.load(prefix), new_head=False)
    metrics = score(setup, evaluator, features[next(iter(setup.task.eval_sets))])
    result["metrics"] = metrics
    best = scripts.read_if_there(paths.join(flags.output_dir, restore.BEST_FOLDER, BEST_FILE))
    value = metrics[metric]
    # A run that was killed while its weights were written here is named already: again.
    kept = None if best is None or best.get("run") == name else best.get(metric)
    if kept is None or (value > kept if higher else value < kept):
        replace_best(
            flags.output_dir, model, original.step_of(prefix) or 0, {"run": name, metric: value}
        )
    paths.write_json(paths.join(run.output_dir, RESULT_FILE), result)
    # The best weights are kept above; a search would fill the disk with the others'.
    for old in {*original.all_checkpoints(run.output_dir), *([own_best] if own_best else [])}:
        original.delete(old)
    return result


if __name__ == "__main__":
    CLI.run(main)
