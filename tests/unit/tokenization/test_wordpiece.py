import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenization_texts import texts

from bert_tf.tokenization.wordpiece import BasicTokenizer, WordpieceTokenizer


def test_accent_switch_is_apart_from_the_case_switch():
    text = "Épée Ünïcode"
    assert BasicTokenizer().tokenize(text) == ["epee", "unicode"]
    assert BasicTokenizer(strip_accents=False).tokenize(text) == ["épée", "ünïcode"]
    assert BasicTokenizer(False).tokenize(text) == ["Épée", "Ünïcode"]
    assert BasicTokenizer(False, strip_accents=True).tokenize(text) == ["Epee", "Unicode"]


def test_never_split():
    text = "A [MASK], x[MASK]y [mask] [MASKED]"
    assert BasicTokenizer(never_split=["[MASK]", "[MASKED]"]).tokenize(text) == [
        *["a", "[MASK]", ",", "x", "[MASK]", "y", "[", "mask", "]", "[MASKED]"]
    ]
    # The longest wins whatever the order, and special characters of patterns mean themselves.
    assert BasicTokenizer(never_split=["a.b", "a.b*"]).tokenize("xa.b*a.b axb") == [
        *["x", "a.b*", "a.b", "axb"]
    ]


@pytest.mark.parametrize("never_split", ["[MASK]", ["[MASK]", ""]])
def test_bad_never_split(never_split):
    with pytest.raises(ValueError, match="never_split"):
        BasicTokenizer(never_split=never_split)


def test_final_sigma_looks_at_the_whole_word():
    split = BasicTokenizer().tokenize
    assert split("ΟΔΟΣ ΟΔΟΣ. ΟΔΟΣ.Α Σ") == ["οδος", "οδος", ".", "οδοσ", ".", "α", "σ"]
    assert split("ΑΣ字Β ΑΣ\u2028Β ΑΣ\u200bΒ") == ["ας", "字", "β", "ας", "β", "ασβ"]


def test_wordpiece_limits():
    tokenizer = WordpieceTokenizer({"[UNK]": 0, "a": 1, "##a": 2, "##aa": 3})
    assert tokenizer.tokenize("a" * 200) == ["a"] + ["##aa"] * 99 + ["##a"]
    assert tokenizer.tokenize("a" * 201) == ["[UNK]"]
    assert tokenizer.tokenize("aab") == ["[UNK]"]
    assert WordpieceTokenizer({"": 0}).tokenize("a") == ["[UNK]"]


@settings(deadline=None, max_examples=300)
@given(texts, st.booleans(), st.sampled_from([None, True, False]), st.booleans())
def test_spans_give_the_same_words(text, lower, strip, keep):
    basic = BasicTokenizer(lower, strip, ["[MASK]", "ß"] if keep else ())
    found = basic.tokenize_with_spans(text)
    assert [word for word, _ in found] == basic.tokenize(text)
    for word, spans in found:
        assert len(spans) == len(word)
        assert all(0 <= start < end <= len(text) for start, end in spans)


@settings(deadline=None, max_examples=300)
@given(texts)
def test_words_have_no_space_and_no_mark(text):
    for word in BasicTokenizer().tokenize(text):
        assert word.split() == [word]
        assert not any(unicodedata.category(character) == "Mn" for character in word)
        assert unicodedata.normalize("NFD", word) == word
