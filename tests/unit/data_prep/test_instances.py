"""Pairs, packed instances, records, counts."""

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pretraining_texts import small_tokenizer

from data_prep import instances, records
from data_prep.instances import Counts, RecordEncoder, Settings, Vocabulary
from data_prep.masking import Masking


def never():
    return None


@settings(deadline=None, max_examples=200)
@given(
    st.lists(st.integers(1, 30), min_size=1, max_size=12), st.integers(5, 400),
    st.floats(0, 1), st.integers(0, 2**32),
)  # fmt: skip
def test_pairs(lengths, size, short, seed):
    start = 17
    ends = np.cumsum([start, *lengths]).tolist()
    options = Settings(size, Masking(max_predictions=1), short)
    rng = random.Random(seed)
    # A random place far away: sentences of 3, 1 and 40 tokens.
    far = (10_000, [10_003, 10_004, 10_044])
    pairs, dropped = instances.pair_document(ends, options, rng, lambda: far)
    assert dropped == 0
    room = size - 3
    used = set()
    for a_start, a_end, b_start, b_end, label in pairs:
        assert a_start < a_end
        assert b_start < b_end
        assert a_end - a_start + b_end - b_start <= room
        assert start <= a_start < a_end <= ends[-1]
        used |= set(range(a_start, a_end))
        if label:
            assert 10_000 <= b_start < b_end <= 10_044
        else:
            assert a_end <= b_start < b_end <= ends[-1]
            # The true next: from the end of a sentence on, but for what was cut.
            assert any(a_end <= end <= b_start for end in ends[1:-1])
            used |= set(range(b_start, b_end))
    if sum(lengths) + 44 <= room and short < 0.01:
        assert used == set(range(start, ends[-1]))


def test_pairs_without_another_document():
    options = Settings(16, Masking(max_predictions=3), 0.0)
    rng = random.Random(0)
    assert instances.pair_document([0, 2], options, rng, never) == ([], 1)
    pairs, dropped = instances.pair_document([0, 2, 4, 6], options, rng, never)
    assert not dropped
    assert [label for *_, label in pairs] == [0]
    assert pairs[0][0] == 0
    assert pairs[0][3] == 6


def test_shares_of_random_next_and_short_targets():
    ends = list(range(0, 5001, 5))
    rng = random.Random(1)
    labels, short = [], 0
    for share in (0.0, 0.5):
        options = Settings(128, Masking(), share)
        for _ in range(200):
            pairs, _ = instances.pair_document(ends, options, rng, lambda: (10_000, [10_200]))
            if share:
                short += len(pairs) > 80
            else:
                labels += [label for *_, label in pairs]
    assert abs(np.mean(labels) - 0.5) < 0.01
    # About 55 pairs at 125 tokens. Half of the passes have a target of their own, and two thirds
    # of these are so much shorter that there are more than 80.
    assert 40 < short < 95


@settings(deadline=None, max_examples=30)
@given(st.integers(5, 150), st.integers(0, 2**32), st.booleans())
def test_build_and_encode(size, seed, dynamic):
    """Records of random pairs against the pairs, worked out one by one."""
    tokenizer = small_tokenizer(" ".join(f"w{i}" for i in range(300)))
    vocabulary = Vocabulary.of(tokenizer)
    rng = np.random.default_rng(seed)
    tokens = (rng.integers(5, 305, 500) * 2).astype(np.uint16)
    pairs = []
    for _ in range(20):
        a = rng.integers(1, size - 3)
        b = rng.integers(1, size - 2 - a)
        at, bt = rng.integers(0, 500 - a), rng.integers(0, 500 - b)
        pairs.append((int(at), int(at + a), int(bt), int(bt + b), int(rng.integers(2))))
    predictions = min(5, size)
    options = Settings(size, Masking(max_predictions=predictions), dynamic_masking=dynamic)
    bits = np.random.Philox(seed).random_raw
    packed = instances.build(tokens, pairs, options, vocabulary, bits)
    cut = instances.split_packed(b"".join(packed), vocabulary.size)
    assert list(map(bytes, cut)) == packed
    encoder = RecordEncoder(options, vocabulary.size)
    for (a, a_end, b, b_end, label), one in zip(pairs, packed):
        record = encoder.example(one)
        found = {k: v.tolist() for k, v in records.parse_example(record).items()}
        assert records.encode_example(records.parse_example(record)) == record
        assert {f.name for f in options.spec} == set(found)
        assert [len(found[f.name]) for f in options.spec] == [f.length for f in options.spec]
        ids = [2, *(tokens[a:a_end] >> 1), 3, *(tokens[b:b_end] >> 1), 3]
        length = len(ids)
        now = found["input_ids"]
        if not dynamic:
            count = int(sum(found["masked_lm_weights"]))
            assert count == min(predictions, max(1, round(length * 0.15)), length - 3)
            now = list(now)
            for place, token in zip(found["masked_lm_positions"][:count], found["masked_lm_ids"]):
                now[place] = token
        padding = [0] * (size - length)
        assert now == [*ids, *padding]
        assert found["input_mask"] == [1] * length + padding
        split = a_end - a + 2
        assert found["segment_ids"] == [0] * split + [1] * (length - split) + padding
        assert found["next_sentence_labels"] == [label]


def test_large_vocabularies():
    tokenizer = small_tokenizer(" ".join(f"w{i}" for i in range(70000)))
    vocabulary = Vocabulary.of(tokenizer)
    tokens = np.array([10, 2 * 70004, 2 * 70003], np.uint32)
    options = Settings(8, Masking(max_predictions=2), dynamic_masking=True)
    (packed,) = instances.build(tokens, [(0, 2, 2, 3, 0)], options, vocabulary, None)
    found = records.parse_example(RecordEncoder(options, vocabulary.size).example(packed))
    assert found["input_ids"].tolist() == [2, 5, 70004, 3, 70003, 3, 0, 0]


def test_below_draws_as_the_standard_library():
    ours, theirs = random.Random(5), random.Random(5)
    for n in [1, 2, 3, 7, 8, 100, 12345, 2**40]:
        for _ in range(50):
            assert instances.below(ours.getrandbits, n) == theirs.randrange(n)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_seq_length": 4}, "max_seq_length is 4; it must be from 5"),
        ({"max_seq_length": 70000}, "to 65535"),
        ({"max_seq_length": 16}, "max_predictions_per_seq is 20, more than max_seq_length 16"),
        ({"short_seq_prob": 1.5}, "short_seq_prob is 1.5"),
        ({"dupe_factor": 0}, "dupe_factor is 0"),
    ],
)
def test_bad_settings(options, message):
    with pytest.raises(ValueError, match=message):
        Settings(**options)


@pytest.mark.parametrize("missing", ["[UNK]", "[CLS]", "[SEP]", "[MASK]"])
def test_a_vocabulary_without_specials(missing):
    tokenizer = small_tokenizer()
    vocab = {token: i for token, i in tokenizer.vocab.items() if token != missing}
    with pytest.raises(ValueError, match=rf"no token '\{missing[:-1]}\]'"):
        Vocabulary.of(type(tokenizer).from_vocab(vocab))


def test_warnings():
    plain = Settings()
    good = Counts(documents=10, sentences=100, tokens=1000, continuing=9, instances=10)
    assert good.warnings(plain) == []
    unknown = Counts(documents=10, sentences=100, tokens=1000, unknown=51)
    assert "5.1% of the tokens are [UNK]" in unknown.warnings(plain)[0]
    whole = Settings(masking=Masking("whole_word"))
    assert "Chinese must be segmented" in unknown.warnings(whole)[1]
    assert good.warnings(whole) == []
    one = Counts(documents=1, sentences=100, tokens=1000)
    assert "no random second segment" in one.warnings(plain)[0]
    own = Counts(documents=2, sentences=100, tokens=1000, same_document=3)
    assert "3 instances" in own.warnings(plain)[0]


def test_summary():
    counts = Counts(2, 30, 500, 5, 9, 10, 1000, 6, 150)
    text = "\n".join(counts.summary(Settings()))
    for part in ("documents 2", "sentences 30", "tokens 500", "[UNK] 1.00%", "instances 10",
                 "padding 21.9%", "random next 60.0%", "masked 15.0%"):  # fmt: skip
        assert part in text
