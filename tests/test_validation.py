"""Figure 1 shows the validation error of runs where it was measured, and shades the windows of their recipes."""

import numpy as np
import pytest

from lehr.annealing import AllAtOnce, Hierarchical, Window
from lehr.report.validation import Curve, curve_of_run, validation_error
from lehr.training.folder import RunError
from made_runs import make_run


def test_a_run_folder_gives_its_errors_after_each_epoch_and_its_windows(tmp_path):
    run = make_run(tmp_path / "ana", "--epochs", "40")
    header = "epoch,val/accuracy,std/forward/1,std/forward/2"
    (run / "metrics.csv").write_text(f"{header}\n0,0.25,0.2,0.2\n1,,0.1,0.2\n2,0.75,0.1,0.1\n")
    curve = curve_of_run(run)
    assert curve.label == "ana"
    assert curve.epochs == [1, 2, 3]
    assert curve.windows == (Window(0, 10), Window(10, 20))
    assert curve.data == "digits"
    axes = validation_error([curve]).axes[0]
    assert [np.asarray(data).tolist() for data in axes.lines[0].get_data()] == [[1, 3], [75, 25]]
    assert [text.get_text() for text in axes.texts] == ["1", "2"]
    assert len(axes.patches) == 2


def test_runs_of_one_schedule_share_a_panel_and_full_precision_is_in_all():
    def run(label, windows=()):
        return Curve(label, [1, 2], [0.5, 0.4], tuple(windows))

    runs = [
        run("fp"),
        run("a", Hierarchical(1).windows(2)),
        run("b", AllAtOnce(2).windows(2)),
        run("c", Hierarchical(1).windows(2)),
    ]
    panels = validation_error(runs).axes
    labels = [[line.get_label() for line in axes.lines] for axes in panels]
    assert labels == [["fp", "a", "c"], ["fp", "b"]]
    assert panels[0].lines[0].get_color() == panels[1].lines[0].get_color() != panels[1].lines[1].get_color()
    alone = validation_error(runs[:1]).axes
    assert len(alone) == 1
    assert not alone[0].patches


def test_runs_on_other_data_have_a_panel_of_their_own():
    def run(label, data, error, windows=()):
        return Curve(label, [1, 2], [error, error], tuple(windows), data)

    runs = [run("a", "digits", 0.1, Hierarchical(1).windows(2)), run("b", "cifar10", 0.6), run("c", "digits", 0.1)]
    panels = validation_error(runs).axes
    assert [[line.get_label() for line in axes.lines] for axes in panels] == [["a", "c"], ["b"]]
    assert panels[0].get_ylim()[1] < 60 < panels[1].get_ylim()[1]


def test_every_curve_is_inside_its_panel():
    runs = [
        Curve("a", [1], [0.1], tuple(Hierarchical(1).windows(2))),
        Curve("b", [1], [0.9], tuple(Hierarchical(2).windows(2))),
    ]
    assert all(axes.get_ylim()[0] == 0 and axes.get_ylim()[1] > 90 for axes in validation_error(runs).axes)


def test_windows_too_narrow_for_their_numbers_are_told_in_words():
    curve = Curve("run", [1, 100], [0.5, 0.4], tuple(Hierarchical(0.5).windows(9)))
    axes = validation_error([curve]).axes[0]
    assert not axes.texts
    assert axes.get_title(loc="left") == "shaded: layers 1 to 9, one after the other"


def test_an_odd_panel_out_is_not_shown():
    schedules = [tuple(Hierarchical(duration).windows(2)) for duration in (1, 2, 3)]
    panels = validation_error([Curve("run", [1], [0.5], windows) for windows in schedules]).axes
    assert [axes.get_visible() for axes in panels] == [True, True, True, False]


def test_windows_that_overlap_are_shaded_by_how_many_there_are():
    def shaded(windows):
        return validation_error([Curve("run", [1, 2], [0.5, 0.4], tuple(windows))]).axes[0]

    overlapping = shaded([Window(0, 2), Window(1, 2)])
    assert [patch.get_alpha() for patch in overlapping.patches] == [0.5, 1]
    assert not overlapping.texts
    assert [patch.get_alpha() for patch in shaded(AllAtOnce(2).windows(4)).patches] == [1]


def test_a_folder_without_a_validation_is_refused(tmp_path):
    with pytest.raises(RunError, match=r"is not a run: it has no recipe\.yaml"):
        curve_of_run(tmp_path)
    with pytest.raises(RunError, match=r"has no validation yet: its metrics\.csv needs the columns epoch and val/acc"):
        curve_of_run(make_run(tmp_path / "new", done=0))
    with pytest.raises(ValueError, match="run 'empty' has no validation error to draw"):
        validation_error([Curve("empty", [1], [float("nan")])])


def test_a_single_epoch_is_a_point():
    (line,) = validation_error([Curve("a", [1], [0.1])]).axes[0].lines
    assert line.get_marker() == "o"


def test_a_run_whose_name_begins_with_an_underscore_is_in_the_legend():
    legend = validation_error([Curve("_old", [1], [0.1])]).axes[0].get_legend()
    assert [text.get_text().strip() for text in legend.get_texts()] == ["_old"]
