"""An `IntegerNet` as layers of the C runtime, fused by fuse.py, each with a place in memory.

Values whose lives do not overlap share memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from lehr.deploy import small
from lehr.deploy.fuse import Fused
from lehr.deploy.integer_net import IntegerNet
from lehr.deploy.kernels import runs_on
from lehr.deploy.lower import TYPE_OF
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
    fused = Fused(net, instruction_set)
    layers = _interleaved(fused)
    if instruction_set == "small":
        layers = small.packed(layers, fused.inputs, fused.kept)
    places, ends = _places(layers, fused.inputs, fused.kept, fused.parts)
    layers = [
        with_scratch(_placed(layer, sources, places, ends), instruction_set)
        for layer, sources in zip(layers, fused.inputs, strict=True)
    ]
    memory = _memory(layers, runs_on(instruction_set))
    if max(memory) > _MOST_MEMORY:
        raise ValueError(f"a run would take {max(memory)} bytes, more than {_MOST_MEMORY}: C counts them in int32")
    image_bytes = net.input.size * np.dtype(net.input_dtype).itemsize
    return Plan(tuple(layers), image_bytes, max(ends.values()), _results(net, fused, places), memory)


def _results(net: IntegerNet, fused: Fused, places: Mapping[str, int]) -> tuple[Result, ...]:
    results = []
    for output in net.outputs:
        score, logit = net.score_of(output), output.value
        results.append(
            Result(
                outputs=net.values[logit].size,
                scores=places[fused.value_of(score)],
                logits=places[fused.value_of(logit)],
                scores_type=TYPE_OF[net.values[score].dtype],
                logits_type=TYPE_OF[net.values[logit].dtype],
            )
        )
    return tuple(results)


def _memory(layers: list[Layer], able: tuple[str, ...]) -> tuple[int, ...]:
    """Bytes of a run on each instruction set, 64 of them to align the rest; 0 where the network cannot run."""
    return tuple(
        max(layer.scratch_at + align(layer.scratch[layer.built_for[index]]) for layer in layers) + 64
        if name in able
        else 0
        for index, name in enumerate(INSTRUCTION_SETS)
    )


def _interleaved(fused: Fused) -> list[Layer]:
    """Let values that a table or matrix layers make and only matrix layers read be (row, column, channel)."""
    matrix = {Routine.MATRIX, Routine.TRITS}
    able = [layer for layer in fused.layers if layer.routine in matrix or layer.operation == Kind.TABLE]
    makers = {layer.name for layer in able if layer.target_type == Type.INT8}
    for layer, sources in zip(fused.layers, fused.inputs, strict=True):
        if layer.routine not in matrix:
            makers.difference_update(sources)
    makers -= fused.kept | fused.flattened
    return [
        replace(
            layer,
            source_interleaved=int(bool(makers & {*sources})),
            target_interleaved=int(layer.name in makers),
        )
        for layer, sources in zip(fused.layers, fused.inputs, strict=True)
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
