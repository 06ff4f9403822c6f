"""The commands, each a function whose signature is its command line.

Arguments before `*` are positional; the others are options. A list takes one or more words. The text of `Args:` is the
help. Modules are imported inside the functions, so that `lehr --help` does not wait for torch.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from lehr.cli.recipe_commands import CommandFailed, compare, train
from lehr.printable import printable


def evaluate(run: Path, *, mirror: bool = False) -> None:
    """Measure the accuracy of a run's network on validation and test images, without noise.

    Args:
        run: the run folder.
        mirror: also average the scores of each image and its mirror image, in two passes.
    """
    from lehr.report.terminal import print_results
    from lehr.training.run import evaluate

    print_results(run, evaluate(run, mirror=mirror))


def recipes() -> None:
    """List the recipes that come with lehr, and the methods."""
    from lehr.report.terminal import print_methods, print_recipes
    from lehr.training.recipes import bases, methods, named, names

    print_recipes({name: named(name) for name in names()})
    print_methods({name: named(f"digits-{name}") for name in methods()}, bases())


def data(name: str | None = None, *, root: Path | None = None) -> None:
    """Fetch a data set, check it, and print where it is; without a name, list the data sets.

    Args:
        name: the data set, such as cifar10.
        root: the folder to fetch it into; LEHR_DATA unless given.
    """
    import torch

    from lehr.data import fetch, folder, load

    if name is None:
        from lehr.data.catalogue import states
        from lehr.table import Table, show

        show(Table(("data set", f"in {root or folder()}"), [*states(root).items()]))
        return
    fetch(name, root)
    splits = load(name, root)
    place = "scikit-learn" if name == "digits" else str(root or folder())
    sizes = ", ".join(f"{len(split)} {kind}" for kind, split in zip(splits._fields, splits, strict=True))
    what = "images" if splits.train.images.dtype == torch.uint8 else "windows"
    print(f"{name} is complete in {place}: {sizes} {what} of {'x'.join(map(str, splits.train.shape))}")


def summary(run: str) -> None:
    """Print the layers of a network: shape, MACs, bits of weights and activations, memory.

    Args:
        run: a run folder, or the name of a recipe.
    """
    from lehr.summary import summarize
    from lehr.table import show
    from lehr.training.run import network_of

    model, images = network_of(run)
    summary = summarize(model, images)
    show(summary.table())
    print(summary.remark)


def report(run: Path) -> None:
    """Write RUN/report.html: the run, finished or not, as one page.

    Args:
        run: the run folder.
    """
    from lehr.report.page import write_report

    print(printable(write_report(run)))


def export(
    source: str,
    *,
    to: Literal["packed", "onnx", "qonnx", "hls4ml", "c", "wasm", "html"],
    target: Literal["host", "cortex-m4", "cortex-m0", "cortex-m55", "rv32", "aarch64"] = "host",
    out: Path | None = None,
    verify: bool = True,
    opset: int | None = None,
    mirror: bool = False,
) -> None:
    """Write a network as integers: packed, ONNX, QONNX, hls4ml, C, WebAssembly or a page; and verify that all agree.

    Args:
        source: a run folder, a .lehr file, or the name of a network of the zoo.
        to: what to write.
        target: the processor that C is for: this computer, or a device, whose folder builds with `make`.
        out: where to write it; in the run folder, or the current folder, unless given.
        verify: compare every backend on the test images of a run, or on random ones; false needs no data set.
        opset: the version of ONNX's operators, 13 to 25, for older runtimes; the newest unless given.
        mirror: write a network that averages the scores of each image and its mirror image: two passes, same size.
    """
    from lehr.export import export

    failed = False
    for line, passed in export(source, to, out, verify=verify, target=target, opset=opset, mirror=mirror):
        print(printable(line))
        failed |= not passed
    if failed:
        raise CommandFailed("the exported network differs from the trained one: see above")


def predict(
    file: str, images: list[Path], *, resize: bool = False, hop: int | None = None, mirror: bool = False
) -> None:
    """Classify PNG or JPEG files, folders of them, or arrays (.npy, .csv) with a packed network.

    A folder of folders that are named for the classes is measured instead: how many of each class are right.

    Args:
        file: a .lehr file, or the name of a network of the zoo.
        images: image files, folders, or .npy and .csv files with one or several examples each, or with a recording: a
            line for each time, a column for each channel.
        resize: crop images of another size to their middle and scale it; without it they are refused.
        hop: samples from one window of a recording to the next; half a window unless given.
        mirror: average the scores of each image and its mirror image: two passes, often more accurate.
    """
    from lehr.deploy.images import ImageError
    from lehr.deploy.predict import is_labelled, measure, predict
    from lehr.table import Table, show
    from lehr.zoo import file_of

    if hop is not None and hop < 1:
        raise ValueError(f"--hop must be at least 1 sample, got {hop}")
    labelled = [path for path in images if is_labelled(path)]
    for folder in labelled:
        show(measure(file_of(file), folder, resize=resize, mirror=mirror).table())
    rows, failed = [], False
    others = [path for path in images if path not in labelled]
    for path, answer in predict(file_of(file), others, resize=resize, hop=hop, mirror=mirror):
        if isinstance(answer, ImageError):
            print(f"lehr predict: {printable(answer)}", file=sys.stderr)
            failed = True
        else:
            rows.append((str(path), *answer))
    if rows:
        show(Table(("image", "class", "score", "next", "its score"), rows))
    if failed:
        raise SystemExit(1)


def bench(file: str, *, repetitions: int = 100) -> None:
    """Time a packed network in every form that this machine can run, beside float32 and 8 bits in onnxruntime.

    Args:
        file: a .lehr file, or the name of a network of the zoo.
        repetitions: how often each is run, or for two seconds; the shortest time counts.
    """
    from lehr.deploy import CompilerError, compile
    from lehr.deploy.formats import run_all_forms
    from lehr.deploy.pack import load
    from lehr.table import show
    from lehr.zoo import file_of

    net = load(file_of(file))
    forms = run_all_forms(net, repetitions=repetitions)
    with contextlib.suppress(CompilerError):
        show(compile(net).describe().table())
        print()
    show(forms.table())
    if not forms.all_equal:
        raise CommandFailed("a form differs from the reference run: see above, and please report it")


def zoo(name: str | None = None) -> None:
    """List the trained networks that come with lehr, whose names predict, export and bench take; or show one's card.

    Args:
        name: a network of the zoo, or a .lehr file: show its model card.
    """
    from lehr.table import show
    from lehr.zoo import describe, listing

    show(listing() if name is None else describe(name))
    if name is None:
        print("instructions, RAM and flash: for one input on a Cortex-M4, counted in an emulator")


def approximate(
    formula: str,
    *,
    epsilon: float,
    side: float = 1.0,
    lipschitz: float | None = None,
    tight: bool = False,
    out: Path | None = None,
) -> None:
    """Approximate a formula such as "sin(3*x0)*x1" by quantized networks (Theorem 1), and measure their error.

    Args:
        formula: arithmetic and named functions of x0, x1, ...
        epsilon: the largest error allowed.
        side: the domain is [0, side] in each variable.
        lipschitz: a Lipschitz constant you know; unless given, interval arithmetic certifies one.
        tight: use the fewest cubes whose bound is epsilon, a quarter of the proof's on each axis.
        out: draw function, network and error to OUT.svg, OUT.pdf and OUT.png.
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
        out: the folder to draw into.
        runs: run folders whose validation error to draw, a panel for each schedule.
        only: the names of the figures to draw; all unless given.
        formats: which of svg, pdf and png to write; all unless given.
    """
    from lehr.report.figures import draw_all

    print(*map(printable, draw_all(out, runs, only, formats)), sep="\n")


def demo(*, out: Path = Path("runs/demo")) -> None:
    """Train a ternary network on digits, compare it with floats, export it as integers, verify and time them.

    Args:
        out: the folder to make.
    """
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
    print("\nThe ternary network as integers, compared image by image:")
    for line, _ in export(run, "packed"):
        print(line)
    print("\nThe same as C for a small device:")
    print(next(export(run, "c", verify=False))[0])
    print("\nHow fast it is:")
    print(bench(load(run / "model.lehr")))
    print(f"\nThe run as a page: {write_report(run)}")


def doctor() -> None:
    """Check the installation: versions, processor, compiler, caches, data, GPUs, disk; paste it into an issue."""
    from lehr.doctor import examine
    from lehr.table import show

    diagnosis = examine()
    show(diagnosis.table())
    if diagnosis.broken:
        raise CommandFailed(f"{', '.join(diagnosis.broken)}: needed and broken, see above")


def completion(shell: Literal["bash", "zsh", "tcsh"]) -> None:
    """Print a script that completes the commands, options and recipes of lehr in your shell.

    bash: lehr completion bash > ~/.local/share/bash-completion/completions/lehr; zsh: into a file _lehr in a folder of
    $fpath; tcsh: into a file that ~/.tcshrc sources.

    Args:
        shell: the shell to complete in.
    """
    from lehr.cli.arguments import completion_script

    print(completion_script(COMMANDS, shell))


COMMANDS: dict[str, Callable[..., None]] = {
    function.__name__: function
    for function in (
        *(demo, train, evaluate, recipes, data, summary, report, compare),
        *(export, predict, bench, zoo, approximate, figures, doctor, completion),
    )
}
