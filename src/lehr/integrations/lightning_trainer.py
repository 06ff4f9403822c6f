"""Noise annealing as a callback of Lightning's Trainer, for a training script of your own.

trainer = lightning.Trainer(callbacks=[NoiseAnnealing(Hierarchical(duration=20))], max_epochs=25)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import lightning as L

from lehr.annealing import Annealer, Law, LinearDecay, Schedule, Window


class NoiseAnnealing(L.Callback):
    """Sets the noise at the start of each epoch, or each batch, from the time alone; see `lehr.Annealer`.

    The module's own noise when training starts is what the law multiplies; it is kept in checkpoints.
    """

    def __init__(
        self,
        schedule: Schedule | Window | Sequence[Window],
        law: Law = LinearDecay(),  # noqa: B008 - frozen
        *,
        synchronous: bool = False,
        backward_law: Law | None = None,
        groups: Sequence[str | Sequence[str]] | None = None,
        per: Literal["epoch", "batch"] = "epoch",
    ) -> None:
        self._schedule = schedule
        self._settings: dict[str, Any] = {
            "law": law,
            "synchronous": synchronous,
            "backward_law": backward_law,
            "groups": groups,
        }
        self.per = per
        self.annealer: Annealer | None = None
        self._state: dict[str, Any] | None = None

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Note the noise training begins with."""
        self.annealer = Annealer(
            pl_module,
            self._schedule,
            steps_per_epoch=int(trainer.num_training_batches) if self.per == "batch" else 1,
            epochs=trainer.max_epochs,
            **self._settings,
        )
        if self._state is not None:
            self.annealer.load_state_dict(self._state)

    def on_train_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """The noise of this epoch (Algorithm 1, lines 2-5)."""
        if self.annealer is not None:
            self.annealer.seek(trainer.current_epoch)

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """The noise of this batch."""
        if self.annealer is not None and self.per == "batch":
            self.annealer.seek(trainer.current_epoch + batch_idx / self.annealer.steps_per_epoch)

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """The noise of the next epoch, or what is left after the last: what a checkpoint holds."""
        if self.annealer is not None:
            self.annealer.seek(trainer.current_epoch + 1)

    def state_dict(self) -> dict[str, Any]:
        """The noise training began with."""
        return {} if self.annealer is None else self.annealer.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Kept until training starts and the model is there."""
        self._state = state_dict or None
