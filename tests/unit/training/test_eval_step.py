import numpy as np
import pytest
import tensorflow as tf
import tiny

from bert_tf.modeling.losses import classifier_loss
from bert_tf.modeling.models import BertClassifier, named_variables
from bert_tf.training.step import EvalStep

ONE_DEVICE = tf.distribute.get_strategy()
EXAMPLES = 10


@pytest.fixture(scope="module")
def model():
    model = BertClassifier(tiny.CONFIG, tiny.NUM_LABELS)
    tiny.assign(named_variables(model), "tiny_classifier/bert_model.ckpt")
    return model


@pytest.fixture(scope="module")
def evaluator(model):
    return EvalStep(model, ONE_DEVICE, classifier_loss("classification").values, ("logits",))


def example(index):
    rng = np.random.default_rng(100 + index)
    return {
        "input_ids": rng.integers(5, tiny.CONFIG.vocab_size, 6, np.int32),
        "input_mask": np.ones(6, np.int32),
        "segment_ids": np.zeros(6, np.int32),
        "label_ids": np.int32(index % tiny.NUM_LABELS),
    }


def batch_of(indices, length=6):
    """-1 is a row of padding."""
    rows = [example(max(index, 0)) for index in indices]
    batch = {name: np.stack([row[name] for row in rows]) for name in rows[0]}
    for name in ("input_ids", "input_mask", "segment_ids"):
        batch[name] = np.pad(batch[name], ((0, 0), (0, length - 6)))
    real = np.asarray(indices) >= 0
    batch["is_real_example"] = real.astype(np.float32)
    batch["example_index"] = np.asarray(indices, np.int32)
    return batch


def dataset_of(*batches):
    """A dataset whose shapes are known to vary."""
    signature = {
        name: tf.TensorSpec([None] * array.ndim, array.dtype) for name, array in batches[0].items()
    }
    return tf.data.Dataset.from_generator(lambda: iter(batches), output_signature=signature)


def test_only_a_dataset_is_taken(evaluator):
    with pytest.raises(TypeError, match=r"tf\.data\.Dataset"):
        evaluator.run([batch_of([0])], 1)


def test_each_example_once_and_in_order(model, evaluator):
    # Any order, two lengths, and a last batch that is filled up.
    batches = [batch_of([7, 2, 9, 0]), batch_of([1, 8, 3, 6], 8), batch_of([5, 4, -1, -1])]
    found = evaluator.run(dataset_of(*batches), EXAMPLES)
    assert found.keys() == {"logits", "loss"}
    assert found["logits"].shape == (EXAMPLES, tiny.NUM_LABELS)
    assert found["loss"].shape == (EXAMPLES,)
    for index in range(EXAMPLES):
        alone = batch_of([index])
        outputs = model(alone)
        np.testing.assert_allclose(found["logits"][index], outputs["logits"][0], atol=1e-5)
        loss = classifier_loss("classification").values(outputs, alone)["loss"][0]
        assert found["loss"][index] == pytest.approx(float(loss), abs=1e-5)
    # Again, as after each part of a training: no new graph.
    again = evaluator.run(dataset_of(*batches[::-1]), EXAMPLES)
    tiny.assert_same(again, found)
    assert evaluator._run.experimental_get_tracing_count() == 1


@pytest.mark.parametrize(
    ("indices", "left_out", "twice"),
    [([0, 1, 2, 2], 1, 1), ([0, 1, 2, -1], 1, 0), ([0, 0, 0, 0], 3, 1), ([-1] * 4, 4, 0)],
)
def test_a_wrong_set_of_examples(evaluator, indices, left_out, twice):
    message = f"of 4 examples, {left_out} were left out and {twice} occurred more than once"
    with pytest.raises(RuntimeError, match=message):
        evaluator.run(dataset_of(batch_of(indices)), 4)


def test_named_outputs_without_a_loss(model):
    evaluator = EvalStep(model, ONE_DEVICE, None, ("pooled_output",))
    batch = batch_of([1, 0])
    del batch["label_ids"], batch["is_real_example"]
    found = evaluator.run(dataset_of(batch), 2)
    assert found.keys() == {"pooled_output"}
    expected = model(batch_of([0, 1]))["pooled_output"]
    np.testing.assert_allclose(found["pooled_output"], expected, atol=1e-5)
