"""Theorem 2 as code: value and gradient of a multi-step function under noise.

For noises with mean 0, distribution function F and density f (a mean shifts x)::

    value     E[σ(x + ν_f)]      = q_0 + Σ_k δq_k F(x - θ_k)       F of the forward noise
    gradient  d/dx E[σ(x + ν_b)] =       Σ_k δq_k f(x - θ_k)       f of the backward noise

`expected_value` and `expected_slope` are these two lines; `quantize` connects them to autograd. `fast.py` and
`fast_forms.py` compute the same numbers faster where they can.

>>> import torch, lehr
>>> x = torch.tensor([-1.0, -0.2, 0.2, 0.6], requires_grad=True)
>>> narrow, wide = lehr.Uniform.half_width(0.1), lehr.Uniform.half_width(0.5)
>>> y = lehr.quantize(x, lehr.MultiStep.ternary(), forward=narrow, backward=wide)
>>> y.sum().backward()
>>> y.detach(), x.grad
(tensor([-1.,  0.,  0.,  1.]), tensor([1., 1., 1., 1.]))
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from lehr import fast, fast_forms
from lehr.estimator import Estimator, Mode, estimator_of
from lehr.multistep import MultiStep
from lehr.noise import NEGLIGIBLE, Dirac, Noise, Number, Uniform


def expected_value(x: Tensor, step: MultiStep, noise: Noise) -> Tensor:
    """Return E[σ(x + ν)], Theorem 2 (i), for a noise with mean 0.

    Args:
        x: a floating-point tensor.
        step: the multi-step function σ.
        noise: the noise ν.
    """
    climbs = zip(step.thresholds, step.jumps, strict=True)
    return sum((jump * noise.cdf(x - threshold) for threshold, jump in climbs), start=step.levels[0])  # pyright: ignore[reportReturnType]


def expected_slope(x: Tensor, step: MultiStep, noise: Noise) -> Tensor:
    """Return d/dx E[σ(x + ν)], Theorem 2 (ii), for a noise with mean 0; the arguments are those of `expected_value`."""
    climbs = zip(step.thresholds, step.jumps, strict=True)
    return sum((jump * noise.pdf(x - threshold) for threshold, jump in climbs), start=torch.zeros_like(x))


def most_probable_level(x: Tensor, step: MultiStep, noise: Noise) -> Tensor:
    """Return the level q_k with the largest P(σ(x + ν) = q_k) = F(x - θ_k) - F(x - θ_{k+1}); the higher at a tie.

    The arguments are those of `expected_value`.
    """
    reached = noise.cdf(x - step.thresholds[0])  # P(σ >= q_1)
    level, best = torch.where(x.isnan(), x, step.levels[0]), 1 - reached
    for threshold, candidate in zip((*step.thresholds[1:], None), step.levels[1:], strict=True):
        beyond = torch.zeros_like(x) if threshold is None else noise.cdf(x - threshold)
        probability = reached - beyond
        level = torch.where(probability >= best, candidate, level)
        best, reached = torch.maximum(best, probability), beyond
    return level


def quantize(
    x: Tensor,
    step: MultiStep | Estimator,
    forward: Noise | None = None,
    backward: Noise | None = None,
    mode: Mode = "expectation",
    *,
    scale: Number = 1.0,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Return scale * σ(x / scale): its value under the forward noise, its gradient under the backward noise.

    The result has the dtype and memory layout of `x`. Only `x` is kept for the backward pass, and memory does not grow
    with the number of levels.

    Args:
        x: a floating-point tensor.
        step: an estimator, or a multi-step function that makes one with the next three arguments.
        forward: the noise of the value; default: none (Dirac).
        backward: the noise of the gradient; default: the forward noise.
        mode: see `Estimator`.
        scale: a number, or a tensor that broadcasts over `x`; a tensor that requires a gradient gets one.
        generator: draws the samples of mode "sample".
    """
    estimator = estimator_of(step, forward, backward, mode)
    if not isinstance(x, Tensor) or not x.is_floating_point():
        raise TypeError(f"quantize needs a floating-point tensor, got {getattr(x, 'dtype', type(x).__name__)}")
    forward, backward = estimator.forward, estimator.backward
    for value in (forward.std, forward.mean, backward.std, backward.mean):
        _check_broadcasts("noise", value, x)
    _check_broadcasts("a scale", scale, x)
    if isinstance(scale, Tensor) and scale.requires_grad:  # autograd differentiates the division and the product
        return quantize(x / scale, estimator, generator=generator) * scale
    # torch.compile refuses the same tensor as two arguments: None means the forward noise's.
    std = None if backward.std is forward.std else backward.std
    mean = None if backward.mean is forward.mean else backward.mean
    function = _Quantize if fast.is_compiling() else _QuantizeForwardMode
    return function.apply(x, scale, forward.std, forward.mean, std, mean, estimator, generator)  # pyright: ignore[reportReturnType]


def _check_broadcasts(what: str, value: Number, x: Tensor) -> None:
    """Raise ValueError unless `value` is a number, or a tensor that broadcasts over `x` without enlarging it."""
    if isinstance(value, Tensor) and value.ndim:
        sizes = zip(reversed(value.shape), reversed(x.shape), strict=False)
        if value.ndim > x.ndim or not all(size in (1, there) for size, there in sizes):
            raise ValueError(f"{what} of shape {tuple(value.shape)} must broadcast over x, of shape {tuple(x.shape)}")


class _Quantize(torch.autograd.Function):
    """Theorem 2 for autograd.

    std and mean of both noises are arguments, since autograd and torch.compile must see them if they are tensors.
    """

    generate_vmap_rule = True

    @staticmethod
    @fast.remember_signature
    def forward(x, scale, std, mean, backward_std, backward_mean, estimator, generator):
        return _value(x, scale, type(estimator.forward).trusted(std, mean), estimator.step, estimator.mode, generator)

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, scale, std, mean, backward_std, backward_mean, ctx.estimator, _ = inputs
        numbers = scale, std if backward_std is None else backward_std, mean if backward_mean is None else backward_mean
        # Tensors are saved, so that autograd notices if they change before the backward pass.
        ctx.numbers = [None if isinstance(number, Tensor) else number for number in numbers]
        tensors = [x, *(number for number in numbers if isinstance(number, Tensor))]
        ctx.save_for_backward(*tensors)
        ctx.save_for_forward(*tensors)

    @staticmethod
    @once_differentiable
    def backward(ctx, *grads):  # pyright: ignore[reportIncompatibleMethodOverride]
        return _gradient(ctx, grads[0]), *[None] * 7


class _QuantizeForwardMode(_Quantize):
    """Adds forward-mode derivatives, which torch.compile does not support."""

    @staticmethod
    def jvp(ctx, *tangents):  # pyright: ignore[reportIncompatibleMethodOverride]
        return _gradient(ctx, tangents[0])


def _value(
    x: Tensor, scale: Number, noise: Noise, step: MultiStep, mode: Mode, generator: torch.Generator | None
) -> Tensor:
    """Return scale * σ(x / scale) under the forward noise."""
    noise = noise.read()
    if mode == "sample":  # σ(x + ν) for one draw of ν
        draws = noise.sample(x.shape, generator=generator, dtype=wide(x.dtype), device=x.device)
        noise = Dirac.trusted(0.0, draws)
    quick = quick_form(x, step, noise) if mode == "expectation" else None

    def formula(u: Tensor, centred: Noise, scale: Number) -> Tensor:
        if _is(centred.std, 0):
            y = step(u)
        elif mode == "mode":
            y = most_probable_level(u, step, centred)
        elif quick is not None:
            y = quick.value(u)
        else:
            y = expected_value(u, step, centred)
            if isinstance(centred.std, Tensor):  # where the noise is 0, return the level without the sum's rounding
                y = torch.where(centred.std > NEGLIGIBLE, y, step(u))
        return y if _is(scale, 1) else y * scale

    return _evaluate(formula, quick, x, scale, noise)


def _gradient(ctx: Any, grad: Tensor) -> Tensor:
    """Return grad times the slope under the backward noise."""
    x, *tensors = ctx.saved_tensors
    scale, std, mean = (tensors.pop(0) if number is None else number for number in ctx.numbers)
    step, noise = ctx.estimator.step, type(ctx.estimator.backward).trusted(std, mean).read()
    quick = quick_form(x, step, noise)

    def formula(u: Tensor, centred: Noise, _: Number, grad: Tensor) -> Tensor:
        if _is(centred.std, 0):
            return torch.zeros_like(u)
        if quick is not None:
            return quick.gradient(grad.to(u.dtype), u)
        if isinstance(centred, Uniform) and len(step.thresholds) > fast.FEW:
            return fast.uniform_slope(u, step, centred.w) * grad
        return expected_slope(u, step, centred) * grad

    return _evaluate(formula, quick, x, scale, noise, grad)


def _evaluate(
    formula: Callable[..., Tensor],
    quick: fast_forms.Expectation | None,
    x: Tensor,
    scale: Number,
    noise: Noise,
    *others: Tensor,
) -> Tensor:
    """Return formula(u, noise with mean 0, scale, *others) at u = x / scale + mean, in the shape and dtype of x."""

    def block(x: Tensor, scale: Number, std: Number, mean: Number, *others: Tensor) -> Tensor:
        u = x.to(wide(x.dtype))
        u = u if _is(scale, 1) else (u / scale).to(u.dtype)
        u = u if _is(mean, 0) else (u + mean).to(u.dtype)
        return formula(u, type(noise).trusted(std, 0.0), scale, *others)

    scale = fast.number(scale)
    is_plain = x.dtype == wide(x.dtype) and _is(scale, 1) and _is(noise.mean, 0)
    if isinstance(quick, fast_forms.Hardtanh) and is_plain:  # a single operation gains nothing from blocks
        return block(x, scale, noise.std, noise.mean, *others)
    return fast.blockwise(block, x, scale, noise.std, noise.mean, *others)


def quick_form(x: Tensor, step: MultiStep, noise: Noise) -> fast_forms.Expectation | None:
    """Return the quick form of both formulas, or None if there is none and the formulas above must run."""
    if isinstance(noise.std, Tensor) or noise.std <= NEGLIGIBLE or not fast.is_readable(x):
        return None
    if isinstance(noise, Uniform):
        return fast_forms.ramps(step.thresholds, step.levels, noise.w)  # pyright: ignore[reportArgumentType]
    return fast_forms.nearest(step.thresholds, step.levels, noise.trusted(noise.std, 0.0), wide(x.dtype))


def _is(number: Number, value: float) -> bool:
    return not isinstance(number, Tensor) and abs(number - value) <= NEGLIGIBLE


def wide(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype to compute in: float32 for half precision, else the same."""
    return dtype if dtype in (torch.float32, torch.float64) else torch.float32
