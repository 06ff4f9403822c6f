"""Theorem 2's claims against plain numerics, Theorem 3 on a trained network and where its assumption fails."""

import math

import numpy as np
import pytest
import torch
from torch import nn

import lehr
from lehr import Dirac, Logistic, MultiStep, Normal, Quantizer, Triangular, Uniform
from lehr.theory import collapse, derivative, limit, lipschitz, margin, regularity, slope_jump, total_variation
from theorem3 import digits_network

STEPS = [MultiStep.ternary(), MultiStep.sign(), MultiStep((-1.0, 0.2, 0.3), (-2.0, 0.0, 0.5, 4.0))]
NOISES = [kind(std) for kind in (Uniform, Triangular, Normal, Logistic) for std in (0.05, math.sqrt(3) / 6, 1.0)]
SMOOTH = [noise for noise in NOISES if not isinstance(noise, Uniform)]


def expectation_by_sampling_the_convolution(step, noise, x):
    """∫ σ(t) f(x - t) dt by the midpoint rule in plain numpy, Theorem 2 (i)."""
    reach = 60 * float(noise.std)  # the logistic tail is below 1e-40 there
    t = np.linspace(-reach, reach, 200_001)
    t = (t[1:] + t[:-1]) / 2
    density = noise.pdf(torch.from_numpy(t)).numpy()
    indices = np.searchsorted(step.thresholds, x + t, side="right")
    return float(np.sum(np.array(step.levels)[indices] * density) * (t[1] - t[0]))


@pytest.mark.parametrize("step", STEPS, ids=str)
@pytest.mark.parametrize("noise", NOISES, ids=str)
def test_the_expectation_is_the_convolution(step, noise):
    for x in (-1.1, 0.2, 0.47):
        value = lehr.quantize(torch.tensor([x], dtype=torch.float64), step, noise).item()
        assert value == pytest.approx(expectation_by_sampling_the_convolution(step, noise, x), abs=2e-3)


@pytest.mark.parametrize("step", STEPS, ids=str)
@pytest.mark.parametrize("noise", NOISES, ids=str)
def test_the_derivative_is_the_limit_of_difference_quotients(step, noise):
    x = torch.linspace(-3, 3, 997, dtype=torch.float64) + 1e-4 * math.pi  # no window of the uniform noise ends there
    h = 1e-6
    quotient = (lehr.quantize(x + h, step, noise) - lehr.quantize(x - h, step, noise)) / (2 * h)
    assert torch.allclose(derivative(step, noise, x), quotient, atol=1e-3)


@pytest.mark.parametrize("noise", NOISES, ids=str)
def test_total_variation_is_the_sum_of_all_rises_and_falls_of_the_density(noise):
    u = torch.linspace(-60, 60, 400_001, dtype=torch.float64) * float(noise.std)
    assert total_variation(noise) == pytest.approx(noise.pdf(u).diff().abs().sum().item(), rel=1e-5)


@pytest.mark.parametrize("step", STEPS, ids=str)
@pytest.mark.parametrize("noise", NOISES, ids=str)
def test_the_lipschitz_constant_is_the_steepest_secant_and_at_most_the_bound(step, noise):
    x = torch.linspace(-4, 4, 80_001, dtype=torch.float64)
    steepest = (lehr.quantize(x, step, noise).diff() / x.diff()).max().item()
    found = regularity(step, noise)
    assert found.lipschitz == pytest.approx(steepest, rel=1e-3)
    assert found.lipschitz <= found.lipschitz_bound * (1 + 1e-12)
    assert found.lipschitz == lipschitz(step, noise)


@pytest.mark.parametrize("noise", [Uniform(0.3), Triangular(0.3), Normal(0.3), Logistic(0.3)], ids=str)
def test_the_bound_is_attained_by_a_single_step(noise):
    found = regularity(MultiStep.sign(), noise)
    assert found.lipschitz == pytest.approx(found.lipschitz_bound, rel=1e-9)


@pytest.mark.parametrize("step", STEPS, ids=str)
@pytest.mark.parametrize("noise", SMOOTH, ids=str)
def test_smooth_noises_have_a_continuous_derivative(step, noise):
    assert regularity(step, noise).differentiable
    assert slope_jump(step, noise) == 0
    for spacing in (1e-3, 1e-4):  # the derivative's largest step shrinks with the spacing
        x = torch.arange(-2, 2, spacing * float(noise.std), dtype=torch.float64)
        steps = derivative(step, noise, x).diff().abs().max().item()
        assert steps <= 10 * spacing * found_height(step, noise)


def found_height(step, noise):
    return (step.levels[-1] - step.levels[0]) / float(noise.std)


@pytest.mark.parametrize("step", STEPS, ids=str)
@pytest.mark.parametrize("half_width", [0.05, 0.25, 0.5, 0.6, 1.0])
def test_uniform_noise_leaves_a_derivative_that_jumps(step, half_width):
    noise = Uniform.half_width(half_width)
    x = torch.linspace(-3, 3, 600_001, dtype=torch.float64) + 1e-7  # no grid point on an end of a window
    steps = derivative(step, noise, x).diff().abs().max().item()
    assert slope_jump(step, noise) == pytest.approx(steps, rel=1e-6)
    assert not regularity(step, noise).differentiable


def test_touching_windows_of_the_paper_leave_no_jump_between_them():
    # U[-1/2, 1/2) on the ternary function: slope 1 on [-1, 1), with no seam at 0.
    assert slope_jump(MultiStep.ternary(), Uniform.half_width(0.5)) == pytest.approx(1)
    assert slope_jump(MultiStep((0.0, 1.0), (0.0, 1.0, 5.0)), Uniform.half_width(0.5)) == pytest.approx(4)


def test_without_noise_there_is_no_regularity():
    for noise in (Dirac(), Normal(0.0), Uniform(1e-31)):
        found = regularity(MultiStep.ternary(), noise)
        assert not found.continuous
        assert not found.differentiable
        assert found.lipschitz == found.lipschitz_bound == found.slope_jump == math.inf
        assert total_variation(noise) == math.inf
        assert derivative(MultiStep.ternary(), noise, torch.tensor([0.0, 0.5])).tolist() == [0, 0]


@pytest.mark.parametrize("kind", [Uniform, Triangular, Normal, Logistic])
@pytest.mark.parametrize("step", STEPS, ids=str)
def test_the_limit_is_the_function_but_the_middle_of_the_jump_on_a_threshold(kind, step):
    x = torch.tensor([*step.thresholds, -3.0, 0.1, 0.25, 3.0], dtype=torch.float64)
    assert torch.allclose(lehr.quantize(x, step, kind(1e-9)), limit(step, x), atol=1e-12)
    thresholds = x[: len(step.thresholds)]
    gap = step(thresholds) - limit(step, thresholds)
    assert gap.tolist() == pytest.approx([jump / 2 for jump in step.jumps])


@pytest.fixture(scope="module")
def trained():
    return digits_network(seed=0)


def test_the_digits_network_learned_something(trained):
    assert trained.accuracy > 0.9


@pytest.mark.parametrize("kind", [Uniform, Triangular, Normal, Logistic])
def test_composed_expectations_converge_on_a_trained_network(trained, kind):
    stds = [2.0**-k for k in range(1, 31)]  # the last is below the least distance from a threshold
    found = collapse(trained.model, trained.inputs, kind, stds)
    assert found.mean[0] > 0.1
    assert all(later <= 1.1 * earlier for earlier, later in zip(found.mean, found.mean[1:], strict=False))
    assert found.mean[-1] < 1e-4
    assert found.agreement[-1] == 1


@pytest.mark.parametrize("kind", [Uniform, Triangular])
def test_bounded_noise_that_reaches_no_threshold_changes_no_bit(trained, kind):
    nearest = margin(trained.model, trained.inputs)
    assert 0 < nearest < 0.01
    inside, beyond = (kind.half_width(nearest * factor).std for factor in (0.99, 1000))
    found = collapse(trained.model, trained.inputs, kind, [beyond, inside])
    assert found.largest[0] > 0
    assert found.largest[1] == 0


def test_measuring_leaves_the_model_as_it_was(trained):
    model = trained.model.train()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    kinds = [m.forward_kind for m in model.modules() if isinstance(m, Quantizer)]
    collapse(model, trained.inputs[:10], Normal, [0.1])
    margin(model, trained.inputs[:10])
    assert all(module.training for module in model.modules())
    assert [m.forward_kind for m in model.modules() if isinstance(m, Quantizer)] == kinds
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert model.state_dict().keys() == before.keys()
    model.eval()


def on_a_threshold(second_threshold):
    """x -> H(x) -> H(. - second_threshold): at x = 0 the first argument lies on its threshold."""
    first = Quantizer(MultiStep.heaviside())
    return nn.Sequential(first, Quantizer(MultiStep((second_threshold,), (0.0, 1.0))))


@pytest.mark.parametrize("kind", [Uniform, Triangular, Normal, Logistic])
def test_on_a_threshold_the_limit_is_another_and_layers_make_it_worse(kind):
    x = torch.zeros(1, 1)
    stds = [10.0**-k for k in range(1, 7)]
    alone = collapse(nn.Sequential(Quantizer(MultiStep.heaviside())), x, kind, stds)
    assert alone.largest == pytest.approx([0.5] * 6)
    # The second layer sees 1/2 where the quantized network sees 1, on the other side of its threshold: all is lost.
    assert collapse(on_a_threshold(0.75), x, kind, stds).largest[-1] == pytest.approx(1)
    assert collapse(on_a_threshold(0.25), x, kind, stds).largest[-1] == pytest.approx(0, abs=1e-6)
    assert margin(on_a_threshold(0.75), x) == 0
    # However near, beside the threshold the theorem's conclusion holds.
    assert collapse(on_a_threshold(0.75), x + 1e-3, kind, stds).largest[-1] == pytest.approx(0, abs=1e-6)


def test_a_model_without_quantizers_is_refused():
    with pytest.raises(ValueError, match="this Linear has no quantizer"):
        collapse(nn.Linear(1, 1), torch.zeros(1, 1), Normal, [0.1])
