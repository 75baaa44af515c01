"""The life of a training run: resume, train, save, evaluate, keep the best."""

import contextlib
import dataclasses
import math
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from absl import logging

from bert_tf.training import distribution
from bert_tf.training import progress as progress_lib
from bert_tf.training.run_folder import RunFolder, replace_best
from bert_tf.training.step import TrainStep


class TrainingError(ValueError):
    """A run cannot go on; the message says why and what to do."""


class Preempted(SystemExit):
    """SIGTERM came: the run was saved, and the process ends with 143, as one that it ended."""

    def __init__(self) -> None:
        super().__init__(143)


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """An evaluation during training.

    Args:
      run: returns metrics by name.
      every: steps between two evaluations.
      metric: the name of the metric that decides which weights are the best.
      higher_is_better: whether the best value is the highest.
    """

    run: Callable[[], Mapping[str, float]]
    every: int
    metric: str
    higher_is_better: bool = True


@dataclasses.dataclass(frozen=True)
class Schedule:
    """When a run does what.

    Args:
      num_train_steps: the step at which it ends.
      per_step: amounts of a step, over all replicas, by the name under which their rate per second
        is shown: {"examples_per_second": 32}.
      save_checkpoints_steps: steps between two checkpoints; the last step is always saved.
      steps_per_loop: steps between two looks at the losses. The result does not depend on it.
      log_steps: steps between two lines of the log.
    """

    num_train_steps: int
    per_step: Mapping[str, float]
    save_checkpoints_steps: int = 1000
    steps_per_loop: int = 10
    log_steps: int = 50

    def next_stop(self, step: int, *more: int) -> int:
        """Returns the end of the loop that begins at `step`."""
        stops = [self.num_train_steps, step + self.steps_per_loop]
        stops += [
            (step // every + 1) * every for every in (self.save_checkpoints_steps, *more) if every
        ]
        return min(stops)


def train(
    step: TrainStep,
    make_dataset: Callable[[int, int], Iterable[Any]],
    folder: RunFolder,
    schedule: Schedule,
    evaluation: Evaluation | None = None,
    after_loop: Callable[[int], None] | None = None,
) -> dict[str, Any]:
    """Trains from the latest checkpoint in the folder, or from the weights as they are.

    A run that is killed at any moment and started again ends as one that was not. SIGTERM ends it
    after the loop it is in, with a checkpoint; of several workers it may come to any.

    Args:
      step: the training step, with its weights initialised.
      make_dataset: (first step, last step + 1) -> the (distributed) dataset of their batches.
      folder: where checkpoints, events and the best weights go.
      schedule: when.
      evaluation: where the weights are to be evaluated during the training.
      after_loop: called with the number of steps done after each loop, once all that belongs
        to it is saved; a test's place to kill a run.

    Returns: the state: best_value and best_step, where there was an evaluation.

    Raises:
      TrainingError: if a loss or a gradient is not finite.
      Preempted: after SIGTERM.
      distribution.WorkerLostError: another worker does not answer any more.
    """
    state = folder.restore(step)
    total, done = schedule.num_train_steps, int(step.global_step.numpy())
    if done:
        logging.info("Going on from %s at step %d", folder.latest() or "another run", done)
    if done >= total:
        logging.info(
            "The run in %s is at step %d of %d: there is nothing to train. To train on, raise the "
            "number of epochs or steps; to begin anew, give another --output_dir.",
            folder.folder,
            done,
            total,
        )
        return state
    if folder.latest() is None:
        folder.warn_of_strays()
    if evaluation is None:
        # What an earlier command found the best is not to be compared with what comes now.
        state = {key: value for key, value in state.items() if not key.startswith("best_")}
    chief = distribution.is_chief(step.strategy)
    every = evaluation.every if evaluation else 0
    shown = progress_lib.Progress(total, done, schedule.per_step, schedule.log_steps, chief)
    try:
        with progress_lib.Events(folder.folder, chief) as events, contextlib.closing(shown):
            batches = iter(make_dataset(done, total))
            logging.info("Compiling the training step; the first steps take a moment")
            with _sigterm_noted() as terminated, distribution.naming_workers(step.strategy):
                while done < total:
                    stop = schedule.next_stop(done, every)
                    metrics = step.run(batches, stop - done)
                    _check_finite(metrics, done, stop, folder)
                    done = stop
                    shown.update(done, metrics)
                    events.write(done, {**metrics, **shown.rates})
                    if evaluation and (done % every == 0 or done == total):
                        _evaluate(step, evaluation, folder, events, state, done)
                    ends = step.agreement.any(terminated.is_set())
                    if ends or done == total or done % schedule.save_checkpoints_steps == 0:
                        events.flush()
                        folder.save(step, state)
                    if ends and done < total:
                        logging.warning(
                            "SIGTERM: saved at step %d of %d. The same command goes on from there.",
                            done,
                            total,
                        )
                        raise Preempted
                    shown.skip_time()
                    if after_loop is not None:
                        after_loop(done)
    except KeyboardInterrupt:
        latest = folder.latest()
        logging.warning(
            "Interrupted after step %d. The same command goes on from %s (a checkpoint is written "
            "every %d steps: --save_checkpoints_steps).",
            done,
            latest or "the start",
            schedule.save_checkpoints_steps,
        )
        raise
    return state


@contextlib.contextmanager
def _sigterm_noted() -> Iterator[threading.Event]:
    """Within the block, SIGTERM sets the event and does nothing else."""
    came = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield came  # Only the main thread may take signals.
        return
    before = signal.signal(signal.SIGTERM, lambda *_: came.set())
    try:
        yield came
    finally:
        signal.signal(signal.SIGTERM, before)


def _check_finite(metrics: dict[str, float], first: int, end: int, folder: RunFolder) -> None:
    bad = int(metrics.pop("first_bad_step"))
    if bad < 0:
        return
    latest = folder.latest()
    good = f"The last good checkpoint is {latest}" if latest else "There is no checkpoint yet"
    raise TrainingError(
        f"The loss or its gradient is not finite at step {bad} (in the loop of steps {first} to "
        f"{end - 1}). {good}. Try a lower learning rate or a longer warm-up, and look for broken "
        "weights in the initial checkpoint."
    )


def _evaluate(
    step: TrainStep,
    evaluation: Evaluation,
    folder: RunFolder,
    events: progress_lib.Events,
    state: dict[str, Any],
    done: int,
) -> None:
    metrics = dict(evaluation.run())
    logging.info("Evaluation at step %d: %s", done, progress_lib.describe(metrics))
    events.write(done, {f"eval/{name}": value for name, value in metrics.items()})
    value = float(metrics[evaluation.metric])
    best = state.get("best_value")
    better = best is None or (value > best if evaluation.higher_is_better else value < best)
    if better and not math.isnan(value):
        if distribution.is_chief(step.strategy):
            replace_best(folder.folder, step.model, done, {evaluation.metric: value})
        state.update(best_value=value, best_step=done, best_metric=evaluation.metric)
