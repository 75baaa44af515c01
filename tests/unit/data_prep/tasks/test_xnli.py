import pytest

from data_prep.tasks import get_task
from data_prep.tasks.base import Example

HEADER = "language\tgold_label\tp\tp\tp\tp\tsentence1\tsentence2\tmore\n"


def _row(language, label, number):
    return f"{language}\t{label}\t\t\t\t\ta{number}\tb{number}\tz\n"


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "multinli").mkdir()
    (tmp_path / "multinli" / "multinli.train.de.tsv").write_text(
        "premise\thypo\tlabel\na\tb\tcontradictory\nc\td\tneutral\n", "utf-8"
    )
    text = HEADER + _row("de", "neutral", 1) + _row("fr", "entailment", 2) + _row("de", "-", 3)
    (tmp_path / "xnli.test.tsv").write_text(text, "utf-8")
    (tmp_path / "xnli.dev.tsv").write_text(text.replace("-", "contradiction"), "utf-8")
    return str(tmp_path)


def test_training_set(folder):
    assert get_task("XNLI", language="de").read_examples(folder, "train") == [
        Example("train-1", "a", "b", "contradiction"),
        Example("train-2", "c", "d", "neutral"),
    ]


def test_only_the_language_is_read(folder):
    task = get_task("xnli", language="de")
    assert task.read_examples(folder, "dev") == [
        Example("dev-1", "a1", "b1", "neutral"),
        Example("dev-3", "a3", "b3", "contradiction"),
    ]
    assert task.read_examples(folder, "test") == [
        Example("test-1", "a1", "b1", None),
        Example("test-3", "a3", "b3", None),
    ]
    assert len(get_task("xnli", language="fr").read_examples(folder, "dev")) == 1


def test_language_that_is_not_there(folder):
    with pytest.raises(ValueError, match="no rows in the language 'sw'; it has de, fr"):
        get_task("XNLI", language="sw").read_examples(folder, "dev")
    with pytest.raises(FileNotFoundError, match=r"multinli\.train\.sw\.tsv does not exist"):
        get_task("XNLI", language="sw").read_examples(folder, "train")


def test_short_rows_and_labels(folder, tmp_path):
    (tmp_path / "xnli.dev.tsv").write_text(HEADER + "de\tneutral\n", "utf-8")
    with pytest.raises(ValueError, match="line 2: expected at least 8 columns, found 2"):
        get_task("XNLI", language="de").read_examples(folder, "dev")
    (tmp_path / "xnli.dev.tsv").write_text(HEADER + _row("de", "maybe", 1), "utf-8")
    with pytest.raises(ValueError, match="line 2: the label 'maybe'"):
        get_task("XNLI", language="de").read_examples(folder, "dev")
