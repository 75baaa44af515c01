import json
import pickle
import subprocess
import sys
import unicodedata
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenization_texts import SPECIAL, texts

from bert_tf.tokenization import BertTokenizer
from bert_tf.tokenization import tokenizer as module
from bert_tf.tokenization.wordpiece import BasicTokenizer, WordpieceTokenizer, clean

GOLDEN = Path(__file__).parents[2] / "golden" / "tokenization"
SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def make(pieces, **options) -> BertTokenizer:
    tokens = list(dict.fromkeys([*SPECIALS, *pieces]))
    return BertTokenizer.from_vocab({token: i for i, token in enumerate(tokens)}, **options)


def by_definition(tokenizer: BertTokenizer, text: str) -> list[str]:
    options = tokenizer.do_lower_case, tokenizer.strip_accents, tokenizer.never_split
    wordpiece = WordpieceTokenizer(tokenizer.vocab)
    words = BasicTokenizer(*options).tokenize(text)
    return [piece for word in words for piece in wordpiece.tokenize(word)]


# Most special characters with both cases and decomposed, so that few words are [UNK].
_forms = [
    character
    for special in [*SPECIAL, *"abAB"]
    for form in (special, special.lower(), special.upper())
    for character in form + unicodedata.normalize("NFD", form)
    if character not in "é\u3099♥"
]
RICH = [*_forms, *("##" + form for form in _forms), "ab", "##ab", "ας", "##ασ", "ß"]

OPTIONS = [
    {},
    {"do_lower_case": False},
    {"strip_accents": False},
    {"do_lower_case": False, "strip_accents": True},
    {"never_split": ["[MASK]", "[UNK]", "ß"]},
]


@pytest.mark.parametrize(
    ("lower", "text", "tokens"),
    [
        (True, "Café", ["cafe"]),
        (False, "café", ["café"]),
        (True, "nice!♥", ["nice", "!", "♥"]),
        (False, "nice!♥", ["nice", "!", "♥"]),
        (True, "nice♥", ["[UNK]"]),
        (False, "nice♥", ["[UNK]"]),
    ],
)
def test_accents_and_symbols(lower, text, tokens):
    tokenizer = make(["cafe", "café", "nice", "!", "♥"], do_lower_case=lower)
    assert tokenizer.tokenize(text) == tokens


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("a\u200bb", ["a", "##b"]),
        ("a\u00a0b", ["a", "b"]),
        ("a\u2028b", ["a", "b"]),
        ("a\uf059 b", ["[UNK]", "b"]),
        ("\ufeffa b", ["a", "b"]),
        ("a\ufffdb", ["a", "##b"]),
        ("a\x85b \x0bb", ["a", "##b", "b"]),
        ("\u200b \x0c\u0301", []),
        ("", []),
    ],
)
def test_spaces_and_dropped_characters(text, tokens):
    assert make(["a", "b", "##b"]).tokenize(text) == tokens


def test_special_tokens_in_a_text():
    tokenizer = make(["a", "b", "[", "]", "mask"])
    assert tokenizer.tokenize("a [MASK] b") == ["a", "[", "mask", "]", "b"]
    tokenizer = make(["a", "b", "[", "]", "mask"], never_split=["[MASK]"])
    assert tokenizer.tokenize("a [MASK] b[MASK]") == ["a", "[MASK]", "b", "[MASK]"]
    assert tokenizer.encode("a [MASK]") == [5, tokenizer.mask_id]


def test_attributes():
    tokenizer = make(["a", "##b"], do_lower_case=False)
    names = (tokenizer.pad_id, tokenizer.unk_id, tokenizer.cls_id, tokenizer.sep_id)
    assert (*names, tokenizer.mask_id) == (0, 1, 2, 3, 4)
    assert tokenizer.vocab_size == 7
    assert tokenizer.inv_vocab[6] == "##b"
    assert tokenizer.do_lower_case is False
    assert tokenizer.convert_ids_to_tokens(tokenizer.encode("ab c")) == ["a", "##b", "[UNK]"]
    assert tokenizer.convert_tokens_to_ids(["[CLS]", "a"]) == [2, 5]


def test_the_tables_of_the_fast_path():
    """str.split and cleaning know different spaces: the two constants are the difference."""
    joining, spaces = set(), set()
    for code_point in range(0x110000):
        character = chr(code_point)
        if character.isspace():
            (spaces if clean(code_point) else joining).add(character)
        else:
            assert clean(code_point) != " "
    assert joining == set(module._JOINING)
    every = "".join(map(chr, range(0x110000)))
    in_chunks = set("".join(match.group() for match in module._find_chunks(every)))
    assert spaces == set(every) - in_chunks
    # An ideograph is always one word of one character.
    basic = BasicTokenizer()
    for first, last in module.CJK_RANGES:
        for code_point in range(first, last + 1):
            (word,) = basic.tokenize(chr(code_point))
            assert len(word) == 1


@pytest.mark.parametrize("options", OPTIONS)
@settings(deadline=None, max_examples=150)
@given(texts)
def test_equals_the_definition(options, text):
    tokenizer = SHARED.setdefault(str(options), make(RICH, **options))
    expected = by_definition(tokenizer, text)
    assert tokenizer.tokenize(text) == expected
    assert tokenizer.encode(text) == [tokenizer.vocab[piece] for piece in expected]


SHARED: dict[str, BertTokenizer] = {}


def test_equals_the_definition_around_every_character():
    tokenizer = make(["a", "b", "##b", "ab"])
    for line in (GOLDEN / "assigned_ranges.txt").read_text(encoding="utf-8").split("\n"):
        if line:
            first, last = (int(field, 16) for field in line.split())
            for start in range(first, last + 1, 512):
                stop = min(start + 512, last + 1)
                text = " ".join(f"a{chr(c)}b" for c in range(start, stop))
                assert tokenizer.tokenize(text) == by_definition(tokenizer, text), line


@pytest.mark.parametrize("options", OPTIONS)
@settings(deadline=None, max_examples=150)
@given(texts)
def test_offsets(options, text):
    tokenizer = SHARED.setdefault(str(options), make(RICH, **options))
    basic = BasicTokenizer(tokenizer.do_lower_case, tokenizer.strip_accents, tokenizer.never_split)
    tokens, spans = tokenizer.tokenize_with_offsets(text)
    assert tokens == tokenizer.tokenize(text)
    assert tokenizer.encode_with_offsets(text) == (tokenizer.encode(text), spans)
    last_start = last_end = 0
    for i, (token, (start, end)) in enumerate(zip(tokens, spans)):
        assert 0 <= start < end <= len(text)
        assert last_start <= start
        assert last_end <= end
        last_start, last_end = start, end
        if token == "[UNK]":
            continue
        piece = token.removeprefix("##") if len(token) > 2 else token
        # Cut out of its word, a sigma may become a last one.
        found = "".join(basic.tokenize(text[start:end])).replace("ς", "σ")
        piece = piece.replace("ς", "σ")
        shared = (start < spans[i - 1][1] if i else False) or (
            spans[i + 1][0] < end if i + 1 < len(spans) else False
        )
        assert piece in found if shared else piece == found


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Café, NICE", [("cafe", 0, 4), (",", 4, 5), ("nice", 6, 10)]),
        ("xCafe\u0301s", [("x", 0, 1), ("##cafe", 1, 6), ("##s", 6, 7)]),
        ("\ufeffni\u200bce ", [("nice", 1, 6)]),
        ("nice♥ x", [("[UNK]", 0, 5), ("x", 6, 7)]),
        ("字字x", [("字", 0, 1), ("字", 1, 2), ("x", 2, 3)]),
        ("각", [("\u1100", 0, 1), ("##\u1161\u11a8", 0, 1)]),
        # NFD changes the order of the two marks, which come from both then.
        (
            "x\u302e\U0001d165y",
            [("x", 0, 1), ("##\U0001d165", 1, 3), ("##\u302e", 1, 3), ("##y", 3, 4)],
        ),
        ("İx", [("i", 0, 1), ("##x", 1, 2)]),
        ("x[MASK]x", [("x", 0, 1), ("[MASK]", 1, 7), ("x", 7, 8)]),
    ],
)
def test_offsets_of_known_texts(text, expected):
    pieces = ["cafe", ",", "nice", "x", "##x", "##cafe", "##s", "字", "i", "\u1100"]
    pieces += ["##\u1161\u11a8", "##\u302e", "##\U0001d165", "##y"]
    tokenizer = make(pieces, never_split=["[MASK]"])
    tokens, spans = tokenizer.tokenize_with_offsets(text)
    assert [(token, *span) for token, span in zip(tokens, spans)] == expected


def with_tiny_caches() -> BertTokenizer:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_CHUNKS", 3)
        patch.setattr(module, "_WORDS", 2)
        return make(["a", "##a", "b", "##b", ".", ",", "字"])


WORDS = ["a", "b", "ab", "A.b", "字b", "ÀB", "b" * 40, "ba,ab", "x", "字", "b\u200ba"]


@settings(deadline=None, max_examples=50)
@given(st.lists(st.sampled_from(WORDS), max_size=40))
def test_evictions_change_nothing(words):
    tokenizer = with_tiny_caches()
    for i in range(0, len(words), 5):
        text = " ".join(words[i : i + 5])
        assert tokenizer.tokenize(text) == by_definition(tokenizer, text)
        tokenizer.encode_with_offsets(text)
    caches = (tokenizer._chunks, 3), (tokenizer._words, 2), (tokenizer._chunk_spans, 1)
    for cache, capacity in caches:
        assert len(cache) <= capacity
        assert len(cache._old) <= capacity
        assert all(len(key) <= 32 for key in cache)


def test_a_known_chunk_is_not_worked_out_again(monkeypatch):
    tokenizer = make(["a", "##b", "字", "国"])
    tokenizer.encode("ab a字国")
    monkeypatch.setattr(tokenizer._basic, "split", lambda text: pytest.fail(f"split {text}"))
    assert tokenizer.encode("a国字ab a") == [5, 8, 7, 5, 6, 5]


def test_an_old_chunk_is_remembered_once_more(monkeypatch):
    tokenizer = with_tiny_caches()
    expected = tokenizer.encode("a")
    tokenizer.encode("b x z")
    assert "a" not in tokenizer._chunks
    monkeypatch.setattr(tokenizer._basic, "split", lambda text: pytest.fail(f"split {text}"))
    assert tokenizer.encode("a") == expected
    assert "a" in tokenizer._chunks


def test_threads_share_a_tokenizer():
    tokenizer = with_tiny_caches()
    lines = [" ".join(WORDS[i % 11 :] + WORDS[: i % 7]) for i in range(2000)]
    expected = [by_definition(tokenizer, line) for line in lines]
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda _: [*map(tokenizer.tokenize, lines)], range(4)))
    assert all(result == expected for result in results)


def test_pickle():
    tokenizer = make(["a", "B"], do_lower_case=False, strip_accents=True, never_split=["[SEP]"])
    tokenizer.encode("a B")
    copy = pickle.loads(pickle.dumps(tokenizer))
    assert copy.tokenize("a B[SEP] á") == ["a", "B", "[SEP]", "a"]
    assert len(pickle.dumps(copy)) == len(pickle.dumps(tokenizer))


def test_a_vocabulary_without_the_special_tokens():
    tokenizer = BertTokenizer.from_vocab({"a": 0})
    assert tokenizer.encode("a a") == [0, 0]
    assert tokenizer.tokenize("a b") == ["a", "[UNK]"]
    for call in (tokenizer.encode, tokenizer.encode_with_offsets):
        with pytest.raises(ValueError, match=r"the word 'b' is unknown.*no token '\[UNK\]'"):
            call("a b")
    for name in ("cls_id", "sep_id", "pad_id", "mask_id", "unk_id"):
        with pytest.raises(ValueError, match=f"no token .*{name[:-3].upper()}"):
            getattr(tokenizer, name)


@pytest.mark.parametrize(
    ("vocab", "message"),
    [
        ({}, "empty"),
        ({"a": -1}, "negative id"),
        ({"a": 1, "b": 1}, "id 1 to both 'a' and 'b'"),
    ],
)
def test_bad_mappings(vocab, message):
    with pytest.raises(ValueError, match=message):
        BertTokenizer.from_vocab(vocab)


def test_bad_arguments():
    with pytest.raises(ValueError, match=r"never_split token '\[ENT\]' is not in"):
        make([], never_split=["[ENT]"])
    tokenizer = make(["a"])
    for call in (tokenizer.encode, tokenizer.tokenize, tokenizer.encode_with_offsets):
        with pytest.raises(TypeError, match="must be a str, not bytes"):
            call(b"a")
    with pytest.raises(TypeError, match="list of tokens"):
        tokenizer.convert_tokens_to_ids("a")


def test_imports_no_tensorflow():
    code = (
        "import sys, json, bert_tf.tokenization.packing, bert_tf.tokenization;"
        "print(json.dumps([m for m in ('tensorflow', 'keras') if m in sys.modules]))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert json.loads(result.stdout) == []
