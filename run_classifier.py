"""Fine-tune BERT to classify texts and pairs of texts; evaluate; predict.

From an original checkpoint or a Hugging Face folder to metrics, predictions and a checkpoint in
the original layout. Tasks: GLUE (CoLA, SST-2, MRPC, STS-B, QQP, MNLI, QNLI, RTE, WNLI), the AX
diagnostic, XNLI, and TSV or CSV files of your own.
"""

import dataclasses
import itertools
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from absl import logging

from bert_tf import paths
from bert_tf.cli.command_line import CommandLine, CommandLineError, import_tensorflow
from bert_tf.config import BertConfig
from bert_tf.predictor import TASK_FILE
from bert_tf.tokenization.packing import TRUNCATIONS
from data_prep.tasks import get_task

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
        "CoLA, SST-2, MRPC, STS-B, QQP, MNLI, QNLI, RTE, WNLI, AX, XNLI, TSV or CSV.",
    )
    CLI.string("data_dir", None, "Folder with the task's files (train.tsv, dev.tsv, ...).")
    CLI.string("output_dir", None, "Folder for checkpoints, metrics and predictions.")
    CLI.boolean("do_train", False, "Train.")
    CLI.boolean("do_eval", False, "Evaluate on the dev set.")
    CLI.boolean("do_predict", False, "Predict the test set.")
    CLI.string("xnli_language", "zh", "XNLI: the language, as in its file names.")
with CLI.group("Model"):
    CLI.string(
        "init_checkpoint",
        None,
        "Weights to start from: an original checkpoint (prefix, "
        "file or folder) or a Hugging Face folder. A checkpoint in output_dir wins.",
    )
    CLI.string(
        "bert_config_file",
        None,
        "The model's sizes. By default bert_config.json or config.json beside the checkpoint.",
    )
    CLI.string("vocab_file", None, "The vocabulary. By default vocab.txt beside the checkpoint.")
    CLI.string(
        "hidden_act",
        None,
        "Overrides the configuration's: gelu (tanh form), gelu_erf, relu, tanh, linear.",
    )
with CLI.group("Texts"):
    CLI.boolean(
        "do_lower_case",
        True,
        "Lower-case the text and drop accents: for uncased models. "
        "A Hugging Face folder's own setting is taken where this is not given.",
    )
    CLI.enum(
        "strip_accents",
        "auto",
        ["auto", "true", "false"],
        "Drop accents; auto follows do_lower_case.",
    )
    CLI.string(
        "never_split", "", "Tokens to keep whole in texts, comma-separated, for example [MASK]."
    )
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
    CLI.boolean(
        "adam_bias_correction",
        False,
        "Correct the bias of Adam's means. The original does not; on small data sets it makes "
        "training steadier and allows higher rates.",
    )
    CLI.integer("save_checkpoints_steps", 1000, "Steps between two checkpoints.", 1)
    CLI.integer("keep_checkpoint_max", 5, "Checkpoints to keep; 0 keeps all.", 0)
    CLI.integer("seed", 12345, "Decides new weights, the order of examples and dropout.", 0)
    CLI.string(
        "class_weights",
        None,
        "Weights of the classes in the loss: numbers in the order "
        "of the labels, comma-separated, or balanced.",
    )
    CLI.integer("steps_per_loop", 10, "Steps between two looks at the loss.", 1)
    CLI.integer("log_steps", 50, "Steps between two lines of the log.", 1)
    CLI.integer(
        "num_threads",
        0,
        "CPU threads of an operation; 0 lets TensorFlow choose. Runs "
        "repeat to the bit for the same number.",
        0,
    )
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
    CLI.string("train_file", None, "Name of the training file in data_dir.")
    CLI.string("dev_file", None, "Name of the evaluation file in data_dir.")
    CLI.string("test_file", None, "Name of the prediction file in data_dir.")
with CLI.group("Search: train every combination, keep the best on dev"):
    CLI.string("learning_rates", None, "Learning rates, comma-separated: 5e-5,4e-5,3e-5,2e-5.")
    CLI.string("train_batch_sizes", None, "Batch sizes, comma-separated: 16,32.")
    CLI.string("epochs", None, "Numbers of epochs, comma-separated: 3,4.")
    CLI.integer("num_restarts", 1, "Runs of each combination, with seed, seed+1, ...", 1)
with CLI.group("TPU"):
    CLI.boolean("use_tpu", False, "Train on a TPU.")
    CLI.string("tpu_name", None, "The TPU's name or grpc:// address; local on a TPU VM.")
    CLI.string("tpu_zone", None, "Its zone.")
    CLI.string("gcp_project", None, "Its project.")
    CLI.string("master", None, "Address of its worker; an older form of tpu_name.")
    CLI.integer("num_tpu_cores", 8, "Its cores; checked against what is found.", 1)
    CLI.integer("iterations_per_loop", 1000, "Steps between two returns to the host on a TPU.", 1)

RESULT_FILE = "result.json"
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
    config: BertConfig
    tokenizer: Any
    strategy: Any
    init: Any  # bert_tf.checkpoint.restore.Checkpoint, or None
    vocab_file: str


def main(argv: Sequence[str]) -> dict[str, Any]:
    """Runs the command; returns the metrics of the evaluation, if there was one."""
    flags = CLI.parse(argv)
    check_flags(flags)
    import_tensorflow()

    from bert_tf.training.run_folder import check_writable, locked

    task = make_task(flags)
    check_writable(flags.output_dir)
    with locked(flags.output_dir):
        return run_command(flags, task)


def run_command(flags: Any, task: Any) -> dict[str, Any]:
    """Trains, evaluates and predicts as the flags say."""
    setup = prepare(flags, task)
    features = read_features(setup)
    model = make_model(setup, flags.seed)
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
    results = evaluate_sets(setup, evaluator, features, global_step) if flags.do_eval else {}
    if flags.do_predict:
        predict_sets(setup, evaluator, features)
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
    if flags.do_train and flags.num_train_epochs == 0:
        raise CommandLineError("--num_train_epochs is 0: there is nothing to train")


def make_task(flags: Any) -> Any:
    """Makes the task, with the labels of an earlier run in the same output folder."""
    options: dict[str, Any] = {}
    columns = {
        "text_a_column": flags.text_a_column,
        "text_b_column": flags.text_b_column,
        "id_column": flags.id_column,
        "train_file": flags.train_file,
        "dev_file": flags.dev_file,
        "test_file": flags.test_file,
    }
    options.update({name: value for name, value in columns.items() if value is not None})
    for name in ("text_a_column", "text_b_column", "id_column"):
        if name in options:
            options[name] = column(options[name])
    if flags.label_column is not None:
        several = [column(part) for part in flags.label_column.split(",")]
        options["label_column"] = several if len(several) > 1 else several[0]
    if flags.labels is not None:
        options["labels"] = [label.strip() for label in flags.labels.split(",")]
    for name in ("header", "label_separator"):
        if CLI.given(name):
            options[name] = getattr(flags, name)
    if CLI.given("task_kind"):
        options["kind"] = flags.task_kind
    name = flags.task_name.lower().replace("-", "").replace("_", "")
    if name == "xnli":
        options["language"] = flags.xnli_language
    saved = read_if_there(paths.join(flags.output_dir, TASK_FILE))
    if name in ("tsv", "csv") and saved and not flags.do_train and "labels" not in options:
        # The training file may no longer be there.
        options.setdefault("kind", saved["kind"])
        options["labels"] = saved["labels"]
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
    best = flags.best_metric
    if best and best not in (*task.metric_names, "loss"):
        raise CommandLineError(
            f"--best_metric={best}: {task.name} has {', '.join(task.metric_names)}, loss"
        )
    return task


def read_if_there(path: str) -> dict[str, Any] | None:
    """Returns a JSON file's object, or None where there is no such file."""
    return paths.read_json(path) if paths.exists(path) else None


def column(text: str) -> str | int:
    """Reads a column's flag: a whole number, or a name."""
    return int(text) if text.removeprefix("-").isdigit() else text


def prepare(flags: Any, task: Any) -> Setup:
    """Opens the checkpoint, checks that all fits together, and chooses the device."""
    import tensorflow as tf

    from bert_tf.checkpoint import original, restore
    from bert_tf.tokenization.tokenizer import BertTokenizer
    from bert_tf.training import distribution

    if flags.num_threads:
        tf.config.threading.set_intra_op_parallelism_threads(flags.num_threads)
    init = None
    beside = flags.output_dir
    if flags.init_checkpoint:
        init = restore.load(
            flags.init_checkpoint,
            hidden_act=flags.hidden_act,
            config_file=flags.bert_config_file,
            vocab_file=flags.vocab_file,
        )
    own_config = paths.join(beside, restore.ORIGINAL_CONFIG_FILE)
    if flags.bert_config_file or init is None:
        config = BertConfig.from_json_file(flags.bert_config_file or own_config)
        if flags.hidden_act:
            config = config.replace(hidden_act=flags.hidden_act)
    elif init.config is not None:
        config = init.config
    else:
        raise CommandLineError(
            f"there is no bert_config.json beside {flags.init_checkpoint}: give --bert_config_file"
        )
    vocab_file = flags.vocab_file or (init.vocab_file if init else None)
    if vocab_file is None and init is None:
        vocab_file = paths.join(beside, restore.VOCAB_FILE)
    if vocab_file is None:
        raise CommandLineError(
            f"there is no vocab.txt beside {flags.init_checkpoint}: give --vocab_file"
        )
    # How the model's texts were tokenized, where a run of this script trained it.
    saved = read_if_there(paths.join(paths.dirname(init.prefix) if init else beside, TASK_FILE))
    saved = saved or {}
    lower = flags.do_lower_case
    strip_accents = {"auto": None, "true": True, "false": False}[flags.strip_accents]
    never_split = [token for token in flags.never_split.split(",") if token]
    if not CLI.given("do_lower_case"):
        if init is not None and init.do_lower_case is not None:
            lower = init.do_lower_case
        else:
            lower = saved.get("do_lower_case", lower)
        if not CLI.given("strip_accents"):
            strip_accents = saved.get("strip_accents", strip_accents)
    if not CLI.given("never_split"):
        never_split = saved.get("never_split", never_split)
    if flags.init_checkpoint:
        check_case(flags.init_checkpoint, lower)
    tokenizer = BertTokenizer(
        vocab_file, do_lower_case=lower, strip_accents=strip_accents, never_split=never_split
    )
    check_sizes(flags, config, tokenizer, vocab_file)
    if config.hidden_act == "gelu_erf" and flags.do_train:
        logging.warning(
            "This model's hidden_act is the erf form of GELU, which the original release cannot "
            "compute. The run's checkpoints keep it (hidden_act gelu_erf in bert_config.json). "
            "For checkpoints that the original computes alike give --hidden_act=gelu: the model "
            "is then trained in the tanh form."
        )
    resumed = original.latest_checkpoint(flags.output_dir)
    if not (init or resumed):
        if not flags.do_train:
            raise CommandLineError(
                f"there is no checkpoint in {flags.output_dir} and no --init_checkpoint: train "
                "first, or name a checkpoint"
            )
        logging.warning("No --init_checkpoint: the model is trained from random weights")
    strategy = distribution.make_strategy(
        flags.use_tpu, flags.tpu_name, flags.tpu_zone, flags.gcp_project, flags.master
    )
    replicas = strategy.num_replicas_in_sync
    if flags.use_tpu and replicas != flags.num_tpu_cores:
        logging.warning("--num_tpu_cores is %d; the TPU has %d", flags.num_tpu_cores, replicas)
    for name in ("train_batch_size", "eval_batch_size", "predict_batch_size"):
        if getattr(flags, name) % replicas:
            raise CommandLineError(
                f"--{name}={getattr(flags, name)} is the batch over all replicas: it has to be a "
                f"multiple of their number, {replicas}"
            )
    logging.info("Computing with %s", distribution.describe(strategy))
    return Setup(flags, task, config, tokenizer, strategy, init, vocab_file)


def check_case(checkpoint: str, lower: bool) -> None:
    """Checks do_lower_case against what the name of the checkpoint's folder says."""
    folder = checkpoint if paths.is_dir(checkpoint) else paths.dirname(checkpoint)
    name = paths.basename(folder.rstrip("/"))
    words = name.lower().replace("-", "_").split("_")
    if ("cased" if lower else "uncased") in words:
        raise CommandLineError(
            f"--do_lower_case is {lower}, but the checkpoint's folder {name!r} says "
            f"{'cased' if lower else 'uncased'}: give --do_lower_case={str(not lower).lower()}, "
            "or rename the folder if it is wrong"
        )


def check_sizes(flags: Any, config: BertConfig, tokenizer: Any, vocab_file: str) -> None:
    """Checks the vocabulary and the length against the model's configuration."""
    if tokenizer.vocab_size != config.vocab_size:
        text = (
            f"{vocab_file} has {tokenizer.vocab_size} tokens, but the model's configuration has "
            f"vocab_size {config.vocab_size}"
        )
        # Tables are at times padded to a multiple of 8 to 128 rows.
        if not 0 < config.vocab_size - tokenizer.vocab_size < 128:
            raise ValueError(f"{text}: give the vocabulary that belongs to the checkpoint")
        logging.warning("%s; the rows left over are never used", text)
    if flags.max_seq_length > config.max_position_embeddings:
        raise ValueError(
            f"--max_seq_length={flags.max_seq_length} is over the model's "
            f"max_position_embeddings, {config.max_position_embeddings}: give at most that"
        )


def read_features(setup: Setup) -> dict[str, Any]:
    """Reads and tokenizes the sets that the command needs: set name -> features."""
    from data_prep.tasks.featurize import featurize

    flags, task = setup.flags, setup.task
    wanted = ["train"] if flags.do_train else []
    if flags.do_eval or (flags.do_train and flags.eval_steps) or is_search(flags):
        wanted += task.sets(flags.data_dir, "eval")
    if flags.do_predict:
        wanted += task.sets(flags.data_dir, "predict")
    features = {}
    for name in wanted:
        examples = task.read_examples(flags.data_dir, name)
        features[name] = featurize(
            examples, task, setup.tokenizer, flags.max_seq_length, flags.truncation
        )
        lengths = features[name].lengths
        logging.info(
            "%s: %d examples, mean length %.1f tokens, longest %d%s",
            name,
            len(examples),
            lengths.mean(),
            lengths.max(),
            f"; {features[name].num_truncated} truncated to {flags.max_seq_length}"
            if features[name].num_truncated
            else "",
        )
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


def make_model(setup: Setup, seed: int) -> Any:
    """Makes the model with new weights."""
    from bert_tf.modeling.models import BertClassifier

    with setup.strategy.scope():
        return BertClassifier(setup.config, setup.task.num_outputs, seed=seed)


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
    from bert_tf.checkpoint import restore
    from bert_tf.modeling.models import named_variables

    variables = named_variables(model)
    head = ("output_weights", "output_bias") if new_head else ()
    pooler = ("bert/pooler/*",) if new_head else ()
    report = restore.merge(
        {name: tuple(variable.shape) for name, variable in variables.items()},
        checkpoint,
        allow_missing=(*head, *pooler),
        allow_extra=("cls/*",),
        allow_misshapen=head,
    )
    for name, value in restore.values(checkpoint, report):
        variables[name].assign(value)
    return report


# Training.


def train(setup: Setup, run: Run, model: Any, evaluator: Any, features: Mapping[str, Any]) -> None:
    """Trains one run, from where it stands to its end. `model` is new."""
    from bert_tf.checkpoint import restore
    from bert_tf.modeling.losses import classifier_loss
    from bert_tf.optimization import BertAdam, LinearWarmupDecay
    from bert_tf.training.loop import Evaluation, Schedule
    from bert_tf.training.loop import train as train_loop
    from bert_tf.training.run_folder import RunFolder
    from bert_tf.training.step import TrainStep
    from data_prep.input_pipeline import TrainBatches, train_dataset

    flags, task, data = setup.flags, setup.task, features["train"]
    steps = int(len(data) / run.train_batch_size * run.num_train_epochs)
    if steps < 1:
        raise ValueError(
            f"{len(data)} examples in batches of {run.train_batch_size} for "
            f"{run.num_train_epochs:g} epochs make no step: lower --train_batch_size or raise "
            "--num_train_epochs"
        )
    warmup = int(steps * flags.warmup_proportion)
    folder = RunFolder(run.output_dir, flags.keep_checkpoint_max)
    latest = folder.latest()
    settings = settings_of(setup, run, data)
    if latest is not None:
        # Does it fit? Asked before anything in the folder is replaced.
        load_weights(model, restore.load(latest), new_head=False)
        settings = check_same_run(setup, run.output_dir, settings)
    elif setup.init is not None:
        report = load_weights(model, setup.init, new_head=True)
        logging.info("%s", report)
    write_setup(setup, run.output_dir, settings)
    schedule_of_rate = LinearWarmupDecay(run.learning_rate, steps, warmup)
    step = TrainStep(
        model,
        classifier_loss(task.kind),
        BertAdam(schedule_of_rate, bias_correction=flags.adam_bias_correction),
        setup.strategy,
        seed=run.seed,
    )
    static = flags.pad_to_max_length or flags.use_tpu
    batches = TrainBatches(data.lengths, run.train_batch_size, run.seed, group_by_length=not static)

    def make_dataset(start: int, end: int) -> Any:
        dataset = train_dataset(data, batches, start, end, pad_to_max_length=static)
        return setup.strategy.experimental_distribute_dataset(dataset)

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
        metric, higher = best_metric(setup)
        evaluation = Evaluation(
            lambda: score(setup, evaluator, features[main_set]), flags.eval_steps, metric, higher
        )
    train_loop(
        step,
        make_dataset,
        folder,
        Schedule(
            steps,
            run.train_batch_size,
            flags.save_checkpoints_steps,
            flags.iterations_per_loop if flags.use_tpu else flags.steps_per_loop,
            flags.log_steps,
        ),
        evaluation,
        AFTER_LOOP,
    )


# A test's place to kill a run at a step; see bert_tf.training.loop.train.
AFTER_LOOP: Any = None


def settings_of(setup: Setup, run: Run, data: Any) -> dict[str, Any]:
    """Returns what the weights of a run depend on, besides the model."""
    flags = setup.flags
    return {
        "learning_rate": run.learning_rate,
        "train_batch_size": run.train_batch_size,
        "num_train_epochs": run.num_train_epochs,
        "seed": run.seed,
        "warmup_proportion": flags.warmup_proportion,
        "adam_bias_correction": flags.adam_bias_correction,
        "class_weights": flags.class_weights,
        "pad_to_max_length": flags.pad_to_max_length,
        "max_seq_length": flags.max_seq_length,
        "truncation": flags.truncation,
        "training_examples": len(data),
        "training_data_crc32": zlib.crc32(data.labels.tobytes(), zlib.crc32(data.input_ids)),
    }


def check_same_run(setup: Setup, folder: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Checks that a run is resumed with the model and the settings that it began with.

    Returns: the settings that it began with.

    Raises:
      ValueError: for another vocabulary, or a configuration that computes something else.
    """
    from bert_tf.checkpoint import restore

    config_file = paths.join(folder, restore.ORIGINAL_CONFIG_FILE)
    if paths.exists(config_file):
        began = BertConfig.from_json_file(config_file).to_dict()
        now = setup.config.to_dict()
        other = [
            f"{key} {began.get(key)} -> {now.get(key)}"
            for key in sorted({*began, *now})
            if began.get(key) != now.get(key) and not key.endswith("dropout_prob")
        ]
        if other:
            raise ValueError(
                f"the run in {folder} has another model than this command ({', '.join(other)}): "
                "give the configuration it began with, or another --output_dir"
            )
    vocab_file = paths.join(folder, restore.VOCAB_FILE)
    if paths.exists(vocab_file):
        with (
            paths.open_file(vocab_file, "rb") as began_with,
            paths.open_file(setup.vocab_file, "rb") as given,
        ):
            if began_with.read() != given.read():
                raise ValueError(
                    f"{setup.vocab_file} is not the vocabulary that the run in {folder} began "
                    "with: give that one, or another --output_dir"
                )
    began = (read_if_there(paths.join(folder, TASK_FILE)) or {}).get("training") or {}
    changed = [
        f"{key} {began[key]} -> {value}"
        for key, value in settings.items()
        if key in began and began[key] != value
    ]
    if changed:
        logging.warning(
            "The run in %s goes on with other settings than it began with: %s. Its result will be "
            "that of neither; give another --output_dir for a run of its own.",
            folder,
            ", ".join(changed),
        )
    return began or dict(settings)


def write_setup(setup: Setup, folder: str, training: Mapping[str, Any] | None = None) -> None:
    """Writes what a later command or program needs to use the folder's checkpoints."""
    from bert_tf.checkpoint import restore

    paths.make_dirs(folder)
    setup.config.to_json_file(paths.join(folder, restore.ORIGINAL_CONFIG_FILE))
    target = paths.join(folder, restore.VOCAB_FILE)
    if target != setup.vocab_file:
        paths.copy(setup.vocab_file, target)
    tokenizer = setup.tokenizer
    settings = {
        "task": setup.task.name,
        "kind": setup.task.kind,
        "labels": list(setup.task.labels),
        "max_seq_length": setup.flags.max_seq_length,
        "truncation": setup.flags.truncation,
        "do_lower_case": tokenizer.do_lower_case,
        "strip_accents": tokenizer.strip_accents,
        "never_split": list(tokenizer.never_split),
    }
    if training is not None:
        settings["training"] = dict(training)
    paths.write_json(paths.join(folder, TASK_FILE), settings)


# Evaluation and prediction.


def make_evaluator(setup: Setup, model: Any) -> Any:
    """Returns a function (features, batch size) -> {"logits": [N, L], "loss": [N]}."""
    from bert_tf.modeling.losses import classifier_loss
    from bert_tf.training.step import EvalStep
    from data_prep.input_pipeline import EvalBatches, eval_dataset

    step = EvalStep(model, setup.strategy, classifier_loss(setup.task.kind))
    static = setup.flags.pad_to_max_length or setup.flags.use_tpu

    def evaluate(data: Any, batch_size: int) -> dict[str, np.ndarray]:
        # A batch that is larger than the data would be padding.
        replicas = setup.strategy.num_replicas_in_sync
        batch_size = min(batch_size, -(-len(data) // replicas) * replicas)
        dataset = eval_dataset(
            data, EvalBatches(data.lengths, batch_size), pad_to_max_length=static
        )
        return step.run(setup.strategy.experimental_distribute_dataset(dataset), len(data))

    return evaluate


def score(setup: Setup, evaluator: Any, data: Any) -> dict[str, float]:
    """Returns the task's metrics over a labelled set, and the mean loss."""
    outputs = evaluator(data, setup.flags.eval_batch_size)
    metrics = setup.task.metrics(outputs["logits"], data.labels)
    return {**metrics, "loss": float(outputs["loss"].mean(dtype=np.float64))}


def best_metric(setup: Setup) -> tuple[str, bool]:
    """Returns the metric that decides, and whether higher is better."""
    name = setup.flags.best_metric
    main = setup.task.main_metric
    if name is None or name == main.name:
        return main.name, main.higher_is_better
    return name, name not in ("loss", "mse", "mae")


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
    setup: Setup, evaluator: Any, features: Mapping[str, Any], global_step: int
) -> dict[str, float]:
    """Evaluates each labelled set and writes its metrics; returns the first one's."""
    first: dict[str, float] = {}
    for number, name in enumerate(setup.task.sets(setup.flags.data_dir, "eval")):
        outputs = evaluator(features[name], setup.flags.eval_batch_size)
        labels = features[name].labels
        metrics = setup.task.metrics(outputs["logits"], labels)
        loss = float(outputs["loss"].mean(dtype=np.float64))
        lines = {f"eval_{key}": value for key, value in metrics.items()}
        lines.update(eval_loss=loss, loss=loss, global_step=global_step)
        ending = "" if number == 0 else "_" + name.removeprefix("dev_")
        path = paths.join(setup.flags.output_dir, f"eval_results{ending}.txt")
        print(f"***** Evaluation on {name}, {len(labels)} examples *****")
        with paths.atomic_write(path) as handle:
            for key in sorted(lines):
                value = lines[key]
                text = f"{key} = {value if isinstance(value, int) else str(np.float32(value))}"
                print(f"  {text}")
                handle.write(text + "\n")
        report = setup.task.report(outputs["logits"], labels)
        if report:
            write_report(paths.join(setup.flags.output_dir, f"eval_report{ending}.tsv"), report)
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


def probabilities(kind: str, logits: np.ndarray) -> np.ndarray:
    """Turns logits [N, L] into probabilities (or the value itself, for regression)."""
    if kind == "regression":
        return logits
    if kind == "multilabel":
        return (1.0 / (1.0 + np.exp(-logits.astype(np.float64)))).astype(np.float32)
    shifted = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return shifted / shifted.sum(axis=-1, keepdims=True)


def predict_sets(setup: Setup, evaluator: Any, features: Mapping[str, Any]) -> None:
    """Writes the predictions of each unlabelled set."""
    flags, task = setup.flags, setup.task
    for number, name in enumerate(task.sets(flags.data_dir, "predict")):
        data = features[name]
        logits = evaluator(data, flags.predict_batch_size)["logits"]
        values = probabilities(task.kind, logits)
        ending = "" if number == 0 else "_" + name.removeprefix("test_")
        # AX is predicted with MNLI's model, often in its folder: not over MNLI's own results.
        if task.name == "AX":
            ending = "_ax"
        path = paths.join(flags.output_dir, f"test_results{ending}.tsv")
        with paths.atomic_write(path) as handle:
            for row in values:
                handle.write("\t".join(str(value) for value in row) + "\n")
        print(f"***** Predicted {name}: {len(data)} rows in {path} *****")
        if flags.write_predictions:
            named = paths.join(flags.output_dir, f"test_predictions{ending}.tsv")
            header = task.labels or ("value",)
            with paths.atomic_write(named) as handle:
                handle.write("\t".join(["id", "prediction", *header]) + "\n")
                predicted = task.predicted(logits)
                for guid, label, row in zip(data.guids, predicted, values, strict=True):
                    handle.write(
                        "\t".join([" ".join(guid.split()), label, *(str(v) for v in row)]) + "\n"
                    )
            print(f"  with ids and labels: {named}")
        if flags.write_submission:
            submission = task.submission(name, data.guids, logits)
            target = paths.join(flags.output_dir, submission.file_name)
            with paths.atomic_write(target) as handle:
                for line in (submission.header, *submission.rows):
                    handle.write("\t".join(line) + "\n")
            print(f"  submission: {target}")


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
    metric, higher = best_metric(setup)
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
        "dev_data_crc32": zlib.crc32(dev.labels.tobytes(), zlib.crc32(dev.input_ids)),
        "init_checkpoint_crc32": zlib.crc32(np.ascontiguousarray(words).tobytes()),
    }


def finished_run(setup: Setup, run: Run, features: Mapping[str, Any]) -> dict[str, Any] | None:
    """Returns the result of a run of a search that was finished before, or None.

    Raises:
      ValueError: if it was made with other data or settings.
    """
    path = paths.join(run.output_dir, RESULT_FILE)
    result = read_if_there(path)
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
    metric, higher = best_metric(setup)
    own_best = original.latest_checkpoint(paths.join(run.output_dir, restore.BEST_FOLDER))
    prefix = restore.trained_checkpoint(run.output_dir)
    assert prefix is not None
    load_weights(model, restore.load(prefix), new_head=False)
    metrics = score(setup, evaluator, features[next(iter(setup.task.eval_sets))])
    result["metrics"] = metrics
    best = read_if_there(paths.join(flags.output_dir, restore.BEST_FOLDER, BEST_FILE))
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
