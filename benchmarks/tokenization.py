"""How fast is the tokenizer, beside the original's code and Hugging Face's tokenizers?

Each corpus is read line by line, `encode` (text to ids, no specials) is called on each line, on
one thread. "warm" is a pass with a tokenizer that has seen the corpus, "cold" the first pass of a
new one. The passes of all peers are taken in turns, and the median of each is given, in MB of
UTF-8 a second.

The peers are optional; one that is not installed is skipped. An environment with both:

  python -m venv peers
  peers/bin/pip install tokenizers numpy six absl-py
  peers/bin/pip install --no-deps bert-tensorflow

and then, from the root of the repository:

  peers/bin/python -m benchmarks.tokenization --corpus english.txt --vocab uncased_vocab.txt

(bert-tensorflow is the original's code as a package. Its tokenization module imports TensorFlow
but needs it only to read a file; the benchmark puts a stub in its place.)
"""

import argparse
import functools
import gc
import importlib
import os
import statistics
import sys
import time
import types
from collections.abc import Callable

from bert_tf.tokenization import BertTokenizer

os.environ["RAYON_NUM_THREADS"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"

Encode = Callable[[str], list[int]]


def ours(vocab_file: str, lower: bool) -> Encode:
    return BertTokenizer(vocab_file, do_lower_case=lower).encode


def ours_tokens(vocab_file: str, lower: bool) -> Encode:
    return BertTokenizer(vocab_file, do_lower_case=lower).tokenize  # type: ignore[return-value]


def ours_offsets(vocab_file: str, lower: bool) -> Encode:
    encode = BertTokenizer(vocab_file, do_lower_case=lower).encode_with_offsets
    return lambda text: encode(text)[0]


def original(vocab_file: str, lower: bool) -> Encode:
    from absl import flags

    if "tensorflow" not in sys.modules:
        gfile = types.SimpleNamespace(GFile=functools.partial(open, encoding="utf-8"))
        for name in ("tensorflow", "tensorflow.compat", "tensorflow.compat.v1"):
            sys.modules[name] = types.ModuleType(name)
        sys.modules["tensorflow"].compat = sys.modules["tensorflow.compat"]  # type: ignore
        sys.modules["tensorflow.compat"].v1 = sys.modules["tensorflow.compat.v1"]  # type: ignore
        sys.modules["tensorflow.compat.v1"].gfile = gfile  # type: ignore
    module = importlib.import_module("bert.tokenization")
    flags.FLAGS.mark_as_parsed()  # the module reads a flag of its own; its default is the release
    tokenizer = module.FullTokenizer(vocab_file, do_lower_case=lower)
    return lambda text: tokenizer.convert_tokens_to_ids(tokenizer.tokenize(text))


def hugging_face(vocab_file: str, lower: bool) -> Encode:
    from tokenizers import BertWordPieceTokenizer

    tokenizer = BertWordPieceTokenizer(vocab_file, lowercase=lower)
    return lambda text: tokenizer.encode(text, add_special_tokens=False).ids


PEERS = {
    "ours": ours,
    "ours, tokenize()": ours_tokens,
    "ours, with offsets": ours_offsets,
    "original": original,
    "HF tokenizers": hugging_face,
}


def seconds(encode: Encode, lines: list[str]) -> float:
    gc.collect()
    start = time.perf_counter()
    for line in lines:
        encode(line)
    return time.perf_counter() - start


def measure(corpus: str, vocab_file: str, lower: bool, repeats: int) -> None:
    with open(corpus, encoding="utf-8", newline="\n") as file:
        lines = file.read().split("\n")
    megabytes = os.path.getsize(corpus) / 1e6
    makers = {}
    for name, make in PEERS.items():
        try:
            make(vocab_file, lower)
            makers[name] = make
        except ImportError as error:
            print(f"skipped: {name} is not installed ({error}); see --help")

    cold: dict[str, list[float]] = {name: [] for name in makers}
    warm: dict[str, list[float]] = {name: [] for name in makers}
    for _ in range(repeats):
        for name, make in makers.items():
            encode = make(vocab_file, lower)
            cold[name].append(seconds(encode, lines))
            warm[name].append(seconds(encode, lines))

    case = "lower-cased" if lower else "cased"
    print(f"\n{corpus}: {megabytes:.2f} MB, {len(lines)} lines, {vocab_file}, {case}")
    peers = [name for name in ("original", "HF tokenizers") if name in makers]
    header = "".join(f"  {'x ' + name:>15}" for name in peers)
    print(f"{'':22}{'MB/s':>8}{header}")
    for when, times in (("warm", warm), ("cold", cold)):
        median = {name: statistics.median(values) for name, values in times.items()}
        for name in makers:
            ratios = "".join(f"  {median[peer] / median[name]:>15.2f}" for peer in peers)
            print(f"{when + ' ' + name:22}{megabytes / median[name]:>8.2f}{ratios}")

    if "original" in makers:
        encode, reference = ours(vocab_file, lower), original(vocab_file, lower)
        different = sum(encode(line) != reference(line) for line in lines)
        print(f"lines whose ids differ from the original's: {different}")
        if different:
            sys.exit(1)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--corpus", nargs="+", required=True, help="UTF-8 text files")
    parser.add_argument(
        "--vocab", nargs="+", required=True, help="a vocabulary for each corpus, in their order"
    )
    parser.add_argument(
        "--cased", nargs="*", default=[], help="those of the vocabularies that are cased"
    )
    parser.add_argument("--repeats", type=int, default=3, help="the median is taken of so many")
    arguments = parser.parse_args()
    if len(arguments.corpus) != len(arguments.vocab):
        parser.error("give as many --vocab as --corpus")
    for corpus, vocab_file in zip(arguments.corpus, arguments.vocab):
        measure(corpus, vocab_file, vocab_file not in arguments.cased, arguments.repeats)


if __name__ == "__main__":
    main()
