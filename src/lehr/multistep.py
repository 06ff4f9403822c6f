"""Multi-step functions (eq. 4), which quantize a number.

A multi-step function with thresholds θ_1 < ... < θ_K and levels q_0 < q_1 < ... < q_K climbs from level to level::

    σ(x) = q_0 + Σ_k δq_k H(x - θ_k),    δq_k = q_k - q_{k-1},    H(0) = 1

so x = θ_k goes up. Python, ONNX and C share this definition of ties.

>>> import torch
>>> ternary = MultiStep.ternary()
>>> ternary(torch.tensor([-0.7, -0.5, 0.2, 0.5]))
tensor([-1.,  0.,  0.,  1.])
>>> MultiStep(thresholds=(0.5, 1.5, 3.0), levels=(0, 1, 2, 4)).jumps
(1.0, 1.0, 2.0)
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from lehr import fast


@dataclass(frozen=True)
class MultiStep:
    """The function of eq. 4 with K strictly increasing thresholds and K + 1 strictly increasing levels.

    A call returns the values in the tensor's dtype; NaN stays NaN. Thresholds are compared in that dtype, but half
    precision in float32, so that every device agrees. The values have no gradient: use `lehr.quantize` for one.
    """

    thresholds: tuple[float, ...]
    levels: tuple[float, ...]

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
        """Return the levels of a `bits` wide integer times `step`, with thresholds half-way between them.

        Args:
            bits: 1 to 8.
            signed: whether the integers are signed.
            step: the distance of the levels.

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

    def __call__(self, x: Tensor) -> Tensor:
        """Return σ(x), elementwise."""
        x = x.detach() if x.is_floating_point() else x.to(torch.get_default_dtype())
        if x.dtype in (torch.float16, torch.bfloat16):
            return self(x.float()).to(x.dtype)
        quick = fast.staircase(x, self.thresholds, self.levels)
        if quick is not None:
            return quick
        # The sum of level * [x is at this level] is exact, and compiles to faster code than conditions. The clamp is 0,
        # and NaN for NaN.
        above = [torch.ones_like(x), *((x >= threshold).to(x.dtype) for threshold in self.thresholds)]
        y = x.clamp(0, 0) + self.levels[-1] * above[-1]
        for level, (here, higher) in zip(self.levels, itertools.pairwise(above), strict=False):
            y = y + level * (here - higher)
        return y

    def codes(self, x: Tensor) -> Tensor:
        """Return the index of the level of each x: uint8, or int32 for more than 256 levels."""
        thresholds = torch.tensor(self.thresholds, dtype=x.dtype, device=x.device)
        codes = torch.bucketize(x.contiguous(), thresholds, right=True, out_int32=True)
        return codes.to(torch.uint8) if len(self.levels) <= 256 else codes

    def __str__(self) -> str:
        return f"{_short(self.levels)} at {_short(self.thresholds)}"


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
    """Return the values as text; of a long tuple only the ends, so that an error or a repr stays one line."""
    shown = [f"{value:g}" for value in values]
    if len(shown) > 9:
        shown = [*shown[:4], "...", *shown[-4:]]
    return f"({', '.join(shown)})"
