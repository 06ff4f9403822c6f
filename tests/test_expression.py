"""The formula parser computes what Python would, runs nothing, and its Lipschitz constants are never too small."""

import contextlib
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lehr.expression import _FUNCTIONS, parse
from lehr.interval import FUNCTIONS, constant, variables

PYTHON = {
    "abs": abs,
    "atan": math.atan,
    "cos": math.cos,
    "exp": math.exp,
    "log": math.log,
    "max": max,
    "min": min,
    "relu": lambda u: max(u, 0),
    "sigmoid": lambda u: 1 / (1 + math.exp(-u)),
    "sin": math.sin,
    "sqrt": math.sqrt,
    "tanh": math.tanh,
}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("x0 + 2*x1", lambda a, b: a + 2 * b),
        ("-x0**2", lambda a, b: -(a**2)),
        ("x0**-0.5 / +x1 - --x1", lambda a, b: a**-0.5 / b - b),
        ("sin(3*x0)*x1", lambda a, b: math.sin(3 * a) * b),
        ("max(x0, x1, 0.75) - min(x0, pi, e)", lambda a, b: max(a, b, 0.75) - min(a, math.pi, math.e)),
        (
            "sqrt(abs(cos(x0)))+tanh(x1)*exp(-x0)",
            lambda a, b: math.sqrt(abs(math.cos(a))) + math.tanh(b) * math.exp(-a),
        ),
        (
            "relu(x0-x1) + log(1+x0) - atan(x1)/2e0 + sigmoid(x0)",
            lambda a, b: max(a - b, 0) + math.log(1 + a) - math.atan(b) / 2 + 1 / (1 + math.exp(-a)),
        ),
    ],
)
def test_values_are_those_of_the_same_formula_in_python(text, expected):
    x = torch.rand(50, 2, dtype=torch.float64) + 0.1
    values = parse(text)(x)
    assert values.tolist() == pytest.approx([expected(a, b) for a, b in x.tolist()], rel=1e-12)


def test_a_formula_knows_its_dimension_and_keeps_leading_shapes_and_dtype():
    assert parse("x3").dimension == 4
    assert parse("7").dimension == 1
    assert parse("7")(torch.zeros(2, 3, 1)).tolist() == [[7.0] * 3] * 2
    assert parse("x0*pi")(torch.zeros(5, 4, 2, dtype=torch.float64)).dtype == torch.float64
    with pytest.raises(ValueError, match=r"'x0\+x2' needs points of 3 coordinates, got \(5, 2\)"):
        parse("x0+x2")(torch.zeros(5, 2))
    with pytest.raises(TypeError, match=r"floating-point points, got torch.int64"):
        parse("x0")(torch.zeros(5, 1, dtype=torch.long))


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("__import__('os').system('touch pwned')", r'cannot contain "__import__\('),
        ("__import__('os')", r"unknown function '__import__' in \"__import__\('os'\)\""),
        ("eval('1')", "unknown function 'eval'"),
        ("x0.__class__.__mro__", r"cannot contain 'x0.__class__.__mro__'"),
        ("(lambda: 1)()", "cannot contain"),
        ("lambda x: x", "cannot contain 'lambda x: x'"),
        ("[x0 for x0 in (1, 2)]", "cannot contain"),
        ("sum(x0 for x0 in x1)", "unknown function 'sum'"),
        ("x0[0]", r"cannot contain 'x0\[0\]'"),
        ("x0 if x1 else 2", "cannot contain"),
        ("x0 < x1", "cannot contain 'x0 < x1'"),
        ("x0 and x1", "cannot contain"),
        ("not x0", "cannot contain"),
        ("~x0", "cannot contain"),
        ("(x0 := 3)", "cannot contain"),
        ("f'{x0}'", "cannot contain"),
        ("'text'", "cannot contain \"'text'\""),
        ("True", "cannot contain 'True'"),
        ("1j", "cannot contain '1j'"),
        ("...", "cannot contain"),
        ("x0 // 2", "cannot contain"),
        ("x0 % 2", "cannot contain"),
        ("x0 @ x1", "cannot contain"),
        ("x0 << 9", "cannot contain"),
        ("x0 ^ 2", r"written \*\*, not \^: 'x0 \^ 2'"),
        ("sin(x=x0)", "cannot contain"),
        ("sin(*x0)", r"cannot contain '\*x0'"),
        ("sin(x0, x1)", "sin takes one argument, got 2"),
        ("sin()", "sin takes one argument, got 0"),
        ("max(x0)", "max takes at least 2 arguments, got 1"),
        ("sin", "unknown name 'sin'"),
        ("x10", "unknown name 'x10'"),
        ("y", r"unknown name 'y': the variables are x0\.\.x9"),
        ("x0**x1", "an exponent must be a number, got 'x1'"),
        ("9**9**9", r"an exponent must be a number, got '9\*\*9'"),
        ("x0**65", "between -64 and 64, got '65'"),
        ("x0**True", "an exponent must be a number, got 'True'"),
        ("1e999", "'1e999' is too large a number"),
        ("9" * 400, "is too large a number"),
        ("", "is not a formula"),
        ("x0 +", "is not a formula"),
        ("x0; x1", "is not a formula"),
        ("import os", "is not a formula"),
        ("x0\0", "is not a formula"),
        ("\ud800", "is not a formula"),
        ("-" * 500 + "x0", "nest 100 operations|is not a formula"),
        ("(" * 400 + "x0" + ")" * 400, "is not a formula"),
        ("sin(" * 150 + "x0" + ")" * 150, "nest 100 operations|is not a formula"),
        ("x0" + "+x0" * 120, "nest 100 operations"),
        ("x0" + " " * 1000, "1000 characters, got 1002"),
    ],
)
def test_everything_else_is_refused_by_name_and_nothing_runs(text, named, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=named):
        parse(text)
    assert not list(tmp_path.iterdir())


@settings(max_examples=200)
@given(st.text(alphabet="x019.+-*/() ,sincoexplgj'\"[]:=_^%\\", max_size=30))
def test_any_text_is_a_formula_or_a_value_error(text):
    with contextlib.suppress(ValueError):  # any other exception fails the test
        parse(text)


def test_every_function_has_its_ranges():
    assert set(FUNCTIONS) | {"max", "min"} == set(_FUNCTIONS) == set(PYTHON)


@pytest.mark.parametrize(
    ("text", "side", "least"),
    [
        ("sin(3*x0)*x1", 1, 3),
        ("3*x0 - 4*x1", 1, 5),
        ("x0**2", 2, 4),
        ("x0**3 - x0", 1, 2),
        ("exp(x0)", 1, math.e),
        ("log(1 + x0)", 1, 1),
        ("1/(1 + x0)", 1, 1),
        ("sqrt(1 + x0)", 1, 0.5),
        ("abs(x0 - 0.3)", 1, 1),
        ("relu(x0 - 0.5)*2", 1, 2),
        ("max(x0, 2*x1)", 1, 2),
        ("min(x0, 2*x1)", 0.5, 2),
        ("cos(pi*x0)", 1, math.pi),
        ("tanh(4*(x0-0.5))", 1, 4),
        ("atan(5*x0 - 2)", 1, 5),
        ("sigmoid(8*x0 - 4)", 1, 2),
        ("x0*x1*x2*x3", 1, 2),
        ("x0**1.5", 1, 1.5),
        ("(1-x0*x0)**1.5", 1, 1.5),  # whose base is rounded to below 0
        ("x0**0 + 5", 1, 0),
        ("7", 1, 0),
    ],
)
def test_certified_constants_are_close_above_the_least_ones(text, side, least):
    constant = parse(text).lipschitz(side)
    assert least <= constant <= 1.12 * least + 1e-12


@settings(deadline=None, max_examples=40)
@given(st.integers(-900, 900), st.integers(1, 900))
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_wide_interval_holds_all_values_and_slopes_of_a_function_and_little_else(name, low, width):
    low, width = (low + 0.5) / 100, width / 100  # ends away from 0, where kinks are
    low = abs(low) if name in ("log", "sqrt") else low
    (x,) = variables([low], [low + width])
    found = x.apply(name)
    u = torch.linspace(low, low + width, 5001, dtype=torch.float64).requires_grad_()
    values = _FUNCTIONS[name][2](u)
    (slopes,) = torch.autograd.grad(values.sum(), u)
    for interval, sampled in ((found.value, values.detach()), (found.gradient, slopes)):
        least, most = sampled.aminmax()
        slack = 1e-6 * (1 + abs(most) + abs(least)) + (most - least) * 2e-2
        assert least - slack <= interval.low <= least + 1e-12
        assert most - 1e-12 <= interval.high <= most + slack


def test_where_two_may_be_the_larger_the_gradient_spans_both():
    x, y = variables([0.0, 0.0], [1.0, 1.0])
    either = x.maximum(y + y)
    assert either.gradient.high.flatten().tolist() == pytest.approx([1, 2])
    assert either.gradient.low.flatten().tolist() == pytest.approx([0, 0])
    sure = (x + constant(2.0, x)).maximum(y)
    assert sure.gradient.low.flatten().tolist() == pytest.approx([1, 0])
    assert sure.value.high.item() == pytest.approx(3)
    never = (x - constant(1.5, x)).maximum(y)
    assert never.gradient.high.flatten().tolist() == pytest.approx([0, 1])


def nested(functions):
    """Random formulas as text."""
    leaf = st.sampled_from(["x0", "x1", "0.3", "2", "-1.5", "pi"])
    unary = st.sampled_from([name for name, (least, _, _) in functions.items() if least == 1])
    return st.recursive(
        leaf,
        lambda inner: st.one_of(
            st.tuples(inner, st.sampled_from("+-*/"), inner).map(lambda t: f"({t[0]}{t[1]}{t[2]})"),
            st.tuples(unary, inner).map(lambda t: f"{t[0]}({t[1]})"),
            st.tuples(st.sampled_from(["min", "max"]), inner, inner).map(lambda t: f"{t[0]}({t[1]},{t[2]})"),
            st.tuples(inner, st.sampled_from(["2", "3", "-1", "0.5", "-2", "1.5"])).map(lambda t: f"({t[0]})**{t[1]}"),
        ),
        max_leaves=6,
    )


@settings(deadline=None, max_examples=150)
@given(nested(_FUNCTIONS), st.floats(0.2, 3))
def test_no_slope_measured_exceeds_the_certified_constant(text, side):
    expression = parse(text)
    try:
        constant = expression.lipschitz(side, dimension=2)
    except ValueError:
        return  # undefined or unbounded somewhere on the domain, and said so
    generator = torch.Generator().manual_seed(0)
    x = (torch.rand(2000, 2, generator=generator, dtype=torch.float64) * side).requires_grad_()
    values = expression(x)
    assert bool(values.isfinite().all())
    if values.requires_grad:
        (gradient,) = torch.autograd.grad(values.sum(), x)
        assert float(gradient.norm(dim=1).max()) <= constant * (1 + 1e-9) + 1e-12
    ends = torch.tensor([[0.0, 0.0], [side, side], [0.0, side], [side, 0.0]], dtype=torch.float64)
    points = torch.cat([x.detach(), ends])
    a, b = points, points.roll(1, 0)
    rise = (expression(a) - expression(b)).abs()
    assert bool((rise <= constant * (a - b).norm(dim=1) * (1 + 1e-9) + 1e-9 * (1 + expression(a).abs())).all())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("log(x0)", r"'log\(x0\)' on \[0, 1\]\^1: log needs an argument above 0, but it reaches 0"),
        ("1/x0", "it divides by a quantity between 0 and 1, which may be 0"),
        ("(x0-2)**0.5", "a power 0.5 needs a base that is not negative, but it reaches -2"),
        ("sqrt(x0)", r"no finite Lipschitz constant found for 'sqrt\(x0\)'.*if you know one, pass it as lipschitz"),
        ("sqrt(1-x0)", "no finite Lipschitz constant"),
        ("exp(exp(exp(9*x0)))", "no finite Lipschitz constant"),
    ],
)
def test_a_formula_without_a_constant_says_why(text, message):
    with pytest.raises(ValueError, match=message):
        parse(text).lipschitz()


def test_a_slope_without_bound_matters_only_where_it_is():
    assert 0.5 <= parse("max(sqrt(x0), 1)").lipschitz(side=4) < 0.6


def test_a_wrong_domain_is_refused():
    with pytest.raises(ValueError, match="'x2' has 3 coordinates, got dimension 2"):
        parse("x2").lipschitz(dimension=2)
    with pytest.raises(ValueError, match="side must be positive and finite, got 0"):
        parse("x0").lipschitz(side=0)
