"""Multi-step functions (eq. 4): what quantizes a number.

A multi-step function with thresholds θ_1 < ... < θ_K and levels q_0 < q_1 < ... < q_K climbs from level to level::

    σ(x) = q_0 + Σ_k δq_k H(x - θ_k),    δq_k = q_k - q_{k-1},    H(0) = 1

so x >= θ_k goes up: this line is the one definition of the ties that Python, ONNX and C share.

>>> import torch
>>> ternary = MultiStep.ternary()
>>> ternary(torch.tensor([-0.7, -0.5, 0.2, 0.5]))
tensor([-1.,  0.,  0.,  1.])
>>> MultiStep(thresholds=(0.5, 1.5, 3.0), levels=(0, 1, 2, 4)).jumps
(1.0, 1.0, 2.0)
"""

from __future__ import annotations

import functools
import itertools
import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

# Up to this many thresholds, comparing with each beats the binary search of torch.bucketize.
_COMPARED = 32


@dataclass(frozen=True)
class MultiStep:
    """The function of eq. 4 with K strictly increasing thresholds and K + 1 strictly increasing levels.

    Calling it gives the value in the tensor's dtype; NaN stays NaN. Thresholds are compared in that dtype too, but half
    precision is compared in single, so that every device agrees. The value carries no gradient: that is what
    `lehr.quantize` adds.
    """

    thresholds: tuple[float, ...]
    levels: tuple[float, ...]
    adds_up: bool = field(init=False, repr=False, compare=False)
    """Whether q_0 + δq_1 + ... + δq_k in single precision is exactly q_k."""

    def __post_init__(self) -> None:
        for name in ("thresholds", "levels"):
            values = _numbers(getattr(self, name), name)
            object.__setattr__(self, name, values)
            if any(a >= b for a, b in itertools.pairwise(values)):
                raise ValueError(f"{name} must be strictly increasing, got {_short(values)}")
        if not self.thresholds:
            raise ValueError("a multi-step function needs at least one threshold, got none")
        if len(self.levels) != len(self.thresholds) + 1:
            raise ValueError(
                f"a step function with {len(self.thresholds)} thresholds needs {len(self.thresholds) + 1} levels, "
                f"got {len(self.levels)}: {_short(self.levels)}"
            )
        singles = all(_single(number) == number for number in self.levels + self.jumps)
        climbs = zip(self.levels, self.jumps, self.levels[1:], strict=False)
        object.__setattr__(self, "adds_up", singles and all(_single(a + jump) == b for a, jump, b in climbs))

    @classmethod
    def ternary(cls) -> MultiStep:
        """Levels {-1, 0, +1} with thresholds -0.5 and +0.5: the paper's quantizer everywhere."""
        return cls((-0.5, 0.5), (-1.0, 0.0, 1.0))

    @classmethod
    def sign(cls) -> MultiStep:
        """Levels {-1, +1} with threshold 0; sign(0) = +1."""
        return cls((0.0,), (-1.0, 1.0))

    @classmethod
    def heaviside(cls) -> MultiStep:
        """Levels {0, 1} with threshold 0; H(0) = 1."""
        return cls((0.0,), (0.0, 1.0))

    @classmethod
    def uniform(cls, bits: int, signed: bool = True, step: float = 1.0) -> MultiStep:
        """The 2**bits levels of a `bits` wide integer times `step`, thresholds half-way between them.

        >>> MultiStep.uniform(2, signed=True, step=0.5).levels
        (-1.0, -0.5, 0.0, 0.5)
        """
        if not 1 <= bits <= 8:
            raise ValueError(f"bits must be between 1 and 8, got {bits}")
        if not (math.isfinite(step) and step > 0):
            raise ValueError(f"step must be positive and finite, got {step}")
        lowest = -(2 ** (bits - 1)) if signed else 0
        codes = range(lowest, lowest + 2**bits)
        return cls(tuple((code - 0.5) * step for code in codes[1:]), tuple(code * step for code in codes))

    @property
    def jumps(self) -> tuple[float, ...]:
        """δq_k = q_k - q_{k-1}, for k = 1..K."""
        return tuple(b - a for a, b in itertools.pairwise(self.levels))

    def __call__(self, x: Tensor, out: Tensor | None = None) -> Tensor:
        """σ(x), elementwise, in `out` if it is given."""
        x = x.detach() if x.is_floating_point() else x.to(torch.get_default_dtype())
        if x.dtype in (torch.float16, torch.bfloat16):
            return self(x.float()).to(x.dtype) if out is None else out.copy_(self(x.float()))
        if len(self.thresholds) > _COMPARED:
            tables = _tables.__wrapped__ if torch.compiler.is_compiling() else _tables
            thresholds, levels = tables(self, x.dtype, x.device)
            index = torch.bucketize(x.contiguous(), thresholds, right=True, out_int32=True)
            return torch.where(x.isnan(), x, levels[index], out=out)
        if torch.compiler.is_compiling() or x.device.type != "cpu":
            y = torch.where(x < self.thresholds[0], self.levels[0], x)  # NaN is on no side of a threshold: it stays
            for threshold, level in zip(self.thresholds, self.levels[1:], strict=True):
                y = torch.where(x >= threshold, level, y)
            return y
        # Selecting is many times slower on a CPU than adding floats. The clamps are a level that carries NaN on.
        if self.adds_up:
            y, above = torch.clamp(x, self.levels[0], self.levels[0], out=out), torch.empty_like(x)
            for threshold, jump in zip(self.thresholds, self.jumps, strict=True):
                y.add_(torch.ge(x, threshold, out=above), alpha=jump)
            return y
        # Each x is at exactly one level, so the sum of level * [x is there] is exact for any levels.
        y = torch.clamp(x, 0, 0, out=out)
        there, spare = torch.ones_like(x), torch.empty_like(x)
        for threshold, level in zip(self.thresholds, self.levels, strict=False):
            above = torch.ge(x, threshold, out=spare)
            y = y.add_(there.sub_(above), alpha=level) if level else y
            there, spare = above, there
        return y.add_(there, alpha=self.levels[-1])

    def __str__(self) -> str:
        return f"{_short(self.levels)} at {_short(self.thresholds)}"


@functools.lru_cache(maxsize=256)
def _tables(step: MultiStep, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """Thresholds and levels on the device, made once: a copy to the device at each call would wait for it."""
    kind = {"dtype": dtype, "device": device}
    return torch.tensor(step.thresholds, **kind), torch.tensor(step.levels, **kind)


def _single(number: float) -> float:
    """Rounded to the 24 bits of single precision, by Veltkamp's splitting; NaN beyond its range."""
    shifted = number * (2.0**29 + 1)
    return shifted - (shifted - number) if number == 0 or 1e-37 < abs(number) < 1e38 else math.nan


def _numbers(values: object, name: str) -> tuple[float, ...]:
    if isinstance(values, Tensor):
        values = values.tolist()
    try:
        numbers = tuple(float(value) for value in values)  # pyright: ignore[reportGeneralTypeIssues]
    except (TypeError, ValueError):
        raise TypeError(f"{name} must be a sequence of numbers, got {values!r}") from None
    if not all(math.isfinite(number) for number in numbers):
        raise ValueError(f"{name} must be finite, got {_short(numbers)}")
    return numbers


def _short(values: tuple[float, ...]) -> str:
    """All values of a short tuple; the ends of a long one, so that an error or a repr stays one line."""
    shown = [f"{value:g}" for value in values]
    if len(shown) > 9:
        shown = [*shown[:4], "...", *shown[-4:]]
    return f"({', '.join(shown)})"
