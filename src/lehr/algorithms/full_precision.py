"""The baseline: the unchanged float network."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from lehr.algorithms.algorithm import Algorithm
from lehr.algorithms.description import FLOATS, Description


@dataclass(frozen=True)
class FullPrecision(Algorithm):
    """No quantization: the baseline for the others."""

    def describe(self) -> Description:
        """Return its row of a table."""
        return Description("full precision", weights=FLOATS, activations=FLOATS, end_layers="neither", becomes="floats")

    def convert_(self, model: nn.Module, *, trained: bool = False) -> None:
        """Leave the model unchanged."""
