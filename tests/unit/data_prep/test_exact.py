"""The original's records, one by one."""

import functools

import pytest
from pretraining_texts import (
    GOLDEN,
    RUNS,
    flags_of,
    golden_settings,
    golden_tokenizer,
    read,
    segments,
    small_tokenizer,
)

from data_prep import exact
from data_prep.corpus import Corpus, Document
from data_prep.instances import RecordEncoder, Settings, Vocabulary
from data_prep.masking import Masking
from data_prep.packed_text import Packer

tokenizer_of = functools.cache(golden_tokenizer)


def run(tmp_path, text, settings, tokenizer=None, outputs=("out",)):
    tokenizer = tokenizer or small_tokenizer()
    (tmp_path / "text").write_bytes(text.encode())
    files = [str(tmp_path / name) for name in outputs]
    counts = exact.run(
        Corpus([str(tmp_path / "text")]),
        Packer(tokenizer),
        settings,
        Vocabulary.of(tokenizer),
        files,
    )
    return counts, [record for file in files for record in read(file)]


@pytest.mark.parametrize("name", RUNS)
def test_golden(tmp_path, name):
    tokenizer = tokenizer_of(name)
    flags = flags_of(name)
    shards = flags["output_file"].split(",")
    counts = exact.run(
        Corpus([str(GOLDEN / file) for file in flags["input_file"].split(",")]),
        Packer(tokenizer),
        golden_settings(name),
        Vocabulary.of(tokenizer),
        [str(tmp_path / shard) for shard in shards],
    )
    total = 0
    for shard in shards:
        expected = read(GOLDEN / name / shard)
        found = read(tmp_path / shard)
        assert len(found) == len(expected)
        for number, (one, other) in enumerate(zip(found, expected)):
            assert one == other, f"{shard}, record {number}"
        total += len(found)
    assert counts.instances == total
    labels = [r["next_sentence_labels"] for s in shards for r in read(tmp_path / s)]
    assert counts.random_next == labels.count([1])


SMALL = Settings(16, Masking(max_predictions=3), 0.0, 3, 7)


@pytest.mark.parametrize(
    "text",
    [
        "a b\n\nc d\ne f\n",
        "a b\r\n\r\nc d\r\ne f\r\n",
        "a b\n \t\nc d\ne f\n",
        "a b\n\n\n\nc d\ne f\n",
        "\ufeffa b\n\nc d\ne f\n",
    ],
)
def test_nine_instances_however_the_text_is_written(tmp_path, text):
    counts, records = run(tmp_path, text, SMALL)
    assert counts.instances == len(records) == 9
    assert (counts.documents, counts.sentences, counts.tokens) == (2, 3, 6)
    (tmp_path / "again").mkdir()
    _, plain = run(tmp_path / "again", "a b\n\nc d\ne f\n", SMALL)
    assert records == plain
    assert counts.warnings(SMALL) == []


def test_one_sentence_documents_are_all_random_and_warned_of(tmp_path):
    settings = Settings(16, Masking(max_predictions=3), 0.0, 2, 7)
    counts, records = run(tmp_path, "a b\n\nc d\n", settings)
    assert [record["next_sentence_labels"] for record in records] == [[1]] * 4
    (warning,) = counts.warnings(settings)
    assert "2 documents, 2 sentences" in warning


def test_one_document_keeps_the_originals_quirk_and_warns(tmp_path):
    tokenizer = small_tokenizer()
    packer, vocabulary = Packer(tokenizer), Vocabulary.of(tokenizer)
    text = packer.pack([Document(0, ["a b", "c d", "e f"])])
    total = contiguous = same = 0
    for seed in range(200):
        settings = Settings(16, Masking(max_predictions=3), 0.0, 1, seed)
        packed, counts = exact.make_instances(text, settings, vocabulary)
        encode = RecordEncoder(settings, vocabulary.size).encode
        file = tmp_path / "f"
        file.write_bytes(b"".join(map(encode, packed)))
        assert counts.same_document == counts.random_next
        assert "one document" in counts.warnings(settings)[0]
        for record in read(file):
            total += 1
            if record["next_sentence_labels"] == [1]:
                a, b = segments(record)
                contiguous += (*a, *b) in {(5, 6, 7, 8), (7, 8, 9, 10), (5, 6, 7, 8, 9, 10)}
                same += a == b
    assert (total, contiguous, same) == (323, 28, 29)


def test_whole_words_can_run_over_sep_as_in_the_original(tmp_path):
    tokenizer = small_tokenizer("x ##y ##z")
    text = "\n\n".join(["xyzyzyzyz " * 4] * 3)
    settings = Settings(24, Masking("whole_word", 8, 0.3), 0.0, 20, 1)
    _, records = run(tmp_path, text, settings, tokenizer)
    over = 0
    for record in records:
        count = int(sum(record["masked_lm_weights"]))
        places = record["masked_lm_positions"][:count]
        sep = record["segment_ids"].index(1) - 1
        over += sep - 1 in places and sep + 1 in places
    assert over


def test_an_empty_corpus(tmp_path):
    with pytest.raises(ValueError, match="the corpus is empty"):
        run(tmp_path, "\n \n\u200b\n", SMALL)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "settings", [Settings(masking=Masking("ngram")), Settings(dynamic_masking=True)]
)
def test_what_the_original_does_not_have(tmp_path, settings):
    with pytest.raises(ValueError, match="--mode=streaming"):
        run(tmp_path, "a\n", settings)


def test_shares(tmp_path):
    text = "\n".join(["a b c d e f g h"] * 400)
    settings = Settings(64, Masking("static", 20, 0.3, 0.5, 0.0), 0.0, 5, 1)
    counts, records = run(tmp_path, text, settings)
    masked = kept = 0
    for record in records:
        count = int(sum(record["masked_lm_weights"]))
        for place, label in zip(record["masked_lm_positions"][:count], record["masked_lm_ids"]):
            masked += record["input_ids"][place] == 4
            kept += record["input_ids"][place] == label
    assert masked + kept == counts.masked > 3000
    assert abs(kept / counts.masked - 0.5) < 0.03
