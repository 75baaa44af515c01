"""SQuAD files to examples: the original's, what it stops at, and what is wrong with a file."""

import json

import pytest
from squad_plain import GOLDEN, golden_lines

from data_prep.squad import reading
from data_prep.squad.reading import Context, Example, Report


def write(tmp_path, *questions, context="A blue kite hung in the elm.", **paragraph) -> str:
    paragraph = {"context": context, "qas": list(questions), **paragraph}
    path = tmp_path / "squad.json"
    path.write_text(json.dumps({"data": [{"title": "Kites", "paragraphs": [paragraph]}]}))
    return str(path)


def question(*answers: tuple[str, int], name="q1", **fields) -> dict:
    found = [{"text": text, "answer_start": start} for text, start in answers]
    return {"id": name, "question": "Where?", "answers": found, **fields}


def read(path: str, is_training=True, *args, **options) -> list[Example]:
    return list(reading.read_examples(path, is_training, *args, **options))


def fields(example: Example) -> dict:
    names = "qas_id question_text doc_tokens orig_answer_text start_position end_position"
    return {name: getattr(example, name) for name in [*names.split(), "is_impossible"]}


@pytest.mark.parametrize("mode", ["train", "infer"])
@pytest.mark.parametrize("version", ["v1", "v2"])
def test_examples_are_the_originals(version, mode):
    report = Report()
    path = str(GOLDEN / f"own_{version}.json")
    examples = read(path, mode == "train", version == "v2", report=report)
    assert [fields(each) for each in examples] == golden_lines(f"examples_{version}_{mode}.jsonl")
    info = json.loads((GOLDEN / "info.json").read_text())[version]
    assert report.questions == info["inference_examples"]
    assert report.examples == len(examples)
    skipped = info["skipped_in_training"] if mode == "train" else []
    assert list(report.unalignable) == skipped


READING_CASES = [
    case for case in golden_lines("edge_cases.jsonl") if case["call"].startswith("read examples, ")
]
# Where the original ends in an IndexError, the question is left out and counted.
COUNTED = {"train_answer_past_the_end", "train_empty_context"}


@pytest.mark.parametrize("case", READING_CASES, ids=[case["name"] for case in READING_CASES])
def test_edge_cases(tmp_path, case):
    path = tmp_path / "squad.json"
    path.write_text(json.dumps(case["input"]))
    call = case["call"]
    args = (str(path), "is_training=True" in call, "version_2_with_negative=True" in call)
    report = Report()
    if "result" in case:
        assert [fields(each) for each in read(*args, report=report)] == case["result"]
    elif case["name"] in COUNTED:
        assert case["exception"] == "IndexError"
        assert read(*args, report=report) == []
        assert list(report.unalignable) == ["c1"]
    else:
        with pytest.raises(ValueError, match=r"question 1 \(id 'c1'\)"):
            read(*args)


@pytest.mark.parametrize(
    ("context", "answer", "start", "words"),
    [
        ("red fox ran home", "red", 0, (0, 0)),
        ("red fox ran home", "home", 12, (3, 3)),
        ("it is red\u00a0fox ran", "red\u00a0fox", 6, None),
        ("red fox", "fox", 6, None),
        ("red fox", "fox", 4, (1, 1)),
        ("red fox \n", "fox \n", 4, (1, 1)),
        (" red", " red", 0, (0, 0)),
        ("red fox", "fox", 7, None),
        ("red fox", "fox", -99, None),
        ("a\u202fb\tc", "b\tc", 2, (1, 2)),
    ],
)
def test_where_answers_are(tmp_path, context, answer, start, words):
    report = Report()
    found = read(write(tmp_path, question((answer, start)), context=context), report=report)
    if words is None:
        assert found == []
        assert list(report.unalignable) == ["q1"]
        assert "left out: q1" in "\n".join(report.lines())
    else:
        assert [(each.start_position, each.end_position) for each in found] == [words]
        assert not report.unalignable


def test_several_answers(tmp_path):
    path = write(tmp_path, question(("elm", 24), ("the elm", 20), ("elm", 24)))
    with pytest.raises(ValueError, match=r"q1.* 2 different answers.*--several_answers=first"):
        read(path)
    report = Report()
    [first] = read(path, several_answers="first", report=report)
    assert (first.orig_answer_text, first.start_position) == ("elm", 6)
    assert report.several_answers == 1
    each = read(path, several_answers="each")
    assert [(e.qas_id, e.orig_answer_text, e.start_position) for e in each] == [
        ("q1", "elm", 6),
        ("q1", "the elm", 5),
    ]
    with pytest.raises(ValueError, match="several_answers='all': choose one of refuse"):
        read(path, several_answers="all")
    # The same answer from several people is one answer, for the original too many.
    assert len(read(write(tmp_path, question(("elm", 24), ("elm", 24))))) == 1
    # In prediction nobody looks at them.
    assert len(read(path, False)) == 1


def test_each_answer_of_several_is_aligned_for_itself(tmp_path):
    path = write(tmp_path, question(("oak", 24), ("elm", 24), ("elm.", 24)))
    report = Report()
    [only] = read(path, several_answers="each", report=report)
    # "elm" and "elm." are the same word.
    assert only.orig_answer_text == "elm"
    assert list(report.unalignable) == ["q1"]


def test_a_version_2_file_read_as_1(tmp_path):
    path = write(tmp_path, question(("elm", 24), name="a"), question(name="b", is_impossible=True))
    with pytest.raises(ValueError, match=r"question 2 \(id 'b'\).*--version_2_with_negative"):
        read(path)
    report = Report()
    assert len(read(path, False, report=report)) == 2
    assert report.impossible == 1
    assert "use --version_2_with_negative" in report.lines()[-1]
    report = Report()
    assert [e.is_impossible for e in read(path, False, True)] == [False, False]


def test_a_version_1_file_read_as_2(tmp_path):
    path = write(tmp_path, question(("elm", 24)))
    with pytest.raises(ValueError, match=r"\(id 'q1'\).*leave out --version_2_with_negative"):
        read(path, True, True)
    report = Report()
    read(path, False, True, report=report)
    assert "leave out --version_2_with_negative" in report.lines()[-1]


def test_version_2(tmp_path):
    path = write(
        tmp_path,
        question(("elm", 24), name="a", is_impossible=False),
        question(("oak", 24), name="b", is_impossible=True),
    )
    report = Report()
    a, b = read(path, True, True, report=report)
    assert (a.start_position, a.is_impossible) == (6, False)
    assert (b.start_position, b.end_position, b.orig_answer_text) == (-1, -1, "")
    assert b.is_impossible
    assert report.impossible == 1
    without = write(tmp_path, question(is_impossible=False))
    with pytest.raises(ValueError, match="no answer; it is not marked as impossible"):
        read(without, True, True)


def test_questions_of_a_paragraph_share_its_context(tmp_path):
    one, two = read(write(tmp_path, question(name="a"), question(name="b")), False)
    assert one.context is two.context


def test_blank_contexts_are_counted(tmp_path):
    report = Report()
    [one] = read(write(tmp_path, question(), context=" \n\u202f"), False, report=report)
    assert one.doc_tokens == []
    assert report.blank_contexts == ["q1"]
    assert "blank context: q1" in "\n".join(report.lines())


def test_a_number_as_id(tmp_path):
    assert read(write(tmp_path, question(name=7)), False)[0].qas_id == "7"


def test_the_report_lists_so_many_ids(tmp_path):
    questions = [question(("oak", 24), name=f"q{i}") for i in range(30)]
    report = Report()
    assert read(write(tmp_path, *questions), report=report) == []
    text = "\n".join(report.lines(listed=5))
    assert "30 questions with an answer that is not in the context" in text
    assert "left out: q0, q1, q2, q3, q4, and 25 more" in text
    assert "the context has 'elm.' at 24, not 'oak'" in text
    assert len(report.unalignable) == 30


def data(**paragraph) -> dict:
    return {"data": [{"title": "T", "paragraphs": [paragraph]}]}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", r"the file is empty; expected a SQuAD file"),
        ("{", r"not valid JSON"),
        ("[]", r"expected a JSON object"),
        ({"version": "1.1"}, r"squad.json: the key 'data' is missing \(keys found: 'version'\)"),
        ({"data": {}}, r"'data' must be a list, found \{\}"),
        ({"data": []}, r"no questions"),
        ({"data": [7]}, r"article 1: expected an object with the key 'paragraphs', found 7"),
        ({"data": [{"title": "T"}]}, r"article 1 \('T'\): the key 'paragraphs' is missing"),
        (data(qas=[]), r"article 1 \('T'\), paragraph 1: the key 'context' is missing"),
        (data(context=None, qas=[]), r"paragraph 1: 'context' must be a string, found None"),
        (data(context="a"), r"paragraph 1: the key 'qas' is missing"),
        (data(context="a", qas=[{"question": "w"}]), r"question 1: the key 'id' is missing"),
        (data(context="a", qas=[{"id": True}]), r"'id' must be a string or an integer"),
        (data(context="a", qas=[{"id": "x"}]), r"question 1 \(id 'x'\): the key 'question' is"),
        (
            data(context="a", qas=[question(is_impossible="false")]),
            r"\(id 'q1'\): 'is_impossible' must be true or false, found 'false'",
        ),
        (
            data(context="a", qas=[{"id": "x", "question": "w", "answers": [{"answer_start": 1}]}]),
            r"\(id 'x'\), answer 1: the key 'text' is missing",
        ),
        (
            data(context="a", qas=[{"id": "x", "question": "w", "answers": [{"text": "a"}]}]),
            r"\(id 'x'\): the key 'answer_start' is missing; training needs it",
        ),
        (
            data(context="a", qas=[question(("a", 0)), question(("a", 0))]),
            r"question 2 \(id 'q1'\): the id was there before: article 1, paragraph 1",
        ),
    ],
)
def test_what_is_wrong_with_a_file(tmp_path, content, message):
    path = tmp_path / "squad.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    with pytest.raises(ValueError, match=message):
        read(str(path))


def test_no_such_file(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"nowhere\.json"):
        read(str(tmp_path / "nowhere.json"))


def test_a_byte_order_mark_does_no_harm(tmp_path):
    path = tmp_path / "bom.json"
    path.write_bytes(b"\xef\xbb\xbf" + (GOLDEN / "own_v1.json").read_bytes())
    assert len(read(str(path), False)) == 58


@pytest.mark.parametrize(
    ("answer", "start", "found"),
    [
        ("1624年", 5, (5, 9)),
        ("桥建", 2, (2, 3)),
        ("桥。", 10, (10, 11)),
        ("桥", 3, None),
        ("", 3, None),
        ("桥。。", 10, None),
    ],
)
def test_character_level(tmp_path, answer, start, found):
    context = "古老桥建于1624年桥。"
    report = Report()
    path = write(tmp_path, question((answer, start)), context=context)
    examples = read(path, character_level=True, report=report)
    if found is None:
        assert examples == []
        assert list(report.unalignable) == ["q1"]
    else:
        [one] = examples
        assert (one.start_position, one.end_position) == found
        assert "".join(one.doc_tokens[found[0] : found[1] + 1]) == answer


def test_words_of_a_context():
    assert Context(" a\u00a0b  c\r\n\td\u202fe ").words == ["a\u00a0b", "c", "d", "e"]
    assert Context("a b", character_level=True).words == ["a", " ", "b"]
    assert Context("").is_blank
    assert not Context("\u00a0").is_blank
