"""What is kept of each epoch: a row of metrics.csv, TensorBoard's curves, a checkpoint."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import Checkpoint
from torch import Tensor
from torch.utils.tensorboard import SummaryWriter

from lehr.training import measures
from lehr.training.folder import RunFolder, replacing
from lehr.training.task import Task

_DIGITS = 8  # of a number in metrics.csv


class Record(Checkpoint):
    """Writes the run's folder after each epoch, from the first of the processes.

    `begin` makes the folder when training is about to begin, so that a recipe that cannot be trained leaves none. A
    Lightning `Checkpoint`, so that it runs after all other callbacks and Lightning adds none of its own.
    """

    def __init__(self, folder: RunFolder, begin: Callable[[], None] = lambda: None) -> None:
        self.folder = folder
        self.seconds = 0.0  # of training, all sessions together
        self.begin = begin
        self._rows: list[dict[str, Any]] = []
        self._codes: dict[str, Tensor] = {}
        self._last_step: dict[str, float | Tensor] = {}
        self._writer: SummaryWriter | None = None

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """The levels before the first epoch; rows of epochs that are to be repeated go."""
        assert isinstance(pl_module, Task)
        self._codes = measures.level_codes(pl_module.model)
        self._clock = time.perf_counter()
        if trainer.is_global_zero:
            self.begin()
            self._rows = [row for row in self.folder.read_metrics() if int(row["epoch"]) < trainer.current_epoch]
            self.folder.write_metrics(self._rows)
            self._writer = SummaryWriter(str(self.folder.tensorboard), purge_step=trainer.current_epoch)

    def on_before_optimizer_step(
        self, trainer: L.Trainer, pl_module: L.LightningModule, optimizer: torch.optim.Optimizer
    ) -> None:
        """Learning rate, noise and gradients of the epoch's last step."""
        if trainer.is_last_batch:
            assert isinstance(pl_module, Task)
            model = pl_module.model
            self._last_step = {"lr": optimizer.param_groups[0]["lr"]}
            self._last_step |= measures.noise(model) | measures.gradient_norms(model)

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """A row, the curves, a checkpoint."""
        assert isinstance(pl_module, Task)
        codes = measures.level_codes(pl_module.model)
        row = pl_module.results | {name: float(value) for name, value in self._last_step.items()}
        row |= measures.level_shares(pl_module.model, codes) | measures.changed_shares(codes, self._codes)
        self._codes = codes
        now = time.perf_counter()
        self.seconds, self._clock = self.seconds + now - self._clock, now
        if self._writer is not None:
            self._rows.append({"epoch": trainer.current_epoch} | {k: round(v, _DIGITS) for k, v in row.items()})
            self.folder.write_metrics(self._rows)
            for name, value in row.items():
                self._writer.add_scalar(name, value, trainer.current_epoch)
        self._save(trainer)

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Close TensorBoard's file."""
        self._close()

    def on_exception(self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException) -> None:
        """Also after an error."""
        self._close()

    def state_dict(self) -> dict[str, Any]:
        """The time training took so far."""
        return {"seconds": self.seconds}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on counting."""
        self.seconds = state_dict["seconds"]

    def _save(self, trainer: L.Trainer) -> None:
        """The checkpoint of this epoch, whole or not at all; every process takes part."""
        path = self.folder.checkpoint(trainer.current_epoch + 1)
        if trainer.is_global_zero:
            with replacing(path) as part:
                trainer.save_checkpoint(part)
            self.folder.prune()
        else:
            trainer.save_checkpoint(path)  # writes nothing here, but the processes meet in it

    def _close(self) -> None:
        if self._writer is not None:
            writer, self._writer = self._writer, None
            writer.close()
