"""Where answers are in their context: QuestionAnswerer's start and end."""

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
from predictor_folders import write_folder

from bert_tf.predictor import QuestionAnswerer
from data_prep.squad.reading import Context

QUESTION = "who was good ?"
ODD = [
    "max was good.\n\nkim  was\tbad , max said .",
    "Zoë's (3.50) \u00a0cups — naïve, “Kim”! \u202f Max\u202fwas x",
    "max-max Max-MAX,max (max)max",
    "船書他 good\u200bbad e\u0301e\u0301 \ud800 İstanbul ﬁx ß",
    "[MASK] [SEP] a[CLS]b ##a !!!",
    "a" * 210 + " good " + "x9" * 30,
]


@pytest.fixture(scope="module")
def answerers(tmp_path_factory):
    top = tmp_path_factory.mktemp("places")
    v2 = {"version_2_with_negative": True, "null_score_diff_threshold": -0.5}
    return {
        "words": QuestionAnswerer(write_folder(top / "words", "question_answering")),
        "v2": QuestionAnswerer(write_folder(top / "v2", "question_answering", v2, seed=4)),
        "characters": QuestionAnswerer(
            write_folder(top / "characters", "question_answering", {"character_level": True})
        ),
    }


def check(answerer, contexts):
    """Each text is what stands at its place, but for blanks between words."""
    found = answerer.answer([(QUESTION, context) for context in contexts])
    count = 0
    for context, result in zip(contexts, found, strict=True):
        for entry in [{"text": result["answer"], **result}, *result["nbest"]]:
            start, end = entry["start"], entry["end"]
            if start is None:
                assert end is None
                # SQuAD 1.1 says "empty" where there are no tokens.
                assert entry["text"] == "" or (entry["text"], len(result["nbest"])) == ("empty", 1)
                continue
            assert 0 <= start < end <= len(context)
            source = context[start:end]
            if not answerer.settings["character_level"]:
                source = " ".join(Context(source).words)
            assert source == entry["text"]
            count += 1
    return count


@pytest.mark.parametrize("kind", ["words", "v2", "characters"])
def test_places_in_odd_texts(kind, answerers):
    assert check(answerers[kind], ODD) > 50
    assert check(answerers[kind], ["", " \n", "\u200b"]) == 0


TEXTS = st.lists(
    st.sampled_from(
        ["max", "Max", "good", " ", "  ", "\n", "\t", "-", ".", "é", "e\u0301", "\u200b", "船"]
        + ["(", "'s", "\u00a0", "\u202f", "ß", "İ", "x9", "[UNK]", "\ud800", "ﬁ", "\x00", "½"]
    ),
    max_size=40,
).map("".join)


@hypothesis.settings(deadline=None, max_examples=60)
@hypothesis.given(context=TEXTS)
def test_places_in_any_text(context, answerers):
    for answerer in answerers.values():
        check(answerer, [context])


def test_the_place_is_the_spans_own(answerers):
    """Of a word that comes again, the one whose logits the answer has."""
    answerer = answerers["words"]
    words = ["max", "good", "kim"] * 5
    context = " ".join(words)
    [result] = answerer.answer([(QUESTION, context)])
    ids = answerer.tokenizer.convert_tokens_to_ids(
        ["[CLS]", *QUESTION.split(), "[SEP]", *words, "[SEP]"]
    )
    inputs = np.array([ids], np.int32)
    segments = (np.arange(len(ids)) > len(QUESTION.split()) + 1).astype(np.int32)[None]
    outputs = answerer.model({"input_ids": inputs, "segment_ids": segments})
    starts, ends = (outputs[f"{name}_logits"].numpy()[0] for name in ("start", "end"))
    before = len(QUESTION.split()) + 2
    places = set()
    for entry in result["nbest"]:
        first = len(context[: entry["start"]].split())
        last = len(context[: entry["end"]].split()) - 1
        assert starts[before + first] == pytest.approx(entry["start_logit"], abs=1e-5)
        assert ends[before + last] == pytest.approx(entry["end_logit"], abs=1e-5)
        places.add(first)
    assert len(places) > 3


def test_the_answer_has_the_place_of_its_entry(answerers):
    for answerer in answerers.values():
        for result in answerer.answer([(QUESTION, context) for context in ODD]):
            own = [e for e in result["nbest"] if e["text"] == result["answer"]]
            assert [(e["start"], e["end"]) for e in own] == [(result["start"], result["end"])]


def test_fewer_answers_than_the_best_needs(tmp_path):
    """Of two entries the first is no answer, and the second, which is not shown, the answer."""
    settings = {"version_2_with_negative": True, "null_score_diff_threshold": 100.0}
    folder = write_folder(tmp_path / "v2", "question_answering", settings, seed=2)
    asked = [(QUESTION, context) for context in ("max was good and kim", "bad kim", "good")]
    every = QuestionAnswerer(folder).answer(asked)
    first = QuestionAnswerer(folder, n_best_size=1).answer(asked)
    for (_, context), few, all_of_them in zip(asked, first, every, strict=True):
        assert few == all_of_them | {"nbest": all_of_them["nbest"][:1]}
        assert context[few["start"] : few["end"]] == few["answer"] != ""
    assert "" in [few["nbest"][0]["text"] for few in first]
