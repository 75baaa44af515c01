"""Where a run computes: one device, several GPUs, several workers, or a TPU."""

import contextlib
import os
import re
import shutil
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf
from absl import logging

from bert_tf.training import cluster

# How gradients of several devices are summed: on one machine, and between machines.
_MIRRORED_ALGORITHMS = {
    "nccl": tf.distribute.NcclAllReduce,
    "hierarchical_copy": tf.distribute.HierarchicalCopyAllReduce,
    "reduce_to_one": tf.distribute.ReductionToOneDevice,
}
_WORKER_ALGORITHMS = {
    "auto": tf.distribute.experimental.CommunicationImplementation.AUTO,
    "ring": tf.distribute.experimental.CommunicationImplementation.RING,
    "nccl": tf.distribute.experimental.CommunicationImplementation.NCCL,
}
ALGORITHMS = sorted({*_MIRRORED_ALGORITHMS, *_WORKER_ALGORITHMS})


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
    kind: str = "auto",
    num_gpus: int | None = None,
    all_reduce_alg: str | None = None,
    tpu_name: str | None = None,
    tpu_zone: str | None = None,
    gcp_project: str | None = None,
) -> Any:
    """Returns a tf.distribute strategy. For several workers call it before any other op.

    Args:
      kind: one of cluster.STRATEGIES. auto: several workers where TF_CONFIG names them, else
        mirrored where there are several GPUs, else one device.
      num_gpus: how many of this machine's GPUs to use; None for all.
      all_reduce_alg: one of ALGORITHMS; None lets TensorFlow choose.
      tpu_name: name of the Cloud TPU, or grpc://ip:port; "local" on a TPU VM.
      tpu_zone: zone of the TPU, found where it is not given.
      gcp_project: project of the TPU, found where it is not given.

    Raises:
      ValueError: what is asked for is not there; says what is.
    """
    check_keras()
    workers = cluster.from_environment()
    several = len(workers.addresses) > 1
    if several and kind not in ("auto", "multi_worker_mirrored"):
        raise ValueError(
            f"TF_CONFIG names {len(workers.addresses)} workers, but --distribution_strategy={kind} "
            "is run by one process: give multi_worker_mirrored, or unset TF_CONFIG"
        )
    if kind == "tpu":
        if all_reduce_alg is not None:
            raise ValueError("--all_reduce_alg does not go with a TPU")
        return _tpu(tpu_name, tpu_zone, gcp_project)
    warning = unusable_gpu()
    if warning:
        logging.warning("%s", warning)
    gpus = tf.config.list_physical_devices("GPU")
    if num_gpus is not None:
        if num_gpus > len(gpus):
            raise ValueError(f"--num_gpus={num_gpus}, but TensorFlow finds {len(gpus)} here")
        gpus = gpus[:num_gpus]
        tf.config.set_visible_devices(gpus, "GPU")
    if kind == "auto":
        kind = "mirrored" if len(gpus) > 1 else "off"
        kind = "multi_worker_mirrored" if several else kind
    if kind == "multi_worker_mirrored":
        options = tf.distribute.experimental.CommunicationOptions(
            bytes_per_pack=32 << 20,
            implementation=_algorithm(all_reduce_alg or "auto", _WORKER_ALGORITHMS, kind),
        )
        if several:
            own = workers.addresses[workers.index]
            others = [address for address in workers.addresses if address != own]
            logging.info("Waiting for the other workers: %s", ", ".join(others))
        return tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)
    if kind == "mirrored":
        # Without GPUs logical CPUs, as the tests make them.
        device = "GPU" if gpus else "CPU"
        count = len(gpus) or len(tf.config.list_logical_devices("CPU"))
        devices = [f"{device}:{number}" for number in range(count)]
        algorithm = None
        if all_reduce_alg is not None:
            algorithm = _algorithm(all_reduce_alg, _MIRRORED_ALGORITHMS, kind)()
        elif not gpus:
            algorithm = tf.distribute.ReductionToOneDevice()
        return tf.distribute.MirroredStrategy(devices, cross_device_ops=algorithm)
    if all_reduce_alg is not None:
        raise ValueError(f"--all_reduce_alg does not go with one device ({kind})")
    if kind == "one_device":
        return tf.distribute.OneDeviceStrategy("GPU:0" if gpus else "CPU:0")
    return tf.distribute.get_strategy()


def _algorithm(name: str, known: dict[str, Any], kind: str) -> Any:
    if name not in known:
        raise ValueError(
            f"--all_reduce_alg={name} does not go with {kind}, which has {', '.join(known)}"
        )
    return known[name]


def _tpu(name: str | None, zone: str | None, project: str | None) -> Any:
    if not name:
        raise ValueError("--use_tpu needs --tpu_name: the TPU's name, or local on a TPU VM")
    try:
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver(
            tpu=name, zone=zone, project=project
        )
        tf.config.experimental_connect_to_cluster(resolver)
        tf.tpu.experimental.initialize_tpu_system(resolver)
        return tf.distribute.TPUStrategy(resolver)
    except (ValueError, RuntimeError, tf.errors.OpError) as error:
        raise ValueError(f"the TPU {name!r} cannot be reached: {error}") from error


def describe(strategy: Any) -> str:
    """Returns a line that says what a run computes on."""
    replicas = strategy.num_replicas_in_sync
    devices = tf.config.list_logical_devices("GPU")
    kind = type(strategy).__name__ if replicas > 1 else ("GPU" if devices else "CPU")
    text = f"{replicas} replica{'s' if replicas > 1 else ''} on {kind}"
    workers = cluster.from_environment()
    if several_workers(strategy):
        text += f", worker {workers.index} of {len(workers.addresses)}"
    return text


def several_workers(strategy: Any) -> bool:
    """Tells whether the strategy spans several processes that each run this program."""
    return isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy)


def is_chief(strategy: Any) -> bool:
    """Tells whether this process is the one that writes."""
    return not several_workers(strategy) or cluster.from_environment().is_chief


def distribute(strategy: Any, make: Callable[..., Any]) -> Any:
    """Returns the distributed dataset of global batches.

    Args:
      strategy: the strategy.
      make: a function (shard_index=..., shard_count=...) -> the tf.data.Dataset of one host's parts
        of the batches, cut so that the hosts' parts one after the other are the global batch.
    """
    if not several_workers(strategy):
        dataset = make(shard_index=0, shard_count=1)
        if strategy.num_replicas_in_sync > 1:
            # Of an endless dataset TensorFlow need not ask each time whether it goes on.
            dataset = dataset.repeat()
        return strategy.experimental_distribute_dataset(dataset)

    def of_worker(context: Any) -> Any:
        dataset = make(
            shard_index=context.input_pipeline_id, shard_count=context.num_input_pipelines
        )
        replicas = context.num_replicas_in_sync // context.num_input_pipelines
        if replicas > 1:
            dataset = dataset.flat_map(lambda batch: _cut(batch, replicas))
        return dataset.repeat()

    return strategy.distribute_datasets_from_function(of_worker)


def _cut(batch: dict[str, Any], parts: int) -> Any:
    """Returns a host's batch as a dataset of its replicas' parts."""
    rows = {name: value.shape[0] // parts for name, value in batch.items()}
    cut = {
        name: tf.reshape(value, tf.concat([[parts, rows[name]], tf.shape(value)[1:]], 0))
        for name, value in batch.items()
    }
    for name, value in cut.items():
        value.set_shape([parts, rows[name], *batch[name].shape[1:]])
    return tf.data.Dataset.from_tensor_slices(cut)


class Agreement:
    """What the workers of a run find out together; with one worker, what it knows itself.

    Args:
      strategy: the strategy.
    """

    def __init__(self, strategy: Any):
        self._strategy = strategy
        self._several = several_workers(strategy)

        @tf.function(autograph=False)
        def extremes(value: Any) -> Any:
            def on_replica(own: Any) -> Any:
                context = tf.distribute.get_replica_context()
                gathered = context.all_gather(own[None], axis=0)
                return tf.stack([tf.reduce_min(gathered), tf.reduce_max(gathered)])

            found = strategy.run(on_replica, args=(value,))
            return strategy.experimental_local_results(found)[0]

        self._extremes = extremes

    def greatest(self, number: int) -> int:
        """Returns the greatest of the workers' numbers."""
        if not self._several:
            return number
        return int(self._extremes(tf.constant(number, tf.int64))[1])

    def any(self, flag: bool) -> bool:
        """Tells whether the flag is set on any worker."""
        return bool(self.greatest(int(flag)))

    def all_equal(self, number: int) -> bool:
        """Tells whether the number is the same on all workers."""
        if not self._several:
            return True
        least, most = self._extremes(tf.constant(number, tf.int64)).numpy()
        return bool(least == most)

    def wait(self) -> None:
        """Returns when every worker has come here."""
        self.any(False)


class WorkerLostError(ConnectionError):
    """Another worker of the run died or cannot be reached; the message names it."""


# What TensorFlow raises where another process of a run is gone.
_LOST = (
    tf.errors.UnavailableError,
    tf.errors.AbortedError,
    tf.errors.CancelledError,
    tf.errors.DeadlineExceededError,
    tf.errors.InternalError,
)


@contextlib.contextmanager
def naming_workers(strategy: Any) -> Iterator[None]:
    """Within the block, errors of the connection to another worker name it."""
    try:
        yield
    except _LOST as error:
        if not several_workers(strategy):
            raise
        workers = cluster.from_environment()
        found = re.findall(r"/job:(\w+)(?:/replica:\d+)?/task:(\d+)", str(error))
        numbers = sorted({workers.number(job, int(task)) for job, task in found})
        others = [number for number in numbers if number != workers.index]
        named = [
            f"worker {number} ({workers.addresses[number]})"
            for number in others
            if number < len(workers.addresses)
        ]
        if not named and isinstance(error, tf.errors.InternalError):
            raise  # As likely an error of this process's own device.
        named = named or ["one of the other workers"]
        lines = [line for line in str(error.message).splitlines() if line.strip()]
        said = next((line for line in lines if "task:" in line), lines[0] if lines else "nothing")
        raise WorkerLostError(
            f"{' or '.join(named)} died or cannot be reached. Start all workers again with the "
            f"same commands: they go on from the last checkpoint. TensorFlow says: {said}"
        ) from None
