"""A packed file read with distrust: its bytes as an `IntegerNet`, or a `BadFile` that says what is wrong with them.

pack.py describes the format. Every entry is checked before it is used, and nothing is executed.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Set
from typing import Any

import numpy as np
from safetensors import SafetensorError, deserialize

from lehr.deploy.card import Card
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
    Weights,
)
from lehr.deploy.packed_codes import unpack_codes

VERSION = 3  # the newest there is; a network is written in the oldest that can tell it, for older lehr


OPERATIONS: dict[str, type[Operation]] = {
    kind.__name__: kind
    for kind in (
        Table,
        Floats,
        Round,
        Conv,
        Linear,
        MaxPool,
        SumPool,
        Threshold,
        Requantize,
        Add,
        Multiply,
        Flatten,
        Affine,
        Clip,
        Concat,
        Take,
    )
}
_DTYPES = {"U8": "u1", "I8": "<i1", "I16": "<i2", "I32": "<i4", "F32": "<f4"}
# No size of an honest network comes near it, and no product of two of them leaves 64 bits.
_LARGEST = 2**31 - 1


class BadFile(ValueError):
    """A file that is not a packed network, or not a whole one, or one of a newer version."""


def unpacked(data: bytes) -> IntegerNet:
    """The network in the bytes of a packed file."""
    try:
        entries = deserialize(data)
    except SafetensorError as error:
        raise BadFile(f"no packed network, or not all of it: {error}") from error
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])  # deserialize has checked it
    metadata = header.get("__metadata__") or {}
    description = _parsed(metadata.get("lehr"))
    tensors = {}
    for name, entry in entries:
        if entry["dtype"] not in _DTYPES:
            raise BadFile(f"{_shown(name)} is of {entry['dtype']}; tensors here are of {', '.join(_DTYPES)}")
        tensors[name] = np.frombuffer(entry["data"], _DTYPES[entry["dtype"]]).reshape(entry["shape"])
    return _network(description, tensors, card_of(metadata))


def card_of(metadata: dict[str, str]) -> Card:
    """The model card; that of a file which has none, as older ones have not, is empty."""
    return Card.from_json(metadata.get("card", "{}"))


def _parsed(text: str | None) -> dict[str, Any]:
    """The description, of a version that can be read."""
    if text is None:
        raise BadFile('a safetensors file, but its metadata holds no network ("lehr")')
    try:
        description = json.loads(text, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise BadFile(f"its description is no JSON: {error}") from None
    if not isinstance(description, dict):
        raise BadFile(f"its description is an object, found {_shown(description)}")
    version = _integer(description.get("version"), "its version")
    if version > VERSION:
        raise BadFile(f"written by a newer lehr: it has version {version}, this lehr reads up to {VERSION}")
    return description


def _network(description: dict[str, Any], tensors: dict[str, np.ndarray], card: Card) -> IntegerNet:
    _check_keys(
        "the description",
        description,
        {"version", "input_shape", "classes", "operations"},
        optional={"rounded", "input_dtype", "outputs"},
    )
    entries = _list(description["operations"], "operations")
    operations = []
    used: set[str] = set()
    for index, entry in enumerate(entries):
        where = f"operation {index}"
        if not isinstance(entry, dict) or not isinstance(entry.get("operation"), str):
            raise BadFile(f"{where}: an object that names its operation, found {_shown(entry)}")
        kind = OPERATIONS.get(entry["operation"])
        if kind is None:
            raise BadFile(f"{where}: one of {', '.join(OPERATIONS)}, found {_shown(entry['operation'])}")
        fields: dict[str, Any] = {}
        for field in dataclasses.fields(kind):
            tensor_name = f"{index}.{field.name}"
            place = f"{where}, {field.name}"
            if tensor_name in tensors and "np.ndarray" in str(field.type):
                fields[field.name] = _tensor(tensors[tensor_name], entry.get(field.name), str(field.type), place)
                used.add(tensor_name)
            elif field.name in entry and str(field.type) in _READERS:
                fields[field.name] = _READERS[str(field.type)](entry[field.name], place)
            elif field.name in entry and "np.ndarray" not in str(field.type):
                what = f"{kind.__name__}.{field.name}"
                raise NotImplementedError(
                    f"{what}: add a reader for fields of type {field.type} to _READERS of unpack.py"
                )
            elif not (kind is Add and field.name.endswith("_factor")):
                raise BadFile(f"{place}: missing")
        _check_keys(where, entry, {"operation"}, optional=set(fields))
        if kind is Clip:
            fields["low"] = -math.inf if fields["low"] is None else fields["low"]
            fields["high"] = math.inf if fields["high"] is None else fields["high"]
        operations.append(kind(**fields))
    if used != set(tensors):
        raise BadFile(f"it holds a tensor of no operation: {_shown(min(set(tensors) - used))}")
    shape = _sizes(description["input_shape"], "input_shape")
    classes = tuple(_text(name, "classes") for name in _list(description["classes"], "classes"))
    rounded = tuple(_text(why, "rounded") for why in _list(description.get("rounded", []), "rounded"))
    dtype: Any = _text(description.get("input_dtype", "uint8"), "input_dtype")
    outputs = tuple(_output(entry) for entry in _list(description.get("outputs", []), "outputs"))
    return IntegerNet(shape, tuple(operations), classes, rounded, dtype, outputs, card)


def _output(entry: Any) -> Output:
    if not isinstance(entry, dict):
        raise BadFile(f"outputs: an object, found {_shown(entry)}")
    _check_keys("outputs", entry, {"name", "value", "shape"})
    name, value = (_text(entry[key], "outputs") for key in ("name", "value"))
    return Output(name, value, _sizes(entry["shape"], "outputs"))


def _tensor(array: np.ndarray, entry: Any, kind: str, place: str) -> np.ndarray | Weights:
    if entry is None:
        if array.dtype == np.uint8:
            raise BadFile(f"{place}: packed codes without their levels")
        return array
    if "Weights" not in kind or not isinstance(entry, dict):
        raise BadFile(f"{place}: found {_shown(entry)} beside its tensor")
    _check_keys(place, entry, {"shape", "levels"})
    shape = _sizes(entry["shape"], place)
    levels = tuple(_number(level, place) for level in _list(entry["levels"], place))
    if not 1 <= len(levels) <= 256:
        raise BadFile(f"{place}: 1 to 256 levels, found {len(levels)}")
    try:
        codes = unpack_codes(array, math.prod(shape), len(levels))
    except ValueError as error:
        raise BadFile(f"{place}: {error}") from None
    return Weights(codes.reshape(shape), levels)


def _check_keys(place: str, entry: dict[str, Any], needed: set[str], optional: Set[str] = frozenset()) -> None:
    for key in sorted(needed - set(entry)):
        raise BadFile(f"{place}: {key} is missing")
    for key in sorted(set(entry) - needed - optional):
        raise BadFile(f"{place}: unknown {_shown(key)}")


def _integer(value: Any, place: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or abs(value) > _LARGEST:
        raise BadFile(f"{place}: an integer of 32 bits, found {_shown(value)}")
    return value


def _number(value: Any, place: str) -> int | float:
    if isinstance(value, float):
        return value
    return _integer(value, place)


def _bound(value: Any, place: str) -> float | None:
    return None if value is None else float(_number(value, place))


def _text(value: Any, place: str) -> str:
    if not isinstance(value, str):
        raise BadFile(f"{place}: text, found {_shown(value)}")
    value.encode()  # a lone surrogate is no text: UnicodeEncodeError, a ValueError
    return value


def _list(value: Any, place: str) -> list[Any]:
    if not isinstance(value, list):
        raise BadFile(f"{place}: a list, found {_shown(value)}")
    return value


def _integers(value: Any, place: str) -> tuple[int, ...]:
    return tuple(_integer(item, place) for item in _list(value, place))


def _texts(value: Any, place: str) -> tuple[str, ...]:
    return tuple(_text(item, place) for item in _list(value, place))


def _sizes(value: Any, place: str) -> tuple[int, ...]:
    sizes = _integers(value, place)
    if any(size < 0 for size in sizes):
        raise BadFile(f"{place}: sizes are not negative, found {_shown(sizes)}")
    return sizes


def _no_number(text: str) -> float:
    raise ValueError(f"{text} is no number")


def _shown(value: Any) -> str:
    try:
        text = repr(value)
    except RecursionError:
        text = f"a {type(value).__name__} of many levels"
    return text if len(text) <= 60 else f"{text[:57]}..."


# How the fields of operations are read, by their annotation.
_READERS: dict[str, Callable[[Any, str], Any]] = {
    "str": _text,
    "int": _integer,
    "float": _bound,
    "Pair": _sizes,
    "tuple[int, ...]": _integers,
    "tuple[str, ...]": _texts,
}
