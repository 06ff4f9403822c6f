"""A network that also looks at the mirror image: its scores are the sums of those of both, in one file.

The operations stand in it twice and their constants are the same arrays, which C, WebAssembly and ONNX files hold once.

>>> import numpy as np
>>> from lehr.deploy.pack import load
>>> net, images = load("digits"), np.arange(64, dtype=np.uint8).reshape(1, 1, 8, 8)
>>> both = mirrored(net)
>>> bool((both.scores(images) == net.scores(images) + net.scores(images[..., ::-1].copy())).all())
True
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from lehr.deploy.abstract import Operation
from lehr.deploy.integer_net import IntegerNet
from lehr.deploy.operations import Add, Affine, Take


def mirrored(net: IntegerNet) -> IntegerNet:
    """Return the network whose scores are the mean of those of an image and of its mirror image: two passes.

    Args:
        net: a classifier of images, which ends with one affine map of integers.
    """
    if len(net.input_shape) != 3:
        shape = " x ".join(map(str, net.input_shape))
        raise ValueError(f"only images have a mirror image: this network takes inputs of shape {shape}")
    reads, *between, last = net.operations
    if len(net.outputs) != 1 or not isinstance(last, Affine) or net.values[last.source].kind != "integer":
        raise ValueError("only scores that are integers can be summed for both images: this network ends otherwise")
    channels, rows, columns = net.values[reads.name].shape
    turned = Take(
        _other(reads.name),
        reads.name,
        channels=np.arange(channels) * rows * columns,
        rows=np.arange(rows) * columns,
        columns=np.arange(columns)[::-1],
    )
    again = [_copy(operation) for operation in between]
    both = Add("both.sum", last.source, _other(last.source))
    mean = dataclasses.replace(last, source=both.name, scale=last.scale / 2)
    return dataclasses.replace(net, operations=(reads, *between, turned, *again, both, mean))


def _copy(operation: Operation) -> Operation:
    """The same operation on the values of the mirror image."""
    renamed: dict[str, Any] = {"name": _other(operation.name)}
    for field in dataclasses.fields(operation):
        value = getattr(operation, field.name)
        if field.name != "name" and isinstance(value, str) and value in operation.sources:
            renamed[field.name] = _other(value)
        elif isinstance(value, tuple) and value and value == operation.sources:
            renamed[field.name] = tuple(map(_other, value))
    return dataclasses.replace(operation, **renamed)


def _other(name: str) -> str:
    return f"{name}.mirrored"
