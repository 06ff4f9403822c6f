"""MultiStep is eq. 4: thresholds, levels, and H(0) = 1."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lehr import MultiStep
from restated import numbers, step_value, steps

LARGE = MultiStep.uniform(8)  # 255 thresholds: searched, where few are compared


@numbers
@given(steps(most=40), st.lists(st.floats(allow_nan=False), max_size=20))
def test_the_value_is_that_of_equation_4_at_the_thresholds_too(step, points):
    near = np.asarray([np.nextafter(t, to) for t in step.thresholds for to in (-math.inf, math.inf)])
    x = np.concatenate([points, step.thresholds, near])
    assert np.array_equal(step(torch.from_numpy(x)).numpy(), step_value(x, step))


def test_a_threshold_goes_up():
    assert MultiStep.sign()(torch.tensor([-1e-30, -0.0, 0.0, 1e-30])).tolist() == [-1, 1, 1, 1]
    assert MultiStep.heaviside()(torch.tensor([-1e-45, 0.0])).tolist() == [0, 1]
    assert MultiStep.ternary()(torch.tensor([-0.5, 0.5])).tolist() == [0, 1]
    assert LARGE(torch.tensor([-127.5, 126.5])).tolist() == [-127, 127]


@pytest.mark.parametrize("bits", range(1, 9))
@pytest.mark.parametrize("signed", [False, True])
def test_uniform_rounds_half_up_and_clips_to_the_integers_of_its_width(bits, signed):
    step = MultiStep.uniform(bits, signed, step=0.25)
    lowest = -(2 ** (bits - 1)) if signed else 0
    x = torch.arange(-300, 300, dtype=torch.float64) / 16
    codes = torch.floor(x / 0.25 + 0.5).clamp(lowest, lowest + 2**bits - 1)
    assert torch.equal(step(x), codes * 0.25)
    assert len(step.levels) == 2**bits


def test_levels_may_be_powers_of_two_or_any_other():
    step = MultiStep((-0.75, -0.3, 0.3, 0.75), (-1, -0.5, 0.1, 0.5, 4))
    assert step.jumps == (0.5, 0.6, 0.4, 3.5)
    assert step(torch.tensor([-9.0, -0.5, 0.0, 0.5, 9.0], dtype=torch.float64)).tolist() == [-1, -0.5, 0.1, 0.5, 4]


@pytest.mark.parametrize("step", [MultiStep.ternary(), LARGE], ids=["compared", "searched"])
def test_nan_stays_nan_and_infinity_reaches_the_last_level(step):
    y = step(torch.tensor([math.nan, -math.inf, math.inf]))
    assert y[0].isnan()
    assert y[1:].tolist() == [step.levels[0], step.levels[-1]]


@pytest.mark.parametrize("step", [MultiStep.ternary(), LARGE], ids=["compared", "searched"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_dtype_and_layout_are_those_of_the_tensor(step, dtype):
    x = torch.randn(2, 3, 4, 5).to(dtype).to(memory_format=torch.channels_last)
    y = step(x)
    assert y.dtype == dtype
    assert y.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(step(x[..., ::2]), y[..., ::2])


def test_half_precision_is_compared_in_single():
    x = torch.tensor([0.69921875])  # the bfloat16 nearest to 0.7, and below it
    step = MultiStep((0.7,), (0, 1))
    assert step(x.bfloat16()).item() == step(x).item() == 0


def test_integers_are_quantized_as_floats_and_nothing_carries_a_gradient():
    assert MultiStep.ternary()(torch.tensor([-3, 0, 2])).tolist() == [-1, 0, 1]
    assert not MultiStep.ternary()(torch.randn(3, requires_grad=True)).requires_grad


def test_equal_numbers_make_equal_functions():
    step = MultiStep(torch.tensor([-0.5, 0.5]), np.array([-1, 0, 1]))  # pyright: ignore[reportArgumentType]
    assert step == MultiStep.ternary()
    assert hash(step) == hash(MultiStep.ternary())
    with pytest.raises(AttributeError):
        step.levels = (0.0, 1.0, 2.0)  # pyright: ignore[reportAttributeAccessIssue]


def test_it_prints_in_one_line():
    assert str(MultiStep.ternary()) == "(-1, 0, 1) at (-0.5, 0.5)"
    assert str(LARGE).startswith("(-128, -127, -126, -125, ..., 124, 125, 126, 127) at ")


@pytest.mark.parametrize(
    ("thresholds", "levels", "complaint"),
    [
        ((0.5, 0.5), (-1, 0, 1), r"thresholds must be strictly increasing, got \(0.5, 0.5\)"),
        ((-0.5, 0.5), (-1, 1, 0), r"levels must be strictly increasing, got \(-1, 1, 0\)"),
        ((-0.5, 0.5), (-1, 1), r"a step function with 2 thresholds needs 3 levels, got 2: \(-1, 1\)"),
        ((), (1,), "at least one threshold, got none"),
        ((math.nan,), (0, 1), r"thresholds must be finite, got \(nan\)"),
        ((0,), (0, math.inf), r"levels must be finite, got \(0, inf\)"),
    ],
)
def test_wrong_numbers_are_shown(thresholds, levels, complaint):
    with pytest.raises(ValueError, match=complaint):
        MultiStep(thresholds, levels)


@pytest.mark.parametrize("values", [3, None, "ab", (1, "x")])
def test_what_is_no_sequence_of_numbers_is_a_type_error(values):
    with pytest.raises(TypeError, match="thresholds must be a sequence of numbers"):
        MultiStep(values, (0, 1))


@pytest.mark.parametrize(
    ("bits", "step", "complaint"), [(0, 1, "got 0"), (9, 1, "got 9"), (2, 0, "got 0"), (2, -1, "-1")]
)
def test_a_uniform_function_needs_1_to_8_bits_and_a_positive_step(bits, step, complaint):
    with pytest.raises(ValueError, match=complaint):
        MultiStep.uniform(bits, step=step)


@pytest.mark.parametrize("levels", [(-1, 0, 1), (-1, 0, 0.1), (-(2.0**20), 2.0**-10, 1)])
def test_values_are_the_levels_to_the_bit(levels):
    for dtype in (torch.float32, torch.float64):
        values = MultiStep((-0.5, 0.5), levels)(torch.tensor([-1, 0, 1], dtype=dtype))
        assert values.equal(torch.tensor(levels, dtype=dtype))
