"""Classifies texts and pairs, tags words, or chooses, with a model that run_classifier.py trained.

    python -m bert_tf.cli.classify --model_dir=mrpc_output --text="He left." \\
        --text_pair="He went away."

Without --text, texts are read from the standard input, one a line; a tab separates a pair. From a
pipe there is a line out for each line in: the label and its probability, the labels, the number, or
a tag for each word. With --input_file, JSON lines are answered in their order, a JSON line each:
docs/prediction.md has their fields. Multiple choice is for JSON lines alone.
"""

from collections.abc import Sequence
from typing import Any

from bert_tf.cli import json_lines
from bert_tf.cli.command_line import CommandLine, CommandLineError, import_tensorflow

CLI = CommandLine(
    "-m bert_tf.cli.classify",
    __doc__,
    'python -m bert_tf.cli.classify --model_dir=mrpc_output --text="He left." \\\n'
    '    --text_pair="He went away."',
)
with CLI.group("Flags"):
    CLI.string("model_dir", None, "Output folder of a run_classifier.py that trained.")
    CLI.string("text", None, "The text.")
    CLI.string("text_pair", None, "The second text of a pair.")
    json_lines.file_flags(CLI, "text, text_pair, tokens, context, choices, question")
    CLI.integer("batch_size", 32, "Texts of a batch.", 1)

# Kinds of model that are for another command.
_OTHERS = {"question_answering": "answer", "masked_lm": "fill_mask"}


def main(argv: Sequence[str]) -> None:
    """Runs the command."""
    flags = CLI.parse(argv)
    CLI.require([] if flags.model_dir else [("model_dir", "the trained model")])
    if flags.text_pair is not None and flags.text is None:
        raise CommandLineError("--text_pair needs --text, the first text of the pair")
    if flags.input_file and flags.text is not None:
        raise CommandLineError("--input_file has the texts: leave out --text")
    json_lines.check_files(flags)
    import_tensorflow()

    from bert_tf import predictor

    kind = predictor.kind_of(flags.model_dir)
    if kind in _OTHERS:
        raise CommandLineError(
            f"the model in {flags.model_dir} is for python -m bert_tf.cli.{_OTHERS[kind]}"
        )
    if kind == "choice" and not flags.input_file:
        raise CommandLineError(
            f"the model in {flags.model_dir} chooses between texts: give --input_file with JSON "
            "lines of context, choices and perhaps question"
        )
    if kind == "tagging" and flags.text_pair is not None:
        raise CommandLineError(
            f"the model in {flags.model_dir} tags words: it takes no --text_pair"
        )
    model = predictor.load(flags.model_dir, flags.batch_size)
    if flags.input_file:
        json_lines.predict_file(model, flags.input_file, flags.output_file)
        return

    def instance_of(line: str) -> dict[str, Any]:
        text, tab, pair = line.partition("\t")
        return {"text": text, "text_pair": pair} if tab and kind != "tagging" else {"text": line}

    if flags.text is not None:
        instance = {"text": flags.text}
        if flags.text_pair is not None:
            instance["text_pair"] = flags.text_pair
        model.check(instance)
        print(show(model.predict_instances([instance])[0]), flush=True)
        return
    json_lines.predict_lines(model, instance_of, show, one_line, "text> ")


def show(result: dict[str, Any]) -> str:
    """Returns a result for a terminal: what is predicted, then what else was thought of."""
    lines = [one_line(result).partition("\t")[0]]
    if "entities" in result:
        pairs = zip(result["tokens"], result["tags"], strict=True)
        lines = [" ".join(f"{token}/{tag}" for token, tag in pairs)]
        lines += [f"  {entity['type']}  {entity['text']}" for entity in result["entities"]]
    elif "probabilities" in result:
        ranked = sorted(result["probabilities"].items(), key=lambda item: -item[1])
        lines += [f"  {value:.4f}  {label}" for label, value in ranked]
    return json_lines.printable("\n".join(lines))


def one_line(result: dict[str, Any]) -> str:
    """Returns a result as one line."""
    if "value" in result:
        return f"{result['value']:.6g}"
    if "tags" in result:
        return " ".join(result["tags"])
    if "labels" in result:
        return ",".join(result["labels"]) or "(none)"
    return f"{result['label']}\t{result['probabilities'][result['label']]:.4f}"


if __name__ == "__main__":
    CLI.run(main)
