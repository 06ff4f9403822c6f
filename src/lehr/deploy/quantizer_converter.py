"""What a quantizer becomes: one `Threshold` for all that torch does between the last sum and its levels.

A quantizer takes all functions since the last sum and becomes integer thresholds with one direction for each channel;
many even levels become a product and a shift that equal them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from lehr.deploy import even_steps, fold
from lehr.deploy.conversion import Call
from lehr.deploy.net_builder import Traced
from lehr.deploy.operations import Add, Conv, Requantize, Take, Threshold, Value
from lehr.quantizer import AbstractQuantizer

_MANY_LEVELS = 16  # up to here thresholds are few enough for the fast routines to compare with each
_MOST_LOOKED_AT = 2**12  # values of a small range are looked at one by one


def quantizer(call: Call) -> Traced:
    """The multi-step function and all that stands between it and the last sum: one Threshold."""
    (x,), module = call.inputs, call.module
    assert isinstance(module, AbstractQuantizer)
    return quantized(call, x, module, call.name())


def quantized(call: Call, x: Traced, module: AbstractQuantizer, name: str) -> Traced:
    """`x` quantized by `module`, as a value called `name`."""
    channels = call.channels(x)
    found = fold.common_unit(np.array(module.levels), limit=2**15 - 1)
    if found is None:
        raise call.error(
            "levels without a unit",
            f"its levels {module.levels} have no common unit",
            "choose integers times one number",
        )
    unit, levels = found
    scale = torch.ones(1) if module.scale is None else module.scale
    space = (1,) * (x.rank - 2)
    ones = torch.ones(1, channels, *space)
    if (ones * scale).shape != ones.shape:
        raise call.error(
            "scale of another shape", f"its scale has shape {tuple(scale.shape)}", "use one, or one for each channel"
        )
    scale = (ones * scale).reshape(1, channels)
    reached = torch.tensor(module.levels)[:, None].double() * scale.double()

    def level(y: Tensor) -> Tensor:  # (n, channel) -> the same
        return module(y.reshape(*y.shape, *space)).reshape(y.shape)

    if _changes_nothing(call, x, level):
        call.net.taken.add(name)
        return x
    midpoints = (reached[1:] + reached[:-1]) / 2
    sides = fold.sides(x.functions)
    if sides is None:
        _emit_threshold(call, x, level, midpoints, levels, name)
    else:
        _emit_sides(call, x, sides, level, midpoints, levels, name)
    scale = scale[0].double() * unit
    return Traced(name, x.rank, fold.scaled(scale, torch.zeros_like(scale)))


def _emit_threshold(
    call: Call,
    x: Traced,
    level: Callable[[Tensor], Tensor],
    midpoints: Tensor,  # (K, channel) or (K, 1), of levels times the scale
    levels: np.ndarray,  # K + 1
    name: str,
    *,
    within: tuple[int, int] | None = None,
) -> None:
    """The operation that makes levels of `x`; those with the numbers `within` if no others can be reached."""
    value, channels = call.value(x), call.channels(x)
    try:
        thresholds, directions = fold.thresholds(
            level,
            x.functions,
            midpoints,
            low=value.low if value.kind == "integer" else None,
            high=value.high if value.kind == "integer" else None,
            channels=channels,
        )
    except ValueError as error:
        raise call.error(
            "values that are no numbers", str(error), "see that the weights and BatchNorm before it are finite"
        ) from None
    if value.kind == "integer":
        close = fold.near_ties(level, x.functions, thresholds, directions, low=value.low, high=value.high)
        if x.rounded:
            call.note(f"it compares {x.rounded} with its thresholds")
        elif close:
            call.note(f"in {close} of {channels} channels BatchNorm puts a sum within rounding of a threshold")
    elif any(function.terms is not None for function in x.functions) or x.rounded:
        call.note("it compares floats that BatchNorm has rounded with its thresholds")
    if within is not None:
        first, last = within
        thresholds, levels = thresholds[:, first:last], levels[first : last + 1]
    before = call.net.made_by(x.name)
    read_by = _read_by(call, before) if isinstance(before, Take) else None
    if isinstance(before, Take) and read_by is not None:  # first, where sums need not stay in memory
        before_move = call.net.free_name(f"{name}.cut")
        call.net.emit(_step(before_move, before.source, thresholds[read_by], directions[read_by], levels, value))
        call.net.emit(replace(before, name=name, source=before_move))
    else:
        call.net.emit(_step(name, x.name, thresholds, directions, levels, value))


def _emit_sides(
    call: Call,
    x: Traced,
    sides: tuple[tuple[fold.Function, ...], ...],
    level: Callable[[Tensor], Tensor],
    midpoints: Tensor,
    levels: np.ndarray,
    name: str,
) -> None:
    """q(f(x)) where f falls and rises again: q of its left side and of its right side, minus q at its turn.

    Each side is monotone, and as at the turn where the other one counts.
    """
    at = next(at for at, function in enumerate(x.functions) if function.turn is not None)
    turn = x.functions[at].turn
    ends = torch.tensor([[turn], [-fold.LARGEST_FLOAT], [fold.LARGEST_FLOAT]]).expand(3, call.channels(x))
    numbers = (level(fold.apply(x.functions[at:], ends)).double()[:, None] >= midpoints).sum(1)  # of the levels there
    lowest = int(numbers[0, 0])
    if bool((numbers[0] != lowest).any()):
        raise call.error(
            "scale of another shape",
            "its scale differs from channel to channel, behind a function that falls and rises again",
            "use one scale for all channels",
        )
    parts = []
    for functions, end, suffix in ((sides[0], numbers[1], "falling"), (sides[1], numbers[2], "rising")):
        first, last = min(int(end.min()), lowest), max(int(end.max()), lowest)
        if first == last and suffix == "falling":
            continue  # it stays at one level
        first = min(first, len(levels) - 2)
        part = name if suffix == "rising" and not parts else call.net.free_name(f"{name}.{suffix}")
        offset = levels[lowest] if suffix == "falling" else 0
        _emit_threshold(
            call,
            replace(x, functions=functions),
            level,
            midpoints,
            levels - offset,
            part,
            within=(first, max(last, first + 1)),
        )
        parts.append(part)
    if len(parts) == 2:
        call.net.emit(Add(name, parts[0], parts[1], 1, 1))


def _changes_nothing(call: Call, x: Traced, level: Callable[[Tensor], Tensor]) -> bool:
    """Whether the quantizer's input, integers times powers of two, already is at its levels."""
    value = call.value(x)
    if value.kind != "integer" or value.high - value.low > _MOST_LOOKED_AT or x.why_inexact:
        return False
    y = fold.apply(x.functions, torch.arange(value.low, value.high + 1)[:, None].float().expand(-1, value.shape[0]))
    return torch.equal(level(y), y)


def _step(
    name: str, source: str, thresholds: np.ndarray, directions: np.ndarray, levels: np.ndarray, value: Value
) -> Threshold | Requantize:
    """Thresholds, or a product and a shift that equal them, where there are many even levels."""
    if value.kind == "integer" and len(levels) > _MANY_LEVELS and bool((np.diff(levels) == 1).all()):
        found = even_steps.line(thresholds, directions, first=int(levels[0]), low=value.low, high=value.high)
        if found is not None:
            return Requantize(name, source, *found, int(levels[0]), int(levels[-1]))
    return Threshold(name, source, thresholds, directions, tuple(levels.tolist()))


def _read_by(call: Call, move: Take) -> np.ndarray | None:
    """For each channel of a convolution's sums, the one channel of the result of a move that reads it; else None."""
    source = call.net.values[move.source]
    if move.is_filled or not isinstance(call.net.made_by(move.source), Conv):
        return None
    places = move.places()
    readers = np.broadcast_to(np.arange(len(places))[:, None, None], places.shape)
    pairs = np.unique(
        np.stack([places // (source.shape[1] * source.shape[2]), readers], axis=-1).reshape(-1, 2), axis=0
    )
    once = np.array_equal(pairs[:, 0], np.arange(source.shape[0]))
    return pairs[:, 1] if once else None
