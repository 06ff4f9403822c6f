"""The blocks of a sequential model: which activation comes before which layer.

Some methods binarize a layer's input inside the layer, move pools, or put branches beside a layer; they must know the
order of modules. For a general `nn.Module` it is unknown until it runs; for a sequence it is the order of its children,
with nested `nn.Sequential`s flattened. That covers `MLP`, `VGG`, `AlexNet` and users' sequential models.

>>> from torch import nn
>>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
>>> [(block.activation.path, block.layer.path) for block in inner_blocks(model, "XNOR-Net")]
[('1', '2')]
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from torch import nn

from lehr.convert import ACTIVATIONS, Change, Conversion
from lehr.layers import Conv1d, Conv2d, Conv3d, Linear
from lehr.quantizer import AbstractQuantizer

Layer = nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d
LAYERS: tuple[type[nn.Module], ...] = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
QUANTIZED: dict[type[nn.Module], type[nn.Module]] = dict(zip(LAYERS, (Linear, Conv1d, Conv2d, Conv3d), strict=True))


@dataclass(frozen=True, eq=False)
class Place:
    """The place of a module: `parent` has it under `name`."""

    parent: nn.Module
    name: str
    path: str

    @property
    def module(self) -> nn.Module:
        """The module at this place now."""
        return self.parent.get_submodule(self.name)

    def put(self, module: nn.Module) -> None:
        """Replace the module at this place by `module`, in the same mode (training or not)."""
        setattr(self.parent, self.name, module.train(self.module.training))


@dataclass(frozen=True, eq=False)
class Block:
    """An inner layer, the activation before it, and all modules between it and the layers before and after."""

    layer: Place
    activation: Place
    between: tuple[Place, ...]
    after: tuple[Place, ...]


def inner_blocks(model: nn.Module, method: str) -> list[Block]:
    """Return the blocks of the layers between the first and the last.

    Args:
        model: the network.
        method: the name of the algorithm, for error messages.

    Raises:
        ValueError: if the model is not sequential, or a layer cannot be converted.
    """
    places = list(_places(model, "", method))
    layers = [index for index, place in enumerate(places) if isinstance(place.module, LAYERS)]
    if len(layers) < 3:
        raise ValueError(
            f"{method} leaves the first and the last layer in full precision: it needs at least 3 layers, got "
            f"{len(layers)}"
        )
    blocks = []
    for before, index, following in zip(layers, layers[1:], layers[2:], strict=False):
        layer, between = places[index], places[before + 1 : index]
        if type(layer.module) not in LAYERS:
            raise ValueError(
                f"{method} converts torch's layers, but {layer.path} is a {type(layer.module).__name__}, which may "
                "compute something else: use the torch layer"
            )
        if sum(place.module is layer.module for place in places) > 1:
            raise ValueError(f"{method} converts a layer with the activation before it, but {layer.path} is used twice")
        activations = [place for place in between if isinstance(place.module, ACTIVATIONS)]
        if not activations:
            raise ValueError(
                f"{method} binarizes the input of {layer.path}, but there is no activation module before it: replace "
                "calls such as torch.relu(x) inside a forward by modules"
            )
        blocks.append(Block(layer, activations[-1], tuple(between), tuple(places[index + 1 : following])))
    return blocks


def become_(layer: nn.Module, kinds: Mapping[type[nn.Module], type[nn.Module]]) -> None:
    """Change the class of a layer to the one that `kinds` has for it; object, parameters and hooks stay the same."""
    layer.__class__ = kinds[type(layer)]


def reporter(model: nn.Module, blocks: list[Block]) -> Callable[[Mapping[str, str]], Conversion]:
    """Return a function that reports how the blocks were converted; call `reporter` before the conversion.

    The function takes notes on some modules, by path, for the column "why".
    """
    kinds = (*LAYERS, *ACTIVATIONS)
    before = {path: type(module).__name__ for path, module in model.named_modules() if isinstance(module, kinds)}
    layers = [path for path, module in model.named_modules() if isinstance(module, LAYERS)]
    stay = dict.fromkeys(before, "its layer stays") | {layers[0]: "first layer", layers[-1]: "last layer"}
    converted = {place.path for block in blocks for place in (block.layer, block.activation)}

    def report(notes: Mapping[str, str]) -> Conversion:
        now = dict(model.named_modules())
        changes = []
        for path, was in before.items():
            module = now.get(path)
            if path not in converted:
                changes.append(Change(path, was, "kept", None, stay[path]))
            elif module is None:
                changes.append(Change(path, was, "moved", None, notes[path]))
            else:
                quantizer = module._modules.get("quantizer", module)
                levels = len(quantizer.levels) if isinstance(quantizer, AbstractQuantizer) else None
                changes.append(Change(path, was, type(module).__name__, levels, notes.get(path, "")))
        return Conversion(tuple(changes))

    return report


def _places(module: nn.Module, prefix: str, method: str) -> Iterator[Place]:
    for name, child in module._modules.items():
        if child is None:
            continue
        place = Place(module, name, f"{prefix}{name}")
        if isinstance(child, nn.Sequential):
            yield from _places(child, f"{place.path}.", method)
        elif isinstance(child, LAYERS) or not any(True for _ in child.children()):
            yield place
        else:
            raise ValueError(
                f"{method} needs a sequence of layers, but the order of the parts of {place.path}, a "
                f"{type(child).__name__}, is unknown: make it an nn.Sequential, or use a method for any model, such as "
                "ANA"
            )
