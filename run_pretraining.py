"""Pre-train BERT with masked tokens and next sentences, or go on from a checkpoint.

Reads the TFRecords of create_pretraining_data.py, and those of the original release. Objectives
besides the paper's: masked tokens alone, and left to right (section 5.1 of the paper).
"""

import dataclasses
import functools
import math
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from absl import logging

from bert_tf import paths
from bert_tf.cli import scripts
from bert_tf.cli.command_line import CommandLine, CommandLineError, import_tensorflow
from bert_tf.config import BertConfig
from data_prep import masking

# Keras and TensorFlow are imported where they are used: --help and a wrong flag answer at once.

OBJECTIVES = ("mlm_nsp", "mlm", "ltr")
SETTINGS_FILE = "pretraining.json"

CLI = CommandLine(
    "run_pretraining.py",
    __doc__,
    """\
python run_pretraining.py --input_file='records-*.tfrecord' --output_dir=pretraining_output \\
    --bert_config_file=uncased_L-12_H-768_A-12/bert_config.json \\
    --init_checkpoint=uncased_L-12_H-768_A-12/bert_model.ckpt --do_train --do_eval \\
    --train_batch_size=32 --num_train_steps=20000 --num_warmup_steps=1000 --learning_rate=2e-5""",
)
with CLI.group("Data"):
    CLI.string("input_file", None, "TFRecord files to train on: paths and globs, comma-separated.")
    CLI.string("output_dir", None, "Folder for checkpoints and metrics.")
    CLI.boolean("do_train", False, "Train.")
    CLI.boolean("do_eval", False, "Evaluate, on eval_input_file or else on input_file.")
    CLI.string("eval_input_file", None, "TFRecord files to evaluate on.")
    CLI.integer("max_seq_length", 128, "Length of the records; as they were made.", 3)
    CLI.integer("max_predictions_per_seq", 20, "Masked tokens of a record; as they were made.", 1)
scripts.model_flags(CLI)
with CLI.group("Training"):
    CLI.enum(
        "objective",
        None,
        OBJECTIVES,
        "mlm_nsp: the paper's. mlm: without the next sentence. ltr: left to right, every next "
        "token. By default mlm_nsp, or ltr for a checkpoint that was trained so.",
    )
    CLI.integer("train_batch_size", 32, "Records of a step, over all replicas.", 1)
    CLI.float("learning_rate", 5e-5, "Peak of the learning rate.", 0.0)
    CLI.integer("num_train_steps", 100000, "The step at which the training ends.", 1)
    CLI.integer("num_warmup_steps", 10000, "Steps in which the rate rises.", 0)
    CLI.boolean(
        "init_slots", False, "Take the optimizer's means from init_checkpoint, too: a next phase."
    )
    CLI.boolean(
        "init_step",
        False,
        "Go on counting from init_checkpoint's step: the schedule goes on there.",
    )
    scripts.run_flags(CLI)
    CLI.boolean(
        "report_flops",
        False,
        "Show the operations per second, and their share of what this machine's matrix products "
        "reach. Padding counts, though CPUs leave most of it out: the share may be over 1.",
    )
scripts.optimizer_flags(CLI)
with CLI.group("Evaluation"):
    CLI.integer("eval_batch_size", 8, "Records of an evaluation batch.", 1)
    CLI.integer("max_eval_steps", 100, "Evaluate at most so many batches; 0: all records.", 0)
    CLI.integer(
        "eval_steps",
        0,
        "Evaluate on eval_input_file every so many steps of training too, and keep the weights of "
        "the lowest loss in output_dir/best; 0 evaluates at the end only.",
        0,
    )
with CLI.group("Masking of records that were made with --dynamic_masking"):
    CLI.enum("masking", "static", masking.KINDS, "Single tokens, whole words, or n-grams.")
    CLI.float("masked_lm_prob", 0.15, "Share of the tokens that are masked.")
    CLI.integer("max_ngram", 3, "The longest n-gram.", 1)
    CLI.float("mask_token_share", 0.8, "Share of the masked tokens that become [MASK].")
    CLI.float("random_token_share", 0.1, "Share that become a random token; the rest stay.")
scripts.device_flags(CLI)

# A test's place to kill a run at a step; see bert_tf.training.loop.train.
AFTER_LOOP: Any = None


@dataclasses.dataclass(frozen=True)
class Setup:
    """What a command works with."""

    flags: Any
    files: scripts.ModelFiles
    config: BertConfig
    objective: str
    strategy: Any
    train: Any  # data_prep.pretraining_input.PretrainingData, or None
    eval: Any  # the same


def main(argv: Sequence[str]) -> dict[str, float]:
    """Runs the command; returns the metrics of the evaluation, if there was one."""
    flags = CLI.parse(argv)
    check_flags(flags)
    import_tensorflow()

    strategy = scripts.make_strategy(
        flags,
        {"train_batch_size": flags.do_train, "eval_batch_size": flags.do_eval or flags.eval_steps},
    )
    with scripts.output_folder(flags, strategy):
        setup = prepare(flags, strategy)
        model = make_model(setup)
        evaluator = make_evaluator(setup, model)
        if flags.do_train:
            train(setup, model, evaluator)
        return evaluate(setup, model, evaluator) if flags.do_eval else {}


def check_flags(flags: Any) -> None:
    """Checks what can be checked before anything is read or imported."""
    missing = [
        (name, what)
        for name, what in (
            ("input_file", "the records to train on"),
            ("output_dir", "the folder for checkpoints and results"),
        )
        if not getattr(flags, name) and not (name == "input_file" and only_evaluates(flags))
    ]
    known = flags.output_dir and paths.exists(paths.join(flags.output_dir, SETTINGS_FILE))
    if not (flags.init_checkpoint or flags.bert_config_file or known):
        missing.append(
            (
                "bert_config_file",
                "the model's sizes; not needed with an --init_checkpoint that has them beside it",
            )
        )
    if not (flags.do_train or flags.do_eval):
        missing.append(("do_train or --do_eval", "what to do; at least one"))
    CLI.require(missing)
    scripts.check_optimizer_flags(CLI, flags)
    if flags.eval_steps and not flags.eval_input_file:
        raise CommandLineError(
            "--eval_steps needs --eval_input_file: records that are not trained on"
        )
    if (flags.init_slots or flags.init_step) and not flags.init_checkpoint:
        raise CommandLineError("--init_slots and --init_step need --init_checkpoint")


def only_evaluates(flags: Any) -> bool:
    """Tells whether the command reads evaluation records alone."""
    return bool(flags.do_eval and not flags.do_train and flags.eval_input_file)


def prepare(flags: Any, strategy: Any) -> Setup:
    """Opens the checkpoint and the records, and checks that all fits together."""
    from bert_tf.checkpoint import restore

    files = scripts.open_model(flags)
    objective = choose_objective(flags, files)
    config = files.config.replace(causal_attention=objective == "ltr")
    if files.vocab_file is not None:
        scripts.check_vocabulary(
            config, restore.count_vocabulary(files.vocab_file), files.vocab_file
        )
    scripts.check_length(flags.max_seq_length, config)
    if flags.do_train:
        scripts.warn_of_gelu(config)
    scripts.check_has_weights(flags, files)
    train_data = open_records(flags, files, objective, "input_file") if flags.do_train else None
    eval_data = None
    if flags.eval_steps or flags.do_eval:
        given = flags.eval_input_file is not None
        if not given and train_data is not None:
            logging.warning(
                "No --eval_input_file: the evaluation is on the records that are trained on"
            )
            eval_data = train_data
        else:
            name = "eval_input_file" if given else "input_file"
            eval_data = open_records(flags, files, objective, name)
    return Setup(flags, files, config, objective, strategy, train_data, eval_data)


def choose_objective(flags: Any, files: scripts.ModelFiles) -> str:
    """Returns the objective, by the flag, the run in output_dir, or the checkpoint."""
    saved = scripts.read_if_there(paths.join(flags.output_dir, SETTINGS_FILE)) or {}
    objective = flags.objective or saved.get("objective")
    if objective is None:
        objective = "ltr" if files.config.causal_attention else "mlm_nsp"
    if saved.get("objective", objective) != objective:
        raise ValueError(
            f"the run in {flags.output_dir} began with --objective={saved['objective']}: go on "
            f"with that, or give another --output_dir for {objective}"
        )
    if files.config.causal_attention and objective != "ltr":
        raise ValueError(
            f"the model attends from left to right (causal_attention), which --objective="
            f"{objective} cannot train: give --objective=ltr, or another checkpoint"
        )
    return str(objective)


def open_records(flags: Any, files: scripts.ModelFiles, objective: str, name: str) -> Any:
    """Opens the records that a flag names."""
    from data_prep import corpus
    from data_prep.pretraining_input import PretrainingData, is_masked

    found = corpus.find_files(getattr(flags, name))
    dynamic = None
    if not is_masked(found):
        dynamic = dynamic_masking(flags, files)
        logging.info("--%s: records without masks; %s masks are drawn", name, flags.masking)
    start = time.monotonic()

    def progress(done: int, total: int) -> None:
        logging.info("Checking the records of --%s: %.0f%%", name, 100 * done / total)

    data = PretrainingData(
        found,
        flags.max_seq_length,
        flags.max_predictions_per_seq,
        files.config.vocab_size,
        dynamic,
        objective == "ltr",
        progress,
        files.config.type_vocab_size,
    )
    logging.info(
        "--%s: %s records in %d file%s, checked in %.1f s",
        name,
        f"{len(data):,}",
        len(found),
        "" if len(found) == 1 else "s",
        time.monotonic() - start,
    )
    return data


def dynamic_masking(flags: Any, files: scripts.ModelFiles) -> Any:
    """Returns how to mask records that hold no masks."""
    from bert_tf.tokenization.tokenizer import BertTokenizer
    from data_prep.packed_text import continues, replacement_ids
    from data_prep.pretraining_input import DynamicMasking

    if files.vocab_file is None:
        raise CommandLineError(
            "the records hold no masks (--dynamic_masking): give --vocab_file, which says what "
            "[MASK] is"
        )
    tokenizer = BertTokenizer(files.vocab_file)
    rule = masking.Masking(
        flags.masking,
        flags.max_predictions_per_seq,
        flags.masked_lm_prob,
        flags.mask_token_share,
        flags.random_token_share,
        flags.max_ngram,
    )
    return DynamicMasking(
        rule, tokenizer.mask_id, replacement_ids(tokenizer), continues(tokenizer), flags.seed
    )


def make_model(setup: Setup) -> Any:
    """Makes the model with new weights."""
    from bert_tf.modeling.models import BertPretrainer

    with setup.strategy.scope():
        return BertPretrainer(
            setup.config,
            seed=setup.flags.seed,
            dtype=scripts.PRECISIONS[setup.flags.precision],
            next_sentence=setup.objective == "mlm_nsp",
        )


# Heads that a checkpoint for another use lacks, and those that this one has no use for.
NEW_HEADS = ("cls/predictions/*", "cls/seq_relationship/*", "bert/pooler/*")
OTHER_HEADS = ("cls/*", "output_weights", "output_bias", "bilstm/*")


def train(setup: Setup, model: Any, evaluator: Any) -> None:
    """Trains from where the run stands to its end. `model` is new."""
    from bert_tf.checkpoint import restore
    from bert_tf.modeling.losses import pretraining_loss
    from bert_tf.training import distribution
    from bert_tf.training.loop import Evaluation
    from bert_tf.training.loop import train as train_loop
    from bert_tf.training.run_folder import RunFolder, take_over
    from data_prep.input_pipeline import TrainBatches

    flags, data = setup.flags, setup.train
    folder = RunFolder(flags.output_dir, flags.keep_checkpoint_max)
    latest = folder.latest()
    settings = settings_of(setup)
    loss = pretraining_loss(setup.objective == "mlm_nsp")
    optimizer = scripts.make_optimizer(
        flags, flags.learning_rate, flags.num_train_steps, flags.num_warmup_steps
    )
    # A tenth of records as create_pretraining_data.py makes them is padding.
    step = scripts.make_step(flags, model, loss, optimizer, setup.strategy, skip_padding=True)
    first = 0
    if latest is not None:
        # Does it fit? Asked before anything in the folder is replaced.
        scripts.check_same_model(flags.output_dir, setup.config, setup.files.vocab_file)
        checkpoint = restore.load(latest)
        scripts.load_weights(model, checkpoint)
        settings = scripts.began_settings(flags.output_dir, SETTINGS_FILE, settings)
        first = checkpoint.global_step or 0
    elif setup.files.init is not None:
        report = scripts.load_weights(model, setup.files.init, NEW_HEADS, OTHER_HEADS)
        logging.info("%s", report)
        check_taken(setup)
        take_over(step, setup.files.init, flags.init_slots, flags.init_step)
        if flags.init_slots:
            # The report counts slots among what is no weight of the model.
            logging.info("The optimizer's means are taken over too (--init_slots)")
        first = int(step.global_step.numpy())
        if first >= flags.num_train_steps:
            raise ValueError(
                f"--init_step: {setup.files.init.prefix} is at step {first}, and "
                f"--num_train_steps={flags.num_train_steps} ends before: give the step at which "
                "this phase is to end"
            )
    if distribution.is_chief(setup.strategy):
        scripts.write_model_files(flags.output_dir, setup.config, setup.files.vocab_file)
        paths.write_json(
            paths.join(flags.output_dir, SETTINGS_FILE),
            {"objective": setup.objective, "training": settings},
        )
    batches = TrainBatches(
        np.zeros(len(data), np.int32), flags.train_batch_size, flags.seed, group_by_length=False
    )

    def make_dataset(start: int, end: int) -> Any:
        make = functools.partial(data.train_dataset, batches, start, end)
        return distribution.distribute(setup.strategy, make)

    log_plan(setup, step.optimizer.learning_rate, first)
    evaluation = None
    if flags.eval_steps:
        evaluation = Evaluation(lambda: scores(setup, evaluator), flags.eval_steps, "loss", False)
    with data.raising():
        train_loop(
            step,
            make_dataset,
            folder,
            scripts.make_schedule(flags, flags.num_train_steps, rates(setup)),
            evaluation,
            AFTER_LOOP,
        )


def check_taken(setup: Setup) -> None:
    """Checks that --init_checkpoint has what --init_slots and --init_step take from it."""
    flags, init = setup.flags, setup.files.init
    slots = any(name.endswith("/adam_m") for name in init.shapes)
    for asked, there, flag in (
        (flags.init_slots, slots, "init_slots"),
        (flags.init_step, init.global_step is not None, "init_step"),
    ):
        if asked and not there:
            raise ValueError(
                f"--{flag}: {init.prefix} holds weights alone, as a release and a folder best/ do; "
                f"give a model.ckpt-N of the run itself, or leave --{flag} out"
            )


def log_plan(setup: Setup, learning_rate: Any, first: int) -> None:
    """Says what will be trained, and how the learning rate will go."""
    flags, total = setup.flags, setup.flags.num_train_steps
    size = flags.train_batch_size
    parts = flags.gradient_accumulation_steps
    logging.info(
        "Training (%s): steps %d to %d of %d records each%s, %.2f passes over %s records",
        setup.objective,
        first,
        total,
        size,
        f" in {parts} parts" if parts > 1 else "",
        max(0, total - first) * size / len(setup.train),
        f"{len(setup.train):,}",
    )
    marks = sorted({first, min(flags.num_warmup_steps, total), (first + total) // 2, total})
    logging.info(
        "Learning rate (%s%s): %s",
        flags.lr_decay,
        f", warm-up {flags.num_warmup_steps} steps" if flags.num_warmup_steps else "",
        ", ".join(f"{float(learning_rate(m)):.3g} at step {m}" for m in marks if m >= first),
    )
    if flags.num_warmup_steps >= total:
        logging.warning(
            "The run ends within its warm-up: --num_warmup_steps is %d (10000 by default, as in "
            "the original), --num_train_steps %d",
            flags.num_warmup_steps,
            total,
        )


def rates(setup: Setup) -> dict[str, float]:
    """Returns the amounts of a step whose rates are shown."""
    from bert_tf.training import flops

    flags, config = setup.flags, setup.config
    size, length = flags.train_batch_size, flags.max_seq_length
    found: dict[str, float] = {
        "sequences_per_second": size,
        "tokens_per_second": size * length,
    }
    if flags.report_flops:
        work = flops.step_flops(config, size, length, setup.train.predictions)
        rows = size * length // flags.gradient_accumulation_steps
        replicas = setup.strategy.num_replicas_in_sync
        rate = flops.matmul_rate(
            flags.precision, rows // replicas, config.hidden_size, config.intermediate_size
        )
        logging.info(
            "A step needs %.4g GFLOP; this machine's %s matrix products reach %.4g GFLOP/s%s",
            work / 1e9,
            flags.precision,
            rate / 1e9,
            "" if replicas == 1 else f" on each of {replicas} devices",
        )
        found["gflops_per_second"] = work / 1e9
        found["matmul_share"] = work / (rate * replicas)
    return found


def settings_of(setup: Setup) -> dict[str, Any]:
    """Returns what the weights of a run depend on, besides the model."""
    flags = setup.flags
    names = (
        "learning_rate",
        "train_batch_size",
        "num_train_steps",
        "num_warmup_steps",
        "seed",
        "max_seq_length",
        "max_predictions_per_seq",
        "init_slots",
        "init_step",
    )
    return {
        **{name: getattr(flags, name) for name in names},
        **scripts.optimizer_settings(flags),
        "training_records": len(setup.train),
        "training_data_crc32": setup.train.fingerprint(),
    }


# Evaluation.


def make_evaluator(setup: Setup, model: Any) -> Any:
    """Returns the evaluation's step, or None where nothing is evaluated."""
    from bert_tf.modeling.losses import pretraining_scores
    from bert_tf.training.step import EvalStep

    if setup.eval is None:
        return None
    pairs = setup.objective == "mlm_nsp"
    return EvalStep(
        model,
        setup.strategy,
        lambda outputs, batch: pretraining_scores(outputs, batch, pairs),
        outputs=(),
    )


def scores(setup: Setup, evaluator: Any) -> dict[str, float]:
    """Returns the metrics of the model as it is; each record counts once."""
    from bert_tf.training import distribution
    from data_prep.input_pipeline import EvalBatches

    flags, data = setup.flags, setup.eval
    count = len(data)
    if flags.max_eval_steps:
        count = min(count, flags.max_eval_steps * flags.eval_batch_size)
    replicas = setup.strategy.num_replicas_in_sync
    # A batch that is larger than the data would be padding.
    size = min(flags.eval_batch_size, -(-count // replicas) * replicas)
    batches = EvalBatches(np.zeros(count, np.int32), size)

    with data.raising():
        make = functools.partial(data.eval_dataset, batches)
        dataset = distribution.distribute(setup.strategy, make)
        found = evaluator.run(dataset, count, len(batches))
    sums = {name: float(value.sum(dtype=np.float64)) for name, value in found.items()}
    predicted = sums["masked_lm_count"]
    if not predicted:
        raise ValueError(
            f"none of the {count} records has a masked token: there is nothing to evaluate"
        )
    result = {
        "masked_lm_loss": sums["masked_lm_loss"] / predicted,
        "masked_lm_accuracy": sums["masked_lm_right"] / predicted,
    }
    result["loss"] = result["masked_lm_loss"]
    if setup.objective == "mlm_nsp":
        result["next_sentence_loss"] = sums["next_sentence_loss"] / count
        result["next_sentence_accuracy"] = sums["next_sentence_right"] / count
        result["loss"] += result["next_sentence_loss"]
    result["masked_lm_perplexity"] = math.exp(min(result["masked_lm_loss"], 700.0))
    return result


def evaluate(setup: Setup, model: Any, evaluator: Any) -> dict[str, float]:
    """Evaluates the latest checkpoint and writes eval_results.txt."""
    from bert_tf.checkpoint import original, restore

    flags = setup.flags
    latest = original.latest_checkpoint(flags.output_dir)
    checkpoint = setup.files.init if latest is None else restore.load(latest)
    if latest is None:
        report = scripts.load_weights(model, checkpoint, NEW_HEADS, OTHER_HEADS)
        heads = [name for name in report.newly_made if name.startswith("cls/")]
        if heads:
            logging.warning(
                "THE HEAD IS RANDOM: %s has no %s, so the results mean nothing. Train first "
                "(--do_train), or give a pre-training checkpoint.",
                checkpoint.prefix,
                ", ".join(heads),
            )
    else:
        scripts.load_weights(model, checkpoint)
    logging.info("Using the weights of %s", checkpoint.prefix)
    total = len(setup.eval)
    count = min(total, (flags.max_eval_steps or total) * flags.eval_batch_size)
    if count < total:
        logging.warning(
            "Evaluating the first %d of %d records: --max_eval_steps=%d batches of %d. "
            "--max_eval_steps=0 takes all.",
            count,
            total,
            flags.max_eval_steps,
            flags.eval_batch_size,
        )
    metrics: dict[str, Any] = scores(setup, evaluator)
    metrics["global_step"] = checkpoint.global_step or original.step_of(checkpoint.prefix) or 0
    print(f"***** Evaluation on {count} records *****")
    with (
        scripts.results_folder(flags, setup.strategy) as folder,
        paths.atomic_write(paths.join(folder, "eval_results.txt")) as handle,
    ):
        for key in sorted(metrics):
            value = metrics[key]
            text = f"{key} = {value if isinstance(value, int) else str(np.float32(value))}"
            print(f"  {text}")
            handle.write(text + "\n")
    return metrics


if __name__ == "__main__":
    CLI.run(main)
