"""Instances from a corpus of any size: streaming, on several processes, globally shuffled.

Three stages, each cut into units that depend on the corpus alone. Every unit has random numbers
of its own, from (seed, stage, unit), so the output does not depend on the number of workers.

1. Text: documents are gathered into chunks, tokenized and kept on disk (`TokenCache`).
2. Instances: for each chunk and duplicate, pairs are made and masked. Random second segments come
   from documents drawn from the whole corpus, read from disk a thousand at a time. Each instance
   is thrown into a random bucket; a worker appends all buckets of a unit to its file.
3. Files: each bucket is gathered from all units, shuffled, and encoded. Bucket after bucket gives
   one random order of all instances, which is cut into output files of equal size.
"""

import bisect
import contextlib
import dataclasses
import hashlib
import io
import itertools
import json
import os
import pickle
import random
import shutil
import struct
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import IO, Any

import numpy as np

from bert_tf import errors, paths
from bert_tf.tokenization import BertTokenizer
from data_prep import corpus, instances, records
from data_prep.corpus import Corpus, Document
from data_prep.instances import Counts, RecordEncoder, Settings, Vocabulary
from data_prep.packed_text import FileLayout, PackedText, Packer, token_dtype
from data_prep.workers import Pool

# Characters of a chunk: small ones first, so that a small corpus too has something for everyone.
_FIRST_CHUNK = 1 << 18
_CHUNK = 1 << 22
# Bytes of packed instances in a bucket, which is shuffled in memory.
_BUCKET = 1 << 24
# Random second segments that are drawn and read together.
_DRAWN_TOGETHER = 1024
# A corpus whose tokens take no more bytes is held in each worker.
_HELD = 1 << 24
# Pairs that are filled and masked together.
_BATCH = 1024

# stage ("tokens", "instances", "files"), done, all (0 if unknown), instances done.
Progress = Callable[[str, int, int, int], None]


def random_bits(*key: int) -> Callable[[int], np.ndarray]:
    """Returns a source of random uint64 that depends on the key alone."""
    return np.random.Philox(np.random.SeedSequence(key)).random_raw


def seed_of(*key: object) -> int:
    """Returns a seed for random.Random that depends on the key alone."""
    return int.from_bytes(hashlib.sha256(repr(key).encode()).digest()[:16], "big")


# Stage 1.


@dataclasses.dataclass(frozen=True)
class TokenSettings:
    """What decides the tokens of a text, apart from the text itself and the vocabulary."""

    input_format: str = corpus.TEXT
    split_sentences: str = ""
    pre_segmented: bool = False
    errors: str = "strict"


@dataclasses.dataclass
class TokenCache:
    """The tokens of a corpus in a folder: chunk-000000.tok and so on, and tokens.json.

    Attributes:
      folder: where it is.
      documents: the number of documents (or parts of long ones) in each chunk.
      counts: of the corpus.
    """

    folder: str
    documents: list[int]
    counts: Counts

    def path(self, chunk: int) -> str:
        return os.path.join(self.folder, f"chunk-{chunk:06d}.tok")


def chunks(documents: Iterable[Document]) -> Iterator[list[Document]]:
    """Gathers documents into chunks whose bounds depend on the documents alone."""
    number = size = 0
    chunk: list[Document] = []
    for document in documents:
        chunk.append(document)
        size += sum(map(len, document.lines))
        if size >= min(_CHUNK, _FIRST_CHUNK * (1 + number // 8)):
            yield chunk
            chunk, size = [], 0
            number += 1
    if chunk:
        yield chunk


def fingerprint(tokenizer: BertTokenizer, settings: TokenSettings, files: Sequence[str]) -> dict:
    """Returns what must be the same for tokens to be used again, but for the files' contents."""
    vocabulary = hashlib.sha256(
        "\n".join(f"{token}\t{i}" for token, i in tokenizer.vocab.items()).encode()
    )
    return {
        "version": 2,
        "vocabulary": vocabulary.hexdigest(),
        "do_lower_case": tokenizer.do_lower_case,
        "strip_accents": tokenizer.strip_accents,
        "never_split": list(tokenizer.never_split),
        **dataclasses.asdict(settings),
        "files": [
            [paths.basename(file), paths.size(file) if file != corpus.STDIN else 0]
            for file in files
        ],
    }


def digests(files: Sequence[str]) -> list[str]:
    """Returns BLAKE2b of each file's bytes as they are stored, in hexadecimal."""
    result = []
    for file in files:
        digest = hashlib.blake2b(digest_size=16)
        with paths.open_file(file, "rb") as handle:
            while data := handle.read(1 << 20):
                digest.update(data)
        result.append(digest.hexdigest())
    return result


def find_cache(folder: str, made_of: dict, files: Sequence[str]) -> TokenCache | None:
    """Opens the tokens of an earlier run; None if the folder has none.

    Raises:
      ValueError: they are of another corpus, vocabulary or settings, and names what differs; or
        a file of the folder is damaged or missing.
    """
    path = os.path.join(folder, "tokens.json")
    if not os.path.exists(path):
        return None
    try:
        with open(path, encoding="utf-8") as file:
            saved = json.load(file)
        before = saved["made_of"]
        cache = TokenCache(folder, saved["documents"], Counts(**saved["counts"]))
    except (ValueError, KeyError, TypeError):
        raise ValueError(f"{path} is damaged; delete the folder {folder}.") from None
    differing = [name for name in made_of if before.get(name) != made_of[name]]
    if not differing:  # The sizes are the same; only now is all of the text read.
        contents = itertools.zip_longest(files, digests(files), before.get("contents") or ())
        differing = [f"the contents of {file}" for file, now, then in contents if now != then]
    if differing:
        raise ValueError(
            f"{folder} holds the tokens of another run: {', '.join(differing)} differ; give "
            "another --token_cache, or delete the folder to make them anew."
        )
    for chunk, documents in enumerate(cache.documents):
        path = cache.path(chunk)
        if not os.path.exists(path):
            raise ValueError(f"{path} is missing; delete the folder {folder} to make it anew.")
        # Later the files are read at random places, where a checksum cannot be checked.
        if PackedText.load(path).documents != documents:
            raise ValueError(f"{path} is another text's; delete the folder {folder}.")
    return cache


def tokenize(
    documents: Corpus, made_of: dict, folder: str, pool: Pool, progress: Progress
) -> TokenCache:
    """Tokenizes a corpus into a folder.

    Raises:
      ValueError: the corpus is empty, or a file cannot be read as text.
    """
    cache = TokenCache(folder, [], Counts())
    found: dict[int, tuple[Counts, list[int]]] = {}
    parts = 0

    def tasks() -> Iterator[tuple[str, tuple[Any, ...]]]:
        nonlocal parts
        for number, chunk in enumerate(chunks(documents)):
            first = chunk[0].number + 1
            what = f"chunk {number} of the text (from document {first})"
            parts = number + 1
            yield what, (chunk, cache.path(number))

    for number, result in pool.run("tokenize", tasks()):
        found[number] = result
        progress("tokens", documents.bytes_read, documents.bytes_total, 0)
    last = -1
    for number in range(parts):
        counts, numbers = found[number]
        cache.documents.append(len(numbers))
        cache.counts.add(counts)
        if numbers:
            # A long document in parts is one.
            cache.counts.documents -= numbers[0] == last
            last = numbers[-1]
    if not cache.counts.documents:
        raise ValueError("the corpus is empty: the input files hold no text.")
    with paths.atomic_write(os.path.join(folder, "tokens.json")) as file:
        json.dump(
            {
                "made_of": made_of,
                "documents": cache.documents,
                "counts": dataclasses.asdict(cache.counts),
            },
            file,
        )
    return cache


# Stage 2.


class _Files:
    """The files of a token cache, as they are read from at random; small ones are held."""

    def __init__(self, cache: TokenCache):
        self._cache = cache
        size = sum(os.path.getsize(cache.path(i)) for i in range(len(cache.documents)))
        self._hold = size <= _HELD
        self._held: dict[int, tuple[FileLayout, IO[bytes]]] = {}

    @contextlib.contextmanager
    def open(self, chunk: int) -> Iterator[tuple[FileLayout, IO[bytes]]]:
        """Opens a chunk, without a buffer."""
        if chunk in self._held:
            yield self._held[chunk]
            return
        path = self._cache.path(chunk)
        with open(path, "rb", buffering=0) as file:
            if self._hold:
                data = file.readall()
                layout = FileLayout(data[: FileLayout.HEADER_SIZE], path)
                self._held[chunk] = layout, io.BytesIO(data)
                yield self._held[chunk]
            else:
                yield FileLayout(_read_at(file, 0, FileLayout.HEADER_SIZE), path), file


class _Drawer:
    """Random places in random documents of the whole corpus, read from disk in bunches.

    A place is a document, each as likely as any other, and one of its sentences; the tokens from
    there on follow the chunk's own tokens in `tokens`.
    """

    def __init__(
        self, cache: TokenCache, files: _Files, text: PackedText, room: int, rng: random.Random
    ):
        self._cache = cache
        self._files = files
        self._rng = rng
        self._room = room
        self._sums = np.cumsum(cache.documents).tolist()
        self._parts: list[np.ndarray] = [text.tokens]
        self._size = len(text.tokens)
        # About as many as the chunk needs.
        self._together = min(_DRAWN_TOGETHER, 16 + len(text.tokens) // room)
        # (document's number, start, ends of its sentences), in the order of use reversed.
        self._places: list[tuple[int, int, list[int]]] = []
        self.number = -1  # The document that is being paired.

    @property
    def tokens(self) -> np.ndarray:
        """The chunk's tokens, and after them those that were drawn."""
        self._parts = [np.concatenate(self._parts)]
        return self._parts[0]

    def __call__(self) -> tuple[int, list[int]] | None:
        if self._cache.counts.documents < 2:
            return None
        # It is another document at once, but for corpora that are nearly one long document.
        for _ in range(_DRAWN_TOGETHER):
            if not self._places:
                self._draw()
            number, start, ends = self._places.pop()
            if number != self.number:
                return start, ends
        return None

    def _draw(self) -> None:
        bits = self._rng.getrandbits
        sums, documents = self._sums, self._cache.documents
        drawn = []
        for order in range(self._together):
            document = instances.below(bits, sums[-1])
            chunk = bisect.bisect_right(sums, document)
            drawn.append((chunk, document - sums[chunk] + documents[chunk], order, bits(32)))
        # Read in the order of the disk, used in the order of the draws.
        drawn.sort()
        places: list[tuple[int, int, list[int]]] = [(0, 0, [])] * len(drawn)
        read: list[bytes] = []
        for chunk, group in itertools.groupby(drawn, key=lambda item: item[0]):
            with self._files.open(chunk) as (layout, file):
                for _, document, order, draw in group:
                    places[order] = self._read(file, layout, document, draw, read)
        self._parts.append(np.frombuffer(b"".join(read), layout.dtype))
        self._places = places[::-1]

    def _read(
        self, file: IO[bytes], layout: FileLayout, document: int, draw: int, read: list[bytes]
    ) -> tuple[int, int, list[int]]:
        row = _read_at(file, layout.documents_at + 16 * document, 24)
        first, number, last = struct.unpack("<qqq", row)
        sentence = first + draw % (last - first)
        # A sentence has at least one token: so many are always enough.
        wanted = min(last - sentence, self._room) + 1
        data = _read_at(file, layout.sentences_at + 8 * sentence, 8 * wanted)
        ends = struct.unpack(f"<{wanted}q", data)
        ends = ends[: bisect.bisect_left(ends, ends[0] + self._room) + 1]
        size = layout.token_size
        count = ends[-1] - ends[0]
        read.append(_read_at(file, layout.tokens_at + size * ends[0], size * count))
        start = self._size
        self._size += count
        move = start - ends[0]
        return number, start, [end + move for end in ends[1:]]


def _read_at(file: IO[bytes], start: int, size: int) -> bytes:
    """Reads from a file that is open without a buffer."""
    file.seek(start)
    data = file.read(size)
    while len(data) < size:  # A read may return less than is there.
        more = file.read(size - len(data))
        if not more:
            raise OSError(f"{getattr(file, 'name', 'a temporary file')} is cut off.")
        data += more
    return data


# Stages 1 to 3, in a worker.


class Worker:
    """What a worker process does; `Pool` makes one in each.

    Args:
      tokenizer: the tokenizer.
      token_settings, settings: the options.
      work_folder: for temporary files.
      number: the worker's.
    """

    def __init__(
        self,
        tokenizer: BertTokenizer,
        token_settings: TokenSettings,
        settings: Settings,
        work_folder: str,
        number: int,
    ):
        self._tokenizer = tokenizer
        self._token_settings = token_settings
        self._settings = settings
        self._vocabulary = Vocabulary.of(tokenizer)
        self._folder = work_folder
        self._own_file = os.path.join(work_folder, f"instances-{number}")
        self._packer: Packer | None = None
        self._encoder: RecordEncoder | None = None
        self._chunk: tuple[int, PackedText] | None = None
        self._files: _Files | None = None
        self._units: list[tuple[str, int]] = []

    def tokenize(self, documents: list[Document], path: str) -> tuple[Counts, list[int]]:
        """Stage 1 for a chunk; returns counts, and the number of each document or part."""
        if self._packer is None:
            language = self._token_settings.split_sentences
            split = corpus.sentence_splitter(language) if language else None
            self._packer = Packer(self._tokenizer, self._token_settings.pre_segmented, split)
        text = self._packer.pack(documents)
        with errors.writing(path):
            text.save(path)
        counts = Counts()
        counts.add_text(text)
        return counts, text.numbers.tolist()

    def make_instances(
        self, cache: TokenCache, chunk: int, duplicate: int, buckets: int
    ) -> tuple[str, int, list[int], Counts]:
        """Stage 2 for a chunk and a duplicate.

        Returns the file, where in it the unit begins, instances in each bucket, counts.
        """
        self._packer = None
        settings = self._settings
        if self._chunk is None or self._chunk[0] != chunk:
            self._chunk = chunk, PackedText.load(cache.path(chunk))
        text = self._chunk[1]
        rng = random.Random(seed_of(settings.seed, 2, duplicate, chunk))
        bits = random_bits(settings.seed, 2, duplicate, chunk)
        if self._files is None:
            self._files = _Files(cache)
        room = settings.max_seq_length - 3
        drawer = _Drawer(cache, self._files, text, room, rng)
        counts = Counts()
        packed: list[bytes] = []
        pairs: list[instances.Pair] = []

        def flush() -> None:
            packed.extend(instances.build(drawer.tokens, pairs, settings, self._vocabulary, bits))
            pairs.clear()

        bounds = text.document_ends.tolist()
        ends = text.sentence_ends
        for document, number in enumerate(text.numbers.tolist()):
            drawer.number = number
            own_ends = ends[bounds[document] : bounds[document + 1] + 1].tolist()
            made, dropped = instances.pair_document(own_ends, settings, rng, drawer)
            pairs += made
            counts.dropped += dropped
            if len(pairs) >= _BATCH:
                flush()
        flush()
        counts.add_packed(packed)
        thrown = (bits(len(packed)) % np.uint64(buckets)).astype(np.int64)
        order = np.argsort(thrown, kind="stable").tolist()
        in_bucket = np.bincount(thrown, minlength=buckets)
        sizes = np.zeros(buckets + 1, np.int64)
        np.add.at(sizes, thrown + 1, np.array([len(p) for p in packed], np.int64))
        with errors.writing(self._own_file), open(self._own_file, "ab") as file:
            begin = file.tell()
            file.write(np.cumsum(sizes).astype("<i8").tobytes())
            file.write(b"".join([packed[i] for i in order]))
        return self._own_file, begin, in_bucket.tolist(), counts

    def write_bucket(
        self,
        bucket: int,
        buckets: int,
        units_file: str,
        pieces: list[tuple[int, int, int]],
        compress: bool,
    ) -> list[tuple[int, str]]:
        """Stage 3 for a bucket.

        Args:
          bucket, buckets: which of how many.
          units_file: a pickle of the file and begin of every unit, in the order of the units.
          pieces: (output file, first instance, last + 1) after shuffling.

        Returns:
          (output file, path of the records for it).
        """
        settings = self._settings
        self._chunk = self._files = None
        if not self._units:
            with open(units_file, "rb") as file:
                self._units = pickle.load(file)
        parts = []
        with contextlib.ExitStack() as stack:
            files: dict[str, IO[bytes]] = {}
            for path, begin in self._units:
                if path not in files:
                    files[path] = stack.enter_context(open(path, "rb", buffering=0))
                first, last = np.frombuffer(
                    _read_at(files[path], begin + 8 * bucket, 16), "<i8"
                ).tolist()
                start = begin + 8 * (buckets + 1) + first
                parts.append(_read_at(files[path], start, last - first))
        packed = instances.split_packed(b"".join(parts), self._vocabulary.size)
        del parts
        keys = random_bits(settings.seed, 3, bucket)(len(packed))
        order = np.argsort(keys, kind="stable").tolist()
        if self._encoder is None:
            self._encoder = RecordEncoder(settings, self._vocabulary.size)
        encode = self._encoder.encode
        result = []
        for shard, first, last in pieces:
            path = os.path.join(self._folder, f"records-{bucket}-{shard}")
            with errors.writing(path), open(path, "wb", 1 << 20) as file:
                out: Any = records.compressor(file) if compress else file
                for i in order[first:last]:
                    out.write(encode(packed[i]))
                if compress:
                    out.close()
            result.append((shard, path))
        return result


# The whole.


def count_buckets(tokens: int, settings: Settings, vocab_size: int) -> int:
    """Returns the number of buckets for a corpus of so many tokens."""
    size = packed_bytes(tokens, settings, vocab_size)
    return max(-(-size // _BUCKET), min(16, -(-size // (1 << 19))))


def packed_bytes(tokens: int, settings: Settings, vocab_size: int) -> int:
    """Estimates the bytes of all packed instances."""
    width = token_dtype(vocab_size).itemsize
    per_token = width + (0 if settings.dynamic_masking else settings.masking.prob * (2 + width))
    # A random second segment is taken on top of the corpus's own text: measured 1.3 to 1.5 times.
    return int(1.5 * tokens * settings.dupe_factor * (per_token + 0.1))


def cuts(in_buckets: Sequence[int], files: int) -> list[list[tuple[int, int, int]]]:
    """Cuts the row of all buckets into files of equal size, one instance more or less.

    Args:
      in_buckets: the number of instances in each bucket.
      files: how many files.

    Returns:
      For each bucket (file, first instance, last + 1), counted in the bucket.
    """
    total = sum(in_buckets)
    bounds = [total * i // files for i in range(files + 1)]
    result = []
    begin = 0
    for size in in_buckets:
        end = begin + size
        pieces = []
        file = bisect.bisect_right(bounds, begin) - 1
        while file < files and bounds[file] < end:
            first, last = max(begin, bounds[file]), min(end, bounds[file + 1])
            if first < last:
                pieces.append((file, first - begin, last - begin))
            file += 1
        result.append(pieces)
        begin = end
    return result


def run(
    files: Sequence[str],
    tokenizer: BertTokenizer,
    settings: Settings,
    outputs: Sequence[str],
    *,
    num_workers: int,
    token_settings: TokenSettings = TokenSettings(),
    compress: bool = False,
    token_cache: str = "",
    work_folder: str = "",
    progress: Progress = lambda stage, done, total, made: None,
) -> Counts:
    """Makes the records of a corpus.

    Args:
      files: the input files, from `corpus.find_files`.
      tokenizer, settings, token_settings: the options.
      outputs: the output files; all get their names when all are complete.
      num_workers: processes beside this one; the output does not depend on it.
      compress: whether to write gzip.
      token_cache: a local folder to keep the tokens in, or to take them from; "" keeps none.
      work_folder: where a temporary folder is made; by default beside the first output file, or
        the system's if that is an address.
      progress: called with a stage, what is done and all there is.

    Raises:
      ValueError: bad options or texts; the cache is another corpus's.
      WorkerError: a worker died.
      OSError: no space is left, and the like; names the file.
    """
    if num_workers < 1:
        raise ValueError(f"num_workers is {num_workers}; it must be at least 1.")
    if paths.has_scheme(token_cache) or paths.has_scheme(work_folder):
        raise ValueError("--token_cache and --work_dir must be local folders.")
    if token_cache and corpus.STDIN in files:
        raise ValueError(
            "--token_cache does not go with standard input, which cannot be told from another "
            "text; name files as --input_file."
        )
    vocab_size = Vocabulary.of(tokenizer).size
    made_of = fingerprint(tokenizer, token_settings, files)
    cache = None
    if token_cache:
        cache = find_cache(token_cache, made_of, files)
        if cache is None:
            # Before the text is tokenized: if it is edited meanwhile, the cache does not match.
            made_of["contents"] = digests(files)
    if not work_folder and not paths.has_scheme(outputs[0]):
        work_folder = paths.dirname(paths.local(outputs[0])) or "."
    if work_folder:
        os.makedirs(work_folder, exist_ok=True)
    with contextlib.ExitStack() as stack:
        temporary = tempfile.mkdtemp(prefix=".pretraining_data_", dir=work_folder or None)
        stack.callback(shutil.rmtree, temporary, ignore_errors=True)
        if token_cache and cache is None:
            # Once the pool is closed: it ends workers that are writing.
            stack.callback(_remove_unfinished, token_cache)
        shards = stack.enter_context(records.Shards(outputs))
        pool = stack.enter_context(
            Pool(num_workers, Worker, (tokenizer, token_settings, settings, temporary))
        )
        if cache is None:
            folder = token_cache or os.path.join(temporary, "tokens")
            os.makedirs(folder, exist_ok=True)
            text = Corpus(
                files, token_settings.input_format, token_settings.errors, max_characters=_CHUNK
            )
            cache = tokenize(text, made_of, folder, pool, progress)
        counts = dataclasses.replace(cache.counts)
        buckets = count_buckets(counts.tokens, settings, vocab_size)
        _check_space(temporary, packed_bytes(counts.tokens, settings, vocab_size))

        places = list(itertools.product(range(len(cache.documents)), range(settings.dupe_factor)))
        tasks = (
            (f"chunk {chunk}, duplicate {duplicate}", (cache, chunk, duplicate, buckets))
            for chunk, duplicate in places
        )
        units: list[tuple[str, int]] = [("", 0)] * len(places)
        in_buckets = np.zeros(buckets, np.int64)
        made_units = pool.run("make_instances", tasks)
        for done, (number, (file, begin, in_unit, made)) in enumerate(made_units, 1):
            units[number] = file, begin
            in_buckets += in_unit
            counts.add(made)
            progress("instances", done, len(places), counts.instances)
        if not counts.instances:
            raise ValueError(
                "no instance could be made: the corpus is one document, and no two sentences of "
                "it go together. Put a blank line between documents."
            )
        pieces = cuts(in_buckets.tolist(), len(outputs))
        units_file = os.path.join(temporary, "units")
        with open(units_file, "wb") as handle:
            pickle.dump(units, handle)
        bucket_tasks = (
            (f"bucket {bucket}", (bucket, buckets, units_file, pieces[bucket], compress))
            for bucket in range(buckets)
        )
        written = pool.run("write_bucket", bucket_tasks)
        _gather(written, in_buckets.tolist(), shards, progress)
    return counts


def _gather(
    written: Iterable[tuple[int, list[tuple[int, str]]]],
    in_buckets: Sequence[int],
    shards: records.Shards,
    progress: Progress,
) -> None:
    """Puts the buckets' records into the output files, in order, as they come."""
    ready: dict[int, list[tuple[int, str]]] = {}
    following = made = 0
    with contextlib.ExitStack() as stack:
        opened = -1
        handle: Any = None
        for bucket, pieces in written:
            ready[bucket] = pieces
            while following in ready:
                for shard, path in ready.pop(following):
                    while opened < shard:
                        stack.close()
                        opened += 1
                        handle = stack.enter_context(shards.open(opened))
                    with open(path, "rb") as part:
                        shutil.copyfileobj(part, handle, 1 << 20)
                    os.remove(path)
                made += in_buckets[following]
                following += 1
                progress("files", following, len(in_buckets), made)
        # More files than instances: the last ones are empty.
        while opened < len(shards.files) - 1:
            stack.close()
            opened += 1
            stack.enter_context(shards.open(opened))


def _remove_unfinished(folder: str) -> None:
    for name in os.listdir(folder) if os.path.isdir(folder) else ():
        if name.startswith("chunk-") and name.endswith(".tok.tmp"):
            with contextlib.suppress(OSError):
                os.remove(os.path.join(folder, name))


def _check_space(folder: str, needed: int) -> None:
    free = shutil.disk_usage(folder).free
    # The records, about 2.5 times as large, are written while the instances are still there.
    if free < needed:
        raise OSError(
            f"about {needed / 1e6:,.1f} MB are needed for temporary files in {folder}, and only "
            f"{free / 1e6:,.1f} MB are free; name a folder on a larger disk with --work_dir."
        )


__all__ = ["TokenCache", "TokenSettings", "Worker", "chunks", "cuts", "run", "tokenize"]
