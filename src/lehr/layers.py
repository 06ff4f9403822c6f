"""Layers whose weights pass through a quantizer.

Parameters keep torch's names, `weight` and `bias`, so that full-precision checkpoints load.

>>> import torch, lehr
>>> layer = lehr.Linear(64, 10)
>>> layer
Linear(
  in_features=64, out_features=10, bias=True
  (quantizer): Quantizer((-1, 0, 1) at (-0.5, 0.5), forward=Uniform(std=0.2887), backward=Uniform(std=0.2887))
)
>>> sorted(layer.eval().quantized_weight.unique().tolist())
[-1.0, 0.0, 1.0]
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from lehr import fast_linear
from lehr.quantizer import AbstractQuantizer, Quantizer


class QuantizedWeight(nn.Module):
    """What layers with quantized weights share: a weight that passes through a quantizer into the computation.

    A layer that reads what no activation has quantized may have a module `input_quantizer` besides (`quantize_`).
    """

    weight: Tensor
    bias: Tensor | None
    quantizer: AbstractQuantizer
    # Of a subclass with a forward of its own: why `freeze` cannot convert it, and what to do.
    not_integer: ClassVar[tuple[str, str] | None] = None
    # The dimension of the weight that has the output channels (of one group, where a group has its own).
    outputs_at: ClassVar[int] = 0

    @property
    def quantized_weight(self) -> Tensor:
        """The weight the layer computes with: its quantizer's scale times levels."""
        return self.quantizer(self.weight)

    def quantized_input(self, x: Tensor) -> Tensor:
        """The input the layer computes with."""
        quantizer = self._modules.get("input_quantizer")
        return x if quantizer is None else quantizer(x)

    def _forward(self, product: Callable[[Tensor, Tensor | None], Tensor], space: int) -> Tensor:
        """`product(weight, bias)`, which has `space` dimensions behind the channels, of the quantized weight.

        In eval mode the levels are summed and the scale multiplies their sums. Levels and quantized activations are
        integers times a power of two, so these sums are exact whatever order a library adds in: the reason why a
        frozen network equals the trained one on every machine.
        """
        scale = self.quantizer.scale
        one_an_output = scale is not None and scale.ndim == space + 2 and scale.numel() == scale.shape[self.outputs_at]
        if self.training or not (scale is None or scale.numel() == 1 or one_an_output):
            return product(self.quantizer(self.weight), self.bias)
        sums = product(self.quantizer.unscaled(self.weight), None)
        if scale is not None:
            repeats = sums.shape[-space - 1] // scale.numel() if one_an_output else 1  # once for each group
            sums = sums * scale.to(sums.dtype).reshape(-1).repeat(repeats).reshape(-1, *[1] * space)
        return sums if self.bias is None else sums + self.bias.to(sums.dtype).reshape(-1, *[1] * space)

    def reset_parameters(self) -> None:
        """Bias as torch initialises it, weights uniformly around the thresholds."""
        super().reset_parameters()  # pyright: ignore[reportAttributeAccessIssue]
        if "quantizer" in self._modules:  # torch's own constructor calls this before there is one
            around_thresholds_(self.weight, self.quantizer)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any) -> None:
        """A full-precision checkpoint has weights and no scale: the one there is was fitted to others."""
        own = any(key.startswith(f"{prefix}quantizer.") for key in state_dict)
        if f"{prefix}weight" in state_dict and not own and self.quantizer.scale is not None:
            warnings.warn(
                "full-precision weights are loaded into quantized layers, whose scales were fitted to other weights: "
                "load them before quantize_",
                stacklevel=2,
            )
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)


class Linear(QuantizedWeight, nn.Linear):
    """`torch.nn.Linear` with quantized weights; `quantizer` is the paper's ternary one unless given."""

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        quantizer: AbstractQuantizer | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        nn.Linear.__init__(self, in_features, out_features, bias, device=device, dtype=dtype)
        self.quantizer = Quantizer() if quantizer is None else quantizer
        self.reset_parameters()

    def forward(self, input: Tensor) -> Tensor:
        """The affine map of eq. 5."""
        x = self.quantized_input(input)
        y = self._by_rows(x)
        if y is not None:
            return y
        return self._forward(lambda weight, bias: nn.functional.linear(x, weight, bias), space=0)

    def _by_rows(self, x: Tensor) -> Tensor | None:
        """The same of a large weight, faster; None where it does not apply, or hooks want the quantized weight."""
        quantizer = self.quantizer
        if not (self.training and fast_linear.is_worthwhile(x, self.weight)) or type(quantizer) is not Quantizer:
            return None
        if quantizer.scale is not None or quantizer._forward_hooks or quantizer._forward_pre_hooks:
            return None
        return fast_linear.linear(x, self.weight, self.bias, quantizer.estimator)


class _Conv(QuantizedWeight, nn.modules.conv._ConvNd):
    """A convolution of any dimension: the arguments are torch's, torch's own classes do the convolving."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | tuple[int, ...],
        stride: int | tuple[int, ...] = 1,
        padding: int | tuple[int, ...] | str = 0,
        dilation: int | tuple[int, ...] = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: str = "zeros",
        *,
        quantizer: AbstractQuantizer | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        shape = (in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias, padding_mode)
        super().__init__(*shape, device=device, dtype=dtype)  # pyright: ignore[reportArgumentType, reportCallIssue]
        self.quantizer = Quantizer() if quantizer is None else quantizer
        self.reset_parameters()

    def forward(self, input: Tensor) -> Tensor:
        """The convolution of eq. 5."""
        conv: Any = self._conv_forward
        x = self.quantized_input(input)
        return self._forward(lambda weight, bias: conv(x, weight, bias), space=len(self.kernel_size))


class Conv1d(_Conv, nn.Conv1d):
    """`torch.nn.Conv1d` with quantized weights."""


class Conv2d(_Conv, nn.Conv2d):
    """`torch.nn.Conv2d` with quantized weights."""


class Conv3d(_Conv, nn.Conv3d):
    """`torch.nn.Conv3d` with quantized weights."""


@torch.no_grad()
def around_thresholds_(
    weight: Tensor, quantizer: AbstractQuantizer, generator: torch.Generator | None = None
) -> Tensor:
    """Initialise as the paper does: each weight at a threshold picked at random, plus U[-1/√fan_in, 1/√fan_in].

    There a small step changes a weight's level; in the middle of a level it would not.
    """
    if not weight.numel():
        return weight
    reach = 1 / math.sqrt(weight[0].numel())
    picked = torch.randint(len(quantizer.step.thresholds), weight.shape, generator=generator, device=weight.device)
    thresholds = torch.tensor(quantizer.step.thresholds, dtype=weight.dtype, device=weight.device)
    weight.uniform_(-reach, reach, generator=generator).add_(thresholds[picked])
    return weight if quantizer.scale is None else weight.mul_(quantizer.scale)
