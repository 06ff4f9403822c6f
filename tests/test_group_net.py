"""Group-Net: binary branches of layers and of groups, added with learned scales."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

import lehr
from lehr.algorithms.algorithm import quantized_layers
from lehr.algorithms.group_net import Branches, GroupNet
from lehr.algorithms.xnor_net import ScaledSign


def vgg(algorithm: GroupNet, *, trained: bool = False) -> lehr.models.VGG:
    torch.manual_seed(0)
    model = lehr.models.VGG((3, 16, 16), width=1 / 16)
    algorithm.convert_(model, trained=trained)
    return model


def branches_of(model: nn.Module) -> dict[str, Branches]:
    return {path: module for path, module in model.named_modules() if isinstance(module, Branches)}


def test_each_layer_is_a_sum_of_branches_and_shares_what_follows() -> None:
    model = vgg(GroupNet(branches=3))
    found = branches_of(model)
    assert list(found)[:3] == ["features.3", "features.7", "features.10"]
    assert len(found) == 7
    for module in found.values():
        assert [type(branch) for branch in module.branches] == [type(module.branches[0])] * 3
        assert isinstance(module.branches[0], lehr.Conv2d | lehr.Linear)
    assert sum(isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d) for module in model.modules()) == 9


def test_a_group_is_a_sum_of_branches_of_several_layers_with_their_own_batchnorm() -> None:
    model = vgg(GroupNet(branches=3, decomposition="group", group=2))
    found = branches_of(model)
    assert list(found) == ["features.3", "features.10", "features.17", "classifier.1"]
    inside = [type(module) for module in found["features.3"].branches[1].children()]
    assert inside == [lehr.Conv2d, nn.MaxPool2d, nn.BatchNorm2d, lehr.Quantizer, lehr.Conv2d, nn.BatchNorm2d]
    assert [name for name, _ in model.features.named_children()] == ["0", "1", "2", "3", "9", "10", "16", "17", "20"]
    assert [type(module) for module in found["classifier.1"].branches[0].children()] == [
        lehr.Linear,
        nn.BatchNorm1d,
        lehr.Quantizer,
        lehr.Linear,
        nn.BatchNorm1d,
    ]
    assert type(model.classifier.get_submodule("6")) is nn.ReLU, "the last layer reads floats"


@pytest.mark.parametrize("decomposition", ["layer", "group"])
def test_the_output_is_the_scaled_sum_and_the_scales_are_learned(decomposition: str) -> None:
    model = vgg(GroupNet(branches=3, decomposition=decomposition)).eval()  # pyright: ignore[reportArgumentType]
    module = branches_of(model)["features.3"]
    with torch.no_grad():
        module.scales.copy_(torch.tensor([0.5, -1.0, 2.0]))
    x = torch.where(torch.randn(2, 8, 16, 16) >= 0, 1.0, -1.0)
    outputs = [branch(x) for branch in module.branches]
    torch.testing.assert_close(module(x), 0.5 * outputs[0] - outputs[1] + 2 * outputs[2])
    module(x).sum().backward()
    assert module.scales.grad is not None
    torch.testing.assert_close(module.scales.grad, torch.stack([output.sum() for output in outputs]))


@pytest.mark.parametrize("decomposition", ["layer", "group"])
def test_branches_start_apart_and_of_a_trained_network_the_first_is_it(decomposition: str) -> None:
    algorithm = GroupNet(branches=3, decomposition=decomposition)  # pyright: ignore[reportArgumentType]
    torch.manual_seed(0)
    float_weight = lehr.models.VGG((3, 16, 16), width=1 / 16).features[3].weight
    for trained in (False, True):
        module = branches_of(vgg(algorithm, trained=trained))["features.3"]
        weights = [next(quantized_layers(branch))[1].weight for branch in module.branches]
        assert torch.equal(weights[0], float_weight)
        signs = [weight >= 0 for weight in weights]
        for other in signs[1:]:
            agree = (signs[0] == other).float().mean()
            assert agree < 0.9, "branches with one sign would stay one"
            assert (agree > 0.65) == trained
    share = torch.stack([weight.sign() for weight in weights]).mean(0)
    assert (share * float_weight).sum() > 0


def test_binarization_is_sign_with_the_papers_derivatives() -> None:
    model = vgg(GroupNet(branches=2))
    x = torch.tensor([-1.5, -0.75, -0.25, 0.0, 0.5, 1.25], requires_grad=True)
    activation = model.features[2]
    assert isinstance(activation, lehr.Quantizer)
    y = activation(x)
    y.sum().backward()
    assert y.tolist() == [-1, -1, -1, 1, 1, 1]
    assert x.grad is not None
    torch.testing.assert_close(x.grad, (2 - 2 * x.detach().abs()).clamp_min(0))
    for _, layer in quantized_layers(model):
        assert isinstance(layer.quantizer, ScaledSign)
        assert layer.quantizer.straight_through


def test_the_scales_of_the_filters_follow_the_weights() -> None:
    algorithm = GroupNet(branches=2)
    model = vgg(algorithm)
    with torch.no_grad():
        for _, layer in quantized_layers(model):
            layer.weight.mul_(3)
    algorithm.after_step_(model)
    for _, layer in quantized_layers(model):
        assert layer.quantizer.scale is not None
        torch.testing.assert_close(layer.quantizer.scale.flatten(), layer.weight.abs().flatten(1).mean(1))


@pytest.mark.parametrize("decomposition", ["layer", "group"])
def test_its_branches_run_as_integers(decomposition: str) -> None:
    model = vgg(GroupNet(branches=2, decomposition=decomposition))  # pyright: ignore[reportArgumentType]
    images = torch.randint(0, 256, (16, 3, 16, 16), dtype=torch.uint8)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
            nn.init.normal_(module.bias)  # or integer sums may lie at a threshold, where torch's rounding decides
    model(images)
    net = lehr.freeze(model.eval(), images)
    layers = [path for path, _ in quantized_layers(model)]
    assert len(layers) == 14
    assert {net.values[path].kind for path in layers} == {"integer"}
    with torch.no_grad():
        torch.testing.assert_close(net.run(images), model(images), rtol=1e-4, atol=1e-4)


class Unrolled(nn.Module):
    """A sequence, but not an nn.Sequential."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.f, self.b, self.g, self.c = nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.c(self.g(self.b(self.f(self.a(x)))))


def test_groups_are_cut_out_of_sequences_and_layers_anywhere() -> None:
    model = Unrolled()
    with pytest.raises(ValueError, match=r"groups must be part of an nn.Sequential, but b is in a Unrolled"):
        GroupNet(decomposition="group").convert_(model)
    GroupNet(branches=2).convert_(model)
    assert isinstance(model.b, Branches)
    assert model(torch.randn(3, 4)).shape == (3, 2)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: GroupNet(branches=0), "branches must be at least 1, got 0"),
        (lambda: GroupNet(group=0), "group must be at least 1, got 0"),
        (lambda: GroupNet(decomposition="net"), "decomposition must be one of layer, group, got 'net'"),  # pyright: ignore[reportArgumentType]
    ],
)
def test_wrong_settings_raise(make: Callable[[], GroupNet], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
