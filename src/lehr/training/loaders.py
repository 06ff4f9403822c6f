"""The recipe's data as Lightning takes it: batches in memory, dealt out among the processes."""

from __future__ import annotations

import lightning as L

from lehr.data import Augment, Batches, CropFlip, Dataset, Splits
from lehr.training.recipe import Data

_EVALUATED_AT_ONCE = 500  # images; evaluation keeps nothing for a backward pass


class Loaders(L.LightningDataModule):
    """A recipe's batch is that of all processes together, so that the recipe means the same on any number of them."""

    def __init__(self, splits: Splits, data: Data, *, seed: int) -> None:
        super().__init__()
        self.splits = splits
        self.batch_size = data.batch_size
        self.augment: Augment | None = CropFlip(data.padding, data.flip) if data.augment else None
        self.seed = seed

    def train_dataloader(self) -> Batches:
        """Shuffled and augmented; a last step that is not full is left out, for BatchNorm's sake."""
        trainer = self._trainer()
        share, rest = divmod(self.batch_size, trainer.world_size)
        if rest or not share:
            raise ValueError(f"a batch of {self.batch_size} cannot be dealt out among {trainer.world_size} processes")
        batches = self._batches(self.splits.train, share, shuffle=True, augment=self.augment, drop_last=True)
        if not len(batches):
            raise ValueError(f"{len(self.splits.train)} training images do not fill one batch of {self.batch_size}")
        return batches

    def val_dataloader(self) -> Batches:
        """Every validation image once."""
        return self._batches(self.splits.validation, _EVALUATED_AT_ONCE)

    def test_dataloader(self) -> Batches:
        """Every test image once."""
        return self._batches(self.splits.test, _EVALUATED_AT_ONCE)

    def _batches(
        self,
        dataset: Dataset,
        batch_size: int,
        *,
        shuffle: bool = False,
        augment: Augment | None = None,
        drop_last: bool = False,
    ) -> Batches:
        trainer = self._trainer()
        return Batches(
            dataset,
            batch_size,
            shuffle=shuffle,
            augment=augment,
            seed=self.seed,
            device=trainer.strategy.root_device,
            drop_last=drop_last,
            rank=trainer.global_rank,
            world_size=trainer.world_size,
        )

    def _trainer(self) -> L.Trainer:
        if self.trainer is None:
            raise RuntimeError("the loaders belong to a trainer: pass them to its fit, validate or test")
        return self.trainer
