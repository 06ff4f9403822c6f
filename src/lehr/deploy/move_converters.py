"""What becomes of slices, splits, views, transposes, shuffles, enlargements and padding, and of concatenations.

Everything that only moves values is a move (moves.py), found by running it. Concatenated branches keep the scales they
have, one for each channel: thresholds that follow take them as they are, and a layer brings them to a common unit.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, fx

from lehr.deploy import fold
from lehr.deploy.conversion import Call
from lehr.deploy.moves import NoMove, after, identity, moved, settled
from lehr.deploy.net_builder import Move, Traced
from lehr.deploy.operations import Concat, Flatten


def move(call: Call) -> Any:
    """Any function that takes one tensor of the network and moves its values."""
    x = call.inputs[0]
    if isinstance(x, tuple):
        raise call.error("gives no tensor", "it takes several tensors", "let it take one of them")
    shape = call.graph.shape(call.sources[0])[1:]
    try:
        found = moved(call.function, shape)
    except NoMove as error:
        if error.mixes:
            given = call.graph.result(call.node)
            what = f" it gives shape {tuple(given.shape)}" if isinstance(given, Tensor) else ""
            raise call.error(
                "images mixed", f"it mixes images:{what}", "flatten from dimension 1, x.flatten(1)"
            ) from None
        raise call.error(
            "more than a move",
            "it does not take each value from one place: it weighs several, or fills up with several numbers",
            'enlarge with mode="nearest", and pad with one number',
        ) from None
    if isinstance(found, tuple):
        return tuple(_moved(call, x, part) for part in found)
    return _moved(call, x, found)


def item(call: Call) -> Any:
    """`x[...]`: one of several tensors, or a slice."""
    x, index = call.inputs[0], call.argument(1)
    return x[index] if isinstance(x, tuple) else move(call)


def is_gate(call: Call, x: Traced) -> bool:
    """Whether the tensor is one number for each channel, expanded to rows and columns."""
    channels, *space = call.value(x).shape
    if x.move is None or space != [1, 1] or x.move.places.ndim != 3:
        return False
    places = x.move.places
    return len(places) == channels and bool((places == torch.arange(channels)[:, None, None]).all())


def same(call: Call) -> Any:
    """Dropout in eval mode, and what else changes no value."""
    return call.inputs[0]


def join(call: Call) -> Traced:
    """torch.cat and torch.stack."""
    of = dict(zip(call.sources, call.inputs, strict=True))
    given = call.argument(0, "tensors")
    nodes: list[Any] = list(given) if isinstance(given, list | tuple) else [given]
    parts: list[Traced] = []
    for node in nodes:
        if not isinstance(node, fx.Node) or node not in of:
            raise call.error(
                "joined with a constant",
                "it joins a value of the network with one that does not depend on the input",
                "leave that to the bias of the layer that follows",
            )
        found: Any = of[node]
        parts += found if isinstance(found, tuple) else [found]
    parts = [settled(call.net, x) for x in parts]
    is_stack = call.graph.called(call.node) is torch.stack
    dim = call.argument(1, "dim", "axis") or 0
    dim %= parts[0].rank + is_stack
    if dim == 0:
        raise call.error("images mixed", "it joins images: it joins along dimension 0", "join channels, dim=1")
    if dim == 1 and not is_stack:
        return _concat(call, parts)
    shapes = [_torch_shape(call, x) for x in parts]
    joined = _concat(call, [_flat(call, x) for x in parts])
    starts = torch.tensor([0, *(call.value(x).size for x in parts)]).cumsum(0)
    places = [identity(shape).places + start for shape, start in zip(shapes, starts, strict=False)]
    together = (torch.stack if is_stack else torch.cat)(places, dim - 1)
    return replace(joined, rank=together.ndim + 1, move=Move(together, path=call.path))


def _moved(call: Call, x: Traced, found: Move) -> Traced:
    found = replace(found, path=call.path)
    if x.move is None:
        return replace(x, move=found)
    both = after(x.move, found)
    if both is None:  # two paddings with different numbers
        return replace(settled(call.net, x), move=found)
    return replace(x, move=both)


def _torch_shape(call: Call, x: Traced) -> tuple[int, ...]:
    """Of an image: without the rows, or rows and columns, that integer networks add."""
    channels, rows, columns = call.value(x).shape
    return {1: (), 2: (channels,), 3: (channels, columns)}.get(x.rank, (channels, rows, columns))


def _flat(call: Call, x: Traced) -> Traced:
    value = call.value(x)
    pixels = value.shape[1] * value.shape[2]
    if pixels == 1:
        return x
    name = call.name("flat")
    call.net.emit(Flatten(name, x.name))
    channels = torch.arange(value.shape[0]).repeat_interleave(pixels)
    return Traced(name, 2, tuple(function.taken(channels) for function in x.functions), x.rounded)


def _concat(call: Call, parts: list[Traced]) -> Traced:
    """Channels behind each other; as floats if one of them is, or has functions that are not affine."""
    values = [call.value(x) for x in parts]
    affine = all(fold.composed(x.functions, v.shape[0]) is not None for x, v in zip(parts, values, strict=True))
    if not affine or any(value.kind == "float" for value in values):
        parts = [call.as_float(x) for x in parts]
    name = call.name()
    call.emit(Concat(name, tuple(x.name for x in parts)), is_last=False)
    functions = fold.joined([x.functions for x in parts], [value.shape[0] for value in values])
    rounded = next((x.rounded for x in parts if x.rounded), "")
    return Traced(name, parts[0].rank, functions, rounded)
