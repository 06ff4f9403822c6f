"""Train a series of runs, methods times seeds, in one folder; skip finished runs, resume interrupted ones.

planned = plan(["fp", "ana", "twn"], "digits", seeds=3, folder=Path("runs/compare-digits"))
for step in train_all(planned):
    print(step.run.path.name, step.results)
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
    """A run of a series, which may exist already: its method, its recipe and its folder."""

    method: str
    recipe: Recipe
    path: Path

    @property
    def begun(self) -> bool:
        """Whether the folder holds a run."""
        return RunFolder(self.path).recipe.exists()

    @property
    def finished(self) -> bool:
        """Whether the folder holds a finished run."""
        return self.begun and RunFolder(self.path).results.exists()


@dataclasses.dataclass(frozen=True)
class Done:
    """A run that was just trained: its results, or the message of its failure."""

    run: Planned
    results: dict[str, Any] | None
    failure: str | None
    seconds: float


def plan(chosen: Sequence[str], base: str, *, seeds: int, folder: Path, overrides: Sequence[str] = ()) -> list[Planned]:
    """Return the runs of a series; raise RunError if a folder holds a run of another recipe.

    Args:
        chosen: the methods, or "all"
        base: the data set and network: one of `recipes.bases()`
        seeds: the number of seeds: 0 to `seeds` - 1
        folder: parent of the run folders
        overrides: keys of all recipes, as on the command line
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
            raise RecipeError(f"no method is called {method!r}; choose {', '.join(known)}{hint}")
    planned = []
    for seed in range(seeds):  # the outer loop, so that an interrupted comparison has complete seeds
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
    """Train the unfinished runs in order; a run that diverges does not stop the others.

    Args:
        planned: the runs, from `plan`
        before: called with each run before its training
    """
    from lehr.training import session  # imports Lightning, which takes seconds; errors of the plan come first

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
            raise Interrupted(stop.signum, "repeat the command to continue") from stop
        yield Done(run, results, failure, time.monotonic() - began)


def _check_same(path: Path, there: Recipe, wanted: Recipe) -> None:
    difference = difference_of(_experiment(there), _experiment(wanted))
    if difference is not None:
        key, was, now = difference
        raise RunError(f"{path} holds a run with {key} {was}, not {now}: choose another folder with --out")


def _experiment(recipe: Recipe) -> Recipe:
    """Return the recipe without the keys that do not change its results."""
    recipe = recipe.anchored
    return dataclasses.replace(recipe, description="", result="", data=dataclasses.replace(recipe.data, root=None))


def difference_of(there: Any, wanted: Any, key: str = "") -> tuple[str, Any, Any] | None:
    """Return the key and both values of the first setting that differs, or None."""
    if there == wanted:
        return None
    if isinstance(there, Model) and isinstance(wanted, Model) and there.kind is wanted.kind:
        for name in there.settings.keys() | wanted.settings.keys():
            if there.settings.get(name) != wanted.settings.get(name):
                return f"{key}.{name}", there.settings.get(name), wanted.settings.get(name)
    if type(there) is type(wanted) and dataclasses.is_dataclass(there):
        for field in dataclasses.fields(there):
            name = f"{key}.{field.name}" if key else field.name
            found = difference_of(getattr(there, field.name), getattr(wanted, field.name), name)
            if found is not None:
                return found
    return key, there, wanted
