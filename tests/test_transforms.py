"""torch.func, forward-mode derivatives and torch.fx: quantized modules take part as torch's own do."""

# The items of an nn.Sequential are mere modules to a type checker.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportCallIssue=false, reportIndexIssue=false
# pyright: reportOperatorIssue=false, reportOptionalMemberAccess=false

import copy

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad
from torch.func import functional_call, grad, jvp, stack_module_state, vmap

import lehr
from lehr import MultiStep, Normal, Quantizer, Uniform
from restated import NOISES, value_and_gradient

# torch compiles its own formulas for forward mode when they are first used.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script`:DeprecationWarning")
STEPS = [MultiStep.ternary(), MultiStep.uniform(6, step=0.25)]
every_step = pytest.mark.parametrize("step", STEPS, ids=["ternary", "6 bits"])


def network() -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv1d(2, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(24, 8), nn.ReLU(), nn.Linear(8, 3))
    lehr.quantize_(model, activations=Quantizer(forward=Uniform(0.1)))
    return model


class TestVmap:
    @every_step
    @pytest.mark.parametrize("kind", NOISES)
    @pytest.mark.parametrize("mode", ["expectation", "mode"])
    def test_mapping_over_inputs_is_a_loop_over_them(self, step, kind, mode):
        x = torch.randn(5, 7)
        quantizer = Quantizer(step, kind(0.2), kind(0.3), mode=mode, scale=0.7)
        torch.testing.assert_close(vmap(quantizer)(x), quantizer(x))
        slopes = vmap(grad(lambda row: quantizer(row).sum()))(x)
        whole = x.clone().requires_grad_()
        quantizer(whole).sum().backward()
        torch.testing.assert_close(slopes, whole.grad)

    def test_mapping_over_the_noise_is_a_loop_over_noises(self):
        x, stds = torch.randn(7), torch.tensor([0.0, 0.1, 0.5])
        values = vmap(lambda std: lehr.quantize(x, STEPS[0], Normal(std)))(stds)
        for value, std in zip(values, stds.tolist(), strict=True):
            torch.testing.assert_close(value, lehr.quantize(x, STEPS[0], Normal(std)))

    def test_samples_differ_or_not_as_torch_s_randomness_says(self):
        x = torch.zeros(2, 1000)
        quantizer = Quantizer(forward=Normal(0.5), mode="sample")
        one, other = vmap(quantizer, randomness="different")(x)
        assert not torch.equal(one, other)
        one, other = vmap(quantizer, randomness="same")(x)
        assert torch.equal(one, other)

    @pytest.mark.parametrize("training", [True, False])
    def test_gradients_of_each_example_of_a_batch(self, training):
        model = network().train(training)
        x, parameters = torch.randn(4, 2, 8), dict(model.named_parameters())

        def loss(parameters, example):
            return functional_call(model, parameters, (example[None],)).square().sum()

        each = vmap(grad(loss), in_dims=(None, 0))(parameters, x)
        for number, example in enumerate(x):
            model.zero_grad()
            loss(dict(model.named_parameters()), example).backward()
            for name, parameter in model.named_parameters():
                torch.testing.assert_close(each[name][number], parameter.grad, rtol=1e-4, atol=1e-4)

    def test_an_ensemble_with_different_noise_for_each_member(self):
        models = [network(), network(), network()]
        for number, model in enumerate(models):
            for module in model.modules():
                if isinstance(module, Quantizer):
                    module.forward_std.mul_(number)
        parameters, buffers = stack_module_state(models)
        base, x = copy.deepcopy(models[0]), torch.randn(4, 2, 8)
        together = vmap(lambda p, b: functional_call(base, (p, b), (x,)))(parameters, buffers)
        for value, model in zip(together, models, strict=True):
            torch.testing.assert_close(value, model(x), rtol=1e-4, atol=1e-4)


class TestForwardMode:
    @every_step
    @pytest.mark.parametrize("kind", NOISES)
    def test_a_tangent_is_multiplied_by_the_gradient(self, step, kind):
        x, tangent = torch.randn(50), torch.randn(50)
        noises = kind(0.2), kind(0.3)
        value, slope = value_and_gradient(x, step, *noises)
        primal, product, *_ = jvp(lambda x: lehr.quantize(x, step, *noises), (x,), (tangent,))
        torch.testing.assert_close(primal, value)
        torch.testing.assert_close(product, slope * tangent)

    def test_dual_numbers_pass_a_network(self):
        model, x, tangent = network(), torch.randn(4, 2, 8), torch.randn(4, 2, 8)
        with forward_ad.dual_level():
            forward = forward_ad.unpack_dual(model(forward_ad.make_dual(x, tangent))).tangent
        assert forward is not None
        x.requires_grad_()
        weights = torch.randn(4, 3)
        (model(x) * weights).sum().backward()
        assert x.grad is not None
        torch.testing.assert_close((forward * weights).sum(), (x.grad * tangent).sum(), rtol=1e-3, atol=1e-3)


class TestFx:
    @pytest.mark.parametrize("training", [True, False])
    def test_a_traced_network_computes_and_learns_as_the_network(self, training):
        model = network().train(training)
        traced = torch.fx.symbolic_trace(model)
        x = torch.randn(4, 2, 8)
        torch.testing.assert_close(traced(x), model(x))
        traced(x).sum().backward()
        gradient, model[0].weight.grad = model[0].weight.grad.clone(), None
        model(x).sum().backward()
        torch.testing.assert_close(gradient, model[0].weight.grad)

    def test_a_quantizer_is_one_node_whose_noise_still_anneals(self):
        model = nn.Sequential(nn.Linear(3, 2), Quantizer(forward=Uniform(0.2)))
        traced = torch.fx.symbolic_trace(model)
        assert [node.op for node in traced.graph.nodes] == ["placeholder", "call_module", "call_module", "output"]
        traced.get_submodule("1").forward_std.zero_()
        x = torch.randn(5, 3)
        assert set(traced(x).unique().tolist()) <= {-1.0, 0.0, 1.0}
