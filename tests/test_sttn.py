"""STTN: sums of two signs, their gradients, and the conversion of trained weights."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import lehr
from lehr.algorithms import STTN
from lehr.algorithms.sttn import SumOfSigns


def layer() -> lehr.Linear:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 2))
    STTN().convert_(model)
    found = model[0]
    assert isinstance(found, lehr.Linear)
    return found


def halves(quantizer: object) -> SumOfSigns:
    assert isinstance(quantizer, SumOfSigns)
    return quantizer


def test_a_weight_is_half_the_sum_of_two_signs() -> None:
    found = layer()
    with torch.no_grad():
        found.weight[0, :4] = torch.tensor([0.3, 0.3, -0.3, -0.3])
        halves(found.quantizer).second[0, :4] = torch.tensor([0.2, -0.2, 0.2, -0.2])
    assert found.quantized_weight[0, :4].tolist() == [1, 0, 0, -1]


def test_both_halves_get_half_the_gradient_where_they_are_within_reach() -> None:
    found = layer()
    second = halves(found.quantizer).second
    with torch.no_grad():
        found.weight[0, 0], second[0, 1] = 1.5, -1.5
    grad = torch.rand_like(found.weight)
    found.quantized_weight.backward(grad)
    assert found.weight.grad is not None
    assert second.grad is not None
    for got, far in ((found.weight.grad, (0, 0)), (second.grad, (0, 1))):
        expected = grad / 2
        expected[far] = 0
        torch.testing.assert_close(got, expected)


def test_new_halves_are_drawn_apart_within_the_reach_of_the_layer() -> None:
    found = layer()
    second = halves(found.quantizer).second
    assert not torch.equal(second, found.weight)
    assert 0 < second.abs().max() <= 6**-0.5
    assert 0 in found.quantized_weight


def test_a_trained_weight_becomes_its_nearest_level() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 2))
    with torch.no_grad():
        model[0].weight[:, ::3] = 0  # pruned
    before = model[0].weight.detach().clone()
    STTN().convert_(model, trained=True)
    quantizer = halves(model[0].quantizer)
    assert quantizer.scale is not None
    assert quantizer.scale.shape == (32, 1)
    nearest = lehr.MultiStep.ternary()(before / quantizer.scale) * quantizer.scale
    torch.testing.assert_close(model[0].quantized_weight, nearest)


def test_both_halves_are_clipped_in_units_of_the_scale() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 2))
    algorithm = STTN()
    algorithm.convert_(model, trained=True)
    quantizer = halves(model[0].quantizer)
    with torch.no_grad():
        model[0].weight.fill_(9)
        quantizer.second.fill_(-9)
    algorithm.after_step_(model)
    assert quantizer.scale is not None
    torch.testing.assert_close(model[0].weight.detach(), quantizer.scale.expand(5, 6))
    torch.testing.assert_close(quantizer.second.detach(), -quantizer.scale.expand(5, 6))


@pytest.mark.parametrize("window", [0, -1, float("nan"), float("inf")])
def test_a_wrong_window_raises(window: float) -> None:
    with pytest.raises(ValueError, match=f"must be positive, got {window}"):
        STTN(window=window)
