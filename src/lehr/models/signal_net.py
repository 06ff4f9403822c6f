"""A small network for signals, such as the samples of a sensor: convolutions over time, and their mean."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor, nn

from lehr.models.signal_input import SignalInput
from lehr.models.width import scaled


class SignalNet(nn.Module):
    """[Conv1d - MaxPool 2 - BatchNorm - activation] for each of `channels`, the mean over time, Linear - BatchNorm.

    There is no bias before BatchNorm. The first convolution is padded so that times become a power of two if they can
    (500 become 512, and 140 become 128 with a kernel of 13): a mean over a power of two is exact in integers.

    >>> import torch
    >>> SignalNet((6, 128), classes=6, mean=(0.0,) * 6, std=(1.0,) * 6)(torch.zeros(2, 6, 128)).shape
    torch.Size([2, 6])

    Args:
        shape: (channels, times) of a signal.
        classes: the number of classes.
        channels: the channels of each convolution.
        kernels: the times that each convolution sees, odd numbers.
        width: multiplies all channels.
        mean: the mean of each channel of the signals.
        std: their standard deviation.
        input_bits: rounds the input to this many bits.
    """

    def __init__(
        self,
        shape: tuple[int, int] = (1, 128),
        classes: int = 2,
        *,
        channels: Sequence[int] = (32, 48, 64),
        kernels: Sequence[int] = (9, 5, 5),
        width: float = 1.0,
        mean: Sequence[float] = (0.0,),
        std: Sequence[float] = (1.0,),
        input_bits: int = 8,
    ) -> None:
        super().__init__()
        if len(shape) != 2:
            raise ValueError(f"a signal has the shape (channels, times), got {tuple(shape)}")
        if len(mean) != shape[0]:
            raise ValueError(f"signals of {shape[0]} channels need as many means, got {tuple(mean)}")
        if len(channels) != len(kernels) or not channels:
            raise ValueError(
                f"each convolution needs channels and a kernel, got {tuple(channels)} and {tuple(kernels)}"
            )
        if any(kernel < 1 or kernel % 2 == 0 for kernel in kernels):
            raise ValueError(f"kernels must be odd, got {tuple(kernels)}")
        before, times = shape
        self.input = SignalInput(mean, std, input_bits)
        layers: list[nn.Module] = []
        for index, (features, kernel) in enumerate(zip(channels, kernels, strict=True)):
            padding = kernel // 2
            if index == 0:
                padding = max(0, padding + (2 ** round(math.log2(times)) - times) // 2)
            after = scaled(features, width)
            layers += [nn.Conv1d(before, after, kernel, padding=padding, bias=False), nn.MaxPool1d(2)]
            layers += [nn.BatchNorm1d(after), nn.ReLU()]
            before, times = after, (times + 2 * padding - kernel + 1) // 2
        if times < 1:
            raise ValueError(f"{len(channels)} max-pools of 2 need signals of at least {2 ** len(channels)} times")
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Sequential(nn.Linear(before, classes, bias=False), nn.BatchNorm1d(classes))

    def forward(
        self,
        x: Tensor,  # (batch, *shape), float32
    ) -> Tensor:
        """Return scores, (batch, class)."""
        return self.classifier(self.features(self.input(x)).mean(2))
