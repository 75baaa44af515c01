"""Trained models, loaded once and called many times.

`load` takes an output folder of run_classifier.py, run_squad.py or run_pretraining.py, or any
checkpoint with a masked-LM head, and returns the class that serves it:

- `Classifier`: a label, several, or a number for a text or a pair.
- `Tagger`: a tag for each word.
- `MultipleChooser`: the best of several choices.
- `QuestionAnswerer`: answers from a text.
- `MaskFiller`: candidates for [MASK].

All have `kind`, `check` and `predict_instances`, which take and return JSON-ready objects
(docs/prediction.md), and a method of their own. All may be called by several threads at once.
"""

from bert_tf.predictor.answers import QuestionAnswerer
from bert_tf.predictor.base import Predictor
from bert_tf.predictor.choices import MultipleChooser
from bert_tf.predictor.folder import SQUAD_FILE, TASK_FILE, TASK_KINDS, read_task_file
from bert_tf.predictor.loading import kind_of, load
from bert_tf.predictor.masks import MaskFiller
from bert_tf.predictor.tags import Tagger
from bert_tf.predictor.texts import Classifier

__all__ = [
    "SQUAD_FILE",
    "TASK_FILE",
    "TASK_KINDS",
    "Classifier",
    "MaskFiller",
    "MultipleChooser",
    "Predictor",
    "QuestionAnswerer",
    "Tagger",
    "kind_of",
    "load",
    "read_task_file",
]
