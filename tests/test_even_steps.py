"""Many even levels as a product and a shift: equal to the thresholds at every integer, or not found at all."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from lehr.deploy.even_steps import line, narrowed
from lehr.deploy.operations import ALWAYS, NEVER, Requantize, Threshold, Value
from lehr.deploy.reference import result

LEVELS = np.arange(-128, 128)


def thresholds_of(slopes: np.ndarray, shifts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Of round((slope * s + shift) / 1024), halves up, in integers; a channel of slope 0 is constant."""
    needed = 1024 * LEVELS[1:] - 512 - shifts[:, None]  # of slope * s
    cuts = -(-needed // np.abs(np.where(slopes == 0, 1, slopes))[:, None])
    constant = np.where(needed <= 0, ALWAYS, NEVER)
    return np.where(slopes[:, None] == 0, constant, cuts), np.where(slopes < 0, -1, 1)


@settings(max_examples=40, deadline=None)
@given(
    slope=st.integers(1, 5000),
    spread=st.lists(st.integers(-4, 4), min_size=1, max_size=6),
    shift=st.integers(-300_000, 300_000),
    low=st.integers(-3000, 0),
    high=st.integers(0, 3000),
)
def test_a_line_equals_the_thresholds_at_every_integer_of_the_range(
    slope: int, spread: list[int], shift: int, low: int, high: int
):
    slopes = slope * np.array(spread)
    cuts, directions = thresholds_of(slopes, shift + 777 * np.array(spread))
    found = line(cuts, directions, first=-128, low=low, high=high)
    assert found is not None
    operation = Requantize("r", "s", *found, -128, 127)
    expected = Threshold("r", "s", cuts, directions, tuple(LEVELS))
    sums = torch.arange(low, high + 1).reshape(1, 1, -1, 1).expand(1, len(slopes), -1, 1)
    values = result(operation, sums)
    assert torch.equal(values, result(expected, sums))
    assert torch.equal(values, result(operation.threshold(), sums))
    inferred = operation.infer(Value((len(slopes), 1, 1), "integer", low, high))
    assert (inferred.low, inferred.high) == (values.min(), values.max())


@settings(max_examples=40, deadline=None)
@given(
    slopes=st.lists(st.integers(-5000, 5000), min_size=1, max_size=6),
    shift=st.integers(-300_000, 300_000),
    most=st.sampled_from([1, 27, 144, 288, 576, 4608, 100_000]),
)
def test_narrowed_numbers_give_the_same_levels_within_32_bits(slopes: list[int], shift: int, most: int):
    cuts, directions = thresholds_of(np.array(slopes), shift + 777 * np.array(slopes))
    found = line(cuts, directions, first=-128, low=-most, high=most)
    assume(found is not None)  # else thresholds stay
    wide = Requantize("r", "s", *found, -128, 127)
    narrow = narrowed(wide, -most, most)
    if narrow is None:
        assert most > 144, "few sums always have such numbers"
        return
    sums = np.arange(-most, most + 1)[:, None]
    assert np.array_equal(narrow.of(sums), wide.of(sums))
    part = 1 << (narrow.shift - Requantize.OFFSET_BITS)
    products = narrow.multipliers.astype(np.int64) * sums + narrow.offsets.astype(np.int64) * part
    assert np.abs(products).max() < 2**31
    assert np.abs(narrow.offsets.astype(np.int64) * part).max() < 2**31


def test_a_step_that_is_off_the_line_has_no_line():
    cuts, directions = thresholds_of(np.array([256]), np.array([0]))
    cuts[0, 130] += 3
    assert line(cuts, directions, first=-128, low=-900, high=900) is None
    assert line(cuts, directions, first=-128, low=-900, high=-100) is not None  # where it is out of reach


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"shift": 19}, "shift is 20 to 40, got 19"),
        ({"offsets": [1, 2]}, "1 multipliers, but 2 offsets"),
        ({"multipliers": [2**31]}, "multipliers lie in"),
        ({"low": -200, "high": 100}, "up to 256 levels"),
        ({"multipliers": [0.5]}, "multipliers are integers"),
    ],
)
def test_what_does_not_fit_is_refused(changed: dict, message: str):
    fields = {"multipliers": [1], "offsets": [0], "shift": 20, "low": -128, "high": 127} | changed
    with pytest.raises(ValueError, match=message):
        Requantize("r", "s", **fields)


def test_floats_are_not_requantized():
    with pytest.raises(ValueError, match="only integers are requantized"):
        Requantize("r", "s", np.array([1]), np.array([0]), 20, 0, 9).infer(Value((1, 1, 1), "float"))
