"""Logits to answers: the original's files, a plain decoder beside ours, odd and wrong input."""

import json

import numpy as np
import pytest
import squad_plain
from hypothesis import given, settings
from hypothesis import strategies as st
from squad_plain import GOLDEN, golden_bytes, golden_lines, golden_tokenizer

from bert_tf.tokenization import BertTokenizer
from bert_tf.tokenization.wordpiece import BasicTokenizer
from data_prep.squad import answers, prediction_files, reading, windows
from data_prep.squad.answers import Decoder, average_logits, best_answers
from data_prep.squad.reading import Context, Example
from data_prep.squad.windows import WindowMaker

TOKENIZER = golden_tokenizer()
KEEPING = BertTokenizer.from_vocab(TOKENIZER.vocab, never_split=["[MASK]"])
KITE = "A blue kite hung in the elm."


def one_question(text: str = KITE, question: str = "Where was the kite?", **options):
    example = Example("c1", question, Context(text, options.pop("character_level", False)))
    return example, WindowMaker(TOKENIZER, 64, 16, 12)(example)


def filled(its, value: float = 0.0, first: float | None = None) -> list[list[float]]:
    """The same logits everywhere, in padding too; `first` at position 0."""
    rows = [[value] * 64 for _ in its]
    for row in rows:
        row[0] = value if first is None else first
    return rows


# name of the folder, version, lengths, threshold
RUNS = [
    (f"predictions_{version}_{name}{end}", version, lengths, threshold)
    for name, lengths in {"s384_d128_q64": (384, 128, 64), "s64_d16_q12": (64, 16, 12)}.items()
    for version, end, threshold in [("v1", "", 0.0), ("v2", "_t0", 0.0), ("v2", "_tm1.5", -1.5)]
]


@pytest.mark.parametrize(("folder", "version", "lengths", "threshold"), RUNS)
def test_files_are_the_originals_byte_for_byte(tmp_path, folder, version, lengths, threshold):
    version_2 = version == "v2"
    rows = golden_lines("logits_{}_s{}_d{}_q{}.jsonl".format(version, *lengths))
    logits = {row["unique_id"]: row for row in rows}
    data = GOLDEN / ("own_v2_predict.json" if version_2 else "own_v1.json")
    examples = reading.read_examples(str(data), False, version_2)
    make = WindowMaker(TOKENIZER, *lengths)
    scored = (
        (
            example,
            its,
            [logits[window.unique_id]["start_logits"] for window in its],
            [logits[window.unique_id]["end_logits"] for window in its],
        )
        for example, its in windows.windows_by_example(examples, make)
    )
    decoder = Decoder(TOKENIZER, 20, 30, version_2, threshold)
    files = ["predictions.json", "nbest_predictions.json"]
    if version_2:
        files.append("null_odds.json")
    places = [str(tmp_path / file) for file in files]
    written = prediction_files.write_predictions(decoder(scored), *places)
    for file in files:
        assert (tmp_path / file).read_bytes() == golden_bytes(f"{folder}/{file}"), file
    assert written.texts == json.loads(golden_bytes(f"{folder}/predictions.json"))
    if version_2:
        # The threshold can be applied afterwards as well.
        again = prediction_files.apply_threshold(written.best_texts, written.null_odds, threshold)
        prediction_files.write_by_id(str(tmp_path / "again.json"), again)
        assert (tmp_path / "again.json").read_bytes() == golden_bytes(f"{folder}/predictions.json")


@pytest.mark.parametrize("align", [answers.align, squad_plain.align])
def test_texts_are_aligned_as_by_the_original(align):
    for case in golden_lines("final_text.jsonl"):
        basic = BasicTokenizer(case["do_lower_case"])
        assert align(case["pred_text"], case["orig_text"], basic) == case["result"], case


PREDICTION_CASES = [
    case
    for case in golden_lines("edge_cases.jsonl")
    if case["call"].startswith("write predictions") and "result_missing" not in case["name"]
]


@pytest.mark.parametrize("case", PREDICTION_CASES, ids=[case["name"] for case in PREDICTION_CASES])
def test_edge_cases(case):
    call = case["call"]
    paragraph = case["input"]["data"][0]["paragraphs"][0]
    example, its = one_question(paragraph["context"])
    version_2 = "v2" in call
    starts = filled(its, 0.0, 9.0 if "9.0 at position 0" in call else None)
    if "5.0 for each padding" in call:
        starts = [[0.0] * window.length + [5.0] * (64 - window.length) for window in its]
    n_best = next((n for n in (1, 2, 3) if f"n_best {n}," in call or f"n_best {n};" in call), 20)
    longest = 2 if "max_answer_length 2;" in call else 30
    ours = best_answers(example, its, starts, starts, TOKENIZER, n_best, longest, version_2)
    if "result" in case:
        assert ours.text == case["result"]["predictions"]["c1"]
        nbest = [entry._asdict() for entry in ours.nbest]
        assert nbest == case["result"]["nbest_predictions"]["c1"]
        return
    assert version_2
    assert json.loads(prediction_files._nbest_json(ours.nbest)) == [e._asdict() for e in ours.nbest]
    assert sum(entry.probability for entry in ours.nbest) == pytest.approx(1)
    if not its:
        assert (ours.text, ours.best_text, ours.null_odds) == ("", "", answers.NO_WINDOW_NULL_ODDS)
        assert [entry.text for entry in ours.nbest] == [""]
    else:
        # No span was among the best positions: the best of all stands in.
        assert ours.best_text == "A"
        assert ours.null_odds == (18.0 if "9.0 at position 0" in call else 0.0)
        assert ours.text == ("" if ours.null_odds > 0 else "A")
        assert [entry.text for entry in ours.nbest] == ["", "A"]


def test_every_prediction_case_was_taken():
    names = [case["name"] for case in PREDICTION_CASES]
    assert len(names) >= 9
    assert sum("exception" in case for case in PREDICTION_CASES) == 4


@pytest.mark.parametrize(
    ("starts", "message"),
    [
        ([], r"question 'c1': 1 windows, but start logits of 0"),
        ([[0.0] * 5], r"question 'c1', window 0: start logits of shape \(5,\) for 16 tokens"),
        ([[float("nan")] * 64], r"question 'c1', window 0: a start logit is not finite"),
        ([[0.0] * 63 + [float("inf")]], r"a start logit is not finite"),
        ([[[0.0] * 64]], r"shape \(1, 64\)"),
    ],
)
def test_logits_that_do_not_fit(starts, message):
    example, its = one_question()
    with pytest.raises(ValueError, match=message):
        best_answers(example, its, starts, filled(its), TOKENIZER)
    with pytest.raises(ValueError, match=message.replace("start", "end")):
        best_answers(example, its, filled(its), starts, TOKENIZER)


@pytest.mark.parametrize("name", ["n_best_size", "max_answer_length"])
def test_settings_below_one(name):
    with pytest.raises(ValueError, match=f"{name}=0: it must be at least 1"):
        Decoder(TOKENIZER, **{name: 0})


# Words of the goldens, whole and odd ones: accents, blanks that are none, dropped characters,
# punctuation, unknown ones.
PARTS = st.sampled_from(
    "the The Grey Heron, heron's (1902–1911) $1,234 CAFÉ Zürau e\u0301te 48\u00a0km \u200b "
    "Zero\u200bwidth 한국어 望月桥 a aa a.a.a. ferries, #a ##a x##a İrlem 3/B, “Old İ😀 ... [UNK] "
    "[MASK] (x[MASK]) unk other her herring Straße".split(" ")
)
CONTEXTS = st.lists(PARTS, min_size=1, max_size=14).map(" ".join)


@settings(deadline=None, max_examples=150)
@given(
    texts=st.lists(CONTEXTS, min_size=1, max_size=3),
    seed=st.integers(0, 2**31),
    steps=st.sampled_from([1, 2, 100]),
    n_best=st.integers(1, 25),
    longest=st.integers(1, 12),
    version_2=st.booleans(),
    dtype=st.sampled_from([np.float32, np.float64]),
    tokenizer=st.sampled_from([TOKENIZER, KEEPING]),
)
def test_a_plain_decoder_says_the_same(
    texts, seed, steps, n_best, longest, version_2, dtype, tokenizer
):
    rng = np.random.RandomState(seed)
    make = WindowMaker(tokenizer, 24, 4, 4)
    scored = []
    for number, text in enumerate(texts):
        example = Example(str(number), "the the", Context(text))
        its = make(example)
        # Few different values: many ties. Rows of different lengths, padded or not.
        lengths = [window.length + rng.randint(0, 9) for window in its]
        rows = [
            [(rng.randint(-3 * steps, 3 * steps + 1, n) / steps).astype(dtype) for n in lengths]
            for _ in range(2)
        ]
        scored.append((example, its, *rows))
    decoder = Decoder(tokenizer, n_best, longest, version_2, 0.5)
    basic = BasicTokenizer()
    for (example, its, starts, ends), (same, ours) in zip(scored, decoder(scored), strict=True):
        assert same is example
        if not its:
            assert ours.text == ("" if version_2 else "empty")
            continue
        features = [windows.original_fields(window, tokenizer, 24) for window in its]
        starts, ends = ([row.astype(float).tolist() for row in rows] for rows in (starts, ends))
        text, nbest, odds = squad_plain.decode(
            example, features, starts, ends, basic, n_best, longest, version_2, 0.5
        )
        if text is None:
            # Ours adds the best of all spans.
            assert [entry.text for entry in ours.nbest[:-1]] == [entry[0] for entry in nbest]
            assert ours.best_text == ours.nbest[-1].text != ""
        else:
            assert [tuple(entry) for entry in ours.nbest] == nbest
            assert (ours.text, ours.null_odds) == (text, odds)


def test_the_best_of_all_spans_where_none_is_among_the_best_positions():
    example, its = one_question("one two three four five six seven eight nine ten " * 8)
    assert len(its) > 1
    rng = np.random.RandomState(1)
    starts = [rng.randn(64) for _ in its]
    ends = [rng.randn(64) for _ in its]
    for row in (*starts, *ends):
        row[:3] += 50  # [CLS] and the question
    ours = best_answers(example, its, starts, ends, TOKENIZER, 3, 4, True)
    sums = []
    for window, start, end in zip(its, starts, ends):
        fields = windows.original_fields(window, TOKENIZER, 64)
        sums += [
            start[i] + end[j]
            for i, is_max in fields["token_is_max_context"].items()
            for j in fields["token_to_orig_map"]
            if is_max and i <= j < i + 4
        ]
    entry = ours.nbest[-1]
    assert entry.start_logit + entry.end_logit == max(sums)
    assert entry.text == ours.best_text != ""


def test_decoding_streams():
    taken = []

    def endless():
        for number in range(10**9):
            taken.append(number)
            example, its = one_question()
            yield example, its, filled(its), filled(its)

    predictions = Decoder(TOKENIZER)(endless())
    next(predictions)
    assert len(taken) <= 200


def test_a_blank_context_among_others():
    blank, none = one_question(" ")
    example, its = one_question()
    for version_2, text in [(True, ""), (False, "empty")]:
        decoder = Decoder(TOKENIZER, version_2_with_negative=version_2)
        starts = filled(its, 0.0, -5.0)
        scored = [(blank, none, [], []), (example, its, starts, starts), (blank, none, [], [])]
        assert [prediction.text for _, prediction in decoder(scored)] == [text, "A", text]
        assert [p.text for _, p in decoder([(blank, none, [], [])])] == [text]


def test_answers_at_character_level():
    text = "青石镇位于两条河的交汇处,镇上最古老的桥建于1624年,桥身长85米"
    example, its = one_question(text, "桥", character_level=True)
    [window] = its
    start, end = np.zeros(64), np.zeros(64)
    ids = window.doc.first_words.tolist()
    start[window.doc_offset + ids.index(text.index("1624"))] = 5
    end[window.doc_offset + ids.index(text.index("年"))] = 5
    assert best_answers(example, its, [start], [end], TOKENIZER).text == "1624年"
    end[window.doc_offset + ids.index(text.index("最"))] = 0
    start[:] = 0
    start[window.doc_offset + ids.index(text.index("5米") - 1)] = 5
    end[window.doc_offset + ids.index(text.index("米"))] = 9
    assert best_answers(example, its, [start], [end], TOKENIZER).text == "85米"


def test_equal_logits_keep_their_order():
    logits = np.array([[1.0, 2, 2, 1, 2, 0], [5.0, 4, 3, 2, 1, 0]])
    assert answers._best_positions(logits, 2).tolist() == [[1, 2], [0, 1]]
    assert answers._best_positions(logits, 4).tolist() == [[1, 2, 4, 0], [0, 1, 2, 3]]
    assert answers._best_positions(logits, 9).tolist() == [
        [1, 2, 4, 0, 3, 5],
        [0, 1, 2, 3, 4, 5],
    ]


@settings(deadline=None, max_examples=50)
@given(st.integers(0, 2**31), st.integers(1, 30), st.integers(1, 25), st.integers(1, 5))
def test_best_positions(seed, width, n_best, values):
    rows = np.random.RandomState(seed).randint(0, values, (4, width)).astype(float)
    expected = [squad_plain.highest(row.tolist(), n_best) for row in rows]
    assert answers._best_positions(rows, n_best).tolist() == expected


def test_average_of_models():
    a = np.log([0.5, 0.25, 0.25])
    b = np.log([0.1, 0.8, 0.1])
    merged = average_logits([a, b])
    np.testing.assert_allclose(np.exp(merged), [0.3, 0.525, 0.175])
    # A model's level counts, but does not weigh.
    np.testing.assert_allclose(average_logits([a + 3, b - 1]), merged + 1)
    # One model keeps its logits, and so do several that agree.
    row = np.array([3.5, -2.0, 80.0, 1000.0])
    np.testing.assert_array_equal(average_logits([row]), row)
    np.testing.assert_allclose(average_logits([row, row, row]), row)


def test_average_of_padded_windows():
    rng = np.random.RandomState(0)
    a, b = rng.randn(2, 3, 6)
    lengths = [6, 4, 2]
    merged = average_logits([a, b], lengths)
    for row, length in enumerate(lengths):
        alone = average_logits([a[row, :length], b[row, :length]])
        np.testing.assert_allclose(merged[row, :length], alone)
    assert np.isfinite(merged).all()


def test_average_of_what_does_not_go_together():
    with pytest.raises(ValueError, match=r"shapes \[\(3,\), \(4,\)\]"):
        average_logits([np.zeros(3), np.zeros(4)])
    with pytest.raises(ValueError, match="no model's logits"):
        average_logits([])


def test_an_ensemble_answers_what_its_models_agree_on():
    example, its = one_question()
    [window] = its
    at = window.doc_offset
    rows = np.zeros((2, 2, 64))  # model, start or end
    rows[0, :, at], rows[0, :, at + 2] = 4.0, 3.5  # "A", then "kite"
    rows[1, :, at + 1], rows[1, :, at + 2] = 4.0, 3.5  # "blue", then "kite"
    start, end = average_logits(rows[:, 0]), average_logits(rows[:, 1])
    assert best_answers(example, its, [start], [end], TOKENIZER).text == "kite"


def test_files_of_no_questions(tmp_path):
    files = [tmp_path / name for name in ("p", "n", "o")]
    prediction_files.write_predictions(iter([]), *map(str, files))
    assert [file.read_text() for file in files] == ["{}\n"] * 3


def test_nothing_is_written_if_decoding_fails(tmp_path):
    example, its = one_question()
    bad = Decoder(TOKENIZER)([(example, its, [], [])])
    with pytest.raises(ValueError, match="1 windows"):
        prediction_files.write_predictions(bad, str(tmp_path / "p"), str(tmp_path / "n"))
    assert list(tmp_path.iterdir()) == []


@settings(deadline=None, max_examples=50)
@given(
    st.dictionaries(
        st.text(max_size=5),
        st.lists(st.tuples(st.text(), *[st.floats(allow_nan=False, allow_infinity=False)] * 3),
                 min_size=1, max_size=3),
        max_size=3,
    )
)  # fmt: skip
def test_json_is_what_the_json_module_writes(tmp_path_factory, entries):
    folder = tmp_path_factory.mktemp("json")
    predictions = [
        (
            Example(name, "q", Context("a")),
            answers.Prediction("", "", 0.5, [answers.NBestAnswer(*each) for each in nbest]),
        )
        for name, nbest in entries.items()
    ]
    prediction_files.write_predictions(iter(predictions), str(folder / "p"), str(folder / "n"))
    expected = {
        name: [answers.NBestAnswer(*each)._asdict() for each in nbest]
        for name, nbest in entries.items()
    }
    assert (folder / "n").read_text() == json.dumps(expected, indent=4) + "\n"
    assert (folder / "p").read_text() == json.dumps(dict.fromkeys(entries, ""), indent=4) + "\n"
