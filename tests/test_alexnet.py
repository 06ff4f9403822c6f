import pytest
import torch
from torch import fx, nn

import lehr
from lehr.annealing import Hierarchical, Window
from lehr.models import AlexNet, Input
from lehr.summary import summarize

SHAPE = (3, 63, 63)


def small(**settings) -> AlexNet:
    return AlexNet(SHAPE, classes=5, width=1 / 16, **settings)


def images(count: int, shape: tuple[int, int, int] = SHAPE) -> torch.Tensor:
    return torch.randint(256, (count, *shape), generator=torch.Generator().manual_seed(0)).to(torch.uint8)


def test_shapes_and_sizes_are_those_of_the_papers_table():
    with torch.device("meta"):
        model = AlexNet()
    shapes = {}
    for path, module in model.named_modules():
        module.register_forward_hook(lambda _, __, output, path=path: shapes.update({path: tuple(output.shape[1:])}))
    model.features(torch.empty(1, 3, 227, 227, device="meta"))
    activations = [shapes[path] for path, module in model.named_modules() if type(module) is nn.ReLU and path in shapes]
    assert activations == [(64, 27, 27), (192, 13, 13), (384, 13, 13), (256, 13, 13), (256, 6, 6)]
    linear = [(m.in_features, m.out_features) for m in model.modules() if isinstance(m, nn.Linear)]
    assert linear == [(9216, 4096), (4096, 4096), (4096, 1000)]


def test_layers_stand_in_the_papers_order():
    kinds = [type(module).__name__ for module in [*small().features, *small().classifier]]
    pooled, plain = ["Conv2d", "MaxPool2d", "BatchNorm2d", "ReLU"], ["Conv2d", "BatchNorm2d", "ReLU"]
    hidden = ["Linear", "BatchNorm1d", "ReLU"]
    assert kinds == [*pooled, *pooled, *plain, *plain, *pooled, "Flatten", *hidden, *hidden, "Linear", "BatchNorm1d"]


def test_no_layer_has_a_bias_since_batchnorm_follows():
    assert all(module.bias is None for module in small().modules() if isinstance(module, nn.Conv2d | nn.Linear))


def test_it_has_61_million_weights_and_717_million_macs():
    model = AlexNet()
    summary = summarize(model, images(1, (3, 227, 227)))
    assert summary.weights == 61_090_496
    assert summary.macs == 716_767_232


@pytest.mark.parametrize("side", [63, 64, 65, 95])
def test_any_size_from_63_on_works(side):
    assert AlexNet((3, side, side), 5, width=1 / 16)(images(2, (3, side, side))).shape == (2, 5)


def test_smaller_images_are_refused():
    with pytest.raises(ValueError, match="at least 63x63 pixels, got 62x80"):
        AlexNet((3, 62, 80))


def test_quantized_every_layer_but_the_first_has_ternary_operands():
    model = small(input_bits=8)
    lehr.quantize_(model, scale="fixed")
    layers = summarize(model, images(1)).layers
    assert [round(layer.activation_bits, 2) for layer in layers] == [8.0, *[1.58] * 7]
    assert {round(layer.weight_bits, 2) for layer in layers} == {1.58}


def test_layer_l_decays_over_epochs_50_l_to_50_l_plus_1():
    model = small()
    lehr.quantize_(model, scale="fixed")
    annealer = lehr.Annealer(model, Hierarchical(duration=50, delay=50))
    assert annealer.windows == [Window(50 * layer, 50 * (layer + 1)) for layer in range(1, 9)]
    assert annealer.groups[1] == ["features.4.quantizer", "features.7"]
    annealer.seek(125)
    factors = [forward for forward, _ in annealer.factors(125)]
    assert factors == [0.0, 0.5, *[1.0] * 6]


class Leaves(fx.Tracer):
    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        ours = isinstance(m, Input | lehr.Quantizer | lehr.Conv2d | lehr.Linear)
        return ours or super().is_leaf_module(m, module_qualified_name)


def test_it_can_be_traced():
    model = small().eval()
    traced = fx.GraphModule(model, Leaves().trace(model))
    assert torch.equal(traced(images(2)), model(images(2)))


def test_every_weight_gets_a_gradient_when_quantized():
    torch.manual_seed(0)
    model = small()
    lehr.quantize_(model)
    nn.functional.cross_entropy(model(images(8)), torch.arange(8) % 5).backward()
    assert all(p.grad is not None and bool(p.grad.ne(0).any()) for p in model.parameters())
