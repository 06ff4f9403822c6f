"""Which routine of the C runtime computes a layer, which instruction sets have it, and how its weights are laid out.

    NAIVE          the loops of runtime/reference.c, for every operation by itself: what all others must equal
    DIRECT         multiply and add a row at a time, for any weights and values
    TERNARY, WIDE  tables of the sums of three values, looked up by three ternary weights; values trits, or up to int16
    SHORT          multiply and add over the pixels of a plane, where sums fit int16
    MATRIX, TRITS  tiles of AMX; weights in int8, or trits of two bits
    BITS           linear layers of trits: bit-planes, counted
    COUNTERS       linear layers of trits for microcontrollers: zeros skipped, 32 outputs counted at once
    SEARCH         thresholds by themselves, found by halving
    PLUS           sums of two values of integers, with what follows them
    POOLS          maxima and sums of windows of integers

docs/kernels.md derives them from the naive loop.
"""

from __future__ import annotations

import numpy as np

from lehr.deploy import small
from lehr.deploy.operations import Add, Conv, Linear, MaxPool, Operation, SumPool, Threshold, Value, Weights
from lehr.deploy.structs import INSTRUCTION_SETS, Routine

_WITH_WEIGHTS = (Routine.DIRECT, Routine.TERNARY, Routine.WIDE, Routine.SHORT, Routine.BITS)
# The routines that each instruction set has of its own; for others it uses those of the ones before it.
ROUTINES: dict[str, tuple[Routine, ...]] = {
    "reference": (Routine.NAIVE,),
    "small": (Routine.DIRECT, Routine.TERNARY, Routine.WIDE, Routine.COUNTERS, Routine.SEARCH, Routine.PLUS),
    "scalar": (*_WITH_WEIGHTS, Routine.SEARCH, Routine.PLUS, Routine.POOLS),
    "vector": _WITH_WEIGHTS,
    "avx2": (*_WITH_WEIGHTS, Routine.PLUS, Routine.POOLS),
    "avx512": (*_WITH_WEIGHTS, Routine.PLUS, Routine.POOLS),
    "amx": (Routine.MATRIX, Routine.TRITS, Routine.BITS),
}
# Bytes of the vectors that look-up routines work on; words of 4 bytes, where pointers have 32 bits, need no more.
VECTOR_BYTES = {"scalar": 8, "vector": 16, "avx2": 32, "avx512": 64}
# Vectors that an entry of the ternary routine's tables has: PARTS of runtime/lanes.inc.
PARTS = {"scalar": 1, "vector": 2, "avx2": 1, "avx512": 1}

# Constants of runtime/lehr.h, there LEHR_BITS_OUTPUTS and so on.
BITS_OUTPUTS = 16
BLOCK = small.BLOCK
TILE_STEPS = 18
SHORT_PIXELS = 64
TILE_SLACK = 16
TILE_MOST = 1 << 25

_TRITS = {-1, 0, 1}
# Making a table costs about as much as eight outputs' look-ups: with fewer outputs the direct routine wins.
_FEWEST_OUTPUTS = 8
# Tables hold biased sums of at most 6 a triple in 16 bits.
_MOST_TRIPLES = 65535 // 6
# Vectors of 64 bytes hold 128 trits: where there are at most half as many pixels, vectors of 32 do.
_FEW_PIXELS = 64


def runs_on(instruction_set: str) -> tuple[str, ...]:
    """The instruction sets that run a network laid out for this one: its weights are theirs too."""
    alone = ("reference", "small", "amx")
    return (instruction_set,) if instruction_set in alone else ("scalar", "vector", "avx2", "avx512")


def built_for(routine: Routine, pixels: int, instruction_set: str) -> str:
    """The instruction set whose routine runs a layer: the best up to this one that has it.

    Args:
        routine: the layer's
        pixels: of each of its outputs
        instruction_set: the one a network runs on

    >>> built_for(Routine.DIRECT, 1024, "amx")
    'avx512'
    """
    most = INSTRUCTION_SETS.index(instruction_set)
    if routine == Routine.TERNARY and pixels <= _FEW_PIXELS:
        most = min(most, INSTRUCTION_SETS.index("avx2"))
    able = [name for name in INSTRUCTION_SETS[: most + 1] if routine in ROUTINES[name]]
    return able[-1] if able else "reference"


def rounded_up(size: int, multiple: int) -> int:
    """`size` rounded up to a multiple."""
    return -(-size // multiple) * multiple


def loads_straight(channels: int, columns: int, stride_rows: int) -> bool:
    """Whether tiles come from the padded source, not from a panel: see runtime/amx.c."""
    return channels >= 16 and (columns % 16 == 0 or stride_rows == 1)


def matrix_taps(channels: int, places: int, *, straight: bool) -> int:
    """Taps of a matrix layer, padded: for loading straight, the channels of each place of the kernel are."""
    return rounded_up(channels, 64) * places if straight else rounded_up(channels * places, 64)


def triples_of(taps: int) -> int:
    """Weight triples for this many taps, padded to an even number."""
    triples = -(-taps // 3)
    return triples + triples % 2


def _is_ternary(weight: Weights | np.ndarray) -> bool:
    return isinstance(weight, Weights) and weight.is_integer and set(weight.levels) <= _TRITS


def routine_for(operation: Operation, source: Value, value: Value, instruction_set: str) -> tuple[Routine, str]:
    """The routine of a layer, and for the ones that multiply the reason.

    Args:
        operation: the layer
        source: what it reads; the first of several
        value: what it makes, before anything is fused with it
        instruction_set: what its weights are laid out for
    """
    if instruction_set == "reference":
        return Routine.NAIVE, ""
    if not isinstance(operation, Conv | Linear):
        return _routine_without_weights(operation, value, instruction_set), ""
    if instruction_set == "small":
        return _small_routine(operation, source, value)
    return _routine_with_weights(operation, source, value, instruction_set)


def _routine_without_weights(operation: Operation, value: Value, instruction_set: str) -> Routine:
    if isinstance(operation, Threshold):
        return Routine.SEARCH
    if isinstance(operation, Add) and value.kind == "integer":
        return Routine.PLUS
    if isinstance(operation, MaxPool | SumPool) and value.kind == "integer" and instruction_set != "small":
        return Routine.POOLS
    return Routine.NAIVE


def _routine_with_weights(
    operation: Conv | Linear, source: Value, value: Value, instruction_set: str
) -> tuple[Routine, str]:
    if isinstance(operation, Linear):
        trits = _is_ternary(operation.weight) and small.is_trit(source)
        return (Routine.BITS, "") if trits else (Routine.DIRECT, "weights or values are not in {-1, 0, 1}")
    out, channels, rows, columns = operation.shape
    shares_tables = out // operation.groups >= _FEWEST_OUTPUTS
    if instruction_set == "amx" and value.kind == "integer" and source.dtype == np.int8 and shares_tables:
        fits = value.low > -TILE_MOST and value.high < TILE_MOST
        return Routine.TRITS if fits and _is_ternary(operation.weight) else Routine.MATRIX, ""
    if source.kind == "float":
        return Routine.DIRECT, "its values are floats"
    if value.kind == "float":
        return Routine.DIRECT, "its weights are floats"
    is_short = source.dtype.itemsize <= 2 and value.low >= -32766 and value.high <= 32766
    otherwise = Routine.SHORT if is_short else Routine.DIRECT
    if not _is_ternary(operation.weight):
        return otherwise, "the weights are not in {-1, 0, 1}"
    if not shares_tables:
        return otherwise, f"fewer than {_FEWEST_OUTPUTS} outputs share a table"
    if small.is_trit(source) and triples_of(channels * rows * columns) <= _MOST_TRIPLES:
        return Routine.TERNARY, ""
    if is_short and not small.is_trit(source):
        return Routine.WIDE, ""
    return Routine.DIRECT, "its sums leave int16"


def _small_routine(operation: Conv | Linear, source: Value, value: Value) -> tuple[Routine, str]:
    """The routine of runtime/small.c for a layer, and for the direct one the reason."""
    if not _is_ternary(operation.weight):
        return Routine.DIRECT, "the weights are not in {-1, 0, 1}"
    if source.kind == "float":
        return Routine.DIRECT, "its values are floats"
    if isinstance(operation, Linear):
        if small.is_trit(source) and source.size <= small.MOST_INPUTS:
            return Routine.COUNTERS, ""
        routine = Routine.WIDE
    elif operation.shape[0] // operation.groups < _FEWEST_OUTPUTS:
        return Routine.DIRECT, f"fewer than {_FEWEST_OUTPUTS} outputs share a table"
    else:
        routine = Routine.TERNARY if small.is_trit(source) else Routine.WIDE
    if source.dtype.itemsize > 2:
        return Routine.DIRECT, "its values leave int16"
    why = small.why_not_tables(operation, routine, source, value, triples_of(taps_of(operation)))
    return (Routine.DIRECT, why) if why else (routine, "")


def taps_of(operation: Conv | Linear) -> int:
    """Terms of a sum."""
    return operation.weight.codes[0].size if isinstance(operation.weight, Weights) else operation.weight[0].size


def weights_for(operation: Conv | Linear, routine: Routine, value: Value) -> np.ndarray:
    """The weights as `routine` reads them; `value` are the sums."""
    weight = operation.weight
    if routine in (Routine.NAIVE, Routine.DIRECT, Routine.SHORT) or not isinstance(weight, Weights):
        return _plain(weight, value)
    if routine == Routine.BITS:
        return _bit_planes(weight)
    if routine == Routine.COUNTERS:
        return _output_bits(weight)
    if isinstance(operation, Linear):
        return _triples(weight, 1)
    if routine in (Routine.TERNARY, Routine.WIDE):
        return _triples(weight, operation.groups)
    straight = loads_straight(operation.shape[1], value.shape[2], operation.stride[0])
    if routine == Routine.MATRIX:
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
        padded = np.full((*head, rounded_up(channels, 64), places), fill, lines.dtype)
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
    padded = np.zeros((groups, rounded_up(outs, 32), *values.shape[1:]), np.int8)
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
    bits = np.zeros((groups, rounded_up(outs, 32), *taps), np.uint8)
    bits[:, :outs] = (np.array(weight.levels) & 3).astype(np.uint8)[weight.codes].reshape(groups, outs, *taps)
    tiles = _tile_taps(bits.reshape(groups, -1, 2, 16, *taps), 0, straight=straight)
    rows = np.moveaxis(tiles.reshape(*tiles.shape[:-2], 4, 4, 4), -2, 0)
    packed = rows[0] << 6 | rows[1] << 4 | rows[2] << 2 | rows[3]
    return np.ascontiguousarray(packed.transpose(0, 1, 4, 2, 5, 3, 6))


def _bit_planes(weight: Weights) -> np.ndarray:
    """uint32 (block of outputs, word, {nonzero, negative}, output); input k is bit k % 32 of word k // 32."""
    out, features = weight.codes.shape
    planes = np.zeros((rounded_up(out, BITS_OUTPUTS), 2, rounded_up(features, 32)), bool)
    negative = sum(level < 0 for level in weight.levels)  # levels ascend: these come first, then perhaps 0
    has_zero = 0 in weight.levels
    planes[:out, 0, :features] = weight.codes != negative if has_zero else True
    planes[:out, 1, :features] = weight.codes < negative
    words = np.packbits(planes, axis=2, bitorder="little").view("<u4").astype(np.uint32)
    return np.ascontiguousarray(words.reshape(-1, BITS_OUTPUTS, 2, words.shape[2]).transpose(0, 3, 2, 1))


def _output_bits(weight: Weights) -> np.ndarray:
    """uint32 (block of 32 outputs, input and one of zeros, {positive, not negative}); an output is a bit."""
    out, features = weight.codes.shape
    trits = np.zeros((rounded_up(out, 32), features + 1), np.int8)
    trits[:out, :features] = _digits(weight).astype(np.int8) - 1
    bits = np.stack((trits > 0, trits >= 0), axis=2).reshape(-1, 32, features + 1, 2)
    words = np.packbits(bits, axis=1, bitorder="little")  # (block, byte of the word, input, 2)
    return np.ascontiguousarray(words.transpose(0, 2, 3, 1)).view("<u4")[..., 0].astype(np.uint32)


def _plain(weight: Weights | np.ndarray, value: Value) -> np.ndarray:
    values = weight.values if isinstance(weight, Weights) else weight
    return values if value.kind == "integer" else values.astype(np.float32)
