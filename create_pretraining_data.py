"""Make BERT's pre-training records of texts: masked tokens and next sentences.

Texts hold a sentence a line and a blank line between documents. With one worker the records are
the original's, one by one, for the same seed. --num_workers=N streams a corpus of any size on N
processes; --runner=... does so on Apache Beam.
"""

import signal
import sys
import time
from collections.abc import Sequence
from typing import Any

from absl import logging

from bert_tf.cli.command_line import CommandLine, CommandLineError
from bert_tf.tokenization import BertTokenizer
from data_prep import corpus, exact, masking, parallel, records
from data_prep.instances import Counts, Settings, Vocabulary
from data_prep.packed_text import Packer
from data_prep.workers import default_count

CLI = CommandLine(
    "create_pretraining_data.py",
    __doc__,
    """\
python create_pretraining_data.py --input_file='wiki/*.txt' \\
    --output_file=records/wiki@16.tfrecord --vocab_file=uncased_L-12_H-768_A-12/vocab.txt \\
    --max_seq_length=128 --max_predictions_per_seq=20 --dupe_factor=5 --num_workers=8""",
)
with CLI.group("Files"):
    CLI.string(
        "input_file",
        None,
        "Text files: paths and patterns, comma-separated; - is standard input. Compressed ones "
        "(gzip, bzip2, xz, Zstandard) are read as they are.",
    )
    CLI.string(
        "output_file",
        None,
        "TFRecord files, comma-separated; name@16.tfrecord is "
        "name-00000-of-00016.tfrecord and so on.",
    )
    CLI.string("vocab_file", None, "The model's vocabulary.")
    CLI.boolean("gzip", False, "Write gzip; read it with compression_type GZIP.")
with CLI.group("Texts"):
    CLI.enum(
        "input_format",
        "text",
        corpus.FORMATS,
        "text: a sentence a line, a blank line between documents. paragraphs: each file is a "
        "document, blank lines between paragraphs; needs --split_sentences. wikiextractor: "
        "WikiExtractor's <doc> blocks or JSON lines.",
    )
    CLI.string(
        "split_sentences",
        "",
        "Split each line into sentences by the rules of this language: en, de, zh, ... Needs the "
        "extra [sentences].",
    )
    CLI.enum(
        "errors", "strict", ["strict", "replace"], "Bytes that are not UTF-8: stop, or drop them."
    )
    CLI.boolean(
        "do_lower_case",
        True,
        "Lower-case the text and drop accents: for uncased models. Give --nodo_lower_case for "
        "cased ones.",
    )
    CLI.enum(
        "strip_accents",
        "auto",
        ["auto", "true", "false"],
        "Drop accents; auto follows do_lower_case.",
    )
    CLI.string(
        "never_split", "", "Tokens to keep whole in texts, comma-separated, for example [MASK]."
    )
    CLI.boolean(
        "pre_segmented",
        False,
        "A segmenter has put spaces between the words of a Chinese text: whole-word masking "
        "takes such words.",
    )
with CLI.group("Instances"):
    CLI.integer("max_seq_length", 128, "Length of an instance in tokens, specials included.")
    CLI.integer("max_predictions_per_seq", 20, "The most masked tokens of an instance.")
    CLI.integer("random_seed", 12345, "Decides everything that is random.", 0)
    CLI.integer("dupe_factor", 10, "Passes over the corpus, each with other pairs and masks.")
    CLI.float("short_seq_prob", 0.1, "Share of passes that aim at a random shorter length.")
    CLI.float("masked_lm_prob", 0.15, "Share of the tokens that are masked.")
    CLI.enum(
        "masking",
        "static",
        masking.KINDS,
        "What is masked: single tokens, whole words, or n-grams of whole words.",
    )
    CLI.boolean("do_whole_word_mask", False, "The original's name of --masking=whole_word.")
    CLI.integer("max_ngram", 3, "The longest n-gram.", 1)
    CLI.float("mask_token_share", 0.8, "Share of the masked tokens that become [MASK].")
    CLI.float("random_token_share", 0.1, "Share that become a random token; the rest stay.")
    CLI.boolean(
        "dynamic_masking",
        False,
        "Leave masking to the training, which masks anew each time; dupe_factor may then be 1.",
    )
with CLI.group("Running"):
    CLI.integer(
        "num_workers", 1, "Processes; 0 takes all CPUs. The records do not depend on it.", 0
    )
    CLI.enum(
        "mode",
        "auto",
        ["auto", "exact", "streaming"],
        "exact: the original's records, on one CPU with the whole corpus in memory. streaming: "
        "any size, on num_workers processes. auto: exact with one worker, unless an option needs "
        "streaming.",
    )
    CLI.string(
        "token_cache",
        "",
        "Folder for the tokens of the corpus: written if empty, else used again, so that a run "
        "with another length need not tokenize. Streaming.",
    )
    CLI.string(
        "work_dir",
        "",
        "Folder for temporary files when streaming; by default beside the output. They take "
        "about 0.8 * dupe_factor times the size of the text.",
    )
with CLI.group("Apache Beam"):
    CLI.string(
        "runner",
        "",
        "Beam's runner: DirectRunner, FlinkRunner, SparkRunner, DataflowRunner, ... Needs the "
        "extra [beam].",
    )
    CLI.string("beam_options", "", "Options for Beam, as one string: '--parallelism=32 ...'.")


def main(argv: Sequence[str]) -> Counts:
    """Makes the records; returns counts of what was made."""
    flags = CLI.parse(argv)
    check_flags(flags)
    settings = make_settings(flags)
    mode = choose_mode(flags)
    if mode == "exact":
        exact.check(settings)
    outputs = records.output_files(flags.output_file)
    files = corpus.find_files(flags.input_file)
    check_outputs(outputs, files, flags.vocab_file)
    tokenizer = make_tokenizer(flags)
    token_settings = parallel.TokenSettings(
        flags.input_format, flags.split_sentences, flags.pre_segmented, flags.errors
    )
    logging.info("Reading %d file%s; %s mode.", len(files), "s"[: len(files) != 1], mode)
    progress = Progress()
    if mode == "exact":
        counts = run_exact(
            files, tokenizer, token_settings, settings, outputs, flags.gzip, progress
        )
    elif mode == "streaming":
        counts = parallel.run(
            files,
            tokenizer,
            settings,
            outputs,
            num_workers=flags.num_workers or default_count(),
            token_settings=token_settings,
            compress=flags.gzip,
            token_cache=flags.token_cache,
            work_folder=flags.work_dir,
            progress=progress,
        )
    else:
        from data_prep import beam_pipeline

        counts = beam_pipeline.run(
            files,
            tokenizer,
            settings,
            outputs,
            token_settings=token_settings,
            compress=flags.gzip,
            runner=flags.runner,
            options=flags.beam_options,
        )
    for line in counts.summary(settings):
        logging.info(line)
    for line in counts.warnings(settings):
        logging.warning(line)
    seconds = time.monotonic() - progress.start
    logging.info(
        "Wrote %s in %.1f s.",
        outputs[0] if len(outputs) == 1 else f"{outputs[0]} ... {outputs[-1]}",
        seconds,
    )
    return counts


def check_flags(flags: Any) -> None:
    """Checks what can be checked before anything is read."""
    CLI.require(
        (name, what)
        for name, what in (
            ("input_file", "the texts"),
            ("output_file", "where the records go"),
            ("vocab_file", "the model's vocabulary"),
        )
        if not getattr(flags, name)
    )
    if flags.do_whole_word_mask and CLI.given("masking") and flags.masking != "whole_word":
        raise CommandLineError(
            f"--do_whole_word_mask contradicts --masking={flags.masking}; give one of them"
        )
    if flags.input_format == "paragraphs" and not flags.split_sentences:
        raise CommandLineError(
            "--input_format=paragraphs needs --split_sentences=LANGUAGE (en, de, ...): paragraphs "
            "must be split into sentences"
        )
    if flags.dynamic_masking and flags.pre_segmented:
        raise CommandLineError(
            "--dynamic_masking does not go with --pre_segmented: the records do not hold the "
            "words of the text"
        )
    if flags.beam_options and not flags.runner:
        raise CommandLineError("--beam_options needs --runner")
    if flags.runner and (CLI.given("num_workers") or flags.token_cache or flags.mode != "auto"):
        raise CommandLineError(
            "--runner does not go with --num_workers, --mode and --token_cache: how many "
            "processes run is set in --beam_options"
        )


def make_settings(flags: Any) -> Settings:
    """Makes the settings; they check themselves."""
    kind = masking.WHOLE_WORD if flags.do_whole_word_mask else flags.masking
    rule = masking.Masking(
        kind,
        flags.max_predictions_per_seq,
        flags.masked_lm_prob,
        flags.mask_token_share,
        flags.random_token_share,
        flags.max_ngram,
    )
    return Settings(
        flags.max_seq_length,
        rule,
        flags.short_seq_prob,
        flags.dupe_factor,
        flags.random_seed,
        flags.dynamic_masking,
    )


def choose_mode(flags: Any) -> str:
    """Returns "exact", "streaming" or "beam"."""
    if flags.runner:
        return "beam"
    if flags.mode == "exact" and flags.num_workers > 1:
        raise CommandLineError(
            f"--mode=exact runs in one process; --num_workers={flags.num_workers} needs "
            "--mode=streaming"
        )
    if flags.mode == "exact" and flags.token_cache:
        raise CommandLineError("--token_cache needs --mode=streaming")
    if flags.mode != "auto":
        return flags.mode
    needs_streaming = (
        flags.num_workers != 1
        or flags.token_cache
        or flags.dynamic_masking
        or flags.masking == masking.NGRAM
    )
    return "streaming" if needs_streaming else "exact"


def check_outputs(outputs: Sequence[str], files: Sequence[str], vocab_file: str) -> None:
    """Raises an error if an input file would be written over, however its path is spelled."""
    read = {records.real_path(file): file for file in files if file != corpus.STDIN}
    vocabulary = records.real_path(vocab_file)
    for output in outputs:
        real = records.real_path(output)
        if real == vocabulary:
            raise CommandLineError(
                f"--output_file={output} would write over the vocabulary, {vocab_file}; name "
                "another file"
            )
        if real in read:
            same = "" if read[real] == output else f" ({read[real]} is the same file)"
            raise CommandLineError(
                f"{output} is both an input and an output file{same}; name another --output_file"
            )


def make_tokenizer(flags: Any) -> BertTokenizer:
    """Makes the tokenizer, and checks that its vocabulary is BERT's."""
    tokenizer = BertTokenizer(
        flags.vocab_file,
        do_lower_case=flags.do_lower_case,
        strip_accents={"auto": None, "true": True, "false": False}[flags.strip_accents],
        never_split=[token for token in flags.never_split.split(",") if token],
    )
    Vocabulary.of(tokenizer)
    return tokenizer


def run_exact(
    files: Sequence[str],
    tokenizer: BertTokenizer,
    token_settings: parallel.TokenSettings,
    settings: Settings,
    outputs: Sequence[str],
    compress: bool,
    progress: "Progress",
) -> Counts:
    """Makes the original's records."""
    text = corpus.Corpus(files, token_settings.input_format, token_settings.errors)
    if text.bytes_total > 200_000_000:
        logging.warning(
            "The corpus has %d MB: the exact mode holds it in memory and uses one CPU. "
            "--num_workers=%d is faster and takes little memory; its records are other ones.",
            text.bytes_total // 1_000_000,
            default_count(),
        )
    language = token_settings.split_sentences
    split = corpus.sentence_splitter(language) if language else None

    def documents() -> Any:
        for document in text:
            progress("tokens", text.bytes_read, text.bytes_total, 0)
            yield document

    return exact.run(
        documents(),
        Packer(tokenizer, token_settings.pre_segmented, split),
        settings,
        Vocabulary.of(tokenizer),
        outputs,
        compress,
        progress,
    )


class Progress:
    """Logs how far a run is, how fast, and how long it will take, every few seconds."""

    def __init__(self, interval: float = 10.0):
        self.start = self._said = time.monotonic()
        self._interval = interval
        self._stage = ""
        self._stage_start = self.start

    def __call__(self, stage: str, done: int, total: int, made: int) -> None:
        now = time.monotonic()
        if stage != self._stage:
            self._stage, self._stage_start = stage, now
        if now - self._said < self._interval:
            return
        self._said = now
        seconds = max(1e-9, now - self._stage_start)
        text = {"tokens": "tokenizing", "instances": "making instances", "files": "writing"}[stage]
        if total:
            text += f": {done / total:.0%}"
        if made:
            text += f", {made:,} instances, {made / seconds:,.0f}/s"
        elif stage == "tokens" and total:
            text += f" of {total / 1e6:,.0f} MB, {done / 1e6 / seconds:.1f} MB/s"
        if 0 < done < total:
            text += f", {_minutes(seconds * (total - done) / done)} left in this of three stages"
        logging.info(text)


def _minutes(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"


if __name__ == "__main__":
    # Ended by the system or a scheduler: the temporary files go too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    CLI.run(main)
