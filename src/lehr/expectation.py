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

import functools
import inspect
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from lehr.blockwise import BLOCK, blockwise
from lehr.multistep import MultiStep
from lehr.noise import NEGLIGIBLE, Dirac, Noise, Number, Uniform, at_least, collapse, known

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
    check(step, forward, backward, mode)
    if not isinstance(x, Tensor) or not x.is_floating_point():
        raise TypeError(f"quantize needs a floating-point tensor, got {getattr(x, 'dtype', type(x).__name__)}")
    for value in (forward.std, forward.mean, backward.std, backward.mean):
        if isinstance(value, Tensor) and torch.broadcast_shapes(x.shape, value.shape) != x.shape:
            raise ValueError(f"noise of shape {tuple(value.shape)} must broadcast over x, of shape {tuple(x.shape)}")
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


def check(step: MultiStep, forward: Noise, backward: Noise, mode: Mode) -> None:
    """Complain about what makes no estimator."""
    if not isinstance(step, MultiStep):
        raise TypeError(f"step must be a MultiStep, got {step!r}")
    for name, noise in (("forward", forward), ("backward", backward)):
        if not isinstance(noise, Noise):
            raise TypeError(f"{name} must be a noise such as Uniform(0.3), got {noise!r}")
    if mode not in get_args(Mode):
        raise ValueError(f"mode must be one of {', '.join(get_args(Mode))}, got {mode!r}")


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
    scale: Number = 1.0,
) -> Tensor:
    """scale * σ(x / scale), the noises of σ taken apart and trusted: what a layer calls, whose std changes.

    `scale` gets no gradient: one that is learned is divided and multiplied by outside.
    """
    # torch.compile takes no tensor twice: None stands for the forward noise's own.
    mean = None if backward_mean is forward_mean else backward_mean
    std = None if backward_std is forward_std else backward_std
    noises = (forward, forward_mean, forward_std, backward, mean, std)
    return _Quantize.apply(x, step, *noises, mode, generator, scale)  # pyright: ignore[reportReturnType]


def linear_by_rows(x: Tensor, weight: Tensor, bias: Tensor | None, *function: Any) -> Tensor:
    """x @ quantize(weight)ᵀ + bias, `function` being the arguments of `quantize_with` after x, without a generator.

    The weight is quantized a few rows at a time, and once more for the gradient, so that neither its quantized values
    nor their gradient ever leave the processor's cache. That is for weights so many, and images so few, that reading
    weights is what a linear layer does; a "sample" could not be drawn twice.
    """
    y = _LinearByRows.apply(x.flatten(0, -2) if x.ndim > 1 else x[None], weight, *function)
    y = y.reshape(*x.shape[:-1], len(weight))  # pyright: ignore[reportAttributeAccessIssue]
    return y if bias is None else y + bias


class _Quantize(torch.autograd.Function):
    """Theorem 2 for autograd."""

    @staticmethod
    def forward(x, step, kind, mean, std, backward, backward_mean, backward_std, mode, generator, scale):
        if mode == "sample":
            unit = torch.empty_like(x, dtype=wide(x.dtype))
            noise = kind.draw(unit, kind.width(std), generator).add_(mean)
            drawn = blockwise(step, noise.add_(x if _is(scale, 1) else x.to(unit.dtype) / scale))
            return (drawn if _is(scale, 1) else drawn.mul_(scale)).to(x.dtype)
        return _evaluate(_value_formula(x.dtype, step, kind, mean, std, scale, mode), x)

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, ctx.step, _, forward_mean, forward_std, ctx.kind, mean, std, _, _, scale = inputs
        mean = forward_mean if mean is None else mean
        std = forward_std if std is None else std
        # Mean, deviation and scale are saved if they are tensors; numbers ride along.
        ctx.numbers = [None if isinstance(value, Tensor) else value for value in (mean, std, scale)]
        ctx.save_for_backward(x, *(value for value in (mean, std, scale) if isinstance(value, Tensor)))

    @staticmethod
    @once_differentiable
    def backward(ctx, *grads):  # pyright: ignore[reportIncompatibleMethodOverride]
        x, *tensors = ctx.saved_tensors
        mean, std, scale = (tensors.pop(0) if number is None else number for number in ctx.numbers)
        return _evaluate(_slope_formula(x.dtype, ctx.step, ctx.kind, mean, std, scale), x, *grads), *[None] * 10


class _LinearByRows(torch.autograd.Function):
    """A linear layer around the formulas of `_Quantize`."""

    @staticmethod
    def forward(x, weight, step, kind, mean, std, backward, backward_mean, backward_std, mode, scale):
        value, numbers, _ = _value_formula(x.dtype, step, kind, mean, std, scale, mode)
        y, columns = x.new_empty(len(weight), len(x)), x.T
        for room, rows, out in _by_rows(weight, y):
            torch.mm(value(rows, *numbers, out=room), columns, out=out)
        return y.T.contiguous()

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, weight, *function = inputs
        # What are tensors is saved, so that autograd notices if they change before the backward pass.
        ctx.function = [None if isinstance(value, Tensor) else value for value in function]
        ctx.tensors = [at for at, value in enumerate(function) if isinstance(value, Tensor)]
        ctx.save_for_backward(x, weight, *(function[at] for at in ctx.tensors))

    @staticmethod
    @once_differentiable
    def backward(ctx, *grads):  # pyright: ignore[reportIncompatibleMethodOverride]
        x, weight, *tensors = ctx.saved_tensors
        function = list(ctx.function)
        for at, tensor in zip(ctx.tensors, tensors, strict=True):
            function[at] = tensor
        step, kind, mean, std, backward, backward_mean, backward_std, mode, scale = function
        value, numbers, _ = _value_formula(x.dtype, step, kind, mean, std, scale, mode)
        slope, slope_numbers, _ = _slope_formula(x.dtype, step, backward, backward_mean, backward_std, scale)
        grad = grads[0].T.contiguous()
        grad_x = torch.zeros_like(x) if ctx.needs_input_grad[0] else None
        grad_weight = torch.empty_like(weight)
        for room, rows, above, into in _by_rows(weight, grad, grad_weight):
            if ctx.needs_input_grad[1]:
                slope(rows, *slope_numbers, torch.mm(above, x, out=room), out=into)
            if grad_x is not None:
                grad_x.addmm_(above.T, value(rows, *numbers, out=room))
        return grad_x, grad_weight if ctx.needs_input_grad[1] else None, *[None] * len(ctx.function)


def _by_rows(weight: Tensor, *others: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """A few rows of each at a time, and before them room for as many of the weight, which stays in the cache."""
    count = max(1, BLOCK // weight.size(1))
    room = weight.new_empty(min(count, len(weight)), weight.size(1))
    for rows, *parts in zip(*(tensor.split(count) for tensor in (weight, *others)), strict=True):
        yield room if len(rows) == len(room) else room[: len(rows)], rows, *parts


# torch looks at the signature at every call: made once, that takes a tenth of the time.
_Quantize.forward.__signature__ = inspect.signature(_Quantize.forward)


def expected_value(
    x: Tensor, step: MultiStep, kind: type[Noise], width: Number, *, out: Tensor | None = None
) -> Tensor:
    """q_0 + Σ_k δq_k F(x - θ_k), Theorem 2 (i)."""
    rises = _rises(step, kind, width)
    if kind is Uniform and isinstance(width, float):  # ramps about 0, with the middle of the levels added once
        middle = 0.5 * (step.levels[0] + step.levels[-1])
        value = _sum([(Uniform.ramp_about, (x, *rise), 1.0) for rise in rises], out)
        return value.add_(middle) if middle else value
    terms = [(kind.cdf_about, (x, place, wide), rise) for place, wide, rise in rises]
    return _sum(terms, out).add_(step.levels[0])


def expected_slope(
    x: Tensor,
    step: MultiStep,
    kind: type[Noise],
    width: Number,
    grad: Tensor | None = None,
    *,
    out: Tensor | None = None,
) -> Tensor:
    """Σ_k δq_k f(x - θ_k), Theorem 2 (ii), times `grad` if it is given."""
    rises = _rises(step, kind, width)
    if isinstance(width, Tensor):  # one width for all
        terms = [(kind.bump_about, (x, place, wide), rise) for place, wide, rise in rises]
        slope = _sum(terms, out).mul_(kind.peak(width))
        return slope if grad is None else slope.mul_(grad)
    gated = kind is Uniform and grad is not None and not torch.compiler.is_compiling()
    function, first = (Uniform.gate_about, (grad, x)) if gated else (kind.bump_about, (x,))
    slope = _sum([(function, (*first, place, wide), rise * float(kind.peak(wide))) for place, wide, rise in rises], out)
    return slope if grad is None or gated else slope.mul_(grad)


def most_probable_level(
    x: Tensor, step: MultiStep, kind: type[Noise], width: Number, *, out: Tensor | None = None
) -> Tensor:
    """The level q_k with the largest P(σ(x + ν) = q_k) = F(x - θ_k) - F(x - θ_{k+1}); the higher one at a tie."""
    reached = kind.cdf_about(x, step.thresholds[0], width)  # P(σ >= q_1)
    best = 1 - reached
    level = torch.clamp(x, 0, 0, out=out).add_(step.levels[0])  # NaN stays NaN
    for threshold, candidate in zip((*step.thresholds[1:], None), step.levels[1:], strict=True):
        beyond = torch.zeros_like(x) if threshold is None else kind.cdf_about(x, threshold, width)
        probability = reached.sub_(beyond)
        better = at_least(probability, best)
        level.sub_(level * better).add_(better, alpha=candidate)
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
    if isinstance(noise.std, Tensor) and noise.std.numel() > 1:
        raise ValueError(f"a Lipschitz constant needs one std, got {tuple(noise.std.shape)} of them")
    std = float(noise.std)
    if std <= NEGLIGIBLE:
        return float("inf")
    kind, width = type(noise), float(noise.width(std))

    def best(points: Tensor) -> tuple[Tensor, Tensor]:  # of each row, the highest slope and where it is
        slopes = blockwise(lambda x, out: expected_slope(x, step, kind, width, out=out), points)
        slope, column = slopes.max(1, keepdim=True)
        return slope, points.gather(1, column)

    # Around each threshold: farther away than 4 widths from all of them every noise is convex, so its sum is highest
    # at an end. The grid holds the corners -w, 0, w.
    spacing = width / 64
    grid = torch.arange(-256, 257, dtype=torch.float64) * spacing
    slope, place = best(torch.tensor(step.thresholds, dtype=torch.float64)[:, None] + grid)
    while spacing > 1e-9 * width:  # finer and finer around the best point
        finer, finer_place = best(place + torch.linspace(-spacing, spacing, 33, dtype=torch.float64))
        place = torch.where(finer > slope, finer_place, place)
        slope = torch.maximum(slope, finer)
        spacing /= 8
    return float(slope.max())


def _hard_value(x: Tensor, step: MultiStep, *, out: Tensor | None) -> Tensor:
    return step(x, out)


def _hard_slope(x: Tensor, step: MultiStep, grad: Tensor, *, out: Tensor | None) -> Tensor:
    return torch.zeros_like(x) if out is None else out.zero_()


def _value_formula(
    dtype: torch.dtype, step: MultiStep, kind: type[Noise], mean: Number, std: Number, scale: Number, mode: Mode
) -> _Formula:
    smooth = expected_value if mode == "expectation" else most_probable_level
    vanishes = kind is Uniform and mode == "expectation" and step.adds_up
    ramp = _ramp_value if mode == "expectation" else None
    return _formula(dtype, step, kind, mean, std, scale, hard=_hard_value, smooth=smooth, vanishes=vanishes, ramp=ramp)


def _slope_formula(
    dtype: torch.dtype, step: MultiStep, kind: type[Noise], mean: Number, std: Number, scale: Number
) -> _Formula:
    hard, smooth, vanishes = _hard_slope, expected_slope, kind is Uniform
    return _formula(dtype, step, kind, mean, std, scale, hard=hard, smooth=smooth, vanishes=vanishes, ramp=_ramp_slope)


class _Formula(NamedTuple):
    """`block(x, *numbers, *grad, out)` is what is computed; `single` if it is one operation."""

    block: Callable[..., Tensor]
    numbers: tuple[Number, Number, Number]
    single: bool


def _formula(
    dtype: torch.dtype,
    step: MultiStep,
    kind: type[Noise],
    mean: Number,
    std: Number,
    scale: Number,
    *,
    hard: Callable[..., Tensor],
    smooth: Callable[..., Tensor],
    vanishes: bool,
    ramp: Callable[[float], Callable[..., Tensor]] | None,
) -> _Formula:
    """hard(u, step, *grad) where std is 0 and smooth(u, step, kind, width, *grad) elsewhere, of u = x / scale + mean.

    Without a `grad` it is a value, in units of the scale. `vanishes` says that smooth with a width of 0 is hard
    already: there is nothing to choose where the width is not known. `ramp` makes the formula of one operation that
    smooth is where it is Hardtanh. Half precision is computed in single, as the fused kernels of compilers do.
    """
    narrow, dtype = dtype, wide(dtype)
    one = not isinstance(std, Tensor) or std.numel() == 1
    spread = _known_width(kind, std) if one else std  # many widths are computed a block at a time
    mean, scale = known(mean), known(scale)
    numbers = all(isinstance(number, float | int) for number in (spread, scale, mean))
    if numbers and spread > NEGLIGIBLE and scale != 1 and not torch.compiler.is_compiling():
        # All is known: scale the function, not its argument and its value.
        step, spread, mean, scale = _scaled(step, scale), spread * scale, mean * scale, 1.0
    plain = narrow == dtype and _is(scale, 1) and _is(mean, 0)
    reach = _reach(step, kind, spread) if plain and ramp else None
    if ramp and reach is not None:
        return _Formula(ramp(reach), (mean, spread, scale), True)

    def block(x: Tensor, mean: Number, spread: Number, scale: Number, *grad: Tensor, out: Tensor | None) -> Tensor:
        width = spread if one else kind.width(spread)
        width = width.to(dtype) if isinstance(width, Tensor) else width  # or it could change that of the result
        u = x if x.dtype == dtype else x.to(dtype)
        u = u if _is(scale, 1) else (u / scale).to(dtype)
        u = u if _is(mean, 0) else (u + mean).to(dtype)
        chosen = not isinstance(width, Tensor) or vanishes
        place = out if chosen and x.dtype == dtype else None  # where both are computed, not in place
        if isinstance(width, Tensor) and vanishes:
            result = smooth(u, step, kind, width, *grad, out=place)
        else:
            result = collapse(
                width,
                lambda: hard(u, step, *grad, out=place),
                lambda: smooth(u, step, kind, width, *grad, out=place),
            )
        result = result if grad or _is(scale, 1) else result.mul_(scale)
        if out is None:
            return result.to(x.dtype)
        return out if result is out else out.copy_(result)

    return _Formula(block, (mean, spread, scale), False)


def _evaluate(formula: _Formula, x: Tensor, *grad: Tensor) -> Tensor:
    if formula.single:
        return formula.block(x, *formula.numbers, *grad, out=None)
    return blockwise(formula.block, x, *formula.numbers, *grad)


def _is(number: Number, value: float) -> bool:
    return not isinstance(number, Tensor) and number == value


def _known_width(kind: type[Noise], std: Number) -> Number:
    """The width, as a number where it can be known; computed in the precision of a std that is a tensor."""
    number = known(std)
    if isinstance(std, Tensor) and not isinstance(number, Tensor):
        return _width_of(kind, number, std.dtype)
    return kind.width(std)


@functools.lru_cache(maxsize=1024)
def _width_of(kind: type[Noise], std: float, dtype: torch.dtype) -> float:
    return float(kind.width(torch.tensor(std, dtype=dtype)))


@functools.lru_cache(maxsize=1024)
def _scaled(step: MultiStep, scale: float) -> MultiStep:
    return MultiStep(*(tuple(number * scale for number in numbers) for numbers in (step.thresholds, step.levels)))


def _reach(step: MultiStep, kind: type[Noise], width: Number) -> float | None:
    """The reach of the Hardtanh that value and slope are those of, None if they are of none."""
    if kind is not Uniform or not isinstance(width, float) or width <= NEGLIGIBLE or torch.compiler.is_compiling():
        return None
    (place, wide, rise), *more = _rises(step, kind, width)
    ramp = not more and place == 0 and rise == 2 * wide and step.levels[0] == -step.levels[-1]
    return 0.5 * rise if ramp else None


def _ramp_value(reach: float) -> Callable[..., Tensor]:
    return lambda x, *_, out: torch.clamp(x, -reach, reach, out=out)


def _ramp_slope(reach: float) -> Callable[..., Tensor]:
    return lambda x, mean, spread, scale, grad, out: Uniform.gate_about(grad, x, 0.0, reach, out)


def _rises(step: MultiStep, kind: type[Noise], width: Number) -> Sequence[tuple[float, Number, float]]:
    """Where the expectation rises: thresholds, with the width of the noise there and the jump.

    Uniform windows that touch, with equal jumps, are one wider window: fewer operations, and no seam at which a point
    could count twice. 8 bits under the noise of half a step are a single ramp.
    """
    if kind is Uniform and isinstance(width, float):
        merged = _merged_windows.__wrapped__ if torch.compiler.is_compiling() else _merged_windows
        return merged(step, width)
    return [(threshold, width, jump) for threshold, jump in zip(step.thresholds, step.jumps, strict=True)]


@functools.lru_cache(maxsize=256)
def _merged_windows(step: MultiStep, width: float) -> list[tuple[float, float, float]]:
    windows: list[tuple[float, float, float]] = []
    last = None
    for threshold, jump in zip(step.thresholds, step.jumps, strict=True):
        # Up to the precision of a std in float32.
        if last and math.isclose(threshold - last[0], 2 * width, rel_tol=1e-6) and math.isclose(jump, last[1]):
            place, wide, rise = windows.pop()
            windows.append((place + width, wide + width, rise + jump))
        else:
            windows.append((threshold, width, jump))
        last = threshold, jump
    return windows


def _sum(terms: Sequence[tuple[Callable[..., Tensor], tuple[Any, ...], float]], out: Tensor | None) -> Tensor:
    """The sum of weight * function(*arguments), with one temporary for all."""
    (function, arguments, weight), *rest = terms
    total, spare = function(*arguments, out=out), None
    total = total if weight == 1 else total.mul_(weight)
    for function, arguments, weight in rest:
        reused = None if torch.compiler.is_compiling() else spare  # compilers reuse by themselves
        spare = function(*arguments, out=reused)
        total.add_(spare, alpha=weight)
    return total


def wide(dtype: torch.dtype) -> torch.dtype:
    """What numbers of a dtype are computed in: single precision for half."""
    return dtype if dtype in (torch.float32, torch.float64) else torch.float32
