"""What a test uses, found in its code: the marks by which `make quick` leaves tests out.

A test gets a mark if it, a fixture it asks for or a function of tests/ that it calls names something of `MARKS`.
Nobody has to mark a test by hand.
"""

from __future__ import annotations

import dis
import functools
import inspect
import types
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

# The module, or the name in a module, that gives a mark; in the order of `pytest --markers`.
MARKS: dict[str, tuple[str, tuple[str, ...]]] = {
    "browser": ("opens Chromium", ("browser.Browser",)),
    "process": (
        "starts other programs: compilers, emulators, kernels, a `lehr` of its own",
        ("subprocess", "processes", "multiprocessing", "nbclient", "torch.multiprocessing"),
    ),
    "training": (
        "trains a network",
        (
            "lehr.training.session.train",
            "lehr.training.session.resume",
            "lehr.training.series",
            "runpy",
            "test_algorithms.Training",
        ),
    ),
    "command": ("runs a `lehr` command in this process", ("lehr.cli.main",)),
    "compiler": ("calls torch.compile", ("torch.compile", "torch._dynamo")),
    "fuzz": ("looks for trouble at random, for seconds", ("fuzzing",)),
}
_TESTS = Path(__file__).parent
_KNOWN: dict[tuple[types.CodeType, int], list[tuple[str, Any]]] = {}  # what a code in a module names


@functools.cache
def marks_of(function: Callable[..., Any], fixtures: tuple[str, ...] = ()) -> set[str]:
    """The marks of a test, by its code and that of its fixtures.

    >>> import subprocess
    >>> marks_of(lambda: subprocess.run(["true"])), marks_of(lambda: 1)
    ({'process'}, set())
    """
    found: set[str] = set()
    seen: set[types.CodeType] = set()
    space = inspect.unwrap(function).__globals__
    waiting = [function, *(space[name] for name in fixtures if name in space)]
    while waiting:
        for name, value in _named(waiting.pop(), seen):
            found |= {mark for mark, (_, sources) in MARKS.items() if _is_one_of(name, sources)}
            if _is_of_tests(value):
                waiting.append(value)
    return found


def _named(thing: Any, seen: set[types.CodeType]) -> Iterator[tuple[str, Any]]:
    """What the code of a function, or of a class's methods, names: its full name and itself."""
    thing = inspect.unwrap(thing)
    if inspect.isclass(thing):
        for method in vars(thing).values():
            if callable(method):
                yield from _named(method, seen)
        return
    code, space = getattr(thing, "__code__", None), getattr(thing, "__globals__", {})
    codes = [code] if code is not None else []
    while codes:
        code = codes.pop()
        if code in seen:
            continue
        seen.add(code)
        codes += [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]
        if (code, id(space)) not in _KNOWN:
            _KNOWN[code, id(space)] = list(_named_in(code, space))
        yield from _KNOWN[code, id(space)]


def _named_in(code: types.CodeType, space: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    value: Any = None
    for instruction in dis.get_instructions(code):
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF"):
            value = space.get(instruction.argval)
        elif instruction.opname in ("LOAD_ATTR", "LOAD_METHOD") and isinstance(value, types.ModuleType):
            value = getattr(value, instruction.argval, None)
        else:
            continue
        if value is not None:
            yield _full_name(value), value


def _full_name(value: Any) -> str:
    if isinstance(value, types.ModuleType):
        return value.__name__
    return f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', '')}"


def _is_one_of(name: str, sources: Iterable[str]) -> bool:
    return any(name == source or name.startswith(f"{source}.") for source in sources)


def _is_of_tests(value: Any) -> bool:
    code = getattr(inspect.unwrap(value), "__code__", None) if callable(value) else None
    if code is not None:
        return Path(code.co_filename).parent == _TESTS
    module = inspect.getmodule(value) if inspect.isclass(value) else None
    return module is not None and Path(getattr(module, "__file__", None) or "").parent == _TESTS
