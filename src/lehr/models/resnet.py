"""Residual networks for small images (He et al., 2016): ResNet-8 of MLPerf Tiny, ResNet-20 and ResNet-18.

A block adds its input, or a 1x1 convolution of it where shapes change, to two convolutions of it. Modules have
torchvision's names. `quantize_` gives both sides of a sum one quantizer, so that the frozen network adds integers.

>>> import lehr
>>> model = ResNet(depth=8)
>>> sum(p.numel() for p in model.parameters() if p.ndim > 1)
77360
>>> [change.module for change in lehr.quantize_(model).converted][:4]
['conv1', 'relu', 'layer1.0.conv1', 'layer1.0.relu1']
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

from torch import Tensor, nn

from lehr.models.activation import Activation, activation_named, start_biases_
from lehr.models.input import Input
from lehr.models.width import scaled

# By depth: the channels of each stack, and its blocks of two convolutions.
_STACKS = {8: ((16, 32, 64), 1), 18: ((64, 128, 256, 512), 2), 20: ((16, 32, 64), 3)}


class Block(nn.Module):
    """Conv3x3, BatchNorm, ReLU, Conv3x3, BatchNorm; plus the input or Conv1x1 and BatchNorm of it; then ReLU."""

    def __init__(self, before: int, after: int, stride: int, activation: Callable[[], nn.Module] = nn.ReLU) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, kernel_size=3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(after)
        self.relu1 = activation()
        self.conv2 = nn.Conv2d(after, after, kernel_size=3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(after)
        self.downsample: nn.Module = nn.Identity()
        if stride != 1 or before != after:
            conv = nn.Conv2d(before, after, kernel_size=1, stride=stride, bias=False)
            self.downsample = nn.Sequential(conv, nn.BatchNorm2d(after))
        self.relu2 = activation()

    @property
    def before_activations(self) -> list[nn.BatchNorm2d]:
        """One BatchNorm for each input of an activation; none where a shortcut brings the values of an activation."""
        return [self.bn1] if isinstance(self.downsample, nn.Identity) else [self.bn1, self.bn2]

    def forward(
        self,
        x: Tensor,  # (batch, before, height, width)
    ) -> Tensor:
        """Return (batch, after, height / stride, width / stride)."""
        y = self.relu1(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        return self.relu2(y + self.downsample(x))


class SumBlock(Block):
    """Activation, Conv3x3, BatchNorm, plus the input; then the same again. The input and the result are sums.

    Where shapes change, the shortcut of the first convolution is Conv1x1 and BatchNorm of the activation.
    """

    @property
    def before_activations(self) -> list[nn.BatchNorm2d]:
        """One BatchNorm where the sum begins anew; elsewhere it is carried along."""
        return [] if isinstance(self.downsample, nn.Identity) else [self.bn1]

    def forward(
        self,
        x: Tensor,  # (batch, before, height, width)
    ) -> Tensor:
        """Return (batch, after, height / stride, width / stride)."""
        y = self.relu1(x)
        shortcut = x if isinstance(self.downsample, nn.Identity) else self.downsample(y)
        x = shortcut + self.bn1(self.conv1(y))
        return x + self.bn2(self.conv2(self.relu2(x)))


class ResNet(nn.Module):
    """Conv3x3, stacks of residual blocks of which each but the first halves the image, mean over the image, Linear.

    BatchNorm follows each layer, the last one too. On 32x32 images, at width 1:

        depth 8     stacks of 16, 32, 64 channels, 1 block each           77 k weights      12.5 M MAC
        depth 20    the same, 3 blocks each                              271 k weights      40.8 M MAC
        depth 18    stacks of 64, 128, 256, 512 channels, 2 blocks each  11.2 M weights    555.4 M MAC

    >>> import torch
    >>> ResNet(depth=20, width=0.25)(torch.zeros(2, 3, 32, 32, dtype=torch.uint8)).shape
    torch.Size([2, 10])

    Args:
        shape: (channels, height, width) of an image.
        classes: the number of classes.
        depth: 8, 18 or 20 layers on the longest way.
        width: multiplies all channels.
        mean: the mean of each channel of the images, as a share of 255.
        std: their standard deviation.
        input_bits: rounds the input to this many bits, so that the first layer can run as integers; null for floats.
        activation: relu, hardtanh or ramp: see `lehr.models.activation`.
        shortcuts: of `levels`, around two convolutions, as He et al. have them; or of `sums`, around each convolution,
            which carry the sum before its activation past the levels (Bi-Real Net, Liu et al., 2018).
    """

    def __init__(
        self,
        shape: tuple[int, int, int] = (3, 32, 32),
        classes: int = 10,
        *,
        depth: int = 8,
        width: float = 1.0,
        mean: Sequence[float] = (0.4914, 0.4822, 0.4465),
        std: Sequence[float] = (0.2470, 0.2430, 0.2610),
        input_bits: int | None = None,
        activation: Activation = "relu",
        shortcuts: Literal["levels", "sums"] = "levels",
    ) -> None:
        super().__init__()
        if depth not in _STACKS:
            raise ValueError(f"depth must be {', '.join(map(str, _STACKS))}, got {depth}")
        if len(mean) != shape[0]:
            raise ValueError(f"images of {shape[0]} channels need as many means, got {tuple(mean)}")
        if shortcuts not in ("levels", "sums"):
            raise ValueError(f"shortcuts must be levels or sums, got {shortcuts!r}")
        kind = activation_named(activation)
        self.shortcuts = shortcuts
        stacks, blocks = _STACKS[depth]
        channels = scaled(stacks[0], width)
        self.input = Input(mean, std, input_bits)
        self.conv1 = nn.Conv2d(shape[0], channels, kernel_size=3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.relu = kind()
        self.stacks = [f"layer{number}" for number in range(1, len(stacks) + 1)]
        for number, name in enumerate(self.stacks):
            layers = []
            for block in range(blocks):
                after = scaled(stacks[number], width)
                make = Block if shortcuts == "levels" else SumBlock
                layers.append(make(channels, after, stride=2 if number and not block else 1, activation=kind))
                channels = after
            self.add_module(name, nn.Sequential(*layers))
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(channels, classes, bias=False)
        self.bn2 = nn.BatchNorm1d(classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        blocks_of = (module for module in self.modules() if isinstance(module, Block))
        start_biases_(activation, [self.bn1, *(norm for block in blocks_of for norm in block.before_activations)])

    @property
    def annealing_groups(self) -> list[list[str]]:
        """The paths whose noise decays together: each block."""
        return [[path] for path, module in self.named_modules() if isinstance(module, Block)]

    def forward(
        self,
        x: Tensor,  # (batch, *shape), uint8
    ) -> Tensor:
        """Return scores, (batch, class)."""
        x = self.bn1(self.conv1(self.input(x)))
        if self.shortcuts == "levels":
            x = self.relu(x)
        for name in self.stacks:
            x = self.get_submodule(name)(x)
        if self.shortcuts == "sums":
            x = self.relu(x)
        return self.bn2(self.fc(self.avgpool(x).flatten(1)))
