"""What the run_*.py scripts share: groups of flags, and what is made of them.

Keras and TensorFlow are imported where they are used: --help and a wrong flag answer at once.
"""

import contextlib
import dataclasses
import random
import tempfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from absl import logging

from bert_tf import paths
from bert_tf.cli.command_line import CommandLine, CommandLineError
from bert_tf.config import BertConfig
from bert_tf.training import cluster

# --precision -> Keras's policy.
PRECISIONS = {"float32": None, "bfloat16": "mixed_bfloat16", "float16": "mixed_float16"}


# Groups of flags.


def model_flags(cli: CommandLine) -> None:
    """Adds the flags that name a model."""
    with cli.group("Model"):
        cli.string(
            "init_checkpoint",
            None,
            "Weights to start from: an original checkpoint (prefix, "
            "file or folder) or a Hugging Face folder. A checkpoint in output_dir wins.",
        )
        cli.string(
            "bert_config_file",
            None,
            "The model's sizes. By default bert_config.json or config.json beside the checkpoint.",
        )
        cli.string(
            "vocab_file", None, "The vocabulary. By default vocab.txt beside the checkpoint."
        )
        cli.string(
            "hidden_act",
            None,
            "Overrides the configuration's: gelu (tanh form), gelu_erf, relu, tanh, linear.",
        )


def text_flags(cli: CommandLine) -> None:
    """Adds the flags of the tokenizer."""
    cli.boolean(
        "do_lower_case",
        True,
        "Lower-case the text and drop accents: for uncased models. "
        "A Hugging Face folder's own setting is taken where this is not given.",
    )
    cli.enum(
        "strip_accents",
        "auto",
        ["auto", "true", "false"],
        "Drop accents; auto follows do_lower_case.",
    )
    cli.string(
        "never_split", "", "Tokens to keep whole in texts, comma-separated, for example [MASK]."
    )


def run_flags(cli: CommandLine) -> None:
    """Adds the flags of a training run's life."""
    cli.integer("save_checkpoints_steps", 1000, "Steps between two checkpoints.", 1)
    cli.integer("keep_checkpoint_max", 5, "Checkpoints to keep; 0 keeps all.", 0)
    cli.integer("seed", 12345, "Decides new weights, the order of examples and dropout.", 0)
    cli.integer("steps_per_loop", 10, "Steps between two looks at the loss.", 1)
    cli.integer("log_steps", 50, "Steps between two lines of the log.", 1)
    cli.integer(
        "num_threads",
        0,
        "CPU threads of an operation; 0 lets TensorFlow choose. Runs "
        "repeat to the bit for the same number.",
        0,
    )


def optimizer_flags(cli: CommandLine) -> None:
    """Adds the flags of the optimizer and of the arithmetic."""
    with cli.group("Optimizer and precision"):
        cli.enum(
            "optimizer",
            "adam",
            ["adam", "lamb"],
            "adam is the original's, without bias correction; lamb is for large batches.",
        )
        cli.boolean(
            "adam_bias_correction",
            False,
            "Correct the bias of Adam's means. The original does not; on small data sets it makes "
            "training steadier and allows higher rates.",
        )
        cli.enum(
            "lr_decay",
            "linear",
            ["linear", "polynomial", "constant"],
            "How the learning rate falls to end_learning_rate; constant: not at all.",
        )
        cli.float("lr_decay_power", 1.0, "Exponent of the polynomial decay.", 0.0)
        cli.float("end_learning_rate", 0.0, "The learning rate at the last step.", 0.0)
        cli.integer(
            "gradient_accumulation_steps",
            1,
            "Parts of a batch that are computed one after another, for batches that do not fit "
            "into memory; the gradient is that of the whole batch, but each part draws dropout's "
            "masks for itself.",
            1,
        )
        cli.boolean(
            "recompute",
            False,
            "Compute what is inside a transformer layer once more in the backward pass in place of "
            "keeping it: less memory for about a third more time, and the same gradients.",
        )
        cli.enum(
            "precision",
            "float32",
            list(PRECISIONS),
            "Of the arithmetic. Weights, sums and checkpoints are float32; float16 scales the "
            "loss.",
        )
        cli.boolean("use_xla", False, "Compile the forward and the backward pass with XLA.")


def device_flags(cli: CommandLine) -> None:
    """Adds the flags that choose where to compute."""
    with cli.group("Devices"):
        cli.enum(
            "distribution_strategy",
            "auto",
            cluster.STRATEGIES,
            "auto: the workers that TF_CONFIG names, else all GPUs of this machine, else one "
            "device. Batches are those of all devices together.",
        )
        cli.integer("num_gpus", None, "How many GPUs of this machine to use; all by default.", 0)
        cli.string(
            "all_reduce_alg",
            None,
            "How gradients are summed. mirrored: nccl, hierarchical_copy, reduce_to_one; "
            "multi_worker_mirrored: auto, ring, nccl.",
        )
        cli.boolean("use_tpu", False, "Compute on a TPU: --distribution_strategy=tpu.")
        cli.string("tpu_name", None, "The TPU's name or grpc:// address; local on a TPU VM.")
        cli.string("tpu_zone", None, "Its zone.")
        cli.string("gcp_project", None, "Its project.")
        cli.string("master", None, "Address of its worker; an older form of tpu_name.")
        cli.integer("num_tpu_cores", 8, "Its cores; checked against what is found.", 1)
        cli.integer(
            "iterations_per_loop", 1000, "Steps between two returns to the host on a TPU.", 1
        )


# What is made of them.


@dataclasses.dataclass(frozen=True)
class ModelFiles:
    """What a command knows of its model before it is built.

    Attributes:
      config: its sizes.
      init: a `bert_tf.checkpoint.restore.Checkpoint`, or None.
      vocab_file: the vocabulary's path, or None where none was found.
    """

    config: BertConfig
    init: Any
    vocab_file: str | None


def open_model(flags: Any) -> ModelFiles:
    """Opens what the model flags name; what they leave out is taken from --output_dir.

    Raises:
      CommandLineError: no configuration is given or found.
      ValueError, FileNotFoundError: a file is wrong or missing; names it.
    """
    from bert_tf.checkpoint import restore

    init = None
    if flags.init_checkpoint:
        init = restore.load(
            flags.init_checkpoint,
            hidden_act=flags.hidden_act,
            config_file=flags.bert_config_file,
            vocab_file=flags.vocab_file,
        )
    if flags.bert_config_file or init is None:
        own_config = paths.join(flags.output_dir, restore.ORIGINAL_CONFIG_FILE)
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
        own = paths.join(flags.output_dir, restore.VOCAB_FILE)
        vocab_file = own if paths.exists(own) else None
    return ModelFiles(config, init, vocab_file)


def make_tokenizer(cli: CommandLine, flags: Any, files: ModelFiles, settings_file: str) -> Any:
    """Makes the tokenizer, by the flags given, else as the model's texts were tokenized before.

    Args:
      cli: the script's command line.
      flags: its flags.
      files: the model's.
      settings_file: name of the file in which the script keeps a run's settings; read beside the
        checkpoint.
    """
    from bert_tf.tokenization.tokenizer import BertTokenizer

    init = files.init
    if files.vocab_file is None:
        raise CommandLineError(
            f"there is no vocab.txt beside {flags.init_checkpoint or flags.output_dir}: give "
            "--vocab_file"
        )
    saved = read_settings(init.folder if init else flags.output_dir, settings_file) or {}
    lower = flags.do_lower_case
    strip_accents = {"auto": None, "true": True, "false": False}[flags.strip_accents]
    never_split = [token for token in flags.never_split.split(",") if token]
    if not cli.given("do_lower_case"):
        if init is not None and init.do_lower_case is not None:
            lower = init.do_lower_case
        else:
            lower = saved.get("do_lower_case", lower)
        if not cli.given("strip_accents"):
            strip_accents = saved.get("strip_accents", strip_accents)
    if not cli.given("never_split"):
        never_split = saved.get("never_split", never_split)
    if flags.init_checkpoint:
        check_case(flags.init_checkpoint, lower)
    return BertTokenizer(
        files.vocab_file, do_lower_case=lower, strip_accents=strip_accents, never_split=never_split
    )


def tokenizer_settings(tokenizer: Any) -> dict[str, Any]:
    """Returns what `make_tokenizer` reads again."""
    return {
        "do_lower_case": tokenizer.do_lower_case,
        "strip_accents": tokenizer.strip_accents,
        "never_split": list(tokenizer.never_split),
    }


def read_if_there(path: str) -> dict[str, Any] | None:
    """Returns a JSON file's object, or None where there is no such file."""
    return paths.read_json(path) if paths.exists(path) else None


def read_settings(folder: str, name: str) -> dict[str, Any] | None:
    """Returns the JSON object of a file that belongs to a folder's checkpoints; None if none does.

    That of best/ may lie in the run's folder.
    """
    from bert_tf.checkpoint import restore

    path = restore.beside(folder, name)
    return None if path is None else paths.read_json(path)


def take_saved_settings(
    cli: CommandLine, flags: Any, name: str, settings: Iterable[str], folders: Iterable[str | None]
) -> None:
    """Sets flags that were not given to what the weights were trained with, where none are trained.

    Args:
      cli: the script's command line.
      flags: its flags.
      name: of the file in which the script keeps a run's settings.
      settings: the flags that it holds.
      folders: of runs; the first that has such a file counts.

    Raises:
      ValueError: the file holds what is no value of a flag; names it.
    """
    if flags.do_train:
        return
    found = ((folder, read_settings(folder, name)) for folder in folders if folder)
    where, saved = next(((folder, read) for folder, read in found if read), ("", {}))
    taken, other = [], []
    for setting in settings:
        if setting not in saved or saved[setting] == getattr(flags, setting):
            continue
        if cli.given(setting):
            other.append(f"--{setting}={getattr(flags, setting)} (then {saved[setting]})")
            continue
        try:
            flags[setting].value = flags[setting].parser.parse(saved[setting])
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"{paths.join(where, name)}: {setting} is {saved[setting]!r}: {error}; give "
                f"--{setting}, or mend the file"
            ) from None
        taken.append(f"--{setting}={getattr(flags, setting)}")
    if taken:
        logging.info("As the run in %s was trained: %s", where, ", ".join(taken))
    if other:
        logging.info("Other than the run in %s was trained: %s", where, ", ".join(other))


def folder_of(checkpoint: str) -> str:
    """Returns the folder that --init_checkpoint is or lies in."""
    return checkpoint if paths.is_dir(checkpoint) else paths.dirname(checkpoint) or "."


def check_case(checkpoint: str, lower: bool) -> None:
    """Checks do_lower_case against what the name of the checkpoint's folder says."""
    name = paths.basename(folder_of(checkpoint).rstrip("/"))
    words = name.lower().replace("-", "_").split("_")
    if ("cased" if lower else "uncased") in words:
        raise CommandLineError(
            f"--do_lower_case is {lower}, but the checkpoint's folder {name!r} says "
            f"{'cased' if lower else 'uncased'}: give --do_lower_case={str(not lower).lower()}, "
            "or rename the folder if it is wrong"
        )


def check_vocabulary(config: BertConfig, size: int, vocab_file: str) -> None:
    """Checks a vocabulary's number of tokens against the model's configuration."""
    if size == config.vocab_size:
        return
    text = (
        f"{vocab_file} has {size} tokens, but the model's configuration has "
        f"vocab_size {config.vocab_size}"
    )
    # Tables are at times padded to a multiple of 8 to 128 rows.
    if not 0 < config.vocab_size - size < 128:
        raise ValueError(
            f"{text}: give the vocabulary that belongs to the checkpoint or, for a new model, a "
            f"configuration with vocab_size {size}"
        )
    logging.warning("%s; the rows left over are never used", text)


def check_length(max_seq_length: int, config: BertConfig) -> None:
    """Checks a length against the model's positions."""
    if max_seq_length > config.max_position_embeddings:
        raise ValueError(
            f"--max_seq_length={max_seq_length} is over the model's "
            f"max_position_embeddings, {config.max_position_embeddings}: give at most that"
        )


def check_has_weights(flags: Any, files: ModelFiles) -> None:
    """Checks that there is something to evaluate or predict with, where nothing is trained."""
    from bert_tf.checkpoint import restore

    # A search leaves its best run's weights and no others.
    use_best = getattr(flags, "use_best", True)
    if files.init or restore.trained_checkpoint(flags.output_dir, use_best):
        return
    if not flags.do_train:
        raise CommandLineError(
            f"there is no checkpoint in {flags.output_dir} and no --init_checkpoint: train "
            "first, or name a checkpoint"
        )
    logging.warning("No --init_checkpoint: the model is trained from random weights")


def warn_of_gelu(config: BertConfig) -> None:
    """Says what training a model in the erf form of GELU means."""
    if config.hidden_act == "gelu_erf":
        logging.warning(
            "This model's hidden_act is the erf form of GELU, which the original release cannot "
            "compute. The run's checkpoints keep it (hidden_act gelu_erf in bert_config.json). "
            "For checkpoints that the original computes alike give --hidden_act=gelu: the model "
            "is then trained in the tanh form."
        )


def uses_tpu(flags: Any) -> bool:
    """Tells whether the run computes on a TPU, where every shape has to be fixed."""
    return bool(flags.use_tpu or flags.distribution_strategy == "tpu")


def steps_per_loop(flags: Any) -> int:
    """Returns the steps between two looks at the losses."""
    return int(flags.iterations_per_loop if uses_tpu(flags) else flags.steps_per_loop)


def make_schedule(flags: Any, steps: int, per_step: Mapping[str, float]) -> Any:
    """Returns the `bert_tf.training.loop.Schedule` of the flags."""
    from bert_tf.training.loop import Schedule

    return Schedule(
        steps, per_step, flags.save_checkpoints_steps, steps_per_loop(flags), flags.log_steps
    )


def count_steps(examples: int, what: str, batch_size: int, epochs: float) -> int:
    """Returns the steps of a training, as the original counts them.

    Raises:
      ValueError: there are none.
    """
    steps = int(examples / batch_size * epochs)
    if steps < 1:
        raise ValueError(
            f"{examples} {what} in batches of {batch_size} for {epochs:g} epochs make no step: "
            "lower --train_batch_size or raise --num_train_epochs"
        )
    return steps


@contextlib.contextmanager
def output_folder(flags: Any, strategy: Any) -> Iterator[None]:
    """Makes --output_dir and, for the block, keeps other commands out of it.

    Of several workers the chief alone does so; errors of the connection to one name it.

    Raises:
      OSError: it cannot be written, or another process works in it.
      ValueError: it is not one folder for all workers, or their flags differ.
      distribution.WorkerLostError: another worker does not answer any more.
    """
    from bert_tf.training import distribution
    from bert_tf.training.run_folder import locked

    with distribution.naming_workers(strategy):
        if not distribution.is_chief(strategy):
            check_workers(flags, strategy)
            yield
            return
        paths.check_writable(flags.output_dir, "--output_dir")
        with locked(flags.output_dir):
            check_workers(flags, strategy)
            yield


# What may differ between the workers of a run, besides paths and other texts.
MAY_DIFFER = ("traceback", "verbose_logging", "log_steps", "num_threads")


def check_workers(flags: Any, strategy: Any) -> None:
    """Checks that the workers of a run have one output folder and were started alike.

    Raises:
      ValueError: on all of them, where they do not.
    """
    from bert_tf.training import distribution

    if not distribution.several_workers(strategy):
        return
    agreement = distribution.Agreement(strategy)
    alike = {
        name: flags[name].value
        for name in sorted(flags)
        if flags[name].flag_type() != "string" and name not in MAY_DIFFER
    }
    if not agreement.all_equal(zlib.crc32(repr(alike).encode())):
        raise ValueError(
            "the workers were started with different flags: all but paths have to be the same"
        )
    chief = distribution.is_chief(strategy)
    token = agreement.greatest(random.SystemRandom().getrandbits(62) if chief else 0)
    # A name that nobody asked for before: no file system remembers that it is not there.
    path = paths.join(flags.output_dir, f".workers-{token}")
    if chief:
        with paths.open_file(path, "w") as handle:
            handle.write("")
    agreement.wait()
    missing = agreement.any(not paths.exists(path))
    if chief:
        paths.remove(path)
    if missing:
        raise ValueError(
            f"--output_dir={flags.output_dir} is not one folder for all workers: it has to be on a "
            "file system that all of them share, or an address (gs://)"
        )


def make_strategy(flags: Any, batch_flags: Mapping[str, Any]) -> Any:
    """Returns the tf.distribute strategy, and checks the batches against it.

    To be called before anything else that computes.

    Args:
      flags: the script's.
      batch_flags: names of its flags that set a global batch, and whether the command uses them.

    Raises:
      ValueError: the devices are not there, or a batch cannot be divided among them.
    """
    import tensorflow as tf

    from bert_tf.training import distribution

    if flags.use_tpu and flags.distribution_strategy not in ("auto", "tpu"):
        raise CommandLineError(
            f"--use_tpu contradicts --distribution_strategy={flags.distribution_strategy}"
        )
    # It tells of every graph's collective operations, twice.
    tf.get_logger().setLevel("WARNING")
    if flags.num_threads > 1024:
        raise CommandLineError(f"--num_threads={flags.num_threads}: give at most 1024")
    if flags.num_threads:
        tf.config.threading.set_intra_op_parallelism_threads(flags.num_threads)
    strategy = distribution.make_strategy(
        "tpu" if uses_tpu(flags) else flags.distribution_strategy,
        flags.num_gpus,
        flags.all_reduce_alg,
        flags.tpu_name or flags.master,
        flags.tpu_zone,
        flags.gcp_project,
    )
    replicas = strategy.num_replicas_in_sync
    if uses_tpu(flags) and replicas != flags.num_tpu_cores:
        logging.warning("--num_tpu_cores is %d; the TPU has %d", flags.num_tpu_cores, replicas)
    for name, used in batch_flags.items():
        if not used:
            continue
        parts = flags.gradient_accumulation_steps if name == "train_batch_size" else 1
        if getattr(flags, name) % (replicas * parts):
            raise CommandLineError(
                f"--{name}={getattr(flags, name)} is the batch over all replicas: it has to be a "
                f"multiple of their number, {replicas}"
                + (f", times --gradient_accumulation_steps={parts}" if parts > 1 else "")
            )
    logging.info("Computing with %s", distribution.describe(strategy))
    return strategy


@contextlib.contextmanager
def results_folder(flags: Any, strategy: Any) -> Iterator[str]:
    """Yields where results are written: --output_dir.

    Every worker makes the same files; those of others than the chief go to a folder that is
    deleted.
    """
    from bert_tf.training import distribution

    if distribution.is_chief(strategy):
        yield flags.output_dir
        return
    with tempfile.TemporaryDirectory(prefix="bert_tf_worker_") as folder:
        yield folder


def check_optimizer_flags(cli: CommandLine, flags: Any) -> None:
    """Checks the flags of the optimizer against each other."""
    if flags.lr_decay != "polynomial" and cli.given("lr_decay_power"):
        raise CommandLineError("--lr_decay_power needs --lr_decay=polynomial")
    if flags.lr_decay == "constant" and flags.end_learning_rate:
        raise CommandLineError("--end_learning_rate does not go with --lr_decay=constant")


def make_optimizer(flags: Any, learning_rate: float, steps: int, warmup: int) -> Any:
    """Makes the optimizer and its schedule."""
    from bert_tf.optimization import BertAdam, Lamb, WarmupDecay

    power = {"linear": 1.0, "polynomial": flags.lr_decay_power, "constant": 0.0}[flags.lr_decay]
    schedule = WarmupDecay(learning_rate, steps, warmup, power, flags.end_learning_rate)
    if flags.optimizer == "lamb":
        return Lamb(schedule)
    return BertAdam(schedule, bias_correction=flags.adam_bias_correction)


def make_step(
    flags: Any,
    model: Any,
    loss: Any,
    optimizer: Any,
    strategy: Any,
    seed: int | None = None,
    skip_padding: bool = False,
) -> Any:
    """Makes the `bert_tf.training.step.TrainStep` of the flags; --seed is its seed by default.

    Padding is skipped on CPUs alone: elsewhere it was not measured.
    """
    import tensorflow as tf

    from bert_tf.training.step import TrainStep

    accelerated = any(tf.config.list_logical_devices(kind) for kind in ("GPU", "TPU"))

    model.bert.recompute = flags.recompute
    return TrainStep(
        model,
        loss,
        optimizer,
        strategy,
        seed=flags.seed if seed is None else seed,
        accumulation=flags.gradient_accumulation_steps,
        scale_loss=flags.precision == "float16",
        use_xla=flags.use_xla,
        skip_padding=skip_padding and not flags.use_xla and not accelerated,
    )


def optimizer_settings(flags: Any) -> dict[str, Any]:
    """Returns what of the optimizer's flags the weights of a run depend on."""
    names = (
        "optimizer",
        "adam_bias_correction",
        "lr_decay",
        "lr_decay_power",
        "end_learning_rate",
        "gradient_accumulation_steps",
        "recompute",
        "precision",
        "use_xla",
    )
    return {name: getattr(flags, name) for name in names}


def load_weights(
    model: Any,
    checkpoint: Any,
    may_be_new: Iterable[str] = (),
    may_be_left: Iterable[str] = (),
    may_change: Iterable[str] = (),
) -> Any:
    """Sets a model's weights from a checkpoint; returns the report.

    Args:
      model: the model.
      checkpoint: an opened checkpoint.
      may_be_new: patterns of weights that may be missing.
      may_be_left: patterns of the checkpoint's weights that the model may lack.
      may_change: patterns of weights whose shape may be another.
    """
    from bert_tf.checkpoint import restore
    from bert_tf.modeling.models import named_variables

    variables = named_variables(model)
    report = restore.merge(
        {name: tuple(variable.shape) for name, variable in variables.items()},
        checkpoint,
        allow_missing=may_be_new,
        allow_extra=may_be_left,
        allow_misshapen=may_change,
    )
    for name, value in restore.values(checkpoint, report):
        variables[name].assign(value)
    return report


def check_same_model(folder: str, config: BertConfig, vocab_file: str | None) -> None:
    """Checks that a run in a folder is resumed with the model that it began with.

    Raises:
      ValueError: for another vocabulary, or a configuration that computes something else.
    """
    from bert_tf.checkpoint import restore

    config_file = paths.join(folder, restore.ORIGINAL_CONFIG_FILE)
    if paths.exists(config_file):
        began = BertConfig.from_json_file(config_file).to_dict()
        now = config.to_dict()
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
    began_file = paths.join(folder, restore.VOCAB_FILE)
    if vocab_file is not None and paths.exists(began_file):
        with (
            paths.open_file(began_file, "rb") as began_with,
            paths.open_file(vocab_file, "rb") as given,
        ):
            if began_with.read() != given.read():
                raise ValueError(
                    f"{vocab_file} is not the vocabulary that the run in {folder} began "
                    "with: give that one, or another --output_dir"
                )


def began_settings(folder: str, settings_file: str, now: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings with which the run in a folder began; warns of those that differ now.

    Where the folder does not say, they are `now`.
    """
    began = (read_if_there(paths.join(folder, settings_file)) or {}).get("training") or {}
    warn_of_changes(folder, began, now)
    return began or dict(now)


def warn_of_changes(folder: str, began: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Warns of settings that differ from those with which the run in a folder began."""
    changed = [
        f"{key} {began[key]} -> {value}"
        for key, value in now.items()
        if key in began and began[key] != value
    ]
    if changed:
        logging.warning(
            "The run in %s goes on with other settings than it began with: %s. Its result will be "
            "that of neither; give another --output_dir for a run of its own.",
            folder,
            ", ".join(changed),
        )


def write_model_files(folder: str, config: BertConfig, vocab_file: str | None) -> None:
    """Writes a model's configuration and vocabulary into a folder."""
    from bert_tf.checkpoint import restore

    paths.make_dirs(folder)
    config.to_json_file(paths.join(folder, restore.ORIGINAL_CONFIG_FILE))
    target = paths.join(folder, restore.VOCAB_FILE)
    if vocab_file is not None and target != vocab_file:
        paths.copy(vocab_file, target)
