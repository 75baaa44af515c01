"""Vocabulary files: a token a line, its id is the number of the line."""

from bert_tf import paths


def load_vocab(path: str) -> dict[str, int]:
    """Reads a vocabulary file: UTF-8 whatever the locale, a token a line.

    A line ends at "\\n" only: U+0085 and U+2028 may stand inside a token. Carriage returns are
    dropped and white space around a token is stripped. Every line uses up an id, a blank one
    too (its token is ""). A token that stands twice keeps the place of its first line and gets
    the id of its last one. A byte order mark is kept as a part of the first token, as in the
    original.

    Args:
      path: local path or address of the file.

    Returns:
      Token to id, in the order of the file.

    Raises:
      FileNotFoundError: there is no such file.
      ValueError: `path` is a folder, the file is empty or it is not UTF-8.
    """
    if paths.is_dir(path):
        raise ValueError(
            f"{path} is a folder, not a vocabulary file; give the path of the vocab.txt in it"
        )
    try:
        with paths.open_file(path, "rb") as file:
            content = file.read()
    except FileNotFoundError as error:
        raise FileNotFoundError(
            f"vocabulary file {path} does not exist; give the vocab.txt that came with the model"
        ) from error
    if not content:
        raise ValueError(f"vocabulary file {path} is empty; it must hold a token a line")
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ValueError(
            f"vocabulary file {path} is not UTF-8: byte 0x{content[error.start]:02x} at offset "
            f"{error.start} (line {line}), {error.reason}; save the file as UTF-8"
        ) from error
    lines = text.replace("\r", "").split("\n")
    if lines[-1] == "":  # what follows the last "\n" is no line
        lines.pop()
    return {line.strip(): number for number, line in enumerate(lines)}
