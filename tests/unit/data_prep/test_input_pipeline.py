import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_tf.tokenization import BertTokenizer
from data_prep import input_pipeline
from data_prep.input_pipeline import EvalBatches, TrainBatches, bucket_length, shard
from data_prep.tasks import conll, ner, swag
from data_prep.tasks.featurize import Features

sizes = st.tuples(st.integers(1, 300), st.integers(1, 20), st.integers(0, 2**40))
quick = settings(deadline=None, max_examples=60)


def _lengths(n, seed=0):
    return np.random.default_rng(seed).integers(3, 129, n)


def _stream(batches, steps):
    return np.concatenate([batches.indices(step) for step in range(steps)])


@quick
@given(sizes, st.booleans())
def test_every_epoch_holds_each_example_once(size, group):
    n, batch, seed = size
    batches = TrainBatches(_lengths(n), batch, seed, group)
    epochs = 3
    ungrouped = TrainBatches(_lengths(n), batch, seed, False)
    stream = _stream(batches, -(-epochs * n // batch))
    plain = _stream(ungrouped, -(-epochs * n // batch))
    for epoch in range(epochs):
        part = slice(epoch * n, (epoch + 1) * n)
        assert sorted(stream[part]) == list(range(n))
        assert sorted(plain[part]) == list(range(n))


@quick
@given(sizes, st.booleans(), st.integers(0, 100_000))
def test_a_batch_depends_on_seed_and_step_alone(size, group, step):
    n, batch, seed = size
    lengths = _lengths(n)
    used = TrainBatches(lengths, batch, seed, group)
    for other in (step + 40, 0, max(step - 3, 0), step + 1):
        used.indices(other)
    fresh = TrainBatches(lengths, batch, seed, group).indices(step)
    assert fresh.shape == (batch,)
    np.testing.assert_array_equal(used.indices(step), fresh)


def test_seeds_and_epochs_differ():
    lengths = _lengths(64)
    for group in (False, True):
        one, two = (_stream(TrainBatches(lengths, 8, seed, group), 16) for seed in (1, 2))
        assert (one != two).any()
        assert (one[:64] != one[64:]).any()


def test_order_is_fixed_for_good():
    """A run that was started with another NumPy goes on in the same order."""
    batches = TrainBatches(np.arange(10), 4, seed=7, group_by_length=False)
    assert _stream(batches, 5).tolist() == [
        8,
        4,
        3,
        6,
        2,
        1,
        0,
        5,
        9,
        7,
        3,
        6,
        5,
        0,
        1,
        4,
        9,
        2,
        7,
        8,
    ]
    grouped = TrainBatches(np.arange(70) % 13, 2, seed=7)
    assert _stream(grouped, 10).tolist() == [
        56,
        17,
        2,
        28,
        30,
        44,
        3,
        68,
        36,
        62,
        43,
        69,
        5,
        57,
        55,
        42,
        50,
        12,
        29,
        4,
    ]


def test_grouping_keeps_to_its_pool():
    n, batch = 1000, 8
    plain = TrainBatches(_lengths(n), batch, 3, False)
    grouped = TrainBatches(_lengths(n), batch, 3, True)
    pool = input_pipeline.POOL_BATCHES
    for start in range(0, n // batch, pool):
        steps = range(start, min(start + pool, n // batch))
        ours = np.concatenate([grouped.indices(s) for s in steps])
        theirs = np.concatenate([plain.indices(s) for s in steps])
        assert sorted(ours) == sorted(theirs)
    # The batches of a pool do not come in the order of their lengths.
    longest = [_lengths(n)[grouped.indices(s)].max() for s in range(pool)]
    assert longest != sorted(longest)
    # Nor in the same order in each epoch and pool.
    lengths = np.arange(2 * pool * batch)
    grouped = TrainBatches(lengths, batch, 3, True)
    orders = [
        np.argsort([grouped.indices(s).min() for s in range(first, first + pool)]).tolist()
        for first in (0, pool, 2 * pool)
    ]
    assert orders[0] != orders[1]
    assert orders[0] != orders[2]


def _padded(lengths, batches, steps):
    return sum(
        bucket_length(int(lengths[batches.indices(s)].max()), 128) * batches.batch_size
        for s in range(steps)
    )


def test_padding_falls():
    lengths = np.minimum(_lengths(3000, 1), _lengths(3000, 2))
    steps = 3000 // 32
    plain = _padded(lengths, TrainBatches(lengths, 32, 0, False), steps)
    grouped = _padded(lengths, TrainBatches(lengths, 32, 0, True), steps)
    real = lengths.sum()
    assert grouped < 1.15 * real
    assert plain > 2 * real


def test_data_smaller_than_a_batch():
    batches = TrainBatches(_lengths(3), 8, 0)
    assert sorted(batches.indices(0)[:6]) == [0, 0, 1, 1, 2, 2]
    assert sorted(_stream(batches, 3)) == sorted([0, 1, 2] * 8)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(([], 4, 0), "no examples"), (([3], 0, 0), "batch size is 0"), (([3], 1, -1), "seed is -1")],
)
def test_bad_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        TrainBatches(*arguments)
    if message != "seed is -1":
        with pytest.raises(ValueError, match=message):
            EvalBatches(*arguments[:2])


@quick
@given(st.integers(1, 200), st.integers(1, 20))
def test_evaluation_holds_each_example_once(n, batch):
    lengths = _lengths(n)
    batches = EvalBatches(lengths, batch)
    found = list(batches)
    assert len(found) == len(batches) == -(-n // batch)
    real = []
    for number, (indices, count) in enumerate(found):
        assert indices.shape == (batch,)
        assert count == batch or number == len(found) - 1
        assert (indices[count:] == -1).all()
        real += indices[:count].tolist()
    assert sorted(real) == list(range(n))
    assert (np.diff(lengths[real]) <= 0).all()


def test_bucket_length():
    assert [bucket_length(n, 128) for n in (1, 8, 9, 121, 128)] == [8, 8, 16, 128, 128]
    assert bucket_length(99, 100) == 100


def test_shard():
    batch = np.arange(12)
    assert np.concatenate([shard(batch, i, 3) for i in range(3)]).tolist() == list(range(12))
    assert shard(batch, 1, 3).tolist() == [4, 5, 6, 7]
    with pytest.raises(ValueError, match="12 cannot be divided evenly among 5 hosts"):
        shard(batch, 0, 5)


def _features(n=21, kind="classification", weights=False):
    rng = np.random.default_rng(5)
    lengths = rng.integers(3, 61, n)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    labels = {
        "classification": np.arange(n, dtype=np.int32) % 3 + 1,
        "regression": np.arange(n, dtype=np.float32) / 2 + 1,
        "multilabel": rng.integers(0, 2, (n, 4)).astype(np.float32),
    }[kind]
    return Features(
        rng.integers(1, 1000, offsets[-1]).astype(np.int32),
        offsets,
        (lengths // 2 + 1).astype(np.int32),
        labels,
        [f"g{i}" for i in range(n)],
        64,
        example_weights=rng.random(n).astype(np.float32) if weights else None,
    )


def test_host_batch():
    features = _features(weights=True)
    batch = input_pipeline.host_batch(features, np.array([4, -1]))
    length = bucket_length(int(features.lengths[4]), 64)
    assert batch["input_ids"].shape == (2, length)
    assert batch["label_ids"].tolist() == [features.labels[4], 0]
    assert batch["is_real_example"].tolist() == [1, 0]
    assert batch["example_index"].tolist() == [4, -1]
    assert batch["example_weight"].tolist() == [features.example_weights[4], 0]
    assert features.labels[-1] != 0
    full = input_pipeline.host_batch(features, np.array([4, -1]), pad_to_max_length=True)
    assert full["input_ids"].shape == (2, 64)


def test_hosts_agree_on_the_length():
    features = _features()
    indices = np.argsort(features.lengths)
    indices = indices[:20]
    parts = [
        input_pipeline.host_batch(features, indices, shard_index=i, shard_count=2) for i in range(2)
    ]
    whole = input_pipeline.host_batch(features, indices)
    for key, value in whole.items():
        np.testing.assert_array_equal(np.concatenate([part[key] for part in parts]), value)


def test_importing_needs_no_tensorflow():
    code = (
        "import sys, data_prep.input_pipeline, data_prep.tasks.featurize, data_prep.tasks as t;"
        "t.get_task('MRPC'); assert 'tensorflow' not in sys.modules, 'tensorflow was imported'"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("kind", ["classification", "regression", "multilabel"])
@pytest.mark.parametrize("pad", [False, True])
def test_training_dataset(kind, pad):
    features = _features(kind=kind, weights=kind == "classification")
    batches = TrainBatches(features.lengths, 4, 1)
    whole = list(
        input_pipeline.train_dataset(
            features, batches, 0, 12, pad_to_max_length=pad
        ).as_numpy_iterator()
    )
    assert len(whole) == 12
    for step, batch in enumerate(whole):
        expected = input_pipeline.host_batch(features, batches.indices(step), pad_to_max_length=pad)
        del expected["example_index"]
        assert batch.keys() == expected.keys()
        for key, value in expected.items():
            np.testing.assert_array_equal(batch[key], value)
            assert batch[key].dtype == value.dtype
    lengths = {batch["input_ids"].shape[1] for batch in whole}
    assert lengths == {64} if pad else len(lengths) > 1
    # A run that goes on at step 7 sees the same, from objects of its own.
    resumed = input_pipeline.train_dataset(
        features, TrainBatches(features.lengths, 4, 1), 7, 12, pad_to_max_length=pad
    )
    assert resumed.cardinality() == 5
    for ours, theirs in zip(resumed.as_numpy_iterator(), whole[7:], strict=True):
        for key in theirs:
            np.testing.assert_array_equal(ours[key], theirs[key])


def test_specifications():
    features = _features()
    batches = TrainBatches(features.lengths, 4, 1)
    spec = input_pipeline.train_dataset(features, batches, 0, 2, shard_count=2).element_spec
    assert spec["input_ids"].shape.as_list() == [2, None]
    assert spec["label_ids"].shape.as_list() == [2]
    spec = input_pipeline.eval_dataset(
        features, EvalBatches(features.lengths, 4), pad_to_max_length=True
    ).element_spec
    assert spec["segment_ids"].shape.as_list() == [4, 64]
    assert spec["example_index"].dtype.name == "int32"
    with pytest.raises(ValueError, match="divided evenly among 3 hosts"):
        input_pipeline.train_dataset(features, batches, 0, 2, shard_count=3)


def test_evaluation_dataset():
    features = _features()
    dataset = input_pipeline.eval_dataset(features, EvalBatches(features.lengths, 4))
    assert dataset.cardinality() == 6
    seen = []
    for batch in dataset.as_numpy_iterator():
        real = batch["is_real_example"] == 1
        seen += batch["example_index"][real].tolist()
        assert (
            batch["label_ids"][real].tolist()
            == features.labels[batch["example_index"][real]].tolist()
        )
        assert not batch["input_mask"][~real].any()
    assert sorted(seen) == list(range(21))


def test_batches_of_windows_and_of_choices():
    """Labels by token, and a third axis."""
    letters = "abcdefgh"
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters]
    tokenizer = BertTokenizer.from_vocab({token: i for i, token in enumerate(tokens)})
    sentences = [
        conll.Sentence(f"t-{n}", list(letters[: n + 1]), ["B-X"] * (n + 1), [1] * (n + 1), 0)
        for n in range(5)
    ]
    windows = ner.featurize(sentences, ("O", "B-X", "I-X"), tokenizer, 16)
    examples = [
        swag.MultipleChoiceExample(f"t-{n}", "a b", ("c", "d e f", "g h")[: 2 + n % 2], n % 2)
        for n in range(5)
    ]
    choices = swag.featurize(examples, tokenizer, 16)
    for features, shape in ((windows, (2, None)), (choices, (2, 3, None))):
        batches = EvalBatches(features.lengths, 4)
        spec = input_pipeline.eval_dataset(features, batches, shard_count=2).element_spec
        assert tuple(spec["input_ids"].shape) == shape
        found = list(input_pipeline.eval_dataset(features, batches).as_numpy_iterator())
        assert len(found) == 2
        for (indices, real), batch in zip(batches, found, strict=True):
            length = bucket_length(int(features.lengths[indices[:real]].max()), 16)
            dense = features.dense(indices, length)
            for name, value in dense.items():
                np.testing.assert_array_equal(batch[name], value)
            assert batch["is_real_example"].tolist() == [1.0] * real + [0.0] * (4 - real)
            if features is choices:
                assert batch["label_ids"].tolist() == [n % 2 if n >= 0 else 0 for n in indices]
                assert batch["choice_mask"].sum() == sum(2 + n % 2 for n in indices if n >= 0)
            else:
                counted = (batch["label_ids"] >= 0).sum(axis=1)
                assert counted.tolist() == [n + 1 if n >= 0 else 0 for n in indices]
        train = TrainBatches(features.lengths, 2, 0)
        dataset = input_pipeline.train_dataset(features, train, 0, 2, pad_to_max_length=True)
        assert dataset.element_spec["input_ids"].shape[-1] == 16
        assert len(list(dataset)) == 2
