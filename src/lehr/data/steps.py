"""The steps of an epoch, divided among the processes that train together, and the position in it.

- every sample comes once an epoch, on one rank (`drop_last` drops those that do not fill a step);
- every rank has the same number of steps, and none is empty;
- the samples of a step depend only on (seed, epoch, step), so an interrupted run continues bit for bit:
  after `set_epoch(epoch, start=step)` the next batch is that of `step`.

An iteration yields the batches from `start` to the end of the epoch and advances to the next epoch.
"""

import hashlib
import logging
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import TypedDict

import torch
from torch import Tensor

from lehr.printable import printable

Batch = tuple[Tensor, Tensor]
"""Images, uint8 (batch, channel, height, width), and labels, int64 (batch,)."""

_log = logging.getLogger(__name__)
_NAMED = 50  # files named in the log; a million lines would help nobody


def mixed(*numbers: int) -> int:
    """Hash numbers into a seed, so that neighbouring epochs, steps and ranks draw unrelated random numbers.

    >>> mixed(0, 1) != mixed(1, 0)
    True
    """
    digest = hashlib.blake2b(repr(numbers).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


class Skipped:
    """Counts the files among `total` images that could not be read, and logs each of the first 50 once.

    >>> skipped = Skipped(total=100)
    >>> skipped.note("train/a/1.jpg", "image file is truncated")
    >>> skipped.note("train/a/1.jpg", "image file is truncated")  # in the next epoch
    >>> print(skipped)
    1 of 100 images cannot be read and are skipped
    """

    def __init__(self, total: int, reasons: Mapping[str, str] | None = None) -> None:
        self.total = total
        self._reasons = dict(reasons or {})

    @property
    def reasons(self) -> Mapping[str, str]:
        """The reason for each file."""
        return MappingProxyType(self._reasons)

    def __len__(self) -> int:
        return len(self._reasons)

    def note(self, name: str, reason: str) -> None:
        """Count a file, and log it if it is new."""
        if name in self._reasons:
            return
        self._reasons[name] = reason
        if len(self) <= _NAMED:
            _log.warning("%s cannot be read and is skipped: %s", printable(name), printable(reason))
        if len(self) == _NAMED:
            _log.warning("further images that cannot be read are counted, not named")

    def __str__(self) -> str:
        return f"{len(self)} of {self.total} images cannot be read and are skipped"


class Position(TypedDict):
    """The position of the next batch."""

    epoch: int
    step: int


class Steps(ABC):
    """Iterates over batches of `count` samples; a subclass produces them.

    A last step with fewer samples than ranks is merged into the one before: some of its batches are one sample larger.

    Args:
        count: the number of samples.
        batch_size: samples of this rank in a step.
        shuffle: draw a new order each epoch.
        seed: seed of the order and of augmentation.
        drop_last: drop a last, smaller step.
        rank: the number of this process.
        world_size: the number of processes that train together.
        skipped: the files that could not be read.
    """

    def __init__(
        self,
        count: int,
        batch_size: int,
        *,
        shuffle: bool = False,
        seed: int = 0,
        drop_last: bool = False,
        rank: int = 0,
        world_size: int = 1,
        skipped: Skipped | None = None,
    ) -> None:
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {batch_size}")
        if not 0 <= rank < world_size:
            raise ValueError(f"rank must be in 0..world_size - 1, got rank={rank} and world_size={world_size}")
        if 0 < count < world_size:
            raise ValueError(f"{count} samples are too few for {world_size} ranks")
        self.count, self.batch_size, self.rank, self.world_size = count, batch_size, rank, world_size
        self.shuffle, self.seed, self.drop_last = shuffle, seed, drop_last
        self.skipped = Skipped(count) if skipped is None else skipped
        self.epoch = self.start = 0
        self._next = Position(epoch=0, step=0)

    @abstractmethod
    def produce(self, epoch: int, start: int) -> Iterator[Batch]:
        """Yield the batches of this rank in `epoch`, from step `start` on."""

    def __len__(self) -> int:
        """Return the number of steps of a whole epoch; it is the same on every rank."""
        full, rest = divmod(self.count, self.batch_size * self.world_size)
        joined = full > 0 and rest < self.world_size
        return full if self.drop_last or joined else full + (rest > 0)

    def set_epoch(self, epoch: int, *, start: int = 0) -> None:
        """Make the next iteration yield the batches of `epoch` from step `start` on."""
        if epoch < 0 or not 0 <= start <= len(self):
            raise ValueError(f"epoch must be at least 0 and start in 0..{len(self)}, got epoch={epoch}, start={start}")
        self.epoch, self.start = epoch, start
        self._next = Position(epoch=epoch, step=start)

    def state_dict(self) -> Position:
        """Return the position of the next batch."""
        return self._next.copy()

    def load_state_dict(self, state: Position) -> None:
        """Go to a position that `state_dict` returned."""
        self.set_epoch(state["epoch"], start=state["step"])

    def __iter__(self) -> Iterator[Batch]:
        # A generator, since Lightning calls `iter` before it sets the epoch: epoch and start are read at the first
        # batch. Lightning does not ask beyond the last batch, so the epoch advances before that batch is yielded.
        epoch, start, steps = self.epoch, self.start, len(self)
        for step, batch in enumerate(self.produce(epoch, start), start):
            if step + 1 == steps:
                self.set_epoch(epoch + 1)
            else:
                self._next = Position(epoch=epoch, step=step + 1)
            yield batch

    def order(self, epoch: int) -> Tensor:
        """Return the order of all samples in an epoch, on the CPU; it is the same on every rank and device."""
        if not self.shuffle:
            return torch.arange(self.count)
        return torch.randperm(self.count, generator=torch.Generator().manual_seed(mixed(self.seed, epoch)))

    def span(self, step: int, rank: int | None = None) -> range:
        """Return the positions in the epoch's order of the samples of a rank (None: this one) at `step`."""
        first = step * self.batch_size * self.world_size
        last = first + self.batch_size * self.world_size
        if step + 1 == len(self) and not self.drop_last:
            last = self.count
        return range(first + (self.rank if rank is None else rank), last, self.world_size)
