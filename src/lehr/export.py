"""Export the network of a run, or a packed one, in one of seven forms, and compare all backends on images.

The forms: a packed file, ONNX, QONNX, ONNX for hls4ml, C, WebAssembly, and a page that runs it.

A packed network needs the extra `deploy` alone; what trains, and reads data sets, is imported for a run.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor, nn

from lehr import deploy
from lehr.deploy.card import Card
from lehr.deploy.freeze import freeze
from lehr.deploy.integer_net import IntegerNet, random_batch
from lehr.deploy.mirror import mirrored
from lehr.deploy.pack import load
from lehr.deploy.verify import verify as compare_backends
from lehr.zoo import file_of

if TYPE_CHECKING:
    from lehr.data import Splits, StreamedSplits

_COMPARED = 256  # images to compare on, if the data set does not fit in memory or if random images are used
Format = Literal["packed", "onnx", "qonnx", "hls4ml", "c", "wasm", "html"]
_NAMES: dict[Format, str] = {
    "packed": "{}.lehr",
    "onnx": "{}.onnx",
    "qonnx": "{}.qonnx.onnx",
    "hls4ml": "{}.hls4ml.onnx",
    "c": "c",
    "wasm": "{}.wasm",
    "html": "{}.html",
}


def export(
    source: str | Path,
    to: Format,
    out: Path | None = None,
    *,
    verify: bool = True,
    target: str = "host",
    opset: int | None = None,
    mirror: bool = False,
) -> Iterator[tuple[str, bool]]:
    """Write a network in another form; yield sentences about what was done, each with whether it succeeded.

    Args:
        source: a run folder, a packed file, or the name of a network of the zoo. The network of a run is frozen, and
            compared with the trained one; otherwise the backends are compared with each other.
        to: the form to write.
        out: the path to write to; by default in the run folder, or in the current folder for a packed network.
        verify: whether to compare, on the test images of the run or on random ones. Without it no data set is needed.
        target: the processor that C is for.
        opset: the version of ONNX's operators in an ONNX file, for older runtimes.
        mirror: write a network that averages the scores of an image and of its mirror image, in two passes.
    """
    if target != "host" and to != "c":
        raise ValueError(f"a target is for C (--to c), got target {target} for {to}")
    if opset is not None and to != "onnx":
        raise ValueError(f"opset is for onnx, not for {to}")
    if mirror and to in ("packed", "hls4ml"):
        raise ValueError(
            f"a {to} file has one pass: `lehr predict FILE IMAGE --mirror true` averages both, or export to c or onnx"
        )
    model = None
    if Path(source).is_dir():
        from lehr.training.run import images_of, load_network, load_run

        known = images_of(Path(source))
        splits = None
        if verify:
            model, _, splits = load_run(Path(source))
        else:
            model, _ = load_network(Path(source))
        net = replace(freeze(model, known.example(), classes=known.classes), card=_card(Path(source)))
        images = _random_images(net) if splits is None else _test_images(splits)
        path = Path(source) / _NAMES[to].format("model")
    else:
        file = file_of(source)
        net = load(file)
        images = _random_images(net)
        folder = f"{file.stem}-{'c' if target == 'host' else target}"
        path = Path(folder if to == "c" else _NAMES[to].format(file.stem))
    path = path if out is None else out
    if mirror:
        model, net = None, mirrored(net)  # torch's network has one pass: backends are compared with each other
    if to == "packed":
        net.save(path)
    elif to == "onnx":
        deploy.to_onnx(net, path, **({} if opset is None else {"opset": opset}))
    elif to == "qonnx":
        deploy.to_qonnx(net, path)
    elif to == "hls4ml":
        deploy.to_hls4ml(net, path)
    elif to == "wasm":
        deploy.to_wasm(net, path)
    elif to == "html":
        deploy.to_html(net, path, title=Path(source).stem)
    else:
        deploy.to_c(net, path, images=images[:8], target=target)
    yield f"{path}: {_size_of(path, model, net)}", True
    if net.exact:
        yield "exact: every integer is the one that torch computes, on any machine", True
    for why in net.inexact:
        yield f"rounding can decide at {why}", True
    if verify:
        for check in compare_backends(model, net, images, qonnx=to == "qonnx"):
            yield str(check), check.passed


def _card(run: Path) -> Card:
    """What a run tells of its network."""
    from lehr.training.folder import RunError, RunFolder, read_json
    from lehr.training.recipes import read

    folder = RunFolder(run)
    data, results = read(folder.recipe).data.name, folder.read_results() or {}
    try:
        info = read_json(folder.info)
    except RunError:
        info = {}
    command = info.get("command")
    recipe = _without_folders(command) if isinstance(command, list) else ""
    limits = f"accuracy is that on the test images of {data} alone, seed {info.get('seed')}; nothing else was measured"
    return Card(run.resolve().name, data, recipe, results.get("test/accuracy"), "", limits)


def _without_folders(command: list[str]) -> str:
    """Return the command of a run for other people to read: nothing says where the folders of this computer are."""
    words = [part for word in command[1:] for part in (word.split("=", 1) if word.startswith("--") else [word])]
    if "--out" in words:
        at = words.index("--out")
        del words[at : at + 2]
    return shlex.join(["lehr", *(Path(word).name if "/" in word else word for word in words)])


def _test_images(splits: Splits | StreamedSplits) -> Tensor:
    """Return all test images, or some if the data set does not fit in memory."""
    from lehr.data import Dataset, examples_of

    test = splits.test
    return examples_of(test, len(test) if isinstance(test, Dataset) else _COMPARED)


def _random_images(net: IntegerNet) -> Tensor:
    return torch.from_numpy(random_batch(net, _COMPARED))


def _size_of(path: Path, model: nn.Module | None, net: IntegerNet) -> str:
    if path.is_dir():
        return f"{len(list(path.iterdir()))} files for {net.summary().bytes:,} bytes of network"
    size = path.stat().st_size
    if model is None:
        return f"{size:,} bytes"
    parameters = sum(p.numel() * p.element_size() for p in model.parameters())
    return f"{size:,} bytes, {parameters / size:.1f}x smaller than the {parameters:,} bytes of its parameters"
