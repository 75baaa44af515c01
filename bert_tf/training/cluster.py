"""Which workers a run has, from the environment variable TF_CONFIG; no TensorFlow needed.

TF_CONFIG is what tf.distribute, Kubeflow and others use: a JSON object with the addresses of all
workers and this one's place among them:

    {"cluster": {"worker": ["host1:2222", "host2:2222"]}, "task": {"type": "worker", "index": 0}}
"""

import dataclasses
import json
import os
import re
from typing import Any

# What --distribution_strategy may be.
STRATEGIES = ("auto", "off", "one_device", "mirrored", "multi_worker_mirrored", "tpu")


@dataclasses.dataclass(frozen=True)
class Cluster:
    """The workers of a run.

    Attributes:
      addresses: host:port of each, the chief first where there is one by that name.
      index: this worker's place among them. Worker 0 is the chief: it alone writes.
      has_chief: whether the first is a chief by name.
    """

    addresses: tuple[str, ...]
    index: int
    has_chief: bool = False

    @property
    def is_chief(self) -> bool:
        return self.index == 0

    def number(self, job: str, task: int) -> int:
        """Returns the place of a worker that TensorFlow calls /job:<job>/task:<task>."""
        return task + (self.has_chief and job == "worker")


ALONE = Cluster(("localhost",), 0)


def from_environment() -> Cluster:
    """Returns the cluster that TF_CONFIG describes; `ALONE` where it is not set.

    Raises:
      ValueError: it is not what it should be; says what is wrong.
    """
    text = os.environ.get("TF_CONFIG", "").strip()
    if not text:
        return ALONE
    try:
        config = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"the environment variable TF_CONFIG is no JSON: {error}") from None
    if not isinstance(config, dict):
        raise _wrong("it must be an object")
    cluster, task = config.get("cluster") or {}, config.get("task") or {}
    if not isinstance(cluster, dict) or not isinstance(task, dict):
        raise _wrong("cluster and task must be objects")
    if not cluster:
        return ALONE
    unknown = sorted(set(cluster) - {"chief", "worker", "evaluator"})
    if unknown:
        raise _wrong(
            f"its cluster has {', '.join(unknown)}, but runs here have workers (and a chief) only: "
            "there are no parameter servers"
        )
    addresses: list[str] = []
    first = {}
    for kind in ("chief", "worker"):
        named = cluster.get(kind, [])
        if not isinstance(named, list) or not all(isinstance(each, str) for each in named):
            raise _wrong(f"{kind} must be a list of addresses (host:port)")
        without = [
            each
            for each in named
            if not (port := re.search(r".:(\d{1,5})$", each)) or not 0 < int(port[1]) < 65536
        ]
        if without:
            raise _wrong(f"{kind} has {without[0]!r}, which is no address (host:port)")
        first[kind] = len(addresses)
        addresses += named
    if first["worker"] > 1:
        raise _wrong("there can be one chief")
    own, index = task.get("type"), task.get("index")
    if not isinstance(own, str) or own not in first:
        raise _wrong("task needs a type (worker or chief) and an index")
    if not isinstance(index, int) or isinstance(index, bool):
        raise _wrong("task needs a type (worker or chief) and an index")
    if not 0 <= index < len(cluster.get(own, [])):
        raise _wrong(
            f"task is {own} {index}, but the cluster has {len(cluster.get(own, []))} of that type"
        )
    if len(set(addresses)) < len(addresses):
        raise _wrong("two workers have one address")
    return Cluster(tuple(addresses), first[own] + index, first["worker"] == 1)


def _wrong(what: Any) -> ValueError:
    return ValueError(
        f"the environment variable TF_CONFIG is wrong: {what}. For two workers: "
        '{"cluster": {"worker": ["host1:2222", "host2:2222"]}, '
        '"task": {"type": "worker", "index": 0}}, with index 1 on the second'
    )
