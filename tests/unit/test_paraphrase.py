"""The demo's sentence pairs: generated as shipped, balanced, and not solved by a shortcut."""

import importlib.util
import sys
from collections import Counter
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "paraphrase"
SPLITS = {"train": 800, "dev": 200, "test": 200}


@pytest.fixture(scope="module")
def generate():
    spec = importlib.util.spec_from_file_location("paraphrase_generate", FOLDER / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses looks its module up there
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def pairs():
    """split -> rows, read from the files without the generator's help."""
    result = {}
    for split in SPLITS:
        lines = (FOLDER / f"{split}.tsv").read_text(encoding="utf-8").split("\n")
        assert lines[0] == "sentence1\tsentence2\tlabel"
        assert lines.pop() == ""
        result[split] = [tuple(line.split("\t")) for line in lines[1:]]
    return result


def test_files_are_what_the_script_writes(generate):
    for split, rows in generate.generate().items():
        text = (FOLDER / f"{split}.tsv").read_text(encoding="utf-8")
        assert text == generate.render(rows), f"{split}.tsv: run examples/paraphrase/generate.py"


def test_sizes_and_balance(pairs):
    for split, size in SPLITS.items():
        labels = Counter(label for _, _, label in pairs[split])
        assert labels == {"paraphrase": size // 2, "different": size // 2}


def test_sentences_look_like_sentences(pairs):
    sentences = [sentence for rows in pairs.values() for row in rows for sentence in row[:2]]
    for sentence in sentences:
        assert sentence[0].isupper()
        assert sentence.endswith(".")
        assert not set(sentence) & set("{}[]|"), sentence
        assert "  " not in sentence
        assert 10 <= len(sentence.split()) <= 20, sentence


def test_no_sentence_is_in_two_pairs(pairs):
    rows = [row for split in pairs.values() for row in split]
    assert all(first != second for first, second, _ in rows)
    sentences = [sentence for row in rows for sentence in row[:2]]
    assert len(set(sentences)) == len(sentences)


def test_neither_a_word_nor_overlap_gives_the_label_away(generate, pairs):
    rows = [row for split in pairs.values() for row in split]
    accuracies = generate.shortcut_accuracies(rows)
    assert 0.5 <= accuracies["word"] < 0.6
    assert 0.5 <= accuracies["overlap"] < 0.6


def test_shortcuts_are_found_where_there_are_some(generate):
    by_word = [
        ("The man is not here.", "A dog ran.", "different"),
        ("The man is here.", "A cat ran.", "paraphrase"),
        ("We do not know.", "A dog sat.", "different"),
        ("We all know.", "A bird sat.", "paraphrase"),
    ]
    assert generate.shortcut_accuracies(by_word)["word"] == 1.0
    by_overlap = [
        ("a b c d", "a b c d e", "paraphrase"),
        ("f g h i", "f j k l m", "different"),
        ("n o p q", "n o p q r", "paraphrase"),
        ("s t u v", "s w x y z", "different"),
    ]
    assert generate.shortcut_accuracies(by_overlap)["overlap"] == 1.0
    either_side = [
        (a, b, "different" if c == "paraphrase" else "paraphrase") for a, b, c in by_word
    ]
    assert generate.shortcut_accuracies(either_side)["word"] == 1.0
