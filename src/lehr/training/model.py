"""The network of a recipe: a class, and the settings that its constructor gets.

lehr's networks have short names; any other `torch.nn.Module` is named by its import path, or given as the class:

>>> Model("mlp", hidden=(64, 64)).settings
{'hidden': (64, 64), 'width': 1.0, 'input_bits': None}
>>> Model("mlp") == Model("lehr.models.MLP") == Model(models.MLP)
True

The constructor also takes four keyword arguments that come from the data, not from the recipe: `shape`, the
(channels, height, width) of an image; `classes`, their number; `mean` and `std`, one number per channel, of pixels
between 0 and 1. The network gets uint8 images (batch, *shape) and normalises them itself, as `lehr.models.Input` does.
Of signals, `shape` is (channels, times), `mean` and `std` are those of the signals, and the network gets float32 and
normalises it itself, as `lehr.models.SignalInput` does.
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
    "resnet": models.ResNet,
    "airbench": models.AirBench,
    "signal-net": models.SignalNet,
    "ds-cnn": models.DSCNN,
    "mobilenet-v1": models.MobileNetV1,
}


@dataclass(frozen=True, init=False)
class Model:
    """The class and the settings of a network; `build` builds it.

    Args:
        network: its class, the import path of its class, or a short name of `NETWORKS`
        settings: keyword arguments of its constructor; the others have their defaults
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
        return hash((self.kind, *self.settings))  # names only: a value may be a list, which has no hash

    @property
    def name(self) -> str:
        """The short name if it is one of lehr's networks, else the name of the class."""
        return next((name for name, kind in NETWORKS.items() if kind is self.kind), self.kind.__name__)

    @property
    def changed(self) -> dict[str, Any]:
        """The settings that differ from the constructor's defaults."""
        defaults = settings_of(self.kind)
        return {key: value for key, value in self.settings.items() if key not in defaults or value != defaults[key]}

    def build(self, shape: Sequence[int], classes: int, mean: Sequence[float], std: Sequence[float]) -> nn.Module:
        """Build the network in full precision.

        Args:
            shape: of an image: (channels, height, width), or of a signal: (channels, times)
            classes: the number of classes
            mean: of the pixels, between 0 and 1, or of the signals, for each channel
            std: of the same, for each channel
        """
        return self.kind(shape=shape, classes=classes, mean=mean, std=std, **self.settings)


def network_class(network: str | type[nn.Module]) -> type[nn.Module]:
    """Return the class of a network; this is the only place where lehr imports one by its path."""
    kind: Any = network
    if isinstance(network, str):
        hint = f"choose {', '.join(NETWORKS)}, or give the import path of your own class"
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
    """Return the settings of a network's constructor and their defaults."""
    named = {key: parameter for key, parameter in _parameters(kind).items() if key not in FROM_DATA}
    defaults = {key: parameter.default for key, parameter in named.items()}
    return {key: tuple(value) if isinstance(value, list) else value for key, value in defaults.items()}


def flags_of(kind: type[nn.Module]) -> set[str]:
    """Return the settings that are true or false."""
    return {key for key, parameter in _parameters(kind).items() if parameter.annotation in (bool, "bool")}


def is_made_for_data(kind: type) -> bool:
    """Return whether `kind` is a network whose constructor, or a base class's, has all of `FROM_DATA`."""
    return issubclass(kind, nn.Module) and any(
        _parameters(base).keys() >= set(FROM_DATA) for base in kind.__mro__ if issubclass(base, nn.Module)
    )


def _parameters(kind: type[nn.Module]) -> dict[str, inspect.Parameter]:
    by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return {key: found for key, found in inspect.signature(kind).parameters.items() if found.kind in by_name}


def _takes_anything(kind: type[nn.Module]) -> bool:
    """Return whether the constructor has **kwargs."""
    return any(found.kind is found.VAR_KEYWORD for found in inspect.signature(kind).parameters.values())
