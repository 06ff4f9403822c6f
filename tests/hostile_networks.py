"""Networks as expensive as a packed file may be: within the default limits, and dear each in its own way.

As a program it loads one, shows it, classifies an image and says what that took:

    python hostile_networks.py FILE engine|reference
"""

from __future__ import annotations

import itertools
import resource
import sys
import time
from collections.abc import Callable

import numpy as np

from lehr.deploy import compile, load
from lehr.deploy.integer_net import IntegerNet
from lehr.deploy.operations import Add, Conv, Flatten, Linear, MaxPool, SumPool, Table, Threshold, Weights

TRITS = np.arange(256) % 3 - 1


def _table(channels: int, row: np.ndarray = TRITS) -> Table:
    return Table("pixels", np.tile(row, (channels, 1)))


def pool() -> IntegerNet:
    """Windows as large as the image: 8 thousand million comparisons."""
    return IntegerNet((1, 296, 296), (_table(1), MaxPool("pool", "pixels", (296, 296), (1, 1), (148, 148))))


def tall() -> IntegerNet:
    """Windows of one column: their numbers lie far apart."""
    return IntegerNet((8, 1024, 256), (_table(8), MaxPool("pool", "pixels", (1024, 1), (1, 1), (512, 0))))


def narrow() -> IntegerNet:
    """Rows of one output, where a weight's place costs more than its product."""
    weight = np.ones((12, 1, 1023, 1), np.float32)
    table = _table(1, np.arange(256) / 255)
    return IntegerNet((1, 2**16, 1), (table, Conv("conv", "pixels", weight, padding=(511, 0))))


def gathered() -> IntegerNet:
    """A convolution with few outputs and large windows: the reference run lays out 67 million numbers."""
    weight = Weights(np.zeros((1, 1, 255, 255), np.uint8), (1,))
    return IntegerNet((1, 286, 286), (_table(1), Conv("conv", "pixels", weight)))


def apart() -> IntegerNet:
    """Weights a quarter of a million rows apart, in padding: planes of zeros, of 67 million bytes."""
    weight = Weights(np.full((8, 1, 3, 1), 2, np.uint8), (-1, 0, 1))
    conv = Conv("conv", "pixels", weight, padding=(2**18, 0), dilation=(2**18, 1))
    return IntegerNet((1, 64, 120), (_table(1), conv))


def depthwise() -> IntegerNet:
    """A million groups, each of which costs the reference run a call."""
    channels = 2**20
    ones = Weights(np.zeros((channels, 1, 1, 1), np.uint8), (1,))
    operations = (_table(1), Conv("spread", "pixels", ones), Conv("conv", "spread", ones, groups=channels))
    return IntegerNet((1, 1, 1), operations)


def thresholds() -> IntegerNet:
    """The largest values a network may have, thresholds of 255 levels, and many of them alive at once."""
    cut = Threshold("cut", "pixels", np.arange(255)[None] - 128, np.array([1]), tuple(range(256)))
    return IntegerNet((1, 4096, 4096), (_table(1), cut, Add("sum", "cut", "pixels"), Flatten("flat", "sum")))


def chain() -> IntegerNet:
    """Five thousand operations, integers that live long: eight bytes each in the reference run."""
    count = 2499
    first = [MaxPool(f"a{i}", "pixels", (1, 1), (1, 1)) for i in range(count)]
    sums = [Add("s1", "a0", "a1"), *(Add(f"s{i}", f"s{i - 1}", f"a{i}") for i in range(2, count))]
    return IntegerNet((1, 128, 150), (_table(1), *first, *sums))


def outputs() -> IntegerNet:
    """Sixteen million classes without names."""
    return IntegerNet((1, 4096, 4096), (_table(1), Flatten("flat", "pixels")))


def sums() -> IntegerNet:
    """Floats whose windows are sums, in double."""
    table = _table(1, np.arange(256) / 255)
    return IntegerNet((1, 296, 296), (table, SumPool("pool", "pixels", (296, 296), (1, 1), (148, 148))))


def weights() -> IntegerNet:
    """As many weights as 4 MB of bits hold."""
    ones = Weights(np.zeros((8192, 4096), np.uint8), (1,))
    return IntegerNet((1, 64, 64), (_table(1), Flatten("flat", "pixels"), Linear("fc", "flat", ones)))


def floats() -> IntegerNet:
    """Ordinary convolutions of floats, with as many products as are allowed."""
    weight = np.full((64, 64, 3, 3), 1e-3, np.float32)
    names = ("pixels", *(f"conv{i}" for i in range(6)))
    convs = (Conv(name, source, weight, padding=(1, 1)) for source, name in itertools.pairwise(names))
    return IntegerNet((64, 340, 340), (_table(64, np.arange(256) / 255), *convs))


def strided() -> IntegerNet:
    """Integers of eight bits, of which every other one is left out."""
    levels = tuple(range(-128, 128))
    codes = np.random.default_rng(0).integers(0, 256, (256, 64, 3, 5), dtype=np.uint8)
    conv = Conv("conv", "pixels", Weights(codes, levels), (1, 2), (1, 2))
    return IntegerNet((64, 340, 340), (_table(64, np.arange(256) - 128), conv))


def grouped() -> IntegerNet:
    """Large windows of few channels: the reference run lays out 80 times 50 million numbers."""
    weight = np.full((16, 1, 9, 9), 1e-2, np.float32)
    names = ("pixels", *(f"conv{i}" for i in range(80)))
    convs = (Conv(name, source, weight, padding=(4, 4), groups=16) for source, name in itertools.pairwise(names))
    return IntegerNet((16, 200, 200), (_table(16, np.arange(256) / 255), *convs))


HOSTILE: dict[str, Callable[[], IntegerNet]] = {
    make.__name__: make
    for make in (
        *(pool, tall, narrow, gathered, apart, depthwise, thresholds, chain, outputs, sums, weights, floats),
        *(strided, grouped),
    )
}


LONG = (
    "pool",
    "tall",
    "sums",
    "floats",
    "depthwise",
    "narrow",
    "strided",
    "grouped",
    "chain",
)  # those that take more than some seconds


def main(*arguments: str) -> None:
    """For each pair of a file and a backend a line: seconds, and the most megabytes that were in use so far."""
    for file, backend in zip(arguments[::2], arguments[1::2], strict=True):
        start = time.perf_counter()
        net = load(file)
        str(net.summary())
        image = np.random.default_rng(0).integers(0, 256, (1, *net.input_shape), dtype=np.uint8)
        (net if backend == "reference" else compile(net)).predict(image)
        megabytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(file, backend, time.perf_counter() - start, megabytes, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
