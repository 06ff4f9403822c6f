"""The commands that take the keys of a recipe: `lehr train` and `lehr compare`.

Which keys there are depends on the recipe's network, so these two read their own words first and hand the rest to
`lehr.training.recipes`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from lehr.printable import printable

if TYPE_CHECKING:
    from lehr.training.recipe import Recipe
    from lehr.training.series import Planned


class UsageError(ValueError):
    """The words on the command line make no command."""


class CommandFailed(Exception):
    """A command did its work and found a failure; the message is all that the user needs to know."""


def train_words(*, positional: bool = True) -> argparse.ArgumentParser:
    """Return the parser of the words of `lehr train` that are not keys of the recipe.

    Args:
        positional: whether RECIPE is among them; to a parser that does not know the keys, their values look the same.
    """
    words = _words("lehr train RECIPE [--out RUN] [--from RUN] [--key value ...] | --resume RUN", train)
    if positional:
        words.add_argument("recipe", metavar="RECIPE", help="a recipe by name (`lehr recipes`), or a .yaml file")
    words.add_argument("--out", type=Path, metavar="RUN", help="the run folder to make; runs/RECIPE-seedN unless given")
    words.add_argument("--from", dest="start", metavar="RUN", help="a run whose weights to start from")
    words.add_argument("--resume", type=Path, metavar="RUN", help="continue an interrupted run with its own recipe")
    return words


def train(arguments: Sequence[str]) -> None:
    """Train a recipe, or resume a run."""
    from lehr.training.recipes import named
    from lehr.training.run import unused_path

    name = arguments[0] if arguments and not arguments[0].startswith("-") else None
    options, keys = train_words(positional=False).parse_known_args(list(arguments[1:] if name else arguments))
    if options.resume is not None:
        if name or keys or options.out or options.start:
            raise UsageError("--resume RUN continues with the run's own recipe and takes no other argument")
        _train(options.resume, None)
        return
    if name is None:
        raise UsageError("which recipe? `lehr recipes` lists them; a .yaml file is one too; --resume RUN continues")
    recipe = named(name, keys if options.start is None else [*keys, "--start", options.start])
    _train(options.out or unused_path(Path("runs") / f"{Path(name).stem}-seed{recipe.seed}"), recipe)


def _train(path: Path, recipe: Recipe | None) -> None:
    """Train the recipe into the folder `path`; without a recipe, resume the run that is there."""
    from lehr.report.terminal import print_results
    from lehr.training import session  # imports Lightning, which takes seconds: a wrong recipe fails before that

    results = session.resume(path) if recipe is None else session.train(recipe, path)
    if results is not None:
        print_results(path, results)


def compare_words(*, positional: bool = True) -> argparse.ArgumentParser:
    """Return the parser of the words of `lehr compare` that are not keys of the recipes.

    Args:
        positional: whether RUN... are among them; with --methods they are not, and all else is keys and their values.
    """
    words = _words("lehr compare RUN... | --methods NAME... --dataset BASE [--key value ...]", compare)
    if positional:
        words.add_argument("runs", type=Path, nargs="*", metavar="RUN", help="run folders to compare")
    words.add_argument("--methods", nargs="+", metavar="NAME", help="methods to train first (`lehr recipes`), or all")
    words.add_argument("--dataset", metavar="BASE", help="what to train them on, such as digits: recipes BASE-METHOD")
    words.add_argument("--seeds", type=int, default=3, metavar="N", help="how many runs of each method; 3 unless given")
    words.add_argument("--out", type=Path, metavar="FOLDER", help="where to write; beside the first run unless given")
    words.add_argument("--on", metavar="PLACE", help="ray, or ray://HOST:PORT: train many at once, on many machines")
    words.add_argument("--cpus", type=int, metavar="N", help="CPUs of each run on Ray; 1 unless given")
    words.add_argument("--gpus", type=float, metavar="N", help="GPUs of each run on Ray, or a part of one")
    return words


def compare(arguments: Sequence[str]) -> None:
    """Compare runs side by side; with --methods, train what is missing first.

    lehr compare --methods all|NAME... --dataset BASE [--seeds 3] [--out FOLDER] [--key value ...] trains the recipe
    BASE-METHOD of each method with each seed, one run after another, into FOLDER (runs/compare-BASE). Finished runs are
    kept and interrupted ones continue. The keys are those of `lehr train` and hold for all methods. The table is
    printed, and written as compare.html, .csv and .md into FOLDER, or beside the first RUN.

    --on ray trains as many runs at a time as Ray has room for: on the cores of this machine, or on the cluster that
    RAY_ADDRESS or --on ray://HOST:PORT names; FOLDER must be on a file system that its machines share.
    """
    options, keys = compare_words(positional="--methods" not in arguments).parse_known_args(list(arguments))
    if options.methods is None:
        if keys:
            raise UsageError(f"unrecognized arguments: {' '.join(keys)}")
        if not options.runs:
            raise UsageError("which runs? name their folders, or --methods all --dataset digits to train them")
        runs = _only_runs(options.runs)
        _print_comparison(runs, options.out or runs[0].resolve().parent)
        return
    if options.dataset is None:
        raise UsageError("on which data? --dataset digits, fashion-mnist or cifar10-quarter")
    if options.on is None and (options.cpus is not None or options.gpus is not None):
        raise UsageError("--cpus and --gpus are what each run asks Ray for: add --on ray")
    if options.on is not None and options.on != "ray" and not options.on.startswith("ray://"):
        raise UsageError(f"--on is ray, or the address of a cluster such as ray://host:10001, got {options.on!r}")
    _compare_methods(options, keys)


def _words(usage: str, function: object) -> argparse.ArgumentParser:
    from inspect import getdoc

    shown = argparse.RawDescriptionHelpFormatter
    return argparse.ArgumentParser(
        usage=usage,
        description=getdoc(function),
        formatter_class=shown,
        add_help=False,
        allow_abbrev=False,
        exit_on_error=False,
    )


def _only_runs(paths: Sequence[Path]) -> Sequence[Path]:
    """Leave out what is no run, such as earlier comparisons that `runs/*` matches too; if none is a run, keep all."""
    from lehr.training.folder import RunFolder

    others = [path for path in paths if path.exists() and not RunFolder(path).recipe.exists()]
    runs = [path for path in paths if path not in others]
    if runs and others:
        print(f"lehr compare: left out, because they are no runs: {', '.join(map(printable, others))}", file=sys.stderr)
    return runs or paths


def _compare_methods(options: argparse.Namespace, keys: Sequence[str]) -> None:
    """Train what is missing, print the progress, compare."""
    from lehr.training.series import plan

    folder = Path("runs") / f"compare-{options.dataset}" if options.out is None else options.out
    planned = plan(options.methods, options.dataset, seeds=options.seeds, folder=folder, overrides=keys)
    done = sum(run.finished for run in planned)
    if done:
        print(f"{done} of {len(planned)} runs are finished already", file=sys.stderr)
    failed = 0
    if done < len(planned):
        failed = _train_in_turn(planned) if options.on is None else _train_on_ray(planned, options)
    _print_comparison([run.path for run in planned if run.begun], folder)
    if failed:
        raise CommandFailed(f"{failed} runs failed: see above")


def _train_in_turn(planned: Sequence[Planned]) -> int:
    """Train what is missing, one run after another; return how many failed."""
    from lehr.report.numbers import duration, percent
    from lehr.training.series import train_all

    missing = [run for run in planned if not run.finished]
    done = len(planned) - len(missing)

    def announce(run: Planned) -> None:
        begins = "continues" if run.begun else "begins"
        print(f"run {done + 1} of {len(planned)}: {printable(run.path.name)} {begins}", file=sys.stderr, flush=True)

    failed, seconds = 0, 0.0
    for number, run in enumerate(train_all(missing, announce), 1):
        done, seconds = done + 1, seconds + run.seconds
        left = duration(seconds / number * (len(missing) - number))
        result = run.failure or percent((run.results or {}).get("val/accuracy"))
        failed += run.failure is not None
        print(f"  {result} in {duration(run.seconds)}; about {left} left", file=sys.stderr, flush=True)
    return failed


def _train_on_ray(planned: Sequence[Planned], options: argparse.Namespace) -> int:
    """Train what is missing on Ray, with one table of all runs; return how many failed."""
    from lehr.report.numbers import percent
    from lehr.training.cluster import Resources, train_on_ray
    from lehr.training.series_progress import series_progress

    resources = Resources(1 if options.cpus is None else options.cpus, options.gpus)
    failed = 0
    with series_progress() as progress:
        for done in train_on_ray(planned, options.on, resources=resources, show=progress.show):
            result = done.failure or percent((done.results or {}).get("val/accuracy"))
            failed += done.failure is not None
            progress.say(f"{printable(done.run.path.name)}: {printable(result)}")
    return failed


def _print_comparison(runs: Sequence[Path], folder: Path) -> None:
    from lehr.report.compare import compare
    from lehr.report.compare_page import write_comparison
    from lehr.report.terminal import print_comparison

    comparison = compare(runs)
    print_comparison(comparison)
    print(*map(printable, write_comparison(comparison, folder)), sep="\n")
