"""Runs one after the other: methods times seeds, in one folder; what is finished is kept, what was begun goes on.

planned = plan(["fp", "ana", "twn"], "digits", seeds=3, folder=Path("runs/compare-digits"))
for step in train_all(planned):
    print(step.run.name, step.results)
"""

from __future__ import annotations

import dataclasses
import difflib
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from lehr.training.errors import Diverged, Interrupted, RunError
from lehr.training.folder import RunFolder
from lehr.training.model import Model
from lehr.training.recipe import Recipe
from lehr.training.recipes import RecipeError, bases, methods, named, read


@dataclasses.dataclass(frozen=True)
class Planned:
    """A run of a series: a method, a seed, and the folder it is in or will be."""

    method: str
    recipe: Recipe
    path: Path

    @property
    def begun(self) -> bool:
        """Whether the folder holds a run."""
        return RunFolder(self.path).recipe.exists()

    @property
    def finished(self) -> bool:
        """Whether it is there, to its end."""
        return self.begun and RunFolder(self.path).results.exists()


@dataclasses.dataclass(frozen=True)
class Done:
    """A run that was trained just now: results, or the sentence that says how it failed."""

    run: Planned
    results: dict[str, Any] | None
    failure: str | None
    seconds: float


def plan(chosen: Sequence[str], base: str, *, seeds: int, folder: Path, overrides: Sequence[str] = ()) -> list[Planned]:
    """The runs of these methods ("all": every one) on a base, seeds 0 to `seeds` - 1, in folders below `folder`.

    `overrides` are keys of the recipe for all of them, as on the command line. A folder that holds a run of another
    recipe is an error: its results would not be comparable.
    """
    if base not in bases():
        raise RecipeError(f"methods are compared on one of {', '.join(bases())}, got {base!r}")
    if seeds < 1:
        raise RecipeError(f"seeds must be at least 1, got {seeds}")
    known = methods()
    unique = list(dict.fromkeys(known if "all" in chosen else chosen))
    for method in unique:
        if method not in known:
            close = difflib.get_close_matches(method, known, n=1)
            hint = f"; did you mean {close[0]}?" if close else ""
            raise RecipeError(f"no method is called {method!r}; there are {', '.join(known)}{hint}")
    planned = []
    for seed in range(seeds):  # so that a comparison that is stopped has whole seeds
        for method in unique:
            recipe = named(f"{base}-{method}", [*overrides, "--seed", str(seed)])
            if recipe.devices * recipe.num_nodes > 1:
                raise RecipeError("a comparison trains on one device: train on several with lehr train, then compare")
            run = Planned(method, recipe, folder / f"{method}-seed{seed}")
            if run.begun:
                _check_same(run.path, read(RunFolder(run.path).recipe), recipe)
            planned.append(run)
    return planned


def train_all(planned: Sequence[Planned], before: Callable[[Planned], None] = lambda run: None) -> Iterator[Done]:
    """Train what is not finished, in order, calling `before` with each; one that diverges does not stop the others."""
    from lehr.training import session  # Lightning, which takes seconds: a wrong plan was told before

    for run in planned:
        if run.finished:
            continue
        before(run)
        began = time.monotonic()
        results, failure = None, None
        try:
            results = session.resume(run.path) if run.begun else session.train(run.recipe, run.path)
        except Diverged as error:
            failure = str(error)
        except Interrupted as stop:
            raise Interrupted(stop.signum, "the same command goes on where it stopped") from stop
        yield Done(run, results, failure, time.monotonic() - began)


def _check_same(path: Path, there: Recipe, wanted: Recipe) -> None:
    difference = _difference(_experiment(there), _experiment(wanted))
    if difference is not None:
        key, was, now = difference
        raise RunError(f"{path} holds a run with {key} {was}, wanted is {now}: name another folder with --out")


def _experiment(recipe: Recipe) -> Recipe:
    """Without what makes no other experiment of it."""
    recipe = recipe.anchored
    return dataclasses.replace(recipe, description="", result="", data=dataclasses.replace(recipe.data, root=None))


def _difference(there: Any, wanted: Any, key: str = "") -> tuple[str, Any, Any] | None:
    """The first setting in which two values differ: its key and both."""
    if there == wanted:
        return None
    if isinstance(there, Model) and isinstance(wanted, Model) and there.kind is wanted.kind:
        for name in there.settings.keys() | wanted.settings.keys():
            if there.settings.get(name) != wanted.settings.get(name):
                return f"{key}.{name}", there.settings.get(name), wanted.settings.get(name)
    if type(there) is type(wanted) and dataclasses.is_dataclass(there):
        for field in dataclasses.fields(there):
            name = f"{key}.{field.name}" if key else field.name
            found = _difference(getattr(there, field.name), getattr(wanted, field.name), name)
            if found is not None:
                return found
    return key, there, wanted
