"""The structs of the C runtime in memory: a `Plan` as what `lehr_run_batch` reads, by ctypes.

Fields and their order are those of structs.py, which runtime/lehr.h repeats.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from lehr.deploy.plan import Plan, Result
from lehr.deploy.structs import INSTRUCTION_SETS, Areas, Layer, Planes, Strips, Tiles

_PER_INSTRUCTION_SET = ctypes.c_int32 * len(INSTRUCTION_SETS)


def _fields(kind: type, special: dict[str, Any]) -> list[tuple[str, Any]]:
    """The fields of a struct of structs.py as ctypes wants them; `special`: those that are no plain number."""
    names = [name for name in kind.__dataclass_fields__ if name not in ("name", "value", "why")]
    return [(name, special.get(name, ctypes.c_int32)) for name in names]


class _Areas(ctypes.Structure):
    _fields_ = _fields(Areas, {})


class _Planes(ctypes.Structure):
    _fields_ = _fields(Planes, {"areas": _Areas * len(INSTRUCTION_SETS)})


class _Tiles(ctypes.Structure):
    _fields_ = _fields(Tiles, {})


class _Strips(ctypes.Structure):
    _fields_ = _fields(Strips, {})


class _Layer(ctypes.Structure):
    _fields_ = _fields(
        Layer,
        {
            **dict.fromkeys(("low", "high"), ctypes.c_float),
            **dict.fromkeys(
                ("weights", "thresholds", "directions", "levels", "multipliers", "offsets", "scale", "shift", "cuts"),
                ctypes.c_void_p,
            ),
            "planes": ctypes.POINTER(_Planes),
            "tiles": ctypes.POINTER(_Tiles),
            "strips": ctypes.POINTER(_Strips),
            "built_for": _PER_INSTRUCTION_SET,
            "scratch": _PER_INSTRUCTION_SET,
        },
    )


class Net(ctypes.Structure):
    """`struct lehr_net`."""

    _fields_ = [
        ("layers", ctypes.POINTER(_Layer)),
        ("count", ctypes.c_int32),
        ("image_bytes", ctypes.c_uint32),
        ("outputs", ctypes.c_int32),
        ("scores", ctypes.c_uint32),
        ("logits", ctypes.c_uint32),
        ("scores_type", ctypes.c_int32),
        ("logits_type", ctypes.c_int32),
        ("memory", _PER_INSTRUCTION_SET),
    ]


# The struct of each name in lehr.h.
STRUCTS: dict[str, type[ctypes.Structure]] = {
    "lehr_areas": _Areas,
    "lehr_planes": _Planes,
    "lehr_tiles": _Tiles,
    "lehr_strips": _Strips,
    "lehr_layer": _Layer,
    "lehr_net": Net,
}


def net_struct(plan: Plan, result: Result) -> Net:
    """The network as C structs, for one output. They point into the plan's arrays, which the engine keeps alive."""
    layers = (_Layer * len(plan.layers))()
    for struct, layer in zip(layers, plan.layers, strict=True):
        _fill(struct, layer)
    net = Net()
    net.layers = ctypes.cast(layers, ctypes.POINTER(_Layer))
    net.count = len(plan.layers)
    net.image_bytes = plan.image_bytes
    for name in ("outputs", "scores", "logits", "scores_type", "logits_type"):
        setattr(net, name, getattr(result, name))
    net.memory = plan.memory
    return net


def _fill(struct: ctypes.Structure, source: Layer | Planes | Tiles | Strips | Areas) -> ctypes.Structure:
    """Copy the fields of `source` that the struct has."""
    for name, *_ in struct._fields_:
        value = getattr(source, name)
        match value:
            case np.ndarray():
                setattr(struct, name, value.ctypes.data)
            case Planes():
                setattr(struct, name, ctypes.pointer(_fill(_Planes(), value)))
            case Tiles():
                setattr(struct, name, ctypes.pointer(_fill(_Tiles(), value)))
            case Strips():
                setattr(struct, name, ctypes.pointer(_fill(_Strips(), value)))
            case (Areas(), *_):
                setattr(struct, name, tuple(_fill(_Areas(), areas) for areas in value))
            case _:
                setattr(struct, name, value)
    return struct
