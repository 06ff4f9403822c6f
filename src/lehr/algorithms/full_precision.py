"""The baseline: the float network as it is."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from lehr.algorithms.algorithm import Algorithm
from lehr.algorithms.description import FLOATS, Description


@dataclass(frozen=True)
class FullPrecision(Algorithm):
    """No quantization: what the others are compared with."""

    def describe(self) -> Description:
        """Nothing is quantized."""
        return Description("full precision", weights=FLOATS, activations=FLOATS, end_layers="neither", becomes="floats")

    def convert_(self, model: nn.Module, *, trained: bool = False) -> None:
        """Leave the model alone."""
