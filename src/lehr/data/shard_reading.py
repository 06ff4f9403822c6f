"""Readers of tar shards.

An epoch is the samples of all shards, in an order of shards that (seed, epoch) decides, cut into one stretch for every
reader of every rank: each sample comes once and on one rank, and all ranks have the same number of steps, wherever a
shard ends. A reader shuffles what it reads in a buffer. What is drawn for an image depends on (seed, epoch, its number)
alone; which images share a batch depends on the number of readers too, so a resumed run must have as many as before.
"""

import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.utils.data

from .decode import Crop, decode_batch
from .reading import Read, Readers, Reading
from .seed import mixed
from .shards import Sample, Shards
from .steps import Steps

BUFFER = 2000  # samples a reader picks from at random, some 200 MB of ImageNet's files


class ShardReading(Reading):
    """Reads `shards`, each image cut by `crop`."""

    def __init__(self, shards: Shards, crop: Crop, seed: int, readers: Readers) -> None:
        self.shards, self.crop, self.seed, self.readers = shards, crop, seed, readers

    def read(self, steps: Steps, epoch: int, start: int) -> Iterator[Read]:
        """Give what the readers hand over for the steps of `epoch` from `start` on, in their order."""
        sizes = [[len(steps.span(step, rank)) for step in range(len(steps))] for rank in range(steps.rank + 1)]
        reader = _Reader(
            self.shards,
            self.crop,
            self.seed,
            epoch,
            start,
            first=sum(map(sum, sizes[:-1])),
            sizes=sizes[-1],
            shuffle=steps.shuffle,
        )
        return iter(self.readers.loader(reader, lasting=False))


@dataclass(frozen=True)
class _Reader(torch.utils.data.IterableDataset[Read]):
    """What runs in the reader processes of a rank for one epoch; each of N reads every N-th step.

    `first` is where the rank's samples begin in the epoch, `sizes` how many each of its steps has.
    """

    shards: Shards
    crop: Crop
    seed: int
    epoch: int
    start: int
    first: int
    sizes: list[int]
    shuffle: bool

    def __iter__(self) -> Iterator[Read]:
        info = torch.utils.data.get_worker_info()
        place, readers = (0, 1) if info is None else (info.id, info.num_workers)
        reader = (place + self.start) % readers  # torch asks place 0 first, and step `start` is to come first
        first = self.first + sum(sum(self.sizes[other::readers]) for other in range(reader))
        samples = self._stretch(first, first + sum(self.sizes[reader::readers]))
        if self.shuffle:
            from webdataset.filters import shuffle

            draws = random.Random(mixed(self.seed, self.epoch, first))
            samples = shuffle(BUFFER, initial=BUFFER, rng=draws)(samples)
        for step in range(reader, len(self.sizes), readers):
            batch = [*itertools.islice(samples, self.sizes[step])]
            if step >= self.start:  # what a resumed run has had is read again, to shuffle alike, but not decoded
                yield self._decoded(batch)

    def _stretch(self, first: int, last: int) -> Iterator[Sample]:
        """Give the samples from `first` to `last` of the epoch."""
        order = range(len(self.shards.paths))
        if self.shuffle:
            generator = torch.Generator().manual_seed(mixed(self.seed, self.epoch))
            order = torch.randperm(len(order), generator=generator).tolist()
        here = 0  # where in the epoch this shard begins
        for shard in order:
            size = self.shards.sizes[shard]
            begin, end = max(0, first - here), min(size, last - here)
            if begin < end:
                yield from self.shards.samples(shard, begin, end)
            here += size

    def _decoded(self, batch: list[Sample]) -> Read:
        seeds = [mixed(self.seed, self.epoch, sample.number) for sample in batch]
        decoded = decode_batch([sample.file for sample in batch], self.crop, seeds)
        labels = torch.tensor([batch[at].label for at in decoded.positions], dtype=torch.int64)
        return Read(decoded.images, labels, [(batch[at].name, reason) for at, reason in decoded.failures])
