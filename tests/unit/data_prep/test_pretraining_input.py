"""Batches of pre-training records: what they hold, and what they depend on."""

import itertools

import numpy as np
import pytest
from pretraining_texts import GOLDEN, RUNS, small_tokenizer

from data_prep import packed_text, records
from data_prep.input_pipeline import EvalBatches, TrainBatches
from data_prep.masking import Masking
from data_prep.pretraining_input import DynamicMasking, PretrainingData, is_masked

CLS, SEP, MASK = 2, 3, 4
SIZE, SLOTS, WORDS = 12, 3, 13


def write(path, examples):
    path.write_bytes(b"".join(records.frame(records.encode_example(each)) for each in examples))
    return str(path)


def example(number, masked=True):
    """A text of 9 to 12 tokens whose first one tells its number."""
    length = 9 + number % 4
    rng = np.random.default_rng(number)
    ids = rng.integers(5, WORDS, length)
    ids[[0, 4, length - 1]] = CLS, SEP, SEP
    pad = (0, SIZE - length)
    found = {
        "input_ids": np.pad(ids, pad),
        "input_mask": np.pad(np.ones(length, np.int64), pad),
        "segment_ids": np.pad((np.arange(length) > 4).astype(np.int64), pad),
        "next_sentence_labels": np.array([number % 2]),
    }
    if masked:
        count = 1 + number % SLOTS
        positions = np.array([1, 3, 6])[:count]
        empty = (0, SLOTS - count)
        found["masked_lm_positions"] = np.pad(positions, empty)
        found["masked_lm_ids"] = np.pad(ids[positions], empty)
        found["masked_lm_weights"] = np.pad(np.ones(count, np.float32), empty)
        found["input_ids"][positions[:2]] = MASK  # The third stays as it is.
    return found


@pytest.fixture
def file(tmp_path):
    return write(tmp_path / "masked", map(example, range(7)))


@pytest.fixture
def unmasked(tmp_path):
    return write(tmp_path / "unmasked", [example(number, False) for number in range(7)])


def open_data(*files, **options):
    return PretrainingData(files, SIZE, SLOTS, WORDS, **options)


def dynamic(seed=1, kind="static"):
    tokenizer = small_tokenizer()
    assert tokenizer.vocab_size == WORDS
    return DynamicMasking(
        Masking(kind, SLOTS, 0.3),
        tokenizer.mask_id,
        packed_text.replacement_ids(tokenizer),
        packed_text.continues(tokenizer),
        seed,
    )


def same(found, expected):
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)


def test_a_batch_holds_the_records(file):
    batch = open_data(file).batch(np.array([5, 0, 5]))
    for row, number in enumerate((5, 0, 5)):
        for name, value in example(number).items():
            np.testing.assert_array_equal(batch[name][row], value, err_msg=name)
    kinds = {name: (value.dtype.name, value.shape) for name, value in batch.items()}
    assert kinds == {
        "input_ids": ("int32", (3, SIZE)),
        "input_mask": ("int32", (3, SIZE)),
        "segment_ids": ("int32", (3, SIZE)),
        "masked_lm_positions": ("int32", (3, SLOTS)),
        "masked_lm_ids": ("int32", (3, SLOTS)),
        "masked_lm_weights": ("float32", (3, SLOTS)),
        "next_sentence_labels": ("int32", (3, 1)),
    }


def test_rows_of_padding_have_no_weight(file):
    batch = open_data(file).batch(np.array([6, -1]))
    assert batch["masked_lm_weights"].sum(axis=1).tolist() == [1, 0]


@pytest.mark.parametrize("run", RUNS[:1])
def test_the_originals_records(run):
    files = sorted(map(str, (GOLDEN / run).glob("*.tfrecord")))
    assert is_masked(files)
    data = PretrainingData(files, 128, 20, 30522)
    found = data.batch(np.arange(len(data)))
    expected = [
        records.parse_example(record) for file in files for record in records.read_records(file)
    ]
    for name in found:
        np.testing.assert_array_equal(found[name], np.stack([each[name] for each in expected]))


def test_which_records_are_masked(tmp_path, file, unmasked):
    empty = write(tmp_path / "empty", [])
    assert is_masked([file])
    assert is_masked([empty, file])
    assert not is_masked([empty, unmasked])
    with pytest.raises(ValueError, match=rf"{unmasked} holds .* without masks .*{file} records"):
        is_masked([file, unmasked])
    # Neither: what is wrong is said where the data are opened.
    (tmp_path / "other").write_bytes(records.frame(b"\xff\xff"))
    assert is_masked([str(tmp_path / "other")])
    with pytest.raises(ValueError, match=r"other: record 0: the record is no tf\.train\.Example"):
        open_data(str(tmp_path / "other"))


# Left to right.


@pytest.mark.parametrize("masked", [True, False])
def test_left_to_right(file, unmasked, masked):
    options = {} if masked else {"dynamic": dynamic()}
    data = open_data(file if masked else unmasked, left_to_right=True, **options)
    assert data.predictions == SIZE - 1
    batch = data.batch(np.array([3, 0, -1]))
    for row, number in enumerate((3, 0)):
        whole = example(number, False)
        length = whole["input_mask"].sum()
        # Masks are undone; each position but the last predicts the next token.
        np.testing.assert_array_equal(batch["input_ids"][row], whole["input_ids"])
        np.testing.assert_array_equal(batch["masked_lm_positions"][row], np.arange(SIZE - 1))
        np.testing.assert_array_equal(batch["masked_lm_ids"][row], whole["input_ids"][1:])
        weights = [1.0] * (length - 1) + [0.0] * (SIZE - length)
        np.testing.assert_array_equal(batch["masked_lm_weights"][row], weights)
        for name in ("input_mask", "segment_ids", "next_sentence_labels"):
            np.testing.assert_array_equal(batch[name][row], whole[name])
    assert not batch["masked_lm_weights"][2].any()
    assert {value.dtype.name for value in batch.values()} == {"int32", "float32"}


# Masks that are drawn in training.


@pytest.mark.parametrize("kind", ["static", "whole_word"])
def test_dynamic_masks_are_a_function_of_seed_and_step(unmasked, kind):
    def draw(seed, step):
        return open_data(unmasked, dynamic=dynamic(seed, kind)).batch(np.arange(7), step)

    data = open_data(unmasked, dynamic=dynamic(1, kind))
    # Whatever was drawn before.
    same(data.batch(np.arange(7), 3), draw(1, 3))
    data.batch(np.arange(7), 5)
    same(data.batch(np.arange(7), 3), draw(1, 3))
    for other in (draw(1, 4), draw(2, 3)):
        assert (other["masked_lm_positions"] != draw(1, 3)["masked_lm_positions"]).any()
    batch = draw(1, 3)
    for row in range(7):
        whole = example(row, False)["input_ids"]
        used = batch["masked_lm_weights"][row] == 1
        positions = batch["masked_lm_positions"][row][used]
        assert used.any()
        assert len(set(positions.tolist())) == used.sum()
        np.testing.assert_array_equal(batch["masked_lm_ids"][row][used], whole[positions])
        assert not np.isin(whole[positions], [CLS, SEP, 0]).any()
        elsewhere = np.delete(np.arange(SIZE), positions)
        np.testing.assert_array_equal(batch["input_ids"][row][elsewhere], whole[elsewhere])
    assert (batch["input_ids"] == MASK).sum() > 4


def test_dynamic_masks_do_not_depend_on_the_hosts(unmasked):
    data = open_data(unmasked, dynamic=dynamic())
    batches = TrainBatches(np.zeros(7), 4, 0, group_by_length=False)
    (whole,) = data.train_dataset(batches, 2, 3).as_numpy_iterator()
    parts = [
        next(data.train_dataset(batches, 2, 3, shard_index=i, shard_count=2).as_numpy_iterator())
        for i in range(2)
    ]
    for name, value in whole.items():
        np.testing.assert_array_equal(np.concatenate([part[name] for part in parts]), value)


# Datasets.


def test_train_dataset_begins_anywhere(file):
    data = open_data(file)
    batches = TrainBatches(np.zeros(7), 4, 3, group_by_length=False)
    whole = list(data.train_dataset(batches, 0, 9).as_numpy_iterator())
    assert len(whole) == 9
    for start, end in ((0, 2), (5, 9), (8, 9), (3, 3)):
        # A new object, as a new process has.
        part = list(open_data(file).train_dataset(batches, start, end).as_numpy_iterator())
        assert len(part) == end - start
        for found, expected in zip(part, whole[start:end], strict=True):
            same(found, expected)
    for step, batch in enumerate(whole):
        same(batch, data.batch(batches.indices(step)))
    # Each record once in seven batches of four.
    rows = np.concatenate([batch["input_ids"] for batch in whole[:7]])
    _, counts = np.unique(rows, axis=0, return_counts=True)
    assert counts.tolist() == [4] * 7


def test_eval_dataset_holds_each_record_once(unmasked):
    data = open_data(unmasked, dynamic=dynamic())
    batches = EvalBatches(np.zeros(7), 3)
    first = list(data.eval_dataset(batches).as_numpy_iterator())
    again = list(data.eval_dataset(batches).as_numpy_iterator())
    for found, expected in zip(again, first, strict=True):
        same(found, expected)
    index = np.concatenate([batch["example_index"] for batch in first])
    assert index.tolist() == [0, 1, 2, 3, 4, 5, 6, -1, -1]
    weights = np.concatenate([batch["masked_lm_weights"] for batch in first])
    assert (weights.sum(axis=1) > 0).tolist() == [True] * 7 + [False] * 2
    # Batches differ in their masks.
    assert len({batch["masked_lm_positions"].tobytes() for batch in first}) == 3
    parts = [
        list(data.eval_dataset(batches, shard_index=i, shard_count=3).as_numpy_iterator())
        for i in range(3)
    ]
    found = itertools.chain.from_iterable(zip(*parts, strict=True))
    assert [each["example_index"].item() for each in found] == index.tolist()


def test_hosts_that_do_not_divide_the_batch(file):
    batches = TrainBatches(np.zeros(7), 4, 0, group_by_length=False)
    with pytest.raises(ValueError, match="batch of 4 cannot be divided evenly among 3 hosts"):
        open_data(file).train_dataset(batches, 0, 1, shard_count=3)


# Records that do not fit.


def broken(at, **changes):
    return [example(number) | (changes if number == at else {}) for number in range(7)]


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"input_ids": np.ones(11, int)}, r"input_ids has 11 values, expected 12 \(by --max_seq_l"),
        (
            {"masked_lm_ids": np.ones(4, int)},
            r"masked_lm_ids has 4 values, expected 3 \(by --max_p",
        ),
        ({"segment_ids": np.ones(12, "f4")}, "segment_ids is float32, expected int64"),
    ],
)
def test_a_record_that_does_not_fit(tmp_path, file, changes, problem):
    late = write(tmp_path / "late", broken(4, **changes))
    data = open_data(file, late)
    for index in ([11], [0, 11, -1], [-1, 3, 11]):
        with pytest.raises(ValueError, match=rf"late: record 4 does not fit the flags: {problem}"):
            data.batch(np.array(index))
    # The first record is looked at at once.
    first = write(tmp_path / "first", broken(0, **changes))
    with pytest.raises(ValueError, match=rf"first: the records do not fit the flags: {problem}"):
        open_data(file, first)


def test_a_feature_that_is_missing(tmp_path, file, unmasked):
    with pytest.raises(
        ValueError, match="masked_lm_positions is missing; masked_lm_ids is missing"
    ):
        open_data(file, unmasked)
    half = write(tmp_path / "half", [example(0), example(1, False)])
    with pytest.raises(ValueError, match=r"half: record 1 does not fit.*masked_lm_weights is miss"):
        open_data(half).batch(np.array([0, 1]))
    (tmp_path / "half").write_bytes(
        records.frame(records.encode_example(example(0))) + records.frame(b"\xff\xff")
    )
    with pytest.raises(ValueError, match=r"half: record 1 does not fit.*no tf\.train\.Example"):
        open_data(half).batch(np.array([0, 1]))


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"input_ids": np.full(SIZE, WORDS)}, "input_ids has 13, .* 0 to 12; .*larger vocabulary"),
        ({"input_ids": np.full(SIZE, -1)}, "input_ids has -1"),
        ({"masked_lm_ids": np.array([5, 2**40, 0])}, "masked_lm_ids has 1099511627776"),
        ({"masked_lm_positions": np.array([0, 0, SIZE])}, "positions has 12, .* from 0 to 11"),
        ({"next_sentence_labels": np.array([2])}, "next_sentence_labels has 2, .* from 0 to 1"),
        ({"segment_ids": np.full(SIZE, 2)}, "segment_ids has 2, .* from 0 to 1"),
        ({"input_mask": np.full(SIZE, 5)}, "input_mask has 5, .* from 0 to 1"),
        ({"masked_lm_weights": np.array([1, np.nan, 0], np.float32)}, "masked_lm_weights must be"),
        ({"masked_lm_weights": np.array([1, -1, 0], np.float32)}, "masked_lm_weights must be"),
    ],
)
def test_values_out_of_range(tmp_path, file, changes, problem):
    data = open_data(file, write(tmp_path / "wrong", broken(4, **changes)))
    with pytest.raises(ValueError, match=rf"wrong: record 4: .*{problem}"):
        data.batch(np.array([0, 11, 12]))


def test_an_error_of_the_reading_thread_comes_out_as_it_was(tmp_path, file):
    data = open_data(file, write(tmp_path / "late", broken(4, input_ids=np.full(SIZE, WORDS))))
    batches = EvalBatches(np.zeros(14), 4)
    with (
        pytest.raises(ValueError, match="late: record 4: input_ids has 13") as caught,
        data.raising(),
    ):
        list(data.eval_dataset(batches))
    assert type(caught.value) is ValueError
    assert caught.value is data.failures[0]
    # Other errors pass.
    with pytest.raises(KeyError), open_data(file).raising():
        raise KeyError
