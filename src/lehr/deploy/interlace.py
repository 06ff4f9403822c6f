"""Transposed convolutions as plain ones, whose outputs for the places between two inputs are put between them.

A transposed convolution of stride s has s * s outputs for each input, each from a few of its weights: in one dimension
output y reads weight k of input q where y + padding = s * q + k. So the outputs with (y + padding) % s = p are a plain
convolution with the weights p, p + s, p + 2 s, ..., in reverse; there are s such convolutions, and `interlaced` puts
their results in order. No product is with a zero that was put in between, unless s does not divide the kernel.
"""

from __future__ import annotations

import numpy as np

from lehr.deploy.operations import Pair, Shape


def between(
    weight: np.ndarray,  # (out, in / groups, row, column)
    stride: Pair,
    dilation: Pair,
) -> np.ndarray:
    """The weights of the plain convolution, (out * rows of stride * columns of stride, in / groups, row, column)."""
    out, inputs, *kernel = weight.shape
    sizes = [step * (k - 1) + 1 for k, step in zip(kernel, dilation, strict=True)]
    taps = [-(-size // s) for size, s in zip(sizes, stride, strict=True)]
    spread = np.zeros((out, inputs, *(t * s for t, s in zip(taps, stride, strict=True))), weight.dtype)
    spread[:, :, : sizes[0] : dilation[0], : sizes[1] : dilation[1]] = weight
    split = spread.reshape(out, inputs, taps[0], stride[0], taps[1], stride[1])[:, :, ::-1, :, ::-1]
    phases = split.transpose(0, 3, 5, 1, 2, 4)
    return np.ascontiguousarray(phases.reshape(out * stride[0] * stride[1], inputs, *taps))


def interlaced(source: Shape, target: Shape, stride: Pair, padding: Pair) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The offsets of a `Take` that puts the results of the plain convolution where they belong."""
    _, rows, columns = source
    plane = rows * columns
    found = []
    for size, had, s, p, phase_apart, apart in (
        (target[1], rows, stride[0], padding[0], stride[1] * plane, columns),
        (target[2], columns, stride[1], padding[1], plane, 1),
    ):
        at = np.arange(size) + p
        offsets = at % s * phase_apart + at // s * apart
        found.append(np.where(at // s < had, offsets, -1))  # behind the last: output_padding, where nothing reaches
    return np.arange(target[0]) * stride[0] * stride[1] * plane, found[0], found[1]
