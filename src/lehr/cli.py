"""The command line: a word, and the function behind it.

    lehr demo | train RECIPE | evaluate RUN | recipes | data NAME | summary RUN | report RUN |
         compare RUN... | compare --methods NAME... --dataset BASE | export RUN --to packed|onnx|qonnx|c |
         predict FILE IMAGE... | bench FILE | zoo | approximate FORMULA | figures

Each function's signature is its command line (jsonargparse). A wrong word is one sentence on standard error and exit
code 2, a failure while working is one sentence and exit code 1, a signal is 128 and its number.
"""

from __future__ import annotations

import argparse
import contextlib
import inspect
import os
import re
import sys
import typing
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TextIO

from lehr.printable import printable

if TYPE_CHECKING:
    from jsonargparse import ArgumentParser

    from lehr.training.recipe import Recipe


class UsageError(ValueError):
    """Words on the command line that make no command."""


def train(arguments: Sequence[str]) -> None:
    """Train a recipe: lehr train RECIPE [--out RUN] [--from RUN] [--key value ...], or lehr train --resume RUN."""
    from lehr.training.recipes import named
    from lehr.training.run import unused_path

    words = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    words.add_argument("--resume", type=Path)
    words.add_argument("--out", type=Path)
    words.add_argument("--from", dest="start")
    name = arguments[0] if arguments and not arguments[0].startswith("-") else None
    options, keys = words.parse_known_args(arguments[1:] if name else list(arguments))
    if options.resume is not None:
        if name or keys or options.out or options.start:
            raise UsageError("--resume RUN goes on with the run's own recipe and takes no other argument")
        _follow(options.resume, None)
        return
    if name is None:
        raise UsageError("which recipe? `lehr recipes` lists them; a .yaml file is one too; --resume RUN continues")
    recipe = named(name, keys if options.start is None else [*keys, "--start", options.start])
    _follow(options.out or unused_path(Path("runs") / f"{Path(name).stem}-seed{recipe.seed}"), recipe)


def _follow(path: Path, recipe: Recipe | None) -> None:
    """Train the recipe into `path`, or resume what is there."""
    from lehr.report.terminal import print_results
    from lehr.training import session  # Lightning, which takes seconds: a wrong recipe was told before

    results = session.resume(path) if recipe is None else session.train(recipe, path)
    if results is not None:
        print_results(path, results)


def evaluate(run: Path) -> None:
    """Accuracy of a run's network on validation and test data, without noise."""
    from lehr.report.terminal import print_results
    from lehr.training.run import evaluate

    print_results(run, evaluate(run))


def recipes() -> None:
    """The recipes that come with lehr: data, network, method, epochs, and what they gave; and the methods."""
    from lehr.report.terminal import print_methods, print_recipes
    from lehr.training.recipes import bases, methods, named, names

    print_recipes({name: named(name) for name in names()})
    print_methods({name: named(f"digits-{name}") for name in methods()}, bases())


def data(name: str, *, root: Path | None = None) -> None:
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

    print(printable(write_report(run)))


def compare(arguments: Sequence[str]) -> None:
    """Runs beside each other: lehr compare RUN... [--out FOLDER], or --methods NAME... to train what is missing first.

    lehr compare --methods all|NAME... --dataset BASE [--seeds 3] [--out FOLDER] [--key value ...] trains the recipe
    BASE-METHOD of each method with each seed, one run after another, into FOLDER (runs/compare-BASE): finished runs are
    kept and interrupted ones go on. The keys are those of `lehr train` and hold for all methods. The table is printed,
    and written as compare.html, .csv and .md into FOLDER, or beside the first RUN.
    """
    words = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    words.add_argument("--out", type=Path)
    if "--methods" not in arguments:
        words.add_argument("runs", type=Path, nargs="*")
        options, unknown = words.parse_known_args(list(arguments))
        if unknown:
            raise UsageError(f"unrecognized arguments: {' '.join(unknown)}")
        if not options.runs:
            raise UsageError("which runs? name their folders, or --methods all --dataset digits to train them")
        runs = _only_runs(options.runs)
        _tell_comparison(runs, options.out or runs[0].resolve().parent)
        return
    words.add_argument("--methods", nargs="+", required=True)
    words.add_argument("--dataset")
    words.add_argument("--seeds", type=int, default=3)
    options, keys = words.parse_known_args(list(arguments))
    if options.dataset is None:
        raise UsageError("on which data? --dataset digits, fashion-mnist or cifar10-quarter")
    _compare_methods(options.methods, options.dataset, options.seeds, options.out, keys)


def _only_runs(paths: Sequence[Path]) -> Sequence[Path]:
    """Without what `runs/*` brings along: earlier comparisons, folders of other things. If nothing is left, all."""
    from lehr.training.folder import RunFolder

    others = [path for path in paths if path.exists() and not RunFolder(path).recipe.exists()]
    runs = [path for path in paths if path not in others]
    if runs and others:
        print(f"lehr compare: left out, being no runs: {', '.join(map(printable, others))}", file=sys.stderr)
    return runs or paths


def _compare_methods(methods: Sequence[str], base: str, seeds: int, out: Path | None, keys: Sequence[str]) -> None:
    """Train what is missing, tell how far it is, compare."""
    from lehr.report.numbers import duration, percent
    from lehr.training.series import Planned, plan, train_all

    folder = Path("runs") / f"compare-{base}" if out is None else out
    planned = plan(methods, base, seeds=seeds, folder=folder, overrides=keys)
    missing = [run for run in planned if not run.finished]
    told = len(planned) - len(missing)
    if told:
        print(f"{told} of {len(planned)} runs are finished already", file=sys.stderr)

    def tell(run: Planned) -> None:
        begins = "goes on" if run.begun else "begins"
        print(f"run {told + 1} of {len(planned)}: {printable(run.path.name)} {begins}", file=sys.stderr, flush=True)

    failed, seconds = 0, 0.0
    for number, done in enumerate(train_all(missing, tell), 1):
        told, seconds = told + 1, seconds + done.seconds
        left = duration(seconds / number * (len(missing) - number))
        result = done.failure or percent((done.results or {}).get("val/accuracy"))
        failed += done.failure is not None
        print(f"  {result} in {duration(done.seconds)}; about {left} left", file=sys.stderr, flush=True)
    _tell_comparison([run.path for run in planned if run.begun], folder)
    if failed:
        raise SystemExit(_fail(1, f"lehr compare: {failed} runs failed: see above"))


def _tell_comparison(runs: Sequence[Path], folder: Path) -> None:
    from lehr.report.compare import compare
    from lehr.report.compare_page import write_comparison
    from lehr.report.terminal import print_comparison

    comparison = compare(runs)
    print_comparison(comparison)
    print(*map(printable, write_comparison(comparison, folder)), sep="\n")


def export(
    source: str,
    *,
    to: Literal["packed", "onnx", "qonnx", "c"],
    out: Path | None = None,
    verify: bool = True,
) -> None:
    """Turn a run's network into integers: a packed .lehr file, ONNX, QONNX, or a folder of C; and compare them all.

    Args:
        source: a run folder, or a .lehr file, or the name of a network of the zoo
        to: what to write
        out: where to write it, instead of into the run folder (a run) or the present one
        verify: compare every backend on all test images of a run, or on random ones; false needs no data set
    """
    from lehr.export import export

    failed = False
    for line, passed in export(source, to, out, verify=verify):
        print(printable(line))
        failed |= not passed
    if failed:
        raise SystemExit(_fail(1, "lehr export: the exported network differs from the trained one: see above"))


def predict(file: str, images: list[Path], *, resize: bool = False) -> None:
    """Classify PNG or JPEG files, or folders of them, with a packed network.

    Args:
        file: a .lehr file, or the name of a network of the zoo
        images: image files or folders
        resize: of images of another size take the middle and scale it, instead of refusing them
    """
    from lehr.deploy.images import ImageError
    from lehr.deploy.predict import predict
    from lehr.table import Table
    from lehr.zoo import file_of

    rows, failed = [], False
    for path, answer in predict(file_of(file), images, resize=resize):
        if isinstance(answer, ImageError):
            print(f"lehr predict: {printable(answer)}", file=sys.stderr)
            failed = True
        else:
            rows.append((str(path), *answer))
    if rows:
        print(Table(("image", "class", "score", "next", "its score"), rows))
    if failed:
        raise SystemExit(1)


def bench(file: str, *, repetitions: int = 100) -> None:
    """Time a packed network on this machine: the engine beside onnxruntime with float32 and with 8-bit weights.

    Args:
        file: a .lehr file, or the name of a network of the zoo
        repetitions: how often each is run; the least time counts
    """
    from lehr.deploy.bench import bench
    from lehr.deploy.cpu import compile
    from lehr.deploy.pack import load
    from lehr.zoo import file_of

    net = load(file_of(file))
    timings = bench(net, repetitions=repetitions)
    print(compile(net).describe(), timings, sep="\n\n")


def zoo() -> None:
    """The trained networks that come with lehr; predict, export and bench take their names."""
    from lehr.zoo import listing

    print(listing())


def approximate(
    formula: str,
    *,
    epsilon: float,
    side: float = 1.0,
    lipschitz: float | None = None,
    tight: bool = False,
    out: Path | None = None,
) -> None:
    """Theorem 1 on a formula such as "sin(3*x0)*x1": quantized networks within epsilon of it, and their true error.

    Args:
        formula: arithmetic and named functions of x0, x1, ...
        epsilon: how close the network must come
        side: the domain is [0, side] in each variable
        lipschitz: a Lipschitz constant you know, instead of the one interval arithmetic certifies
        tight: take the fewest cubes whose bound is epsilon, a quarter of the proof's on each axis
        out: draw function, network and error there, as OUT.svg, OUT.pdf and OUT.png
    """
    from lehr.report.formula import approximate_formula

    print(approximate_formula(formula, epsilon=epsilon, side=side, lipschitz=lipschitz, tight=tight, out=out))


def figures(
    *,
    out: Path,
    runs: list[Path] = [],  # noqa: B006 - never changed
    only: list[str] = [],  # noqa: B006
    formats: list[str] = ["svg", "pdf", "png"],  # noqa: B006
) -> None:
    """Draw the idea and the paper's figures; with runs, their validation errors and annealing windows (figure 1).

    Args:
        out: the folder to draw into
        runs: run folders whose validation error to draw, a panel for each schedule
        only: names of the figures to draw, instead of all
        formats: of svg, pdf and png, those to write
    """
    from lehr.report.figures import draw_all

    print(*map(printable, draw_all(out, runs, only, formats)), sep="\n")


def demo(*, out: Path = Path("runs/demo")) -> None:
    """From nothing to a ternary network that runs as integers: train digits, compare, export, verify, time."""
    from lehr.deploy.bench import bench
    from lehr.deploy.pack import load
    from lehr.export import export
    from lehr.report.page import write_report
    from lehr.report.terminal import print_demo
    from lehr.training.recipes import named
    from lehr.training.run import unused_path
    from lehr.training.session import train

    out = unused_path(out)
    print_demo(out, {name: train(named(name), out / name) or {} for name in ("digits-fp", "digits-ana")})
    run = out / "digits-ana"
    for to in ("packed", "c"):
        for line, _ in export(run, to, verify=to == "packed"):
            print(line)
    print(bench(load(run / "model.lehr")))
    print(f"the ternary run as a page: {write_report(run)}")


COMMANDS: dict[str, Callable[..., None]] = {
    "demo": demo,
    "train": train,
    "evaluate": evaluate,
    "recipes": recipes,
    "data": data,
    "summary": summary,
    "report": report,
    "compare": compare,
    "export": export,
    "predict": predict,
    "bench": bench,
    "zoo": zoo,
    "approximate": approximate,
    "figures": figures,
}


TRUST = "--trust"  # import the classes a recipe names though they are not lehr's
TRUSTING = ("train", "evaluate", "summary", "compare", "export")


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
        return _fail(2, f"lehr: there is no command {word!r}; there are {', '.join(COMMANDS)}")
    with warnings.catch_warnings():
        warnings.showwarning = _show_warning
        try:
            with _trusting(word, arguments):
                _call(word, [_path_like(argument) for argument in arguments if argument != TRUST])
            sys.stdout.flush()
        except BrokenPipeError:  # whoever read it, `head` perhaps, has enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # for what is still to be flushed at the end
            return 141  # as after SIGPIPE
        except SystemExit as stop:  # after --help
            return int(stop.code or 0)
        except KeyboardInterrupt:
            return _fail(130, f"lehr {word}: interrupted")
        except (argparse.ArgumentError, ValueError) as error:
            return _fail(2, f"lehr {word}: {' '.join(str(error).split())}")
        except BaseException as error:
            from lehr.data import DataError
            from lehr.deploy import CompilerError
            from lehr.training.errors import Diverged, Interrupted, RunError

            if isinstance(error, Interrupted):
                return _fail(128 + error.signum, f"lehr {word}: {error}")
            if isinstance(error, DataError | RunError | Diverged | CompilerError | OSError | ImportError | MemoryError):
                return _fail(1, f"lehr {word}: {error}")
            raise  # a defect of lehr, whose traceback is wanted
    return 0


def _path_like(argument: str) -> str:
    """A file or folder whose name begins with a dash, written so that it is not taken for an option."""
    dashed = argument.startswith("-") and not argument.startswith("--") and argument != "-h"
    return f"./{argument}" if dashed and os.path.lexists(argument) else argument


def _trusting(word: str, arguments: Sequence[str]) -> contextlib.AbstractContextManager[None]:
    """With --trust, classes that a run's recipe names are imported though they are not lehr's."""
    if TRUST not in arguments:
        return contextlib.nullcontext()
    if word not in TRUSTING:
        raise UsageError(f"{TRUST} goes with {', '.join(TRUSTING)}: {word} imports no classes of a recipe")
    from lehr.training.trust import trusting

    return trusting(True)


def _call(word: str, arguments: Sequence[str]) -> None:
    function = COMMANDS[word]
    if function in (train, compare):  # whose words are those of a recipe too
        if not {"-h", "--help"} & set(arguments):
            function(arguments)
        elif function is train:
            from lehr.training.recipes import keys

            print(f"{train.__doc__}\n\n{keys()}")
        else:
            print(f"usage: lehr compare RUN... | --methods NAME... --dataset BASE\n\n{inspect.getdoc(compare)}")
        return
    values: dict[str, Any] = vars(_parser(word, function).parse_args(list(arguments)))
    function(**values)


def _parser(word: str, function: Callable[..., None]) -> ArgumentParser:
    """The signature as a command line: plain arguments by position, a list takes one or more, keywords are options."""
    from jsonargparse import ActionYesNo, ArgumentParser

    description, _, arguments = (function.__doc__ or "").partition("Args:")
    told = dict(re.findall(r"^\s+(\w+): (.+)$", arguments, flags=re.MULTILINE))
    parser = ArgumentParser(prog=f"lehr {word}", description=description.strip(), exit_on_error=False)
    types = typing.get_type_hints(function)
    for name, parameter in inspect.signature(function).parameters.items():
        kind, text = types[name], told.get(name)
        if parameter.kind is parameter.KEYWORD_ONLY:
            needed = parameter.default is parameter.empty
            default = None if needed else parameter.default
            if kind is bool:  # --flag, or --flag true, or --flag false
                parser.add_argument(f"--{name}", action=ActionYesNo, nargs="?", default=default, help=text)
                continue
            many: dict[str, Any] = {"nargs": "+"} if typing.get_origin(kind) is list else {}
            kind = typing.get_args(kind)[0] if many else kind
            parser.add_argument(f"--{name}", type=kind, required=needed, default=default, help=text, **many)
        elif typing.get_origin(kind) is list:
            parser.add_argument(name, type=typing.get_args(kind)[0], nargs="+", help=text)
        else:
            parser.add_argument(name, type=kind, help=text)
    return parser


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """A warning of lehr is a sentence for the user, any other is shown as Python does."""
    told = category.__module__.startswith("lehr.")
    text = (
        f"lehr: {printable(message)}\n" if told else warnings.formatwarning(message, category, filename, lineno, line)
    )
    print(text, end="", file=file or sys.stderr)


def _usage() -> str:
    lines = [f"  {word:10} {(function.__doc__ or '').splitlines()[0]}" for word, function in COMMANDS.items()]
    return "\n".join(["usage: lehr COMMAND ...", "", *lines, "", "lehr COMMAND --help tells its arguments."])


def _fail(code: int, message: str) -> int:
    print(printable(message, keep="\n"), file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
