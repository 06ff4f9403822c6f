"""Transposed convolutions with quantized weights, for decoders and U-Nets.

The weight of a transposed convolution is (in, out / groups, *kernel), so its output channels are the second dimension:
one scale for each of them has the shape (1, out / groups, *1).

>>> import torch, lehr
>>> layer = ConvTranspose2d(4, 8, kernel_size=2, stride=2).eval()
>>> layer(torch.zeros(1, 4, 5, 5)).shape
torch.Size([1, 8, 10, 10])
>>> sorted(layer.quantized_weight.unique().tolist())
[-1.0, 0.0, 1.0]
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lehr.layers import QuantizedWeight
from lehr.quantizer import AbstractQuantizer, Quantizer

_FUNCTIONS: tuple[Any, ...] = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)


class _ConvTranspose(QuantizedWeight, nn.modules.conv._ConvTransposeNd):
    """A transposed convolution of any dimension; the arguments are torch's."""

    outputs_at = 1

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | tuple[int, ...],
        stride: int | tuple[int, ...] = 1,
        padding: int | tuple[int, ...] = 0,
        output_padding: int | tuple[int, ...] = 0,
        groups: int = 1,
        bias: bool = True,
        dilation: int | tuple[int, ...] = 1,
        padding_mode: str = "zeros",
        *,
        quantizer: AbstractQuantizer | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        windows = (in_channels, out_channels, kernel_size, stride, padding, output_padding)
        rest = (groups, bias, dilation, padding_mode)
        super().__init__(*windows, *rest, device=device, dtype=dtype)  # pyright: ignore[reportArgumentType, reportCallIssue]
        self.quantizer = Quantizer() if quantizer is None else quantizer
        self.reset_parameters()

    def forward(self, input: Tensor, output_size: list[int] | None = None) -> Tensor:
        """The transposed convolution; `output_size` chooses among the sizes that a stride leaves open, as in torch."""
        input, space = self.quantized_input(input), len(self.kernel_size)
        find_padding: Any = self._output_padding
        added = find_padding(input, output_size, self.stride, self.padding, self.kernel_size, space, self.dilation)

        def product(weight: Tensor, bias: Tensor | None) -> Tensor:
            run = _FUNCTIONS[space - 1]
            return run(input, weight, bias, self.stride, self.padding, added, self.groups, self.dilation)

        return self._forward(product, space)


class ConvTranspose1d(_ConvTranspose, nn.ConvTranspose1d):
    """`torch.nn.ConvTranspose1d` with quantized weights."""


class ConvTranspose2d(_ConvTranspose, nn.ConvTranspose2d):
    """`torch.nn.ConvTranspose2d` with quantized weights."""


class ConvTranspose3d(_ConvTranspose, nn.ConvTranspose3d):
    """`torch.nn.ConvTranspose3d` with quantized weights."""
