"""Entities in sequences of tags: the schemes they are written in, and their scores.

A tag is "O" or a prefix with a type, "B-PER"; a prefix alone is of the type "_". The scheme that
everything is computed in is IOB2, with the prefixes B and I. Files may have others:

- IOB1: an entity begins with I; with B only where one of its type stands right before it.
- BIOES: E ends an entity of several tokens, S is an entity of one.
- BILOU: the same with L and U for E and S.
"""

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal, NamedTuple

SCHEMES = ("IOB1", "IOB2", "BIOES", "BILOU")
OUTSIDE = "O"
UNTYPED = "_"

# Prefixes of an entity's last token and of an entity of one token.
_ENDINGS = {"BIOES": ("E", "S"), "BILOU": ("L", "U")}

Mode = Literal["conll", "strict"]


class Entity(NamedTuple):
    """One entity: its type, its first token and the one behind its last."""

    type: str
    start: int
    end: int


class TagError(ValueError):
    """Tags that no scheme allows.

    Attributes:
      sentence, token: where the first of them stands, from 0.
    """

    def __init__(self, message: str, sentence: int, token: int) -> None:
        super().__init__(message)
        self.sentence, self.token = sentence, token


class Scheme(NamedTuple):
    """The scheme of some sentences.

    Attributes:
      name: one of `SCHEMES`; None where there is no entity to tell it by.
      strays: (sentence, token) of each I that begins an entity though the scheme is IOB2, or of
        each B that no entity of its type stands before though it is IOB1. They are read as
        beginnings.
    """

    name: str | None
    strays: list[tuple[int, int]]


def split_tag(tag: str) -> tuple[str, str] | None:
    """Returns (prefix, type) of a tag, ("O", "") outside entities, None if it is no tag."""
    if tag == OUTSIDE:
        return OUTSIDE, ""
    if tag[:1] not in ("B", "I", "E", "S", "L", "U"):
        return None
    if len(tag) == 1:
        return tag, UNTYPED
    if tag[1] != "-" or len(tag) == 2:
        return None
    return tag[0], tag[2:]


def join_tag(prefix: str, kind: str) -> str:
    """Returns the tag of a prefix and a type."""
    return prefix if kind in ("", UNTYPED) else f"{prefix}-{kind}"


def find_scheme(sentences: Sequence[Sequence[str]]) -> Scheme:
    """Finds the scheme that sentences are tagged in, and checks that they are.

    IOB1 and IOB2 differ in how entities begin; where both ways occur the more frequent one names
    the scheme and the others are returned as strays. BIOES and BILOU must be without a fault,
    since it would not be known where an entity ends.

    Args:
      sentences: the tags of each.

    Raises:
      TagError: for a tag that is none, tags of different schemes, an entity of BIOES or BILOU
        that is not begun or not ended.
    """
    first: dict[str, tuple[int, int]] = {}
    for number, tags in enumerate(sentences):
        for place, tag in enumerate(tags):
            parts = split_tag(tag)
            if parts is None:
                raise TagError(
                    f"{tag!r} is not a tag; a tag is O, or one of B, I, E, S, L, U with a type "
                    "behind a dash, such as B-PER",
                    number,
                    place,
                )
            first.setdefault(parts[0], (number, place))
    found = [name for name, pair in _ENDINGS.items() if set(pair) & set(first)]
    if len(found) == 2:
        where = {
            name: min(first[prefix] for prefix in pair if prefix in first)
            for name, pair in _ENDINGS.items()
        }
        later = max(found, key=lambda name: where[name])
        number, place = where[later]
        raise TagError(
            f"the tag {sentences[number][place]!r} is of the scheme {later}, but there are tags "
            f"of {found[0] if later == found[1] else found[1]} before it",
            number,
            place,
        )
    if found:
        for number, tags in enumerate(sentences):
            _check_ends(tags, found[0], number)
        return Scheme(found[0], [])
    # Beginnings that only IOB1 has, or only IOB2.
    by_i: list[tuple[int, int]] = []
    by_b: list[tuple[int, int]] = []
    for number, tags in enumerate(sentences):
        before = (OUTSIDE, "")
        for place, tag in enumerate(tags):
            prefix, kind = split_tag(tag) or before
            if prefix != OUTSIDE and before[1] != kind:
                (by_i if prefix == "I" else by_b).append((number, place))
            before = prefix, kind
    if not by_i and not by_b:
        return Scheme(None, [])
    return Scheme("IOB1", by_b) if len(by_i) > len(by_b) else Scheme("IOB2", by_i)


def _check_ends(tags: Sequence[str], scheme: str, number: int) -> None:
    last = _ENDINGS[scheme][0]
    opened = ""
    for place, tag in enumerate([*tags, OUTSIDE]):
        prefix, kind = split_tag(tag) or (OUTSIDE, "")
        if prefix in ("I", last):
            wrong = kind != opened
        else:
            wrong = bool(opened)
        if wrong:
            what = f"the tag {tag!r}" if place < len(tags) else "the end of the sentence"
            before = repr(tags[place - 1]) if place else "the beginning of the sentence"
            raise TagError(
                f"{what} cannot follow {before} in the scheme {scheme}, which the prefixes in "
                "this file are of",
                number,
                min(place, len(tags) - 1),
            )
        opened = kind if prefix in ("B", "I") else ""


def to_iob2(tags: Sequence[str], scheme: str | None) -> list[str]:
    """Converts a sentence's tags from a scheme to IOB2; None is for tags without entities."""
    if scheme in _ENDINGS:
        last, single = _ENDINGS[scheme]
        plain = {last: "I", single: "B"}
        return [join_tag(plain.get(p, p), kind) for p, kind in map(_parts, tags)]
    return _written(entities(tags), len(tags), "B", "I", "I", "B")


def from_iob2(tags: Sequence[str], scheme: str | None) -> list[str]:
    """Converts a sentence's tags from IOB2 to a scheme.

    An I that begins an entity, as a model may predict, is taken for a B, but left as it is in
    IOB2 itself: scores over what was written are then those over what was predicted.
    """
    if scheme in (None, "IOB2"):
        return list(tags)
    found = entities(tags)
    if scheme in _ENDINGS:
        last, single = _ENDINGS[scheme]
        return _written(found, len(tags), "B", "I", last, single)
    result = _written(found, len(tags), "I", "I", "I", "I")
    for before, entity in itertools.pairwise(found):
        if (before.type, before.end) == (entity.type, entity.start):
            result[entity.start] = join_tag("B", entity.type)
    return result


def _parts(tag: str) -> tuple[str, str]:
    parts = split_tag(tag)
    if parts is None:
        raise ValueError(f"{tag!r} is not a tag")
    return parts


def _written(
    found: Iterable[Entity], size: int, first: str, inside: str, last: str, single: str
) -> list[str]:
    tags = [OUTSIDE] * size
    for kind, start, end in found:
        prefixes = [single] if end - start == 1 else [first, *[inside] * (end - start - 2), last]
        tags[start:end] = [join_tag(prefix, kind) for prefix in prefixes]
    return tags


def entities(tags: Sequence[str], mode: Mode = "conll") -> list[Entity]:
    """Returns the entities of a sentence, in order.

    Args:
      tags: of IOB1 or IOB2, which mean the same but for strays.
      mode: what becomes of an I that continues no entity of its type. In "conll", as in the
        shared task's script, it begins one; in "strict" it is outside.
    """
    result: list[Entity] = []
    start, opened = 0, ""
    for place, tag in enumerate([*tags, OUTSIDE]):
        prefix, kind = _parts(tag)
        if prefix == "I" and kind == opened:
            continue
        if opened:
            result.append(Entity(opened, start, place))
        begins = prefix == "B" or (prefix == "I" and mode == "conll")
        start, opened = place, kind if begins else ""
    return result


class Score(NamedTuple):
    """Precision, recall and F1, 0 where undefined, and the number of true entities."""

    precision: float
    recall: float
    f1: float
    support: int


def score(
    truth: Iterable[Sequence[str]], predicted: Iterable[Sequence[str]], mode: Mode = "conll"
) -> dict[str, Score]:
    """Scores predicted entities: right are those whose type, beginning and end are.

    Args:
      truth: the tags of each sentence.
      predicted: as many of each.
      mode: as for `entities`; the same for both.

    Returns:
      The score of all entities together under "", then that of each type that occurs in either,
      sorted.

    Raises:
      ValueError: if the numbers of sentences or of a sentence's tags differ.
    """
    true, guessed, right = Counter[str](), Counter[str](), Counter[str]()
    for number, (one, other) in enumerate(_pairs(truth, predicted)):
        if len(one) != len(other):
            raise ValueError(
                f"Sentence {number} (from 0) has {len(one)} tags, but {len(other)} predictions."
            )
        ours, theirs = entities(one, mode), entities(other, mode)
        true.update(entity.type for entity in ours)
        guessed.update(entity.type for entity in theirs)
        right.update(entity.type for entity in set(ours).intersection(theirs))
    result = {"": _score(right.total(), guessed.total(), true.total())}
    for kind in sorted({*true, *guessed}):
        result[kind] = _score(right[kind], guessed[kind], true[kind])
    return result


def _pairs(
    truth: Iterable[Sequence[str]], predicted: Iterable[Sequence[str]]
) -> Iterator[tuple[Sequence[str], Sequence[str]]]:
    one, other = list(truth), list(predicted)
    if len(one) != len(other):
        raise ValueError(f"There are {len(one)} sentences, but predictions for {len(other)}.")
    return zip(one, other, strict=True)


def _score(right: int, guessed: int, true: int) -> Score:
    return Score(
        right / guessed if guessed else 0.0,
        right / true if true else 0.0,
        2 * right / (guessed + true) if guessed + true else 0.0,
        true,
    )
