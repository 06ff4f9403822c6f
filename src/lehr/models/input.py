"""The first module of every network here: it turns uint8 pixels into the numbers that the first layer takes.

The network contains its normalisation, and optionally the quantization of its input, so that training and deployment
cannot differ. A pixel has 256 values, so the module is a table per channel; the integer network starts with the same
table.

>>> import torch
>>> pixels = Input(mean=(0.5,), std=(0.25,), bits=8)
>>> pixels(torch.tensor([[[[0, 130, 255]]]], dtype=torch.uint8))
tensor([[[[-1.9844,  0.0469,  1.9844]]]])
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from lehr.models.signal_input import SignalInput
from lehr.multistep import MultiStep


class Input(nn.Module):
    """(pixel / 255 - mean) / std per channel, rounded to the levels of a signed integer if `bits` is given.

    The levels are symmetric, 2^(bits-1) - 1 on each side of 0, and share one `scale`: the power of two with the least
    squared error over all pixel values, so that their sums are exact in float32. Zero padding after this module is the
    level 0.

    Args:
        mean: of pixel / 255, for each channel.
        std: of pixel / 255, for each channel.
        bits: 2 to 8, or None for no rounding.
    """

    table: Tensor
    scale: Tensor
    offsets: Tensor

    def __init__(self, mean: Sequence[float], std: Sequence[float], bits: int | None = None) -> None:
        super().__init__()
        if not isinstance(mean, Sequence) or not isinstance(std, Sequence):
            raise TypeError(f"mean and std need one number per channel, such as (0.5,), got {mean!r} and {std!r}")
        if len(mean) != len(std):
            raise ValueError(f"each channel needs a mean and a std, got {len(mean)} means and {len(std)} stds")
        if any(value <= 0 for value in std):
            raise ValueError(f"every std must be positive, got {tuple(std)}")
        if bits is not None and not 2 <= bits <= 8:
            raise ValueError(f"input bits must be between 2 and 8, or None, got {bits}")
        self.bits = bits
        pixels = torch.arange(256, dtype=torch.float64) / 255
        columns = [torch.tensor(values, dtype=torch.float64)[:, None] for values in (mean, std)]
        table = (pixels - columns[0]) / columns[1]  # (channel, pixel)
        scale = 1.0
        if bits is not None:
            rounded = {scale: _rounded(table, scale, bits) for scale in _powers_around(table.abs().max(), bits)}
            scale, table = min(rounded.items(), key=lambda item: (item[1] - table).square().sum().item())
        self.register_buffer("table", table.float())
        self.register_buffer("scale", torch.tensor(scale))
        # The start of each channel's row in the flattened table.
        self.register_buffer("offsets", 256 * torch.arange(len(mean))[:, None, None], persistent=False)

    @staticmethod
    def of(data: Tensor, bits: int = 8) -> Input | SignalInput:
        """The input module for data like these: for pixels (uint8) this one, for float32 and int8 a `SignalInput`.

        Args:
            data: Examples to train with, (example, channel, ...); their statistics normalise the input.
            bits: 2 to 8.
        """
        if data.dtype != torch.uint8:
            return SignalInput.fitted(data, bits)
        columns = data.transpose(0, 1).flatten(1).double() / 255
        std = columns.std(1, correction=0).clamp(min=1 / 255)  # a channel that never changes is not divided by 0
        return Input(columns.mean(1).tolist(), std.tolist(), bits)

    def forward(
        self,
        x: Tensor,  # (batch, channel, height, width), uint8
    ) -> Tensor:
        """Look up every pixel in the table."""
        if x.dtype != torch.uint8:
            raise TypeError(f"the network takes uint8 pixels and normalises them itself, got {x.dtype}")
        channels = len(self.table)
        if x.ndim != 4 or x.shape[1] != channels:
            raise ValueError(f"expected images (batch, {channels}, height, width), got {tuple(x.shape)}")
        return torch.take(self.table, x.long() + self.offsets)

    def extra_repr(self) -> str:
        """Return channels and bits."""
        return f"channels={len(self.table)}, bits={self.bits}"


def _powers_around(largest: Tensor, bits: int) -> tuple[float, float]:
    """Return the powers of two below and above the scale that maps the largest value to the largest level."""
    _, exponent = math.frexp(float(largest) / (2 ** (bits - 1) - 1))
    return 2.0 ** (exponent - 1), 2.0**exponent


def _rounded(values: Tensor, scale: float, bits: int) -> Tensor:
    largest = 2 ** (bits - 1) - 1
    return MultiStep.uniform(bits)(values / scale).clamp(-largest, largest) * scale
