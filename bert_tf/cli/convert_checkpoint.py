"""Converts checkpoints between the original's layout, Hugging Face's and Model Garden's.

The input is told by what it holds: a released checkpoint, an output folder of run_classifier.py,
run_squad.py or run_pretraining.py (its best weights, where it kept some), a Hugging Face folder, or
a checkpoint of Model Garden (tf-models-official). What is written holds weights alone, a third of a
training run's checkpoint, unless --keep_optimizer is given; --to=original from a run's folder makes
the files of a release. Heads go along, with their labels.
"""

import dataclasses
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from absl import logging

from bert_tf import paths
from bert_tf.checkpoint import garden, huggingface, names, original, restore
from bert_tf.cli.command_line import CommandLine, CommandLineError, import_tensorflow
from bert_tf.config import HIDDEN_ACTS, BertConfig
from bert_tf.predictor import SQUAD_FILE, TASK_FILE

CLI = CommandLine(
    "-m bert_tf.cli.convert_checkpoint",
    __doc__,
    """\
python -m bert_tf.cli.convert_checkpoint --input=mrpc_output --output=hf_folder --to=huggingface""",
)
with CLI.group("Files"):
    CLI.string(
        "input",
        None,
        "Checkpoint to convert: a prefix, one of its files, or a folder (of a release, a training "
        "run, Hugging Face).",
    )
    CLI.string("output", None, "Folder to write; it is made.")
    CLI.enum(
        "to",
        None,
        ["original", "huggingface", "garden"],
        "Layout to write. original: bert_config.json, vocab.txt, bert_model.ckpt.*; huggingface: "
        "config.json, vocab.txt, tokenizer_config.json, model.safetensors; garden: "
        f"bert_config.json, vocab.txt, {garden.NAME}.*, checkpoint.",
    )
    CLI.string(
        "config_file",
        None,
        "Configuration; bert_config.json or config.json (or Model Garden's params.yaml) beside the "
        "input by default.",
    )
    CLI.string("vocab_file", None, "Vocabulary; vocab.txt beside the input by default.")
    CLI.boolean("overwrite", False, "Replace files in --output.")
with CLI.group("What is taken"):
    CLI.boolean(
        "use_best",
        True,
        "Of a run's folder take the weights in best/, where the run kept some, else the latest.",
    )
    CLI.boolean("encoder_only", False, "Drop the heads: write the encoder and its pooler alone.")
    CLI.string(
        "allow_extra",
        "",
        "Patterns of tensors to drop that no layout knows, such as 'crf.*', separated by commas.",
    )
    CLI.boolean(
        "keep_optimizer",
        False,
        "Also keep the optimizer's slots and global_step, to continue a run (--to=original only).",
    )
with CLI.group("The model"):
    CLI.enum(
        "hidden_act",
        None,
        HIDDEN_ACTS,
        "Activation to write in place of the input's. `gelu` is the original's tanh form, "
        "`gelu_erf` the exact one (Hugging Face's `gelu`).",
    )
    CLI.boolean(
        "do_lower_case",
        True,
        "Whether the vocabulary is lower-case, for tokenizer_config.json; by default as the run's "
        "settings or tokenizer_config.json beside the input say.",
    )

_LAYOUTS = {
    "original": "the original's",
    "huggingface": "Hugging Face's",
    "garden": "Model Garden's",
}


# Of their checkpoints; Hugging Face's have none.
_NAMES = {"original": original.RELEASED_NAME, "garden": garden.NAME}


@dataclasses.dataclass(frozen=True)
class _Task:
    """What is said beside a checkpoint of what it was trained for.

    Attributes:
        labels: of a classifier's outputs, in order.
        kind: of task, as in task.json; "" if that is not known.
        settings: the whole settings file of a run, {} where there is none.
        file: its name.
    """

    labels: Sequence[str] = ()
    kind: str = ""
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    file: str = ""


def main(argv: Sequence[str]) -> None:
    """Converts as the flags in `argv` (the program's name first) say.

    Raises:
        ValueError, OSError: the input cannot be read, does not fit together, or the output
            cannot be written; nothing that looks finished is left.
    """
    flags = CLI.parse(argv)
    _check_flags(flags)
    _check_output(flags)
    import_tensorflow()
    # TensorFlow reports the steps of writing an object's checkpoint as information.
    logging.set_verbosity(logging.WARNING)
    checkpoint = restore.load(_chosen(flags), flags.hidden_act, flags.config_file, flags.vocab_file)
    config = checkpoint.config
    if config is None:
        raise ValueError(
            f"There is no bert_config.json beside {checkpoint.prefix}. Give it by --config_file."
        )
    if flags.to != "huggingface":
        _check_activation(config, checkpoint, flags.hidden_act, _LAYOUTS[flags.to])
    report = restore.merge(
        _expected(checkpoint, config, flags), checkpoint, (), _may_be_dropped(flags)
    )
    print(report)
    _check_parts(report.loaded, config, flags.to)
    _check_vocabulary(config, checkpoint.vocab_file)

    tensors = dict(restore.finite_values(checkpoint, report))
    task = _task(checkpoint, tensors)
    lower = _do_lower_case(flags, checkpoint, task)
    with original.whole_folder(flags.output, _files(flags.output, flags.to)) as folder:
        if flags.to == "huggingface":
            dropped = huggingface.write(
                folder,
                config,
                tensors,
                checkpoint.vocab_file,
                lower,
                task.labels,
                task.kind,
                None if CLI.given("do_lower_case") else task.settings.get("strip_accents"),
            )
        elif flags.to == "garden":
            _write_garden(folder, config, tensors, checkpoint.vocab_file)
        else:
            _write_original(folder, config, tensors, checkpoint.vocab_file, task)
    if flags.to == "huggingface" and dropped:
        print(f"Left out, as this class of Hugging Face has no pooler: {', '.join(dropped)}.")
        tensors = {name: value for name, value in tensors.items() if name not in dropped}
    print(f"Wrote {len(tensors)} tensors to {flags.output} in the {flags.to} layout.")
    named = any(label != f"LABEL_{number}" for number, label in enumerate(task.labels))
    if flags.to == "original" and named and not task.settings and names.heads_in(tensors):
        print(
            f"The names of its {len(task.labels)} labels ({', '.join(task.labels[:5])}"
            f"{', ...' if len(task.labels) > 5 else ''}) are not in it: without the settings of a "
            f"run ({TASK_FILE}) the original layout has no place for them."
        )
    if flags.to != "huggingface" and not lower:
        print("The vocabulary is cased: run the scripts with --do_lower_case=False.")


def _check_flags(flags: Any) -> None:
    CLI.require(
        (name, what)
        for name, what in (
            ("input", "the checkpoint to convert"),
            ("output", "the folder to write"),
            ("to", "the layout: original, huggingface or garden"),
        )
        if not getattr(flags, name)
    )
    if flags.keep_optimizer and flags.to != "original":
        raise CommandLineError(
            f"--keep_optimizer: what is written with --to={flags.to} holds weights only. Remove "
            f"the flag."
        )


def _check_output(flags: Any) -> None:
    folder = flags.output
    if folder.endswith(".ckpt"):
        raise CommandLineError(f"--output is a folder, not a prefix: {folder}.")
    if paths.exists(folder) and not paths.is_dir(folder):
        raise CommandLineError(f"--output={folder} is a file; name a folder.")
    name = _NAMES.get(flags.to)
    if name is not None:
        latest = original.latest_checkpoint(folder)
        if latest is not None and paths.basename(latest) != name:
            raise CommandLineError(
                f"--output={folder} holds the checkpoints of a run, the latest {latest}: what is "
                f"written there would be taken for one of them. Give another --output."
            )
    existing = [path for path in _files(folder, flags.to) if paths.exists(path)]
    if existing and not flags.overwrite:
        raise CommandLineError(
            f"{', '.join(existing)} would be replaced. Give another --output, or --overwrite."
        )


def _files(folder: str, layout: str) -> list[str]:
    """The files in a folder that make it a model of a layout, or tell of one."""
    if layout not in _NAMES:
        return huggingface.files_of(folder)
    files = (restore.ORIGINAL_CONFIG_FILE, restore.VOCAB_FILE, TASK_FILE, SQUAD_FILE)
    return [paths.join(folder, file) for file in (*files, f"{_NAMES[layout]}.index")]


def _chosen(flags: Any) -> str:
    """The input, or the checkpoint in it that a run's other programs would use."""
    if not paths.is_dir(flags.input):
        return flags.input
    # The best weights have no slots.
    use_best = flags.use_best and not flags.keep_optimizer
    return restore.trained_checkpoint(flags.input, use_best) or flags.input


def _may_be_dropped(flags: Any) -> list[str]:
    patterns = [pattern for pattern in flags.allow_extra.split(",") if pattern]
    if flags.encoder_only:
        patterns += ["cls/*", "output_weights", "output_bias", *names.OWN_HEADS]
    return patterns


def _expected(
    checkpoint: restore.Checkpoint, config: BertConfig, flags: Any
) -> dict[str, tuple[int, ...]]:
    """What a whole checkpoint with the parts that are taken of this one must hold."""
    expected = restore.whole(checkpoint, config)
    if flags.encoder_only:
        kept = (names.ENCODER, names.POOLER)
        expected = {name: shape for name, shape in expected.items() if names.part_of(name) in kept}
    if flags.keep_optimizer:
        for name, shape in list(expected.items()):
            # A weight that got no gradient has no slots.
            present = [slot for slot in names.slot_names(name) if slot in checkpoint.shapes]
            expected.update(dict.fromkeys(names.slot_names(name) if present else (), shape))
        if not any(map(names.is_slot, expected)):
            raise ValueError(f"--keep_optimizer: {checkpoint.prefix} has no optimizer's slots.")
        expected[names.GLOBAL_STEP] = ()
    return expected


def _check_parts(loaded: Sequence[str], config: BertConfig, layout: str) -> None:
    """Raises ValueError for what a layout has no place for; warns of what it may be misread."""
    heads = names.heads_in(loaded)
    own = [name for name in loaded if names.is_own(name)]
    if own and layout != "original":
        raise ValueError(
            f"An LSTM stands between the encoder and the output ({', '.join(own[:3])}, ...), for "
            f"which {_LAYOUTS[layout]} models have no place. Give --encoder_only to write the "
            f"encoder alone, or --to=original."
        )
    if own:
        _warn(
            "an LSTM stands between the encoder and the output, which the original does not have: "
            "only the scripts of this project can use the head."
        )
    if layout == "garden":
        pretraining = {names.MASKED_LM, names.NEXT_SENTENCE}
        other = [head for head in heads if head not in pretraining]
        if names.MASKED_LM not in heads:
            other = list(heads)
        if other:
            raise ValueError(
                f"The Model Garden layout is that of an encoder, or of a pre-trainer with its "
                f"masked LM; there is no place for this checkpoint's head ({', '.join(other)}). "
                f"Give --encoder_only to write the encoder alone."
            )
        if config.causal_attention:
            raise ValueError(
                "The model reads from left to right (causal_attention), which Model Garden's "
                "encoder does not: its outputs would be others."
            )
    has_pooler = any(names.part_of(name) == names.POOLER for name in loaded)
    if not has_pooler:
        _warn("the checkpoint has no pooler (bert/pooler/dense); neither has what is written.")
    if config.causal_attention and layout == "original":
        _warn(
            "the model reads from left to right (causal_attention); the original does not know "
            "the key and would read in both directions."
        )
    if config.causal_attention and layout == "huggingface" and has_pooler:
        _warn(
            "the pooler of a model that reads from left to right reads the last token here, the "
            "first one in Hugging Face's: what is computed from it there means nothing."
        )


def _task(checkpoint: restore.Checkpoint, loaded: Mapping[str, Any]) -> _Task:
    """What a run left beside its checkpoint of its task, or a Hugging Face folder says."""
    if checkpoint.kind == "huggingface":
        labels, kind = huggingface.read_task(checkpoint.prefix)
        return _Task(labels, kind)
    heads = names.heads_in(loaded)
    for file in (SQUAD_FILE, TASK_FILE) if names.SQUAD in heads else (TASK_FILE, SQUAD_FILE):
        path = restore.beside(checkpoint.folder, file)
        if path is not None:
            settings = paths.read_json(path)
            kind = settings.get("kind", "")
            return _Task(list(settings.get("labels") or ()), kind, settings, file)
    return _Task()


def _do_lower_case(flags: Any, checkpoint: restore.Checkpoint, task: _Task) -> bool:
    if not CLI.given("do_lower_case"):
        for said in (checkpoint.do_lower_case, task.settings.get("do_lower_case")):
            if isinstance(said, bool):
                return said
    return flags.do_lower_case


def _check_activation(
    config: BertConfig, checkpoint: restore.Checkpoint, hidden_act: str | None, whose: str
) -> None:
    if config.hidden_act == "gelu_erf":
        raise ValueError(
            f"{checkpoint.prefix} uses the exact GELU (gelu_erf), which {whose} layout does not "
            f"have: its gelu is the tanh form. Give --hidden_act=gelu to write it all the same; "
            f"outputs then differ by about a thousandth, or not at all where the input's label was "
            f"wrong, as in Hugging Face copies of Google's own weights."
        )
    if hidden_act and checkpoint.kind == "huggingface":
        before = huggingface.read_config(checkpoint.prefix).hidden_act
        if before == "gelu_erf" and hidden_act == "gelu":
            _warn(
                "the input says that it uses the exact GELU; it is written as gelu, the tanh "
                "form. Outputs differ by about a thousandth unless the input's label was wrong."
            )
    if "layer_norm_eps" in config.to_dict():
        _warn(f"layer_norm_eps is {config.layer_norm_eps}; with {whose} layout it is always 1e-12.")


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


def _write_original(
    folder: str, config: BertConfig, tensors: Mapping[str, Any], vocab_file: str | None, task: _Task
) -> None:
    prefix = paths.join(folder, original.RELEASED_NAME)
    paths.make_dirs(folder)
    # The checkpoint comes first: a new configuration beside an old one would pass for a model.
    original.write(prefix, tensors)
    _write_beside(folder, config, vocab_file)
    heads = names.heads_in(tensors)
    if {TASK_FILE: names.CLASSIFIER, SQUAD_FILE: names.SQUAD}.get(task.file) in heads:
        # With the settings and the name of its weights the folder is one to predict with.
        settings = {key: value for key, value in task.settings.items() if key != "training"}
        paths.write_json(paths.join(folder, task.file), settings)
        original.write_state(folder, prefix)


def _write_garden(
    folder: str, config: BertConfig, tensors: Mapping[str, Any], vocab_file: str | None
) -> None:
    prefix = paths.join(folder, garden.NAME)
    paths.make_dirs(folder)
    garden.write(prefix, config, tensors)
    _write_beside(folder, config, vocab_file)
    original.write_state(folder, prefix)


def _write_beside(folder: str, config: BertConfig, vocab_file: str | None) -> None:
    config.to_json_file(paths.join(folder, restore.ORIGINAL_CONFIG_FILE))
    if vocab_file:
        paths.copy(vocab_file, paths.join(folder, restore.VOCAB_FILE))


def _warn(message: str) -> None:
    print(f"WARNING: {message}", file=sys.stderr)


if __name__ == "__main__":
    CLI.run(main)
