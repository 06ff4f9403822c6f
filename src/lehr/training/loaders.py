"""The recipe's data as Lightning takes it: batches, dealt out among the processes."""

from __future__ import annotations

import lightning as L

from lehr.data import AnyDataset, Splits, Steps, StreamedSplits, batches_of
from lehr.training.recipe import Data

_EVALUATED_AT_ONCE = 200  # images; evaluation keeps nothing for a backward pass


class Loaders(L.LightningDataModule):
    """A recipe's batch is that of all processes together, so that the recipe means the same on any number of them."""

    def __init__(self, splits: Splits | StreamedSplits, data: Data, *, seed: int) -> None:
        super().__init__()
        self.splits = splits
        self.batch_size = data.batch_size
        self.data = data
        self.seed = seed

    def train_dataloader(self) -> Steps:
        """Shuffled and augmented; a last step that is not full is left out, for BatchNorm's sake."""
        trainer = self._trainer()
        share, rest = divmod(self.batch_size, trainer.world_size)
        if rest or not share:
            raise ValueError(f"a batch of {self.batch_size} cannot be dealt out among {trainer.world_size} processes")
        batches = self._batches(self.splits.train, share, training=True)
        if not len(batches):
            raise ValueError(f"{len(self.splits.train)} training images do not fill one batch of {self.batch_size}")
        return batches

    def val_dataloader(self) -> Steps:
        """Every validation image once."""
        return self._batches(self.splits.validation, _EVALUATED_AT_ONCE)

    def test_dataloader(self) -> Steps:
        """Every test image once."""
        return self._batches(self.splits.test, _EVALUATED_AT_ONCE)

    def _batches(
        self,
        dataset: AnyDataset,
        batch_size: int,
        *,
        training: bool = False,
    ) -> Steps:
        trainer = self._trainer()
        return batches_of(
            dataset,
            batch_size,
            shuffle=training,
            augment=training and self.data.augment,
            padding=self.data.padding,
            flip=self.data.flip,
            cutout=self.data.cutout,
            seed=self.seed,
            device=trainer.strategy.root_device,
            drop_last=training,
            workers=self.data.workers,
            rank=trainer.global_rank,
            world_size=trainer.world_size,
        )

    def _trainer(self) -> L.Trainer:
        if self.trainer is None:
            raise RuntimeError("the loaders belong to a trainer: pass them to its fit, validate or test")
        return self.trainer
