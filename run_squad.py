"""Fine-tune BERT on SQuAD 1.1 or 2.0, predict answers, score them.

From JSON to exact match and F1, for files in SQuAD's layout in any language.
"""

import dataclasses
import functools
import json
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from absl import logging

from bert_tf import paths
from bert_tf.cli import scripts
from bert_tf.cli.command_line import CommandLine, CommandLineError, import_tensorflow
from bert_tf.config import BertConfig
from bert_tf.predictor import SQUAD_FILE
from data_prep.squad import answers, evaluation, prediction_files, reading, windows
from data_prep.squad.features import WindowFeatures

# Keras and TensorFlow are imported where they are used: --help and a wrong flag answer at once.

CLI = CommandLine(
    "run_squad.py",
    __doc__,
    """\
python run_squad.py --train_file=train-v1.1.json --predict_file=dev-v1.1.json \\
    --init_checkpoint=uncased_L-12_H-768_A-12/bert_model.ckpt \\
    --bert_config_file=uncased_L-12_H-768_A-12/bert_config.json \\
    --vocab_file=uncased_L-12_H-768_A-12/vocab.txt --do_train --do_predict \\
    --train_batch_size=12 --learning_rate=3e-5 --num_train_epochs=2 --output_dir=squad_output""",
)
with CLI.group("Data"):
    CLI.string("train_file", None, "SQuAD file (JSON) to train on.")
    CLI.string("predict_file", None, "SQuAD file to answer; scored where it has answers.")
    CLI.string("output_dir", None, "Folder for checkpoints, predictions and scores.")
    CLI.boolean("do_train", False, "Train.")
    CLI.boolean("do_predict", False, "Answer the questions of predict_file.")
    CLI.boolean(
        "version_2_with_negative", False, "SQuAD 2.0: some questions have no answer in the text."
    )
    CLI.enum(
        "several_answers",
        "refuse",
        reading.SEVERAL_ANSWERS,
        "What training makes of a question with several different answers: an error, the first "
        "one, or an example of each.",
    )
    CLI.boolean(
        "character_level",
        False,
        "Answers may begin and end at any character: for Chinese and other text without spaces.",
    )
scripts.model_flags(CLI)
with CLI.group("Texts"):
    scripts.text_flags(CLI)
    CLI.integer("max_seq_length", 384, "Longest window in tokens, question included.", 3)
    CLI.integer("doc_stride", 128, "Tokens by which a window begins after the one before.")
    CLI.integer("max_query_length", 64, "Longer questions are cut.")
    CLI.boolean(
        "pad_to_max_length",
        False,
        "Pad every batch to max_seq_length, as the original "
        "does, instead of grouping windows by length.",
    )
with CLI.group("Training"):
    CLI.integer("train_batch_size", 32, "Windows of a step, over all replicas.", 1)
    CLI.float("learning_rate", 5e-5, "Peak of the learning rate.", 0.0)
    CLI.float("num_train_epochs", 3.0, "Passes over the windows of the training set.", 0.0)
    CLI.float("warmup_proportion", 0.1, "Share of the steps in which the rate rises.", 0.0)
    CLI.boolean(
        "steps_from_examples",
        False,
        "Count an epoch as the original does: by questions, of which long texts make several "
        "windows.",
    )
    scripts.run_flags(CLI)
    CLI.boolean(
        "bilstm_head",
        False,
        "Put a bidirectional LSTM between the encoder and the output, as in section 5.1 of the "
        "paper.",
    )
scripts.optimizer_flags(CLI)
with CLI.group("Prediction and scores"):
    CLI.integer("predict_batch_size", 8, "Windows of a prediction batch.", 1)
    CLI.integer("n_best_size", 20, "Answers to keep of each question.", 1)
    CLI.integer("max_answer_length", 30, "Longest answer in tokens.", 1)
    CLI.float(
        "null_score_diff_threshold",
        0.0,
        "SQuAD 2.0: no answer where its score is above the best answer's by more than this.",
    )
    CLI.enum(
        "tune_threshold",
        "off",
        ["off", "f1", "exact"],
        "SQuAD 2.0: find the threshold that scores best on predict_file, write the predictions "
        "with it, and keep it for later runs of this output_dir.",
    )
    CLI.enum(
        "segments",
        "words",
        ["words", "mixed"],
        "How scores compare texts; mixed is CMRC 2018's, for Chinese.",
    )
    CLI.string(
        "ensemble",
        None,
        "Output folders of several runs, comma-separated: their probabilities are averaged, and "
        "the predictions written to output_dir.",
    )
    CLI.boolean("verbose_logging", False, "List everything that reading the files counted.")
scripts.device_flags(CLI)

# Windows that are predicted and decoded together.
PREDICTION_POOL = 2048

# A test's place to kill a run at a step; see bert_tf.training.loop.train.
AFTER_LOOP: Any = None


@dataclasses.dataclass(frozen=True)
class Setup:
    """What a command works with."""

    flags: Any
    config: BertConfig
    tokenizer: Any
    strategy: Any
    init: Any  # bert_tf.checkpoint.restore.Checkpoint, or None
    vocab_file: str
    bilstm: bool


def main(argv: Sequence[str]) -> dict[str, Any]:
    """Runs the command; returns the scores, if there were any."""
    flags = CLI.parse(argv)
    run = flags.ensemble.split(",")[0].strip() if flags.ensemble else flags.output_dir
    # Not of --init_checkpoint: a model of 2.0 may be asked for answers alone.
    scripts.take_saved_settings(CLI, flags, SQUAD_FILE, SAVED, [run])
    check_flags(flags)
    import_tensorflow()

    strategy = scripts.make_strategy(
        flags, {"train_batch_size": flags.do_train, "predict_batch_size": flags.do_predict}
    )
    with scripts.output_folder(flags, strategy):
        if flags.do_predict:
            check_predict_file(flags)
        if flags.ensemble:
            members = [each.strip() for each in flags.ensemble.split(",")]
            models = [open_member(flags, strategy, folder) for folder in members]
            check_members(flags, models)
            return predict(models[0][0], models)
        setup = prepare(flags, strategy)
        model = make_model(setup)
        if flags.do_train:
            train(setup, model)
        if not flags.do_predict:
            return {}
        load_trained(setup, model)
        return predict(setup, [(setup, model)])


# Flags, files and models.

# How a trained model's texts were cut, and what its answers are; taken from the folder where a
# command that only predicts does not say otherwise.
SAVED = (
    "version_2_with_negative",
    "character_level",
    "max_seq_length",
    "doc_stride",
    "max_query_length",
)


def check_flags(flags: Any) -> None:
    """Checks what can be checked before anything is read or imported."""
    known = flags.output_dir and paths.exists(paths.join(flags.output_dir, SQUAD_FILE))
    missing = [] if flags.output_dir else [("output_dir", "the folder for checkpoints and results")]
    if flags.do_train and not flags.train_file:
        missing.append(("train_file", "the questions to train on; needed with --do_train"))
    if flags.do_predict and not flags.predict_file:
        missing.append(("predict_file", "the questions to answer; needed with --do_predict"))
    if not (flags.init_checkpoint or known or flags.ensemble):
        beside = "; not needed with an --init_checkpoint that has one beside it"
        missing += [
            (name, what + beside)
            for name, what in (
                ("bert_config_file", "the model's sizes"),
                ("vocab_file", "the vocabulary"),
            )
            if not getattr(flags, name)
        ]
    if not (flags.do_train or flags.do_predict):
        missing.append(("do_train or --do_predict", "what to do; at least one"))
    CLI.require(missing)
    windows.check_lengths(flags.max_seq_length, flags.doc_stride, flags.max_query_length)
    scripts.check_optimizer_flags(CLI, flags)
    if flags.warmup_proportion > 1:
        raise CommandLineError(
            f"--warmup_proportion is {flags.warmup_proportion}; it is a share, from 0 to 1"
        )
    if flags.do_train and flags.num_train_epochs == 0:
        raise CommandLineError("--num_train_epochs is 0: there is nothing to train")
    if flags.tune_threshold != "off" and not (flags.version_2_with_negative and flags.do_predict):
        raise CommandLineError(
            "--tune_threshold needs --version_2_with_negative and --do_predict: other questions "
            "always have an answer"
        )
    if flags.ensemble and (flags.do_train or flags.init_checkpoint):
        raise CommandLineError(
            "--ensemble predicts with trained folders: it does not go with --do_train and "
            "--init_checkpoint"
        )
    if flags.ensemble and "," not in flags.ensemble:
        raise CommandLineError(f"--ensemble={flags.ensemble}: give at least two folders")


def check_predict_file(flags: Any) -> None:
    """Reads the file once, so that what is wrong with it is found before the training."""
    count = 0
    for question in reading.read_questions(flags.predict_file):
        count += 1
        if flags.tune_threshold != "off" and question.answers is None:
            raise ValueError(
                f"{question.where}: the key 'answers' is missing: there is nothing to tune the "
                "threshold by"
            )
        if flags.segments == "mixed" and question.answers is not None and not question.answers:
            raise ValueError(
                f"{question.where}: the question has no answer: --segments=mixed scores files in "
                "which all have one"
            )
    if not count:
        raise ValueError(f"{flags.predict_file}: there are no questions in the file")


def prepare(flags: Any, strategy: Any) -> Setup:
    """Opens the checkpoint, checks that all fits together, and chooses the device."""
    from bert_tf.checkpoint import original

    files = scripts.open_model(flags)
    tokenizer = scripts.make_tokenizer(CLI, flags, files, SQUAD_FILE)
    assert files.vocab_file is not None
    scripts.check_vocabulary(files.config, tokenizer.vocab_size, files.vocab_file)
    scripts.check_length(flags.max_seq_length, files.config)
    if flags.do_train:
        scripts.warn_of_gelu(files.config)
    scripts.check_has_weights(flags, files)
    latest = original.latest_checkpoint(flags.output_dir)
    folder = files.init.folder if files.init and not latest else flags.output_dir
    saved = scripts.read_settings(folder, SQUAD_FILE) or {}
    bilstm = flags.bilstm_head if CLI.given("bilstm_head") else saved.get("bilstm_head", False)
    if latest and saved.get("bilstm_head", False) != bilstm:
        raise ValueError(
            f"the run in {flags.output_dir} began {'without' if bilstm else 'with'} "
            "--bilstm_head: go on so, or give another --output_dir"
        )
    return Setup(flags, files.config, tokenizer, strategy, files.init, files.vocab_file, bilstm)


def make_model(setup: Setup) -> Any:
    """Makes the model with new weights."""
    from bert_tf.modeling.models import BertForSquad

    with setup.strategy.scope():
        return BertForSquad(
            setup.config,
            seed=setup.flags.seed,
            dtype=scripts.PRECISIONS[setup.flags.precision],
            bilstm=setup.bilstm,
        )


HEAD = ("cls/squad/*", "bilstm/*")
OTHER_HEADS = ("cls/predictions/*", "cls/seq_relationship/*", "output_weights", "output_bias")


def load_init(setup: Setup, model: Any) -> Any:
    """Sets the weights to those of --init_checkpoint; the head may be new. Returns the report."""
    return scripts.load_weights(
        model, setup.init, (*HEAD, "bert/pooler/*"), (*OTHER_HEADS, "bilstm/*"), HEAD
    )


def load_trained(setup: Setup, model: Any) -> None:
    """Sets the weights to predict with: the latest of output_dir, or --init_checkpoint's."""
    from bert_tf.checkpoint import original, restore

    latest = original.latest_checkpoint(setup.flags.output_dir)
    if latest is not None:
        scripts.load_weights(model, restore.load(latest))
        logging.info("Using the weights of %s", latest)
        return
    report = load_init(setup, model)
    if any(name.startswith("cls/squad/") for name in report.newly_made):
        logging.warning(
            "THE HEAD IS RANDOM: %s has none for questions, so the answers mean nothing. Train "
            "first (--do_train), or give a fine-tuned checkpoint.",
            setup.init.prefix,
        )
    logging.info("Using the weights of %s", setup.init.prefix)


# Training.


def train(setup: Setup, model: Any) -> None:
    """Trains from where the run stands to its end. `model` is new."""
    from bert_tf.checkpoint import restore
    from bert_tf.modeling.losses import squad_loss
    from bert_tf.training import distribution
    from bert_tf.training.loop import train as train_loop
    from bert_tf.training.run_folder import RunFolder
    from data_prep.input_pipeline import TrainBatches, train_dataset

    flags = setup.flags
    data, questions = read_training(setup)
    counted = questions if flags.steps_from_examples else len(data)
    what = "questions" if flags.steps_from_examples else "windows"
    steps = scripts.count_steps(counted, what, flags.train_batch_size, flags.num_train_epochs)
    warmup = int(steps * flags.warmup_proportion)
    folder = RunFolder(flags.output_dir, flags.keep_checkpoint_max)
    latest = folder.latest()
    settings = settings_of(setup, data)
    if latest is not None:
        # Does it fit? Asked before anything in the folder is replaced.
        scripts.check_same_model(flags.output_dir, setup.config, setup.vocab_file)
        check_same_texts(setup)
        scripts.load_weights(model, restore.load(latest))
        settings = scripts.began_settings(flags.output_dir, SQUAD_FILE, settings)
    elif setup.init is not None:
        logging.info("%s", load_init(setup, model))
    if distribution.is_chief(setup.strategy):
        write_setup(setup, {"training": settings})
    optimizer = scripts.make_optimizer(flags, flags.learning_rate, steps, warmup)
    step = scripts.make_step(flags, model, squad_loss(), optimizer, setup.strategy)
    static = flags.pad_to_max_length or scripts.uses_tpu(flags)
    batches = TrainBatches(
        data.lengths, flags.train_batch_size, flags.seed, group_by_length=not static
    )

    def make_dataset(start: int, end: int) -> Any:
        def of_host(**shard: int) -> Any:
            dataset = train_dataset(data, batches, start, end, pad_to_max_length=static, **shard)
            return dataset.map(with_positions)

        return distribution.distribute(setup.strategy, of_host)

    logging.info(
        "Training: %d windows of %d questions, %d steps of %d, warm-up %d steps, learning rate %g",
        len(data),
        questions,
        steps,
        flags.train_batch_size,
        warmup,
        flags.learning_rate,
    )
    train_loop(
        step,
        make_dataset,
        folder,
        scripts.make_schedule(flags, steps, {"examples_per_second": flags.train_batch_size}),
        after_loop=AFTER_LOOP,
    )


def check_same_texts(setup: Setup) -> None:
    """Checks that a run is resumed with texts that are cut as before.

    Raises:
      ValueError: names what differs.
    """
    path = paths.join(setup.flags.output_dir, SQUAD_FILE)
    saved = scripts.read_if_there(path) or {}
    now = {
        **scripts.tokenizer_settings(setup.tokenizer),
        "character_level": setup.flags.character_level,
    }
    other = [
        f"{name} {saved[name]} -> {value}"
        for name, value in now.items()
        if saved.get(name, value) != value
    ]
    if other:
        raise ValueError(
            f"the run in {setup.flags.output_dir} read its texts in another way "
            f"({', '.join(other)}): go on as it began, or give another --output_dir"
        )


def with_positions(batch: dict[str, Any]) -> dict[str, Any]:
    """Gives a batch's labels the names that the loss knows."""
    batch = dict(batch)
    labels = batch.pop("label_ids")
    return {**batch, "start_positions": labels[:, 0], "end_positions": labels[:, 1]}


def read_training(setup: Setup) -> tuple[WindowFeatures, int]:
    """Returns the training windows, and the number of questions that they come from."""
    flags = setup.flags
    report = reading.Report()
    examples = list(
        reading.read_examples(
            flags.train_file,
            True,
            flags.version_2_with_negative,
            flags.several_answers,
            flags.character_level,
            report,
        )
    )
    if not examples:
        raise ValueError(f"{flags.train_file}: no answer was found in its text: nothing to learn")
    # As the original: windows of one text do not stand in a row.
    random.Random(flags.seed).shuffle(examples)
    made = list(
        windows.make_windows(
            examples,
            setup.tokenizer,
            flags.max_seq_length,
            flags.doc_stride,
            flags.max_query_length,
            True,
            report,
        )
    )
    log_report(flags, flags.train_file, report)
    if not made:
        raise ValueError(f"{flags.train_file}: its texts have no tokens: nothing to learn")
    return WindowFeatures(made, flags.max_seq_length), len(examples)


def log_report(flags: Any, path: str, report: reading.Report) -> None:
    """Says what was read."""
    for line in report.lines(10**9 if flags.verbose_logging else 20):
        logging.info("%s", line if line.startswith(path) else f"{path}: {line}")


def settings_of(setup: Setup, data: WindowFeatures) -> dict[str, Any]:
    """Returns what the weights of a run depend on, besides the model."""
    flags = setup.flags
    names = (
        "learning_rate",
        "train_batch_size",
        "num_train_epochs",
        "steps_from_examples",
        "seed",
        "warmup_proportion",
        "pad_to_max_length",
        "max_seq_length",
        "doc_stride",
        "max_query_length",
        "version_2_with_negative",
        "several_answers",
    )
    return {
        **{name: getattr(flags, name) for name in names},
        **scripts.optimizer_settings(flags),
        "training_windows": len(data),
        "training_data_crc32": data.fingerprint(),
    }


def write_setup(setup: Setup, more: Mapping[str, Any]) -> None:
    """Writes what a later command or program needs to use the folder's checkpoints."""
    flags = setup.flags
    scripts.write_model_files(flags.output_dir, setup.config, setup.vocab_file)
    names = (
        "version_2_with_negative",
        "null_score_diff_threshold",
        "max_seq_length",
        "doc_stride",
        "max_query_length",
        "n_best_size",
        "max_answer_length",
        "character_level",
    )
    path = paths.join(flags.output_dir, SQUAD_FILE)
    saved = scripts.read_if_there(path) or {}
    now = {name: getattr(flags, name) for name in names}
    if CLI.given("null_score_diff_threshold"):
        saved.pop("tuned", None)
    elif "tuned" in saved:
        now["null_score_diff_threshold"] = saved["tuned"]["null_score_diff_threshold"]
    settings = {
        **saved,
        **now,
        **scripts.tokenizer_settings(setup.tokenizer),
        "bilstm_head": setup.bilstm,
        **more,
    }
    paths.write_json(path, settings)


# Prediction.


def open_member(flags: Any, strategy: Any, folder: str) -> tuple[Setup, Any]:
    """Opens one run of an ensemble."""
    from bert_tf.checkpoint import original, restore

    prefix = original.latest_checkpoint(folder)
    settings = scripts.read_if_there(paths.join(folder, SQUAD_FILE))
    if prefix is None or settings is None:
        raise CommandLineError(
            f"--ensemble: {folder or 'an empty name'} is no output folder of run_squad.py that "
            "trained"
        )
    init = restore.load(prefix)
    if init.config is None:
        raise ValueError(f"{folder} has no bert_config.json")
    files = scripts.ModelFiles(init.config, init, flags.vocab_file or init.vocab_file)
    tokenizer = scripts.make_tokenizer(CLI, flags, files, SQUAD_FILE)
    assert files.vocab_file is not None
    scripts.check_vocabulary(files.config, tokenizer.vocab_size, files.vocab_file)
    scripts.check_length(flags.max_seq_length, files.config)
    setup = Setup(
        flags,
        files.config,
        tokenizer,
        strategy,
        init,
        files.vocab_file,
        settings.get("bilstm_head", False),
    )
    model = make_model(setup)
    scripts.load_weights(model, init)
    logging.info("Using the weights of %s", prefix)
    return setup, model


def check_members(flags: Any, models: Sequence[tuple[Setup, Any]]) -> None:
    """Checks that all runs of an ensemble read the same tokens."""
    first = models[0][0]
    for setup, _ in models[1:]:
        same_words = setup.tokenizer.vocab == first.tokenizer.vocab
        cut_alike = scripts.tokenizer_settings(setup.tokenizer) == scripts.tokenizer_settings(
            first.tokenizer
        )
        if not (same_words and cut_alike):
            raise ValueError(
                f"--ensemble: {setup.init.prefix} has another vocabulary or tokenization than "
                f"{first.init.prefix}: their tokens cannot be averaged"
            )


def predict(setup: Setup, models: Sequence[tuple[Setup, Any]]) -> dict[str, Any]:
    """Answers the questions, writes the files, and scores them where there are answers."""
    with scripts.results_folder(setup.flags, setup.strategy) as folder:
        return predict_into(folder, setup, models)


def predict_into(folder: str, setup: Setup, models: Sequence[tuple[Setup, Any]]) -> dict[str, Any]:
    """As `predict`, into a folder."""
    flags = setup.flags
    version_2 = flags.version_2_with_negative
    threshold = flags.null_score_diff_threshold
    saved = scripts.read_if_there(paths.join(flags.output_dir, SQUAD_FILE)) or {}
    if version_2 and not CLI.given("null_score_diff_threshold") and "tuned" in saved:
        threshold = saved["tuned"]["null_score_diff_threshold"]
        logging.info("null_score_diff_threshold %g, as it was tuned before", threshold)
    report = reading.Report()
    decoder = answers.Decoder(
        setup.tokenizer, flags.n_best_size, flags.max_answer_length, version_2, threshold
    )
    nbest = paths.join(folder, "nbest_predictions.json")
    target = paths.join(folder, "predictions.json")
    written = prediction_files.write_predictions(
        decoder(scored_examples(setup, models, report)),
        target,
        nbest,
        paths.join(folder, "null_odds.json") if version_2 else None,
    )
    # What an earlier command found of other predictions would stand beside these.
    for name in ("eval_results.json", *(() if version_2 else ("null_odds.json",))):
        if paths.exists(paths.join(folder, name)):
            paths.remove(paths.join(folder, name))
    log_report(flags, flags.predict_file, report)
    print(f"***** {len(written.texts)} answers in {target}, the best of each in {nbest} *****")
    try:
        gold = evaluation.read_gold(flags.predict_file)
    except ValueError as error:
        if flags.tune_threshold != "off":
            raise
        logging.info("Not scored: %s", error)
        return {}
    texts = written.texts
    if flags.tune_threshold != "off":
        threshold, score = evaluation.best_threshold(
            gold, written.best_texts, written.null_odds, flags.tune_threshold
        )
        texts = prediction_files.apply_threshold(written.best_texts, written.null_odds, threshold)
        prediction_files.write_by_id(target, texts)
        tuned = {"null_score_diff_threshold": threshold, "on": flags.predict_file}
        if not flags.ensemble and folder == flags.output_dir:
            write_setup(setup, {"null_score_diff_threshold": threshold, "tuned": tuned})
        print(
            f"  null_score_diff_threshold {threshold!r} gives the best {flags.tune_threshold}, "
            f"{score:.2f}; the predictions are written with it"
        )
    version = "2.0" if version_2 else "1.1"
    if not version_2 and gold.is_version_2:
        version = "2.0"  # Answered all the same, but scored by the file's rules.
    scores = evaluation.evaluate(
        gold, texts, written.null_odds or None, version, flags.segments, na_prob_thresh=np.inf
    )
    path = paths.join(folder, "eval_results.json")
    with paths.atomic_write(path) as handle:
        handle.write(json.dumps(scores, indent=2) + "\n")
    print(f"***** Scores, in {path} *****")
    for name, value in scores.items():
        print(f"  {name} = {value}")
    return scores


def scored_examples(
    setup: Setup, models: Sequence[tuple[Setup, Any]], report: reading.Report
) -> Iterator[answers.Scored]:
    """Yields each example of predict_file with its windows and their logits; streams."""
    flags = setup.flags
    examples = reading.read_examples(
        flags.predict_file,
        False,
        flags.version_2_with_negative,
        character_level=flags.character_level,
        report=report,
    )
    make = windows.WindowMaker(
        setup.tokenizer,
        flags.max_seq_length,
        flags.doc_stride,
        flags.max_query_length,
        False,
        report,
    )
    runs = [make_runner(each, model) for each, model in models]
    pool: list[tuple[reading.Example, list[windows.Window]]] = []
    size = 0
    for item in windows.windows_by_example(examples, make):
        pool.append(item)
        size += len(item[1])
        if size >= PREDICTION_POOL:
            yield from scored_pool(pool, runs)
            logging.info("%d windows of %d questions are read", report.windows, report.questions)
            pool, size = [], 0
    yield from scored_pool(pool, runs)


def scored_pool(
    pool: Sequence[tuple[reading.Example, list[windows.Window]]], runs: Sequence[Any]
) -> Iterator[answers.Scored]:
    """Runs the models over the windows of some examples."""
    flat = [window for _, its in pool for window in its]
    starts = ends = np.zeros((0, 0))
    if flat:
        outputs = [run(flat) for run in runs]
        lengths = [window.length for window in flat]
        starts = answers.average_logits([each["start_logits"] for each in outputs], lengths)
        ends = answers.average_logits([each["end_logits"] for each in outputs], lengths)
    yield from answers.by_example(pool, starts, ends)


def make_runner(setup: Setup, model: Any) -> Any:
    """Returns a function windows -> {"start_logits": [N, T], "end_logits": [N, T]}."""
    from bert_tf.training import distribution
    from bert_tf.training.step import EvalStep
    from data_prep.input_pipeline import EvalBatches, eval_dataset

    flags = setup.flags
    step = EvalStep(model, setup.strategy, None, ("start_logits", "end_logits"))
    static = flags.pad_to_max_length or scripts.uses_tpu(flags)

    def run(flat: Sequence[windows.Window]) -> dict[str, np.ndarray]:
        data = WindowFeatures(flat, flags.max_seq_length)
        batches = EvalBatches(data.lengths, flags.predict_batch_size)

        make = functools.partial(eval_dataset, data, batches, pad_to_max_length=static)
        dataset = distribution.distribute(setup.strategy, make)
        return step.run(dataset, len(data), len(batches))

    return run


if __name__ == "__main__":
    CLI.run(main)
