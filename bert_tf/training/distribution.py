"""Where a run computes: one device, or a TPU by the original's flags."""

import os
import shutil
from typing import Any

import tensorflow as tf
from absl import logging


def check_keras() -> None:
    """Checks that Keras 3 on TensorFlow was imported.

    Raises:
      ValueError: if the environment chose Keras 2 or another backend.
    """
    import keras

    if not keras.__version__.startswith("3."):
        raise ValueError(
            f"Keras {keras.__version__} was imported, but this project needs Keras 3: "
            "unset TF_USE_LEGACY_KERAS and install keras>=3"
        )
    if keras.backend.backend() != "tensorflow":
        raise ValueError(
            f"Keras runs on the backend {keras.backend.backend()!r}, but the scripts train with "
            "TensorFlow: unset KERAS_BACKEND, or set it to tensorflow"
        )


def unusable_gpu() -> str:
    """Returns what to tell a user whose GPU TensorFlow cannot use, or ""."""
    if os.environ.get("CUDA_VISIBLE_DEVICES", "0") in ("", "-1"):
        return ""  # Hidden on purpose.
    present = os.path.exists("/proc/driver/nvidia/version") or shutil.which("nvidia-smi")
    if not present or tf.config.list_physical_devices("GPU"):
        return ""
    built = "" if tf.test.is_built_with_cuda() else " (this TensorFlow is built without CUDA)"
    return (
        "This machine seems to have an NVIDIA GPU, but TensorFlow cannot use it"
        f"{built}: training will run on the CPU. Install the CUDA libraries with "
        "pip install 'tensorflow[and-cuda]', check nvidia-smi, or set CUDA_VISIBLE_DEVICES=-1 to "
        "silence this warning."
    )


def make_strategy(
    use_tpu: bool = False,
    tpu_name: str | None = None,
    tpu_zone: str | None = None,
    gcp_project: str | None = None,
    master: str | None = None,
) -> Any:
    """Returns the tf.distribute strategy that the original's flags ask for.

    Args:
      use_tpu: whether to train on a TPU.
      tpu_name: name of the Cloud TPU, or grpc://ip:port; "local" on a TPU VM.
      tpu_zone: zone of the TPU, found where it is not given.
      gcp_project: project of the TPU, found where it is not given.
      master: address of the TPU's worker, an older form of `tpu_name`.

    Raises:
      ValueError: if the TPU is not named or cannot be reached.
    """
    check_keras()
    warning = unusable_gpu()
    if warning:
        logging.warning("%s", warning)
    if not use_tpu:
        return tf.distribute.get_strategy()
    name = tpu_name or master
    if not name:
        raise ValueError("--use_tpu needs --tpu_name: the TPU's name, or local on a TPU VM")
    try:
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver(
            tpu=name, zone=tpu_zone, project=gcp_project
        )
        tf.config.experimental_connect_to_cluster(resolver)
        tf.tpu.experimental.initialize_tpu_system(resolver)
        return tf.distribute.TPUStrategy(resolver)
    except (ValueError, RuntimeError, tf.errors.OpError) as error:
        raise ValueError(f"the TPU {name!r} cannot be reached: {error}") from error


def describe(strategy: Any) -> str:
    """Returns a line that says what a run computes on."""
    replicas = strategy.num_replicas_in_sync
    devices = tf.config.list_physical_devices("GPU")
    kind = type(strategy).__name__ if replicas > 1 else ("GPU" if devices else "CPU")
    return f"{replicas} replica{'s' if replicas > 1 else ''} on {kind}"
