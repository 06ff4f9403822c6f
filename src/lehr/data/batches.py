"""Batches of an in-memory data set, each a function of (seed, epoch, step) alone.

So a run that was interrupted goes on bit for bit: `set_epoch(epoch, start=step)` and the next batch is the
one that would have come, in the same order, moved and mirrored the same way. Iterating gives the epoch's
batches from `start` to its end and turns to the next epoch; with several ranks each step's samples are dealt
out among them:

- every sample comes once an epoch, on one rank (`drop_last` leaves out those that fill no whole step);
- every rank has the same number of steps, and none an empty batch.

>>> import lehr.data
>>> train, validation, test = lehr.data.load("digits")
>>> batches = Batches(train, 64, shuffle=True, augment=lehr.data.CropFlip(padding=1, flip=False), seed=7)
>>> for images, labels in batches:
...     pass  # images: uint8 (64, 1, 8, 8)
>>> batches.epoch, len(batches)
(1, 20)
"""

import hashlib
from collections.abc import Iterator
from typing import TypedDict

import torch
from torch import Tensor

from .augment import Augment
from .dataset import Dataset


class Position(TypedDict):
    """The batch that comes next."""

    epoch: int
    step: int


class Batches:
    """Iterates over (images, labels) of `dataset`, which is held on `device`.

    `shuffle` draws a new order each epoch; `augment` changes the images of a batch; `drop_last` leaves out a
    last step that is not full; `rank` of `world_size` is this process among those that train together,
    `batch_size` its own share. A last step with fewer samples than ranks is joined to the one before, whose
    batches then have one sample more.
    """

    def __init__(
        self,
        dataset: Dataset,
        batch_size: int,
        *,
        shuffle: bool = False,
        augment: Augment | None = None,
        seed: int = 0,
        device: torch.device | str | None = None,
        drop_last: bool = False,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        if batch_size < 1:
            raise ValueError(f"a batch has at least 1 sample, got batch_size={batch_size}")
        if not 0 <= rank < world_size:
            raise ValueError(f"rank lies in 0..world_size - 1, got rank={rank} of world_size={world_size}")
        if 0 < len(dataset) < world_size:
            raise ValueError(f"{len(dataset)} samples are too few for {world_size} ranks")
        self.dataset = dataset
        self.batch_size, self.rank, self.world_size = batch_size, rank, world_size
        self.shuffle, self.drop_last, self.augment, self.seed = shuffle, drop_last, augment, seed
        self.images, self.labels = dataset.images.to(device), dataset.labels.to(device)
        self.epoch = self.start = 0
        self._next = Position(epoch=0, step=0)
        self._generator = torch.Generator(self.images.device)

    def __len__(self) -> int:
        """Return the number of steps of a whole epoch, wherever `start` is; the same on every rank."""
        full, rest = divmod(len(self.dataset), self.batch_size * self.world_size)
        joined = full > 0 and rest < self.world_size
        return full if self.drop_last or joined else full + (rest > 0)

    def set_epoch(self, epoch: int, *, start: int = 0) -> None:
        """Let the next iteration give the batches of `epoch` from step `start` on."""
        if epoch < 0 or not 0 <= start <= len(self):
            raise ValueError(f"epoch is at least 0 and start in 0..{len(self)}, got epoch={epoch}, start={start}")
        self.epoch, self.start = epoch, start
        self._next = Position(epoch=epoch, step=start)

    def state_dict(self) -> Position:
        """Return the position of the batch that comes next."""
        return self._next.copy()

    def load_state_dict(self, state: Position) -> None:
        """Go to a position of `state_dict`."""
        self.set_epoch(state["epoch"], start=state["step"])

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        # A generator: epoch and start are read when the first batch is asked for, not when `iter` is called,
        # because Lightning calls `iter` before it announces the epoch. It also stops asking at the last
        # batch, so the turn to the next epoch comes before that batch is handed out.
        epoch, steps = self.epoch, len(self)
        order = self._order(epoch)
        for step in range(self.start, steps):
            if step + 1 == steps:
                self.set_epoch(epoch + 1)
            else:
                self._next = Position(epoch=epoch, step=step + 1)
            yield self._batch(order, epoch, step)

    def _order(self, epoch: int) -> Tensor:
        """Return this epoch's order of all samples: the same on every rank and (drawn on the CPU) device."""
        count = len(self.dataset)
        if not self.shuffle:
            return torch.arange(count, device=self.images.device)
        generator = torch.Generator().manual_seed(_seed(self.seed, epoch))
        return torch.randperm(count, generator=generator).to(self.images.device)

    def _batch(self, order: Tensor, epoch: int, step: int) -> tuple[Tensor, Tensor]:
        first = step * self.batch_size * self.world_size
        last = first + self.batch_size * self.world_size
        if step + 1 == len(self) and not self.drop_last:
            last = len(order)
        mine = order[first:last][self.rank :: self.world_size]
        images, labels = self.images.index_select(0, mine), self.labels.index_select(0, mine)
        if self.augment:
            self._generator.manual_seed(_seed(self.seed, epoch, step, self.rank))
            images = self.augment(images, self._generator)
        return images, labels


def _seed(*numbers: int) -> int:
    """Mix numbers into a seed, so that neighbouring epochs, steps and ranks draw unrelated numbers."""
    digest = hashlib.blake2b(repr(numbers).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")
