"""Read and write recipes as YAML: shipped ones, a user's own, and keys from the command line.

A method is a small YAML file in recipes/methods with its algorithm, a description, and `like`: which of a data set's
two shipped recipes supplies the other settings. "fp" suits methods that start from the weights of a float network;
"ana" suits methods whose shadow weights lie between the levels, with its learning rate and noise schedule. So
`fashion-mnist-bnn` is `fashion-mnist-ana` with the settings of bnn.yaml, and all methods share images, network and
epochs.

jsonargparse makes the parser from the types of `Recipe`; its errors name an unknown key or a wrong value.

>>> recipe = named("digits-ana")
>>> recipe.data.name, named("digits-ana", ["--epochs", "3"]).epochs
('digits', 3)
>>> named("digits-bnn").epochs == named("digits-ana").epochs
True
"""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import functools
import itertools
import sys
import typing
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import yaml
from jsonargparse import ArgumentError, ArgumentParser
from torch import nn

from lehr.algorithms import Algorithm
from lehr.annealing import Law, Schedule
from lehr.training import plain, trust
from lehr.training.model import FROM_DATA, NETWORKS, Model, flags_of, network_class, settings_of
from lehr.training.recipe import Recipe
from lehr.training.upgrade import upgraded

_BASE_METHODS = ("fp", "ana")  # have recipes of their own; the others are settings over one of these
_OF_THE_TWIN = ("optimizer", "schedule")  # keys of pretraining
CHOICES: dict[str, type] = {
    "algorithm": Algorithm,
    "annealing.schedule": Schedule,
    "annealing.law": Law,
    "annealing.backward_law": Law,
}


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


def help_parser(words: argparse.ArgumentParser) -> ArgumentParser:
    """Return a parser of some words and of every key of a recipe, for help and completion, not for parsing.

    Args:
        words: a parser of the words that are not keys.
    """
    parser = ArgumentParser(usage=words.usage, description=words.description)
    for action in words._actions:
        parser._add_action(action)
    _add_keys(parser, NETWORKS["mlp"])
    chosen = next(action for action in parser._actions if "--model" in action.option_strings)
    chosen.metavar = "NETWORK"  # to jsonargparse it is a file with keys of the network
    chosen.help = (
        f"the network: {', '.join(NETWORKS)}, or the import path of your own class. Its keys are the arguments of its "
        "constructor; listed here are those of mlp."
    )
    return parser


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


def _flags(kind: type, prefix: str = "--") -> set[str]:
    """Return the boolean keys."""
    hints = typing.get_type_hints(kind)
    flags = {f"{prefix}{name}" for name, hint in hints.items() if hint is bool}
    parts = {name: hint for name, hint in hints.items() if dataclasses.is_dataclass(hint)}
    return flags.union(*(_flags(hint, f"{prefix}{name}.") for name, hint in parts.items() if isinstance(hint, type)))


def _without_unused(recipe: Recipe, overrides: Sequence[str]) -> Recipe:
    """Reset the keys that the overrides made useless; raise ValueError for other keys that have no effect."""
    typed = {_with_underscores(word)[2:].partition("=")[0] for word in overrides if word.startswith("--")}
    for key, needed in recipe.unused.items():
        room, _, name = key.partition(".")
        settings = getattr(recipe, room)
        changed = getattr(settings, name) != getattr(type(settings)(), name)
        switched = typed & {f"{room}.epochs", f"{room}.teacher"}
        if key in typed or (changed and not switched):
            raise ValueError(f"{key} has no effect without {needed}: set that too, or leave {key} out")
        if changed:
            settings = dataclasses.replace(settings, **{name: getattr(type(settings)(), name)})
            recipe = dataclasses.replace(recipe, **{room: settings})
    return recipe


def _spelled_out(overrides: Sequence[str], network: type[nn.Module]) -> list[str]:
    """Write boolean keys without a value, such as `--compile`, as `--compile true`, and keys with underscores."""
    flags, words = _flags(Recipe) | {f"--model.{key}" for key in flags_of(network)}, []
    for word, following in itertools.pairwise([*map(_with_underscores, overrides), "--"]):
        words += [word, "true"] if word in flags and following.startswith("--") else [word]
    return words


def _laid_over(content: dict[Any, Any], words: list[str]) -> list[str]:
    """Lay the twin's optimizer and schedule over the recipe's, and return the other words.

    They are optional, and jsonargparse does not change optional values that are there.

    >>> content = {"pretraining": {"optimizer": {"name": "muon", "lr": 0.1}}}
    >>> _laid_over(content, ["--epochs", "3", "--pretraining.optimizer.lr", "0.2"]), content
    (['--epochs', '3'], {'pretraining': {'optimizer': {'name': 'muon', 'lr': 0.2}}})
    """
    twin, rest = content.get("pretraining"), iter(words)
    if not isinstance(twin, dict):
        return words
    others: list[str] = []
    for word in rest:
        key, equals, value = word.partition("=")
        part, _, setting = key.removeprefix("--pretraining.").partition(".")
        if not key.startswith("--pretraining.") or part not in _OF_THE_TWIN or not isinstance(twin.get(part), dict):
            others.append(word)
            continue
        given = value if equals else next(rest, None)
        if given is None:  # the parser says that a value is missing
            return [*others, word]
        twin[part] = {**twin[part], setting: yaml.safe_load(given)} if setting else yaml.safe_load(given)
    return others


def _with_underscores(word: str) -> str:
    """Spell a key as Python does: none has a hyphen."""
    key, equals, value = word.partition("=")
    return f"--{key[2:].replace('-', '_')}{equals}{value}" if word.startswith("--") else word


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


def free_text(kind: type = Recipe, at: tuple[str, ...] = ()) -> set[tuple[str, ...]]:
    """Return the keys whose values are text or paths, never classes."""
    found = set()
    for name, hint in typing.get_type_hints(kind).items():
        if hint in (str, Path, Path | None):
            found.add((*at, name))
        elif isinstance(hint, type) and dataclasses.is_dataclass(hint):
            found |= free_text(hint, (*at, name))
    return found


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
        network, settings, words = _network(content.pop("model", None), overrides or ())
        words = _laid_over(content, _spelled_out(words, network))
        parser = _parser(network)
        checked = yaml.safe_dump(content | {"model": settings})  # not `text`, which jsonargparse could read otherwise
        base = parser.parse_string(checked)
        values: dict[str, Any] = vars(parser.instantiate(parser.parse_args(words, base)))
        values["model"] = Model(network, **vars(values["model"]))
        recipe = Recipe(**values)
        return recipe if overrides is None else _without_unused(recipe, overrides)
    except (ArgumentError, ValueError, TypeError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())
        for key, kind in CHOICES.items():
            if f'"{key}": ' in reason and "path" in reason:
                offered = [choice for choice in kind.__subclasses__() if choice.__module__ != "lehr.training.untrusted"]
                known = ", ".join(sorted(choice.__name__ for choice in offered))
                reason += f"; choose {known}, or give the import path of your own class"
        raise RecipeError(f"recipe {name}: {reason}") from error


def _network(content: Any, words: Sequence[str]) -> tuple[type[nn.Module], dict[str, Any], list[str]]:
    """Return the class of the network, its settings in the recipe, and the words without `--model CLASS`.

    `--model CLASS` replaces the recipe's class and its settings; between two of lehr's networks the settings that both
    have are kept.
    """
    if isinstance(content, str):
        content = {"class_path": content}
    if not isinstance(content, dict) or not isinstance(content.get("class_path"), str):
        raise ValueError(
            f"model must have a class_path and init_args, such as class_path: lehr.models.VGG, got {content}"
        )
    path, settings = content["class_path"], content.get("init_args") or {}
    if content.keys() - {"class_path", "init_args"} or not isinstance(settings, dict):
        raise ValueError(f"model takes the keys class_path and init_args, a mapping of settings, got {content}")
    typed = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    typed.add_argument("--model")
    chosen, rest = typed.parse_known_args(list(words))
    network = network_class(chosen.model or path)
    if chosen.model and chosen.model != path:
        own = network in NETWORKS.values() and path.startswith("lehr.")
        settings = {key: value for key, value in settings.items() if own and key in settings_of(network)}
    return network, settings, rest


@functools.lru_cache(maxsize=8)  # a third of the time a recipe takes; `lehr recipes` reads a hundred
def _parser(network: type[nn.Module]) -> ArgumentParser:
    """Return a parser of the keys of a recipe, among them the settings of its network."""
    parser = ArgumentParser(exit_on_error=False, allow_abbrev=False)
    _add_keys(parser, network)
    return parser


def _add_keys(parser: ArgumentParser, network: type[nn.Module]) -> None:
    settings: dict[str, Any] = {"skip": set(FROM_DATA), "instantiate": False, "fail_untyped": False}
    parser.add_class_arguments(network, "model", as_positional=False, **settings)
    parser.add_class_arguments(Recipe, as_positional=False, skip={"model"})


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
