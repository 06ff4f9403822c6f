"""Operations as layers of the C runtime, one by one, and which operations a layer takes into itself.

fuse.py walks over a network with them; structs.py says what a layer is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from lehr.deploy import small
from lehr.deploy.even_steps import narrowed
from lehr.deploy.kernels import routine_for, taps_of, triples_of, weights_for
from lehr.deploy.operations import (
    Add,
    Affine,
    Clip,
    Concat,
    Conv,
    Floats,
    Linear,
    MaxPool,
    Multiply,
    Operation,
    Requantize,
    Round,
    SumPool,
    Table,
    Take,
    Threshold,
    Value,
)
from lehr.deploy.structs import Kind, Layer, Type

TYPE_OF = {
    np.dtype(np.int8): Type.INT8,
    np.dtype(np.int16): Type.INT16,
    np.dtype(np.int32): Type.INT32,
    np.dtype(np.float32): Type.FLOAT,
}
_KIND_OF: dict[type[Operation], Kind] = {
    Table: Kind.TABLE,
    Floats: Kind.COPY,
    Round: Kind.ROUND,
    Conv: Kind.CONV,
    Linear: Kind.LINEAR,
    MaxPool: Kind.MAX_POOL,
    SumPool: Kind.SUM_POOL,
    Threshold: Kind.THRESHOLD,
    Requantize: Kind.REQUANTIZE,
    Add: Kind.ADD,
    Multiply: Kind.MULTIPLY,
    Affine: Kind.AFFINE,
    Clip: Kind.CLIP,
    Concat: Kind.COPY,
    Take: Kind.TAKE,
}


def layer_of(operation: Operation, inputs: list[Value], value: Value, instruction_set: str) -> Layer:
    """One operation by itself."""
    if isinstance(operation, Table):
        operation = _by_unsigned(operation, inputs[0])
    if type(operation) not in _KIND_OF:
        raise TypeError(f"{operation.name}: the C runtime has no {type(operation).__name__}")
    (channels, rows, columns), out = inputs[0].shape, value.shape
    routine, why = routine_for(operation, inputs[0], value, instruction_set)
    layer = Layer(
        operation.name,
        value,
        _KIND_OF[type(operation)],
        routine,
        source_type=TYPE_OF[inputs[0].dtype],
        second_type=TYPE_OF[inputs[-1].dtype],
        target_type=TYPE_OF[value.dtype],
        channels=channels,
        rows=rows,
        columns=columns,
        out_channels=out[0],
        out_rows=out[1],
        out_columns=out[2],
        why=why,
    )
    if isinstance(operation, (Conv, Linear)):
        layer = replace(layer, weights=weights_for(operation, routine, value))
        if instruction_set == "small":
            layer = replace(layer, bias=small.bias_of(routine, value, triples_of(taps_of(operation))))
    match operation:
        case Table():
            return replace(layer, weights=operation.table.astype(value.dtype), groups=len(operation.table))
        case Round():
            groups = max(len(operation.mean), len(operation.factor))  # one for all channels, or one for each
            shift, scale = (np.broadcast_to(x, groups).copy() for x in (operation.mean, operation.factor))
            return replace(layer, scale=scale, shift=shift, high=float(operation.limit), groups=groups)
        case Conv():
            _, _, kernel_rows, kernel_columns = operation.shape
            return replace(
                layer,
                kernel_rows=kernel_rows,
                kernel_columns=kernel_columns,
                stride_rows=operation.stride[0],
                stride_columns=operation.stride[1],
                padding_rows=operation.padding[0],
                padding_columns=operation.padding[1],
                dilation_rows=operation.dilation[0],
                dilation_columns=operation.dilation[1],
                groups=operation.groups,
            )
        case MaxPool() | SumPool():
            return replace(
                layer,
                kernel_rows=operation.kernel[0],
                kernel_columns=operation.kernel[1],
                stride_rows=operation.stride[0],
                stride_columns=operation.stride[1],
                padding_rows=operation.padding[0],
                padding_columns=operation.padding[1],
            )
        case Threshold():
            return replace(layer, **_steps(operation))
        case Requantize():
            return replace(layer, **_multipliers(operation))
        case Add():
            return replace(layer, first_factor=operation.first_factor, second_factor=operation.second_factor)
        case Multiply():  # one group: a number for each place, else one for each channel
            return replace(layer, groups=1 if inputs[1].shape == inputs[0].shape else channels)
        case Affine():
            return replace(layer, scale=operation.scale, shift=operation.shift)
        case Clip():
            return replace(layer, low=operation.low, high=operation.high)
        case Take():
            return replace(layer, weights=np.concatenate(operation.offsets), low=operation.fill)
        case _:  # Linear and Concat need nothing more
            return layer


def _by_unsigned(operation: Table, image: Value) -> Table:
    """C looks a signed number up as the unsigned one of the same bits: 0 to 127, then -128 to -1."""
    return replace(operation, table=np.roll(operation.table, 128, axis=1)) if image.low < 0 else operation


def absorb_pool(layer: Layer, follower: Operation, value: Value) -> Layer | None:
    """The layer with the pool that follows it, whose result is `value`; None if it is no pool that fits."""
    if not isinstance(follower, MaxPool) or follower.kernel != follower.stride or follower.padding != (0, 0):
        return None
    rows, columns = follower.kernel
    return replace(layer, name=follower.name, value=value, pool_rows=rows, pool_columns=columns)


def absorb_threshold(layer: Layer, follower: Operation, value: Value) -> Layer | None:
    """The layer with the thresholds that follow it, whose result is `value`; None if none do."""
    if not isinstance(follower, Threshold | Requantize):
        return None
    pools = layer.pool_rows * layer.pool_columns > 1
    if pools and isinstance(follower, Threshold) and not small.ascend(follower.levels):
        return None  # small.c takes the maximum of levels, so they must rise
    if isinstance(follower, Threshold):
        fields = _steps(follower)
    else:
        narrow = narrowed(follower, layer.value.low, layer.value.high)
        fields = _multipliers(narrow or follower) | {"narrow": int(narrow is not None)}
    return replace(layer, name=follower.name, value=value, target_type=TYPE_OF[value.dtype], **fields)


def _steps(operation: Threshold) -> dict[str, object]:
    return {
        "steps": operation.thresholds.shape[1],
        "thresholds": operation.thresholds,
        "directions": operation.directions,
        "levels": np.array(operation.levels, np.int16),
    }


def _multipliers(operation: Requantize) -> dict[str, object]:
    return {
        "multipliers": operation.multipliers,
        "offsets": operation.offsets,
        "shift_bits": operation.shift,
        "lowest": operation.low,
        "highest": operation.high,
    }


def as_floats(name: str, source: str, value: Value) -> Layer:
    """Integers as floats, for layers with float weights."""
    ones = np.ones(value.shape[0])
    return layer_of(Affine(name, source, ones, 0 * ones), [value], Value(value.shape, "float"), "scalar")


def parts_of(operation: Concat, inputs: list[Value], value: Value) -> Iterator[tuple[Layer, int]]:
    """A layer for each part, with its offset in bytes; the first stands for the whole value."""
    offset = 0
    for number, part in enumerate(inputs):
        layer = layer_of(operation, [part], value, "scalar")
        yield (replace(layer, name=f"{operation.name} part {number + 1}") if number else layer), offset
        offset += part.size * value.dtype.itemsize
