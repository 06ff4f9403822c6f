"""The command line: a word, and the function behind it.

    lehr demo | train RECIPE | evaluate RUN | recipes | data NAME | summary RUN | report RUN | compare RUN...

Each function's signature is its command line (jsonargparse); a wrong value is one sentence on standard error and exit
code 2, a failure while working is one sentence and exit code 1.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, get_type_hints

from jsonargparse import ArgumentError, ArgumentParser


class UsageError(ValueError):
    """Words on the command line that make no command."""


def train(arguments: Sequence[str]) -> None:
    """Train a recipe: lehr train RECIPE [--out RUN] [--from RUN] [--key value ...], or lehr train --resume RUN."""
    from lehr.report.terminal import print_results
    from lehr.training import run
    from lehr.training.recipes import named, option

    resumed, rest = option(arguments, "--resume")
    if resumed is not None:
        if rest:
            raise UsageError(f"--resume goes on with the run's own recipe and takes no other argument, got {rest[0]}")
        print_results(Path(resumed), run.resume(Path(resumed)))
        return
    if not rest or rest[0].startswith("-"):
        raise UsageError("which recipe? `lehr recipes` lists them; or a .yaml file")
    out, rest = option(rest, "--out")
    start, rest = option(rest, "--from")
    recipe = named(rest[0], [*rest[1:], *(["--start", str(Path(start).resolve())] if start else [])])
    path = Path(out) if out else run.new_folder(rest[0], recipe)
    print_results(path, run.train(recipe, path))


def evaluate(run: Path) -> None:
    """Accuracy of a run's network on validation and test data, without noise."""
    from lehr.report.terminal import print_results
    from lehr.training.run import evaluate

    print_results(run, evaluate(run))


def recipes() -> None:
    """The recipes that come with lehr: data, network, method, epochs, and what they gave."""
    from lehr.report.terminal import print_recipes
    from lehr.training.recipes import named, names

    print_recipes({name: named(name) for name in names()})


def data(name: str, root: Path | None = None) -> None:
    """Fetch a data set, check it, and say where it is."""
    from lehr.data import fetch, folder, load

    fetch(name, root)
    splits = load(name, root)
    place = "scikit-learn" if name == "digits" else str(root or folder())
    sizes = ", ".join(f"{len(split)} {kind}" for kind, split in zip(splits._fields, splits, strict=True))
    print(f"{name} is complete in {place}: {sizes} images of {'x'.join(map(str, splits.train.shape))}")


def summary(run: str) -> None:
    """Each layer of a run's (or a recipe's) network: shape, MACs, bits of weights and activations, memory."""
    from lehr.summary import summarize
    from lehr.training.run import network_of

    model, images = network_of(run)
    print(summarize(model, images))


def report(run: Path) -> None:
    """Write RUN/report.html: the run, finished or not, as one page."""
    from lehr.report.page import write_report

    print(write_report(run))


def compare(runs: list[Path], out: Path | None = None) -> None:
    """Several runs in one table and one page; compare.html, .csv and .md go beside the first run, or to --out."""
    from lehr.report.compare import compare, write_comparison
    from lehr.report.terminal import print_comparison

    comparison = compare(runs)
    print_comparison(comparison)
    print(*write_comparison(comparison, runs[0].resolve().parent if out is None else out), sep="\n")


def demo(out: Path = Path("runs/demo")) -> None:
    """From nothing to an evaluated ternary network: the digits recipe, with its full-precision twin and a report."""
    from lehr.report.page import write_report
    from lehr.report.terminal import print_demo
    from lehr.training.run import demo

    print_demo(out, demo(out))
    print(f"the ternary run as a page: {write_report(out / 'digits-ana')}")


COMMANDS: dict[str, Callable[..., None]] = {
    "demo": demo,
    "train": train,
    "evaluate": evaluate,
    "recipes": recipes,
    "data": data,
    "summary": summary,
    "report": report,
    "compare": compare,
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and give its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    if not words or words[0] in ("-h", "--help"):
        print(_usage())
        return 0
    if words[0] == "--version":
        import lehr

        print(lehr.__version__)
        return 0
    word, *arguments = words
    if word not in COMMANDS:
        return _fail(2, f"there is no command {word!r}; there are {', '.join(COMMANDS)}")
    try:
        if word == "train" and not {"-h", "--help"} & set(arguments):
            train(arguments)
        else:
            _call(COMMANDS[word], word, arguments)
    except SystemExit as stop:  # --help
        return int(stop.code or 0)
    except KeyboardInterrupt:
        return _fail(130, "interrupted")
    except (ArgumentError, ValueError, TypeError) as error:
        return _fail(2, f"{word}: {' '.join(str(error).split())}")
    except (OSError, RuntimeError) as error:
        return _fail(1, f"{word}: {error}")
    return 0


def _call(function: Callable[..., None], word: str, arguments: Sequence[str]) -> None:
    parser = ArgumentParser(prog=f"lehr {word}", description=function.__doc__, exit_on_error=False)
    several: set[str | int] = {
        name for name, kind in get_type_hints(function).items() if kind == list[Path]
    }  # words, not one list
    parser.add_function_arguments(function, as_positional=True, fail_untyped=False, skip=several)
    for name in several:
        parser.add_argument(str(name), nargs="+", type=Path)
    values: dict[str, Any] = vars(parser.parse_args(list(arguments)))
    function(**values)


def _usage() -> str:
    lines = [f"  {word:10} {(function.__doc__ or '').splitlines()[0]}" for word, function in COMMANDS.items()]
    return "\n".join(["usage: lehr COMMAND ...", "", *lines, "", "lehr COMMAND --help tells its arguments."])


def _fail(code: int, message: str) -> int:
    print(f"lehr {message}" if code == 2 else f"lehr: {message}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
