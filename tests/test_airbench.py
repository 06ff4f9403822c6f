"""The network of airbench: its size, where it halves the image, and that all of it becomes integers."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import lehr
from lehr.algorithms import Estimated
from lehr.models import VGG, AirBench
from lehr.summary import summarize


def pixels(*shape: int) -> torch.Tensor:
    return torch.randint(256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def test_it_has_the_products_of_a_vgg_of_half_the_width_and_fewer_weights():
    airbench, vgg = (summarize(model, pixels(1, 3, 32, 32)) for model in (AirBench(), VGG(width=0.5)))
    assert airbench.weights == 1_975_648 < vgg.weights
    assert airbench.macs == 151_882_240 == pytest.approx(vgg.macs, rel=0.03)


def test_each_group_halves_the_image_behind_its_first_convolution():
    summary = summarize(AirBench((1, 28, 20), classes=3, width=0.25, mean=(0.5,), std=(0.25,)), pixels(1, 1, 28, 20))
    shapes = {layer.path: layer.output for layer in summary.layers}
    assert shapes["groups.0.conv1"] == (16, 28, 20)
    assert shapes["groups.0.conv2"] == (16, 14, 10)
    assert shapes["groups.2.conv2"] == (64, 3, 2)


@pytest.mark.parametrize("activation", ["relu", "hardtanh"])
def test_all_of_it_becomes_integers_that_equal_torch(activation: Any):
    torch.manual_seed(0)
    model = AirBench(width=0.125, input_bits=8, activation=activation)
    Estimated().convert_(model, trained=True)
    with torch.no_grad():
        model(pixels(64, 3, 32, 32))  # statistics for BatchNorm
    net = lehr.freeze(model.eval(), pixels(1, 3, 32, 32))
    images = pixels(16, 3, 32, 32)
    torch.testing.assert_close(torch.as_tensor(net.run(images.numpy())), model(images).detach(), rtol=0, atol=1e-5)


def test_impossible_settings_are_refused():
    with pytest.raises(ValueError, match="activation must be relu, hardtanh or ramp, got 'gelu'"):
        AirBench(activation="gelu")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="at least 8x8 pixels, got 4x32"):
        AirBench((3, 4, 32))
    with pytest.raises(ValueError, match="images of 1 channels need as many means"):
        AirBench((1, 32, 32))
