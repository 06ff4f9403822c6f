"""Learned Step Size Quantization (Esser et al., ICLR 2020): uniform levels whose step is a parameter.

With Q_N and Q_P levels below and above 0 and the step s, a value is v̂ = s round(clip(v/s, -Q_N, Q_P)) (eq. 1, 2). The
paper's gradients are those of lehr's estimator: rounding is a multi-step function, with its gradient under uniform
noise of half a level; s outside it is differentiated by the product rule (eq. 3 and 5)::

    dv̂/ds = round(v/s) - v/s  between -Q_N and Q_P,  -Q_N below,  Q_P above;      dv̂/dv = 1 between,  0 outside

The gradient of s is multiplied by g = 1/√(N Q_P), where N is the number of weights of the layer, or of features of an
image (Section 2.2). A step starts at 2 E|v|/√Q_P (Section 2.1), computed from the initial weights. For activations
E|v| = 1/√(2π), that of max(v, 0) for normal v, as after BatchNorm; the paper uses the first batch.

Weights are signed, Q_N = 2^(bits-1) and Q_P = Q_N - 1; activations unsigned, Q_N = 0 and Q_P = 2^bits - 1, so that the
quantizer replaces the ReLU. The weights of the first and last layer, and the last layer's input, have `end_bits`
(Section 2.3: 8).

>>> import torch
>>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 8), torch.nn.Linear(8, 2))
>>> print(LSQ(bits=2).convert_(model))
module  was     now          levels  why
0       Linear  Linear          256
1       ReLU    LearnedStep       4
2       Linear  Linear            4
3       Linear  Linear          256
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Collection
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from lehr.algorithms.algorithm import Algorithm, quantized_layers
from lehr.algorithms.description import Description, becomes
from lehr.algorithms.learned_scale import LearnedScale
from lehr.convert import Conversion, quantize_
from lehr.estimator import ste
from lehr.expectation import quantize
from lehr.multistep import MultiStep
from lehr.quantizer import AbstractQuantizer

_NORMAL_RELU = 1 / math.sqrt(2 * math.pi)  # E max(v, 0), v normal


class LearnedStep(AbstractQuantizer):
    """s round(clip(x/s)) with a learned s, `scale`; for weights (`signed`) or activations."""

    def __init__(self, bits: int, *, signed: bool) -> None:
        super().__init__()
        self.signed = signed
        self.learned = LearnedScale()
        self.set_bits_(bits)

    def set_bits_(self, bits: int) -> None:
        """Set the number of bits, and the initial step for activations."""
        self.step = MultiStep.uniform(bits, self.signed)
        self.start_(torch.tensor(_NORMAL_RELU))

    @property
    def scale(self) -> Tensor:  # pyright: ignore[reportIncompatibleVariableOverride] - nobody sets it
        """The present step."""
        return self.learned.value

    def start_(self, size: Tensor) -> None:
        """Set the initial step for values of this mean size."""
        self.learned.start_(2 * size / math.sqrt(self.levels[-1]))

    def forward(self, x: Tensor) -> Tensor:
        """Quantize."""
        count = x.numel() if self.signed else x[0].numel()
        scale = self.learned(1 / math.sqrt(count * self.levels[-1]))
        return quantize(x, ste(self.step, half_width=0.5), scale=scale)

    def extra_repr(self) -> str:
        """Return levels and present step."""
        return f"{len(self.levels)} levels from {self.levels[0]:g}, step={self.scale:.4g}"


@dataclass(frozen=True)
class LSQ(Algorithm):
    """Weights and activations of a few bits with learned steps.

    The input of the first layer is not changed, since images have 8 bits.

    Args:
        bits: of weights and activations.
        end_bits: of the weights of the first and last layer, and of the last layer's input.
    """

    bits: int = 2
    end_bits: int = 8

    def __post_init__(self) -> None:
        for name in ("bits", "end_bits"):
            if not 2 <= getattr(self, name) <= 8:
                raise ValueError(f"{name} must be between 2 and 8, got {getattr(self, name)}")

    def describe(self) -> Description:
        """Return its row of a table."""
        return Description(
            "LSQ",
            weights=f"{self.bits} bit",
            activations=f"{self.bits} bit",
            end_layers=f"both, {self.end_bits} bit",
            estimator="straight-through within the levels; the step is learned",
            becomes=becomes(weights=True, activations=True),
        )

    def convert_(self, model: nn.Module, *, trained: bool = False) -> Conversion:
        """Quantize weights and activations; the shadow weights are kept."""
        conversion = quantize_(
            model,
            weights=LearnedStep(self.bits, signed=True),
            activations=LearnedStep(self.bits, signed=False),
            scale="fixed",
            sums=None,  # the paper quantizes no sums
        )
        layers = dict(quantized_layers(model))
        ends = {next(iter(layers)), next(reversed(layers))}
        read = _read_by_last(conversion, layers)
        for path in ends | read:
            module = layers[path].quantizer if path in ends else model.get_submodule(path)
            assert isinstance(module, LearnedStep)
            module.set_bits_(self.end_bits)
        for layer in layers.values():
            assert isinstance(layer.quantizer, LearnedStep)
            layer.quantizer.start_(layer.weight.abs().mean())
        changes = (
            dataclasses.replace(change, levels=2**self.end_bits) if change.module in ends | read else change
            for change in conversion.changes
        )
        return Conversion(tuple(changes))

    def after_step_(self, model: nn.Module) -> None:
        """Keep the steps positive."""
        for module in model.modules():
            if isinstance(module, LearnedScale):
                module.keep_positive_()


def _read_by_last(conversion: Conversion, layers: Collection[str]) -> set[str]:
    """Return the paths of the activations between the last two layers."""
    backwards = itertools.dropwhile(lambda change: change.module not in layers, reversed(conversion.changes))
    next(backwards)
    between = itertools.takewhile(lambda change: change.module not in layers, backwards)
    return {change.module for change in between if change.now == LearnedStep.__name__}
