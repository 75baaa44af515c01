import shutil

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_tf.checkpoint import names, original, restore
from bert_tf.cli import extend_vocabulary
from bert_tf.config import BertConfig
from bert_tf.tokenization import BertTokenizer
from bert_tf.tokenization.wordpiece import BasicTokenizer, WordpieceTokenizer
from tests import tiny

SOURCE = tiny.GOLDEN / "checkpoint" / "tiny_pretraining"
BIAS = "cls/predictions/output_bias"
LETTERS = "abcdefghijklmnopqrstuvwxyz"
# As many lines as the tiny checkpoints have rows.
VOCABULARY = [
    "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "[unused0]", "[unused1]", "[unused2]", "[", "]",
    "-", "19", "1", "##1", "immun", "##o", "##log", "##logy", "##immun", "the", "virus", "##virus",
    "corona",
]  # fmt: skip
VOCABULARY += [*(f"##{c}" for c in LETTERS if c != "o"), *LETTERS]
VOCABULARY += [f"word{number}" for number in range(120 - len(VOCABULARY))]
ID = {token: number for number, token in enumerate(VOCABULARY)}


@pytest.fixture
def source(tmp_path):
    """The tiny pre-training checkpoint as a released folder."""
    folder = tmp_path / "source"
    folder.mkdir()
    for path in SOURCE.glob("bert_*"):
        shutil.copy(path, folder)
    write_lines(folder / "vocab.txt", VOCABULARY)
    return folder


def write_lines(path, lines):
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def extend(source, tmp_path, new, *switches, **values):
    """Runs the program on a list of words; returns its result and what it wrote."""
    write_lines(tmp_path / "words.txt", new)
    values = {
        "init_checkpoint": source,
        "new_tokens_file": tmp_path / "words.txt",
        "output_dir": tmp_path / "extended",
        **values,
    }
    arguments = [f"--{key}={value}" for key, value in values.items()]
    found = extend_vocabulary.main(["x", *arguments, *switches])
    return found, restore.load(str(values["output_dir"]))


def lines_of(checkpoint):
    with open(checkpoint.vocab_file, encoding="utf-8") as file:
        return file.read().split("\n")[:-1]


def check_rows(checkpoint, before, ids, pieces):
    """Every other row is as it was; those of `ids` are the means of their pieces'."""
    for name, old in before.items():
        new = checkpoint.get(name)
        if name not in (restore.WORD_EMBEDDINGS, BIAS):
            np.testing.assert_array_equal(new, old, err_msg=name)
            continue
        kept = np.setdiff1d(np.arange(len(old)), ids)
        np.testing.assert_array_equal(new[kept], old[kept], err_msg=name)
        for row, tokens in zip(ids, pieces, strict=True):
            expected = sum(old[ID[token]].astype(np.float64) for token in tokens) / len(tokens)
            np.testing.assert_allclose(new[row], expected, rtol=1e-6, atol=1e-8, err_msg=name)
    assert set(checkpoint.shapes) == set(before)


def test_grown(source, tmp_path, caplog):
    caplog.set_level("INFO", logger="absl")
    before = restore.load(str(source)).tensors()
    new = ["immunology", "the", "coronavirus", "##virology", "字"]
    found, extended = extend(source, tmp_path, new)
    assert found.added == ("immunology", "coronavirus", "##virology", "字")
    assert found.known == ("the",)
    assert lines_of(extended) == [*VOCABULARY, *found.added]
    assert extended.config == tiny.CONFIG.replace(vocab_size=124)
    pieces = [
        ["immun", "##o", "##logy"],
        ["corona", "##virus"],
        ["##v", "##i", "##r", "##o", "##logy"],
        ["[UNK]"],
    ]
    check_rows(extended, before, range(120, 124), pieces)
    files = {path.name for path in (tmp_path / "extended").iterdir()}
    assert files == {
        "bert_config.json", "vocab.txt", "bert_model.ckpt.index",
        "bert_model.ckpt.data-00000-of-00001",
    }  # fmt: skip
    assert "Added 4 words, which were 2.75 pieces each before" in caplog.text
    assert "1 were in the vocabulary already: the" in caplog.text
    assert "1 were [UNK] before and start from its row: 字" in caplog.text
    assert "vocab_size: 120 before, 124 now" in caplog.text


def test_unused_places(source, tmp_path):
    before = restore.load(str(source)).tensors()
    new = ["immunology", "coronavirus"]
    _, extended = extend(source, tmp_path, new, "--use_unused")
    assert lines_of(extended) == [*VOCABULARY[:5], *new, *VOCABULARY[7:]]
    assert extended.config == tiny.CONFIG
    check_rows(extended, before, [5, 6], [["immun", "##o", "##logy"], ["corona", "##virus"]])


def test_too_few_unused_places(source, tmp_path):
    with pytest.raises(ValueError, match=r"4 new words, but .*vocab.txt has 3 \[unusedN\] places"):
        extend(source, tmp_path, ["ab", "abc", "abcd", "abcde"], "--use_unused")
    assert not (tmp_path / "extended").exists()


def test_old_tokens_are_scored_as_before(source, tmp_path):
    from bert_tf.modeling.models import BertPretrainer, named_variables

    batch = tiny.read_batch("model/inputs.json")

    def outputs(checkpoint):
        model = BertPretrainer(checkpoint.config)
        for name, variable in named_variables(model).items():
            variable.assign(checkpoint.get(name))
        found = model(batch)
        keys = ("sequence_output", "pooled_output", "next_sentence_logits", "masked_lm_logits")
        return {key: np.asarray(found[key]) for key in keys}

    found = outputs(restore.load(str(source)))
    grown = outputs(extend(source, tmp_path, ["immunology", "字"])[1])
    for key in ("sequence_output", "pooled_output", "next_sentence_logits"):
        np.testing.assert_allclose(grown[key], found[key], rtol=0, atol=1e-6, err_msg=key)
    logits = grown["masked_lm_logits"]
    assert logits.shape == (24, 122)
    golden = tiny.read_arrays("model/outputs_gelu.npz")
    old = logits[:, :120] - np.log(np.exp(logits[:, :120]).sum(axis=1, keepdims=True))
    np.testing.assert_allclose(old, golden["masked_lm_log_probs"], rtol=0, atol=1e-5)
    np.testing.assert_allclose(grown["sequence_output"], golden["encoder_layer_2"], atol=1e-5)
    # A new word is as likely as its pieces on (geometric) average.
    pieces = [ID[token] for token in ("immun", "##o", "##logy")]
    np.testing.assert_allclose(logits[:, 120], logits[:, pieces].mean(axis=1), atol=1e-5)
    np.testing.assert_allclose(logits[:, 121], logits[:, ID["[UNK]"]], atol=1e-5)


def test_new_words_are_found_in_texts(source, tmp_path):
    _, extended = extend(source, tmp_path, ["immunology", "##virus19"])
    old, new = BertTokenizer(str(source / "vocab.txt")), BertTokenizer(extended.vocab_file)
    assert old.tokenize("Immunology") == ["immun", "##o", "##logy"]
    assert new.tokenize("The Immunology - coronavirus19") == [
        "the", "immunology", "-", "corona", "##virus19",
    ]  # fmt: skip
    assert new.encode("the virus-1") == old.encode("the virus-1")


def test_slots_of_a_training_run_are_dropped(tmp_path):
    write_lines(tmp_path / "vocab.txt", VOCABULARY)
    _, extended = extend(
        SOURCE / "training",
        tmp_path,
        ["immunology"],
        vocab_file=tmp_path / "vocab.txt",
        bert_config_file=SOURCE / "bert_config.json",
    )
    run = restore.load(str(SOURCE / "training"))
    weights = [name for name in run.shapes if not names.excluded(name, names.EXCLUDED_ORIGINAL)]
    assert set(extended.shapes) == set(weights)
    check_rows(extended, run.tensors(weights), [120], [["immun", "##o", "##logy"]])


@pytest.mark.parametrize("folder", ["tiny_classifier", "tiny_squad"])
def test_other_heads_go_along(folder, tmp_path):
    write_lines(tmp_path / "vocab.txt", VOCABULARY)
    path = tiny.GOLDEN / "checkpoint" / folder
    _, extended = extend(path, tmp_path, ["immunology"], vocab_file=tmp_path / "vocab.txt")
    before = restore.load(str(path)).tensors()
    check_rows(extended, before, [120], [["immun", "##o", "##logy"]])


def test_huggingface_folder_and_its_case(tmp_path, caplog):
    caplog.set_level("INFO", logger="absl")
    source = tmp_path / "hf"
    shutil.copytree(tiny.GOLDEN / "conversions" / "huggingface", source)
    shutil.copy(source / "config_gelu_erf.json", source / "config.json")
    write_lines(source / "vocab.txt", VOCABULARY)
    with pytest.raises(ValueError, match=r"line 1: 'The' becomes 'the'\n.*--nodo_lower_case"):
        extend(source, tmp_path, ["The"])
    (source / "tokenizer_config.json").write_text('{"do_lower_case": false}')
    before = restore.load(str(source))
    _, extended = extend(source, tmp_path, ["The", "Café"])
    assert extended.kind == "original"
    assert extended.config == before.config.replace(vocab_size=122)
    assert extended.config.hidden_act == "gelu_erf"
    check_rows(extended, before.tensors(), [120, 121], [["[UNK]"], ["[UNK]"]])
    assert "hidden_act stays gelu_erf" in caplog.text
    assert "--nodo_lower_case" in caplog.text


@pytest.mark.parametrize("end", ["\n", "", "\r\n"])
def test_vocabulary_with_other_line_ends(end, source, tmp_path):
    newline = end or "\n"
    text = newline.join(VOCABULARY) + end
    (source / "vocab.txt").write_bytes(text.encode())
    _, extended = extend(source, tmp_path, ["immunology"])
    tokenizer = BertTokenizer(extended.vocab_file)
    assert tokenizer.vocab == {**ID, "immunology": 120}


def test_words_that_no_text_gives(source, tmp_path, caplog):
    new = [
        "covid-19", "COVID", "café", "corona字", "\u200b\ufeff", "a" * 201, "##", "##-x", "##A",
        "##" + "b" * 200, "fine", "##fine", "b" * 200,
    ]  # fmt: skip
    with pytest.raises(ValueError, match="never finds these") as caught:
        extend(source, tmp_path, new)
    message = str(caught.value)
    assert "line 1: 'covid-19' becomes 'covid' '-' '19'" in message
    assert "line 2: 'COVID' becomes 'covid'" in message
    assert "line 3: 'café' becomes 'cafe'" in message
    assert "line 4: 'corona字' becomes 'corona' '字'" in message
    assert "is dropped" in message
    assert "is longer than 200 characters" in message
    assert "line 8: '##-x' goes on with no word" in message
    assert "--skip_unmatchable" in message
    assert not (tmp_path / "extended").exists()

    found, extended = extend(source, tmp_path, new, "--skip_unmatchable")
    assert found.added == ("fine", "##fine", "b" * 200)
    assert list(found.unmatchable) == new[:10]
    assert lines_of(extended)[120:] == list(found.added)
    assert "10 left out" in caplog.text


def test_markers_that_are_never_split(source, tmp_path):
    before = restore.load(str(source)).tensors()
    with pytest.raises(ValueError, match=r"'\[E1\]' becomes '\[' 'e1' '\]'\n.*--never_split"):
        extend(source, tmp_path, ["[E1]"])
    _, extended = extend(source, tmp_path, ["[E1]"], never_split="[E1],[E2]")
    check_rows(extended, before, [120], [["[", "e", "##1", "]"]])
    tokenizer = BertTokenizer(extended.vocab_file, never_split=["[E1]"])
    assert tokenizer.encode("[E1]") == [120]


def test_marks_are_kept_where_the_scripts_keep_them(source, tmp_path):
    found, _ = extend(source, tmp_path, ["café"], strip_accents="false")
    assert found.added == ("café",)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "holds no words"),
        (b"\n \n\r\n", "holds no words"),
        (b"\xff\xfea\x00", "not UTF-8: byte 0xff in line 1"),
        (b"fine\nnot\xe9\n", "not UTF-8: byte 0xe9 in line 2"),
        (b"fine\n\ntwo words\n", "line 3: 'two words' holds white space"),
        ("a\u3000b\n".encode(), "line 1: .* holds white space"),
        (b"fine\nother\n fine\r\n", "line 3: 'fine' stands in line 1 too"),
        (b"the\nthe\n", "line 2: 'the' stands in line 1 too"),
        (b"the\nvirus\n", "nothing to add: of 2 words 2 are in the vocabulary"),
        (b"a b\n" * 12, r"(?s)line 10: .*and 2 more"),
    ],
)
def test_bad_files_of_words(content, message, source, tmp_path):
    words = tmp_path / "new.txt"
    words.write_bytes(content)
    with pytest.raises(ValueError, match=message) as caught:
        extend(source, tmp_path, [], new_tokens_file=words)
    assert "new.txt" in str(caught.value)
    assert not (tmp_path / "extended").exists()


def test_byte_order_mark_is_no_part_of_a_word(source, tmp_path):
    words = tmp_path / "new.txt"
    words.write_bytes("\ufefffine\r\n".encode())
    found, _ = extend(source, tmp_path, [], new_tokens_file=words)
    assert found.added == ("fine",)


def test_words_that_are_not_there(source, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no file of new words .*none\.txt"):
        extend(source, tmp_path, [], new_tokens_file=tmp_path / "none.txt")
    with pytest.raises(ValueError, match="is a folder"):
        extend(source, tmp_path, [], new_tokens_file=tmp_path)


def test_missing_flags_are_named():
    with pytest.raises(ValueError, match=r"(?s)--init_checkpoint.*--new_tokens_file.*--output_dir"):
        extend_vocabulary.main(["x"])


@pytest.mark.parametrize(("change", "hint"), [(-2, r"add 2 lines such as \[unused120\]"), (3, "")])
def test_vocabulary_of_another_size(change, hint, source, tmp_path):
    lines = (VOCABULARY + ["x", "y", "z"])[: 120 + change]
    write_lines(source / "vocab.txt", lines)
    with pytest.raises(ValueError, match=f"has {120 + change} lines, .* have 120 rows.*{hint}"):
        extend(source, tmp_path, ["immunology"])
    assert not (tmp_path / "extended").exists()


def test_configuration_of_another_size(source, tmp_path):
    tiny.CONFIG.replace(vocab_size=121).to_json_file(str(source / "bert_config.json"))
    with pytest.raises(restore.RestoreError, match=r"vocab_size 121.* 120 rows"):
        extend(source, tmp_path, ["immunology"])
    assert not (tmp_path / "extended").exists()


def test_what_lies_beside_the_checkpoint_is_needed(source, tmp_path):
    (source / "bert_config.json").rename(source / "c.json")
    with pytest.raises(ValueError, match=r"no bert_config.json beside .*--bert_config_file"):
        extend(source, tmp_path, ["immunology"])
    (source / "c.json").rename(source / "bert_config.json")
    (source / "vocab.txt").unlink()
    with pytest.raises(ValueError, match=r"no vocab.txt beside .*--vocab_file"):
        extend(source, tmp_path, ["immunology"])
    write_lines(source / "vocab.txt", ["x", *VOCABULARY[2:], "y"])
    with pytest.raises(ValueError, match=r"no token '\[UNK\]'"):
        extend(source, tmp_path, ["immunology"])
    assert not (tmp_path / "extended").exists()


def test_nothing_is_replaced(source, tmp_path):
    before = {path: path.read_bytes() for path in source.iterdir()}
    with pytest.raises(ValueError, match=r"vocab.txt, .* would be replaced"):
        extend(source, tmp_path, ["immunology"], output_dir=source)
    assert {path: path.read_bytes() for path in source.iterdir()} == before
    with pytest.raises(ValueError, match="is a file; name a folder"):
        extend(source, tmp_path, ["immunology"], output_dir=source / "vocab.txt")


@pytest.mark.parametrize("is_there", [True, False])
def test_failed_write_leaves_nothing(is_there, source, tmp_path, monkeypatch):
    if is_there:
        (tmp_path / "extended").mkdir()
        (tmp_path / "extended" / "notes.txt").write_text("mine")

    def full(*_):
        raise OSError("No space left on device")

    monkeypatch.setattr(original, "write", full)
    with pytest.raises(OSError, match="No space"):
        extend(source, tmp_path, ["immunology"])
    if is_there:
        assert [path.name for path in (tmp_path / "extended").iterdir()] == ["notes.txt"]
    else:
        assert not (tmp_path / "extended").exists()


@settings(deadline=None, max_examples=200)
@given(st.text("abclogyimunv1", min_size=1, max_size=12), st.sets(st.sampled_from(VOCABULARY)))
def test_old_pieces_are_the_tokenizer_s(word, missing):
    vocab = {token: number for token, number in ID.items() if token not in missing or number == 1}
    split = extend_vocabulary.OldPieces(vocab, BasicTokenizer())
    assert split(word) == WordpieceTokenizer(vocab).tokenize(word)
    # Behind a first piece that no longer one begins with.
    inner = {token: number for token, number in vocab.items() if token.startswith("##")}
    _, *rest = WordpieceTokenizer({"$": 0, **inner}).tokenize("$" + word)
    assert split("##" + word) == (rest or ["[UNK]"])


@settings(deadline=None, max_examples=300)
@given(
    st.text(st.sampled_from("abÀéßΣσ字號.#'\x85\u2028\u200d\u0301İ🙂한"), min_size=1, max_size=5),
    st.booleans(),
    st.sampled_from([None, True, False]),
)
def test_words_are_accepted_if_and_only_if_a_text_gives_them(word, lower, strip):
    basic = BasicTokenizer(lower, strip)
    if len(word.split()) == 1 and word == word.strip():
        vocab = {"[UNK]": 0, "q": 1, word: 2, f"##{word}": 3}
        tokenizer = BertTokenizer.from_vocab(vocab, lower, strip)
        accepted = not extend_vocabulary._why_unmatchable(word, basic)
        if not word.startswith("##"):
            assert accepted == (tokenizer.encode(word) == [2])
        accepted = not extend_vocabulary._why_unmatchable(f"##{word}", basic)
        assert accepted == (tokenizer.encode("q" + word) == [1, 3])


def test_configuration_is_read_by_its_flag(source, tmp_path):
    (source / "bert_config.json").rename(tmp_path / "c.json")
    (source / "vocab.txt").rename(tmp_path / "v.txt")
    _, extended = extend(
        source / "bert_model.ckpt",
        tmp_path,
        ["immunology"],
        bert_config_file=tmp_path / "c.json",
        vocab_file=tmp_path / "v.txt",
    )
    assert extended.config == BertConfig.from_json_file(str(tmp_path / "c.json")).replace(
        vocab_size=121
    )
