"""The structs of runtime/lehr.h in Python, field by field.

A `Layer` is `struct lehr_layer`: cpu.py hands it to the compiled runtime, write_c.py writes it down as constants.
`Planes`, `Tiles` and `Strips` are what some routines need besides; scratch.py computes the sizes in all of them, and
C trusts them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np

from lehr.deploy.operations import Value


class InstructionSet(IntEnum):
    """What routines are built for, slowest first: `enum lehr_instruction_set`."""

    REFERENCE = 0
    SMALL = 1
    SCALAR = 2
    VECTOR = 3
    AVX2 = 4
    AVX512 = 5
    AMX = 6


INSTRUCTION_SETS = tuple(each.name.lower() for each in InstructionSet)


class Kind(IntEnum):
    """What a layer computes: `enum lehr_operation`."""

    TABLE = 0
    CONV = 1
    LINEAR = 2
    MAX_POOL = 3
    SUM_POOL = 4
    THRESHOLD = 5
    ADD = 6
    AFFINE = 7
    CLIP = 8
    COPY = 9
    ROUND = 10
    REQUANTIZE = 11
    MULTIPLY = 12
    TAKE = 13


IMAGE = 2**32 - 1  # the source of a layer that reads the network's input: LEHR_IMAGE


class Type(IntEnum):
    """The type of a value: `enum lehr_type`."""

    INT8 = 0
    INT16 = 1
    INT32 = 2
    FLOAT = 3
    TRIT = 4


class Routine(IntEnum):
    """The C function that computes a layer, and the layout of its weights: `enum lehr_routine`."""

    NAIVE = 0
    DIRECT = 1
    TERNARY = 2
    WIDE = 3
    SHORT = 4
    MATRIX = 5
    TRITS = 6
    BITS = 7
    SEARCH = 8
    PLUS = 9
    POOLS = 10
    COUNTERS = 11


@dataclass(frozen=True)
class Areas:
    """`struct lehr_areas`: where a look-up routine keeps what, for the vectors of one instruction set."""

    planes: int = 0
    tables: int = 0
    sums: int = 0
    starts: int = 0
    kept: int = 0
    masks: int = 0
    values: int = 0
    mask: int = 0
    segments: int = 0


@dataclass(frozen=True)
class Planes:
    """`struct lehr_planes`: the planes that TERNARY, WIDE and SHORT make of a source."""

    triples: int
    shifts: int
    paired: int
    step: int
    residues: int
    plane_rows: int
    margin: int
    plane_size: int
    plane_count: int
    areas: tuple[Areas, ...] = (Areas(),) * len(INSTRUCTION_SETS)  # of each instruction set


@dataclass(frozen=True)
class Tiles:
    """`struct lehr_tiles`: the matrices that MATRIX and TRITS make of a group, and where they keep them."""

    straight: int
    shifted: int
    deep: int
    slice: int
    slices: int
    taps: int
    outs: int
    rows: int
    pixels: int
    planes: int
    plane_rows: int
    plane_columns: int
    values: int = 0
    padded: int = 0
    panel: int = 0
    trits: int = 0
    sums: int = 0
    offsets: int = 0
    cuts: int = 0
    directions: int = 0


@dataclass(frozen=True)
class Strips:
    """`struct lehr_strips`: the lines that TERNARY and WIDE of runtime/small.c make of a group's source."""

    triples: int
    phases: int
    line: int
    lead: int
    strip: int
    tables: int
    sums: int
    starts: int


@dataclass(frozen=True, eq=False)
class Layer:
    """`struct lehr_layer`: numbers and arrays in its order; `name` and `value` say what it computes."""

    name: str
    value: Value
    operation: Kind
    routine: Routine = Routine.NAIVE
    source_type: Type = Type.INT8
    second_type: Type = Type.INT8
    target_type: Type = Type.INT8
    source: int = 0
    second: int = 0
    target: int = 0
    scratch_at: int = 0
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
    shift_bits: int = 0
    narrow: int = 0
    first_factor: int = 0
    second_factor: int = 0
    words: int = 0
    bias: int = 0
    lowest: int = 0
    highest: int = 0
    low: float = 0.0
    high: float = 0.0
    weights: np.ndarray | None = None
    thresholds: np.ndarray | None = None
    directions: np.ndarray | None = None
    levels: np.ndarray | None = None
    multipliers: np.ndarray | None = None
    offsets: np.ndarray | None = None
    scale: np.ndarray | None = None
    shift: np.ndarray | None = None
    planes: Planes | None = None
    tiles: Tiles | None = None
    strips: Strips | None = None
    cuts: np.ndarray | None = None
    built_for: tuple[InstructionSet, ...] = (InstructionSet.REFERENCE,) * len(INSTRUCTION_SETS)
    scratch: tuple[int, ...] = (0,) * len(INSTRUCTION_SETS)
    why: str = field(default="", kw_only=True)  # why a layer with weights takes its routine


# The struct's fields in its order, with their Python types.
TYPE_OF_FIELD = {
    name: field.type for name, field in Layer.__dataclass_fields__.items() if name not in ("name", "value", "why")
}
FIELDS = tuple(TYPE_OF_FIELD)
