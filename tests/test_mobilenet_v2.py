import re

import pytest
import torch
from torch import fx, nn

import lehr
from lehr.algorithms import ANA
from lehr.annealing import Hierarchical
from lehr.models import Input, MobileNetV2
from lehr.models.mobilenet_v2 import InvertedResidual, load_torchvision_
from lehr.summary import summarize

BRANCHES = [f"features.{block}" for block in (3, 5, 6, 8, 9, 10, 12, 13, 15, 16)]


def small(**settings) -> MobileNetV2:
    return MobileNetV2((3, 32, 32), classes=5, width=0.5, **settings)


def quantized(model: MobileNetV2) -> MobileNetV2:
    lehr.quantize_(model.quantized_part, scale="fixed")
    return model


def images(count: int, side: int = 32) -> torch.Tensor:
    return torch.randint(256, (count, 3, side, side), generator=torch.Generator().manual_seed(0)).to(torch.uint8)


def torchvision_shapes() -> dict[str, tuple[int, ...]]:
    """Names and shapes of torchvision's mobilenet_v2 at width 1, written down from its layout."""
    shapes: dict[str, tuple[int, ...]] = {}

    def layer(path: str, norm: str, weight: tuple[int, ...]) -> None:
        shapes[f"{path}.weight"] = weight
        shapes.update({f"{norm}.{name}": weight[:1] for name in ("weight", "bias", "running_mean", "running_var")})
        shapes[f"{norm}.num_batches_tracked"] = ()

    layer("features.0.0", "features.0.1", (32, 3, 3, 3))
    inputs = [32, 16, 24, 24, 32, 32, 32, 64, 64, 64, 64, 96, 96, 96, 160, 160, 160]
    for block, (before, after) in enumerate(zip(inputs, [*inputs[1:], 320], strict=True), 1):
        path = f"features.{block}.conv"
        hidden = before if block == 1 else 6 * before
        at = 0
        if block > 1:
            layer(f"{path}.0.0", f"{path}.0.1", (hidden, before, 1, 1))
            at = 1
        layer(f"{path}.{at}.0", f"{path}.{at}.1", (hidden, 1, 3, 3))
        layer(f"{path}.{at + 1}", f"{path}.{at + 2}", (after, hidden, 1, 1))
    layer("features.18.0", "features.18.1", (1280, 320, 1, 1))
    return shapes | {"classifier.1.weight": (1000, 1280), "classifier.1.bias": (1000,)}


def test_names_and_shapes_are_torchvisions():
    with torch.device("meta"):
        model = MobileNetV2()
    ours = {key: tuple(value.shape) for key, value in model.state_dict().items() if not key.startswith("input.")}
    assert ours == torchvision_shapes()


def test_a_torchvision_state_loads_and_keeps_the_input():
    source, target = small(), small(mean=(0.5, 0.5, 0.5))
    state = {key: value for key, value in source.state_dict().items() if not key.startswith("input.")}
    table = target.input.table.clone()
    load_torchvision_(target, state)
    assert all(torch.equal(value, target.state_dict()[key]) for key, value in state.items())
    assert torch.equal(target.input.table, table)


def test_a_state_that_lacks_or_adds_something_is_refused():
    state = small().state_dict()
    del state["features.18.0.weight"]
    with pytest.raises(RuntimeError, match=re.escape("features.18.0.weight")):
        load_torchvision_(small(), state)
    with pytest.raises(RuntimeError, match="stranger"):
        load_torchvision_(small(), small().state_dict() | {"stranger": torch.zeros(1)})


def test_full_precision_weights_load_into_the_quantized_network():
    source, target = small(), quantized(small())
    target.load_state_dict(source.state_dict())
    load_torchvision_(target, source.state_dict())
    path = "features.3.conv.0.0.weight"
    assert torch.equal(target.state_dict()[path], source.state_dict()[path])


def test_the_quantized_networks_own_state_comes_back():
    source, target = quantized(small()), quantized(small())
    lehr.Annealer(source, Hierarchical(1)).seek(5.5)
    target.load_state_dict(source.state_dict())
    assert torch.equal(source.eval()(images(2)), target.eval()(images(2)))
    assert target.get_submodule("features.10.branch_input").forward_std == source.get_buffer(
        "features.10.branch_input.forward_std"
    )


@pytest.mark.parametrize(
    ("width", "channels"),
    [
        (0.35, [16, 8, 8, 16, 24, 32, 56, 112, 1280]),
        (0.5, [16, 8, 16, 16, 32, 48, 80, 160, 1280]),
        (0.75, [24, 16, 24, 24, 48, 72, 120, 240, 1280]),
        (1.0, [32, 16, 24, 32, 64, 96, 160, 320, 1280]),
        (1.4, [48, 24, 32, 48, 88, 136, 224, 448, 1792]),
    ],
)
def test_channels_are_rounded_to_multiples_of_8_as_usual(width, channels):
    with torch.device("meta"):
        model = MobileNetV2(width=width)
    ends = [0, 1, 2, 4, 7, 11, 14, 17, 18]
    found = []
    for end in ends:
        convolutions = [m for m in model.features[end].modules() if isinstance(m, nn.Conv2d)]
        found.append(convolutions[-1].out_channels)
    assert found == channels


def test_the_ten_blocks_whose_input_and_output_are_added_are_the_residual_branches():
    assert small().residual_branches == BRANCHES


def test_a_residual_block_adds_and_another_does_not():
    torch.manual_seed(0)
    x = torch.randn(2, 8, 6, 6)
    for block in (InvertedResidual(8, 8, 1, 6).eval(), InvertedResidual(8, 8, 2, 6).eval()):
        y = block.conv(x)
        assert torch.equal(block(x), x + y if block.residual else y)


def test_quantized_are_the_residual_branches_and_nothing_else():
    model = quantized(small())
    changed = {p for p, m in model.named_modules() if isinstance(m, lehr.Quantizer | lehr.Conv2d | lehr.Linear)}
    names = ("branch_input", "conv.0.0", "conv.0.0.quantizer", "conv.0.2", "conv.1.0", "conv.1.0.quantizer")
    names += ("conv.1.2", "conv.2", "conv.2.quantizer")
    assert changed == {f"{branch}.{name}" for branch in BRANCHES for name in names}
    assert all(type(model.get_submodule(f"{branch}.conv.3")) is nn.BatchNorm2d for branch in BRANCHES)


def test_the_conversion_names_modules_by_their_paths_in_the_model():
    model = small()
    conversion = lehr.quantize_(model.quantized_part, scale="fixed")
    assert len(conversion.converted) == 10 * 6
    assert all(isinstance(model.get_submodule(change.module), nn.Module) for change in conversion.converted)


def test_a_method_that_leaves_activations_leaves_the_branch_inputs_too():
    model = small()
    lehr.quantize_(model.quantized_part, activations=None, scale="fixed")
    x = torch.randn(2, 16, 6, 6)
    block = model.eval().get_submodule("features.3")
    assert torch.equal(block(x), x + block.get_submodule("conv")(x))


def test_an_algorithm_converts_only_the_branches():
    model = small()
    stem = model.get_parameter("features.0.0.weight").clone()
    ANA(std=0.1).convert_(model.quantized_part)
    assert model.get_buffer("features.3.branch_input.forward_std") == pytest.approx(0.1)
    assert torch.equal(model.get_parameter("features.0.0.weight"), stem)
    weight = model.get_parameter("features.3.conv.0.0.weight")
    assert (
        float((weight.detach().abs() - 0.5).abs().max()) <= weight[0].numel() ** -0.5 + 1e-6
    )  # begins around the thresholds


def test_155_of_300_8_million_macs_have_ternary_operands():
    model = quantized(MobileNetV2())
    summary = summarize(model, images(1, 224))
    assert summary.macs == 300_774_272
    assert round(summary.quantized_share * summary.macs) == 154_987_392
    assert f"{summary.quantized_share:.1%}" == "51.5%"


def test_branches_anneal_one_after_the_other():
    model = quantized(small())
    annealer = lehr.Annealer(model, Hierarchical(duration=50))
    assert [len(group) for group in annealer.groups] == [6] * 10
    assert annealer.groups[0][0] == "features.3.branch_input"
    annealer.seek(75)
    first, second, third = (model.get_buffer(f"{branch}.conv.2.quantizer.forward_std") for branch in BRANCHES[:3])
    assert (float(first), float(second), float(third)) == pytest.approx((0, 3**0.5 / 12, 3**0.5 / 6))


class Leaves(fx.Tracer):
    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        ours = isinstance(m, Input | lehr.Quantizer | lehr.Conv2d | lehr.Linear)
        return ours or super().is_leaf_module(m, module_qualified_name)


@pytest.mark.parametrize("convert", [quantized, lambda model: model], ids=["quantized", "full precision"])
def test_it_can_be_traced(convert):
    model = convert(small()).eval()
    traced = fx.GraphModule(model, Leaves().trace(model))
    assert torch.equal(traced(images(2)), model(images(2)))


def test_every_weight_gets_a_gradient_when_quantized():
    torch.manual_seed(0)
    model = quantized(small(dropout=0.0))
    nn.functional.cross_entropy(model(images(16)), torch.arange(16) % 5).backward()
    assert all(p.grad is not None and bool(p.grad.ne(0).any()) for p in model.parameters())
