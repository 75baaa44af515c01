"""From a folder to the predictor that serves it."""

import os

from bert_tf import paths
from bert_tf.checkpoint import names, restore
from bert_tf.predictor.answers import QuestionAnswerer
from bert_tf.predictor.base import Predictor
from bert_tf.predictor.choices import MultipleChooser
from bert_tf.predictor.folder import SQUAD_FILE, TASK_FILE, check_at_least_one, read_task_file
from bert_tf.predictor.masks import MaskFiller, checkpoint_of
from bert_tf.predictor.tags import Tagger
from bert_tf.predictor.texts import Classifier


def kind_of(model_dir: str | os.PathLike[str]) -> str:
    """Tells what a folder's model does, without loading it.

    Args:
      model_dir: as for `load`.

    Returns:
      "classification", "regression", "multilabel", "tagging", "choice", "question_answering" or
      "masked_lm".

    Raises:
      FileNotFoundError, ValueError: as `load`.
    """
    model_dir = os.fspath(model_dir)
    found = [name for name in (TASK_FILE, SQUAD_FILE) if paths.exists(paths.join(model_dir, name))]
    if len(found) > 1:
        raise ValueError(
            f"{model_dir} holds both {TASK_FILE} and {SQUAD_FILE}: two scripts wrote there. Give "
            "each an --output_dir of its own."
        )
    if found == [TASK_FILE]:
        return str(read_task_file(model_dir)["kind"])
    if found == [SQUAD_FILE]:
        return "question_answering"
    if paths.basename(model_dir) in (TASK_FILE, SQUAD_FILE) and not paths.is_dir(model_dir):
        raise ValueError(f"{model_dir} is a file; give its folder.")
    checkpoint = restore.load(checkpoint_of(model_dir))
    if names.MASKED_LM not in names.heads_in(checkpoint.shapes):
        raise ValueError(
            f"{model_dir} has no {TASK_FILE} (run_classifier.py's), no {SQUAD_FILE} "
            f"(run_squad.py's), and its checkpoint {checkpoint.prefix} has no masked-LM head: "
            "there is nothing to predict with. Give the --output_dir of a run."
        )
    return "masked_lm"


def load(model_dir: str | os.PathLike[str], batch_size: int = 32) -> Predictor:
    """Loads a trained model, whatever it does.

    Args:
      model_dir: the output folder of run_classifier.py, run_squad.py or run_pretraining.py; or an
        original checkpoint or a Hugging Face folder with a masked-LM head, its configuration and
        vocab.txt beside it.
      batch_size: the most texts that are computed together, 1 or more.

    Returns:
      a `Classifier`, `Tagger`, `MultipleChooser`, `QuestionAnswerer` or `MaskFiller`.

    Raises:
      FileNotFoundError: there is no checkpoint, or a file that belongs to it is missing.
      ValueError: a file is wrong, or the checkpoint has no head that anything can be predicted
        with; names it.

    Example:
      >>> predictor = load("mrpc_output")
      >>> predictor.predict_instances([{"text": "He left.", "text_pair": "He went away."}])
      [{'label': '1', 'probabilities': {'0': 0.02, '1': 0.98}}]
    """
    check_at_least_one(batch_size=batch_size)
    kind = kind_of(model_dir)
    if kind == "tagging":
        return Tagger(model_dir, batch_size)
    if kind == "choice":
        return MultipleChooser(model_dir, batch_size)
    if kind == "question_answering":
        return QuestionAnswerer(model_dir, batch_size)
    if kind == "masked_lm":
        return MaskFiller(model_dir, batch_size)
    return Classifier(model_dir, batch_size)
