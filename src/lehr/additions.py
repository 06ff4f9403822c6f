"""Additions of two tensors: `a + b`, `a += b`, `torch.add(a, b)`, `a.add(b)` and `a.add_(b)` are one function.

`quantize_` quantizes both sides of an addition on one scale, so that frozen networks add integers. An addition with a
multiple (alpha) and one of a number are none of these.

>>> a, b = torch.ones(2), torch.ones(2)
>>> summands((a, b), {}) is not None, summands((a, 1), {}) is not None
(True, False)
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx

ADDITION = "add"  # its name among the calls of a forward
FUNCTIONS = frozenset({torch.add, Tensor.add, Tensor.add_})
IN_PLACE = frozenset({Tensor.add_})
OPERATORS = frozenset({operator.add, operator.iadd})  # what torch.fx records for a + b
METHODS = frozenset({"add", "add_"})
_NOT_CALLERS = frozenset({"lehr.additions", "lehr.calls", "lehr.observe", "lehr.symbolic", "lehr.uses"})
_SIZES = frozenset({"size", "dim", "numel", "shape", "ndim"})


def summands(args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, Any] | None:
    """Both sides of a call of an addition if they are tensors, or stand for tensors; else None."""
    named = (*args, *(kwargs[name] for name in ("input", "other") if name in kwargs))
    if len(named) != 2 or len(args) + len(kwargs) != 2 or not all(_is_tensor(x) for x in named):
        return None
    return named[0], named[1]


def line() -> tuple[str, int]:
    """The function that adds, and which of its lines: hooks, quantizers and layers add tensors too, elsewhere."""
    frame = sys._getframe(1)
    while frame.f_back is not None:
        name = frame.f_globals.get("__name__", "")
        if name not in _NOT_CALLERS and not name.startswith("torch."):
            break
        frame = frame.f_back
    return frame.f_code.co_name, frame.f_lineno - frame.f_code.co_firstlineno


def _is_tensor(x: Any) -> bool:
    return isinstance(x, Tensor) or (isinstance(x, fx.Proxy) and not _is_size(x.node))


def _is_size(node: fx.Node) -> bool:
    """Whether the node asks for a size of a tensor, or computes with sizes alone."""
    if node.target in _SIZES or (node.target is getattr and node.args[1] in _SIZES):
        return True
    is_arithmetic = node.op == "call_function" and getattr(node.target, "__module__", "") == "_operator"
    return is_arithmetic and bool(node.all_input_nodes) and all(_is_size(source) for source in node.all_input_nodes)
