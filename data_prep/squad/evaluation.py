"""Scores of predictions, to the last digit those of the official scripts of SQuAD 1.1 and 2.0.

    python -m data_prep.squad.evaluation DATA PREDICTIONS [--na_prob_file=null_odds.json] \\
        [--out_file=scores.json] [--segments=mixed]

DATA is a SQuAD file, PREDICTIONS has an answer for each question id, "" for none. Which version's
rules are used, the file tells (`is_impossible`, or questions without answers), or --version.
--segments=mixed is for Chinese: exact match without punctuation, and the F1 of CMRC 2018.
"""

import argparse
import dataclasses
import json
import math
import re
import string
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from bert_tf import paths
from data_prep.squad.reading import read_questions

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_find_articles = re.compile(r"\b(a|an|the)\b")
# CMRC 2018 drops these. An ellipsis stays: its script has it doubled, and looks at characters.
_MIXED_PUNCTUATION = "-:_*^/\\~`+=，。：？！“”；’《》·、「」（）－～『』"
_without_mixed_punctuation = str.maketrans("", "", _MIXED_PUNCTUATION)
# An ideograph is a segment; the rest goes by words, numbers and single signs.
_find_segments = re.compile(r"[\u4e00-\u9fa5]|\d+(?:[.,]\d+)*|[^\W\u4e00-\u9fa5]+|[^\w\s]").findall

Scores = dict[str, Any]


@dataclasses.dataclass
class Gold:
    """The right answers of a file.

    Attributes:
      answers: id -> texts of the answers, in the file's order; none for an impossible question.
      is_version_2: some question has `is_impossible`, or no answers.
      source: the file, for messages.
    """

    answers: dict[str, list[str]]
    is_version_2: bool
    source: str = "the data"


def read_gold(path: str) -> Gold:
    """Reads the answers of a SQuAD file.

    Raises:
      FileNotFoundError, ValueError: as `reading.read_questions`; a question lacks `answers`, or
        there are no questions.
    """
    answers: dict[str, list[str]] = {}
    is_version_2 = False
    for question in read_questions(path):
        if question.answers is None:
            raise ValueError(
                f"{question.where}: the key 'answers' is missing: there is nothing to score by."
            )
        answers[question.qas_id] = [answer.text for answer in question.answers]
        is_version_2 |= question.is_impossible is not None or not question.answers
    if not answers:
        raise ValueError(f"{path}: there are no questions in the file.")
    return Gold(answers, is_version_2, path)


def normalize(text: str) -> str:
    """Returns a text as it is compared: lower case, no punctuation (ASCII), no articles."""
    text = text.lower().translate(_PUNCTUATION)
    return " ".join(_find_articles.sub(" ", text).split())


def exact(gold: str, predicted: str) -> int:
    """Returns 1 if the two are the same after `normalize`, else 0."""
    return int(normalize(gold) == normalize(predicted))


def f1(gold: str, predicted: str) -> float:
    """Returns the F1 of the words of two texts after `normalize`; 1 if both have none."""
    gold_words, words = normalize(gold).split(), normalize(predicted).split()
    if not gold_words or not words:
        return int(gold_words == words)
    same = sum((Counter(gold_words) & Counter(words)).values())
    return _f1(same, len(words), len(gold_words))


def _f1(same: int, predicted: int, gold: int) -> float:
    if same == 0:
        return 0
    precision, recall = same / predicted, same / gold
    return (2 * precision * recall) / (precision + recall)


def coverage(gold: Gold, predictions: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Returns the ids of questions without a prediction, and of predictions without a question."""
    missing = [name for name in gold.answers if name not in predictions]
    return missing, [name for name in predictions if name not in gold.answers]


def score_v1(gold: Gold, predictions: Mapping[str, str]) -> Scores:
    """Returns exact_match and f1 by the rules of SQuAD 1.1, in percent.

    Each question counts; one without a prediction has 0.

    Raises:
      ValueError: a question has no answer.
    """

    def f1_v1(gold_text: str, predicted: str) -> float:
        # Unlike 2.0, two texts without words have 0.
        return f1(gold_text, predicted) if normalize(predicted) else 0

    return _score_all(gold, predictions, exact, f1_v1)


def _score_all(
    gold: Gold,
    predictions: Mapping[str, str],
    exact_score: Callable[[str, str], int],
    f1_score: Callable[[str, str], float],
) -> Scores:
    matches: int = 0
    sum_f1: float = 0
    for name, texts in gold.answers.items():
        if not texts:
            raise ValueError(
                f"{gold.source}: question {name!r} has no answer: the file is not SQuAD 1.1; "
                "score it with --version=2.0."
            )
        if name in predictions:
            matches += max(exact_score(text, predictions[name]) for text in texts)
            sum_f1 += max(f1_score(text, predictions[name]) for text in texts)
    total = len(gold.answers)
    return {"exact_match": 100.0 * matches / total, "f1": 100.0 * sum_f1 / total}


def score_mixed(gold: Gold, predictions: Mapping[str, str]) -> Scores:
    """Returns exact_match and f1 of Chinese mixed with other text, by CMRC 2018's rules.

    Exact match leaves out punctuation. F1 is that of segments: ideographs and words; those count
    as found that stand in the longest run which both texts have. (The official script cuts what is
    between ideographs with NLTK; here words, numbers and single signs are cut.)

    Raises:
      ValueError: a question has no answer.
    """
    return _score_all(gold, predictions, _exact_mixed, _f1_mixed)


def _exact_mixed(gold: str, predicted: str) -> int:
    gold, predicted = gold.lower().strip(), predicted.lower().strip()
    return int(
        gold.translate(_without_mixed_punctuation)
        == predicted.translate(_without_mixed_punctuation)
    )


def _f1_mixed(gold: str, predicted: str) -> float:
    gold_segments, segments = mixed_segments(gold), mixed_segments(predicted)
    return _f1(_longest_run(gold_segments, segments), len(segments), len(gold_segments))


def mixed_segments(text: str) -> list[str]:
    """Cuts a text into ideographs and, between them, words, numbers and signs."""
    return _find_segments(text.lower().strip().translate(_without_mixed_punctuation))


def _longest_run(first: Sequence[str], second: Sequence[str]) -> int:
    """Returns the length of the longest run of segments that both have."""
    longest = 0
    above = [0] * (len(second) + 1)
    for segment in first:
        row = [0]
        for number, other in enumerate(second):
            row.append(above[number] + 1 if segment == other else 0)
        longest = max(longest, *row)
        above = row
    return longest


def _raw_scores(
    gold: Gold, predictions: Mapping[str, str]
) -> tuple[dict[str, int], dict[str, float]]:
    """Returns exact match and F1 of each question that has a prediction, by 2.0's rules."""
    exacts: dict[str, int] = {}
    f1s: dict[str, float] = {}
    for name, texts in gold.answers.items():
        if name in predictions:
            # An answer of nothing but punctuation and articles is none.
            right = [text for text in texts if normalize(text)] or [""]
            exacts[name] = max(exact(text, predictions[name]) for text in right)
            f1s[name] = max(f1(text, predictions[name]) for text in right)
    return exacts, f1s


def score_v2(
    gold: Gold,
    predictions: Mapping[str, str],
    na_probs: Mapping[str, float] | None = None,
    na_prob_thresh: float = 1.0,
) -> Scores:
    """Returns the scores of SQuAD 2.0, in percent and in the official script's order.

    exact, f1, total; the same with HasAns_ and NoAns_; with `na_probs` also best_exact,
    best_exact_thresh, best_f1, best_f1_thresh. Questions without a prediction are left out.

    Args:
      gold: the answers.
      predictions: id -> text, "" for no answer.
      na_probs: id -> how likely it is that there is no answer (null_odds.json).
      na_prob_thresh: predictions whose `na_probs` are over it count as "".

    Raises:
      ValueError: no question has a prediction, or one that has is not in `na_probs`.
    """
    exacts, f1s = _raw_scores(gold, predictions)
    if not exacts:
        raise ValueError(
            f"none of the {len(gold.answers):,} questions of {gold.source} has a prediction: "
            "the predictions belong to another file."
        )
    known: Mapping[str, float] = dict.fromkeys(predictions, 0.0) if na_probs is None else na_probs
    _check_odds(exacts, known)

    def after_threshold(scores: Mapping[str, float]) -> dict[str, float]:
        return {
            name: float(not gold.answers[name]) if known[name] > na_prob_thresh else score
            for name, score in scores.items()
        }

    final_exacts, final_f1s = after_threshold(exacts), after_threshold(f1s)
    result: Scores = {}
    groups = {
        "": list(exacts),
        "HasAns_": [name for name in exacts if gold.answers[name]],
        "NoAns_": [name for name in exacts if not gold.answers[name]],
    }
    for prefix, names in groups.items():
        if names:
            total = len(names)
            result[f"{prefix}exact"] = 100.0 * sum(final_exacts[name] for name in names) / total
            result[f"{prefix}f1"] = 100.0 * sum(final_f1s[name] for name in names) / total
            result[f"{prefix}total"] = total
    if na_probs is not None:
        for metric, scores in (("exact", exacts), ("f1", f1s)):
            best, threshold = _official_best(gold, predictions, scores, na_probs)
            result[f"best_{metric}"] = best
            result[f"best_{metric}_thresh"] = threshold
    return result


def _check_odds(names: Mapping[str, Any], odds: Mapping[str, float]) -> None:
    lacking = [name for name in names if name not in odds]
    if lacking:
        raise ValueError(
            f"{len(lacking):,} questions have a prediction but no null odds, the first of them "
            f"{lacking[0]!r}; take both files from the same run."
        )
    for name in names:
        if math.isnan(odds[name]):
            raise ValueError(f"the null odds of question {name!r} are not a number.")


def _official_best(
    gold: Gold,
    predictions: Mapping[str, str],
    scores: Mapping[str, float],
    na_probs: Mapping[str, float],
) -> tuple[float, float]:
    """Returns the best score by any threshold, in percent, and the threshold, as the official
    script finds them: equal odds are taken one by one, in the file's order."""
    # At first no question is answered.
    now: float = sum(not texts for texts in gold.answers.values())
    best, threshold = now, 0.0
    for name in sorted(na_probs, key=lambda name: na_probs[name]):
        if name not in scores:
            continue
        if gold.answers[name]:
            now += scores[name]
        elif predictions[name]:
            now -= 1
        if now > best:
            best, threshold = now, na_probs[name]
    return 100.0 * best / len(scores), threshold


def best_threshold(
    gold: Gold,
    best_texts: Mapping[str, str],
    null_odds: Mapping[str, float],
    metric: str = "f1",
) -> tuple[float, float]:
    """Finds the null_score_diff_threshold with which predictions score best.

    Args:
      gold: the answers of the dev set.
      best_texts: id -> the answer if the question is answered, of `prediction_files.Written`.
      null_odds: id -> null odds; the question is left unanswered if they are over the threshold.
      metric: "f1" or "exact".

    Returns:
      threshold: the least of the best ones. Below all odds if no answer at all is best.
      score: what `score_v2` gives with it (f1 or exact), in percent.

    Raises:
      ValueError: no question has a prediction, or one that has no null odds.
    """
    if metric not in ("f1", "exact"):
        raise ValueError(f"metric={metric!r}: choose f1 or exact.")
    exacts, f1s = _raw_scores(gold, best_texts)
    if not exacts:
        raise ValueError(f"no question of {gold.source} has a prediction.")
    _check_odds(exacts, null_odds)
    scores: Mapping[str, float] = f1s if metric == "f1" else exacts
    names = sorted(scores, key=lambda name: null_odds[name])
    # Left unanswered, a question without an answer is right, and so is one whose answers are
    # nothing but punctuation.
    unanswered = {name: _raw_score_of_none(gold.answers[name]) for name in names}
    now: float = sum(unanswered.values())
    best, threshold = now, null_odds[names[0]] - 1.0
    for number, name in enumerate(names):
        now += scores[name] - unanswered[name]
        # Equal odds stand and fall together.
        is_last = number + 1 == len(names) or null_odds[names[number + 1]] > null_odds[name]
        if is_last and now > best:
            best, threshold = now, null_odds[name]
    # Summed anew, in the file's order: what scoring the predictions will give.
    final = [
        unanswered[name] if null_odds[name] > threshold else score for name, score in scores.items()
    ]
    return threshold, 100.0 * sum(final) / len(final)


def _raw_score_of_none(texts: Sequence[str]) -> int:
    return int(not any(normalize(text) for text in texts))


def evaluate(
    gold: Gold,
    predictions: Mapping[str, str],
    na_probs: Mapping[str, float] | None = None,
    version: str = "auto",
    segments: str = "words",
    na_prob_thresh: float = 1.0,
) -> Scores:
    """Scores predictions by the rules that fit.

    Args:
      gold: from `read_gold`.
      predictions: id -> text.
      na_probs, na_prob_thresh: see `score_v2`; for 2.0 only.
      version: "1.1", "2.0", or "auto": what the file looks like.
      segments: "words", or "mixed" for Chinese (`score_mixed`).

    Returns:
      exact_match and f1 for 1.1 and mixed segments; for 2.0 see `score_v2`.

    Raises:
      ValueError: as the three functions.
    """
    if version not in ("auto", "1.1", "2.0"):
        raise ValueError(f"version={version!r}: choose 1.1, 2.0 or auto.")
    if segments not in ("words", "mixed"):
        raise ValueError(f"segments={segments!r}: choose words or mixed.")
    if segments == "mixed":
        return score_mixed(gold, predictions)
    if version == "2.0" or (version == "auto" and gold.is_version_2):
        return score_v2(gold, predictions, na_probs, na_prob_thresh)
    return score_v1(gold, predictions)


def coverage_lines(gold: Gold, predictions: Mapping[str, Any], listed: int = 10) -> list[str]:
    """Returns how questions and predictions go together, as text; the first line has counts."""
    missing, unknown = coverage(gold, predictions)
    lines = [
        f"questions {len(gold.answers):,}, predictions {len(predictions):,}; "
        f"without a prediction {len(missing):,}, predictions of no question {len(unknown):,}"
    ]
    for what, names in (("no prediction for", missing), ("no question for", unknown)):
        if names:
            more = f", and {len(names) - listed:,} more" if len(names) > listed else ""
            lines.append(f"{what}: {', '.join(names[:listed])}{more}")
    return lines


def _read_by_id(path: str, kinds: tuple[type, ...], what: str) -> dict[str, Any]:
    values = paths.read_json(path)
    for name, value in values.items():
        if not isinstance(value, kinds) or isinstance(value, bool):
            raise ValueError(f"{path}: {name!r} has {value!r:.60}, expected {what}.")
    return values


def main(argv: Sequence[str] | None = None) -> Scores:
    """Runs the command line; returns the scores."""
    parser = argparse.ArgumentParser(
        prog="python -m data_prep.squad.evaluation",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    # The official script's spellings are taken, too.
    parser.add_argument("data", metavar="DATA", help="SQuAD file with the answers")
    parser.add_argument("predictions", metavar="PREDICTIONS", help="predictions.json")
    parser.add_argument(
        "--na_prob_file", "--na-prob-file", "-n", help="null_odds.json, for the best thresholds"
    )
    parser.add_argument(
        "--na_prob_thresh",
        "--na-prob-thresh",
        "-t",
        type=float,
        default=1.0,
        help="2.0, with --na_prob_file: predictions with odds over it count as no answer [1.0]",
    )
    parser.add_argument("--out_file", "--out-file", "-o", help="write the scores there as JSON")
    parser.add_argument("--version", choices=["auto", "1.1", "2.0"], default="auto")
    parser.add_argument("--segments", choices=["words", "mixed"], default="words")
    args = parser.parse_args(argv)
    if args.out_file in (args.data, args.predictions, args.na_prob_file) and args.out_file:
        raise ValueError(f"--out_file={args.out_file} is also read: name another file.")
    gold = read_gold(args.data)
    predictions = _read_by_id(args.predictions, (str,), "a text")
    na_probs = None
    if args.na_prob_file:
        na_probs = _read_by_id(args.na_prob_file, (int, float), "a number")
    for line in coverage_lines(gold, predictions):
        print(line, file=sys.stderr)
    if len(coverage(gold, predictions)[0]) == len(gold.answers):
        raise ValueError(
            f"{args.predictions}: none of the ids is in {args.data}; the files do not belong "
            "together."
        )
    scores = evaluate(gold, predictions, na_probs, args.version, args.segments, args.na_prob_thresh)
    if args.out_file:
        with paths.atomic_write(args.out_file) as handle:
            handle.write(json.dumps(scores) + "\n")
    else:
        print(json.dumps(scores, indent=2))
    return scores


if __name__ == "__main__":
    try:
        main()
    except (ValueError, OSError, ImportError) as error:
        print(f"data_prep.squad.evaluation: error: {error}", file=sys.stderr)
        raise SystemExit(1) from None
