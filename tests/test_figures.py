"""Figures show the numbers of the theory, write three formats reproducibly and change nothing global."""

import copy
import itertools
import math
import re
from pathlib import Path

import matplotlib
import numpy as np
import pytest
import torch
from matplotlib.colors import to_rgb

import lehr
from lehr.annealing import PowerDecay
from lehr.approximation import approximate
from lehr.noise import Normal, Uniform
from lehr.report import figures, theorem_figures
from lehr.report.formula import approximate_formula
from lehr.report.style import CYCLE, save
from lehr.theory import Collapse
from made_runs import make_run

HEADS = {"svg": b"<?xml", "pdf": b"%PDF", "png": b"\x89PNG"}


def test_figure_2_and_3_draw_the_expectation_and_its_derivative():
    for kind in figures.NOISES:
        value, slope = figures.regularised(kind, stds=(0.4, 0.1)).axes
        for std, curve, derivative in zip((0.4, 0.1), value.lines, slope.lines, strict=False):
            x, y = (np.asarray(data, dtype=float) for data in curve.get_data())
            expected = lehr.quantize(torch.from_numpy(x), lehr.MultiStep.ternary(), kind(std))
            assert np.allclose(y, expected.numpy())
            area = np.sum(np.asarray(derivative.get_ydata(), dtype=float)) * (x[1] - x[0])
            assert area == pytest.approx(y[-1] - y[0], abs=0.01)
        assert [line.get_label() for line in value.lines][-1] == r"$\varsigma = 0$"


def test_the_paper_slope_is_one_between_minus_one_and_one_without_a_spike_where_the_windows_touch():
    _, slope = figures.regularised(Uniform, stds=(math.sqrt(3) / 6,)).axes
    x, y = (np.asarray(data, dtype=float) for data in slope.lines[0].get_data())
    assert set(y[(x >= -1 + 1e-9) & (x < 1 - 1e-9)]) == {1.0}


def test_laws_and_windows_draw_the_schedule():
    laws = figures.decay_laws([("quadratic", PowerDecay())])
    x, y = laws.axes[0].lines[0].get_data()
    assert np.allclose(y, (1 - np.clip(x, 0, 1)) ** 2)
    panels = figures.windows(layers=3, duration=10).axes
    assert [axes.get_title() for axes in panels[:4]] == ["hierarchical", "same start", "same end", "all at once"]
    grid = np.asarray(panels[0].images[0].get_array())
    assert grid.shape[0] == 3
    assert grid[2, 0] == 1
    assert grid[0, -1] == 0


@pytest.mark.parametrize("dimension", [1, 2, 3])
def test_an_approximation_is_drawn_with_its_error_inside_the_bound(dimension):
    def f(x):
        return torch.sin(3 * x).mean(-1)

    net = approximate(f, lipschitz=3, dimension=dimension, epsilon=1, dtype=torch.float64)
    drawn = theorem_figures.approximation(f, net, label="f")
    if dimension == 1:
        error = np.asarray(drawn.axes[1].lines[0].get_ydata(), dtype=float)
    else:
        error = np.asarray(drawn.axes[2].images[0].get_array())
    assert 0.3 * net.bound < np.abs(error).max() <= net.bound


def test_a_network_too_fine_for_a_picture_is_drawn_by_its_largest_errors():
    def f(x):
        return x.sum(-1)

    net = approximate(f, lipschitz=math.sqrt(2), dimension=2, epsilon=0.05, dtype=torch.float64)
    drawn = theorem_figures.approximation(f, net).axes[2]
    error = np.asarray(drawn.images[0].get_array())
    assert error.shape == (50, 50)
    assert 0.7 * net.bound < error.min() <= error.max() <= net.bound


def test_collapse_leaves_out_gaps_of_zero_which_a_logarithm_cannot_show():
    measured = Collapse((1.0, 0.1, 0.01), (1.0, 0.1, 0.0), (0.5, 0.05, 0.0), (0.5, 1.0, 1.0))
    left, right = theorem_figures.noise_collapse([("Normal", measured)]).axes
    assert [np.asarray(data).tolist() for data in left.lines[0].get_data()] == [[1.0, 0.1], [0.5, 0.05]]
    on_the_threshold = np.asarray(right.lines[-1].get_ydata(), dtype=float)
    assert np.allclose(on_the_threshold, 0.5)


@pytest.mark.slow
def test_draw_all_writes_every_figure_and_leaves_matplotlib_as_it_was(tmp_path):
    before = copy.deepcopy(dict(matplotlib.rcParams))
    state = torch.get_rng_state()
    run = make_run(tmp_path / "run")
    written = figures.draw_all(tmp_path / "out", runs=[run], formats=["svg"])
    names = {path.stem for path in written}
    assert names == {
        "idea",
        *(f"regularised_{kind.__name__.lower()}" for kind in figures.NOISES),
        "noises",
        "decay_laws",
        "windows",
        "approximation_1d",
        "approximation_2d",
        "validation_error",
    }
    assert sorted(tmp_path.glob("out/*.svg")) == sorted(written)
    assert dict(matplotlib.rcParams) == before
    assert torch.equal(torch.get_rng_state(), state)


def test_only_the_figures_asked_for_are_drawn(tmp_path):
    assert [path.name for path in figures.draw_all(tmp_path, only=["idea"], formats=["svg"])] == ["idea.svg"]
    with pytest.raises(ValueError, match=r"no figure is called 'ideas'; there are idea, .*, validation_error"):
        figures.draw_all(tmp_path, only=["noises", "ideas"])
    for name in ("validation_error", "noise_collapse"):
        with pytest.raises(ValueError, match=f"{name} is drawn from run folders: name some with --runs"):
            figures.draw_all(tmp_path, only=[name])
    assert [path.name for path in tmp_path.iterdir()] == ["idea.svg"]


def test_the_idea_ends_with_the_step_function_and_no_gradient_but_arrows():
    panels = figures.idea(stds=(0.3, 0)).axes
    assert [axes.get_title() for axes in panels[:2]] == ["noise of std $0.3$", "no noise: quantized"]
    x, y = (np.asarray(data, dtype=float) for data in panels[0].lines[1].get_data())
    assert np.allclose(y, lehr.quantize(torch.from_numpy(x), lehr.MultiStep.ternary(), Normal(0.3)).numpy())
    assert set(panels[1].lines[1].get_ydata()) == {-1, 0, 1}
    assert not np.asarray(panels[3].lines[0].get_ydata()).any()
    assert [len(axes.texts) for axes in panels] == [0, 0, 0, 2]


def test_a_figure_is_written_in_three_formats_with_the_same_bytes_each_time(tmp_path):
    first = save(figures.decay_laws(), tmp_path / "a")
    second = save(figures.decay_laws(), tmp_path / "b")
    for one, other in zip(first, second, strict=True):
        assert one.read_bytes() == other.read_bytes()
    assert all(path.read_bytes().startswith(HEADS[path.suffix[1:]]) for path in first)
    assert [path.suffix for path in first] == [".svg", ".pdf", ".png"]


def test_an_unknown_format_is_refused_before_anything_is_written(tmp_path):
    with pytest.raises(ValueError, match="formats are svg, pdf, png, got 'gif'"):
        save(figures.decay_laws(), tmp_path / "a", formats=["png", "gif"])
    assert not list(tmp_path.iterdir())


def test_the_report_never_imports_pyplot():
    for path in Path(figures.__file__).parent.glob("*.py"):
        assert not re.search(r"import.*pyplot", path.read_text(encoding="utf-8"))


# Linear RGB as seen without cones of one kind (Machado, Oliveira and Fernandes 2009, severity 1).
SIGHT = {
    "full": np.eye(3),
    "no red": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "no green": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
}


def cielab(colour, sight):
    rgb = np.array(to_rgb(colour))
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    seen = np.clip(np.asarray(SIGHT[sight]) @ linear, 0, 1)
    to_xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    xyz = to_xyz @ seen / (0.9505, 1, 1.089)
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("sight", SIGHT)
def test_colour_blind_readers_tell_all_curves_apart(sight):
    for one, other in itertools.combinations(CYCLE, 2):
        assert np.linalg.norm(cielab(one, sight) - cielab(other, sight)) > 15  # 2.3 is just noticeable


def test_approximate_formula_tells_and_draws(tmp_path):
    text = approximate_formula("abs(x0 - 0.4)", epsilon=0.1, lipschitz=1, out=tmp_path / "v", formats=["png"])
    lines = text.splitlines()
    assert lines[0] == "abs(x0 - 0.4) on [0, 1]^1, Lipschitz constant 1 (as given)"
    assert lines[1].split() == ["epsilon", "n", "N", "bound", "measured"]
    for line in lines[2:6]:
        epsilon, n, cells, bound, measured = map(float, line.split())
        assert n == cells == round(2 / epsilon + 0.49)
        assert measured <= bound <= epsilon
    assert lines[6] == f"drawn: {tmp_path / 'v.png'}"
    assert (tmp_path / "v.png").stat().st_size > 5000
    assert "certified by interval arithmetic" in approximate_formula("sin(3*x0)*x1", epsilon=0.5, tight=True)


def test_approximate_formula_refuses_what_is_too_large_at_once():
    with pytest.raises(MemoryError, match=r"N = n\^4 = "):
        approximate_formula("x0*x1*x2*x3", epsilon=1e-3)
    with pytest.raises(ValueError, match="unknown function 'open'"):
        approximate_formula("open(x0)", epsilon=0.1)


def test_smooth_curves_do_not_depend_on_the_default_dtype():
    value = figures.regularised(Normal).axes[0]
    assert np.asarray(value.lines[0].get_ydata()).dtype == np.float64
