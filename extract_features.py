"""Write the hidden states of a BERT for the texts of a file, or vectors made of them.

One text a line, or a pair with " ||| " between; one output a line, in the same order. Neither file
is ever held whole, and a command that was killed goes on where it was when it is given again.
"""

from collections.abc import Sequence
from typing import Any

from absl import logging

from bert_tf import features, paths
from bert_tf.cli import scripts
from bert_tf.cli.command_line import CommandLine, CommandLineError, import_tensorflow
from bert_tf.predictor import SQUAD_FILE, TASK_FILE

# Keras and TensorFlow are imported where they are used: --help and a wrong flag answer at once.

CLI = CommandLine(
    "extract_features.py",
    __doc__,
    """\
python extract_features.py --input_file=texts.txt --output_file=features.jsonl \\
    --init_checkpoint=uncased_L-12_H-768_A-12/bert_model.ckpt \\
    --bert_config_file=uncased_L-12_H-768_A-12/bert_config.json \\
    --vocab_file=uncased_L-12_H-768_A-12/vocab.txt \\
    --layers=-1,-2,-3,-4 --max_seq_length=128 --batch_size=8""",
)
with CLI.group("Texts and features"):
    CLI.string("input_file", None, "The texts, UTF-8, one a line; a pair is `first ||| second`.")
    CLI.string(
        "output_file",
        None,
        "Where the features go; until it is finished it is called <output_file>.partial. A file "
        "of JSON lines, or a folder of npz or parquet files.",
    )
    CLI.enum(
        "output_format",
        "jsonl",
        features.FORMATS,
        "jsonl is the original's; npz and parquet hold the same in a third of the space, in full "
        "precision.",
    )
    CLI.string(
        "layers",
        "-1,-2,-3,-4",
        "Layers to write: 0, 1, ... from the first, -1, -2, ... from the last; embeddings is what "
        "goes into the first.",
    )
    CLI.enum(
        "pooling",
        "none",
        features.POOLINGS,
        "A vector for each text and layer in place of one for each token: that of [CLS], or the "
        "mean over all tokens. concat_last_4 joins the means of the last four layers.",
    )
    CLI.integer(
        "max_seq_length", 128, "Longer texts are cut to so many tokens; they are counted.", 3
    )
    scripts.text_flags(CLI)
scripts.model_flags(CLI)
with CLI.group("Computing"):
    CLI.integer("batch_size", 32, "Texts of a batch, over all devices.", 1)
    CLI.boolean(
        "pad_to_max_length",
        False,
        "Pad every batch to max_seq_length, as the original does, instead of to its own longest "
        "text.",
    )
    CLI.enum("precision", "float32", list(scripts.PRECISIONS), "Of the arithmetic.")
    CLI.integer("num_threads", 0, "CPU threads of an operation; 0 lets TensorFlow choose.", 0)
    CLI.boolean(
        "use_one_hot_embeddings",
        False,
        "The original's, for TPUs. It changes no result; embeddings are looked up either way.",
    )
scripts.device_flags(CLI)

# Weights that a checkpoint may have beside the encoder's: heads of any task.
HEADS = ("cls/*", "output_weights", "output_bias", "bilstm/*", "bert/pooler/*")
POOLER = ("bert/pooler/*",)

# A test's place to kill a run: called with the number of lines done after each pool.
AFTER_POOL: Any = None


def main(argv: Sequence[str]) -> features.Progress:
    """Runs the command; returns what was done."""
    flags = CLI.parse(argv)
    check_flags(flags)
    import_tensorflow()

    from bert_tf.training import distribution

    strategy = scripts.make_strategy(flags, {"batch_size": True})
    if distribution.several_workers(strategy):
        raise CommandLineError(
            "several workers do not share one output: unset TF_CONFIG, cut the input into a file "
            "for each machine, and run this command on each"
        )
    files = open_model(flags)
    features.check_output(flags.output_file, flags.output_format, model_files(files))
    tokenizer = make_tokenizer(flags, files)
    layers = features.parse_layers(flags.layers, files.config.num_hidden_layers)
    encoder = make_encoder(flags, strategy, files)
    extractor = features.FeatureExtractor(
        encoder,
        layers,
        flags.pooling,
        flags.batch_size,
        strategy,
        flags.max_seq_length if flags.pad_to_max_length or scripts.uses_tpu(flags) else None,
    )
    names = features.layer_names(layers, flags.pooling)
    settings = settings_of(flags, files, tokenizer, encoder)
    with features.LineReader(flags.input_file) as reader:
        output = features.open_output(flags.output_file, flags.output_format, names, settings)
        try:
            done = features.extract(
                reader, tokenizer, extractor, output, flags.max_seq_length, AFTER_POOL
            )
        finally:
            output.close()
    report(flags, done)
    return done


def check_flags(flags: Any) -> None:
    """Checks what can be checked before TensorFlow is imported and a model read."""
    CLI.require(
        (name, what)
        for name, what in (
            ("input_file", "the texts"),
            ("output_file", "where the features go"),
            ("init_checkpoint", "the model"),
        )
        if not getattr(flags, name)
    )
    if flags.pooling == "concat_last_4" and CLI.given("layers"):
        raise CommandLineError("--pooling=concat_last_4 has its own layers: leave --layers out")
    if flags.output_format == "parquet":
        names = [name.strip() for name in flags.layers.split(",")]
        if len(set(names)) < len(names):
            raise CommandLineError(
                f"--layers={flags.layers} names a layer twice, but the columns of a parquet file "
                "need different names"
            )
    features.check_input(flags.input_file)
    read = (flags.input_file, flags.vocab_file, flags.bert_config_file)
    features.check_output(
        flags.output_file, flags.output_format, [path for path in read if path is not None]
    )
    if flags.use_one_hot_embeddings:
        logging.warning("--use_one_hot_embeddings has no effect: it changes no result")


def open_model(flags: Any) -> scripts.ModelFiles:
    """Opens the checkpoint and what belongs to it."""
    from bert_tf.checkpoint import restore

    init = restore.load(
        flags.init_checkpoint,
        hidden_act=flags.hidden_act,
        config_file=flags.bert_config_file,
        vocab_file=flags.vocab_file,
    )
    if init.config is None:
        raise CommandLineError(
            f"there is no bert_config.json beside {flags.init_checkpoint}: give --bert_config_file"
        )
    scripts.check_length(flags.max_seq_length, init.config)
    return scripts.ModelFiles(init.config, init, init.vocab_file)


def model_files(files: scripts.ModelFiles) -> list[str]:
    """Returns the files that belong to the model, most of which no flag names."""
    from bert_tf.checkpoint import huggingface, original, restore

    prefix = files.init.prefix
    folder = prefix if paths.is_dir(prefix) else paths.dirname(prefix)
    there = paths.list_dir(folder or ".")
    # Those of best/ stand in the folder above.
    shared = (restore.ORIGINAL_CONFIG_FILE, restore.VOCAB_FILE)
    above = [paths.join(paths.dirname(folder), name) for name in shared]
    settings = {
        *(*shared, original.STATE_FILE, TASK_FILE, SQUAD_FILE, huggingface.CONFIG_FILE),
        *(huggingface.TOKENIZER_CONFIG_FILE, huggingface.INDEX_FILE),
    }
    weights = (paths.basename(prefix) + ".", huggingface.WEIGHTS_FILE, huggingface.TORCH_FILE)
    own = [name for name in there if name in settings or name.startswith(weights)]
    return [paths.join(folder, name) for name in own] + list(filter(paths.exists, above))


def make_tokenizer(flags: Any, files: scripts.ModelFiles) -> Any:
    """Makes the tokenizer that the model was trained with."""
    # A fine-tuned model says beside it how its texts were tokenized.
    is_squad = scripts.read_settings(files.init.folder, SQUAD_FILE) is not None
    tokenizer = scripts.make_tokenizer(CLI, flags, files, SQUAD_FILE if is_squad else TASK_FILE)
    assert files.vocab_file is not None
    scripts.check_vocabulary(files.config, tokenizer.vocab_size, files.vocab_file)
    return tokenizer


def make_encoder(flags: Any, strategy: Any, files: scripts.ModelFiles) -> Any:
    """Makes the encoder with the checkpoint's weights; heads are left out."""
    from bert_tf.modeling.encoder import BertEncoder

    with strategy.scope():
        encoder = BertEncoder(files.config, name="bert", dtype=scripts.PRECISIONS[flags.precision])
        encoder.build()
    scripts.load_weights(encoder, files.init, POOLER, HEADS)
    logging.info("Using the weights of %s", files.init.prefix)
    return encoder


def settings_of(
    flags: Any, files: scripts.ModelFiles, tokenizer: Any, encoder: Any
) -> dict[str, Any]:
    """Returns all that the values depend on: a run goes on under the same only.

    The batch size is none of it: a run that ran out of memory goes on with a smaller one.
    """
    from bert_tf.modeling.models import named_variables

    variables = {
        name: variable
        for name, variable in named_variables(encoder).items()
        if not name.startswith("bert/pooler/")  # Not used, and random where there was none.
    }
    return {
        "layers": flags.layers,
        "pooling": flags.pooling,
        "output_format": flags.output_format,
        "max_seq_length": flags.max_seq_length,
        "precision": flags.precision,
        "model": files.config.to_dict(),
        "weights_crc32": features.checksum(variables),
        "vocabulary": features.checksum_of_tokens(tokenizer.vocab),
        **scripts.tokenizer_settings(tokenizer),
    }


def report(flags: Any, done: features.Progress) -> None:
    """Says what the input was like."""
    if done.truncated:
        logging.warning(
            "%d of %d texts had more than %d tokens and were cut: raise --max_seq_length, or "
            "split them",
            done.truncated,
            done.lines,
            flags.max_seq_length,
        )
    if done.blank:
        logging.info(
            "Lines that hold no token and have the features of [CLS] [SEP]: %d", done.blank
        )
    logging.info("Wrote %s", flags.output_file)


if __name__ == "__main__":
    CLI.run(main)
