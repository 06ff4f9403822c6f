"""A depthwise separable convolution (Howard et al., 2017): each channel by itself, then a mixture of channels."""

from __future__ import annotations

from torch import nn


def separable(before: int, after: int, stride: int = 1) -> nn.Sequential:
    """Return Conv3x3 of each channel, BatchNorm, ReLU, Conv1x1, BatchNorm, ReLU."""
    return nn.Sequential(
        nn.Conv2d(before, before, kernel_size=3, stride=stride, padding=1, groups=before, bias=False),
        nn.BatchNorm2d(before),
        nn.ReLU(),
        nn.Conv2d(before, after, kernel_size=1, bias=False),
        nn.BatchNorm2d(after),
        nn.ReLU(),
    )
