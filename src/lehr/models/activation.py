"""The activations that a network can be made with, by name.

    relu        max(0, x)
    hardtanh    max(-1, min(1, x)): its values end where the levels -1 and 1 do
    ramp        max(-1, x): ReLU, moved by -1, so that the levels -1, 0, 1 stand for its values 0, 1, 2

A ReLU's values are 0 and above, so of the levels -1, 0, 1 a network that starts from a float twin uses two at first,
and has -1 where its twin has 0. With a ramp all three stand for what the twin computes.

>>> import torch
>>> activation_named("ramp")()(torch.tensor([-2.0, 0.5, 3.0]))
tensor([-1.0000,  0.5000,  3.0000])
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable
from typing import Literal

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

Activation = Literal["relu", "hardtanh", "ramp"]
_KINDS: dict[str, Callable[[], nn.Module]] = {
    "relu": nn.ReLU,
    "hardtanh": nn.Hardtanh,
    "ramp": functools.partial(nn.Hardtanh, -1.0, math.inf),
}


def activation_named(name: str) -> Callable[[], nn.Module]:
    """Return what makes the activation modules of this name.

    Args:
        name: relu, hardtanh or ramp.
    """
    if name not in _KINDS:
        raise ValueError(f"activation must be relu, hardtanh or ramp, got {name!r}")
    return _KINDS[name]


@torch.no_grad()
def start_biases_(name: str, norms: Iterable[_BatchNorm]) -> None:
    """Let a network with ramps start as the one with ReLUs, but for padded edges: move the biases by -1, too.

    Args:
        name: of the activation; only a ramp changes anything.
        norms: the BatchNorms whose results reach an activation, one of each sum, and none where a sum has a value of an
            activation, which is moved already.
    """
    if name == "ramp":
        for norm in norms:
            norm.bias.sub_(1)
