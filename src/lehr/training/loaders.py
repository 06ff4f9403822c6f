"""The batches of a recipe, dealt out among the processes that train together."""

from __future__ import annotations

import torch

from lehr.data import AnyDataset, Splits, Steps, StreamedSplits, batches_of
from lehr.training.recipe import Data

_EVALUATED_AT_ONCE = 200  # images; evaluation keeps nothing for a backward pass


class Loaders:
    """Makes the batches of one process. A recipe's batch is that of all processes together.

    Args:
        splits: the images
        data: the recipe's settings of them
        seed: of the order and of augmentation
        device: where the batches are wanted
        rank: this process among those that train together
        world_size: how many there are
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
        """Shuffled and augmented; a last step that is not full is left out, for BatchNorm's sake."""
        share, rest = divmod(self.data.batch_size, self.world_size)
        if rest or not share:
            raise ValueError(f"a batch of {self.data.batch_size} cannot be dealt out among {self.world_size} processes")
        batches = self._batches(self.splits.train, share, training=True)
        if not len(batches):
            raise ValueError(
                f"{len(self.splits.train)} training images do not fill one batch of {self.data.batch_size}"
            )
        return batches

    def validation(self) -> Steps:
        """Every validation image once."""
        return self._batches(self.splits.validation, _EVALUATED_AT_ONCE)

    def test(self) -> Steps:
        """Every test image once."""
        return self._batches(self.splits.test, _EVALUATED_AT_ONCE)

    def _batches(self, dataset: AnyDataset, batch_size: int, *, training: bool = False) -> Steps:
        return batches_of(
            dataset,
            batch_size,
            training=training,
            augment=self.data.augmentation if training else None,
            seed=self.seed,
            device=self.device,
            workers=self.data.workers,
            rank=self.rank,
            world_size=self.world_size,
        )
