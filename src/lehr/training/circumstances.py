"""The environment of a run, as run.json records it, and warnings if it differs when the run resumes."""

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
    """Return the time, command, seed, commit, versions and number of threads."""
    git = ["git", "-C", str(Path(lehr.__file__).parent), "rev-parse", "HEAD"]
    try:
        commit = subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip()
    except OSError:  # git is not installed
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
    """Warn if versions or threads changed, so that the resumed run can differ in the last bits."""
    changed = [name for name in ("lehr", "torch", "threads") if then.get(name) != now[name]]
    if changed:
        was = ", ".join(f"{name} {then.get(name)}" for name in changed)
        now_is = ", ".join(f"{name} {now[name]}" for name in changed)
        warnings.warn(
            f"this run began with {was} and resumes with {now_is}: its numbers may differ in the last bits",
            RunWarning,
            stacklevel=3,
        )


def warn_if_split_differs(recipe: Recipe, other: Path) -> None:
    """Warn if the network of another run was trained on validation images of this run."""
    theirs = read(RunFolder.open(other).recipe)
    held_out, theirs_held_out = ((r.seed, r.data.validation) for r in (recipe, theirs))
    if recipe.data.name == theirs.data.name and held_out != theirs_held_out:
        warnings.warn(
            f"{other} held out other validation images (seed {theirs.seed}, data.validation {theirs.data.validation}; "
            f"this run: {recipe.seed}, {recipe.data.validation}) and was trained on some of this run's: validation "
            f"accuracy will be too high; test accuracy is not affected",
            RunWarning,
            stacklevel=3,
        )
