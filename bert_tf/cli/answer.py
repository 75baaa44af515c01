"""Answers questions about texts, with a model that run_squad.py trained.

    python -m bert_tf.cli.answer --model_dir=squad_output --context_file=text.txt \\
        --question="Who wrote it?"

Without --question, questions are read from the standard input, one a line; each is answered like a
single one, by several lines. With --input_file, JSON
lines with "question" and "context" are answered in their order, a JSON line each.
"""

import sys
from collections.abc import Sequence
from typing import Any

from bert_tf import paths
from bert_tf.cli import json_lines
from bert_tf.cli.command_line import CommandLine, CommandLineError, import_tensorflow

CLI = CommandLine(
    "-m bert_tf.cli.answer",
    __doc__,
    'python -m bert_tf.cli.answer --model_dir=squad_output --question="Who wrote it?" \\\n'
    '    --context="Ann wrote it in May."',
)
with CLI.group("Flags"):
    CLI.string("model_dir", None, "Output folder of a run_squad.py that trained.")
    CLI.string("question", None, "The question.")
    CLI.string("context", None, "The text that it is about.")
    CLI.string("context_file", None, "File of that text.")
    json_lines.file_flags(CLI, "question and context")
    CLI.integer("n_best_size", 3, "Answers to show of each question.", 1)
    CLI.integer("batch_size", 16, "Windows of a batch.", 1)


def main(argv: Sequence[str]) -> None:
    """Runs the command."""
    flags = CLI.parse(argv)
    missing = [] if flags.model_dir else [("model_dir", "the trained model")]
    if flags.input_file is None and flags.context is None and flags.context_file is None:
        missing.append(("context, --context_file or --input_file", "the text; one of them"))
    CLI.require(missing)
    given = [name for name in ("context", "context_file", "input_file") if getattr(flags, name)]
    if len(given) > 1:
        raise CommandLineError(f"give one of --{' and --'.join(given)}, not both")
    if flags.input_file and flags.question is not None:
        raise CommandLineError("--input_file has the questions: leave out --question")
    json_lines.check_files(flags)
    context = flags.context
    if flags.context_file:
        context = read_context(flags.context_file)
    import_tensorflow()

    from bert_tf.predictor import QuestionAnswerer, kind_of

    if (kind := kind_of(flags.model_dir)) != "question_answering":
        other = "fill_mask" if kind == "masked_lm" else "classify"
        raise CommandLineError(
            f"the model in {flags.model_dir} is for python -m bert_tf.cli.{other}"
        )
    answerer = QuestionAnswerer(flags.model_dir, flags.batch_size, flags.n_best_size)
    if flags.input_file:
        json_lines.predict_file(answerer, flags.input_file, flags.output_file, kept=("question",))
        return
    threshold = answerer.settings["null_score_diff_threshold"]
    if flags.question is not None:
        print(show(answerer.answer([(flags.question, context)])[0], threshold), flush=True)
        return
    if sys.stdin.isatty():
        questions = json_lines.ask("question> ")
    else:
        lines = json_lines.read_lines(json_lines.STANDARD_INPUT)
        questions = (line for _, line in lines if line.strip())
    for question in questions:
        print(show(answerer.answer([(question.strip(), context)])[0], threshold), flush=True)


def read_context(path: str) -> str:
    """Reads the text of --context_file.

    Raises:
      CommandLineError: there is no such file.
      ValueError: it is not UTF-8.
    """
    json_lines.check_file("context_file", path)
    with paths.open_file(path, encoding="utf-8-sig") as handle:
        try:
            return str(handle.read())
        except UnicodeDecodeError as error:
            raise ValueError(f"{path} is not UTF-8 text: {error}") from None


def show(result: dict[str, Any], threshold: float) -> str:
    """Returns an answer and the runners-up, for a terminal.

    Args:
      result: of `QuestionAnswerer.answer`.
      threshold: over which odds of no answer there is none.
    """
    lines = [result["answer"] or "(no answer)"]
    for entry in result["nbest"]:
        lines.append(f"  {entry['probability']:.4f}  {entry['text'] or '(no answer)'}")
    if "null_odds" in result:
        lines.append(
            f"  no answer against the best: {result['null_odds']:+.2f} (threshold {threshold:+.2f})"
        )
    return json_lines.printable("\n".join(lines))


if __name__ == "__main__":
    CLI.run(main)
