"""XNOR-Net: its scales, its gradient, the order of its blocks."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import lehr
from lehr.algorithms.algorithm import quantized_layers
from lehr.algorithms.xnor_net import InputScaledConv2d, ScaledSign, XNORNet


def sequence(groups: int = 1) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(2, 4, 3),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Dropout(),
        nn.Conv2d(4, 6, 3, stride=2, padding=1, groups=groups),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(6 * 4, 5),
    )


def test_a_filter_is_its_sign_times_the_scale_that_is_closest() -> None:
    weight = torch.randn(3, 2, 5, 5, generator=torch.Generator().manual_seed(0))
    quantizer = ScaledSign(weight)
    w = weight.flatten(1).numpy().astype(np.float64)
    b = np.where(w >= 0, 1, -1)
    best = (w * b).sum(1) / (b * b).sum(1)  # least squares
    np.testing.assert_allclose(quantizer.scale.flatten().numpy(), best, rtol=1e-6)
    assert torch.equal(quantizer(weight), quantizer.scale * torch.where(weight >= 0, 1.0, -1.0))
    assert not quantizer.scale.isnan().any()
    assert bool((ScaledSign(torch.zeros(2, 3)).scale > 0).all()), "a filter of zeros has a scale one can divide by"


def test_the_gradient_goes_through_the_scale() -> None:
    weight = torch.tensor([[-1.5, -0.4, 0.3, 2.0], [0.0, -0.9, 0.1, 0.2]], requires_grad=True)
    grad = torch.tensor([[1.0, -2.0, 3.0, 0.5], [0.3, 1.0, -1.0, 2.0]])
    ScaledSign(weight.detach())(weight).backward(grad)
    w = weight.detach().numpy()
    alpha = np.abs(w).mean(1, keepdims=True)
    expected = grad.numpy() * (1 / 4 + alpha * ((w >= -1) & (w < 1)))
    assert weight.grad is not None
    np.testing.assert_allclose(weight.grad.numpy(), expected, rtol=1e-6)


def test_straight_through_is_the_gradient_of_the_weight_itself() -> None:
    weight = torch.tensor([[-1.5, -0.4, 0.3, 2.0]], requires_grad=True)
    ScaledSign(weight.detach(), straight_through=True)(weight).sum().backward()
    assert weight.grad is not None
    assert bool((weight.grad == 1).all())


def test_the_scales_follow_the_weights() -> None:
    model = sequence()
    algorithm = XNORNet()
    algorithm.convert_(model)
    ((_, layer),) = quantized_layers(model)
    with torch.no_grad():
        layer.weight.mul_(2).add_(0.1)
    algorithm.after_step_(model)
    expected = layer.weight.abs().flatten(1).mean(1)
    assert layer.quantizer.scale is not None
    assert torch.equal(layer.quantizer.scale.flatten(), expected)


@pytest.mark.parametrize("groups", [1, 2])
def test_a_convolution_is_scaled_with_the_mean_of_what_it_sees(groups: int) -> None:
    model = sequence(groups)
    XNORNet().convert_(model)
    layer = model[5]
    assert isinstance(layer, InputScaledConv2d)
    x = torch.randn(2, 4, 7, 7)
    with torch.no_grad():
        result = layer(x).numpy()
    assert layer.bias is not None
    w, bias = layer.weight.detach().numpy(), layer.bias.detach().numpy()
    padded = np.pad(x.numpy(), ((0, 0), (0, 0), (1, 1), (1, 1)))
    inside = np.pad(np.ones((7, 7)), 1)  # outside, sign(0) would be 1: the padding is of binary values
    channels = 4 // groups
    for image, out, row, column in np.ndindex(*result.shape):
        first = out // (6 // groups) * channels
        rows, columns = slice(2 * row, 2 * row + 3), slice(2 * column, 2 * column + 3)
        seen = padded[image, first : first + channels, rows, columns]
        signs = np.where(seen >= 0, 1, -1) * inside[rows, columns]
        sums = (signs * np.where(w[out] >= 0, 1, -1)).sum()
        scale = np.abs(seen).mean() * np.abs(w[out]).mean()
        assert result[image, out, row, column] == pytest.approx(sums * scale + bias[out], rel=1e-4, abs=1e-5)


def test_a_fully_connected_layer_is_scaled_with_the_mean_of_its_input() -> None:
    model = lehr.models.MLP((1, 2, 2), hidden=(6, 5))
    XNORNet().convert_(model)
    layer = model.layers[4]
    x = torch.randn(3, 6)
    signs = torch.where(x >= 0, 1.0, -1.0) @ torch.where(layer.weight >= 0, 1.0, -1.0).T
    expected = signs * x.abs().mean(1, keepdim=True) * layer.weight.abs().mean(1)
    torch.testing.assert_close(layer(x), expected)


@pytest.mark.parametrize("input_scale", [True, False])
def test_blocks_are_batchnorm_binarize_convolve_pool(input_scale: bool) -> None:
    model = sequence()
    state = {name: value.clone() for name, value in model.state_dict().items()}
    conversion = XNORNet(input_scale=input_scale).convert_(model)
    assert list(model._modules) == ["0", "3", "1", "2", "4", "5", "6", "7", "8", "9"], (
        "the pool stands before BatchNorm"
    )
    for name, value in state.items():
        assert torch.equal(model.state_dict()[name], value), "and all have their names"
    assert type(model[0]) is nn.Conv2d
    assert type(model[9]) is nn.Linear
    assert type(model[7]) is nn.ReLU, "the last layer reads floats"
    assert type(model.get_submodule("2")) is (nn.Identity if input_scale else lehr.Quantizer)
    assert [change.module for change in conversion.converted] == ["2", "5"]
    assert model.eval()(torch.randn(2, 2, 10, 10)).shape == (2, 5)


def test_a_block_without_batchnorm_raises() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    with pytest.raises(ValueError, match="there is no BatchNorm before 1, which the binarization replaces: add one"):
        XNORNet().convert_(model)


class Unrolled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.act, self.pool = nn.Conv2d(1, 2, 1), nn.BatchNorm2d(2), nn.ReLU(), nn.MaxPool2d(2)
        self.second, self.third = nn.Conv2d(2, 2, 1), nn.Conv2d(2, 2, 1)


def test_a_pool_that_cannot_be_moved_raises() -> None:
    with pytest.raises(ValueError, match="but pool pools after act and cannot be moved: put both into one"):
        XNORNet().convert_(Unrolled())


def test_without_input_scale_the_inner_layers_run_as_integers() -> None:
    torch.manual_seed(0)
    model = lehr.models.VGG((3, 16, 16), width=1 / 16)
    XNORNet(input_scale=False).convert_(model)
    images = torch.randint(0, 256, (32, 3, 16, 16), dtype=torch.uint8)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
            nn.init.normal_(module.bias)  # or integer sums may lie at a threshold, where torch's rounding decides
    model(images)
    net = lehr.freeze(model.eval(), images)
    kinds = {path: net.values[path].kind for path, _ in quantized_layers(model)}
    assert set(kinds.values()) == {"integer"}
    assert len(kinds) == 7
    with torch.no_grad():
        torch.testing.assert_close(net.run(images), model(images), rtol=1e-4, atol=1e-4)
