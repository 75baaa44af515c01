"""The streaming mode: the output depends on the texts and the seed alone, and is right."""

import collections
import functools
import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pretraining_texts import GOLDEN, corpora, golden_tokenizer, read, segments, small_tokenizer

from data_prep import parallel, records
from data_prep.corpus import Document
from data_prep.inspect import Checker
from data_prep.instances import Settings
from data_prep.masking import Masking
from data_prep.parallel import TokenSettings

SMALL = Settings(16, Masking(max_predictions=3), 0.1, 3, 7)
uncased = functools.cache(lambda: golden_tokenizer("run1_base"))


class InProcess:
    """Stands for the pool of worker processes: several workers in turn, out of order."""

    def __init__(self, count, make, arguments):
        self.workers = [make(*arguments, number) for number in range(count)]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def run(self, method, tasks):
        count = len(self.workers)
        done = [
            (number, getattr(self.workers[(number * 7 + 3) % count], method)(*task))
            for number, (_, task) in enumerate(tasks)
        ]
        yield from done[::-1] if count > 1 else done


def shrink(monkeypatch):
    """Takes no processes, and makes many chunks and buckets even of a small text."""
    monkeypatch.setattr(parallel, "Pool", InProcess)
    monkeypatch.setattr(parallel, "_FIRST_CHUNK", 60)
    monkeypatch.setattr(parallel, "_CHUNK", 200)
    monkeypatch.setattr(parallel, "_BUCKET", 2000)


@pytest.fixture
def in_process(monkeypatch):
    shrink(monkeypatch)


def make(folder, files, options=SMALL, tokenizer=None, workers=1, outputs=("out",), **kwargs):
    folder.mkdir(exist_ok=True)
    counts = parallel.run(
        [str(file) for file in files],
        tokenizer or small_tokenizer(),
        options,
        [str(folder / name) for name in outputs],
        num_workers=workers,
        **kwargs,
    )
    return counts, [read(folder / name) for name in outputs]


def write(path, text):
    path.write_text(text)
    return path


@settings(deadline=None, max_examples=25)
@given(corpora(), st.integers(0, 99), st.integers(1, 4), st.integers(2, 5))
def test_workers_do_not_matter(tmp_path_factory, text, seed, files, workers):
    with pytest.MonkeyPatch.context() as patch:
        shrink(patch)
        folder = tmp_path_factory.mktemp("w")
        source = write(folder / "text", text)
        options = Settings(16, Masking(max_predictions=3), 0.1, 3, seed)
        outputs = [f"out-{i}" for i in range(files)]
        one = make(folder / "1", [source], options, workers=1, outputs=outputs)
        many = make(folder / "n", [source], options, workers=workers, outputs=outputs)
        assert one == many
        sizes = [len(shard) for shard in one[1]]
        assert max(sizes) - min(sizes) <= 1
        assert sum(sizes) == one[0].instances


def test_real_processes_give_the_same(tmp_path):
    files = [GOLDEN / "corpus.txt", GOLDEN / "corpus2.txt"]
    options = Settings(64, Masking(max_predictions=10), 0.1, 2, 3)
    results = [
        make(tmp_path / str(n), files, options, uncased(), n, ("a", "b", "c")) for n in (1, 2)
    ]
    assert results[0] == results[1]
    for n in (1, 2):
        assert sorted(os.listdir(tmp_path / str(n))) == ["a", "b", "c"]


def test_each_duplicate_and_seed_is_masked_anew(tmp_path, in_process):
    source = write(tmp_path / "text", "a b c d\ne f g h\na c e g\n\nb d f h\nh g f e\n" * 4)
    _, (first,) = make(tmp_path / "1", [source])
    _, (other,) = make(
        tmp_path / "2", [source], Settings(16, Masking(max_predictions=3), 0.1, 3, 8)
    )
    assert first != other
    masks = {tuple(record["input_ids"]) for record in first}
    assert len(masks) > 0.9 * len(first)


def distinct_sentences(documents, sentences, words=4):
    """A text in which each word occurs once, and where each word is: (document, place)."""
    places, lines, number = {}, [], 0
    for document in range(documents):
        place = 0
        for _ in range(sentences):
            line = []
            for _ in range(words):
                line.append(f"w{number}")
                places[number + 5] = document, place
                number += 1
                place += 1
            lines.append(" ".join(line))
        lines.append("")
    return "\n".join(lines), places, number


def test_every_label_is_true_and_nothing_is_lost(tmp_path, in_process):
    text, places, count = distinct_sentences(30, 12)
    tokenizer = small_tokenizer(" ".join(f"w{i}" for i in range(count)))
    options = Settings(32, Masking(max_predictions=5), 0.1, 2, 1)
    source = write(tmp_path / "text", text)
    counts, (found,) = make(tmp_path / "o", [source], options, tokenizer, 2)
    seen = collections.Counter()
    sources = collections.defaultdict(set)
    for record in found:
        a, b = ([places[token] for token in part] for part in segments(record))
        for part in (a, b):
            # A segment is a run of one document's words.
            assert len({document for document, _ in part}) == 1
            assert [place for _, place in part] == list(range(part[0][1], part[-1][1] + 1))
        if record["next_sentence_labels"] == [1]:
            assert a[0][0] != b[0][0]
            sources[a[0][0]].add(b[0][0])
        else:
            assert a[0][0] == b[0][0]
            assert a[-1][1] < b[0][1]
            seen.update(a + b)
        seen.update(a)
    # What is cut away apart, each word is in some instance.
    assert len(seen) > 0.95 * count
    # Random second segments come from everywhere.
    assert len(set().union(*sources.values())) == 30
    assert 0.4 < counts.random_next / counts.instances < 0.7


def test_the_shuffle_is_global(tmp_path, in_process):
    text, places, count = distinct_sentences(40, 20)
    tokenizer = small_tokenizer(" ".join(f"w{i}" for i in range(count)))
    source = write(tmp_path / "text", text)
    options = Settings(24, Masking(max_predictions=3), 0.0, 2, 1)
    _, shards = make(tmp_path / "o", [source], options, tokenizer, 1, ("a", "b"))
    order = [places[segments(record)[0][0]][0] for shard in shards for record in shard]
    # Where an instance stands tells nothing of the document it comes from ...
    correlation = np.corrcoef(order, np.arange(len(order)))[0, 1]
    assert len(order) > 400
    assert abs(correlation) < 4 / len(order) ** 0.5
    # ... nor does its neighbour.
    assert abs(np.corrcoef(order[1:], order[:-1])[0, 1]) < 4 / len(order) ** 0.5


def test_one_document_has_no_false_labels(tmp_path, in_process):
    source = write(tmp_path / "text", "a b\nc d\ne f\n")
    options = Settings(16, Masking(max_predictions=3), 0.0, 20, 1)
    counts, (found,) = make(tmp_path / "o", [source], options)
    assert len(found) == 20
    assert counts.random_next == 0
    assert all(record["next_sentence_labels"] == [0] for record in found)
    assert "one document" in counts.warnings(options)[0]


def test_a_long_document_in_parts_is_one(tmp_path, in_process):
    source = write(tmp_path / "text", "a b c d e f g h\n" * 200)
    counts, (found,) = make(tmp_path / "o", [source])
    assert counts.documents == 1
    assert counts.sentences == 200
    assert counts.random_next == 0
    assert found


def test_one_sentence_alone(tmp_path, in_process):
    source = write(tmp_path / "text", "a b\n")
    with pytest.raises(ValueError, match="no instance could be made"):
        make(tmp_path / "o", [source])
    assert os.listdir(tmp_path / "o") == []


def test_an_empty_corpus(tmp_path, in_process):
    with pytest.raises(ValueError, match="the corpus is empty"):
        make(tmp_path / "o", [write(tmp_path / "text", " \n\n")])
    assert os.listdir(tmp_path / "o") == []


def test_more_files_than_instances(tmp_path, in_process):
    source = write(tmp_path / "text", "a b\n\nc d\n")
    options = Settings(16, Masking(max_predictions=3), 0.0, 1, 1)
    _, shards = make(tmp_path / "o", [source], options, outputs=[f"o{i}" for i in range(5)])
    assert [len(shard) for shard in shards].count(0) == 3


def test_whole_words_stop_at_sep(tmp_path, in_process):
    tokenizer = small_tokenizer("x ##y ##z")
    source = write(tmp_path / "text", "\n\n".join(["xyzyzyzyz " * 4] * 8))
    options = Settings(24, Masking("whole_word", 8, 0.3), 0.0, 20, 1)
    _, (found,) = make(tmp_path / "o", [source], options, tokenizer)
    whole = 0
    for record in found:
        count = int(sum(record["masked_lm_weights"]))
        places = record["masked_lm_positions"][:count]
        sep = record["segment_ids"].index(1) - 1
        # The 8 tokens of the budget hold a part of a word on one side of [SEP] only if that part
        # is a word of its own there.
        labels = dict(zip(places, record["masked_lm_ids"]))
        for place in places:
            begins = place in (1, sep + 1) or labels[place] == 5
            assert begins or place - 1 in places
        whole += count
    assert whole


def test_compressed_output(tmp_path, in_process):
    source = write(tmp_path / "text", "a b\nc d\n\nc d\ne f\n" * 9)
    plain = make(tmp_path / "1", [source], outputs=("a", "b"))
    packed = make(tmp_path / "2", [source], outputs=("a", "b"), compress=True)
    assert plain == packed
    assert (tmp_path / "2" / "a").read_bytes()[:2] == b"\x1f\x8b"


def test_dynamic_masking_leaves_the_text(tmp_path, in_process):
    source = write(tmp_path / "text", "a b\nc d\n\nc d\ne f\n" * 9)
    options = Settings(16, Masking(max_predictions=3), 0.0, 1, 1, dynamic_masking=True)
    counts, (found,) = make(tmp_path / "o", [source], options)
    assert counts.masked == 0
    assert all(len(record) == 4 and 4 not in record["input_ids"] for record in found)


def test_tokens_are_used_again(tmp_path, in_process, monkeypatch):
    source = write(tmp_path / "text", "a b\nc d\n\nc d\ne f\n" * 9)
    cache = str(tmp_path / "cache")
    long = Settings(32, Masking(max_predictions=3), 0.0, 1, 1)
    wanted = make(tmp_path / "1", [source], long)
    first = make(tmp_path / "2", [source], token_cache=cache)
    monkeypatch.setattr(parallel.Worker, "tokenize", None)
    assert make(tmp_path / "3", [source], long, token_cache=cache) == wanted
    assert make(tmp_path / "4", [source], token_cache=cache) == first
    with pytest.raises(ValueError, match="holds the tokens of another run: do_lower_case"):
        make(tmp_path / "5", [source], tokenizer=small_tokenizer(do_lower_case=False),
             token_cache=cache)  # fmt: skip
    with pytest.raises(ValueError, match="vocabulary"):
        make(tmp_path / "5", [source], tokenizer=small_tokenizer("a"), token_cache=cache)
    source.write_text("a b\n")
    with pytest.raises(ValueError, match="files"):
        make(tmp_path / "5", [source], token_cache=cache)
    with open(os.path.join(cache, "tokens.json"), "w") as file:
        file.write("{")
    with pytest.raises(ValueError, match="damaged"):
        make(tmp_path / "5", [source], token_cache=cache)


def test_an_edited_corpus_of_the_same_size_is_another(tmp_path, in_process, monkeypatch):
    source = write(tmp_path / "text", "a b\nc d\n\nc d\ne f\n" * 9)
    cache = str(tmp_path / "cache")
    make(tmp_path / "1", [source], token_cache=cache)
    source.write_text("b a\nc d\n\nc d\ne f\n" * 9)
    with pytest.raises(ValueError, match=r"another run: the contents of \S+text differ; give"):
        make(tmp_path / "2", [source], token_cache=cache)
    source.write_text("a b\n")
    monkeypatch.setattr(parallel, "digests", None)  # The size tells without reading.
    with pytest.raises(ValueError, match="another run: files differ"):
        make(tmp_path / "2", [source], token_cache=cache)
    assert not os.listdir(tmp_path / "2")


def test_a_damaged_cache(tmp_path, in_process):
    source = write(tmp_path / "text", "a b\nc d\n\nc d\ne f\n" * 9)
    cache = tmp_path / "cache"
    make(tmp_path / "1", [source], token_cache=str(cache))
    chunk = cache / "chunk-000001.tok"
    data = bytearray(chunk.read_bytes())
    data[-1] ^= 4
    chunk.write_bytes(data)
    with pytest.raises(ValueError, match=r"chunk-000001.tok is damaged.*delete the") as caught:
        make(tmp_path / "2", [source], token_cache=str(cache))
    assert str(cache) in str(caught.value)
    chunk.unlink()
    with pytest.raises(ValueError, match=r"chunk-000001.tok is missing; delete the folder"):
        make(tmp_path / "2", [source], token_cache=str(cache))


def test_an_error_leaves_no_temporary_file_in_the_cache(tmp_path, in_process, monkeypatch):
    source = write(tmp_path / "text", "a b\nc d\n\nc d\ne f\n" * 9)
    cache = tmp_path / "cache"

    def killed(self, path):
        # As a worker that is ended while it writes.
        with open(path + ".tmp", "wb"):
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(parallel.PackedText, "save", killed)
    with pytest.raises(OSError, match="No space left"):
        make(tmp_path / "o", [source], token_cache=str(cache))
    assert os.listdir(cache) == []


def test_a_cache_that_was_not_finished_is_made_anew(tmp_path, in_process):
    source = write(tmp_path / "text", "a b\nc d\n\nc d\ne f\n" * 9)
    cache = tmp_path / "cache"
    cache.mkdir()
    (cache / "chunk-000000.tok").write_text("half")
    assert make(tmp_path / "1", [source], token_cache=str(cache)) == make(tmp_path / "2", [source])


def test_bad_text_ends_all(tmp_path):
    source = tmp_path / "text"
    source.write_bytes(b"a b\n\nc \xff\n")
    with pytest.raises(ValueError, match="byte 7"):
        make(tmp_path / "o", [source])
    assert os.listdir(tmp_path / "o") == []


def test_a_full_disk(tmp_path, in_process, monkeypatch):
    source = write(tmp_path / "text", "a b\nc d\n\nc d\ne f\n" * 9)
    monkeypatch.setattr(parallel, "_check_space", lambda folder, needed: None)

    def full(self, path):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(parallel.PackedText, "save", full)
    with pytest.raises(OSError, match="No space left on device while writing") as caught:
        make(tmp_path / "o", [source])
    assert "chunk-000000.tok" in caught.value.filename
    assert os.listdir(tmp_path / "o") == []


def test_a_disk_that_is_too_small(tmp_path):
    with pytest.raises(OSError, match="name a folder on a larger disk with --work_dir"):
        parallel._check_space(str(tmp_path), 1 << 60)


def test_bad_arguments(tmp_path):
    with pytest.raises(ValueError, match="num_workers is 0"):
        make(tmp_path / "o", [], workers=0)
    with pytest.raises(ValueError, match="local folders"):
        make(tmp_path / "o", [], token_cache="gs://b/x")
    with pytest.raises(ValueError, match="--token_cache does not go with standard input"):
        make(tmp_path / "o", ["-"], token_cache=str(tmp_path / "cache"))


def test_statistics_on_a_real_text(tmp_path, in_process, monkeypatch):
    """15%, 80 / 10 / 10 and about half random, on the golden's corpus many times over."""
    options = Settings(128, Masking(), 0.1, 20, 5)
    counts, (found,) = make(tmp_path / "o", [GOLDEN / "corpus.txt"], options, uncased())
    checker = Checker(uncased())
    for record in records.read_records(str(tmp_path / "o" / "out")):
        assert checker.check(records.parse_example(record)) == []
    total = checker.summary
    assert total.masked == counts.masked
    assert total.masked > 20000
    assert abs(total.masked / total.tokens - 0.15) < 0.003
    assert abs(total.to_mask_token / total.masked - 0.8) < 0.01
    # One random token in 30,522 is the token itself.
    assert abs(total.kept / total.masked - 0.1) < 0.008
    # Half, and those with a single sentence in the first place (the documents are short).
    assert 0.5 < total.random_next / total.records < 0.67
    assert len(found) == total.records


def test_cuts():
    assert parallel.cuts([3, 0, 4], 2) == [[(0, 0, 3)], [], [(1, 0, 4)]]
    assert parallel.cuts([5, 5], 3) == [[(0, 0, 3), (1, 3, 5)], [(1, 0, 1), (2, 1, 5)]]
    assert parallel.cuts([1], 3) == [[(2, 0, 1)]]


@settings(deadline=None, max_examples=100)
@given(st.lists(st.integers(0, 20), min_size=1, max_size=10), st.integers(1, 12))
def test_cuts_cover_everything_in_order(in_buckets, files):
    result = parallel.cuts(in_buckets, files)
    sizes = [0] * files
    before = 0
    for size, pieces in zip(in_buckets, result):
        assert [first for _, first, _ in pieces] == [0, *(last for *_, last in pieces)][
            : len(pieces)
        ]
        assert sum(last - first for _, first, last in pieces) == size
        for file, first, last in pieces:
            assert file >= before
            before = file
            sizes[file] += last - first
    assert max(sizes) - min(sizes) <= 1


def test_chunks_depend_on_the_documents_alone(tmp_path, in_process):
    documents = [Document(i, ["x" * 25]) for i in range(40)]
    sizes = [len(chunk) for chunk in parallel.chunks(documents)]
    assert sum(sizes) == 40
    assert sizes[:8] == [3] * 8
    assert sizes[8] == 5
    assert list(parallel.chunks([])) == []


def test_options_of_texts(tmp_path, in_process):
    source = write(tmp_path / "text", '{"text": "a b\\nc d"}\n{"text": "e f\\ng h"}\n')
    options = TokenSettings(input_format="wikiextractor")
    counts, _ = make(tmp_path / "o", [source], token_settings=options)
    assert (counts.documents, counts.sentences) == (2, 4)
