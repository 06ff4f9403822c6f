"""Optional properties of a network: which part is quantized, and which modules anneal together.

A network without them is quantized as a whole, and its layers anneal separately.

>>> from torch import nn
>>> class Tail(nn.Module):
...     def __init__(self) -> None:
...         super().__init__()
...         self.body, self.head = nn.Linear(4, 4), nn.Linear(4, 2)
...
...     @property
...     def quantized_part(self) -> nn.Module:
...         return self.body
>>> quantized_part(Tail())
Linear(in_features=4, out_features=4, bias=True)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from torch import nn


@runtime_checkable
class AnnealedInGroups(Protocol):
    """A network with modules whose noise decays together, as if they were one layer."""

    @property
    def annealing_groups(self) -> Sequence[Sequence[str]]:
        """The paths of the modules of each group; quantizers outside all groups anneal layer by layer."""
        ...


@runtime_checkable
class QuantizedInPart(Protocol):
    """A network that is only partly quantized by a recipe."""

    @property
    def quantized_part(self) -> nn.Module:
        """A module that contains the part to quantize; it is converted in place."""
        ...


def quantized_part(model: nn.Module) -> nn.Module:
    """Return the part of `model` that a recipe's algorithm converts: its `quantized_part`, or all of it."""
    return model.quantized_part if isinstance(model, QuantizedInPart) else model
