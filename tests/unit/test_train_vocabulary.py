import subprocess
import sys
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_tf.cli import train_vocabulary
from bert_tf.tokenization import BertTokenizer
from bert_tf.tokenization.wordpiece import BasicTokenizer, WordpieceTokenizer
from tests import tiny

CORPUS = tiny.GOLDEN / "pretraining_data" / "corpus.txt"
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = {"low": 5, "lower": 2, "newest": 6, "widest": 3}

# Letters, accents, capitals, a final sigma, ideographs, punctuation, control and space characters.
texts = st.text(st.sampled_from("abÀéßΣσ字號.,#'[]\t\x85\x0b\u2028\u200d\u3000\u0301 İ🙂한"))


@pytest.fixture(scope="session")
def library():
    return pytest.importorskip("tokenizers")


def run(**values):
    values = {key: str(value) for key, value in values.items()}
    return train_vocabulary.main(["x", *(f"--{key}={value}" for key, value in values.items())])


def lines_of(path):
    return path.read_text(encoding="utf-8").split("\n")[:-1]


@settings(deadline=None, max_examples=200)
@given(st.lists(texts), st.booleans(), st.sampled_from([None, True, False]))
def test_words_are_counted_as_the_tokenizer_splits_them(lines, lower, strip):
    basic = BasicTokenizer(lower, strip)
    expected = Counter(word for line in lines for word in basic.split(line))
    assert train_vocabulary.count_words(lines, basic) == expected


def test_counting_in_parts_changes_nothing(monkeypatch):
    text = CORPUS.read_text(encoding="utf-8").split("\n")
    whole = train_vocabulary.count_words(text, BasicTokenizer())
    monkeypatch.setattr(train_vocabulary, "_CHUNKS", 3)
    assert train_vocabulary.count_words(text, BasicTokenizer()) == whole


def test_special_tokens_lie_as_in_the_released_models():
    assert train_vocabulary.special_tokens() == SPECIAL
    released = train_vocabulary.special_tokens(994)
    assert len(released) == 999
    places = {token: number for number, token in enumerate(released)}
    expected = {
        "[PAD]": 0, "[unused0]": 1, "[unused98]": 99, "[UNK]": 100, "[CLS]": 101, "[SEP]": 102,
        "[MASK]": 103, "[unused99]": 104, "[unused993]": 998,
    }  # fmt: skip
    assert {token: places[token] for token in expected} == expected
    assert train_vocabulary.special_tokens(2) == ["[PAD]", "[unused0]", "[unused1]", *SPECIAL[1:]]


def test_alphabet_keeps_the_most_frequent_and_breaks_ties_by_code_point():
    words = {"bcb": 2, "da": 4, "é": 3}  # d and a and b 4, é 3, c 2
    assert train_vocabulary.find_alphabet(words, 10) == ["a", "b", "c", "d", "é"]
    assert train_vocabulary.find_alphabet(words, 4) == ["a", "b", "d", "é"]
    assert train_vocabulary.find_alphabet(words, 2) == ["a", "b"]


def test_small_vocabulary_by_hand(library):
    tokens = train_vocabulary.train({**WORDS, "字": 1, "!": 1}, vocab_size=100)
    letters = sorted(set("".join(WORDS)))
    # Punctuation and ideographs are words of their own, never inside one.
    first = [*SPECIAL, "!", *letters, "字", *(f"##{letter}" for letter in letters)]
    assert tokens[: len(first)] == first
    # e+s and s+t stand side by side 9 times each; ##e was numbered before ##s.
    merged = tokens[len(first) :]
    assert merged[:3] == ["##es", "##est", "lo"]
    assert set(WORDS) <= set(merged)
    assert len(set(tokens)) == len(tokens)


def test_frequency_and_size_limit_what_is_merged(library):
    tokens = train_vocabulary.train(WORDS, vocab_size=100, min_frequency=4)
    assert "newest" in tokens
    assert "low" in tokens  # 5 + 2 in lower
    assert "lower" not in tokens
    assert "widest" not in tokens
    assert train_vocabulary.train(WORDS, vocab_size=30) == train_vocabulary.train(WORDS, 100)[:30]


def test_same_counts_give_the_same_vocabulary(library):
    text = CORPUS.read_text(encoding="utf-8").split("\n")
    words = train_vocabulary.count_words(text, BasicTokenizer())
    expected = train_vocabulary.train(words, 600)
    assert len(expected) == 600
    for _ in range(4):
        assert train_vocabulary.train(words, 600) == expected
    backwards = dict(reversed(words.items()))
    assert train_vocabulary.train(backwards, 600) == expected


def test_many_repetitions_count_as_they_should(library):
    # "ab" 100 * _REPETITIONS + 1 times against "cd" once more: the first merge tells.
    many = 100 * train_vocabulary._REPETITIONS
    fewer = train_vocabulary.train({"ab": many + 1, "cd": many + 2}, 30)
    more = train_vocabulary.train({"ab": many + 1, "cd": many}, 30)
    assert fewer[-2:] == ["cd", "ab"]
    assert more[-2:] == ["ab", "cd"]


@settings(deadline=None, max_examples=60)
@given(
    st.dictionaries(
        texts.map(lambda text: "".join(text.split()) or "a"), st.integers(1, 5), min_size=1
    )
)
def test_every_word_of_the_alphabet_can_be_split(library, counts):
    basic = BasicTokenizer()
    words = Counter()
    for text, times in counts.items():
        words.update(dict.fromkeys(basic.split(text), times))
    if not words:
        return
    tokens = train_vocabulary.train(words, vocab_size=80)
    wordpiece = WordpieceTokenizer(dict.fromkeys(tokens, 0))
    for word in words:
        assert wordpiece.tokenize(word) != ["[UNK]"]
        # In any order.
        assert wordpiece.tokenize(word[::-1]) != ["[UNK]"]


def test_words_beyond_the_alphabet_or_too_long_are_unknown(library):
    long = "a" * 201
    words = {"ab": 3, "aé": 2, long: 1}
    tokens = train_vocabulary.train(words, vocab_size=50, limit_alphabet=2)
    assert tokens == [*SPECIAL, "a", "b", "##a", "##b", "ab"]
    found = train_vocabulary.measure(words, tokens)
    assert found == train_vocabulary.Coverage(words=6, distinct=3, unknown=3, pieces=6)
    assert str(found) == ("6 words, 3 distinct: 1.000 pieces per word, 50.00% of the words [UNK]")


def test_no_words(library):
    with pytest.raises(ValueError, match="no words"):
        train_vocabulary.train({}, 100)


def test_size_without_room_for_the_alphabet(library):
    # 5 special tokens, 10 letters twice.
    assert len(train_vocabulary.train(WORDS, 25)) == 25
    with pytest.raises(ValueError, match=r"--vocab_size=24 is too small.* 10 characters .* 25\."):
        train_vocabulary.train(WORDS, 24)


def test_program(library, tmp_path):
    output = tmp_path / "new" / "vocab.txt"
    found = run(input_file=CORPUS, output_file=output, vocab_size=500, num_unused=99)
    tokens = lines_of(output)
    assert len(tokens) == 500
    tokenizer = BertTokenizer(str(output))
    assert (tokenizer.pad_id, tokenizer.unk_id, tokenizer.mask_id) == (0, 100, 103)
    text = CORPUS.read_text(encoding="utf-8").split("\n")
    made = [token for line in text for token in tokenizer.tokenize(line)]
    assert found.pieces == len(made)
    assert found.unknown == made.count("[UNK]") == 0
    for token in tokens[104:]:
        if not token.startswith("##"):
            assert tokenizer.tokenize(token) == [token]
    before = output.read_bytes()
    run(input_file=CORPUS, output_file=output, vocab_size=500, num_unused=99, overwrite=True)
    assert output.read_bytes() == before
    assert list(output.parent.iterdir()) == [output]


def test_case_and_accents(library, tmp_path):
    (tmp_path / "text.txt").write_text("Café Café café café\n", encoding="utf-8")
    vocabularies = {}
    for lower in ("true", "false"):
        for strip in ("auto", "true", "false"):
            output = tmp_path / f"{lower}_{strip}.txt"
            run(
                input_file=tmp_path / "text.txt",
                output_file=output,
                do_lower_case=lower,
                strip_accents=strip,
                vocab_size=100,
            )
            words = {"Café", "Cafe", "café", "cafe"} & set(lines_of(output))
            vocabularies[lower, strip] = words
    assert vocabularies == {
        ("true", "auto"): {"cafe"},
        ("true", "true"): {"cafe"},
        ("true", "false"): {"café"},
        ("false", "auto"): {"Café", "café"},
        ("false", "true"): {"Cafe", "cafe"},
        ("false", "false"): {"Café", "café"},
    }


def test_what_is_left_out_is_said(library, tmp_path, caplog):
    caplog.set_level("INFO", logger="absl")
    (tmp_path / "text.txt").write_text("aa aa aa b c\n", encoding="utf-8")
    output = tmp_path / "vocab.txt"
    run(input_file=tmp_path / "text.txt", output_file=output, limit_alphabet=2, vocab_size=70)
    assert "1 of the texts' 3 characters are left out" in caplog.text
    assert "20.00% of the words [UNK]" in caplog.text
    tokens = lines_of(output)
    assert f"The texts give {len(tokens)} tokens, fewer than --vocab_size=70" in caplog.text
    assert f'"vocab_size": {len(tokens)}' in caplog.text


@pytest.mark.parametrize(
    ("flags", "error", "message"),
    [
        ({"input_file": "none*"}, FileNotFoundError, "no input file matches"),
        ({"input_file": "empty.txt"}, ValueError, "empty.txt: the texts hold no words"),
        ({"input_file": "latin.txt"}, ValueError, "latin.txt: byte 3 .* is not UTF-8"),
        ({"vocab_size": 10}, ValueError, "--vocab_size=10 is too small"),
        ({"vocab_size": 0}, ValueError, "vocab_size"),
        ({"min_frequency": 0}, ValueError, "min_frequency"),
        ({"limit_alphabet": 0}, ValueError, "limit_alphabet"),
        ({"num_unused": -1}, ValueError, "num_unused"),
    ],
)
def test_bad_input_writes_nothing(flags, error, message, library, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text("some words\n", encoding="utf-8")
    (tmp_path / "empty.txt").write_text("\n \u200b\n", encoding="utf-8")
    (tmp_path / "latin.txt").write_bytes("café\n".encode("latin-1"))
    with pytest.raises(error, match=message):
        run(**{"input_file": "text.txt", "output_file": "out/vocab.txt", **flags})
    assert not (tmp_path / "out").exists()


def test_missing_flags_are_named():
    with pytest.raises(ValueError, match=r"(?s)--input_file: the texts.*--output_file: where"):
        run()


def test_output_that_is_there(tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("some words\n", encoding="utf-8")
    for output, message in (
        (tmp_path, "is a folder"),
        (text, "both an input and the output"),
        (CORPUS, "would be replaced"),
    ):
        before = CORPUS.read_bytes()
        with pytest.raises(ValueError, match=message):
            run(input_file=text, output_file=output)
        assert text.read_text(encoding="utf-8") == "some words\n"
        assert CORPUS.read_bytes() == before


def test_missing_library_is_named_at_once(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    monkeypatch.setattr(train_vocabulary, "count_words", None)
    with pytest.raises(ImportError, match=r"pip install tokenizers \(the extra \[vocabulary\]\)"):
        run(input_file=CORPUS, output_file=tmp_path / "vocab.txt")


def test_runs_without_tensorflow(library, tmp_path):
    code = (
        "import sys\n"
        "from bert_tf.cli import train_vocabulary\n"
        f"train_vocabulary.main(['x', '--input_file={CORPUS}', '--vocab_size=300',\n"
        f"                       '--output_file={tmp_path / 'vocab.txt'}'])\n"
        "assert not {'tensorflow', 'keras', 'torch'} & sys.modules.keys()\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tiny.GOLDEN.parents[1])
    assert len(lines_of(tmp_path / "vocab.txt")) == 300
