"""Moves: torch's slices, splits, transposes, views, shuffles, enlargements and padding, as one `Take`.

What a function moves where is found by running it on the numbers of the places of an image, whatever the function is:

>>> found = moved(lambda x: x.flip(3), (1, 2, 3))
>>> found.places.tolist()
[[[2, 1, 0], [5, 4, 3]]]

Moves wait, so that a chain of them (view, transpose, view: a channel shuffle) is one operation, and tensors between
them may have any number of dimensions. The first converter that is no move takes what `settled` makes of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lehr.deploy import fold
from lehr.deploy.freeze_errors import FreezeError
from lehr.deploy.net_builder import Move, NetBuilder, Traced
from lehr.deploy.operations import Flatten, Take, Value, as_shape

_LARGEST_FILL = 2**15 - 1


class NoMove(ValueError):
    """A function that does more than to move values within an image: `mixes` says whether it mixes images."""

    def __init__(self, mixes: bool = False) -> None:
        super().__init__("it mixes images" if mixes else "it does more than to move values")
        self.mixes = mixes


def moved(function: Callable[[Tensor], Any], shape: Sequence[int]) -> Any:
    """What a function does with a batch of images of this shape: a `Move`, or a tuple of them if it gives several.

    NoMove if it changes values, or mixes images.
    """
    size = math.prod(shape)
    numbers = torch.arange(2 * size, dtype=torch.float64).reshape(2, *shape)
    others = torch.rand(2 * size, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    given = (numbers, -1 - numbers, others.reshape(numbers.shape))
    y, negative, drawn = (function(x.clone()) for x in given)
    if isinstance(y, Tensor):
        return _move(size, others, y, negative, drawn)
    return tuple(_move(size, others, *parts) for parts in zip(y, negative, drawn, strict=True))


def _move(size: int, others: Tensor, y: Tensor, negative: Tensor, drawn: Tensor) -> Move:
    constant = y == negative
    places = torch.where(constant, 0, y).round().long()
    if len(y) != 2 or y.ndim == 0:
        raise NoMove(mixes=True)
    if bool((places < 0).any() | (places >= 2 * size).any()):
        raise NoMove
    if not torch.equal(drawn, torch.where(constant, y, others[places])):
        raise NoMove
    fills = y[constant].unique()
    places = places.masked_fill(constant, -1)
    first, second = places
    if bool((first >= size).any()) or not torch.equal(torch.where(first < 0, -1, first + size), second):
        raise NoMove(mixes=True)
    if len(fills) > 1:
        raise NoMove
    return Move(first, fills.item() if len(fills) else 0.0)


def identity(shape: Sequence[int]) -> Move:
    """Everything stays where it is."""
    return Move(torch.arange(math.prod(shape)).reshape(*shape))


def after(first: Move, second: Move) -> Move | None:
    """Both moves as one; None if they fill up with different values."""
    filled = [move.fill for move in (first, second) if bool((move.places < 0).any())]
    if len(set(filled)) > 1:
        return None
    taken = first.places.flatten()[second.places.clamp(min=0)]
    return Move(torch.where(second.places < 0, -1, taken), filled[0] if filled else 0.0, second.path)


def settled(net: NetBuilder, x: Traced) -> Traced:
    """The tensor with its moves made: an operation if they move anything."""
    move = x.move
    if move is None:
        return x
    shape, value = move.places.shape, net.values[x.name]
    if 0 in shape:
        raise FreezeError(
            "dimensions rearranged",
            f"{move.path}: nothing is left, its shape is {tuple(shape)} for an image; give an example as large as the "
            "network is made for",
        )
    if len(shape) > 3:
        raise FreezeError(
            "dimensions rearranged",
            f"{move.path}: it gives shape {tuple(shape)} for an image, which a layer reads; layers read (channel, row, "
            "column), so bring it to three dimensions first",
        )
    target = as_shape(shape)
    places = move.places.reshape(target)
    x = replace(x, rank=1 + len(shape), move=None)
    stays = bool((places.flatten() == torch.arange(value.size)).all()) if places.numel() == value.size else False
    if stays and target == value.shape:
        return x
    x = _with_functions_of(net, x, places, move)
    value = net.values[x.name]
    name = net.free_name(move.path)
    if stays and target == (value.size, 1, 1):
        net.emit(Flatten(name, x.name))
    else:
        offsets = separated(places)
        if offsets is None:
            raise FreezeError(
                "dimensions rearranged",
                f"{move.path}: what it takes from {value.shape} are no whole channels, rows or columns; move "
                "these as a whole",
            )
        net.emit(Take(name, x.name, *offsets, fill=_fill(x, move, value)))
    return replace(x, name=name, functions=_taken(x, places, value))


def separated(places: Tensor) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
    """Offsets of channels, rows and columns whose sums are these places, (channel, row, column); None if none are.

    Offsets of what is filled up (-1) are -1.
    """
    valid = places >= 0
    if not bool(valid.any()):
        return None
    at = [int(i) for i in valid.nonzero()[0]]
    base = int(places[tuple(at)])
    lines = [places[:, at[1], at[2]], places[at[0], :, at[2]], places[at[0], at[1]]]
    lows = [int((line - base)[line >= 0].min()) for line in lines]
    offsets = [torch.where(line < 0, -1, line - base - low) for line, low in zip(lines, lows, strict=True)]
    offsets[0] = torch.where(lines[0] < 0, -1, offsets[0] + base + sum(lows))
    if any(int(x.min()) < -1 for x in offsets):
        return None
    channels, rows, columns = (x.numpy() for x in offsets)
    rebuilt = Take("", "", channels, rows, columns).places()
    return (channels, rows, columns) if np.array_equal(rebuilt, places.numpy()) else None


def padding(operation: Take, source: Value) -> tuple[tuple[int, int], tuple[int, int]] | None:
    """Zeros before and behind, of rows and of columns, if that is all that the operation adds; else None."""
    channels, rows, columns = source.shape
    around = []
    for offsets, size, apart in ((operation.rows, rows, columns), (operation.columns, columns, 1)):
        inside = np.flatnonzero(offsets >= 0)
        if not np.array_equal(offsets[inside], np.arange(size) * apart) or inside[-1] - inside[0] + 1 != size:
            return None
        around.append((int(inside[0]), int(len(offsets) - 1 - inside[-1])))
    if operation.fill or not np.array_equal(operation.channels, np.arange(channels) * rows * columns):
        return None
    return around[0], around[1]


def _source_channels(places: Tensor, value: Value) -> tuple[Tensor, bool]:
    """For each channel of the result, the channel of the source it comes from, and whether each has only one."""
    pixels = value.shape[1] * value.shape[2]
    lines = places.flatten(1)
    channels = torch.where(lines < 0, -1, lines // pixels)
    largest = channels.amax(1)
    alone = bool(((channels == largest[:, None]) | (channels < 0)).all())
    return largest.clamp(min=0), alone


def _taken(x: Traced, places: Tensor, value: Value) -> tuple[fold.Function, ...]:
    channels, _ = _source_channels(places, value)
    return tuple(function.taken(channels) for function in x.functions)


def _with_functions_of(net: NetBuilder, x: Traced, places: Tensor, move: Move) -> Traced:
    """The tensor such that its functions can follow the move; as floats where they cannot."""
    value = net.values[x.name]
    _, alone = _source_channels(places, value)
    fits = alone or all(function.is_uniform for function in x.functions)
    if bool((places < 0).any()):
        fits = fits and _integer_fill(x, move, value) is not None
    return x if fits or not x.functions else replace(net.as_float(x), rank=x.rank)


def _integer_fill(x: Traced, move: Move, value: Value) -> int | None:
    """The integer of which the functions make what is filled up with, in every channel; None if there is none."""
    affine = fold.composed(x.functions, value.shape[0])
    if affine is None or value.kind == "float" or bool((affine[0] == 0).any()):
        return None
    fills = (move.fill - affine[1]) / affine[0]
    fill = fills[0].item()
    same = bool((fills == fill).all()) and fill == round(fill) and abs(fill) <= _LARGEST_FILL
    return round(fill) if same else None


def _fill(x: Traced, move: Move, value: Value) -> float:
    if not bool((move.places < 0).any()):
        return 0.0
    fill = _integer_fill(x, move, value) if x.functions else None
    return move.fill if fill is None else float(fill)
