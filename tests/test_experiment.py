"""What tables say of a method, as its algorithm describes itself."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import nn

import lehr
from lehr.algorithms import Algorithm, Description
from lehr.report.experiment import describe
from lehr.training.recipes import methods, named

TERNARY = "-1, 0, 1"


@pytest.mark.parametrize("name", methods())
def test_every_method_describes_itself(name: str) -> None:
    told = describe(named(f"digits-{name}"))
    assert all((told.name, told.weights, told.activations, told.end_layers, told.becomes))
    assert told.estimator or name == "fp"


def test_every_method_has_its_row() -> None:
    told = [describe(named(f"digits-{name}")) for name in methods()]
    assert len(set(told)) == len(told)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("bnn", ("BNN", "-1, 1", "-1, 1", "both", "integers")),
        ("ste", ("STE", TERNARY, TERNARY, "both", "integers")),
        ("ste-wide", ("STE, half-width 1", TERNARY, TERNARY, "both", "integers")),
        (
            "ste-narrowing",
            ("STE, half-width 1.5, backward noise falls to 33.3 %", TERNARY, TERNARY, "both", "integers"),
        ),
        ("ste-triangular", ("STE, triangular", TERNARY, TERNARY, "both", "integers")),
        ("ana-weights", ("ANA asynchronous, linear, weights alone", TERNARY, TERNARY, "both", "integers")),
        ("ana-sampled", ("ANA asynchronous, linear, sample", TERNARY, TERNARY, "both", "integers")),
        ("lsq", ("LSQ", "2 bit", "2 bit", "both, 8 bit", "integers")),
        ("inq", ("INQ", "16 powers of 2, 0", "32 bit", "both", "quantized weights")),
        ("xnor-net", ("XNOR-Net", "-α, α", "-K, K", "neither", "floats: K is a float at each position")),
        ("sttn", ("STTN", TERNARY, TERNARY, "both", "integers")),
        ("gxnor-net", ("GXNOR-Net", TERNARY, TERNARY, "both", "integers")),
        (
            "abc-net",
            ("ABC-Net", "3 x binary", "3 x binary", "neither", "9 integer layers for each layer, added as floats"),
        ),
        ("binary-connect-stochastic", ("BinaryConnect, stochastic", "-1, 1", "32 bit", "both", "quantized weights")),
    ],
)
def test_some_of_them(name: str, expected: tuple[str, ...]) -> None:
    told = describe(named(f"digits-{name}"))
    assert (told.name, told.weights, told.activations, told.end_layers, told.becomes) == expected


def test_layers_left_in_full_precision_are_named() -> None:
    assert describe(named("digits-twn", ["--algorithm.first", "false"])).end_layers == "last"


@dataclass(frozen=True)
class Own(Algorithm):
    """A method of a user's, which says nothing of itself."""

    def convert_(self, model: nn.Module, *, trained: bool = False) -> lehr.convert.Conversion:
        noisy = lehr.Quantizer(forward=lehr.Normal(0.25))
        return lehr.quantize_(model, weights=noisy, activations=None, skip_last=True)


def test_a_users_own_method_fills_its_row() -> None:
    before = torch.get_rng_state()
    told = Own().describe()
    assert (told.name, told.weights, told.activations) == ("Own", TERNARY, "32 bit")
    assert (told.end_layers, told.becomes, told.noisy) == ("first", "quantized weights", True)
    assert "Normal(std=0.25)" in told.estimator
    assert torch.equal(torch.get_rng_state(), before)


@dataclass(frozen=True)
class Picky(Own):
    """A method for networks that lehr does not know."""

    def convert_(self, model: nn.Module, *, trained: bool = False) -> lehr.convert.Conversion:
        raise ValueError("this is not a transformer")


def test_a_method_that_refuses_the_trial_network_has_its_name() -> None:
    assert Picky().describe() == Description("Picky")


@pytest.mark.parametrize("name", ["ana", "bnn", "binary-connect", "sttn", "gxnor-net"])
def test_what_a_method_says_is_what_it_does(name: str) -> None:
    algorithm = named(f"digits-{name}").algorithm
    said, done = algorithm.describe(), Algorithm.describe(algorithm)
    assert (said.weights, said.activations, said.end_layers, said.becomes, said.noisy) == (
        done.weights,
        done.activations,
        done.end_layers,
        done.becomes,
        done.noisy,
    )
