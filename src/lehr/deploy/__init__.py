"""From a trained network to integers that run: `IntegerNet`, packed files, ONNX, C, WebAssembly, and the CPU engine.

Each name loads its module when it is first used, so that running an integer network needs neither onnx nor
safetensors.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lehr.deploy.build import CompilerError
    from lehr.deploy.cpu import Engine, compile
    from lehr.deploy.freeze_errors import FloatWarning, FreezeError
    from lehr.deploy.integer_net import IntegerNet
    from lehr.deploy.pack import load
    from lehr.deploy.unpack import BadFile
    from lehr.deploy.write_c import to_c
    from lehr.deploy.write_hls4ml import to_hls4ml
    from lehr.deploy.write_html import to_html
    from lehr.deploy.write_onnx import to_onnx, to_qonnx
    from lehr.deploy.write_wasm import to_wasm

_HOMES = {
    "BadFile": "unpack",
    "CompilerError": "build",
    "Engine": "cpu",
    "FloatWarning": "freeze_errors",
    "FreezeError": "freeze_errors",
    "IntegerNet": "integer_net",
    "compile": "cpu",
    "load": "pack",
    "to_c": "write_c",
    "to_hls4ml": "write_hls4ml",
    "to_html": "write_html",
    "to_onnx": "write_onnx",
    "to_qonnx": "write_onnx",
    "to_wasm": "write_wasm",
}

__all__ = [
    "BadFile",
    "CompilerError",
    "Engine",
    "FloatWarning",
    "FreezeError",
    "IntegerNet",
    "compile",
    "load",
    "to_c",
    "to_hls4ml",
    "to_html",
    "to_onnx",
    "to_qonnx",
    "to_wasm",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
