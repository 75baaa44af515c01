"""Trains a WordPiece vocabulary from texts, for a model that is pre-trained from scratch.

Words are split and counted by the rules of the tokenizer itself, so that each token of the
vocabulary can be found in a text. The same texts and options give the same vocabulary. Memory
grows with the number of distinct words, not with the texts.
"""

import dataclasses
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from absl import logging

from bert_tf import paths
from bert_tf.cli.command_line import CommandLine, CommandLineError
from bert_tf.tokenization.wordpiece import (
    MAX_WORD_CHARACTERS,
    UNK_TOKEN,
    BasicTokenizer,
    WordpieceTokenizer,
    is_cjk,
    is_punctuation,
)
from data_prep import corpus, records

CLI = CommandLine(
    "-m bert_tf.cli.train_vocabulary",
    __doc__,
    """\
python -m bert_tf.cli.train_vocabulary --input_file='wiki/*.txt' --output_file=vocab.txt \\
    --vocab_size=30522""",
)
with CLI.group("Files"):
    CLI.string(
        "input_file",
        None,
        "Text files, as for create_pretraining_data.py: paths and patterns, comma-separated; - is "
        "standard input. Compressed ones are read as they are.",
    )
    CLI.string("output_file", None, "The vocabulary to write, a token a line.")
    CLI.boolean("overwrite", False, "Replace --output_file if it is there.")
with CLI.group("Texts"):
    CLI.enum(
        "input_format",
        "text",
        corpus.FORMATS,
        "How documents are told apart, as for create_pretraining_data.py.",
    )
    CLI.enum(
        "errors", "strict", ["strict", "replace"], "Bytes that are not UTF-8: stop, or drop them."
    )
    CLI.boolean(
        "do_lower_case",
        True,
        "Lower-case the texts and drop accents: for uncased models. Give --nodo_lower_case for "
        "cased ones.",
    )
    CLI.enum(
        "strip_accents",
        "auto",
        ["auto", "true", "false"],
        "Drop accents; auto follows do_lower_case.",
    )
with CLI.group("Vocabulary"):
    CLI.integer("vocab_size", 30522, "Lines of the vocabulary, special tokens included.", 1)
    CLI.integer("min_frequency", 2, "A piece must occur this many times in the texts.", 1)
    CLI.integer(
        "limit_alphabet",
        1000,
        "The most characters to keep, the most frequent ones; words with another character are "
        "[UNK]. Chinese needs several thousand.",
        1,
    )
    CLI.integer(
        "num_unused",
        0,
        "Places [unusedN] to leave for words that are added later. With 99 or more of them the "
        "special tokens get the ids of the released models ([UNK] 100, [CLS] 101, [SEP] 102, "
        "[MASK] 103); these have 994.",
        0,
    )

# Pieces of text that are counted before their words are.
_CHUNKS = 1 << 16
# Repetitions of a word in a string for the trainer.
_REPETITIONS = 100
# More than any vocabulary has; beyond it the library fails without a message.
_LARGEST = 10_000_000
# Characters of a part of a long document.
_PART = 1 << 20
# The released models have this many [unusedN] between [PAD] and [UNK], the rest after [MASK].
_UNUSED_FIRST = 99
_LOG_SECONDS = 10.0


@dataclasses.dataclass(frozen=True)
class Coverage:
    """What a vocabulary makes of counted words.

    Attributes:
        words: all words of the texts.
        distinct: distinct ones.
        unknown: words that become [UNK].
        pieces: tokens of all words, an [UNK] counted as one.
    """

    words: int
    distinct: int
    unknown: int
    pieces: int

    def __str__(self) -> str:
        return (
            f"{self.words:,} words, {self.distinct:,} distinct: "
            f"{self.pieces / max(1, self.words):.3f} pieces per word, "
            f"{self.unknown / max(1, self.words):.2%} of the words [UNK]"
        )


def special_tokens(num_unused: int = 0) -> list[str]:
    """The tokens that a vocabulary begins with, in the released models' order."""
    unused = [f"[unused{number}]" for number in range(num_unused)]
    return [
        "[PAD]",
        *unused[:_UNUSED_FIRST],
        UNK_TOKEN,
        "[CLS]",
        "[SEP]",
        "[MASK]",
        *unused[_UNUSED_FIRST:],
    ]


def count_words(texts: Iterable[str], basic: BasicTokenizer) -> Counter[str]:
    """Counts the words of texts, as `basic` splits them."""
    words: Counter[str] = Counter()
    chunks: Counter[str] = Counter()

    def count_chunks() -> None:
        for chunk, times in chunks.items():
            for word in basic.split(chunk):
                words[word] += times
        chunks.clear()

    for text in texts:
        # No rule looks across a space, and a chunk that comes again is split once only.
        chunks.update(text.split(" "))
        if len(chunks) >= _CHUNKS:
            count_chunks()
    count_chunks()
    return words


def find_alphabet(words: Mapping[str, int], limit: int) -> list[str]:
    """Returns the `limit` most frequent characters of counted words, in code point order."""
    characters: Counter[str] = Counter()
    for word, times in words.items():
        for character in word:
            characters[character] += times
    # Of equally frequent ones the lower code point comes first.
    ranked = sorted(characters, key=lambda character: (-characters[character], character))
    return sorted(ranked[:limit])


def train(
    words: Mapping[str, int],
    vocab_size: int,
    min_frequency: int = 2,
    limit_alphabet: int = 1000,
    num_unused: int = 0,
) -> list[str]:
    """Trains a vocabulary from counted words.

    Every word of the alphabet's characters can be split by it: each of them is a token, at the
    start of a word and, but for those that are words of their own, inside it.

    Args:
        words: how often each word occurs.
        vocab_size: the most tokens.
        min_frequency: how often two pieces must stand side by side to become one.
        limit_alphabet: the most characters.
        num_unused: [unusedN] tokens.

    Returns:
        the tokens in the order of their ids; fewer than `vocab_size` where the words give no
        more.

    Raises:
        ValueError: there are no words, or `vocab_size` has no room for the alphabet.
        ImportError: the tokenizers library is missing; names the command that installs it.
    """
    library = _library()
    if not words:
        raise ValueError("the texts hold no words.")
    alphabet = find_alphabet(words, limit_alphabet)
    inner = [f"##{c}" for c in alphabet if not (is_punctuation(ord(c)) or is_cjk(ord(c)))]
    # The library numbers these as they come; left to itself it numbers characters in the order
    # of a hash map, which makes its choice between equally frequent pairs a matter of chance.
    first = [*special_tokens(num_unused), *alphabet, *inner]
    if len(first) > vocab_size:
        raise ValueError(
            f"--vocab_size={vocab_size} is too small: the special tokens, {len(alphabet)} "
            f"characters and their forms inside words take {len(first)}. Give a greater one, or "
            f"fewer characters by --limit_alphabet."
        )
    known = set(alphabet)
    trainer = library.trainers.WordPieceTrainer(
        vocab_size=vocab_size,
        min_frequency=min_frequency,
        special_tokens=first,
        show_progress=False,
    )
    tokenizer = library.Tokenizer(library.models.WordPiece(unk_token=UNK_TOKEN))
    tokenizer.pre_tokenizer = library.pre_tokenizers.WhitespaceSplit()
    # A word that can only become [UNK] has nothing to teach.
    usable = {
        word: times
        for word, times in words.items()
        if known.issuperset(word) and len(word) <= MAX_WORD_CHARACTERS
    }
    tokenizer.train_from_iterator(_repeated(usable), trainer)
    ids = tokenizer.get_vocab()
    return sorted(ids, key=ids.__getitem__)


def _library() -> Any:
    try:
        import tokenizers
        import tokenizers.models
        import tokenizers.pre_tokenizers
        import tokenizers.trainers
    except ImportError:
        raise ImportError(
            "training a vocabulary needs the tokenizers library; install it with: "
            "pip install tokenizers (the extra [vocabulary])"
        ) from None
    return tokenizers


def _repeated(words: Mapping[str, int]) -> Iterator[str]:
    """Each word as often as it was counted: the library takes texts, not counts."""
    for word, times in words.items():
        many, rest = divmod(times, _REPETITIONS)
        for _ in range(many):
            yield f"{word} " * _REPETITIONS
        if rest:
            yield f"{word} " * rest


def measure(words: Mapping[str, int], tokens: Sequence[str]) -> Coverage:
    """Splits counted words by a vocabulary."""
    wordpiece = WordpieceTokenizer({token: number for number, token in enumerate(tokens)})
    unknown = pieces = 0
    for word, times in words.items():
        split = wordpiece.tokenize(word)
        pieces += times * len(split)
        unknown += times * (split == [UNK_TOKEN])
    return Coverage(sum(words.values()), len(words), unknown, pieces)


def main(argv: Sequence[str]) -> Coverage:
    """Trains a vocabulary as the flags in `argv` (the program's name first) say.

    Raises:
        ValueError, OSError: the texts cannot be read or hold no words, a size does not fit, or
            the output cannot be written; nothing is left of it.
        ImportError: the tokenizers library is missing.
    """
    flags = CLI.parse(argv)
    CLI.require(
        (name, what)
        for name, what in (
            ("input_file", "the texts"),
            ("output_file", "where the vocabulary goes"),
        )
        if not getattr(flags, name)
    )
    files = corpus.find_files(flags.input_file)
    _check_output(flags.output_file, files, flags.overwrite)
    for name in ("vocab_size", "min_frequency", "num_unused"):
        if getattr(flags, name) > _LARGEST:
            raise CommandLineError(f"--{name}={getattr(flags, name)}: give at most {_LARGEST}")
    _library()
    if not paths.has_scheme(flags.output_file):
        folder = paths.dirname(flags.output_file)
        while folder and not paths.exists(folder):
            folder = paths.dirname(folder)
        paths.check_writable(folder or ".", "--output_file")
    start = time.monotonic()
    basic = BasicTokenizer(
        flags.do_lower_case, {"auto": None, "true": True, "false": False}[flags.strip_accents]
    )
    logging.info("Counting the words of %d file%s.", len(files), "s"[: len(files) != 1])
    text = corpus.Corpus(files, flags.input_format, flags.errors, _PART)
    words = count_words(_lines(text), basic)
    if not words:
        raise ValueError(f"--input_file={flags.input_file}: the texts hold no words.")
    logging.info("Training on %s distinct words.", f"{len(words):,}")
    tokens = train(
        words, flags.vocab_size, flags.min_frequency, flags.limit_alphabet, flags.num_unused
    )
    if folder := paths.dirname(flags.output_file):
        paths.make_dirs(folder)
    with paths.atomic_write(flags.output_file) as handle:
        handle.write("".join(f"{token}\n" for token in tokens))

    coverage = measure(words, tokens)
    logging.info("%s.", coverage)
    characters = len(set().union(*words))
    if characters > flags.limit_alphabet:
        logging.warning(
            "%d of the texts' %d characters are left out (--limit_alphabet=%d); words with them "
            "are [UNK].",
            characters - flags.limit_alphabet,
            characters,
            flags.limit_alphabet,
        )
    if len(tokens) < flags.vocab_size:
        logging.warning(
            "The texts give %d tokens, fewer than --vocab_size=%d: no other pieces stand side by "
            "side %d times.",
            len(tokens),
            flags.vocab_size,
            flags.min_frequency,
        )
    logging.info(
        'Wrote %s in %.1f s. Put "vocab_size": %d into bert_config.json%s.',
        flags.output_file,
        time.monotonic() - start,
        len(tokens),
        "" if flags.do_lower_case else ", and give the scripts --nodo_lower_case",
    )
    return coverage


def _check_output(output: str, files: Sequence[str], overwrite: bool) -> None:
    if paths.is_dir(output):
        raise CommandLineError(
            f"--output_file={output} is a folder; name a file: {paths.join(output, 'vocab.txt')}"
        )
    if records.real_path(output) in {records.real_path(file) for file in files}:
        raise CommandLineError(f"{output} is both an input and the output file; name another.")
    if paths.exists(output) and not overwrite:
        raise CommandLineError(
            f"{output} would be replaced. Name another --output_file, or give --overwrite."
        )


def _lines(text: corpus.Corpus) -> Iterator[str]:
    """All lines; says now and then how far the reading is."""
    said = time.monotonic()
    for document in text:
        yield from document.lines
        if text.bytes_total and time.monotonic() - said >= _LOG_SECONDS:
            said = time.monotonic()
            logging.info("Read %.0f%%.", 100 * text.bytes_read / text.bytes_total)


if __name__ == "__main__":
    CLI.run(main)
