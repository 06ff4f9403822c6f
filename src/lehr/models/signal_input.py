"""The first module of a network that takes measurements: float32 in, small integers times a power of two out.

    level = floor((x - mean) * factor + 0.5), within -limit..limit        value = level * scale

`factor` is 1 / (std * scale), a number for each channel. The scale is a power of two, so sums of these values are exact
in float32, and the frozen network computes the same levels with the same three steps.

>>> import torch
>>> signals = SignalInput(mean=(10.0,), std=(2.0,))
>>> signals(torch.tensor([[10.0], [12.1], [99.0]]))
tensor([[0.0000],
        [1.0625],
        [3.9688]])
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn


class SignalInput(nn.Module):
    """(x - mean) / std per channel, rounded to a signed integer of `bits` times `scale`.

    Takes float32 of any rank, (batch, channel, ...), or int8, which is converted first.

    Args:
        mean: What is subtracted from each channel.
        std: What each channel is then divided by.
        bits: 2 to 8.
        scale: The distance of two levels, a power of two; by default levels reach 4 standard deviations.
    """

    mean: Tensor
    factor: Tensor
    scale: Tensor

    def __init__(
        self, mean: Sequence[float], std: Sequence[float], bits: int = 8, *, scale: float | None = None
    ) -> None:
        super().__init__()
        if len(mean) != len(std) or not len(mean):
            raise ValueError(f"each channel needs a mean and a std, got {len(mean)} means and {len(std)} stds")
        if not all(value > 0 for value in std):
            raise ValueError(f"every std must be positive, got {tuple(std)}: leave channels out that never change")
        if not 2 <= bits <= 8:
            raise ValueError(f"input bits must be between 2 and 8, got {bits}")
        scale = 2.0 ** (3 - bits) if scale is None else scale
        if math.frexp(scale)[0] != 0.5:
            raise ValueError(f"scale must be a power of two, got {scale}")
        self.bits = bits
        self.limit = 2 ** (bits - 1) - 1
        self.register_buffer("mean", torch.tensor(mean, dtype=torch.float32))
        self.register_buffer("factor", (1 / (torch.tensor(std, dtype=torch.float64) * scale)).float())
        self.register_buffer("scale", torch.tensor(scale))

    @classmethod
    def fitted(
        cls,
        data: Tensor,  # (example, channel, ...)
        bits: int = 8,
    ) -> SignalInput:
        """Mean and std of each channel, and the power of two that loses least over `data`.

        Args:
            data: Examples to train with; not those to test with.
            bits: 2 to 8.
        """
        if data.ndim < 2 or not data.numel():
            raise ValueError(f"data has shape (example, channel, ...), got {tuple(data.shape)}")
        columns = data.double().transpose(0, 1).flatten(1)  # (channel, number)
        mean, std = columns.mean(1), columns.std(1, correction=0)
        if not bool(torch.isfinite(std).all()):
            raise ValueError("data holds numbers that are not finite")
        normal = (columns - mean[:, None]) / std[:, None]
        made = [cls(mean.tolist(), std.tolist(), bits, scale=2.0 ** (k - bits)) for k in range(1, 6)]

        def loss(module: SignalInput) -> float:
            scale = float(module.scale)
            levels = (normal / scale + 0.5).floor().clamp(-module.limit, module.limit)
            return (levels * scale - normal).square().mean().item()

        return min(made, key=loss)

    def forward(
        self,
        x: Tensor,  # (batch, channel, ...), float32 or int8
    ) -> Tensor:
        """Round every number."""
        if x.dtype == torch.uint8 or not (x.is_floating_point() or x.dtype == torch.int8):
            raise TypeError(f"signals are float32 or int8, got {x.dtype}; lehr.models.Input takes pixels")
        if x.ndim < 2 or x.shape[1] != len(self.mean):
            raise ValueError(f"expected signals (batch, {len(self.mean)}, ...), got {tuple(x.shape)}")
        shape = (-1, *[1] * (x.ndim - 2))
        nearest = ((x.float() - self.mean.reshape(shape)) * self.factor.reshape(shape) + 0.5).floor()
        return (nearest.clamp(-self.limit, self.limit) * self.scale).to(self.scale.dtype)

    def extra_repr(self) -> str:
        """Channels, bits and scale."""
        return f"channels={len(self.mean)}, bits={self.bits}, scale={float(self.scale):g}"
