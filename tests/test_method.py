"""What tables say of a method."""

from __future__ import annotations

import pytest

from lehr.report.method import Method, method
from lehr.training.recipes import methods, named


@pytest.mark.parametrize("name", methods())
def test_every_method_tells_its_levels_and_its_end_layers(name: str) -> None:
    how = method(named(f"digits-{name}"))
    assert all((how.name, how.weights, how.activations, how.ends))


def test_methods_are_told_apart() -> None:
    told = [method(named(f"digits-{name}")) for name in methods()]
    assert len(set(told)) == len(told)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("bnn", Method("BNN", "-1, 1", "-1, 1", "both")),
        ("ste", Method("STE", "-1, 0, 1", "-1, 0, 1", "both")),
        ("ste-wide", Method("STE, half-width 1", "-1, 0, 1", "-1, 0, 1", "both")),
        ("ste-narrowing", Method("STE, half-width 1.5 to 0.5", "-1, 0, 1", "-1, 0, 1", "both")),
        ("ste-triangular", Method("STE, triangular", "-1, 0, 1", "-1, 0, 1", "both")),
        ("ana-weights", Method("ANA asynchronous, linear, weights alone", "-1, 0, 1", "-1, 0, 1", "both")),
        ("lsq", Method("LSQ", "2 bit", "2 bit", "both, 8 bit")),
        ("inq", Method("INQ", "16 powers of 2, 0", "32 bit", "both")),
        ("xnor-net", Method("XNOR-Net", "-α, α", "-K, K", "neither")),
        ("sttn", Method("STTN", "-1, 0, 1", "-1, 0, 1", "both")),
        ("gxnor-net", Method("GXNOR-Net", "-1, 0, 1", "-1, 0, 1", "both")),
        ("abc-net", Method("ABC-Net", "3 x binary", "3 x binary", "neither")),
        ("group-net-groups", Method("Group-Net, groups of 2", "5 x binary", "-1, 1", "neither")),
    ],
)
def test_some_of_them(name: str, expected: Method) -> None:
    assert method(named(f"digits-{name}")) == expected


def test_layers_left_in_full_precision_are_told() -> None:
    recipe = named("digits-twn", ["--algorithm.first", "false"])
    assert method(recipe).ends == "last"
