"""MNIST and Fashion-MNIST: IDX files, gzipped or plain, below `mnist/` and `fashion-mnist/`.

An IDX file is a magic number (0, 0, the type of an element, the number of dimensions), the dimensions as
big-endian 32-bit integers, and the elements in C order. Here elements are bytes (type 8), images have three
dimensions and labels one. If a file exists in both forms, the gzipped one is read: it has a checksum, and
`fetch` repairs it.
"""

import gzip
import math
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from lehr.data.dataset import DataError, Dataset, check_counts, check_labels
from lehr.data.download import Download

FILES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)
UNSIGNED_BYTE = 0x08  # the type of an element


@dataclass(frozen=True)
class Idx:
    """A data set in MNIST's four files.

    Args:
        name: the name of the data set and of its folder.
        classes: the names of the classes.
        mean: mean of the training pixels / 255.
        std: standard deviation of the training pixels / 255.
        mirrors: web folders, each with the four files.
        md5: checksums of the four gzipped files, in the order of FILES.
        train: the number of training images.
        test: the number of test images.
        size: pixels a side.
        validation: the number of training images held out by default.
        counts: images of each class in (training, test); None: equally many.
    """

    name: str
    classes: tuple[str, ...]
    mean: float
    std: float
    mirrors: tuple[str, ...]
    md5: tuple[str, str, str, str]
    train: int = 60_000
    test: int = 10_000
    size: int = 28
    validation: int = 5_000
    counts: tuple[tuple[int, ...], tuple[int, ...]] | None = None

    def read(self, root: Path) -> tuple[Dataset, Dataset]:
        """Read (training, test) from `root/NAME`, or from `root` if that is not a folder."""
        train_images, train_labels, test_images, test_labels = (self._read(root, file) for file in FILES)
        return self._dataset(train_images, train_labels), self._dataset(test_images, test_labels)

    def missing(self, root: Path) -> tuple[Download, ...]:
        """Return the gzipped files that are missing or damaged."""
        return tuple(
            Download(
                path=f"{self.name}/{file}.gz",
                urls=tuple(f"{mirror}/{file}.gz" for mirror in self.mirrors),
                checksum=f"md5:{md5}",
            )
            for file, md5 in zip(FILES, self.md5, strict=True)
            if not self._is_whole(root, file)
        )

    def _is_whole(self, root: Path, file: str) -> bool:
        try:
            self._read(root, file)
        except DataError:
            return False
        return True

    def _read(self, root: Path, file: str) -> Tensor:
        home = root / self.name if (root / self.name).is_dir() else root
        path = home / f"{file}.gz"
        if not path.is_file():
            path = home / file
        if not path.is_file():
            raise DataError(f"{home}: expected {file}.gz or {file}, found neither; `lehr data {self.name}` fetches it")
        count = self.train if file.startswith("train") else self.test
        if "images" in file:
            return read_idx(path, (count, self.size, self.size))
        labels = read_idx(path, (count,)).to(torch.int64)
        check_labels(labels, self.classes, path)
        check_counts(labels, self.classes, path, self.counts and self.counts[not file.startswith("train")])
        return labels

    def _dataset(self, images: Tensor, labels: Tensor) -> Dataset:
        return Dataset(images.unsqueeze(1), labels, self.classes, (self.mean,), (self.std,))


def read_idx(
    path: Path,
    shape: tuple[int, ...],  # that the file must have
) -> Tensor:
    """Read the bytes of an IDX file of this shape; a name that ends in .gz is gzipped."""
    magic = struct.pack(">HBB", 0, UNSIGNED_BYTE, len(shape))
    header_size, size = 4 + 4 * len(shape), math.prod(shape)
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            header = file.read(header_size)
            if header[:4] != magic:
                raise DataError(f"{path}: expected an IDX file of magic 0x{magic.hex()}, found 0x{header[:4].hex()}")
            if len(header) < header_size:
                raise DataError(f"{path}: expected a header of {header_size} bytes, found {len(header)}")
            found = struct.unpack(f">{len(shape)}I", header[4:])
            if found != shape:
                raise DataError(f"{path}: expected the dimensions {shape}, found {found}")
            content = file.read(size + 1)  # past the end, where gzip verifies its checksum
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DataError(f"{path}: expected a gzip file, found a damaged one: {error}") from error
    except OSError as error:
        raise DataError(f"{path}: expected a readable file, found: {error}") from error
    if len(content) != size:
        more = "at least " if len(content) > size else ""
        raise DataError(f"{path}: expected {size} bytes after the header, found {more}{len(content)}")
    return torch.frombuffer(bytearray(content), dtype=torch.uint8).reshape(shape)


MNIST = Idx(
    name="mnist",
    classes=tuple("0123456789"),
    mean=0.1307,
    std=0.3081,
    mirrors=(
        "https://ossci-datasets.s3.amazonaws.com/mnist",
        "https://storage.googleapis.com/cvdf-datasets/mnist",
    ),
    md5=(
        "f68b3c2dcbeaaa9fbdd348bbdeb94873",
        "d53e105ee54ea40749a09fcbcd1e9432",
        "9fb629c4189551a2d022fa330f9573f3",
        "ec29112dd5afa0611ce80d1b7f02629c",
    ),
    counts=(
        (5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949),
        (980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009),
    ),
)

FASHION_MNIST = Idx(
    name="fashion-mnist",
    classes=(
        "T-shirt/top",
        "Trouser",
        "Pullover",
        "Dress",
        "Coat",
        "Sandal",
        "Shirt",
        "Sneaker",
        "Bag",
        "Ankle boot",
    ),
    mean=0.2860,
    std=0.3530,
    mirrors=(
        "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion",
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
    ),
    md5=(
        "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
        "25c81989df183df01b3e8a0aad5dffbe",
        "bef4ecab320f06d8554ea6380940ec79",
        "bb300cfdad3c16e7a12a480ee83cd310",
    ),
)
