"""Theorems 2 and 3, measured on a multi-step function under noise and on a network of them.

Theorem 2: E[σ(x + ν)] is as smooth as the density f of the noise allows (`regularity`)::

    no density (Dirac)                 a step function, not continuous
    f of bounded variation (Uniform)   Lipschitz; the derivative Σ_k δq_k f(x - θ_k) jumps where f does
    f weakly differentiable (others)   continuously differentiable

and its Lipschitz constant is at most (q_K - q_0) |Df|(ℝ)/2. (The paper prints E[Dσ_ν] in (iii): it is E[σ_ν] that is
Lipschitz. Under uniform noise E[Dσ_ν] is not even continuous.)

Theorem 3: the layerwise expectations converge to the quantized network as the noise collapses (`collapse`), for
continuous layers, which multi-step functions are not. For those, convergence still holds if no argument of a quantizer
lies on a threshold; under noise of bounded width the limit is reached before the noise is 0, as soon as the noise
crosses no threshold (`margin`). On a threshold every symmetric noise tends to the middle of the jump (`limit`), not to
the upper level, σ(θ) with H(0) = 1.

>>> import torch, lehr
>>> regularity(lehr.MultiStep.ternary(), lehr.Uniform.half_width(0.25))
Regularity(continuous=True, differentiable=False, lipschitz=2.0, lipschitz_bound=4.0, slope_jump=2.0)
>>> limit(lehr.MultiStep.ternary(), torch.tensor([0.4, 0.5, 0.6]))
tensor([0.0000, 0.5000, 1.0000])
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from lehr import fast
from lehr.estimator import Mode
from lehr.expectation import expected_slope
from lehr.multistep import MultiStep
from lehr.noise import NEGLIGIBLE, Noise, Uniform
from lehr.quantizer import Quantizer


@dataclass(frozen=True)
class Regularity:
    """The smoothness of x -> E[σ(x + ν)]; `lipschitz` is its constant, `lipschitz_bound` that of Theorem 2 (iii)."""

    continuous: bool
    differentiable: bool
    lipschitz: float
    lipschitz_bound: float
    slope_jump: float


def regularity(step: MultiStep, noise: Noise) -> Regularity:
    """Return the smoothness under one of the noises of `lehr.noise`, by Theorem 2; infinities without noise."""
    if float(noise.std) <= NEGLIGIBLE:
        return Regularity(False, False, math.inf, math.inf, math.inf)
    jump = slope_jump(step, noise)
    bound = (step.levels[-1] - step.levels[0]) * total_variation(noise) / 2
    return Regularity(True, jump == 0, lipschitz(step, noise), bound, jump)


def lipschitz(step: MultiStep, noise: Noise) -> float:
    """Return the Lipschitz constant of x -> E[σ(x + ν)], the supremum of its slope; infinite without noise.

    Theorem 2 (iii) bounds it by at most Σ_k δq_k sup f; this is the constant itself. The search evaluates the slope on
    a grid around each threshold and refines the grid around the best points.

    >>> from lehr import MultiStep, Uniform
    >>> lipschitz(MultiStep.ternary(), Uniform.half_width(0.5)), lipschitz(MultiStep.ternary(), Uniform.half_width(1))
    (1.0, 1.0)
    """
    if isinstance(noise.std, Tensor) and noise.std.numel() > 1:
        raise ValueError(f"a Lipschitz constant needs one std, got {tuple(noise.std.shape)} of them")
    std = float(noise.std)
    if std <= NEGLIGIBLE:
        return float("inf")
    noise = type(noise).trusted(std, 0.0)

    def steepest(points: Tensor) -> tuple[Tensor, Tensor]:  # the largest slope in each row, and its place
        slope, column = fast.blockwise(lambda x: expected_slope(x, step, noise), points).max(1, keepdim=True)
        return slope, points.gather(1, column)

    # Farther than 4 widths from all thresholds every density is convex, so the slope is largest at an end. The grid
    # includes the corners of the uniform and the triangular density.
    width = float(noise.w) if isinstance(noise, Uniform) else std * 6**0.5
    spacing = width / 64
    grid = torch.arange(-256, 257, dtype=torch.float64) * spacing
    slope, place = steepest(torch.tensor(step.thresholds, dtype=torch.float64)[:, None] + grid)
    while spacing > 1e-9 * width:
        finer, finer_place = steepest(place + torch.linspace(-spacing, spacing, 33, dtype=torch.float64))
        place = torch.where(finer > slope, finer_place, place)
        slope = torch.maximum(slope, finer)
        spacing /= 8
    return float(slope.max())


def derivative(step: MultiStep, noise: Noise, x: Tensor) -> Tensor:
    """Return d/dx E[σ(x + ν)] = Σ_k δq_k f(x - θ_k), Theorem 2 (ii); 0 without noise.

    Args:
        step: the multi-step function σ.
        noise: the noise ν.
        x: where to evaluate it.
    """
    if float(noise.std) <= NEGLIGIBLE:
        return torch.zeros_like(x)
    return expected_slope(x + noise.mean, step, noise.trusted(noise.std, 0.0))


def total_variation(noise: Noise) -> float:
    """Return |Df|(ℝ), which is twice the peak for a density that rises to its mean and falls again."""
    if float(noise.std) <= NEGLIGIBLE:
        return math.inf
    return 2 * float(noise.pdf(torch.tensor(float(noise.mean), dtype=torch.float64)))


def slope_jump(step: MultiStep, noise: Noise) -> float:
    """Return the largest jump of the derivative; 0 if it is continuous, as under every noise but the uniform one.

    Under uniform noise of half-width w the slope rises by δq_k/2w at θ_k - w and falls by as much at θ_k + w; where one
    window ends and another begins, the two changes add up.
    """
    if float(noise.std) <= NEGLIGIBLE:
        return math.inf
    if not isinstance(noise, Uniform):
        return 0.0
    width = float(noise.w)
    ends = [
        (t + s * width, -s * q / (2 * width)) for t, q in zip(step.thresholds, step.jumps, strict=True) for s in (-1, 1)
    ]
    ends.sort()
    jumps, place = [0.0], ends[0][0]
    for end, change in ends:
        if end - place > 1e-6 * width:  # farther apart than rounding explains
            jumps.append(0.0)
        jumps[-1] += change
        place = end
    return max(map(abs, jumps))


def limit(step: MultiStep, x: Tensor) -> Tensor:
    """Return lim E[σ(x + ν)] as a symmetric noise collapses: the middle of the jump at a threshold, else σ(x)."""
    y = step(x)
    for threshold, (below, above) in zip(step.thresholds, itertools.pairwise(step.levels), strict=True):
        y = torch.where(x == threshold, (below + above) / 2, y)
    return y


@dataclass(frozen=True)
class Collapse:
    """The distance between the network under noise and the quantized network, at each std.

    `largest` and `mean` are over all outputs and inputs; `agreement` is the share of inputs that both put in one class.
    """

    stds: tuple[float, ...]
    largest: tuple[float, ...]
    mean: tuple[float, ...]
    agreement: tuple[float, ...]


def collapse(model: nn.Module, x: Tensor, kind: type[Noise], stds: Sequence[float]) -> Collapse:
    """Measure Theorem 3: compare `model` with every quantizer under noise to the model without noise.

    As in Algorithm 1's inference, each layer takes an expectation (of weights and activations). The model is restored.

    Args:
        model: the quantized network.
        x: its inputs.
        kind: the kind of noise.
        stds: the standard deviations to measure.
    """
    largest, mean, agreement = [], [], []
    with torch.no_grad(), _evaluating(model):
        hard = model(x)
        for std in stds:
            with _under(model, kind(std)):
                soft = model(x)
            gap = (soft - hard).abs()
            largest.append(gap.max().item())
            mean.append(gap.mean().item())
            agreement.append((soft.argmax(-1) == hard.argmax(-1)).double().mean().item())
    return Collapse(tuple(stds), tuple(largest), tuple(mean), tuple(agreement))


def margin(model: nn.Module, x: Tensor) -> float:
    """Return the least distance of a quantizer's argument from a threshold, in units of the scale, at the inputs `x`.

    Noise of a smaller half-width crosses no threshold and does not change the output: bit for bit if sums of the levels
    are exact, as of 1, 0 and -1, else up to rounding.
    """
    least = math.inf

    def measure(quantizer: nn.Module, arguments: tuple[Tensor]) -> None:
        nonlocal least
        assert isinstance(quantizer, Quantizer)
        u = arguments[0] if quantizer.scale is None else arguments[0] / quantizer.scale
        for threshold in quantizer.step.thresholds:
            least = min(least, (u - threshold).abs().min().item())

    hooks = [quantizer.register_forward_pre_hook(measure) for quantizer in _quantizers(model)]
    try:
        with torch.no_grad(), _evaluating(model):
            model(x)
    finally:
        for hook in hooks:
            hook.remove()
    return least


def _quantizers(model: nn.Module) -> list[Quantizer]:
    found = [module for module in model.modules() if isinstance(module, Quantizer)]
    if not found:
        raise ValueError(f"this {type(model).__name__} has no quantizer: convert it with lehr.quantize_ first")
    return found


@contextlib.contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes.items():
            module.training = mode


@contextlib.contextmanager
def _under(model: nn.Module, noise: Noise) -> Iterator[None]:
    """Put every quantizer, and nothing else, in training mode under this forward noise inside the block."""
    quantizers = _quantizers(model)
    before: list[tuple[type[Noise], Tensor, Tensor | None, Mode]]
    before = [(q.forward_kind, q.forward_std, q.forward_mean, q.mode) for q in quantizers]
    try:
        for q in quantizers:
            q.training, q.mode = True, "expectation"
            q.forward_kind, q.forward_mean = type(noise), None
            q.forward_std = torch.full_like(q.forward_std, float(noise.std))
        yield
    finally:
        for q, (kind, std, mean, mode) in zip(quantizers, before, strict=True):
            q.training, q.mode, q.forward_kind, q.forward_std, q.forward_mean = False, mode, kind, std, mean
