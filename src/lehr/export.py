"""From a run to integers: freeze its network, write it, and compare it everywhere on the test images."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from torch import nn

from lehr import deploy
from lehr.data import Dataset, examples_of
from lehr.deploy.freeze import freeze
from lehr.deploy.integer_net import IntegerNet
from lehr.deploy.verify import verify as checks
from lehr.training.run import load_run

_COMPARED = 256  # images of a data set that does not fit in memory
Format = Literal["packed", "onnx", "qonnx", "c"]
_NAMES: dict[Format, str] = {"packed": "model.lehr", "onnx": "model.onnx", "qonnx": "model.qonnx.onnx", "c": "c"}


def export(run: Path, to: Format, out: Path | None = None, *, verify: bool = True) -> Iterator[tuple[str, bool]]:
    """Write the network of `run`; sentences about what was done, and whether it went well."""
    model, _, splits = load_run(run)
    test = splits.test
    net = freeze(model, examples_of(test, 1), classes=test.classes)
    path = run / _NAMES[to] if out is None else out
    if to == "packed":
        net.save(path)
    elif to == "onnx":
        deploy.to_onnx(net, path)
    elif to == "qonnx":
        from lehr.deploy.to_onnx import to_qonnx

        to_qonnx(net, path)
    else:
        deploy.to_c(net, path, images=examples_of(test, 8))
    yield f"{path}: {_told_size(path, model, net)}", True
    if verify:
        compared = len(test) if isinstance(test, Dataset) else _COMPARED
        for check in checks(model, net, examples_of(test, compared), qonnx=to == "qonnx"):
            yield str(check), check.passed


def _told_size(path: Path, model: nn.Module, net: IntegerNet) -> str:
    parameters = sum(p.numel() * p.element_size() for p in model.parameters())
    if path.is_dir():
        return f"{len(list(path.iterdir()))} files for {net.summary().bytes:,} bytes of network"
    size = path.stat().st_size
    return f"{size:,} bytes, {parameters / size:.1f}x smaller than the {parameters:,} bytes of its parameters"
