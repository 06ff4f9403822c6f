"""The blocks of a sequential model: which activation stands before which layer.

Some methods binarize a layer's input inside the layer, move pools, or put branches beside a layer; they must know what
comes after what. Of any `nn.Module` that is not known before it runs, of a sequence it is: the model's own children in
their order, with `nn.Sequential`s in place of what they hold. That covers `MLP`, `VGG`, `AlexNet` and what users write
as sequences.

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
from lehr.layers import AbstractQuantizer, Conv1d, Conv2d, Conv3d, Linear

Layer = nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d
LAYERS: tuple[type[nn.Module], ...] = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
QUANTIZED: dict[type[nn.Module], type[nn.Module]] = dict(zip(LAYERS, (Linear, Conv1d, Conv2d, Conv3d), strict=True))


@dataclass(frozen=True, eq=False)
class Place:
    """Where a module stands: `parent` holds it under `name`."""

    parent: nn.Module
    name: str
    path: str

    @property
    def module(self) -> nn.Module:
        """What stands there now."""
        return self.parent.get_submodule(self.name)

    def put(self, module: nn.Module) -> None:
        """Put `module` there, in the mode of what it replaces."""
        setattr(self.parent, self.name, module.train(self.module.training))


@dataclass(frozen=True, eq=False)
class Block:
    """An inner layer, the activation before it, all that stands between it and the layers before and after."""

    layer: Place
    activation: Place
    between: tuple[Place, ...]
    after: tuple[Place, ...]


def inner_blocks(model: nn.Module, method: str) -> list[Block]:
    """The layers between the first and the last, with what stands before each; ValueError if `model` has none."""
    places = list(_places(model, "", method))
    layers = [index for index, place in enumerate(places) if isinstance(place.module, LAYERS)]
    if len(layers) < 3:
        raise ValueError(
            f"{method} leaves the first and the last layer in full precision: it needs more, got {len(layers)} layers"
        )
    blocks = []
    for before, index, following in zip(layers, layers[1:], layers[2:], strict=False):
        layer, between = places[index], places[before + 1 : index]
        if type(layer.module) not in LAYERS:
            raise ValueError(
                f"{method} converts layers of torch, but {layer.path} is a {type(layer.module).__name__}: "
                "what a subclass computes is its own"
            )
        if sum(place.module is layer.module for place in places) > 1:
            raise ValueError(f"{method} converts a layer with the activation before it, but {layer.path} is used twice")
        activations = [place for place in between if isinstance(place.module, ACTIVATIONS)]
        if not activations:
            raise ValueError(
                f"{method} binarizes the input of {layer.path}, but no activation module stands before it: calls such "
                "as torch.relu(x) inside a forward cannot be seen, make them modules"
            )
        blocks.append(Block(layer, activations[-1], tuple(between), tuple(places[index + 1 : following])))
    return blocks


def become_(layer: nn.Module, kinds: Mapping[type[nn.Module], type[nn.Module]]) -> None:
    """Make the layer one of the kind that `kinds` has for its own: the same object, parameters and hooks."""
    layer.__class__ = kinds[type(layer)]


def reporter(model: nn.Module, blocks: list[Block]) -> Callable[[Mapping[str, str]], Conversion]:
    """Notes what stands where now; what it gives tells, when the blocks are converted, what became of it.

    That takes what is to be said of some of the places, by path.
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
                f"{method} needs a sequence of layers, but {place.path} is a {type(child).__name__}, whose parts may "
                "be joined in any way: make it an nn.Sequential, or use a method that converts any model, such as ANA"
            )
