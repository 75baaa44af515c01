"""Answers questions about texts, with a model that run_squad.py trained.

    python -m bert_tf.cli.answer --model_dir=squad_output --context_file=text.txt \\
        --question="Who wrote it?"

Without --question, questions are read from the standard input, one a line. With --input_file, JSON
lines with "question" and "context" are answered in their order, a JSON line each.
"""

import itertools
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from bert_tf import paths
from bert_tf.cli.command_line import CommandLine, CommandLineError, import_tensorflow
from data_prep import records

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
    CLI.string("input_file", None, "JSON lines with question and context; - is standard input.")
    CLI.string("output_file", None, "Where to write JSON lines; by default standard output.")
    CLI.integer("n_best_size", 3, "Answers to show of each question.", 1)
    CLI.integer("batch_size", 16, "Windows of a batch.", 1)

# Lines of a file that are answered together: their windows are grouped by length.
_POOL = 256


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
    if flags.input_file and flags.question:
        raise CommandLineError("--input_file has the questions: leave out --question")
    if flags.output_file and not flags.input_file:
        raise CommandLineError("--output_file needs --input_file: the rest goes to the terminal")
    text = flags.context
    if flags.context_file:
        with paths.open_file(flags.context_file, encoding="utf-8-sig") as handle:
            try:
                text = handle.read()
            except UnicodeDecodeError as error:
                raise ValueError(f"{flags.context_file} is not UTF-8 text: {error}") from None
    if flags.input_file and flags.output_file:
        if records.real_path(flags.input_file) == records.real_path(flags.output_file):
            raise CommandLineError("--output_file is --input_file: name another")
        if paths.is_dir(flags.output_file):
            raise CommandLineError(f"--output_file={flags.output_file} is a folder; name a file")
    import_tensorflow()

    from bert_tf.predictor import QuestionAnswerer

    answerer = QuestionAnswerer(flags.model_dir, flags.batch_size, flags.n_best_size)
    if flags.input_file:
        answer_file(answerer, flags.input_file, flags.output_file)
        return
    if flags.question is not None:
        show(answerer.answer([(flags.question, text)])[0])
        return
    for line in sys.stdin:
        if line.strip():
            show(answerer.answer([(line.strip(), text)])[0])


def show(result: dict[str, Any]) -> None:
    """Prints an answer and the runners-up."""
    print(result["answer"] or "(no answer)", flush=True)
    for entry in result["nbest"]:
        print(f"  {entry['probability']:.4f}  {entry['text'] or '(no answer)'}", flush=True)
    if "null_odds" in result:
        print(f"  no answer against the best: {result['null_odds']:+.2f}", flush=True)


def answer_file(answerer: Any, source: str, target: str | None) -> None:
    """Answers the lines of a file, in their order."""

    def write(handle: Any) -> None:
        lines = read_lines(source)
        while pool := list(itertools.islice(lines, _POOL)):
            results = answerer.answer([(item["question"], item["context"]) for item in pool])
            for item, result in zip(pool, results, strict=True):
                kept = {"id": item["id"]} if "id" in item else {}
                line = {**kept, "question": item["question"], **result}
                text = json.dumps(line, ensure_ascii=False)
                try:
                    text.encode()
                except UnicodeEncodeError:  # Half of a surrogate pair.
                    text = json.dumps(line)
                handle.write(text + "\n")

    if target is None:
        write(sys.stdout)
        return
    with paths.atomic_write(target) as handle:
        write(handle)


def read_lines(source: str) -> Iterator[dict[str, Any]]:
    """Yields the objects of a file of JSON lines.

    Raises:
      ValueError: a line is no object with question and context; names it.
    """

    def objects(lines: Iterable[str]) -> Iterator[dict[str, Any]]:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                item = json.loads(line)
            except json.JSONDecodeError as error:
                raise ValueError(f"{source}: line {number} is no JSON: {error}") from None
            texts = item if isinstance(item, dict) else {}
            if not all(isinstance(texts.get(key), str) for key in ("question", "context")):
                raise ValueError(
                    f"{source}: line {number} must be an object with a question and a context, "
                    f"both strings; found {line.strip():.60}"
                )
            yield item

    if source == "-":
        yield from objects(sys.stdin)
        return
    with paths.open_file(source, encoding="utf-8-sig") as handle:
        try:
            yield from objects(handle)
        except UnicodeDecodeError as error:
            raise ValueError(f"{source} is not UTF-8 text: {error}") from None


if __name__ == "__main__":
    CLI.run(main)
