"""MobileNetV2 (Sandler et al., 2018), whose residual branches the paper quantizes.

This is the standard network, with torchvision's module names, so that its full-precision weights load unchanged
(`load_torchvision_`). Ten of its seventeen blocks (at width 1) are residual. The paper quantizes only these: the
branch's input, the weights of its three convolutions and the two activations between them. Only BatchNorm follows the
last convolution, and the sum stays in full precision.

>>> import lehr
>>> model = MobileNetV2((3, 32, 32), classes=10, width=0.5)
>>> model.residual_branches[:3]
['features.3', 'features.5', 'features.6']
>>> print(lehr.quantize_(model.quantized_part).converted[0])
Change(module='features.3.branch_input', was='ReLU6', now='Quantizer', levels=3, why='')
>>> model.get_submodule("features.3.branch_input")
Quantizer((-1, 0, 1) at (-0.5, 0.5), forward=Uniform(std=0.2887), backward=Uniform(std=0.2887))
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor, nn

from lehr.models.input import Input
from lehr.models.width import check_width

# Each stage: expansion, output channels, blocks, stride of the first block.
_STAGES = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)


class InvertedResidual(nn.Module):
    """Conv1x1 to `expansion` times the channels, depthwise Conv3x3, Conv1x1 back; plus the input if shapes match."""

    def __init__(self, before: int, after: int, stride: int, expansion: int) -> None:
        super().__init__()
        hidden = before * expansion
        self.residual = stride == 1 and before == after
        if self.residual:
            # A placeholder for the branch's input quantizer; `forward` skips it until it is replaced.
            self.branch_input: nn.Module = nn.ReLU6()
        layers: list[nn.Module] = [] if expansion == 1 else [_layer(before, hidden, kernel=1)]
        layers += [
            _layer(hidden, hidden, kernel=3, stride=stride, groups=hidden),
            nn.Conv2d(hidden, after, kernel_size=1, bias=False),
            nn.BatchNorm2d(after),
        ]
        self.conv = nn.Sequential(*layers)

    def forward(
        self,
        x: Tensor,  # (batch, before, height, width)
    ) -> Tensor:
        """Return (batch, after, height / stride, width / stride)."""
        if not self.residual:
            return self.conv(x)
        return x + self.conv(x if isinstance(self.branch_input, nn.ReLU6) else self.branch_input(x))


class MobileNetV2(nn.Module):
    """Conv3x3/2 32, seventeen inverted residuals, Conv1x1 1280, mean over the image, dropout, Linear.

    At width 1 on 224x224 images: 3.5 M weights, 300.8 M MAC, 155.0 M of them in the residual branches.

    >>> import torch
    >>> MobileNetV2((3, 32, 32), classes=5, width=0.25)(torch.zeros(2, 3, 32, 32, dtype=torch.uint8)).shape
    torch.Size([2, 5])

    Args:
        shape: (channels, height, width) of an image.
        classes: the number of classes.
        width: multiplies the channels, rounded to multiples of 8; the 1280 only if it is above 1.
        mean: the mean of each channel of the images, as a share of 255.
        std: their standard deviation.
        input_bits: rounds the input to this many bits, so that the first layer can run as integers; null for floats.
        dropout: the share of features that are dropped before the last layer while training.
    """

    def __init__(
        self,
        shape: tuple[int, int, int] = (3, 224, 224),
        classes: int = 1000,
        *,
        width: float = 1.0,
        mean: Sequence[float] = (0.485, 0.456, 0.406),
        std: Sequence[float] = (0.229, 0.224, 0.225),
        input_bits: int | None = None,
        dropout: float = 0.2,
    ) -> None:
        super().__init__()
        check_width(width)
        self.input = Input(mean, std, input_bits)
        channels = _rounded(32 * width)
        layers: list[nn.Module] = [_layer(shape[0], channels, kernel=3, stride=2)]
        for expansion, features, blocks, stride in _STAGES:
            after = _rounded(features * width)
            for block in range(blocks):
                layers.append(InvertedResidual(channels, after, stride if block == 0 else 1, expansion))
                channels = after
        last = _rounded(1280 * max(1.0, width))
        layers.append(_layer(channels, last, kernel=1))
        self.features = nn.Sequential(*layers)
        self.pool = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.classifier = nn.Sequential(nn.Dropout(dropout), nn.Linear(last, classes))
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out")
            elif isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=0.01)
                nn.init.zeros_(module.bias)

    @property
    def residual_branches(self) -> list[str]:
        """The paths of the residual blocks, from the input to the output."""
        return [
            path for path, module in self.named_modules() if isinstance(module, InvertedResidual) and module.residual
        ]

    @property
    def annealing_groups(self) -> list[list[str]]:
        """The paths whose noise decays together: the paper's layer l is the l-th residual branch.

        Ten branches at 50 epochs each end at epoch 500 of 1000; thirty layers would not end in time.
        """
        return [[path] for path in self.residual_branches]

    @property
    def quantized_part(self) -> nn.Module:
        """A module that contains only the residual blocks, under their paths."""
        part = nn.Module()
        blocks = {path.removeprefix("features."): self.get_submodule(path) for path in self.residual_branches}
        part.features = nn.ModuleDict(blocks)
        return part

    def forward(
        self,
        x: Tensor,  # (batch, *shape), uint8
    ) -> Tensor:
        """Return scores, (batch, class)."""
        return self.classifier(self.pool(self.features(self.input(x))))


def load_torchvision_(model: MobileNetV2, state: Mapping[str, Tensor]) -> None:
    """Load a state dict of torchvision's MobileNetV2, which has no `Input`; all other tensors must be there and fit.

    Load the state of one of lehr's networks, quantized or not, with `model.load_state_dict`.
    """
    ours = {key: value for key, value in model.state_dict().items() if key.startswith("input.")}
    model.load_state_dict(ours | dict(state))


def _layer(before: int, after: int, *, kernel: int, stride: int = 1, groups: int = 1) -> nn.Sequential:
    """Return convolution, BatchNorm and activation."""
    return nn.Sequential(
        nn.Conv2d(before, after, kernel, stride, padding=kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(after),
        nn.ReLU6(),
    )


def _rounded(channels: float) -> int:
    """Return the nearest multiple of 8 that is at least 8 and at least 90 % of `channels`."""
    rounded = max(8, int(channels + 4) // 8 * 8)
    return rounded if rounded >= 0.9 * channels else rounded + 8
