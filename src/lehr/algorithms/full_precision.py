"""The baseline: the float network as it is."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from lehr.algorithms.algorithm import Algorithm


@dataclass(frozen=True)
class FullPrecision(Algorithm):
    """No quantization: what the others are compared with."""

    def convert_(self, model: nn.Module, *, trained: bool = False) -> None:
        """Leave the model alone."""
