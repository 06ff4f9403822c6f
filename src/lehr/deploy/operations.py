"""The vocabulary of integer networks: values, quantized weights and the operations, as plain dataclasses.

A network starts with a `Table`, which maps each pixel or number of 8 bits to an integer, or with `Floats`, which are
float32 as they come, and `Round`, which makes integers of them. It usually goes on with

    Conv or Linear      s = sum of weight * value, both integers: no rounding anywhere
    MaxPool or SumPool  the largest, or the sum, of a window (an average, its division left to the thresholds)
    Threshold           code = number of k with direction * s >= t_k; the value is levels[code]
    Requantize          the same for many even levels: a product, a sum and a shift
    Add, Flatten        residual additions; (channel, row, column) order
    Multiply            a gate for each channel, as in squeeze-and-excite
    Concat, Take        channels behind each other; slices, shuffles, upsampling, padding: values at other places
    Affine              logit = scale * s + shift, per class, in float32

The kind of a value follows from its operation: a sum is an integer if weights and values are integers, and
float32 otherwise, so layers that were not quantized are the same operations on floats: `Affine` is also
BatchNorm and dequantization, `Clip` is ReLU6, and a `Threshold` with float thresholds quantizes.

`Operation.infer` computes shape, kind and the exact range of a result. A sum that could leave int32 is refused
there, so no backend has to think of overflow. H(0) = 1: direction * s >= t_k goes up.

>>> Linear("sums", "flat", Weights.of([[1, -1], [0, 1]])).infer(Value((2, 1, 1), "integer", 0, 1))
Value(shape=(2, 1, 1), kind='integer', low=-1, high=1)
"""

from lehr.deploy.abstract import Operation
from lehr.deploy.constants import Pair, short
from lehr.deploy.input_operations import Floats, Round, Table
from lehr.deploy.point_operations import Add, Affine, Clip, Multiply, Requantize, Threshold
from lehr.deploy.shape_operations import Concat, Flatten, Take
from lehr.deploy.values import ALWAYS, NEVER, Shape, Value, Weights, as_shape
from lehr.deploy.window_operations import Conv, Linear, MaxPool, SumPool

__all__ = [
    "ALWAYS",
    "NEVER",
    "Add",
    "Affine",
    "Clip",
    "Concat",
    "Conv",
    "Flatten",
    "Floats",
    "Linear",
    "MaxPool",
    "Multiply",
    "Operation",
    "Pair",
    "Requantize",
    "Round",
    "Shape",
    "SumPool",
    "Table",
    "Take",
    "Threshold",
    "Value",
    "Weights",
    "as_shape",
    "short",
]
