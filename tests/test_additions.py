"""Sums of two values: one quantizer for both sides, so that frozen residual networks add integers."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

import lehr
from frozen_networks import hard
from lehr.deploy.operations import Add, Affine, Requantize, Threshold
from lehr.dequantize import keep_float_sums_


class Sum(nn.Module):
    """A branch and its input, added in one of the spellings."""

    def __init__(self, spelling: str = "a + b") -> None:
        super().__init__()
        self.spelling = spelling
        self.stem, self.step = nn.Linear(4, 8, bias=False), nn.ReLU()
        self.branch, self.norm = nn.Linear(8, 8, bias=False), nn.BatchNorm1d(8)
        self.last = nn.Sequential(nn.ReLU(), nn.Linear(8, 3))

    def forward(self, x: Tensor) -> Tensor:
        a = self.step(self.stem(x.float().flatten(1)))
        b = self.norm(self.branch(a))
        match self.spelling:
            case "a + b":
                total = a + b
            case "+=":
                total = b.clone()
                total += a
            case "torch.add":
                total = torch.add(a, other=b)
            case "add":
                total = a.add(b)
            case _:
                total = b.clone()
                total.add_(a)  # what it returns is dropped
        return self.last(total)


def quantized(model: nn.Module, **options: object) -> lehr.convert.Conversion:
    return lehr.quantize_(model, weights=hard(), activations=hard(), **options)  # pyright: ignore[reportArgumentType]


PIXELS = torch.randint(0, 256, (6, 1, 2, 2), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("example", [None, PIXELS], ids=["traced", "run"])
@pytest.mark.parametrize("spelling", ["a + b", "+=", "torch.add", "add", "add_"])
def test_both_sides_of_a_sum_have_one_quantizer_of_8_bits(spelling: str, example: Tensor | None):
    model = Sum(spelling)
    report = quantized(model, example=example)
    (change,) = (change for change in report.converted if change.was == "add")
    assert (change.module, change.levels) == ("quantized_calls.add", 256)
    quantizer = model.quantized_calls.add
    seen: list[Tensor] = []
    quantizer.register_forward_hook(lambda _, __, result: seen.append(result))  # pyright: ignore[reportCallIssue]
    total: list[Tensor] = []
    model.last[0].register_forward_pre_hook(lambda _, args: total.append(args[0].clone()))
    model.train()(PIXELS).sum().backward()
    assert len(seen) == 2
    assert torch.equal(total[0], seen[0] + seen[1])
    assert model.branch.weight.grad is not None
    assert bool(model.branch.weight.grad.any())


def test_sums_are_quantized_as_asked_and_left_alone_where_asked():
    def levels(**options: object) -> list[int | None]:
        return [change.levels for change in quantized(Sum(), **options).changes if change.was == "add"]

    assert levels(sums="4bit") == [16]
    assert levels(sums=hard()) == [3]
    assert levels(rules={"quantized_calls.add": "5bit"}) == [32]
    inner = nn.Sequential(Sum())
    report = quantized(inner, rules={"0": "4bit"})  # of weights and activations
    assert {change.was: change.levels for change in report.converted} == {"Linear": 16, "ReLU": 16, "add": 256}
    assert levels(skip="quantized_calls.add") == [None]
    assert levels(sums=None) == []
    model = Sum()
    lehr.quantize_(model, activations=None)
    assert not hasattr(model, "quantized_calls")
    with pytest.raises(TypeError, match="sums must be a quantizer"):
        quantized(Sum(), sums=8)


@pytest.mark.parametrize("example", [None, torch.randn(2, 4)], ids=["traced", "run"])
def test_sums_with_constants_and_sums_that_are_the_output_stay(example: Tensor | None):
    class Shifted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
            self.bias, self.offset = nn.Parameter(torch.ones(4)), nn.Buffer(torch.ones(4))

        def forward(self, x: Tensor) -> Tensor:
            y = torch.relu(self.first(x) + self.bias + self.offset + 1)
            return self.second(y) + self.first(y)

    model = Shifted()
    quantized(model, example=example)
    assert list(model.quantized_calls) == ["relu"]  # pyright: ignore[reportArgumentType]


def test_calibration_gives_both_sides_one_power_of_two():
    torch.manual_seed(0)
    model = Sum()
    before = copy.deepcopy(model).eval()
    scales = quantized(model, data=[PIXELS])
    scale = model.quantized_calls.add.scale  # pyright: ignore[reportAttributeAccessIssue]
    assert scales
    assert float(torch.log2(scale)) % 1 == 0
    assert before(PIXELS).isfinite().all()


def test_a_sum_of_branches_is_an_addition_of_integers():
    torch.manual_seed(0)
    model = nn.Sequential(lehr.models.Input((0.5,), (0.25,), bits=8), Sum())
    quantized(model)
    model.train()(PIXELS)
    net = lehr.freeze(model.eval(), PIXELS)
    kinds = [type(operation) for operation in net.operations]
    assert kinds.count(Requantize) == 1  # the branch; its input is at a coarser unit already
    (addition,) = (operation for operation in net.operations if isinstance(operation, Add))
    assert (addition.first_factor, addition.second_factor) == (16, 1)
    assert [type(x) for x in net.operations if net.values[x.name].kind == "float"] == [Affine]
    assert net.exact
    assert kinds.count(Threshold) == 2
    with torch.no_grad():
        assert torch.allclose(torch.as_tensor(net.run(PIXELS)), model(PIXELS), atol=1e-5)


@pytest.mark.parametrize(
    "build",
    [
        lambda: lehr.models.ResNet((3, 8, 8), depth=8, width=1 / 4, input_bits=8),
        lambda: lehr.models.ResNet((3, 8, 8), depth=20, width=1 / 4, input_bits=8),
        lambda: lehr.models.ResNet((3, 8, 8), depth=18, width=1 / 16, input_bits=8),
        lambda: lehr.models.ResNet((3, 8, 8), depth=8, width=1 / 4, input_bits=8, shortcuts="sums"),
        lambda: lehr.models.MobileNetV2((3, 32, 32), classes=5, width=0.25, input_bits=8),
    ],
    ids=["resnet-8", "resnet-20", "resnet-18", "resnet-8-sums", "mobilenet-v2"],
)
@pytest.mark.parametrize("activations", [hard(), "4bit"], ids=["ternary", "4bit"])
def test_residual_networks_are_integers_but_for_their_logits(build, activations):
    torch.manual_seed(0)
    model = build()
    size = 32 if isinstance(model, lehr.models.MobileNetV2) else 8
    images = torch.randint(0, 256, (8, 3, size, size), dtype=torch.uint8)
    model.train()(images)
    lehr.quantize_(model, weights=hard(), activations=activations, data=[images])
    net = lehr.freeze(model.eval(), images)
    floats = [operation for operation in net.operations if net.values[operation.name].kind == "float"]
    assert [type(operation) for operation in floats] == [Affine]
    assert floats == [net.operations[-1]]
    assert all("BatchNorm puts a sum within rounding of a threshold" in why for why in net.inexact)
    with torch.no_grad():
        expected = model(images)
    assert torch.allclose(torch.as_tensor(net.run(images)), expected, atol=1e-4 * float(expected.abs().max()))


def test_a_layer_that_reads_another_layer_gets_a_quantizer_for_its_input():
    first, second, last = nn.Linear(4, 6), nn.Linear(6, 6), nn.Linear(6, 2)
    model = nn.Sequential(first, nn.BatchNorm1d(6), second, nn.ReLU(), last)
    report = quantized(model)
    assert [change.module for change in report.converted if change.was == "input"] == ["2.input_quantizer"]
    x = torch.randn(5, 4)
    kept = second.eval()(torch.full((1, 6), 0.26))
    assert torch.equal(kept, second(torch.full((1, 6), 0.25)))  # steps of 1/16 until data say more
    lehr.dequantize_(model)
    losses = lehr.sensitivity(model.eval(), [x], lambda _: 0.0, precisions=("4bit",))
    assert [row.part for row in losses.rows] == ["0", "2", "3", "4"]
    assert "2.input_quantizer.scale" not in model.state_dict()
    assert model(x).shape == (5, 2)
    quantized(model, sums=None)
    assert not hasattr(second, "input_quantizer")


def test_additions_of_hooks_layers_and_quantizers_are_their_own():
    model = Sum()
    model.norm.register_forward_hook(lambda _, __, result: (result + result.detach() + 1).sum() and None)
    quantized(model)
    seen: list[Tensor] = []
    model.quantized_calls.add.register_forward_pre_hook(lambda _, args: seen.append(args[0]))  # pyright: ignore[reportCallIssue]
    results: list[Tensor] = []
    model.norm.register_forward_hook(lambda _, __, result: results.append(result))
    model.eval()(PIXELS)
    assert len(seen) == 2
    assert torch.equal(seen[1], results[0])


@pytest.mark.parametrize("network", [lambda: Sum(), lambda: lehr.models.MobileNetV2(classes=3, width=0.25)])
def test_a_state_from_before_sums_were_quantized_is_the_network_that_it_was(network) -> None:
    torch.manual_seed(0)
    old, new = network(), network()
    quantized(old, sums="float")
    quantized(new)
    keep_float_sums_(new, old.state_dict())
    new.load_state_dict(old.state_dict())
    pixels = PIXELS if isinstance(old, Sum) else torch.randint(0, 256, (2, 3, 32, 32), dtype=torch.uint8)
    assert torch.equal(new.eval()(pixels), old.eval()(pixels))
    assert new.state_dict().keys() == old.state_dict().keys()


def test_a_state_with_quantized_sums_keeps_them() -> None:
    model = Sum()
    quantized(model)
    before = set(model.state_dict())
    keep_float_sums_(model, before)
    assert set(model.state_dict()) == before
    assert any("add" in key for key in before)
