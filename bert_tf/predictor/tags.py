"""Tagging: a label for each word of a sentence.

Letters in shape comments: N sentences, W words of all, L labels, T tokens, D numbers of a word.
"""

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from bert_tf import paths
from bert_tf.checkpoint import restore
from bert_tf.config import BertConfig
from bert_tf.predictor import folder
from bert_tf.predictor.base import Forward, Predictor, graph, groups, softmax, text_of, texts_of
from data_prep.tasks import conll, entities, ner, word_features


class Tagger(Predictor):
    """Tags words with what run_classifier.py left after --task_name=NER.

    Sentences that are longer than an input are read in parts, as the script reads them. A folder
    of --feature_based works too.

    Args and Raises: as `Classifier`; a text of a batch is a sentence or a part of one.

    Example:
      >>> tagger = Tagger("ner_output")
      >>> tagger.tag([["Ann", "Lee", "left", "."]])[0]["entities"]
      [{'type': 'PER', 'first': 0, 'last': 1, 'text': 'Ann Lee'}]
    """

    kind = "tagging"
    needed = ()
    optional = ("tokens", "text")
    fields = "tokens (a list of strings), or text (a string that is cut at white space)"

    def __init__(self, model_dir: str | os.PathLike[str], batch_size: int = 32):
        folder.check_at_least_one(batch_size=batch_size)
        model_dir = os.fspath(model_dir)
        self.task = folder.read_task_file(model_dir, (self.kind,), type(self).__name__)
        task_file = paths.join(model_dir, folder.TASK_FILE)
        try:
            ner.NerTask(labels=self.task["labels"])
        except ValueError as error:
            raise ValueError(f"{task_file}: {error}") from None
        checkpoint, config, self.tokenizer = folder.open_run(model_dir, self.task, folder.TASK_FILE)
        self.batch_size = batch_size
        if self.task.get("feature_based", "off") == "off":
            self._make_tuned(checkpoint, config)
        else:
            self._make_feature_based(checkpoint, config, task_file)

    def _make_tuned(self, checkpoint: restore.Checkpoint, config: BertConfig) -> None:
        from bert_tf.modeling.models import BertTokenClassifier

        self.model = BertTokenClassifier(
            config,
            len(self.task["labels"]),
            bilstm=self.task.get("bilstm_head", False),
        )
        folder.set_weights(self.model, checkpoint)
        forward = Forward(lambda batch: self.model(batch)["logits"], self.batch_size)

        def word_logits(windows: ner.TokenFeatures) -> np.ndarray:
            rows = [windows.ids(number) for number in range(len(windows))]
            found = forward([(ids, np.zeros_like(ids)) for ids in rows])
            # Windows are in the order of the words that are counted in them.
            return np.concatenate(
                [row[windows.positions(number)] for number, row in enumerate(found)]
            )

        self._word_logits = word_logits

    def _make_feature_based(
        self, checkpoint: restore.Checkpoint, config: BertConfig, task_file: str
    ) -> None:
        from bert_tf.features import FeatureExtractor, Text
        from bert_tf.modeling.models import BertFeatureTagger

        choice, units = self.task["feature_based"], self.task.get("lstm_units")
        if choice not in word_features.CHOICES or type(units) is not int or units < 1:
            raise ValueError(
                f"{task_file}: feature_based is {folder.show(choice)} and lstm_units "
                f"{folder.show(units)}; they must be one of {', '.join(word_features.CHOICES)} "
                "and an integer of 1 or more."
            )
        layers = word_features.layers_of(choice, config.num_hidden_layers)
        size = (1 if choice == "sum_last_4" else len(layers)) * config.hidden_size
        mixed = len(layers) if choice == "weighted_sum" else 0
        self.model = BertFeatureTagger(config, len(self.task["labels"]), size, mixed, units)
        folder.set_weights(self.model, checkpoint)
        extractor = FeatureExtractor(self.model.bert, layers, batch_size=self.batch_size)
        run = graph(
            lambda batch: self.model(batch)["logits"],
            {
                "features": ([None, None, size], "float32"),
                "input_mask": ([None, None], "int32"),
            },
        )

        def states(parts: list[np.ndarray]) -> list[np.ndarray]:
            return extractor([Text(ids, np.zeros_like(ids), False) for ids in parts])

        def word_logits(windows: ner.TokenFeatures) -> np.ndarray:
            blocks = word_features.encode(windows, choice, states, len(layers) * config.hidden_size)
            words = word_features.WordFeatures(windows, np.concatenate(list(blocks)))
            rows: list[Any] = [None] * len(words)
            for group in groups(words.lengths.tolist(), self.batch_size):
                batch = words.dense(np.array(group), int(words.lengths[group].max()))
                del batch["label_ids"]
                for number, row in zip(group, run(batch).numpy(), strict=True):
                    rows[number] = row[: words.lengths[number]]
            return np.concatenate(rows)

        self._word_logits = word_logits

    def tag(
        self, sentences: Sequence[Sequence[str]], documents: Sequence[int] | None = None
    ) -> list[dict[str, Any]]:
        """Tags sentences of words, in their order.

        Args:
          sentences: N of them, with one word or more each.
          documents: the number of each one's document, never going down. It matters to a folder
            that was trained with --document_context, which reads the sentences around; by
            default each sentence is a document of its own.

        Returns a dict for each: tokens, as given; tags, in IOB2, and probabilities, one for each;
          entities, a list of type, first and last (numbers of tokens, from 0, both included) and
          text.

        Raises:
          ValueError: a sentence has no words, or `documents` does not fit.
        """
        results = []
        for words, logits in zip(sentences, self.logits(sentences, documents), strict=True):
            chosen = logits.argmax(axis=-1)
            tags = [self.task["labels"][number] for number in chosen]
            found = [
                {
                    "type": entity.type,
                    "first": entity.start,
                    "last": entity.end - 1,
                    "text": " ".join(words[entity.start : entity.end]),
                }
                for entity in entities.entities(tags)
            ]
            best = np.take_along_axis(softmax(logits), chosen[:, None], axis=-1)[:, 0]
            results.append(
                {
                    "tokens": list(words),
                    "tags": tags,
                    "probabilities": best.tolist(),
                    "entities": found,
                }
            )
        return results

    def logits(
        self, sentences: Sequence[Sequence[str]], documents: Sequence[int] | None = None
    ) -> list[np.ndarray]:
        """Returns the model's outputs for each sentence, float32 [words, L]; as `tag`."""
        if documents is None:
            documents = range(len(sentences))
        if len(documents) != len(sentences) or list(documents) != sorted(documents):
            raise ValueError(
                f"documents must be {len(sentences)} numbers, one for each sentence, that never "
                f"go down; found {folder.show(documents)}."
            )
        for number, words in enumerate(sentences):
            if isinstance(words, str) or not words:
                raise ValueError(
                    f"sentence {number} (from 0) must be a list of words, not {folder.show(words)}."
                )
        if not sentences:
            return []
        windows = ner.featurize(
            [
                conll.Sentence(f"sentence {number}", list(words), None, [], document)
                for number, (words, document) in enumerate(zip(sentences, documents, strict=True))
            ],
            self.task["labels"],
            self.tokenizer,
            self.task["max_seq_length"],
            self.task.get("document_context", False),
        )
        return windows.by_sentence(self._word_logits(windows))

    def _item(self, instance: Any) -> Any:
        found = self._object(instance)
        if len(found) != 1:
            raise ValueError(f"give one of the fields tokens and text: {self.fields}.")
        if "tokens" in found:
            return texts_of(found, "tokens", 1, "string")
        words = text_of(found, "text").split()
        if not words:
            raise ValueError("text must have a word, it is blank.")
        return words

    def _predict(self, items: list[Any]) -> list[dict[str, Any]]:
        return self.tag(items)
