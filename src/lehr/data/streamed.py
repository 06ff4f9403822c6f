"""Batches of images that reader processes decode while the network trains.

Each batch is read, decoded and cropped by one reader, straight into the memory it is handed over in; colours are
changed on the device. An image that cannot be read is skipped: its batch is one smaller, its name is in `skipped`, and
training goes on. A training step without any readable image is an error: then the disk is gone, not an image.

    train, validation, test = load_images(Path("imagenet"), size=224)
    batches = StreamedBatches(train, 128, crop=RandomCrop(224), augment=Colour(), shuffle=True, device="cuda")

Of image files, how many readers there are changes nothing but the speed. Of shards, which images share a batch depends
on the number of readers too, so a resumed run must have as many as before.
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

_MOST_READERS = 16  # of one rank: more fill memory before they fill a device
_AHEAD = 2  # batches a reader decodes before they are asked for
_BUFFER = 2000  # samples of shards a reader picks from at random, some 200 MB of ImageNet's files


class StreamedBatches(Steps):
    """Iterates over (images, labels) of a data set that is not in memory.

    Args:
        dataset: the image files or shards.
        batch_size: this rank's own share of a step.
        crop: what readers cut out of an image.
        augment: changes the images of a batch, on the device.
        shuffle: draw a new order each epoch.
        seed: of the order, of crops and of augmentation.
        device: where batches are.
        drop_last: leave out a last step that is not full.
        rank: this process among those that train together.
        world_size: how many these are.
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
            raise ValueError(f"there are at least 0 reader processes, got workers={workers}")
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
        """Ask the readers, which live as long as training does, for the epoch's steps from `start` on."""
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
        """Return torch's loader over what `reader` decodes; readers that get `requests` outlive an epoch."""
        return torch.utils.data.DataLoader(
            reader,
            sampler=requests,
            batch_size=None,
            collate_fn=_as_it_is,
            num_workers=self.workers,
            pin_memory=self.device.type == "cuda",  # from which an accelerator copies by itself
            persistent_workers=requests is not None and self.workers > 0,
            prefetch_factor=_AHEAD if self.workers else None,
            worker_init_fn=start_reader,
            generator=torch.Generator(),  # torch's own would be moved by one draw an epoch
        )


def usual_readers() -> int:
    """Return how many readers a rank has by default: its share of the machine's cores, at most 16."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(_MOST_READERS, max(1, cores // max(1, torch.cuda.device_count())))


def start_reader(number: int) -> None:
    """Let a reader end silently when the process that trains is gone, and leave signals to that process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # which a terminal sends to all
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    shown = sys.excepthook

    def quiet(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        # A reader's own errors go to the process that trains; what arrives here is that nobody takes a batch any more.
        if not isinstance(error, ConnectionError):
            shown(kind, error, trace)

    sys.excepthook = quiet


def _as_it_is(decoded: Any) -> Any:
    return decoded


_Request = tuple[int, list[int]]
"""Epoch and samples of one batch."""


class _Requests(torch.utils.data.Sampler[_Request]):
    """What is asked of the readers of files, one batch after the other."""

    next: Iterator[_Request] = iter(())

    def __iter__(self) -> Iterator[_Request]:
        return self.next


@dataclass(frozen=True)
class _FileReader(torch.utils.data.Dataset[Decoded]):
    """What runs in a reader process of image files."""

    dataset: ImageFiles
    crop: Crop
    seed: int

    def __getitem__(self, index: _Request) -> Decoded:
        epoch, samples = index
        return decode_batch([self.dataset.sample(at) for at in samples], self.crop, seed=self.seed, epoch=epoch)


@dataclass(frozen=True)
class _ShardReader(torch.utils.data.IterableDataset[Decoded]):
    """What runs in the reader processes of a rank for one epoch of shards; each of N reads every N-th step.

    An epoch is the samples of all shards, in an order of shards that (seed, epoch) decides, cut into one stretch for
    every reader of every rank: each sample comes once and on one rank, and all ranks have the same number of steps,
    wherever a shard ends. A reader shuffles what it reads in a buffer.
    """

    shards: Shards
    crop: Crop
    seed: int
    epoch: int
    start: int  # the first step that is wanted
    first: int  # where the rank's samples begin in the epoch
    sizes: list[int]  # how many samples each of the rank's steps has
    shuffle: bool

    def __iter__(self) -> Iterator[Decoded]:
        info = torch.utils.data.get_worker_info()
        place, readers = (0, 1) if info is None else (info.id, info.num_workers)
        reader = (place + self.start) % readers  # torch asks place 0 first, and step `start` is to come first
        first = self.first + sum(sum(self.sizes[other::readers]) for other in range(reader))
        samples = self._stretch(first, first + sum(self.sizes[reader::readers]))
        if self.shuffle:
            from webdataset.filters import shuffle

            draws = random.Random(mixed(self.seed, self.epoch, first))
            samples = shuffle(_BUFFER, initial=_BUFFER, rng=draws)(samples)
        for step in range(reader, len(self.sizes), readers):
            batch = [*itertools.islice(samples, self.sizes[step])]
            if step >= self.start:  # a resumed run reads what it has had again, to shuffle alike, without decoding it
                yield decode_batch(batch, self.crop, seed=self.seed, epoch=self.epoch)

    def _stretch(self, first: int, last: int) -> Iterator[Sample]:
        """Yield the samples from `first` to `last` of the epoch."""
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
