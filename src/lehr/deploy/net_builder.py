"""The integer network while it is being made: its operations and values so far, `NetBuilder`.

For each tensor of the torch network there is a `Traced`: a value of the integer network, and the float32 functions
(fold.py) that torch applies to it, per channel. Functions wait until thresholds are made of them; where nothing else
is left they become float operations (`NetBuilder.as_float`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from lehr.deploy import fold
from lehr.deploy.fold import Function
from lehr.deploy.freeze_errors import FreezeError
from lehr.deploy.operations import Affine, Clip, Operation, Value


@dataclass(frozen=True, eq=False)
class Move:
    """Values at other places of an image (moves.py).

    Args:
        places: For each place of torch's result for one image, the place of the flat value; -1 where `fill` stands.
        fill: What torch fills up with.
        path: Where in the model that happens.
    """

    places: Tensor  # int64, in torch's shape
    fill: float = 0.0
    path: str = ""


@dataclass(frozen=True, eq=False)
class Traced:
    """A tensor of the torch network: `functions` of the integer network's value `name`, in torch's `rank`.

    `rounded` says why torch's own numbers may differ from that in the last bits, if they may. `move` is what still has
    to be moved, after the functions; converters other than those of moves get tensors without.
    """

    name: str
    rank: int
    functions: tuple[Function, ...] = ()
    rounded: str = ""
    move: Move | None = None

    @property
    def why_inexact(self) -> str:
        """Why torch's numbers are not integers times a power of two; empty if they are."""
        if self.rounded or all(function.is_exact for function in self.functions):
            return self.rounded
        unit = math.prod(float(function.affine[0][0]) for function in self.functions if function.affine is not None)
        return f"values in units of {unit:.4g}, which is no power of two"


class NetBuilder:
    """Operations so far, the values they give, and the places where torch's numbers are rounded."""

    def __init__(self) -> None:
        self.operations: list[Operation] = []
        self.values: dict[str, Value] = {}
        self.rounded: list[str] = []
        self.taken: set[str] = set()  # names of calls that need no operation
        self._floats: dict[Traced, Traced] = {}

    def begin(self, operation: Operation, given: Value) -> None:
        """Append the first operation, which reads what the network is given."""
        self.operations.append(operation)
        self.values[operation.name] = operation.infer(given)

    def emit(self, operation: Operation) -> Value:
        """Append an operation; what its result is."""
        value = operation.infer(*(self.values[source] for source in operation.sources))
        self.operations.append(operation)
        self.values[operation.name] = value
        return value

    def made_by(self, name: str) -> Operation:
        """The operation whose result a value is."""
        return next(operation for operation in self.operations if operation.name == name)

    def free_name(self, name: str) -> str:
        """The name, or one like it that no value has."""
        free, number = name, 1
        while free in self.values or free in self.taken:
            number += 1
            free = f"{name}#{number}"
        return free

    def as_float(self, x: Traced, last_name: str = "") -> Traced:
        """The tensor itself, as floats; the last operation is called `last_name`, if that is given."""
        if x not in self._floats or last_name:
            self._floats[x] = self._applied(x, last_name)
        return self._floats[x]

    def needed(self, outputs: set[str]) -> tuple[Operation, ...]:
        """The operations that the outputs need; the others are those of which only a shape was read."""
        read = set(outputs)
        kept = []
        for operation in reversed(self.operations):
            if operation.name in read:
                read.update(operation.sources)
                kept.append(operation)
        return tuple(kept[::-1])

    def _applied(self, x: Traced, last_name: str) -> Traced:
        name, channels = x.name, self.values[x.name].shape[0]
        affine = fold.composed((), channels)
        for function in (*x.functions, None):
            if function is not None and function.affine is not None:
                affine = fold.composed((Function(torch.clone, affine), function), channels)
                continue
            assert affine is not None
            scale, shift = affine
            if self.values[name].kind == "integer" or bool(((scale != 1) | (shift != 0)).any()):
                affine_name = (last_name if function is None else "") or self.free_name(f"{x.name}.affine")
                self.emit(Affine(affine_name, name, scale.float().numpy(), shift.float().numpy()))
                name = affine_name
            affine = fold.composed((), channels)
            if function is None:
                break
            if function.clip is None:
                raise FreezeError(
                    "no quantizer follows",
                    f"{function.path}: integers do what it does only together with a quantizer that follows; put a "
                    "lehr.Quantizer behind it, or leave it to whoever reads the outputs if it is the last",
                )
            clip_name = self.free_name(f"{x.name}.clip")
            self.emit(Clip(clip_name, name, *function.clip))
            name = clip_name
        return Traced(name, x.rank)
