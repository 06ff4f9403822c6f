"""Integer networks: exact arithmetic, ranges known before any image, errors that say what is right."""

# Arrays are given as lists here, which the dataclasses take as well.
# pyright: reportArgumentType=false

import numpy as np
import pytest
import torch

from lehr.deploy.integer_net import IntegerNet
from lehr.deploy.operations import (
    ALWAYS,
    NEVER,
    Add,
    Affine,
    Clip,
    Conv,
    Flatten,
    Linear,
    MaxPool,
    SumPool,
    Table,
    Threshold,
    Value,
    Weights,
)

TRITS = (-1, 0, 1)
IDENTITY = np.arange(256)[None]


def net_of(shape, *operations, table=IDENTITY):
    return IntegerNet(shape, (Table("x", np.tile(table, (shape[0], 1))), *operations))


def ones(*shape):
    return Weights(np.zeros(shape, int), (1,))


def naive_conv(x, w, stride, padding, dilation, groups):
    """Restated with loops: (channel, row, column), (out, in / groups, row, column) -> (out, row, column)."""
    x = np.pad(x, ((0, 0), (padding[0],) * 2, (padding[1],) * 2))
    out, channels, rows, columns = w.shape
    height = (x.shape[1] - dilation[0] * (rows - 1) - 1) // stride[0] + 1
    width = (x.shape[2] - dilation[1] * (columns - 1) - 1) // stride[1] + 1
    result = np.zeros((out, height, width), np.int64)
    for o in range(out):
        first = o // (out // groups) * channels
        for y in range(height):
            for z in range(width):
                for c in range(channels):
                    for i in range(rows):
                        for j in range(columns):
                            row, column = y * stride[0] + i * dilation[0], z * stride[1] + j * dilation[1]
                            result[o, y, z] += int(w[o, c, i, j]) * int(x[first + c, row, column])
    return result


@pytest.mark.parametrize(
    ("stride", "padding", "dilation", "groups"),
    [
        ((1, 1), (1, 1), (1, 1), 1),
        ((2, 3), (0, 2), (1, 1), 1),
        ((1, 1), (2, 2), (2, 1), 2),
        ((1, 2), (1, 0), (1, 1), 4),
    ],
)
def test_conv_equals_the_sum_restated_with_loops(stride, padding, dilation, groups):
    rng = np.random.default_rng(0)
    weights = Weights(rng.integers(0, 4, (8, 4 // groups, 3, 2)), (-5, -1, 0, 127))
    net = net_of((4, 7, 8), Conv("y", "x", weights, stride, padding, dilation, groups), table=IDENTITY - 128)
    image = rng.integers(0, 256, (1, 4, 7, 8), dtype=np.uint8)
    expected = naive_conv(image[0].astype(int) - 128, weights.values, stride, padding, dilation, groups)
    np.testing.assert_array_equal(net.run(image)[0], expected.ravel())


def test_pools_take_the_largest_and_the_sum():
    image = np.array([[[[1, 9, 2], [3, 4, 8]]]], np.uint8)
    assert net_of((1, 2, 3), MaxPool("y", "x", (2, 2), (1, 1))).run(image).tolist() == [[9, 9]]
    assert net_of((1, 2, 3), SumPool("y", "x", (2, 2), (1, 1))).run(image).tolist() == [[17, 23]]


def test_padding_never_wins_a_maximum_and_counts_as_zero_in_a_sum():
    image = np.array([[[[1, 2]]]], np.uint8)
    negative = IDENTITY - 100
    maximum = net_of((1, 1, 2), MaxPool("y", "x", (1, 2), (1, 1), (0, 1)), table=negative)
    total = net_of((1, 1, 2), SumPool("y", "x", (1, 2), (1, 1), (0, 1)), table=negative)
    assert maximum.run(image).tolist() == [[-99, -98, -98]]
    assert total.run(image).tolist() == [[-99, -197, -98]]


def test_a_threshold_counts_from_its_own_value_on_in_both_directions():
    cut = Threshold("y", "x", np.array([[2, 4], [-4, -2]]), np.array([1, -1]), (-1, 0, 1))
    image = np.tile(np.arange(6, dtype=np.uint8), (1, 2, 1, 1))
    assert net_of((2, 1, 6), cut).run(image).reshape(2, 6).tolist() == [
        [-1, -1, 0, 0, 1, 1],
        [1, 1, 1, 0, 0, -1],
    ]


def test_always_and_never_make_constant_channels():
    cut = Threshold("y", "x", [[ALWAYS, ALWAYS], [NEVER, NEVER], [ALWAYS, NEVER]], [1, -1, 1], (5, 6, 7))
    image = np.arange(12, dtype=np.uint8).reshape(1, 3, 2, 2) * 20
    assert net_of((3, 2, 2), cut).run(image).tolist() == [[7] * 4 + [5] * 4 + [6] * 4]


def test_an_affine_map_rounds_the_product_and_the_sum():
    rng = np.random.default_rng(1)
    scale, shift = rng.normal(size=(2, 3)).astype(np.float32)
    net = net_of((3, 1, 1), Affine("y", "x", scale, shift))
    image = np.array([7, 100, 255], np.uint8).reshape(1, 3, 1, 1)
    expected = (np.float32([7, 100, 255]) * scale).astype(np.float32) + shift
    np.testing.assert_array_equal(net.run(image)[0], expected)


def test_scores_are_what_the_last_affine_map_reads():
    net = net_of((2, 1, 1), Affine("y", "x", [-1.0, -1.0], [0.0, 0.0]))
    image = np.array([3, 5], np.uint8).reshape(1, 2, 1, 1)
    assert net.scores(image).tolist() == [[3, 5]]
    assert net.run(image).tolist() == [[-3.0, -5.0]]
    assert net.predict(image).tolist() == [0]


def test_torch_in_torch_out_and_an_empty_batch():
    net = net_of((1, 2, 2), Flatten("y", "x"))
    assert torch.equal(net.run(torch.ones(3, 1, 2, 2, dtype=torch.uint8)), torch.ones(3, 4, dtype=torch.int64))
    assert net.run(np.empty((0, 1, 2, 2), np.uint8)).shape == (0, 4)


def test_a_batch_of_any_size_gives_what_single_images_give():
    net = net_of((1, 1, 2), Affine("y", "x", [0.3], [0.1]))
    images = np.random.default_rng(0).integers(0, 256, (131, 1, 1, 2), dtype=np.uint8)
    np.testing.assert_array_equal(net.run(images), np.concatenate([net.run(image[None]) for image in images]))


def test_the_range_of_a_sum_is_the_exact_worst_case():
    weights = Weights.of(np.array([[[[3]], [[-2]]], [[[1]], [[1]]]]))
    net = net_of((2, 1, 1), Conv("y", "x", weights), table=np.clip(IDENTITY - 4, -4, 10))
    assert net.values["y"] == Value((2, 1, 1), "integer", -3 * 4 - 2 * 10, 3 * 10 + 2 * 4)
    reached = [net.run(np.array([a, b], np.uint8).reshape(1, 2, 1, 1))[0, 0] for a, b in ((0, 14), (14, 0))]
    assert reached == [net.values["y"].low, net.values["y"].high]


@pytest.mark.parametrize(
    ("low", "high", "name"),
    [(-128, 127, "int8"), (-129, 0, "int16"), (0, 128, "int16"), (-32769, 0, "int32"), (1, 5, "int8")],
)
def test_the_dtype_of_a_value_is_the_narrowest_that_holds_its_range(low, high, name):
    assert Value((1, 1, 1), "integer", low, high).dtype == np.dtype(name)


def test_sums_up_to_the_limit_are_taken_and_one_more_tap_is_refused():
    taps = (2**31 - 2) // (32767 * 127)
    table = np.full((1, 256), 32767)

    def make(n):
        return net_of((n, 1, 1), Conv("y", "x", Weights(np.zeros((1, n, 1, 1), int), (127,))), table=table)

    image = np.zeros((1, taps, 1, 1), np.uint8)
    assert make(taps).run(image)[0, 0] == taps * 32767 * 127
    with pytest.raises(ValueError, match=r"y: its sums reach 0\.\.\d+, beyond int32"):
        make(taps + 1)


def test_a_branching_network_of_floats_and_integers():
    net = net_of(
        (1, 1, 2),
        Affine("float", "x", [0.5], [-1.0]),
        Clip("clipped", "float", 0.0, 6.0),
        Threshold("codes", "clipped", np.float32([[1.0, 6.0]]), [1], TRITS),
        Affine("back", "codes", [0.25], [0.0]),
        Add("y", "clipped", "back"),
    )
    image = np.array([[[[4, 200]]]], np.uint8)
    assert net.run(image).tolist() == [[1.0, 6.25]]
    assert net.values["codes"] == Value((1, 1, 2), "integer", -1, 1)


def test_summary_counts_bits_work_and_bytes():
    net = net_of(
        (2, 4, 4),
        Conv("conv", "x", Weights(np.ones((8, 2, 3, 3), int), TRITS), padding=(1, 1)),
        Threshold("act", "conv", np.zeros((8, 2), int), np.ones(8), TRITS),
        Flatten("flat", "act"),
        Linear("fc", "flat", Weights(np.zeros((3, 128), int), (-3, -1, 1, 3))),
        Affine("logits", "fc", np.ones(3), np.zeros(3)),
    )
    summary = net.summary()
    rows = {row.name: row for row in summary.rows}
    assert rows["conv"].macs == 8 * 16 * 18
    assert rows["conv"].bytes == -(-144 // 5)  # five trits a byte
    assert rows["conv"].weight_bits == pytest.approx(np.log2(3))
    assert rows["act"].value_bits == 2
    assert rows["act"].bytes == 8 * 2 * 4 + 8
    assert (rows["fc"].bytes, rows["fc"].weight_bits, rows["fc"].macs) == (3 * 128 // 4, 2.0, 384)
    assert summary.macs == 8 * 16 * 18 + 384
    assert str(summary).splitlines()[-1].split() == ["total", f"{summary.macs:,}", f"{summary.bytes:,}"]


def test_constants_cannot_be_changed_and_are_copies():
    codes = np.zeros((1, 1), int)
    weights = Weights(codes, TRITS)
    codes[:] = 2
    assert weights.values.tolist() == [[-1]]
    with pytest.raises(ValueError, match="read-only"):
        weights.codes[:] = 1


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: Weights([[3]], TRITS), ValueError, r"codes lie in 0\.\.2, got 3\.\.3"),
        (lambda: Weights([[0.5]], TRITS), TypeError, "codes are integers"),
        (lambda: Weights([[0]], (1, 0)), ValueError, "levels are 1 to 256 numbers in increasing order"),
        (lambda: Weights([[0]], (0, 300)), ValueError, r"integer weight levels lie in -128\.\.127"),
        (lambda: Weights([[0]], (0.0, np.nan)), ValueError, "levels are"),
        (
            lambda: Table("t", np.zeros((3, 255), int)),
            ValueError,
            r"t: a table has shape \(channel, 256\), got",
        ),
        (lambda: Table("t", np.full((1, 256), 40000)), ValueError, "t: table entries lie in -32768"),
        (lambda: Conv("c", "x", np.zeros((1, 1), np.float32)), ValueError, "c: weights have 4 dimensions"),
        (lambda: Conv("c", "x", np.zeros((1, 1, 1, 1), int)), TypeError, "c: quantized weights are Weights"),
        (
            lambda: Conv("c", "x", ones(3, 1, 1, 1), groups=2),
            ValueError,
            "3 output channels cannot be cut into 2",
        ),
        (lambda: Conv("c", "x", ones(1, 1, 1, 1), stride=(0, 1)), ValueError, "stride is 1 to 1048575"),
        (lambda: MaxPool("p", "x", (2, 2), (2, 2), (2, 0)), ValueError, "padding is at most half the kernel"),
        (lambda: Threshold("t", "x", [[2, 1]], [1], TRITS), ValueError, "thresholds of a channel ascend"),
        (
            lambda: Threshold("t", "x", [[1, 2]], [1], (0, 1)),
            ValueError,
            "2 thresholds need 3 integer levels",
        ),
        (lambda: Threshold("t", "x", [[1, 2]], [0], TRITS), ValueError, r"directions are \+1 or -1"),
        (lambda: Affine("a", "x", [1.0], [np.inf]), ValueError, "a: shift are finite"),
        (lambda: Clip("c", "x", 1.0, 0.0), ValueError, "low is at most high"),
        (lambda: IntegerNet((1, 1, 1), ()), ValueError, "the first operation is the Table"),
        (lambda: IntegerNet((1, 0, 1), (Table("x", IDENTITY),)), ValueError, "input_shape is"),
        (
            lambda: IntegerNet((3, 1, 1), (Table("x", np.concatenate([IDENTITY, IDENTITY])),)),
            ValueError,
            "a table for 2 channels, but the image has 3",
        ),
        (
            lambda: net_of((1, 1, 1), Flatten("y", "z")),
            ValueError,
            "y: it reads 'z', which no earlier operation makes",
        ),
        (lambda: net_of((1, 1, 1), Flatten("x", "x")), ValueError, "a name of its own, got 'x'"),
        (lambda: net_of((1, 1, 1), Flatten("y", "x"), Flatten("z", "x")), ValueError, "nothing reads y"),
        (
            lambda: net_of((1, 2, 2), Linear("y", "x", ones(1, 4))),
            ValueError,
            "take a flat value of 4, x has shape",
        ),
        (
            lambda: net_of((1, 2, 2), Conv("y", "x", ones(1, 2, 1, 1))),
            ValueError,
            "weights for 2 channels, x has 1",
        ),
        (
            lambda: net_of((1, 2, 2), Conv("y", "x", ones(1, 1, 3, 1))),
            ValueError,
            "window of 3 does not fit 2 pixels",
        ),
        (
            lambda: net_of((1, 2, 2), Clip("y", "x", 0, 1)),
            ValueError,
            "only floats are clipped, x is integer",
        ),
        (
            lambda: net_of((1, 2, 2), Threshold("y", "x", [[0.5]], [1], (0, 1))),
            ValueError,
            "float thresholds cannot cut x, which is integer",
        ),
        (
            lambda: net_of((1, 1, 2), Flatten("y", "x"), Add("z", "x", "y")),
            ValueError,
            "only values of one shape and kind can be added",
        ),
        (
            lambda: IntegerNet((1, 1, 1), (Table("x", IDENTITY),), ("a", "b")),
            ValueError,
            "2 class names for 1 outputs",
        ),
    ],
)
def test_what_does_not_fit_is_refused_with_its_value(make, error, message):
    with pytest.raises(error, match=message):
        make()


@pytest.mark.parametrize("method", ["run", "scores", "trace"])
def test_a_batch_of_another_type_or_shape_is_refused(method):
    compute = getattr(net_of((1, 1, 2), Flatten("y", "x")), method)
    with pytest.raises(TypeError, match=r"uint8 pixels, 0 to 255 and not normalised, got torch\.float32"):
        compute(torch.zeros(1, 1, 1, 2))
    with pytest.raises(ValueError, match=r"add a batch dimension"):
        compute(torch.zeros(1, 1, 2, dtype=torch.uint8))
