"""Tagging of entities: sentences as windows of word pieces, and the task.

Each token is predicted once, in one window.

Letters: W tokens ("words") of all sentences, P their word pieces, N windows, B batch, T padded
length.
"""

import array
import bisect
import functools
import itertools
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from bert_tf import paths
from bert_tf.tokenization import BertTokenizer
from data_prep.input_pipeline import TEXT, Signature
from data_prep.tasks import conll, entities
from data_prep.tasks.base import MainMetric, Task
from data_prep.tasks.conll import Sentence
from data_prep.tasks.entities import Mode

# The label of a piece that is not counted.
IGNORED = -1
_METRICS = ("precision", "recall", "f1")


class Words(Protocol):
    """The words of a set that a model was run on."""

    word_labels: np.ndarray

    def by_sentence(self, values: Sequence[Any] | np.ndarray) -> list[Any]:
        """Cuts [W, ...] into the sentences' parts."""


# Windows.


class TokenFeatures:
    """Sentences as windows of word pieces: `[CLS]`, pieces of neighbouring words, `[SEP]`.

    Each word is counted in one window, by its first piece. What `data_prep.input_pipeline` needs
    of features is here; its "example" is a window.

    Attributes:
      input_ids: int32 [P], the pieces of all words in file order.
      word_starts: int64 [W + 1], where each word's begin.
      word_labels: int32 [W], the ids of the tags, 0 where they are not known.
      sentence_starts: int64 [number of sentences + 1], where each one's words begin.
      windows: int64 [N, 4]: the words that a window shows, first and end, and of these the words
        that are counted in it, first and end.
      max_seq_length: the longest window, [CLS] and [SEP] included.
      guids: of each window, that of the sentence it is for, N.
      num_split: sentences that did not fit into one window.
      num_cut_words: words of more pieces than a window has room for, whose last ones are left out.
      num_unknown: words that the tokenizer reduced to nothing, for which [UNK] stands.
    """

    example_weights: np.ndarray | None = None
    # They are among the arrays of `dense`.
    labels: np.ndarray | None = None
    signature: Signature = {**TEXT, "label_ids": ((None,), np.int32)}

    def __init__(
        self,
        pieces: np.ndarray,
        word_starts: np.ndarray,
        word_labels: np.ndarray,
        sentence_starts: np.ndarray,
        windows: np.ndarray,
        guids: list[str],
        max_seq_length: int,
        cls_id: int,
        sep_id: int,
    ) -> None:
        self.input_ids = pieces
        self.word_starts = word_starts
        self.word_labels = word_labels
        self.sentence_starts = sentence_starts
        self.windows = windows
        self.guids = guids
        self.max_seq_length = max_seq_length
        self._cls_id, self._sep_id = cls_id, sep_id
        self.num_split = self.num_cut_words = self.num_unknown = 0

    def __len__(self) -> int:
        return len(self.windows)

    @functools.cached_property
    def lengths(self) -> np.ndarray:
        """Tokens of each window: int32 [N]."""
        starts = self.word_starts
        return (starts[self.windows[:, 1]] - starts[self.windows[:, 0]] + 2).astype(np.int32)

    def ids(self, index: int) -> np.ndarray:
        """Returns a window's ids without padding, int32."""
        first, end = self.windows[index, :2]
        pieces = self.input_ids[self.word_starts[first] : self.word_starts[end]]
        return np.concatenate([[self._cls_id], pieces, [self._sep_id]], dtype=np.int32)

    def positions(self, index: int) -> np.ndarray:
        """Returns where in a window the first pieces of its counted words stand, int64."""
        first, _, start, end = self.windows[index]
        return self.word_starts[start:end] - self.word_starts[first] + 1

    def dense(self, indices: np.ndarray, length: int) -> dict[str, np.ndarray]:
        """Pads some windows to one length.

        Args:
          indices: [B] int; -1 stands for a row of zeros, which fills up a batch.
          length: T, at least that of the longest among them.

        Returns:
          input_ids, input_mask, segment_ids: int32 [B, T], zeros in the padding.
          label_ids: int32 [B, T], the tag of a counted word at its first piece, -1 elsewhere.

        Raises:
          ValueError: if a window is longer than `length`.
        """
        shape = (len(indices), length)
        ids, mask = np.zeros(shape, np.int32), np.zeros(shape, np.int32)
        labels = np.full(shape, IGNORED, np.int32)
        for row, index in enumerate(np.asarray(indices).tolist()):
            if index < 0:
                continue
            own = self.ids(index)
            size = len(own)
            if size > length:
                raise ValueError(f"A window of {size} tokens does not fit into {length}.")
            ids[row, :size] = own
            mask[row, :size] = 1
            counted, counted_end = self.windows[index, 2:]
            labels[row, self.positions(index)] = self.word_labels[counted:counted_end]
        segments = np.zeros(shape, np.int32)
        return {"input_ids": ids, "input_mask": mask, "segment_ids": segments, "label_ids": labels}

    def gather(self, values: np.ndarray) -> np.ndarray:
        """Takes each word's value from what a model returned for the pieces of all windows.

        Args:
          values: [N, T, ...], T at least that of the longest window: logits, say.

        Returns:
          [W, ...].
        """
        shown = np.arange(len(self)).repeat(self.windows[:, 3] - self.windows[:, 2])
        words = np.arange(len(self.word_labels))
        # Windows are in the order of their counted words, and these follow each other.
        return values[shown, self.word_starts[words] - self.word_starts[self.windows[shown, 0]] + 1]

    def by_sentence(self, values: Sequence[Any] | np.ndarray) -> list[Any]:
        """Cuts [W, ...] into the sentences' parts."""
        bounds = self.sentence_starts.tolist()
        return [values[start:end] for start, end in itertools.pairwise(bounds)]


def featurize(
    sentences: Sequence[Sentence],
    labels: Sequence[str],
    tokenizer: BertTokenizer,
    max_seq_length: int,
    document_context: bool = False,
) -> TokenFeatures:
    """Cuts sentences into windows.

    A sentence is a window of its own. One that does not fit is read through several that overlap
    by half, and each word is counted in the window where it has most context, the lesser of the
    two sides being compared. With `document_context` the sentences around, of the same document,
    fill a window up to `max_seq_length`, as much on the left as on the right where there is
    enough; they are not counted there. A file without -DOCSTART- lines is one document.

    Args:
      sentences: of one file, in order.
      labels: the tags in the order of the model's outputs.
      tokenizer: words are tokenized one by one.
      max_seq_length: longest window, [CLS] and [SEP] included.
      document_context: whether to fill windows with the sentences around.

    Raises:
      ValueError: if there is no room for a piece, or a tag is not one of `labels`.
    """
    if max_seq_length < 3:
        raise ValueError(
            f"max_seq_length is {max_seq_length}, but a token with [CLS] and [SEP] needs at least "
            "3."
        )
    room = max_seq_length - 2
    ids = {label: number for number, label in enumerate(labels)}
    pieces, ends = array.array("i"), array.array("q", [0])
    word_labels, sentence_starts = array.array("i"), array.array("q", [0])
    cut = unknown = 0
    for sentence in sentences:
        for word in sentence.words:
            own = tokenizer.encode(word)
            if not own:
                own = [tokenizer.unk_id]
                unknown += 1
            cut += len(own) > room
            pieces.extend(own[:room])
            ends.append(len(pieces))
        if sentence.tags is None:
            word_labels.extend([0] * len(sentence.words))
        else:
            for tag, line in zip(sentence.tags, sentence.lines, strict=True):
                if tag not in ids:
                    raise ValueError(
                        f"{sentence.guid}, line {line}: the tag {tag!r} is not one of the labels: "
                        f"{', '.join(labels)}."
                    )
                word_labels.append(ids[tag])
        sentence_starts.append(len(ends) - 1)
    starts = ends.tolist()
    spans: list[tuple[int, int, int, int]] = []
    guids: list[str] = []
    split = 0
    for number, (first, end) in enumerate(itertools.pairwise(sentence_starts)):
        own_windows = _windows(starts, first, end, room)
        split += len(own_windows) > 1
        if document_context and len(own_windows) == 1:
            left, right = _document(sentences, number)
            shown = _widened(
                starts, first, end, sentence_starts[left], sentence_starts[right], room
            )
            own_windows = [(*shown, first, end)]
        spans += own_windows
        guids += [sentences[number].guid] * len(own_windows)
    features = TokenFeatures(
        np.array(pieces, np.int32),
        np.array(starts, np.int64),
        np.array(word_labels, np.int32),
        np.array(sentence_starts, np.int64),
        np.array(spans, np.int64).reshape(-1, 4),
        guids,
        max_seq_length,
        tokenizer.cls_id,
        tokenizer.sep_id,
    )
    features.num_split, features.num_cut_words, features.num_unknown = split, cut, unknown
    return features


def _document(sentences: Sequence[Sentence], number: int) -> tuple[int, int]:
    """The first sentence of a sentence's document, and the one behind its last."""
    own = sentences[number].document
    left = bisect.bisect_left(sentences, own, key=lambda one: one.document)
    return left, bisect.bisect_right(sentences, own, key=lambda one: one.document)


def _widened(
    starts: Sequence[int], first: int, end: int, left: int, right: int, room: int
) -> tuple[int, int]:
    """Extends words [first, end) within [left, right) as far as `room` pieces allow."""
    spare = room - (starts[end] - starts[first])
    before, behind = starts[first] - starts[left], starts[right] - starts[end]
    take_before = min(before, max(spare // 2, spare - behind))
    start = bisect.bisect_left(starts, starts[first] - take_before, left, first + 1)
    stop = bisect.bisect_right(starts, starts[start] + room, end, right + 1) - 1
    return start, stop


def _windows(
    starts: Sequence[int], first: int, end: int, room: int
) -> list[tuple[int, int, int, int]]:
    """Windows over the words of one sentence: (first, end, first counted, end of the counted)."""
    if starts[end] - starts[first] <= room:
        return [(first, end, first, end)]
    shown: list[tuple[int, int]] = []
    begin = first
    while True:
        stop = bisect.bisect_right(starts, starts[begin] + room, begin, end + 1) - 1
        if stop == end:
            # The last one goes back as far as it can.
            shown.append((bisect.bisect_left(starts, starts[end] - room, first, end), end))
            break
        # One that ends where the last one did, before a long word, would show nothing new.
        if not shown or shown[-1][1] < stop:
            shown.append((begin, stop))
        half = bisect.bisect_left(starts, starts[begin] + (room + 1) // 2, begin, end)
        begin = min(max(half, begin + 1), stop)
    result = []
    counted = first
    for number, (begin, stop) in enumerate(shown):
        last = stop
        if number + 1 < len(shown):
            last = max(counted, shown[number + 1][0])
            while last < stop and _context(starts, last, begin, stop) >= _context(
                starts, last, *shown[number + 1]
            ):
                last += 1
        if last > counted:  # A batch of windows that count nothing would have no loss.
            result.append((begin, stop, counted, last))
        counted = last
    return result


def _context(starts: Sequence[int], word: int, begin: int, stop: int) -> int:
    return min(starts[word] - starts[begin], starts[stop] - starts[word + 1])


# The task.


class NerTask(Task):
    """Entities in files of one's own, in CoNLL's layout.

    The labels are O, and B and I of each type in the training file, whatever its scheme.

    Attributes:
      scheme: that of the training file, for predictions on files without tags.
      columns: numbers of the tokens' column and the tags'.
    """

    name = "NER"
    kind = "tagging"
    train_file = "train.txt"
    eval_sets = {"dev": "dev.txt"}
    predict_sets = {"test": "test.txt"}
    alternatives = {
        "train.txt": ("train.conll", "eng.train"),
        "dev.txt": ("valid.txt", "dev.conll", "eng.testa"),
        "test.txt": ("test.conll", "eng.testb"),
    }
    metric_names = (*_METRICS, *(f"strict_{name}" for name in _METRICS), "accuracy")
    main_metric = MainMetric("f1")
    takes_pairs = False

    def __init__(
        self,
        data_dir: str | None = None,
        *,
        labels: Sequence[str] | None = None,
        scheme: str | None = None,
        word_column: int = 0,
        tag_column: int = -1,
        train_file: str | None = None,
        dev_file: str | None = None,
        test_file: str | None = None,
    ) -> None:
        """Looks at the training file for the labels.

        Args:
          data_dir: the folder of the files; may be None if `labels` are given.
          labels: O first, then the tags in IOB2; by default those of the training file.
          scheme: goes with `labels`.
          word_column: number of the tokens' column, from 0; -1 is the last.
          tag_column: of the tags'.
          train_file: train.txt by default; train.conll and eng.train are found too.
          dev_file: dev.txt by default; valid.txt, dev.conll and eng.testa are found too.
          test_file: test.txt by default; test.conll and eng.testb are found too.

        Raises:
          FileNotFoundError: if the training file is needed and missing.
          ValueError: for a training file without entities or one that `conll.read_conll`
            refuses, and for labels that are no tags of IOB2.
        """
        self.columns = word_column, tag_column
        if train_file:
            self.train_file = train_file
        if dev_file:
            self.eval_sets = {"dev": dev_file}
        if test_file:
            self.predict_sets = {"test": test_file}
        self._files: dict[tuple[str, str, bool], conll.ConllFile] = {}
        if labels is not None:
            self.labels, self.scheme = tuple(labels), scheme
            wrong = [
                label
                for label in self.labels[1:]
                if (entities.split_tag(label) or ("", ""))[0] not in ("B", "I")
            ]
            if self.labels[:1] != (entities.OUTSIDE,) or wrong or len(set(self.labels)) < 2:
                raise ValueError(
                    f"The labels of NER are O first, then tags such as B-PER and I-PER, not "
                    f"{', '.join(self.labels) or 'none'}."
                )
        elif data_dir is not None:
            file = self.read(data_dir, "train")
            types = {
                parts[1]
                for sentence in file.sentences
                for tag in sentence.tags or ()
                if (parts := entities.split_tag(tag)) and parts[1]
            }
            if not types:
                raise ValueError(
                    f"{file.path} has no entity: column {tag_column} is O in every line. Is that "
                    "the column of the tags?"
                )
            self.labels = (
                entities.OUTSIDE,
                *(entities.join_tag(prefix, kind) for kind in sorted(types) for prefix in "BI"),
            )
            self.scheme = file.scheme
        else:
            raise ValueError("The task NER needs either data_dir or the list of labels.")

    def read(self, data_dir: str, set_name: str) -> conll.ConllFile:
        """Reads one set; what was read is kept, as the training set is asked for twice.

        Tags of prediction sets are not looked at.

        Raises:
          FileNotFoundError, ValueError: as `conll.read_conll`; and for a tag of a type that is
            not in the training set.
        """
        path = self._path(data_dir, set_name)
        labelled = self.has_labels(set_name)
        key = path, set_name, labelled
        if key not in self._files:
            self._files[key] = conll.read_conll(path, set_name, labelled, *self.columns)
        file = self._files[key]
        # There are none while the training set is read for them.
        if self.labels and labelled:
            for sentence in file.sentences:
                for tag, line in zip(sentence.tags or (), sentence.lines):
                    if tag not in self.labels:
                        raise ValueError(
                            f"{path}, line {line}: there is no label for the tag {tag!r} (in "
                            "IOB2): its type is not in the training file. The labels are "
                            f"{', '.join(self.labels)}."
                        )
        return file

    def evaluate_test(self, data_dir: str) -> None:
        """Has the test set evaluated if its file is there and has a column of tags with entities.

        It has one where it has as many columns as the dev file; tags that are all O stand for
        tags that are not known.
        """
        name, file = next(iter(self.predict_sets.items()))
        names = (file, *self.alternatives.get(file, ()))
        if not any(paths.exists(paths.join(data_dir, each)) for each in names):
            return
        test, dev = self.read(data_dir, name), self.read(data_dir, "dev")
        if test.num_columns != dev.num_columns:
            return
        if conll.has_tags(test.path, self.columns[1] % test.num_columns):
            self.eval_sets = {**self.eval_sets, name: file}

    def read_examples(self, data_dir: str, set_name: str) -> list[Sentence]:  # type: ignore[override]
        """Returns the sentences of `read`."""
        return self.read(data_dir, set_name).sentences

    def tags(self, features: Words, word_ids: np.ndarray) -> list[list[str]]:
        """Returns label ids of all words, [W], as each sentence's tags in IOB2."""
        return features.by_sentence([self.labels[index] for index in word_ids.tolist()])

    def metrics(self, logits: np.ndarray, labels: np.ndarray) -> dict[str, float]:
        """Not for tagging: entities need to know the sentences. Use `scores`."""
        raise NotImplementedError("NerTask.scores takes the features and the predicted labels")

    def scores(self, features: Words, word_ids: np.ndarray) -> dict[str, float]:
        """Scores predicted labels.

        Args:
          features: of a labelled set.
          word_ids: [W] int.

        Returns:
          precision, recall, f1: of entities, in the way of the CoNLL shared tasks.
          strict_precision, strict_recall, strict_f1: where an I that begins an entity counts
            as outside.
          accuracy: share of words whose label is right.
        """
        found = {}
        for mode, prefix in (("conll", ""), ("strict", "strict_")):
            total = self._score(features, word_ids, mode)[""]  # type: ignore[arg-type]
            found.update({prefix + name: getattr(total, name) for name in _METRICS})
        found["accuracy"] = float(np.mean(word_ids == features.word_labels))
        return found

    def table(
        self, features: Words, word_ids: np.ndarray, mode: Mode = "conll"
    ) -> dict[str, dict[str, float]]:
        """Returns type -> precision, recall, f1 and support, as `scores`."""
        found = self._score(features, word_ids, mode)
        return {kind: value._asdict() for kind, value in found.items() if kind}

    def _score(
        self, features: Words, word_ids: np.ndarray, mode: Mode
    ) -> dict[str, entities.Score]:
        truth = self.tags(features, features.word_labels)
        return entities.score(truth, self.tags(features, word_ids), mode)
