"""Read text, JSON and YAML from untrusted files, as plain data and within bounds of memory and time.

Raise ValueError if a file is not a regular file, is too large or too deeply nested, or if its aliases or numbers
explode.

>>> from_json('{"epochs": 3}'), from_yaml("epochs: 3")
({'epochs': 3}, {'epochs': 3})
>>> from_json("[" * 100 + "]" * 100)
Traceback (most recent call last):
ValueError: it is nested more than 50 deep
"""

from __future__ import annotations

import json
import math
import os
import sys
from pathlib import Path
from typing import Any

import yaml

LARGEST_YAML = 100_000  # bytes; a recipe has about 3,000, and PyYAML reads 100,000 in about a second
LARGEST_JSON = 16_000_000  # bytes; the results of a network of 100 layers with 256 levels each take about one million
_DEEPEST = 50  # levels of nesting
_MOST = 1_000_000  # values, with aliases expanded


def read_text(path: Path, largest: int) -> str:
    """Return the text of a regular file of at most `largest` bytes.

    Args:
        path: the file; a FIFO or a device, which could block forever, is refused
        largest: the allowed number of bytes

    Raises:
        OSError: if it cannot be opened.
        ValueError: if it is not a regular file, is larger, or is not UTF-8.
    """
    if path.exists() and not path.is_file():
        raise ValueError(f"{path} is not a regular file")
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size > largest:
            raise ValueError(f"{path} has {size:,} bytes; at most {largest:,} are allowed")
        content = file.read(largest)
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text: {error}") from None


def from_json(text: str) -> Any:
    """Return the content of a JSON text; raise ValueError if it is not JSON or out of bounds."""
    try:
        content = json.loads(text, parse_float=_float)
    except RecursionError:
        raise ValueError(f"it is nested more than {_DEEPEST} deep") from None
    check_bounds(content)
    return content


def from_yaml(text: str) -> Any:
    """Return the content of a YAML text; raise ValueError if it is not YAML or out of bounds."""
    if len(text) > LARGEST_YAML:
        raise ValueError(f"it has {len(text):,} characters; at most {LARGEST_YAML:,} are allowed")
    try:
        content = yaml.safe_load(text)
    except RecursionError:
        raise ValueError(f"it is nested more than {_DEEPEST} deep") from None
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from None
    check_bounds(content)
    return content


def check_bounds(content: Any) -> None:
    """Raise ValueError if plain data is too deep, too large with its aliases expanded, or beyond a float."""
    count, level = 0, [content]
    for _ in range(_DEEPEST):
        below = []
        count += len(level)
        for value in level:
            if isinstance(value, dict | list | tuple | set):
                inner = [*value.keys(), *value.values()] if isinstance(value, dict) else list(value)
                if count + len(below) + len(inner) > _MOST:
                    raise ValueError(f"it holds more than {_MOST:,} values with its aliases expanded")
                below += inner
            elif isinstance(value, int) and abs(value) > sys.float_info.max:
                raise ValueError(f"a number of {value.bit_length()} bits is beyond what a float can hold")
        if not below:
            return
        level = below
    raise ValueError(f"it is nested more than {_DEEPEST} deep")


def _float(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"the number {text[:40]} is beyond what a float can hold")
    return value
