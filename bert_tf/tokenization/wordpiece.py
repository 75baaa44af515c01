"""The tokenization rules of the original release, in plain Python. This is the definition.

A text goes through these steps; `BasicTokenizer` does 1 to 5, `WordpieceTokenizer` 6:

1. clean: drop U+0000, U+FFFD and the characters of the categories Cc and Cf, tab, LF and CR
   excepted; make tab, LF, CR and the category Zs a space;
2. set a space on both sides of each CJK ideograph;
3. split at white space, as `str.split` does (so at U+2028 and U+2029 too, which step 1 keeps);
4. lower-case the whole word (so a last sigma becomes "ς"), then decompose it (NFD) and drop its
   marks (category Mn); nothing is recomposed;
5. make each punctuation character a word of its own;
6. split a word into the longest pieces that the vocabulary has, from left to right.

Each rule that looks at a single character is a function of it, and is put to use by
`str.translate` through a table that fills itself.
"""

import itertools
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping

UNK_TOKEN = "[UNK]"
# A longer word is [UNK] as a whole.
MAX_WORD_CHARACTERS = 200

# Blocks of ideographs, first and last code point. Kana and Hangul are written with spaces or
# split well without, and are left alone.
CJK_RANGES = (
    (0x4E00, 0x9FFF),
    (0x3400, 0x4DBF),
    (0x20000, 0x2A6DF),
    (0x2A700, 0x2B73F),
    (0x2B740, 0x2B81F),
    (0x2B820, 0x2CEAF),
    (0xF900, 0xFAFF),
    (0x2F800, 0x2FA1F),
)

# (start, end) in the text that was given.
Span = tuple[int, int]


def is_cjk(code_point: int) -> bool:
    """Tells whether the character is an ideograph, which is a word of its own (step 2)."""
    return any(first <= code_point <= last for first, last in CJK_RANGES)


def is_punctuation(code_point: int) -> bool:
    """Tells whether the character splits words (step 5).

    All of ASCII's symbols do, "$" and "^" as well, but of the others only the categories P*:
    "€" and "°" do not.
    """
    if code_point < 128:
        return 33 <= code_point <= 126 and not chr(code_point).isalnum()
    return unicodedata.category(chr(code_point)).startswith("P")


def clean(code_point: int) -> str:
    """Returns what steps 1 and 2 put in the place of a character.

    "" drops it, " " is white space, " 字 " an ideograph; else it is the character itself.
    """
    character = chr(code_point)
    if character in " \t\n\r":
        return " "
    category = unicodedata.category(character)
    if category == "Zs":
        return " "
    if code_point in (0, 0xFFFD) or category in ("Cc", "Cf"):
        return ""
    return f" {character} " if is_cjk(code_point) else character


def is_mark(code_point: int) -> bool:
    """Tells whether accent stripping drops the character (step 4)."""
    return unicodedata.category(chr(code_point)) == "Mn"


class _Table(dict[int, str]):
    """Code point -> what `str.translate` puts in its place, worked out when first met."""

    def __init__(self, rule: Callable[[int], str]):
        super().__init__()
        self._rule = rule

    def __missing__(self, code_point: int) -> str:
        replacement = self[code_point] = self._rule(code_point)
        return replacement


_CLEAN = _Table(clean)
_WITHOUT_MARKS = _Table(lambda c: "" if is_mark(c) else chr(c))
_PUNCTUATION_APART = _Table(lambda c: f" {chr(c)} " if is_punctuation(c) else chr(c))


class BasicTokenizer:
    """Splits a text into words and punctuation characters (steps 1 to 5).

    Args:
      do_lower_case: whether to lower-case.
      strip_accents: whether to decompose and drop marks; None: as `do_lower_case`.
      never_split: strings that are left as they are wherever they occur in a text, inside a word
        too, as if there were spaces around them. Where several fit, the longest is taken.

    Example:
      >>> BasicTokenizer().tokenize("Café, nice!")
      ['cafe', ',', 'nice', '!']
      >>> BasicTokenizer(never_split=["[MASK]"]).tokenize("A [MASK].")
      ['a', '[MASK]', '.']
    """

    def __init__(
        self,
        do_lower_case: bool = True,
        strip_accents: bool | None = None,
        never_split: Iterable[str] = (),
    ):
        self.do_lower_case = do_lower_case
        self.strip_accents = do_lower_case if strip_accents is None else strip_accents
        if isinstance(never_split, str):
            raise ValueError(f"never_split must be a list of strings, not a string: {never_split}")
        self.never_split = tuple(never_split)
        if "" in self.never_split:
            raise ValueError("never_split holds an empty string; leave it out")
        longest_first = sorted(self.never_split, key=len, reverse=True)
        self._kept = re.compile("(" + "|".join(map(re.escape, longest_first)) + ")")

    def tokenize(self, text: str) -> list[str]:
        """Returns the words of `text`."""
        words: list[str] = []
        for part, is_kept, _ in self.parts(text):
            if is_kept:
                words.append(part)
            else:
                words += self.split(part)
        return words

    def parts(self, text: str) -> Iterator[tuple[str, bool, int]]:
        """Cuts `text` at the never-split strings: yields (part, is it one of them, its start)."""
        if not self.never_split:
            yield text, False, 0
            return
        start = 0
        for number, part in enumerate(self._kept.split(text)):
            yield part, number % 2 == 1, start
            start += len(part)

    def split(self, text: str) -> list[str]:
        """Returns the words of `text`, with no regard to `never_split`."""
        words: list[str] = []
        for word in text.translate(_CLEAN).split():
            if self.do_lower_case:
                word = word.lower()
            if self.strip_accents and not word.isascii():
                word = unicodedata.normalize("NFD", word).translate(_WITHOUT_MARKS)
            words += word.translate(_PUNCTUATION_APART).split()
        return words

    def tokenize_with_spans(self, text: str) -> list[tuple[str, list[Span]]]:
        """Returns the words of `text`, each with a span in `text` for each of its characters.

        A span is the part of the text that a character comes from: several characters can come
        from one ("한" is decomposed into three), and marks that were dropped belong to the
        character before them.
        """
        words: list[tuple[str, list[Span]]] = []
        for part, is_kept, start in self.parts(text):
            if is_kept:
                words.append((part, [(start + i, start + i + 1) for i in range(len(part))]))
            else:
                words += self.split_with_spans(part, start)
        return words

    def split_with_spans(self, text: str, start: int = 0) -> list[tuple[str, list[Span]]]:
        """Does what `split` does, character by character; `start` is added to each span."""
        words: list[tuple[str, list[Span]]] = []
        word: list[tuple[str, Span]] = []
        for position, character in enumerate(text, start):
            for cleaned in clean(ord(character)):
                if cleaned.isspace():
                    words += self._finish(word)
                    word = []
                else:
                    word.append((cleaned, (position, position + 1)))
        words += self._finish(word)
        return words

    def _finish(self, word: list[tuple[str, Span]]) -> Iterator[tuple[str, list[Span]]]:
        """Steps 4 and 5 for a word with spans."""
        if self.do_lower_case:
            # Only the number of characters is taken from each alone: whether a sigma is the
            # last one, the whole word tells.
            spans = [span for character, span in word for _ in character.lower()]
            word = list(zip("".join(character for character, _ in word).lower(), spans))
        if self.strip_accents:
            word = _strip_marks(word)
        characters: list[str] = []
        spans = []
        for character, span in word:
            if is_punctuation(ord(character)):
                if characters:
                    yield "".join(characters), spans
                yield character, [span]
                characters, spans = [], []
            else:
                characters.append(character)
                spans.append(span)
        if characters:
            yield "".join(characters), spans


def _combining(item: tuple[str, Span]) -> int:
    return unicodedata.combining(item[0])


def _strip_marks(word: list[tuple[str, Span]]) -> list[tuple[str, Span]]:
    """NFD without the category Mn, with spans."""
    decomposed = [
        (item, span) for character, span in word for item in unicodedata.normalize("NFD", character)
    ]
    ordered: list[tuple[str, Span]] = []
    for is_marks, group in itertools.groupby(decomposed, lambda item: _combining(item) > 0):
        items = list(group)
        if is_marks:
            # NFD sorts each run of marks by their combining class; equal ones stay in order.
            in_order = sorted(items, key=_combining)
            if in_order != items:
                # They come from the run as a whole then, so that spans stay in order.
                run = items[0][1][0], items[-1][1][1]
                items = [(item, run) for item, _ in in_order]
        ordered += items
    kept: list[tuple[str, Span]] = []
    for item, (start, end) in ordered:
        if not is_mark(ord(item)):
            kept.append((item, (start, end)))
        elif kept:
            before, (first, last) = kept[-1]
            kept[-1] = before, (first, max(last, end))
    return kept


class WordpieceTokenizer:
    """Splits a word into pieces of the vocabulary (step 6): the longest first, from the left.

    A piece that goes on with a word is marked by "##" in the vocabulary. A word that is over 200
    characters long, or of which any rest is not in the vocabulary, is [UNK] as a whole.

    Example:
      >>> WordpieceTokenizer({"un": 0, "##aff": 1, "##able": 2}).tokenize("unaffable")
      ['un', '##aff', '##able']
    """

    def __init__(self, vocab: Mapping[str, int]):
        self.vocab = vocab
        # No longer piece need be looked up.
        self._longest = max(map(len, vocab), default=0)

    def tokenize(self, word: str) -> list[str]:
        """Returns the pieces of one word, as `BasicTokenizer` makes them."""
        length = len(word)
        if length > MAX_WORD_CHARACTERS:
            return [UNK_TOKEN]
        vocab = self.vocab
        pieces: list[str] = []
        start = 0
        prefix = ""
        while start < length:
            end = min(length, start + self._longest)
            while end > start and (piece := prefix + word[start:end]) not in vocab:
                end -= 1
            if end == start:
                return [UNK_TOKEN]
            pieces.append(piece)
            start = end
            prefix = "##"
        return pieces
