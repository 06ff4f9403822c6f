"""How far a run is: epoch, time left, loss, noise-free accuracy. A bar on a terminal, lines in a log."""

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

_SECONDS_BETWEEN_LOOKS = 0.2  # at the loss, which waits for an accelerator
_SECONDS_BETWEEN_LINES = 60.0  # runs that are shorter leave a log as it was


def progress(run: Path, *, steps: int, epochs: int, done: int) -> Progress:
    """What suits standard error: a bar that moves, or lines that stay.

    Args:
        run: the run folder, which a line names
        steps: of an epoch
        epochs: of the run
        done: steps that an earlier session did
    """
    return (Bar if sys.stderr.isatty() else Lines)(run, steps=steps, epochs=epochs, done=done)


class Progress(abc.ABC):
    """Shows the run now and then; a context manager that leaves the terminal as it was."""

    def __init__(self, run: Path, *, steps: int, epochs: int, done: int) -> None:
        self.run, self.steps, self.epochs = run, steps, epochs
        self.total, self.before = steps * epochs, done
        self.accuracy = ""  # of the last validation, in words
        self.began = self._shown = time.monotonic()

    @property
    @abc.abstractmethod
    def seconds_between(self) -> float:
        """How often something is shown."""

    def step(self, epoch: int, step: int, loss: Tensor) -> None:
        """Count a step of an epoch; show its loss if the last one shown is old."""
        now = time.monotonic()
        if now - self._shown >= self.seconds_between:
            self._shown = now
            self.show(epoch, self.steps * epoch + step + 1, f"loss {loss.item():.4f}{self.accuracy}")

    def validated(self, accuracy: float) -> None:
        """Remember the accuracy without noise."""
        self.accuracy = f"  accuracy {accuracy:.2%}"

    @abc.abstractmethod
    def show(self, epoch: int, done: int, numbers: str) -> None:
        """Show how many steps are done, and numbers."""

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *error: object) -> None:
        return None


class Bar(Progress):
    """One line for the whole run, drawn ten times a second by rich; gone when training ends."""

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
        """Often enough to be looked at."""
        return _SECONDS_BETWEEN_LOOKS

    def show(self, epoch: int, done: int, numbers: str) -> None:
        """Move the bar."""
        self._bar.update(self._line, completed=done, description=f"epoch {epoch + 1}/{self.epochs}", numbers=numbers)

    def __exit__(self, *error: object) -> None:
        self._bar.stop()


class Lines(Progress):
    """A line a minute, for what runs in the background and is looked at later."""

    @property
    def seconds_between(self) -> float:
        """Once a minute, whether an epoch takes seconds or hours."""
        return _SECONDS_BETWEEN_LINES

    def show(self, epoch: int, done: int, numbers: str) -> None:
        """Print a line."""
        taken = time.monotonic() - self.began
        left = taken * (self.total - done) / (done - self.before)
        times = f"{timedelta(seconds=round(taken))} left {timedelta(seconds=round(left))}"
        where = f"{self.run}: epoch {epoch + 1}/{self.epochs}  {done / self.total:.0%}"
        print(f"{where}  {times}  {numbers}", file=sys.stderr, flush=True)
