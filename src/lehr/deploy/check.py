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

import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lehr.composed import taken_apart
from lehr.deploy.converters import CONVERTERS
from lehr.deploy.freeze import check_weights, checked_example
from lehr.deploy.freeze_errors import FloatWarning, FreezeError
from lehr.deploy.layer_converters import READS_INPUT
from lehr.deploy.operations import Conv, Linear
from lehr.deploy.trace import Graph
from lehr.deploy.walk import Walk, kind_of
from lehr.quantizer import AbstractQuantizer, Quantizer
from lehr.table import Table, Tabular
from lehr.tracing import inside


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


@torch.no_grad()
def check(model: nn.Module, example: Tensor | np.ndarray) -> Verdict:
    """Say what of a quantized network will run as integers, what stays float, what is refused, and what to do.

    The model may have noise and be in training mode: what counts is how it will be frozen after training.

    Args:
        model: a network that `quantize_` has converted; it is left as it is.
        example: a batch as the model takes it, and as `freeze` will: pixels (uint8), int8 or floats; torch or numpy.
    """
    notes = []
    model = inside(model)
    try:
        check_weights(model)
        example = _batch(example, notes)
    except FreezeError as error:
        return Verdict((), (str(error),))
    if not any(isinstance(module, AbstractQuantizer) for module in model.modules()):
        notes.append("nothing is quantized: convert the network with lehr.quantize_")
    model = taken_apart(model).cpu().float().eval()
    for module in model.modules():
        if isinstance(module, Quantizer):
            module.forward_std = torch.zeros_like(module.forward_std)
            module.forward_mean = None
    prefix = ""
    if kind_of(model, CONVERTERS) is not None:
        model, prefix = nn.Sequential(model), "0."
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
    if any(READS_INPUT in layer.why for layer in layers):
        notes.append(
            "the model takes floats: let it begin with lehr.models.Input.of(data), which rounds them to 8 bits, or "
            "with lehr.models.Input(mean, std, bits=8), which takes pixels; its first layer then runs as integers"
        )
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


def _batch(example: Any, notes: list[str]) -> Tensor:
    """The example as `freeze` takes it; other floats become float32, with a note."""
    if isinstance(example, tuple | list) and len(example) == 1:
        (example,) = example
    if isinstance(example, tuple | list | Mapping):
        raise FreezeError(
            "several inputs",
            f"the example is a {type(example).__name__} of {len(example)}: an integer network takes one tensor; join "
            "its inputs into one, which its forward takes apart, or freeze the part behind the place where they meet",
        )
    given = torch.from_numpy(example) if isinstance(example, np.ndarray) else example
    if isinstance(given, Tensor) and given.is_floating_point() and given.dtype != torch.float32:
        notes.append(f"freeze takes float32, not {given.dtype}: convert what you give it, x.float()")
        given = given.float()
    return checked_example(given)
