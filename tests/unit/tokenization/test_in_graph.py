"""The graph's results are those of `wordpiece`.

benchmarks/in_graph_tokenization.py goes through every code point.
"""

import importlib.util
import json
import subprocess
import sys
import unicodedata

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from test_tokenization_golden import CASES, vocab_of_cases
from test_tokenizer import RICH, SPECIALS, make
from tokenization_texts import texts, uncased_vocab_file

from bert_tf.tokenization import BertTokenizer, in_graph
from bert_tf.tokenization.in_graph import InGraphTokenizer
from bert_tf.tokenization.packing import TRUNCATIONS, pack, pad, truncate_pair
from bert_tf.tokenization.wordpiece import BasicTokenizer, WordpieceTokenizer

OPTIONS = [
    {},
    {"do_lower_case": False},
    {"strip_accents": False},
    {"do_lower_case": False, "strip_accents": True},
]


@pytest.fixture(scope="module")
def uncased():
    tokenizer = BertTokenizer(uncased_vocab_file())
    return tokenizer, InGraphTokenizer(tokenizer)


@pytest.fixture(scope="module", params=OPTIONS, ids=str)
def rich(request):
    tokenizer = make(RICH, **request.param)
    return tokenizer, InGraphTokenizer(tokenizer)


@pytest.fixture
def eagerly():
    """For tokenizers that are used a few times only: spares the time to trace the graph."""
    tf.config.run_functions_eagerly(True)
    yield
    tf.config.run_functions_eagerly(False)


def check(both, some_texts):
    """The same ids and offsets, with and without offsets."""
    tokenizer, graph = both
    encoded = [text if isinstance(text, bytes) else text.encode() for text in some_texts]
    batch = tf.constant(encoded, tf.string, shape=[len(encoded)])
    ids = graph.tokenize(batch).to_list()
    with_offsets = [part.to_list() for part in graph.tokenize_with_offsets(batch)]
    assert len(ids) == len(encoded)
    for text, found, found_too, starts, ends in zip(encoded, ids, *with_offsets, strict=True):
        text = text.decode("utf-8", "replace")
        expected, spans = tokenizer.encode_with_offsets(text)
        assert found == expected, ascii(text)
        assert found_too == expected, ascii(text)
        assert list(zip(starts, ends)) == spans, ascii(text)


def words_of(graph, some_texts):
    words = graph._words(tf.constant([text.encode() for text in some_texts]), False)
    return words.words.numpy(), words.of_rows.numpy()


def check_words(graph, some_texts):
    split = BasicTokenizer(graph._do_lower_case, graph._strip_accents).split
    expected = [split(text) for text in some_texts]
    words, rows = words_of(graph, some_texts)
    np.testing.assert_array_equal(np.diff(rows), [len(row) for row in expected])
    flat = np.array([word.encode() for row in expected for word in row], object)
    wrong = np.flatnonzero(words != flat)
    assert not wrong.size, ascii((words[wrong[0]].decode(), flat[wrong[0]].decode()))


def check_golden(both, name):
    ids = both[1].tokenize([case["text"].encode() for case in CASES]).to_list()
    assert ids == [case[name]["ids"] for case in CASES]
    check(both, [case["text"] for case in CASES])


def test_golden_cases(uncased):
    check_golden(uncased, "uncased")


@pytest.mark.parametrize("name", ["cased", "chinese"])
def test_golden_cases_of_other_vocabularies(name, eagerly):
    vocab = with_specials(vocab_of_cases(name))
    tokenizer = BertTokenizer.from_vocab(vocab, do_lower_case=name != "cased")
    check_golden((tokenizer, InGraphTokenizer(tokenizer)), name)


def with_specials(vocab):
    first = max(vocab.values()) + 1
    return vocab | {token: first + i for i, token in enumerate(SPECIALS) if token not in vocab}


def test_words_around_every_assigned_character(rich):
    """And around some of those that are not assigned."""
    graph = rich[1]
    some_texts = [
        f"a{chr(c)}b"
        for c in range(0x110000)
        if c % 97 == 0 or unicodedata.category(chr(c)) not in ("Cn", "Co", "Cs")
        if not 0xD800 <= c <= 0xDFFF
    ]
    assert len(some_texts) > 140_000
    check_words(graph, some_texts)


@pytest.mark.parametrize("rich", [{}, {"strip_accents": False}], ids=str, indirect=True)
def test_sigmas_beside_every_character_that_may_matter(rich):
    graph = rich[1]
    some_texts = []
    for c in range(0x110000):
        character = chr(c)
        if unicodedata.category(character) not in ("Cn", "Co", "Cs", "Lo"):
            some_texts += [
                f"a{character}Σ",
                f"Σ{character}b{character}",
                f"{character}Σ{character}",
            ]
    check_words(graph, some_texts)


@settings(deadline=None, max_examples=60)
@given(st.lists(texts, max_size=4))
def test_random_texts(rich, some_texts):
    check(rich, some_texts)


# Marks that NFD moves (some are kept, some end a run), and what they stand on.
_marks = st.text(
    "\u302e\u302f\U0001d165\U0001d166\U0001d16d\u1715\ua953\u0301\u0323\u0345\u034f\u05b0\u200d"
    "\U0001d15e\U0001d1bb\u0fb2\u0f71\u0f80\u0f81aΣ字각Åİΐ. \u2028",
    max_size=16,
)


@settings(deadline=None, max_examples=100)
@given(st.lists(_marks, min_size=1, max_size=4))
def test_marks_in_any_order(rich, some_texts):
    check(rich, some_texts)
    check_words(rich[1], some_texts)


@settings(deadline=None, max_examples=100)
@given(
    st.lists(
        st.lists(
            st.one_of(st.binary(max_size=4), st.text(max_size=2).map(str.encode)), max_size=8
        ).map(b"".join),
        max_size=4,
    )
)
def test_bytes_that_are_not_utf_8(rich, some_texts):
    check(rich, some_texts)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "   ",
        "\t\r\n",
        "\u3000\u2028",
        "\x00\x85\ufeff",
        "👩‍👩‍👧‍👦 🏳️‍🌈 1️⃣",
        "ΟΔΟΣ ΟΔΟΣ. ΟΔΟΣ.Α Σ ΑΣ字Β ΑΣ\u2028Β ΑΣ\u200bΒ",
        "İstanbul Straße ẞ",
        b"\xff",
        b"ab\xffc",
        b"caf\xc3",
        b"\xed\xa0\x80x \xf4\x90\x80\x80 \xc0\x80",
    ],
    ids=ascii,
)
def test_single_texts(uncased, text):
    check(uncased, [text])
    check(uncased, ["plain", text, "Plain, too."])


def test_scripts_in_one_batch(uncased):
    lines = [
        "The quick brown fox, unaffable as ever!",
        "Zwölf große Übungen für Jürgen",
        "L'été où Noël fut fêté à Besançon",
        "今天天气很好，我们去公园玩。",
        "Ανακοίνωση της ΠΟΛΗΣ",
        "Съешь же ещё этих мягких французских булок",
        "हिन्दी में लिखा हुआ",
        "대한민국의 수도는 서울",
    ]
    check(uncased, lines * 3)


def test_long_words(eagerly):
    pieces = ["x", "##x", "##xx", "e", "##e", "字", "\u1112", "##\u1161", "##\u11ab", "##\u1112"]
    pieces += ["\U00010428", "##\U00010428", "🙂", "##🙂", "##\ue000"]
    tokenizer = make(pieces)
    both = tokenizer, InGraphTokenizer(tokenizer)
    lengths = [66, 67, 99, 100, 101, 128, 199, 200, 201, 202, 255, 257, 300, 801, 1000]
    for character in "xÉ한\U00010400🙂\u0301\ue000":
        check(both, [f"x {character * length}. x" for length in lengths])
        # With dropped characters and other words between.
        check(both, [f"{character}\u200d\u0301" * length for length in lengths])
        check(both, [f"{character}字\u0301" * length for length in lengths])
        check(both, [f"{character * length}é" for length in (199, 200)])
        check(both, [character * 200])
        check(both, [character * 201])


def test_odd_vocabularies(tmp_path, eagerly):
    """What tensorflow-text would not take, or would take otherwise."""
    vocab_file = tmp_path / "vocab.txt"
    lines = [*SPECIALS, "a", "##b", "", "a", "##", "a.b", "##.", "###", ".", "#", "##[UNK]"]
    lines += ["x" * 201, "##" + "x" * 200, "##a\0", "b c", "##字", "字a", "é", "##é", "##b", "-"]
    vocab_file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    tokenizer = BertTokenizer(str(vocab_file))
    assert tokenizer.encode("ab") == [8, 24]
    some_texts = ["a.b", "a[UNK]", "[UNK]", "ab # ##b -", "a" + "x" * 199, "x" * 201, "a字a é", ""]
    both = tokenizer, InGraphTokenizer(tokenizer)
    check(both, some_texts)
    check(both, [text + "\u200b" for text in some_texts])


def test_vocabulary_without_words(eagerly):
    tokenizer = make([])
    check((tokenizer, InGraphTokenizer(tokenizer)), ["a. [UNK]", "é"])


_ascii = st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), min_size=1, max_size=3)
_few = st.text("ab#[.", min_size=1, max_size=4)


@settings(deadline=None, max_examples=50)
@given(
    st.lists(st.one_of(_ascii, _few, _few.map("##{}".format)), max_size=20, unique=True),
    st.lists(st.one_of(_ascii, _few), max_size=20),
)
def test_plain_way_with_any_vocabulary(tokens, parts):
    tokens = ["[UNK]", *(token for token in tokens if in_graph._may_occur(token)), "é"]
    vocab = {token: 3 * i for i, token in enumerate(dict.fromkeys(tokens))}
    text = " ".join(parts) + "".join(parts)
    wordpiece = WordpieceTokenizer(vocab)
    words = BasicTokenizer(do_lower_case=False).split(text)
    expected = [vocab[piece] for word in words for piece in wordpiece.tokenize(word)]
    ids, splits, _, _ = in_graph._Pieces(vocab, 200, False)(tf.constant([text, "b"]))
    assert ids[: splits[1]].numpy().tolist() == expected
    ids, _, _, _ = in_graph._Pieces(vocab, 800, True)(tf.constant(words, tf.string))
    assert ids.numpy().tolist() == expected


@pytest.mark.parametrize(
    ("make_tokenizer", "message"),
    [
        (lambda: make(["한" * 100]), "up to 256 bytes, and that of the id 5 has 300: '한한"),
        (lambda: BertTokenizer.from_vocab({"a": 0}), r"no token '\[CLS\]'"),
        (
            lambda: BertTokenizer.from_vocab({"[CLS]": 0, "[SEP]": 1, "[PAD]": 2}),
            r"no token '\[UNK\]'; a BERT vocabulary needs it",
        ),
    ],
)
def test_refused_tokenizers(make_tokenizer, message):
    with pytest.raises(ValueError, match=message):
        InGraphTokenizer(make_tokenizer())


def test_character_counts(rich):
    tokenizer, graph = rich
    basic = BasicTokenizer(tokenizer.do_lower_case, tokenizer.strip_accents)
    points = [*range(0, 0x3000, 7), 0xAC00, 0xFFFD, 0x2F800, 0x1D165, 0x50000, 0xE0001, 0x10FFFF]
    points += [0x20, 0xA0, 0xDF, 0x130, 0x149, 0xE9, 0x302, 0x5E9, 0x302E, 0x4E00, 0x1F600]
    found = graph.character_counts(tf.constant(points)).numpy().tolist()
    expected = [sum(map(len, basic.split(chr(point)))) for point in points]
    assert found == expected
    assert {0, 1} < set(found) or not tokenizer.strip_accents


@pytest.fixture(scope="module", params=[["[MASK]"], ["a-", "a-b", "ß", ".", "[MASK]"]], ids=str)
def keeping(request):
    tokenizer = make([*RICH, "a-", "a-b", "ß"], never_split=request.param)
    return tokenizer, InGraphTokenizer(tokenizer)


def test_never_split(keeping):
    some = ["[MASK]", "", "x [MASK]", "un[MASK].[MASK][MASK]a-ba-", "[mask]", "straßeß", "\0[MASK"]
    check(keeping, [*some, "É[MASK]ΑΣ[MASK]", "[MASK]]", " [ MASK]", b"a-\xff[MASK]\xffa-b"])
    check(keeping, ["no such string"])
    check(keeping, [])


@settings(max_examples=30, deadline=None)
@given(st.lists(st.lists(st.one_of(texts, st.sampled_from(["[MASK]", "a-", "ß"])), max_size=5)))
def test_never_split_in_random_texts(keeping, parts):
    check(keeping, ["".join(each) for each in parts])


def test_longest_tokens(eagerly):
    tokenizer = make(["##" + "x" * 200, "한", "é" * 128, "##" + "é" * 128], strip_accents=False)
    check((tokenizer, InGraphTokenizer(tokenizer)), ["한" + "x" * 200, "é" * 128, "한" + "é" * 128])


@pytest.mark.parametrize("truncation", TRUNCATIONS)
@pytest.mark.parametrize("length", [2, 3, 4, 5, 9, 16, 40])
def test_pack(uncased, truncation, length):
    tokenizer, graph = uncased
    random = np.random.default_rng(length)
    rows = [random.integers(1000, 9000, random.integers(0, 24)).tolist() for _ in range(80)]
    a, b = rows[:40], rows[40:]
    b[:4], b[-1], a[-1] = [[]] * 4, [], []
    for seconds in [None] if length == 2 else [None, b]:
        graph_b = None if seconds is None else tf.ragged.constant(seconds, tf.int32)
        graph_a = tf.ragged.constant(a, tf.int32)
        found = graph.pack(graph_a, graph_b, length, truncation)
        assert all(part.dtype == tf.int32 and part.shape == (40, length) for part in found)
        for i, ids_a in enumerate(a):
            ids_b = None if seconds is None else seconds[i]
            kept_a, kept_b, _ = truncate_pair(
                ids_a, ids_b, length - (3 if ids_b else 2), truncation
            )
            ids, segments = pack(kept_a, kept_b, tokenizer.cls_id, tokenizer.sep_id)
            expected = pad(ids, segments, length, tokenizer.pad_id)
            for part, right in zip(found, expected):
                assert part[i].numpy().tolist() == right.tolist()


def test_pack_no_texts(uncased):
    _, graph = uncased
    empty = graph.tokenize(tf.constant([], tf.string))
    assert [part.shape for part in graph.pack(empty, empty, 8)] == [(0, 8)] * 3


def test_bad_pack_arguments(uncased):
    _, graph = uncased
    ids = graph.tokenize(["a"])
    with pytest.raises(ValueError, match="unknown truncation 'middle'; choose one of longest_fi"):
        graph.pack(ids, None, 8, "middle")
    with pytest.raises(ValueError, match=r"max_seq_length 1 has no room .* at least 2"):
        graph.pack(ids, None, 1)
    with pytest.raises(ValueError, match=r"max_seq_length 2 has no room .* at least 3"):
        graph.pack(ids, ids, 2)


LOAD = """
import json, sys
import tensorflow as tf, tensorflow_text
model = tf.saved_model.load(sys.argv[1])
a, b = json.loads(sys.stdin.buffer.read())
packed = model.signatures["pairs"](a=tf.constant(a), b=tf.constant(b))
_, starts, ends = model.tokenizer.tokenize_with_offsets(tf.constant(a))
assert not [name for name in sys.modules if name.split(".")[0] == "bert_tf"]
packed = {name: value.numpy().tolist() for name, value in packed.items()}
print(json.dumps([packed, starts.to_list(), ends.to_list()]))
"""


def test_a_saved_model_needs_tensorflow_and_tensorflow_text_only(uncased, tmp_path):
    tokenizer, graph = uncased
    module = tf.Module()
    module.tokenizer = graph

    @tf.function
    def pairs(a, b):
        names = ("input_ids", "input_mask", "segment_ids")
        return dict(zip(names, graph.pack(graph.tokenize(a), graph.tokenize(b), 16)))

    signature = pairs.get_concrete_function(
        tf.TensorSpec([None], tf.string, "a"), tf.TensorSpec([None], tf.string, "b")
    )
    tf.saved_model.save(module, str(tmp_path / "model"), signatures={"pairs": signature})

    a = ["Ünaffable, ΟΔΟΣ 字!", "plain", "", "x\u302e\U0001d165"]
    b = ["plain too", "", "한글", "a" * 300]
    result = subprocess.run(
        [sys.executable, "-c", LOAD, str(tmp_path / "model")],
        input=json.dumps([a, b]).encode(),
        capture_output=True,
        check=False,
        cwd=tmp_path,
    )
    assert result.returncode == 0, result.stderr.decode()
    packed, starts, ends = json.loads(result.stdout)
    for i, (text_a, text_b) in enumerate(zip(a, b)):
        ids_a, spans = tokenizer.encode_with_offsets(text_a)
        assert list(zip(starts[i], ends[i])) == spans
        ids_b = tokenizer.encode(text_b)
        ids_a, ids_b, _ = truncate_pair(ids_a, ids_b, 13 if ids_b else 14)
        expected = pad(*pack(ids_a, ids_b, tokenizer.cls_id, tokenizer.sep_id), 16)
        for name, right in zip(("input_ids", "input_mask", "segment_ids"), expected):
            assert packed[name][i] == right.tolist()


@pytest.mark.parametrize("reason", ["missing", "of another version"])
def test_without_tensorflow_text(monkeypatch, reason):
    if reason == "missing":
        monkeypatch.setitem(sys.modules, "tensorflow_text", None)
    else:
        monkeypatch.delitem(sys.modules, "tensorflow_text")

        class Broken:
            @staticmethod
            def find_spec(name, *_):
                if name == "tensorflow_text":
                    raise tf.errors.NotFoundError(None, None, "undefined symbol")

        monkeypatch.setattr(sys, "meta_path", [Broken, *sys.meta_path])
    spec = importlib.util.spec_from_file_location("another_in_graph", in_graph.__file__)
    with pytest.raises(ImportError, match=r"needs tensorflow-text.*pip install.*macOS and Wind"):
        spec.loader.exec_module(importlib.util.module_from_spec(spec))
