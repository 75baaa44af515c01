"""Rows of a TSV or CSV file, by the original's rules where it has any, and their errors."""

import csv
from collections.abc import Iterator

from bert_tf import paths

_BOM = b"\xef\xbb\xbf"


def read_rows(path: str, quoted: bool = False) -> Iterator[tuple[int, list[str]]]:
    """Yields the rows of a file with the line they begin in.

    A line ends at LF only; every CR is dropped, a leading byte order mark too. Blank lines are
    skipped. Without `quoted` a row is cut at each tab and quotes have no meaning, as in the
    original; with it the file is CSV: commas, fields in double quotes, which may hold line ends.

    Args:
      path: the file.
      quoted: whether it is CSV rather than TSV.

    Yields:
      (line number from 1, fields).

    Raises:
      ValueError: for bytes that are not UTF-8, or broken quoting; names the file and the place.
    """
    if quoted:
        yield from _csv_rows(path)
        return
    for number, line in enumerate(_lines(path), 1):
        fields = line.removesuffix("\n").split("\t")
        if len(fields) > 1 or fields[0].strip():
            yield number, fields


def _lines(path: str) -> Iterator[str]:
    offset = 0
    with paths.open_file(path, "rb") as handle:
        for raw in handle:
            data = raw
            if offset == 0:
                data = raw.removeprefix(_BOM)
            try:
                line = data.decode("utf-8")
            except UnicodeDecodeError as error:
                place = offset + len(raw) - len(data) + error.start
                hint = "save the file as UTF-8"
                if offset == 0 and raw[:2] in (b"\xff\xfe", b"\xfe\xff"):
                    hint = "it looks like UTF-16: save it as UTF-8"
                raise ValueError(
                    f"{path}: byte {place} (0x{data[error.start]:02x}) is not UTF-8; {hint}."
                ) from None
            offset += len(raw)
            yield line.replace("\r", "") if "\r" in line else line


def _csv_rows(path: str) -> Iterator[tuple[int, list[str]]]:
    # The limit is the module's, 131,072 characters unless raised; a C long on every platform.
    csv.field_size_limit(max(csv.field_size_limit(), 2**31 - 1))
    reader = csv.reader(_lines(path), strict=True)
    while True:
        number = reader.line_num + 1
        try:
            fields = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            raise ValueError(
                f"{path}, line {number}: the quoting of this row is broken ({error}); a field "
                'that begins with " must end with one, and a " inside it is written "".'
            ) from None
        if len(fields) > 1 or (fields and fields[0].strip()):
            yield number, fields


def row_error(path: str, line: int, fields: list[str], expected: str, hint: str = "") -> ValueError:
    """Returns the error for a row with the wrong number of columns.

    Args:
      path: the file.
      line: the row's first line.
      fields: what was found in it.
      expected: the number of columns wanted, in words.
      hint: what else may be wrong.
    """
    unit = "column" if len(fields) == 1 else "columns"
    text = f"{path}, line {line}: expected {expected} columns, found {len(fields)} {unit}"
    if len(fields) == 1 and fields[0].count(",") >= 1:
        text += "; there are no tabs in the row: for a comma-separated file use --task_name=CSV"
    elif len(fields) == 1 and "\t" in fields[0]:
        text += "; there are tabs in the row: for a tab-separated file use --task_name=TSV"
    elif hint:
        text += f"; {hint}"
    return ValueError(text if text.endswith("?") else text + ".")


def missing_file(
    path: str, data_dir: str, task: str, expected: list[str], subfolder: str = ""
) -> FileNotFoundError:
    """Returns the error for a file that is not in data_dir: what is wanted and what is there."""
    name = paths.basename(path)
    text = f"{path} does not exist. The task {task} reads {', '.join(expected)} from --data_dir"
    if not paths.is_dir(data_dir):
        return FileNotFoundError(f"{text}, and {data_dir} is not a folder.")
    there = paths.list_dir(data_dir)
    shown = ", ".join(there[:20]) + (", ..." if len(there) > 20 else "")
    text += f"; {data_dir} holds {shown or 'nothing'}."
    for folder in filter(None, (subfolder, subfolder.lower())):
        inner = paths.join(data_dir, folder)
        if paths.exists(paths.join(inner, name)):
            return FileNotFoundError(f"{text} Did you mean --data_dir={inner}?")
    return FileNotFoundError(text)
