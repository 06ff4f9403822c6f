"""ABC-Net (Lin, Zhao and Pan, NIPS 2017; arXiv 1711.11294): sums of binary convolutions.

Weights (its Section 3.1): W ~ Σ_m α_m B_m with M binary bases, and scales that minimise |W - Σ_m α_m B_m|²::

    B_m = sign(W - mean(W) + u_m std(W)),    u_m = -1 + 2 (m - 1) / (M - 1)
    ∂C/∂W = Σ_m α_m ∂C/∂B_m                                                (straight through, α held)

Activations (Section 3.2): R ~ Σ_n β_n A_n with N binary activations, whose shifts v_n and scales β_n are learned::

    A_n = 2 H(h_n(R) - 1/2) - 1,    h_n(R) = clip(R + v_n, 0, 1)
    ∂C/∂R = Σ_n β_n ∂C/∂A_n where 0 <= R + v_n <= 1;                       the same, summed, for v_n

Then W * R ~ Σ_m Σ_n α_m β_n (B_m * A_n): a sum of M N binary convolutions. A convolution is linear, so training
computes one, of the two sums; `freeze` makes the M N. They are integers, but their scaled sum is a float, to which the
next layer applies its thresholds. The first and the last layer stay in full precision.

>>> import torch, lehr
>>> model = lehr.models.MLP((1, 8, 8), hidden=(64, 64))
>>> print(ABCNet(bases=3, activations=1).convert_(model))
module    was     now           levels  why
layers.1  Linear  kept                  first layer
layers.3  ReLU    Identity              binarized in layers.4
layers.4  Linear  ApproxLinear
layers.6  ReLU    kept                  its layer stays
layers.7  Linear  kept                  last layer
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Literal, cast

import torch
from torch import Tensor, nn

from lehr.algorithms.algorithm import Algorithm, check_choices
from lehr.algorithms.description import Description
from lehr.algorithms.sequence import LAYERS, QUANTIZED, Layer, become_, inner_blocks, reporter
from lehr.composed import Composed
from lehr.convert import Conversion
from lehr.estimator import ste
from lehr.expectation import quantize
from lehr.multistep import MultiStep
from lehr.noise import Dirac
from lehr.quantizer import Quantizer, gradient_of

_SIGN = MultiStep.sign()
_REACHED = ste(MultiStep.heaviside(), half_width=0.5)  # the derivative of h, centred
Scale = Literal["tensor", "channel"]


class _Approx(Composed):
    """The common part of the layers below: a weight in M binary bases, an input in N binary activations."""

    weight: Tensor
    bias: Tensor | None
    scales: Tensor  # α of the present weights, (M, out, 1, ...) or (M, 1, 1, ...)
    shifts: Tensor  # v, (N,)
    input_scales: Tensor  # β, (N,)
    per_channel: bool

    @torch.no_grad()
    def fit_(self) -> None:
        """Compute α for the present weights; call it after each change of them."""
        bases = self.bases()
        rows = self.weight.flatten(1) if self.per_channel else self.weight.reshape(1, -1)
        columns = bases.reshape(len(bases), len(rows), -1).permute(1, 2, 0).double()  # (row, weight, M)
        gram = columns.mT @ columns
        # If bases coincide, the pseudo-inverse divides their scale among them.
        solution = torch.linalg.pinv(gram, hermitian=True) @ (columns.mT @ rows.double()[..., None])
        self.scales.copy_(solution.squeeze(-1).T.reshape(self.scales.shape))

    @torch.no_grad()
    def bases(self) -> Tensor:
        """Return B_1 to B_M, stacked."""
        axes = tuple(range(1, self.weight.ndim)) if self.per_channel else tuple(range(self.weight.ndim))
        std, mean = torch.std_mean(self.weight, axes, correction=0, keepdim=True)
        return torch.stack([_SIGN(self.weight - mean + shift * std) for shift in _spread(len(self.scales))])

    def approximate_weight(self) -> Tensor:
        """Return Σ_m α_m B_m, with the gradient of the straight-through estimator."""
        value = (self.scales * self.bases()).sum(0)
        return value + self.scales.sum(0) * gradient_of(self.weight)

    def approximate_input(self, x: Tensor) -> Tensor:
        """Return Σ_n β_n A_n."""
        total = torch.zeros_like(x)
        for shift, scale in zip(self.shifts, self.input_scales, strict=True):
            # x >= 1/2 - v, exactly as in the deployed network.
            reached = quantize(x - (0.5 - shift), _REACHED)
            total = total + scale * (reached + (reached.detach() - 1))  # 2 H - 1, with the slope of H
        return total

    @torch.no_grad()
    def parts(self) -> nn.Module:
        """Return the sum of M N binary layers."""
        plain: list[nn.Module] = []
        for basis, scale in zip(self.bases(), self.scales, strict=True):
            layer = copy.deepcopy(self)
            for name in ("scales", "shifts", "input_scales"):
                delattr(layer, name)
            become_(layer, _QUANTIZED)
            layer.bias = None
            layer.weight = nn.Parameter(basis * torch.where(scale < 0, -1.0, 1.0))  # a quantizer's scale is positive
            size = scale.abs().clamp_min(torch.finfo(scale.dtype).tiny)
            layer.quantizer = Quantizer(_SIGN, Dirac(), Dirac(), scale=size if self.per_channel else size.item())
            plain.append(layer)
        steps = [
            Quantizer(MultiStep((threshold,), _SIGN.levels), Dirac(), Dirac())
            for threshold in (0.5 - self.shifts).tolist()
        ]
        return _BinarySum(steps, plain, self.input_scales.tolist(), self.bias)


class ApproxLinear(_Approx, nn.Linear):
    """`nn.Linear` as ABC-Net approximates it."""

    def forward(self, input: Tensor) -> Tensor:
        """Return the matrix product of both approximations."""
        return nn.functional.linear(self.approximate_input(input), self.approximate_weight(), self.bias)


class _ApproxConv(_Approx, nn.modules.conv._ConvNd):
    def forward(self, input: Tensor) -> Tensor:
        """Return the convolution of both approximations."""
        return self._conv_forward(self.approximate_input(input), self.approximate_weight(), self.bias)  # pyright: ignore[reportAttributeAccessIssue]


class ApproxConv1d(_ApproxConv, nn.Conv1d):
    """`nn.Conv1d` as ABC-Net approximates it."""


class ApproxConv2d(_ApproxConv, nn.Conv2d):
    """`nn.Conv2d` as ABC-Net approximates it."""


class ApproxConv3d(_ApproxConv, nn.Conv3d):
    """`nn.Conv3d` as ABC-Net approximates it."""


_KINDS = (ApproxLinear, ApproxConv1d, ApproxConv2d, ApproxConv3d)
_APPROX: dict[type[nn.Module], type[nn.Module]] = dict(zip(LAYERS, _KINDS, strict=True))
_QUANTIZED: dict[type[nn.Module], type[nn.Module]] = dict(zip(_KINDS, QUANTIZED.values(), strict=True))


class _BinarySum(nn.Module):
    """Σ_n β_n Σ_m layer_m(step_n(x)) + bias."""

    def __init__(
        self, steps: list[Quantizer], layers: list[nn.Module], input_scales: list[float], bias: Tensor | None
    ) -> None:
        super().__init__()
        self.steps, self.layers = nn.ModuleList(steps), nn.ModuleList(layers)
        self.input_scales = input_scales
        weight = cast("Layer", layers[0]).weight
        self.bias = None if bias is None else nn.Parameter(bias.reshape(-1, *[1] * (weight.ndim - 2)))

    def forward(self, x: Tensor) -> Tensor:
        """Return the sum."""
        binary = [step(x) for step in self.steps]
        first, *others = [
            layer(part) * scale for part, scale in zip(binary, self.input_scales, strict=True) for layer in self.layers
        ]
        for other in others:
            first = first + other
        return first if self.bias is None else first + self.bias


@dataclass(frozen=True)
class ABCNet(Algorithm):
    """Sums of binary layers.

    Args:
        bases: M, the binary bases of a weight.
        activations: N, the binary activations of an input.
        scale: fit bases and α to the weights of a layer ("tensor") or of each channel ("channel").
    """

    bases: int = 3
    activations: int = 3
    scale: Scale = "tensor"

    def __post_init__(self) -> None:
        check_choices(self)
        for name in ("bases", "activations"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")

    def describe(self) -> Description:
        """Return its row of a table."""
        return Description(
            "ABC-Net",
            weights=f"{self.bases} x binary",
            activations=f"{self.activations} x binary",
            end_layers="neither",
            estimator="straight-through for each base",
            becomes=f"{self.bases * self.activations} integer layers for each layer, added as floats",
        )

    @torch.no_grad()
    def convert_(self, model: nn.Module, *, trained: bool = False) -> Conversion:
        """Approximate the inner layers of a sequential model and their inputs; the weights are kept.

        The thresholds 1/2 - v_n start evenly spaced in [-1, 1], where most outputs of BatchNorm lie, and β_n at 1/N.
        """
        blocks = inner_blocks(model, "ABC-Net")
        report = reporter(model, blocks)
        for block in blocks:
            layer = block.layer.module
            become_(layer, _APPROX)
            assert isinstance(layer, _Approx)
            weight = layer.weight
            layer.per_channel = self.scale == "channel"
            rows = len(weight) if layer.per_channel else 1
            layer.register_buffer("scales", weight.new_empty(self.bases, rows, *[1] * (weight.ndim - 1)))
            layer.shifts = nn.Parameter(0.5 - weight.new_tensor(_spread(self.activations)))
            layer.input_scales = nn.Parameter(weight.new_full((self.activations,), 1 / self.activations))
            layer.fit_()
            block.activation.put(nn.Identity())
        return report({block.activation.path: f"binarized in {block.layer.path}" for block in blocks})

    def after_step_(self, model: nn.Module) -> None:
        """Fit the scales to the new weights."""
        for layer in model.modules():
            if isinstance(layer, _Approx):
                layer.fit_()


def _spread(count: int) -> list[float]:
    """Return `count` evenly spaced numbers in [-1, 1]; a single one is 0."""
    return [0.0] if count == 1 else [2 * index / (count - 1) - 1 for index in range(count)]
