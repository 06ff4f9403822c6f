"""What a network may say of itself, by having one of these properties.

A network that says nothing is quantized whole, and each of its layers anneals on its own.

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
    """A network of which a recipe quantizes a part and leaves the rest in full precision."""

    @property
    def quantized_part(self) -> nn.Module:
        """A module that holds the part; it is converted in place."""
        ...


def quantized_part(model: nn.Module) -> nn.Module:
    """Return what of `model` a recipe's algorithm converts: the part it names, or all of it."""
    return model.quantized_part if isinstance(model, QuantizedInPart) else model
