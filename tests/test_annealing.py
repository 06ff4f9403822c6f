"""Noise as a function of time: the paper's schedules to the number, and what the Annealer does with them."""

# The items of an nn.Sequential are mere modules to a type checker.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportCallIssue=false, reportIndexIssue=false
# pyright: reportOperatorIssue=false, reportOptionalMemberAccess=false

import copy
import math
import warnings

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import lehr
from lehr import Annealer, Dirac, MultiStep, Normal, Quantizer, Uniform
from lehr.annealing import (
    AllAtOnce,
    AnnealingWarning,
    Constant,
    CosineDecay,
    Hierarchical,
    LastFirst,
    LinearDecay,
    PowerDecay,
    SameEnd,
    SameStart,
    Schedule,
    Window,
    layers_of,
)
from restated import numbers

STD = math.sqrt(3) / 6  # the paper's


def net(layers=3):
    """L layers with weights, L - 1 activations."""
    modules = []
    for layer in range(layers):
        modules += [lehr.Linear(4, 4), nn.BatchNorm1d(4)] + ([Quantizer()] if layer < layers - 1 else [])
    return nn.Sequential(*modules)


def stds(model, which="forward"):
    """Return the std that the quantizers of each layer share."""
    modules = dict(model.named_modules())
    layers = [{getattr(modules[path], f"{which}_std").item() for path in layer} for layer in layers_of(model)]
    assert all(len(layer) == 1 for layer in layers), "the quantizers of a layer anneal together"
    return [layer.pop() for layer in layers]


class TestThePaper:
    """The appendix: factors of its formulas times √3/6, as its prose says."""

    @pytest.mark.parametrize("epoch", [0, 1, 25, 49, 50, 51, 75, 100, 120, 150, 1000])
    def test_cifar10_linear_over_50_epochs_a_layer(self, epoch):
        model = net()
        Annealer(model, Hierarchical(duration=50), LinearDecay()).seek(epoch)
        printed = [STD * (1 - min(max(0, epoch - 50 * (layer - 1)), 50) / 50) for layer in (1, 2, 3)]
        assert stds(model) == pytest.approx(printed, abs=1e-7)
        assert stds(model, "backward") == pytest.approx([STD] * 3)

    @pytest.mark.parametrize("epoch", [0, 10, 50, 75, 149, 150])
    def test_cifar10_quadratic(self, epoch):
        model = net()
        Annealer(model, Hierarchical(duration=50), PowerDecay()).seek(epoch)
        printed = [STD * (1 - min(max(0, epoch - 50 * (layer - 1)), 50) / 50) ** 2 for layer in (1, 2, 3)]
        assert stds(model) == pytest.approx(printed, abs=1e-7)

    @pytest.mark.parametrize("epoch", [0, 49, 50, 60, 100, 175, 200])
    def test_alexnet_is_delayed(self, epoch):
        model = net()
        Annealer(model, Hierarchical(duration=50, delay=50)).seek(epoch)
        printed = [STD * (1 - min(max(0, epoch - 50 * layer), 50) / 50) for layer in (1, 2, 3)]
        assert stds(model) == pytest.approx(printed, abs=1e-7)

    def test_its_windows(self):
        assert [str(window) for window in Hierarchical(50).windows(3)] == ["[0, 50]", "[50, 100]", "[100, 150]"]
        assert [str(window) for window in Hierarchical(50, delay=50).windows(2)] == ["[50, 100]", "[100, 150]"]
        assert [str(window) for window in LastFirst(50).windows(3)] == ["[100, 150]", "[50, 100]", "[0, 50]"]
        assert [str(window) for window in SameStart(50).windows(3)] == ["[0, 50]", "[0, 100]", "[0, 150]"]
        assert [str(window) for window in SameEnd(50).windows(3)] == ["[0, 150]", "[50, 150]", "[100, 150]"]
        assert [str(window) for window in AllAtOnce(50, delay=5).windows(2)] == ["[5, 55]", "[5, 55]"]

    def test_a_schedule_of_ones_own_is_a_class_with_windows(self):
        class Pairs(Schedule):
            def windows(self, layers):
                return [Window(self.duration * (n // 2), self.duration * (n // 2 + 1)) for n in range(layers)]

        assert [str(window) for window in Annealer(net(), Pairs(5)).windows] == ["[0, 5]", "[0, 5]", "[5, 10]"]

    def test_synchronous_noise_is_the_same_both_ways(self):
        model = net()
        annealer = Annealer(model, Hierarchical(50), synchronous=True)
        for epoch in (0, 20, 49.0):
            annealer.seek(epoch)
            assert stds(model) == stds(model, "backward")


class TestLaws:
    @pytest.mark.parametrize(
        "law", [LinearDecay(), PowerDecay(), PowerDecay(exponent=0.5), PowerDecay(exponent=3), CosineDecay()], ids=str
    )
    @numbers
    @given(p=st.floats(0, 1), q=st.floats(0, 1))
    def test_they_fall_from_1_to_0(self, law, p, q):
        assert law(0) == law(-3) == 1
        assert law(1) == law(7) == 0
        assert law(min(p, q)) >= law(max(p, q))

    def test_their_formulas(self):
        p = 0.3
        assert LinearDecay()(p) == pytest.approx(0.7)
        assert PowerDecay()(p) == pytest.approx(0.49)
        assert PowerDecay(3)(p) == PowerDecay(exponent=3)(p) == pytest.approx(0.343)
        assert CosineDecay()(p) == pytest.approx((1 + math.cos(0.3 * math.pi)) / 2)
        assert Constant()(0) == Constant()(p) == Constant()(1) == 1

    def test_they_may_end_above_0(self):
        assert LinearDecay(final=0.2)(1) == pytest.approx(0.2)
        assert LinearDecay(final=0.2)(0.5) == pytest.approx(0.6)

    def test_an_empty_window_drops_the_noise_at_once(self):
        assert Window(5, 5).progress(4.99) == 0
        assert Window(5, 5).progress(5) == 1

    @pytest.mark.parametrize(
        ("make", "complaint"),
        [
            (lambda: Window(3, 2), r"0 <= start <= end, both finite, got \[3, 2\]"),
            (lambda: Window(-1, 2), r"got \[-1, 2\]"),
            (lambda: Window(0, math.inf), r"got \[0, inf\]"),
            (lambda: PowerDecay(exponent=0), "exponent must be positive and finite, got 0"),
            (lambda: LinearDecay(final=-0.1), "final must be finite and not negative, got -0.1"),
            (lambda: Hierarchical(-1), "duration must be finite and not negative, got -1"),
            (lambda: SameEnd(math.nan), "duration must be finite and not negative, got nan"),
            (lambda: AllAtOnce(1, delay=math.inf), "delay must be finite and not negative, got inf"),
        ],
    )
    def test_wrong_numbers_are_errors(self, make, complaint):
        with pytest.raises(ValueError, match=complaint):
            make()


class TestTime:
    def test_a_step_ends_an_epoch(self):
        model = net(1)
        annealer = Annealer(model, Window(0, 4))
        seen = []
        for _ in range(5):
            seen += stds(model)
            annealer.step()
        assert seen == pytest.approx([STD, 0.75 * STD, 0.5 * STD, 0.25 * STD, 0])
        assert annealer.time == 5

    def test_a_step_may_end_a_batch(self):
        model = net(1)
        annealer = Annealer(model, Window(1, 2), steps_per_epoch=10)
        for _ in range(15):
            annealer.step()
        assert annealer.time == 1.5
        assert stds(model) == pytest.approx([0.5 * STD])
        annealer.seek(1.29)
        assert annealer.steps == 12
        assert stds(model) == pytest.approx([0.8 * STD])

    def test_tensors_are_changed_in_place(self):
        model = net(1)
        before = model[0].quantizer.forward_std
        Annealer(model, Window(0, 4)).step()
        assert model[0].quantizer.forward_std is before

    def test_the_backward_noise_may_have_another_law(self):
        model = net(2)
        Annealer(model, Window(0, 10), LinearDecay(), backward_law=LinearDecay(final=0.5)).seek(10)
        assert stds(model) == [0, 0]
        assert stds(model, "backward") == pytest.approx([0.5 * STD] * 2)

    def test_every_kind_and_shape_of_noise_anneals(self):
        per_channel = Quantizer(forward=Normal(torch.tensor([[0.2], [0.4]]), mean=torch.tensor([[1.0], [2.0]])))
        model = nn.Sequential(lehr.Linear(3, 2, quantizer=per_channel))
        Annealer(model, Window(0, 4)).seek(3)
        torch.testing.assert_close(per_channel.forward_std, torch.tensor([[0.05], [0.1]]))
        torch.testing.assert_close(per_channel.forward_mean, torch.tensor([[0.25], [0.5]]))
        assert per_channel.backward_std.item() == pytest.approx(STD)

    def test_at_the_end_training_and_evaluation_are_one(self):
        model = net(2)
        Annealer(model, Window(0, 4)).seek(4)
        x = torch.randn(16, 4)
        model[1].eval(), model[4].eval()
        with torch.no_grad():
            assert torch.equal(model(x), copy.deepcopy(model).eval()(x))

    def test_the_table_tells_the_present(self):
        model = net(2)
        annealer = Annealer(model, Hierarchical(10))
        annealer.seek(5)
        assert str(annealer).splitlines() == [
            "layer  quantizers      window    forward std  backward std",
            "1      0.quantizer, 2  [0, 10]        0.1443        0.2887",
            "2      3.quantizer     [10, 20]       0.2887        0.2887",
        ]


class Branches(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = lehr.Linear(4, 4)
        self.left = nn.Sequential(lehr.Linear(4, 4), Quantizer())
        self.right = nn.Sequential(lehr.Linear(4, 4), Quantizer())


class TestGroups:
    def test_a_layer_is_its_weights_and_the_activations_after_it(self):
        model = nn.Sequential(
            Quantizer(), nn.Linear(2, 2), Quantizer(), lehr.Linear(2, 2), Quantizer(), lehr.Conv2d(1, 1, 1)
        )
        assert layers_of(model) == [["0", "2"], ["3.quantizer", "4"], ["5.quantizer"]]

    def test_branches_anneal_as_their_groups_say(self):
        model = Branches()
        annealer = Annealer(model, Hierarchical(10), groups=["stem", ["left", "right.0", "right.1"]])
        assert annealer.groups == [["stem.quantizer"], ["left.0.quantizer", "left.1", "right.0.quantizer", "right.1"]]
        annealer.seek(10)
        assert model.stem.quantizer.forward_std.item() == 0
        assert model.left[1].forward_std.item() == model.right[1].forward_std.item() == pytest.approx(STD)

    @pytest.mark.parametrize(
        ("groups", "complaint"),
        [
            (["stem", "left"], "no group covers right.0.quantizer, right.1"),
            (["stem", "left", ["right", "left.1"]], "quantizer left.1 is in group 2 and in group 3"),
            (
                ["stem", "middle"],
                "names 'middle', which contains no quantizer; the quantizers are stem.quantizer, left",
            ),
        ],
    )
    def test_groups_cover_every_quantizer_once(self, groups, complaint):
        with pytest.raises(ValueError, match=complaint):
            Annealer(Branches(), Window(0, 1), groups=groups)

    def test_a_group_may_name_a_shared_module_by_any_of_its_paths(self):
        model = nn.Module()
        model.a = lehr.Linear(2, 2)
        model.b = nn.Sequential(model.a)
        model.c = lehr.Linear(2, 2)
        assert Annealer(model, Hierarchical(1), groups=["b", "c"]).groups == [["a.quantizer"], ["c.quantizer"]]
        with pytest.raises(ValueError, match="quantizer a.quantizer is in group 1 and in group 2"):
            Annealer(model, Hierarchical(1), groups=["a", "b", "c"])

    def test_a_shared_quantizer_anneals_once(self):
        shared = Quantizer()
        model = nn.Sequential(lehr.Linear(2, 2), shared, lehr.Linear(2, 2), shared)
        Annealer(model, Window(0, 4)).seek(2)
        assert shared.forward_std.item() == pytest.approx(STD / 2)


class Grouped(Branches):
    """Declares its branches to be one layer."""

    groups = (("left", "right"),)

    @property
    def annealing_groups(self):
        return self.groups


BRANCHES = ["left.0.quantizer", "left.1", "right.0.quantizer", "right.1"]


class TestANetworkThatSaysItself:
    def test_what_is_in_no_group_anneals_layer_by_layer(self):
        assert layers_of(Grouped()) == [["stem.quantizer"], BRANCHES]
        annealer = Annealer(Grouped(), Hierarchical(10))
        assert annealer.groups == [["stem.quantizer"], BRANCHES]
        assert annealer.windows == [Window(0, 10), Window(10, 20)]
        assert annealer.end == 20

    def test_it_is_heard_inside_another_module_too(self):
        model = nn.ModuleDict({"before": lehr.Linear(4, 4), "network": Grouped(), "after": lehr.Linear(4, 4)})
        branches = [f"network.{path}" for path in BRANCHES]
        assert layers_of(model) == [["before.quantizer"], ["network.stem.quantizer"], branches, ["after.quantizer"]]

    def test_the_activation_after_a_group_joins_it(self):
        model = nn.Sequential(Grouped(), Quantizer(), lehr.Linear(4, 4))
        assert layers_of(model) == [["0.stem.quantizer"], [*(f"0.{path}" for path in BRANCHES), "1"], ["2.quantizer"]]

    def test_a_group_without_quantizers_does_not_count(self):
        model = Grouped()
        model.left, model.right = nn.Linear(4, 4), nn.Linear(4, 4)
        assert layers_of(model) == [["stem.quantizer"]]

    @pytest.mark.parametrize(
        ("groups", "complaint"),
        [
            ((("left", "middle"),), "Grouped.annealing_groups names 'middle', which it does not contain"),
            ((("left",), ("right", "left.1")), "Grouped.annealing_groups has 'left.1' in two groups"),
        ],
    )
    def test_wrong_groups_are_errors(self, groups, complaint):
        model = Grouped()
        model.groups = groups
        with pytest.raises(ValueError, match=complaint):
            Annealer(model, Hierarchical(1))


class TestState:
    @pytest.mark.parametrize("synchronous", [False, True])
    def test_a_loaded_state_continues_also_in_a_new_model(self, synchronous):
        def build():
            return net(), {"schedule": Hierarchical(5), "steps_per_epoch": 4, "synchronous": synchronous}

        model, arguments = build()
        annealer = Annealer(model, **arguments)
        annealer.seek(2.25)
        saved = copy.deepcopy((model.state_dict(), annealer.state_dict()))
        annealer.step()

        fresh, arguments = build()
        fresh.load_state_dict(saved[0])
        again = Annealer(fresh, **arguments)  # sees noise already annealed: the state knows what it began with
        again.load_state_dict(saved[1])
        assert again.time == 2.25
        again.step()
        assert stds(fresh) == stds(model)
        assert stds(fresh, "backward") == stds(model, "backward")

    def test_it_survives_a_file_without_pickled_code(self, tmp_path):
        annealer = Annealer(net(), Hierarchical(5))
        annealer.step()
        torch.save(annealer.state_dict(), tmp_path / "annealer.pt")
        annealer.load_state_dict(torch.load(tmp_path / "annealer.pt", weights_only=True))
        assert annealer.time == 1

    def test_the_state_of_another_model_is_an_error(self):
        state = Annealer(net(2), Window(0, 1)).state_dict()
        with pytest.raises(ValueError, match=r"another model: only one of the two has the quantizers 5, 6.quantizer"):
            Annealer(net(3), Window(0, 1)).load_state_dict(state)

    @pytest.mark.parametrize("state", [{}, {"weight": 1}, {"steps": 1}])
    def test_a_state_of_something_else_is_an_error(self, state):
        with pytest.raises(ValueError, match="an annealer's state needs steps and initial, got"):
            Annealer(net(), Window(0, 1)).load_state_dict(state)


class TestComplaints:
    def test_synchronous_noise_that_is_gone_is_warned_of_once(self):
        model = net(2)
        annealer = Annealer(model, Hierarchical(2), synchronous=True)
        annealer.step()
        with pytest.warns(AnnealingWarning, match="at epoch 2 the backward noise of layer 1 became 0: its weights"):
            annealer.step()
        annealer.step()  # warnings are errors here: it was said
        x = torch.randn(8, 4, requires_grad=True)
        model(x).sum().backward()
        assert not torch.as_tensor(x.grad).any()  # and it was true

    def test_asynchronous_noise_keeps_the_gradient_and_says_nothing(self):
        model = net(2)
        Annealer(model, Hierarchical(2), epochs=4).seek(4)
        x = torch.randn(64, 4, requires_grad=True)
        model(x)[:, 0].square().sum().backward()
        assert torch.as_tensor(x.grad).any()

    def test_a_quantizer_without_backward_noise_from_the_start_is_warned_of(self):
        model = nn.Sequential(lehr.Linear(2, 2, quantizer=Quantizer(backward=Uniform(0))))
        with pytest.warns(AnnealingWarning, match="at epoch 0 the backward noise of layer 1 became 0"):
            Annealer(model, Window(0, 1))
        Annealer(nn.Sequential(Quantizer(backward=Dirac())), Window(0, 1))  # no noise at all is meant

    def test_noise_left_at_the_end_is_warned_of(self):
        with pytest.warns(
            AnnealingWarning, match=r"after 120 epochs layers 3 still have noise: their windows end at 150"
        ):
            Annealer(net(), Hierarchical(50), epochs=120)
        with pytest.warns(AnnealingWarning, match="layers 1, 2, 3 still have noise"):
            Annealer(net(), Window(0, 10), LinearDecay(final=0.1), epochs=100)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            Annealer(net(), Hierarchical(50), epochs=150)
            Annealer(nn.Sequential(Quantizer(MultiStep.sign(), Dirac(), Uniform(1))), Window(0, 50), epochs=1)

    @pytest.mark.parametrize(
        ("arguments", "complaint"),
        [
            (
                {"schedule": Hierarchical(5).windows(2)},
                r"3 layers to anneal, but got 2 windows; the layers are 0.quantizer\+2, ",
            ),
            ({"synchronous": True, "backward_law": LinearDecay()}, "leave backward_law out"),
            ({"steps_per_epoch": 0}, "steps_per_epoch must be at least 1, got 0"),
        ],
    )
    def test_wrong_arguments_are_errors(self, arguments, complaint):
        with pytest.raises(ValueError, match=complaint):
            Annealer(net(), **({"schedule": Window(0, 1)} | arguments))

    @pytest.mark.parametrize(
        ("arguments", "complaint"),
        [
            ({"law": LinearDecay}, r"a law must be one such as LinearDecay\(\) or PowerDecay\(2\), got <class"),
            ({"schedule": [(0, 1), (1, 2), (2, 3)]}, r"a schedule must be one such as Hierarchical.* got \[\(0, 1\), "),
            ({"schedule": 10}, r"a schedule must be .* a window such as Window\(0, 10\), or .* got 10"),
            ({"schedule": Hierarchical}, r"a schedule must be one such as .* got <class"),
        ],
    )
    def test_what_is_no_law_or_window_is_an_error(self, arguments, complaint):
        with pytest.raises(TypeError, match=complaint):
            Annealer(net(), **({"schedule": Window(0, 1)} | arguments))

    def test_a_model_without_quantizers_is_an_error(self):
        with pytest.raises(
            ValueError, match=r"this Linear has no quantizer to anneal: convert it with lehr.quantize_ first"
        ):
            Annealer(nn.Linear(2, 2), Window(0, 1))

    def test_two_kinds_of_noise_cannot_be_synchronous(self):
        model = nn.Sequential(Quantizer(MultiStep.sign(), Dirac(), Uniform.half_width(1)))
        with pytest.raises(ValueError, match="one kind of noise, but 0 has Dirac forward and Uniform backward"):
            Annealer(model, Window(0, 1), synchronous=True)

    @pytest.mark.parametrize("time", [-1, math.inf, math.nan])
    def test_time_is_finite_and_not_negative(self, time):
        with pytest.raises(ValueError, match="time must be finite and not negative, got"):
            Annealer(net(), Window(0, 1)).seek(time)

    def test_a_synchronous_model_takes_shapes_and_mean_of_its_forward_noise(self):
        quantizer = Quantizer(forward=Uniform(torch.tensor([[0.2], [0.4]]), mean=0.1))
        Annealer(nn.Sequential(lehr.Linear(3, 2, quantizer=quantizer)), Window(0, 4), synchronous=True).seek(2)
        assert torch.equal(quantizer.backward_std, quantizer.forward_std)
        assert torch.equal(torch.as_tensor(quantizer.backward_mean), torch.as_tensor(quantizer.forward_mean))
