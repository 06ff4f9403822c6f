"""lehr anneals float neural networks into quantized ones (Additive Noise Annealing, arXiv 1905.10452).

float model -> quantize_ -> train with annealed noise -> freeze -> IntegerNet -> packed file / ONNX / C -> run anywhere

`import lehr` needs torch alone; names and rooms (`lehr.models`, `lehr.data`, `lehr.deploy`, ...) load when they are
used.
"""

from __future__ import annotations

import importlib
import importlib.util
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lehr import algorithms, approximation, data, deploy, models
    from lehr.annealing import Annealer
    from lehr.calibration import calibrate_
    from lehr.convert import quantize_
    from lehr.deploy.check import check
    from lehr.deploy.freeze import freeze
    from lehr.dequantize import dequantize_
    from lehr.estimator import Estimator
    from lehr.expectation import quantize
    from lehr.layer_loss import sensitivity
    from lehr.layers import Conv1d, Conv2d, Conv3d, Linear
    from lehr.multistep import MultiStep
    from lehr.noise import Dirac, Logistic, Normal, Triangular, Uniform
    from lehr.quantizer import Quantizer
    from lehr.transposed import ConvTranspose1d, ConvTranspose2d, ConvTranspose3d

__version__ = "0.2.0"  # the one place: pyproject.toml reads it

__all__ = [
    "Annealer",
    "Conv1d",
    "Conv2d",
    "Conv3d",
    "ConvTranspose1d",
    "ConvTranspose2d",
    "ConvTranspose3d",
    "Dirac",
    "Estimator",
    "Linear",
    "Logistic",
    "MultiStep",
    "Normal",
    "Quantizer",
    "Triangular",
    "Uniform",
    "algorithms",
    "approximation",
    "calibrate_",
    "check",
    "data",
    "deploy",
    "dequantize_",
    "freeze",
    "models",
    "quantize",
    "quantize_",
    "sensitivity",
]

# Where each name is, so that it is imported when it is used: `lehr --help` does not wait for torch.
_NAMES = {
    "annealing": ("Annealer",),
    "calibration": ("calibrate_",),
    "convert": ("quantize_",),
    "dequantize": ("dequantize_",),
    "deploy.check": ("check",),
    "deploy.freeze": ("freeze",),
    "estimator": ("Estimator",),
    "expectation": ("quantize",),
    "layers": ("Conv1d", "Conv2d", "Conv3d", "Linear"),
    "multistep": ("MultiStep",),
    "quantizer": ("Quantizer",),
    "noise": ("Dirac", "Logistic", "Normal", "Triangular", "Uniform"),
    "layer_loss": ("sensitivity",),
    "transposed": ("ConvTranspose1d", "ConvTranspose2d", "ConvTranspose3d"),
}


def __getattr__(name: str) -> Any:
    for module, names in _NAMES.items():
        if name in names:
            value = getattr(importlib.import_module(f"lehr.{module}"), name)
            globals()[name] = value
            return value
    if not name.startswith("_") and importlib.util.find_spec(f"lehr.{name}") is not None:
        return importlib.import_module(f"lehr.{name}")
    raise AttributeError(f"module 'lehr' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
