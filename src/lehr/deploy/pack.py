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
take too long or too much memory to run is refused (limits.py). unpack.py reads what is not trusted: whatever is wrong
with a file is a `BadFile` that says what.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save as to_bytes

from lehr.deploy.card import Card
from lehr.deploy.integer_net import IntegerNet, flat_output
from lehr.deploy.limits import Limits, check
from lehr.deploy.operations import Add, Concat, Multiply, Operation, Requantize, Round, Table, Take, Weights
from lehr.deploy.packed_codes import pack_codes
from lehr.deploy.packed_files import file_of, is_name
from lehr.deploy.unpack import BadFile, card_of, unpacked
from lehr.printable import printable

# The first version of the format that has an operation; version 1 has the others. A new operation adds a row.
FIRST_VERSION: dict[type[Operation], int] = {Round: 2, Requantize: 3, Multiply: 3, Concat: 3, Take: 3}
_LIMITS = Limits()


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
        net = unpacked(data)
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
    return card_of(header.get("__metadata__") or {})


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
    description["version"] = _version(net, description)
    told = json.dumps(description, separators=(",", ":"), allow_nan=False)
    return to_bytes(tensors, {"lehr": told, "card": net.card.to_json()})


def _version(net: IntegerNet, description: dict[str, Any]) -> int:
    """The oldest version that can hold the network: the highest that one of its parts needs."""
    versions = [FIRST_VERSION.get(type(operation), 1) for operation in net.operations]
    one_for_all = isinstance(net.operations[0], Table) and len(net.operations[0].table) < net.input.shape[0]
    if one_for_all or len(net.input_shape) < 3 or {"input_dtype", "outputs"} & set(description):
        versions.append(2)
    if any(_has_factors(operation) for operation in net.operations):
        versions.append(3)
    return max(versions)


def _has_factors(operation: Operation) -> bool:
    return isinstance(operation, Add) and (operation.first_factor, operation.second_factor) != (1, 1)


def _narrow(array: np.ndarray) -> np.ndarray:
    if array.dtype != np.int32:
        return array
    fits = (kind for kind in (np.int8, np.int16) if np.array_equal(array.astype(kind), array))
    return array.astype(next(fits, np.int32))
