"""What every operation answers: the values it reads, what its result is, and what it costs."""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
from typing_extensions import override

from lehr.deploy.values import Value, Weights


@dataclass(frozen=True, eq=False)
class Operation(ABC):
    """One step. Its result is the value called `name`."""

    name: str

    @property
    @abstractmethod
    def sources(self) -> tuple[str, ...]:
        """The values it reads."""

    @abstractmethod
    def infer(self, *inputs: Value) -> Value:
        """What its result is, given what its sources are; raises ValueError where they do not fit."""

    @property
    def weights(self) -> Weights | np.ndarray | None:
        """Its weights, if it has some."""
        return None

    def macs(self, result: Value) -> int:
        """Multiply-accumulates for one image."""
        weights = self.weights
        if weights is None:
            return 0
        shape = weights.codes.shape if isinstance(weights, Weights) else weights.shape
        return math.prod(shape[1:]) * result.size

    @property
    def bytes(self) -> int:
        """Size of its constants in a packed file."""
        weights = self.weights
        if isinstance(weights, Weights):
            return weights.packed_bytes
        arrays = (getattr(self, x.name) for x in dataclasses.fields(self))
        return sum(x.nbytes for x in arrays if isinstance(x, np.ndarray))


@dataclass(frozen=True, eq=False)
class Unary(Operation):
    """An operation that reads one value."""

    source: str

    @property
    @override
    def sources(self) -> tuple[str, ...]:
        return (self.source,)


def check_channels(name: str, what: str, channels: int, x: Value) -> None:
    """Raise ValueError if constants are not for as many channels as `x` has."""
    if channels != x.shape[0]:
        raise ValueError(f"{name}: {what} for {channels} channels, its source has {x.shape[0]}")
