"""What microcontrollers run: packed trits, cuts and strips give the sums of the reference run, whatever the network."""

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import lehr
from lehr.deploy import cpu
from lehr.deploy.integer_net import IntegerNet
from lehr.deploy.operations import (
    ALWAYS,
    NEVER,
    Add,
    Conv,
    Flatten,
    Linear,
    MaxPool,
    Operation,
    Requantize,
    SumPool,
    Table,
    Threshold,
    Weights,
)
from lehr.deploy.plan import plan
from lehr.deploy.structs import INSTRUCTION_SETS, Routine, Type

TRITS = (-1, 0, 1)
QUICK = settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])


def drawn_network(draw, seed):
    """Convolutions, pools, shortcuts and linear layers, between which values are trits or wider."""
    rng = np.random.default_rng(seed)
    channels = draw(st.sampled_from([1, 3]))
    shape = (channels, draw(st.integers(5, 19)), draw(st.integers(5, 19)))
    operations: list[Operation] = [Table("pixels", np.tile(np.arange(-128, 128), (channels, 1)))]

    def value():
        return IntegerNet(shape, tuple(operations)).output

    def add(kind, *arguments, **keywords):
        name = f"{kind.__name__}{len(operations)}"
        operations.append(kind(name, operations[-1].name, *arguments, **keywords))

    def weights(*of):
        return Weights(rng.integers(0, 3, of), TRITS)

    def cut():
        if draw(st.integers(0, 5)) == 0:
            many = value().shape[0]
            add(Requantize, rng.integers(-(2**18), 2**18, many), rng.integers(-(2**21), 2**21, many), 20, -5, 6)
            return
        now, levels = value(), draw(st.sampled_from([TRITS, TRITS, TRITS, (-1, 1), (0, 1), (1, 0, -1), (0, 1, 2, 3)]))
        cuts = np.sort(rng.integers(now.low // 3 - 1, now.high // 3 + 2, (now.shape[0], len(levels) - 1)))
        cuts[rng.random(len(cuts)) < 0.1] = ALWAYS
        cuts[rng.random(len(cuts)) < 0.1, -1] = NEVER
        add(Threshold, cuts, rng.choice([-1, 1], len(cuts)), levels)

    for _ in range(draw(st.integers(1, 3))):
        in_channels, rows, columns = value().shape
        window = [draw(st.sampled_from([1, 3, 3, 5])) for _ in range(2)]
        padding = tuple(
            draw(st.integers(k // 2 if k > size else 0, k)) for k, size in zip(window, (rows, columns), strict=True)
        )
        outs = draw(st.sampled_from([2, 8, 12, in_channels]))
        before = operations[-1].name
        stride = (draw(st.sampled_from([1, 1, 2])), draw(st.sampled_from([1, 1, 2, 3])))
        add(Conv, weights(outs, in_channels, *window), stride=stride, padding=padding)
        pool = draw(st.sampled_from([(1, 1), (2, 2), (2, 2), (1, 2), (3, 2)]))
        now = value().shape
        if pool != (1, 1) and now[1] >= pool[0] and now[2] >= pool[1]:
            add(MaxPool, pool, pool)
        elif now == (in_channels, rows, columns):
            add(Add, before)
        cut()
    if draw(st.booleans()):
        _, rows, columns = value().shape
        add(SumPool, (rows, 1), (rows, 1))
    add(Flatten)
    for outs in draw(st.sampled_from([(5,), (33, 5), (64, 40)])):
        add(Linear, weights(outs, value().size))
        if outs != 5:
            cut()
    return IntegerNet(shape, tuple(operations))


@QUICK
@given(st.data(), st.integers(0, 2**32 - 1))
def test_networks_put_together_by_chance(data, seed):
    net = drawn_network(data.draw, seed)
    images = np.random.default_rng(seed).integers(0, 256, (2, *net.input_shape), dtype=np.uint8)
    engine = cpu.compile(net, instruction_set="small")
    np.testing.assert_array_equal(engine.scores(images), net.scores(images))


def vgg_like():
    rng = np.random.default_rng(0)

    def cut(name, source, channels, spread):
        cuts = np.sort(rng.integers(-spread, spread, (channels, 2)))
        return Threshold(name, source, cuts, rng.choice([-1, 1], channels), TRITS)

    return IntegerNet(
        (3, 16, 16),
        (
            Table("pixels", np.tile(np.arange(-128, 128), (3, 1))),
            Conv("conv1", "pixels", Weights(rng.integers(0, 3, (16, 3, 3, 3)), TRITS), padding=(1, 1)),
            cut("act1", "conv1", 16, 600),
            Conv("conv2", "act1", Weights(rng.integers(0, 3, (24, 16, 3, 3)), TRITS), padding=(1, 1)),
            MaxPool("pool2", "conv2", (2, 2), (2, 2)),
            cut("act2", "pool2", 24, 12),
            Flatten("flat", "act2"),
            Linear("scores", "flat", Weights(rng.integers(0, 3, (10, 24 * 64)), TRITS)),
        ),
    )


def test_trits_take_two_bits_and_thresholds_two_numbers_of_16():
    layers = {layer.name: layer for layer in plan(vgg_like(), "small").layers}
    assert layers["act1"].target_type == layers["act2"].source_type == Type.TRIT
    assert layers["act1"].cuts.shape == (16, 2)
    assert layers["act1"].cuts.dtype == np.uint16
    assert layers["act1"].thresholds is None
    assert layers["scores"].routine == Routine.COUNTERS
    assert layers["act2"].source % 64 == 0
    assert plan(vgg_like(), "small").value_bytes <= 16 * 16 * (3 + 16 // 4) + 64


@pytest.mark.parametrize(("width", "most"), [(1, 38_000), (2, 66_000)])
def test_a_residual_network_fits_a_microcontroller(width, most):
    """ResNet-8 as MLPerf Tiny has it, whose int8 networks take some 70 KB, and at twice its width."""
    torch.manual_seed(0)
    images = torch.randint(256, (2, 3, 32, 32), dtype=torch.uint8)
    model = lehr.models.ResNet(depth=8, width=width, input_bits=8)
    lehr.quantize_(model, weights="ternary", activations="ternary", data=[images])
    planned = plan(lehr.freeze(model.eval(), images), "small")
    assert planned.memory_on("small") <= most
    # scratch lies where values are no longer needed: the layers with most of both are not the same
    scratch = max(layer.scratch[INSTRUCTION_SETS.index("small")] for layer in planned.layers)
    assert planned.memory_on("small") < planned.value_bytes + scratch


@pytest.mark.parametrize(
    ("levels", "channels", "why"),
    [
        ((-1, 0, 2), 3, "the weights are not in {-1, 0, 1}"),
        (TRITS, 600, "its sums leave 16 bits"),
    ],
)
def test_a_layer_that_falls_back_says_why(levels, channels, why):
    rng = np.random.default_rng(0)
    table = Table("pixels", np.tile(np.arange(-128, 128), (channels, 1)))
    weights = Weights(rng.integers(0, 3, (8, channels, 1, 1)), levels)
    net = IntegerNet((channels, 2, 2), (table, Conv("conv", "pixels", weights)))
    (_, row) = cpu.compile(net, instruction_set="small").describe().rows
    assert (row.routine, row.why) == ("direct", why)
