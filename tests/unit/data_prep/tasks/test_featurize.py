import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_tf.tokenization import BertTokenizer
from data_prep.tasks import get_task
from data_prep.tasks.base import Example, Task
from data_prep.tasks.featurize import featurize

LETTERS = "abcdefghij"
CLS, SEP = 2, 3
A, B, C, D = 5, 6, 7, 8


@pytest.fixture(scope="module")
def tokenizer():
    return _tokenizer()


def _tokenizer():
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *LETTERS]
    return BertTokenizer.from_vocab({token: i for i, token in enumerate(tokens)})


def _featurize(tokenizer, pairs, length, truncation="longest_first"):
    examples = [Example(f"t-{i}", a, b, "1") for i, (a, b) in enumerate(pairs)]
    return featurize(examples, get_task("MRPC"), tokenizer, length, truncation)


def test_one_example(tokenizer):
    features = _featurize(tokenizer, [("a b", "c"), ("d", None)], 8)
    assert len(features) == 2
    one = features[0]
    assert one.guid == "t-0"
    assert one.input_ids.tolist() == [CLS, A, B, SEP, C, SEP]
    assert one.segment_ids.tolist() == [0, 0, 0, 0, 1, 1]
    assert one.label == 1
    assert features[-1].input_ids.tolist() == [CLS, D, SEP]
    assert features.lengths.tolist() == [6, 3]
    assert features.num_truncated == 0
    with pytest.raises(IndexError):
        features[2]


def test_second_text_without_tokens_is_no_pair(tokenizer):
    features = _featurize(tokenizer, [("a", ""), ("a", " "), ("a", "\u200b"), ("", "a")], 8)
    assert [features[i].input_ids.tolist() for i in range(4)] == [
        [CLS, A, SEP],
        [CLS, A, SEP],
        [CLS, A, SEP],
        [CLS, SEP, A, SEP],
    ]
    # It takes no room either.
    assert _featurize(tokenizer, [("a b c", " ")], 5)[0].input_ids.tolist() == [CLS, A, B, C, SEP]


def test_dense(tokenizer):
    features = _featurize(tokenizer, [("a b", "c"), ("d", None)], 8)
    arrays = features.dense(np.array([1, -1, 0]), 6)
    assert arrays["input_ids"].tolist() == [
        [CLS, D, SEP, 0, 0, 0],
        [0] * 6,
        [CLS, A, B, SEP, C, SEP],
    ]
    assert arrays["input_mask"].tolist() == [[1, 1, 1, 0, 0, 0], [0] * 6, [1] * 6]
    assert arrays["segment_ids"].tolist() == [[0] * 6, [0] * 6, [0, 0, 0, 0, 1, 1]]
    assert {array.dtype for array in arrays.values()} == {np.dtype(np.int32)}
    with pytest.raises(ValueError, match="6 tokens does not fit into 5"):
        features.dense(np.array([0]), 5)


def test_truncated_examples_are_counted(tokenizer):
    features = _featurize(tokenizer, [("a b c d", None), ("a b", None), ("a b c", "d")], 5)
    assert features.num_truncated == 2
    assert [features[i].input_ids.tolist() for i in range(3)] == [
        [CLS, A, B, C, SEP],
        [CLS, A, B, SEP],
        [CLS, A, SEP, D, SEP],
    ]
    tail = _featurize(tokenizer, [("a b c d", None)], 4, "tail")
    assert tail[0].input_ids.tolist() == [CLS, C, D, SEP]


def test_bad_arguments(tokenizer):
    with pytest.raises(ValueError, match=r"max_seq_length is 4, but a pair .* at least 5"):
        _featurize(tokenizer, [("a", "b")], 4)
    with pytest.raises(ValueError, match=r"max_seq_length is 2, but a text .* at least 3"):
        _featurize(tokenizer, [("a", None)], 2)
    with pytest.raises(ValueError, match="no truncation 'middle'; it is one of longest_first"):
        _featurize(tokenizer, [("a", None)], 8, "middle")


def test_each_distinct_text_is_tokenized_once(tokenizer):
    calls = []

    class Counting:
        cls_id, sep_id = tokenizer.cls_id, tokenizer.sep_id

        def encode(self, text):
            calls.append(text)
            return tokenizer.encode(text)

    _featurize(Counting(), [("a", "b"), ("a", "c"), ("c", "a")], 8)
    assert calls == ["a", "b", "c"]


def test_labels_of_each_kind(tokenizer):
    class Scores(Task):
        name, kind = "S", "regression"

    class Several(Task):
        name, kind, labels = "M", "multilabel", ("x", "y", "z")

    def labels(task, *values):
        return featurize([Example("g", "a", None, v) for v in values], task, tokenizer, 8).labels

    found = labels(get_task("RTE"), "not_entailment", "entailment", None)
    assert (found.dtype, found.tolist()) == (np.int32, [1, 0, 0])
    found = labels(Scores(), 0.5, None)
    assert (found.dtype, found.tolist()) == (np.float32, [0.5, 0.0])
    found = labels(Several(), ("z", "x"), (), None)
    assert (found.dtype, found.tolist()) == (np.float32, [[1, 0, 1], [0, 0, 0], [0, 0, 0]])


TEXTS = st.text(alphabet=LETTERS + " ", max_size=30)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(TEXTS, st.none() | TEXTS), min_size=1, max_size=8), st.integers(5, 24))
def test_dense_holds_each_example(pairs, length):
    features = _featurize(_tokenizer(), pairs, length)
    arrays = features.dense(np.arange(len(pairs)), length)
    for i in range(len(pairs)):
        one = features[i]
        size = len(one.input_ids)
        assert size <= length
        assert arrays["input_ids"][i, :size].tolist() == one.input_ids.tolist()
        assert arrays["segment_ids"][i, :size].tolist() == one.segment_ids.tolist()
        assert arrays["input_mask"][i].tolist() == [1] * size + [0] * (length - size)
        assert not arrays["input_ids"][i, size:].any()
        assert not arrays["segment_ids"][i, size:].any()
        # Two [SEP] and segment 1 from the first of them on, or one and segment 0.
        seps = np.flatnonzero(one.input_ids == SEP)
        assert seps[-1] == size - 1
        assert one.segment_ids.sum() == (size - 1 - seps[0])
