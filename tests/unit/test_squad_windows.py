"""SQuAD examples to windows: the original's features, what a batch holds, character level."""

import json
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from squad_plain import GOLDEN, golden_lines, golden_tokenizer

from bert_tf.tokenization import BertTokenizer
from data_prep.squad import reading, windows
from data_prep.squad.reading import Context, Example, Report
from data_prep.squad.windows import WindowMaker

TOKENIZER = golden_tokenizer()
WORDS = "a b c d e ##x ! 北 京 大 学 是 的 ㄅ か ##な は 한 ##ᄀ".split()
SMALL = BertTokenizer.from_vocab(
    {token: i for i, token in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *WORDS])}
)


def example(text: str, question: str = "a b", **fields) -> Example:
    return Example("q", question, Context(text, fields.pop("character_level", False)), **fields)


def tokens(window) -> list[str]:
    return SMALL.convert_ids_to_tokens(window.input_ids.tolist())


@pytest.mark.parametrize("mode", ["train", "infer"])
@pytest.mark.parametrize("lengths", [(384, 128, 64), (64, 16, 12)])
@pytest.mark.parametrize("version", ["v1", "v2"])
def test_features_are_the_originals(version, lengths, mode):
    examples = reading.read_examples(
        str(GOLDEN / f"own_{version}.json"), mode == "train", version == "v2"
    )
    report = Report()
    made = windows.make_windows(examples, TOKENIZER, *lengths, mode == "train", report)
    ours = [{"qas_id": w.qas_id, **windows.original_fields(w, TOKENIZER, lengths[0])} for w in made]
    name = "features_{}_s{}_d{}_q{}_{}.jsonl".format(version, *lengths, mode)
    expected = golden_lines(name)
    assert len(ours) == len(expected) == report.windows
    for window, feature in zip(ours, expected):
        assert json.loads(json.dumps(window)) == feature


def test_features_in_the_shuffled_order_of_training():
    # Shuffling parts the questions of a context; their windows must not change.
    path = str(GOLDEN / "own_v1.json")
    examples = list(reading.read_examples(path, True))
    order = list(range(len(examples)))
    random.Random(12345).shuffle(order)
    info = json.loads((GOLDEN / "info.json").read_text())["v1"]
    shuffled = [examples[i] for i in order]
    assert [e.qas_id for e in shuffled] == info["train_order_after_the_shuffle_with_seed_12345"]
    by_question: dict[str, list] = {}
    for feature in golden_lines("features_v1_s64_d16_q12_train.jsonl"):
        by_question.setdefault(feature["qas_id"], []).append(feature)
    next_id = windows.FIRST_UNIQUE_ID
    make = WindowMaker(TOKENIZER, 64, 16, 12, is_training=True)
    for number, (each, its) in enumerate(windows.windows_by_example(shuffled, make)):
        for window, feature in zip(its, by_question[each.qas_id], strict=True):
            ours = windows.original_fields(window, TOKENIZER, 64)
            assert (ours["unique_id"], ours["example_index"]) == (next_id, number)
            next_id += 1
            for key in ("tokens", "input_ids", "start_position", "end_position"):
                assert ours[key] == feature[key]


def test_a_word_without_tokens_as_answer():
    [case] = [c for c in golden_lines("edge_cases.jsonl") if "without_tokens" in c["name"]]
    context = case["input"]["data"][0]["paragraphs"][0]["context"]
    [feature] = case["result"]
    one = Example("c1", "Where was the kite?", Context(context), "\u200b", 1, 1)
    [window] = windows.make_windows([one], TOKENIZER, 24, 16, 12, is_training=True)
    ours = {"qas_id": "c1", **windows.original_fields(window, TOKENIZER, 24)}
    assert json.loads(json.dumps(ours)) == feature


def test_windows_of_a_long_context():
    report = Report()
    make = WindowMaker(SMALL, 12, 3, 4, report=report)
    its = make(example("a b c d e a b c d e", "a b c d e"))
    # Room: 12 - 4 - 3 = 5 tokens; windows begin at 0, 3 and 5, not at 6: ten tokens end there.
    assert [(w.doc_start, w.doc_length) for w in its] == [(0, 5), (3, 5), (6, 4)]
    assert tokens(its[1]) == "[CLS] a b c d [SEP] d e a b c [SEP]".split()
    assert [w.doc_span_index for w in its] == [0, 1, 2]
    assert [w.unique_id - windows.FIRST_UNIQUE_ID for w in its] == [0, 1, 2]
    assert report.truncated_questions == ["q"]
    assert report.windows_per_question == {3: 1}
    assert report.gaps == 0


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 60), st.integers(1, 20), st.integers(1, 20))
def test_every_token_is_shown_and_has_its_best_context_in_one_window(size, room, stride):
    spans = windows._spans(size, room, stride)
    shown = [0] * size
    best = [0] * size
    for start, length, max_context in spans:
        assert 1 <= length <= room
        for at in range(length):
            shown[start + at] += 1
            best[start + at] += max_context is None or bool(max_context[at])
    assert min(shown) >= 1
    assert best == [1] * size


def test_windows_that_do_not_overlap_are_counted():
    report = Report()
    make = WindowMaker(SMALL, 12, 8, 4, report=report)  # room: 5
    make(example("a b c d e a b c d e", "a b c d"))
    make(example("a b c", "a b c d"))
    assert report.gaps == 1
    # However large the stride, as in the original: the next begins where one ends.
    for stride in (5, 6, 128):
        make = WindowMaker(SMALL, 12, stride, 4)
        found = make(example("a b c d e a b c d e", "a b c d"))
        assert [(each.doc_start, each.doc_length) for each in found] == [(0, 5), (5, 5)]
    assert any("do not overlap" in line for line in report.lines())


def test_a_context_is_tokenized_once_for_all_its_questions():
    context = Context("a b c")
    make = WindowMaker(SMALL, 16, 4, 4)
    [one] = make(Example("1", "a", context))
    [two] = make(Example("2", "b", context))
    assert one.doc is two.doc
    # Another maker may have another tokenizer.
    [three] = WindowMaker(SMALL, 16, 4, 4)(Example("3", "b", context))
    assert three.doc is not one.doc


@pytest.mark.parametrize("text", ["", " \n\t ", "\u200b"])
def test_a_context_without_tokens_has_no_windows(text):
    report = Report()
    assert WindowMaker(SMALL, report=report)(example(text)) == []
    assert report.windows_per_question == {0: 1}


def test_batch():
    make = WindowMaker(SMALL, 16, 4, 4, is_training=True)
    [short] = make(example("a b", "c", start_position=1, end_position=1, orig_answer_text="b"))
    [long] = make(example("a b c d", "c d", is_impossible=True))
    arrays = windows.batch([short, long])
    assert {name: array.dtype for name, array in arrays.items()} == dict.fromkeys(arrays, np.int32)
    ids = dict(zip(SMALL.vocab, range(30)))
    assert arrays["input_ids"][0].tolist() == [2, ids["c"], 3, ids["a"], ids["b"], 3, 0, 0, 0]
    assert arrays["input_mask"].tolist() == [[1] * 6 + [0] * 3, [1] * 9]
    assert arrays["segment_ids"].tolist() == [[0] * 3 + [1] * 3 + [0] * 3, [0] * 4 + [1] * 5]
    assert arrays["start_positions"].tolist() == [4, 0]
    assert arrays["end_positions"].tolist() == [4, 0]
    assert arrays["unique_ids"].tolist() == [short.unique_id, long.unique_id]
    assert windows.batch([short], 20)["input_ids"].shape == (1, 20)
    np.testing.assert_array_equal(short.segment_ids, arrays["segment_ids"][0, :6])
    with pytest.raises(ValueError, match="a window of 9 tokens does not fit into 8"):
        windows.batch([long], 8)
    [inference] = WindowMaker(SMALL, 16, 4, 4)(example("a b"))
    assert "start_positions" not in windows.batch([inference])


def test_training_without_answers():
    make = WindowMaker(SMALL, 16, 4, 4, is_training=True)
    with pytest.raises(ValueError, match=r"question 'q': training needs answers"):
        make(example("a b"))


@pytest.mark.parametrize(
    ("lengths", "message"),
    [
        ((20, 4, 17), r"max_seq_length=20 leaves no room .* max_query_length=17 .* than 17"),
        ((67, 16, 64), r"must be greater than 67, or max_query_length less than 64"),
        ((64, 0, 12), "doc_stride=0: it must be at least 1"),
        ((64, 16, 0), "max_query_length=0: it must be at least 1"),
    ],
)
def test_lengths_that_do_not_go_together(lengths, message):
    with pytest.raises(ValueError, match=message):
        WindowMaker(SMALL, *lengths)
    with pytest.raises(ValueError, match=message):
        windows.check_lengths(*lengths)


def chars(text: str, start: int, end: int) -> tuple[str, int, int]:
    """A training window's answer tokens at character level; start and end are characters."""
    make = WindowMaker(SMALL, 24, 8, 4, is_training=True)
    one = example(
        text, "a", character_level=True, orig_answer_text=text[start : end + 1],
        start_position=start, end_position=end,
    )  # fmt: skip
    [window] = make(one)
    shown = tokens(window)[window.start_position : window.end_position + 1]
    return " ".join(shown), window.start_position, window.end_position


def test_character_level():
    assert chars("北京大学是a!", 2, 3) == ("大 学", 5, 6)
    assert chars("北京  大学", 1, 4) == ("京 大", 4, 5)
    # Kana hang together: a token that has a part of the answer belongs to it.
    assert chars("かなは", 1, 1) == ("[UNK]", 3, 3)
    assert chars("かな", 1, 1) == ("##な", 4, 4)
    # An answer that the tokenizer drops is in no window.
    assert chars("北\u200b京", 1, 1)[1:] == (0, 0)


def test_character_level_keeps_the_place_of_each_token():
    [window] = WindowMaker(SMALL, 24, 8, 4)(example("か な\u200b 北ax!", "a", character_level=True))
    spans = zip(window.doc.first_words.tolist(), window.doc.last_words.tolist())
    text = "か な\u200b 北ax!"
    assert [text[first : last + 1] for first, last in spans] == ["か", "な", "北", "a", "x", "!"]
