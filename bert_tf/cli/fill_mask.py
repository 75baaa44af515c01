"""Finds what may stand in the place of [MASK], with a pre-trained model.

    python -m bert_tf.cli.fill_mask --model_dir=uncased_L-12_H-768_A-12 \\
        --text="The capital of France is [MASK]."

Without --text, texts are read from the standard input, one a line. From a pipe there is a line out
for each line in: the candidates with their probabilities, a tab between two masks. With
--input_file, JSON lines with "text" are answered in their order, a JSON line each.
"""

from collections.abc import Sequence
from typing import Any

from bert_tf.cli import json_lines
from bert_tf.cli.command_line import CommandLine, CommandLineError, import_tensorflow

CLI = CommandLine(
    "-m bert_tf.cli.fill_mask",
    __doc__,
    "python -m bert_tf.cli.fill_mask --model_dir=uncased_L-12_H-768_A-12 \\\n"
    '    --text="The capital of France is [MASK]."',
)
with CLI.group("Flags"):
    CLI.string(
        "model_dir",
        None,
        "Output folder of run_pretraining.py, an original checkpoint or a Hugging Face folder; "
        "its configuration and vocab.txt are beside it.",
    )
    CLI.string("text", None, "The text, with [MASK] in it.")
    json_lines.file_flags(CLI, "text")
    CLI.integer("top_k", 5, "Candidates to show of each mask.", 1)
    CLI.integer("batch_size", 32, "Texts of a batch.", 1)
    CLI.enum(
        "do_lower_case",
        "auto",
        ["auto", "true", "false"],
        "Lower-case the text and drop accents; auto: if tokenizer_config.json says so, or, without "
        "one, if the vocabulary has no capital letters.",
    )


def main(argv: Sequence[str]) -> None:
    """Runs the command."""
    flags = CLI.parse(argv)
    CLI.require([] if flags.model_dir else [("model_dir", "the pre-trained model")])
    if flags.input_file and flags.text is not None:
        raise CommandLineError("--input_file has the texts: leave out --text")
    json_lines.check_files(flags)
    import_tensorflow()

    from bert_tf.predictor import MaskFiller

    lower = {"auto": None, "true": True, "false": False}[flags.do_lower_case]
    filler = MaskFiller(flags.model_dir, flags.batch_size, flags.top_k, lower)
    if flags.input_file:
        json_lines.predict_file(filler, flags.input_file, flags.output_file)
        return
    if flags.text is not None:
        filler.check({"text": flags.text})
        print(show(filler.fill([flags.text])[0]), flush=True)
        return
    json_lines.predict_lines(filler, lambda line: {"text": line}, show, one_line, "text> ")


def show(result: dict[str, Any]) -> str:
    """Returns the candidates for a terminal, a block for each mask."""
    blocks = [
        "\n".join(f"  {each['probability']:.4f}  {each['token']}" for each in mask["candidates"])
        for mask in result["masks"]
    ]
    if len(blocks) > 1:
        blocks = [f"mask {number}\n{block}" for number, block in enumerate(blocks, 1)]
    return "\n".join(blocks)


def one_line(result: dict[str, Any]) -> str:
    """Returns the candidates as one line."""
    return "\t".join(
        ", ".join(f"{each['token']} {each['probability']:.4f}" for each in mask["candidates"])
        for mask in result["masks"]
    )


if __name__ == "__main__":
    CLI.run(main)
