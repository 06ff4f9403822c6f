"""TWN: threshold and scale, restated in numpy and fitted after each step; the straight-through gradient."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import lehr
from lehr.algorithms import TWN


def layer(weight: torch.Tensor, algorithm: TWN = TWN()) -> lehr.Linear:  # noqa: B008
    model = torch.nn.Sequential(torch.nn.Linear(*reversed(weight.shape)))
    with torch.no_grad():
        model[0].weight.copy_(weight)
    algorithm.convert_(model)
    return model[0]  # pyright: ignore[reportReturnType]


def restated(weight: torch.Tensor, ratio: float = 0.7) -> np.ndarray:
    w = weight.double().numpy()
    threshold = ratio * np.abs(w).mean()
    return np.where(w > threshold, 1, np.where(w < -threshold, -1, 0)) * np.abs(w)[np.abs(w) > threshold].mean()


@pytest.mark.parametrize("ratio", [0.3, 0.7])
def test_weights_are_at_the_scale_of_those_above_the_threshold(ratio: float) -> None:
    torch.manual_seed(0)
    weight = torch.randn(20, 30)
    quantized = layer(weight, TWN(threshold=ratio)).quantized_weight
    np.testing.assert_allclose(quantized.detach().numpy(), restated(weight, ratio), rtol=1e-5)


def test_a_weight_at_the_threshold_goes_up() -> None:
    twn = layer(torch.zeros(1, 2))
    twn.quantizer.threshold.fill_(0.25)  # pyright: ignore[reportCallIssue, reportAttributeAccessIssue]
    assert twn.quantizer.codes(torch.tensor([-0.26, -0.25, 0.25])).tolist() == [0, 1, 2]


def test_the_gradient_passes_as_it_is() -> None:
    twn, gradient = layer(torch.randn(5, 6) * 10), torch.randn(5, 6)
    (twn.quantized_weight * gradient).sum().backward()
    assert twn.weight.grad is not None
    assert torch.equal(twn.weight.grad, gradient)


def test_threshold_and_scale_follow_the_weights() -> None:
    twn = layer(torch.randn(20, 30))
    with torch.no_grad():
        twn.weight.mul_(3).add_(0.1)
    TWN().after_step_(twn)
    np.testing.assert_allclose(twn.quantized_weight.detach().numpy(), restated(twn.weight.detach()), rtol=1e-5)


def test_weights_that_are_all_zero_stay_finite() -> None:
    assert torch.equal(layer(torch.zeros(3, 4)).quantized_weight, torch.zeros(3, 4))


def test_a_wrong_threshold_raises() -> None:
    with pytest.raises(ValueError, match="threshold, a multiple of the mean size of the weights, must be positive"):
        TWN(threshold=0)
