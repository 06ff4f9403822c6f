"""Read recipes only to show and compare them, without importing classes that are not lehr's.

A `NotImported` replaces such an algorithm, a `NotImportedNetwork` a network, and the default a schedule or law. The
placeholders have their own file so that `lehr train` does not list them among the algorithms.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
from pathlib import Path
from typing import Any

import yaml
from torch import nn

from lehr.algorithms import Algorithm, Description
from lehr.convert import Conversion
from lehr.training import trust
from lehr.training.model import Model
from lehr.training.recipe import Recipe
from lehr.training.recipe_keys import CHOICES, free_text
from lehr.training.recipes import RecipeError, content_of, parse, text_of


def read_to_show(path: Path) -> tuple[Recipe, tuple[str, ...]]:
    """Return the recipe in a YAML file, with placeholders for classes that `recipes.read` refuses, and their names."""
    content = content_of(text_of(path), str(path))
    refused = dict(trust.foreign(content, free_text()))
    left_out = {}
    for key in (*CHOICES, "model"):
        classes = [name for place, name in refused.items() if ".".join((*place, "")).startswith(f"{key}.")]
        if classes:
            *rooms, last = key.split(".")
            with contextlib.suppress(KeyError, TypeError):  # below a dotted key, which `parse` refuses
                room = functools.reduce(lambda below, name: below[name], rooms, content)
                left_out[key] = classes[0], room.pop(last)
    recipe = parse(yaml.safe_dump(content | ({"model": "mlp"} if "model" in left_out else {})), None, str(path))
    shown = {key: (name, json.dumps(settings, default=str)) for key, (name, settings) in left_out.items()}
    if "algorithm" in shown:
        recipe = dataclasses.replace(recipe, algorithm=NotImported(*shown["algorithm"]))
    if "model" in shown:
        name, settings = shown["model"]
        recipe = dataclasses.replace(recipe, model=Model(NotImportedNetwork, name=name, settings=settings))
    return recipe, tuple(name for name, _ in left_out.values())


@dataclasses.dataclass(frozen=True)
class NotImported(Algorithm):
    """Placeholder for an algorithm that is not lehr's, in a recipe that is only shown.

    Args:
        name: the import path of its class
        settings: its settings in the recipe, as JSON
    """

    name: str
    settings: str

    def describe(self) -> Description:
        """Only the name is known."""
        return Description(self.name.rpartition(".")[2])

    def convert_(self, model: nn.Module, *, trained: bool = False) -> Conversion | None:
        """Raise RecipeError: the class was not imported."""
        raise RecipeError(f"{self.name} was not imported: {trust.remedy(self.name)}")


class NotImportedNetwork(nn.Module):
    """Placeholder for a network that is not lehr's, in a recipe that is only shown; it cannot be built.

    Args:
        shape: see `lehr.training.model`, also for `classes`, `mean` and `std`
        name: the import path of its class
        settings: its settings in the recipe, as JSON
    """

    def __init__(self, shape: Any, classes: int, mean: Any, std: Any, *, name: str, settings: str) -> None:
        raise RecipeError(f"{name} was not imported: {trust.remedy(name)}")
