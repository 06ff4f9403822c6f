"""What runtime/small.c, the routines for 32-bit microcontrollers, needs of a plan: packed values, cuts, strips.

packed   values in {-1, 0, 1} at two bits each, where all that read and write them can
cuts     the thresholds of a layer with such a target: two numbers of 16 bits a channel, for biased sums
strips   the padded source lines that the taps of a row of tiles read, and what else lies in scratch
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from lehr.deploy.operations import Conv, Linear, Value
from lehr.deploy.structs import Kind, Layer, Routine, Strips, Type

BLOCK = 32  # triples whose tables are made at a time: LEHR_BLOCK
_TABLE_BYTES = 27 * 8
_MOST_SUM = 0x7FFF  # what biased sums stay below, so that halves of a word can be compared
_MOST_START = 0xFFFF  # where a tap may begin in the strip
MOST_INPUTS = 0xFFFF  # of a linear layer of trits: they are listed in 16 bits

# Operations of reference.c that read and write values one by one, of any type.
_ONE_BY_ONE = {Kind.MAX_POOL, Kind.SUM_POOL, Kind.THRESHOLD, Kind.ADD, Kind.AFFINE}
_READ_TRITS = {Routine.TERNARY, Routine.WIDE, Routine.COUNTERS, Routine.SEARCH, Routine.PLUS}


def why_not_tables(operation: Conv | Linear, routine: Routine, source: Value, value: Value, triples: int) -> str:
    """Why small.c cannot compute a layer by tables, or nothing if it can; `value` are the sums."""
    if (routine == Routine.TERNARY and 6 * triples > _MOST_SUM) or value.high - value.low > 0xFFFF:
        return "its sums leave 16 bits"
    if isinstance(operation, Linear):
        line, lines = 4, source.size
    else:
        line, _ = _line(
            routine,
            source.shape[2],
            value.shape[2],
            operation.shape[3],
            operation.stride[1],
            operation.padding[1],
            operation.dilation[1],
        )
        lines = (
            operation.shape[1]
            * operation.shape[2]
            * _phases(operation.shape[3], operation.stride[1], operation.dilation[1])
        )
    return "" if line * lines <= _MOST_START else "the lines of its source exceed 64 KB"


def bias_of(routine: Routine, value: Value, triples: int) -> int:
    """What is added to sums so that none is negative."""
    return (
        3 * triples if routine == Routine.TERNARY else -value.low if routine in (Routine.WIDE, Routine.COUNTERS) else 0
    )


def packed(layers: Iterable[Layer], inputs: Sequence[tuple[str, ...]], kept: set[str]) -> list[Layer]:
    """The layers, with the type of trits wherever a value can be packed; `kept` values stay as they are."""
    layers = list(layers)
    trits = {layer.name for layer in layers if is_trit(layer.value) and _writes_trits(layer)} - kept
    for layer, sources in zip(layers, inputs, strict=True):
        if not (layer.routine in _READ_TRITS or (layer.routine == Routine.NAIVE and layer.operation in _ONE_BY_ONE)):
            trits.difference_update(sources)
    return [
        with_cuts(
            replace(
                layer,
                source_type=Type.TRIT if sources and sources[0] in trits else layer.source_type,
                second_type=Type.TRIT if sources and sources[-1] in trits else layer.second_type,
                target_type=Type.TRIT if layer.name in trits else layer.target_type,
            )
        )
        for layer, sources in zip(layers, inputs, strict=True)
    ]


def is_trit(value: Value) -> bool:
    """Whether all its numbers are in {-1, 0, 1}."""
    return value.kind == "integer" and value.low >= -1 and value.high <= 1


def _writes_trits(layer: Layer) -> bool:
    return layer.routine != Routine.NAIVE or layer.operation in _ONE_BY_ONE


def with_cuts(layer: Layer) -> Layer:
    """The layer with cuts instead of thresholds, if its sums become trits and its pool is one that small.c knows."""
    one = ((1, 1),)
    pools = {Routine.TERNARY: (*one, (2, 2)), Routine.WIDE: one, Routine.COUNTERS: one}.get(layer.routine, ())
    levels, thresholds, directions = layer.levels, layer.thresholds, layer.directions
    if (
        layer.target_type != Type.TRIT
        or (layer.pool_rows, layer.pool_columns) not in pools
        or levels is None
        or thresholds is None
        or directions is None
        or not ascend(levels)
    ):
        return layer
    padded = np.pad(thresholds.astype(np.int64), ((0, 0), (1, 1)), constant_values=((0, 0), (-(2**31), 2**31)))
    # The first level that is at least 0, and at least 1, begins at the threshold before it: "always" before the first.
    cuts = padded[:, [int(np.searchsorted(levels, level)) for level in (0, 1)]]
    falls = directions[:, None] < 0  # -s >= t is not s >= 1 - t
    biased = np.where(falls, 1 - cuts, cuts) + layer.bias
    clipped = np.ascontiguousarray(np.clip(biased, 0, _MOST_SUM + 1), np.uint16)
    return replace(layer, cuts=clipped, thresholds=None, levels=None, steps=0)


def ascend(levels: Sequence[int] | np.ndarray) -> bool:
    """Whether every level is at least the one before it."""
    return bool(np.all(np.diff(levels) >= 0))


def strips(layer: Layer, triples: int) -> tuple[Strips, int]:
    """The strip of a layer, where it and the rest lie in scratch, and the size of scratch."""
    ternary = layer.routine == Routine.TERNARY
    line, lead = _line(
        layer.routine,
        layer.columns,
        layer.out_columns,
        layer.kernel_columns,
        layer.stride_columns,
        layer.padding_columns,
        layer.dilation_columns,
    )
    phases = _phases(layer.kernel_columns, layer.stride_columns, layer.dilation_columns)
    outs = layer.out_channels // layer.groups
    sizes = {
        "strip": layer.channels // layer.groups * layer.kernel_rows * phases * line * (1 if ternary else 2),
        "tables": min(triples, BLOCK) * _TABLE_BYTES,
        "sums": outs * (32 if ternary else 8),
        "starts": 3 * triples * 2,
    }
    offsets, end = {}, 0
    for name, size in sizes.items():
        offsets[name] = end
        end += -(-size // 8) * 8
    return Strips(triples=triples, phases=phases, line=line, lead=lead, **offsets), end


def _phases(kernel_columns: int, stride: int, dilation: int) -> int:
    """Lines of a row: one for each residue of the columns that taps read."""
    return min(stride, (kernel_columns - 1) * dilation + 1)


def _line(
    routine: Routine, columns: int, out_columns: int, kernel_columns: int, stride: int, padding: int, dilation: int
) -> tuple[int, int]:
    """Elements of a line, and those before its first."""
    reach = (kernel_columns - 1) * dilation // stride
    if routine != Routine.TERNARY:
        return -(-out_columns // 4) * 4 + reach, 0
    lead = -padding % 4 if stride == 1 else 0  # the source begins at a whole word
    read = lead + -(-out_columns // 8) * 8 + reach + 4  # an aligned load may reach 4 bytes further
    written = lead + padding + -(-columns // 4) * 4 if stride == 1 else 0
    return -(-max(read, written) // 4) * 4, lead
