"""CIFAR-10 in either of its official layouts: `cifar-10-batches-bin` or `cifar-10-batches-py`.

Binary: five training files and a test file of 10000 records, each one byte of label and 3072 of pixels,
channel by channel, row by row. Python: the same six batches as pickled dictionaries, read without running
them (array_pickle.py). Where both are there the binary one is read; `fetch` fetches it.
"""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from .array_pickle import load_arrays
from .dataset import Dataset
from .download import Download
from .errors import DataError
from .source import Source, check_counts, check_labels

SHAPE = (3, 32, 32)
PIXELS = 3 * 32 * 32
CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
TRAINING = tuple(f"data_batch_{i}" for i in range(1, 6))
TEST = "test_batch"
BINARY, PYTHON = "cifar-10-batches-bin", "cifar-10-batches-py"
ARCHIVE = Download(
    path="cifar-10-binary.tar.gz",
    urls=("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",),
    checksum="md5:c32a1d4ab5d03f1284b67883e8d87530",  # published at https://www.cs.toronto.edu/~kriz/cifar.html
    members=tuple(f"{BINARY}/{batch}.bin" for batch in (*TRAINING, TEST)),
)


@dataclass(frozen=True)
class Cifar10(Source):
    """CIFAR-10; `per_file` images are in each of its six files."""

    name: str = "cifar10"
    validation: int = 5_000  # the paper's 45k/5k/10k
    per_file: int = 10_000
    archive: Download = ARCHIVE

    def read(self, root: Path) -> tuple[Dataset, Dataset]:
        """Read (training, test) from a layout's folder, which is below `root` or `root` itself."""
        for layout, suffix, read_batch in ((BINARY, ".bin", read_binary), (PYTHON, "", read_python)):
            home = root / layout if (root / layout).is_dir() else root
            if home is root and not (root / f"{TEST}{suffix}").is_file():
                continue
            training = [read_batch(home / f"{name}{suffix}", self.per_file) for name in TRAINING]
            test = read_batch(home / f"{TEST}{suffix}", self.per_file)
            return (
                _dataset(training, home / f"data_batch_*{suffix}"),
                _dataset([test], home / f"{TEST}{suffix}"),
            )
        raise DataError(
            f"{root}: expected the folder {BINARY} or {PYTHON}, found neither; `lehr data cifar10` fetches it"
        )

    def missing(self, root: Path) -> tuple[Download, ...]:
        """Return the archive of the binary layout where neither layout can be read."""
        try:
            self.read(root)
        except DataError:
            return (self.archive,)
        return ()


def read_binary(path: Path, count: int) -> tuple[Tensor, Tensor]:
    """Read (pixels, labels) of one file of `count` records of the binary layout."""
    record = 1 + PIXELS
    try:
        found = path.stat().st_size
        if found != count * record:
            raise DataError(f"{path}: expected {count * record} bytes ({count} records of {record}), found {found}")
        content = bytearray(path.read_bytes())
    except OSError as error:
        raise DataError(f"{path}: expected a file that can be read, found: {error}") from error
    records = torch.frombuffer(content, dtype=torch.uint8).reshape(count, record)
    labels = records[:, 0].to(torch.int64)
    check_labels(labels, CLASSES, path)
    return records[:, 1:], labels


def read_python(path: Path, count: int) -> tuple[Tensor, Tensor]:
    """Read (pixels, labels) of one pickled batch of `count` images of the Python layout."""
    batch = load_arrays(path)
    pixels, labels = batch.get(b"data"), batch.get(b"labels")
    if not isinstance(pixels, Tensor) or tuple(pixels.shape) != (count, PIXELS):
        found = tuple(pixels.shape) if isinstance(pixels, Tensor) else type(pixels).__name__
        raise DataError(f"{path}: expected an array `data` of shape {(count, PIXELS)}, found {found}")
    if not isinstance(labels, list) or not all(type(label) is int for label in labels):
        raise DataError(f"{path}: expected a list `labels` of integers, found {type(labels).__name__}")
    if len(labels) != count:
        raise DataError(f"{path}: expected {count} labels for {count} images, found {len(labels)}")
    numbers = torch.tensor(labels, dtype=torch.int64)
    check_labels(numbers, CLASSES, path)
    return pixels, numbers


def _dataset(batches: list[tuple[Tensor, Tensor]], path: Path) -> Dataset:
    images = torch.cat([pixels for pixels, _ in batches]).reshape(-1, *SHAPE)
    labels = torch.cat([labels for _, labels in batches])
    check_counts(labels, CLASSES, path)
    # Mean and std as the paper prints them; the stds of the pixels are 0.2470, 0.2435 and 0.2616.
    return Dataset(images, labels, CLASSES, (0.4914, 0.4822, 0.4465), (0.2470, 0.2430, 0.2610))
