"""The classifier's and SQuAD's outputs, losses and gradients against the original's."""

import numpy as np
import pytest
import tensorflow as tf
import tiny
from keras import ops

from bert_tf.modeling.losses import classifier_loss, squad_loss
from bert_tf.modeling.models import BertClassifier, BertForSquad, named_variables

INPUTS = "model/inputs.json"


def dense_norms(model, loss):
    """Norm of each variable's dense gradient; None where there is none."""
    variables = {name: variable.value for name, variable in named_variables(model).items()}
    with tf.GradientTape() as tape:
        value = loss()
    gradients = tape.gradient(value, variables)
    return {
        name: None
        if gradient is None
        else float(np.linalg.norm(tf.convert_to_tensor(gradient).numpy().astype(np.float64)))
        for name, gradient in gradients.items()
    }


def check_norms(found, golden):
    without = {name for name, norm in found.items() if norm is None}
    assert without == set(golden["variables_without_gradient"])
    norms = {name: norm for name, norm in found.items() if norm is not None}
    assert norms == pytest.approx(golden["l2_norm"], rel=1e-5, abs=1e-6)
    total = np.sqrt(sum(norm**2 for norm in norms.values()))
    # Dense: the original's clipping counts the rows of a repeated token one by one.
    assert total == pytest.approx(golden["global_norm_of_dense_gradients"], rel=1e-6)


def test_classifier():
    batch = tiny.read_batch(INPUTS, "heads/labels_classifier.json")
    golden = tiny.read_arrays("heads/outputs_classifier.npz")
    model = BertClassifier(tiny.CONFIG, 3)
    tiny.assign(named_variables(model), "tiny_classifier/bert_model.ckpt")
    loss = classifier_loss("classification")
    outputs = model(batch)
    example_loss = ops.convert_to_numpy(loss.values(outputs, batch)["loss"])
    found = {
        "logits": outputs["logits"],
        "probabilities": ops.softmax(outputs["logits"]),
        "example_loss": example_loss,
        "loss": example_loss.mean(),
    }
    assert found.keys() == golden.keys()
    for name, expected in golden.items():
        np.testing.assert_allclose(found[name], expected, atol=2e-6, rtol=0, err_msg=name)

    metrics = tiny.read_json("heads/eval_metrics_classifier.json")
    weights = np.asarray(loss.weights(batch)["loss"])
    right = np.argmax(outputs["logits"], -1) == batch["label_ids"]
    assert metrics == pytest.approx(
        {
            "eval_accuracy": (weights * right).sum() / weights.sum(),
            "eval_loss": (weights * example_loss).sum() / weights.sum(),
            "loss": example_loss.mean(),
        },
        abs=2e-6,
    )
    norms = dense_norms(model, lambda: ops.mean(loss.values(model(batch), batch)["loss"]))
    check_norms(norms, tiny.read_json("heads/gradient_norms_classifier.json"))


def test_squad():
    batch = tiny.read_batch(INPUTS, "heads/labels_squad.json")
    golden = tiny.read_arrays("heads/outputs_squad.npz")
    model = BertForSquad(tiny.CONFIG)
    tiny.assign(named_variables(model), "tiny_squad/bert_model.ckpt")
    loss = squad_loss()

    def mean_loss():
        return ops.mean(loss.values(model(batch), batch)["loss"])

    outputs = model(batch)
    found = {
        "start_logits": outputs["start_logits"],
        "end_logits": outputs["end_logits"],
        "loss": mean_loss(),
    }
    assert found.keys() == golden.keys()
    for name, expected in golden.items():
        np.testing.assert_allclose(found[name], expected, atol=5e-6, rtol=0, err_msg=name)
    norms = dense_norms(model, mean_loss)
    without = {name for name, norm in norms.items() if norm is None}
    assert without == {name for name in norms if name.startswith(model.without_gradient)}
    check_norms(norms, tiny.read_json("heads/gradient_norms_squad.json"))
