"""What run_classifier.py does in another way for each kind of task.

`Texts`: a text or a pair, and a label, a number or several labels of it (GLUE, XNLI, TSV, CSV).
`Choice`: the best of several texts (SWAG, RACE).
`Tagging`: a label for each word (NER).
`FeatureTagging`: the same with an encoder that stays as it is (NER with --feature_based).

All have the methods of `Texts`. A new kind is a class here, a line of `make_kind` and its tasks in
data_prep/tasks. Keras and TensorFlow are imported where they are used.
"""

import dataclasses
import zlib
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import numpy as np
from absl import logging

from bert_tf import paths
from bert_tf.cli import scripts
from bert_tf.cli.command_line import CommandLineError
from bert_tf.config import BertConfig
from data_prep.tasks import conll, featurize, ner, swag, word_features


@dataclasses.dataclass(frozen=True)
class _Kind:
    """What the kinds share.

    Attributes:
      flags: of run_classifier.py.
      task: a `data_prep.tasks.base.Task`.
      config: the model's sizes.
      tokenizer: of its texts.
      bilstm: whether a bidirectional LSTM stands between the encoder and the output.
    """

    flags: Any
    task: Any
    config: BertConfig
    tokenizer: Any
    bilstm: bool = False

    def best_metric(self) -> tuple[str, bool]:
        """Returns the metric that decides, and whether higher is better."""
        name = self.flags.best_metric
        if name is None or name == self.task.main_metric.name:
            return tuple(self.task.main_metric)
        return name, name not in ("loss", "mse", "mae")

    def settings(self) -> dict[str, Any]:
        """Returns what of the kind's own flags the weights of a run depend on."""
        return {}

    def task_entries(self) -> dict[str, Any]:
        """Returns what the task file says of the kind: `settings`, and what else is read again."""
        return self.settings()


class Texts(_Kind):
    """Labels of, or numbers for, texts and pairs of texts."""

    counted: ClassVar[str] = "examples"

    def read(self, set_name: str) -> Any:
        """Reads and tokenizes a set; returns its features."""
        data = self._featurize(self.task.read_examples(self.flags.data_dir, set_name))
        logging.info(
            "%s: %d examples, mean length %.1f tokens, longest %d%s",
            set_name,
            len(data),
            data.lengths.mean(),
            data.lengths.max(),
            f"; {data.num_truncated} truncated to {self.flags.max_seq_length}"
            if data.num_truncated
            else "",
        )
        return data

    def _featurize(self, examples: Any) -> Any:
        flags = self.flags
        return featurize.featurize(
            examples, self.task, self.tokenizer, flags.max_seq_length, flags.truncation
        )

    def labels(self, data: Any) -> np.ndarray:
        """Returns the labels that are counted, one a row."""
        return data.labels

    def make_model(self, **options: Any) -> Any:
        """Makes the model with new weights; takes its seed and dtype."""
        from bert_tf.modeling.models import BertClassifier

        return BertClassifier(self.config, self.task.num_outputs, bilstm=self.bilstm, **options)

    def loss(self) -> Any:
        """Returns the loss."""
        from bert_tf.modeling import losses

        return losses.classifier_loss(self.task.kind)

    def eval_step(self, model: Any, strategy: Any) -> Any:
        """Returns the `EvalStep` that computes what `metrics` reads."""
        from bert_tf.training.step import EvalStep

        return EvalStep(model, strategy, self.loss().values)

    def gather(self, data: Any, found: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Makes rows of labels of what an `EvalStep` found: logits [N, L] and loss [N]."""
        return found

    def metrics(self, outputs: Mapping[str, np.ndarray], data: Any) -> dict[str, float]:
        """Returns the task's metrics over what `gather` returned."""
        return self.task.metrics(outputs["logits"], data.labels)

    def report(self, outputs: Mapping[str, np.ndarray], data: Any) -> dict[str, Any]:
        """Returns precision, recall, F1 and support by label; {} where that means nothing."""
        return self.task.report(outputs["logits"], data.labels)

    def write_predictions(
        self, set_name: str, data: Any, outputs: Mapping[str, np.ndarray], folder: str
    ) -> None:
        """Writes what was found for a prediction set."""
        flags, task, logits = self.flags, self.task, outputs["logits"]
        values = probabilities(task.kind, logits)
        first = task.sets(flags.data_dir, "predict")[0]
        ending = "" if set_name == first else "_" + set_name.removeprefix("test_")
        # AX is predicted with MNLI's model, often in its folder: not over MNLI's own results.
        if task.name == "AX":
            ending = "_ax"
        path = paths.join(folder, f"test_results{ending}.tsv")
        _write_table(path, values)
        print(f"***** Predicted {set_name}: {len(data)} rows in {path} *****")
        if flags.write_predictions:
            named = paths.join(folder, f"test_predictions{ending}.tsv")
            found = zip(data.guids, task.predicted(logits), values, strict=True)
            rows = [(" ".join(guid.split()), label, *row) for guid, label, row in found]
            _write_table(named, [("id", "prediction", *self._outputs(values)), *rows])
            print(f"  with ids and labels: {named}")
        if flags.write_submission:
            submission = task.submission(set_name, data.guids, logits)
            target = paths.join(folder, submission.file_name)
            _write_table(target, [submission.header, *submission.rows])
            print(f"  submission: {target}")

    def _outputs(self, values: np.ndarray) -> tuple[str, ...]:
        """The names of the columns of values [N, L]."""
        return self.task.labels or ("value",)


class Choice(Texts):
    """The best of several texts."""

    def _featurize(self, examples: Any) -> Any:
        flags = self.flags
        return swag.featurize(examples, self.tokenizer, flags.max_seq_length, flags.truncation)

    def make_model(self, **options: Any) -> Any:
        from bert_tf.modeling.models import BertForMultipleChoice

        return BertForMultipleChoice(self.config, **options)

    def loss(self) -> Any:
        from bert_tf.modeling import losses

        return losses.multiple_choice_loss()

    def _outputs(self, values: np.ndarray) -> tuple[str, ...]:
        return tuple(f"choice{place}" for place in range(values.shape[1]))


@dataclasses.dataclass(frozen=True)
class Tagging(_Kind):
    """A label for each word of files of CoNLL's kind.

    Attributes:
      document_context: whether inputs are filled up with the sentences around.
    """

    document_context: bool = False
    counted: ClassVar[str] = "words"

    def read(self, set_name: str) -> Any:
        """Reads and tokenizes a set, and tells what is odd about it; returns its windows."""
        length = self.flags.max_seq_length
        file = self.task.read(self.flags.data_dir, set_name)
        data = ner.featurize(
            file.sentences, self.task.labels, self.tokenizer, length, self.document_context
        )
        logging.info(
            "%s: %d sentences, %d words%s; %d inputs, mean length %.1f tokens, longest %d",
            set_name,
            len(file.sentences),
            len(data.word_labels),
            f", tags in {file.scheme}" if file.scheme else "",
            len(data),
            data.lengths.mean(),
            data.lengths.max(),
        )
        if file.strays:
            logging.warning(
                "%s: %d tags do not begin an entity as %s has it, the first in line %d; they are "
                "read as beginnings",
                file.path,
                len(file.strays),
                file.scheme,
                file.strays[0],
            )
        if data.num_split:
            logging.info(
                "%s: %d sentences are longer than --max_seq_length=%d and are read in parts that "
                "overlap; each word is predicted once",
                set_name,
                data.num_split,
                length,
            )
        if data.num_cut_words:
            logging.warning(
                "%s: %d words have more pieces than fit into --max_seq_length=%d; the last are cut",
                file.path,
                data.num_cut_words,
                length,
            )
        if data.num_unknown:
            logging.warning(
                "%s: the tokenizer leaves nothing of %d words; [UNK] stands for each",
                file.path,
                data.num_unknown,
            )
        if self.document_context and not file.has_documents:
            logging.warning(
                "%s has no -DOCSTART- lines: --document_context takes it for one document",
                file.path,
            )
        return data

    def labels(self, data: Any) -> np.ndarray:
        return data.word_labels

    def make_model(self, **options: Any) -> Any:
        from bert_tf.modeling.models import BertTokenClassifier

        return BertTokenClassifier(
            self.config, self.task.num_outputs, bilstm=self.bilstm, **options
        )

    def loss(self) -> Any:
        from bert_tf.modeling import losses

        return losses.token_loss()

    def eval_step(self, model: Any, strategy: Any) -> Any:
        from keras import ops

        from bert_tf.training.step import EvalStep

        loss = self.loss()

        def of_tokens(outputs: Any, batch: Any) -> dict[str, Any]:
            predicted = ops.cast(ops.argmax(outputs["logits"], axis=-1), "int32")  # [B, T]
            return {**loss.values(outputs, batch), "predicted": predicted}

        return EvalStep(model, strategy, of_tokens, ())

    def gather(self, data: Any, found: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Makes rows of words of what an `EvalStep` found: predicted ids [W] and loss [W]."""
        return {name: data.gather(value) for name, value in found.items()}

    def metrics(self, outputs: Mapping[str, np.ndarray], data: Any) -> dict[str, float]:
        return self.task.scores(data, outputs["predicted"])

    def report(self, outputs: Mapping[str, np.ndarray], data: Any) -> dict[str, Any]:
        """Returns precision, recall, F1 and support by type of entity."""
        return self.task.table(data, outputs["predicted"])

    def settings(self) -> dict[str, Any]:
        return {"document_context": self.document_context, "feature_based": "off"}

    def task_entries(self) -> dict[str, Any]:
        word_column, tag_column = self.task.columns
        columns = {"word_column": word_column, "tag_column": tag_column}
        return {"scheme": self.task.scheme, **columns, **self.settings()}

    def write_predictions(
        self, set_name: str, data: Any, outputs: Mapping[str, np.ndarray], folder: str
    ) -> None:
        """Writes a set's file again, with the predicted tags as an added column."""
        task, predicted = self.task, outputs["predicted"]
        file = task.read(self.flags.data_dir, set_name)
        path = paths.join(folder, f"{set_name}_predictions.conll")
        scheme = file.scheme or task.scheme
        conll.write_predictions(file.path, path, task.tags(data, predicted), scheme)
        print(f"***** Predicted {set_name}: {len(predicted)} words in {path} *****")


@dataclasses.dataclass(frozen=True)
class FeatureTagging(Tagging):
    """Tagging by an LSTM that reads the hidden states of an encoder, which is not trained.

    Attributes:
      layers: which, one of `word_features.CHOICES`.
      lstm_units: of each direction of a layer.

    Raises:
      ValueError: the encoder has too few layers, or there is a BiLSTM too.
    """

    layers: str = "last"
    lstm_units: int = 768

    def __post_init__(self) -> None:
        """Checks that all fits together."""
        word_features.layers_of(self.layers, self.config.num_hidden_layers)
        if self.bilstm:
            raise CommandLineError("--feature_based has LSTM layers of its own: no --bilstm_head")

    @property
    def feature_size(self) -> int:
        """How many numbers the LSTM reads of a word."""
        layers = word_features.layers_of(self.layers, self.config.num_hidden_layers)
        added = self.layers == "sum_last_4"
        return (1 if added else len(layers)) * self.config.hidden_size

    def make_model(self, **options: Any) -> Any:
        from bert_tf.modeling.models import BertFeatureTagger

        mixed = self.config.num_hidden_layers + 1 if self.layers == "weighted_sum" else 0
        sizes = self.task.num_outputs, self.feature_size, mixed, self.lstm_units
        return BertFeatureTagger(self.config, *sizes, **options)

    def settings(self) -> dict[str, Any]:
        own = {"feature_based": self.layers, "lstm_units": self.lstm_units}
        return {**super().settings(), **own}

    def encode(
        self, model: Any, checkpoint: Any, strategy: Any, features: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Runs the encoder of a checkpoint over all sets: set name -> `WordFeatures`.

        They are kept in output_dir/features; another command there reads them again.
        """
        from bert_tf import features as extraction
        from bert_tf.modeling.models import named_variables

        flags, choice = self.flags, self.layers
        scripts.load_weights(model.bert, checkpoint, ("bert/pooler/*",), ("*",))
        encoder = 0
        for variable in named_variables(model.bert).values():
            encoder = zlib.crc32(variable.numpy(), encoder)
        layers = word_features.layers_of(choice, self.config.num_hidden_layers)
        extractor = extraction.FeatureExtractor(
            model.bert,
            layers,
            batch_size=flags.eval_batch_size,
            strategy=strategy,
            pad_to=flags.max_seq_length if scripts.uses_tpu(flags) else None,
        )

        def states(parts: list[np.ndarray]) -> list[np.ndarray]:
            return extractor([extraction.Text(ids, np.zeros_like(ids), False) for ids in parts])

        found = {}
        for name, windows in features.items():
            key = repr((choice, flags.precision, encoder, zlib.crc32(windows.windows))).encode()
            crc = zlib.crc32(windows.word_starts, zlib.crc32(windows.input_ids, zlib.crc32(key)))
            shape = len(windows.word_labels), self.feature_size
            blocks = word_features.encode(
                windows, choice, states, len(layers) * self.config.hidden_size
            )
            vectors = word_features.stored(
                flags.output_dir, f"{name}-{choice}-{crc:08x}.npy", shape, blocks
            )
            found[name] = word_features.WordFeatures(windows, vectors)
            logging.info("%s: %d words, features of %d numbers each", name, *shape)
        return found


TaskKind = Texts | Tagging


def make_kind(
    flags: Any,
    task: Any,
    config: BertConfig,
    tokenizer: Any,
    chosen: Callable[[str, Any], Any],
) -> TaskKind:
    """Returns the kind of a task.

    Args:
      flags, task, config, tokenizer: as the kinds have them.
      chosen: from a flag's name and its default to its value, given now or in an earlier run.

    Raises:
      ValueError: the flags do not fit together.
    """
    common = flags, task, config, tokenizer
    if task.kind == "choice":
        return Choice(*common)
    bilstm = chosen("bilstm_head", False)
    if task.kind != "tagging":
        return Texts(*common, bilstm)
    context, layers = chosen("document_context", False), chosen("feature_based", "off")
    if layers == "off":
        return Tagging(*common, bilstm, context)
    units = chosen("lstm_units", flags.lstm_units)
    return FeatureTagging(*common, bilstm, context, layers, units)


def probabilities(kind: str, logits: np.ndarray) -> np.ndarray:
    """Turns logits [N, L] into probabilities (or the value itself, for regression)."""
    if kind == "regression":
        return logits
    if kind == "multilabel":
        return (1.0 / (1.0 + np.exp(-logits.astype(np.float64)))).astype(np.float32)
    shifted = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return shifted / shifted.sum(axis=-1, keepdims=True)


def _write_table(path: str, rows: Any) -> None:
    """Writes rows of texts or numbers, tab-separated."""
    with paths.atomic_write(path) as handle:
        for row in rows:
            handle.write("\t".join(map(str, row)) + "\n")
