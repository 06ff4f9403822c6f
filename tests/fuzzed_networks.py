"""What the fuzzers draw: networks of all operations, with awkward geometry and hostile names, and damaged files."""

from __future__ import annotations

import copy
import json
import math
import struct
from dataclasses import replace
from typing import Any

import numpy as np
from safetensors.numpy import save as to_bytes

from lehr.deploy import pack
from lehr.deploy.integer_net import IntegerNet, Output
from lehr.deploy.operations import (
    Add,
    Affine,
    Clip,
    Concat,
    Conv,
    Flatten,
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
    Weights,
)

LEVELS = ((-1, 0, 1), (-1, 1), (0,), (0, 1), (-128, -3, 5, 127), tuple(range(-8, 8)), (-0.75, 0.5, 2.0))
PIECES = [
    "*/",
    "/*",
    "//",
    "\\\r",
    "\\\n",
    "??/",
    '"',
    "'",
    "%s",
    "\x1b[2J",
    "\x07",
    "\u202e",
    "\x00",
    "é",
    "青",
    "#",
    "a",
]
NUMBERS = [-1, 0, 1, 2, 3, 7, 64, 255, 256, 2**15, 2**16 - 1, 2**20 - 1, 2**20, 2**24, 2**29, 2**31 - 1, 2**31, 2**63]
ODD: list[Any] = [
    *NUMBERS,
    None,
    True,
    "",
    "x",
    [],
    {},
    [1],
    0.5,
    -1e39,
    1e300,
    math.pi,
    "\x1b",
    [[[]]],
    [2**19, 2**19],
]


def name(random: np.random.Generator) -> str:
    return "".join(random.choice(PIECES, random.integers(1, 5))) + str(random.integers(10**6))


def network(random: np.random.Generator) -> IntegerNet:
    """A chain of random operations, some of which add an earlier value; small enough to run a thousand times."""
    shape = (int(random.integers(1, 9)), *(int(random.integers(1, 12)) for _ in range(2)))[: random.integers(1, 4)]
    dtype = str(random.choice(["uint8", "uint8", "int8", "float32"]))
    net = IntegerNet(shape, _first(random, shape, dtype), input_dtype=dtype)  # pyright: ignore[reportArgumentType]
    for _ in range(random.integers(1, 9)):
        try:
            longer = replace(net, operations=(*net.operations, _operation(random, net)), outputs=())
        except (ValueError, ZeroDivisionError):  # it does not fit here: draw another
            continue
        net = longer if longer.output.size < 20_000 else net
    classes = tuple(name(random) for _ in range(net.output.size)) if random.random() < 0.5 else ()
    outputs = ()
    if not classes and random.random() < 0.2:
        outputs = (Output("logits", net.operations[-1].name, net.output.shape),)
    return replace(net, classes=classes, outputs=outputs)


def _first(random: np.random.Generator, shape: tuple[int, ...], dtype: str) -> tuple[Operation, ...]:
    rows = int(random.choice([1, shape[0]]))
    if dtype == "float32":
        floats = Floats(name(random))
        if random.random() < 0.3:
            return (floats,)
        factor = random.normal(size=rows) * 30
        return floats, Round(name(random), floats.name, random.normal(size=rows), factor, int(random.integers(1, 200)))
    span = 2 if random.random() < 0.5 else 300
    table = random.integers(1 - span, span, (rows, 256))
    return (Table(name(random), table if random.random() < 0.8 else table / 7),)


def images(random: np.random.Generator, net: IntegerNet, count: int = 3) -> np.ndarray:
    shape = (count, *net.input_shape)
    if net.input_dtype == "float32":
        return random.normal(size=shape).astype(np.float32)
    return random.integers(net.input.low, net.input.high + 1, shape, dtype=net.input_dtype)


def _operation(random: np.random.Generator, net: IntegerNet) -> Operation:
    source, own, value = net.operations[-1].name, name(random), net.output
    channels = value.shape[0]

    def pair(low: int, high: int) -> tuple[int, int]:
        return int(random.integers(low, high)), int(random.integers(low, high))

    def weight(*size: int) -> Weights | np.ndarray:
        levels = LEVELS[random.integers(len(LEVELS))]
        if random.random() < 0.1:
            return random.normal(size=size).astype(np.float32)
        return Weights(random.integers(0, len(levels), size, dtype=np.uint8), levels)

    match random.integers(12):
        case 0 | 1:
            groups = int(random.choice([g for g in range(1, channels + 1) if channels % g == 0]))
            outs = groups * int(random.integers(1, 20))
            kernel = weight(outs, channels // groups, *pair(1, 5))
            return Conv(own, source, kernel, pair(1, 4), pair(0, 6), pair(1, 4), groups)
        case 2:
            return (
                MaxPool(own, source, *([pair(1, 4)] * 2))
                if random.random() < 0.5
                else MaxPool(own, source, pair(1, 5), pair(1, 4), pair(0, 3))
            )
        case 3:
            return SumPool(own, source, pair(1, 5), pair(1, 4), pair(0, 3))
        case 4 | 5:
            count = int(random.choice([1, 2, 2, 2, 5, 255]))
            span = max(abs(value.low), abs(value.high), 1)
            cuts = np.sort(random.integers(-span, span + 1, (channels, count)), axis=1)
            levels = (
                (-1, 0, 1) if count == 2 else tuple(int(x) for x in np.cumsum(random.integers(1, 3, count + 1)) - 3)
            )
            cuts = cuts if value.kind == "integer" else cuts / 3
            return Threshold(own, source, cuts, random.choice([-1, 1], channels), levels)
        case 6:
            other = str(random.choice([o.name for o in net.operations]))
            if random.random() < 0.3:
                return Multiply(own, *((source, other) if random.random() < 0.5 else (other, source)))
            return Add(own, source, other, *((1, 1) if random.random() < 0.5 else (int(random.integers(-40, 41)), 3)))
        case 8:
            slopes = random.normal(size=channels) * 2**26
            offsets = random.integers(-(2**24), 2**24, channels)
            low = int(random.choice([-128, 0, -7]))
            high = low + int(random.choice([1, 30, 255]))
            return Requantize(own, source, slopes.astype(np.int64), offsets, int(random.integers(20, 36)), low, high)
        case 7:
            if value.shape[1:] != (1, 1):
                return Flatten(own, source)
            return Linear(own, source, weight(int(random.integers(1, 40)), channels))
        case 9:
            parts = random.choice([o.name for o in net.operations], random.integers(0, 3)).tolist()
            parts.insert(int(random.integers(0, len(parts) + 1)), source)
            return Concat(own, tuple(parts))
        case 10:
            return _take(random, own, source, value)
        case _:
            if value.kind == "float" and random.random() < 0.5:
                return Clip(own, source, float(random.integers(-9, 0)), float(random.choice([0, 6, math.inf])))
            return Affine(own, source, random.normal(size=channels), random.normal(size=channels))


def _take(random: np.random.Generator, own: str, source: str, value: Value) -> Take:
    """Slices, shuffles, enlargements and padding of each dimension; sometimes dimensions change places."""
    _, rows, columns = value.shape
    offsets = []
    for size, apart in zip(value.shape, (rows * columns, columns, 1), strict=True):
        taken = random.integers(-1 if random.random() < 0.3 else 0, size, random.integers(1, 2 * size + 2))
        if random.random() < 0.5:
            taken = np.arange(size)[random.integers(0, size) :: random.integers(1, 3)]
        offsets.append(np.where(taken < 0, -1, taken * apart))
    if random.random() < 0.3:
        offsets = [offsets[axis] for axis in random.permutation(3)]
    return Take(own, source, *offsets, fill=float(random.integers(-300, 300)))


def damaged(random: np.random.Generator, net: IntegerNet) -> bytes:
    """A packed file of `net` with some fields, tensors or bytes replaced."""
    data = pack.packed_bytes(net)
    (length,) = struct.unpack("<Q", data[:8])
    if random.random() < 0.2:  # bytes, wherever they are
        edited = bytearray(data)
        for _ in range(random.integers(1, 6)):
            edited[random.integers(len(edited))] = random.integers(256)
        return bytes(edited)
    header = json.loads(data[8 : 8 + length])
    description = json.loads(header.pop("__metadata__")["lehr"])
    kinds = {"U8": np.uint8, "I8": np.int8, "I16": np.int16, "I32": np.int32, "F32": np.float32}
    body = data[8 + length :]
    tensors = {
        key: np.frombuffer(body[slice(*entry["data_offsets"])], kinds[entry["dtype"]]).reshape(entry["shape"]).copy()
        for key, entry in header.items()
    }
    for _ in range(random.integers(1, 4)):
        if random.random() < 0.7 or not tensors:
            _replace(random, description)
        else:
            key = str(random.choice(list(tensors)))
            flat = tensors[key].reshape(-1).view(np.uint8)
            if flat.size:
                flat[random.integers(flat.size)] = random.integers(256)
            if random.random() < 0.2:
                tensors[key] = np.ascontiguousarray(tensors[key].reshape(-1)[: random.integers(0, 4)])
    return to_bytes(tensors, {"lehr": json.dumps(description)})


def _replace(random: np.random.Generator, place: Any) -> None:
    """Replace something at a random depth by something odd."""
    while True:
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        if not keys:
            return
        key = keys[random.integers(len(keys))]
        if isinstance(place[key], (dict, list)) and place[key] and random.random() < 0.9:
            place = place[key]
            continue
        if random.random() < 0.1:
            del place[key]
        elif isinstance(place[key], int) and random.random() < 0.5:
            place[key] = int(place[key]) + int(random.integers(-2, 3))
        else:
            place[key] = copy.deepcopy(ODD[random.integers(len(ODD))])
        return
