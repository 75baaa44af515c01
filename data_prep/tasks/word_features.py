"""Hidden states of words as features: section 5.3 of the paper, without fine-tuning.

An encoder that stays as it is is run over the windows of `ner.TokenFeatures` once. What it says
of each word's first piece is kept, and read by sentences.

Letters: W words of all sentences, N examples, D numbers of a word, B batch, T padded length.
"""

import functools
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Literal, get_args

import numpy as np

from bert_tf import paths
from data_prep.input_pipeline import Signature
from data_prep.tasks.ner import IGNORED, TokenFeatures

# The rows of the paper's table.
Choice = Literal[
    "embeddings", "second_to_last", "last", "weighted_sum", "sum_last_4", "concat_last_4"
]
CHOICES: tuple[str, ...] = get_args(Choice)

# Below output_dir. It may be deleted at any time.
FOLDER = "features"

# Numbers that an encoder returns for a part of the windows: 256 MiB.
_PART = 2**26


def layers_of(choice: str, num_layers: int) -> tuple[int | str, ...]:
    """Returns the layers that a choice reads, as `bert_tf.features.FeatureExtractor` names them.

    Args:
      choice: one of CHOICES.
      num_layers: layers of the encoder.

    Raises:
      ValueError: if the encoder has too few.
    """
    needed = {"second_to_last": 2, "sum_last_4": 4, "concat_last_4": 4}.get(choice, 1)
    if num_layers < needed:
        raise ValueError(
            f"--feature_based={choice} needs {needed} layers; the model has {num_layers}."
        )
    if choice == "embeddings":
        return ("embeddings",)
    if choice == "weighted_sum":
        return ("embeddings", *range(num_layers))
    if choice in ("sum_last_4", "concat_last_4"):
        return (-1, -2, -3, -4)
    return (-2,) if choice == "second_to_last" else (-1,)


def combine(choice: str, states: np.ndarray) -> np.ndarray:
    """Makes the vectors of words: [words, layers, H] -> float32 [words, D].

    The layers stand behind each other; for sum_last_4 they are added.
    """
    if choice == "sum_last_4":
        return states.sum(axis=1)
    return states.reshape(len(states), -1)


def encode(
    windows: TokenFeatures,
    choice: str,
    states: Callable[[list[np.ndarray]], Sequence[np.ndarray]],
    numbers_per_token: int,
) -> Iterator[np.ndarray]:
    """Runs an encoder over all windows.

    Args:
      windows: of one set.
      choice: one of CHOICES.
      states: from the ids of some windows to [T, layers, H] each.
      numbers_per_token: layers * H; it decides how many windows go in one call.

    Yields float32 [words, D], the vectors of all words in order.
    """
    size = max(1, _PART // (windows.max_seq_length * numbers_per_token))
    for start in range(0, len(windows), size):
        part = range(start, min(start + size, len(windows)))
        for index, found in zip(part, states([windows.ids(each) for each in part]), strict=True):
            # Windows are in the order of the words that are counted in them.
            yield combine(choice, found[windows.positions(index)])


def stored(
    output_dir: str, name: str, shape: tuple[int, int], blocks: Iterable[np.ndarray]
) -> np.ndarray:
    """Returns blocks of rows as one array that is mapped into memory from a file.

    A file of that name is read again; else the blocks are, and other files of the set are deleted.

    Args:
      output_dir: the file goes into its folder `features`; into a nameless one of this machine
        where it is an address.
      name: of the file, "train-...".
      shape: (W, D).
      blocks: float32 [words, D], all rows in order.
    """
    if paths.has_scheme(output_dir):
        # What is far away cannot be mapped into memory.
        with tempfile.TemporaryFile() as handle:
            for block in blocks:
                handle.write(np.ascontiguousarray(block, np.float32).tobytes())
            handle.flush()
            return np.memmap(handle, np.float32, "r", shape=shape)
    folder = paths.join(output_dir, FOLDER)
    path = paths.join(folder, name)
    if paths.exists(path):
        try:
            vectors = np.load(paths.local(path), mmap_mode="r")
            if vectors.shape == shape and vectors.dtype == np.float32:
                return vectors
        except (ValueError, OSError, EOFError):
            pass  # Damaged: made anew.
    paths.make_dirs(folder)
    for other in paths.list_dir(folder):
        if other.startswith(name.split("-")[0] + "-"):
            paths.remove(paths.join(folder, other))
    with paths.atomic_write(path, "wb") as handle:
        header = {"descr": "<f4", "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(handle, header)
        for block in blocks:
            handle.write(np.ascontiguousarray(block, "<f4").tobytes())
    return np.load(paths.local(path), mmap_mode="r")


class WordFeatures:
    """Vectors of words as examples: a sentence each, or a part of one that is very long.

    What `data_prep.input_pipeline` needs of features is here.

    Attributes:
      vectors: float32 [W, D]; may be a file that is mapped into memory.
      input_ids, word_labels, num_...: of the windows they come from.
      spans: int64 [N, 2], the words of each example, first and end.
      max_seq_length: no example has more words.
    """

    labels: np.ndarray | None = None
    example_weights: np.ndarray | None = None

    def __init__(self, windows: TokenFeatures, vectors: np.ndarray):
        """Takes a set's windows and what `encode` made of them."""
        self.vectors = vectors
        self.input_ids, self.word_labels = windows.input_ids, windows.word_labels
        self.by_sentence = windows.by_sentence
        starts = windows.sentence_starts
        self.max_seq_length = min(windows.max_seq_length, int(np.diff(starts).max()))
        self.spans = np.array(
            [
                (start, min(start + self.max_seq_length, end))
                for first, end in zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True)
                for start in range(first, end, self.max_seq_length)
            ],
            np.int64,
        ).reshape(-1, 2)

    def __len__(self) -> int:
        return len(self.spans)

    @functools.cached_property
    def lengths(self) -> np.ndarray:
        """Words of each example: int32 [N]."""
        return (self.spans[:, 1] - self.spans[:, 0]).astype(np.int32)

    @property
    def signature(self) -> Signature:
        """What `dense` returns."""
        return {
            "features": ((None, self.vectors.shape[1]), np.float32),
            "input_mask": ((None,), np.int32),
            "label_ids": ((None,), np.int32),
        }

    def dense(self, indices: np.ndarray, length: int) -> dict[str, np.ndarray]:
        """Pads some examples to one length; arguments as for `TokenFeatures.dense`.

        Returns:
          features: float32 [B, T, D]. input_mask: int32 [B, T], 1 for words.
          label_ids: int32 [B, T], -1 in the padding.
        """
        shape = (len(indices), length)
        features = np.zeros((*shape, self.vectors.shape[1]), np.float32)
        mask, labels = np.zeros(shape, np.int32), np.full(shape, IGNORED, np.int32)
        for row, index in enumerate(np.asarray(indices).tolist()):
            if index < 0:
                continue
            start, end = self.spans[index].tolist()
            if end - start > length:
                raise ValueError(f"{end - start} words do not fit into {length}.")
            features[row, : end - start] = self.vectors[start:end]
            mask[row, : end - start] = 1
            labels[row, : end - start] = self.word_labels[start:end]
        return {"features": features, "input_mask": mask, "label_ids": labels}

    def gather(self, values: np.ndarray) -> np.ndarray:
        """Takes each word's value from what a model returned: [N, T, ...] -> [W, ...]."""
        rows = np.arange(len(self)).repeat(self.lengths)
        return values[rows, np.arange(len(self.word_labels)) - self.spans[rows, 0]]

    by_sentence: Callable[[Any], list[Any]]
