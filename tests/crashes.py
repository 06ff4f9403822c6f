"""A run that ends with an error, to be resumed."""

import lightning as L


class Crash(L.Callback):
    """An error at the start of an epoch."""

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch

    def on_train_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if trainer.current_epoch == self.epoch:
            raise ZeroDivisionError
