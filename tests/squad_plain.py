"""What the tests of SQuAD share: the golden data, and a plain decoder to compare ours with.

The decoder says in loops what `data_prep.squad.answers` does with arrays, on windows with all
fields of the original's (`windows.original_fields`). It is slow, and meant to be read.
"""

import gzip
import json
import math
from pathlib import Path
from typing import Any, NamedTuple

from bert_tf.tokenization import BertTokenizer
from bert_tf.tokenization.wordpiece import BasicTokenizer
from data_prep.squad.reading import Example

GOLDEN = Path(__file__).parent / "golden" / "squad"
Entry = tuple[str, float, float, float]  # text, probability, start logit, end logit


def golden_tokenizer() -> BertTokenizer:
    return BertTokenizer.from_vocab(json.loads((GOLDEN / "pieces.json").read_text()))


def golden_bytes(name: str) -> bytes:
    path = GOLDEN / name
    if path.exists():
        return path.read_bytes()
    return gzip.decompress(path.with_name(path.name + ".gz").read_bytes())


def golden_lines(name: str) -> list[dict[str, Any]]:
    lines = golden_bytes(name).decode("utf-8").split("\n")
    return [json.loads(line) for line in lines if line]


class Candidate(NamedTuple):
    window: dict[str, Any] | None  # None: no answer
    start: int
    end: int
    start_logit: float
    end_logit: float


def highest(logits: list[float], count: int) -> list[int]:
    places = sorted(range(len(logits)), key=lambda place: logits[place], reverse=True)
    return places[:count]


def candidates(windows, starts, ends, n_best: int, max_answer_length: int) -> list[Candidate]:
    found = []
    for window, start_logits, end_logits in zip(windows, starts, ends):
        words, is_max = window["token_to_orig_map"], window["token_is_max_context"]
        end_places = highest(end_logits, n_best)
        for start in highest(start_logits, n_best):
            for end in end_places:
                if start not in words or end not in words or not is_max[start]:
                    continue
                if start <= end < start + max_answer_length:
                    found.append(
                        Candidate(window, start, end, start_logits[start], end_logits[end])
                    )
    return found


def text_of(candidate: Candidate, doc_words: list[str], basic: BasicTokenizer) -> str:
    if candidate.window is None:
        return ""
    start, end, window = candidate.start, candidate.end, candidate.window
    tokens = " ".join(window["tokens"][start : end + 1])
    tokens = " ".join(tokens.replace(" ##", "").replace("##", "").split())
    words = window["token_to_orig_map"]
    return align(tokens, " ".join(doc_words[words[start] : words[end] + 1]), basic)


def align(tokens: str, original: str, basic: BasicTokenizer) -> str:
    """Walks through both texts side by side, character by character, blanks left out."""
    # The tokenizer's way character by character, which is the original's.
    tokenized = " ".join(word for word, _ in basic.tokenize_with_spans(original))
    start = tokenized.find(tokens)
    end = start + len(tokens) - 1
    theirs = [place for place, character in enumerate(tokenized) if character != " "]
    ours = [place for place, character in enumerate(original) if character != " "]
    if start == -1 or len(theirs) != len(ours) or start not in theirs or end not in theirs:
        return original
    if end < start:
        return original
    return original[ours[theirs.index(start)] : ours[theirs.index(end)] + 1]


def decode(
    example: Example,
    windows: list[dict[str, Any]],
    starts: list[list[float]],
    ends: list[list[float]],
    basic: BasicTokenizer,
    n_best: int = 20,
    max_answer_length: int = 30,
    version_2: bool = False,
    threshold: float = 0.0,
) -> tuple[str, list[Entry], float | None]:
    """Returns text, n-best list and null odds of a question with windows; the text and the odds
    are None for SQuAD 2.0 if no span is among the best."""
    found = candidates(windows, starts, ends, n_best, max_answer_length)
    null = Candidate(None, 0, 0, 0.0, 0.0)
    if version_2:
        scores = [start[0] + end[0] for start, end in zip(starts, ends)]
        least = scores.index(min(scores))
        null = Candidate(None, 0, 0, starts[least][0], ends[least][0])
        found.append(null)
    found.sort(key=lambda each: each.start_logit + each.end_logit, reverse=True)
    doc_words = example.doc_tokens
    best: list[tuple[str, float, float]] = []
    for each in found:
        if len(best) == n_best:
            break
        text = text_of(each, doc_words, basic)
        if text not in [other for other, _, _ in best]:
            best.append((text, each.start_logit, each.end_logit))
    if version_2 and "" not in [text for text, _, _ in best]:
        best.append(("", null.start_logit, null.end_logit))
    if not best:
        best.append(("empty", 0.0, 0.0))
    top = max(start + end for _, start, end in best)
    weights = [math.exp(start + end - top) for _, start, end in best]
    total = 0.0
    for weight in weights:
        total += weight
    nbest = [
        (text, weight / total, start, end) for (text, start, end), weight in zip(best, weights)
    ]
    if not version_2:
        return nbest[0][0], nbest, None
    spans = [entry for entry in nbest if entry[0]]
    if not spans:
        return None, nbest, None
    odds = null.start_logit + null.end_logit - spans[0][2] - spans[0][3]
    return ("" if odds > threshold else spans[0][0]), nbest, odds
