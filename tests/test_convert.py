"""quantize_ converts any module in place, says what it did, and leaves a trained network close to itself."""

# The items of an nn.Sequential are mere modules to a type checker.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportCallIssue=false, reportIndexIssue=false
# pyright: reportOperatorIssue=false, reportOptionalMemberAccess=false

import copy
import functools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import lehr
from lehr import Dirac, MultiStep, Normal, Quantizer, quantize_
from lehr.convert import ACTIVATIONS
from lehr.scale import fit_scale
from restated import few_numbers


def small_net():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 16, 10)
    )


LOPSIDED = MultiStep((-0.2, 0.3, 0.9), (-1, 0, 0.5, 2))


class Block(nn.Module):
    def __init__(self, width=4):
        super().__init__()
        self.inner = nn.Sequential(nn.Conv1d(width, width, 1), nn.SiLU())
        self.outer = nn.ModuleDict({"conv": nn.Conv3d(1, 1, 1), "act": nn.Hardtanh()})

    def forward(self, x):
        return self.inner(x)


class TestWhatIsConverted:
    def test_layers_and_activations_in_place_also_nested_ones(self):
        model = nn.Sequential(Block(), nn.ModuleList([nn.Sequential(Block())]))
        weights = dict(model.named_parameters())
        quantize_(model)
        for block in (model[0], model[1][0][0]):
            assert type(block.inner[0]) is lehr.Conv1d
            assert type(block.outer["conv"]) is lehr.Conv3d
            assert type(block.inner[1]) is type(block.outer["act"]) is Quantizer
        assert all(parameter is weights[name] for name, parameter in model.named_parameters())
        model[0](torch.randn(2, 4, 5)).sum().backward()

    def test_the_report_is_a_table_in_the_model_s_order(self):
        report = quantize_(small_net(), skip_last=True, activations=None)
        assert str(report).splitlines() == [
            "module  was     now     levels  why",
            "0       Conv2d  Conv2d       3",
            "2       ReLU    kept            activations stay",
            "4       Linear  kept            last layer",
            "14.4 % of 1,496 weights are quantized",
        ]
        assert [change.module for change in report.converted] == ["0"]

    @pytest.mark.parametrize("kind", ACTIVATIONS)
    def test_every_usual_activation_is_replaced(self, kind):
        model = nn.Sequential(nn.Linear(2, 2), kind(), nn.Linear(2, 2))
        quantize_(model)
        assert type(model[1]) is Quantizer
        model(torch.randn(3, 2)).sum().backward()

    @pytest.mark.parametrize("kind", [nn.Sigmoid, nn.Tanh, functools.partial(nn.Softmax, dim=1)])
    @pytest.mark.parametrize("example", [None, torch.randn(3, 2)], ids=["traced", "run"])
    def test_what_makes_the_output_stays(self, kind, example):
        model = nn.Sequential(nn.Linear(2, 2), nn.Sigmoid(), nn.Linear(2, 2), kind(), nn.Flatten(0))
        changes = quantize_(model, example=example).changes
        assert [(change.module, change.now, change.why) for change in changes] == [
            ("0", "Linear", ""),
            ("1", "Quantizer", ""),
            ("2", "Linear", ""),
            ("3", "kept", "output of the network"),
        ]
        assert not isinstance(model[3], Quantizer)

    def test_what_is_not_replaced_is_told(self):
        model = nn.Sequential(nn.Linear(2, 2), nn.Softplus(), nn.Linear(2, 2), nn.ReLU(), nn.Bilinear(2, 2, 1))
        told = {change.module: change.why for change in quantize_(model).changes}
        assert told["1"] == "replace does not name it"
        assert told["4"] == "weights of this kind stay"

    def test_weights_and_macs_are_counted(self):
        model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 16, 10))
        report = quantize_(model, skip_last=True, example=torch.randn(2, 3, 4, 4))
        assert report.weights == (216, 1496)
        assert report.macs == (216 * 16, 216 * 16 + 1280)
        assert "14.4 % of 1,496 weights and 73.0 % of 4,736 MACs are quantized" in str(report)

    def test_only_the_activations_named_are_replaced(self):
        model = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Sigmoid())
        quantize_(model, replace=(nn.ReLU,))
        assert type(model[1]) is Quantizer
        assert type(model[2]) is nn.Sigmoid

    @pytest.mark.parametrize("replace", [nn.ReLU, [nn.ReLU]])
    def test_they_may_be_one_or_a_list(self, replace):
        model = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Tanh())
        quantize_(model, replace=replace)
        assert [type(module) for module in model.children()][1:] == [Quantizer, nn.Tanh]

    def test_weights_only_and_activations_only(self):
        weights_only, activations_only = small_net(), small_net()
        quantize_(weights_only, activations=None)
        assert type(weights_only[0]) is lehr.Conv2d
        assert type(weights_only[2]) is nn.ReLU
        quantize_(activations_only, weights=None)
        assert type(activations_only[0]) is nn.Conv2d
        assert type(activations_only[2]) is Quantizer

    def test_templates_are_copied_for_every_layer(self):
        model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU())
        template = Quantizer(MultiStep.uniform(4, signed=False), Normal(0.2), scale=0.5)
        quantize_(model, weights=Quantizer(MultiStep.uniform(4), Dirac()), activations=template)
        model[1].forward_std.fill_(0)
        assert model[3].forward_std.item() == template.forward_std.item() == pytest.approx(0.2)
        assert model[1].step == MultiStep.uniform(4, signed=False)
        assert model[1].scale.item() == 0.5
        assert model[0].quantizer.forward_kind is Dirac
        assert model[0].quantizer is not model[2].quantizer

    def test_the_model_itself_may_be_a_layer_or_an_activation(self):
        layer, activation = nn.Linear(3, 3), nn.ReLU()
        assert [change.module for change in quantize_(layer, activations=None).converted] == [""]
        assert type(layer) is lehr.Linear
        quantize_(activation)
        assert type(activation) is Quantizer
        assert activation(torch.tensor([0.2])).item() == pytest.approx(0.2)

    def test_dtype_device_and_training_are_the_model_s(self):
        model = small_net().double().eval()
        quantize_(model, scale="channel")
        assert not any(module.training for module in model.modules())
        assert model[0].quantizer.scale.dtype == torch.float64
        assert model(torch.randn(2, 3, 4, 4, dtype=torch.float64)).dtype == torch.float64

    def test_hooks_stay(self):
        model, seen = small_net(), []
        model[0].register_forward_hook(lambda *_: seen.append("layer"))
        model[2].register_forward_hook(lambda *_: seen.append("activation"))
        model[2].register_forward_pre_hook(lambda *_: seen.append("before"))
        quantize_(model)
        model(torch.randn(2, 3, 4, 4))
        assert seen == ["layer", "before", "activation"]

    def test_a_converted_model_copies_saves_and_loads(self):
        model = small_net()
        quantize_(model, scale="channel")
        twin = small_net()
        quantize_(twin)
        twin.load_state_dict(copy.deepcopy(model).state_dict())
        x = torch.randn(2, 3, 4, 4)
        assert torch.equal(model.eval()(x), twin.eval()(x))
        with pytest.warns(UserWarning, match="scales were fitted to other weights"):
            model.load_state_dict(small_net().state_dict(), strict=True)


class TestWhatIsShared:
    def test_a_module_used_twice_is_converted_once_and_stays_shared(self):
        layer, activation = nn.Linear(4, 4), nn.ReLU()
        model = nn.Sequential(layer, activation, layer, activation)
        report = quantize_(model)
        assert len(report.changes) == 2
        assert model[0] is model[2] is layer
        assert model[1] is model[3]
        assert type(model[3]) is Quantizer

    def test_layers_with_a_tied_weight_keep_it_and_share_a_quantizer(self):
        model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
        model[2].weight = model[0].weight
        quantize_(model)
        assert model[2].weight is model[0].weight
        assert model[2].quantizer is model[0].quantizer

    def test_what_is_quantized_already_is_left_alone(self):
        model = small_net()
        quantize_(model, skip="4")
        first = model[0].quantizer
        first.forward_std.fill_(0.125)
        report = quantize_(model)
        assert [(change.module, change.now, change.why) for change in report.changes] == [
            ("0", "kept", "quantized already"),
            ("4", "Linear", ""),
        ]
        assert model[0].quantizer is first
        assert first.forward_std.item() == 0.125
        with pytest.raises(ValueError, match=r"nothing to quantize in this Sequential\n(.*\n)*.*quantized already"):
            quantize_(model)

    def test_subclasses_are_kept_since_what_they_compute_is_their_own(self):
        class Scaled(nn.Linear):
            def forward(self, input):
                return 2 * super().forward(input)

        model = nn.Sequential(Scaled(3, 3), nn.Linear(3, 3), nn.ReLU())
        report = quantize_(model)
        assert type(model[0]) is Scaled
        assert report.changes[0].why == "a subclass of Linear"

    def test_a_layer_whose_weight_is_computed_is_told_to_lose_that_first(self):
        parametrized = torch.nn.utils.parametrizations.weight_norm(nn.Linear(4, 4))
        report = quantize_(nn.Sequential(parametrized, nn.ReLU(), nn.Linear(4, 4)))
        assert [change.module for change in report.changes] == ["0", "1", "2"]
        assert report.changes[0].why.endswith("torch.nn.utils.parametrize.remove_parametrizations")
        with pytest.warns(FutureWarning):
            hooked = nn.Sequential(torch.nn.utils.weight_norm(nn.Linear(4, 4)), nn.ReLU(), nn.Linear(4, 4))
        with pytest.raises(ValueError, match=r"^0: its weight is computed by a hook.*remove_weight_norm\(module\)"):
            quantize_(hooked, data=[torch.randn(2, 4)])
        hooked(torch.randn(2, 4))  # the weight is now a result, which torch cannot copy
        with pytest.raises(
            lehr.deploy.FreezeError, match=r"^0: its weight is computed by a hook.*\[weight of a hook\]"
        ):
            lehr.freeze(hooked.eval(), torch.randn(2, 4))
        assert "weight of a hook" in str(lehr.check(hooked, torch.randn(2, 4)))


class TestWhatIsSkipped:
    def kept(self, **arguments):
        model = nn.Sequential(Block(), nn.Sequential(nn.Linear(2, 2), nn.ReLU()), nn.Linear(2, 2))
        return {change.module for change in quantize_(model, **arguments).changes if change.now == "kept"}

    def test_first_and_last(self):
        assert self.kept(skip_first=True) == {"0.inner.0"}
        assert self.kept(skip_last=True) == {"2"}
        assert self.kept(skip_first=True, skip_last=True) == {"0.inner.0", "2"}

    def test_by_name_with_what_lies_below(self):
        assert self.kept(skip="0") == {"0.inner.0", "0.inner.1", "0.outer.conv", "0.outer.act"}
        assert self.kept(skip=["0.inner", "2"]) == {"0.inner.0", "0.inner.1", "2"}

    def test_a_shared_module_by_any_of_its_names(self):
        for name in ("b", "b.0", "a"):
            model = nn.Module()
            model.a = nn.Linear(2, 2)
            model.b = nn.Sequential(model.a)
            model.c = nn.Linear(2, 2)
            changes = quantize_(model, activations=None, skip=name).changes
            assert [(change.module, change.now) for change in changes] == [("a", "kept"), ("c", "Linear")]

    def test_what_cannot_be_quantized_is_told_and_may_be_the_last_layer(self):
        model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.ConvTranspose2d(4, 3, 3))
        changes = quantize_(model, skip_last=True).changes
        assert [(change.now, change.why) for change in changes] == [
            ("Conv2d", ""),
            ("Quantizer", ""),
            ("kept", "last layer"),
        ]
        (kept, _) = quantize_(nn.Sequential(nn.LSTM(2, 2), nn.Linear(2, 2)), activations=None).changes
        assert (kept.was, kept.now, kept.why) == ("LSTM", "kept", "weights of this kind stay")

    def test_by_predicate(self):
        assert self.kept(skip=lambda path, module: isinstance(module, nn.Conv1d)) == {"0.inner.0"}
        assert self.kept(skip=lambda path, module: path.endswith("act")) == {"0.outer.act"}

    def test_a_name_that_is_none_is_an_error(self):
        with pytest.raises(ValueError, match=r"skip names '7', which is no module of the model: 0, 0.inner"):
            self.kept(skip="7")


class TestComplaints:
    def test_a_model_in_which_nothing_matches_is_an_error(self):
        with pytest.raises(
            ValueError, match="nothing to quantize in this Sequential: it holds BatchNorm1d, Sequential"
        ):
            quantize_(nn.Sequential(nn.BatchNorm1d(3)))
        with pytest.raises(ValueError, match="nothing to quantize"):
            quantize_(small_net(), skip=lambda path, module: True)
        with pytest.raises(ValueError, match="weights=None and activations=None leave nothing to quantize"):
            quantize_(small_net(), weights=None, activations=None)

    def test_a_network_without_activations_is_warned_of(self):
        model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
        with pytest.warns(UserWarning, match=r"no activation found.*torch.relu\(x\)"):
            quantize_(model)
        quantize_(nn.Sequential(nn.Linear(2, 2)), activations=None)

    def test_what_is_no_quantizer_is_an_error(self):
        with pytest.raises(TypeError, match=r"weights must be a quantizer such as .*, a word, or None, got MultiStep"):
            lehr.quantize_(nn.Linear(2, 2), weights=lehr.MultiStep.ternary())  # pyright: ignore[reportArgumentType]

    @pytest.mark.parametrize("wrong", [torch.nan, torch.inf])
    def test_weights_that_are_not_finite_are_an_error_and_nothing_is_changed(self, wrong):
        model = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2))
        nn.init.constant_(model[2].weight, wrong)
        with pytest.raises(ValueError, match="2: its weights are not all finite"):
            lehr.quantize_(model)
        assert [type(module) for module in model] == [nn.Linear, nn.ReLU, nn.Linear]

    @pytest.mark.parametrize("scale", ["tensor", "channel"])
    @pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
    def test_layers_without_weights_are_layers_all_the_same(self, scale):
        model = nn.Sequential(nn.Linear(0, 3), nn.ReLU(), nn.Linear(3, 0))
        lehr.quantize_(model, scale=scale)
        assert model(torch.empty(5, 0)).shape == (5, 0)
        assert lehr.Linear(0, 3)(torch.empty(2, 0)).shape == (2, 3)
        assert lehr.Linear(3, 0)(torch.empty(2, 3)).shape == (2, 0)

    @pytest.mark.filterwarnings("ignore:enable_nested_tensor")
    def test_a_transformer_is_quantized_with_and_without_gradients(self):
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0)
        for model in (layer, nn.TransformerEncoder(layer, 2)):
            lehr.quantize_(model.eval(), activations=None)
            x = torch.randn(2, 3, 8)
            with torch.no_grad():
                without = model(x)
            assert torch.allclose(without, model(x), atol=1e-6)

    def test_a_transformer_takes_masks_of_padding_without_gradients(self):
        torch.manual_seed(0)
        model = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0), 2).eval()
        lehr.quantize_(model, activations=None)
        x, padding = torch.randn(2, 3, 8), torch.tensor([[False, False, True], [False, False, False]])
        with torch.no_grad():
            without = model(x, src_key_padding_mask=padding)
        assert torch.allclose(without, model(x, src_key_padding_mask=padding), atol=1e-6)

    def test_weights_loaded_too_late_are_warned_of(self):
        model = small_net()
        state = {name: value.clone() for name, value in model.state_dict().items()}
        quantize_(model)
        with pytest.warns(UserWarning, match="scales were fitted to other weights: load them before quantize_"):
            model.load_state_dict(state)
        model.load_state_dict(model.state_dict())  # its own

    def test_an_unknown_scale_is_an_error(self):
        with pytest.raises(ValueError, match="scale must be one of tensor, channel, fixed, got 'row'"):
            quantize_(small_net(), scale="row")


class TestTheScale:
    @few_numbers
    @given(st.sampled_from([MultiStep.ternary(), MultiStep.sign(), MultiStep.uniform(3), LOPSIDED]), st.integers(0, 99))
    def test_it_is_the_best_there_is(self, step, seed):
        weight = torch.randn(3, 100, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        quantizer = Quantizer(step)

        def error(rows, scale):
            return (rows - scale * step(rows / scale)).square().sum(1)

        for rows, fitted in (
            (weight, fit_scale(weight, quantizer, per_channel=True)),
            (weight.reshape(1, -1), fit_scale(weight, quantizer).reshape(1, 1)),
        ):
            largest = rows.abs().amax(1, keepdim=True) / max(map(abs, step.levels))
            brute = torch.stack([error(rows, largest * f) for f in torch.linspace(0.02, 2, 1000).tolist()]).amin(0)
            assert (error(rows, fitted) <= brute * 1.02).all()

    @pytest.mark.parametrize("per_channel", [False, True])
    def test_of_many_weights_a_sample_is_as_good(self, per_channel, monkeypatch):
        weight = torch.randn(8, 20_000, generator=torch.Generator().manual_seed(0)) * torch.linspace(0.1, 2, 8)[:, None]
        quantizer = Quantizer()

        def error() -> float:
            scale = fit_scale(weight, quantizer, per_channel=per_channel)
            return (weight - scale * quantizer.step(weight / scale)).square().sum().item()

        sampled = error()
        monkeypatch.setattr("lehr.scale.SAMPLE", weight.numel())
        assert sampled == pytest.approx(error(), rel=0.003)

    def test_one_for_the_tensor_one_per_channel_or_the_template_s(self):
        layers = [nn.Conv2d(3, 8, 3) for _ in range(3)]
        for layer, scale in zip(layers, ("tensor", "channel", "fixed"), strict=True):
            quantize_(layer, activations=None, weights=Quantizer(scale=0.125), scale=scale)
        assert [tuple(layer.quantizer.scale.shape) for layer in layers] == [(), (8, 1, 1, 1), ()]
        assert layers[2].quantizer.scale.item() == 0.125

    def test_a_binary_network_gets_the_mean_of_its_weights(self):
        layer = nn.Linear(50, 20)
        quantize_(layer, activations=None, weights=Quantizer(MultiStep.sign()))
        assert layer.quantizer.scale.item() == pytest.approx(layer.weight.abs().mean().item(), rel=1e-5)

    def test_weights_that_are_zero_can_still_grow(self):
        layer = nn.Linear(5, 3)
        nn.init.zeros_(layer.weight)
        quantize_(layer, activations=None, scale="channel")
        assert not layer.eval().quantized_weight.any()
        assert (layer.quantizer.scale > 0.1).all()

    @pytest.mark.parametrize(("bits", "most"), [(8, 0.01), (4, 0.15)])
    def test_a_trained_network_starts_close_to_itself(self, bits, most):
        model = small_net().eval()
        x = torch.randn(64, 3, 4, 4, generator=torch.Generator().manual_seed(1))
        before = model(x)
        weights = Quantizer(MultiStep.uniform(bits), Dirac(), Normal(0.3))
        quantize_(model, weights=weights, activations=None, scale="channel")
        error = (model(x) - before).square().mean().sqrt() / before.std()
        assert 0 < error.item() < most

    def test_the_expectation_of_a_ternary_network_is_closer_than_its_hard_levels(self):
        layer = nn.Linear(100, 10)
        before = layer.weight.detach().clone()
        quantize_(layer, activations=None)
        noisy = (layer.train().quantized_weight - before).norm()
        hard = (layer.eval().quantized_weight - before).norm()
        assert noisy < 0.7 * hard < 0.7 * before.norm()
