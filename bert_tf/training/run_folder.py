"""A training run's output folder: checkpoints, and what else an exact resume needs.

A step's checkpoint is `model.ckpt-N.{index,data-*}` in the original's layout, with Adam's slots and
global_step. Beside it `model.ckpt-N.state.json` holds the best metric so far. `checkpoint`, which
names the latest, is renamed into place last: whenever a run is killed, the folder holds the last
complete save.
"""

import contextlib
import os
from collections.abc import Iterator, Mapping
from typing import Any

from absl import logging

from bert_tf import paths
from bert_tf.checkpoint import original, restore
from bert_tf.modeling.models import named_variables
from bert_tf.training import distribution
from bert_tf.training.step import TrainStep

BEST_FILE = "best.json"


@contextlib.contextmanager
def locked(folder: str) -> Iterator[None]:
    """Keeps other processes out of an output folder for the block's time.

    The lock is the system's, on the local folder itself: nothing is left when a process dies.
    Addresses, and systems without such locks, are not locked.

    Raises:
      OSError: if another process works in the folder.
    """
    if paths.has_scheme(folder) or not paths.HAS_LOCKS:
        yield
        return
    handle = os.open(paths.local(folder), os.O_RDONLY)
    try:
        paths.lock(
            handle,
            f"another process works in {folder}: wait until it ends, or give another --output_dir",
        )
        yield
    finally:
        os.close(handle)


class RunFolder:
    """Saves and restores a run.

    Args:
      folder: the output folder; a local path or an address.
      keep_checkpoint_max: how many checkpoints to keep, 0 for all.
    """

    def __init__(self, folder: str, keep_checkpoint_max: int = 5):
        self.folder = folder
        self._keep = keep_checkpoint_max

    def latest(self) -> str | None:
        """Returns the prefix of the latest complete checkpoint, or None."""
        return original.latest_checkpoint(self.folder)

    def warn_of_strays(self) -> None:
        """Warns of checkpoints that no `checkpoint` file names: they will be written over."""
        if not paths.is_dir(self.folder):
            return
        names = [name for name in paths.list_dir(self.folder) if name.endswith(".index")]
        if names:
            logging.warning(
                "%s has %s but no `checkpoint` file that names the latest: training starts over. "
                "To go on from one of them, give it as --init_checkpoint with another "
                "--output_dir.",
                self.folder,
                ", ".join(names),
            )

    def restore(self, step: TrainStep) -> dict[str, Any]:
        """Sets weights, slots and step to those of the latest checkpoint.

        Returns the state that was saved with it, {} where there is none (a run of the original).

        Raises:
          RestoreError: if the checkpoint is not of this model.
        """
        prefix = self.latest()
        if prefix is None:
            return {}
        variables: dict[str, Any] = {**step.variables, **step.slots}
        expected = {name: tuple(variable.shape) for name, variable in variables.items()}
        expected["global_step"] = ()
        checkpoint = restore.load(prefix)
        report = restore.merge(expected, checkpoint)
        everything = {**variables, "global_step": step.global_step}
        for name, value in restore.values(checkpoint, report):
            everything[name].assign(value)
        state_file = f"{prefix}.state.json"
        state = paths.read_json(state_file) if paths.exists(state_file) else {}
        step.set_state(state)
        return state

    def save(self, step: TrainStep, state: Mapping[str, Any]) -> str:
        """Writes a checkpoint of this step and returns its prefix.

        Whatever goes wrong, the checkpoints before it stay good. Of several workers the chief
        alone writes, and the others wait for it.
        """
        number = int(step.global_step.numpy())
        prefix = paths.join(self.folder, f"model.ckpt-{number}")
        if distribution.is_chief(step.strategy):
            self._write(step, state, prefix)
        step.agreement.wait()
        return prefix

    def _write(self, step: TrainStep, state: Mapping[str, Any], prefix: str) -> None:
        _check_there(self.folder)
        original.write(prefix, step.tensors())
        paths.write_json(f"{prefix}.state.json", {**state, **step.state()})
        earlier = [p for p in original.all_checkpoints(self.folder) if p != prefix]
        kept = [*earlier, prefix]
        if self._keep > 0:
            kept = kept[-self._keep :]
        original.write_state(self.folder, prefix, kept)
        for old in earlier:
            if old not in kept:
                original.delete(old)
                paths.remove(f"{old}.state.json")


def take_over(step: TrainStep, checkpoint: restore.Checkpoint, slots: bool, number: bool) -> None:
    """Continues another run's training: takes its optimizer's slots, its step, or both.

    Args:
      step: the training step, whose weights are set already.
      checkpoint: of the other run.
      slots: whether to take the slots.
      number: whether to take the step.

    Raises:
      RestoreError: if the checkpoint lacks them; a release holds weights alone.
    """
    taken: dict[str, Any] = dict(step.slots) if slots else {}
    if number:
        taken["global_step"] = step.global_step
    expected = {name: tuple(variable.shape) for name, variable in taken.items()}
    report = restore.merge(expected, checkpoint, allow_extra=("*",))
    for name, value in restore.values(checkpoint, report):
        taken[name].assign(value)


def _check_there(folder: str) -> None:
    """Raises FileNotFoundError where a run's folder is gone, and what it began with in it."""
    if not paths.has_scheme(folder) and not paths.is_dir(folder):
        raise FileNotFoundError(
            f"{folder} is gone: was it deleted while the run went on? Its configuration and its "
            "checkpoints were in it. Start the run again."
        )


def replace_best(folder: str, model: Any, number: int, facts: Mapping[str, Any]) -> str:
    """Writes a model's weights to `folder`/best, in place of those that were there.

    Args:
      folder: the output folder.
      model: the model.
      number: the step of its weights.
      facts: written beside them as best.json, with the step.

    Returns: the prefix.
    """
    _check_there(folder)
    best = paths.join(folder, restore.BEST_FOLDER)
    paths.make_dirs(best)
    prefix = paths.join(best, f"model.ckpt-{number}")
    earlier = [p for p in original.all_checkpoints(best) if p != prefix]
    original.write(
        prefix, {name: variable.numpy() for name, variable in named_variables(model).items()}
    )
    paths.write_json(paths.join(best, BEST_FILE), {**facts, "step": number})
    original.write_state(best, prefix, [prefix])
    for old in earlier:
        original.delete(old)
    return prefix
