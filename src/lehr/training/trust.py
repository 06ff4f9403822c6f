"""Which classes the recipe of a file may name: lehr's own, unless the user trusts others.

Importing a class runs its module, so the class paths in a recipe.yaml are code. What the user types (`--algorithm
mymethods.Pulled`) is imported; what a file names is imported only if it is lehr's, if the program has imported it
already, or if the user trusts it: `--trust` after a command, `LEHR_TRUST=1`, or `LEHR_TRUST=mymethods,mynets` for
these packages alone.

`foreign` is the one guard: every recipe that is read from a file passes through it before anything is imported.

>>> list(foreign({"algorithm": {"class_path": "lehr.algorithms.ANA"}, "model": "mynets.Net"}))
[(('model',), 'mynets.Net')]
"""

from __future__ import annotations

import contextlib
import contextvars
import importlib
import os
import sys
from collections.abc import Container, Iterator
from typing import Any

from lehr.training import plain

VARIABLE = "LEHR_TRUST"
_EVERYTHING = ("1", "all", "true", "yes")
_NOTHING = ("", "0", "no", "false")

_said: contextvars.ContextVar[bool | None] = contextvars.ContextVar("_said", default=None)


@contextlib.contextmanager
def trusting(everything: bool) -> Iterator[None]:
    """Whether any class may be imported in this block, whatever LEHR_TRUST says."""
    token = _said.set(everything)
    try:
        yield
    finally:
        _said.reset(token)


def foreign(
    content: Any, free: Container[tuple[str, ...]] = (), at: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], str]]:
    """Where plain data names a class that must not be imported, and the class.

    A class can be named as `class_path`, as a plain string, as JSON within a string, and below dotted keys; each of
    these is looked at wherever it stands, but for the keys in `free`.

    Args:
        content: what the YAML of a recipe holds, within the bounds of `plain.check_bounds`
        free: keys whose strings are just text, such as a description or a path
        at: the key of `content`
    """
    if isinstance(content, dict):
        for key, value in content.items():
            yield from foreign(value, free, (*at, *str(key).split(".")))
    elif isinstance(content, list | tuple | set):
        for value in content:
            yield from foreign(value, free, at)
    elif isinstance(content, str) and at not in free:
        with contextlib.suppress(ValueError):
            within = plain.from_yaml(content)
            if not isinstance(within, str):
                yield from foreign(within, free, at)
                return
        path = content.strip()
        if "." in path and all(part.isidentifier() for part in path.split(".")) and not _allowed(path):
            yield at, path


def remedy(path: str) -> str:
    """What to type if the class is to be imported."""
    return (
        f"it names {path}, a class that is not lehr's, and importing it runs its code: if you trust it, add --trust "
        f"or set {VARIABLE}={path.split('.')[0]}"
    )


def _allowed(path: str) -> bool:
    return _is_trusted(path) or _is_lehrs(path) or _is_loaded(path)


def _is_trusted(path: str) -> bool:
    said = _said.get()
    if said is not None:
        return said
    words = [word.strip() for word in os.environ.get(VARIABLE, "").split(",")]
    if len(words) == 1 and words[0].lower() in (*_EVERYTHING, *_NOTHING):
        return words[0].lower() in _EVERYTHING
    return any(path.startswith(f"{word}.") for word in words if word)


def _is_lehrs(path: str) -> bool:
    """Whether it is below lehr and defined there, or lacking there, which has an error of its own."""
    module, _, name = path.rpartition(".")
    if path.split(".")[0] != "lehr" or any(part.startswith("_") for part in path.split(".")):
        return False  # lehr.__main__ is a program
    try:
        found = getattr(importlib.import_module(module), name, None)
    except ImportError:
        return False
    return found is None or str(getattr(found, "__module__", "")).split(".")[0] == "lehr"


def _is_loaded(path: str) -> bool:
    """Whether this program imported or made the class itself; those of a library are not meant."""
    from lehr.algorithms import Algorithm
    from lehr.annealing import Law, Schedule
    from lehr.training.model import is_made_for_data

    parts = path.split(".")
    for length in range(len(parts) - 1, 0, -1):
        found: Any = sys.modules.get(".".join(parts[:length]))
        if found is not None:
            for part in parts[length:]:
                found = vars(found).get(part) if hasattr(found, "__dict__") else None
            known = isinstance(found, type) and issubclass(found, (Algorithm, Law, Schedule))
            return known or (isinstance(found, type) and is_made_for_data(found))
    return False
