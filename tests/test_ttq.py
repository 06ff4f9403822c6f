"""TTQ: levels, and the gradients of eq. 7 and 8, restated."""

from __future__ import annotations

import pytest
import torch

import lehr
from lehr.algorithms import TTQ
from lehr.algorithms.ttq import TrainedTernary


def layer(weight: torch.Tensor, share: float = 0.05) -> tuple[lehr.Linear, TrainedTernary]:
    model = torch.nn.Sequential(torch.nn.Linear(*reversed(weight.shape)))
    with torch.no_grad():
        model[0].weight.copy_(weight)
    TTQ(threshold=share).convert_(model)
    quantizer = model[0].quantizer
    assert isinstance(quantizer, TrainedTernary)
    return model[0], quantizer  # pyright: ignore[reportReturnType]


def test_scales_start_at_the_mean_of_their_weights() -> None:
    weight = torch.tensor([[-4.0, -2.0, 0.1], [-0.1, 1.0, 5.0]])
    ttq, quantizer = layer(weight, share=0.1)
    assert quantizer.levels == (-3.0, 0.0, 3.0)
    assert ttq.quantized_weight.tolist() == [[-3.0, -3.0, 0.0], [0.0, 3.0, 3.0]]


def test_gradients_are_those_of_equations_7_and_8() -> None:
    torch.manual_seed(0)
    weight, gradient = torch.randn(8, 9), torch.randn(8, 9)
    ttq, quantizer = layer(weight, share=0.3)
    quantizer.positive.start_(torch.tensor(0.7))
    quantizer.negative.start_(torch.tensor(1.3))
    (ttq.quantized_weight * gradient).sum().backward()
    above, below = weight > 0.3 * weight.abs().max(), weight < -0.3 * weight.abs().max()
    for scale, expected in ((quantizer.positive, gradient[above].sum()), (quantizer.negative, -gradient[below].sum())):
        assert scale.relative.grad is not None
        torch.testing.assert_close(scale.start * scale.relative.grad, expected)  # what moves the scale
    torch.testing.assert_close(ttq.weight.grad, gradient * (0.7 * above + 1.3 * below + ~(above | below)))


def test_the_threshold_follows_the_largest_weight() -> None:
    ttq, quantizer = layer(torch.randn(4, 5))
    with torch.no_grad():
        ttq.weight[0, 0] = 20.0
    TTQ().after_step_(ttq)
    torch.testing.assert_close(quantizer.threshold, torch.tensor(1.0))


def test_a_scale_stays_positive_and_the_levels_in_order() -> None:
    ttq, quantizer = layer(torch.randn(4, 5))
    with torch.no_grad():
        quantizer.positive.relative.fill_(-1.0)
    TTQ().after_step_(ttq)
    assert quantizer.levels[0] < 0 < quantizer.levels[2]


def test_a_wrong_threshold_raises() -> None:
    with pytest.raises(ValueError, match="threshold, a share of the largest weight, must be between 0 and 1, got 1"):
        TTQ(threshold=1)
