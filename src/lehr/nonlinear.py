"""The nonlinear functions of torch: as modules, as functions and as methods of a tensor.

`F.relu(x)`, `torch.relu(x)`, `x.relu()` and `nn.ReLU()(x)` are one function with one name. Of each it is known whether
its values are never negative, and whether it is what networks end with.

>>> import torch
>>> FUNCTIONS[torch.nn.functional.relu], FUNCTIONS[torch.Tensor.relu], name_of(torch.nn.ReLU())
('relu', 'relu', 'relu')
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

# Those that `quantize_` quantizes unless told otherwise.
_REPLACED: dict[str, type[nn.Module]] = {
    "relu": nn.ReLU,
    "relu6": nn.ReLU6,
    "leaky_relu": nn.LeakyReLU,
    "prelu": nn.PReLU,
    "elu": nn.ELU,
    "gelu": nn.GELU,
    "silu": nn.SiLU,
    "mish": nn.Mish,
    "hardtanh": nn.Hardtanh,
    "hardswish": nn.Hardswish,
    "hardsigmoid": nn.Hardsigmoid,
    "sigmoid": nn.Sigmoid,
    "tanh": nn.Tanh,
}
ACTIVATIONS: tuple[type[nn.Module], ...] = tuple(_REPLACED.values())
KINDS: dict[str, type[nn.Module]] = _REPLACED | {
    "celu": nn.CELU,
    "glu": nn.GLU,
    "hardshrink": nn.Hardshrink,
    "log_softmax": nn.LogSoftmax,
    "logsigmoid": nn.LogSigmoid,
    "rrelu": nn.RReLU,
    "selu": nn.SELU,
    "softmax": nn.Softmax,
    "softmin": nn.Softmin,
    "softplus": nn.Softplus,
    "softshrink": nn.Softshrink,
    "softsign": nn.Softsign,
    "tanhshrink": nn.Tanhshrink,
    "threshold": nn.Threshold,
}
# They make scores into probabilities or images: at the end of a network nobody multiplies what they give.
OUTPUTS = frozenset({"sigmoid", "softmax", "log_softmax", "logsigmoid", "softmin", "tanh"})
_NOT_NEGATIVE = frozenset({"relu", "relu6", "hardsigmoid", "sigmoid", "softplus", "softmax"})


def _functions() -> dict[Callable[..., Any], str]:
    """Every spelling of each function: in place or not, of torch.nn.functional, torch and Tensor."""
    places = (F, torch, torch.Tensor, torch.special)
    spelled = {name: [getattr(place, f"{name}{end}", None) for place in places for end in ("", "_")] for name in KINDS}
    return {function: name for name, functions in spelled.items() for function in functions if function is not None}


FUNCTIONS = _functions()
IN_PLACE = frozenset(function for function in FUNCTIONS if function.__name__.endswith("_"))
METHODS = {f"{name}{end}" for name in KINDS for end in ("", "_") if hasattr(torch.Tensor, f"{name}{end}")}


def name_of(module: nn.Module) -> str | None:
    """The name of the function that an activation module of torch computes; None for any other module."""
    for name, kind in KINDS.items():
        if type(module) is kind:
            return name
    return next((name for name, kind in KINDS.items() if isinstance(module, kind)), None)


def is_never_negative(name: str, module: nn.Module | None = None) -> bool:
    """Whether the function has no negative values; `module` is asked for its bounds."""
    if name == "hardtanh" and isinstance(module, nn.Hardtanh):
        return module.min_val >= 0
    return name in _NOT_NEGATIVE
