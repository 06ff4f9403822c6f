"""Batches of images that reader processes decode while the network trains.

Each batch is read, decoded and cropped by one reader, straight into the memory it is handed over in; colours are
changed on the device. An image that cannot be read is skipped: its batch is one smaller, its name is in `skipped`, and
training goes on. A training step without any readable image is an error: then the disk is gone, not an image.

    train, validation, test = load_images(Path("imagenet"), size=224)
    batches = StreamedBatches(train, 128, crop=RandomCrop(224), augment=Colour(), shuffle=True, device="cuda")
"""

from collections.abc import Iterator

import torch

from .augment import Augment
from .decode import Crop
from .errors import DataError
from .file_reading import FileReading
from .image_files import ImageFiles
from .reading import Readers, Reading, usual_readers
from .seed import mixed
from .shard_reading import ShardReading
from .shards import Shards
from .skipped import Skipped
from .steps import Batch, Steps


class StreamedBatches(Steps):
    """Iterates over (images, labels) on `device`; see `Steps` for shuffle, seed, drop_last and ranks.

    `crop` is what readers cut out of an image, `augment` what becomes of a batch on the device. `workers` are the
    reader processes of this rank (None: its share of the machine's cores; 0: read in this process).
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
        count = len(dataset)
        super().__init__(
            count, batch_size, shuffle=shuffle, seed=seed, drop_last=drop_last, rank=rank, world_size=world_size
        )
        self.augment = augment
        self.device = torch.device(device or "cpu")
        self.skipped = Skipped(count)
        readers = Readers(usual_readers() if workers is None else workers, pinned=self.device.type == "cuda")
        self._reading: Reading = (
            FileReading(dataset, crop, seed, readers)
            if isinstance(dataset, ImageFiles)
            else ShardReading(dataset, crop, seed, readers)
        )
        self._generator = torch.Generator(self.device)

    def produce(self, epoch: int, start: int) -> Iterator[Batch]:
        """Give the batches of this rank in `epoch`, from step `start` on."""
        for step, (images, labels, failures) in enumerate(self._reading.read(self, epoch, start), start):
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
