"""Which classes a recipe file may name: lehr's, and those that the user trusts.

Importing a class runs its module, so the class paths in a recipe.yaml are code. A class that the user types
(`--algorithm mymethods.Pulled`) is imported. A class that a file names is imported only if it is lehr's, if the program
has already imported it, or if the user trusts it: `--trust` after a command, `LEHR_TRUST=1`, or
`LEHR_TRUST=mymethods,mynets` for these packages only.

`foreign` is the only guard: every recipe from a file passes through it before anything is imported.

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
    """Allow or forbid the import of any class inside the block; overrides LEHR_TRUST."""
    token = _said.set(everything)
    try:
        yield
    finally:
        _said.reset(token)


def is_trusting() -> bool | None:
    """Return what `trusting` allows here; None outside of it, where LEHR_TRUST holds."""
    return _said.get()


def foreign(
    content: Any, free: Container[tuple[str, ...]] = (), at: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield the key and the import path of each class in plain data that must not be imported.

    A class can be named as `class_path`, as a plain string, as JSON within a string, and below dotted keys; all of
    these are checked at every key not in `free`.

    Args:
        content: the YAML of a recipe, within the bounds of `plain.check_bounds`
        free: keys whose values are only text, such as a description or a path
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
    """Return the message that says how to trust the class."""
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
    """Return whether the path is below lehr and its object is defined there, or missing (a later error)."""
    module, _, name = path.rpartition(".")
    if path.split(".")[0] != "lehr" or any(part.startswith("_") for part in path.split(".")):
        return False  # importing lehr.__main__ would run it
    try:
        found = getattr(importlib.import_module(module), name, None)
    except ImportError:
        return False
    return found is None or str(getattr(found, "__module__", "")).split(".")[0] == "lehr"


def _is_loaded(path: str) -> bool:
    """Return whether this program has already imported or defined the class, and a recipe can use it."""
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
