"""Additive noises: what makes a multi-step function differentiable (Theorem 2).

A noise ν is a value: its kind, its true standard deviation `std`, and a `mean` (0 unless said otherwise). The kinds,
with distribution function F, density f and width w about the mean::

    Uniform     f(u) = 1/(2w) on [-w, w)                 w = √3 std
    Triangular  f(u) = (1 - |u|/w)/w on [-w, w]           w = √6 std
    Normal      f(u) = exp(-u²/2w²)/(w √2π)               w = std
    Logistic    f(u) = F(u)(1 - F(u))/w, F = 1/(1+e^-u/w) w = √3 std/π
    Dirac       all mass at the mean                      std = 0

The uniform interval is half-open so that windows which touch never count a point twice. std = 0 is the Dirac measure
of any kind: F = H with H(0) = 1, f = 0.

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
from typing import Any

import torch
from torch import Tensor

# Noise below this is no noise: what it could move is far below any weight, and 1/std must not overflow float32.
NEGLIGIBLE = 1e-30

Number = float | Tensor  # a tensor broadcasts over the argument: per channel or per element


@dataclass(frozen=True)
class Noise(abc.ABC):
    """A noise symmetric about its mean. A kind answers five questions about its form with mean 0 and width w."""

    std: Number
    mean: Number = 0.0

    def __post_init__(self) -> None:
        if torch.compiler.is_compiling():
            return  # a look at a tensor's values would break the graph
        if not all_hold(self.std, lambda std: (std >= 0) & (std < math.inf)):
            raise ValueError(f"std must be finite and not negative, got {self.std}")
        if not all_hold(self.mean, lambda mean: abs(mean) < math.inf):
            raise ValueError(f"mean must be finite, got {self.mean}")

    @staticmethod
    @abc.abstractmethod
    def width(std: Number) -> Number:
        """The parameter w of the kind that has this standard deviation."""

    @staticmethod
    @abc.abstractmethod
    def cdf_about(x: Tensor, centre: Number, width: Number, out: Tensor | None = None) -> Tensor:
        """F(x - centre) of the noise with mean 0, in a new tensor or in `out`."""

    @staticmethod
    @abc.abstractmethod
    def bump_about(x: Tensor, centre: Number, width: Number, out: Tensor | None = None) -> Tensor:
        """f(x - centre)/f(0) of the noise with mean 0, in a new tensor or in `out`."""

    @staticmethod
    @abc.abstractmethod
    def peak(width: Number) -> Number:
        """f(0), the highest density."""

    @staticmethod
    @abc.abstractmethod
    def draw(unit: Tensor, width: Number, generator: torch.Generator | None) -> Tensor:
        """Fill `unit` with draws of the noise with mean 0."""

    def cdf(self, x: Tensor) -> Tensor:
        """P(ν <= x)."""
        x = self._broadcast(x)
        return collapse(
            self.std,
            hard=lambda: Dirac.cdf_about(x, self.mean, 0.0),
            smooth=lambda: self.cdf_about(x, self.mean, self.width(self.std)),
        )

    def pdf(self, x: Tensor) -> Tensor:
        """The density at x; 0 everywhere for std = 0, whose mass no density describes."""
        x = self._broadcast(x)
        return collapse(
            self.std,
            hard=lambda: torch.zeros_like(x),
            smooth=lambda: self.bump_about(x, self.mean, width := self.width(self.std)).mul_(self.peak(width)),
        )

    def sample(
        self,
        shape: Sequence[int],
        *,
        generator: torch.Generator | None = None,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> Tensor:
        """Independent draws; `std` and `mean` must broadcast to `shape`."""
        if isinstance(self.std, Tensor):
            dtype, device = dtype or self.std.dtype, device or self.std.device
        empty = torch.empty(tuple(shape), dtype=dtype, device=device)
        return self.draw(empty, self.width(self.std), generator).add_(self.mean)

    def _broadcast(self, x: Tensor) -> Tensor:
        shapes = [value.shape for value in (self.std, self.mean) if isinstance(value, Tensor)]
        x = x if x.is_floating_point() else x.to(torch.get_default_dtype())
        return x.expand(torch.broadcast_shapes(x.shape, *shapes))

    def __str__(self) -> str:
        mean = "" if isinstance(self.mean, float | int) and self.mean == 0 else f", mean={shown(self.mean)}"
        return f"{type(self).__name__}(std={shown(self.std)}{mean})"


class Uniform(Noise):
    """U[mean - √3 std, mean + √3 std): the paper's noise."""

    @classmethod
    def half_width(cls, half_width: Number, mean: Number = 0.0) -> Uniform:
        """The uniform noise on [mean - half_width, mean + half_width)."""
        return cls(half_width / math.sqrt(3), mean)

    @staticmethod
    def width(std: Number) -> Number:
        """The half-width, to the last few bits: U[-1/2, 1/2) must end where its neighbour begins.

        √3 std of a rounded std is off by a unit in the last place or two, so that touching windows would overlap
        or leave a gap. Veltkamp's splitting rounds the product to three bits less than the dtype holds.
        """
        product = std * math.sqrt(3)
        shifted = product * 9.0  # 2**3 + 1
        return shifted - (shifted - product)

    @staticmethod
    def cdf_about(x: Tensor, centre: Number, width: Number, out: Tensor | None = None) -> Tensor:
        """u/2w + 1/2, clamped to [0, 1]; H(u) in a tensor of widths where one is 0."""
        u = torch.sub(x, centre, out=out)
        if not isinstance(width, Tensor):
            return u.mul_(0.5 / width).add_(0.5).clamp_(0, 1)
        # So steep that every u != 0 but the tiniest is beyond it, and H(0) = 1.
        slope = 0.5 / width.clamp(min=NEGLIGIBLE)
        return u.mul_(slope).add_(torch.where(width > NEGLIGIBLE, 0.5, 1.0)).clamp_(0, 1)

    @staticmethod
    def ramp_about(x: Tensor, centre: float, width: float, rise: float, out: Tensor | None = None) -> Tensor:
        """rise (F(u) - 1/2), in as few operations as it takes: one for ternary under the paper's noise."""
        slope, top = 0.5 * rise / width, 0.5 * rise
        u = torch.sub(x, centre, out=out) if centre else x
        if slope == 1:
            return torch.clamp(u, -top, top, out=u if centre else out)
        return torch.mul(u, slope, out=u if centre else out).clamp_(-top, top)

    @staticmethod
    def bump_about(x: Tensor, centre: Number, width: Number, out: Tensor | None = None) -> Tensor:
        """1 on [-w, w)."""
        return at_least(x, centre - width, out).sub_(at_least(x, centre + width))

    @staticmethod
    def gate_about(grad: Tensor, x: Tensor, centre: float, width: float, out: Tensor | None = None) -> Tensor:
        """grad on [-w, w), 0 elsewhere: what Hardtanh does to a gradient, in its one operation."""
        low, high = _open_interval(centre - width, centre + width, x.dtype)
        if out is None:
            return torch.ops.aten.hardtanh_backward(grad, x, low, high)
        return torch.ops.aten.hardtanh_backward.grad_input(grad, x, low, high, grad_input=out)

    @staticmethod
    def peak(width: Number) -> Number:
        """1/(2w), and 0 in a tensor of widths where one is 0."""
        if isinstance(width, Tensor):
            return torch.where(width > NEGLIGIBLE, 0.5 / width, 0.0)
        return 0.5 / width

    @staticmethod
    def draw(unit: Tensor, width: Number, generator: torch.Generator | None) -> Tensor:
        """w times a uniform draw from [-1, 1)."""
        return unit.uniform_(-1, 1, generator=generator).mul_(width)


class Triangular(Noise):
    """The symmetric triangle on [mean - √6 std, mean + √6 std]: the sum of two equal uniform noises."""

    @classmethod
    def half_width(cls, half_width: Number, mean: Number = 0.0) -> Triangular:
        """The triangular noise on [mean - half_width, mean + half_width]."""
        return cls(half_width / math.sqrt(6), mean)

    @staticmethod
    def width(std: Number) -> Number:
        """The half-width √6 std."""
        return std * math.sqrt(6)

    @staticmethod
    def cdf_about(x: Tensor, centre: Number, width: Number, out: Tensor | None = None) -> Tensor:
        """1/2 + z - z|z|/2 with z = u/w clamped to [-1, 1]."""
        z = torch.sub(x, centre, out=out).mul_(1 / width).clamp_(-1, 1)
        return z.mul_(z.abs().mul_(-0.5).add_(1)).add_(0.5)

    @staticmethod
    def bump_about(x: Tensor, centre: Number, width: Number, out: Tensor | None = None) -> Tensor:
        """1 - |u|/w, or 0 outside."""
        return torch.sub(x, centre, out=out).abs_().mul_(-1 / width).add_(1).relu_()

    @staticmethod
    def peak(width: Number) -> Number:
        """1/w."""
        return 1 / width

    @staticmethod
    def draw(unit: Tensor, width: Number, generator: torch.Generator | None) -> Tensor:
        """w/2 times the sum of two uniform draws from [-1, 1)."""
        second = torch.empty_like(unit).uniform_(-1, 1, generator=generator)
        return unit.uniform_(-1, 1, generator=generator).add_(second).mul_(0.5).mul_(width)


class Normal(Noise):
    """The Gaussian noise."""

    @staticmethod
    def width(std: Number) -> Number:
        """The standard deviation itself."""
        return std

    @staticmethod
    def cdf_about(x: Tensor, centre: Number, width: Number, out: Tensor | None = None) -> Tensor:
        """Φ(u/w)."""
        z = torch.sub(x, centre, out=out).mul_(1 / width)
        return torch.special.ndtr(z, out=out)

    @staticmethod
    def bump_about(x: Tensor, centre: Number, width: Number, out: Tensor | None = None) -> Tensor:
        """exp(-u²/2w²)."""
        return torch.sub(x, centre, out=out).mul_(1 / width).square_().mul_(-0.5).exp_()

    @staticmethod
    def peak(width: Number) -> Number:
        """1/(w √2π)."""
        return 1 / (width * math.sqrt(2 * math.pi))

    @staticmethod
    def draw(unit: Tensor, width: Number, generator: torch.Generator | None) -> Tensor:
        """w times a standard normal draw."""
        return unit.normal_(generator=generator).mul_(width)


class Logistic(Noise):
    """The logistic noise, whose distribution function is the sigmoid."""

    @staticmethod
    def width(std: Number) -> Number:
        """The scale √3 std/π."""
        return std * (math.sqrt(3) / math.pi)

    @staticmethod
    def cdf_about(x: Tensor, centre: Number, width: Number, out: Tensor | None = None) -> Tensor:
        """1/(1 + exp(-u/w))."""
        return torch.sub(x, centre, out=out).mul_(1 / width).sigmoid_()

    @staticmethod
    def bump_about(x: Tensor, centre: Number, width: Number, out: Tensor | None = None) -> Tensor:
        """4 F(u) F(-u), which keeps its relative precision in both tails."""
        z = torch.sub(x, centre, out=out).mul_(1 / width)
        mirrored = z.neg().sigmoid_().mul_(4)
        return z.sigmoid_().mul_(mirrored)

    @staticmethod
    def peak(width: Number) -> Number:
        """1/(4w)."""
        return 0.25 / width

    @staticmethod
    def draw(unit: Tensor, width: Number, generator: torch.Generator | None) -> Tensor:
        """w log(p/(1-p)) for p uniform in the open interval (0, 1)."""
        finest = torch.finfo(unit.dtype).eps / 2
        return unit.uniform_(generator=generator).clamp_(finest, 1 - finest).logit_().mul_(width)


class Dirac(Noise):
    """No noise: all mass at the mean, 0 unless said otherwise."""

    def __init__(self, mean: Number = 0.0) -> None:
        object.__setattr__(self, "std", 0.0)
        object.__setattr__(self, "mean", mean)
        self.__post_init__()

    @staticmethod
    def width(std: Number) -> Number:
        """No width."""
        return std

    @staticmethod
    def cdf_about(x: Tensor, centre: Number, width: Number, out: Tensor | None = None) -> Tensor:
        """H(u), with H(0) = 1."""
        u = torch.sub(x, centre, out=out)
        carried = u.clamp(0, 0)  # 0 that carries NaN on
        return u.ge_(0).add_(carried)

    @staticmethod
    def bump_about(x: Tensor, centre: Number, width: Number, out: Tensor | None = None) -> Tensor:
        """0: the mass has no density."""
        return torch.zeros_like(x) if out is None else out.zero_()

    @staticmethod
    def peak(width: Number) -> Number:
        """0."""
        return 0.0

    @staticmethod
    def draw(unit: Tensor, width: Number, generator: torch.Generator | None) -> Tensor:
        """0, always."""
        return unit.zero_()

    def __str__(self) -> str:
        return "Dirac()" if isinstance(self.mean, float | int) and self.mean == 0 else f"Dirac(mean={shown(self.mean)})"


def at_least(x: Tensor, threshold: Number, out: Tensor | None = None) -> Tensor:
    """1 where x >= threshold, 0 elsewhere, in the dtype of x.

    A comparison that writes floats is many times faster on a CPU than a mask of bools; a compiler takes the mask.
    """
    if torch.compiler.is_compiling():
        return (x >= threshold).to(x.dtype)
    return torch.ge(x, threshold, out=torch.empty_like(x) if out is None else out)


@functools.lru_cache(maxsize=256)
def _open_interval(low: float, high: float, dtype: torch.dtype) -> tuple[float, float]:
    """The open interval (a, b) that holds the same numbers of the dtype as [low, high)."""
    below = torch.tensor(-math.inf, dtype=dtype)
    return torch.tensor(low, dtype=dtype).nextafter(below).item(), torch.tensor(high, dtype=dtype).item()


def known(value: Number) -> Number:
    """The number in a tensor of one element, where it can be had for nothing; else the tensor.

    To look at a tensor on an accelerator would wait for it, and would break a compiled graph.
    """
    if isinstance(value, Tensor) and not torch.compiler.is_compiling() and value.device.type == "cpu":
        return value.item() if value.numel() == 1 else value
    return value


def collapse(std: Number, hard: Callable[[], Tensor], smooth: Callable[[], Tensor]) -> Tensor:
    """`hard()` where std is 0 and `smooth()` elsewhere; only one of them is computed where std is known."""
    std = known(std)
    if isinstance(std, Tensor):
        return torch.where(std > NEGLIGIBLE, smooth(), hard())
    return smooth() if std > NEGLIGIBLE else hard()


def all_hold(value: Number, holds: Callable[[Any], Any]) -> bool:
    """Whether `holds` is true of a number or of every number in a tensor; of one without values (meta) it is."""
    if isinstance(value, Tensor):
        return value.is_meta or bool(holds(value).all())
    try:
        return bool(holds(float(value)))
    except (TypeError, ValueError):
        raise TypeError(f"expected a number or a tensor, got {value!r}") from None


def shown(value: Number) -> str:
    """A number, or the range of a tensor's, in four digits."""
    if isinstance(value, Tensor) and value.is_meta:
        return "?"
    if isinstance(value, Tensor) and value.numel() != 1:
        low, high = value.aminmax()
        return f"{low:.4g}..{high:.4g}, {tuple(value.shape)}"
    return f"{float(value):.4g}"
