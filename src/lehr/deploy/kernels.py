"""Which routine of the C runtime computes a layer, and how its weights are laid out for it.

A `Layer` is `struct lehr_layer` of runtime/lehr.h, field by field: cpu.py hands it to the compiled runtime as a struct,
write_c.py writes it down as constants.

    DIRECT         multiply and add, for any weights and values
    TERNARY, WIDE  tables of the sums of three values, looked up by three ternary weights; values trits, or up to int16
    MATRIX, TRITS  tiles of AMX; weights in int8, or trits of two bits
    BITS           linear layers of trits: bit-planes, counted
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from lehr.deploy.operations import Conv, Linear, Value, Weights

OPERATIONS = ("TABLE", "CONV", "LINEAR", "MAX_POOL", "SUM_POOL", "THRESHOLD", "ADD", "AFFINE", "CLIP")
TYPES = ("INT8", "INT16", "INT32", "FLOAT")
KERNELS = ("DIRECT", "TERNARY", "WIDE", "MATRIX", "TRITS", "BITS")
LEVELS = ("scalar", "avx2", "avx512", "amx")
VECTOR_BYTES = {"scalar": 8, "avx2": 32, "avx512": 64, "amx": 64}

_TRITS = {-1, 0, 1}
_MOST_TRIT_SUM = 1 << 25  # tiles of trits make 64 times the sums, in int32: MOST in runtime/amx.c

# Making a table costs about as much as eight outputs' look-ups: with fewer outputs the direct kernel wins.
_FEWEST_OUTPUTS = 8
# Tables hold biased sums of at most 6 a triple in 16 bits.
_MOST_TRIPLES = 65535 // 6
BLOCK = 32  # triples in a block of weights, as in runtime/tables.h
_BITS_OUTPUTS = 16  # LEHR_BITS_OUTPUTS in runtime/lehr.h


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


def _is_ternary(weight: Weights | np.ndarray) -> bool:
    return isinstance(weight, Weights) and weight.is_integer and set(weight.levels) <= _TRITS


def _is_trit(value: Value) -> bool:
    return value.kind == "integer" and value.low >= -1 and value.high <= 1


def kernel_for(operation: Conv | Linear, source: Value, value: Value, *, matrix: bool) -> tuple[str, str]:
    """The name of the routine in KERNELS, and for the direct one the reason.

    Args:
        operation: the layer
        source: what it reads
        value: the sums it makes
        matrix: whether the processor has AMX
    """
    if isinstance(operation, Linear):
        trits = _is_ternary(operation.weight) and _is_trit(source)
        return ("BITS", "") if trits else ("DIRECT", "weights or values are not in {-1, 0, 1}")
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


def weights_for(operation: Conv | Linear, kernel: str, value: Value) -> np.ndarray:
    """The weights as `kernel` reads them; `value` are the sums."""
    weight = operation.weight
    if kernel == "DIRECT" or not isinstance(weight, Weights):
        return _plain(weight, value)
    if isinstance(operation, Linear):
        return _bit_planes(weight)
    if kernel in ("TERNARY", "WIDE"):
        return _triples(weight, operation.groups)
    straight = loads_straight(operation.shape[1], value.shape[2], operation.stride[0])
    if kernel == "MATRIX":
        return _tiles(weight.values, operation.groups, straight=straight)
    return _trit_tiles(weight, operation.groups, straight=straight)


def _triples(weight: Weights, groups: int) -> np.ndarray:
    """uint8 (group, block of triples, output, triple): where three weights find their sum in a table."""
    out = len(weight.codes)
    taps = weight.codes[0].size
    triples = triples_of(taps)
    digits = np.ones((out, 3 * triples), np.uint8)  # weights 0, 1, 2 for -1, 0, 1
    digits[:, :taps] = _digits(weight).reshape(out, taps)
    codes = 72 * digits[:, 0::3] + 24 * digits[:, 1::3] + 8 * digits[:, 2::3]
    parts = codes.reshape(groups, out // groups, triples)
    return np.concatenate([part[:, at : at + BLOCK].ravel() for part in parts for at in range(0, triples, BLOCK)])


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
