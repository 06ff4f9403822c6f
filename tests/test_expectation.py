"""Theorem 2: value under the forward noise, gradient under the backward noise, for every noise and step function."""

import itertools
import math

import numpy as np
import pytest
import scipy.integrate
import torch
from hypothesis import given
from hypothesis import strategies as st

import lehr.fast
from lehr import Dirac, Logistic, MultiStep, Normal, Triangular, Uniform
from lehr.theory import lipschitz
from measure import LiveMemory
from restated import (
    BY_SCIPY,
    NOISES,
    expected_slope,
    expected_value,
    few_numbers,
    numbers,
    step_value,
    steps,
    value_and_gradient,
)

every_noise = pytest.mark.parametrize("kind", NOISES)
TERNARY = MultiStep.ternary()


def points(step, std, count=101):
    """The thresholds, their surroundings, and both tails."""
    thresholds = np.asarray(step.thresholds)
    reach = np.linspace(thresholds[0] - 12 * std, thresholds[-1] + 12 * std, count)
    return np.concatenate([thresholds, thresholds - std, thresholds + std, reach])


class TestTheFormulas:
    @every_noise
    @numbers
    @given(steps(), st.floats(0.01, 3), st.floats(0.01, 3))
    def test_value_and_gradient_are_those_of_theorem_2(self, kind, step, forward, backward):
        x = points(step, forward)
        value, gradient = value_and_gradient(torch.from_numpy(x), step, kind(forward), kind(backward))
        np.testing.assert_allclose(value, expected_value(x, step, BY_SCIPY[kind](forward)), rtol=0, atol=1e-11)
        slope = expected_slope(x, step, BY_SCIPY[kind](backward))
        # The uniform density jumps: there the last bit of an edge decides, and other tests look.
        smooth = ~at_an_edge(x, step, backward) if kind is Uniform else np.full(x.shape, True)
        np.testing.assert_allclose(gradient[smooth], slope[smooth], rtol=1e-9, atol=1e-11 / backward)

    @every_noise
    @pytest.mark.parametrize("count", [1, 2, 3, 15, 33, 255])
    def test_any_number_of_thresholds_will_do(self, kind, count):
        rng = np.random.default_rng(count)
        thresholds, levels = np.cumsum(rng.uniform(0.1, 1, count)), np.cumsum(rng.uniform(0.1, 1, count + 1)) - 9
        step = MultiStep(tuple(thresholds), tuple(levels))
        x = points(step, 0.4)
        value, gradient = value_and_gradient(torch.from_numpy(x), step, kind(0.4), kind(0.7))
        np.testing.assert_allclose(value, expected_value(x, step, BY_SCIPY[kind](0.4)), rtol=0, atol=1e-11)
        np.testing.assert_allclose(gradient, expected_slope(x, step, BY_SCIPY[kind](0.7)), rtol=1e-9, atol=1e-11)
        single, _ = value_and_gradient(torch.from_numpy(x).float(), step, kind(0.4))
        np.testing.assert_allclose(single, value, rtol=0, atol=3e-7 * count * max(np.abs(levels)))

    @every_noise
    @pytest.mark.parametrize(
        "step", [TERNARY, MultiStep.sign(), MultiStep((-0.4, 0.1, 1.3), (-1, -0.5, 0.25, 4))], ids=str
    )
    def test_the_value_is_the_integral_of_the_step_function(self, kind, step):
        """∫ σ(x + v) f(v) dv, with nothing of lehr but the density."""
        noise = kind(0.3)
        for x in (-2.0, -0.5, 0.0, 0.37, 0.5, 1.4):
            jumps = [threshold - x for threshold in step.thresholds]
            corners = (-math.sqrt(6), -math.sqrt(3), 0, math.sqrt(3), math.sqrt(6))
            pieces = sorted({-12.0, *jumps, *(0.3 * corner for corner in corners), 12.0})
            integral = 0.0
            for low, high in itertools.pairwise(pieces):
                level = step_value(np.asarray(x + (low + high) / 2), step)
                density = lambda v: noise.pdf(torch.tensor(v, dtype=torch.float64)).item()  # noqa: E731
                integral += level * scipy.integrate.quad(density, low, high, epsabs=1e-12)[0]
            value = lehr.quantize(torch.tensor([x], dtype=torch.float64), step, noise).item()
            assert value == pytest.approx(integral, abs=1e-8)

    @pytest.mark.parametrize("kind", [Triangular, Normal, Logistic])
    def test_the_gradient_is_the_derivative_of_the_value(self, kind):
        step = MultiStep((-0.4, 0.1, 1.3), (-1, -0.5, 0.25, 4))
        x = torch.linspace(-3, 4, 203, dtype=torch.float64)
        noise, h = kind(0.3), 1e-5
        difference = (lehr.quantize(x + h, step, noise) - lehr.quantize(x - h, step, noise)) / (2 * h)
        torch.testing.assert_close(value_and_gradient(x, step, noise)[1], difference, rtol=1e-5, atol=1e-5)

    @numbers
    @given(steps(), st.floats(0.01, 1))
    def test_the_uniform_gradient_is_the_derivative_of_the_value_between_its_edges(self, step, std):
        x = points(step, std)
        x = torch.from_numpy(x[~at_an_edge(x, step, std, margin=1e-5)])
        noise, h = Uniform(std), 1e-6
        difference = (lehr.quantize(x + h, step, noise) - lehr.quantize(x - h, step, noise)) / (2 * h)
        torch.testing.assert_close(value_and_gradient(x, step, noise)[1], difference, rtol=1e-4, atol=1e-6)

    def test_the_paper_s_noise_makes_the_ternary_function_a_clamp(self):
        x = torch.randn(1000, dtype=torch.float64)
        value, gradient = value_and_gradient(x, TERNARY, Uniform.half_width(0.5))
        torch.testing.assert_close(value, x.clamp(-1, 1), rtol=0, atol=1e-15)
        assert torch.equal(gradient, (x.abs() < 1).double())

    @every_noise
    def test_the_gradient_in_the_far_tails_is_small_but_right(self, kind):
        x = torch.tensor([-9.0, 9.0], dtype=torch.float64)
        gradient = value_and_gradient(x, TERNARY, kind(0.5))[1]
        np.testing.assert_allclose(gradient, expected_slope(x.numpy(), TERNARY, BY_SCIPY[kind](0.5)), rtol=1e-10)

    @every_noise
    def test_beyond_the_noise_the_levels_are_exact(self, kind):
        x = torch.tensor([-40.0, 0.0, 40.0])
        assert lehr.quantize(x, TERNARY, kind(0.01)).tolist() == [-1, 0, 1]


def at_an_edge(x, step, std, margin=1e-9):
    edges = [t + side * math.sqrt(3) * std for t in step.thresholds for side in (-1, 1)]
    return (np.abs(x[:, None] - np.asarray(edges)) < margin).any(1)


class TestTheTies:
    @pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
    @pytest.mark.parametrize(
        "noise",
        [Uniform.half_width(0.5), Uniform(torch.tensor(math.sqrt(3) / 6)), Uniform(torch.tensor([[math.sqrt(3) / 6]]))],
        ids=["number", "float32", "per channel"],
    )
    def test_touching_windows_count_a_point_once(self, dtype, noise):
        x = torch.tensor([[-1.0, 0.0, 1.0]], dtype=dtype)
        assert value_and_gradient(x, TERNARY, noise)[1].tolist() == [[1, 1, 0]]

    @pytest.mark.parametrize("bits", [2, 4, 8])
    def test_touching_windows_of_many_levels_leave_no_gap(self, bits):
        step = MultiStep.uniform(bits, signed=True, step=0.125)
        edges = torch.tensor(step.levels[:-1])
        gradient = value_and_gradient(edges, step, Uniform.half_width(0.0625))[1]
        assert gradient.tolist() == [1.0] * len(edges)

    @numbers
    @given(st.integers(2, 8), st.floats(0.01, 10), st.sampled_from([torch.float32, torch.float64]))
    def test_adjacent_windows_are_merged_for_any_numbers(self, bits, size, dtype):
        """For a step of any size and a std in float32, every point of the ramp counts once."""
        step = MultiStep.uniform(bits, step=size)
        seams = torch.tensor(step.levels[1:-1], dtype=dtype)
        x = torch.cat([seams, seams.nextafter(seams + 1), seams.nextafter(seams - 1)])
        for std in (Uniform.half_width(size / 2).std, torch.tensor(Uniform.half_width(size / 2).std)):
            value, gradient = value_and_gradient(x, step, Uniform(std))
            torch.testing.assert_close(gradient, torch.ones_like(x), rtol=1e-5, atol=0)
            # The levels add up to the value: its rounding is that of the largest of them.
            torch.testing.assert_close(value, x, rtol=1e-5, atol=1e-6 * size * 2**bits)

    def test_without_noise_a_threshold_goes_up(self):
        value, gradient = value_and_gradient(torch.tensor([-0.5, 0.5]), TERNARY, Dirac())
        assert value.tolist() == [0, 1]
        assert gradient.tolist() == [0, 0]

    @every_noise
    @numbers
    @given(steps())
    def test_vanished_noise_is_the_step_function_itself(self, kind, step):
        x = points(step, 0.5)
        for std in (0.0, torch.tensor(0.0), torch.zeros(len(x)), 1e-40):
            value, gradient = value_and_gradient(torch.from_numpy(x), step, kind(std))
            assert np.array_equal(value, step_value(x, step))
            assert not gradient.any()


class TestTheEstimators:
    def test_corollary_1_the_straight_through_estimator(self):
        """sign, Dirac forward, U[-1, 1] backward: the value is the sign, the gradient 1 on [-1, 1)."""
        x = torch.cat([torch.randn(1000), torch.tensor([-1.0, 0.0, 1.0])])
        value, gradient = value_and_gradient(x, MultiStep.sign(), Dirac(), Uniform.half_width(1))
        assert torch.equal(value, torch.where(x >= 0, 1.0, -1.0))
        assert torch.equal(gradient, ((x >= -1) & (x < 1)).float())

    def test_the_backward_noise_is_the_forward_noise_unless_given(self):
        x = torch.randn(50)
        one = value_and_gradient(x, TERNARY, Normal(0.4))
        other = value_and_gradient(x, TERNARY, Normal(0.4), Normal(0.4))
        assert all(map(torch.equal, one, other))
        assert not lehr.quantize(x, TERNARY).requires_grad

    @every_noise
    def test_a_mean_shifts_the_input(self, kind):
        x = torch.randn(200, dtype=torch.float64)
        for mean in (0.3, torch.tensor(0.3), torch.full((200,), 0.3)):
            value, gradient = value_and_gradient(x, TERNARY, kind(0.4, mean), kind(0.2, -mean))
            torch.testing.assert_close(value, lehr.quantize(x + 0.3, TERNARY, kind(0.4)), atol=1e-6, rtol=0)
            shifted = value_and_gradient(x - 0.3, TERNARY, Dirac(), kind(0.2))[1]
            torch.testing.assert_close(gradient, shifted, atol=1e-5, rtol=0)
        assert lehr.quantize(torch.tensor([0.25]), TERNARY, Dirac(0.25)).item() == 1

    @every_noise
    def test_std_per_channel_and_per_element(self, kind):
        x = torch.randn(4, 3, 50, dtype=torch.float64)
        channels = torch.tensor([0.1, 0.0, 0.9]).reshape(3, 1)
        value, gradient = value_and_gradient(x, TERNARY, kind(channels), kind(channels))
        for channel, std in enumerate(channels.flatten().tolist()):
            alone = value_and_gradient(x[:, channel], TERNARY, kind(std))
            torch.testing.assert_close(value[:, channel], alone[0], atol=1e-6, rtol=0)
            if kind is not Uniform:
                torch.testing.assert_close(gradient[:, channel], alone[1], atol=1e-5, rtol=0)
        everywhere = channels.expand(4, 3, 50).contiguous()
        assert torch.equal(value, value_and_gradient(x, TERNARY, kind(everywhere))[0])


class TestTheModes:
    @every_noise
    def test_mode_is_the_most_probable_level(self, kind):
        step = MultiStep((-0.4, 0.1, 1.3), (-1, -0.5, 0.25, 4))
        x = torch.linspace(-3, 4, 1001, dtype=torch.float64)
        law = BY_SCIPY[kind](0.6)
        reached = law.sf(np.asarray(step.thresholds)[:, None] - x.numpy())
        probability = -np.diff(np.vstack([np.ones(1001), reached, np.zeros(1001)]), axis=0)
        ranked = np.sort(probability, axis=0)
        clear = ranked[-1] - ranked[-2] > 1e-9
        value = lehr.quantize(x, step, kind(0.6), mode="mode").numpy()
        assert np.array_equal(value[clear], np.asarray(step.levels)[probability.argmax(0)][clear])
        assert clear.mean() > 0.99

    def test_of_two_equally_probable_levels_mode_takes_the_higher(self):
        noise = Uniform.half_width(1)
        assert lehr.quantize(torch.tensor([0.0]), MultiStep.sign(), noise, mode="mode").item() == 1
        assert lehr.quantize(torch.tensor([-0.5]), TERNARY, Uniform.half_width(0.25), mode="mode").item() == 0

    @every_noise
    def test_sample_draws_the_levels_with_their_probabilities(self, kind):
        x = torch.full((40_000,), 0.2, dtype=torch.float64)
        draws = lehr.quantize(x, TERNARY, kind(0.5), mode="sample", generator=torch.Generator().manual_seed(3))
        reached = BY_SCIPY[kind](0.5).sf(np.asarray([-0.5 - 0.2, 0.5 - 0.2]))
        expected = [1 - reached[0], reached[0] - reached[1], reached[1]]
        frequency = [(draws == level).double().mean().item() for level in TERNARY.levels]
        assert frequency == pytest.approx(expected, abs=0.01)

    def test_a_sample_is_reproducible_with_a_generator(self):
        x = torch.randn(1000)
        draws = [
            lehr.quantize(x, TERNARY, Normal(0.5), mode="sample", generator=torch.Generator().manual_seed(seed))
            for seed in (1, 1, 2)
        ]
        assert torch.equal(draws[0], draws[1])
        assert not torch.equal(draws[0], draws[2])

    @pytest.mark.parametrize("mode", ["mode", "sample"])
    def test_the_gradient_does_not_depend_on_the_mode(self, mode):
        x = torch.randn(1000)
        assert torch.equal(
            value_and_gradient(x, TERNARY, Normal(0.5), mode=mode)[1], value_and_gradient(x, TERNARY, Normal(0.5))[1]
        )

    @pytest.mark.parametrize("mode", ["expectation", "mode", "sample"])
    def test_without_noise_the_modes_agree(self, mode):
        x = torch.cat([torch.randn(1000), torch.tensor([-0.5, 0.5])])
        for noise in (Dirac(), Normal(0.0), Normal(torch.tensor(0.0))):
            assert torch.equal(lehr.quantize(x, TERNARY, noise, mode=mode), TERNARY(x))

    @pytest.mark.parametrize("mode", ["expectation", "mode", "sample"])
    def test_modes_give_levels_in_any_dtype_and_keep_nan(self, mode):
        for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16):
            x = torch.tensor([math.nan, -math.inf, math.inf, 0.3], dtype=dtype)
            y = lehr.quantize(x, TERNARY, Normal(0.5), mode=mode)
            assert y.dtype == dtype
            assert y[0].isnan()
            assert y[1:3].tolist() == [-1, 1]


class TestTensors:
    @every_noise
    @pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
    def test_the_dtype_is_kept_and_half_precision_is_computed_in_single(self, kind, dtype):
        x = torch.randn(500).to(dtype)
        for std in (0.4, torch.tensor(0.4), torch.full((500,), 0.4, dtype=torch.float64)):
            value, gradient = value_and_gradient(x, TERNARY, kind(std))
            assert value.dtype == gradient.dtype == dtype
            exact = value_and_gradient(x.double(), TERNARY, kind(float(torch.as_tensor(std).flatten()[0])))
            eps = max(torch.finfo(dtype).eps, torch.finfo(torch.float32).eps)  # a std is float32
            torch.testing.assert_close(value.double(), exact[0], atol=2 * eps, rtol=2 * eps)
            if kind is not Uniform:
                torch.testing.assert_close(gradient.double(), exact[1], atol=8 * eps, rtol=8 * eps)

    @pytest.mark.parametrize("shape", [(2, 3, 4, 5), (2, 40, 70, 90)], ids=["one block", "many blocks"])
    def test_layouts_are_kept(self, shape):
        x = torch.randn(shape)
        expected = value_and_gradient(x, TERNARY, Normal(0.4))
        last = x.to(memory_format=torch.channels_last)
        value, gradient = value_and_gradient(last, TERNARY, Normal(0.4))
        assert value.is_contiguous(memory_format=torch.channels_last)
        assert gradient.is_contiguous(memory_format=torch.channels_last)
        assert torch.equal(value, expected[0])
        assert torch.equal(gradient, expected[1])
        strided = torch.stack([x, x], -1)[..., 0]
        assert torch.equal(lehr.quantize(strided, TERNARY, Normal(0.4)), expected[0])
        assert torch.equal(lehr.quantize(x.transpose(1, 3), TERNARY, Normal(0.4)), expected[0].transpose(1, 3))
        for part in (x[:, ::2], x[:1].expand(3, *shape[1:])):
            once = torch.cat([lehr.quantize(row.clone(), TERNARY, Normal(0.4))[None] for row in part])
            assert torch.equal(lehr.quantize(part, TERNARY, Normal(0.4)), once)

    def test_a_gradient_of_another_layout_is_understood(self):
        x = torch.randn(2, 40, 70, 90, requires_grad=True)
        lehr.quantize(x, TERNARY, Normal(0.4)).sum().backward()  # an expanded gradient
        slope = value_and_gradient(x, TERNARY, Normal(0.4))[1]
        assert torch.equal(torch.as_tensor(x.grad), slope)
        x.grad = None
        weight = torch.randn(2, 40, 70, 90).to(memory_format=torch.channels_last)
        lehr.quantize(x, TERNARY, Normal(0.4)).backward(weight)
        torch.testing.assert_close(torch.as_tensor(x.grad), weight * slope)

    @pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1, 1, 1)])
    def test_any_shape_will_do(self, shape):
        value, gradient = value_and_gradient(torch.zeros(shape), TERNARY, Normal(0.4))
        assert value.shape == gradient.shape == shape

    @every_noise
    def test_nan_and_infinity(self, kind):
        for std in (0.5, torch.tensor([0.5])):
            y = lehr.quantize(torch.tensor([math.nan, -math.inf, math.inf]), TERNARY, kind(std))
            assert y[0].isnan()
            assert y[1:].tolist() == [-1, 1]

    def test_the_input_is_unchanged(self):
        x = torch.randn(2 * lehr.fast.BLOCK)
        before = x.clone()
        for noise in (Dirac(), *(kind(0.5) for kind in NOISES)):
            for mode in ("expectation", "mode", "sample"):
                lehr.quantize(x, TERNARY, noise, mode=mode)
        assert torch.equal(x, before)


class TestMemory:
    x = torch.randn(2**14, requires_grad=True)
    size = x.numel() * x.element_size()

    @pytest.fixture(autouse=True)
    def small_blocks(self, monkeypatch):
        """As small beside the tensor as a block is beside a large activation."""
        monkeypatch.setattr(lehr.fast, "BLOCK", self.x.numel() // 16)

    @pytest.mark.parametrize(
        "noise",
        [Dirac(), *(kind(0.3) for kind in NOISES), Normal(0.3, mean=0.1), Uniform(torch.full((2**14,), 0.3))],
        ids=str,
    )
    def test_extra_memory_is_at_most_3_tensors_for_any_number_of_levels(self, noise):
        peaks = []
        for step in (MultiStep.uniform(2), MultiStep.uniform(8)):
            lehr.quantize(self.x, step, noise).backward(self.x.detach())  # makes the tables, which are kept
            self.x.grad = None
            with LiveMemory() as memory:
                lehr.quantize(self.x, step, noise).backward(self.x.detach())
            peaks.append(memory.peak / self.size)
        assert max(peaks) <= 3.01

    @pytest.mark.parametrize("mode", ["mode", "sample"])
    def test_the_other_modes_need_no_more(self, mode):
        with LiveMemory() as memory:
            lehr.quantize(self.x, MultiStep.uniform(4), Normal(0.3), mode=mode)
        assert memory.peak / self.size <= 3.01

    def test_only_the_input_is_kept_for_the_backward_pass(self):
        kept = []
        with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
            lehr.quantize(self.x, MultiStep.uniform(4), Normal(0.3), Uniform(torch.tensor(0.3)))
        large = [tensor for tensor in kept if tensor.numel() > 1]
        assert len(large) == 1
        assert large[0].data_ptr() == self.x.data_ptr()


class TestLipschitz:
    @every_noise
    @few_numbers
    @given(steps(most=6), st.floats(0.05, 2))
    def test_no_measured_slope_is_larger_and_one_is_as_large(self, kind, step, std):
        x = np.linspace(step.thresholds[0] - 3 * std, step.thresholds[-1] + 3 * std, 20_001)
        slope = expected_slope(x, step, BY_SCIPY[kind](std)).max()
        constant = lipschitz(step, kind(std))
        assert constant >= slope * (1 - 1e-9)
        if kind is not Uniform:  # whose highest window may be narrower than the grid is fine
            assert constant == pytest.approx(slope, rel=1e-3)
        assert constant <= sum(step.jumps) * BY_SCIPY[kind](std).pdf(0) * (1 + 1e-9)  # Theorem 2 (iii)

    @few_numbers
    @given(steps(most=6), st.floats(0.05, 2))
    def test_no_secant_is_steeper(self, step, std):
        x = torch.linspace(-6, 10, 4001, dtype=torch.float64)
        for kind in NOISES:
            y = lehr.quantize(x, step, kind(std))
            assert (y.diff() / x.diff()).max().item() <= lipschitz(step, kind(std)) * (1 + 1e-6)

    def test_known_constants(self):
        assert lipschitz(MultiStep.sign(), Uniform.half_width(1)) == 1
        assert lipschitz(MultiStep.heaviside(), Normal(1)) == pytest.approx(1 / math.sqrt(2 * math.pi))
        assert lipschitz(MultiStep.uniform(8), Uniform.half_width(0.5)) == 1
        assert lipschitz(TERNARY, Dirac()) == lipschitz(TERNARY, Normal(0)) == math.inf

    def test_it_needs_one_std(self):
        with pytest.raises(ValueError, match=r"needs one std, got \(3,\) of them"):
            lipschitz(TERNARY, Normal(torch.ones(3)))


@pytest.mark.parametrize(
    ("change", "error", "complaint"),
    [
        ({"mode": "median"}, ValueError, "mode must be one of expectation, mode, sample, got 'median'"),
        ({"x": torch.arange(3)}, TypeError, "quantize needs a floating-point tensor, got torch.int64"),
        ({"step": (0, 1)}, TypeError, r"step must be a MultiStep, got \(0, 1\)"),
        ({"forward": 0.5}, TypeError, r"forward must be a noise such as Uniform\(0.3\), got 0.5"),
        ({"backward": "uniform"}, TypeError, "backward must be a noise .* got 'uniform'"),
        (
            {"forward": Normal(torch.ones(2, 1))},
            ValueError,
            r"noise of shape \(2, 1\) must broadcast over x, of shape \(3,\)",
        ),
        ({"backward": Normal(torch.ones(2))}, ValueError, r"noise of shape \(2,\) must broadcast over x, of shape"),
        ({"scale": torch.ones(2)}, ValueError, r"a scale of shape \(2,\) must broadcast over x, of shape \(3,\)"),
        ({"scale": torch.ones(2, 3)}, ValueError, r"a scale of shape \(2, 3\) must broadcast over x, of shape \(3,\)"),
    ],
)
def test_wrong_arguments_are_errors_that_say_what_is_right(change, error, complaint):
    arguments = {"x": torch.zeros(3), "step": TERNARY, "forward": Normal(0.3)} | change
    with pytest.raises(error, match=complaint):
        lehr.quantize(**arguments)
