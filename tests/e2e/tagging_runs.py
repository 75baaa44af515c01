"""What the end-to-end tests of tagging and multiple choice share: their files."""

import csv
import string

import numpy as np

ENDINGS = 4
COLUMNS = (",video-id,fold-ind,startphrase,sent1,sent2,gold-source,"
           "ending0,ending1,ending2,ending3,label").split(",")  # fmt: skip


def tagged_sentences(count, seed):
    """Sentences of letters; "good" with the digit behind it is an entity, "bad" alone another."""
    random = np.random.RandomState(seed)
    for _ in range(count):
        words, tags = [], []
        for _ in range(random.randint(2, 9)):
            kind = random.randint(4)
            if kind == 0:
                words += ["good", str(random.randint(10))]
                tags += ["B-PER", "I-PER"]
            elif kind == 1:
                words.append("bad")
                tags.append("B-LOC")
            else:
                words.append(random.choice(list(string.ascii_lowercase)))
                tags.append("O")
        yield words, tags


def conll(sentences, tagged=True):
    """Two columns, or one where they are not `tagged`."""
    blocks = []
    for words, tags in sentences:
        lines = [f"{w} {t}" if tagged else w for w, t in zip(words, tags, strict=True)]
        blocks.append("".join(f"{line}\n" for line in lines))
    return "\n".join(blocks)


def write_ner(folder, tagged_test=True):
    """Writes train.txt, dev.txt and test.txt; a long sentence and an odd word are in the last."""
    folder.mkdir(exist_ok=True)
    for number, (name, count) in enumerate((("train", 40), ("dev", 12), ("test", 9))):
        sentences = list(tagged_sentences(count, number))
        if name == "test":
            # Longer than any input, and a word that the tokenizer leaves nothing of.
            words = ["good", "1", "b"] * 20
            sentences.insert(3, (words, ["B-PER", "I-PER", "O"] * 20))
            sentences.insert(5, (["\u200b", "bad"], ["O", "B-LOC"]))
        tagged = tagged_test or name != "test"
        (folder / f"{name}.txt").write_text(conll(sentences, tagged), encoding="utf-8")
    return folder


def write_swag(folder, labelled_test=False):
    """Writes train.csv, val.csv and test.csv; the right ending has "good" in it.

    Every third example has three endings, others four.
    """
    folder.mkdir(exist_ok=True)
    random = np.random.RandomState(7)
    for name, count in (("train", 24), ("val", 10), ("test", 7)):
        columns = COLUMNS if labelled_test or name != "test" else COLUMNS[:-1]
        with open(folder / f"{name}.csv", "w", encoding="utf-8", newline="") as handle:
            table = csv.writer(handle)
            table.writerow(columns)
            for number in range(count):
                endings = ENDINGS - (number % 3 == 2)
                right = random.randint(endings)
                texts = [
                    f"{'good' if each == right else 'bad'} {'x' * random.randint(1, 6)}, it is"
                    for each in range(endings)
                ] + [""] * (ENDINGS - endings)
                row = [number, "v", "0", "a b", "he was in it.", "she is", "gold", *texts, right]
                table.writerow(row[: len(columns)])
    return folder
