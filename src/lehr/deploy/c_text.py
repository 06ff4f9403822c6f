"""Constants, strings and comments of C, as text."""

from __future__ import annotations

import math
import string as characters
from collections.abc import Iterator, Mapping
from enum import IntEnum

import numpy as np

from lehr.deploy.structs import INSTRUCTION_SETS, Areas
from lehr.printable import printable

C_TYPES = {
    "int8": "int8_t",
    "int16": "int16_t",
    "int32": "int32_t",
    "uint8": "uint8_t",
    "uint16": "uint16_t",
    "uint32": "uint32_t",
    "float32": "float",
}
# What may stand in C source as it is. `*`, `/`, `\\`, `?` (trigraphs), quotes and line ends of any kind may not.
_PLAIN = frozenset(characters.ascii_letters + characters.digits + " _-.,:#()")
_PLAIN_IN_STRINGS = _PLAIN | frozenset("/*!$%&'+;<=>@[]^`{|}~")


def initialisers(fields: Mapping[str, object]) -> Iterator[str]:
    """`.name = value` for each field; C makes the others zero."""
    for name, value in fields.items():
        text = initialiser(value)
        if text != "0":
            yield f".{name} = {text}"


def initialiser(value: object) -> str:
    """A constant of C. A tuple has a place for each instruction set."""
    match value:
        case IntEnum():
            return f"LEHR_{value.name}"
        case float():
            return number(np.float32(value)) if value else "0"
        case Areas():
            return f"{{{', '.join(initialisers(vars(value)))}}}"
        case tuple():
            texts = zip(INSTRUCTION_SETS, map(initialiser, value), strict=True)
            some = [f"[LEHR_{name.upper()}] = {text}" for name, text in texts if text not in ("0", "{}")]
            return f"{{{', '.join(some)}}}" if some else "0"
        case _:
            return str(value)


def array(name: str, values: np.ndarray) -> Iterator[str]:
    """An array, flat."""
    flat = values.ravel()
    numbers = [number(x) for x in flat] if values.dtype == np.float32 else list(map(str, flat.tolist()))
    yield f"static const {C_TYPES[values.dtype.name]} {name}[{flat.size}] = {{"
    for at in range(0, len(numbers), 20):
        yield f"    {', '.join(numbers[at : at + 20])},"
    yield "};"


def number(x: np.float32) -> str:
    """A float constant with the nine digits that name it exactly."""
    if math.isinf(x):
        return "INFINITY" if x > 0 else "-INFINITY"
    text = f"{float(x):.9g}"
    return text + ("f" if "." in text or "e" in text else ".0f")


def string(text: str) -> str:
    """A C string of plain characters: other bytes as octal, which ends after three digits whatever follows.

    Programs print these names, so what would control a terminal is an escape that can be seen.
    """
    plain = _PLAIN_IN_STRINGS
    return '"' + "".join(chr(b) if chr(b) in plain else f"\\{b:03o}" for b in printable(text).encode()) + '"'


def comment(text: str) -> str:
    """A name for a comment. No character of it can end the comment, start another, or join two lines."""
    return "".join(c if c in _PLAIN else "_" for c in text)
