"""From a run, or a packed network, to integers in any form, compared everywhere image by image."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import nn

from lehr import deploy
from lehr.data import Dataset, examples_of
from lehr.deploy.freeze import freeze
from lehr.deploy.integer_net import IntegerNet
from lehr.deploy.pack import load
from lehr.deploy.verify import verify as checks
from lehr.training.run import load_run
from lehr.zoo import file_of

_COMPARED = 256  # images of a data set that does not fit in memory, and random ones where there is none
Format = Literal["packed", "onnx", "qonnx", "c"]
_NAMES: dict[Format, str] = {"packed": "{}.lehr", "onnx": "{}.onnx", "qonnx": "{}.qonnx.onnx", "c": "c"}


def export(
    source: str | Path, to: Format, out: Path | None = None, *, verify: bool = True
) -> Iterator[tuple[str, bool]]:
    """Write a network in another form; sentences about what was done, and whether it went well.

    `source` is a run folder, whose network is frozen and compared with the trained one; or a packed file, or the name
    of a network of the zoo, whose backends are compared with each other. `out` is the run folder, or the present one,
    unless it is given.
    """
    model = None
    if Path(source).is_dir():
        model, _, splits = load_run(Path(source))
        images = examples_of(splits.test, len(splits.test) if isinstance(splits.test, Dataset) else _COMPARED)
        net = freeze(model, images[:1], classes=splits.test.classes)
        path = Path(source) / _NAMES[to].format("model")
    else:
        file = file_of(source)
        net = load(file)
        images = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (_COMPARED, *net.input_shape), np.uint8))
        path = Path(f"{file.stem}-c" if to == "c" else _NAMES[to].format(file.stem))
    path = path if out is None else out
    if to == "packed":
        net.save(path)
    elif to == "onnx":
        deploy.to_onnx(net, path)
    elif to == "qonnx":
        deploy.to_qonnx(net, path)
    else:
        deploy.to_c(net, path, images=images[:8])
    yield f"{path}: {_told_size(path, model, net)}", True
    if verify:
        for check in checks(model, net, images, qonnx=to == "qonnx"):
            yield str(check), check.passed


def _told_size(path: Path, model: nn.Module | None, net: IntegerNet) -> str:
    if path.is_dir():
        return f"{len(list(path.iterdir()))} files for {net.summary().bytes:,} bytes of network"
    size = path.stat().st_size
    if model is None:
        return f"{size:,} bytes"
    parameters = sum(p.numel() * p.element_size() for p in model.parameters())
    return f"{size:,} bytes, {parameters / size:.1f}x smaller than the {parameters:,} bytes of its parameters"
