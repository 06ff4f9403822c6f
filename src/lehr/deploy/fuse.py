"""The operations of an `IntegerNet` as layers of the C runtime, fused; plan.py gives each a place in memory.

A `Conv` or `Linear`, a `MaxPool` whose windows do not overlap, and a `Threshold` or `Requantize` become one layer, and
so do an `Add` and a `Threshold` or `Requantize`: sums never stay in memory. `Flatten` is only another name for the same
bytes. For the reference nothing is fused: its layers are the operations themselves.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np

from lehr.deploy.integer_net import IntegerNet
from lehr.deploy.lower import absorb_pool, absorb_threshold, as_floats, layer_of, parts_of
from lehr.deploy.operations import Concat, Conv, Flatten, Floats, Linear, Operation, Round, Shape, Value
from lehr.deploy.structs import Layer, Routine, Type


class Fused:
    """The layers of `net`, and the values that each reads.

    Args:
        net: the network
        instruction_set: what its weights are laid out for

    Attributes:
        layers: in the order they run
        inputs: the names of the values that each layer reads; none: the image
        kept: the values that a run gives back
        flattened: the values that have another name by a `Flatten`
        parts: for a layer that makes a part of a value: which value, and at how many bytes
    """

    def __init__(self, net: IntegerNet, instruction_set: str) -> None:
        self.net = net
        self.instruction_set = instruction_set
        self.layers: list[Layer] = []
        self.inputs: list[tuple[str, ...]] = []
        self.parts: dict[str, tuple[str, int]] = {}
        self._names: dict[str, str] = {}  # of a Flatten: the value whose bytes it is
        self._absorbed: set[str] = set()  # operations that the layer before has taken into itself
        self._in_place: set[str] = set()  # floats that are rounded where the caller has them
        self._casts: dict[tuple[str, Shape], str] = {}  # integers that several layers read as floats
        results = {name for output in net.outputs for name in (net.score_of(output), output.value)}
        self._only_reader = _only_readers(net, results)
        for operation in net.operations:
            if operation.name not in self._absorbed:
                self._take(operation)
        if len({layer.name for layer in self.layers}) < len(self.layers):
            raise ValueError("two values of the plan have one name: name operations otherwise")
        self.kept = {self.value_of(name) for name in results}
        self.flattened = set(self._names.values())

    def value_of(self, name: str) -> str:
        """The value that has the bytes of `name`."""
        return self._names.get(name, name)

    def _take(self, operation: Operation) -> None:
        """Append the layers of one operation."""
        sources = tuple(self.value_of(name) for name in operation.sources)
        values = [self.net.values[name] for name in operation.sources] or [self.net.input]
        if isinstance(operation, Flatten):
            self._names[operation.name] = sources[0]
        elif isinstance(operation, Floats) and isinstance(self._only_reader.get(operation.name), Round):
            self._in_place.add(operation.name)
        elif isinstance(operation, Concat):
            self._take_parts(operation, sources, values)
        else:
            layer = layer_of(operation, values, self.net.values[operation.name], self.instruction_set)
            if self._in_place.intersection(sources):
                sources = sources[1:]
            if _sums_floats(layer, operation) and values[0].kind == "integer":
                sources = (self._as_floats(sources, values[0], layer.name),)
                layer = replace(layer, source_type=Type.FLOAT)
            self._append(self._grown(layer, operation), sources)

    def _take_parts(self, operation: Concat, sources: tuple[str, ...], values: list[Value]) -> None:
        whole = self.net.values[operation.name]
        for source, (layer, offset) in zip(sources, parts_of(operation, values, whole), strict=True):
            if offset:
                self.parts[layer.name] = operation.name, offset
            self._append(layer, (source,))

    def _as_floats(self, sources: tuple[str, ...], value: Value, reader: str) -> str:
        """The name of the value as floats; the first reader has it made."""
        key = sources[0], value.shape
        if key not in self._casts:
            cast = as_floats(f"{sources[0]} as float for {reader}", sources[0], value)
            self._casts[key] = cast.name
            self._append(cast, sources)
        return self._casts[key]

    def _grown(self, layer: Layer, operation: Operation) -> Layer:
        """The layer with the pool and the thresholds that follow it, where only they read its sums."""
        if self.instruction_set == "reference":
            return layer
        if isinstance(operation, (Conv, Linear)):
            absorbs = absorb_pool, absorb_threshold
        else:
            absorbs = (absorb_threshold,) if layer.routine == Routine.PLUS else ()
        for absorb in absorbs:
            follower = self._only_reader.get(layer.name)
            grown = follower and absorb(layer, follower, self.net.values[follower.name])
            if grown:
                self._absorbed.add(grown.name)
                layer = grown
        return layer

    def _append(self, layer: Layer, sources: tuple[str, ...]) -> None:
        self.layers.append(layer)
        self.inputs.append(sources)


def _only_readers(net: IntegerNet, results: set[str]) -> dict[str, Operation]:
    """For each value that one operation alone reads, and no caller: that operation."""
    readers = Counter(source for operation in net.operations for source in operation.sources)
    return {
        operation.sources[0]: operation
        for operation in net.operations
        if len(operation.sources) == 1 and readers[operation.sources[0]] == 1 and operation.sources[0] not in results
    }


def _sums_floats(layer: Layer, operation: Operation) -> bool:
    return isinstance(operation, (Conv, Linear)) and layer.weights is not None and layer.weights.dtype == np.float32
