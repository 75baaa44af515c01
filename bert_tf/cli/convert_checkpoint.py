"""Converts checkpoints between the original's layout and Hugging Face folders.

    python -m bert_tf.cli.convert_checkpoint --input=uncased_L-12_H-768_A-12 --output=hf_folder \\
        --to=huggingface

Heads are converted with the encoder. The optimizer's slots are dropped (two thirds of a training
run's checkpoint) unless --keep_optimizer is given; with --to=original this also slims a training
run's checkpoint of the original's layout.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from absl import flags

from bert_tf import paths
from bert_tf.checkpoint import huggingface, names, original, restore
from bert_tf.config import HIDDEN_ACTS, BertConfig
from bert_tf.predictor import TASK_FILE

FLAGS = flags.FlagValues()

flags.DEFINE_string(
    "input",
    None,
    "Checkpoint to convert: an original prefix, one of its files, its folder, or a Hugging Face "
    "folder.",
    flag_values=FLAGS,
)
flags.DEFINE_string("output", None, "Folder to write; it is made.", flag_values=FLAGS)
flags.DEFINE_enum(
    "to",
    None,
    ["original", "huggingface"],
    "Layout to write: bert_config.json, vocab.txt and bert_model.ckpt.*, or config.json, "
    "vocab.txt, tokenizer_config.json and model.safetensors.",
    flag_values=FLAGS,
)
flags.DEFINE_enum(
    "hidden_act",
    None,
    list(HIDDEN_ACTS),
    "Activation to write in place of the input's. `gelu` is the original's tanh form, `gelu_erf` "
    "the exact one (Hugging Face's `gelu`).",
    flag_values=FLAGS,
)
flags.DEFINE_boolean(
    "keep_optimizer",
    False,
    "Also keep the optimizer's slots and global_step, to continue a run (--to=original only).",
    flag_values=FLAGS,
)
flags.DEFINE_string(
    "vocab_file", None, "Vocabulary; vocab.txt beside the input by default.", flag_values=FLAGS
)
flags.DEFINE_string(
    "config_file",
    None,
    "Configuration; bert_config.json or config.json beside the input by default.",
    flag_values=FLAGS,
)
flags.DEFINE_boolean(
    "do_lower_case",
    None,
    "Whether the vocabulary is lower-case, for tokenizer_config.json; by default as the input's "
    "tokenizer_config.json says, else true.",
    flag_values=FLAGS,
)
flags.DEFINE_list(
    "allow_extra",
    [],
    "Patterns of tensors of the input to drop, such as 'cls/*', separated by commas.",
    flag_values=FLAGS,
)
flags.DEFINE_boolean("overwrite", False, "Replace files in --output.", flag_values=FLAGS)


def main(argv: Sequence[str]) -> None:
    """Converts as the flags in `argv` (the program's name first) say.

    Raises:
        ValueError, OSError: the input cannot be read, does not fit together, or the output
            cannot be written; nothing that looks finished is left.
    """
    FLAGS.unparse_flags()
    for name in FLAGS:
        FLAGS[name].unparse()
    unparsed = FLAGS(list(argv))[1:]
    if unparsed:
        raise ValueError(f"Unexpected arguments: {' '.join(unparsed)}. Options begin with --.")
    absent = [f"--{name}" for name in ("input", "output", "to") if not FLAGS[name].value]
    if absent:
        raise ValueError(
            f"Missing flags: {', '.join(absent)}. For example: python -m "
            f"bert_tf.cli.convert_checkpoint --input=uncased_L-12_H-768_A-12 --output=hf_folder "
            f"--to=huggingface"
        )
    if FLAGS.keep_optimizer and FLAGS.to == "huggingface":
        raise ValueError(
            "--keep_optimizer: Hugging Face folders hold weights only. Remove the flag."
        )
    if FLAGS.output.endswith(".ckpt"):
        raise ValueError(f"--output is a folder, not a prefix: {FLAGS.output}.")
    targets = _targets(FLAGS.output, FLAGS.to)
    existing = [path for path in targets if paths.exists(path)]
    if existing and not FLAGS.overwrite:
        raise ValueError(
            f"{', '.join(existing)} would be replaced. Give another --output, or --overwrite."
        )

    checkpoint = restore.load(FLAGS.input, FLAGS.hidden_act, FLAGS.config_file, FLAGS.vocab_file)
    config = checkpoint.config
    if config is None:
        raise ValueError(
            f"There is no bert_config.json beside {checkpoint.prefix}. Give it by --config_file."
        )
    if FLAGS.to == "original":
        _check_activation(config, checkpoint, FLAGS.hidden_act)
    report = restore.merge(
        _expected(checkpoint, config, FLAGS.keep_optimizer), checkpoint, (), FLAGS.allow_extra
    )
    print(report)
    if not any(names.part_of(name) == names.POOLER for name in report.loaded):
        _warn("the checkpoint has no pooler (bert/pooler/dense); neither has what is written.")
    _check_vocabulary(config, checkpoint.vocab_file)

    tensors = dict(restore.finite_values(checkpoint, report))
    do_lower_case = FLAGS.do_lower_case
    if do_lower_case is None:
        do_lower_case = checkpoint.do_lower_case is not False
    if FLAGS.to == "huggingface":
        labels, tagging = _task(checkpoint)
        huggingface.write(
            FLAGS.output,
            config,
            tensors,
            checkpoint.vocab_file,
            do_lower_case,
            labels,
            tagging,
        )
    else:
        _write_original(FLAGS.output, config, tensors, checkpoint.vocab_file)
    print(f"Wrote {len(tensors)} tensors to {FLAGS.output} in the {FLAGS.to} layout.")
    if FLAGS.to == "original" and not do_lower_case:
        print("The vocabulary is cased: run the scripts with --do_lower_case=False.")


def _task(checkpoint: restore.Checkpoint) -> tuple[list[str], bool]:
    """The labels that a run of run_classifier.py left beside its checkpoint, and if it tags."""
    path = paths.join(paths.dirname(checkpoint.prefix), TASK_FILE)
    if checkpoint.kind != "original" or not paths.exists(path):
        return [], False
    task = paths.read_json(path)
    return list(task.get("labels") or ()), task.get("kind") == "tagging"


def _targets(folder: str, layout: str) -> list[str]:
    if layout == "huggingface":
        return huggingface.files_of(folder)
    return [
        paths.join(folder, name)
        for name in (
            restore.ORIGINAL_CONFIG_FILE,
            restore.VOCAB_FILE,
            original.RELEASED_NAME + ".index",
        )
    ]


def _check_activation(
    config: BertConfig, checkpoint: restore.Checkpoint, hidden_act: str | None
) -> None:
    if config.hidden_act == "gelu_erf":
        raise ValueError(
            f"{checkpoint.prefix} uses the exact GELU (gelu_erf), which the original does not "
            f"have: its gelu is the tanh form. Give --hidden_act=gelu to write it all the same; "
            f"outputs then differ in the fourth digit, or not at all where the input's label was "
            f"wrong, as in Hugging Face copies of Google's own weights."
        )
    if hidden_act and checkpoint.kind == "huggingface":
        before = huggingface.read_config(checkpoint.prefix).hidden_act
        if before == "gelu_erf" and hidden_act == "gelu":
            _warn(
                "the input says that it uses the exact GELU; it is written as gelu, the tanh "
                "form. Outputs differ in the fourth digit unless the input's label was wrong."
            )
    if "layer_norm_eps" in config.to_dict():
        _warn(
            f"layer_norm_eps is {config.layer_norm_eps}; the original always computes with 1e-12."
        )


def _expected(
    checkpoint: restore.Checkpoint, config: BertConfig, keep_optimizer: bool
) -> dict[str, tuple[int, ...]]:
    """What a whole checkpoint with the parts that this one has must hold."""
    expected = restore.whole(checkpoint, config)
    if keep_optimizer:
        for name, shape in list(expected.items()):
            # A weight that got no gradient has no slots.
            present = [slot for slot in names.slot_names(name) if slot in checkpoint.shapes]
            expected.update(dict.fromkeys(names.slot_names(name) if present else (), shape))
        if not any(map(names.is_slot, expected)):
            raise ValueError(f"--keep_optimizer: {checkpoint.prefix} has no optimizer's slots.")
        expected[names.GLOBAL_STEP] = ()
    return expected


def _check_vocabulary(config: BertConfig, vocab_file: str | None) -> None:
    if vocab_file is None:
        _warn("there is no vocab.txt beside the input, none is written; see --vocab_file.")
        return
    lines = restore.count_vocabulary(vocab_file)
    if lines > config.vocab_size:
        raise ValueError(
            f"{vocab_file} has {lines} lines, more than the configuration's vocab_size "
            f"{config.vocab_size}: it belongs to another model. Give the right one by --vocab_file."
        )
    if lines < config.vocab_size:
        _warn(f"{vocab_file} has {lines} lines, fewer than vocab_size {config.vocab_size}.")


def _write_original(folder: str, config: BertConfig, tensors: dict, vocab_file: str | None) -> None:
    paths.make_dirs(folder)
    # The checkpoint comes first: a new configuration beside an old one would pass for a model.
    original.write(paths.join(folder, original.RELEASED_NAME), tensors)
    config.to_json_file(paths.join(folder, restore.ORIGINAL_CONFIG_FILE))
    if vocab_file:
        paths.copy(vocab_file, paths.join(folder, restore.VOCAB_FILE))


def _warn(message: str) -> None:
    print(f"WARNING: {message}", file=sys.stderr)


if __name__ == "__main__":
    if {"--help", "-h", "-help", "--helpfull"} & set(sys.argv[1:]):
        print(__doc__ + FLAGS.main_module_help())
        sys.exit(0)
    try:
        main(sys.argv)
    except (ValueError, OSError, flags.Error) as error:
        sys.exit(f"error: {error}")
