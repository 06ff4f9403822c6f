"""An estimator is a value: whole or in parts, by name in Python and as data in a recipe."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
from torch import nn

import lehr
from lehr import Dirac, Estimator, MultiStep, Normal, Quantizer, Uniform
from lehr.algorithms import ANA, Estimated, EstimatorData
from lehr.estimator import BINARY_CONNECT_STOCHASTIC, BNN, STE, ana, ste
from lehr.training.recipes import dump, named, read
from restated import value_and_gradient

TERNARY = MultiStep.ternary()


class TestTheValue:
    def test_whole_or_in_parts_it_is_the_same(self):
        x = torch.randn(100)
        whole = value_and_gradient(x, Estimator(TERNARY, Normal(0.2), Uniform(0.3), "mode"))
        parts = value_and_gradient(x, TERNARY, Normal(0.2), Uniform(0.3), "mode")
        assert all(map(torch.equal, whole, parts))
        estimator = Quantizer(Estimator(TERNARY, Normal(0.2), Uniform(0.3)), scale=0.5).estimator
        assert (estimator.step, estimator.mode) == (TERNARY, "expectation")
        assert str(estimator) == "(-1, 0, 1) at (-0.5, 0.5), forward=Normal(std=0.2), backward=Uniform(std=0.3)"

    def test_it_has_no_forward_noise_and_the_backward_noise_is_the_forward_noise_unless_given(self):
        assert Estimator(TERNARY) == Estimator(TERNARY, Dirac(), Dirac())
        assert Estimator(TERNARY, Normal(0.2)).backward == Normal(0.2)

    def test_a_quantizer_that_is_evaluated_has_no_forward_noise(self):
        quantizer = Quantizer(ana(std=0.2))
        assert quantizer.estimator.forward.std == pytest.approx(0.2)
        assert quantizer.eval().estimator.forward == Dirac()

    def test_the_named_ones(self):
        assert STE == BNN == Estimator(MultiStep.sign(), Dirac(), Uniform.half_width(1))
        assert ste(TERNARY, 0.5) == Estimator(TERNARY, Dirac(), Uniform.half_width(0.5))
        assert ana(std=0.1, backward_std=0.3, noise=Normal) == Estimator(TERNARY, Normal(0.1), Normal(0.3))
        assert BINARY_CONNECT_STOCHASTIC.mode == "sample"

    def test_noises_beside_an_estimator_raise(self):
        for make in (lambda *args: lehr.quantize(torch.zeros(1), *args), Quantizer):
            with pytest.raises(TypeError, match="pass no others beside it"):
                make(STE, Normal(0.1))

    def test_it_is_frozen(self):
        with pytest.raises(dataclasses.FrozenInstanceError):
            STE.mode = "mode"  # pyright: ignore[reportAttributeAccessIssue]


class TestAsData:
    def test_a_recipe_that_is_ste_says_ste(self):
        algorithm = named("digits-ste-wide").algorithm
        assert isinstance(algorithm, Estimated)
        assert algorithm.estimators == (ste(TERNARY, 1), ste(TERNARY, 1))
        bnn = named("digits-bnn").algorithm
        assert isinstance(bnn, Estimated)
        assert bnn.estimators == (BNN, BNN)

    def test_a_recipe_goes_through_yaml_and_the_command_line(self, tmp_path: Path):
        words = ["--algorithm.estimator.backward", "{normal: {std: 0.25}}", "--algorithm.estimator.step", "sign"]
        recipe = named("digits-ste", words)
        (tmp_path / "recipe.yaml").write_text(dump(recipe))
        assert read(tmp_path / "recipe.yaml") == recipe
        assert isinstance(recipe.algorithm, Estimated)
        assert recipe.algorithm.estimators[0] == Estimator(MultiStep.sign(), Dirac(), Normal(0.25))

    def test_activations_may_have_their_own(self):
        data = EstimatorData(step={"uniform": {"bits": 2, "signed": False}}, forward={"normal": {"std": 0.2}})
        model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
        Estimated(activations=data).convert_(model)
        assert model[0].quantizer.estimator.step == TERNARY  # pyright: ignore[reportAttributeAccessIssue]
        assert isinstance(model[1], Quantizer)
        assert model[1].levels == (0, 1, 2, 3)
        assert model[1].forward_std.item() == pytest.approx(0.2)

    @pytest.mark.parametrize(
        ("data", "complaint"),
        [
            ({"forward": "cauchy"}, "forward must be none, or a noise .* got 'cauchy'"),
            ({"backward": {"normal": {"half_width": 1}}}, "backward must be none, or a noise"),
            ({"backward": {"normal": {"std": 1}, "uniform": {"std": 1}}}, "a noise or a step must have one name"),
            ({"step": "binary"}, "step must be one of ternary, sign, heaviside, or .* got 'binary'"),
            ({"step": {"uniform": {"levels": 3}}}, "a uniform step needs bits, and may have signed and step"),
            ({"backward": "none"}, "without backward noise there is no gradient"),
        ],
    )
    def test_wrong_data_is_named(self, data, complaint):
        with pytest.raises(ValueError, match=complaint):
            Estimated(EstimatorData(**data))

    def test_a_recipe_of_a_run_from_before_says_what_it_is_now(self, tmp_path: Path):
        """ANA without forward noise is how earlier versions wrote the straight-through estimator."""
        new = named("digits-ste-wide")
        old = dataclasses.replace(new, algorithm=ANA(std=0, backward_std=0.5773502691896258, clip=1.5))
        (tmp_path / "recipe.yaml").write_text(dump(old))
        recipe = read(tmp_path / "recipe.yaml")
        assert isinstance(recipe.algorithm, Estimated)
        assert recipe.algorithm.estimators == new.algorithm.estimators  # pyright: ignore[reportAttributeAccessIssue]
        assert recipe.algorithm.clip == 1.5
        annealed = dataclasses.replace(new, algorithm=ANA(std=0.1, activations="sign"))
        (tmp_path / "recipe.yaml").write_text(dump(annealed))
        assert read(tmp_path / "recipe.yaml") == annealed
