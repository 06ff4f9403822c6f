"""BatchNorm statistics, re-estimated without noise."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import lehr
from lehr.batchnorm import reestimate_, reestimated


@pytest.fixture
def model() -> nn.Sequential:
    torch.manual_seed(0)
    model = nn.Sequential(lehr.Linear(6, 16), lehr.Quantizer(), nn.BatchNorm1d(16))
    for _ in range(50):  # statistics under noise
        model(torch.randn(32, 6))
    return model


@pytest.fixture
def batches() -> Tensor:
    return torch.randn(5, 32, 6, generator=torch.Generator().manual_seed(1))


def statistics(model: nn.Sequential) -> tuple[Tensor, Tensor]:
    norm = model[2]
    assert isinstance(norm, nn.BatchNorm1d)
    assert norm.running_mean is not None
    assert norm.running_var is not None
    return norm.running_mean.clone(), norm.running_var.clone()


def test_statistics_become_the_average_over_the_batches_of_the_noise_free_network(
    model: nn.Sequential, batches: Tensor
) -> None:
    under_noise = statistics(model)
    hard = model[:2].eval()(batches.flatten(0, 1)).unflatten(0, (5, 32))
    model.train()
    assert reestimate_(model, batches) == 5
    mean, variance = statistics(model)
    torch.testing.assert_close(mean, hard.mean(1).mean(0))
    torch.testing.assert_close(variance, hard.var(1).mean(0))
    assert not torch.allclose(variance, under_noise[1], rtol=1e-2)


def test_modes_momentum_and_parameters_stay(model: nn.Sequential, batches: Tensor) -> None:
    layer = model[0]
    assert isinstance(layer, lehr.Linear)
    layer.eval()
    modes = [module.training for module in model.modules()]
    weight = layer.weight.clone()
    reestimate_(model, batches)
    assert [module.training for module in model.modules()] == modes
    assert model[2].momentum == 0.1
    assert torch.equal(layer.weight, weight)


def test_without_a_batch_nothing_changes(model: nn.Sequential) -> None:
    before = statistics(model)
    assert reestimate_(model, []) == 0
    assert all(map(torch.equal, statistics(model), before))
    with reestimated(model, []) as running:
        assert running == {}


def test_for_a_while_gives_the_statistics_of_before_and_puts_them_back(model: nn.Sequential, batches: Tensor) -> None:
    before = statistics(model)
    with reestimated(model, batches) as running:
        assert torch.equal(running["2.running_mean"], before[0])
        assert not torch.equal(statistics(model)[0], before[0])
    assert all(map(torch.equal, statistics(model), before))
    assert model[2].num_batches_tracked == 50


def test_a_batchnorm_without_running_statistics_is_unchanged(batches: Tensor) -> None:
    model = nn.Sequential(nn.BatchNorm1d(6, track_running_stats=False))
    assert reestimate_(model, batches) == 5


def test_an_error_leaves_the_statistics_as_they_were(model: nn.Sequential, batches: Tensor) -> None:
    before = statistics(model)
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        reestimate_(model, [batches[0], batches[1], batches[2][:1]])
    assert all(map(torch.equal, statistics(model), before))
    assert model[2].num_batches_tracked == 50
