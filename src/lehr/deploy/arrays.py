"""Examples from .npy and .csv files, as a network takes them, checked; a recording is cut into windows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from lehr.deploy.images import ImageError
from lehr.deploy.integer_net import IntegerNet

SUFFIXES = {".npy", ".csv"}
_MOST_BYTES = 2**30


def read_examples(path: Path, net: IntegerNet, *, hop: int | None = None) -> np.ndarray:
    """The examples in a file, (example, *input_shape): of an .npy array, or one in each line of a .csv.

    An .npy file may hold one example without a batch dimension. For a network that takes (channel, time), a file may
    hold a recording, a line for each time and a column for each channel, which is cut into windows. Values are
    converted to the network's type if they are kept by that; ImageError says what is wrong otherwise.

    Args:
        path: the file.
        net: the network.
        hop: samples from one window of a recording to the next; half a window unless given.
    """
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise ImageError(f"{path} has more than {_MOST_BYTES:,} bytes: cut it into several files")
        if path.suffix.lower() == ".npy":
            found = np.load(path, allow_pickle=False)
        else:
            found = np.loadtxt(path, delimiter=",", ndmin=2, dtype=np.float64, skiprows=1 if _has_header(path) else 0)
    except FileNotFoundError:
        raise ImageError(f"there is no file {path}") from None
    except (OSError, ValueError, EOFError) as error:
        raise ImageError(f"{path} holds no numbers that can be read: {error}") from error
    return _typed(path, _shaped(path, found, net.input_shape, hop), net.input_dtype)


def _has_header(path: Path) -> bool:
    """Whether the first line of a .csv names its columns: no numbers, and lines follow."""
    with path.open(encoding="utf-8") as file:
        first, second = file.readline(), file.readline()
    try:
        _ = [float(word) for word in first.split(",")]
    except ValueError:
        return bool(second) and not first.startswith("#")  # numpy skips comments itself
    return False


def _shaped(path: Path, found: np.ndarray, shape: Sequence[int], hop: int | None) -> np.ndarray:
    size = math.prod(shape)
    if found.shape == tuple(shape):
        return found[None]
    if found.shape[1:] == tuple(shape) or (found.ndim == 2 and found.shape[1] == size):
        return found.reshape(len(found), *shape)
    recording = ""
    if len(shape) == 2:
        channels, times = shape
        if found.ndim == 2 and found.shape[1] == channels and len(found) >= times:
            views = np.lib.stride_tricks.sliding_window_view(found, times, axis=0)  # (window, channel, time)
            return views[:: hop or max(1, times // 2)]
        recording = f", or a recording of at least {times} lines of {channels} numbers"
    raise ImageError(
        f"{path} holds shape {found.shape}, and this network takes (batch, {', '.join(map(str, shape))}), or {size} "
        f"numbers in a line{recording}"
    )


def _typed(path: Path, found: np.ndarray, dtype: str) -> np.ndarray:
    if not np.issubdtype(found.dtype, np.number) or np.issubdtype(found.dtype, np.complexfloating):
        raise ImageError(f"{path} holds {found.dtype}, and this network takes {dtype}")
    with np.errstate(invalid="ignore", over="ignore"):
        converted = np.ascontiguousarray(found.astype(dtype))
    if dtype != "float32" and not np.array_equal(converted, found):
        raise ImageError(f"{path} holds {found.dtype} that are no {dtype}: this network takes whole numbers of 8 bits")
    return converted
