"""Adds words to the vocabulary of a checkpoint, to continue its pre-training on a domain's texts.

A new word starts from the mean of the rows of the pieces that it was split into before, in the
word embeddings and in the masked LM's output bias; all else stays as it is, so that texts
without new words give the same outputs as before. Writes a folder like a released one:
bert_config.json, vocab.txt, bert_model.ckpt.* (weights only).
"""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from absl import logging

from bert_tf import paths
from bert_tf.checkpoint import names, original, restore
from bert_tf.cli.command_line import CommandLine, CommandLineError, import_tensorflow
from bert_tf.config import BertConfig
from bert_tf.tokenization.vocab import load_vocab
from bert_tf.tokenization.wordpiece import (
    MAX_WORD_CHARACTERS,
    UNK_TOKEN,
    BasicTokenizer,
    WordpieceTokenizer,
)

CLI = CommandLine(
    "-m bert_tf.cli.extend_vocabulary",
    __doc__,
    """\
python -m bert_tf.cli.extend_vocabulary --init_checkpoint=uncased_L-12_H-768_A-12 \\
    --new_tokens_file=words.txt --output_dir=extended""",
)
with CLI.group("Files"):
    CLI.string(
        "init_checkpoint",
        None,
        "Checkpoint to extend: an original prefix or its folder, or a Hugging Face folder.",
    )
    CLI.string(
        "new_tokens_file",
        None,
        "The new words, one a line, UTF-8; ##ology is a piece that goes on with a word.",
    )
    CLI.string("output_dir", None, "Folder to write; it is made.")
    CLI.string("vocab_file", None, "Vocabulary; vocab.txt beside the checkpoint by default.")
    CLI.string(
        "bert_config_file",
        None,
        "Configuration; bert_config.json or config.json beside the checkpoint by default.",
    )
with CLI.group("Words"):
    CLI.boolean(
        "use_unused",
        False,
        "Put the new words in the places of the vocabulary's [unusedN] lines, so that the model "
        "keeps its size. By default the vocabulary grows.",
    )
    CLI.boolean(
        "skip_unmatchable",
        False,
        "Leave words out that the tokenizer would never find in a text (it splits or lower-cases "
        "them), with a warning. By default they are an error.",
    )
    CLI.boolean(
        "do_lower_case",
        True,
        "Whether the model is uncased; by default as tokenizer_config.json beside the checkpoint "
        "says. Give --nodo_lower_case for cased models.",
    )
    CLI.enum(
        "strip_accents",
        "auto",
        ["auto", "true", "false"],
        "Whether the scripts will drop accents; auto follows do_lower_case.",
    )
    CLI.string(
        "never_split",
        "",
        "New words that the scripts will keep whole by their own --never_split, comma-separated, "
        "for example [E1],[E2]: these may be anything.",
    )

_SHOWN = 10
_UNUSED = re.compile(r"\[unused\d+\]")


@dataclasses.dataclass(frozen=True)
class NewTokens:
    """What a file of new words comes to.

    Attributes:
        added: the new tokens in the file's order.
        known: those that the vocabulary has already.
        unmatchable: those that no text can give, each with the reason; only with
            `skip_unmatchable`.
    """

    added: tuple[str, ...]
    known: tuple[str, ...]
    unmatchable: Mapping[str, str]


def read_new_tokens(
    path: str,
    vocab: Mapping[str, int],
    basic: BasicTokenizer,
    skip_unmatchable: bool = False,
) -> NewTokens:
    """Reads and checks a file of new words, one a line; blank lines do not count.

    Args:
        path: UTF-8 text.
        vocab: the vocabulary that they are for.
        basic: the rules by which texts are split into words, with the never-split tokens.
        skip_unmatchable: whether to leave out words that no text can give.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is empty, not UTF-8, or nothing in it is new; or lines hold more than a
            word, a word twice, or one that no text can give. All lines are named.
    """
    added: list[str] = []
    known: list[str] = []
    unmatchable: dict[str, str] = {}
    problems: list[str] = []
    splits: list[str] = []
    seen: dict[str, int] = {}
    for number, line in enumerate(_lines(path), 1):
        token = line.strip()
        if not token:
            continue
        if len(token.split()) > 1:
            problems.append(f"line {number}: {token!r} holds white space; write one word a line")
        elif token in seen:
            problems.append(
                f"line {number}: {token!r} stands in line {seen[token]} too; remove one"
            )
        elif token in vocab:
            known.append(token)
        elif reason := _why_unmatchable(token, basic):
            unmatchable[token] = reason
            splits.append(f"line {number}: {token!r} {reason}")
        else:
            added.append(token)
        seen.setdefault(token, number)
    if not seen and not problems:
        raise ValueError(f"{path} holds no words; write one a line.")
    if problems:
        raise ValueError(f"{path} cannot be used:\n{_listing(problems)}")
    if splits and not skip_unmatchable:
        advice = "write the words as the tokenizer makes them, each part on a line of its own"
        if basic.do_lower_case:
            advice += "; for a cased model give --nodo_lower_case"
        raise ValueError(
            f"{path}: the tokenizer never finds these in a text, their embeddings would never be "
            f"used:\n{_listing(splits)}\nRemove them, or {advice}; for markers that your texts "
            f"hold on purpose, such as [E1], give --never_split; to leave all of them out, "
            f"--skip_unmatchable."
        )
    if not added:
        raise ValueError(
            f"{path} holds nothing to add: of {len(seen)} words {len(known)} are in the vocabulary "
            f"already and {len(unmatchable)} can never be found in a text."
        )
    return NewTokens(tuple(added), tuple(known), unmatchable)


def _lines(path: str) -> list[str]:
    if not paths.exists(path):
        raise FileNotFoundError(f"There is no file of new words {path}.")
    if paths.is_dir(path):
        raise ValueError(f"{path} is a folder; give a file with a new word a line.")
    with paths.open_file(path, "rb") as handle:
        content = handle.read()
    try:
        # Editors on Windows begin a file with a byte order mark.
        return content.decode("utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ValueError(
            f"{path} is not UTF-8: byte 0x{content[error.start]:02x} in line {line}; save the file "
            f"as UTF-8."
        ) from None


def _listing(problems: Sequence[str]) -> str:
    shown = [f"  {problem}" for problem in problems[:_SHOWN]]
    if len(problems) > _SHOWN:
        shown.append(f"  and {len(problems) - _SHOWN} more")
    return "\n".join(shown)


def _why_unmatchable(token: str, basic: BasicTokenizer) -> str:
    """Why no text gives a token; "" for one that some text gives."""
    if token in basic.never_split:
        return ""
    goes_on = token.startswith("##")
    # A piece that goes on is judged behind a letter, which no rule changes.
    word = "a" + token[2:] if goes_on else token
    if goes_on and word == "a":
        return "is a mark without a piece"
    if len(word) > MAX_WORD_CHARACTERS:
        return f"is longer than {MAX_WORD_CHARACTERS} characters, which makes any word {UNK_TOKEN}"
    words = basic.split(word)
    if words == [word]:
        return ""
    if goes_on:
        return "goes on with no word: of a letter and it the tokenizer makes " + _shown(words)
    return f"becomes {_shown(words)}" if words else "is dropped"


def _shown(words: Sequence[str]) -> str:
    return " ".join(map(repr, words))


class OldPieces:
    """Splits new words by the vocabulary as it was.

    Args:
        vocab: token to id; must hold [UNK].
        basic: the rules by which texts are split into words.

    Example:
        >>> OldPieces({"[UNK]": 0, "un": 1, "##aff": 2, "##able": 3}, BasicTokenizer())("unaffable")
        ['un', '##aff', '##able']
    """

    def __init__(self, vocab: Mapping[str, int], basic: BasicTokenizer):
        self._basic = basic
        self._words = WordpieceTokenizer(vocab)
        # A piece that goes on with a word is split as the rest of a word is. The tokenizer looks
        # up the first piece of what it is given without "##", so here it finds it without.
        marked = [piece for piece in vocab if piece.startswith("##")]
        inner = {piece[2:]: vocab[piece] for piece in marked}
        inner.update((piece, vocab[piece]) for piece in marked)
        self._inner = WordpieceTokenizer(inner)

    def __call__(self, token: str) -> list[str]:
        """Returns the pieces of a new token; [UNK] where it cannot be split."""
        if token.startswith("##") and token not in self._basic.never_split:
            first, *rest = self._inner.tokenize(token[2:])
            return [first if first == UNK_TOKEN else "##" + first, *rest]
        # More than one word is left of a never-split token only.
        words = self._basic.split(token)
        return [piece for word in words for piece in self._words.tokenize(word)] or [UNK_TOKEN]


def extend(
    tensors: Mapping[str, np.ndarray], vocab_size: int, sources: Mapping[int, Sequence[int]]
) -> dict[str, np.ndarray]:
    """Gives new ids the mean of old ids' rows, in each weight that has a row for each token.

    Args:
        tensors: a checkpoint's weights by the original's names.
        vocab_size: rows afterwards; at least those before.
        sources: new id to the ids whose rows it starts from. Together with the old ids all of
            range(vocab_size); an old id among them gets another row.

    Returns:
        float32 weights by name: word_embeddings [vocab_size, H] and, where there is the masked
        LM's head, output_bias [vocab_size]; the other weights as they are.
    """
    extended = dict(tensors)
    for weight in names.WEIGHTS:
        if weight.shape[0] != "vocab_size" or weight.original not in tensors:
            continue
        old = tensors[weight.original]
        new = np.zeros((vocab_size, *old.shape[1:]), np.float32)
        new[: len(old)] = old
        for token_id, ids in sources.items():
            new[token_id] = old[list(ids)].mean(axis=0, dtype=np.float64)
        extended[weight.original] = new
    return extended


def main(argv: Sequence[str]) -> NewTokens:
    """Extends a checkpoint as the flags in `argv` (the program's name first) say.

    Raises:
        ValueError, OSError: the input cannot be read, does not fit together, or the output
            cannot be written; nothing is left of it.
    """
    flags = CLI.parse(argv)
    CLI.require(
        (name, what)
        for name, what in (
            ("init_checkpoint", "the checkpoint to extend"),
            ("new_tokens_file", "the new words, one a line"),
            ("output_dir", "the folder to write"),
        )
        if not getattr(flags, name)
    )
    _check_output(flags.output_dir)
    import_tensorflow()
    checkpoint = restore.load(
        flags.init_checkpoint, None, flags.bert_config_file or None, flags.vocab_file or None
    )
    config, vocab_file = _check_checkpoint(checkpoint)
    vocab = load_vocab(vocab_file)
    if UNK_TOKEN not in vocab:
        raise ValueError(f"{vocab_file} has no token {UNK_TOKEN!r}; a BERT vocabulary needs it.")
    basic = BasicTokenizer(
        _do_lower_case(flags, checkpoint),
        {"auto": None, "true": True, "false": False}[flags.strip_accents],
        [token for token in flags.never_split.split(",") if token],
    )
    new = read_new_tokens(flags.new_tokens_file, vocab, basic, flags.skip_unmatchable)

    if flags.use_unused:
        new_ids = _unused_places(vocab, len(new.added), vocab_file)
        vocab_size = config.vocab_size
    else:
        vocab_size = config.vocab_size + len(new.added)
        new_ids = list(range(config.vocab_size, vocab_size))
    split = OldPieces(vocab, basic)
    pieces = {token: split(token) for token in new.added}
    sources = {
        token_id: [vocab[piece] for piece in pieces[token]]
        for token_id, token in zip(new_ids, new.added)
    }
    report = restore.merge(restore.whole(checkpoint, config), checkpoint)
    tensors = extend(dict(restore.finite_values(checkpoint, report)), vocab_size, sources)
    _write(
        flags.output_dir,
        _new_vocabulary(vocab_file, dict(zip(new_ids, new.added))),
        config.replace(vocab_size=vocab_size),
        tensors,
    )
    _say(flags.output_dir, config, vocab_size, new, pieces, basic)
    return new


def _do_lower_case(flags: Any, checkpoint: restore.Checkpoint) -> bool:
    if CLI.given("do_lower_case") or checkpoint.do_lower_case is None:
        return flags.do_lower_case
    return checkpoint.do_lower_case


def _files(folder: str) -> tuple[str, str, str]:
    """The vocabulary, the configuration and the checkpoint's prefix of a folder."""
    return (
        paths.join(folder, restore.VOCAB_FILE),
        paths.join(folder, restore.ORIGINAL_CONFIG_FILE),
        paths.join(folder, original.RELEASED_NAME),
    )


def _check_output(folder: str) -> None:
    if paths.exists(folder) and not paths.is_dir(folder):
        raise CommandLineError(f"--output_dir={folder} is a file; name a folder.")
    vocab_file, config_file, prefix = _files(folder)
    existing = [path for path in (vocab_file, config_file, f"{prefix}.index") if paths.exists(path)]
    if existing:
        raise CommandLineError(
            f"{', '.join(existing)} would be replaced. Give another --output_dir, or remove what "
            f"is there."
        )


def _check_checkpoint(checkpoint: restore.Checkpoint) -> tuple[BertConfig, str]:
    """Returns the configuration and the vocabulary's path, which fit the checkpoint."""
    config, vocab_file = checkpoint.config, checkpoint.vocab_file
    if config is None:
        raise ValueError(
            f"There is no bert_config.json beside {checkpoint.prefix}. Give it by "
            f"--bert_config_file."
        )
    if vocab_file is None:
        raise ValueError(
            f"There is no vocab.txt beside {checkpoint.prefix}. Give it by --vocab_file."
        )
    rows = checkpoint.shapes.get(restore.WORD_EMBEDDINGS, (0,))[0]
    lines = restore.count_vocabulary(vocab_file)
    if rows and lines != rows:
        advice = "Give the vocab.txt that belongs to the checkpoint by --vocab_file"
        if lines < rows:
            advice += (
                f"; where its table was padded on purpose, add {rows - lines} lines such as "
                f"[unused{rows}] to a copy of the vocabulary first"
            )
        raise ValueError(
            f"The vocabulary {vocab_file} has {lines} lines, but the word embeddings of "
            f"{checkpoint.prefix} have {rows} rows. {advice}."
        )
    return config, vocab_file


def _unused_places(vocab: Mapping[str, int], needed: int, vocab_file: str) -> list[int]:
    places = sorted(token_id for token, token_id in vocab.items() if _UNUSED.fullmatch(token))
    if len(places) < needed:
        raise ValueError(
            f"--use_unused: {needed} new words, but {vocab_file} has {len(places)} [unusedN] "
            f"places. Give fewer words, or leave --use_unused out to let the vocabulary grow."
        )
    return places[:needed]


def _new_vocabulary(vocab_file: str, new: Mapping[int, str]) -> bytes:
    """The vocabulary's lines as they are, those of new ids replaced or appended."""
    with paths.open_file(vocab_file, "rb") as handle:
        lines = handle.read().split(b"\n")
    if lines[-1] == b"":
        lines.pop()
    for token_id, token in new.items():
        lines[token_id : token_id + 1] = [token.encode("utf-8")]
    return b"\n".join(lines) + b"\n"


def _write(
    folder: str, vocabulary: bytes, config: BertConfig, tensors: Mapping[str, np.ndarray]
) -> None:
    with original.whole_folder(folder) as aside:
        vocab_file, config_file, prefix = _files(aside)
        with paths.atomic_write(vocab_file, "wb") as handle:
            handle.write(vocabulary)
        config.to_json_file(config_file)
        original.write(prefix, tensors)


def _say(
    folder: str,
    config: BertConfig,
    vocab_size: int,
    new: NewTokens,
    pieces: Mapping[str, Sequence[str]],
    basic: BasicTokenizer,
) -> None:
    mean = sum(map(len, pieces.values())) / len(pieces)
    logging.info(
        "Added %d words, which were %.2f pieces each before; each starts from their mean.",
        len(new.added),
        mean,
    )
    if new.known:
        logging.info("%d were in the vocabulary already: %s", len(new.known), _some(new.known))
    if new.unmatchable:
        logging.warning(
            "%d left out, as the tokenizer never finds them in a text:\n%s",
            len(new.unmatchable),
            _listing([f"{token!r} {reason}" for token, reason in new.unmatchable.items()]),
        )
    unknown = [token for token, old in pieces.items() if set(old) == {UNK_TOKEN}]
    if unknown:
        logging.warning(
            "%d were %s before and start from its row: %s",
            len(unknown),
            UNK_TOKEN,
            _some(unknown),
        )
    logging.info("vocab_size: %d before, %d now.", config.vocab_size, vocab_size)
    if config.hidden_act == "gelu_erf":
        logging.info(
            "hidden_act stays gelu_erf, which the original release does not know; our scripts do."
        )
    vocab_file, config_file, prefix = _files(folder)
    logging.info(
        "Continue its pre-training with: --init_checkpoint=%s --bert_config_file=%s, on records "
        "made with --vocab_file=%s%s",
        prefix,
        config_file,
        vocab_file,
        "" if basic.do_lower_case else " --nodo_lower_case",
    )


def _some(tokens: Sequence[str]) -> str:
    return ", ".join(tokens[:_SHOWN]) + (", ..." if len(tokens) > _SHOWN else "")


if __name__ == "__main__":
    CLI.run(main)
