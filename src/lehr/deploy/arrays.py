"""Examples from .npy and .csv files, as a network takes them, checked."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from lehr.deploy.images import ImageError
from lehr.deploy.integer_net import IntegerNet

SUFFIXES = {".npy", ".csv"}
_MOST_BYTES = 2**30


def read_examples(path: Path, net: IntegerNet) -> np.ndarray:
    """The examples in a file, (example, *input_shape): of an .npy array, or one in each line of a .csv.

    An .npy file may hold one example without a batch dimension. Values are converted to the network's type if they are
    kept by that; ImageError says what is wrong otherwise.
    """
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise ImageError(f"{path} has more than {_MOST_BYTES:,} bytes: cut it into several files")
        if path.suffix.lower() == ".npy":
            found = np.load(path, allow_pickle=False)
        else:
            found = np.loadtxt(path, delimiter=",", ndmin=2, dtype=np.float64)
    except FileNotFoundError:
        raise ImageError(f"there is no file {path}") from None
    except (OSError, ValueError, EOFError) as error:
        raise ImageError(f"{path} holds no numbers that can be read: {error}") from error
    return _typed(path, _shaped(path, found, net.input_shape), net.input_dtype)


def _shaped(path: Path, found: np.ndarray, shape: Sequence[int]) -> np.ndarray:
    size = math.prod(shape)
    if found.shape == tuple(shape):
        return found[None]
    if found.shape[1:] == tuple(shape) or (found.ndim == 2 and found.shape[1] == size):
        return found.reshape(len(found), *shape)
    raise ImageError(
        f"{path} holds shape {found.shape}, and this network takes (batch, {', '.join(map(str, shape))}), or {size} "
        "numbers in a line"
    )


def _typed(path: Path, found: np.ndarray, dtype: str) -> np.ndarray:
    if not np.issubdtype(found.dtype, np.number) or np.issubdtype(found.dtype, np.complexfloating):
        raise ImageError(f"{path} holds {found.dtype}, and this network takes {dtype}")
    with np.errstate(invalid="ignore", over="ignore"):
        converted = np.ascontiguousarray(found.astype(dtype))
    if dtype != "float32" and not np.array_equal(converted, found):
        raise ImageError(f"{path} holds {found.dtype} that are no {dtype}: this network takes whole numbers of 8 bits")
    return converted
