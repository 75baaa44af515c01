"""A SQuAD file to examples: one for each question (in training: for each answer to learn).

The rules are the original release's. What it drops without a word or stops at is counted in a
`Report`; what is wrong with the file ends in an error that names the question.
"""

import dataclasses
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

from bert_tf import paths

# All that separates words of a context. Other spaces (U+00A0, U+2009) are parts of words.
_find_words = re.compile("[^ \t\r\n\u202f]+").finditer
_split_words = re.compile("[^ \t\r\n\u202f]+").findall

SEVERAL_ANSWERS = ("refuse", "first", "each")


class Context:
    """A paragraph; its questions share one, so that it is tokenized once.

    Args:
      text: as in the file.
      character_level: whether a word is a character (for Chinese and other text without spaces)
        or what stands between blanks.
    """

    __slots__ = ("character_level", "text", "tokens")

    def __init__(self, text: str, character_level: bool = False):
        self.text = text
        self.character_level = character_level
        self.tokens: Any = None  # `windows` keeps its own here

    @property
    def words(self) -> list[str]:
        """The words, made anew at each call. At character level all characters, blanks too."""
        return list(self.text) if self.character_level else _split_words(self.text)

    @property
    def is_blank(self) -> bool:
        return _find_first_word(self.text) is None


_find_first_word = re.compile("[^ \t\r\n\u202f]").search


@dataclasses.dataclass(slots=True)
class Example:
    """A question about a context, in training with the answer to learn.

    Attributes:
      qas_id: the question's id; with several answers to learn, several examples have it.
      question_text: the question.
      context: the paragraph.
      orig_answer_text: the answer as in the file; "" if impossible, None in prediction.
      start_position, end_position: its first and last word, -1 if impossible, None in prediction.
      is_impossible: the context does not answer the question; always False in prediction.
    """

    qas_id: str
    question_text: str
    context: Context
    orig_answer_text: str | None = None
    start_position: int | None = None
    end_position: int | None = None
    is_impossible: bool = False

    @property
    def doc_tokens(self) -> list[str]:
        """The context's words."""
        return self.context.words


class Answer(NamedTuple):
    """An answer of the file; `start` is a character of the context, None if the file has none."""

    text: str
    start: int | None


@dataclasses.dataclass(slots=True)
class Question:
    """A question as the file has it.

    Attributes:
      qas_id, text, context: as in `Example`.
      answers: None if the file has no such key.
      is_impossible: None if the file has no such key (SQuAD 1.1).
      where: file, article, paragraph and question, for messages.
    """

    qas_id: str
    text: str
    context: Context
    answers: list[Answer] | None
    is_impossible: bool | None
    where: str


@dataclasses.dataclass
class Report:
    """What was read, and what became of it. `reading` and `windows` count into the same one.

    Attributes:
      questions: questions in the file.
      examples: examples made of them.
      impossible: questions that the file marks as impossible.
      several_answers: questions with two or more different answers.
      empty_answers: ids of questions with an answer of no text, which is learned all the same.
      unalignable: id -> why the answer was not found in the context. Such answers are left out.
      blank_contexts: ids of questions about a context without words.
      warnings: what looks odd about the file as a whole.
      windows: windows made.
      windows_per_question: number of windows -> number of examples cut into so many.
      truncated_questions: ids of questions that were cut to `max_query_length` tokens.
      gaps: examples whose windows do not overlap, as doc_stride leaves no room to.
    """

    questions: int = 0
    examples: int = 0
    impossible: int = 0
    several_answers: int = 0
    empty_answers: list[str] = dataclasses.field(default_factory=list)
    unalignable: dict[str, str] = dataclasses.field(default_factory=dict)
    blank_contexts: list[str] = dataclasses.field(default_factory=list)
    warnings: list[str] = dataclasses.field(default_factory=list)
    windows: int = 0
    windows_per_question: Counter[int] = dataclasses.field(default_factory=Counter)
    truncated_questions: list[str] = dataclasses.field(default_factory=list)
    gaps: int = 0

    def lines(self, listed: int = 20) -> list[str]:
        """Returns the report as text; of each list of ids the first `listed`."""

        def ids(found: list[str]) -> str:
            more = f", and {len(found) - listed:,} more" if len(found) > listed else ""
            return ", ".join(found[:listed]) + more

        lines = [
            f"questions {self.questions:,} ({self.impossible:,} impossible, "
            f"{self.several_answers:,} with several answers), examples {self.examples:,}"
        ]
        if self.unalignable:
            lines.append(
                f"{len(self.unalignable):,} questions with an answer that is not in the context "
                f"where the file says, left out: {ids(list(self.unalignable))}"
            )
            lines += [f"  {name}: {why}" for name, why in list(self.unalignable.items())[:3]]
        if self.empty_answers:
            lines.append(
                f"{len(self.empty_answers):,} questions with an empty answer: "
                f"{ids(self.empty_answers)}"
            )
        if self.blank_contexts:
            lines.append(
                f"{len(self.blank_contexts):,} questions about a blank context: "
                f"{ids(self.blank_contexts)}"
            )
        if self.windows_per_question:
            counts = ", ".join(
                f"{count:,} in {number}"
                for number, count in sorted(self.windows_per_question.items())
            )
            total = sum(self.windows_per_question.values())
            lines.append(
                f"windows {self.windows:,}, {self.windows / max(1, total):.2f} an example "
                f"(examples by windows: {counts})"
            )
        if self.truncated_questions:
            lines.append(
                f"{len(self.truncated_questions):,} questions cut to max_query_length: "
                f"{ids(self.truncated_questions)}"
            )
        if self.gaps:
            lines.append(
                f"{self.gaps:,} examples have windows that do not overlap: an answer across two "
                "of them cannot be found; take a smaller doc_stride"
            )
        return lines + self.warnings


def read_questions(path: str, character_level: bool = False) -> Iterator[Question]:
    """Reads the questions of a SQuAD file, in order.

    Args:
      path: the JSON file, local or remote.
      character_level: see `Context`.

    Raises (when the first question is asked for, or the bad one):
      FileNotFoundError: there is no such file.
      ValueError: it is empty, not JSON, lacks a key, has a value of another type than SQuAD's or
        an id twice; the message names the article, paragraph and question.
    """
    if paths.exists(path) and not paths.is_dir(path) and paths.size(path) == 0:
        raise ValueError(f"{path}: the file is empty; expected a SQuAD file (JSON).")
    articles = _value(paths.read_json(path), "data", list, path)
    seen: dict[str, str] = {}
    for article_number in range(len(articles)):
        # What was read may be forgotten while the rest is used.
        article, articles[article_number] = articles[article_number], None
        in_article = f"{path}: article {article_number + 1}"
        title = article.get("title") if isinstance(article, dict) else None
        if isinstance(title, str) and title:
            in_article += f" ({title!r})"
        paragraphs = _value(article, "paragraphs", list, in_article)
        for paragraph_number, paragraph in enumerate(paragraphs, 1):
            in_paragraph = f"{in_article}, paragraph {paragraph_number}"
            context = Context(_value(paragraph, "context", str, in_paragraph), character_level)
            for number, item in enumerate(_value(paragraph, "qas", list, in_paragraph), 1):
                place = f"{in_paragraph}, question {number}"
                # A number is written as an id by some tools.
                qas_id = str(_value(item, "id", (str, int), place))
                where = f"{place} (id {qas_id!r})"
                if qas_id in seen:
                    raise ValueError(
                        f"{where}: the id was there before: {seen[qas_id]}. Predictions are "
                        "written by id; give each question one of its own."
                    )
                seen[qas_id] = f"article {article_number + 1}, paragraph {paragraph_number}"
                impossible = None
                if "is_impossible" in item:
                    impossible = _value(item, "is_impossible", bool, where)
                yield Question(
                    qas_id,
                    _value(item, "question", str, where),
                    context,
                    _answers(item, where) if "answers" in item else None,
                    impossible,
                    where,
                )


_TYPE_NAMES = {list: "a list", str: "a string", bool: "true or false", int: "an integer"}


def _value(parent: Any, key: str, kind: Any, where: str) -> Any:
    """Returns parent[key]; raises a ValueError that says what is wrong instead."""
    kinds = kind if isinstance(kind, tuple) else (kind,)
    if not isinstance(parent, dict):
        raise ValueError(f"{where}: expected an object with the key {key!r}, found {parent!r:.60}.")
    if key not in parent:
        found = ", ".join(repr(name) for name in list(parent)[:8]) or "none"
        raise ValueError(f"{where}: the key {key!r} is missing (keys found: {found}).")
    value = parent[key]
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        names = " or ".join(_TYPE_NAMES[each] for each in kinds)
        raise ValueError(f"{where}: {key!r} must be {names}, found {value!r:.60}.")
    return value


def _answers(item: dict[str, Any], where: str) -> list[Answer]:
    answers = []
    for number, answer in enumerate(_value(item, "answers", list, where), 1):
        place = f"{where}, answer {number}"
        text = _value(answer, "text", str, place)
        has_start = "answer_start" in answer
        answers.append(
            Answer(text, _value(answer, "answer_start", int, place) if has_start else None)
        )
    return answers


def read_examples(
    path: str,
    is_training: bool,
    version_2_with_negative: bool = False,
    several_answers: str = "refuse",
    character_level: bool = False,
    report: Report | None = None,
) -> Iterator[Example]:
    """Reads the examples of a SQuAD file, in order.

    Args:
      path: the JSON file, local or remote.
      is_training: whether to read answers. An answer that is not where the file says is left out
        and put into the report; without `is_training` answers are not looked at.
      version_2_with_negative: whether some questions are impossible (SQuAD 2.0).
      several_answers: what training makes of a question with several different answers: "refuse"
        is an error (the original's way), "first" takes the first one, "each" makes an example of
        each.
      character_level: for text without spaces, see `Context`. Answers are then any characters of
        the context, and start_position and end_position count characters.
      report: counts into this one.

    Raises (when the first example is asked for, or the bad one):
      FileNotFoundError, ValueError: as `read_questions`; a 2.0 file is read as 1.1 for training
        or the reverse; a question to be learned has no answer, or several and they are refused.
    """
    if several_answers not in SEVERAL_ANSWERS:
        raise ValueError(
            f"several_answers={several_answers!r}: choose one of {', '.join(SEVERAL_ANSWERS)}."
        )
    report = Report() if report is None else report
    marked = 0
    for question in read_questions(path, character_level):
        report.questions += 1
        report.impossible += bool(question.is_impossible)
        marked += question.is_impossible is not None
        distinct = list(dict.fromkeys(question.answers or ()))
        report.several_answers += len(distinct) > 1
        if question.context.is_blank:
            report.blank_contexts.append(question.qas_id)
        examples: Iterator[Example] | list[Example]
        if is_training:
            examples = _training_examples(
                question, distinct, version_2_with_negative, several_answers, report
            )
        else:
            examples = [Example(question.qas_id, question.text, question.context)]
        for example in examples:
            report.examples += 1
            yield example
    if not report.questions:
        raise ValueError(f"{path}: there are no questions in the file.")
    if not is_training and report.impossible and not version_2_with_negative:
        report.warnings.append(
            f"{path}: {report.impossible:,} questions are marked as impossible, but every "
            "question will get an answer: use --version_2_with_negative for SQuAD 2.0."
        )
    if not is_training and version_2_with_negative and not marked:
        report.warnings.append(
            f"{path}: no question says whether it is impossible; for a SQuAD 1.1 file leave out "
            "--version_2_with_negative."
        )


def _training_examples(
    question: Question,
    answers: list[Answer],
    version_2_with_negative: bool,
    several_answers: str,
    report: Report,
) -> Iterator[Example]:
    qas_id, where = question.qas_id, question.where
    if version_2_with_negative:
        if question.is_impossible is None:
            raise ValueError(
                f"{where}: the key 'is_impossible' is missing: the file looks like SQuAD 1.1; "
                "leave out --version_2_with_negative."
            )
        if question.is_impossible:
            yield Example(qas_id, question.text, question.context, "", -1, -1, True)
            return
    if question.answers is None:
        raise ValueError(f"{where}: the key 'answers' is missing; training needs it.")
    if not answers:
        hint = (
            "it is not marked as impossible."
            if version_2_with_negative
            else "for SQuAD 2.0, where a question may have none, use --version_2_with_negative."
        )
        raise ValueError(f"{where}: the question has no answer; {hint}")
    if len(answers) > 1 and several_answers == "refuse":
        raise ValueError(
            f"{where}: the question has {len(answers)} different answers, and training takes one; "
            "use --several_answers=first or --several_answers=each."
        )
    if several_answers != "each":
        answers = answers[:1]
    learned = set()
    for answer in answers:
        if answer.start is None:
            raise ValueError(f"{where}: the key 'answer_start' is missing; training needs it.")
        found = _align(question.context, answer.text, answer.start)
        if isinstance(found, str):
            report.unalignable.setdefault(qas_id, found)
            continue
        if not answer.text and qas_id not in report.empty_answers:
            report.empty_answers.append(qas_id)
        if found not in learned:
            learned.add(found)
            yield Example(qas_id, question.text, question.context, answer.text, *found)


def _align(context: Context, answer: str, start: int) -> tuple[int, int] | str:
    """Returns the first and last word of an answer, or why it is not there."""
    text, last = context.text, start + len(answer) - 1
    size = len(text)
    # A negative offset counts from the end, as the original lets it.
    if not (-size <= start < size and -size <= last < size):
        return f"{answer!r:.60} at {start} reaches past the context's {size} characters"
    wanted = " ".join(answer.split())
    if context.character_level:
        first, last = start % size, last % size
        found = text[first : last + 1]
        if " ".join(found.split()) != wanted or not wanted:
            return f"the context has {found!r:.60} at {start}, not {answer!r:.60}"
        return first, last
    words = [match.group() for match in _find_words(text)]
    starts = [match.start() for match in _find_words(text)]
    # A blank belongs to the word before it; those at the head to none (-1).
    first_word = bisect_right(starts, start % size) - 1
    last_word = bisect_right(starts, last % size) - 1
    found = " ".join(words[first_word : last_word + 1])
    if wanted not in found:
        return f"the context has {found!r:.60} at {start}, not {answer!r:.60}"
    return max(first_word, 0), last_word
