"""The network of a recipe: a class, and the settings its constructor gets beside what the data says.

lehr's own networks have short names; any other `torch.nn.Module` is named by its import path, or given as the class:

>>> Model("mlp", hidden=(64, 64)).settings
{'hidden': (64, 64), 'width': 1.0, 'input_bits': None}
>>> Model("mlp") == Model("lehr.models.MLP") == Model(models.MLP)
True

The constructor takes four arguments by name that no recipe sets, since they come from the data: `shape`, one image as
(channels, height, width); `classes`, how many there are; `mean` and `std`, one number for each channel, of pixels
between 0 and 1. The network gets uint8 images (batch, *shape) and normalises them itself, as `lehr.models.Input` does.
"""

from __future__ import annotations

import inspect
import math
import pkgutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from lehr import models

FROM_DATA = ("shape", "classes", "mean", "std")
NETWORKS: dict[str, type[nn.Module]] = {
    "mlp": models.MLP,
    "vgg": models.VGG,
    "alexnet": models.AlexNet,
    "mobilenet-v2": models.MobileNetV2,
}


@dataclass(frozen=True, init=False)
class Model:
    """A network that is still to be built.

    Args:
        network: its class; or the class's import path, or a short name of `NETWORKS`
        settings: what else its constructor gets; every argument that is left out has its default
    """

    kind: type[nn.Module]
    settings: Mapping[str, Any]

    def __init__(self, network: str | type[nn.Module], **settings: Any) -> None:
        kind = network_class(network)
        given = {key: tuple(value) if isinstance(value, list) else value for key, value in settings.items()}
        for key, value in given.items():
            if isinstance(value, float) and not math.isfinite(value):
                raise ValueError(f"model.{key} must be finite, got {value}")
        unknown = [] if _takes_anything(kind) else sorted(given.keys() - settings_of(kind).keys())
        if unknown:
            takes = ", ".join(settings_of(kind)) or "none"
            raise ValueError(f"{kind.__name__} has no setting {', '.join(unknown)}; it takes {takes}")
        missing = [key for key, default in settings_of(kind).items() if default is inspect.Parameter.empty]
        missing = [key for key in missing if key not in given]
        if missing:
            raise ValueError(f"{kind.__name__} needs a value for {', '.join(missing)}")
        object.__setattr__(self, "kind", kind)
        object.__setattr__(self, "settings", settings_of(kind) | given)

    def __hash__(self) -> int:
        return hash((self.kind, *self.settings))  # a value may be a list of lists, which has none

    @property
    def name(self) -> str:
        """The short name of one of lehr's networks, or the name of the class."""
        return next((name for name, kind in NETWORKS.items() if kind is self.kind), self.kind.__name__)

    @property
    def changed(self) -> dict[str, Any]:
        """The settings that differ from the constructor's defaults."""
        defaults = settings_of(self.kind)
        return {key: value for key, value in self.settings.items() if key not in defaults or value != defaults[key]}

    def build(self, shape: Sequence[int], classes: int, mean: Sequence[float], std: Sequence[float]) -> nn.Module:
        """Return the network in full precision, for images of this shape and normalisation."""
        return self.kind(shape=shape, classes=classes, mean=mean, std=std, **self.settings)


def network_class(network: str | type[nn.Module]) -> type[nn.Module]:
    """Return the class of a network, which is imported if it is given by its path.

    This is the only place where lehr imports the class of a network.
    """
    kind: Any = network
    if isinstance(network, str):
        hint = f"there are {', '.join(NETWORKS)}, and classes of your own by their import paths"
        names = {spelling: kind for name, kind in NETWORKS.items() for spelling in (name, kind.__name__)}
        if network in names:
            return names[network]
        if "." not in network or not all(part.isidentifier() for part in network.split(".")):
            raise ValueError(f"no network is called {network!r}; {hint}")
        try:
            kind = pkgutil.resolve_name(network)
        except (ImportError, AttributeError, ValueError) as error:
            raise ValueError(f"the network {network} cannot be imported: {error}; {hint}") from error
    if not isinstance(kind, type) or not issubclass(kind, nn.Module):
        raise ValueError(f"a network is a subclass of torch.nn.Module, got {network!r}")
    lacking = [] if _takes_anything(kind) else [name for name in FROM_DATA if name not in _parameters(kind)]
    if lacking:
        raise ValueError(
            f"{kind.__name__} cannot be built for a data set: its constructor must take {', '.join(FROM_DATA)} by "
            f"name, and lacks {', '.join(lacking)}"
        )
    return kind


def settings_of(kind: type[nn.Module]) -> dict[str, Any]:
    """Return the settings that a network's constructor names, with their defaults."""
    named = {key: parameter for key, parameter in _parameters(kind).items() if key not in FROM_DATA}
    defaults = {key: parameter.default for key, parameter in named.items()}
    return {key: tuple(value) if isinstance(value, list) else value for key, value in defaults.items()}


def flags_of(kind: type[nn.Module]) -> set[str]:
    """Return the settings that are true or false."""
    return {key for key, parameter in _parameters(kind).items() if parameter.annotation in (bool, "bool")}


def is_made_for_data(kind: type) -> bool:
    """Return whether it is a network whose constructor, or that of a class it extends, names what comes from data."""
    return issubclass(kind, nn.Module) and any(
        _parameters(base).keys() >= set(FROM_DATA) for base in kind.__mro__ if issubclass(base, nn.Module)
    )


def _parameters(kind: type[nn.Module]) -> dict[str, inspect.Parameter]:
    by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return {key: found for key, found in inspect.signature(kind).parameters.items() if found.kind in by_name}


def _takes_anything(kind: type[nn.Module]) -> bool:
    """Whether the constructor passes what it does not know on to another."""
    return any(found.kind is found.VAR_KEYWORD for found in inspect.signature(kind).parameters.values())
