"""From a command's signature to its parser, by jsonargparse; and all parsers together, for shell completion."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import docstring_parser
from jsonargparse import ActionYesNo, ArgumentParser

from lehr.cli.recipe_commands import compare, compare_words, train, train_words

Command = Callable[..., None]


def parser_of(word: str, function: Command) -> ArgumentParser:
    """Return the parser of a command: types, defaults and help come from its signature and docstring.

    Args:
        word: the command.
        function: what it calls.
    """
    told = docstring_parser.parse(function.__doc__ or "")
    description = "\n\n".join(filter(None, (told.short_description, told.long_description)))
    parser = ArgumentParser(prog=f"lehr {word}", description=description, exit_on_error=False)
    kinds, parameters = typing.get_type_hints(function), inspect.signature(function).parameters
    options: set[str | int] = {
        name for name, parameter in parameters.items() if parameter.kind is parameter.KEYWORD_ONLY
    }
    # jsonargparse reads a list from one word, as "[a, b]", and a flag as "--flag true"; a shell's user writes neither.
    # A positional argument that may be left out it does not know.
    by_hand: set[str | int] = {
        name
        for name, parameter in parameters.items()
        if kinds[name] is bool
        or typing.get_origin(kinds[name]) is list
        or (name not in options and parameter.default is not parameter.empty)
    }
    positional: set[str | int] = {name for name in parameters if name not in options}
    parser.add_function_arguments(function, as_group=False, as_positional=True, skip=options | by_hand)
    parser.add_function_arguments(function, as_group=False, as_positional=False, skip=positional | by_hand)
    for param in told.params:
        name = param.arg_name
        if name not in by_hand:
            continue
        if kinds[name] is bool:
            settings: dict[str, Any] = {"action": ActionYesNo, "nargs": "?", "default": parameters[name].default}
        elif typing.get_origin(kinds[name]) is not list:
            settings = {"type": str, "nargs": "?", "default": parameters[name].default}
        else:
            settings = {"type": typing.get_args(kinds[name])[0], "nargs": "+"}
            settings |= {"default": parameters[name].default} if name in options else {}
        parser.add_argument(f"--{name}" if name in options else name, help=param.description, **settings)
    return parser


def completion_script(commands: Mapping[str, Command], shell: str) -> str:
    """Return a script for a shell that completes words, options, recipes, methods and file names.

    Args:
        commands: the functions by their words.
        shell: bash, zsh or tcsh.
    """
    import shtab

    from lehr.data import names as data_sets
    from lehr.training.recipe_keys import help_parser
    from lehr.training.recipes import bases, methods, names

    made = [f"{base}-{method}" for base in bases() for method in methods()]
    choices = {"recipe": sorted({*names(), *made}), "methods": ["all", *methods()], "dataset": bases()}
    whole = ArgumentParser(prog="lehr", description="Anneal float networks into quantized ones.")
    words = whole.add_subcommands(required=False)
    for word, function in commands.items():
        if function in (train, compare):
            parser = help_parser(train_words() if function is train else compare_words())
        else:
            parser = parser_of(word, function)
        for action in parser._actions:  # argparse has no other way to get at them
            action.choices = choices.get(action.dest, action.choices)
            if word == "data" and action.dest == "name":
                action.choices = data_sets()
            if action.type is Path or action.dest in ("file", "source", "run", "start"):
                action.complete = shtab.FILE  # pyright: ignore[reportAttributeAccessIssue]
        words.add_subcommand(word, parser, help=(function.__doc__ or "").splitlines()[0])
    return whole.get_completion_script(f"shtab-{shell}")
