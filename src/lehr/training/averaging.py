"""A moving average of the weights: what a run with `averaging` evaluates and keeps."""

from __future__ import annotations

import lightning as L
from lightning.pytorch.callbacks import WeightAveraging
from lightning.pytorch.trainer.states import TrainerFn
from torch.optim.swa_utils import get_ema_multi_avg_fn

from lehr.training.task import Task


class Averaging(WeightAveraging):
    """Lightning's; what an algorithm fits to the weights, such as scales, is fitted to their average as well.

    Buffers are not averaged: the noise is what it is, and BatchNorm's statistics are estimated anew.
    """

    def __init__(self, decay: float) -> None:
        super().__init__(use_buffers=False, multi_avg_fn=get_ema_multi_avg_fn(decay))

    def on_validation_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Put the average in; after training it is there."""
        if trainer.state.fn == TrainerFn.FITTING:
            super().on_validation_epoch_start(trainer, pl_module)
            assert isinstance(pl_module, Task)
            pl_module.algorithm.after_step_(pl_module.model)

    def on_validation_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Go on with the weights of training."""
        if trainer.state.fn == TrainerFn.FITTING:
            assert isinstance(pl_module, Task)
            pl_module.end_reestimation()  # its statistics are put back into the network they are of
            super().on_validation_epoch_end(trainer, pl_module)

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Nothing: a run resumed after its last step has no such end, so `keep_` is called instead."""

    def keep_(self, task: Task) -> None:
        """Make the average the network's weights."""
        self._copy_average_to_current(task)
        task.algorithm.after_step_(task.model)
