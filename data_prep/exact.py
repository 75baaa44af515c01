"""The original's instances, record for record, for the same seed.

One stream of random numbers drives all, so every draw is made here in the original's order. What
it decides is worked out on arrays of ids. The whole corpus is in memory, at two bytes a token; so
are the instances, at about 300 bytes each.

Kept as they were, quirks included: a "random" second segment may come from the same document
after ten tries for another one; a word that is cut at the start of B is grouped with what stands
before [SEP] when whole words are masked.
"""

import random
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from data_prep import instances, masking
from data_prep.corpus import Document
from data_prep.instances import Counts, RecordEncoder, Settings, Vocabulary, below
from data_prep.packed_text import PackedText, Packer
from data_prep.records import Shards, compressor


def check(settings: Settings) -> None:
    """Raises ValueError for what the original does not have."""
    if settings.masking.kind == masking.NGRAM or settings.dynamic_masking:
        raise ValueError(
            "the exact mode has the original's masking only; n-gram and dynamic masking need "
            "--mode=streaming."
        )


def shuffle(items: list, getrandbits: Callable[[int], int]) -> None:
    """Shuffles in place with the draws of `random.Random.shuffle`."""
    for i in range(len(items) - 1, 0, -1):
        n = i + 1
        k = n.bit_length()
        j = getrandbits(k)
        while j >= n:
            j = getrandbits(k)
        items[i], items[j] = items[j], items[i]


def make_instances(
    text: PackedText,
    settings: Settings,
    vocabulary: Vocabulary,
    progress: Callable[[int, int, int], None] = lambda done, total, made: None,
) -> tuple[list[bytes], Counts]:
    """Returns the packed instances in the original's order, and counts.

    Args:
      text: the corpus, documents in the order of the files.
      settings, vocabulary: as everywhere.
      progress: called with the number of documents done, of all, and of instances.
    """
    check(settings)
    rng = random.Random(settings.seed)
    bits = rng.getrandbits
    counts = Counts()
    counts.add_text(text)
    order = list(range(text.documents))
    shuffle(order, bits)
    bounds = text.document_ends.tolist()
    ends = text.sentence_ends.tolist()
    # As it is asked for by documents in shuffled order: each document's sentence ends.
    documents = [ends[bounds[d] : bounds[d + 1] + 1] for d in order]
    mask = _Masker(text, settings, vocabulary, rng)
    result: list[bytes] = []
    total = settings.dupe_factor * len(documents)
    for duplicate in range(settings.dupe_factor):
        for number in range(len(documents)):
            for pair in _pairs(documents, number, settings, rng, counts):
                result.append(mask(*pair))
            progress(duplicate * len(documents) + number + 1, total, len(result))
    shuffle(result, bits)
    counts.add_packed(result)
    return result, counts


def _pairs(
    documents: Sequence[list[int]],
    number: int,
    settings: Settings,
    rng: random.Random,
    counts: Counts,
) -> Iterable[instances.Pair]:
    """Yields the pairs of one document; the consumer draws for the masks in between."""
    uniform, bits = rng.random, rng.getrandbits
    room = settings.max_seq_length - 3
    target = room
    if uniform() < settings.short_seq_prob:
        target = 2 + below(bits, room - 1)
    ends = documents[number]
    last = len(ends) - 1
    first = end = 0
    while first < last:
        end += 1
        if end < last and ends[end] - ends[first] < target:
            continue
        count = end - first
        middle = first + 1
        if count >= 2:
            middle += below(bits, count - 1)
        a_start, a_end = ends[first], ends[middle]
        is_random = count == 1 or uniform() < 0.5
        if is_random:
            other = number
            for _ in range(10):
                other = below(bits, len(documents))
                if other != number:
                    break
            counts.same_document += other == number
            b_ends = documents[other]
            start = below(bits, len(b_ends) - 1)
            b_start = b_ends[start]
            wanted = b_start + target - (a_end - a_start)
            stop = start + 1
            while stop < len(b_ends) - 1 and b_ends[stop] < wanted:
                stop += 1
            b_end = b_ends[stop]
            end = middle
        else:
            b_start, b_end = a_end, ends[end]
        length_a, length_b = a_end - a_start, b_end - b_start
        for _ in range(length_a + length_b - room):
            front = uniform() < 0.5
            if length_a > length_b:
                length_a -= 1
                a_start += front
            else:
                length_b -= 1
                b_start += front
        yield a_start, a_start + length_a, b_start, b_start + length_b, int(is_random)
        first = end


class _Masker:
    """Fills and masks one pair after the other, with the original's draws."""

    def __init__(
        self, text: PackedText, settings: Settings, vocabulary: Vocabulary, rng: random.Random
    ):
        self._tokens: Any = memoryview(np.ascontiguousarray(text.tokens))  # type: ignore[arg-type]
        rule = settings.masking
        self._whole_word = rule.kind == masking.WHOLE_WORD
        self._prob, self._most = rule.prob, rule.max_predictions
        self._mask_share = rule.mask_share
        rest = 1 - rule.mask_share
        # Of those that do not become [MASK]: exactly 0.5 at 80 / 10 / 10.
        self._keep_share = round(1 - rule.random_share / rest, 12) if rest > 0 else 0.0
        self._vocabulary = vocabulary
        self._replacements = vocabulary.replacements.tolist()
        self._rng = rng

    def __call__(self, a_start: int, a_end: int, b_start: int, b_end: int, label: int) -> bytes:
        a = self._tokens[a_start:a_end].tolist()
        b = self._tokens[b_start:b_end].tolist()
        vocabulary = self._vocabulary
        sep = vocabulary.sep_id * 2
        tokens = [vocabulary.cls_id * 2, *a, sep, *b, sep]
        start_b = len(a) + 2
        ids = [token >> 1 for token in tokens]
        length = len(ids)
        budget = min(self._most, max(1, round(length * self._prob)))
        bits, uniform = self._rng.getrandbits, self._rng.random
        candidates: list[int] = [*range(1, start_b - 1), *range(start_b, length - 1)]
        masked: list[int]
        if self._whole_word:
            words: list[list[int]] = []
            for place in candidates:
                if tokens[place] & 1 and words:
                    words[-1].append(place)
                else:
                    words.append([place])
            shuffle(words, bits)
            masked = []
            for word in words:
                if len(masked) >= budget:
                    break
                if len(masked) + len(word) <= budget:
                    masked += word
        else:
            # `shuffle` written out: this is where the time goes.
            for n in range(len(candidates), 1, -1):
                k = n.bit_length()
                j = bits(k)
                while j >= n:
                    j = bits(k)
                candidates[n - 1], candidates[j] = candidates[j], candidates[n - 1]
            masked = candidates[:budget]
        labels = {}
        replacements = self._replacements
        for place in masked:
            labels[place] = ids[place]
            if uniform() < self._mask_share:
                ids[place] = vocabulary.mask_id
            elif uniform() >= self._keep_share:
                ids[place] = replacements[below(bits, len(replacements))]
        masked.sort()
        return instances.pack_instance(
            ids, start_b, label, masked, [labels[place] for place in masked], vocabulary.size
        )


def run(
    documents: Iterable[Document],
    packer: Packer,
    settings: Settings,
    vocabulary: Vocabulary,
    files: Sequence[str],
    compress: bool = False,
    progress: Callable[[str, int, int, int], None] = lambda stage, done, total, made: None,
) -> Counts:
    """Reads the corpus, makes the instances and writes them to the files in turn.

    Args:
      documents: the corpus.
      packer: tokenizes it.
      settings, vocabulary: as everywhere.
      files: the output files; instance i goes to file i modulo their number.
      compress: whether to write gzip.
      progress: called with a stage's name, what is done, all there is, and instances done.

    Raises:
      ValueError: the corpus is empty, or as `check`.
    """
    check(settings)
    text = packer.pack(documents)
    if not text.documents:
        raise ValueError("the corpus is empty: the input files hold no text.")
    result, counts = make_instances(
        text, settings, vocabulary, lambda *done: progress("instances", *done)
    )
    encode = RecordEncoder(settings, vocabulary.size).encode
    with Shards(files) as shards:
        for number in range(len(files)):
            with shards.open(number) as handle:
                out = compressor(handle) if compress else handle
                for packed in result[number :: len(files)]:
                    out.write(encode(packed))
                if compress:
                    out.close()
            progress("files", number + 1, len(files), len(result) * (number + 1) // len(files))
    return counts
