"""The tiny models and inputs of tests/golden, for any test. Imports TensorFlow only when called."""

import json
import pathlib
import string
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from bert_tf.config import BertConfig

GOLDEN = pathlib.Path(__file__).parent / "golden"
CONFIG = BertConfig.from_json_file(str(GOLDEN / "checkpoint/tiny_pretraining/bert_config.json"))

# The run of `make_trainer`.
NUM_STEPS = 12
BATCH_SIZE = 4
NUM_LABELS = 3


def read_json(name: str) -> Any:
    return json.loads((GOLDEN / name).read_text())


def read_arrays(name: str) -> dict[str, np.ndarray]:
    with np.load(GOLDEN / name) as arrays:
        return dict(arrays)


def read_batch(*names: str) -> dict[str, np.ndarray]:
    """The features of JSON files as a batch."""
    lists = {key: value for name in names for key, value in read_json(name).items()}
    floats = ("masked_lm_weights", "is_real_example")
    return {
        key: np.asarray(value, np.float32 if key in floats else np.int32)
        for key, value in lists.items()
    }


def vocabulary(words: Iterable[str], size: int = 120, signs: str = ".,!?'-") -> list[str]:
    """Tokens of a vocabulary: letters, digits, signs and these words, so that little is unknown."""
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    letters = string.ascii_lowercase + string.digits
    tokens += [*letters, *(f"##{letter}" for letter in letters), *signs]
    tokens += [word for word in words if word not in tokens]
    tokens += [f"[unused{number}]" for number in range(size)]
    return tokens[:size]


def assign(variables: dict[str, Any], checkpoint: str) -> None:
    """Sets variables to their values in a golden checkpoint; each has to be there."""
    from bert_tf.checkpoint import original

    reader = original.Reader(str(GOLDEN / "checkpoint" / checkpoint))
    for name, variable in variables.items():
        variable.assign(reader.get(name))


def make_trainer() -> Any:
    """A `TrainStep` of the tiny classifier with dropout."""
    import tensorflow as tf

    from bert_tf.modeling.losses import classifier_loss
    from bert_tf.modeling.models import BertClassifier
    from bert_tf.optimization import BertAdam, WarmupDecay
    from bert_tf.training.step import TrainStep

    return TrainStep(
        BertClassifier(CONFIG, NUM_LABELS),
        classifier_loss("classification"),
        BertAdam(WarmupDecay(1e-3, NUM_STEPS, 2)),
        tf.distribute.get_strategy(),
        seed=7,
    )


def reset(step: Any, checkpoint: str) -> None:
    """Makes a `TrainStep` what it was before its first step."""
    assign(step.variables, checkpoint)
    for slot in step.slots.values():
        slot.assign(np.zeros(slot.shape, np.float32))
    step.global_step.assign(0)


def scramble(step: Any) -> None:
    """Spoils all that a `TrainStep` holds: what is right afterwards was restored."""
    for variable in [*step.variables.values(), *step.slots.values()]:
        variable.assign(np.full(variable.shape, 7.0, np.float32))
    step.global_step.assign(999)


def classifier_batch(step: int) -> dict[str, np.ndarray]:
    """The batch of a step of a classifier's training, a function of the step; its length varies."""
    rng = np.random.default_rng(step)
    length = 8 + 4 * (step % 3)
    shape = (BATCH_SIZE, length)
    used = rng.integers(length // 2, length + 1, (BATCH_SIZE, 1))
    mask = (np.arange(length) < used).astype(np.int32)
    return {
        "input_ids": rng.integers(5, CONFIG.vocab_size, shape, np.int32) * mask,
        "input_mask": mask,
        "segment_ids": rng.integers(0, 2, shape, np.int32) * mask,
        "label_ids": rng.integers(0, NUM_LABELS, BATCH_SIZE, np.int32),
        "is_real_example": np.ones(BATCH_SIZE, np.float32),
    }


def as_dataset(make_batches: Callable[[], Iterable[dict[str, np.ndarray]]]) -> Any:
    """Batches such as `classifier_batch` makes as a tf.data.Dataset."""
    import tensorflow as tf

    signature = {
        name: tf.TensorSpec([BATCH_SIZE, None], tf.int32)
        for name in ("input_ids", "input_mask", "segment_ids")
    }
    signature["label_ids"] = tf.TensorSpec([BATCH_SIZE], tf.int32)
    signature["is_real_example"] = tf.TensorSpec([BATCH_SIZE], tf.float32)
    return tf.data.Dataset.from_generator(make_batches, output_signature=signature)


def classifier_dataset(start: int, end: int) -> Any:
    """The batches of steps `start` to `end` - 1 as a tf.data.Dataset."""
    return as_dataset(lambda: map(classifier_batch, range(start, end)))


def assert_same(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    """Checks that arrays by name are equal to the bit."""
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)
