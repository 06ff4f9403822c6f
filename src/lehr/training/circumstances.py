"""Where, when and with what a run is made: what run.json keeps, and what a user should know before going on."""

from __future__ import annotations

import platform
import subprocess
import sys
import time
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import lightning
import torch

import lehr
from lehr.training.errors import RunWarning
from lehr.training.folder import RunFolder
from lehr.training.recipe import Recipe
from lehr.training.recipes import read


def circumstances(recipe: Recipe) -> dict[str, Any]:
    """Time, command, seed, commit, versions, threads."""
    ask = ["git", "-C", str(Path(lehr.__file__).parent), "rev-parse", "HEAD"]
    try:
        commit = subprocess.run(ask, capture_output=True, text=True, check=False).stdout.strip()
    except OSError:  # there is no git
        commit = ""
    return {
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "command": sys.argv,
        "seed": recipe.seed,
        "commit": commit or None,
        "lehr": lehr.__version__,
        "torch": torch.__version__,
        "lightning": lightning.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "threads": torch.get_num_threads(),
    }


def warn_if_circumstances_differ(then: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Warn if a resumed run will differ in the last bits from one that never stopped."""
    changed = [name for name in ("lehr", "torch", "threads") if then.get(name) != now[name]]
    if changed:
        was = ", ".join(f"{name} {then.get(name)}" for name in changed)
        now_is = ", ".join(f"{name} {now[name]}" for name in changed)
        warnings.warn(f"this run began with {was} and goes on with {now_is}: not bit for bit", RunWarning, stacklevel=3)


def warn_if_split_differs(recipe: Recipe, other: Path) -> None:
    """Warn if the network of another run has seen validation images of this one."""
    theirs = read(RunFolder.open(other).recipe)
    held_out, theirs_held_out = ((r.seed, r.data.validation) for r in (recipe, theirs))
    if recipe.data.name == theirs.data.name and held_out != theirs_held_out:
        warnings.warn(
            f"{other} held other images out (its seed and data.validation are {theirs.seed} and "
            f"{theirs.data.validation}, this run's {recipe.seed} and {recipe.data.validation}) and has seen some of "
            f"this run's validation images, which will look better than they are; test data is not touched",
            RunWarning,
            stacklevel=3,
        )
