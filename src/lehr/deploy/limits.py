"""How much work and memory a network from a file may ask for.

A few bytes of geometry can ask for years of work, so `lehr.deploy.load` refuses what exceeds `Limits`. The defaults let
pass what people run on one machine (VGG-16 and ResNet-152 at 224 x 224 pixels, AlexNet, MobileNetV2), and bound what a
stranger's file costs: less than half of the seconds that SECURITY.md promises, on a quiet machine. Networks made in
Python are not limited.

>>> from lehr import zoo
>>> check(zoo.networks()["digits"].load(), Limits(steps=1000))
Traceback (most recent call last):
ValueError: an image takes 88,714 steps, and 1,000 are allowed: lehr.deploy.load(file, limits=None) for a file you trust
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from lehr.deploy.integer_net import IntegerNet
from lehr.deploy.operations import (
    Conv,
    Linear,
    MaxPool,
    Operation,
    Requantize,
    SumPool,
    Take,
    Threshold,
    Value,
    Weights,
)

# Steps that parts of the work count as: measured, so that the slower backend does 1.4 thousand million a second or more
# wherever no other limit is reached first.
_ROW = 24  # for each weight in each row of outputs, besides the products: narrow rows run far slower than wide ones
_STRIDED = 2  # for each product where the outputs of a row are not next to each other in the source
_GATHERED = 6  # for each number that the reference run lays out
_GROUP = 2**14  # for each group of a convolution in the reference run
_POOLED = 4  # for each number of a window, in which nothing is vectorised,
_POOLED_ROW = 8  # for each row of it,
_WINDOW = 32  # and for itself
_REQUANTIZED = 3  # for a product of 64 bits, a sum and a shift
_TAKEN = 4  # for each number that is looked up at another place, an estimate
_SEARCH = 8  # for a search among up to 255 thresholds


@dataclass(frozen=True)
class Limits:
    """The most that a network may have, and ask for to classify one image.

    Args:
        operations: operations
        weights: weights of all layers
        numbers: numbers of all values together
        largest: numbers of one value
        gathered: numbers that a layer gathers from its padded source before it sums them
        steps: multiplications, additions and comparisons, the dear ones counted several times
    """

    operations: int = 5_000
    weights: int = 2**28
    numbers: int = 96 * 10**6
    largest: int = 2**24
    gathered: int = 2**26
    steps: int = 32 * 10**9


def check(net: IntegerNet, limits: Limits) -> None:
    """Raise ValueError, naming the operation where it is one, if `net` exceeds `limits`."""
    weights = 0
    for operation in net.operations:
        value, source = net.values[operation.name], _source(net, operation)
        _refuse(f"{operation.name}: it makes", value.size, "numbers", limits.largest)
        if isinstance(operation, Conv):
            _refuse(f"{operation.name}: it gathers", operation.gathered(source, value), "numbers", limits.gathered)
        if isinstance(operation, SumPool):  # ONNX has no such operation: there a window is a convolution's weights
            window = source.shape[0] * math.prod(operation.kernel)
            _refuse(f"{operation.name}: its windows have", window, "places", limits.gathered)
        if operation.weights is not None:
            weights += math.prod(_shape(operation.weights))
    _refuse("it has", len(net.operations), "operations", limits.operations)
    _refuse("it has", weights, "weights", limits.weights)
    _refuse("its values are", sum(value.size for value in net.values.values()), "numbers", limits.numbers)
    _refuse("an image takes", steps(net), "steps", limits.steps)


def steps(net: IntegerNet) -> int:
    """About how many multiplications, additions and comparisons one image takes."""
    return sum(_steps(operation, _source(net, operation), net.values[operation.name]) for operation in net.operations)


def _steps(operation: Operation, source: Value, value: Value) -> int:
    channels, rows, columns = value.shape
    match operation:
        case Conv():
            taps = math.prod(operation.shape[1:])
            product = _STRIDED if operation.stride[1] > 1 else 1
            sums = channels * rows * taps * (columns * product + _ROW)
            return sums + _GATHERED * operation.gathered(source, value) + operation.groups * _GROUP
        case Linear():
            return operation.macs(value)
        case Threshold():
            return value.size * _SEARCH
        case Requantize():
            return value.size * _REQUANTIZED
        case Take():
            return value.size * _TAKEN
        case MaxPool() | SumPool():
            high, wide = map(min, operation.kernel, source.shape[1:])
            return value.size * (_WINDOW + high * (_POOLED_ROW + _POOLED * wide))
        case _:
            return value.size


def _source(net: IntegerNet, operation: Operation) -> Value:
    return net.values[operation.sources[0]] if operation.sources else net.input


def _shape(weights: Weights | np.ndarray) -> tuple[int, ...]:
    return weights.codes.shape if isinstance(weights, Weights) else weights.shape


def _refuse(what: str, count: int, unit: str, most: int) -> None:
    if count > most:
        raise ValueError(
            f"{what} {count:,} {unit}, and {most:,} are allowed: "
            "lehr.deploy.load(file, limits=None) for a file you trust"
        )
