"""Show the records of pre-training files, check every invariant, sum them up.

    python -m data_prep.inspect FILE... [--vocab_file=vocab.txt] [--records=3]

Without the vocabulary ids are shown in the place of tokens, and [CLS], [SEP] and [MASK] are taken
to have the ids that are found where they must stand. Exit status 1 if anything is wrong or a file
holds no records.
"""

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np

from bert_tf import paths
from bert_tf.cli.command_line import CommandLine
from bert_tf.tokenization import BertTokenizer
from data_prep import feature_spec, records

CLI = CommandLine(
    "data_prep.inspect",
    __doc__,
    "python -m data_prep.inspect records/wiki-00000-of-00016.tfrecord --vocab_file=vocab.txt",
)
with CLI.group("What to show"):
    CLI.string("vocab_file", None, "The vocabulary, to show tokens and check ids.")
    CLI.integer("records", 3, "Records to show of each file.", 0)
    CLI.integer("max_problems", 10, "Problems to list of each file; all are counted.", 0)


@dataclasses.dataclass
class Summary:
    """What the records of a file hold, in all."""

    records: int = 0
    problems: int = 0
    max_seq_length: int = 0
    max_predictions: int = 0
    tokens: int = 0
    random_next: int = 0
    masked: int = 0
    to_mask_token: int = 0
    kept: int = 0
    unknown: int = 0
    masked_records: int = 0

    def lines(self) -> list[str]:
        if not self.records:
            return ["no records"]
        slots = max(1, self.records * self.max_seq_length)
        result = [
            f"records {self.records:,}, max_seq_length {self.max_seq_length}, "
            f"max_predictions_per_seq {self.max_predictions}",
            f"tokens {self.tokens:,}, padding {1 - self.tokens / slots:.1%}, "
            f"random next {self.random_next / self.records:.1%}, "
            f"[UNK] {self.unknown / max(1, self.tokens):.2%}",
        ]
        if self.masked:
            other = self.masked - self.to_mask_token - self.kept
            result.append(
                f"masked {self.masked / self.tokens:.1%} of the tokens: "
                f"{self.to_mask_token / self.masked:.1%} [MASK], "
                f"{other / self.masked:.1%} another token, {self.kept / self.masked:.1%} kept"
            )
        if self.masked_records < self.records:
            result.append(f"{self.records - self.masked_records:,} records have no masked tokens")
        return result


class Checker:
    """Checks records one after the other.

    Args:
      tokenizer: for the ids of the special tokens and the range of ids, or None to take them
        from the first record.
    """

    def __init__(self, tokenizer: BertTokenizer | None = None):
        self.summary = Summary()
        self._tokenizer = tokenizer
        self._spec: feature_spec.Spec | None = None
        self._cls = self._sep = self._mask = self._unk = -1
        if tokenizer is not None:
            self._cls, self._sep = tokenizer.cls_id, tokenizer.sep_id
            self._mask, self._unk = tokenizer.mask_id, tokenizer.unk_id

    def check(self, example: dict[str, np.ndarray]) -> list[str]:
        """Returns what is wrong with a record, and adds it to the summary."""
        summary = self.summary
        summary.records += 1
        if self._spec is None:
            self._spec = feature_spec.pretraining(
                len(example.get("input_ids", ())),
                len(example.get("masked_lm_positions", ())),
                "masked_lm_positions" in example,
            )
            summary.max_seq_length = self._spec[0].length
            if "masked_lm_positions" in example:
                summary.max_predictions = len(example["masked_lm_positions"])
        mismatch = feature_spec.mismatch(self._spec, example)
        if mismatch:
            summary.problems += 1
            return [mismatch]
        problems = [*self._check_text(example), *self._check_masks(example)]
        summary.problems += bool(problems)
        return problems

    def _check_text(self, example: dict[str, np.ndarray]) -> Iterator[str]:
        ids, mask, segments = (example[name] for name in ("input_ids", "input_mask", "segment_ids"))
        length = int(mask.sum())
        self.summary.tokens += length
        label = example["next_sentence_labels"][0]
        self.summary.random_next += int(label == 1)
        if label not in (0, 1):
            yield f"next_sentence_labels is {label}, not 0 or 1"
        if not np.array_equal(mask, np.arange(len(mask)) < length):
            yield "input_mask is not ones followed by zeros"
            return
        if length < 5:
            yield f"the record has {length} tokens; [CLS] A [SEP] B [SEP] has at least 5"
            return
        if ids[length:].any() or segments[length:].any():
            yield "input_ids or segment_ids are not 0 in the padding"
        if ids.min() < 0 or (self._tokenizer and ids.max() >= self._tokenizer.vocab_size):
            yield f"an id is outside the vocabulary: {ids.min()} to {ids.max()}"
        start_b = int(np.argmax(segments[:length])) if segments[:length].any() else 0
        if not np.array_equal(segments[:length], np.arange(length) >= start_b) or start_b < 3:
            yield "segment_ids are not zeros followed by ones"
            return
        if self._cls < 0:
            self._cls, self._sep = int(ids[0]), int(ids[length - 1])
        if ids[0] != self._cls:
            yield f"the first token is {ids[0]}, not [CLS] ({self._cls})"
        for place, what in ((start_b - 1, "first"), (length - 1, "last")):
            if ids[place] != self._sep:
                yield f"the token at the {what} segment's end is {ids[place]}, not [SEP]"
        if self._unk >= 0:
            self.summary.unknown += int(np.count_nonzero(ids[:length] == self._unk))

    def _check_masks(self, example: dict[str, np.ndarray]) -> Iterator[str]:
        if "masked_lm_positions" not in example:
            return
        ids, places = example["input_ids"], example["masked_lm_positions"]
        labels, weights = example["masked_lm_ids"], example["masked_lm_weights"]
        length = int(example["input_mask"].sum())
        count = int(np.count_nonzero(weights))
        self.summary.masked_records += bool(count)
        if not np.array_equal(weights, (np.arange(len(weights)) < count).astype(np.float32)):
            yield "masked_lm_weights are not ones followed by zeros"
            return
        if places[count:].any() or labels[count:].any():
            yield "masked_lm_positions or masked_lm_ids are not 0 in the padding"
        if not count:
            # It happens with whole words: each is longer than the budget.
            return
        places, labels = places[:count], labels[:count]
        if (np.diff(places) <= 0).any():
            yield "masked_lm_positions do not ascend"
        if places.min() < 1 or places.max() >= length - 1:
            yield f"a masked position is outside the text: {places.min()} to {places.max()}"
            return
        if (example["segment_ids"][places] != example["segment_ids"][places + 1]).any():
            yield "the [SEP] between the segments is masked"
        if self._tokenizer and (labels.min() < 0 or labels.max() >= self._tokenizer.vocab_size):
            yield f"a label is outside the vocabulary: {labels.min()} to {labels.max()}"
        if self._mask < 0:
            # Most of the masked tokens are [MASK].
            values, often = np.unique(ids[places], return_counts=True)
            if often.max() > 2:
                self._mask = int(values[np.argmax(often)])
        self.summary.masked += count
        self.summary.to_mask_token += int(np.count_nonzero(ids[places] == self._mask))
        self.summary.kept += int(np.count_nonzero(ids[places] == labels))


def show(example: dict[str, np.ndarray], tokenizer: BertTokenizer | None) -> list[str]:
    """Returns a record as lines: the tokens, masked ones as {now|before}."""
    ids = example["input_ids"].tolist()
    length = int(example["input_mask"].sum())

    def token(token_id: int) -> str:
        if tokenizer is None:
            return str(token_id)
        return tokenizer.inv_vocab.get(token_id, f"<{token_id}>")

    count = int(np.count_nonzero(example.get("masked_lm_weights", ())))
    before = (
        dict(
            zip(example["masked_lm_positions"].tolist()[:count], example["masked_lm_ids"].tolist())
        )
        if count
        else {}
    )
    words = [
        f"{{{token(ids[i])}|{token(before[i])}}}" if i in before else token(ids[i])
        for i in range(length)
    ]
    label = int(example["next_sentence_labels"][0])
    start_b = int(np.argmax(example["segment_ids"]))
    return [
        f"{length} tokens, {count} masked, next sentence: {'random' if label else 'true'}",
        "  A " + " ".join(words[:start_b]),
        "  B " + " ".join(words[start_b:]),
    ]


def inspect_file(
    path: str, tokenizer: BertTokenizer | None, shown: int, max_problems: int
) -> Summary:
    """Prints some records of a file, its problems and its summary; returns the summary."""
    print(path)
    checker = Checker(tokenizer)
    listed = 0
    for number, record in enumerate(records.read_records(path)):
        try:
            example = records.parse_example(record)
        except ValueError as error:
            raise ValueError(f"{path}: record {number}: {error}.") from None
        problems = checker.check(example)
        for problem in problems:
            listed += 1
            if listed <= max_problems:
                print(f"record {number}: WRONG: {problem}")
        if number < shown and not problems:
            print(f"record {number}: " + "\n".join(show(example, tokenizer)))
    for line in checker.summary.lines():
        print(line)
    wrong = checker.summary.problems
    if checker.summary.records:
        print(f"{wrong:,} records are wrong" if wrong else "all records are well-formed")
    return checker.summary


def main(argv: Sequence[str]) -> list[Summary]:
    """Inspects the files that are named; returns their summaries."""
    files = [argument for argument in argv[1:] if not argument.startswith("-")]
    flags = CLI.parse([argv[0], *(argument for argument in argv[1:] if argument.startswith("-"))])
    if not files:
        raise ValueError(f"name a file to inspect. For example:\n{CLI.example}")
    tokenizer = BertTokenizer(flags.vocab_file) if flags.vocab_file else None
    found = [file for pattern in files for file in paths.glob(pattern) or [pattern]]
    summaries = [inspect_file(file, tokenizer, flags.records, flags.max_problems) for file in found]
    if any(summary.problems for summary in summaries):
        raise ValueError("some records are wrong; see above.")
    empty = [file for file, summary in zip(found, summaries) if not summary.records]
    if empty:
        raise ValueError(f"no records are in {', '.join(empty)}; make the data anew.")
    return summaries


if __name__ == "__main__":
    CLI.run(main)
