"""From a trained network to integers that run: `IntegerNet`, packed files, ONNX, C, and the CPU engine.

Each name loads its module when it is first used, so that running an integer network needs neither onnx nor
safetensors.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lehr.deploy.engine import CompilerError, Engine, compile
    from lehr.deploy.integer_net import IntegerNet
    from lehr.deploy.pack import load
    from lehr.deploy.to_c import to_c
    from lehr.deploy.to_onnx import to_onnx, to_qonnx

_HOMES = {
    "CompilerError": "engine",
    "Engine": "engine",
    "IntegerNet": "integer_net",
    "compile": "engine",
    "load": "pack",
    "to_c": "to_c",
    "to_onnx": "to_onnx",
    "to_qonnx": "to_onnx",
}

__all__ = ["CompilerError", "Engine", "IntegerNet", "compile", "load", "to_c", "to_onnx", "to_qonnx"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


class _Deploy(ModuleType):
    """Importing the module `to_c` would bind it here under its name and so hide the function; not so here."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in _HOMES or not isinstance(value, ModuleType):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Deploy
