"""Exports a trained model as a SavedModel that needs TensorFlow and tensorflow-text only.

    python -m bert_tf.cli.export --model_dir=mrpc_output --export_dir=models/mrpc/1

The signature serving_default takes texts, the signature ids takes ids; docs/export.md has their
inputs and outputs for each kind of model.
"""

import os
from collections.abc import Sequence

from absl import logging

from bert_tf import paths
from bert_tf.cli.command_line import CommandLine, import_tensorflow

CLI = CommandLine(
    "-m bert_tf.cli.export",
    __doc__,
    "python -m bert_tf.cli.export --model_dir=mrpc_output --export_dir=models/mrpc/1",
)
with CLI.group("Flags"):
    CLI.string(
        "model_dir",
        None,
        "Output folder of run_classifier.py, run_squad.py or run_pretraining.py, an original "
        "checkpoint or a Hugging Face folder.",
    )
    CLI.string(
        "export_dir",
        None,
        "Folder to write. TensorFlow Serving wants a version number at its end: models/mrpc/1.",
    )
    CLI.boolean("features", False, "Export the encoder's outputs, whatever head the model has.")
    CLI.enum(
        "weights_dtype",
        "float32",
        ["float32", "bfloat16", "int8"],
        "How tables and kernels are stored. All is computed in float32: the others are smaller, "
        "not faster.",
    )
    CLI.boolean("overwrite", False, "Replace a SavedModel in --export_dir.")
    CLI.boolean(
        "onnx", False, "Also write assets.extra/model.onnx, for ids (pip install -e '.[onnx]')."
    )


def main(argv: Sequence[str]) -> None:
    """Runs the command."""
    flags = CLI.parse(argv)
    wanted = (("model_dir", "the trained model"), ("export_dir", "the folder to write"))
    CLI.require([(name, what) for name, what in wanted if not getattr(flags, name)])
    tf = import_tensorflow()
    # A graph that was made where a GPU is may hold what only a GPU can run.
    tf.config.set_visible_devices([], "GPU")
    # What TensorFlow says of each file has names that are gone in the end.
    logging.set_verbosity(logging.WARNING)

    from bert_tf.export.saved_model import export

    info = export(
        flags.model_dir,
        flags.export_dir,
        flags.weights_dtype,
        flags.features,
        flags.overwrite,
        flags.onnx,
    )
    print(f"Wrote {flags.export_dir}: {info['kind']}, {info['weights_dtype']} weights")
    for name, signature in info["signatures"].items():
        inputs, outputs = (", ".join(signature[key]) for key in ("inputs", "outputs"))
        print(f"  {name}: {inputs} -> {outputs}")
    if not paths.has_scheme(flags.export_dir):
        print(f"{_megabytes(flags.export_dir):.1f} MB")


def _megabytes(folder: str) -> float:
    return (
        sum(
            os.path.getsize(os.path.join(place, name))
            for place, _, files in os.walk(paths.local(folder))
            for name in files
        )
        / 1e6
    )


if __name__ == "__main__":
    CLI.run(main)
