"""How fast is tokenization inside the graph, beside tensorflow-text's and our own in Python?

Lines of the corpora go in batches to a `tf.function` that returns ids; the Python tokenizer takes
them one by one and has seen them before (its cache is warm). The passes of all are taken in turns,
the median is given in MB of UTF-8 a second of processor time (one thread; other programs on the
machine count for less so). "differ" counts lines whose ids are not those of the original's rules;
the benchmark fails if ours has any.

  python -m benchmarks.in_graph_tokenization --corpus english.txt german.txt chinese.txt \\
      --vocab vocab.txt

With several corpora a last round mixes their lines. `--every_code_point` instead compares the
words of the graph and of the Python rules around each of the 1,112,064 code points, with each
choice of lower-casing and accents, and beside sigmas.
"""

import argparse
import os
import random
import statistics
import sys
import time
from collections.abc import Callable

import numpy as np
import tensorflow as tf
import tensorflow_text as tf_text

from bert_tf.tokenization import BertTokenizer
from bert_tf.tokenization.in_graph import InGraphTokenizer
from bert_tf.tokenization.wordpiece import BasicTokenizer

# For a batch of lines: the ids of each.
Encode = Callable[[tf.Tensor], tf.RaggedTensor]

SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]


def peers(vocab_file: str, tokenizer: BertTokenizer) -> dict[str, Encode]:
    graph = InGraphTokenizer(tokenizer)
    slow = tf_text.BertTokenizer(vocab_file, lower_case=tokenizer.do_lower_case)
    tokens = [tokenizer.inv_vocab[i] for i in range(tokenizer.vocab_size)]
    fast = tf_text.FastBertTokenizer(
        tokens, lower_case_nfd_strip_accents=tokenizer.do_lower_case, token_out_type=tf.int32
    )
    strings = [tf.TensorSpec([None], tf.string)]
    return {
        "ours": graph.tokenize,
        "ours, with offsets": tf.function(
            lambda lines: graph.tokenize_with_offsets(lines)[0], input_signature=strings
        ),
        "tf-text BertTokenizer": tf.function(
            lambda lines: slow.tokenize(lines).merge_dims(1, 2), input_signature=strings
        ),
        "tf-text FastBertTokenizer": tf.function(fast.tokenize, input_signature=strings),
    }


def measure(
    name: str,
    lines: list[str],
    tokenizer: BertTokenizer,
    encoders: dict[str, Encode],
    batch: int,
    repeats: int,
) -> bool:
    megabytes = sum(len(line.encode()) for line in lines) / 1e6
    batches = [tf.constant(lines[i : i + batch]) for i in range(0, len(lines), batch)]
    expected = [tokenizer.encode(line) for line in lines]
    differ = {"ours in Python": 0}
    for peer, encode in encoders.items():
        found = [ids for part in batches for ids in encode(part).to_list()]
        differ[peer] = sum(left != right for left, right in zip(found, expected, strict=True))

    times: dict[str, list[float]] = {peer: [] for peer in [*encoders, "ours in Python"]}
    for _ in range(repeats):
        for peer, encode in encoders.items():
            start = time.process_time()
            for part in batches:
                encode(part)
            times[peer].append(time.process_time() - start)
        start = time.process_time()
        for line in lines:
            tokenizer.encode(line)
        times["ours in Python"].append(time.process_time() - start)

    plain = sum(line.isascii() for line in lines) / len(lines)
    print(f"\n{name}: {megabytes:.2f} MB, {len(lines)} lines, {plain:.0%} of them ASCII")
    print(f"{'':27}{'MB/s':>8}{'differ':>8}")
    for peer, values in times.items():
        print(f"{peer:27}{megabytes / statistics.median(values):>8.1f}{differ[peer]:>8}")
    return differ["ours"] == differ["ours, with offsets"] == 0


def every_code_point() -> bool:
    """Compares steps 1 to 5 of the rules, before the vocabulary has any part in it."""
    patterns = ["a{}b", "{}", "a{}Σ", "Σ{}b", "{0}Σ{0}", "á{}\u0301b"]
    vocab = {token: i for i, token in enumerate(SPECIALS)}
    wrong = 0
    for lower in (True, False):
        for strip in (True, False):
            basic = BasicTokenizer(lower, strip)
            graph = InGraphTokenizer(BertTokenizer.from_vocab(vocab, lower, strip))
            for pattern in patterns:
                count = 0
                for first in range(0, 0x110000, 1 << 16):
                    texts = [
                        pattern.format(chr(code_point))
                        for code_point in range(first, first + (1 << 16))
                        if not 0xD800 <= code_point <= 0xDFFF
                    ]
                    expected = [basic.split(text) for text in texts]
                    words = graph._words(tf.constant(texts), False)
                    found = words.words.numpy()
                    flat = np.array([word.encode() for row in expected for word in row], object)
                    splits = np.diff(words.of_rows.numpy())
                    same_rows = np.array_equal(splits, [len(row) for row in expected])
                    if not same_rows or not np.array_equal(found, flat):
                        wrong += 1
                        print(f"different: {pattern!r} in U+{first:X} to U+{first + 0xFFFF:X}")
                    count += len(texts)
                print(f"lower {lower}, strip {strip}, {pattern!r}: {count} code points", flush=True)
    return wrong == 0


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--corpus", nargs="+", default=[], help="UTF-8 text files")
    parser.add_argument("--vocab", help="the vocabulary for all of them")
    parser.add_argument("--cased", action="store_true", help="the vocabulary is a cased one")
    parser.add_argument("--batch", type=int, default=256, help="lines in a batch")
    parser.add_argument("--repeats", type=int, default=3, help="the median is taken of so many")
    parser.add_argument("--every_code_point", action="store_true")
    arguments = parser.parse_args()
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    if arguments.every_code_point:
        sys.exit(0 if every_code_point() else 1)
    if not arguments.corpus or not arguments.vocab:
        parser.error("give --corpus and --vocab, or --every_code_point")

    corpora = {}
    for path in arguments.corpus:
        with open(path, encoding="utf-8", newline="\n") as file:
            lines = [line for line in file.read().split("\n") if line.strip()]
        corpora[os.path.basename(path)] = lines
    if len(corpora) > 1:
        least = min(map(len, corpora.values()))
        mixed = [line for lines in corpora.values() for line in lines[:least]]
        random.Random(0).shuffle(mixed)
        corpora["mixed"] = mixed
    tokenizer = BertTokenizer(arguments.vocab, do_lower_case=not arguments.cased)
    encoders = peers(arguments.vocab, tokenizer)
    print(f"batches of {arguments.batch} lines, median of {arguments.repeats} passes")
    same = [
        measure(name, lines, tokenizer, encoders, arguments.batch, arguments.repeats)
        for name, lines in corpora.items()
    ]
    sys.exit(0 if all(same) else 1)


if __name__ == "__main__":
    main()
