"""The networks: the shapes and counts of the paper's table, in full precision and quantized from one class."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import lehr
from lehr.algorithms import ANA
from lehr.models import MLP, VGG, Input
from lehr.summary import summarize

# The appendix's table: kind, output (channel, height, width) or features, and weights of each layer at width 1.
PAPER = [
    ("Conv2d", (128, 32, 32), 128 * 3 * 9),
    ("Conv2d", (128, 32, 32), 128 * 128 * 9),
    ("Conv2d", (256, 16, 16), 256 * 128 * 9),
    ("Conv2d", (256, 16, 16), 256 * 256 * 9),
    ("Conv2d", (512, 8, 8), 512 * 256 * 9),
    ("Conv2d", (512, 8, 8), 512 * 512 * 9),
    ("Linear", (1024,), 1024 * 512 * 4 * 4),
    ("Linear", (1024,), 1024 * 1024),
    ("Linear", (10,), 10 * 1024),
]


def pixels(*shape: int) -> torch.Tensor:
    return torch.randint(256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def test_vgg_has_the_shapes_weights_and_macs_of_the_papers_table() -> None:
    summary = summarize(VGG(), pixels(1, 3, 32, 32))
    assert [(layer.kind, layer.output, layer.weights) for layer in summary.layers] == PAPER
    assert summary.weights == 14_022_016
    assert summary.macs == 616_966_144
    assert (round(summary.weights / 1e6, 1), round(summary.macs / 1e6)) == (14.0, 617)


def test_vgg_pools_before_batchnorm_and_has_no_bias_before_it() -> None:
    model = VGG(width=1 / 8)
    kinds = [type(module).__name__ for module in [*model.features, *model.classifier]]
    block = ["Conv2d", "BatchNorm2d", "ReLU", "Conv2d", "MaxPool2d", "BatchNorm2d", "ReLU"]
    dense = ["Linear", "BatchNorm1d", "ReLU"]
    assert kinds == [*block * 3, "Flatten", *dense * 2, "Linear", "BatchNorm1d"]
    assert not [name for name, _ in model.named_parameters() if name.endswith("bias") and "Conv" in name]
    assert all(m.bias is None for m in model.modules() if isinstance(m, nn.Conv2d | nn.Linear))


@pytest.mark.parametrize("width", [1 / 4, 1 / 2, 2.0])
def test_width_multiplies_all_channels_but_those_of_input_and_classes(width: float) -> None:
    summary = summarize(VGG(width=width), pixels(1, 3, 32, 32))
    assert [layer.output[0] for layer in summary.layers] == [
        *(int(width * channels) for channels in (128, 128, 256, 256, 512, 512, 1024, 1024)),
        10,
    ]


def test_mlp_has_hidden_layers_with_batchnorm_and_a_last_layer_with_batchnorm() -> None:
    model = MLP((1, 28, 28), hidden=(512, 256), width=0.5)
    kinds = [type(module).__name__ for module in model.layers]
    assert kinds == ["Flatten", *["Linear", "BatchNorm1d", "ReLU"] * 2, "Linear", "BatchNorm1d"]
    assert [layer.weights for layer in summarize(model, pixels(1, 1, 28, 28)).layers] == [784 * 256, 256 * 128, 1280]


@pytest.mark.parametrize(
    "model", [MLP((1, 16, 16), hidden=(32,)), VGG((1, 16, 16), width=1 / 16, mean=(0.5,), std=(0.5,))]
)
def test_the_same_class_is_full_precision_or_quantized_by_an_algorithm(model: nn.Module) -> None:
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    images = pixels(4, 1, 16, 16)
    before = model.eval()(images)
    conversion = ANA().convert_(model)
    quantized = [module for module in model.modules() if isinstance(module, lehr.Linear | lehr.Conv2d)]
    assert len(quantized) == sum(isinstance(module, nn.Linear | nn.Conv2d) for module in model.modules())
    assert not [module for module in model.modules() if isinstance(module, nn.ReLU)]
    assert len(conversion.converted) == 2 * len(quantized) - 1  # an activation after each layer but the last
    for layer in quantized:
        assert set(layer.quantized_weight.unique().tolist()) <= {-1.0, 0.0, 1.0}
    assert state.keys() <= model.state_dict().keys()  # a full-precision checkpoint names what it can give
    assert not torch.equal(model(images), before)


def test_input_normalises_each_channel() -> None:
    images = pixels(2, 3, 4, 5)
    mean, std = (0.4, 0.5, 0.6), (0.2, 0.25, 0.3)
    expected = (images.double() / 255 - torch.tensor(mean)[:, None, None]) / torch.tensor(std)[:, None, None]
    torch.testing.assert_close(Input(mean, std)(images), expected.float(), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_quantized_input_is_an_integer_times_one_scale_and_rounds_to_the_nearest(bits: int) -> None:
    module = Input((0.4, 0.5), (0.2, 0.3), bits)
    images = pixels(8, 2, 8, 8)
    codes = module(images).double() / module.scale.double()
    assert torch.equal(codes.round(), (codes * 1e4).round() / 1e4)
    assert codes.abs().max() <= 2 ** (bits - 1) - 1
    error = (module(images) - Input((0.4, 0.5), (0.2, 0.3))(images)).abs().max()
    assert error <= module.scale / 2 * (1 + 1e-5)


def test_input_says_what_it_takes() -> None:
    with pytest.raises(TypeError, match=r"takes uint8 pixels and normalises them itself, got torch\.float32"):
        Input((0.5,), (0.5,))(torch.zeros(1, 1, 4, 4))
    with pytest.raises(ValueError, match=r"expected images \(batch, 1, height, width\), got \(1, 3, 4, 4\)"):
        Input((0.5,), (0.5,))(pixels(1, 3, 4, 4))
    with pytest.raises(ValueError, match="got 1 means and 2 stds"):
        Input((0.5,), (0.5, 0.5))
    with pytest.raises(ValueError, match=r"every std must be positive, got \(0.0,\)"):
        Input((0.5,), (0.0,))
    with pytest.raises(ValueError, match="input bits must be between 2 and 8, or None, got 9"):
        Input((0.5,), (0.5,), 9)


@pytest.mark.parametrize("network", [MLP, VGG])
def test_a_network_needs_a_mean_for_each_channel(network: type[MLP] | type[VGG]) -> None:
    with pytest.raises(ValueError, match=r"images of 2 channels need as many means, got \(0\.5,\)"):
        network((2, 32, 32), mean=(0.5,), std=(0.5,))


def test_vgg_refuses_images_that_three_pools_would_leave_nothing_of() -> None:
    with pytest.raises(ValueError, match="at least 8x8 pixels, got 4x32"):
        VGG((3, 4, 32))
