"""Theorem 1 and Lemma 1: the bound holds, exactly one cube is active at every number, both forms compute the same."""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lehr import Linear, Quantizer, freeze
from lehr.approximation import Approximation, approximate, box_indicator, sup_error
from lehr.approximation_size import Size, size
from lehr.deploy import compile

DTYPES = [torch.float32, torch.float64]


def around(points, dtype):
    """Each point and its neighbours in floating point."""
    x = torch.as_tensor(points, dtype=dtype)
    up, down = torch.full_like(x, torch.inf), torch.full_like(x, -torch.inf)
    return torch.cat([torch.nextafter(x, down), x, torch.nextafter(x, up)]).unique()


def lattice(net):
    """Every combination over the axes of all faces, the numbers beside them, middles of cubes and points outside."""
    dtype = net.thresholds.dtype
    axis = torch.cat([around(net.thresholds, dtype), torch.tensor([-1.0, 0.37 * net.side, 2 * net.side], dtype=dtype)])
    return torch.cartesian_prod(*[axis] * net.dimension).reshape(-1, net.dimension)


def built(n, dimension, side=1.0, dtype=torch.float32, lipschitz=1.0):
    """Return a network with n cubes on each axis and distinct values."""

    def f(x):
        scale = 2.0 ** -torch.arange(dimension, dtype=x.dtype)
        return (x * scale).sum(-1) / 2

    epsilon = math.nextafter(2 * math.sqrt(dimension) * side * lipschitz / n, math.inf)
    net = approximate(f, lipschitz=lipschitz, side=side, dimension=dimension, epsilon=epsilon, dtype=dtype)
    assert net.n == n
    return net


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("dimension", "n"), [(1, 1), (1, 7), (1, 30), (2, 3), (2, 6), (3, 2), (3, 3), (4, 2)])
@pytest.mark.parametrize("side", [1.0, 0.1, 3.0])
def test_exactly_one_cube_is_active_on_faces_corners_and_their_neighbours(dtype, dimension, n, side):
    net = built(n, dimension, side, dtype)
    x = lattice(net)
    active = net.dense()[:4](x)
    inside = ((x >= 0) & (x <= net.side)).all(-1)
    assert torch.equal(active.sum(-1), inside.to(dtype))
    assert torch.equal(active.argmax(-1)[inside], net.cell(x)[inside])
    assert bool((net.cell(x)[~inside] == -1).all())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("dimension", "n"), [(1, 1), (1, 50), (2, 7), (3, 3), (4, 2)])
def test_the_look_up_computes_the_bits_of_the_dense_network(dtype, dimension, n):
    net = built(n, dimension, 0.7, dtype)
    x = torch.cat([lattice(net), torch.rand(2000, dimension, dtype=dtype)])
    assert torch.equal(net.dense()(x)[:, 0], net(x))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [1000, 3001])
def test_faces_of_thousands_of_cubes_belong_only_to_the_upper_cube(dtype, n):
    net = built(n, 1, 0.3, dtype)
    faces = net.thresholds
    below = torch.nextafter(faces, torch.full_like(faces, -torch.inf))
    assert torch.equal(net.cell(faces[:, None]), torch.arange(n + 1).clamp_max(n - 1))
    assert torch.equal(net.cell(below[:, None]), torch.arange(-1, n))
    # The first layer's tests themselves, one axis of them: x - t >= 0 and t' - x >= 0 with t' the last number below.
    x = around(faces, dtype)[1:-1, None]
    last = torch.cat([below[1:-1], faces[-1:]])
    assert torch.equal((((x - faces[:-1]) >= 0) & ((last - x) >= 0)).sum(1), torch.ones(len(x), dtype=torch.long))


@pytest.mark.parametrize("dtype", DTYPES)
def test_outside_the_domain_the_value_is_zero_and_nan_stays_nan(dtype):
    net = approximate(lambda x: 1 + x[:, 0], lipschitz=1, dimension=2, epsilon=1, dtype=dtype)
    x = torch.tensor([[-1e-30, 0.5], [0.5, 1.0001], [0.5, -3e38], [math.nan, 0.5], [0.5, math.nan]], dtype=dtype)
    for form in (net, net.dense()):
        y = form(x).flatten()
        assert y[:3].tolist() == [0, 0, 0]
        assert bool(y[3:].isnan().all())
    assert net(torch.tensor([-0.0, 1.0], dtype=dtype)) > 1


def test_dense_layers_have_the_corrected_shapes_and_quantized_weights():
    net = built(3, 2)
    first, h1, second, h2, last = net.dense()
    assert isinstance(first, Linear)
    assert isinstance(second, Linear)
    assert first.quantized_weight.shape == (2 * 2 * 9, 2)
    assert second.quantized_weight.shape == (9, 2 * 2 * 9)
    assert last.weight.shape == (1, 9)
    assert set(first.quantized_weight.unique().tolist()) == {-1, 0, 1}
    assert set(second.quantized_weight.unique().tolist()) == {0, 1}
    assert all(isinstance(h, Quantizer) and h.step.levels == (0, 1) for h in (h1, h2))
    assert sum(p.numel() for name, p in net.dense().named_parameters() if "weight" in name) == (
        Size(2, 3, 0.0).dense_weights
    )


@pytest.mark.parametrize(("dimension", "n", "side"), [(1, 1, 1.0), (1, 300, 0.7), (2, 7, 3.0), (3, 4, 1.0)])
def test_on_bytes_it_freezes_and_runs_as_integers_and_in_c(dimension, n, side):
    net = built(n, dimension, side)
    points = torch.randint(256, (500, dimension), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    points = torch.cat([points, torch.arange(256, dtype=torch.uint8)[:, None].expand(-1, dimension)])
    expected = net((points.double() / 255 * side).float())[:, None]
    network = net.on_bytes()
    assert torch.equal(network(points), expected)
    frozen = freeze(network.eval(), points[:1])
    assert torch.equal(frozen.run(points), expected)
    assert torch.equal(torch.as_tensor(compile(frozen).run(points.numpy())), expected)


def test_building_draws_no_random_numbers():
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    built(4, 2).dense()
    assert torch.equal(torch.rand(1), expected)


@st.composite
def lipschitz_functions(draw, dimension):
    """A sum of smooth and of kinked waves with its Lipschitz constant: of c g(a·x + b), that is |c| |a| sup |g'|."""
    vector = st.lists(st.floats(-4, 4), min_size=dimension, max_size=dimension)
    shapes = (torch.sin, torch.abs, torch.tanh, lambda u: torch.minimum(u.abs(), (u - 1).abs()))
    terms = draw(st.lists(st.tuples(st.sampled_from(shapes), vector, st.floats(-2, 2), st.floats(-2, 2)), max_size=3))
    constant = sum(abs(c) * math.hypot(*a) for _, a, _, c in terms)

    def f(x):
        total = x[:, 0] * 0
        for shape, a, b, c in terms:
            total = total + c * shape(x @ torch.tensor(a, dtype=x.dtype) + b)
        return total

    return f, constant


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_measured_error_is_at_most_the_bound_and_epsilon(data):
    dimension = data.draw(st.integers(1, 4))
    f, constant = data.draw(lipschitz_functions(dimension))
    side = data.draw(st.floats(0.1, 3))
    tight = data.draw(st.booleans())
    dtype = data.draw(st.sampled_from(DTYPES))
    n = data.draw(st.integers(1, {1: 500, 2: 60, 3: 16, 4: 8}[dimension]))
    epsilon = max(2 * math.sqrt(dimension) * side * constant / n / (4 if tight else 1), 1e-3)
    net = approximate(f, lipschitz=constant, side=side, dimension=dimension, epsilon=epsilon, tight=tight, dtype=dtype)
    measured = sup_error(net, f, points=4000)
    rounding = 100 * torch.finfo(dtype).eps * (1 + constant)  # of f itself
    assert measured <= net.bound + rounding
    assert net.bound <= epsilon
    assert tight or net.bound <= 0.26 * epsilon


@pytest.mark.parametrize("dimension", [1, 2, 3, 4])
def test_the_bound_is_attained_so_it_cannot_be_improved(dimension):
    def f(x):  # rises with slope 1 along the diagonal
        return x.sum(-1) / math.sqrt(dimension)

    net = approximate(f, lipschitz=1, dimension=dimension, epsilon=0.5, tight=True)
    measured = sup_error(net, f)
    assert 0.99 * net.bound <= measured <= net.bound + 1e-6


@pytest.mark.parametrize("epsilon", [0.5, 0.1, 0.03])
def test_tight_is_the_smallest_n_whose_bound_is_epsilon(epsilon):
    plan = size(lipschitz=1, dimension=2, epsilon=epsilon, tight=True)
    assert plan.bound <= epsilon
    assert math.sqrt(2) / (2 * (plan.n - 1)) > epsilon


def test_the_size_is_the_proofs_and_known_before_it_is_built():
    one = size(lipschitz=1, dimension=1, epsilon=0.1)
    assert (one.n, one.N) == (20, 20)
    assert one.bound == pytest.approx(0.025, rel=1e-4)
    assert size(lipschitz=3, side=2, dimension=4, epsilon=0.5).n == 48
    assert size(lipschitz=3, dimension=1, epsilon=0.3).n == 20
    assert size(lipschitz=0, dimension=3, epsilon=1e-9).N == 1
    plan = size(lipschitz=1, dimension=2, epsilon=0.1)
    assert (plan.n, plan.N) == (29, 841)
    net = approximate(lambda x: x[:, 0], lipschitz=1, dimension=2, epsilon=0.1)
    assert (net.n, net.N, net.bound, net.values.numel()) == (plan.n, plan.N, plan.bound, plan.N)


def test_what_does_not_fit_in_memory_is_refused_with_the_number():
    def never(x):
        raise AssertionError("f was asked before the size was known to fit")

    with pytest.raises(
        MemoryError, match=r"n = 20,000 cubes on each axis, N = n\^4 = 160,000,000,000,000,000 in all need"
    ):
        approximate(never, lipschitz=1, dimension=4, epsilon=2e-4)
    with pytest.raises(MemoryError, match=r"N = n\^300 = \d.\d\d\de\+"):
        approximate(never, lipschitz=1, dimension=300, epsilon=0.01)
    with pytest.raises(MemoryError, match="the dense layers of 1,000,000 cubes need"):
        built(1000, 2).dense()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"epsilon": 0}, "epsilon must be positive and finite, got 0"),
        ({"side": -1}, "side must be positive and finite, got -1"),
        ({"side": 1e-40}, "side 1e-40 is out of the range of torch.float32"),
        ({"dimension": 0}, "dimension must be at least 1, got 0"),
        ({"lipschitz": math.inf}, "lipschitz must be finite and not negative, got inf"),
        (
            {"epsilon": 1e-7},
            "torch.float32 cannot tell the faces of 20,000,000 cubes on an axis apart: use torch.float64",
        ),
    ],
)
def test_arguments_out_of_range_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        approximate(lambda x: x[:, 0], **{"lipschitz": 1, "dimension": 1, "epsilon": 0.1, **arguments})


def test_a_function_that_is_none_is_refused():
    usual = {"lipschitz": 1, "dimension": 2, "epsilon": 0.1}
    with pytest.raises(ValueError, match=r"f must map points \(841, 2\) to \(841,\) or \(841, 1\), got \(841, 2\)"):
        approximate(lambda x: x, **usual)
    with pytest.raises(
        TypeError, match=r"f must map points \(841, 2\) to a tensor \(841,\) .* got float: compute with"
    ):
        approximate(lambda x: 1.0, **usual)
    with pytest.raises(ValueError, match="f is not finite at"):
        approximate(lambda x: (x[:, 0] - 2).log(), **usual)
    with pytest.raises(TypeError, match=r"torch.float32 or torch.float64, got torch.float16"):
        approximate(lambda x: x[:, 0], **usual, dtype=torch.float16)


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_a_constant_that_the_values_contradict_is_refused(axis):
    with pytest.raises(ValueError, match=r"steeper than lipschitz=1: .* a slope of 1\.5"):
        approximate(lambda x: 1.5 * x[:, axis], lipschitz=1, dimension=3, epsilon=0.3)


def test_the_network_keeps_the_shape_of_f_and_any_leading_shape():
    column = approximate(torch.sin, lipschitz=1, dimension=1, epsilon=0.1)
    assert column(torch.rand(5, 1)).shape == (5, 1)
    flat = approximate(lambda x: x[:, 0], lipschitz=1, dimension=2, epsilon=0.5)
    assert flat(torch.rand(3, 4, 2)).shape == (3, 4)
    with pytest.raises(ValueError, match=r"points of 2 coordinates, got a tensor \(5, 3\)"):
        flat(torch.rand(5, 3))
    with pytest.raises(TypeError, match=r"computes in torch.float32, got torch.float64"):
        flat(torch.rand(5, 2, dtype=torch.float64))


def test_it_is_an_ordinary_module_whose_state_can_be_saved():
    net = built(5, 2)
    other = built(5, 2)
    other.values.data.zero_()
    other.load_state_dict(net.state_dict())
    x = torch.rand(100, 2)
    assert torch.equal(other(x), net(x))
    assert isinstance(net, Approximation)


SIDES = ["[]", "[)", "(]", "()"]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("low_high", [(0.0, 1.0), (-0.1, 0.3), (-2.0, 0.0), (1e-3, 1e3)])
@pytest.mark.parametrize("sides", list(itertools.product(SIDES, SIDES)))
def test_box_indicator_is_exact_for_every_kind_of_side(dtype, low_high, sides):
    low, high = low_high
    net = box_indicator([low, low], [high, high], sides, dtype)
    p, q = torch.tensor([low, high], dtype=dtype)
    axis = torch.cat([around([low, high], dtype), torch.tensor([(low + high) / 2, 2e3, -2e3], dtype=dtype)])
    x = torch.cartesian_prod(axis, axis)
    expected = torch.ones(len(x), dtype=torch.bool)
    for coordinate, side in zip(x.T, sides, strict=True):
        expected &= (coordinate >= p) if side[0] == "[" else (coordinate > p)
        expected &= (coordinate <= q) if side[1] == "]" else (coordinate < q)
    assert torch.equal(net(x)[:, 0], expected.to(dtype))


def test_box_indicator_has_the_lemmas_layers():
    first, _, second, _ = box_indicator([1.0, 2.0], [3.0, 4.0])
    assert isinstance(first, Linear)
    assert first.quantized_weight.tolist() == [[1, 0], [0, 1], [-1, 0], [0, -1]]
    assert first.bias.tolist() == [-1, -2, 3, 4]
    assert isinstance(second, Linear)
    assert second.quantized_weight.tolist() == [[1, 1, 1, 1]]
    assert second.bias.tolist() == [-4]


def test_an_interval_without_points_and_one_with_a_single_point():
    x = torch.tensor([[0.5]])
    assert box_indicator([0.5], [0.5])(x).item() == 1
    assert box_indicator([0.5], [0.5], "[)")(x).item() == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([0.0], [1.0, 2.0]), "as many low as high ends and sides, got 1, 2, 1"),
        (([0.0], [1.0], "[["), r"sides must be '\[\]', '\[\)', '\(\]' or '\(\)', got '\[\['"),
        (([2.0], [1.0]), "finite ends, low <= high"),
        (([0.0], [math.inf]), "finite ends, low <= high"),
    ],
)
def test_a_box_that_is_none_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        box_indicator(*arguments)
