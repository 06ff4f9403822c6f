"""Transposed convolutions with quantized weights: torch's own, of quantized weights, and exact when evaluated."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import lehr

ARGUMENTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "stride": {"stride": 2, "padding": 1, "output_padding": 1},
    "groups": {"stride": 2, "groups": 2, "bias": False},
    "dilation": {"dilation": 2, "padding": 1},
}
KINDS = {1: lehr.ConvTranspose1d, 2: lehr.ConvTranspose2d, 3: lehr.ConvTranspose3d}
FLOATS = {1: nn.ConvTranspose1d, 2: nn.ConvTranspose2d, 3: nn.ConvTranspose3d}


@pytest.mark.parametrize("space", KINDS)
@pytest.mark.parametrize("case", ARGUMENTS)
@pytest.mark.parametrize("training", [True, False])
def test_it_is_torchs_own_of_the_quantized_weight(space: int, case: str, training: bool) -> None:
    torch.manual_seed(space)
    layer = KINDS[space](4, 6, 3, **ARGUMENTS[case], quantizer=lehr.Quantizer(scale=0.3)).train(training)
    plain = FLOATS[space](4, 6, 3, **ARGUMENTS[case])
    x = torch.randn(2, 4, *[5] * space)
    with torch.no_grad():
        plain.weight.copy_(layer.quantized_weight)
        if layer.bias is not None:
            plain.bias.copy_(layer.bias)
        torch.testing.assert_close(layer(x), plain(x))


def test_the_output_size_chooses_as_in_torch() -> None:
    layer = lehr.ConvTranspose2d(1, 1, 3, stride=2).eval()
    x = torch.ones(1, 1, 4, 4)
    assert layer(x, output_size=[10, 9]).shape == (1, 1, 10, 9)


@pytest.mark.parametrize("groups", [1, 2])
def test_quantize_fits_one_scale_to_each_output_channel(groups: int) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.ConvTranspose2d(4, 6, 2, 2, groups=groups))
    with torch.no_grad():
        model[0].weight.mul_(torch.arange(1.0, 6 // groups + 1).reshape(1, -1, 1, 1))
    floats, x = model[0].weight.clone(), torch.randn(3, 4, 5, 5)
    (change,) = lehr.quantize_(model, scale="channel", weights="8bit", activations=None).changes
    assert (change.was, change.now) == ("ConvTranspose2d", "ConvTranspose2d")
    scale = model[0].quantizer.scale
    assert scale.shape == (1, 6 // groups, 1, 1)
    torch.testing.assert_close(model[0].quantized_weight, floats, atol=0.01 * floats.abs().max().item(), rtol=0)
    with torch.no_grad():
        torch.testing.assert_close(model.eval()(x), model.train()(x))  # the scale after the sums, or in the weights
    lehr.dequantize_(model)
    assert type(model[0]) is nn.ConvTranspose2d


def test_it_trains_and_is_counted_among_the_quantized_layers() -> None:
    model = nn.Sequential(nn.ConvTranspose1d(2, 3, 4, 2, 1), nn.ReLU(), nn.Conv1d(3, 1, 3))
    conversion = lehr.quantize_(model)
    assert conversion.weights == (33, 33)
    model(torch.randn(2, 2, 8)).square().sum().backward()
    assert model[0].weight.grad is not None
    assert bool(model[0].weight.grad.any())
