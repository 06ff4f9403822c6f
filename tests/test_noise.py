"""Noises: the distributions of scipy, with their true standard deviation, and half-open windows."""

import dataclasses
import math

import numpy as np
import pytest
import scipy.integrate
import scipy.stats
import torch
from hypothesis import given
from hypothesis import strategies as st

from lehr import Dirac, Logistic, Normal, Triangular, Uniform
from lehr.noise import Noise
from restated import BY_SCIPY, NOISES, numbers

every_noise = pytest.mark.parametrize("kind", NOISES)


@every_noise
@numbers
@given(st.floats(1e-3, 1e3), st.floats(-5, 5), st.floats(-40, 40))
def test_cdf_and_pdf_are_those_of_the_distribution(kind, std, mean, where):
    x = np.asarray([mean + where * std, mean, mean + std, mean - std])
    law, noise = BY_SCIPY[kind](std), kind(std, mean)
    np.testing.assert_allclose(noise.cdf(torch.from_numpy(x)), law.cdf(x - mean), rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(noise.pdf(torch.from_numpy(x)), law.pdf(x - mean), rtol=1e-9, atol=1e-13 / std)


@every_noise
def test_the_density_keeps_its_relative_precision_far_in_the_tails(kind):
    x = torch.linspace(-20, 20, 401, dtype=torch.float64)
    np.testing.assert_allclose(kind(1.0).pdf(x), BY_SCIPY[kind](1.0).pdf(x.numpy()), rtol=1e-11)


@every_noise
@pytest.mark.parametrize("std", [0.01, math.sqrt(3) / 6, 7.0])
def test_std_is_the_standard_deviation_of_the_density(kind, std):
    noise = kind(std)

    def integral(power):
        def integrand(x):
            return x**power * noise.pdf(torch.tensor(x, dtype=torch.float64)).item()

        half = scipy.integrate.quad(integrand, 0, std * math.sqrt(3), points=None)[0]
        return 2 * (
            half + scipy.integrate.quad(integrand, std * math.sqrt(3), 40 * std, points=[std * math.sqrt(6)])[0]
        )

    assert integral(0) == pytest.approx(1, abs=1e-7)
    assert math.sqrt(integral(2)) == pytest.approx(std, rel=1e-6)


@every_noise
def test_samples_follow_the_distribution(kind):
    noise = kind(0.7, mean=0.2)
    draws = noise.sample((20_000,), generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    assert scipy.stats.kstest(draws.numpy() - 0.2, BY_SCIPY[kind](0.7).cdf).pvalue > 0.01
    assert draws.std().item() == pytest.approx(0.7, rel=0.03)
    assert draws.mean().item() == pytest.approx(0.2, abs=0.02)


@every_noise
def test_samples_are_reproducible_and_have_the_dtype_asked_for(kind):
    first, second = (kind(0.5).sample((4, 3), generator=torch.Generator().manual_seed(7)) for _ in range(2))
    assert torch.equal(first, second)
    assert first.dtype == torch.float32
    assert kind(0.5).sample((1000,), dtype=torch.float16).isfinite().all()
    assert kind(torch.tensor(0.5, dtype=torch.float64)).sample((2,)).dtype == torch.float64


@every_noise
def test_std_and_mean_broadcast_per_channel_and_per_element(kind):
    std, mean = torch.tensor([[0.1], [2.0]]), torch.tensor([[1.0], [-1.0]])
    x = torch.randn(2, 5)
    noise = kind(std, mean)
    for row in range(2):
        alone = kind(std[row].item(), mean[row].item())
        torch.testing.assert_close(noise.cdf(x)[row], alone.cdf(x[row]))
        torch.testing.assert_close(noise.pdf(x)[row], alone.pdf(x[row]))
    assert noise.cdf(torch.tensor(0.3)).shape == (2, 1)
    draws = noise.sample((2, 5000), generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(draws.std(1, keepdim=True), std, rtol=0.05, atol=0)


def test_half_widths_are_half_widths():
    assert Uniform.half_width(0.5).std == pytest.approx(math.sqrt(3) / 6)
    assert Uniform.half_width(1).std == pytest.approx(1 / math.sqrt(3))
    assert Triangular.half_width(1).std == pytest.approx(1 / math.sqrt(6))
    x = torch.tensor([-1.0001, -0.9999, 0.9999, 1.0001])
    assert (Uniform.half_width(1).pdf(x) > 0).tolist() == [False, True, True, False]
    assert (Triangular.half_width(1).pdf(x) > 0).tolist() == [False, True, True, False]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("half_width", [0.5, 0.25, 1.0, 0.375, 3.0])
def test_the_uniform_window_is_half_open(dtype, half_width):
    x = torch.tensor([-half_width, half_width], dtype=dtype)
    for noise in (Uniform.half_width(half_width), Uniform.half_width(torch.tensor(half_width))):
        lower, upper = noise.pdf(x).tolist()
        assert lower == pytest.approx(1 / (2 * half_width), rel=1e-6)
        assert upper == 0


@pytest.mark.parametrize(
    "noise", [*(kind(0.0) for kind in NOISES), *(kind(1e-40) for kind in NOISES), Dirac()], ids=str
)
def test_without_std_every_noise_is_the_dirac_measure(noise):
    x = torch.tensor([-1.0, -1e-30, 0.0, 1e-30, 1.0])
    assert noise.cdf(x).tolist() == [0, 0, 1, 1, 1]
    assert noise.pdf(x).tolist() == [0] * 5
    assert noise.sample((3,)).abs().max() < 1e-30


@every_noise
def test_a_tensor_of_stds_may_hold_zeros(kind):
    noise = kind(torch.tensor([0.0, 1.0]))
    assert noise.cdf(torch.tensor([0.0, 0.0])).tolist() == [1, 0.5]
    assert noise.pdf(torch.tensor([0.0, 0.0]))[0] == 0
    assert noise.pdf(torch.tensor([0.0, 0.0]))[1] > 0


def test_a_dirac_measure_may_lie_elsewhere():
    assert Dirac(2.0).cdf(torch.tensor([1.9, 2.0])).tolist() == [0, 1]
    assert Dirac(2.0).sample((2,)).tolist() == [2, 2]
    assert str(Dirac(2.0)) == "Dirac(mean=2)"


@pytest.mark.parametrize("noise", [*(kind(0.5) for kind in NOISES), Dirac()], ids=str)
def test_nan_propagates_and_infinity_is_beyond_all_noise(noise):
    assert noise.cdf(torch.tensor([math.nan])).isnan().all()
    assert noise.cdf(torch.tensor([-math.inf, math.inf])).tolist() == [0, 1]
    assert noise.pdf(torch.tensor([-math.inf, math.inf])).tolist() == [0, 0]


@pytest.mark.parametrize("noise", [*(kind(0.5) for kind in NOISES), Dirac()], ids=str)
def test_the_argument_is_unchanged(noise):
    x = torch.randn(5)
    before = x.clone()
    noise.cdf(x), noise.pdf(x)
    assert torch.equal(x, before)
    assert noise.cdf(torch.tensor([1, 2])).dtype == torch.float32


@every_noise
@pytest.mark.parametrize("std", [-1, math.nan, math.inf, torch.tensor([0.1, -0.1]), torch.tensor(math.nan)])
def test_a_negative_or_infinite_std_is_an_error(kind, std):
    with pytest.raises(ValueError, match="std must be finite and not negative, got"):
        kind(std)


def test_other_wrong_arguments_are_errors():
    with pytest.raises(ValueError, match="mean must be finite, got inf"):
        Normal(1.0, math.inf)
    with pytest.raises(TypeError, match="expected a number or a tensor, got 'wide'"):
        Normal("wide")  # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeError):
        Noise(1.0)  # pyright: ignore[reportAbstractUsage]


def test_a_noise_is_a_frozen_value_that_prints():
    assert str(Uniform(math.sqrt(3) / 6)) == "Uniform(std=0.2887)"
    assert str(Logistic(1, mean=-0.5)) == "Logistic(std=1, mean=-0.5)"
    assert str(Normal(torch.tensor([0.1, 0.2]))) == "Normal(std=0.1..0.2, (2,))"
    assert Uniform(0.5) == Uniform(0.5) != Normal(0.5)
    with pytest.raises(dataclasses.FrozenInstanceError):
        Uniform(0.5).std = 0.1  # pyright: ignore[reportAttributeAccessIssue]
