"""bert_tf.errors: what the system and TensorFlow say, and what to do."""

import errno

import pytest
import tensorflow as tf

from bert_tf import errors

FREE = "; free some space, and give the same command again"


def test_what_cannot_be_written_is_named(tmp_path):
    path = str(tmp_path / "out")
    with (
        pytest.raises(errors.WriteError) as caught,
        errors.writing(path, " (TMPDIR)"),
        errors.writing("inner"),
    ):
        raise OSError(errno.ENOSPC, "No space left on device")
    text = f"[Errno 28] No space left on device while writing{FREE}: 'inner'"
    assert str(caught.value) == errors.message(caught.value) == text
    message = r"writing \(TMPDIR\); the system .* here \(ulimit -f\): '.*out'"
    with pytest.raises(OSError, match=message), errors.writing(path, " (TMPDIR)"):
        raise OSError(errno.EFBIG, "File too large")


def test_a_real_full_disk():
    full = "/dev/full"
    with (
        pytest.raises(errors.WriteError, match=rf"No space left.*free some space.*{full}"),
        errors.writing(full),
        open(full, "w") as file,
    ):
        file.write("x")


@pytest.mark.parametrize("error", [FileNotFoundError(2, "No such file", "x"), ValueError("x")])
def test_other_errors_pass(error):
    with pytest.raises(type(error)) as caught, errors.writing("path"):
        raise error
    assert caught.value is error
    assert errors.message(error) == str(error)


def test_an_error_without_a_name_says_what_to_do():
    error = OSError(errno.ENOSPC, "No space left on device")
    assert errors.message(error) == f"[Errno 28] No space left on device{FREE}"
    error = OSError(errno.EMFILE, "Too many open files")
    assert errors.message(error).endswith("the system allows too few open files (ulimit -n)")


def raised_by(call):
    with pytest.raises(tf.errors.OpError) as caught:
        call()
    return caught.value


@tf.function(autograph=False)
def in_graph(text):
    return tf.io.parse_tensor(text, tf.float32)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: in_graph(tf.constant("abc")), "Could not parse `serialized` as TensorProto"),
        (lambda: tf.io.parse_tensor("abc", tf.float32), "Could not parse `serialized` as TensorPr"),
        (lambda: tf.ones([2]) + tf.ones([3]), "Incompatible shapes: [2] vs. [3]"),
        (lambda: tf.matmul(tf.ones([2, 3]), tf.ones([2, 3])), "Matrix size-incompatible: In["),
        (lambda: next(iter(tf.data.TFRecordDataset("/missing"))), "/missing; No such file or dir"),
        (lambda: tf.io.read_file("/missing"), "/missing; No such file or directory"),
    ],
)
def test_real_errors_of_tensorflow(call, message):
    error = raised_by(call)
    found = errors.message(error)
    assert found.startswith(message)
    assert "function_node" not in found
    assert "[Op:" not in found
    assert "\n" not in found
    assert not errors.is_of_memory(error)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "Graph execution error:\n\nDetected at node mul defined at (most recent call last):\n"
            "<stack traces unavailable>\nOOM when allocating tensor with shape[52000,4096]\n"
            "\t [[{{node mul}}]]\nHint: If you want to see a list of tensors ...\n [Op:__f_1]",
            "OOM when allocating tensor with shape[52000,4096]",
        ),
        (
            "{{function_node __wrapped__AddV2_device_/job:localhost/replica:0/task:0}} OOM when "
            "allocating tensor with shape[8] [Op:AddV2] name: ",
            "OOM when allocating tensor with shape[8]",
        ),
    ],
)
def test_too_little_memory(text, told):
    error = tf.errors.ResourceExhaustedError(None, None, text)
    assert errors.is_of_memory(error)
    assert errors.message(error) == told


def test_a_full_disk_is_no_lack_of_memory():
    text = "{{function_node __wrapped__SaveV2}} model.ckpt-6; No space left on device [Op:SaveV2]"
    error = tf.errors.ResourceExhaustedError(None, None, text)
    assert not errors.is_of_memory(error)
    assert errors.message(error) == f"model.ckpt-6; No space left on device{FREE}"
