"""Batches of images that reader processes decode during training.

One reader reads, decodes and crops a batch, directly into shared memory; colours are changed on the device. An image
that cannot be read is skipped: its batch is one smaller, its name is in `skipped`, and training continues. A training
step without any readable image is an error: then the disk has failed, not an image.

    train, validation, test = load_images(Path("imagenet"), size=224)
    batches = StreamedBatches(train, 128, crop=RandomCrop(224), augment=Colour(), shuffle=True, device="cuda")

With image files, the number of readers changes only the speed. With shards, it also changes which images share a batch,
so a resumed run must have as many readers as before.
"""

import itertools
import os
import random
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import torch
import torch.utils.data

from lehr.data.augment import Augment
from lehr.data.dataset import DataError
from lehr.data.decode import Crop, Decoded, Sample, decode_batch
from lehr.data.image_files import ImageFiles
from lehr.data.shards import Shards
from lehr.data.steps import Batch, Steps, mixed

_MOST_READERS = 16  # of one rank; more would take much memory
_AHEAD = 2  # batches that a reader decodes in advance
_BUFFER = 2000  # samples in a reader's shuffle buffer, about 200 MB of ImageNet's files


class StreamedBatches(Steps):
    """Iterates over (images, labels) of a data set that is not in memory.

    Args:
        dataset: the image files or shards.
        batch_size: images of this rank in a step.
        crop: chooses the part of each image.
        augment: the augmentation of a batch, on the device.
        shuffle: draw a new order each epoch.
        seed: seed of the order, of crops and of augmentation.
        device: the device of the batches.
        drop_last: drop a last, smaller step.
        rank: the number of this process.
        world_size: the number of processes that train together.
        workers: the reader processes of this rank (None: its share of the machine's cores; 0: read in this process).
    """

    def __init__(
        self,
        dataset: ImageFiles | Shards,
        batch_size: int,
        *,
        crop: Crop,
        augment: Augment | None = None,
        shuffle: bool = False,
        seed: int = 0,
        device: torch.device | str | None = None,
        drop_last: bool = False,
        rank: int = 0,
        world_size: int = 1,
        workers: int | None = None,
    ) -> None:
        super().__init__(
            len(dataset), batch_size, shuffle=shuffle, seed=seed, drop_last=drop_last, rank=rank, world_size=world_size
        )
        if workers is not None and workers < 0:
            raise ValueError(f"workers must be at least 0, got {workers}")
        self.dataset, self.crop, self.augment = dataset, crop, augment
        self.device = torch.device(device or "cpu")
        self.workers = usual_readers() if workers is None else workers
        self._generator = torch.Generator(self.device)
        if isinstance(dataset, ImageFiles):
            self._requests = _Requests()
            self._loader = self._readers(_FileReader(dataset, crop, seed), requests=self._requests)

    def produce(self, epoch: int, start: int) -> Iterator[Batch]:
        """Yield the batches of this rank in `epoch`, from step `start` on."""
        if isinstance(self.dataset, ImageFiles):
            decoded = self._from_files(epoch, start)
        else:
            decoded = self._from_shards(self.dataset, epoch, start)
        for step, (images, labels, failures) in enumerate(decoded, start):
            for name, reason in failures:
                self.skipped.note(name, reason)
            if not len(labels):
                if self.shuffle:
                    name, reason = failures[0]
                    raise DataError(f"none of the {len(failures)} images of a step can be read; {name}: {reason}")
                continue
            images = images.to(self.device, non_blocking=True)
            if self.augment:
                self._generator.manual_seed(mixed(self.seed, epoch, step, self.rank))
                images = self.augment(images, self._generator)
            yield images, labels.to(self.device, non_blocking=True)

    def _from_files(self, epoch: int, start: int) -> Iterator[Decoded]:
        """Request the epoch's steps from `start` on from the readers, which live through all epochs."""
        order = self.order(epoch)
        spans = [self.span(step) for step in range(start, len(self))]
        self._requests.next = ((epoch, order[span.start : span.stop : span.step].tolist()) for span in spans)
        return iter(self._loader)

    def _from_shards(self, shards: Shards, epoch: int, start: int) -> Iterator[Decoded]:
        """Start readers for the epoch's steps from `start` on."""
        sizes = [[len(self.span(step, rank)) for step in range(len(self))] for rank in range(self.rank + 1)]
        first = sum(map(sum, sizes[:-1]))
        reader = _ShardReader(shards, self.crop, self.seed, epoch, start, first, sizes[-1], self.shuffle)
        return iter(self._readers(reader))

    def _readers(self, reader: Any, *, requests: Any = None) -> torch.utils.data.DataLoader[Any]:
        """Return torch's loader over the batches that `reader` decodes; with `requests`, its processes are reused."""
        return torch.utils.data.DataLoader(
            reader,
            sampler=requests,
            batch_size=None,
            collate_fn=_as_it_is,
            num_workers=self.workers,
            pin_memory=self.device.type == "cuda",  # for asynchronous copies
            persistent_workers=requests is not None and self.workers > 0,
            prefetch_factor=_AHEAD if self.workers else None,
            worker_init_fn=start_reader,
            generator=torch.Generator(),  # the default would draw from the global generator once an epoch
        )


def usual_readers() -> int:
    """Return the default number of readers of a rank: its share of the machine's cores, at most 16."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(_MOST_READERS, max(1, cores // max(1, torch.cuda.device_count())))


def start_reader(number: int) -> None:
    """Make a reader end silently when the training process has ended, and ignore Ctrl-C, which that one handles."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to all processes
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    shown = sys.excepthook

    def quiet(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        # These mean that the training process is gone; other errors are shown.
        if not isinstance(error, ConnectionError | EOFError):
            shown(kind, error, trace)

    sys.excepthook = quiet


def _as_it_is(decoded: Any) -> Any:
    return decoded


_Request = tuple[int, list[int]]
"""Epoch and samples of one batch."""


class _Requests(torch.utils.data.Sampler[_Request]):
    """The batches requested from the readers of files, in order."""

    next: Iterator[_Request] = iter(())

    def __iter__(self) -> Iterator[_Request]:
        return self.next


@dataclass(frozen=True)
class _FileReader(torch.utils.data.Dataset[Decoded]):
    """Decodes requested batches of image files in a reader process."""

    dataset: ImageFiles
    crop: Crop
    seed: int

    def __getitem__(self, index: _Request) -> Decoded:
        epoch, samples = index
        return decode_batch([self.dataset.sample(at) for at in samples], self.crop, seed=self.seed, epoch=epoch)


@dataclass(frozen=True)
class _ShardReader(torch.utils.data.IterableDataset[Decoded]):
    """Decodes one epoch of shards in the reader processes of a rank; each of N readers yields every N-th step.

    (seed, epoch) shuffles the shards; their samples in that order are divided into one stretch for every reader of
    every rank. So each sample comes once, on one rank, and all ranks have the same number of steps. A reader shuffles
    its samples in a buffer.
    """

    shards: Shards
    crop: Crop
    seed: int
    epoch: int
    start: int  # the first step to yield
    first: int  # the position of the rank's first sample in the epoch
    sizes: list[int]  # samples of each step of the rank
    shuffle: bool

    def __iter__(self) -> Iterator[Decoded]:
        info = torch.utils.data.get_worker_info()
        place, readers = (0, 1) if info is None else (info.id, info.num_workers)
        reader = (place + self.start) % readers  # torch asks worker 0 first, for step `start`
        first = self.first + sum(sum(self.sizes[other::readers]) for other in range(reader))
        samples = self._stretch(first, first + sum(self.sizes[reader::readers]))
        if self.shuffle:
            from webdataset.filters import shuffle

            draws = random.Random(mixed(self.seed, self.epoch, first))
            samples = shuffle(_BUFFER, initial=_BUFFER, rng=draws)(samples)
        for step in range(reader, len(self.sizes), readers):
            batch = [*itertools.islice(samples, self.sizes[step])]
            if step >= self.start:  # earlier steps are read, to shuffle as the first time, but not decoded
                yield decode_batch(batch, self.crop, seed=self.seed, epoch=self.epoch)

    def _stretch(self, first: int, last: int) -> Iterator[Sample]:
        """Yield the samples from `first` to `last` of the epoch."""
        order = range(len(self.shards.paths))
        if self.shuffle:
            generator = torch.Generator().manual_seed(mixed(self.seed, self.epoch))
            order = torch.randperm(len(order), generator=generator).tolist()
        here = 0  # the position of this shard in the epoch
        for shard in order:
            size = self.shards.sizes[shard]
            begin, end = max(0, first - here), min(size, last - here)
            if begin < end:
                yield from self.shards.samples(shard, begin, end)
            here += size
