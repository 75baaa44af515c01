"""What the tests of pre-training data share: the golden runs, vocabularies, small corpora."""

import json
from pathlib import Path

import numpy as np
from hypothesis import strategies as st

from bert_tf.tokenization import BertTokenizer
from data_prep import records
from data_prep.instances import Settings
from data_prep.masking import Masking

GOLDEN = Path(__file__).parent / "golden" / "pretraining_data"
RUNS = sorted(path.name for path in GOLDEN.glob("run*"))

SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def small_tokenizer(words: str = "a b c d e f g h", **options) -> BertTokenizer:
    tokens = [*SPECIALS, *words.split()]
    return BertTokenizer.from_vocab({token: i for i, token in enumerate(tokens)}, **options)


def golden_tokenizer(run: str) -> BertTokenizer:
    """The vocabulary as far as the goldens show it, fillers elsewhere.

    The published ones are not in the repository. They have as many tokens; of a token that is
    not in the corpus only the id can matter. vocabulary_gaps.json has the tokens of the corpus
    that are masked wherever they stand.
    """
    cased = run == "run6_cased"
    gaps = json.loads((GOLDEN / "vocabulary_gaps.json").read_text())
    vocab = {"[UNK]": 100, **gaps["cased" if cased else "uncased"]}
    for name in RUNS:
        if (name == "run6_cased") != cased:
            continue
        for file in sorted((GOLDEN / name).glob("*_instances.jsonl")):
            for line in file.read_text("utf-8").splitlines():
                row = json.loads(line)
                vocab.update(zip(row["tokens"], row["input_ids"]))
    by_id = {token_id: token for token, token_id in vocab.items()}
    size = 28996 if cased else 30522
    return BertTokenizer.from_vocab(
        {by_id.get(i, f"\0{i}"): i for i in range(size)}, do_lower_case=not cased
    )


def flags_of(run: str) -> dict:
    return json.loads((GOLDEN / run / "flags.json").read_text())["flags"]


def golden_settings(run: str) -> Settings:
    flags = flags_of(run)
    return Settings(
        flags["max_seq_length"],
        Masking(
            "whole_word" if flags["do_whole_word_mask"] else "static",
            flags["max_predictions_per_seq"],
            flags["masked_lm_prob"],
        ),
        flags["short_seq_prob"],
        flags["dupe_factor"],
        flags["random_seed"],
    )


def read(path) -> list[dict[str, list]]:
    """The records of a file, as lists."""
    return [
        {name: values.tolist() for name, values in records.parse_example(record).items()}
        for record in records.read_records(str(path))
    ]


def unmasked(record: dict[str, list]) -> list[int]:
    """The ids of a record before masking, without padding."""
    ids = np.array(record["input_ids"])
    count = int(np.count_nonzero(record["masked_lm_weights"]))
    ids[record["masked_lm_positions"][:count]] = record["masked_lm_ids"][:count]
    return ids[: sum(record["input_mask"])].tolist()


def segments(record: dict[str, list]) -> tuple[list[int], list[int]]:
    """The two segments before masking, without specials."""
    ids = unmasked(record)
    start_b = record["segment_ids"].index(1)
    return ids[1 : start_b - 1], ids[start_b:-1]


def corpora(words: str = "a b c d e f g h") -> st.SearchStrategy[str]:
    """Texts of a few documents."""
    sentence = st.lists(st.sampled_from(words.split()), min_size=1, max_size=12).map(" ".join)
    document = st.lists(sentence, min_size=1, max_size=8).map("\n".join)
    return st.lists(document, min_size=2, max_size=6).map("\n\n".join)
