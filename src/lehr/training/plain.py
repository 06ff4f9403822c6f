"""Text, JSON and YAML of files that anybody may have written, as plain data and within bounds.

A file that is no regular file, too large, nested too deeply, or whose aliases or numbers explode is a ValueError that
says so; nothing here takes memory or time beyond what the bounds allow.

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

LARGEST_YAML = 100_000  # bytes; a recipe has some 3,000, and PyYAML takes about a second for so many
LARGEST_JSON = 16_000_000  # bytes; the results of a network of 100 layers with 256 levels each take about one million
_DEEPEST = 50  # levels of nesting
_MOST = 1_000_000  # values, with what aliases repeat


def read_text(path: Path, largest: int) -> str:
    """The text of a regular file of at most `largest` bytes.

    Args:
        path: the file; a FIFO or a device, which could block for ever, is refused
        largest: how many bytes it may have

    Raises:
        OSError: if it cannot be opened.
        ValueError: if it is something else, larger, or not UTF-8.
    """
    if path.exists() and not path.is_file():
        raise ValueError(f"{path} is no regular file")
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size > largest:
            raise ValueError(f"{path} has {size:,} bytes, more than the {largest:,} that are read")
        content = file.read(largest)
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is no text: {error}") from None


def from_json(text: str) -> Any:
    """What a JSON text holds; ValueError if it is no JSON or out of bounds."""
    try:
        content = json.loads(text, parse_float=_float)
    except RecursionError:
        raise ValueError(f"it is nested more than {_DEEPEST} deep") from None
    check_bounds(content)
    return content


def from_yaml(text: str) -> Any:
    """What a YAML text holds; ValueError if it is no YAML or out of bounds."""
    if len(text) > LARGEST_YAML:
        raise ValueError(f"it has {len(text):,} characters, more than the {LARGEST_YAML:,} that are read")
    try:
        content = yaml.safe_load(text)
    except RecursionError:
        raise ValueError(f"it is nested more than {_DEEPEST} deep") from None
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from None
    check_bounds(content)
    return content


def check_bounds(content: Any) -> None:
    """Raise ValueError if plain data is too deep, too large with its aliases written out, or beyond a float."""
    count, level = 0, [content]
    for _ in range(_DEEPEST):
        below = []
        count += len(level)
        for value in level:
            if isinstance(value, dict | list | tuple | set):
                inner = [*value.keys(), *value.values()] if isinstance(value, dict) else list(value)
                if count + len(below) + len(inner) > _MOST:
                    raise ValueError(f"it holds more than {_MOST:,} values, with what its aliases repeat")
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
