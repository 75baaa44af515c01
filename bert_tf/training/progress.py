"""What a person sees of a run: a bar in a terminal, lines elsewhere, and TensorBoard's events."""

import contextlib
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from typing import Any

import tqdm
from absl import logging

from bert_tf import errors, paths

_SHORT = {
    "_per_second": "/s",
    "learning_rate": "lr",
    "masked_lm": "mlm",
    "next_sentence": "nsp",
    "accuracy": "acc",
}


def _value(name: str, value: float) -> str:
    if name in ("learning_rate", "lr"):
        return f"{value:.2e}"
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def describe(metrics: Mapping[str, float]) -> str:
    """Returns "name value, name value, ..." for a line of the log, with long words cut short."""
    return ", ".join(f"{_short(name)} {_value(name, value)}" for name, value in metrics.items())


def _short(name: str) -> str:
    for word, short in _SHORT.items():
        name = name.replace(word, short)
    return name


class Progress:
    """Shows the steps of a run with its losses, learning rate, rates per second and time left.

    Args:
      total: the step at which the run ends.
      start: the step at which it begins.
      per_step: amounts of a step, over all replicas, by the name of their rate per second
        ("examples_per_second"); shown in the order given.
      log_steps: steps between two lines where the output is no terminal.
      shows: False shows nothing.

    Attributes:
      rates: of the last loop, by those names; empty before there is one.
    """

    def __init__(
        self,
        total: int,
        start: int,
        per_step: Mapping[str, float],
        log_steps: int = 50,
        shows: bool = True,
    ):
        self.rates: dict[str, float] = {}
        self._total = total
        self._per_step = per_step
        self._log_steps = log_steps
        self._step = self._logged = start
        self._last = time.monotonic()
        self._first_loop = True
        self._shows = shows
        self._bar: Any = None
        if shows and sys.stderr.isatty():
            # No drawn bar: the numbers need the width.
            self._bar = tqdm.tqdm(
                total=total,
                initial=start,
                dynamic_ncols=True,
                mininterval=0.2,
                bar_format="{percentage:3.0f}% {n_fmt}/{total_fmt} {elapsed}<{remaining}{postfix}",
            )

    def update(self, step: int, metrics: Mapping[str, float]) -> None:
        """Shows that `step` steps are done.

        Args:
          step: number of steps done since step 0.
          metrics: by name, in the order in which they are shown.
        """
        now = time.monotonic()
        done, seconds = step - self._step, max(now - self._last, 1e-9)
        self._step, self._last = step, now
        self.rates = {name: done * amount / seconds for name, amount in self._per_step.items()}
        if not self._shows:
            return
        # Those of the first loop hold the time of tracing and compiling.
        text = describe(metrics if self._first_loop else {**metrics, **self.rates})
        if self._bar is not None:
            self._bar.set_postfix_str(text, refresh=False)
            self._bar.update(done)
        elif step - self._logged >= self._log_steps or step == self._total or self._first_loop:
            left = "" if self._first_loop else f", {self._left(done, seconds)} left"
            logging.info("step %d of %d: %s%s", step, self._total, text, left)
            self._logged = step
        self._first_loop = False

    def _left(self, done: int, seconds: float) -> str:
        left = (self._total - self._step) * seconds / max(1, done)
        minutes, rest = divmod(round(left), 60)
        return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"

    def skip_time(self) -> None:
        """Leaves the time since the last update out: an evaluation or a save."""
        self._last = time.monotonic()

    def close(self) -> None:
        """Ends the bar."""
        if self._bar is not None:
            self._bar.close()


class Events:
    """Writes scalars for TensorBoard into a folder.

    Where TensorFlow cannot write to the folder, events are written to a local one and copied at
    each flush. As a context manager it is closed at the end; an error that comes with another is
    left out.

    Args:
      folder: where they go.
      writes: False writes nothing.

    Raises:
      OSError: they cannot be written, here and in each method.
    """

    def __init__(self, folder: str, writes: bool = True):
        import tensorflow as tf

        self._tf = tf
        self._folder = folder
        self._staged: tempfile.TemporaryDirectory[str] | None = None
        if not writes:
            self._writer = tf.summary.create_noop_writer()
            return
        target = paths.local(folder)
        if not paths.tensorflow_reads(folder):
            self._staged = tempfile.TemporaryDirectory(prefix="bert_tf_events_")
            target = self._staged.name
        with self._naming():
            self._writer = tf.summary.create_file_writer(target)

    @contextlib.contextmanager
    def _naming(self) -> Iterator[None]:
        try:
            yield
        except self._tf.errors.OpError as error:
            raise OSError(
                f"TensorBoard's events cannot be written to {self._folder}: {errors.message(error)}"
            ) from None

    def __enter__(self) -> "Events":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            self.close()
        except OSError:
            if kind is None:
                raise

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Writes one value of each name."""
        with self._naming(), self._writer.as_default():
            for name, value in values.items():
                self._tf.summary.scalar(name, value, step=step)

    def flush(self) -> None:
        """Brings what was written to the disk, or to where the folder is."""
        with self._naming():
            self._writer.flush()
        if self._staged is not None:
            paths.make_dirs(self._folder)
            for name in os.listdir(self._staged.name):
                paths.copy(os.path.join(self._staged.name, name), paths.join(self._folder, name))

    def close(self) -> None:
        """Flushes and ends."""
        self.flush()
        with self._naming():
            self._writer.close()
        if self._staged is not None:
            self._staged.cleanup()
