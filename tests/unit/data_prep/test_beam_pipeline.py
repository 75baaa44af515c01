"""The same instances on Apache Beam; needs apache-beam, in an environment of its own."""

import collections
import os

import pytest
from pretraining_texts import GOLDEN, golden_tokenizer, read, segments, small_tokenizer

pytest.importorskip("apache_beam", reason="apache-beam is not installed (make test-beam)")

from data_prep import beam_pipeline
from data_prep.inspect import Checker
from data_prep.instances import Settings
from data_prep.masking import Masking
from data_prep.records import output_files, parse_example, read_records

pytestmark = pytest.mark.beam

PROCESSES = "--direct_num_workers=2 --direct_running_mode=multi_processing"
SMALL = Settings(24, Masking(max_predictions=3), 0.1, 2, 7)


def make(
    folder,
    files,
    options=SMALL,
    tokenizer=None,
    pattern="out@2.tfrecord",
    options_text="",
    **kwargs,
):
    outputs = output_files(str(folder / pattern))
    counts = beam_pipeline.run(
        [str(file) for file in files],
        tokenizer or small_tokenizer(),
        options,
        outputs,
        options=options_text,
        **kwargs,
    )
    return counts, [record for file in outputs for record in read(file)]


def as_set(found):
    return collections.Counter(map(repr, found))


def texts(tmp_path, files=3, documents=10, sentences=8):
    places, number, paths = {}, 0, []
    for file in range(files):
        lines = []
        for document in range(documents):
            for place in range(sentences):
                lines.append(f"w{number} w{number + 1}")
                for word in (number, number + 1):
                    places[word + 5] = (file, document), 2 * place + word - number
                number += 2
            lines.append("")
        paths.append(tmp_path / f"text{file}")
        paths[-1].write_text("\n".join(lines))
    return paths, places, small_tokenizer(" ".join(f"w{i}" for i in range(number)))


def test_instances_do_not_depend_on_the_processes(tmp_path):
    files, places, tokenizer = texts(tmp_path)
    counts, one = make(tmp_path / "1", files, tokenizer=tokenizer)
    several, two = make(tmp_path / "2", files[::-1], tokenizer=tokenizer, options_text=PROCESSES)
    assert counts == several
    assert as_set(one) == as_set(two)
    assert counts.documents == 30
    assert counts.instances == len(one)
    sources = set()
    for record in one:
        a, b = ([places[token] for token in part] for part in segments(record))
        assert len({d for d, _ in a}) == len({d for d, _ in b}) == 1
        if record["next_sentence_labels"] == [1]:
            assert a[0][0] != b[0][0]
            sources.add(b[0][0])
        else:
            assert a[0][0] == b[0][0]
            assert a[-1][1] < b[0][1]
    assert len(sources) > 20
    for folder in "12":
        assert sorted(os.listdir(tmp_path / folder)) == [
            "out-00000-of-00002.tfrecord",
            "out-00001-of-00002.tfrecord",
        ]


def test_golden_corpus_compressed_in_one_file(tmp_path):
    tokenizer = golden_tokenizer("run1_base")
    options = Settings(64, Masking("whole_word", 10), 0.1, 1, 3)
    counts, found = make(
        tmp_path, [GOLDEN / "corpus.txt"], options, tokenizer, "out.gz", compress=True
    )
    assert counts.sentences == 312
    assert len(found) == counts.instances
    checker = Checker(tokenizer)
    for record in read_records(str(tmp_path / "out.gz")):
        assert checker.check(parse_example(record)) == []


def test_errors(tmp_path):
    empty = tmp_path / "empty"
    empty.write_text("\n")
    with pytest.raises(ValueError, match="the corpus is empty"):
        make(tmp_path / "o", [empty])
    assert os.listdir(tmp_path / "o") == []
    bad = tmp_path / "bad"
    bad.write_bytes(b"a\n\xff\n")
    with pytest.raises(ValueError, match=r"bad: byte 2 \(0xff"):
        make(tmp_path / "p", [bad])
    with pytest.raises(ValueError, match="standard input"):
        make(tmp_path / "p", ["-"])
    with pytest.raises(ValueError, match="by a pattern"):
        beam_pipeline.run([], small_tokenizer(), SMALL, ["a", "b"])
