"""What the command line prints: the numbers that matter, as plain text."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from lehr.cli import main
from lehr.report.terminal import print_demo, print_recipes, print_results
from lehr.training.recipes import named, names
from made_runs import make_run, trained_runs


def table(text: str) -> dict[str, list[str]]:
    """The rows of a printed table by their first cell."""
    rows = [re.split(r" {2,}", line.strip()) for line in text.splitlines()]
    return {row[0]: row[1:] for row in rows if len(row) > 1}


def test_the_end_of_a_run_tells_accuracy_levels_and_noise(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    run = make_run(tmp_path / "run", done=1)
    print_results(run, json.loads((run / "results.json").read_text()))
    printed = capsys.readouterr().out
    assert table(printed)["test"] == ["90.00 %", "0.4000"]
    assert table(printed)["validation"] == ["91.00 %", "0.3000"]
    assert table(printed)["layer"] == ["−1", "0", "1"]
    assert table(printed)["layers.4"] == ["25.00 %", "50.00 %", "25.00 %"]
    assert "noise left: none\n" in printed


def test_noise_that_is_left_is_told_with_its_std(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    run = make_run(tmp_path / "run", done=1)
    results = json.loads((run / "results.json").read_text()) | {
        "std/forward/2": 0.125,
        "val/running_accuracy": 0.5,
        "val/running_loss": 0.7,
    }
    (run / "results.json").write_text(json.dumps(results))
    print_results(run, results)
    printed = capsys.readouterr().out
    assert "noise left: layer 2 std 0.125" in printed
    assert table(printed)["validation, BatchNorm as in training"] == ["50.00 %", "0.7000"]


def test_a_full_precision_run_has_no_levels_to_tell(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    run = make_run(tmp_path / "run", recipe="digits-fp", done=1)
    print_results(run, json.loads((run / "results.json").read_text()))
    assert "level" not in capsys.readouterr().out


def test_a_path_is_no_markup(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    run = make_run(tmp_path / "[red]run[", done=1)
    print_results(run, json.loads((run / "results.json").read_text()))
    assert "[red]run[" in capsys.readouterr().out.replace("\n", "")


def test_every_recipe_has_its_line(capsys: pytest.CaptureFixture[str]):
    recipes = {name: named(name) for name in names()}
    print_recipes(recipes)
    rows = table(capsys.readouterr().out)
    assert set(recipes) < set(rows)
    assert rows["digits-ana"][:4] == ["digits", "mlp 256-256", "ANA asynchronous, linear", "50"]
    assert rows["digits-fp"][2] == "full precision"


def test_the_demo_shows_both_networks_with_their_sizes(
    tmp_path_factory: pytest.TempPathFactory, capsys: pytest.CaptureFixture[str]
):
    folder = trained_runs(tmp_path_factory)
    capsys.readouterr()
    results = {name: json.loads((folder / name / "results.json").read_text()) for name in ("digits-fp", "digits-ana")}
    print_demo(folder, results)
    rows = table(capsys.readouterr().out)
    assert rows["digits"] == ["full precision", "ANA asynchronous, linear"]
    for words, key in (("accuracy on test images", "test"), ("accuracy on validation images", "val")):
        assert rows[words] == [f"{100 * result[f'{key}/accuracy']:.2f} %" for result in results.values()]
    assert rows["levels of the weights"] == ["32-bit floats", "−1, 0, 1"]
    assert rows["bytes in 32-bit floats"] == ["337,920", "337,920"]
    assert rows["bytes at log2(levels) bits"] == ["337,920", "16,740"]


def test_recipes_are_a_command(capsys: pytest.CaptureFixture[str]):
    assert main(["recipes"]) == 0
    assert "cifar10-paper-linear" in capsys.readouterr().out
