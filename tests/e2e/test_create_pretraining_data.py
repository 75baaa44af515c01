"""create_pretraining_data.py as a user runs it."""

import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest
from pretraining_texts import flags_of, golden_tokenizer, read

import create_pretraining_data as script
from bert_tf import paths
from bert_tf.cli.command_line import CommandLineError
from data_prep import records

ROOT = pathlib.Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "golden" / "pretraining_data"


@pytest.fixture(scope="module")
def vocab(tmp_path_factory):
    """The uncased vocabulary, as far as the goldens know it."""
    file = tmp_path_factory.mktemp("vocab") / "vocab.txt"
    tokens = golden_tokenizer("run1_base").vocab
    file.write_text("\n".join(token.replace("\0", "[x]") for token in tokens) + "\n")
    return str(file)


def run(*arguments):
    return script.main(["create_pretraining_data.py", *map(str, arguments)])


def flags(vocab, output, source=GOLDEN / "corpus.txt"):
    return [f"--input_file={source}", f"--output_file={output}", f"--vocab_file={vocab}"]


@pytest.mark.parametrize("name", ["run3_whole_word", "run4_two_files_two_shards"])
def test_the_originals_flags_give_the_originals_records(tmp_path, vocab, name):
    golden = flags_of(name)
    arguments = []
    for flag, value in golden.items():
        if flag == "vocab":
            arguments.append(f"--vocab_file={vocab}")
        elif flag in ("input_file", "output_file"):
            folder = GOLDEN if flag == "input_file" else tmp_path
            paths = ",".join(str(folder / part) for part in value.split(","))
            arguments.append(f"--{flag}={paths}")
        else:
            arguments.append(f"--{flag}={value}")
    run(*arguments)
    for shard in golden["output_file"].split(","):
        assert read(tmp_path / shard) == read(GOLDEN / name / shard)


def test_the_originals_flags_are_all_there():
    defaults = {
        "input_file": None, "output_file": None, "vocab_file": None, "do_lower_case": True,
        "do_whole_word_mask": False, "max_seq_length": 128, "max_predictions_per_seq": 20,
        "random_seed": 12345, "dupe_factor": 10, "masked_lm_prob": 0.15, "short_seq_prob": 0.1,
    }  # fmt: skip
    for name, default in defaults.items():
        assert script.CLI.flags[name].default == default


def command(*arguments, **options):
    return subprocess.Popen(
        [sys.executable, "create_pretraining_data.py", *map(str, arguments)],
        cwd=ROOT,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        **options,
    )


def test_streaming_with_processes_from_standard_input(tmp_path, vocab):
    output = tmp_path / "o" / "x@3.tfrecord.gz"
    with command(
        *flags(vocab, output, "-"), "--num_workers=2", "--dupe_factor=2", "--gzip",
        stdin=subprocess.PIPE,
    ) as process:  # fmt: skip
        _, log = process.communicate((GOLDEN / "corpus.txt").read_text())
    assert process.returncode == 0, log
    assert "tensorflow" not in log
    assert "documents 41, sentences 312" in log
    names = sorted(os.listdir(tmp_path / "o"))
    assert names == [f"x-0000{i}-of-00003.tfrecord.gz" for i in range(3)]
    files = [record for name in names for record in read(tmp_path / "o" / name)]
    run(*flags(vocab, tmp_path / "same"), "--mode=streaming", "--dupe_factor=2")
    assert read(tmp_path / "same") == files


def children(pid):
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        try:
            stat = (entry / "stat").read_text().rpartition(")")[2].split()
            if int(stat[1]) == pid and b"spawn_main" in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
        except (OSError, ValueError, IndexError):
            continue
    return found


@pytest.mark.skipif(not os.path.exists("/proc/self/stat"), reason="needs /proc")
def test_a_killed_worker_is_named_and_no_file_is_left(tmp_path, vocab):
    folder = tmp_path / "o"
    with command(
        *flags(vocab, folder / "x@2", "-"), "--num_workers=2", stdin=subprocess.PIPE
    ) as process:
        # It waits for the rest of its input, so the workers are there and have nothing to do.
        assert process.stdin is not None
        process.stdin.write("one sentence\nand another\n\n")
        process.stdin.flush()
        end = time.monotonic() + 60
        while len(workers := children(process.pid)) < 2 and time.monotonic() < end:
            time.sleep(0.05)
        for worker in workers:
            os.kill(worker, signal.SIGKILL)
        _, log = process.communicate((GOLDEN / "corpus.txt").read_text())
    assert process.returncode == 1
    assert "Traceback" not in log
    assert "create_pretraining_data.py: error: worker 0 (process " in log
    assert "was ended by SIGKILL" in log
    assert os.listdir(folder) == []


@pytest.mark.skipif(not os.path.exists("/proc/self/stat"), reason="needs /proc")
def test_a_killed_run_leaves_no_file_that_looks_finished(tmp_path, vocab):
    folder = tmp_path / "o"
    with command(
        *flags(vocab, folder / "x@2", "-"), "--mode=streaming", stdin=subprocess.PIPE
    ) as process:
        end = time.monotonic() + 60
        while not (workers := children(process.pid)) and time.monotonic() < end:
            time.sleep(0.05)
        process.kill()
        process.wait()
        # The workers notice and go.
        end = time.monotonic() + 20
        while any(os.path.exists(f"/proc/{w}") for w in workers) and time.monotonic() < end:
            time.sleep(0.05)
        assert not any(os.path.exists(f"/proc/{w}") for w in workers)
    assert all(name.startswith(".pretraining_data_") for name in os.listdir(folder))


@pytest.mark.skipif(not os.path.exists("/proc/self/stat"), reason="needs /proc")
def test_a_run_that_is_told_to_end_cleans_up(tmp_path, vocab):
    folder = tmp_path / "o"
    with command(
        *flags(vocab, folder / "x@2", "-"), "--mode=streaming", stdin=subprocess.PIPE
    ) as process:
        end = time.monotonic() + 60
        while not children(process.pid) and time.monotonic() < end:
            time.sleep(0.05)
        process.terminate()
        assert process.wait(60) == 143
    assert os.listdir(folder) == []


def test_phase_two_takes_the_tokens_of_phase_one(tmp_path, vocab):
    cache = f"--token_cache={tmp_path / 'cache'}"
    run(*flags(vocab, tmp_path / "128"), cache, "--dupe_factor=1")
    # The text is read to see that it is the same, and not tokenized.
    run(
        *flags(vocab, tmp_path / "512"), cache, "--dupe_factor=1", "--max_seq_length=512",
        "--max_predictions_per_seq=80",
    )  # fmt: skip
    assert {len(record["input_ids"]) for record in read(tmp_path / "512")} == {512}
    assert {len(record["input_ids"]) for record in read(tmp_path / "128")} == {128}


def test_chinese_words(tmp_path):
    words = "我 爱 北京 天安门 。".split()
    vocab = tmp_path / "vocab.txt"
    vocab.write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"".join(words)]))
    source = tmp_path / "text"
    source.write_text("\n\n".join(["\n".join([" ".join(words)] * 6)] * 6))
    for pre_segmented in (True, False):
        counts = run(
            *flags(vocab, tmp_path / "out", source), "--masking=whole_word", "--max_seq_length=32",
            "--max_predictions_per_seq=5", f"--pre_segmented={pre_segmented}",
        )  # fmt: skip
        assert bool(counts.continuing) == pre_segmented
        settings = script.make_settings(script.CLI.flags)
        assert bool(counts.warnings(settings)) == (not pre_segmented)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--input_file="], "--input_file: the texts"),
        (["--input_file=nowhere/*.txt"], r"no input file matches 'nowhere/\*.txt'"),
        (["--vocab_file=nowhere.txt"], "nowhere.txt does not exist"),
        (["--max_seq_length=4", "--max_predictions_per_seq=1"], "max_seq_length is 4"),
        (["--max_predictions_per_seq=129"], "max_predictions_per_seq is 129, more than"),
        (["--mask_token_share=1.5"], "--mask_token_share is 1.5"),
        (["--random_token_share=.3"], "--random_token_share=0.3 are over 1"),
        (["--masked_lm_prob=1.5"], "masked_lm_prob is 1.5"),
        (["--do_whole_word_mask", "--masking=ngram"], "contradicts"),
        (["--input_format=paragraphs"], "needs --split_sentences"),
        (["--dynamic_masking", "--pre_segmented"], "does not go with --pre_segmented"),
        (["--mode=exact", "--num_workers=2"], "--mode=exact runs in one process"),
        (["--mode=exact", "--masking=ngram"], "need --mode=streaming"),
        (["--mode=exact", "--token_cache=x"], "--token_cache needs"),
        (["--beam_options=--x"], "--beam_options needs --runner"),
        (["--runner=DirectRunner", "--num_workers=2"], "does not go with"),
        (["--output_file=x@0"], "after @ must be"),
    ],
)
def test_bad_flags(tmp_path, vocab, arguments, message):
    output = tmp_path / "o" / "x"
    with pytest.raises((ValueError, OSError), match=message):
        run(*flags(vocab, output), *arguments)
    assert not output.parent.exists()


def test_an_input_is_not_written_over(tmp_path, vocab):
    source = tmp_path / "text"
    source.write_text("a\n\nb\n")
    with pytest.raises(CommandLineError, match="both an input and an output"):
        run(*flags(vocab, source, source))
    assert source.read_text() == "a\n\nb\n"


@pytest.mark.parametrize("output", ["./text", "x/../text", "{0}/text", "link", "file://{0}/text"])
def test_an_input_is_not_written_over_by_another_spelling(tmp_path, vocab, monkeypatch, output):
    monkeypatch.chdir(tmp_path)
    source = tmp_path / "text"
    source.write_text("a\nb\n\nc\nd\n")
    (tmp_path / "link").symlink_to("text")
    for pair in (("text", output.format(tmp_path)), (output.format(tmp_path), "text")):
        if pair[0] != "x/../text":  # There is no folder x to be read from.
            with pytest.raises(CommandLineError, match=r"is the same file.; name another"):
                run(*flags(vocab, pair[1], pair[0]))
    assert source.read_text() == "a\nb\n\nc\nd\n"


def test_an_input_at_an_address_is_not_written_over(vocab):
    pytest.importorskip("fsspec")
    with paths.open_file("memory://p/in.txt", "wb") as file:
        file.write(b"a\nb\n\nc\nd\n")
    with pytest.raises(CommandLineError, match="both an input and an output"):
        run(*flags(vocab, "memory:///p/in.txt", "memory://p/in.txt"))
    with paths.open_file("memory://p/in.txt", "rb") as file:
        assert file.read() == b"a\nb\n\nc\nd\n"


def test_the_vocabulary_is_not_written_over(tmp_path, vocab):
    copy = tmp_path / "vocab.txt"
    copy.write_bytes(pathlib.Path(vocab).read_bytes())
    with pytest.raises(CommandLineError, match="would write over the vocabulary"):
        run(*flags(str(copy), f"{tmp_path}/./vocab.txt"))
    assert copy.read_bytes() == pathlib.Path(vocab).read_bytes()


def test_an_output_named_twice(tmp_path, vocab):
    with pytest.raises(ValueError, match="named twice among the output files, also as"):
        run(*flags(vocab, f"{tmp_path}/a,{tmp_path}/./a"))
    assert not (tmp_path / "a").exists()


def test_a_vocabulary_without_mask(tmp_path):
    vocab = tmp_path / "vocab.txt"
    vocab.write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\na\n")
    with pytest.raises(ValueError, match=r"has no token '\[MASK\]'"):
        run(*flags(vocab, tmp_path / "out"))


@pytest.mark.parametrize("mode", ["exact", "streaming"])
@pytest.mark.parametrize(
    ("content", "message"),
    [(b"\n \n", "the corpus is empty"), (b"a\n\xe9\n", "byte 2 .0xe9")],
)
def test_bad_texts_leave_nothing(tmp_path, vocab, mode, content, message):
    source = tmp_path / "text"
    source.write_bytes(content)
    with pytest.raises(ValueError, match=message):
        run(*flags(vocab, tmp_path / "o" / "x", source), f"--mode={mode}")
    assert not (tmp_path / "o").exists() or os.listdir(tmp_path / "o") == []
    if b"\xe9" in content:
        source.write_bytes(content + b"b\n\nc\nd\n")
        counts = run(
            *flags(vocab, tmp_path / "o" / "x", source), f"--mode={mode}", "--errors=replace"
        )
        assert counts.instances


def test_a_full_disk(tmp_path, vocab, monkeypatch):
    def full(record):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(records, "frame", full)
    with pytest.raises(OSError, match="No space left on device while writing; free some space"):
        run(*flags(vocab, tmp_path / "o" / "x"))
    assert os.listdir(tmp_path / "o") == []


def test_beam_that_is_missing(tmp_path, vocab, monkeypatch):
    monkeypatch.setitem(sys.modules, "apache_beam", None)
    monkeypatch.delitem(sys.modules, "data_prep.beam_pipeline", raising=False)
    with pytest.raises(ImportError, match=r"pip install -e '\.\[beam\]'"):
        run(*flags(vocab, tmp_path / "x"), "--runner=DirectRunner")


def test_progress_says_rate_and_time_left(caplog):
    caplog.set_level("INFO", "absl")
    progress = script.Progress(interval=0.0)
    progress("tokens", 25, 100, 0)
    progress("instances", 1, 0, 0)
    progress("instances", 2, 4, 1000)
    time.sleep(0.01)
    progress("instances", 3, 4, 2000)
    text = caplog.text
    assert "tokenizing: 25%" in text
    assert "making instances: 75%, 2,000 instances" in text
    assert "left in this of three stages" in text
