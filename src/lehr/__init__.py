"""lehr anneals float neural networks into quantized ones (Additive Noise Annealing, arXiv 1905.10452).

float model -> quantize_ -> train with annealed noise -> freeze -> IntegerNet -> packed file / ONNX / C -> run anywhere
"""

from lehr.annealing import Annealer
from lehr.convert import quantize_
from lehr.expectation import quantize
from lehr.layers import Conv1d, Conv2d, Conv3d, Linear, Quantizer
from lehr.multistep import MultiStep
from lehr.noise import Dirac, Logistic, Normal, Triangular, Uniform

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
    "quantize",
    "quantize_",
]
