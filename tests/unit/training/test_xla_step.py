"""What a TPU asks of a training step, as far as XLA on a CPU shows it."""

import numpy as np
import pytest
import tensorflow as tf
from global_batch import BATCH, batch_of, make_step

# Of the step's graph a TPU cannot run: Python, texts, files, printing.
HOST_OPS = ("PyFunc", "EagerPyFunc", "PyFuncStateless", "StringFormat", "PrintV2", "Print")


def gradient_arguments(step, batch):
    totals = {name: tf.reduce_sum(each) for name, each in step.loss.weights(batch).items()}
    return batch, totals, tf.constant(3, tf.int64), tf.constant(1), None


def all_ops(function):
    """The types of a graph's operations, those of the functions that it calls among them."""
    definition = function.graph.as_graph_def()
    nodes = [*definition.node, *(n for f in definition.library.function for n in f.node_def)]
    return {node.op for node in nodes}


@pytest.mark.parametrize("task", ["classifier", "squad", "pretrainer"])
def test_forward_and_backward_pass(task):
    step = make_step(tf.distribute.get_strategy(), task, accumulation=2, use_xla=True)
    batch = {name: tf.constant(value) for name, value in batch_of(task, 0).items()}
    arguments = gradient_arguments(step, batch)
    # Compiled as a whole: what XLA cannot compile, or whose shape it does not know, raises.
    found, losses = step._gradients(*arguments)
    expected, expected_losses = step._batch_gradients(*arguments)  # Operation by operation.
    for name, a, b in zip(step.trained, found, expected, strict=True):
        np.testing.assert_allclose(a, b, atol=2e-6, rtol=1e-5, err_msg=name)
    assert sum(np.abs(value).max() > 1e-3 for value in expected) > len(expected) / 2
    for name, value in expected_losses.items():
        assert float(losses[name]) == pytest.approx(float(value), rel=1e-5)

    # With dropout.
    step.dropout = True
    graph = tf.function(step._batch_gradients).get_concrete_function(*arguments)
    ops = all_ops(graph)
    assert not ops.intersection(HOST_OPS)
    assert "BitwiseXor" in ops  # of the masks
    for value in graph.structured_outputs[0]:
        assert value.shape.is_fully_defined()
    for value in graph.inputs:
        if value.dtype != tf.resource:
            assert value.shape.is_fully_defined()
    assert next(iter(batch.values())).shape[0] == BATCH


def test_a_host_op_would_be_seen():
    function = tf.function(lambda x: tf.numpy_function(np.sin, [x], tf.float32))
    ops = all_ops(function.get_concrete_function(tf.TensorSpec([2], tf.float32)))
    assert ops.intersection(HOST_OPS)
