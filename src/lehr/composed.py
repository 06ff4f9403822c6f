"""Layers that are trained as one and deployed as several.

ABC-Net's layer is a sum of binary ones: it trains as one module and runs on a device as the layers it is a sum of.
Whatever counts, freezes or checks a network looks at `taken_apart(model)`.
"""

from __future__ import annotations

import abc
import copy

from torch import nn


class Composed(nn.Module, abc.ABC):
    """A layer that is trained as one and deployed as several: `taken_apart` puts these in its place."""

    @abc.abstractmethod
    def parts(self) -> nn.Module:
        """A module of layers and quantizers that computes the same in eval mode, up to rounding."""


def taken_apart(model: nn.Module) -> nn.Module:
    """A copy of the model with the parts of each `Composed` layer in its place."""
    model = copy.deepcopy(model)
    if isinstance(model, Composed):
        return model.parts().train(model.training)
    parts: dict[nn.Module, nn.Module] = {}  # a layer used at several places stays one
    for path, module in list(model.named_modules(remove_duplicate=False)):
        if isinstance(module, Composed):
            parent, _, name = path.rpartition(".")
            if module not in parts:
                parts[module] = module.parts().train(module.training)
            setattr(model.get_submodule(parent), name, parts[module])
    return model
