"""XNOR-Net (Rastegari et al., ECCV 2016; arXiv 1603.05279): binary weights and inputs, each with a scale.

A filter W of n weights is approximated by α B with B = sign(W) (eq. 4) and α = |W|_1 / n (eq. 6). A convolution
binarizes its input I, and each output position gets the scale of the inputs it sees (Section 3.2, eq. 11)::

    I * W ~ (sign(I) * sign(W)) ⊙ K α,    K = A * k,    A = mean over channels of |I|,    k = 1 / (width height)

so that K is the mean of |I| under the filter; for a fully connected layer it is the number mean |I| (eq. 10). A block
is BatchNorm - binarize - convolve - pool (Section 3.2, Fig. 3): a pool after an activation is moved directly after the
layer before it. The first and the last layer stay in full precision. The weight's gradient includes that of its scale
(Section 3.1), with 1 on [-1, 1] as the derivative of sign::

    ∂C/∂W_i = ∂C/∂W̃_i (1/n + α ∂sign/∂W_i)

which keeps of the derivative of α only the effect of W_i on W̃_i.

K is a float at every position, so a network with it cannot run as integers. With `input_scale=False`, as in the
authors' published code, there is no K, and the network between its ends runs as integers.

>>> import torch, lehr
>>> model = lehr.models.MLP((1, 8, 8), hidden=(64, 64))
>>> print(XNORNet().convert_(model))
module    was     now                levels  why
layers.1  Linear  kept                       first layer
layers.3  ReLU    Identity                   binarized in layers.4
layers.4  Linear  InputScaledLinear       2
layers.6  ReLU    kept                       its layer stays
layers.7  Linear  kept                       last layer
"""

from __future__ import annotations

import abc
import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from lehr.algorithms.algorithm import Algorithm, quantized_layers
from lehr.algorithms.description import Description
from lehr.algorithms.sequence import LAYERS, QUANTIZED, Block, become_, inner_blocks, reporter
from lehr.convert import Conversion
from lehr.estimator import STE
from lehr.expectation import quantize
from lehr.layers import Conv1d, Conv2d, Conv3d, Linear
from lehr.multistep import MultiStep
from lehr.quantizer import AbstractQuantizer, Quantizer, gradient_of

_SIGN = MultiStep.sign()
_POOLS = (
    nn.modules.pooling._MaxPoolNd,
    nn.modules.pooling._AvgPoolNd,
    nn.modules.pooling._AdaptiveAvgPoolNd,
    nn.modules.pooling._AdaptiveMaxPoolNd,
)


class ScaledSign(AbstractQuantizer):
    """α sign(w) with α = mean |w| of each filter in `scale`; call `fit_` after each change of the weights.

    The gradient is that of Section 3.1, or with `straight_through` the identity.
    """

    scale: Tensor  # pyright: ignore[reportIncompatibleVariableOverride]

    def __init__(self, weight: Tensor, *, straight_through: bool = False) -> None:
        super().__init__()
        self.step = _SIGN
        self.straight_through = straight_through
        self.register_buffer("scale", weight.new_empty(len(weight), *[1] * (weight.ndim - 1)))
        self.fit_(weight)

    @torch.no_grad()
    def fit_(self, weight: Tensor) -> None:
        """Set the scale by eq. 6; to a tiny positive number for a filter that is all 0, to allow division by it."""
        scale = weight.abs().flatten(1).mean(1).clamp_min(torch.finfo(weight.dtype).tiny)
        self.scale.copy_(scale.reshape(self.scale.shape))

    def forward(self, x: Tensor) -> Tensor:
        """Return α sign(x)."""
        if self.straight_through:
            return self.scale * self.step(x) + gradient_of(x)
        return self.scale * quantize(x, STE) + gradient_of(x) / x[0].numel()

    def extra_repr(self) -> str:
        """Return the levels, and the gradient if it is not XNOR-Net's."""
        return f"{self.step}, scale of each filter" + (", straight through" if self.straight_through else "")


class _InputScaled(nn.Module, abc.ABC):
    """The common part of the layers below: they binarize their input and multiply by its scale."""

    activation: Quantizer
    quantizer: AbstractQuantizer
    weight: Tensor
    bias: Tensor | None
    not_integer = (
        "its input scale K is a float for each position, which no integer network computes",
        "train with XNORNet(input_scale=False)",
    )

    def forward(self, input: Tensor) -> Tensor:
        """Return the output by eq. 11."""
        sums = self._sums(self.activation(input), self.quantizer(self.weight)) * self._input_scale(input)
        return sums if self.bias is None else sums + self.bias.reshape(-1, *[1] * (self.weight.ndim - 2))

    @abc.abstractmethod
    def _sums(self, input: Tensor, weight: Tensor) -> Tensor:
        """Return the layer's output without its bias."""

    @abc.abstractmethod
    def _input_scale(self, input: Tensor) -> Tensor:
        """Return K, the factor of those sums."""


class InputScaledLinear(_InputScaled, Linear):
    """`lehr.Linear` of a binarized input, with its scale."""

    def _sums(self, input: Tensor, weight: Tensor) -> Tensor:
        return nn.functional.linear(input, weight)

    def _input_scale(self, input: Tensor) -> Tensor:
        return input.abs().mean(-1, keepdim=True)


class _InputScaledConv(_InputScaled, nn.modules.conv._ConvNd):
    def _sums(self, input: Tensor, weight: Tensor) -> Tensor:
        return self._conv_forward(input, weight, None)  # pyright: ignore[reportAttributeAccessIssue]

    def _input_scale(self, input: Tensor) -> Tensor:
        # One map for each group of channels.
        size = tuple(self.weight.shape[2:])
        magnitude = input.abs().unflatten(1, (self.groups, -1)).mean(2)
        box = input.new_full((self.groups, 1, *size), 1 / math.prod(size))
        scale = self._sums(magnitude, box)
        return scale if self.groups == 1 else scale.repeat_interleave(self.out_channels // self.groups, 1)


class InputScaledConv1d(_InputScaledConv, Conv1d):
    """`lehr.Conv1d` of a binarized input, with its scale map."""


class InputScaledConv2d(_InputScaledConv, Conv2d):
    """`lehr.Conv2d` of a binarized input, with its scale map."""


class InputScaledConv3d(_InputScaledConv, Conv3d):
    """`lehr.Conv3d` of a binarized input, with its scale map."""


_INPUT_SCALED: dict[type[nn.Module], type[nn.Module]] = dict(
    zip(LAYERS, (InputScaledLinear, InputScaledConv1d, InputScaledConv2d, InputScaledConv3d), strict=True)
)


@dataclass(frozen=True)
class XNORNet(Algorithm):
    """Binary weights with a scale for each filter, binary inputs with a scale map; the ends stay in full precision.

    Args:
        input_scale: use K; without it the network runs as integers between its ends.
    """

    input_scale: bool = True

    def describe(self) -> Description:
        """Return its row of a table."""
        return Description(
            "XNOR-Net",
            "" if self.input_scale else "no input scale",
            "-α, α",
            "-K, K" if self.input_scale else "-1, 1",
            "neither",
            estimator="STE, and the gradient of the scale α (Section 3.1)",
            becomes="floats: K is a float at each position" if self.input_scale else "integers between float ends",
        )

    def convert_(self, model: nn.Module, *, trained: bool = False) -> Conversion:
        """Binarize the inner layers of a sequential model and their inputs; the shadow weights are kept."""
        blocks = inner_blocks(model, "XNOR-Net")
        report = reporter(model, blocks)
        for block in blocks:
            _check_normalised(block)
            _pool_first_(block)
        for block in blocks:
            layer = block.layer.module
            assert isinstance(layer.weight, Tensor)
            sign = Quantizer(STE)
            if self.input_scale:
                block.activation.put(nn.Identity())
                become_(layer, _INPUT_SCALED)
                layer.activation = sign.train(layer.training)
            else:
                block.activation.put(sign)
                become_(layer, QUANTIZED)
            layer.quantizer = ScaledSign(layer.weight).train(layer.training)
        notes = {block.activation.path: f"binarized in {block.layer.path}" for block in blocks}
        return report(notes if self.input_scale else {})

    def after_step_(self, model: nn.Module) -> None:
        """Fit the scales to the new weights."""
        fit_scales_(model)


def fit_scales_(model: nn.Module) -> None:
    """Fit the scale of every `ScaledSign` to its weights, by eq. 6."""
    for _, layer in quantized_layers(model):
        if isinstance(layer.quantizer, ScaledSign):
            layer.quantizer.fit_(layer.weight)


def _check_normalised(block: Block) -> None:
    before = block.between[: block.between.index(block.activation)]
    if not any(isinstance(place.module, _BatchNorm) for place in before):
        raise ValueError(
            f"a block of XNOR-Net is BatchNorm - binarize - convolve - pool, but there is no BatchNorm before "
            f"{block.activation.path}, which the binarization replaces: add one"
        )


def _pool_first_(block: Block) -> None:
    """Move the pools after a block's activation directly after the layer before it, under their old names."""
    behind = block.between[block.between.index(block.activation) + 1 :]
    pools = [place for place in behind if isinstance(place.module, _POOLS)]
    if not pools:
        return
    parent = block.activation.parent
    for place in pools:
        if place.parent is not parent or not isinstance(parent, nn.Sequential):
            raise ValueError(
                f"a block of XNOR-Net is BatchNorm - binarize - convolve - pool, but {place.path} pools after "
                f"{block.activation.path} and cannot be moved: put both into one nn.Sequential, or pool first"
            )
    start = next(place.name for place in block.between if place.parent is parent)
    late = [place.name for place in pools]
    names = list(parent._modules)
    for name in (*late, *(name for name in names[names.index(start) :] if name not in late)):
        parent.add_module(name, parent._modules.pop(name))  # moves it to the end
