"""Read and write recipes as YAML: shipped ones, a user's own, and keys from the command line.

A method is a small YAML file in recipes/methods with its algorithm, a description, and `like`: which of a data set's
two shipped recipes supplies the other settings. "fp" suits methods that start from the weights of a float network;
"ana" suits methods whose shadow weights lie between the levels, with its learning rate and noise schedule. So
`fashion-mnist-bnn` is `fashion-mnist-ana` with the settings of bnn.yaml, and all methods share images, network and
epochs.

recipe_keys.py has the parser of the keys.

>>> recipe = named("digits-ana")
>>> recipe.data.name, named("digits-ana", ["--epochs", "3"]).epochs
('digits', 3)
>>> named("digits-bnn").epochs == named("digits-ana").epochs
True
"""

from __future__ import annotations

import dataclasses
import difflib
import sys
import typing
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import yaml
from jsonargparse import ArgumentError

from lehr.training import plain, trust
from lehr.training.model import Model
from lehr.training.recipe import Recipe
from lehr.training.recipe_keys import (
    CHOICES,
    apply_twin_keys_,
    free_text,
    parser_of_keys,
    spelled_out,
    split_network,
    without_unused,
)
from lehr.training.upgrade import upgraded

_BASE_METHODS = ("fp", "ana")  # have recipes of their own; the others are settings over one of these


class RecipeError(ValueError):
    """A recipe cannot be read; the message names the key and what would be right."""


def names() -> list[str]:
    """Return the names of the shipped recipes."""
    return sorted(path.name.removesuffix(".yaml") for path in _shipped().iterdir() if path.name.endswith(".yaml"))


def methods() -> list[str]:
    """Return the names of the methods; BASE-METHOD is a recipe for each base and method."""
    return [*_BASE_METHODS, *sorted(path.stem for path in _methods().glob("*.yaml"))]


def bases() -> list[str]:
    """Return the bases that methods can be compared on: those with a shipped fp and a shipped ana recipe."""
    there = names()
    firsts = [name.removesuffix("-fp") for name in there if name.endswith("-fp")]
    return [base for base in firsts if all(f"{base}-{method}" in there for method in _BASE_METHODS)]


def named(name: str, overrides: Sequence[str] = ()) -> Recipe:
    """Return a recipe.

    Args:
        name: of a shipped recipe, or BASE-METHOD, or the path of a YAML file
        overrides: keys and values as on the command line: ["--epochs", "3"]
    """
    path = Path(name)
    if path.suffix in (".yaml", ".yml"):
        if not path.is_file():
            raise RecipeError(f"there is no recipe file {path}")
        return parse(text_of(path), overrides, name)
    if name in names():
        return parse((_shipped() / f"{name}.yaml").read_text(), overrides, name)
    made = {f"{base}-{method}": (base, method) for base in bases() for method in methods()}
    if name in made:
        return parse(_composed(*made[name]), overrides, name)
    close = difflib.get_close_matches(name, [*names(), *made], n=1)
    hint = f"; did you mean {close[0]}?" if close else f"; choose {', '.join(names())}, or give a .yaml file"
    raise RecipeError(f"no recipe is called {name!r}{hint}")


def read(path: Path) -> Recipe:
    """Return the recipe in a YAML file; raise RecipeError if it names a class that is neither lehr's nor trusted."""
    return parse(text_of(path), None, str(path))


def dump(recipe: Recipe) -> str:
    """Return a recipe as YAML with every key.

    >>> "epochs: 3" in dump(named("digits-ana", ["--epochs", "3"]))
    True
    """
    return yaml.safe_dump(_plain(recipe), sort_keys=False, allow_unicode=True)


def _composed(base: str, method: str) -> str:
    """Return the YAML of the base's recipe that the method is `like`, with the method's settings."""
    settings = yaml.safe_load((_methods() / f"{method}.yaml").read_text())
    like = yaml.safe_load((_shipped() / f"{base}-{settings.pop('like')}.yaml").read_text())
    like.pop("result", None)
    return yaml.safe_dump(_merged(like, settings))


def _merged(below: Any, above: Any) -> Any:
    """Merge `above` into `below` key by key; a value with a class_path replaces the other whole.

    >>> _merged({"a": {"b": 1, "c": 2}}, {"a": {"b": 3}})
    {'a': {'b': 3, 'c': 2}}
    """
    if not isinstance(below, dict) or not isinstance(above, dict) or "class_path" in above:
        return above
    return {**below, **{key: _merged(below.get(key), value) for key, value in above.items()}}


def text_of(path: Path) -> str:
    """Return the text of a recipe file; raise RecipeError if it is not text or too long."""
    try:
        return plain.read_text(path, plain.LARGEST_YAML)
    except ValueError as error:
        raise RecipeError(str(error)) from None


def content_of(text: str, name: str) -> dict[Any, Any]:
    """Return the YAML as plain data, upgraded to this version; errors call the recipe `name`."""
    try:
        content = plain.from_yaml(text)
        if not isinstance(content, dict):
            raise ValueError("a recipe has keys such as data, model and epochs, but this file has none")
        _check_groups(content)
    except ValueError as error:
        raise RecipeError(f"recipe {name}: {' '.join(str(error).split())}") from None
    return upgraded(content)


def _check_groups(content: dict[Any, Any], kind: type = Recipe, at: str = "") -> None:
    """Raise ValueError if a group of keys is a string, which jsonargparse would read as a file name."""
    for name, hint in typing.get_type_hints(kind).items():
        if isinstance(hint, type) and dataclasses.is_dataclass(hint) and hint not in (Model, *CHOICES.values()):
            group = content.get(name)
            if isinstance(group, str):
                raise ValueError(f"{at}{name} must hold keys and values, got {group!r}")
            if isinstance(group, dict):
                _check_groups(group, hint, f"{at}{name}.")


def parse(text: str, overrides: Sequence[str] | None, name: str) -> Recipe:
    """Return the recipe of a YAML text, whose classes must be lehr's or trusted.

    Args:
        text: the YAML
        overrides: keys and values typed by the user; None for the recipe of a run, which may hold keys without effect
        name: what errors call the recipe
    """
    content = content_of(text, name)
    for _, path in trust.foreign(content, free_text()):
        raise RecipeError(f"recipe {name}: {trust.remedy(path)}")
    try:
        network, settings, words = split_network(content.pop("model", None), overrides or ())
        words = apply_twin_keys_(content, spelled_out(words, network))
        parser = parser_of_keys(network)
        checked = yaml.safe_dump(content | {"model": settings})  # not `text`, which jsonargparse could read otherwise
        base = parser.parse_string(checked)
        values: dict[str, Any] = vars(parser.instantiate(parser.parse_args(words, base)))
        values["model"] = Model(network, **vars(values["model"]))
        recipe = Recipe(**values)
        return recipe if overrides is None else without_unused(recipe, overrides)
    except (ArgumentError, ValueError, TypeError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())
        for key, kind in CHOICES.items():
            if f'"{key}": ' in reason and "path" in reason:
                offered = [choice for choice in kind.__subclasses__() if choice.__module__ != "lehr.training.untrusted"]
                known = ", ".join(sorted(choice.__name__ for choice in offered))
                reason += f"; choose {known}, or give the import path of your own class"
        raise RecipeError(f"recipe {name}: {reason}") from error


def _plain(value: Any) -> Any:
    """Return a dataclass as nested dicts; one of several classes (a network, a schedule) with its class_path."""
    if isinstance(value, Model):
        settings = {name: _plain(setting) for name, setting in value.settings.items()}
        return {"class_path": _class_path(value.kind), "init_args": settings}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        given = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        absent = {field.name for field in dataclasses.fields(value) if field.default is given[field.name] is None}
        fields = {name: _plain(part) for name, part in given.items() if name not in absent}
        if isinstance(value, tuple(CHOICES.values())):
            return {"class_path": _class_path(type(value)), "init_args": fields}
        return fields
    return list(value) if isinstance(value, tuple) else str(value) if isinstance(value, Path) else value


def _class_path(kind: type) -> str:
    """Return the import path of a class: that of the package if it exports the class, since files may move."""
    package = kind.__module__.rpartition(".")[0]
    public = getattr(sys.modules.get(package), kind.__qualname__, None) is kind
    return f"{package if public else kind.__module__}.{kind.__qualname__}"


def _shipped() -> Path:
    return Path(str(resources.files("lehr"))) / "recipes"


def _methods() -> Path:
    return _shipped() / "methods"
