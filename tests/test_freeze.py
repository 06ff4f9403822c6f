"""The frozen network is the trained one: integer for integer where torch is exact, class for class everywhere."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import frozen_networks as networks
import lehr
from frozen_networks import EXACT, INTEGERS, NETWORKS, Input, conv, hard, linear
from lehr.deploy import FloatWarning, FreezeError, IntegerNet, fold, operations
from lehr.deploy.conversion import Call
from lehr.deploy.converters import CONVERTERS
from lehr.deploy.fold import common_unit
from lehr.deploy.freeze import freeze
from lehr.deploy.net_builder import Traced
from lehr.deploy.verify import is_tie


def codes(model: nn.Module, images: Tensor) -> dict[str, Tensor]:
    """Which level every activation of the torch network is at, by the path of its quantizer."""
    seen: dict[str, Tensor] = {}

    def note(path: str, quantizer: Any, result: Any) -> None:
        scale = 1.0 if quantizer.scale is None else quantizer.scale
        levels = torch.tensor(quantizer.step.levels)
        name, number = path, 1
        while name in seen:  # it runs again
            name, number = f"{path}#{number + 1}", number + 1
        seen[name] = torch.bucketize(result / scale, (levels[1:] + levels[:-1]) / 2)

    hooks = [
        module.register_forward_hook(lambda module, _, result, path=path: note(path, module, result))
        for path, module in model.named_modules()
        if isinstance(module, lehr.Quantizer)
    ]
    with torch.no_grad():
        model(images)
    for hook in hooks:
        hook.remove()
    return seen


@pytest.mark.parametrize("name", EXACT)
def test_every_activation_of_an_exact_network_is_at_the_level_it_has_in_torch(name):
    model, images = networks.trained(name)
    net = networks.frozen(name)
    assert net.exact, net.inexact
    expected, values = codes(model, images), net.trace(networks.batch(name))
    compared = 0
    for operation in net.operations:
        if isinstance(operation, operations.Threshold | operations.Requantize):
            is_even = isinstance(operation, operations.Requantize)
            levels = torch.tensor(range(operation.low, operation.high + 1) if is_even else operation.levels)
            path = operation.name.removesuffix(".cut")  # before a move, whose result has the quantizer's name
            actual = torch.searchsorted(levels, values[path].contiguous())
            assert torch.equal(actual.flatten(1), expected[path].flatten(1)), path
            assert len(actual.unique()) > 1, "a test that sees one level sees nothing"
            compared += 1
    assert compared >= 1


@pytest.mark.parametrize("name", NETWORKS)
def test_logits_and_classes_are_those_of_torch(name):
    model, images = networks.trained(name)
    with torch.no_grad():
        expected = model(images)
    net = networks.frozen(name)
    assert net.run(images).shape == expected.shape
    other = net.run(images).flatten(1).argmax(1) != expected.flatten(1).argmax(1)
    ties = [is_tie(model, net, networks.trained(name)[1][index][None]) for index in other.nonzero()[:, 0]]
    assert all(ties), "another class, and not by a tie"
    apart = (net.run(images) - expected).flatten(1).abs().amax(1) > 2e-5 * expected.abs().max()
    assert net.exact <= (not apart.any()), "an exact network has torch's logits, to the last bits"
    assert apart.sum() <= 2, "only a tie within the network changes logits by more than rounding"
    assert len(expected.unique(dim=0)) > 32, "a test that sees one answer sees nothing"


@pytest.mark.parametrize("name", INTEGERS)
def test_a_fully_quantized_network_has_integers_only(name):
    net = networks.frozen(name)
    kinds = {value.kind for path, value in net.values.items() if path != "logits"}
    assert kinds == {"integer"}
    assert isinstance(net.operations[-1], operations.Affine)


def test_thresholds_agree_with_torch_at_every_integer_also_where_the_textbook_does_not():
    """ceil((θ - shift) / |scale|) is not where BatchNorm, which rounds in float32, crosses θ at a near tie."""
    generator = torch.Generator().manual_seed(0)
    channels = 256
    norm = nn.BatchNorm2d(channels).eval()
    with torch.no_grad():  # round numbers make many near ties
        norm.weight.copy_(torch.randint(1, 4, (channels,), generator=generator) / 10)
        norm.bias.copy_(torch.randint(-20, 20, (channels,), generator=generator) / 10)
        mean = torch.randint(-9, 9, (channels,), generator=generator).float()
        norm.load_state_dict(norm.state_dict() | {"running_mean": mean, "running_var": torch.ones(channels) - norm.eps})
    quantizer = hard(lehr.MultiStep([k / 10 for k in range(-3, 4)], range(8)))  # pyright: ignore[reportArgumentType]
    model = nn.Sequential(Pixels(), conv(1, channels, 1, step=SIGN), norm, quantizer).eval()
    images = torch.arange(256, dtype=torch.uint8).reshape(1, 1, 16, 16)
    net = freeze(model, images)
    with torch.no_grad():
        assert torch.equal(net.run(images), model(images))

    threshold = next(x for x in net.operations if isinstance(x, operations.Threshold))
    reachable = net.values[threshold.source]
    with torch.no_grad():
        scale, shift = norm.weight.double()[:, None], (norm.bias.double() - norm.weight.double() * mean)[:, None]
        textbook = ((torch.tensor(quantizer.step.thresholds).double() - shift) / scale).ceil()
    textbook = textbook.clamp(reachable.low, reachable.high + 1).numpy()
    assert (textbook != threshold.thresholds).sum() > 10


@pytest.mark.parametrize(
    "pool",
    [
        nn.AvgPool2d(3, 2, 1),  # the border averages zeros in, which no shift may turn into something else
        nn.AvgPool2d(2, divisor_override=3),
        nn.Sequential(nn.ReLU(), nn.AvgPool2d(2)),
    ],
)
def test_an_average_that_does_not_commute_with_what_stands_before_it_is_taken_of_floats(pool):
    images = torch.randint(0, 256, (16, 2, 8, 8), dtype=torch.uint8)
    model = nn.Sequential(Input(2), conv(2, 4, bias=True), pool, hard(), nn.Flatten(), linear(64, 10)).eval()
    with torch.no_grad():
        model.get_parameter("1.bias").copy_(torch.tensor([1.0, -2.0, 0.5, 4.0]))
        expected = model(images)
    assert torch.equal(freeze(model, images).run(images), expected)


def test_zero_scale_is_a_constant_channel_and_negative_scale_turns_the_direction():
    norm = nn.BatchNorm2d(3).eval()
    with torch.no_grad():
        norm.weight.copy_(torch.tensor([0.0, -2.0, 2.0]))
        norm.bias.copy_(torch.tensor([0.7, 0.1, 0.1]))
    net = freeze(nn.Sequential(Input(1), conv(1, 3), norm, hard()).eval(), torch.zeros(1, 1, 4, 4, dtype=torch.uint8))
    threshold = next(x for x in net.operations if isinstance(x, operations.Threshold))
    assert threshold.directions.tolist() == [1, -1, 1]
    sums = net.values[threshold.source]
    assert (threshold.thresholds[0] <= sums.low).all(), "0 * s + 0.7 is above both thresholds, whatever s is"


def test_any_first_functions_of_single_pixels_become_the_table():
    class Curve(nn.Module):
        def forward(self, x):
            return torch.where(x > 100, x.float() * 2, 300 - x.float())  # falls, then rises

    images = torch.randint(0, 256, (4, 2, 3, 3), dtype=torch.uint8)
    model = nn.Sequential(Curve(), conv(2, 4), nn.Flatten()).eval()
    net = freeze(model, images)
    assert table(net).dtype == np.int16
    assert torch.equal(net.run(images), model(images))


def test_normalised_pixels_without_a_quantizer_stay_float_with_a_warning():
    class Normalise(nn.Module):
        def forward(self, x):
            return (x.float() / 255 - 0.1307) / 0.3081

    images = torch.randint(0, 256, (4, 1, 5, 5), dtype=torch.uint8)
    model = nn.Sequential(Normalise(), conv(1, 4), nn.BatchNorm2d(4), hard(), nn.Flatten(), linear(100, 10)).eval()
    with pytest.warns(FloatWarning, match="1: its input is float.*quantize its input"):
        net = freeze(model, images)
    assert net.values["1"].kind == "float"
    assert net.values["5"].kind == "integer"
    assert torch.equal(net.run(images), model(images))


def test_pixels_at_a_common_unit_are_integers_without_a_quantizer():
    class Normalise(nn.Module):
        def forward(self, x):
            return (x.float() / 255 - 0.5) / 0.5

    images = torch.randint(0, 256, (4, 1, 5, 5), dtype=torch.uint8)
    net = freeze(nn.Sequential(Normalise(), conv(1, 4)).eval(), images)
    assert table(net)[0, [0, 1, 255]].tolist() == [-255, -253, 255]


@pytest.mark.parametrize(
    ("bits", "signed", "size"), [(3, True, 0.3), (4, False, 0.15), (7, True, 0.01), (8, True, 0.7)]
)
def test_levels_some_steps_apart_are_integers(bits, signed, size):
    """However their float32 values are rounded."""
    levels = np.array(lehr.MultiStep.uniform(bits, signed, size).levels)
    found = common_unit(levels, limit=2**15 - 1)
    assert found is not None
    unit, integers = found
    assert integers.tolist() == np.rint(levels / size).tolist()
    assert np.array_equal((integers * unit).astype(np.float32), levels.astype(np.float32))


@pytest.mark.parametrize("size", [5, 7, 11])
def test_an_adaptive_average_is_rounded_as_torch_rounds_it(size):
    """Torch divides by the rows and then by the columns: not the same at the last bit, where a threshold may lie."""

    class Bright(nn.Module):
        def forward(self, x):
            return (x > 127).float()

    count = torch.arange(size * size)
    images = torch.zeros(size * size, 1, 2 * size, 2 * size, dtype=torch.uint8)
    images[:, 0, :size, :size] = 255 * (count < 1 + count[:, None]).reshape(-1, size, size)
    averages = nn.AdaptiveAvgPool2d(2)(Bright()(images))[:, 0, 0, 0]
    for average in averages.unique().tolist():
        quantizer = lehr.Quantizer(lehr.MultiStep((average,), (0.0, 1.0)), lehr.Dirac(), lehr.Dirac())
        model = nn.Sequential(Bright(), nn.AdaptiveAvgPool2d(2), quantizer).eval()
        assert torch.equal(freeze(model, images).run(images).flatten(), model(images).flatten().to(torch.int64))


@pytest.mark.parametrize(
    ("forward", "why"),
    [
        (lambda x: x.float().reshape(len(x), -1), r"'len' is not supported.*by x.size\(0\), not len\(x\)"),
        (lambda x: x.float() * float(x.max()), "must not depend on values"),
        (lambda x: x.float().flatten(1) + torch.zeros(x.size(0), 4), "nor make tensors of its own"),
    ],
)
def test_what_cannot_be_traced_is_told_with_what_to_do(forward, why):
    class Model(nn.Module):
        def forward(self, x):
            return forward(x)

    with pytest.raises(FreezeError, match=f"Model cannot be traced: .*{why}"):
        freeze(Model(), torch.zeros(1, 1, 2, 2, dtype=torch.uint8))


def test_a_compiled_model_is_frozen_as_the_one_inside():
    model, images = networks.trained("vgg")
    compiled = torch.compile(model, backend="eager")
    assert torch.equal(freeze(compiled, images).run(images), freeze(model, images).run(images))  # pyright: ignore[reportArgumentType]


def test_the_model_is_left_as_it_was():
    model, images = networks.trained("vgg")
    before = {key: value.clone() for key, value in model.state_dict().items()}
    freeze(model, images)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert not any(module._forward_pre_hooks for module in model.modules())


def test_classes_get_their_names():
    model, images = networks.trained("vgg")
    assert freeze(model, images, classes="abcdefghij").classes == tuple("abcdefghij")


class Pixels(nn.Module):
    def forward(self, x):
        return x.float() - 128


def table(net: IntegerNet) -> np.ndarray:
    first = net.operations[0]
    assert isinstance(first, operations.Table)
    return first.table


SIGN = networks.SIGN
IMAGES = torch.zeros(2, 2, 8, 8, dtype=torch.uint8)


class Calls(nn.Module):
    """A network whose forward is a function."""

    def __init__(self, call):
        super().__init__()
        self.call, self.input, self.layer = call, Input(2), conv(2, 4)

    def forward(self, x):
        return self.call(self.layer(self.input(x)))


class OwnForward(lehr.Conv2d):
    def forward(self, input):
        return super().forward(input) * 2


class OwnReLU(nn.ReLU):
    def forward(self, input):
        return super().forward(input) * 2


def nan_weight() -> nn.Module:
    layer = conv(2, 4)
    nn.init.constant_(layer.get_parameter("weight"), torch.nan)
    return layer


def in_place(x):
    F.relu(x, inplace=True)
    return x


REFUSED = {
    "tanh": (Calls(torch.tanh), "^tanh: .*only together with a quantizer.*lehr.Quantizer"),
    "gelu": (Calls(nn.GELU()), r"^call: integers do what it does only together with a quantizer"),
    "pooled gelu": (
        Calls(lambda x: F.max_pool2d(F.gelu(x), 2)),
        "^max_pool2d: .*gelu gives, which falls.*before the pool",
    ),
    "largest channel": (Calls(lambda x: x.amax(1)), "^amax: it takes the maximum over dimensions .1,."),
    "unknown": (Calls(torch.sin), r"^sin: lehr has no converter for sin;.*freeze\(\.\.\., converters=.sin: yours"),
    "unknown method": (Calls(lambda x: x.sin()), "converter for torch.Tensor.sin"),
    "group norm": (Calls(nn.GroupNorm(2, 4)), "^call .GroupNorm.: .*mean and variance of each image.*use BatchNorm"),
    "layer norm": (Calls(lambda x: F.layer_norm(x, (8,))), "^layer_norm: .*of each image.*use BatchNorm"),
    "attention": (Calls(lambda x: torch.matmul(x, x)), "^matmul: attention multiplies values"),
    "bilinear": (Calls(nn.Upsample(scale_factor=2, mode="bilinear")), '^call .Upsample.: .*one place.*"nearest"'),
    "five dimensions": (
        Calls(lambda x: x.view(2, 2, 2, 8, 8).relu()),
        r"^view: it gives shape .2, 2, 8, 8. .*three dim",
    ),
    "places": (
        Calls(lambda x: x.flatten(1).roll(1, 1).view(2, 4, 8, 8)),
        "^view: .*no whole channels, rows or columns",
    ),
    "nothing": (Calls(lambda x: x[:, :, 8:].relu()), r"^getitem: nothing is left, its shape is \(4, 0, 8\)"),
    "constant": (Calls(lambda x: torch.cat([x, torch.zeros(2, 1, 8, 8)], 1)), "^cat: .*not depend on the input"),
    "joined images": (Calls(lambda x: torch.cat([x, x])), "^cat: it joins images"),
    "indices": (Calls(nn.MaxPool2d(2, return_indices=True)), "^call .MaxPool2d.: it gives a tuple, no tensor"),
    "slope": (Calls(nn.LeakyReLU(-0.5)), "^call .LeakyReLU.: it falls below 0.*slope"),
    "own relu": (Calls(OwnReLU()), r"^call .OwnReLU.: a ReLU with a forward of its own.*converters=.OwnReLU"),
    "softmax": (Calls(lambda x: x.flatten(1).softmax(1)), "^softmax: .*probabilities.*whoever reads the logits"),
    "square": (Calls(lambda x: x * x), "^mul: it uses a value twice"),
    "value": (Calls(lambda x: x + x.max().item()), "^max_1: lehr has no converter for torch.Tensor.max"),
    "batch": (Calls(lambda x: x.flatten(0, 1)), "^flatten: .*mixes images"),
    "per pixel": (Calls(lambda x: x + torch.rand(8)), "^add: .*each channel by itself"),
    "in place": (Calls(in_place), "^relu: .*in place a value that is read again"),
    "uneven pool": (Calls(lambda x: F.adaptive_avg_pool2d(x, 3)), "not all of one size.*divide evenly"),
    "mean": (Calls(lambda x: F.max_pool2d(x, 2).mean(1)), r"^mean: it takes the average over dimensions .1,."),
    "ceil": (Calls(lambda x: F.avg_pool2d(x, 3, ceil_mode=True)), "^avg_pool2d: .*ceil_mode=False"),
    "dilated pool": (Calls(nn.MaxPool2d(2, dilation=2)), "call .MaxPool2d.: its dilation is 2"),
    "border": (Calls(nn.AvgPool2d(3, 1, 1, count_include_pad=False)), "call .AvgPool2d.*count_include_pad=True"),
    "dropout": (Calls(lambda x: F.dropout(x, 0.5)), "^dropout: .*training=self.training"),
    "broadcast": (Calls(lambda x: x + F.max_pool2d(x, 8)), "^add: .*shapes .4, 8, 8. and .4, 1, 1."),
    "no output": (Calls(lambda x: (x, 3)), "must give a tensor .*its output1 is none"),
    "nested": (nn.Sequential(nn.Sequential(Calls(torch.tanh))), "^0.0.tanh: "),
    "nan": (nn.Sequential(Input(2), nan_weight()), r"^1: its weight holds NaN"),
    "floor": (Calls(lambda x: torch.div(x, 2, rounding_mode="floor")), "^div: .*rounds what it divides"),
    "subclass": (nn.Sequential(Input(2), OwnForward(2, 4, 3, quantizer=hard())), "1 .OwnForward.*forward of its own"),
    "wide linear": (nn.Sequential(Input(2), linear(8, 4)), "1 .Linear.*4 dimensions.*convolution of size 1"),
    "levels": (nn.Sequential(Input(2), conv(2, 4), hard(lehr.MultiStep((0, 1), (0, 0.001, 100)))), "no common unit"),
    "activation scales": (
        nn.Sequential(Input(2), conv(2, 4), hard(scale=torch.arange(1.0, 65.0).reshape(1, 8, 8))),
        "2 .Quantizer.: its scale has shape .1, 8, 8.",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_converted_is_named_with_why_and_what_to_do(case):
    model, message = REFUSED[case]
    with pytest.raises(FreezeError, match=message):
        freeze(model.eval(), IMAGES)


def test_a_statistic_that_is_no_number_is_named():
    model = nn.Sequential(Input(2), conv(2, 4), nn.BatchNorm2d(4)).eval()
    model[2].get_buffer("running_var")[1] = torch.nan
    with pytest.raises(FreezeError, match="^2: its running_var holds NaN"):
        freeze(model, IMAGES)


@pytest.mark.parametrize("size", [(16, 16), (8, 8), (2, 1), (28, 30)])
@pytest.mark.parametrize(
    "front",
    [
        lambda x: (x - x.mean((1, 2, 3), keepdim=True)) / (1 + x.std((1, 2, 3), keepdim=True)),
        lambda x: x - x.amin((2, 3), keepdim=True),
        lambda x: x - x.mean(1, keepdim=True),
        lambda x: x.flip(0),
        lambda x: x - x.mean(),
    ],
)
def test_what_looks_at_more_than_a_pixel_before_the_first_layer_is_refused(front, size):
    class Front(nn.Module):
        def forward(self, x):
            return front(x.float())

    model = nn.Sequential(Front(), conv(3, 4)).eval()
    with pytest.raises(FreezeError, match="each pixel alone|takes the average over|mixes images"):
        freeze(model, torch.zeros(2, 3, *size, dtype=torch.uint8))


@pytest.mark.parametrize(
    ("model", "shape"),
    [(conv(2, 4), (2, 8, 8)), (nn.Sequential(Input(2), conv(2, 4)), (3, 8, 8)), (linear(4, 2), (9,))],
)
def test_a_model_that_does_not_run_on_the_example_is_told_so(model, shape):
    with pytest.raises(FreezeError, match=r"does not run on example_input, uint8 of shape .*lehr\.models\.Input"):
        freeze(nn.Sequential(model).eval(), torch.zeros(1, *shape, dtype=torch.uint8))


def test_what_only_its_shape_is_read_of_is_left_out():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.input, self.layer, self.other = Input(2), conv(2, 4), conv(2, 6)

        def forward(self, x):
            x = self.input(x)
            return self.layer(x).reshape(self.other(x).size(0), -1)

    net = freeze(Model().eval(), IMAGES)
    assert "other" not in net.values


def test_dimensions_may_be_called_axes():
    model = Calls(lambda x: x.mean(axis=(2, 3))).eval()
    net = freeze(model, IMAGES)
    torch.testing.assert_close(net.run(IMAGES), model(IMAGES).detach())


def test_channel_scales_before_a_dense_layer_are_brought_to_a_common_unit():
    model = nn.Sequential(Input(2), conv(2, 4), hard(scale=networks.dyadic(4, 3)), conv(4, 4)).eval()
    net = freeze(model, IMAGES)
    assert net.exact
    assert torch.equal(net.run(IMAGES), model(IMAGES))


def test_channel_scales_without_a_common_unit_run_in_float_with_a_warning():
    scale = torch.tensor([1.0, 1.37, 0.71, 2.0]).reshape(-1, 1, 1)
    model = nn.Sequential(Input(2), conv(2, 4), hard(scale=scale), conv(4, 4)).eval()
    with pytest.warns(FloatWarning, match="3: its input is float.*with one scale"):
        freeze(model, IMAGES)


def test_noise_left_is_an_error():
    layer = lehr.Conv2d(2, 4, 3)
    model = nn.Sequential(Input(2), layer).eval()
    with pytest.raises(FreezeError, match=r"1.quantizer: its forward noise is still Uniform.*Annealer.*zero_"):
        freeze(model, IMAGES)
    layer.quantizer.forward_std.zero_()
    freeze(model, IMAGES)


def test_batch_norm_in_training_mode_is_an_error():
    model = nn.Sequential(Input(2), conv(2, 4), nn.BatchNorm2d(4))
    with pytest.raises(FreezeError, match=r"2: this BatchNorm2d is in training mode.*model.eval\(\)"):
        freeze(model, IMAGES)
    with pytest.raises(FreezeError, match=r"2: .*no running statistics"):
        freeze(nn.Sequential(Input(2), conv(2, 4), nn.BatchNorm2d(4, track_running_stats=False)).eval(), IMAGES)


@pytest.mark.parametrize(
    ("example", "message"),
    [
        (torch.zeros(1, 2, 8, 8), "does not run on example_input, float32 of shape .*lehr.models.Input"),
        (np.zeros((1, 2, 8, 8)), "uint8 .pixels., int8 or float32 .signals., got torch.float64: .*models.SignalInput"),
        (torch.zeros(8, dtype=torch.uint8), r"channel, row, column\), got shape \(8,\)"),
        (torch.zeros(0, 2, 8, 8, dtype=torch.uint8), r"one example or more, .*got shape \(0, 2, 8, 8\)"),
    ],
)
def test_the_example_is_a_batch_of_pixels(example, message):
    with pytest.raises(FreezeError, match=message):
        freeze(nn.Sequential(Input(2), conv(2, 4)).eval(), example)


def test_the_example_may_be_numpy_and_nothing_else():
    model = nn.Sequential(Input(2), conv(2, 4)).eval()
    assert torch.equal(freeze(model, IMAGES.numpy()).run(IMAGES), freeze(model, IMAGES).run(IMAGES))
    with pytest.raises(TypeError, match="a torch tensor or a numpy array, got list"):
        freeze(model, IMAGES.tolist())


def test_what_can_never_be_converted_is_named_before_what_stands_in_its_way():
    """Rows are squeezed away for the LSTM: without it nobody would."""

    class Recurrent(nn.Module):
        def __init__(self):
            super().__init__()
            self.input, self.layer, self.lstm, self.head = Input(2), conv(2, 4), nn.LSTM(4, 8), linear(8, 3)

        def forward(self, x):
            x = self.layer(self.input(x)).flatten(2).permute(0, 2, 1)
            return self.head(self.lstm(x)[0].mean(1))

    class Squeezed(Recurrent):
        def forward(self, x):
            x = F.max_pool2d(self.layer(self.input(x)), (8, 1)).squeeze(2).view(-1, 2, 16)
            return self.head(self.lstm(x)[0].mean(1))

    with pytest.raises(FreezeError, match="^lstm"):
        freeze(Recurrent().eval(), IMAGES)
    model = Squeezed().eval()
    model.lstm = nn.LSTM(16, 8)
    with pytest.raises(FreezeError, match=r"^lstm \(LSTM\): it is a recurrent layer.*Conv1d over time"):
        freeze(model, IMAGES)


@pytest.mark.parametrize(
    "function",
    [
        *(nn.LeakyReLU(0.1), nn.PReLU(), nn.Tanh(), nn.Softsign(), nn.ELU(), nn.Hardsigmoid(), F.softplus),
        *(torch.sigmoid, nn.PReLU(6, 0.3)),
    ],
    ids=lambda function: getattr(function, "__name__", None) or type(function).__name__,
)
def test_a_function_that_rises_folds_into_the_thresholds_of_the_quantizer_behind_it(function):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.input, self.conv, self.norm = Input(2), conv(2, 6), nn.BatchNorm2d(6)
            self.function = function if isinstance(function, nn.Module) else nn.Identity()
            self.step, self.head = hard(lehr.MultiStep((-0.1, 0.1, 0.4, 0.6), range(5))), linear(6 * 64, 5)  # pyright: ignore[reportArgumentType]

        def forward(self, x):
            x = self.function(self.norm(self.conv(self.input(x))))
            x = x if isinstance(function, nn.Module) else function(x)
            return self.head(self.step(x).flatten(1))

    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(0)
        model, images = Model(), torch.randint(0, 256, (16, 2, 8, 8), dtype=torch.uint8)
        nn.init.normal_(model.norm.weight)
        nn.init.normal_(model.norm.bias)
        model(images)
        model.eval()
        net = freeze(model, images)
        assert {value.kind for name, value in net.values.items() if name != "logits"} == {"integer"}
        assert torch.equal(net.run(images), model(images))
    assert len(net.trace(images)["step"].unique()) >= 3
    is_exact = isinstance(function, nn.LeakyReLU | nn.PReLU)
    assert any("last bits depend on the machine" in why for why in net.inexact) != is_exact


@pytest.mark.parametrize("function", [nn.SiLU(), nn.GELU(), nn.GELU("tanh"), nn.Mish(), nn.Hardswish()], ids=str)
@pytest.mark.parametrize("step", [lehr.MultiStep.uniform(4), lehr.MultiStep((-0.15, 0.5), (-1, 0, 1))])
def test_a_function_that_falls_and_rises_becomes_two_thresholds_and_their_sum(function, step):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.input, self.conv, self.norm = Input(2), conv(2, 6), nn.BatchNorm2d(6)
            self.step, self.head = hard(step, 2.0**-3 if len(step.levels) > 3 else 1.0), linear(6 * 64, 5)
            self.function = function

        def forward(self, x):
            return self.head(self.step(self.function(self.norm(self.conv(self.input(x))))).flatten(1))

    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(0)
        model, images = Model(), torch.randint(0, 256, (16, 2, 8, 8), dtype=torch.uint8)
        nn.init.normal_(model.norm.weight)  # falls in some channels
        nn.init.normal_(model.norm.bias)
        model(images)
        model.eval()
        net = freeze(model, images)
        assert {value.kind for name, value in net.values.items() if name != "logits"} == {"integer"}
        assert [type(operation).__name__ for operation in net.operations].count("Add") == 1
        levels = net.trace(images)["step"] * (1 if model.step.scale is None else float(model.step.scale))
        assert torch.equal(net.run(images), model(images))
    assert float(levels.min()) < 0 < float(levels.max())
    assert torch.equal(lehr.deploy.compile(net)(images), net.run(images))


def test_the_gate_of_squeeze_and_excite_may_be_expanded_first():
    class Gated(nn.Module):
        def __init__(self):
            super().__init__()
            self.input, self.conv, self.step = Input(2), conv(2, 4), hard()
            self.excite, self.gate = conv(4, 4, 1), hard(lehr.MultiStep.uniform(4, signed=False))

        def forward(self, x):
            x = self.step(self.conv(self.input(x)))
            gate = self.gate(torch.sigmoid(self.excite(x.amax((2, 3), keepdim=True))) * 9)
            return (x * gate.expand_as(x)).amax((2, 3))

    images = torch.randint(0, 256, (8, 2, 8, 8), dtype=torch.uint8)
    model = Gated().eval()
    net = freeze(model, images)
    assert not any(isinstance(operation, operations.Take) for operation in net.operations)
    with torch.no_grad():
        assert torch.equal(net.run(images), model(images))


class Doubled(nn.Module):
    """Its forward cannot be traced."""

    def forward(self, x):
        return x * 2 if len(x.tolist()) else x


def doubled(call: Call) -> Traced:
    (x,) = call.inputs
    two = torch.full((call.channels(x),), 2.0, dtype=torch.float64)
    return call.then(x, fold.scaled(two, torch.zeros_like(two)))


def test_a_converter_of_the_user_converts_a_module_of_the_user():
    model = nn.Sequential(Input(2), conv(2, 4), Doubled(), hard(), nn.Flatten(), linear(256, 3)).eval()
    images = torch.randint(0, 256, (8, 2, 8, 8), dtype=torch.uint8)
    with pytest.raises(FreezeError, match="cannot be traced"):
        freeze(model, images)
    with torch.no_grad():
        assert torch.equal(freeze(model, images, converters={Doubled: doubled}).run(images), model(images))
    assert Doubled not in CONVERTERS


def test_a_converter_of_the_user_goes_before_the_one_in_the_table_and_takes_functions():
    def root(call: Call) -> Traced:  # (x - mean) / std of one channel's image, with numbers that are known
        (x,) = call.inputs
        ones = torch.ones(call.channels(x), dtype=torch.float64)
        return call.then(x, fold.scaled(ones, ones))

    body = nn.Sequential(Input(2), conv(2, 4), nn.GroupNorm(1, 4)).eval()
    with pytest.raises(FreezeError, match="GroupNorm"):
        freeze(body, IMAGES)
    for model, key in ((body, nn.GroupNorm), (Calls(torch.sin), torch.sin), (Calls(lambda x: x.sin()), Tensor.sin)):
        net = freeze(model.eval(), IMAGES, converters={key: root})
        last = net.operations[-1]
        assert isinstance(last, operations.Affine)
        assert last.shift.tolist() == [1, 1, 1, 1]


def test_sums_that_could_leave_int32_are_refused_with_the_layer():
    class Loud(nn.Module):
        def forward(self, x):
            return x.float() * 128 + (x > 100)  # up to 32,641, in units of 1

    model = nn.Sequential(Loud(), nn.Flatten(), linear(1024, 1, lehr.MultiStep.uniform(8))).eval()
    nn.init.constant_(model[2].get_parameter("weight"), 127.0)
    with pytest.raises(FreezeError, match=r"^2 .Linear.: its sums reach .*beyond int32.*fewer bits"):
        freeze(model, torch.zeros(1, 1, 32, 32, dtype=torch.uint8))


def test_what_is_not_integer_is_not_warned_about_unless_it_was_quantized():
    model, images = networks.trained("float branches")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        net = freeze(model, images)
    assert net.values["branch.1"].kind == "integer"
    assert net.values["stem.0"].kind == "float"


def test_a_copy_that_averaged_buffers_freezes_or_says_why_not() -> None:
    body = nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    lehr.quantize_(body)
    model = nn.Sequential(Input(1), body)
    images = torch.randint(0, 256, (4, 1, 4, 4), dtype=torch.uint8)
    annealer = lehr.Annealer(model, lehr.annealing.Window(0, 3))
    noisy, settled = (torch.optim.swa_utils.AveragedModel(model, use_buffers=True) for _ in range(2))
    for _ in range(8):
        noisy.update_parameters(model)
        model(images)
        annealer.step()
        if annealer.time > 4:
            settled.update_parameters(model)
    with pytest.raises(FreezeError, match=r"AveragedModel\(use_buffers=True\) does, averages the"):
        freeze(noisy.module.eval(), images[:1])
    for module in settled.modules():
        if isinstance(module, lehr.Quantizer):
            assert module.forward_std.item() == 0
            assert module.backward_std.item() > 0.2
    freeze(settled.module.eval(), images[:1])


def test_what_stays_float_is_listed_with_its_share_of_macs():
    layers = conv(2, 4), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 2, 3), nn.Flatten(), linear(2 * 5 * 5, 3)
    model = nn.Sequential(Input(2), *layers).eval()
    with pytest.warns(FloatWarning, match="its input is float"):
        net = freeze(model, torch.zeros(1, 2, 7, 7, dtype=torch.uint8))
    summary = net.summary()
    assert summary.floats == ("1.affine", "1.clip", "4", "5", "5.affine", "6")
    assert summary.float_share == pytest.approx(1 - 4 * 49 * 18 / summary.macs)
    assert str(summary).endswith("% of the MACs: 1.affine, 1.clip, 4, 5, 5.affine, 6")
    assert "6 operations with" in repr(net)


def test_a_network_that_is_wholly_float_is_warned_about():
    model = nn.Sequential(lehr.models.Input((0.5,), (0.5,)), nn.Flatten(), nn.Linear(4, 2)).eval()
    with pytest.warns(FloatWarning, match="all of this network runs in float: convert it"):
        net = freeze(model, torch.zeros(1, 1, 2, 2, dtype=torch.uint8))
    assert net.summary().float_share == 1
