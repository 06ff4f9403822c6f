"""From a trained network to integers that run: `IntegerNet`, packed files, ONNX, C, and the CPU engine.

Importing it needs neither onnx nor safetensors: they are loaded by whoever writes or reads such a file. `to_c` and
`to_onnx` are imported at once, since a submodule imported later would take the name of its function.
"""

from typing import TYPE_CHECKING, Any

from lehr.deploy.engine import Engine, compile
from lehr.deploy.integer_net import IntegerNet
from lehr.deploy.to_c import to_c
from lehr.deploy.to_onnx import to_onnx, to_qonnx

if TYPE_CHECKING:
    from lehr.deploy.pack import load

__all__ = ["Engine", "IntegerNet", "compile", "load", "to_c", "to_onnx", "to_qonnx"]


def __getattr__(name: str) -> Any:
    if name == "load":
        from lehr.deploy.pack import load

        return load
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
