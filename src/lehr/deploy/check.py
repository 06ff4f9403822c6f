"""What will become of a network when it is frozen, told before it is trained: `check`.

>>> import torch, lehr
>>> from torch import nn
>>> layers = nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 10)
>>> model = nn.Sequential(lehr.models.Input((0.5,), (0.5,), bits=8), *layers)
>>> _ = lehr.quantize_(model, skip_last=True)
>>> print(check(model, torch.zeros(1, 1, 8, 8, dtype=torch.uint8)))
layer  becomes   MACs  why
1      integers  1296
4      float     1440  it is not quantized
47.4 % of 2,736 MACs will run as integers; the network freezes
- integers and torch may differ by rounding: (4): computed in float32
"""

from __future__ import annotations

import math
import re
import warnings
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from lehr.composed import taken_apart
from lehr.deploy.converters import CONVERTERS
from lehr.deploy.freeze_errors import FloatWarning, FreezeError
from lehr.deploy.operations import Conv, Linear
from lehr.deploy.trace import Graph
from lehr.deploy.walk import Walk, kind_of
from lehr.quantizer import AbstractQuantizer, Quantizer
from lehr.table import Table, Tabular


@dataclass(frozen=True)
class LayerVerdict:
    """What becomes of a layer, "integers" or "float", of its MACs for one image, and why it is float."""

    layer: str
    becomes: str
    macs: int
    why: str = ""


@dataclass(frozen=True, repr=False)
class Verdict(Tabular):
    """What `check` found; prints as a table and a sentence.

    Args:
        layers: the layers with weights; empty if the network does not freeze
        refused: what cannot be converted: where, why, and what to do
        notes: what else is to be done or known
    """

    layers: tuple[LayerVerdict, ...]
    refused: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def freezes(self) -> bool:
        """Whether nothing is refused."""
        return not self.refused

    @property
    def integer_share(self) -> float:
        """The share of the MACs that run as integers."""
        macs = sum(layer.macs for layer in self.layers)
        integers = sum(layer.macs for layer in self.layers if layer.becomes == "integers")
        return integers / macs if macs else 0.0

    def table(self) -> Table:
        """Return a row for each layer."""
        rows = [(layer.layer, layer.becomes, layer.macs, layer.why) for layer in self.layers]
        return Table(("layer", "becomes", "MACs", "why"), rows)

    def __str__(self) -> str:
        if self.refused:
            return "\n".join(
                ["the network does not freeze yet:", *(f"- {line}" for line in (*self.refused, *self.notes))]
            )
        macs = sum(layer.macs for layer in self.layers)
        total = f"{100 * self.integer_share:.1f} % of {macs:,} MACs will run as integers; the network freezes"
        return "\n".join([str(self.table()), total, *(f"- {line}" for line in self.notes)])

    def __repr__(self) -> str:
        return f"Verdict({'freezes' if self.freezes else 'refused'}, {100 * self.integer_share:.1f} % integers)"


class _FromPixels(nn.Module):
    """Stands for the `lehr.models.Input` that will turn pixels into the input of a model that takes floats."""

    def __init__(self, example: Tensor) -> None:
        super().__init__()
        self.unit = 2.0 ** math.ceil(math.log2(max(float(example.abs().max()), 1e-6) / 127))

    def forward(self, x: Tensor) -> Tensor:
        return (x.float() - 128) * self.unit


@torch.no_grad()
def check(model: nn.Module, example: Tensor) -> Verdict:
    """Say what of a quantized network will run as integers, what stays float, what is refused, and what to do.

    The model may have noise and be in training mode: what counts is how it will be frozen after training.

    Args:
        model: a network that `quantize_` has converted; it is left as it is.
        example: a batch as the model takes it: pixels (uint8), or floats, before which pixels will be prepared.
    """
    if not isinstance(example, Tensor) or not 2 <= example.ndim <= 4 or not len(example):
        raise ValueError(f"example is a batch of images as the model takes them, got {_described(example)}")
    notes = []
    if not any(isinstance(module, AbstractQuantizer) for module in model.modules()):
        notes.append("nothing is quantized: convert the network with lehr.quantize_")
    model = taken_apart(model).cpu().float().eval()
    for module in model.modules():
        if isinstance(module, Quantizer):
            module.forward_std = torch.zeros_like(module.forward_std)
            module.forward_mean = None
    prefix = ""
    if example.dtype != torch.uint8:
        notes.append("the model takes floats: freeze nn.Sequential(lehr.models.Input(...), model), which takes pixels")
        front = _FromPixels(example)
        example, model, prefix = torch.zeros_like(example, dtype=torch.uint8), nn.Sequential(front, model), "1."
        example.flatten()[:2] = torch.tensor([255, 1], dtype=torch.uint8)[: example.numel()]
    elif kind_of(model, CONVERTERS) is not None:
        model, prefix = nn.Sequential(model), "0."
    example = torch.cat([example[:1], example[:1]]).cpu()
    try:
        walk = Walk(Graph(model, example, lambda module: kind_of(module, CONVERTERS) is not None), example, CONVERTERS)
        refused = [str(error) for error in walk.refusals()]
        if refused:
            return Verdict((), tuple(_shorter(line, prefix) for line in refused), tuple(notes))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", FloatWarning)
            net = walk.net(())
    except FreezeError as error:
        return Verdict((), (_shorter(str(error), prefix),), tuple(notes))
    told = [str(warning.message) for warning in caught if issubclass(warning.category, FloatWarning)]
    layers = []
    for operation in net.operations:
        if isinstance(operation, Conv | Linear) and not operation.name.endswith(".times"):
            name = operation.name.removeprefix(prefix)
            is_integer = net.values[operation.name].kind == "integer"
            why = next((_reason(line) for line in told if line.startswith(f"{operation.name}:")), "it is not quantized")
            macs = operation.macs(net.values[operation.name])
            layers.append(LayerVerdict(name, "integers" if is_integer else "float", macs, "" if is_integer else why))
    if not net.exact:
        notes.append(f"integers and torch may differ by rounding: {_shorter('; '.join(net.inexact), prefix)}")
    return Verdict(tuple(layers), (), tuple(notes))


def _reason(line: str) -> str:
    """The part of a FloatWarning between the layer's name and the consequence."""
    found = re.search(r": (its .*?), so this", line)
    return found[1] if found else line


def _shorter(line: str, prefix: str) -> str:
    """Without what stands before the paths of the user's model."""
    return re.sub(rf"(?<![\w.]){re.escape(prefix)}", "", line) if prefix else line


def _described(example: object) -> str:
    return f"shape {tuple(example.shape)}" if isinstance(example, Tensor) else type(example).__name__
