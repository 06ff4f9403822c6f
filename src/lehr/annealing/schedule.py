"""Schedules say when the noise of each layer decays, laws say how; both are values that know no model.

The paper's schedules are `Hierarchical`: layer l = 1..L decays over [d(l-1), dl], or with a delay (AlexNet) over
[d(l-1) + delay, dl + delay].

>>> [str(window) for window in Hierarchical(duration=10, delay=5).windows(3)]
['[5, 15]', '[15, 25]', '[25, 35]']
>>> LinearDecay()(0.25), PowerDecay(2)(0.5)
(0.75, 0.25)
"""

from __future__ import annotations

import abc
import itertools
import math
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Law(abc.ABC):
    """A decay from 1 to `final` as progress goes from 0 to 1.

    Args:
        final: the factor at the end
    """

    final: float = field(default=0.0, kw_only=True)

    def __post_init__(self) -> None:
        if not 0 <= self.final < math.inf:
            raise ValueError(f"final must be finite and not negative, got {self.final}")

    def __call__(self, progress: float) -> float:
        """Return the factor at `progress`, which is clamped to [0, 1]."""
        shape = self.shape(min(max(progress, 0.0), 1.0))
        return self.final + (1 - self.final) * shape

    @abc.abstractmethod
    def shape(self, progress: float) -> float:
        """Return the decay before `final` is applied: 1 at progress 0, 0 at progress 1 (but for `Constant`)."""


class LinearDecay(Law):
    """1 - p."""

    def shape(self, progress: float) -> float:
        """Return 1 - p."""
        return 1 - progress


@dataclass(frozen=True)
class PowerDecay(Law):
    """(1 - p)^exponent; PowerDecay() is the paper's quadratic decay.

    Args:
        exponent: positive; 1 is the linear decay
        final: the factor at the end
    """

    exponent: float = 2.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.exponent < math.inf:
            raise ValueError(f"exponent must be positive and finite, got {self.exponent}")

    def shape(self, progress: float) -> float:
        """Return (1 - p)^exponent."""
        return (1 - progress) ** self.exponent


class CosineDecay(Law):
    """(1 + cos πp)/2."""

    def shape(self, progress: float) -> float:
        """Return (1 + cos πp)/2, exactly 0 at the end."""
        return 0.0 if progress == 1 else (1 + math.cos(math.pi * progress)) / 2


class Constant(Law):
    """Always 1: nothing is annealed."""

    def shape(self, progress: float) -> float:
        """Return 1."""
        return 1.0


@dataclass(frozen=True)
class Window:
    """The epochs [start, end] over which a layer's noise decays; in an empty window it drops at once."""

    start: float
    end: float

    def __post_init__(self) -> None:
        if not (0 <= self.start <= self.end < math.inf):
            raise ValueError(f"a window needs 0 <= start <= end, both finite, got [{self.start:g}, {self.end:g}]")

    def progress(self, time: float) -> float:
        """Return the share of the window that has passed at `time`: 0 before it, 1 after it."""
        if time >= self.end:
            return 1.0
        return max(0.0, (time - self.start) / (self.end - self.start)) if time > self.start else 0.0

    def __str__(self) -> str:
        return f"[{self.start:g}, {self.end:g}]"


@dataclass(frozen=True)
class Schedule(abc.ABC):
    """A window for each layer of a model with any number of layers.

    Args:
        duration: d, the epochs in which one layer decays
        delay: the epochs before the first window
    """

    duration: float
    delay: float = 0.0

    def __post_init__(self) -> None:
        for name in ("duration", "delay"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be finite and not negative, got {getattr(self, name)}")

    @abc.abstractmethod
    def windows(self, layers: int) -> list[Window]:
        """Return the windows of `layers` layers, from the first to the last."""


class Hierarchical(Schedule):
    """One layer after the other, as in the paper: layer l over [d(l-1), dl], all shifted by `delay`."""

    def windows(self, layers: int) -> list[Window]:
        """Return [d(l-1), dl] + delay for each layer."""
        edges = [self.delay + self.duration * layer for layer in range(layers + 1)]
        return [Window(start, end) for start, end in itertools.pairwise(edges)]


class LastFirst(Schedule):
    """The windows of `Hierarchical`, from the last layer to the first."""

    def windows(self, layers: int) -> list[Window]:
        """Return [d(L-l), d(L-l+1)] + delay for each layer."""
        return Hierarchical(self.duration, self.delay).windows(layers)[::-1]


class SameStart(Schedule):
    """All layers begin together; layer l ends at dl."""

    def windows(self, layers: int) -> list[Window]:
        """Return [0, dl] + delay for each layer."""
        return [Window(self.delay, window.end) for window in Hierarchical(self.duration, self.delay).windows(layers)]


class SameEnd(Schedule):
    """Layer l begins at d(l-1); all layers end together at dL."""

    def windows(self, layers: int) -> list[Window]:
        """Return [d(l-1), dL] + delay for each layer."""
        windows = Hierarchical(self.duration, self.delay).windows(layers)
        return [Window(window.start, windows[-1].end) for window in windows]


class AllAtOnce(Schedule):
    """All layers decay together over [0, d]."""

    def windows(self, layers: int) -> list[Window]:
        """Return [0, d] + delay for each layer."""
        return [Window(self.delay, self.delay + self.duration)] * layers
