"""The keys of a recipe: a parser made of the types of `Recipe`, and what is typed on the command line.

jsonargparse makes the parser; its errors name an unknown key or a wrong value. The arguments of the network's
constructor are keys too.

>>> parser_of_keys(NETWORKS["mlp"]).parse_args(["--data.name", "digits", "--epochs", "3"]).epochs
3
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import itertools
import typing
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from jsonargparse import ArgumentParser
from torch import nn

from lehr.algorithms import Algorithm
from lehr.annealing import Law, Schedule
from lehr.training.model import FROM_DATA, NETWORKS, flags_of, network_class, settings_of
from lehr.training.recipe import Recipe

_OF_THE_TWIN = ("optimizer", "schedule")  # keys of pretraining
CHOICES: dict[str, type] = {
    "algorithm": Algorithm,
    "annealing.schedule": Schedule,
    "annealing.law": Law,
    "annealing.backward_law": Law,
}


def split_network(content: Any, words: Sequence[str]) -> tuple[type[nn.Module], dict[str, Any], list[str]]:
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
def parser_of_keys(network: type[nn.Module]) -> ArgumentParser:
    """Return a parser of the keys of a recipe, among them the settings of its network."""
    parser = ArgumentParser(exit_on_error=False, allow_abbrev=False)
    _add_keys(parser, network)
    return parser


def _add_keys(parser: ArgumentParser, network: type[nn.Module]) -> None:
    settings: dict[str, Any] = {"skip": set(FROM_DATA), "instantiate": False, "fail_untyped": False}
    parser.add_class_arguments(network, "model", as_positional=False, **settings)
    parser.add_class_arguments(Recipe, as_positional=False, skip={"model"})


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


def free_text(kind: type = Recipe, at: tuple[str, ...] = ()) -> set[tuple[str, ...]]:
    """Return the keys whose values are text or paths, never classes."""
    found = set()
    for name, hint in typing.get_type_hints(kind).items():
        if hint in (str, Path, Path | None):
            found.add((*at, name))
        elif isinstance(hint, type) and dataclasses.is_dataclass(hint):
            found |= free_text(hint, (*at, name))
    return found


def _flags(kind: type, prefix: str = "--") -> set[str]:
    """Return the boolean keys."""
    hints = typing.get_type_hints(kind)
    flags = {f"{prefix}{name}" for name, hint in hints.items() if hint is bool}
    parts = {name: hint for name, hint in hints.items() if dataclasses.is_dataclass(hint)}
    return flags.union(*(_flags(hint, f"{prefix}{name}.") for name, hint in parts.items() if isinstance(hint, type)))


def without_unused(recipe: Recipe, overrides: Sequence[str]) -> Recipe:
    """Reset the keys that the overrides made useless; raise ValueError for other keys that have no effect."""
    typed = {_with_underscores(word)[2:].partition("=")[0] for word in overrides if word.startswith("--")}
    for key, needed in recipe.unused.items():
        group, _, name = key.partition(".")
        settings = getattr(recipe, group)
        changed = getattr(settings, name) != getattr(type(settings)(), name)
        switched = typed & {f"{group}.epochs", f"{group}.teacher"}
        if key in typed or (changed and not switched):
            raise ValueError(f"{key} has no effect without {needed}: set that too, or leave {key} out")
        if changed:
            settings = dataclasses.replace(settings, **{name: getattr(type(settings)(), name)})
            recipe = dataclasses.replace(recipe, **{group: settings})
    return recipe


def spelled_out(overrides: Sequence[str], network: type[nn.Module]) -> list[str]:
    """Write boolean keys without a value, such as `--compile`, as `--compile true`, and keys with underscores."""
    flags, words = _flags(Recipe) | {f"--model.{key}" for key in flags_of(network)}, []
    for word, following in itertools.pairwise([*map(_with_underscores, overrides), "--"]):
        words += [word, "true"] if word in flags and following.startswith("--") else [word]
    return words


def apply_twin_keys_(content: dict[Any, Any], words: list[str]) -> list[str]:
    """Set `--pretraining.optimizer.*` and `--pretraining.schedule.*` in `content`, in place; return the other words.

    Both are optional, and jsonargparse does not change optional values that are there.

    >>> content = {"pretraining": {"optimizer": {"name": "muon", "lr": 0.1}}}
    >>> apply_twin_keys_(content, ["--epochs", "3", "--pretraining.optimizer.lr", "0.2"]), content
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
