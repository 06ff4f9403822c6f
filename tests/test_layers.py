"""Quantizer, Linear and Conv: modules around Theorem 2 that behave as torch's own."""

# The items of an nn.Sequential are mere modules to a type checker.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportCallIssue=false, reportIndexIssue=false
# pyright: reportOperatorIssue=false, reportOptionalMemberAccess=false

import copy
import io
import math
import pickle

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

import lehr
from lehr import Dirac, MultiStep, Normal, Quantizer, Uniform
from lehr.composed import Composed, taken_apart
from lehr.layers import around_thresholds_
from measure import LiveMemory
from restated import value_and_gradient

TERNARY, FOUR_BIT = MultiStep.ternary(), MultiStep.uniform(4)
LAYERS = {
    "Linear": (lambda **kwargs: lehr.Linear(6, 4, **kwargs), nn.Linear(6, 4), (5, 6)),
    "Conv1d": (lambda **kwargs: lehr.Conv1d(6, 4, 3, padding=1, **kwargs), nn.Conv1d(6, 4, 3, padding=1), (2, 6, 9)),
    "Conv2d": (
        lambda **kwargs: lehr.Conv2d(6, 4, (3, 1), stride=2, groups=2, padding_mode="reflect", padding=1, **kwargs),
        nn.Conv2d(6, 4, (3, 1), stride=2, groups=2, padding_mode="reflect", padding=1),
        (2, 6, 9, 8),
    ),
    "Conv3d": (
        lambda **kwargs: lehr.Conv3d(6, 4, 2, dilation=2, **kwargs),
        nn.Conv3d(6, 4, 2, dilation=2),
        (2, 6, 5, 5, 5),
    ),
}
every_layer = pytest.mark.parametrize(("make", "plain", "shape"), LAYERS.values(), ids=LAYERS)


class TestQuantizer:
    def test_it_is_quantize_with_the_paper_s_noise_unless_told_otherwise(self):
        x = torch.randn(100, requires_grad=True)
        y = Quantizer()(x)
        y.backward(torch.ones_like(y))
        value, gradient = value_and_gradient(x, MultiStep.ternary(), Uniform.half_width(0.5))
        torch.testing.assert_close(y, value)
        assert torch.equal(torch.as_tensor(x.grad), gradient)

    def test_forward_and_backward_noise_are_its_own(self):
        x = torch.randn(100, requires_grad=True)
        y = Quantizer(MultiStep.sign(), Normal(0.3), Uniform.half_width(1))(x)
        y.backward(torch.ones_like(y))
        value, gradient = value_and_gradient(x, MultiStep.sign(), Normal(0.3), Uniform.half_width(1))
        torch.testing.assert_close(y, value)
        assert torch.equal(torch.as_tensor(x.grad), gradient)

    @pytest.mark.parametrize("mode", ["expectation", "mode", "sample"])
    def test_eval_removes_the_forward_noise_always(self, mode):
        x = torch.cat([torch.randn(100), torch.tensor([-0.5, 0.5])])
        quantizer = Quantizer(forward=Normal(0.5, mean=0.2), mode=mode).eval()
        assert torch.equal(quantizer(x), MultiStep.ternary()(x))
        assert not torch.equal(quantizer.train()(x), MultiStep.ternary()(x))

    def test_eval_keeps_the_backward_noise(self):
        x = torch.randn(100, requires_grad=True)
        Quantizer().eval()(x).sum().backward()
        assert torch.equal(torch.as_tensor(x.grad), ((x >= -1) & (x < 1)).float())

    @pytest.mark.parametrize("scale", [0.25, torch.tensor(0.25), torch.tensor([[0.5], [0.25], [2.0]])], ids=str)
    def test_scale_stretches_the_function_both_ways(self, scale):
        x = torch.randn(4, 3, 50, requires_grad=True)
        y = Quantizer(scale=scale)(x)
        y.backward(torch.ones_like(y))
        value, gradient = value_and_gradient(x / scale, MultiStep.ternary(), Uniform.half_width(0.5))
        torch.testing.assert_close(y, value * scale)
        torch.testing.assert_close(torch.as_tensor(x.grad), gradient)  # scale times 1/scale
        assert set((Quantizer(scale=scale).eval()(x) / scale).unique().tolist()) == {-1, 0, 1}

    def test_touching_windows_count_once_whatever_the_module_is_turned_to(self):
        for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16):
            for module in (Quantizer(), Quantizer().to(dtype), nn.Sequential(Quantizer()).half().to(dtype)):
                x = torch.tensor([-1.0, 0.0, 1.0], dtype=dtype, requires_grad=True)
                module(x).sum().backward()
                assert torch.as_tensor(x.grad).tolist() == [1, 1, 0]

    def test_the_noise_keeps_its_precision_in_a_half_module(self):
        quantizer = Quantizer(scale=0.3).half()
        assert quantizer.forward_std.dtype == torch.float32
        assert quantizer.forward_std.item() == pytest.approx(math.sqrt(3) / 6, rel=1e-7)
        assert torch.as_tensor(quantizer.scale).dtype == torch.float16
        assert quantizer(torch.randn(3).half()).dtype == torch.float16

    def test_one_tensor_is_kept_for_the_backward_pass_and_memory_stays_small(self):
        x = torch.randn(2**19, requires_grad=True)
        for scale in (1.0, 0.5):
            quantizer, kept = Quantizer(scale=scale), []
            with torch.autograd.graph.saved_tensors_hooks(lambda t, kept=kept: kept.append(t) or t, lambda t: t):
                quantizer(x)
            assert sum(tensor.numel() > 1 for tensor in kept) == 1
        x.grad = None
        with LiveMemory() as memory:
            Quantizer()(x).backward(x.detach())
        assert memory.peak <= 3.01 * x.numel() * 4

    def test_it_tells_its_function_and_its_present_noise(self):
        quantizer = Quantizer(mode="mode", scale=0.5)
        quantizer.forward_std.fill_(0.1)
        told = "(-1, 0, 1) at (-0.5, 0.5), forward=Uniform(std=0.1), backward=Uniform(std=0.2887), mode=mode, scale=0.5"
        assert repr(quantizer) == f"Quantizer({told})"
        assert repr(Quantizer(forward=Dirac())).count("forward=Dirac()") == 1
        assert "scale=0.1..0.2, (2, 1)" in repr(Quantizer(scale=torch.tensor([[0.1], [0.2]])))
        assert quantizer.forward_noise.std == pytest.approx(0.1)
        assert Quantizer(backward=Normal(0.2, 0.1)).backward_noise.mean == pytest.approx(0.1)

    @pytest.mark.parametrize(
        ("arguments", "error", "complaint"),
        [
            ({"mode": "median"}, ValueError, "got 'median'"),
            ({"step": 3}, TypeError, "step must be a MultiStep, got 3"),
            ({"forward": 0.3}, TypeError, "forward must be a noise"),
            ({"scale": 0.0}, ValueError, "scale must be positive and finite, got 0.0"),
            ({"scale": torch.tensor([1.0, -1.0])}, ValueError, "scale must be positive and finite"),
            ({"scale": math.inf}, ValueError, "got inf"),
        ],
    )
    def test_wrong_arguments_are_errors(self, arguments, error, complaint):
        with pytest.raises(error, match=complaint):
            Quantizer(**arguments)


class TestWeights:
    @every_layer
    def test_a_layer_computes_as_torch_s_with_the_quantized_weight(self, make, plain, shape):
        layer, x = make(), torch.randn(shape)
        plain = copy.deepcopy(plain)
        layer.bias.data = torch.randn(4)
        plain.load_state_dict({"weight": layer.quantizer(layer.weight), "bias": layer.bias})
        torch.testing.assert_close(layer(x), plain(x))
        plain.load_state_dict({"weight": MultiStep.ternary()(layer.weight), "bias": layer.bias})
        assert torch.equal(layer.eval().quantized_weight, plain.weight)
        torch.testing.assert_close(layer(x), plain(x))

    @every_layer
    def test_weights_receive_gradients_and_inputs_too(self, make, plain, shape):
        layer, x = make(), torch.randn(shape, requires_grad=True)
        layer(x).square().sum().backward()
        for tensor in (layer.weight, layer.bias, x):
            assert torch.as_tensor(tensor.grad).abs().sum() > 0

    @every_layer
    def test_a_full_precision_checkpoint_loads_strictly(self, make, plain, shape):
        layer = make()
        layer.load_state_dict(plain.state_dict(), strict=True)
        assert torch.equal(layer.weight, plain.weight)
        assert layer.quantizer.forward_std.item() == pytest.approx(math.sqrt(3) / 6)

    @every_layer
    def test_parameters_are_named_as_torch_names_them(self, make, plain, shape):
        assert [name for name, _ in make().named_parameters()] == ["weight", "bias"]
        assert [name for name, _ in make(bias=False).named_parameters()] == ["weight"]
        assert set(make().state_dict()) - set(plain.state_dict()) == {"quantizer.forward_std", "quantizer.backward_std"}

    @every_layer
    def test_weights_start_around_the_thresholds(self, make, plain, shape):
        weight = make(quantizer=Quantizer(MultiStep.ternary(), scale=0.5)).weight
        reach = 0.5 / math.sqrt(weight[0].numel())
        assert ((weight.abs() - 0.25).abs() <= reach * (1 + 1e-6)).all()
        assert weight.min() < 0 < weight.max()

    def test_initial_weights_are_spread_evenly_over_the_thresholds(self):
        weight = around_thresholds_(torch.empty(200, 400), Quantizer(), torch.Generator().manual_seed(0))
        again = around_thresholds_(torch.empty(200, 400), Quantizer(), torch.Generator().manual_seed(0))
        assert torch.equal(weight, again)
        assert (weight > 0).float().mean().item() == pytest.approx(0.5, abs=0.01)
        offsets = (weight.abs() - 0.5) * 20  # of fan-in 400
        assert offsets.std().item() == pytest.approx(1 / math.sqrt(3), rel=0.01)  # U[-1, 1]

    def test_device_and_dtype_are_torch_s_arguments(self):
        assert lehr.Linear(3, 2, dtype=torch.float64).weight.dtype == torch.float64
        assert lehr.Conv2d(3, 2, 1, device="meta").weight.is_meta


class TestState:
    def model(self):
        torch.manual_seed(0)
        return nn.Sequential(
            lehr.Linear(
                6, 4, quantizer=Quantizer(forward=Uniform(torch.full((4, 1), 0.2)), scale=torch.full((4, 1), 0.5))
            ),
            Quantizer(forward=Normal(0.3, mean=0.1)),
            lehr.Linear(4, 2),
        )

    def test_noise_is_saved_and_restored_also_per_channel(self):
        model, other = self.model(), self.model()
        for quantizer in (module for module in model.modules() if isinstance(module, Quantizer)):
            quantizer.forward_std.mul_(0.25)
        other.load_state_dict(model.state_dict())
        x = torch.randn(5, 6)
        assert torch.equal(other(x), model(x))
        assert torch.equal(other[0].quantizer.forward_std, torch.full((4, 1), 0.05))

    def test_shapes_are_those_of_the_state(self):
        plain = nn.Sequential(lehr.Linear(6, 4), Quantizer(), lehr.Linear(4, 2))
        plain.load_state_dict(self.model().state_dict(), strict=True)
        assert plain[0].quantizer.scale.shape == (4, 1)
        assert plain[1].forward_mean.item() == pytest.approx(0.1)
        double = self.model().double()
        double[0].quantizer.scale += 1e-12
        other = nn.Sequential(lehr.Linear(6, 4), Quantizer(), lehr.Linear(4, 2)).double()
        other.load_state_dict(double.state_dict())
        assert torch.equal(other[0].quantizer.scale, double[0].quantizer.scale)
        scaled = self.model()
        scaled.load_state_dict(nn.Sequential(lehr.Linear(6, 4), Quantizer(), lehr.Linear(4, 2)).state_dict())
        assert scaled[0].quantizer.scale is None
        assert scaled[1].forward_mean is None
        assert scaled[0].quantizer.forward_std.shape == ()

    def test_a_state_that_lacks_noise_of_a_quantized_model_is_incomplete(self):
        state = lehr.Linear(3, 2).state_dict()
        del state["quantizer.backward_std"]
        with pytest.raises(RuntimeError, match=r"Missing key.*quantizer.backward_std"):
            lehr.Linear(3, 2).load_state_dict(state)

    @pytest.mark.parametrize("through_a_file", [False, True])
    def test_a_state_of_another_step_function_is_refused_by_name(self, through_a_file):
        four_bit, ternary = (
            nn.Sequential(lehr.Linear(3, 2, quantizer=Quantizer(step))) for step in (FOUR_BIT, TERNARY)
        )
        state, before = four_bit.state_dict(), copy.deepcopy(ternary.state_dict())
        if through_a_file:
            file = io.BytesIO()
            torch.save(state, file)
            file.seek(0)
            state = torch.load(file, weights_only=True)
        message = r"0.quantizer has the levels \(-1, 0, 1\) at \(-0.5, 0.5\), its state those of \(-8, -7.*quantize the"
        with pytest.raises(RuntimeError, match=message):
            ternary.load_state_dict(state)
        assert torch.equal(ternary[0].quantizer.forward_std, before["0.quantizer.forward_std"])
        four_bit.load_state_dict(state)

    def test_a_state_that_does_not_say_its_step_function_loads(self):
        """As those that were saved before states said it, and those that went through a plain dict."""
        ternary = nn.Sequential(lehr.Linear(3, 2))
        ternary.load_state_dict(dict(nn.Sequential(lehr.Linear(3, 2)).state_dict()))

    def test_a_state_survives_a_file_without_pickled_code(self):
        file = io.BytesIO()
        torch.save(self.model().state_dict(), file)
        file.seek(0)
        self.model().load_state_dict(torch.load(file, weights_only=True))

    @pytest.mark.parametrize(
        "clone", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))], ids=["copy", "pickle"]
    )
    def test_models_copy_and_pickle(self, clone):
        model = self.model()
        twin, x = clone(model), torch.randn(5, 6)
        assert torch.equal(twin(x), model(x))
        twin[1].forward_std.fill_(0)
        assert model[1].forward_std.item() == pytest.approx(0.3)

    @pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
    def test_models_change_their_dtype(self, dtype):
        model = self.model().to(dtype)
        x = torch.randn(5, 6, dtype=dtype, requires_grad=True)
        y = model(x)
        y.sum().backward()
        assert y.dtype == dtype
        assert torch.as_tensor(x.grad).dtype == model[0].weight.grad.dtype == dtype

    def test_models_may_be_built_without_memory(self):
        with torch.device("meta"):
            model = self.model()
        assert "forward=Normal(std=?, mean=?)" in repr(model)
        assert model(torch.empty(5, 6, device="meta")).shape == (5, 2)
        model = model.to_empty(device="cpu")
        model.load_state_dict(self.model().state_dict())
        x = torch.randn(5, 6)
        assert torch.equal(model(x), self.model()(x))


class TestTheRestOfTorch:
    def test_autocast_changes_the_precision_and_nothing_else(self):
        model = nn.Sequential(
            lehr.Conv2d(3, 8, 3), nn.BatchNorm2d(8), Quantizer(), nn.Flatten(), lehr.Linear(8 * 36, 5)
        )
        x = torch.randn(2, 3, 8, 8)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = model(x)
            assert model[2](y).dtype == torch.bfloat16
        y.float().sum().backward()
        assert y.dtype == torch.bfloat16
        assert model[0].weight.grad.dtype == torch.float32
        torch.testing.assert_close(y.float(), model(x), rtol=0.1, atol=0.5)

    @pytest.mark.parametrize("mode", ["expectation", "sample"])
    def test_gradient_checkpointing_changes_nothing(self, mode):
        model = nn.Sequential(lehr.Linear(6, 8), Quantizer(forward=Normal(0.5), mode=mode), lehr.Linear(8, 4))
        gradients = []
        for run in (model, lambda x: checkpoint(model, x, use_reentrant=False)):
            torch.manual_seed(1)
            x = torch.linspace(-1, 1, 30).reshape(5, 6).requires_grad_()
            run(x).square().sum().backward()
            gradients.append(x.grad)
        assert torch.equal(*gradients)

    @pytest.mark.slow
    def test_no_value_is_read_back_from_the_device(self):
        """The meta device has no values: what would wait for an accelerator fails on it."""
        model = nn.Sequential(
            lehr.Conv2d(3, 8, 3, quantizer=Quantizer(scale=torch.ones(8, 1, 1, 1), forward=Normal(0.2, mean=0.1))),
            Quantizer(),
            Quantizer(MultiStep.uniform(8)),
            Quantizer(mode="mode"),
            Quantizer(mode="sample"),
        )
        model.to("meta")
        with NoValues():
            model(torch.empty(2, 3, 8, 8, device="meta", requires_grad=True)).sum().backward()
            model.eval()(torch.empty(2, 3, 8, 8, device="meta", requires_grad=True)).sum().backward()


class Twice(Composed, nn.Linear):
    """A layer that is deployed as two."""

    def parts(self) -> nn.Module:
        half = nn.Linear(self.in_features, self.out_features)
        half.load_state_dict({name: value / 2 for name, value in self.state_dict().items()})
        double = nn.Linear(self.out_features, self.out_features, bias=False)
        double.weight = nn.Parameter(2 * torch.eye(self.out_features))
        return nn.Sequential(half, double)


def test_composed_layers_are_taken_apart_in_a_copy() -> None:
    shared = Twice(3, 3)
    model = nn.Sequential(shared, nn.Sequential(nn.ReLU(), shared, Twice(3, 2))).eval()
    apart = taken_apart(model)
    assert not any(isinstance(module, Composed) for module in apart.modules())
    assert apart[0] is apart[1][1], "used at two places, it stays one"
    assert not any(module.training for module in apart.modules())
    assert model[0] is shared
    x = torch.randn(4, 3)
    torch.testing.assert_close(apart(x), model(x))
    torch.testing.assert_close(taken_apart(shared)(x), shared(x))


def test_codes_count_more_levels_than_a_byte():
    step = lehr.MultiStep(tuple(range(300)), tuple(range(301)))
    codes = lehr.Quantizer(step, lehr.Dirac(), lehr.Dirac()).codes(torch.tensor([-1.0, 0.5, 255.5, 299.5]))
    assert codes.tolist() == [0, 1, 256, 300]
    assert lehr.Quantizer().codes(torch.zeros(1)).dtype == torch.uint8


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_codes_samples_and_values_agree_in_every_precision(dtype):
    x = torch.linspace(-1, 1, 2001).to(dtype)
    quantizer = lehr.Quantizer(scale=0.3).eval()
    values = quantizer(x)
    levels = torch.tensor(quantizer.levels)[quantizer.codes(x).long()]
    assert torch.equal((levels * 0.3).to(dtype), values)
    assert torch.equal(lehr.Quantizer(scale=0.3, mode="sample").eval()(x), values)


class NoValues(TorchDispatchMode):
    """Forbids to read a tensor's values, and to copy one from the CPU to the device, which waits as well."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        assert func not in (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.is_nonzero.default)
        if func in (torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default):
            source = args[-1] if func is torch.ops.aten.copy_.default else args[0]
            assert source.is_meta or source.ndim == 0
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("scale", [None, 0.3, "channel"])
@pytest.mark.parametrize("kind", ["linear", "conv"])
def test_in_eval_mode_a_layer_sums_levels_and_multiplies_by_its_scale_afterwards(kind, scale):
    """So that its float32 sums are sums of integers, exact in any order; the gradients stay those of training."""
    torch.manual_seed(0)
    quantizer = lehr.Quantizer(lehr.MultiStep.uniform(4), lehr.Dirac(), lehr.Uniform(0.3))
    if kind == "linear":
        layer, x = lehr.Linear(640, 5, quantizer=quantizer), torch.randint(-3, 4, (7, 640)).float()
    else:
        layer, x = lehr.Conv2d(64, 5, 3, quantizer=quantizer), torch.randint(-3, 4, (7, 64, 6, 5)).float()
    column = (-1, *[1] * (layer.weight.ndim - 1))
    if scale is not None:
        quantizer.scale = torch.linspace(0.1, 0.7, 5).reshape(column) if scale == "channel" else torch.tensor(scale)
    factor = torch.ones(()) if quantizer.scale is None else quantizer.scale
    levels = quantizer.step(layer.weight.detach() / factor)
    operation = F.linear if kind == "linear" else F.conv2d
    sums = operation(x.double(), levels.double()).float()
    row = (1, -1, *column[2:])
    expected = sums * (factor.reshape(row) if factor.numel() > 1 else factor) + layer.bias.reshape(row)
    result = layer.eval()(x)
    assert torch.equal(result, expected)
    result.square().sum().backward()
    gradient, layer.weight.grad = layer.weight.grad, None
    layer.train()(x).square().sum().backward()
    torch.testing.assert_close(gradient, layer.weight.grad, rtol=1e-3, atol=1e-2)


def test_in_eval_mode_a_weight_that_is_no_number_is_not_hidden():
    layer = lehr.Linear(4, 2, quantizer=lehr.Quantizer(forward=lehr.Dirac())).eval()
    with torch.no_grad():
        layer.weight[0, 0] = torch.nan
        assert layer(torch.ones(1, 4)).isnan().tolist() == [[True, False]]
