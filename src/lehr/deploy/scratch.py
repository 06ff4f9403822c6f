"""How much scratch a layer's routine needs and what lies where in it: computed here, once, and carried by the layer.

The C routines trust these numbers. Built with -DLEHR_DEBUG they assert that what they write fits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from lehr.deploy import small
from lehr.deploy.kernels import (
    BLOCK,
    PARTS,
    SHORT_PIXELS,
    TILE_SLACK,
    TILE_STEPS,
    VECTOR_BYTES,
    built_for,
    loads_straight,
    matrix_taps,
    rounded_up,
    triples_of,
)
from lehr.deploy.structs import INSTRUCTION_SETS, Areas, InstructionSet, Kind, Layer, Planes, Routine, Tiles

_BLOCK_PIXELS = 512  # pixels of a block of tiles, about: with fewer the weights are read and expanded too often,
_PANEL_PIXELS = 64  # and with a panel more of them do not fit the second cache


def align(size: int) -> int:
    """`size` rounded up to whole cache lines."""
    return rounded_up(size, 64)


def with_scratch(layer: Layer, instruction_set: str) -> Layer:
    """The layer with everything its routine needs besides its shape: sizes, offsets, and who runs it.

    Args:
        layer: without it
        instruction_set: what its weights are laid out for
    """
    pixels = layer.out_rows * layer.out_columns
    names = [built_for(layer.routine, pixels, name) for name in INSTRUCTION_SETS]
    layer = replace(layer, built_for=tuple(InstructionSet[name.upper()] for name in names))
    match layer.routine:
        case Routine.NAIVE | Routine.SEARCH | Routine.PLUS:
            return layer
        case Routine.DIRECT:  # a row of sums, int32 or double, for each row of a pool window
            sums = 0 if layer.operation == Kind.LINEAR else layer.pool_rows * layer.out_columns * 8
            return replace(layer, scratch=(sums,) * len(INSTRUCTION_SETS))
        case Routine.BITS:  # the values' two bit-planes, each word twice
            words = -(-layer.channels // 32)
            return replace(layer, words=words, scratch=(words * 16,) * len(INSTRUCTION_SETS))
        case Routine.COUNTERS:  # a list of inputs, in 16 bits
            return replace(layer, scratch=(2 * (layer.channels + 16),) * len(INSTRUCTION_SETS))
        case Routine.TERNARY | Routine.WIDE if instruction_set == "small":
            strips, size = small.strips(layer, _triples(layer))
            return replace(layer, strips=strips, scratch=(size,) * len(INSTRUCTION_SETS))
        case Routine.POOLS:  # a line of int32
            return replace(layer, scratch=(layer.columns * 4,) * len(INSTRUCTION_SETS))
        case Routine.TERNARY | Routine.WIDE | Routine.SHORT:
            planes = _planes(layer)
            laid = [_areas(layer, planes, name) for name in INSTRUCTION_SETS]
            planes = replace(planes, areas=tuple(areas for areas, _ in laid))
            return replace(layer, planes=planes, scratch=tuple(size for _, size in laid))
        case Routine.MATRIX | Routine.TRITS:
            tiles, size = _tiles(layer)
            return replace(layer, tiles=tiles, scratch=(size,) * len(INSTRUCTION_SETS))


def _in_order(sizes: Mapping[str, int]) -> tuple[dict[str, int], int]:
    """An offset for each area, one after the other in whole cache lines, and the end of the last."""
    offsets, end = {}, 0
    for name, size in sizes.items():
        offsets[name] = end
        end += align(size)
    return offsets, end


def _triples(layer: Layer) -> int:
    return triples_of(layer.channels // layer.groups * layer.kernel_rows * layer.kernel_columns)


def _channels_at_once(layer: Layer) -> int:
    """Of which there are planes: SHORT makes those of one group after the other."""
    return layer.channels // layer.groups if layer.routine == Routine.SHORT else layer.channels


def _planes(layer: Layer) -> Planes:
    """The planes of a layer; runtime/planes.inc says what they are."""
    triples = _triples(layer)
    # the planes of a channel are shifts of that of the kernel's middle column, which is the padded source
    shifts = (
        (layer.stride_rows, layer.stride_columns) == (1, 1)
        and layer.out_columns == layer.columns
        and layer.kernel_columns % 2 == 1
        and layer.padding_columns < layer.columns
    )
    # 2 x 2 pools that fill the output, sums of 15 bits
    even = layer.out_rows % 2 == 0 and layer.out_columns % 2 == 0
    pools = (layer.pool_rows, layer.pool_columns) == (2, 2) and even
    paired = layer.routine == Routine.TERNARY and shifts and pools and 6 * triples <= 0x7FFF
    reach = (layer.kernel_rows - 1) * layer.dilation_rows
    step = layer.stride_rows * (2 if paired else 1)
    rows = layer.out_rows // (2 if paired else 1) + reach // step
    residues = min(reach + 1, step)
    margin = layer.padding_columns if shifts else 0
    return Planes(
        triples=triples,
        shifts=int(shifts),
        paired=int(paired),
        step=step,
        residues=residues,
        plane_rows=rows,
        margin=margin,
        plane_size=rows * layer.out_columns + 2 * margin,
        plane_count=_channels_at_once(layer) * residues * layer.kernel_columns,
    )


def _areas(layer: Layer, planes: Planes, instruction_set: str) -> tuple[Areas, int]:
    """Offsets in scratch and its size, for the vectors of an instruction set."""
    if instruction_set not in VECTOR_BYTES:
        return Areas(), 0
    vector, parts = VECTOR_BYTES[instruction_set], PARTS[instruction_set]
    ternary, looks_up = layer.routine == Routine.TERNARY, layer.routine != Routine.SHORT
    # bytes of an element of a plane; vectors of a triple's table entry and of an output's sums
    element, entry, accumulators = (1, parts, 4 * parts) if ternary else (2, 1, 2 * parts)
    mask = layer.columns * element + vector
    keeps = (layer.pool_rows, layer.pool_columns) != (1, 1) and not planes.paired
    segments = _segments(layer, planes, instruction_set)
    if segments:  # a plane is the padded channel; vectors reach some rows past it
        row = layer.columns + 2 * layer.padding_columns
        channel = (layer.rows + 2 * layer.padding_rows) * row
        plane_bytes = channel * layer.channels + 2 * segments * row + vector
        channel += segments * row + 2 * vector
    else:
        reach = 4 * vector if looks_up else max(4 * vector, 2 * SHORT_PIXELS)  # what vectors read past the last plane
        plane_bytes = planes.plane_size * planes.plane_count * element + reach
        # a channel with its padding and margins, a row more, which paired rows need, and what vectors reach past it
        channel = (layer.rows + 2 * layer.padding_rows + 1) * layer.columns + 2 * layer.padding_columns + 2 * vector
    offsets, size = _in_order(
        {
            "planes": plane_bytes,
            "tables": (BLOCK // 2 if vector > 32 else BLOCK) * 27 * entry * vector if looks_up else 0,
            "sums": layer.out_channels // layer.groups * accumulators * vector if looks_up else 0,
            "starts": planes.triples * 3 * 4,
            "kept": layer.out_channels * layer.out_rows * layer.out_columns * 2 if keeps else 0,
            "masks": 0 if segments else layer.kernel_columns * mask,
            "values": channel if ternary else _channels_at_once(layer) * layer.rows * layer.columns * 2,
        }
    )
    return Areas(**offsets, mask=0 if segments else mask, segments=segments), size


def _segments(layer: Layer, planes: Planes, instruction_set: str) -> int:
    """Output rows that make a vector of a padded plane, see runtime/padded.inc; 0 where planes are others."""
    if instruction_set != "avx2" or layer.routine != Routine.TERNARY or not planes.shifts:
        return 0
    return {32: 1, 16: 2, 8: 4}.get(layer.columns, 0)


def _tiles(layer: Layer) -> tuple[Tiles, int]:
    """The matrices of a group and their offsets in scratch; runtime/amx.c says what they are."""
    channels, outs = layer.channels // layer.groups, layer.out_channels // layer.groups
    straight = loads_straight(channels, layer.out_columns, layer.stride_rows)
    taps = matrix_taps(channels, layer.kernel_rows * layer.kernel_columns, straight=straight)
    deep = rounded_up(channels, 64) if straight else channels
    most = _BLOCK_PIXELS if straight else _PANEL_PIXELS
    fit = most // layer.out_columns // layer.pool_rows * layer.pool_rows
    rows = min(layer.out_rows // layer.pool_rows * layer.pool_rows, fit or layer.pool_rows)
    # where output rows are not whole tiles, a tile goes on in the next row, which must follow at the same distance
    shifted = straight and layer.out_columns % 16 != 0
    planes = layer.kernel_columns if shifted else 1
    reach_rows = (layer.kernel_rows - 1) * layer.dilation_rows
    reach_columns = (layer.kernel_columns - 1) * layer.dilation_columns
    whole_columns = (layer.out_columns - 1) * layer.stride_columns + reach_columns + 1
    tiles = Tiles(
        straight=int(straight),
        shifted=int(shifted),
        deep=deep,
        slice=64 if straight else channels,
        slices=deep // 64 if straight else 1,
        taps=taps,
        outs=rounded_up(outs, 32),
        rows=rows,
        pixels=rounded_up(rows * layer.out_columns, 32),
        planes=planes,
        plane_rows=(layer.out_rows - 1) * layer.stride_rows + reach_rows + 1,
        plane_columns=layer.out_columns if shifted else whole_columns,
    )
    plane = tiles.plane_rows * tiles.plane_columns
    offsets, size = _in_order(
        {
            "values": 0 if layer.source_interleaved else layer.channels * layer.rows * layer.columns,
            "padded": (planes * plane + 16) * deep + TILE_SLACK,  # the last tile may reach 16 pixels further
            "panel": 0 if straight else tiles.pixels * taps + 64,
            "trits": TILE_STEPS * 2 * 1024 if layer.routine == Routine.TRITS else 0,
            "sums": tiles.pixels * 32 * 4,
            "offsets": taps // 64 * 4,
            "cuts": layer.steps * outs * 4,
            "directions": outs * 4,
        }
    )
    return replace(tiles, **offsets), size
