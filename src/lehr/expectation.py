"""Theorem 2 as code: a multi-step function under noise, its value and its gradient.

With forward noise ν_f and backward noise ν_b, of distribution function F and density f about their means m::

    value     E[σ(x + ν_f)]      = q_0 + Σ_k δq_k F_f(x + m_f - θ_k)
    gradient  d/dx E[σ(x + ν_b)] =       Σ_k δq_k f_b(x + m_b - θ_k)

An estimator is nothing but these three values: a multi-step function, a forward noise, a backward noise.

    STE, BNN            sign      Dirac          Uniform.half_width(1)     (Corollary 1)
    ANA, synchronous    any       Uniform(s(t))  the same
    ANA, asynchronous   any       Uniform(s(t))  Uniform(s), constant

>>> import torch, lehr
>>> x = torch.tensor([-2.0, -0.5, 0.0, 0.5], requires_grad=True)
>>> y = lehr.quantize(x, lehr.MultiStep.sign(), forward=lehr.Dirac(), backward=lehr.Uniform.half_width(1))
>>> y.sum().backward()
>>> y.detach(), x.grad
(tensor([-1., -1.,  1.,  1.]), tensor([0., 1., 1., 1.]))
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, get_args

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from lehr.blockwise import BLOCK, blockwise
from lehr.multistep import MultiStep
from lehr.noise import Dirac, Noise, Number, collapse, known

Mode = Literal["expectation", "mode", "sample"]


def quantize(
    x: Tensor,
    step: MultiStep,
    forward: Noise | None = None,
    backward: Noise | None = None,
    mode: Mode = "expectation",
    *,
    generator: torch.Generator | None = None,
) -> Tensor:
    """σ under noise: its value under the `forward` noise, its gradient under the `backward` noise.

    `forward` is Dirac() (no noise) unless given, `backward` is the forward noise unless given. `mode` says what becomes
    of the forward noise: its "expectation"; the most probable level ("mode", the higher one of two equally probable);
    or a "sample", one draw of σ(x + ν) from `generator`. dtype and memory layout are those of `x`; only `x` is kept for
    the backward pass; no temporary grows with the number of levels.
    """
    forward = Dirac() if forward is None else forward
    backward = forward if backward is None else backward
    if mode not in get_args(Mode):
        raise ValueError(f"mode must be one of {', '.join(get_args(Mode))}, got {mode!r}")
    if not x.is_floating_point():
        raise TypeError(f"quantize needs a floating-point tensor, got {x.dtype}")
    return quantize_with(
        x,
        step,
        type(forward),
        forward.mean,
        forward.std,
        type(backward),
        backward.mean,
        backward.std,
        mode,
        generator,
    )


def quantize_with(
    x: Tensor,
    step: MultiStep,
    forward: type[Noise],
    forward_mean: Number,
    forward_std: Number,
    backward: type[Noise],
    backward_mean: Number,
    backward_std: Number,
    mode: Mode,
    generator: torch.Generator | None = None,
) -> Tensor:
    """`quantize` with its noises taken apart and trusted: what a layer calls, whose std is a tensor that changes."""
    # torch.compile takes no tensor twice: None stands for the forward noise's own.
    mean = None if backward_mean is forward_mean else backward_mean
    std = None if backward_std is forward_std else backward_std
    return _Quantize.apply(x, step, forward, forward_mean, forward_std, backward, mean, std, mode, generator)  # pyright: ignore[reportReturnType]


class _Quantize(torch.autograd.Function):
    """The only autograd function of lehr."""

    @staticmethod
    def forward(x, step, forward, forward_mean, forward_std, backward, backward_mean, backward_std, mode, generator):
        if mode == "sample":
            noisy = _draw(x, forward, forward_std, generator).add_(_shifted(x, forward_mean))
            return blockwise(step, noisy).to(x.dtype)
        formula = expected_value if mode == "expectation" else most_probable_level
        centred = _shifted(x, forward_mean)
        return collapse(
            forward_std,
            hard=lambda: blockwise(step, centred),
            smooth=lambda: _evaluate(formula, centred, step, forward, forward_std),
        )

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, ctx.step, _, forward_mean, forward_std, ctx.kind, mean, std, _, _ = inputs
        mean = forward_mean if mean is None else mean
        std = forward_std if std is None else std
        # Mean and deviation are saved if they are tensors; numbers ride along.
        ctx.numbers = [None if isinstance(value, Tensor) else value for value in (mean, std)]
        ctx.save_for_backward(x, *(value for value in (mean, std) if isinstance(value, Tensor)))

    @staticmethod
    @once_differentiable
    def backward(ctx, *grads):  # pyright: ignore[reportIncompatibleMethodOverride]
        (grad,), (x, *tensors) = grads, ctx.saved_tensors
        mean, std = (tensors.pop(0) if number is None else number for number in ctx.numbers)
        grad_x = collapse(
            std,
            hard=lambda: torch.zeros_like(x),
            smooth=lambda: _evaluate(expected_slope, _shifted(x, mean), ctx.step, ctx.kind, std, grad),
        )
        return grad_x, *[None] * 9


def expected_value(x: Tensor, step: MultiStep, kind: type[Noise], width: Number) -> Tensor:
    """q_0 + Σ_k δq_k F(x - θ_k), Theorem 2 (i)."""
    total = None
    for threshold, jump in zip(step.thresholds, step.jumps, strict=True):
        term = kind.centred_cdf(x - threshold, width)
        total = _accumulate(total, term, jump)
    assert total is not None  # a multi-step function has a threshold
    return total.add_(step.levels[0])


def expected_slope(x: Tensor, step: MultiStep, kind: type[Noise], width: Number, grad: Tensor | None = None) -> Tensor:
    """Σ_k δq_k f(x - θ_k), Theorem 2 (ii); times `grad` where the chain rule asks for it."""
    total = None
    for threshold, jump in zip(step.thresholds, step.jumps, strict=True):
        total = _accumulate(total, kind.centred_pdf(x - threshold, width), jump)
    assert total is not None
    return total if grad is None else total.mul_(grad)


def most_probable_level(x: Tensor, step: MultiStep, kind: type[Noise], width: Number) -> Tensor:
    """The level q_k with the largest P(σ(x + ν) = q_k) = F(x - θ_k) - F(x - θ_{k+1}); the higher one at a tie."""
    reached = kind.centred_cdf(x - step.thresholds[0], width)  # P(σ >= q_1)
    best, level = 1 - reached, torch.where(x.isnan(), x, step.levels[0])
    for threshold, candidate in zip((*step.thresholds[1:], None), step.levels[1:], strict=True):
        beyond = torch.zeros_like(x) if threshold is None else kind.centred_cdf(x - threshold, width)
        probability = reached - beyond
        level = torch.where(probability >= best, candidate, level)
        best, reached = torch.maximum(best, probability), beyond
    return level


def lipschitz(step: MultiStep, noise: Noise) -> float:
    """The Lipschitz constant of x -> E[σ(x + ν)], the supremum of its slope; infinite without noise.

    Where the paper's Theorem 2 (iii) bounds it (by Σ_k δq_k sup f at most), this is the constant itself: the slope is
    a sum of bumps, searched at its corners and, for smooth noises, refined around the best point of a fine grid.

    >>> from lehr import MultiStep, Uniform
    >>> lipschitz(MultiStep.ternary(), Uniform.half_width(0.5)), lipschitz(MultiStep.ternary(), Uniform.half_width(1))
    (1.0, 1.0)
    """
    std = float(noise.std)
    if std == 0:
        return float("inf")
    kind, width = type(noise), float(noise.width(std))
    thresholds = torch.tensor(step.thresholds, dtype=torch.float64)

    def highest(points: Tensor) -> tuple[float, float]:
        slopes = torch.cat([expected_slope(part, step, kind, width) for part in points.split(BLOCK)])
        best = int(slopes.argmax())
        return float(slopes[best]), float(points[best])

    # Around each threshold; farther away every noise only falls. The grid holds the corners -w, 0, w.
    spacing = width / 64
    offsets = torch.arange(-256, 257, dtype=torch.float64) * spacing
    slope, place = highest((thresholds[:, None] + offsets).flatten())
    while spacing > 1e-9 * width:  # halve the interval around the best point
        finer, finer_place = highest(place + torch.linspace(-spacing, spacing, 33, dtype=torch.float64))
        slope, place = max((slope, place), (finer, finer_place))
        spacing /= 8
    return slope


def _evaluate(
    formula: Callable[..., Tensor],
    x: Tensor,
    step: MultiStep,
    kind: type[Noise],
    std: Number,
    *others: Tensor,
) -> Tensor:
    """The formula over blocks; half precision is computed in single, as the fused kernels of compilers do."""
    width = known(kind.width(std))

    def wide(x: Tensor, *others: Tensor) -> Tensor:
        exact = x if x.dtype in (torch.float32, torch.float64) else x.float()
        return formula(exact, step, kind, width, *others).to(x.dtype)

    if isinstance(width, Tensor) and width.ndim > 0:  # per channel or element: a block would not know its own
        return wide(x, *others)
    return blockwise(wide, x, *others)


def _accumulate(total: Tensor | None, term: Tensor, jump: float) -> Tensor:
    if total is not None:
        return total.add_(term, alpha=jump)
    return term if jump == 1 else term.mul_(jump)


def _shifted(x: Tensor, mean: Number) -> Tensor:
    if not isinstance(mean, Tensor) and mean == 0:
        return x
    return (x + mean).to(x.dtype)


def _draw(x: Tensor, kind: type[Noise], std: Number, generator: torch.Generator | None) -> Tensor:
    dtype = x.dtype if x.dtype in (torch.float32, torch.float64) else torch.float32
    return kind.centred_sample(torch.empty_like(x, dtype=dtype), kind.width(std), generator)
