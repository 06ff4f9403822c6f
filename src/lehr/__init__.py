"""lehr anneals float neural networks into quantized ones (Additive Noise Annealing, arXiv 1905.10452).

float model -> quantize_ -> train with annealed noise -> freeze -> IntegerNet -> packed file / ONNX / C -> run anywhere

`import lehr` needs torch alone. The rooms `lehr.models`, `lehr.data`, `lehr.deploy`, ... and `lehr.freeze` load when
they are used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from lehr.annealing import Annealer
from lehr.convert import quantize_
from lehr.expectation import quantize
from lehr.layers import Conv1d, Conv2d, Conv3d, Linear, Quantizer
from lehr.multistep import MultiStep
from lehr.noise import Dirac, Logistic, Normal, Triangular, Uniform

if TYPE_CHECKING:
    from lehr import algorithms, approximation, data, deploy, models
    from lehr.deploy.freeze import freeze

__version__ = "0.1.0"

__all__ = [
    "Annealer",
    "Conv1d",
    "Conv2d",
    "Conv3d",
    "Dirac",
    "Linear",
    "Logistic",
    "MultiStep",
    "Normal",
    "Quantizer",
    "Triangular",
    "Uniform",
    "algorithms",
    "approximation",
    "data",
    "deploy",
    "freeze",
    "models",
    "quantize",
    "quantize_",
]

_ROOMS = ("algorithms", "approximation", "data", "deploy", "models")


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        return importlib.import_module(f"lehr.{name}")
    if name == "freeze":
        return importlib.import_module("lehr.deploy.freeze").freeze
    raise AttributeError(f"module 'lehr' has no attribute {name!r}")
