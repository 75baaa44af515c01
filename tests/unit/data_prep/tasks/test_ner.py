import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_tf.tokenization import BertTokenizer
from data_prep.tasks import get_task, ner
from data_prep.tasks.conll import Sentence
from data_prep.tasks.ner import NerTask, featurize

SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
UNK, CLS, SEP = 1, 2, 3
LABELS = ("O", "B-A", "I-A")


def make_tokenizer():
    # A word of n letters is n pieces: "abc" -> a ##b ##c.
    letters = "abcdefghij"
    tokens = [*SPECIALS, *letters, *(f"##{letter}" for letter in letters)]
    return BertTokenizer.from_vocab({token: i for i, token in enumerate(tokens)})


@pytest.fixture(scope="module")
def tokenizer():
    return make_tokenizer()


def sentence(text, document=0, tags=None):
    words = text.split()
    return Sentence("t-0", words, tags, list(range(1, len(words) + 1)), document)


# Windows.


def shown(features, index):
    """A window as (ids, labels)."""
    row = features.dense(np.array([index]), int(features.lengths[index]))
    assert row["input_mask"].all()
    assert not row["segment_ids"].any()
    return row["input_ids"][0].tolist(), row["label_ids"][0].tolist()


def test_labels_are_on_first_pieces(tokenizer):
    features = featurize([sentence("a bcd e", tags=["O", "B-A", "I-A"])], LABELS, tokenizer, 16)
    ids, labels = shown(features, 0)
    pieces = tokenizer.encode("a bcd e")
    assert ids == [CLS, *pieces, SEP]
    assert labels == [-1, 0, 1, -1, -1, 2, -1]
    batch = features.dense(np.array([-1, 0]), 9)
    assert batch["input_ids"].dtype == batch["label_ids"].dtype == np.int32
    assert batch["input_ids"].tolist() == [[0] * 9, [*ids, 0, 0]]
    assert batch["input_mask"].tolist() == [[0] * 9, [1] * 7 + [0] * 2]
    assert batch["label_ids"].tolist() == [[-1] * 9, [*labels, -1, -1]]
    assert features.lengths.tolist() == [7]
    with pytest.raises(ValueError, match="window of 7 tokens does not fit into 6"):
        features.dense(np.array([0]), 6)


def test_a_word_reduced_to_nothing(tokenizer):
    features = featurize([sentence("a \u200b b", tags=["O", "B-A", "O"])], LABELS, tokenizer, 16)
    ids, labels = shown(features, 0)
    assert (ids[2], labels[2]) == (UNK, 1)
    assert len(ids) == 5
    assert features.num_unknown == 1


def test_unknown_tags_are_none(tokenizer):
    features = featurize([sentence("a bc")], LABELS, tokenizer, 16)
    assert shown(features, 0)[1] == [-1, 0, 0, -1, -1]
    assert features.word_labels.tolist() == [0, 0]


def test_a_label_that_is_not_there(tokenizer):
    with pytest.raises(ValueError, match="t-0, line 2: the tag 'B-Z' is not one of the labels: O,"):
        featurize([sentence("a b", tags=["O", "B-Z"])], LABELS, tokenizer, 16)
    with pytest.raises(ValueError, match="max_seq_length is 2, but a token"):
        featurize([sentence("a b")], LABELS, tokenizer, 2)


def test_long_sentences(tokenizer):
    text = "a b c d e f g h i j"
    features = featurize([sentence(text), sentence("a")], LABELS, tokenizer, 6)
    assert features.windows.tolist() == [
        [0, 4, 0, 3],
        [2, 6, 3, 5],
        [4, 8, 5, 7],
        [6, 10, 7, 10],
        [10, 11, 10, 11],
    ]
    assert features.guids == ["t-0"] * 5
    assert features.num_split == 1
    assert features.num_cut_words == 0
    # The last window is full too; of two with the same context the first one counts.
    features = featurize([sentence("a b c d e f g")], LABELS, tokenizer, 7)
    assert features.windows.tolist() == [[0, 5, 0, 4], [2, 7, 4, 7]]
    # No window within another.
    features = featurize([sentence("abcdef a b cd abcdefghi")], LABELS, tokenizer, 14)
    assert features.windows.tolist() == [[0, 4, 0, 3], [2, 5, 3, 5]]
    # A word that leaves no room for another.
    features = featurize([sentence("a bcdefghij b")], LABELS, tokenizer, 6)
    assert features.windows.tolist() == [[0, 1, 0, 1], [1, 2, 1, 2], [2, 3, 2, 3]]
    assert features.num_cut_words == 1
    assert shown(features, 1)[0] == [CLS, *tokenizer.encode("bcdefghij")[:4], SEP]


def test_document_context(tokenizer):
    texts = ["a b", "c d", "e", "f g h", "i j"]
    sentences = [
        sentence(text, document=int(n > 2), tags=["O"] * len(text.split()))
        for n, text in enumerate(texts)
    ]
    features = featurize(sentences, LABELS, tokenizer, 6, document_context=True)
    assert features.windows.tolist() == [
        [0, 4, 0, 2],  # nothing on the left: all on the right
        [1, 5, 2, 4],
        [1, 5, 4, 5],  # the document ends behind it
        [5, 9, 5, 8],
        [6, 10, 8, 10],
    ]
    assert [label for label in shown(features, 1)[1] if label >= 0] == [0, 0]
    # No part of a word is shown.
    wide = [sentence("abc d"), sentence("e"), sentence("f ghi")]
    features = featurize(wide, LABELS, tokenizer, 7, document_context=True)
    assert features.windows.tolist()[1] == [1, 4, 2, 3]


@settings(deadline=None, max_examples=150)
@given(
    sizes=st.lists(
        st.tuples(st.lists(st.integers(0, 9), min_size=1, max_size=20), st.booleans()),
        min_size=1,
        max_size=6,
    ),
    room=st.integers(1, 20),
    document_context=st.booleans(),
)
def test_each_word_is_predicted_once(sizes, room, document_context):
    tokenizer = make_tokenizer()
    sentences, document, number = [], 0, 0
    for words, new_document in sizes:
        document += new_document
        words = ["abcdefghij"[:size] or "\u200b" for size in words]
        tags = [f"B-{number + place}" for place in range(len(words))]
        number += len(words)
        sentences.append(Sentence("t", words, tags, list(range(len(words))), document))
    labels = [f"B-{place}" for place in range(number)]
    features = featurize(sentences, labels, tokenizer, room + 2, document_context)
    length = room + 2
    assert features.lengths.max() <= length
    batch = features.dense(np.arange(len(features)), length)
    counted = batch["label_ids"][batch["label_ids"] >= 0]
    assert counted.tolist() == list(range(number))
    # A model that answers with the label itself: every word gets its own.
    assert features.gather(batch["label_ids"]).tolist() == list(range(number))
    assert features.gather(batch["label_ids"][..., None]).shape == (number, 1)
    parts = features.by_sentence(np.arange(number))
    assert [len(part) for part in parts] == [len(one.words) for one in sentences]
    # And stands before its own pieces.
    firsts = features.gather(batch["input_ids"])
    expected = [tokenizer.encode(word) or [UNK] for one in sentences for word in one.words]
    assert firsts.tolist() == [ids[0] for ids in expected]
    # Counted where it has most context, among the windows of its sentence.
    starts = features.word_starts
    bounds = features.sentence_starts
    for first, end, counted, counted_end in features.windows.tolist():
        assert counted < counted_end
        own = np.searchsorted(bounds, counted, "right") - 1
        if not document_context:
            assert bounds[own] <= first <= end <= bounds[own + 1]
        documents = {
            sentences[np.searchsorted(bounds, word, "right") - 1].document
            for word in range(first, end)
        }
        assert documents == {sentences[own].document}
        if starts[bounds[own + 1]] - starts[bounds[own]] <= room:
            assert (counted, counted_end) == (bounds[own], bounds[own + 1])
            continue
        others = [w for w in features.windows.tolist() if bounds[own] <= w[2] < bounds[own + 1]]
        for word in range(counted, counted_end):
            context = [
                min(starts[word] - starts[w[0]], starts[w[1]] - starts[word + 1])
                for w in others
                if w[0] <= word < w[1]
            ]
            assert min(starts[word] - starts[first], starts[end] - starts[word + 1]) == max(context)


# The task.


@pytest.fixture
def folder(tmp_path):
    def write_files(**files):
        for name, text in files.items():
            (tmp_path / f"{name}.txt").write_text(text)
        return str(tmp_path)

    return write_files


def test_task(folder):
    data_dir = folder(
        train="a S-LOC\nb O\n\nc B-PER\nd E-PER\n", dev="a S-PER\nb S-LOC\n", test="a\n\nb\n"
    )
    task = NerTask(data_dir)
    assert task.labels == ("O", "B-LOC", "I-LOC", "B-PER", "I-PER")
    assert task.num_outputs == 5
    assert task.scheme == "BIOES"
    assert task.sets(data_dir, "eval") == ["dev"]
    assert task.read_examples(data_dir, "dev")[0].tags == ["B-PER", "B-LOC"]
    assert task.read_examples(data_dir, "test")[1].words == ["b"]
    # Elsewhere, with what was found here.
    assert NerTask(labels=task.labels, scheme=task.scheme).labels == task.labels


def test_other_file_names(folder, tmp_path):
    data_dir = folder(mine="a B-X\n", valid="a O\n")
    task = NerTask(data_dir, train_file="mine.txt")
    assert task.read_examples(data_dir, "dev")[0].words == ["a"]
    with pytest.raises(FileNotFoundError, match=r"test\.txt does not exist.*mine\.txt \(training"):
        task.read_examples(data_dir, "test")


def test_one_file_with_and_without_its_tags(folder):
    task = NerTask(data_dir := folder(train="a B-X\n", dev="b O\n"), test_file="dev.txt")
    assert task.read_examples(data_dir, "dev")[0].tags == ["O"]
    assert task.read_examples(data_dir, "test")[0].tags is None


def test_a_type_that_is_not_in_training(folder):
    data_dir = folder(train="a B-X\n", dev="a O\nb O\n\nc I-Y\n", test="a ?\n")
    task = NerTask(data_dir)
    with pytest.raises(ValueError, match=r"dev\.txt, line 4: .* tag 'B-Y' .* are O, B-X, I-X"):
        task.read_examples(data_dir, "dev")


def test_training_files_without_entities(folder):
    with pytest.raises(ValueError, match=r"train\.txt has no entity: column -1 is O in every line"):
        NerTask(folder(train="a O\nb O\n"))


@pytest.mark.parametrize("labels", [[], ["O"], ["B-X", "I-X"], ["O", "X"], ["O", "S-X"], ["O"] * 2])
def test_labels_that_are_none(labels):
    with pytest.raises(ValueError, match="labels of NER are O first"):
        NerTask(labels=labels)
    with pytest.raises(ValueError, match="needs either data_dir or the list of labels"):
        NerTask()


def test_scores(tokenizer):
    task = NerTask(labels=["O", "B-A", "I-A", "B-B", "I-B"])
    sentences = [
        sentence("a b c", tags=["B-A", "I-A", "O"]),
        sentence("d e", tags=["O", "B-B"]),
    ]
    features = featurize(sentences, task.labels, tokenizer, 16)
    predicted = np.array([1, 2, 0, 0, 4])  # I-B alone
    found = task.scores(features, predicted)
    assert tuple(found) == task.metric_names
    assert found == pytest.approx(
        {
            "precision": 1.0,
            "recall": 1.0,
            "f1": 1.0,
            "strict_precision": 1.0,
            "strict_recall": 0.5,
            "strict_f1": 2 / 3,
            "accuracy": 0.8,
        }
    )
    assert task.table(features, predicted, "strict") == {
        "A": {"precision": 1.0, "recall": 1.0, "f1": 1.0, "support": 1},
        "B": {"precision": 0.0, "recall": 0.0, "f1": 0.0, "support": 1},
    }
    assert task.tags(features, predicted) == [["B-A", "I-A", "O"], ["O", "I-B"]]
    # An entity ends with its sentence: the second one's I does not continue it.
    apart = [sentence("a", tags=["B-A"]), sentence("b", tags=["I-A"])]
    features = featurize(apart, task.labels, tokenizer, 16)
    assert task.table(features, np.array([1, 2]))["A"]["support"] == 2
    assert ner.IGNORED == -1


@pytest.mark.parametrize(
    ("test", "labelled"),
    [
        ("a\tB-X\n", True),
        ("-DOCSTART-\tO\n\na\tO\nb\tI-X\n", True),
        ("a\tO\n", False),  # As where tags are not given out.
        ("a\n", False),
        (None, False),
    ],
)
def test_a_test_file_with_tags_is_evaluated(folder, test, labelled):
    files = {"train": "a\tB-X\n", "dev": "a\tO\n"}
    if test is not None:
        files["test"] = test
    task = NerTask(data_dir := folder(**files))
    task.evaluate_test(data_dir)
    assert task.sets(data_dir, "eval") == (["dev", "test"] if labelled else ["dev"])
    assert task.sets(data_dir, "predict") == ["test"]
    assert task.has_labels("test") == labelled
    if labelled:
        assert task.read(data_dir, "test").sentences[-1].tags[-1] in ("B-X", "I-X")


def test_by_name(folder):
    data_dir = folder(train="B-X x a\n")
    task = get_task("ner", data_dir, word_column=2, tag_column=0)
    assert task.read(data_dir, "train").sentences[0].words == ["a"]
    assert task.columns == (2, 0)
    with pytest.raises(ValueError, match="NER has no option text_a_column"):
        get_task("NER", data_dir, text_a_column=0)
