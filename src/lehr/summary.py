"""What a network costs, layer by layer: shape, MACs, bits of weights and activations, memory."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from lehr.composed import taken_apart
from lehr.models.input import Input
from lehr.models.signal_input import SignalInput
from lehr.quantizer import AbstractQuantizer
from lehr.table import Table, Tabular

_FLOAT_BITS = 32.0


@dataclass(frozen=True)
class LayerCost:
    """The cost of a layer with weights.

    Args:
        path: the layer's place in the model.
        kind: the name of its class.
        output: the shape of what it computes from one image.
        weights: how many weights it has, without the bias.
        macs: multiply-accumulates for one image.
        weight_bits: log2 of the number of levels of a weight; 32 for floats.
        activation_bits: the same of its input, the other operand of its MACs.
        biases: how many numbers its bias has, which stay in 32 bits.
    """

    path: str
    kind: str
    output: tuple[int, ...]
    weights: int
    macs: int
    weight_bits: float
    activation_bits: float
    biases: int = 0

    @property
    def bytes(self) -> int:
        """Memory of the weights at that many bits each, and of the bias."""
        return math.ceil((self.weights * self.weight_bits + self.biases * _FLOAT_BITS) / 8)


@dataclass(frozen=True, repr=False)
class Summary(Tabular):
    """The costs of a network; prints as a table."""

    layers: tuple[LayerCost, ...]

    @property
    def macs(self) -> int:
        """Multiply-accumulate operations of one image."""
        return sum(layer.macs for layer in self.layers)

    @property
    def weights(self) -> int:
        """Number of weights."""
        return sum(layer.weights for layer in self.layers)

    @property
    def bytes(self) -> int:
        """Memory of all weights and biases."""
        return sum(layer.bytes for layer in self.layers)

    @property
    def float_bytes(self) -> int:
        """What they would take in 32-bit floats."""
        return 4 * sum(layer.weights + layer.biases for layer in self.layers)

    @property
    def quantized_share(self) -> float:
        """Share of the MACs whose operands, weight and activation, are both below 8 bits."""
        low = sum(layer.macs for layer in self.layers if max(layer.weight_bits, layer.activation_bits) < 8)
        return low / self.macs if self.macs else 0.0

    @property
    def kinds(self) -> dict[tuple[float, float], int]:
        """MACs by the bits of their weight and activation, the most frequent kind first."""
        macs: dict[tuple[float, float], int] = {}
        for layer in self.layers:
            kind = layer.weight_bits, layer.activation_bits
            macs[kind] = macs.get(kind, 0) + layer.macs
        return dict(sorted(macs.items(), key=lambda item: -item[1]))

    def table(self) -> Table:
        """Return a row for each layer, and the totals."""
        header = ("layer", "kind", "output", "weights", "MACs", "weight bits", "input bits", "bytes")
        rows = [
            (
                layer.path,
                layer.kind,
                "x".join(map(str, layer.output)),
                f"{layer.weights:,}",
                f"{layer.macs:,}",
                f"{layer.weight_bits:.3g}",
                f"{layer.activation_bits:.3g}",
                f"{layer.bytes:,}",
            )
            for layer in self.layers
        ]
        total = ("total", "", "", f"{self.weights:,}", f"{self.macs:,}", "", "", f"{self.bytes:,}")
        return Table(header, rows, total)

    @property
    def remark(self) -> str:
        """How much of the work is quantized, and what the weights would take otherwise, in a sentence."""
        share = f"{self.quantized_share:.1%} of the MACs have both operands below 8 bits"
        return f"{share}; in 32-bit floats the weights would take {self.float_bytes:,} bytes"

    def __str__(self) -> str:
        return f"{self.table()}\n{self.remark}"

    def __repr__(self) -> str:
        return f"Summary({len(self.layers)} layers, {self.macs:,} MACs, {self.bytes:,} bytes)"

    def _repr_html_(self) -> str:
        return f"{self.table().html()}<p>{self.remark}</p>"


def bits(levels: int) -> float:
    """Return log2(levels), the bits that so many levels are worth.

    >>> round(bits(3), 2)
    1.58
    """
    return math.log2(levels)


@torch.no_grad()
def summarize(model: nn.Module, example: Tensor) -> Summary:
    """Count what a network costs by running it once.

    A value keeps its number of levels from the quantizer (or the input module) that computed it through max-pooling,
    flattening and dropout. All other modules return 32-bit floats. A layer that is deployed as several is counted as
    several. Shared weights are counted once.

    Args:
        model: the network; it is put into evaluation mode.
        example: a batch of one image.
    """
    model = taken_apart(model)
    layers: list[LayerCost] = []
    counted: set[nn.Module] = set()
    known: dict[int, tuple[Tensor, float]] = {}  # bits by id of the tensor, which is kept so that no other gets its id

    def hook_for(path: str) -> Any:
        def hook(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
            incoming = known.get(id(inputs[0]), (None, _FLOAT_BITS))[1] if inputs else _FLOAT_BITS
            if isinstance(module, nn.Linear | nn.modules.conv._ConvNd):
                cost = _cost(path, module, inputs[0], output, incoming)
                layers.append(replace(cost, weights=0, biases=0) if module in counted else cost)
                counted.add(module)
            elif isinstance(module, AbstractQuantizer):
                known[id(output)] = (output, bits(len(module.levels)))
            elif isinstance(module, Input | SignalInput):
                known[id(output)] = (output, float(module.bits or _FLOAT_BITS))
            elif isinstance(module, nn.Flatten | nn.MaxPool1d | nn.MaxPool2d | nn.MaxPool3d | nn.Dropout | nn.Identity):
                known[id(output)] = (output, incoming)

        return hook

    whole = (nn.Linear, nn.modules.conv._ConvNd, AbstractQuantizer)
    for path, module in model.named_modules():
        if isinstance(module, whole) or not list(module.children()):
            module.register_forward_hook(hook_for(path))
    model.eval()(example)
    return Summary(tuple(layers))


def _cost(
    path: str, layer: nn.Linear | nn.modules.conv._ConvNd, source: Tensor, output: Tensor, incoming: float
) -> LayerCost:
    quantizer, activation = layer._modules.get("quantizer"), layer._modules.get("activation")
    weight_bits = bits(len(quantizer.levels)) if isinstance(quantizer, AbstractQuantizer) else _FLOAT_BITS
    if isinstance(activation, AbstractQuantizer):  # the layer quantizes its own input
        incoming = bits(len(activation.levels))
    # Each position of the output uses every weight once; in a transposed convolution, each position of the input.
    met = source if isinstance(layer, nn.modules.conv._ConvTransposeNd) else output
    channels = met.shape[1] if isinstance(layer, nn.modules.conv._ConvNd) else met.shape[-1]
    positions = met[0].numel() // channels
    return LayerCost(
        path,
        type(layer).__name__,
        tuple(output.shape[1:]),
        layer.weight.numel(),
        layer.weight.numel() * positions,
        weight_bits,
        incoming,
        0 if layer.bias is None else layer.bias.numel(),
    )
