"""The largest of the networks that people know, at 224 x 224 pixels; their weights are zeros, to be quick."""

from __future__ import annotations

import numpy as np

from lehr.deploy import IntegerNet
from lehr.deploy.operations import Add, Conv, Flatten, Linear, MaxPool, Operation, SumPool, Table, Threshold, Weights


class _Built:
    """Operations one after the other; each method appends some and returns the name of what they make."""

    def __init__(self) -> None:
        self.operations: list[Operation] = [Table("pixels", np.zeros((3, 256), int))]

    def _name(self) -> str:
        return str(len(self.operations))

    def conv(self, source: str, channels: int, width: int, kernel: int, stride: int = 1) -> str:
        weight = Weights(np.zeros((width, channels, kernel, kernel), np.uint8), (0,))
        name = self._name()
        self.operations.append(Conv(name, source, weight, (stride, stride), (kernel // 2, kernel // 2)))
        return self.step(name, width)

    def step(self, source: str, width: int) -> str:
        name = self._name()
        self.operations.append(Threshold(name, source, np.zeros((width, 1), int), np.ones(width, int), (0, 1)))
        return name

    def linear(self, source: str, features: int, width: int) -> str:
        name = self._name()
        self.operations.append(Linear(name, source, Weights(np.zeros((width, features), np.uint8), (0,))))
        return name

    def add(self, first: str, second: str) -> str:
        name = self._name()
        self.operations.append(Add(name, first, second))
        return name

    def net(self) -> IntegerNet:
        return IntegerNet((3, 224, 224), tuple(self.operations))


def vgg16() -> IntegerNet:
    """15.5 thousand million multiplications, 138 million weights."""
    built, x, channels = _Built(), "pixels", 3
    for block, (width, depth) in enumerate(((64, 2), (128, 2), (256, 3), (512, 3), (512, 3))):
        for _ in range(depth):
            x, channels = built.conv(x, channels, width, 3), width
        built.operations.append(MaxPool(f"pool{block}", x, (2, 2), (2, 2)))
        x = f"pool{block}"
    built.operations.append(Flatten("flat", x))
    x, features = "flat", 512 * 49
    for width in (4096, 4096, 1000):
        x, features = built.linear(x, features, width), width
    return built.net()


def resnet152() -> IntegerNet:
    """11.5 thousand million multiplications in 155 convolutions, 72 million numbers."""
    built = _Built()
    built.operations.append(MaxPool("pool", built.conv("pixels", 3, 64, 7, 2), (3, 3), (2, 2), (1, 1)))
    x, channels = "pool", 64
    for width, depth in ((64, 3), (128, 8), (256, 36), (512, 3)):
        for block in range(depth):
            stride = 2 if block == 0 and width > 64 else 1
            y = built.conv(built.conv(x, channels, width, 1), width, width, 3, stride)
            y = built.conv(y, width, 4 * width, 1)
            shortcut = built.conv(x, channels, 4 * width, 1, stride) if block == 0 else x
            x, channels = built.step(built.add(shortcut, y), 4 * width), 4 * width
    built.operations.append(SumPool("mean", x, (7, 7), (1, 1)))
    built.linear("mean", 2048, 1000)
    return built.net()
