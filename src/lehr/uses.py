"""The uses of functions that a model makes while it runs: of activations, additions and products, in order.

They are found by running the model (observe.py) or by tracing it (symbolic.py).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from lehr.nonlinear import FUNCTIONS, name_of
from lehr.quantizer import AbstractQuantizer

LAYERS = (nn.Linear, nn.modules.conv._ConvNd)
PRODUCTS: dict[Any, str] = {
    F.linear: "linear",
    F.bilinear: "bilinear",
    F.conv1d: "conv1d",
    F.conv2d: "conv2d",
    F.conv3d: "conv3d",
    F.conv_transpose1d: "conv_transpose1d",
    F.conv_transpose2d: "conv_transpose2d",
    F.conv_transpose3d: "conv_transpose3d",
    F.scaled_dot_product_attention: "scaled_dot_product_attention",
    torch.einsum: "einsum",
    torch.matmul: "matmul",
    torch.Tensor.matmul: "matmul",
    torch.Tensor.__matmul__: "matmul",
    torch.bmm: "bmm",
    torch.mm: "mm",
    torch.addmm: "addmm",
    torch.baddbmm: "baddbmm",
}
NAMES = FUNCTIONS | PRODUCTS


@dataclass(eq=False)
class Use:
    """One use of a function while the model runs.

    Args:
        owner: the path of the module whose forward makes it
        name: the function, such as relu
        module: the path of the activation module that is used; None for a call of a function
        place: where in the source the call stands, the innermost line first
        after: the path of the layer with weights that ran last before it
        is_output: whether the model gives its result, perhaps in another shape
        line: of an addition, the function and its line that makes it
        adds_constant: whether it adds a parameter or another tensor that does not depend on the input
    """

    owner: str
    name: str
    module: str | None
    place: tuple[Any, ...]
    after: str | None
    is_output: bool = False
    line: tuple[str, int] | None = None
    adds_constant: bool = False

    @property
    def is_product(self) -> bool:
        """Whether it multiplies with weights, or as those do."""
        return self.name in PRODUCTS.values()


@dataclass
class Observation:
    """What was seen.

    Args:
        runs: by mode (training or not) and owner, the uses of each of its runs
        macs: of one image, by layer, with "" for all; known with an example
        closed: modules that cannot be traced, and why
        hidden: modules whose calls no tracer sees, not that of `freeze` either, and why
        bypassed: layers in them that never run: their weights are read without quantization
        linear: layers that read what another layer gives, with nothing but BatchNorm, pools and the like between them
    """

    runs: dict[bool, dict[str, list[list[Use]]]] = field(default_factory=dict)
    macs: dict[str, int] = field(default_factory=dict)
    closed: dict[str, str] = field(default_factory=dict)
    hidden: dict[str, str] = field(default_factory=dict)
    bypassed: set[str] = field(default_factory=set)
    linear: set[str] = field(default_factory=set)

    @property
    def uses(self) -> Iterator[Use]:
        """All of them; in eval mode first."""
        for training in sorted(self.runs):
            for runs in self.runs[training].values():
                for run in runs:
                    yield from run


class Runs:
    """The forwards that are running, and what they have used."""

    def __init__(self) -> None:
        self.log: list[tuple[str, list[Use]]] = []
        self.stack: list[tuple[str, list[Use]]] = []
        self.after: str | None = None

    @property
    def by_owner(self) -> dict[str, list[list[Use]]]:
        """The uses of each run of each owner."""
        owners: dict[str, list[list[Use]]] = {}
        for path, run in self.log:
            owners.setdefault(path, []).append(run)
        return owners

    def enter(self, path: str) -> None:
        """A forward begins."""
        self.log.append((path, []))
        self.stack.append(self.log[-1])

    def leave(self) -> None:
        """It ends."""
        self.stack.pop()

    def add(self, name: str, module: str | None = None) -> Use:
        """Note a use in the forward that runs."""
        if not self.stack:  # the model itself is an activation
            self.log.append(("", []))
        path, run = self.stack[-1] if self.stack else self.log[-1]
        use = Use(path, name, module, place(module is not None), self.after)
        run.append(use)
        return use


def is_whole(module: nn.Module) -> bool:
    """Whether what the module calls is its own matter: activations, layers and attention of torch, and quantizers."""
    if isinstance(module, AbstractQuantizer | nn.MultiheadAttention | nn.RNNBase | nn.RNNCellBase):
        return True
    return name_of(module) is not None or (
        isinstance(module, LAYERS) and type(module).__module__.startswith(("torch.", "lehr."))
    )


def place(in_module: bool) -> tuple[Any, ...]:
    """The lines of source between torch's function, or the module, and the call of its owner; innermost first."""
    frame, lines, calls = sys._getframe(1), [], 2 if in_module else 1
    while frame is not None:
        calls -= frame.f_code.co_name in ("_call_impl", "call_module", "trace")
        if not calls:
            break
        if not frame.f_globals.get("__name__", "").startswith("lehr."):
            lines.append((frame.f_code.co_filename, frame.f_lineno))
        frame = frame.f_back
    return tuple(lines)
