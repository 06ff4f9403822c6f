"""Precisions in a word and by rules, what each layer loses, and what a network will be when it is frozen."""

from __future__ import annotations

import copy
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import lehr
import lehr.data
from lehr import MultiStep, Quantizer, quantize_
from lehr.layer_loss import Row, Sensitivity
from lehr.precision import template_of, unsigned
from lehr.training.recipes import RecipeError, named
from lehr.training.run import load_network
from lehr.training.session import train
from written_models import FunctionalBlock, FunctionalResNet, SharedResNet, plain_cnn

PIXELS = torch.randint(0, 256, (4, 1, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def levels(**arguments: object) -> dict[str, int | None]:
    torch.manual_seed(0)
    report = quantize_(FunctionalResNet(), **arguments)  # pyright: ignore[reportArgumentType]
    return {change.module: change.levels for change in report.changes}


class TestWords:
    @pytest.mark.parametrize(
        ("word", "count"),
        [("binary", 2), ("ternary", 3), ("1bit", 2), ("2bit", 4), ("int4", 16), ("8bit", 256), ("8bits", 256)],
    )
    def test_a_word_is_a_quantizer_without_forward_noise(self, word: str, count: int) -> None:
        template = template_of(word)
        assert isinstance(template, Quantizer)
        assert len(template.levels) == count
        assert not template.forward_std
        assert template.backward_std > 0

    def test_of_a_rule_it_has_the_noise_of_the_rest(self) -> None:
        model = FunctionalResNet()
        quantize_(model, weights=Quantizer(forward=lehr.Normal(0.25)), rules={"fc": "4bit"})
        assert model.fc.quantizer.forward_kind is lehr.Normal  # pyright: ignore[reportAttributeAccessIssue]
        assert model.fc.quantizer.forward_std.item() == 0.25  # pyright: ignore[reportAttributeAccessIssue]

    @pytest.mark.parametrize("word", ["9bit", "int", "8", "float32", "threenary", ""])
    def test_other_words_are_errors(self, word: str) -> None:
        with pytest.raises(ValueError, match=r'a precision is a word such as "float", .* of 2 to 8 bits, got'):
            quantize_(FunctionalResNet(), rules={"fc": word})

    def test_what_is_no_precision_is_an_error(self) -> None:
        with pytest.raises(TypeError, match="a precision is a word such as .*, or None, got 8"):
            quantize_(FunctionalResNet(), rules={"fc": 8})  # pyright: ignore[reportArgumentType]

    def test_unsigned_levels_keep_their_number_and_scale(self) -> None:
        made = unsigned(Quantizer(MultiStep.uniform(4), scale=0.25))
        assert made.step == MultiStep.uniform(4, signed=False)
        assert made.scale == 0.25


class TestRules:
    def test_paths_wildcards_and_what_lies_below(self) -> None:
        found = levels(rules={"conv1": "int8", "layer2.*": "2bit", "fc": "float"})
        assert found["conv1"] == 256
        assert found["layer2.conv1"] == found["layer2.down.0"] == found["layer2.quantized_calls.relu"] == 4
        assert found["fc"] is None
        assert found["layer1.conv1"] == found["fc1"] == 3

    def test_calls_and_the_last_rule_that_fits(self) -> None:
        found = levels(rules={"layer1": "8bit", "*relu*": "4bit", "layer1.conv2": "ternary"})
        assert found["layer1.conv1"] == 256
        assert found["layer1.conv2"] == 3
        assert found["layer1.quantized_calls.relu_1"] == found["quantized_calls.relu"] == 16

    def test_the_ends_in_one_word(self) -> None:
        found = levels(rules={"ends": "8bit"}, skip_last=True)
        assert found["conv1"] == found["fc"] == 256
        assert levels(rules={"first": "float"})["conv1"] is None
        assert levels(rules={"last": "2bit"})["fc"] == 4

    def test_a_quantizer_or_none_is_a_precision_too(self) -> None:
        found = levels(rules={"fc": Quantizer(MultiStep.sign()), "fc1": None})
        assert found["fc"] == 2
        assert found["fc1"] is None

    def test_a_rule_wins_over_weights_that_stay(self) -> None:
        found = levels(weights=None, activations=None, rules={"fc": "4bit"})
        assert found["fc"] == 16
        assert found["fc1"] is None

    def test_a_rule_that_names_nothing_is_an_error(self) -> None:
        with pytest.raises(ValueError, match=r"the rule 'layer9\.\*' names nothing that can be quantized: there are"):
            levels(rules={"layer9.*": "8bit"})


class TestSensitivity:
    def test_only_one_part_is_quantized_at_a_time(self) -> None:
        torch.manual_seed(0)
        model, x = FunctionalBlock(4, 8, stride=2).eval(), torch.randn(4, 4, 8, 8)
        before = copy.deepcopy(model.state_dict())
        expected = model(x)
        tried: list[int] = []

        def measure(candidate: nn.Module) -> float:
            tried.append(sum(isinstance(module, Quantizer) for module in candidate.modules()))
            return -(candidate(x) - expected).square().mean().item()

        found = lehr.sensitivity(model, [x], measure, precisions=("8bit", "2bit"))
        assert tried == [0, *[1] * 2 * len(found.rows)]
        parts = ["conv1", "conv2", "down.0", "quantized_calls.relu", "quantized_calls.add", "quantized_calls.relu_1"]
        assert [row.part for row in found.rows] == parts
        assert all(row.losses[0] < row.losses[1] for row in found.rows)
        assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
        text = str(found)
        assert text.splitlines()[0].split() == ["part", "kind", "8bit", "2bit"]
        assert "█" * 20 in found.chart()
        assert "lost at 8bit" in found.chart("8bit")

    def test_a_notebook_draws_a_bar_for_each_loss(self) -> None:
        found = Sensitivity(
            0.9, ("8bit", "2bit"), (Row("conv<1>", "Conv2d", (-0.1, 0.2)), Row("fc", "Linear", (0, 0.4)))
        )
        drawing = ElementTree.fromstring(found.svg())
        _, _, *bars = drawing.iter("{http://www.w3.org/2000/svg}rect")  # the first two are the legend's
        widths = [float(bar.attrib["width"]) for bar in bars]
        assert widths == [1, widths[3] / 2, 1, widths[3]]
        assert "conv<1>" in [text.text for text in drawing.iter("{http://www.w3.org/2000/svg}text")]
        assert found.svg() in found._repr_html_()
        assert '<th scope="row">conv&lt;1&gt;</th>' in found._repr_html_()

    def test_it_needs_data(self) -> None:
        with pytest.raises(ValueError, match="batches has no batch"):
            lehr.sensitivity(FunctionalResNet(), [], lambda _: 0.0)


class TestCheck:
    def test_what_becomes_integers_and_what_stays_float(self) -> None:
        model = SharedResNet()
        quantize_(model, skip_last=True)
        verdict = lehr.check(model, PIXELS)
        assert verdict.freezes
        told = {layer.layer: (layer.becomes, layer.why) for layer in verdict.layers}
        assert told["conv1"] == told["layer1.1.conv2"] == ("integers", "")
        assert told["fc"] == ("float", "it is not quantized")
        assert 0.99 < verdict.integer_share < 1
        assert "MACs will run as integers; the network freezes" in str(verdict)
        assert model.training  # and its noise is left

    def test_a_quantized_layer_that_reads_floats_is_told(self) -> None:
        model = nn.Sequential(
            lehr.models.Input((0.5,), (0.5,), bits=8), nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3)
        )
        quantize_(model, activations=None)
        told = {layer.layer: (layer.becomes, layer.why) for layer in lehr.check(model, PIXELS).layers}
        assert told == {"1": ("integers", ""), "3": ("float", "its input is float")}

    def test_everything_that_is_refused_is_told_at_once(self) -> None:
        class Odd(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.input = lehr.models.Input((0.5,), (0.5,), bits=8)
                self.conv = nn.Conv2d(1, 4, 3)
                self.norm = nn.GroupNorm(2, 4)

            def forward(self, x: Tensor) -> Tensor:
                x = self.norm(F.gelu(self.conv(self.input(x))))
                return torch.sin(x).flatten(1)

        model = Odd()
        report = quantize_(model, activations="8bit", example=PIXELS)
        verdict = lehr.check(model, PIXELS)
        assert not verdict.freezes
        assert len(verdict.refused) == 2
        assert "the network does not freeze yet:" in str(verdict)
        assert all(any(name in line for line in verdict.refused) for name in ("norm", "sin"))
        assert "frozen: it is refused\n- " in str(report)

    def test_a_model_that_takes_floats_is_told_what_freeze_makes_of_it_and_to_round_them(self) -> None:
        model = nn.Sequential(nn.Conv1d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(24, 10))
        signals = torch.randn(2, 1, 8)
        report = quantize_(model, weights="2bit", activations="2bit", example=signals)
        assert "0 will run in float" in str(report)
        assert "the model takes floats: let it begin with lehr.models.Input.of(data)" in str(report)
        verdict = lehr.check(model, signals)
        assert verdict.layers[0].why == "its input is that of the network, in float"
        with pytest.warns(
            lehr.deploy.FloatWarning, match=r"^0: its input is that of .*begin with lehr.models.Input.of"
        ):
            net = lehr.freeze(model.eval(), signals)
        assert verdict.integer_share == pytest.approx(1 - net.summary().float_share)

    @pytest.mark.parametrize(
        "given",
        [torch.randn(3, 8), torch.randn(3, 8).numpy(), torch.ones(3, 8, dtype=torch.int8)],
        ids=["tensor", "array", "int8"],
    )
    def test_signals_are_checked_as_freeze_takes_them(self, given: Tensor) -> None:
        model = nn.Sequential(lehr.models.Input.of(torch.as_tensor(given) + torch.randn(3, 8)), nn.Linear(8, 2))
        quantize_(model, activations=None)
        assert lehr.check(model, given) == lehr.check(model, given[:1])
        assert lehr.check(model, given).integer_share == 1
        assert not lehr.check(model, given).notes

    def test_other_floats_are_told_to_become_float32(self) -> None:
        model = nn.Sequential(lehr.models.Input.of(torch.randn(3, 8)), nn.Linear(8, 2)).double()
        quantize_(model, activations=None)
        verdict = lehr.check(model, torch.randn(3, 8).double())
        assert verdict.freezes
        assert verdict.notes == ("freeze takes float32, not torch.float64: convert what you give it, x.float()",)

    def test_a_model_that_torch_compile_has_wrapped_is_the_one_inside(self) -> None:
        model = plain_cnn(norm=False)
        report = quantize_(torch.compile(model, backend="eager"), example=PIXELS)  # pyright: ignore[reportArgumentType]
        assert "_orig_mod" not in str(report)
        assert lehr.check(torch.compile(model, backend="eager"), PIXELS) == lehr.check(model, PIXELS)  # pyright: ignore[reportArgumentType]

    def test_macs_of_transposed_convolutions_are_counted(self) -> None:
        model = nn.Sequential(nn.ConvTranspose1d(2, 4, 4, stride=2), nn.ReLU(), nn.ConvTranspose1d(4, 4, 3, groups=2))
        report = quantize_(model, example=torch.randn(3, 2, 8))
        assert report.macs == (8 * 2 * 4 * 4 + 18 * 4 * 2 * 3,) * 2

    def test_a_float_network_is_told_to_be_quantized(self) -> None:
        assert "nothing is quantized: convert the network with lehr.quantize_" in str(
            lehr.check(SharedResNet(), PIXELS)
        )

    @pytest.mark.parametrize(
        ("example", "title"),
        [
            (torch.zeros(8), "example is not a batch"),
            (torch.zeros(1, 1, 8, 8, 8), "three dimensions"),
            ((PIXELS, PIXELS), "several inputs"),
            ({"pixels": PIXELS, "more": PIXELS}, "several inputs"),
            (torch.zeros(1, 8, dtype=torch.int64), "example of another type"),
        ],
    )
    def test_what_freeze_would_not_take_is_refused(self, example: Tensor, title: str) -> None:
        (refused,) = lehr.check(SharedResNet(), example).refused
        assert refused.endswith(f"[{title}]")


class TestRecipes:
    SETTINGS = (
        *("--epochs", "6", "--annealing.schedule.duration", "1", "--annealing.per", "batch"),
        *("--pretraining.epochs", "2", "--pretraining.calibration", "3"),
    )

    def test_rules_and_calibration_from_the_command_line_to_the_integers(self, tmp_path: Path) -> None:
        recipe = named("digits-ana", [*self.SETTINGS, "--precision-rules", "{ends: 8bit}"])
        assert recipe.precision_rules == {"ends": "8bit"}
        assert recipe.twin.precision_rules is None
        results = train(recipe, tmp_path / "run")
        assert results is not None
        model, read = load_network(tmp_path / "run")
        assert read == recipe.anchored
        layers = [module for module in model.modules() if isinstance(module, lehr.Linear)]
        assert [len(layer.quantizer.levels) for layer in layers] == [256, 3, 256]
        weights = {layer.quantizer for layer in layers}
        scales = [m.scale for m in model.modules() if isinstance(m, Quantizer) and m not in weights]
        assert all(scale is not None and scale.log2().frac() == 0 for scale in scales)  # None if it was not calibrated
        images = lehr.data.load("digits").test.images
        net = lehr.freeze(model, images)
        assert (net.predict(images.numpy()) == model(images).argmax(1).numpy()).all()

    @pytest.mark.parametrize(("word", "levels"), [("float", []), ("4bit", [16] * 3), ("8bit", [256] * 3)])
    def test_the_command_line_chooses_the_precision_of_sums(self, word: str, levels: list[int]) -> None:
        recipe = named("tiny-image", ["--algorithm.sums", word])
        model = lehr.models.ResNet(depth=8, width=0.25)
        recipe.algorithm.convert_(model)
        added = [
            module
            for path, module in model.named_modules()
            if isinstance(module, Quantizer) and ".quantized_calls." in path
        ]
        assert [len(quantizer.levels) for quantizer in added] == levels

    def test_what_does_nothing_or_cannot_be_is_an_error(self) -> None:
        with pytest.raises(RecipeError, match="a precision is a word such as"):
            named("tiny-image", ["--algorithm.sums", "9bit"])
        with pytest.raises(
            RecipeError, match="pretraining.calibration has no effect without pretraining.epochs, or a run"
        ):
            named("digits-ana", ["--pretraining.calibration", "3"])
        with pytest.raises(RecipeError, match="pretraining.calibration must be at least 0, got -1"):
            named("digits-ana", ["--pretraining.epochs", "1", "--pretraining.calibration", "-1"])
        with pytest.raises(
            RecipeError, match="LSQ chooses the precision of each layer itself: precision_rules go with"
        ):
            named("digits-lsq", ["--precision-rules", "{ends: 8bit}"])
        with pytest.raises(RecipeError, match="a precision is a word such as"):
            named("digits-ana", ["--precision-rules", "{ends: 9bit}"])
