"""What a network costs, layer by layer: shape, MACs, bits of weights and activations, memory."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from lehr.composed import taken_apart
from lehr.layers import AbstractQuantizer
from lehr.models.input import Input
from lehr.table import table

_FLOAT_BITS = 32.0


@dataclass(frozen=True)
class LayerCost:
    """A layer with weights; `activation_bits` are those of its input, the other operand of its MACs.

    `weights` does not count the bias, which stays in 32 bits and is part of `bytes`.
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


@dataclass(frozen=True)
class Summary:
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

    def __str__(self) -> str:
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
        rows.append(("total", "", "", f"{self.weights:,}", f"{self.macs:,}", "", "", f"{self.bytes:,}"))
        share = f"{self.quantized_share:.1%} of the MACs have both operands below 8 bits"
        return f"{table(header, rows)}\n{share}; in 32-bit floats the weights would take {self.float_bytes:,} bytes"


def bits(levels: int) -> float:
    """Bits that tell so many levels apart, as a fraction: ternary values are worth 1.58 bits."""
    return math.log2(levels)


@torch.no_grad()
def summarize(model: nn.Module, example: Tensor) -> Summary:
    """Run `example` (a batch of one) through the model and count.

    The levels of a value are followed from the quantizer (or input table) that made it through modules that keep them:
    pooling by maximum, flattening, dropout. Everything else makes 32-bit floats. A layer that is deployed as several is
    counted as these; weights that are used again count where they are used first.
    """
    model = taken_apart(model)
    layers: list[LayerCost] = []
    counted: set[nn.Module] = set()
    known: dict[int, tuple[Tensor, float]] = {}  # by identity; the tensor is kept so that its identity stays its own

    def see(path: str) -> Any:
        def hook(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
            incoming = known.get(id(inputs[0]), (None, _FLOAT_BITS))[1] if inputs else _FLOAT_BITS
            if isinstance(module, nn.Linear | nn.modules.conv._ConvNd):
                cost = _cost(path, module, inputs[0], output, incoming)
                layers.append(replace(cost, weights=0, biases=0) if module in counted else cost)
                counted.add(module)
            elif isinstance(module, AbstractQuantizer):
                known[id(output)] = (output, bits(len(module.levels)))
            elif isinstance(module, Input):
                known[id(output)] = (output, float(module.bits or _FLOAT_BITS))
            elif isinstance(module, nn.Flatten | nn.MaxPool1d | nn.MaxPool2d | nn.MaxPool3d | nn.Dropout | nn.Identity):
                known[id(output)] = (output, incoming)

        return hook

    whole = (nn.Linear, nn.modules.conv._ConvNd, AbstractQuantizer)
    for path, module in model.named_modules():
        if isinstance(module, whole) or not list(module.children()):
            module.register_forward_hook(see(path))
    model.eval()(example)
    return Summary(tuple(layers))


def _cost(
    path: str, layer: nn.Linear | nn.modules.conv._ConvNd, source: Tensor, output: Tensor, incoming: float
) -> LayerCost:
    quantizer, activation = layer._modules.get("quantizer"), layer._modules.get("activation")
    weight_bits = bits(len(quantizer.levels)) if isinstance(quantizer, AbstractQuantizer) else _FLOAT_BITS
    if isinstance(activation, AbstractQuantizer):  # it quantizes its input itself
        incoming = bits(len(activation.levels))
    # An output is computed from as many weights as its channel has: the MACs are the weights at each position. A
    # transposed convolution meets them at each position of its input.
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
