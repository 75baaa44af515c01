"""Files of CoNLL's kind: a token a line, a blank line behind a sentence.

    -DOCSTART- -X- -X- O

    EU NNP B-NP B-ORG
    rejects VBZ B-VP O

They are read into sentences, and predictions written beside the tokens again.
"""

import dataclasses
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from bert_tf import paths
from data_prep.tasks import entities, rows

DOCSTART = "-DOCSTART-"


@dataclasses.dataclass(slots=True)
class Sentence:
    """One sentence.

    Attributes:
      guid: "train-0", numbered in file order.
      words: its tokens, one or more.
      tags: their tags in IOB2, or None where they are not known.
      lines: the lines that they stand in, from 1.
      document: number of its document in the file, from 0.
    """

    guid: str
    words: list[str]
    tags: list[str] | None
    lines: list[int]
    document: int


@dataclasses.dataclass
class ConllFile:
    """A file that was read.

    Attributes:
      path: where it is.
      sentences: one or more.
      scheme: what its tags were written in; None if not read or if there are no entities.
      strays: lines of tags against the scheme that are read all the same; see
        `entities.find_scheme`.
      num_columns: of each line of a token.
      separator: what is written between columns, a tab or a space.
      has_documents: whether there are -DOCSTART- lines.
    """

    path: str
    sentences: list[Sentence]
    scheme: str | None
    strays: list[int]
    num_columns: int
    separator: str
    has_documents: bool


class _Line(NamedTuple):
    number: int  # from 1
    text: str  # without its end
    fields: list[str]  # [] for a blank line


class _Lines:
    """The lines of a file, cut into columns; the first token's line says what separates them."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.separator = ""
        self.num_columns = 0
        self.first = 0  # The line that these were taken from.

    def __iter__(self) -> Iterator[_Line]:
        for number, line in enumerate(rows._lines(self.path), 1):
            text = line.removesuffix("\n")
            if not text.strip(" \t"):
                yield _Line(number, text, [])
                continue
            # Only these separate: other white space, U+00A0 say, may be a token.
            words = re.split("[ \t]+", text.strip(" \t"))
            if words[0] == DOCSTART:
                yield _Line(number, text, words)
                continue
            if not self.first:
                self.separator = "\t" if "\t" in text else " "
            fields = words
            if self.separator == "\t":
                fields = [field.strip(" ") for field in text.split("\t")]
            if not self.first:
                self.first, self.num_columns = number, len(fields)
            if len(fields) != self.num_columns:
                kind = "tabs" if self.separator == "\t" else "spaces"
                raise rows.row_error(
                    self.path,
                    number,
                    # row_error's own hints are for tables.
                    [""] * len(fields),
                    f"{self.num_columns}",
                    f"line {self.first}, the first one with a token, has {self.num_columns}, "
                    f"separated by {kind}",
                )
            yield _Line(number, text, fields)


def read_conll(
    path: str,
    set_name: str = "train",
    labelled: bool = True,
    word_column: int = 0,
    tag_column: int = -1,
) -> ConllFile:
    """Reads a file.

    Columns are separated by tabs if there is one in the first token's line, by spaces if not.
    Lines with nothing but white space end a sentence, as do -DOCSTART- lines, which also begin a
    document. A byte order mark and carriage returns are dropped.

    Args:
      path: the file.
      set_name: for the sentences' ids.
      labelled: whether to read tags; False leaves that column unread, if there is one.
      word_column: number of the token's column, from 0; -1 is the last.
      tag_column: of the tag's.

    Raises:
      FileNotFoundError: if there is no such file.
      ValueError: for a file without a token, a number of columns that changes, a column that is
        not there, an empty token, a tag that is none, a scheme that cannot be; names the line.
    """
    lines = _Lines(path)
    sentences: list[Sentence] = []
    words: list[str] = []
    tags: list[str] = []
    numbers: list[int] = []
    document, has_documents = 0, False

    def end_sentence() -> None:
        nonlocal words, tags, numbers
        if words:
            guid = f"{set_name}-{len(sentences)}"
            known = tags if labelled else None
            sentences.append(Sentence(guid, words, known, numbers, document))
            words, tags, numbers = [], [], []

    for line in lines:
        if not line.fields or line.fields[0] == DOCSTART:
            end_sentence()
            if line.fields:
                has_documents = True
                document += bool(sentences) and sentences[-1].document == document
            continue
        if line.number == lines.first:
            _check_columns(lines, labelled, word_column, tag_column)
        word = line.fields[word_column]
        if not word:
            raise ValueError(f"{path}, line {line.number}: the token is empty.")
        words.append(word)
        numbers.append(line.number)
        if labelled:
            tags.append(line.fields[tag_column])
    end_sentence()
    if not sentences:
        raise ValueError(
            f"{path} has no tokens; the {set_name} set needs at least one sentence: a token a "
            "line, with its tag in the last column where there are tags."
        )
    scheme, strays = None, []
    if labelled:
        try:
            scheme, places = entities.find_scheme([one.tags or [] for one in sentences])
        except entities.TagError as error:
            line_number = sentences[error.sentence].lines[error.token]
            raise ValueError(
                f"{path}, line {line_number}: {error}. Are the tags in column {tag_column}?"
            ) from None
        strays = [sentences[number].lines[place] for number, place in places]
        for sentence in sentences:
            sentence.tags = entities.to_iob2(sentence.tags or [], scheme)
    return ConllFile(
        path, sentences, scheme, strays, lines.num_columns, lines.separator, has_documents
    )


def _check_columns(lines: _Lines, labelled: bool, word_column: int, tag_column: int) -> None:
    found = lines.num_columns
    plural = "column" if found == 1 else "columns"
    where = f"{lines.path}, line {lines.first}: there"
    wanted = [("tokens", word_column)] + ([("tags", tag_column)] if labelled else [])
    for what, column in wanted:
        if not -found <= column < found:
            raise ValueError(
                f"{where} is no column {column} (counted from 0) for the {what}, the file has "
                f"{found} {plural}."
            )
    if labelled and word_column % found == tag_column % found:
        hint = (
            "it has one column only: is this a test file, without tags?"
            if found == 1
            else f"both are said to be in column {word_column % found}."
        )
        raise ValueError(f"{where} are no tags beside the tokens; {hint}")


def has_tags(path: str, column: int) -> bool:
    """Tells whether a file's column, from 0, has anything but O in a token's line."""
    return any(
        line.fields and line.fields[0] != DOCSTART and line.fields[column] != entities.OUTSIDE
        for line in _Lines(path)
    )


def write_predictions(
    source: str, target: str, tags: Sequence[Sequence[str]], scheme: str | None = None
) -> None:
    """Writes a file again with a prediction behind each token's line, as an added last column.

    Blank and -DOCSTART- lines stay; the latter get an O where they have as many columns as the
    others have. Lines end in LF.

    Args:
      source: the file that was read.
      target: the file to write; it appears when it is complete.
      tags: the predicted tags of each of its sentences, in IOB2.
      scheme: what they are converted to: the `ConllFile`'s, or that of the training file.

    Raises:
      ValueError: if there are not as many tags as tokens, as when the file was changed since.
    """
    lines = _Lines(source)
    flat = iter([tag for each in tags for tag in entities.from_iob2(each, scheme)])
    count = sum(map(len, tags))
    short = ValueError(
        f"{source} does not have the {count} tokens that there are predictions for: was it "
        "changed since it was read?"
    )
    with paths.atomic_write(target, newline="\n") as handle:
        waiting: list[_Line] = []  # -DOCSTART- lines before the first token
        for line in lines:
            if not lines.first:
                waiting.append(line)
                continue
            for early in waiting:
                handle.write(_with_outside(early, lines) + "\n")
            waiting = []
            if not line.fields or line.fields[0] == DOCSTART:
                handle.write(_with_outside(line, lines) + "\n")
                continue
            tag = next(flat, None)
            if tag is None:
                raise short
            text = line.text if lines.separator == "\t" else line.text.rstrip(" \t")
            handle.write(f"{text}{lines.separator}{tag}\n")
        if next(flat, None) is not None or waiting:
            raise short


def _with_outside(line: _Line, lines: _Lines) -> str:
    if line.fields and len(line.fields) == lines.num_columns > 1:
        return f"{line.text.rstrip(' ')}{lines.separator}{entities.OUTSIDE}"
    return line.text
