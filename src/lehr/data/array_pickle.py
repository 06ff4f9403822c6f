"""Reads a pickle of plain values and byte arrays without running anything in it.

A pickle is a program: whoever wrote it chooses which functions are called when it is loaded. CIFAR-10's
Python files are pickles that Python 2 wrote, and need three names of numpy to rebuild their arrays. This
reader knows those three only, and gives stand-ins for them that record what they are told instead of numpy's
own: nothing of numpy runs on foreign data. Any other name ends the reading.
"""

import math
import pickle
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from .errors import DataError


def load_arrays(path: Path) -> dict[Any, Any]:
    """Read a pickled dictionary of plain values and uint8 arrays; the arrays become tensors."""
    try:
        with path.open("rb") as file:
            return _plain(_Reader(file, encoding="bytes").load())
    except OSError as error:
        raise DataError(f"{path}: expected a file that can be read, found: {error}") from error
    # A damaged pickle is a random program: the unpickler answers it with nearly any kind of exception.
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        raise DataError(f"{path}: expected a pickle of plain values and arrays, found: {reason}") from error


class _Dtype:
    """What a pickle says of a numpy.dtype: its code."""

    def __init__(self, code: object, *_: object) -> None:
        self.code = code

    def __setstate__(self, state: object) -> None:
        """Byte order and alignment, which single bytes do not have."""


class _NDArray:
    """Stands for the class numpy.ndarray, which pickles name but do not call."""


class _Array:
    """What a pickle says of a numpy.ndarray."""

    def __init__(self, *_: object) -> None:
        self.tensor: Tensor | None = None

    def __setstate__(self, state: Any) -> None:
        _, shape, dtype, column_major, content = state
        if not isinstance(dtype, _Dtype) or dtype.code != b"u1" or column_major:
            raise pickle.UnpicklingError("an array that is not of bytes in row-major order")
        if not isinstance(content, bytes) or math.prod(shape) != len(content):
            raise pickle.UnpicklingError(f"an array of shape {shape} with {len(content)} bytes")
        self.tensor = torch.frombuffer(bytearray(content), dtype=torch.uint8).reshape(shape)


class _Reader(pickle.Unpickler):
    known: ClassVar = {
        ("numpy.core.multiarray", "_reconstruct"): _Array,
        ("numpy", "ndarray"): _NDArray,
        ("numpy", "dtype"): _Dtype,
    }

    def find_class(self, module_name: str, global_name: str, /) -> Any:
        try:
            return self.known[module_name, global_name]
        except KeyError:
            raise pickle.UnpicklingError(
                f"it asks for {module_name}.{global_name}, which no official file needs"
            ) from None


def _plain(value: Any) -> dict[Any, Any]:
    """Replace the arrays among a dictionary's values by their tensors."""
    if not isinstance(value, dict):
        raise pickle.UnpicklingError(f"a {type(value).__name__} instead of a dictionary")
    return {key: item.tensor if isinstance(item, _Array) else item for key, item in value.items()}
