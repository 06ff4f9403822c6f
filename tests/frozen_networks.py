"""Small networks, one for each thing `freeze` must get right, as they are after training, with images for them.

Their BatchNorms have negative and zero scales. Those in EXACT sum integers times powers of two alone, so that every
integer must be torch's own; those in INTEGERS are integers all the same, and those in FLOATS not all.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import lehr
from lehr.deploy.freeze import freeze
from lehr.deploy.integer_net import IntegerNet

SIGN = lehr.MultiStep.sign()
POWERS = lehr.MultiStep((-1.5, -0.75, -0.3, 0.3, 0.75, 1.5), (-2, -1, -0.5, 0, 0.5, 1, 2))
UNEVEN = lehr.MultiStep((0.5, 1.5, 3.0), (0, 1, 2, 5))
BYTE = lehr.MultiStep.uniform(8, signed=False)


class Input(nn.Module):
    """Pixels, normalised per channel and quantized to 8 bits; its check of the kind cannot be traced."""

    mean: Tensor

    def __init__(self, channels: int, scale: float = 2.0**-5) -> None:
        super().__init__()
        self.register_buffer("mean", torch.linspace(0.3, 0.6, channels)[:, None, None])
        self.quantizer = hard(lehr.MultiStep.uniform(8), scale)

    def forward(self, x: Tensor) -> Tensor:
        if x.dtype != torch.uint8:
            raise TypeError(f"pixels are uint8, got {x.dtype}")
        return self.quantizer((x.float() / 255 - self.mean) / 0.25)


def hard(step: lehr.MultiStep | None = None, scale: float | Tensor = 1.0) -> lehr.Quantizer:
    """A quantizer whose noise is gone."""
    return lehr.Quantizer(step or lehr.MultiStep.ternary(), lehr.Dirac(), lehr.Uniform(0.3), scale=scale)


def conv(
    inputs: int, outputs: int, kernel: int = 3, step: lehr.MultiStep | None = None, **options: object
) -> nn.Module:
    scale = options.pop("scale", 1.0)
    options = {"bias": False, "padding": kernel // 2, **options}
    return lehr.Conv2d(inputs, outputs, kernel, quantizer=hard(step, scale), **options)  # pyright: ignore[reportArgumentType]


def linear(inputs: int, outputs: int, step: lehr.MultiStep | None = None, bias: bool = False) -> nn.Module:
    return lehr.Linear(inputs, outputs, bias, quantizer=hard(step))


def dyadic(channels: int, rank: int) -> Tensor:
    """A power of two for each channel, with dimensions to broadcast."""
    return (2.0 ** torch.arange(-1, channels - 1).remainder(4)).reshape(-1, *[1] * (rank - 1))


def vgg() -> nn.Module:
    """Max-pool before BatchNorm, as in the paper; 9 x 7 pixels, 3 channels."""
    return nn.Sequential(
        Input(3),
        *(conv(3, 8), nn.BatchNorm2d(8), hard()),
        *(conv(8, 13), nn.MaxPool2d(2), nn.BatchNorm2d(13), hard()),
        nn.Flatten(),
        *(linear(13 * 4 * 3, 20), nn.BatchNorm1d(20), hard(), nn.Dropout(0.5)),
        *(linear(20, 10), nn.BatchNorm1d(10)),
    )


def pool_after_norm() -> nn.Module:
    """BatchNorm before max-pool: where it falls, the smallest sum wins. And BatchNorm before flatten."""
    return nn.Sequential(
        Input(2),
        *(conv(2, 6, 5), nn.BatchNorm2d(6), nn.MaxPool2d(3, 2, 1), hard()),
        *(conv(6, 6), nn.BatchNorm2d(6), nn.Flatten(), hard()),
        linear(6 * 5 * 4, 10, SIGN),
    )


def separable() -> nn.Module:
    """Depthwise, grouped, strided and dilated convolutions, with biases."""
    return nn.Sequential(
        Input(2),
        *(conv(2, 8, 3, stride=2), hard()),
        *(conv(8, 16, 3, groups=8, stride=(1, 2)), nn.BatchNorm2d(16), hard(UNEVEN)),
        *(conv(16, 12, 3, groups=4, dilation=2, padding=2), nn.BatchNorm2d(12), hard()),
        *(conv(12, 10, 1, padding="same"), nn.BatchNorm2d(10)),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
    )


def averages() -> nn.Module:
    """Average pools, padded, with a shift before, and global; a sum of windows is divided by 6, 9 and 4."""
    return nn.Sequential(
        Input(2),
        *(conv(2, 6), nn.AvgPool2d((2, 3), 1), nn.BatchNorm2d(6), hard(UNEVEN)),
        *(nn.AvgPool2d(3, 2, 1), conv(6, 8, scale=0.5, bias=True), nn.AvgPool2d(2, 1), hard(POWERS)),
        *(conv(8, 10), nn.AdaptiveAvgPool2d((1, 1)), nn.BatchNorm2d(10), nn.Flatten(), nn.Identity()),
    )


def levels() -> nn.Module:
    """256, uneven, power-of-two and two levels, for activations and weights."""
    return nn.Sequential(
        Input(1),
        *(conv(1, 5, step=POWERS), nn.BatchNorm2d(5), nn.Hardtanh(-8, 8), hard(BYTE, 2.0**-4)),
        *(conv(5, 6, step=lehr.MultiStep.uniform(4)), nn.BatchNorm2d(6), nn.ReLU(), hard(POWERS, 0.5)),
        *(conv(6, 7, step=SIGN), nn.BatchNorm2d(7), hard(SIGN)),
        nn.Flatten(),
        linear(7 * 63, 10, lehr.MultiStep.uniform(8, step=0.25)),
    )


def channel_scales() -> nn.Module:
    """A scale for each output channel of the weights; one for each channel of the activations before a depthwise."""
    first, second = conv(2, 6, scale=dyadic(6, 4)), conv(6, 6, groups=6, scale=dyadic(6, 4))
    last = lehr.Linear(6, 10, quantizer=hard(scale=dyadic(10, 2)))
    return nn.Sequential(
        *(Input(2), first, nn.BatchNorm2d(6), hard(scale=dyadic(6, 3))),
        *(second, nn.BatchNorm2d(6), hard(scale=0.5), nn.AdaptiveAvgPool2d(1), nn.Flatten(), last),
    )


class Residual(nn.Module):
    """Sums of quantized values, at equal and at different scales, and of sums before their thresholds."""

    def __init__(self) -> None:
        super().__init__()
        self.input = Input(2)
        self.stem, self.stem_norm, self.stem_step = conv(2, 8), nn.BatchNorm2d(8), hard()
        self.first, self.first_norm, self.first_step = conv(8, 8), nn.BatchNorm2d(8), hard(scale=0.5)
        self.second, self.third = conv(8, 8), conv(8, 8, 1)
        self.norm, self.step = nn.BatchNorm2d(8), hard(UNEVEN)
        self.head = linear(8, 10, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem_step(self.stem_norm(self.stem(self.input(x))))
        x = x + self.first_step(self.first_norm(self.first(x)))
        y = self.second(x)
        y += self.third(x)
        x = self.step(self.norm(torch.add(y, x)))
        x = F.avg_pool2d(F.max_pool2d(x, 2), (4, 4))
        return self.head(x.view(x.size(0), -1))


class FloatBranches(nn.Module):
    """MobileNetV2's way: float bottlenecks, a quantized residual branch, a float head; and BatchNorm + identity."""

    def __init__(self) -> None:
        super().__init__()
        self.input = Input(3)
        self.stem = nn.Sequential(nn.Conv2d(3, 6, 3, 2, 1, bias=False), nn.BatchNorm2d(6), nn.ReLU6())
        self.branch = nn.Sequential(
            *(hard(), conv(6, 12, 1), nn.BatchNorm2d(12), hard()),
            *(conv(12, 12, groups=12), nn.BatchNorm2d(12), hard(), conv(12, 6, 1), nn.BatchNorm2d(6)),
        )
        self.step = hard(scale=0.7)
        self.more, self.norm, self.last_step = conv(6, 6), nn.BatchNorm2d(6), hard(scale=0.3)
        self.head = nn.Linear(6, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(self.input(x))
        x = x + self.branch(x)
        x = self.step(x)
        x = self.last_step(self.norm(self.more(x)) + x)
        return self.head(x.mean((2, 3)))


class OneDimension(nn.Module):
    """A convolution over time."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *(lehr.Conv1d(2, 6, 5, 2, 1, bias=False, quantizer=hard()), nn.BatchNorm1d(6), hard(), nn.MaxPool1d(2)),
            *(
                lehr.Conv1d(6, 6, 3, groups=2, bias=False, quantizer=hard()),
                nn.AvgPool1d(2),
                nn.BatchNorm1d(6),
                hard(),
                nn.Flatten(),
            ),
            linear(6 * 6, 10),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x.float() * 0.25 - 3)


class OtherDimensions(nn.Module):
    """Pools of two dimensions over time, and of one where rows were."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.step = lehr.Conv1d(2, 6, 5, 2, quantizer=hard()), nn.BatchNorm1d(6), hard()
        self.plane, self.line = nn.AvgPool2d(3, 1, 1), nn.MaxPool1d(2)
        self.last = linear(6 * 14, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.step(self.norm(self.first(x.float() * 0.25 - 3)))
        x = self.plane(x.view(x.size(0), 6, 1, x.size(2)))
        return self.last(self.line(x.squeeze(2)).flatten(1))


class FloatShortcuts(nn.Module):
    """Integers that two layers with float weights read."""

    def __init__(self) -> None:
        super().__init__()
        self.input = Input(2)
        self.stem, self.stem_norm, self.stem_step = conv(2, 8), nn.BatchNorm2d(8), hard()
        self.one, self.one_norm, self.one_step = nn.Conv2d(8, 12, 3, padding=1), nn.BatchNorm2d(12), hard()
        self.two, self.short = nn.Conv2d(12, 12, 3, padding=1), nn.Conv2d(8, 12, 1)
        self.norm, self.step = nn.BatchNorm2d(12), hard()
        self.head, self.other = nn.Linear(12 * 63, 10), nn.Linear(12 * 63, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem_step(self.stem_norm(self.stem(self.input(x))))
        x = self.two(self.one_step(self.one_norm(self.one(x)))) + self.short(x)
        x = self.step(self.norm(x)).flatten(1)
        return self.head(x) + self.other(x)


def converted() -> nn.Module:
    """What `quantize_` makes of a plain network: scales that are no powers of two."""
    model = nn.Sequential(
        *(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(8, 12, 3), nn.BatchNorm2d(12), nn.ReLU(), nn.Flatten(), nn.Linear(24, 10)),
    )
    lehr.quantize_(model, scale="channel", weights=hard(), activations=hard())
    return nn.Sequential(Input(3, scale=0.03), model)


def paper_vgg() -> nn.Module:
    """The paper's network, narrow."""
    model = lehr.models.VGG((3, 8, 8), width=1 / 16, input_bits=8)
    lehr.quantize_(model, weights=hard(), activations=hard())
    return model


class Gated(nn.Module):
    """Squeeze-and-excite: a gate for each channel, from the average over all 56 pixels; and a product of two values."""

    def __init__(self) -> None:
        super().__init__()
        self.input = Input(2)
        self.stem, self.stem_norm, self.stem_step = conv(2, 8), nn.BatchNorm2d(8), hard(UNEVEN)
        self.squeeze, self.squeeze_step = conv(8, 4, 1, bias=True), hard(scale=0.25)
        self.excite, self.gate = conv(4, 8, 1, bias=True), hard(lehr.MultiStep.uniform(4, signed=False), 2.0**-4)
        self.project, self.norm, self.step = conv(8, 6, 1), nn.BatchNorm2d(6), hard()
        self.head = linear(6, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem_step(self.stem_norm(self.stem(self.input(x))))
        gate = self.squeeze_step(self.squeeze(F.adaptive_avg_pool2d(x, 1)))
        x = x * self.gate(F.hardsigmoid(self.excite(gate)))
        x = self.step(self.norm(self.project(x)))
        return self.head(torch.mul(x, x + 2 * x).mean((2, 3)))


def small_resnet() -> nn.Module:
    """ResNet-8, narrow: sums of integers, with shortcuts that are finer and coarser than the branch."""
    model = lehr.models.ResNet((3, 8, 8), width=1 / 4, input_bits=8)
    lehr.quantize_(model, weights=hard(), activations=hard(), rules={"layer2.*": "4bit", "layer3.*.add": "5bit"})
    return model


class Motion(nn.Module):
    """A convolution over time of measurements, which are rounded per channel."""

    def __init__(self) -> None:
        super().__init__()
        self.input = lehr.models.SignalInput((0.5, -2.0, 9.81), (1.0, 0.3, 4.0))
        self.layers = nn.Sequential(
            *(lehr.Conv1d(3, 8, 5, 2, bias=False, quantizer=hard()), nn.BatchNorm1d(8), hard(), nn.MaxPool1d(2)),
            *(lehr.Conv1d(8, 6, 3, bias=False, quantizer=hard()), nn.BatchNorm1d(6), hard(), nn.Flatten()),
        )
        self.head = linear(6 * 6, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layers(self.input(x)))


class Features(nn.Module):
    """Rows of a table: what prepares them is code of the user's, and a quantizer."""

    def __init__(self) -> None:
        super().__init__()
        self.mean = nn.Buffer(torch.linspace(-1, 1, 12))
        self.step = hard(lehr.MultiStep.uniform(4), 0.25)
        self.layers = nn.Sequential(linear(12, 16), nn.BatchNorm1d(16), hard(), linear(16, 1, bias=True))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(self.step((x - self.mean) / 1.7)).squeeze(1)


class Bytes(nn.Module):
    """Signed numbers of 8 bits, 20 channels that are treated alike."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(linear(20, 16), nn.BatchNorm1d(16), hard(), linear(16, 5))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x.float() / 64)


class Mask(nn.Module):
    """A class for each pixel, and a second output of another shape."""

    def __init__(self) -> None:
        super().__init__()
        self.input, self.stem, self.norm, self.step = Input(2), conv(2, 8), nn.BatchNorm2d(8), hard()
        self.mask, self.size = conv(8, 3, 1, bias=True), linear(8, 2)

    def forward(self, x: Tensor) -> Tensor | dict[str, Tensor]:
        x = self.step(self.norm(self.stem(self.input(x))))
        return self.mask(x)


class Both(Mask):
    def forward(self, x: Tensor) -> dict[str, Tensor]:
        x = self.step(self.norm(self.stem(self.input(x))))
        return {"mask": self.mask(x), "size": self.size(x.mean((2, 3)))}


class UNet(nn.Module):
    """Two levels: a transposed convolution and an upsampling up, the skips concatenated at other scales."""

    def __init__(self) -> None:
        super().__init__()
        self.input = Input(2)
        self.first, self.second, self.bottom = self.block(2, 6), self.block(6, 8, 0.5), self.block(8, 8, 2.0)
        self.up = lehr.ConvTranspose2d(8, 6, 3, 2, 1, 1, bias=False, quantizer=hard())
        self.up_step = nn.Sequential(nn.BatchNorm2d(6), hard())
        self.right, self.last = self.block(14, 6), self.block(12, 6)
        self.head = conv(6, 3, 1, bias=True)

    @staticmethod
    def block(inputs: int, outputs: int, scale: float = 1.0) -> nn.Sequential:
        return nn.Sequential(conv(inputs, outputs), nn.BatchNorm2d(outputs), hard(scale=scale))

    def forward(self, x: Tensor) -> Tensor:
        first = self.first(self.input(x))
        second = self.second(F.max_pool2d(first[:, :, 1:, 1:], 2, ceil_mode=True))
        x = self.up_step(self.up(self.bottom(F.max_pool2d(second, 2))))
        x = self.right(torch.cat([second, x], 1))
        return self.head(self.last(torch.cat([F.interpolate(x, scale_factor=2), first], 1)))


class Shuffled(nn.Module):
    """ShuffleNet's way: half of the channels go on as they are; slices, padding on one side, and a pixel shuffle."""

    def __init__(self) -> None:
        super().__init__()
        self.input, self.stem, self.norm, self.step = Input(2), conv(2, 8), nn.BatchNorm2d(8), hard()
        self.branch = nn.Sequential(conv(4, 4, groups=4), nn.BatchNorm2d(4), conv(4, 4, 1), nn.BatchNorm2d(4), hard())
        self.branch[1] = nn.Sequential(nn.BatchNorm2d(4), hard(UNEVEN))
        self.pad, self.strided, self.last = nn.ZeroPad2d((0, 1, 0, 1)), conv(8, 8, padding=0, stride=2), hard()
        self.mirrored = conv(6, 4, padding=1, padding_mode="reflect")
        self.wide = nn.PixelShuffle(2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.step(self.norm(self.stem(self.input(x))))
        a, b = x.chunk(2, dim=1)
        x = torch.cat((a, self.branch(b)), 1)
        images, channels, rows, columns = x.size()
        x = x.view(images, 2, channels // 2, rows, columns).transpose(1, 2).contiguous()
        x = x.view(images, -1, rows, columns)
        x = self.last(self.strided(self.pad(x)))
        return self.wide(self.mirrored(F.pad(x[:, 1:7, :, 1:].flip(1), (2, 2, 2, 2))))


class Waves(nn.Module):
    """All of it in one dimension."""

    def __init__(self) -> None:
        super().__init__()
        self.first = lehr.Conv1d(2, 6, 5, padding=2, padding_mode="circular", quantizer=hard())
        self.norm, self.step = nn.BatchNorm1d(6), hard()
        self.up = lehr.ConvTranspose1d(6, 8, 4, 3, 2, groups=2, bias=True, quantizer=hard(scale=0.5))
        self.norm_2, self.step_2 = nn.BatchNorm1d(8), hard()
        self.last = lehr.Conv1d(14, 4, 3, dilation=2, bias=False, quantizer=hard())
        self.pad, self.twice = nn.ConstantPad1d((3, 1), 0.0), nn.Upsample(scale_factor=2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.step(self.norm(self.first(x.float() * 0.25 - 3)))
        y = self.step_2(self.norm_2(self.up(x[:, :, ::2])))
        y = torch.cat([y[..., : x.size(2)], x], dim=1)
        y = self.last(self.pad(y).roll(1, 2))
        return torch.cat([self.twice(y), torch.stack([y, y], 2).flatten(2)], 2).transpose(1, 2)


EXACT: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "vgg": (vgg, (3, 9, 7)),
    "pool after norm": (pool_after_norm, (2, 9, 7)),
    "separable": (separable, (2, 9, 7)),
    "levels": (levels, (1, 9, 7)),
    "channel scales": (channel_scales, (2, 8, 8)),
    "residual": (Residual, (2, 9, 8)),
    "one dimension": (OneDimension, (2, 60)),
    "paper's vgg": (paper_vgg, (3, 8, 8)),
    "resnet": (small_resnet, (3, 8, 8)),
    "shuffled": (Shuffled, (2, 9, 8)),
    "waves": (Waves, (2, 20)),
    "u-net": (UNet, (2, 8, 12)),
}
OTHER_INPUTS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], torch.dtype]] = {
    "motion": (Motion, (3, 37), torch.float32),
    "features": (Features, (12,), torch.float32),
    "bytes": (Bytes, (20,), torch.int8),
}
INTEGERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = EXACT | {
    "averages": (averages, (2, 9, 7)),
    "other dimensions": (OtherDimensions, (2, 60)),
    "converted": (converted, (3, 9, 7)),
    "mask": (Mask, (2, 9, 7)),
    "gated": (Gated, (2, 8, 7)),
}
FLOATS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "float branches": (FloatBranches, (3, 9, 7)),
    "float shortcuts": (FloatShortcuts, (2, 9, 7)),
}
NETWORKS = INTEGERS | FLOATS


@cache
def trained(name: str) -> tuple[nn.Module, Tensor]:
    """The network in eval mode, with weights and statistics as training might leave them, and 64 images."""
    build, shape, *dtype = (NETWORKS | OTHER_INPUTS)[name]
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(sum(map(ord, name)))
        model = build()
        brightness = torch.rand(64, shape[0], *[1] * (len(shape) - 1))
        images = (brightness * torch.randint(0, 256, (64, *shape))).to(torch.uint8)
        if dtype == [torch.int8]:
            images = torch.randint(-128, 128, (64, *shape), dtype=torch.int8)
        elif dtype == [torch.float32]:
            images = 6 * torch.randn(64, *shape)
        model.train()
        for module in model.modules():
            if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
                module.weight.normal_().add_(0.5 * module.weight.sign())
                module.weight[::5] = 0.0
                module.bias.normal_()
                module.momentum = 0.9
        for _ in range(3):
            model(images)
        return model.eval(), images


@cache
def frozen(name: str) -> IntegerNet:
    model, images = trained(name)
    return freeze(model, images)


def batch(name: str) -> Tensor:
    """What the network takes."""
    return trained(name)[1]
