"""The progress of a run: epoch, time left, loss, noise-free accuracy. A bar on a terminal, lines in a log."""

from __future__ import annotations

import abc
import sys
import time
from datetime import timedelta
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress
from torch import Tensor

_SECONDS_BETWEEN_UPDATES = 0.2  # each reads the loss, which waits for an accelerator
SECONDS_BETWEEN_LINES = 60.0  # shorter runs print nothing


def progress(run: Path, *, steps: int, epochs: int, done: int) -> Progress:
    """Return a progress bar if standard error is a terminal, else lines for a log.

    Args:
        run: the run folder, which each line names
        steps: steps of an epoch
        epochs: epochs of the run
        done: steps done by earlier sessions
    """
    return (Bar if sys.stderr.isatty() else Lines)(run, steps=steps, epochs=epochs, done=done)


class Progress(abc.ABC):
    """Shows the progress at intervals; a context manager that restores the terminal."""

    def __init__(self, run: Path, *, steps: int, epochs: int, done: int) -> None:
        self.run, self.steps, self.epochs = run, steps, epochs
        self.total, self.before = steps * epochs, done
        self.accuracy = ""  # of the last validation, as text
        self.began = self._shown = time.monotonic()
        self._first: tuple[float, int] | None = None  # when the first step of this session ended, and its number

    @property
    @abc.abstractmethod
    def seconds_between(self) -> float:
        """Seconds between two updates."""

    def step(self, epoch: int, step: int, loss: Tensor) -> None:
        """Show the loss of a step, unless the last update was recent.

        Not of the first, which may compile for a minute: it says nothing about the time that the others take.
        """
        now, done = time.monotonic(), self.steps * epoch + step + 1
        if self._first is None:
            self._first = now, done
        elif now - self._shown >= self.seconds_between:
            self._shown = now
            self.show(epoch, done, f"loss {loss.item():.4f}{self.accuracy}")

    def validated(self, accuracy: float) -> None:
        """Show this accuracy, without noise, from now on."""
        self.accuracy = f"  accuracy {accuracy:.2%}"

    @abc.abstractmethod
    def show(self, epoch: int, done: int, numbers: str) -> None:
        """Show the number of steps done, and `numbers`."""

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *error: object) -> None:
        return None


class Bar(Progress):
    """One bar for the whole run, drawn by rich ten times a second; removed when training ends."""

    def __enter__(self) -> Progress:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.percentage:>3.0f} %"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[numbers]}"),
        )
        self._bar = RichProgress(*columns, console=Console(stderr=True), transient=True)
        self._line = self._bar.add_task("", total=self.total, completed=self.before, numbers="")
        self._bar.start()
        return self

    @property
    def seconds_between(self) -> float:
        """A fraction of a second, for someone who watches."""
        return _SECONDS_BETWEEN_UPDATES

    def show(self, epoch: int, done: int, numbers: str) -> None:
        """Move the bar."""
        self._bar.update(self._line, completed=done, description=f"epoch {epoch + 1}/{self.epochs}", numbers=numbers)

    def __exit__(self, *error: object) -> None:
        self._bar.stop()


class Lines(Progress):
    """One line a minute, for a log that is read later."""

    @property
    def seconds_between(self) -> float:
        """One minute, whether an epoch takes seconds or hours."""
        return SECONDS_BETWEEN_LINES

    def show(self, epoch: int, done: int, numbers: str) -> None:
        """Print a line."""
        assert self._first is not None
        now, (ended, number) = time.monotonic(), self._first
        left = (now - ended) * (self.total - done) / (done - number)
        times = f"{timedelta(seconds=round(now - self.began))} left {timedelta(seconds=round(left))}"
        where = f"{self.run}: epoch {epoch + 1}/{self.epochs}  {done / self.total:.0%}"
        print(f"{where}  {times}  {numbers}", file=sys.stderr, flush=True)
