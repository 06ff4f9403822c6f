"""Residual networks: MLPerf Tiny's figures, torchvision's names."""

from __future__ import annotations

from typing import Literal

import pytest
import torch

from lehr.models import ResNet
from lehr.models.resnet import Block, SumBlock
from lehr.summary import summarize


def pixels(*shape: int) -> torch.Tensor:
    return torch.randint(256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("depth", "layers", "weights", "macs"),
    [(8, 10, 77_360, 12.5), (20, 22, 270_896, 40.8), (18, 21, 11_164_352, 555.4)],
)
def test_a_resnet_has_the_layers_weights_and_macs_of_its_name(depth: int, layers: int, weights: int, macs: float):
    summary = summarize(ResNet(depth=depth), pixels(1, 3, 32, 32))
    assert len(summary.layers) == layers  # those of the name, and a Conv1x1 for each stack that halves the image
    assert summary.weights == weights
    assert round(summary.macs / 1e6, 1) == macs


def test_width_multiplies_the_channels_of_all_stacks_and_images_have_any_size():
    model = ResNet((1, 20, 12), classes=3, width=0.5, mean=(0.5,), std=(0.25,))
    assert [m.out_channels for m in model.modules() if isinstance(m, torch.nn.Conv2d)] == [
        8,
        8,
        8,
        16,
        16,
        16,
        32,
        32,
        32,
    ]
    assert model(pixels(2, 1, 20, 12)).shape == (2, 3)


def test_names_are_those_of_torchvision():
    names = set(ResNet().state_dict())
    assert {"conv1.weight", "bn1.bias", "layer2.0.downsample.0.weight", "layer3.0.conv2.weight", "fc.weight"} <= names


@pytest.mark.parametrize("activation", ["relu", "hardtanh"])
def test_shortcuts_of_sums_carry_what_the_activations_cut(activation: Literal["relu", "hardtanh"]):
    """With convolutions that give 0, a block of sums is the identity; one of levels cuts its input."""
    x = torch.tensor([-3.0, -0.5, 0.5, 3.0]).reshape(1, 4, 1, 1)
    kind = {"relu": torch.nn.ReLU, "hardtanh": torch.nn.Hardtanh}[activation]
    for make, expected in ((SumBlock, x), (Block, kind()(x))):
        block = make(4, 4, stride=1, activation=kind).eval()
        for conv in (block.conv1, block.conv2):
            torch.nn.init.zeros_(conv.weight)
        assert torch.equal(block(x), expected)


def test_shortcuts_of_sums_cost_nothing():
    levels, sums = (ResNet(depth=8, shortcuts=kind) for kind in ("levels", "sums"))
    assert levels.state_dict().keys() == sums.state_dict().keys()
    image = pixels(1, 3, 32, 32)
    assert summarize(levels, image).macs == summarize(sums, image).macs


def test_unknown_settings_are_refused():
    with pytest.raises(ValueError, match="depth must be 8, 18, 20, got 50"):
        ResNet(depth=50)
    with pytest.raises(ValueError, match="activation must be relu, hardtanh or ramp, got 'gelu'"):
        ResNet(activation="gelu")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="shortcuts must be levels or sums, got 'none'"):
        ResNet(shortcuts="none")  # pyright: ignore[reportArgumentType]
