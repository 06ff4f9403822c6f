"""An `IntegerNet` as layers of the C runtime: fused, placed in memory, with weights as its kernels want them.

The engine hands these layers to the compiled runtime as structs, `to_c` writes them down as constants; both
are `struct lehr_layer` of runtime/lehr.h, field by field.

Fused: a `Conv` or `Linear`, a `MaxPool` whose windows do not overlap, and a `Threshold` become one layer, so
that sums never stay in memory. `Flatten` is only another name for the same bytes. Values whose lives do not
overlap share memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import numpy as np

from lehr.deploy.integer_net import (
    Add,
    Affine,
    Clip,
    Conv,
    Flatten,
    IntegerNet,
    Linear,
    MaxPool,
    Operation,
    Shape,
    SumPool,
    Table,
    Threshold,
    Value,
    Weights,
)

OPERATIONS = ("TABLE", "CONV", "LINEAR", "MAX_POOL", "SUM_POOL", "THRESHOLD", "ADD", "AFFINE", "CLIP")
TYPES = ("INT8", "INT16", "INT32", "FLOAT")
KERNELS = ("DIRECT", "TERNARY", "WIDE", "MATRIX", "TRITS", "BITS")
LEVELS = ("scalar", "avx2", "avx512", "amx")
VECTOR_BYTES = {"scalar": 8, "avx2": 32, "avx512": 64, "amx": 64}

_TYPE_OF = {np.dtype(np.int8): 0, np.dtype(np.int16): 1, np.dtype(np.int32): 2, np.dtype(np.float32): 3}
_TRITS = {-1, 0, 1}
_MOST_TRIT_SUM = 1 << 25  # tiles of trits make 64 times the sums, in int32: MOST in runtime/amx.c

# Making a table costs about as much as eight outputs' look-ups: with fewer outputs the direct kernel wins.
_FEWEST_OUTPUTS = 8
# Tables hold biased sums of at most 6 a triple in 16 bits.
_MOST_TRIPLES = 65535 // 6
BLOCK = 32  # triples in a block of weights, as in runtime/tables.h
_BITS_OUTPUTS = 16  # LEHR_BITS_OUTPUTS in runtime/lehr.h
_MOST_MEMORY = 2**31 - 1


@dataclass(frozen=True, eq=False)
class Layer:
    """`struct lehr_layer`: numbers and arrays in its order; `name` and `value` say what it computes."""

    name: str
    value: Value
    operation: int
    kernel: int = 0
    source_type: int = 0
    second_type: int = 0
    target_type: int = 0
    source: int = 0
    second: int = 0
    target: int = 0
    channels: int = 0
    rows: int = 0
    columns: int = 0
    out_channels: int = 0
    out_rows: int = 0
    out_columns: int = 0
    kernel_rows: int = 1
    kernel_columns: int = 1
    stride_rows: int = 1
    stride_columns: int = 1
    padding_rows: int = 0
    padding_columns: int = 0
    dilation_rows: int = 1
    dilation_columns: int = 1
    groups: int = 1
    pool_rows: int = 1
    pool_columns: int = 1
    source_interleaved: int = 0
    target_interleaved: int = 0
    steps: int = 0
    low: float = 0.0
    high: float = 0.0
    weights: np.ndarray | None = None
    thresholds: np.ndarray | None = None
    directions: np.ndarray | None = None
    levels: np.ndarray | None = None
    scale: np.ndarray | None = None
    shift: np.ndarray | None = None
    why: str = field(default="", kw_only=True)  # why a layer with weights takes its kernel

    def built_for(self, level: str) -> str:
        """The instruction set that runs it at `level`; `kernels_for` in runtime/scalar.c."""
        small = KERNELS[self.kernel] == "TERNARY" and self.out_rows * self.out_columns <= 64
        return "avx2" if small and level in ("avx512", "amx") else level

    def scratch(self, level: str) -> int:
        """Bytes of scratch it needs; the same arithmetic as `scratch_bytes` in runtime/scalar.c."""
        if OPERATIONS[self.operation] not in ("CONV", "LINEAR"):
            return 0
        kernel, vector = KERNELS[self.kernel], VECTOR_BYTES[self.built_for(level)]
        if kernel == "BITS":
            return -(-self.channels // 32) * 16
        if kernel == "DIRECT":
            return self.pool_rows * self.out_columns * 8
        if kernel in ("MATRIX", "TRITS"):
            return self._matrix_scratch()
        return self._table_scratch(vector, ternary=kernel == "TERNARY")

    def _table_scratch(self, vector: int, *, ternary: bool) -> int:
        width, accumulators = (1, 4) if ternary else (2, 2)
        triples = triples_of(self.channels // self.groups * self.kernel_rows * self.kernel_columns)
        pool = (self.pool_rows, self.pool_columns)
        even = self.out_rows % 2 == 0 and self.out_columns % 2 == 0
        paired = ternary and self._shifts and pool == (2, 2) and even and 6 * triples <= 0x7FFF
        step = self.stride_rows * (2 if paired else 1)
        reach = (self.kernel_rows - 1) * self.dilation_rows
        margins = 2 * self.padding_columns if self._shifts else 0
        plane = (self.out_rows // (2 if paired else 1) + reach // step) * self.out_columns + margins
        planes = self.channels * min(reach + 1, step) * self.kernel_columns
        channel = (self.rows + 2 * self.padding_rows + 1) * self.columns + 2 * self.padding_columns
        areas = (
            plane * planes * width + 4 * vector,
            (BLOCK // 2 if vector > 32 else BLOCK) * 27 * vector,
            self.out_channels // self.groups * accumulators * vector,
            triples * 3 * 4,
            self.out_channels * self.out_rows * self.out_columns * 2 if pool != (1, 1) and not paired else 0,
            self.kernel_columns * (self.columns * width + vector),
            channel + 2 * vector if ternary else self.channels * self.rows * self.columns * 2,
        )
        return sum(map(align, areas))

    @property
    def _shifts(self) -> bool:
        """Whether planes are shifts of one another: `shifts` in runtime/tables.h."""
        return (
            (self.stride_rows, self.stride_columns) == (1, 1)
            and self.out_columns == self.columns
            and self.kernel_columns % 2 == 1
            and self.padding_columns < self.columns
        )

    def _matrix_scratch(self) -> int:
        channels, outs = self.channels // self.groups, self.out_channels // self.groups
        straight = loads_straight(channels, self.out_columns, self.stride_rows)
        taps = matrix_taps(channels, self.kernel_rows * self.kernel_columns, straight=straight)
        rows = (512 if straight else 64) // self.out_columns // self.pool_rows * self.pool_rows
        whole = self.out_rows // self.pool_rows * self.pool_rows
        pixels = _up(min(whole, rows or self.pool_rows) * self.out_columns, 32)
        height = (self.out_rows - 1) * self.stride_rows + (self.kernel_rows - 1) * self.dilation_rows + 1
        width = (self.out_columns - 1) * self.stride_columns
        width += (self.kernel_columns - 1) * self.dilation_columns + 1
        if straight and self.out_columns % 16:
            width = self.kernel_columns * self.out_columns  # a plane for each column of the kernel
        padded = align((height * width + 16) * (_up(channels, 64) if straight else channels) + 16)
        panel = 0 if straight else pixels * taps + 64
        values = 0 if self.source_interleaved else align(self.channels * self.rows * self.columns)
        trits = 18 * 2 * 1024 if KERNELS[self.kernel] == "TRITS" else 0
        sums = 4 * pixels * 32
        return values + padded + panel + trits + sums + 4 * (taps // 64) + 4 * outs * (self.steps + 1)


# The struct's fields in its order, with their Python types.
TYPE_OF_FIELD = {
    name: field.type for name, field in Layer.__dataclass_fields__.items() if name not in ("name", "value", "why")
}
FIELDS = tuple(TYPE_OF_FIELD)


@dataclass(frozen=True, eq=False)
class Plan:
    """The layers of a network and where its results lie in memory; `struct lehr_net`."""

    layers: tuple[Layer, ...]
    image_bytes: int
    value_bytes: int
    outputs: int
    scores: int
    logits: int
    scores_type: int
    logits_type: int

    def memory(self, level: str) -> int:
        """Bytes of memory a run needs; what `lehr_memory` says."""
        return align(self.value_bytes) + align(max(layer.scratch(level) for layer in self.layers)) + 64


def align(size: int) -> int:
    """`size` rounded up to whole cache lines."""
    return _up(size, 64)


def _up(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple


def loads_straight(channels: int, columns: int, stride_rows: int) -> bool:
    """Whether tiles come from the padded source, not from a panel: see runtime/amx.c."""
    return channels >= 16 and (columns % 16 == 0 or stride_rows == 1)


def matrix_taps(channels: int, places: int, *, straight: bool) -> int:
    """Taps of a matrix layer, padded: for loading straight, the channels of each place of the kernel are."""
    return _up(channels, 64) * places if straight else _up(channels * places, 64)


def triples_of(taps: int) -> int:
    """Weight triples for this many taps, padded to an even number."""
    triples = -(-taps // 3)
    return triples + triples % 2


def plan(net: IntegerNet, *, matrix: bool = False) -> Plan:
    """Fuse the operations of `net` into layers and place every value; `matrix`: for a processor with AMX."""
    readers = Counter(source for operation in net.operations for source in operation.sources)
    kept = {net.score_name, net.operations[-1].name}
    only_reader = {
        operation.sources[0]: operation
        for operation in net.operations
        if len(operation.sources) == 1 and readers[operation.sources[0]] == 1 and operation.sources[0] not in kept
    }
    layers: list[Layer] = []
    names: dict[str, str] = {}  # Flatten: another name for the same value
    inputs: list[tuple[str, ...]] = []
    fused: set[str] = set()
    casts: dict[tuple[str, Shape], str] = {}  # integers that several layers read as floats
    image = Value(net.input_shape, "integer", 0, 255)
    for operation in net.operations:
        if operation.name in fused:
            continue
        sources = tuple(names.get(name, name) for name in operation.sources)
        if isinstance(operation, Flatten):
            names[operation.name] = sources[0]
            continue
        values = [net.values[name] for name in operation.sources] or [image]
        layer = _layer(operation, values, net.values[operation.name], matrix=matrix)
        if isinstance(operation, (Conv, Linear)):
            if layer.weights is not None and layer.weights.dtype == np.float32 and values[0].kind == "integer":
                key = sources[0], values[0].shape
                if key not in casts:
                    cast = _cast(f"{sources[0]} as float for {layer.name}", sources[0], values[0])
                    casts[key] = cast.name
                    layers.append(cast)
                    inputs.append(sources)
                sources = (casts[key],)
                layer = replace(layer, source_type=TYPES.index("FLOAT"))
            for absorb in (_absorb_pool, _absorb_threshold):
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
    places, value_bytes = _places(layers, inputs, {names.get(name, name) for name in kept})
    layers = [_placed(layer, sources, places) for layer, sources in zip(layers, inputs, strict=True)]
    last = net.operations[-1].name
    made = Plan(
        tuple(layers),
        image_bytes=image.size,
        value_bytes=value_bytes,
        outputs=net.output.size,
        scores=places[names.get(net.score_name, net.score_name)],
        logits=places[names.get(last, last)],
        scores_type=_TYPE_OF[net.values[net.score_name].dtype],
        logits_type=_TYPE_OF[net.output.dtype],
    )
    memory = max(made.memory(level) for level in LEVELS)
    if memory > _MOST_MEMORY:
        raise ValueError(f"a run would take {memory} bytes, more than {_MOST_MEMORY}: C counts them in int32")
    return made


def _layer(operation: Operation, inputs: list[Value], value: Value, *, matrix: bool = False) -> Layer:
    """One operation by itself."""
    (channels, rows, columns), out = inputs[0].shape, value.shape
    layer = Layer(
        operation.name,
        value,
        0,
        source_type=_TYPE_OF[inputs[0].dtype],
        second_type=_TYPE_OF[inputs[-1].dtype],
        target_type=_TYPE_OF[value.dtype],
        channels=channels,
        rows=rows,
        columns=columns,
        out_channels=out[0],
        out_rows=out[1],
        out_columns=out[2],
    )
    if isinstance(operation, Table):
        return replace(layer, operation=0, weights=operation.table.astype(value.dtype))
    if isinstance(operation, Conv):
        kernel, why = _kernel(operation, inputs[0], value, matrix=matrix)
        _, _, kernel_rows, kernel_columns = operation.shape
        return replace(
            layer,
            operation=1,
            kernel=KERNELS.index(kernel),
            kernel_rows=kernel_rows,
            kernel_columns=kernel_columns,
            stride_rows=operation.stride[0],
            stride_columns=operation.stride[1],
            padding_rows=operation.padding[0],
            padding_columns=operation.padding[1],
            dilation_rows=operation.dilation[0],
            dilation_columns=operation.dilation[1],
            groups=operation.groups,
            weights=_conv_weights(operation, kernel, value),
            why=why,
        )
    if isinstance(operation, Linear):
        weight = operation.weight
        if isinstance(weight, Weights) and _is_ternary(weight) and _is_trit(inputs[0]):
            return replace(layer, operation=2, kernel=KERNELS.index("BITS"), weights=_bit_planes(weight))
        why = "weights or values are not in {-1, 0, 1}"
        return replace(layer, operation=2, weights=_plain(weight, value), why=why)
    if isinstance(operation, (MaxPool, SumPool)):
        return replace(
            layer,
            operation=3 if isinstance(operation, MaxPool) else 4,
            kernel_rows=operation.kernel[0],
            kernel_columns=operation.kernel[1],
            stride_rows=operation.stride[0],
            stride_columns=operation.stride[1],
            padding_rows=operation.padding[0],
            padding_columns=operation.padding[1],
        )
    if isinstance(operation, Threshold):
        return replace(layer, operation=5, **_steps(operation))
    if isinstance(operation, Add):
        return replace(layer, operation=6)
    if isinstance(operation, Affine):
        return replace(layer, operation=7, scale=operation.scale, shift=operation.shift)
    if isinstance(operation, Clip):
        return replace(layer, operation=8, low=operation.low, high=operation.high)
    raise TypeError(f"{operation.name}: the C runtime has no {type(operation).__name__}")


def _interleaved(
    layers: list[Layer], inputs: list[tuple[str, ...]], kept: set[str], flattened: set[str]
) -> list[Layer]:
    """Let values that a table or matrix layers make and only matrix layers read be (row, column, channel)."""
    matrix, table = {KERNELS.index("MATRIX"), KERNELS.index("TRITS")}, OPERATIONS.index("TABLE")
    able = [layer for layer in layers if layer.kernel in matrix or layer.operation == table]
    makers = {layer.name for layer in able if TYPES[layer.target_type] == "INT8"}
    for layer, sources in zip(layers, inputs, strict=True):
        if layer.kernel not in matrix:
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


def _absorb_pool(layer: Layer, follower: Operation, value: Value) -> Layer | None:
    if not isinstance(follower, MaxPool) or follower.kernel != follower.stride or follower.padding != (0, 0):
        return None
    rows, columns = follower.kernel
    return replace(layer, name=follower.name, value=value, pool_rows=rows, pool_columns=columns)


def _absorb_threshold(layer: Layer, follower: Operation, value: Value) -> Layer | None:
    if not isinstance(follower, Threshold):
        return None
    target_type = _TYPE_OF[value.dtype]
    return replace(layer, name=follower.name, value=value, target_type=target_type, **_steps(follower))


def _steps(operation: Threshold) -> dict[str, object]:
    return {
        "steps": operation.thresholds.shape[1],
        "thresholds": operation.thresholds,
        "directions": operation.directions,
        "levels": np.array(operation.levels, np.int16),
    }


def _cast(name: str, source: str, value: Value) -> Layer:
    """Integers as floats, for layers with float weights."""
    ones = np.ones(value.shape[0])
    return _layer(Affine(name, source, ones, 0 * ones), [value], Value(value.shape, "float"))


def _is_ternary(weight: Weights | np.ndarray) -> bool:
    return isinstance(weight, Weights) and weight.is_integer and set(weight.levels) <= _TRITS


def _is_trit(value: Value) -> bool:
    return value.kind == "integer" and value.low >= -1 and value.high <= 1


def _kernel(operation: Conv, source: Value, value: Value, *, matrix: bool) -> tuple[str, str]:
    """The kernel for a convolution, and for the direct one the reason."""
    out, channels, rows, columns = operation.shape
    if matrix and value.kind == "integer" and source.dtype == np.int8 and out // operation.groups >= _FEWEST_OUTPUTS:
        few = value.low > -_MOST_TRIT_SUM and value.high < _MOST_TRIT_SUM
        return "TRITS" if few and _is_ternary(operation.weight) else "MATRIX", ""
    if not _is_ternary(operation.weight):
        return "DIRECT", "the weights are not in {-1, 0, 1}"
    if source.kind == "float":
        return "DIRECT", "its values are floats"
    if out // operation.groups < _FEWEST_OUTPUTS:
        return "DIRECT", f"fewer than {_FEWEST_OUTPUTS} outputs share a table"
    if _is_trit(source):
        if triples_of(channels * rows * columns) <= _MOST_TRIPLES:
            return "TERNARY", ""
        return "DIRECT", "its sums leave int16"
    if source.dtype.itemsize <= 2 and value.low >= -32766 and value.high <= 32766:
        return "WIDE", ""
    return "DIRECT", "its sums leave int16"


def _conv_weights(operation: Conv, kernel: str, value: Value) -> np.ndarray:
    weight = operation.weight
    if kernel == "DIRECT" or not isinstance(weight, Weights):
        return _plain(weight, value)
    out, channels, rows, columns = operation.shape
    straight = loads_straight(channels, value.shape[2], operation.stride[0])
    if kernel == "MATRIX":
        return _tiles(weight.values, operation.groups, straight=straight)
    if kernel == "TRITS":
        return _trit_tiles(weight, operation.groups, straight=straight)
    taps = channels * rows * columns
    triples = triples_of(taps)
    digits = np.ones((out, 3 * triples), np.uint8)  # weights 0, 1, 2 for -1, 0, 1
    digits[:, :taps] = _digits(weight).reshape(out, taps)
    codes = 72 * digits[:, 0::3] + 24 * digits[:, 1::3] + 8 * digits[:, 2::3]
    groups = codes.reshape(operation.groups, out // operation.groups, triples)
    return np.concatenate([group[:, at : at + BLOCK].ravel() for group in groups for at in range(0, triples, BLOCK)])


def _tile_taps(lines: np.ndarray, fill: int, *, straight: bool) -> np.ndarray:
    """(..., channel, kernel row, kernel column) to taps (..., step, taps / 4, 4), padded with `fill`.

    For loading straight a step is 64 channels of one place of the kernel, and the places come first.
    """
    *head, channels, rows, columns = lines.shape
    places = rows * columns
    if straight:
        padded = np.full((*head, _up(channels, 64), places), fill, lines.dtype)
        padded[..., :channels, :] = lines.reshape(*head, channels, places)
        padded = padded.reshape(*head, -1, 64, places).swapaxes(-1, -2)
    else:
        padded = np.full((*head, matrix_taps(channels, places, straight=False)), fill, lines.dtype)
        taps = lines.reshape(*head, channels, places).swapaxes(-1, -2)
        padded[..., : places * channels] = taps.reshape(*head, -1)
    return padded.reshape(*head, -1, 16, 4)


def _tiles(values: np.ndarray, groups: int, *, straight: bool) -> np.ndarray:
    """(group, pair of tiles, 64 taps, tile of the pair, taps / 4, 16 outputs, 4 taps): runtime/amx.c."""
    outs = len(values) // groups
    padded = np.zeros((groups, _up(outs, 32), *values.shape[1:]), np.int8)
    padded[:, :outs] = values.reshape(groups, outs, *values.shape[1:])
    tiles = _tile_taps(padded.reshape(groups, -1, 2, 16, *values.shape[1:]), 0, straight=straight)
    return np.ascontiguousarray(tiles.transpose(0, 1, 4, 2, 5, 3, 6))


def _digits(weight: Weights) -> np.ndarray:
    """Trits plus one, uint8: 0, 1, 2."""
    if weight.levels == (-1, 0, 1):
        return weight.codes
    return (np.array(weight.levels) + 1).astype(np.uint8)[weight.codes]


def _trit_tiles(weight: Weights, groups: int, *, straight: bool) -> np.ndarray:
    """The same for trits, two bits each: four rows of a tile share a row, the first one in the highest bits."""
    out, *taps = weight.codes.shape
    outs = out // groups
    bits = np.zeros((groups, _up(outs, 32), *taps), np.uint8)
    bits[:, :outs] = (np.array(weight.levels) & 3).astype(np.uint8)[weight.codes].reshape(groups, outs, *taps)
    tiles = _tile_taps(bits.reshape(groups, -1, 2, 16, *taps), 0, straight=straight)
    rows = np.moveaxis(tiles.reshape(*tiles.shape[:-2], 4, 4, 4), -2, 0)
    packed = rows[0] << 6 | rows[1] << 4 | rows[2] << 2 | rows[3]
    return np.ascontiguousarray(packed.transpose(0, 1, 4, 2, 5, 3, 6))


def _bit_planes(weight: Weights) -> np.ndarray:
    """uint32 (block of outputs, word, {nonzero, negative}, output); input k is bit k % 32 of word k // 32."""
    out, features = weight.codes.shape
    planes = np.zeros((_up(out, _BITS_OUTPUTS), 2, _up(features, 32)), bool)
    negative = sum(level < 0 for level in weight.levels)  # levels ascend: these come first, then perhaps 0
    has_zero = 0 in weight.levels
    planes[:out, 0, :features] = weight.codes != negative if has_zero else True
    planes[:out, 1, :features] = weight.codes < negative
    words = np.packbits(planes, axis=2, bitorder="little").view("<u4").astype(np.uint32)
    return np.ascontiguousarray(words.reshape(-1, _BITS_OUTPUTS, 2, words.shape[2]).transpose(0, 3, 2, 1))


def _plain(weight: Weights | np.ndarray, value: Value) -> np.ndarray:
    values = weight.values if isinstance(weight, Weights) else weight
    return values if value.kind == "integer" else values.astype(np.float32)


def _places(layers: list[Layer], inputs: list[tuple[str, ...]], kept: Iterable[str]) -> tuple[dict[str, int], int]:
    """An offset for each value: the lowest that no value alive at the same time takes."""
    last_use = {name: index for index, sources in enumerate(inputs) for name in sources}
    last_use.update(dict.fromkeys(kept, len(layers)))
    places: dict[str, int] = {}
    alive: list[tuple[int, int, int]] = []  # (offset, end, last use)
    total = 0
    for index, layer in enumerate(layers):
        alive = sorted(x for x in alive if x[2] >= index)
        size = align(layer.value.size * layer.value.dtype.itemsize)
        offset = 0
        for start, end, _ in alive:
            if offset + size <= start:
                break
            offset = max(offset, end)
        places[layer.name] = offset
        alive.append((offset, offset + size, last_use[layer.name]))
        total = max(total, offset + size)
    return places, total


def _placed(layer: Layer, sources: tuple[str, ...], places: dict[str, int]) -> Layer:
    offsets = [places[name] for name in sources] or [0]
    return replace(layer, source=offsets[0], second=offsets[-1], target=places[layer.name])
