"""Recipes as YAML: those shipped with the package, a user's own, and their keys on the command line.

A method is a small YAML file in recipes/methods: its algorithm, what it says of itself, and `like`, the shipped recipe
of each data set that the rest is taken from: "fp" for a method that starts from weights as float networks have them,
"ana" for one whose shadow weights live between the levels, with the learning rate and the schedule of the noise that
suit those. So `fashion-mnist-bnn` is `fashion-mnist-ana` with the settings of bnn.yaml, and every method has the same
images, network and epochs.

jsonargparse makes the parser from the types of `Recipe`: an unknown key, a value of the wrong type or out of range is
an error that names it.

>>> recipe = named("digits-ana")
>>> recipe.data.name, named("digits-ana", ["--epochs", "3"]).epochs
('digits', 3)
>>> named("digits-bnn").epochs == named("digits-ana").epochs
True
"""

from __future__ import annotations

import dataclasses
import difflib
import itertools
import typing
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import yaml
from jsonargparse import ArgumentError, ArgumentParser

from lehr.algorithms import Algorithm
from lehr.annealing import Law
from lehr.training.recipe import Recipe

_TWINS = ("fp", "ana")
_CHOICES: dict[str, type] = {"algorithm": Algorithm, "annealing.law": Law, "annealing.backward_law": Law}


class RecipeError(ValueError):
    """A recipe that cannot be read; the message says which key and what would be right."""


def names() -> list[str]:
    """The recipes shipped with lehr."""
    return sorted(path.name.removesuffix(".yaml") for path in _shipped().iterdir() if path.name.endswith(".yaml"))


def methods() -> list[str]:
    """The methods there are; each makes a recipe BASE-METHOD of each base."""
    return [*_TWINS, *sorted(path.stem for path in _methods().glob("*.yaml"))]


def bases() -> list[str]:
    """What methods can be compared on: the shipped recipes that come as twins, one float and one quantized."""
    there = names()
    firsts = [name.removesuffix("-fp") for name in there if name.endswith("-fp")]
    return [base for base in firsts if all(f"{base}-{twin}" in there for twin in _TWINS)]


def named(name: str, overrides: Sequence[str] = ()) -> Recipe:
    """A shipped recipe or BASE-METHOD by name, or a YAML file by path, with keys overridden as on the command line."""
    path = Path(name)
    if path.suffix in (".yaml", ".yml"):
        if not path.is_file():
            raise RecipeError(f"there is no recipe file {path}")
        try:
            text = path.read_text()
        except UnicodeDecodeError as error:
            raise RecipeError(f"{path} is no text: {error}") from None
        return _parse(text, overrides, name)
    if name in names():
        return _parse((_shipped() / f"{name}.yaml").read_text(), overrides, name)
    made = {f"{base}-{method}": (base, method) for base in bases() for method in methods()}
    if name in made:
        return _parse(_composed(*made[name]), overrides, name)
    close = difflib.get_close_matches(name, [*names(), *made], n=1)
    hint = f"; did you mean {close[0]}?" if close else f"; there are {', '.join(names())}, or give a .yaml file"
    raise RecipeError(f"no recipe is called {name!r}{hint}")


def read(path: Path) -> Recipe:
    """The recipe in a YAML file."""
    return named(str(path))


def dump(recipe: Recipe) -> str:
    """A recipe as YAML, every key resolved.

    >>> "epochs: 3" in dump(named("digits-ana", ["--epochs", "3"]))
    True
    """
    parser = _parser()
    return parser.dump(parser.parse_object(_plain(recipe)))


def keys() -> str:
    """Every key of a recipe with its type and what it is unless given, as help for the command line."""
    return _parser().format_help()


def _composed(base: str, method: str) -> str:
    """The twin of the base that the method is like, with the method's own settings."""
    settings = yaml.safe_load((_methods() / f"{method}.yaml").read_text())
    twin = yaml.safe_load((_shipped() / f"{base}-{settings.pop('like')}.yaml").read_text())
    twin.pop("result", None)
    return yaml.safe_dump(_merged(twin, settings))


def _merged(below: Any, above: Any) -> Any:
    """Key by key, `above` over `below`; a class that is named is taken whole, with none of another's settings.

    >>> _merged({"a": {"b": 1, "c": 2}}, {"a": {"b": 3}})
    {'a': {'b': 3, 'c': 2}}
    """
    if not isinstance(below, dict) or not isinstance(above, dict) or "class_path" in above:
        return above
    return {**below, **{key: _merged(below.get(key), value) for key, value in above.items()}}


def _flags(kind: type, prefix: str = "--") -> set[str]:
    """The keys that are true or false."""
    hints = typing.get_type_hints(kind)
    flags = {f"{prefix}{name}" for name, hint in hints.items() if hint is bool}
    parts = {name: hint for name, hint in hints.items() if dataclasses.is_dataclass(hint)}
    return flags.union(*(_flags(hint, f"{prefix}{name}.") for name, hint in parts.items() if isinstance(hint, type)))


def _spelled_out(overrides: Sequence[str]) -> list[str]:
    """With `--compile` written as `--compile true`."""
    flags, words = _flags(Recipe), []
    for word, following in itertools.pairwise([*overrides, "--"]):
        words += [word, "true"] if word in flags and following.startswith("--") else [word]
    return words


def _parse(text: str, overrides: Sequence[str], name: str) -> Recipe:
    parser = _parser()
    try:
        if not isinstance(yaml.safe_load(text), dict):
            raise ValueError("a recipe has keys such as data, model and epochs, and this has none")
        base = parser.parse_string(text)
        return Recipe(**vars(parser.instantiate(parser.parse_args(_spelled_out(overrides), base))))
    except (ArgumentError, ValueError, TypeError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())
        for key, kind in _CHOICES.items():
            if f'"{key}": ' in reason and "path" in reason:
                known = ", ".join(sorted(choice.__name__ for choice in kind.__subclasses__()))
                reason += f"; there are {known}, and classes of your own by their import paths"
        raise RecipeError(f"recipe {name}: {reason}") from error


def _parser() -> ArgumentParser:
    usage = "lehr train RECIPE [--out RUN] [--from RUN] [--key value ...]"
    parser = ArgumentParser(usage=usage, exit_on_error=False, allow_abbrev=False)
    parser.add_class_arguments(Recipe, as_positional=False)
    return parser


def _plain(value: Any) -> Any:
    """A dataclass as nested dicts; one of several classes (an algorithm, a law) with its class's name."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
        if isinstance(value, Algorithm | Law):
            return {"class_path": f"{type(value).__module__}.{type(value).__qualname__}", "init_args": fields}
        return fields
    return list(value) if isinstance(value, tuple) else str(value) if isinstance(value, Path) else value


def _shipped() -> Path:
    return Path(str(resources.files("lehr"))) / "recipes"


def _methods() -> Path:
    return _shipped() / "methods"
