import pytest
import tiny
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep.tasks import entities
from data_prep.tasks.entities import Entity, TagError

KINDS = st.sampled_from(["PER", "LOC", "creative-work", "_"])


@st.composite
def tagged(draw):
    """A sentence's valid IOB2 tags."""
    tags = []
    for _ in range(draw(st.integers(0, 6))):
        kind = draw(KINDS)
        size = draw(st.integers(0, 3))
        tags += [entities.join_tag("B" if i == 0 else "I", kind) for i in range(size)] or ["O"]
    return tags


@pytest.mark.parametrize("case", tiny.read_json("ner/seqeval.json"))
def test_scores_are_seqevals(case):
    # Made with seqeval 1.2.2: random tags, among them entities that begin with I.
    truth, predicted = ([one.split() for one in case[key]] for key in ("true", "predicted"))
    found = entities.score(truth, predicted, case["mode"])
    assert found.keys() == case["scores"].keys()
    for kind, expected in case["scores"].items():
        assert list(found[kind]) == pytest.approx(expected, abs=1e-12)


def test_the_golden_cases_tell_the_modes_apart():
    cases = tiny.read_json("ner/seqeval.json")
    by_mode = {
        mode: [case["scores"] for case in cases if case["mode"] == mode]
        for mode in ("conll", "strict")
    }
    assert len(by_mode["conll"]) == len(by_mode["strict"]) == 16
    assert by_mode["conll"] != by_mode["strict"]


def test_entities():
    tags = "O B-PER I-PER I-LOC I-LOC O I-PER B-PER B-PER I-PER".split()
    assert entities.entities(tags) == [
        ("PER", 1, 3),
        ("LOC", 3, 5),
        ("PER", 6, 7),
        ("PER", 7, 8),
        ("PER", 8, 10),
    ]
    assert entities.entities(tags, "strict") == [("PER", 1, 3), ("PER", 7, 8), ("PER", 8, 10)]
    assert entities.entities(["I", "I", "B", "O"]) == [Entity("_", 0, 2), Entity("_", 2, 3)]
    assert entities.entities([]) == []


def test_nothing_to_score():
    assert entities.score([["O"]], [["O"]]) == {"": (0.0, 0.0, 0.0, 0)}
    found = entities.score([["O", "O"]], [["B-X", "O"]])
    assert found == {"": (0.0, 0.0, 0.0, 0), "X": (0.0, 0.0, 0.0, 0)}


def test_sizes_must_agree():
    with pytest.raises(ValueError, match="There are 2 sentences, but predictions for 1"):
        entities.score([["O"], ["O"]], [["O"]])
    with pytest.raises(ValueError, match=r"Sentence 1 \(from 0\) has 2 tags, but 1 predictions"):
        entities.score([["O"], ["O", "O"]], [["O"], ["O"]])


@pytest.mark.parametrize(
    ("tag", "parts"),
    [
        ("O", ("O", "")),
        ("B-PER", ("B", "PER")),
        ("U-a-b", ("U", "a-b")),
        ("I", ("I", "_")),
        ("", None),
        ("NN", None),
        ("B-", None),
        ("b-PER", None),
        ("BPER", None),
        ("O-PER", None),
        ("PER-B", None),
        ("B_PER", None),
    ],
)
def test_split_tag(tag, parts):
    assert entities.split_tag(tag) == parts


@pytest.mark.parametrize(
    ("scheme", "tags"),
    [
        ("IOB1", "I-PER I-PER B-PER O I-LOC I-PER"),
        ("IOB2", "B-PER I-PER B-PER O B-LOC B-PER"),
        ("BIOES", "B-PER E-PER S-PER O S-LOC S-PER"),
        ("BILOU", "B-PER L-PER U-PER O U-LOC U-PER"),
    ],
)
def test_schemes(scheme, tags):
    iob2 = "B-PER I-PER B-PER O B-LOC B-PER".split()
    assert entities.find_scheme([["O"], tags.split()]) == (scheme, [])
    assert entities.to_iob2(tags.split(), scheme) == iob2
    assert entities.from_iob2(iob2, scheme) == tags.split()


@settings(deadline=None, max_examples=200)
@given(sentences=st.lists(tagged(), min_size=1, max_size=4), data=st.data())
def test_each_scheme_there_and_back(sentences, data):
    scheme = data.draw(st.sampled_from(entities.SCHEMES))
    written = [entities.from_iob2(tags, scheme) for tags in sentences]
    found = entities.find_scheme(written)
    assert not found.strays

    if any(set(tags) - {"O"} for tags in sentences):
        assert found.name == scheme
    assert [entities.to_iob2(tags, found.name) for tags in written] == sentences


def test_no_entities_tell_no_scheme():
    assert entities.find_scheme([["O"], []]) == (None, [])
    assert entities.to_iob2(["O", "O"], None) == ["O", "O"]
    assert entities.from_iob2(["B-X", "O"], None) == ["B-X", "O"]


def test_strays_are_read_as_beginnings():
    sentences = [["B-A", "O", "B-B"], ["O", "I-A", "I-A"]]
    assert entities.find_scheme(sentences) == ("IOB2", [(1, 1)])
    assert entities.to_iob2(sentences[1], "IOB2") == ["O", "B-A", "I-A"]
    assert entities.find_scheme([["I-A", "O", "I-B"], ["B-A"]]) == ("IOB1", [(1, 0)])


def test_predictions_without_a_beginning():
    predicted = ["I-A", "I-A", "O", "I-B"]
    assert entities.from_iob2(predicted, "IOB2") == predicted
    assert entities.from_iob2(predicted, "BIOES") == ["B-A", "E-A", "O", "S-B"]
    assert entities.from_iob2(predicted, "IOB1") == predicted


@pytest.mark.parametrize(
    ("tags", "place", "message"),
    [
        ("O NN O", 1, "'NN' is not a tag; a tag is O, or"),
        ("B-A E-A O U-A", 3, "'U-A' is of the scheme BILOU, but there are tags of BIOES before"),
        ("U-A E-A", 1, "'E-A' is of the scheme BIOES, but there are tags of BILOU before"),
        ("S-A O I-A", 2, "the tag 'I-A' cannot follow 'O' in the scheme BIOES"),
        ("E-A", 0, "the tag 'E-A' cannot follow the beginning of the sentence in the scheme BIOES"),
        ("S-A B-A", 1, "the end of the sentence cannot follow 'B-A' in the scheme BIOES"),
        ("U-A B-A O", 2, "the tag 'O' cannot follow 'B-A' in the scheme BILOU"),
        ("B-A L-B", 1, "the tag 'L-B' cannot follow 'B-A' in the scheme BILOU"),
        ("B-A S-A", 1, "the tag 'S-A' cannot follow 'B-A' in the scheme BIOES"),
    ],
)
def test_tags_that_cannot_be(tags, place, message):
    with pytest.raises(TagError, match=message) as caught:
        entities.find_scheme([["O"], tags.split()])
    assert (caught.value.sentence, caught.value.token) == (1, place)
