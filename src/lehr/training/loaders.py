"""The batches of a recipe, divided among the processes that train together."""

from __future__ import annotations

import torch

from lehr.data import AnyDataset, Splits, Steps, StreamedSplits, batches_of
from lehr.training.recipe import Data

EVALUATED_AT_ONCE = 200  # images; evaluation keeps nothing for a backward pass


class Loaders:
    """Makes the batches of one process; `data.batch_size` counts the images of all processes together.

    Args:
        splits: the images
        data: the recipe's data settings
        seed: seed of the order and of augmentation
        device: the device of the batches
        rank: the number of this process
        world_size: the number of processes
    """

    def __init__(
        self,
        splits: Splits | StreamedSplits,
        data: Data,
        *,
        seed: int,
        device: torch.device | str = "cpu",
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        self.splits, self.data, self.seed = splits, data, seed
        self.device, self.rank, self.world_size = device, rank, world_size

    def training(self) -> Steps:
        """Return shuffled, augmented batches; a last, smaller batch is dropped, for BatchNorm's sake."""
        share, rest = divmod(self.data.batch_size, self.world_size)
        if rest or not share:
            raise ValueError(
                f"data.batch_size must be a multiple of the {self.world_size} processes, got {self.data.batch_size}"
            )
        batches = self._batches(self.splits.train, share, training=True)
        if not len(batches):
            raise ValueError(
                f"{len(self.splits.train)} training images do not fill one batch of {self.data.batch_size}: "
                "reduce data.batch_size"
            )
        return batches

    def validation(self) -> Steps:
        """Return batches with every validation image once."""
        return self._batches(self.splits.validation, EVALUATED_AT_ONCE)

    def test(self) -> Steps:
        """Return batches with every test image once."""
        return self._batches(self.splits.test, EVALUATED_AT_ONCE)

    def _batches(self, dataset: AnyDataset, batch_size: int, *, training: bool = False) -> Steps:
        return batches_of(
            dataset,
            batch_size,
            training=training,
            augment=self.data.augmentation if training else None,
            alternate=training and self.data.alternates,
            seed=self.seed,
            device=self.device,
            workers=self.data.workers,
            rank=self.rank,
            world_size=self.world_size,
        )
