"""Readers of image files. What is drawn for an image depends on (seed, epoch, its number in the folder) alone.

Readers are told (epoch, samples) with each batch, so they live as long as training does, and how many there are changes
nothing but the speed.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.utils.data

from .decode import Crop
from .image_files import ImageFiles
from .reading import Read, Readers, Reading
from .steps import Steps

Request = tuple[int, list[int]]
"""Epoch and samples of one batch."""


class FileReading(Reading):
    """Reads `dataset`, each image cut by `crop`."""

    def __init__(self, dataset: ImageFiles, crop: Crop, seed: int, readers: Readers) -> None:
        self._requests = _Requests()
        self._loader = readers.loader(_Reader(dataset, crop, seed), requests=self._requests, lasting=True)

    def read(self, steps: Steps, epoch: int, start: int) -> Iterator[Read]:
        """Give what the readers hand over for the steps of `epoch` from `start` on, in their order."""
        order = steps.order(epoch)
        spans = [steps.span(step) for step in range(start, len(steps))]
        self._requests.next = ((epoch, order[span.start : span.stop : span.step].tolist()) for span in spans)
        return iter(self._loader)


class _Requests(torch.utils.data.Sampler[Request]):
    """What is asked of the readers, one batch after the other."""

    next: Iterator[Request] = iter(())

    def __iter__(self) -> Iterator[Request]:
        return self.next


@dataclass(frozen=True)
class _Reader(torch.utils.data.Dataset[Read]):
    """What runs in a reader process."""

    dataset: ImageFiles
    crop: Crop
    seed: int

    def __getitem__(self, index: Request) -> Read:
        epoch, samples = index
        decoded = self.dataset.decode(samples, self.crop, seed=self.seed, epoch=epoch)
        labels = self.dataset.labels[torch.tensor([samples[at] for at in decoded.positions], dtype=torch.int64)]
        failures = [(str(self.dataset.path(samples[at])), reason) for at, reason in decoded.failures]
        return Read(decoded.images, labels, failures)
