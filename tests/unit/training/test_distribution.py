import keras
import pytest
import tensorflow as tf

from bert_tf.training import distribution


def test_one_device():
    assert distribution.make_strategy() is tf.distribute.get_strategy()
    assert distribution.describe(distribution.make_strategy()) in (
        "1 replica on CPU",
        "1 replica on GPU",
    )


@pytest.mark.parametrize("flags", [{}, {"tpu_zone": "zone", "gcp_project": "project"}])
def test_a_tpu_without_a_name(flags):
    with pytest.raises(ValueError, match="--use_tpu needs --tpu_name"):
        distribution.make_strategy("tpu", **flags)


def test_a_tpu_that_is_not_there(monkeypatch):
    asked = []

    def resolver(**given):
        asked.append(given)
        raise RuntimeError("no such TPU")

    monkeypatch.setattr(tf.distribute.cluster_resolver, "TPUClusterResolver", resolver)
    with pytest.raises(ValueError, match="the TPU 'mine' cannot be reached: no such TPU"):
        distribution.make_strategy("tpu", tpu_zone="zone", gcp_project="project", tpu_name="mine")
    assert asked == [{"tpu": "mine", "zone": "zone", "project": "project"}]


def test_keras_2(monkeypatch):
    monkeypatch.setattr(keras, "__version__", "2.20.1")
    with pytest.raises(ValueError, match=r"Keras 2\.20\.1 was imported.*unset TF_USE_LEGACY_KERAS"):
        distribution.make_strategy()


def test_another_backend(monkeypatch):
    monkeypatch.setattr(keras.backend, "backend", lambda: "jax")
    with pytest.raises(ValueError, match=r"the backend 'jax'.*unset KERAS_BACKEND"):
        distribution.make_strategy()


@pytest.mark.parametrize(
    ("gpus", "driver", "visible", "warned"),
    [
        ([], True, None, True),
        ([], True, "0", True),
        ([], True, "-1", False),  # Hidden on purpose.
        ([], True, "", False),
        ([], False, None, False),
        (["GPU:0"], True, None, False),
    ],
)
def test_an_unusable_gpu_is_told(monkeypatch, gpus, driver, visible, warned):
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: gpus)
    monkeypatch.setattr(distribution.os.path, "exists", lambda path: driver)
    monkeypatch.setattr(distribution.shutil, "which", lambda name: None)
    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    text = distribution.unusable_gpu()
    assert bool(text) is warned
    if warned:
        for word in ("NVIDIA GPU", "tensorflow[and-cuda]", "CUDA_VISIBLE_DEVICES=-1"):
            assert word in text
