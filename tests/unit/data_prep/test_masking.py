"""What is masked, and by what."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep.masking import KINDS, Masking, mask, mask_batch

MASK_ID, VOCAB = 4, 1000


def bits(seed):
    return np.random.Philox(np.random.SeedSequence([seed])).random_raw


def batch(rows, size, seed, longest=None):
    """Random instances: ids from 5, [CLS] 2, [SEP] 3; which tokens go on with a word."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(5, (longest or size) + 1, rows)
    starts_b = np.array([rng.integers(3, length - 1) for length in lengths])
    ids = rng.integers(5, VOCAB, (rows, size))
    continues = rng.random((rows, size)) < 0.3
    column = np.arange(size)
    ids[:, 0] = 2
    ids[np.arange(rows), starts_b - 1] = 3
    ids[np.arange(rows), lengths - 1] = 3
    ids[column >= lengths[:, None]] = 0
    return ids, lengths, starts_b, continues & (ids > 4)


def words(row_ids, length, start_b, continues):
    """The words of a row, as lists of positions; no word runs over a [SEP]."""
    result = []
    for place in [*range(1, start_b - 1), *range(start_b, length - 1)]:
        if continues[place] and result and place not in (1, start_b):
            result[-1].append(place)
        else:
            result.append([place])
    return result


@settings(deadline=None, max_examples=60)
@given(
    st.sampled_from(KINDS), st.integers(5, 40), st.integers(1, 12), st.floats(0.01, 0.99),
    st.integers(0, 2**32),
)  # fmt: skip
def test_invariants(kind, size, predictions, prob, seed):
    ids, lengths, starts_b, continues = batch(8, size, seed)
    rule = Masking(kind, predictions, prob)
    replacements = np.arange(VOCAB)
    found = mask(ids, lengths, starts_b, continues, rule, MASK_ID, replacements, bits(seed))
    assert found.input_ids.shape == ids.shape
    for row in range(8):
        length, count = int(lengths[row]), int(found.counts[row])
        wanted = min(predictions, max(1, round(length * prob)), length - 3)
        places = found.positions[row, :count].tolist()
        if kind == "static":
            assert count == wanted
        else:
            assert count <= wanted
            groups = words(ids[row], length, starts_b[row], continues[row])
            covered = [word for word in groups if set(word) & set(places)]
            assert [place for word in covered for place in word] == places
            if count < wanted:
                # Whatever is left would be too much.
                left = [len(w) for w in groups if w not in covered]
                assert not left or min(left) > wanted - count
        assert places == sorted(set(places))
        assert not {0, starts_b[row] - 1, length - 1} & set(places)
        assert not places or (places[0] > 0 and places[-1] < length - 1)
        assert found.labels[row, :count].tolist() == ids[row, places].tolist()
        assert not found.labels[row, count:].any()
        assert not found.positions[row, count:].any()
        others = np.delete(np.arange(size), places)
        assert np.array_equal(found.input_ids[row, others], ids[row, others])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("mask_share", "random_share"), [(0.8, 0.1), (0.5, 0.3), (1.0, 0.0)])
def test_shares(kind, mask_share, random_share):
    ids, lengths, starts_b, continues = batch(4000, 64, 1, longest=64)
    rule = Masking(kind, 10, 0.15, mask_share, random_share)
    # A replacement that no text holds, so that each case can be told.
    found = mask(ids, lengths, starts_b, continues, rule, MASK_ID, np.array([VOCAB]), bits(2))
    total = found.counts.sum()
    now = found.input_ids[np.arange(4000)[:, None], found.positions]
    real = np.arange(10) < found.counts[:, None]
    assert total > 15000
    for value, share in ((MASK_ID, mask_share), (VOCAB, random_share)):
        assert abs((now[real] == value).sum() / total - share) < 0.012
    kept = 1 - mask_share - random_share
    assert abs((now == found.labels)[real].sum() / total - kept) < 0.012


def test_each_position_is_as_likely_and_each_replacement():
    size = 23
    ids = np.full((20000, size), 7)
    lengths, starts_b = np.full(20000, size), np.full(20000, 11)
    rule = Masking("static", 4, 0.2, 0.0, 1.0)
    found = mask(ids, lengths, starts_b, None, rule, MASK_ID, np.arange(8), bits(3))
    often = np.bincount(found.positions.ravel(), minlength=size)
    assert not often[[0, 10, 22]].any()
    often = np.delete(often, [0, 10, 22])
    # 80,000 draws of 20 places: the standard deviation is 60.
    assert abs(often - 4000).max() < 300
    values = np.bincount(np.take_along_axis(found.input_ids, found.positions, 1).ravel())
    assert abs(values - 10000).max() < 500


def test_ngrams_are_longer_than_words():
    ids, lengths, _, continues = batch(2000, 128, 5, longest=128)
    lengths[:], continues[:] = 128, False
    ids[:, -1] = 3
    runs = {}
    for kind in ("whole_word", "ngram"):
        rule = Masking(kind, 20, 0.15)
        found = mask(
            ids, lengths, np.full(2000, 64), continues, rule, MASK_ID, np.arange(9), bits(1)
        )
        gaps = np.diff(found.positions, axis=1)
        runs[kind] = (gaps == 1).mean()
    # Neighbours by chance against 1 + 1/2 + 1/3 by choice.
    assert runs["ngram"] > runs["whole_word"] + 0.2


@pytest.mark.parametrize("kind", KINDS)
def test_records_masked_in_training(kind):
    ids, lengths, starts_b, _ = batch(64, 32, 3)
    column = np.arange(32)
    segments = (column >= starts_b[:, None]) & (column < lengths[:, None])
    records = {
        "input_ids": ids.astype(np.int32),
        "input_mask": (column < lengths[:, None]).astype(np.int32),
        "segment_ids": segments.astype(np.int32),
        "next_sentence_labels": np.ones((64, 1), np.int32),
    }
    table = np.arange(VOCAB) % 3 == 0
    arguments = records, Masking(kind, 5), MASK_ID, np.arange(VOCAB), table
    one, again, other = (mask_batch(*arguments, key) for key in ([1, 2], [1, 2], [1, 3]))
    for name in one:
        assert np.array_equal(one[name], again[name])
    assert not np.array_equal(one["input_ids"], other["input_ids"])
    for masked in (one, other):
        assert masked["input_ids"].dtype == np.int32
        before = masked["input_ids"].copy()
        places, real = masked["masked_lm_positions"], masked["masked_lm_weights"] == 1
        rows = np.nonzero(real)[0]
        before[rows, places[real]] = masked["masked_lm_ids"][real]
        assert np.array_equal(before, ids)
        assert real.any(axis=1).mean() > 0.9


def test_whole_words_need_to_know_words():
    ids, lengths, starts_b, _ = batch(1, 16, 0)
    with pytest.raises(ValueError, match="known"):
        mask(ids, lengths, starts_b, None, Masking("ngram"), MASK_ID, np.arange(9), bits(0))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kind": "words"}, "masking is 'words'"),
        ({"max_predictions": 0}, "max_predictions_per_seq is 0"),
        ({"prob": 0.0}, "masked_lm_prob is 0.0"),
        ({"prob": 1.0}, "masked_lm_prob is 1.0"),
        ({"mask_share": 1.2}, "--mask_token_share is 1.2"),
        ({"random_share": -0.1}, "--random_token_share is -0.1"),
        ({"mask_share": 0.8, "random_share": 0.3}, "--random_token_share=0.3 are over 1 together"),
        ({"max_ngram": 0}, "max_ngram is 0"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(ValueError, match=message):
        Masking(**options)
