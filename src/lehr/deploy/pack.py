"""Packed files: an `IntegerNet` as a `.lehr` file, a safetensors file with a JSON description in its metadata.

    metadata "lehr"    {"version": 1, "input_shape": [3, 32, 32], "classes": [...], "operations": [
                          {"operation": "Conv", "name": "features.0", "source": "pixels", "stride": [1, 1], ...,
                           "weight": {"shape": [128, 3, 3, 3], "levels": [-1, 0, 1]}}, ...]}
                        and "rounded": [...] where the network it was frozen from rounds its sums
                        version 2 has "input_dtype": "int8" or "float32", inputs of other ranks, and "outputs":
                        [{"name": "mask", "value": "head", "shape": [2, 32, 32]}, ...]; version 3 has Requantize,
                        Multiply, Concat, Take and factors of Add; a version is written where it is needed
    metadata "card"    the model card, a JSON object (card.py); older files have none
    tensor "1.weight"  the weights' codes of operation 1, packed: three levels five to a byte (base 3, the first code is
                       the lowest digit), others in the fewest whole bits a code, lowest bit first; zeros fill up
    tensor "2.shift"   any other array, as it is; integers in the narrowest of int8, int16, int32

Reading executes nothing and allocates nothing that the file's own length does not justify, and a network that would
take too long or too much memory to run is refused (limits.py). Whatever is wrong with a file is a `BadFile` that says
what.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import tempfile
from collections.abc import Callable, Set
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, deserialize
from safetensors.numpy import save as to_bytes

from lehr.deploy.card import Card
from lehr.deploy.integer_net import IntegerNet, Output, flat_output
from lehr.deploy.limits import Limits, check
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
from lehr.deploy.packed_files import file_of, is_name
from lehr.printable import printable

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
_SINCE_VERSION_3 = (Requantize, Multiply, Concat, Take)
_DTYPES = {"U8": "u1", "I8": "<i1", "I16": "<i2", "I32": "<i4", "F32": "<f4"}
# No size of an honest network comes near it, and no product of two of them leaves 64 bits.
_LARGEST = 2**31 - 1
_LIMITS = Limits()


class BadFile(ValueError):
    """A file that is not a packed network, or not a whole one, or one of a newer version."""


def save(net: IntegerNet, path: str | Path) -> None:
    """Write `net` to a packed file; a file that is there already is replaced as a whole, or not at all."""
    path = Path(path)
    data = packed_bytes(net)
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder: name a file in it")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"there is no folder {path.parent} to write {path.name} to")
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(name, 0o666 & ~umask)  # mkstemp's own are for nobody else
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise


def load(path: str | Path, *, limits: Limits | None = _LIMITS) -> IntegerNet:
    """The network in a packed file, or that of the zoo. BadFile says what is wrong with a file that holds none.

    Args:
        path: the file, or the name of a network of the zoo
        limits: the most work and memory the network may ask for; None, for a file you trust, allows anything
    """
    path = file_of(path) if is_name(path) else path
    if Path(path).exists() and not (Path(path).is_file() or Path(path).is_dir()):
        raise BadFile(f"{path} is no file on a disk but a pipe, a device or the like: copy it into a file first")
    data = Path(path).read_bytes()
    try:
        net = _unpacked(data)
        if limits is not None:
            check(net, limits)
    except BadFile as error:
        raise BadFile(f"{path}: {printable(error)}") from None
    except (ValueError, TypeError, OverflowError, RecursionError) as error:  # what IntegerNet, operations, JSON refuse
        raise BadFile(f"{path}: no network: {printable(error)}") from None
    return net


def read_card(path: str | Path) -> Card:
    """Read the model card of a packed file, without its network."""
    with Path(path).open("rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    return _card(header.get("__metadata__") or {})


def pack_codes(codes: np.ndarray, levels: int) -> np.ndarray:
    """Codes below `levels`, packed: five to a byte if there are three levels, else in the fewest whole bits.

    >>> pack_codes(np.array([2, 0, 1, 0, 0, 1]), levels=3).tolist()
    [11, 1]
    """
    flat = codes.reshape(-1).astype(np.uint8)
    if levels == 3:
        digits = np.zeros((-(-flat.size // 5), 5), np.uint8)
        digits.reshape(-1)[: flat.size] = flat
        return digits @ np.array([1, 3, 9, 27, 81], np.uint8)
    bits = np.unpackbits(flat[:, None], axis=1, count=_bits(levels), bitorder="little")
    return np.packbits(bits, bitorder="little")


def unpack_codes(packed: np.ndarray, count: int, levels: int) -> np.ndarray:
    """The `count` codes below `levels` in `packed`; BadFile unless it holds exactly those."""
    expected = -(-count // 5) if levels == 3 else -(-count * _bits(levels) // 8)
    if packed.dtype != np.uint8 or packed.shape != (expected,):
        raise BadFile(
            f"{count} codes of {levels} levels take {expected} bytes, found {packed.dtype} of shape {packed.shape}"
        )
    if levels == 3:
        if packed.size and packed.max() >= 3**5:
            raise BadFile(f"a byte of five trits is below 243, found {packed.max()}")
        digits = (np.arange(3**5)[:, None] // 3 ** np.arange(5) % 3).astype(np.uint8)
        codes = digits[packed].reshape(-1)
        rest = codes[count:]
    else:
        bits = np.unpackbits(packed, bitorder="little")
        rest = bits[count * _bits(levels) :]
        rows = bits[: count * _bits(levels)].reshape(count, _bits(levels))
        codes = np.packbits(rows, axis=1, bitorder="little")[:, 0]
    codes = codes[:count]
    if rest.any() or (codes.size and codes.max() >= levels):
        raise BadFile(f"codes lie in 0..{levels - 1} and zeros fill the last byte, found others")
    return codes


def _bits(levels: int) -> int:
    return max(1, (levels - 1).bit_length())


def packed_bytes(net: IntegerNet) -> bytes:
    """Return the content of a packed file."""
    tensors: dict[str, np.ndarray] = {}
    operations = []
    for index, operation in enumerate(net.operations):
        entry: dict[str, Any] = {"operation": type(operation).__name__}
        for field in dataclasses.fields(operation):
            value = getattr(operation, field.name)
            if value is field.default and isinstance(operation, Add):
                continue  # version 1 has no factors
            if isinstance(value, np.ndarray):
                tensors[f"{index}.{field.name}"] = _narrow(value)
            elif isinstance(value, Weights):
                tensors[f"{index}.{field.name}"] = pack_codes(value.codes, len(value.levels))
                entry[field.name] = {"shape": value.codes.shape, "levels": value.levels}
            else:
                entry[field.name] = None if isinstance(value, float) and math.isinf(value) else value
        operations.append(entry)
    description: dict[str, Any] = {
        "version": 1,
        "input_shape": net.input_shape,
        "classes": net.classes,
        "operations": operations,
    }
    if net.rounded:
        description["rounded"] = net.rounded
    if net.input_dtype != "uint8":
        description["input_dtype"] = net.input_dtype
    if net.outputs != (flat_output(net.operations[-1].name, net.output),):
        description["outputs"] = [dataclasses.asdict(output) for output in net.outputs]
    one_for_all = isinstance(net.operations[0], Table) and len(net.operations[0].table) < net.input.shape[0]
    rounds = any(isinstance(operation, Round) for operation in net.operations)
    if one_for_all or rounds or len(net.input_shape) < 3 or {"input_dtype", "outputs"} & set(description):
        description["version"] = 2
    if any(isinstance(operation, _SINCE_VERSION_3) or _has_factors(operation) for operation in net.operations):
        description["version"] = VERSION
    told = json.dumps(description, separators=(",", ":"), allow_nan=False)
    return to_bytes(tensors, {"lehr": told, "card": net.card.to_json()})


def _has_factors(operation: Operation) -> bool:
    return isinstance(operation, Add) and (operation.first_factor, operation.second_factor) != (1, 1)


def _unpacked(data: bytes) -> IntegerNet:
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
    return _network(description, tensors, _card(metadata))


def _card(metadata: dict[str, str]) -> Card:
    """The model card; that of a file which has none, as older ones have not, is empty."""
    return Card.from_json(metadata.get("card", "{}"))


def _narrow(array: np.ndarray) -> np.ndarray:
    if array.dtype != np.int32:
        return array
    fits = (kind for kind in (np.int8, np.int16) if np.array_equal(array.astype(kind), array))
    return array.astype(next(fits, np.int32))


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
    except BadFile as error:
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
