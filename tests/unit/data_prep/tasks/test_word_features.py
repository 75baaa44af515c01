import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_tf.tokenization import BertTokenizer
from data_prep.input_pipeline import EvalBatches, eval_dataset
from data_prep.tasks import word_features
from data_prep.tasks.conll import Sentence
from data_prep.tasks.ner import featurize
from data_prep.tasks.word_features import CHOICES, WordFeatures, combine, encode, layers_of, stored

LETTERS = "abcdefghij"
TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *LETTERS, *(f"##{x}" for x in LETTERS)]
LABELS = ("O", "B-A", "I-A")


@pytest.fixture(scope="module")
def tokenizer():
    # A word of n letters is n pieces: "abc" -> a ##b ##c.
    return BertTokenizer.from_vocab({token: i for i, token in enumerate(TOKENS)})


def sentences_of(texts):
    return [
        Sentence(f"t-{number}", words := text.split(), ["B-A"] * len(words), [1] * len(words), 0)
        for number, text in enumerate(texts)
    ]


def vectors_of(windows, choice="weighted_sum", layers=3, hidden=2):
    """As an encoder that says the id of a token, its place, and the layer."""

    def states(parts):
        return [
            np.stack(
                [
                    np.stack([1000.0 * layer + ids, np.arange(len(ids))], axis=-1)
                    for layer in range(layers)
                ],
                axis=1,
            ).astype(np.float32)
            for ids in parts
        ]

    blocks = list(encode(windows, choice, states, layers * hidden))
    return np.concatenate(blocks)


def test_layers():
    assert layers_of("last", 1) == (-1,)
    assert layers_of("second_to_last", 2) == (-2,)
    assert layers_of("sum_last_4", 4) == layers_of("concat_last_4", 12) == (-1, -2, -3, -4)
    assert layers_of("embeddings", 1) == ("embeddings",)
    assert layers_of("weighted_sum", 3) == ("embeddings", 0, 1, 2)
    assert len(layers_of("weighted_sum", 12)) == 13
    for choice, needed in (("second_to_last", 2), ("sum_last_4", 4), ("concat_last_4", 4)):
        with pytest.raises(ValueError, match=f"{choice} needs {needed} layers; the model has"):
            layers_of(choice, needed - 1)


def test_combine():
    states = np.arange(2 * 4 * 3, dtype=np.float32).reshape(2, 4, 3)
    assert set(CHOICES) > {"sum_last_4", "concat_last_4"}
    np.testing.assert_array_equal(combine("sum_last_4", states), states.sum(1))
    np.testing.assert_array_equal(combine("concat_last_4", states)[1], np.arange(12, 24))
    np.testing.assert_array_equal(combine("last", states[:, :1]), states[:, 0])


@pytest.mark.parametrize("document_context", [False, True])
def test_a_vector_for_each_word_is_that_of_its_first_piece(
    tokenizer, document_context, monkeypatch
):
    # Windows of several parts, and an encoder that is called several times.
    monkeypatch.setattr(word_features, "_PART", 120)
    texts = ["ab c", "d", "abc de f gh ij ab cd ef a b c", "j i"]
    windows = featurize(sentences_of(texts), LABELS, tokenizer, 10, document_context)
    found = vectors_of(windows)
    words = " ".join(texts).split()
    assert found.shape == (len(words), 6)
    first = [TOKENS.index(word[0]) for word in words]
    for layer in range(3):
        assert found[:, 2 * layer].tolist() == [1000 * layer + each for each in first]
    # Behind [CLS], with or without others before them.
    assert (found[:, 1] >= 1).all()
    assert found[1, 1] == 3
    assert (found[2, 1] > 1) == document_context


texts = st.lists(
    st.lists(st.text(LETTERS, min_size=1, max_size=4), min_size=1, max_size=14).map(" ".join),
    min_size=1,
    max_size=6,
)


@settings(deadline=None, max_examples=40)
@given(texts, st.integers(5, 12), st.integers(1, 5))
def test_every_word_is_in_one_place(texts, length, batch):
    tokenizer = BertTokenizer.from_vocab({token: i for i, token in enumerate(TOKENS)})
    windows = featurize(sentences_of(texts), LABELS, tokenizer, length)
    vectors = vectors_of(windows)
    features = WordFeatures(windows, vectors)
    assert features.lengths.max() <= features.max_seq_length <= length
    count = sum(len(text.split()) for text in texts)
    width = int(features.lengths.max())
    values = np.zeros((len(features), width, 6), np.float32)
    seen = 0
    for start in range(0, len(features), batch):
        rows = np.arange(start, min(start + batch, len(features)))
        dense = features.dense(rows, width)
        seen += dense["input_mask"].sum()
        assert (dense["label_ids"] == np.where(dense["input_mask"], 1, -1)).all()
        assert not dense["features"][dense["input_mask"] == 0].any()
        values[rows] = dense["features"]
    assert seen == count
    np.testing.assert_array_equal(features.gather(values), vectors)
    assert [len(each) for each in features.by_sentence(vectors)] == [
        len(text.split()) for text in texts
    ]


def test_batches(tokenizer):
    windows = featurize(sentences_of(["a b c", "d", "e f"]), LABELS, tokenizer, 16)
    features = WordFeatures(windows, vectors_of(windows))
    dataset = eval_dataset(features, EvalBatches(features.lengths, 2))
    first, second = dataset.as_numpy_iterator()
    assert first["features"].shape == (2, 3, 6)
    assert first["label_ids"].tolist() == [[1, 1, 1], [1, 1, -1]]
    assert second["example_index"].tolist() == [1, -1]
    assert (second["label_ids"][1] == -1).all()
    assert not second["input_mask"][1].any()
    with pytest.raises(ValueError, match="3 words do not fit into 2"):
        features.dense(np.array([0]), 2)


def test_stored_once(tmp_path):
    blocks = [np.ones((2, 3), np.float32), np.full((1, 3), 2.0, np.float32)]
    # The second time nothing is asked for.
    for source in (blocks, [np.zeros((9, 9))]):
        found = stored(str(tmp_path), "train-last-1.npy", (3, 3), iter(source))
        np.testing.assert_array_equal(found, np.concatenate(blocks))
        assert found.dtype == np.float32
    # Of other data: the first is of no use any more, another set's stays.
    stored(str(tmp_path), "dev-last-1.npy", (3, 3), iter(blocks))
    stored(str(tmp_path), "train-last-2.npy", (3, 3), iter(blocks))
    names = sorted(path.name for path in (tmp_path / "features").iterdir())
    assert names == ["dev-last-1.npy", "train-last-2.npy"]


def test_a_damaged_file_is_made_anew(tmp_path):
    block = np.ones((2, 3), np.float32)
    stored(str(tmp_path), "dev-last-1.npy", (2, 3), [block])
    path = tmp_path / "features" / "dev-last-1.npy"
    for damage in (b"", path.read_bytes()[:-4], b"x" * 200):
        path.write_bytes(damage)
        found = stored(str(tmp_path), "dev-last-1.npy", (2, 3), [block])
        np.testing.assert_array_equal(found, block)

    def breaks():
        yield block
        raise RuntimeError

    with pytest.raises(RuntimeError):
        stored(str(tmp_path), "dev-last-2.npy", (4, 3), breaks())
    assert not list((tmp_path / "features").glob("dev-last-2*"))


def test_stored_for_an_address(tmp_path):
    blocks = [np.ones((2, 3), np.float32), np.full((1, 3), 2.0, np.float32)]
    found = stored("memory://somewhere", "train-last-1.npy", (3, 3), blocks)
    np.testing.assert_array_equal(found, np.concatenate(blocks))
