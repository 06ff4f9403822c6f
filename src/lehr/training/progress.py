"""How far a run is: epoch, time left, loss, noise-free accuracy. A bar on a terminal, lines in a log."""

from __future__ import annotations

import sys
import time
from datetime import timedelta
from typing import Any

import lightning as L
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from lehr.training.task import Task

_SECONDS_BETWEEN_LOOKS = 0.2  # at the loss, which waits for an accelerator
_SECONDS_BETWEEN_LINES = 60.0  # runs that are shorter leave a log as it was


def progress() -> L.Callback:
    """What suits standard error: a bar that moves, or lines that stay."""
    return Bar() if sys.stderr.isatty() else Lines()


class _Accuracy(L.Callback):
    """Remembers the last validation, in words."""

    _accuracy = ""

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """The accuracy without noise."""
        assert isinstance(pl_module, Task)
        self._accuracy = f"  accuracy {pl_module.results['val/accuracy']:.2%}"


class Bar(_Accuracy):
    """One line for the whole run, drawn ten times a second by rich; gone when training ends."""

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Draw the bar where the run is: after an interruption not at 0."""
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.percentage:>3.0f} %"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[numbers]}"),
        )
        self._progress = Progress(*columns, console=Console(stderr=True), transient=True)
        self._steps = int(trainer.num_training_batches)
        total = self._steps * (trainer.max_epochs or 0)
        done = self._steps * trainer.current_epoch
        self._line = self._progress.add_task("", total=total, completed=done, numbers="")
        self._looked = 0.0
        self._progress.start()

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Move on; say the loss now and then."""
        now = time.perf_counter()
        if now - self._looked < _SECONDS_BETWEEN_LOOKS:
            return
        self._looked = now
        self._progress.update(
            self._line,
            completed=self._steps * trainer.current_epoch + batch_idx + 1,
            description=f"epoch {trainer.current_epoch + 1}/{trainer.max_epochs}",
            numbers=f"loss {outputs['loss'].item():.4f}{self._accuracy}",
        )

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Leave the terminal as it was."""
        self._progress.stop()

    def on_exception(self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException) -> None:
        """Also after an error."""
        if hasattr(self, "_progress"):
            self._progress.stop()


class Lines(_Accuracy):
    """A line a minute, for what runs in the background and is looked at later."""

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Count from where the run is: after an interruption not from 0."""
        self._steps = int(trainer.num_training_batches)
        self._before = self._steps * trainer.current_epoch
        self._began = self._told = time.monotonic()

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Once a minute, whether an epoch takes seconds or hours."""
        now = time.monotonic()
        if now - self._told < _SECONDS_BETWEEN_LINES:
            return
        self._told = now
        total = self._steps * (trainer.max_epochs or 0)
        done = self._steps * trainer.current_epoch + batch_idx + 1
        taken = now - self._began
        left = taken * (total - done) / (done - self._before)
        times = f"{timedelta(seconds=round(taken))} left {timedelta(seconds=round(left))}"
        numbers = f"loss {outputs['loss'].item():.4f}{self._accuracy}"
        where = f"{trainer.default_root_dir}: epoch {trainer.current_epoch + 1}/{trainer.max_epochs}"
        print(f"{where}  {done / total:.0%}  {times}  {numbers}", file=sys.stderr, flush=True)
