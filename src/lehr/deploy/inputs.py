"""What goes into an integer network: uint8 pixels, int8 or float32 numbers, in batches of the right shape."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Literal, TypeVar

import numpy as np
import torch
from torch import Tensor

from lehr.deploy.operations import Value, as_shape

Images = TypeVar("Images", np.ndarray, Tensor)
InputType = Literal["uint8", "int8", "float32"]
INPUTS: dict[str, Value] = {
    "uint8": Value((1, 1, 1), "integer", 0, 255),
    "int8": Value((1, 1, 1), "integer", -128, 127),
    "float32": Value((1, 1, 1), "float"),
}


def input_value(shape: Sequence[int], dtype: InputType) -> Value:
    """What is known of a network's input."""
    return dataclasses.replace(INPUTS[dtype], shape=as_shape(shape))


def check_batch(batch: np.ndarray | Tensor, shape: Sequence[int], dtype: InputType = "uint8") -> None:
    """Raise unless `batch` holds what a network takes that has this input shape and type."""
    what = "images" if dtype == "uint8" else "the input"
    verb = "are" if dtype == "uint8" else "is"
    if not isinstance(batch, (np.ndarray, Tensor)):
        raise TypeError(f"{what} {verb} a numpy array or a torch tensor, got {type(batch).__name__}")
    if batch.dtype not in (np.dtype(dtype), getattr(torch, dtype)):
        told = "uint8 pixels, 0 to 255 and not normalised" if dtype == "uint8" else dtype
        raise TypeError(f"{what} {verb} {told}, got {batch.dtype}")
    if tuple(batch.shape[1:]) != tuple(shape) or batch.ndim != len(shape) + 1:
        raise ValueError(
            f"{what} {'have shape (image' if dtype == 'uint8' else 'has shape (batch'}, {', '.join(map(str, shape))}), "
            f"got {tuple(batch.shape)}" + (": add a batch dimension" if tuple(batch.shape) == tuple(shape) else "")
        )
