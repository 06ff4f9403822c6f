"""An `IntegerNet` as layers of the C runtime: fused, and placed in memory. lower.py makes a layer of an operation.

Fused: a `Conv` or `Linear`, a `MaxPool` whose windows do not overlap, and a `Threshold` or `Requantize` become one
layer, and so do an `Add` and a `Threshold` or `Requantize`: sums never stay in memory. `Flatten` is only another name
for the same bytes. Values whose lives do not overlap share memory. For the reference nothing is fused: its layers are
the operations themselves.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from lehr.deploy import small
from lehr.deploy.integer_net import IntegerNet
from lehr.deploy.kernels import runs_on
from lehr.deploy.lower import TYPE_OF, absorb_pool, absorb_threshold, as_floats, layer_of, parts_of
from lehr.deploy.operations import (
    Concat,
    Conv,
    Flatten,
    Floats,
    Linear,
    Round,
    Shape,
)
from lehr.deploy.scratch import align, with_scratch
from lehr.deploy.structs import IMAGE, INSTRUCTION_SETS, Kind, Layer, Routine, Type

_MOST_MEMORY = 2**31 - 1


@dataclass(frozen=True)
class Result:
    """Where an output lies in memory, and how many numbers it has."""

    outputs: int
    scores: int
    logits: int
    scores_type: Type
    logits_type: Type


@dataclass(frozen=True, eq=False)
class Plan:
    """The layers of a network and where its results lie in memory; `struct lehr_net`."""

    layers: tuple[Layer, ...]
    image_bytes: int
    value_bytes: int
    results: tuple[Result, ...]  # of each output
    memory: tuple[int, ...]

    def memory_on(self, instruction_set: str) -> int:
        """Bytes of memory a run needs there."""
        return self.memory[INSTRUCTION_SETS.index(instruction_set)]


def plan(net: IntegerNet, instruction_set: str = "scalar") -> Plan:
    """Fuse the operations of `net` into layers and place every value.

    Args:
        net: the network
        instruction_set: what its weights are laid out for; scalar, vector, avx2 and avx512 have one layout
    """
    readers = Counter(source for operation in net.operations for source in operation.sources)
    kept = {name for output in net.outputs for name in (net.score_of(output), output.value)}
    only_reader = {
        operation.sources[0]: operation
        for operation in net.operations
        if len(operation.sources) == 1 and readers[operation.sources[0]] == 1 and operation.sources[0] not in kept
    }
    layers: list[Layer] = []
    names: dict[str, str] = {}  # Flatten: another name for the same value
    inputs: list[tuple[str, ...]] = []
    fused: set[str] = set()
    in_place: set[str] = set()  # floats that are rounded where the caller has them
    casts: dict[tuple[str, Shape], str] = {}  # integers that several layers read as floats
    parts: dict[str, tuple[str, int]] = {}  # layers that make a part of a value, at so many bytes
    image = net.input
    absorbs = () if instruction_set == "reference" else (absorb_pool, absorb_threshold)
    for operation in net.operations:
        if operation.name in fused:
            continue
        sources: tuple[str, ...] = tuple(names.get(name, name) for name in operation.sources)
        if isinstance(operation, Flatten):
            names[operation.name] = sources[0]
            continue
        if isinstance(operation, Floats) and isinstance(only_reader.get(operation.name), Round):
            in_place.add(operation.name)
            continue
        if in_place.intersection(sources):
            sources = sources[1:]
        values = [net.values[name] for name in operation.sources] or [image]
        if isinstance(operation, Concat):
            for source, (layer, offset) in zip(
                sources, parts_of(operation, values, net.values[operation.name]), strict=True
            ):
                parts.update({layer.name: (operation.name, offset)} if offset else {})
                layers.append(layer)
                inputs.append((source,))
            continue
        layer = layer_of(operation, values, net.values[operation.name], instruction_set)
        sums = isinstance(operation, (Conv, Linear))
        if sums and layer.weights is not None and layer.weights.dtype == np.float32 and values[0].kind == "integer":
            key = sources[0], values[0].shape
            if key not in casts:
                cast = as_floats(f"{sources[0]} as float for {layer.name}", sources[0], values[0])
                casts[key] = cast.name
                layers.append(cast)
                inputs.append(sources)
            sources = (casts[key],)
            layer = replace(layer, source_type=Type.FLOAT)
        for absorb in absorbs if sums else absorbs[1:] if layer.routine == Routine.PLUS else ():
            follower = only_reader.get(layer.name)
            grown = follower and absorb(layer, follower, net.values[follower.name])
            if grown:
                fused.add(grown.name)
                layer = grown
        layers.append(layer)
        inputs.append(sources)
    if len({layer.name for layer in layers}) < len(layers):
        raise ValueError("two values of the plan have one name: name operations otherwise")
    layers = _interleaved(layers, inputs, {names.get(name, name) for name in kept}, set(names.values()))
    if instruction_set == "small":
        layers = small.packed(layers, inputs, {names.get(name, name) for name in kept})
    places, ends = _places(layers, inputs, {names.get(name, name) for name in kept}, parts)
    layers = [
        with_scratch(_placed(layer, sources, places, ends), instruction_set)
        for layer, sources in zip(layers, inputs, strict=True)
    ]
    memory = _memory(layers, runs_on(instruction_set))
    if max(memory) > _MOST_MEMORY:
        raise ValueError(f"a run would take {max(memory)} bytes, more than {_MOST_MEMORY}: C counts them in int32")
    results = []
    for output in net.outputs:
        score, logit = net.score_of(output), output.value
        results.append(
            Result(
                outputs=net.values[logit].size,
                scores=places[names.get(score, score)],
                logits=places[names.get(logit, logit)],
                scores_type=TYPE_OF[net.values[score].dtype],
                logits_type=TYPE_OF[net.values[logit].dtype],
            )
        )
    image_bytes = image.size * np.dtype(net.input_dtype).itemsize
    return Plan(tuple(layers), image_bytes, max(ends.values()), tuple(results), memory)


def _memory(layers: list[Layer], able: tuple[str, ...]) -> tuple[int, ...]:
    """Bytes of a run on each instruction set, 64 of them to align the rest; 0 where the network cannot run."""
    return tuple(
        max(layer.scratch_at + align(layer.scratch[layer.built_for[index]]) for layer in layers) + 64
        if name in able
        else 0
        for index, name in enumerate(INSTRUCTION_SETS)
    )


def _interleaved(
    layers: list[Layer], inputs: list[tuple[str, ...]], kept: set[str], flattened: set[str]
) -> list[Layer]:
    """Let values that a table or matrix layers make and only matrix layers read be (row, column, channel)."""
    matrix = {Routine.MATRIX, Routine.TRITS}
    able = [layer for layer in layers if layer.routine in matrix or layer.operation == Kind.TABLE]
    makers = {layer.name for layer in able if layer.target_type == Type.INT8}
    for layer, sources in zip(layers, inputs, strict=True):
        if layer.routine not in matrix:
            makers.difference_update(sources)
    makers -= kept | flattened
    return [
        replace(
            layer,
            source_interleaved=int(bool(makers & {*sources})),
            target_interleaved=int(layer.name in makers),
        )
        for layer, sources in zip(layers, inputs, strict=True)
    ]


def _places(
    layers: list[Layer],
    inputs: list[tuple[str, ...]],
    kept: Iterable[str],
    parts: Mapping[str, tuple[str, int]],
) -> tuple[dict[str, int], dict[str, int]]:
    """An offset for each value: the lowest that no value alive at the same time takes; parts lie in their whole.

    And for each layer the end of the last value that is alive while it runs, behind which its scratch is.
    """
    last_use = {name: index for index, sources in enumerate(inputs) for name in sources}
    last_use.update(dict.fromkeys(kept, len(layers)))
    places: dict[str, int] = {}
    ends: dict[str, int] = {}
    alive: list[tuple[int, int, int]] = []  # (offset, end, last use)
    for index, layer in enumerate(layers):
        alive = sorted(x for x in alive if x[2] >= index)
        if layer.name in parts:
            whole, offset = parts[layer.name]
            places[layer.name] = places[whole] + offset
            ends[layer.name] = max(end for _, end, _ in alive)
            continue
        size = align(_bytes_of(layer))
        offset = 0
        for start, end, _ in alive:
            if offset + size <= start:
                break
            offset = max(offset, end)
        places[layer.name] = offset
        alive.append((offset, offset + size, last_use[layer.name]))
        ends[layer.name] = max(end for _, end, _ in alive)
    return places, ends


def _bytes_of(layer: Layer) -> int:
    """Bytes of a layer's value; trits are packed four a byte."""
    size = layer.value.size
    return -(-size // 4) if layer.target_type == Type.TRIT else size * layer.value.dtype.itemsize


def _placed(layer: Layer, sources: tuple[str, ...], places: dict[str, int], ends: dict[str, int]) -> Layer:
    offsets = [places[name] for name in sources] or [IMAGE]
    name = layer.name
    return replace(layer, source=offsets[0], second=offsets[-1], target=places[name], scratch_at=ends[name])
