"""Additive noises, which make a multi-step function differentiable (Theorem 2).

A noise ν is a value: its kind, its standard deviation `std` and its `mean` (default 0). It has a distribution function
F (`cdf`), a density f (`pdf`) and independent draws (`sample`). With u = x - mean::

    Uniform     f(u) = 1/(2w) on [-w, w)                     w = √3 std
    Triangular  f(u) = (1 - |u|/w)/w on [-w, w]              w = √6 std
    Normal      f(u) = exp(-u²/2w²)/(w √2π)                  w = std
    Logistic    f(u) = F(u) F(-u)/w,  F = 1/(1 + e^(-u/w))   w = √3 std/π
    Dirac       all mass at the mean                         std = 0

The uniform interval is half-open so that adjacent windows never count a point twice. With std = 0 any kind is the Dirac
measure: F = H with H(0) = 1, and f = 0.

>>> import torch
>>> noise = Uniform.half_width(0.5)
>>> noise.cdf(torch.tensor([-1.0, 0.0, 0.25])), noise.pdf(torch.tensor([-0.5, 0.5]))
(tensor([0.0000, 0.5000, 0.7500]), tensor([1., 0.]))
"""

from __future__ import annotations

import abc
import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor

from lehr import fast

# Noise below this counts as none: it is far smaller than any weight, and 1/std must not overflow float32.
NEGLIGIBLE = 1e-30

Number = float | Tensor  # a tensor broadcasts over the argument: per channel or per element
Generator: TypeAlias = torch.Generator | None
Dtype: TypeAlias = torch.dtype | None
Device: TypeAlias = torch.device | str | None


@dataclass(frozen=True)
class Noise(abc.ABC):
    """A noise symmetric about its mean; a subclass implements `cdf`, `pdf` and `sample`.

    Args:
        std: the standard deviation, a number or a tensor that broadcasts over the argument.
        mean: the mean, a number or a tensor.
    """

    std: Number
    mean: Number = 0.0

    def __post_init__(self) -> None:
        check("std", self.std, "finite and not negative", lambda std: (std >= 0) & (std < math.inf))
        check("mean", self.mean, "finite", lambda mean: abs(mean) < math.inf)

    @abc.abstractmethod
    def cdf(self, x: Tensor) -> Tensor:
        """Return F(x) = P(ν <= x)."""

    @abc.abstractmethod
    def pdf(self, x: Tensor) -> Tensor:
        """Return the density f(x); 0 everywhere for std = 0, which has no density."""

    @abc.abstractmethod
    def sample(
        self, shape: Sequence[int], *, generator: Generator = None, dtype: Dtype = None, device: Device = None
    ) -> Tensor:
        """Return independent draws.

        Args:
            shape: of the result; `std` and `mean` must broadcast to it.
            generator: default: torch's global generator.
            dtype: default: that of the noise if it is a tensor.
            device: default: that of the noise if it is a tensor.
        """

    @classmethod
    def trusted(cls, std: Number, mean: Number) -> Noise:
        """Return a noise without checking its numbers, since reading a tensor waits for its device."""
        noise = object.__new__(cls)
        object.__setattr__(noise, "std", std)
        object.__setattr__(noise, "mean", mean)
        return noise

    def read(self) -> Noise:
        """Return the same noise with plain numbers where they can be read without waiting."""
        return self.trusted(fast.number(self.std), fast.number(self.mean))

    def standardised(self, x: Tensor) -> Tensor:
        """Return z = (x - mean)/std; for std = 0, ∞ from the mean on and -∞ below it, so that F(z) = H(x - mean)."""
        return _over(_about(x, self.mean), self.std)

    def per_std(self, density: Tensor) -> Tensor:
        """Return density/std, which turns the density of z into that of x; 0 for std = 0."""
        return density * _inverse(self.std, density.dtype)

    def __str__(self) -> str:
        mean = "" if isinstance(self.mean, float | int) and self.mean == 0 else f", mean={shown(self.mean)}"
        return f"{type(self).__name__}(std={shown(self.std)}{mean})"


class Uniform(Noise):
    """U[mean - √3 std, mean + √3 std): the paper's noise."""

    @classmethod
    def half_width(cls, half_width: Number, mean: Number = 0.0) -> Uniform:
        """Return the uniform noise on [mean - half_width, mean + half_width)."""
        return cls(half_width / math.sqrt(3), mean)

    @property
    def w(self) -> Number:
        """The half-width √3 std, rounded so that adjacent windows such as U[-1/2, 1/2) neither overlap nor leave a gap.

        √3 std of a rounded std is off by a unit or two in the last place. Veltkamp's splitting rounds the product to
        three bits less than the dtype holds.
        """
        product = self.std * math.sqrt(3)
        shifted = product * 9.0  # 2**3 + 1
        return shifted - (shifted - product)

    def read(self) -> Noise:
        """Return the same noise with plain numbers; the half-width is rounded in the dtype of the std."""
        std = fast.number(self.std)
        if isinstance(self.std, Tensor) and not isinstance(std, Tensor):
            std = _rounded_std(std, self.std.dtype)
        return self.trusted(std, fast.number(self.mean))

    def cdf(self, x: Tensor) -> Tensor:
        """Return u/2w + 1/2, clamped to [0, 1]."""
        return (_over(_about(x, self.mean), 2 * self.w) + 0.5).clamp(0, 1)

    def pdf(self, x: Tensor) -> Tensor:
        """Return 1/2w on [-w, w), 0 elsewhere."""
        u, w = _about(x, self.mean), self.w
        return ((u >= -w).to(u.dtype) - (u >= w).to(u.dtype)) * _inverse(2 * w, u.dtype)

    def sample(
        self, shape: Sequence[int], *, generator: Generator = None, dtype: Dtype = None, device: Device = None
    ) -> Tensor:
        """Return w times uniform draws from [-1, 1)."""
        return self.mean + self.w * _between_ones(shape, generator, **_kind(self.std, dtype, device))


class Triangular(Noise):
    """The symmetric triangle on [mean - √6 std, mean + √6 std]: the sum of two equal uniform noises."""

    @classmethod
    def half_width(cls, half_width: Number, mean: Number = 0.0) -> Triangular:
        """Return the triangular noise on [mean - half_width, mean + half_width]."""
        return cls(half_width / math.sqrt(6), mean)

    def cdf(self, x: Tensor) -> Tensor:
        """Return 1/2 + t - t|t|/2 with t = u/w, clamped to [-1, 1]."""
        t = (self.standardised(x) / math.sqrt(6)).clamp(-1, 1)
        return 0.5 + t * (1 - t.abs() / 2)

    def pdf(self, x: Tensor) -> Tensor:
        """Return (1 - |u|/w)/w on [-w, w], 0 elsewhere."""
        t = self.standardised(x) / math.sqrt(6)
        return self.per_std((1 - t.abs()).clamp(min=0) / math.sqrt(6))

    def sample(
        self, shape: Sequence[int], *, generator: Generator = None, dtype: Dtype = None, device: Device = None
    ) -> Tensor:
        """Return w/2 times the sums of two uniform draws from [-1, 1)."""
        one, other = (_between_ones(shape, generator, **_kind(self.std, dtype, device)) for _ in range(2))
        return self.mean + self.std * (math.sqrt(6) / 2 * (one + other))


class Normal(Noise):
    """The Gaussian noise."""

    def cdf(self, x: Tensor) -> Tensor:
        """Return Φ(z)."""
        return torch.special.ndtr(self.standardised(x))

    def pdf(self, x: Tensor) -> Tensor:
        """Return exp(-z²/2)/(std √2π)."""
        return self.per_std(torch.exp(-self.standardised(x).square() / 2) / math.sqrt(2 * math.pi))

    def sample(
        self, shape: Sequence[int], *, generator: Generator = None, dtype: Dtype = None, device: Device = None
    ) -> Tensor:
        """Return std times standard normal draws."""
        return self.mean + self.std * torch.randn(shape, generator=generator, **_kind(self.std, dtype, device))


class Logistic(Noise):
    """The logistic noise, whose distribution function is the sigmoid."""

    def cdf(self, x: Tensor) -> Tensor:
        """Return 1/(1 + exp(-u/w))."""
        return torch.special.expit(self.standardised(x) * (math.pi / math.sqrt(3)))

    def pdf(self, x: Tensor) -> Tensor:
        """Return F(u) F(-u)/w, which is precise in both tails."""
        t = self.standardised(x) * (math.pi / math.sqrt(3))
        return self.per_std(torch.special.expit(t) * torch.special.expit(-t) * (math.pi / math.sqrt(3)))

    def sample(
        self, shape: Sequence[int], *, generator: Generator = None, dtype: Dtype = None, device: Device = None
    ) -> Tensor:
        """Return w log(p/(1-p)) for p uniform in the open interval (0, 1)."""
        p = torch.rand(shape, generator=generator, **_kind(self.std, dtype, device))
        finest = torch.finfo(p.dtype).eps / 2
        return self.mean + self.std * (p.clamp(finest, 1 - finest).logit() * (math.sqrt(3) / math.pi))


class Dirac(Noise):
    """No noise: all mass at the mean, which is 0 unless given."""

    def __init__(self, mean: Number = 0.0) -> None:
        object.__setattr__(self, "std", 0.0)
        object.__setattr__(self, "mean", mean)
        self.__post_init__()

    @classmethod
    def trusted(cls, std: Number, mean: Number) -> Noise:
        """Return the Dirac measure at `mean`, unchecked; `std` is ignored."""
        return super().trusted(0.0, mean)

    def cdf(self, x: Tensor) -> Tensor:
        """Return H(u), with H(0) = 1."""
        u = _about(x, self.mean)
        return torch.where(u.isnan(), u, (u >= 0).to(u.dtype))

    def pdf(self, x: Tensor) -> Tensor:
        """Return 0, since the Dirac measure has no density."""
        return torch.zeros_like(_about(x, self.mean))

    def sample(
        self, shape: Sequence[int], *, generator: Generator = None, dtype: Dtype = None, device: Device = None
    ) -> Tensor:
        """Return the mean, in the given shape."""
        return self.mean + torch.zeros(tuple(shape), **_kind(self.mean, dtype, device))

    def __str__(self) -> str:
        return "Dirac()" if isinstance(self.mean, float | int) and self.mean == 0 else f"Dirac(mean={shown(self.mean)})"


def check(name: str, value: Number, rule: str, holds: Callable[[Any], Any]) -> None:
    """Raise ValueError if a number, or one in a tensor that can be read without waiting, breaks the rule.

    Args:
        name: what the error calls the value.
        value: the number or tensor.
        rule: the rule in words.
        holds: returns whether a number obeys the rule.
    """
    if isinstance(value, Tensor):
        wrong = fast.is_readable(value) and not bool(holds(value).all())
    else:
        try:
            wrong = not holds(float(value))
        except (TypeError, ValueError):
            raise TypeError(f"expected a number or a tensor, got {value!r}") from None
    if wrong:
        raise ValueError(f"{name} must be {rule}, got {value}")


def shown(value: Number) -> str:
    """Return a number, or the range of a tensor, with four digits."""
    if isinstance(value, Tensor) and value.is_meta:
        return "?"
    if isinstance(value, Tensor) and value.numel() != 1:
        low, high = value.aminmax()
        return f"{low:.4g}..{high:.4g}, {tuple(value.shape)}"
    return f"{float(value):.4g}"


def _about(x: Tensor, mean: Number) -> Tensor:
    """Return x - mean in the dtype of x."""
    x = x if x.is_floating_point() else x.to(torch.get_default_dtype())
    return (x - mean).to(x.dtype)


def _over(u: Tensor, width: Number) -> Tensor:
    """Return u/width in the dtype of u; for width 0, huge from 0 on and hugely negative below it; NaN stays NaN."""
    if isinstance(width, Tensor):  # for width 0: 0 + 1e-35 times 1e38 is already far beyond any noise
        there = width > NEGLIGIBLE
        return ((u + torch.where(there, 0.0, 1e-35)) * torch.where(there, 1 / width, 1e38)).to(u.dtype)
    return u / width if width > NEGLIGIBLE else u + torch.where(u >= 0, math.inf, -math.inf)


def _inverse(width: Number, dtype: torch.dtype) -> Number:
    """Return 1/width, or 0 for width 0."""
    if isinstance(width, Tensor):
        return torch.where(width > NEGLIGIBLE, 1 / width, 0.0).to(dtype)
    return 1 / width if width > NEGLIGIBLE else 0.0


def _kind(value: Number, dtype: Dtype, device: Device) -> dict[str, Any]:
    """Return dtype and device of draws: the given ones, or those of the noise's tensor."""
    own = value if isinstance(value, Tensor) else None
    return {
        "dtype": own.dtype if dtype is None and own is not None else dtype,
        "device": own.device if device is None and own is not None else device,
    }


@functools.lru_cache(maxsize=1024)
def _rounded_std(std: float, dtype: torch.dtype) -> float:
    return float(Uniform(torch.tensor(std, dtype=dtype)).w) / math.sqrt(3)


def _between_ones(shape: Sequence[int], generator: Generator, **kind: Any) -> Tensor:
    return 2 * torch.rand(shape, generator=generator, **kind) - 1
