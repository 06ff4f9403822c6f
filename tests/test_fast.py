"""The quick forms equal the plain formulas, at ties too."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import lehr.fast
import lehr.fast_forms
import lehr.fast_linear
from lehr import MultiStep, Uniform
from lehr.expectation import expected_slope, expected_value
from restated import BY_SCIPY, NOISES, numbers, step_value, steps, value_and_gradient
from restated import expected_slope as restated_slope
from restated import expected_value as restated_value

many_steps = steps(most=60)


def around(places, dtype=torch.float64):
    """The places, their neighbours in floating point, points between them, and what is far away."""
    at = torch.tensor(sorted(places), dtype=dtype)
    inf = torch.tensor(math.inf, dtype=dtype)
    between = torch.linspace(float(at[0]) - 3, float(at[-1]) + 3, 301, dtype=dtype)
    return torch.cat([at, at.nextafter(inf), at.nextafter(-inf), between, torch.tensor([-1e9, 1e9], dtype=dtype)])


class TestBlocks:
    @staticmethod
    def blockwise(*arguments):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(lehr.fast, "BLOCK", 7)
            return lehr.fast.blockwise(*arguments)

    @numbers
    @given(
        st.lists(st.integers(1, 6), min_size=1, max_size=4),
        st.randoms(use_true_random=False),
        st.booleans(),
    )
    def test_blocks_give_what_the_whole_gives(self, shape, random, gaps):
        x = torch.randn([*shape, 2])[..., 0] if gaps else torch.randn(shape)
        order = random.sample(range(len(shape)), len(shape))
        x = x.permute(order)
        narrow = [size if random.random() < 0.5 else 1 for size in x.shape]
        factor = torch.randn(narrow[random.randrange(len(narrow)) :])
        expanded = torch.randn([]).expand(x.shape)
        for other in (0.5, torch.randn(()), expanded, torch.randn(x.shape)):
            result = self.blockwise(lambda x, factor, other: x * factor + other, x, factor, other)
            assert torch.equal(result, x * factor + other)
            assert x.numel() <= 7 or result.stride() == torch.empty_like(x).stride()

    def test_no_block_is_larger_than_allowed(self):
        sizes = []
        for shape in ((100,), (2, 50), (50, 2), (3, 3, 3, 3), (1, 1, 30)):
            sizes.clear()
            x = torch.randn(shape)
            assert torch.equal(self.blockwise(lambda x: sizes.append(x.numel()) or x, x), x)
            assert max(sizes) <= 7
            assert sum(sizes) == x.numel()

    def test_blocks_are_as_long_as_they_may_be(self):
        sizes = []
        self.blockwise(lambda x: sizes.append(x.numel()) or x, torch.randn(70))
        assert sizes == [7] * 10


class TestStaircase:
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    @numbers
    @given(step=many_steps)
    def test_it_is_the_step_function_at_the_thresholds_and_beside_them(self, dtype, step):
        thresholds = torch.tensor(step.thresholds, dtype=dtype)
        step = MultiStep(thresholds.unique().tolist(), step.levels[: len(thresholds.unique()) + 1])
        x = around(step.thresholds, dtype)
        y = lehr.fast.staircase(x, step.thresholds, step.levels)
        assert torch.equal(y, torch.from_numpy(step_value(x.double().numpy(), step)).to(dtype))
        special = torch.tensor([math.nan, -math.inf, math.inf], dtype=dtype)
        values = lehr.fast.staircase(special, step.thresholds, step.levels)
        assert values is not None
        assert values[0].isnan()
        assert values[1:].tolist() == [dtype_level(step.levels[0], dtype), dtype_level(step.levels[-1], dtype)]

    def test_thresholds_that_lie_in_heaps_are_found_too(self):
        """No grid of cells separates them, so binary search is used."""
        thresholds = (*(k * 1e-7 for k in range(40)), *range(1, 40))
        step = MultiStep(thresholds, tuple(range(len(thresholds) + 1)))
        x = around(thresholds)
        assert np.array_equal(step(x), step_value(x.numpy(), step))

    def test_infinity_is_above_the_last_threshold_where_a_cell_holds_several(self):
        thresholds = (*(k * 1e-4 for k in range(3)), *range(1, 3000, 10))
        step = MultiStep(thresholds, tuple(range(len(thresholds) + 1)))
        infinite = torch.tensor([-math.inf, math.inf])
        assert step(infinite).tolist() == [0, len(thresholds)]
        value, gradient = value_and_gradient(infinite, step, Uniform(1e-6))
        assert value.tolist() == [0, len(thresholds)]
        assert gradient.tolist() == [0, 0]


def dtype_level(level, dtype):
    return torch.tensor(level, dtype=dtype).item()


class TestRamps:
    """Under uniform noise of a known width: one clamp, some clamps, or a table."""

    @numbers
    @given(many_steps, st.floats(0.001, 3))
    def test_value_and_gradient_are_the_two_lines_of_theorem_2(self, step, half_width):
        noise = Uniform.half_width(half_width)
        ramps = lehr.fast_forms.ramps(step.thresholds, step.levels, noise.w)
        x = around([threshold + side * noise.w for threshold in step.thresholds for side in (-1, 0, 1)])
        torch.testing.assert_close(ramps.value(x), expected_value(x, step, noise), rtol=0, atol=1e-10)
        # A density jumps at the ends of its window, where the last bit of the end decides.
        edges = torch.tensor([t + side * noise.w for t in step.thresholds for side in (-1, 1)], dtype=x.dtype)
        inside = ((x[:, None] - edges).abs() > 1e-9).all(1)
        plain = expected_slope(x, step, noise)[inside]
        torch.testing.assert_close(ramps.gradient(torch.ones_like(x), x)[inside], plain, rtol=1e-9, atol=1e-9)

    def test_the_slope_of_the_straight_through_estimator_is_exact(self):
        """Ternary under half-width 1: half of the gradient within one of the two windows, all of it within both."""
        ramps, inf = lehr.fast_forms.ramps((-0.5, 0.5), (-1.0, 0.0, 1.0), 1.0), torch.tensor(math.inf)
        x = torch.tensor([-1.5, -0.5, 0.5, 1.5])
        x = torch.stack([x.nextafter(-inf), x])
        grad = torch.tensor(1 / 3)
        assert torch.equal(
            ramps.gradient(grad.expand(2, 4), x) / grad, torch.tensor([[0, 0.5, 1, 0.5], [0.5, 1, 0.5, 0]])
        )

    @numbers
    @given(many_steps, st.floats(0.001, 3))
    def test_beyond_the_windows_values_are_levels_to_the_bit(self, step, half_width):
        ramps = lehr.fast_forms.ramps(step.thresholds, step.levels, half_width)
        x = around(step.thresholds)
        thresholds = torch.tensor(step.thresholds, dtype=x.dtype)
        outside = ((x[:, None] - thresholds).abs() > 1.001 * half_width).all(1)
        x = torch.cat([x[outside], torch.tensor([-math.inf, math.inf], dtype=x.dtype)])
        if len(step.thresholds) > lehr.fast.FEW:
            assert torch.equal(ramps.value(x), step(x))
        torch.testing.assert_close(ramps.value(x), step(x), rtol=0, atol=1e-12)
        assert ramps.value(torch.full((3,), math.nan)).isnan().all()


class TestNearest:
    @pytest.mark.parametrize("kind", NOISES)
    @numbers
    @given(step=steps(most=60), std=st.floats(0.001, 0.5))
    def test_the_thresholds_within_reach_give_the_sums_over_all_of_them(self, kind, step, std):
        x = around(step.thresholds)
        law = BY_SCIPY[kind](std)
        near = lehr.fast_forms.Nearest(step.thresholds, step.levels, kind(std), x.dtype)
        np.testing.assert_allclose(near.value(x), restated_value(x.numpy(), step, law), rtol=0, atol=1e-11)
        if kind is not Uniform:
            slope = near.gradient(torch.ones_like(x), x)
            np.testing.assert_allclose(slope, restated_slope(x.numpy(), step, law), rtol=1e-9, atol=1e-10 / std)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("half_width", [0.25, 0.5, 3.0])
def test_the_slope_under_uniform_noise_is_the_jumps_between_its_ends(bits: int, half_width: float) -> None:
    step, noise = lehr.MultiStep.uniform(bits), lehr.Uniform.half_width(half_width)
    x = torch.cat([torch.linspace(-140, 140, 5000), torch.tensor(step.thresholds), torch.tensor([float("nan")])])
    torch.testing.assert_close(lehr.fast.uniform_slope(x, step, half_width), expected_slope(x, step, noise))
    silent = lehr.fast.uniform_slope(x, step, torch.zeros(()))
    assert not silent.any()


class TestLinearByRows:
    """Large linear layers on few images quantize a few rows of their weight at a time: nothing else may change."""

    @pytest.fixture(autouse=True)
    def _small_is_large(self, monkeypatch):
        monkeypatch.setattr(lehr.fast_linear, "MANY_WEIGHTS", 60)
        monkeypatch.setattr(lehr.fast, "BLOCK", 40)

    @staticmethod
    def both(layer, x):
        """Output and gradients by rows, and of the whole weight."""
        x = x.requires_grad_()
        whole = torch.nn.functional.linear(x, layer.quantized_weight, layer.bias)
        by_rows = lehr.fast_linear.linear(x, layer.weight, layer.bias, layer.quantizer.estimator)
        assert by_rows is not None
        assert torch.equal(layer(x), by_rows)
        above = torch.randint(-8, 9, whole.shape).to(x.dtype)
        inputs = [tensor for tensor in (x, layer.weight, layer.bias) if tensor is not None]
        return ((y, *torch.autograd.grad(y, inputs, above)) for y in (by_rows, whole))

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    @pytest.mark.parametrize("shape", [(12,), (1, 12), (16, 12), (2, 3, 12)])
    @pytest.mark.parametrize(("step", "half_width"), [(MultiStep.ternary(), 0.5), (MultiStep.sign(), 1.0)])
    def test_equals_the_whole_weight_to_the_bit_where_sums_are_exact(self, shape, dtype, step, half_width):
        """Integers times powers of two add without rounding, in any order; among the weights are ties."""
        torch.manual_seed(0)
        noise = Uniform.half_width(half_width)
        layer = lehr.Linear(12, 11, quantizer=lehr.Quantizer(step, noise, noise)).to(dtype)
        with torch.no_grad():
            layer.weight.copy_(torch.randint(-12, 13, (11, 12)) / 8)
            layer.bias.copy_(torch.randint(-8, 9, (11,)) / 8)
        for found, expected in zip(*self.both(layer, torch.randint(-8, 9, shape).to(dtype)), strict=True):
            assert torch.equal(found, expected)

    @numbers
    @given(st.integers(1, 16), st.integers(4, 30), st.integers(15, 30), st.booleans(), st.integers(0, 2**31))
    def test_equals_the_whole_weight_up_to_the_order_of_sums(self, images, inputs, outputs, has_bias, seed):
        torch.manual_seed(seed)
        layer = lehr.Linear(inputs, outputs, bias=has_bias).double()
        for found, expected in zip(*self.both(layer, torch.randn(images, inputs).double()), strict=True):
            torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)

    @pytest.mark.parametrize(
        "quantizer",
        [
            {"mode": "sample"},
            {"forward": Uniform(0.1)},  # two ramps
            {"forward": lehr.Normal(0.3)},
            {"forward": Uniform(math.sqrt(3) / 6, 0.1)},  # a mean
        ],
    )
    def test_other_estimators_quantize_the_whole_weight(self, quantizer):
        layer, x = lehr.Linear(12, 7, quantizer=lehr.Quantizer(**quantizer)), torch.randn(3, 12)
        assert lehr.fast_linear.linear(x, layer.weight, layer.bias, layer.quantizer.estimator) is None
        assert layer(x).shape == (3, 7)

    def test_more_images_scales_and_evaluation_quantize_the_whole_weight(self):
        layer, x = lehr.Linear(12, 7, quantizer=lehr.Quantizer(scale=0.5)), torch.randn(3, 12)
        plain = torch.nn.functional.linear(x, layer.quantized_weight, layer.bias)
        assert torch.equal(layer(x), plain)
        layer = lehr.Linear(12, 7).eval()
        plain = torch.nn.functional.linear(x, layer.quantized_weight, layer.bias)
        torch.testing.assert_close(layer(x), plain)
        assert lehr.fast_linear.is_worthwhile(torch.randn(16, 12), layer.weight)
        assert not lehr.fast_linear.is_worthwhile(torch.randn(17, 12), layer.weight)

    @pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")  # torch's own, in forward mode
    def test_hooks_autocast_and_transforms_see_the_quantized_weight(self):
        layer, x, seen = lehr.Linear(12, 7), torch.randn(3, 12), []
        plain = torch.nn.functional.linear(x, layer.quantized_weight, layer.bias)
        with torch.autocast("cpu", torch.bfloat16):
            assert layer(x).dtype == torch.bfloat16
        tangents = torch.func.jvp(layer, (x,), (x,))[1]
        torch.testing.assert_close(tangents, plain - layer.bias)
        with torch.autograd.forward_ad.dual_level():
            dual = torch.autograd.forward_ad.make_dual(x, x)
            torch.testing.assert_close(torch.autograd.forward_ad.unpack_dual(layer(dual)).tangent, tangents)
        torch.testing.assert_close(torch.func.vmap(layer)(x), plain)
        layer.quantizer.register_forward_hook(lambda module, inputs, output: seen.append(output.shape))
        layer(x)
        assert seen == [(7, 12)]
