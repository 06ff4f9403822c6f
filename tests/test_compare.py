"""Runs beside each other: grouped by what they are, measured against full precision, told the same in four forms."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from browser import CHROMIUM, Browser
from lehr.cli import main
from lehr.report.compare import compare
from lehr.report.compare_page import write_comparison
from made_runs import make_run

CIFAR = {"recipe": "cifar10-quarter-ana", "done": 1}


def cells(paths: list[Path]) -> list[dict[str, str]]:
    lines = csv.reader(compare(paths).table().csv().splitlines())
    header = next(lines)
    return [dict(zip(header, row, strict=True)) for row in lines]


@pytest.fixture(scope="module")
def seeds(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("runs")
    runs = [("digits-fp-seed0", "digits-fp", 0, 0.95)]
    runs += [(f"digits-ana-seed{seed}", "digits-ana", seed, test) for seed, test in ((0, 0.90), (1, 0.92), (2, 0.94))]
    return [
        make_run(folder / name, "--epochs", "4", "--seed", str(seed), recipe=recipe, test=test)
        for name, recipe, seed, test in runs
    ]


def test_runs_that_differ_in_the_seed_alone_are_one_row_with_mean_and_spread(seeds: list[Path]):
    full, ternary = cells(seeds)
    assert (full["run"], full["runs"], full["test"]) == ("digits-fp-seed0", "1", "95.00 %")
    assert (ternary["run"], ternary["runs"], ternary["test"]) == ("digits-ana", "3", "92.00 ± 2.00 %")
    assert "one row" in compare(seeds).remarks[0]


def test_a_quantized_network_is_measured_against_the_full_precision_run(seeds: list[Path]):
    full, ternary = cells(seeds)
    assert full["to full precision"] == "reference"
    assert ternary["to full precision"] == "-3.00"
    assert cells(seeds[1:])[0]["to full precision"] == ""


def test_the_row_says_what_is_quantized_and_how(seeds: list[Path]):
    full, ternary = cells(seeds)
    assert (full["method"], full["weights"], full["first/last"]) == ("full precision", "32 bit", "neither")
    assert (ternary["method"], ternary["weights"]) == ("ANA asynchronous, linear", "-1, 0, 1")
    assert (ternary["activations"], ternary["first/last"]) == ("-1, 0, 1", "both")
    assert (ternary["data"], ternary["network"], ternary["epochs"]) == ("digits", "mlp 256-256", "4")
    assert ternary["time"] == "12 min 34 s"


def test_the_method_names_the_schedule_if_runs_differ_in_it(tmp_path: Path):
    quick = ("--epochs", "4", "--annealing.schedule.duration", "1")
    runs = [
        make_run(tmp_path / "first", *quick),
        make_run(tmp_path / "second", *quick, "--annealing.schedule", "SameEnd"),
    ]
    assert cells(runs)[0]["method"].endswith("linear, Hierarchical(duration=1.0)")
    assert cells(runs)[1]["method"].endswith("linear, SameEnd(duration=1.0)")
    assert cells(runs[:1])[0]["method"].endswith("linear")


def test_runs_that_differ_in_anything_else_are_not_averaged(tmp_path: Path):
    runs = [make_run(tmp_path / lr, "--optimizer.lr", lr, done=1) for lr in ("0.01", "0.02")]
    assert [row["runs"] for row in cells(runs)] == ["1", "1"]


def test_the_reference_is_the_same_network_where_there_are_several(tmp_path: Path):
    wide = ("--model.hidden", "[512]")
    runs = [
        make_run(tmp_path / "fp", recipe="digits-fp", done=1, test=0.95),
        make_run(tmp_path / "fp-wide", *wide, recipe="digits-fp", done=1, test=0.99),
        make_run(tmp_path / "wide", *wide, done=1, test=0.90),
        make_run(tmp_path / "other", "--model.hidden", "[64]", done=1, test=0.90),
    ]
    assert [row["to full precision"] for row in cells(runs)] == ["reference", "reference", "-9.00", ""]


def test_runs_on_different_data_are_compared_and_it_is_said(tmp_path: Path):
    runs = [make_run(tmp_path / "fp", recipe="digits-fp", done=1), make_run(tmp_path / "cifar", **CIFAR)]
    comparison = compare(runs)
    assert "different data (digits, cifar10)" in comparison.remarks[0]
    assert comparison.points(comparison.groups[1]) is None


def test_an_unfinished_run_stands_apart_from_the_finished_of_its_recipe(tmp_path: Path):
    runs = [make_run(tmp_path / "a", done=50), make_run(tmp_path / "b", "--seed", "1", done=20, test=None)]
    whole, part = cells(runs)
    assert (whole["epochs"], whole["test"]) == ("50", "90.00 %")
    assert (part["epochs"], part["test"], part["validation"], part["time"]) == (
        "20 of 50",
        "not yet",
        "81.25 %",
        "not yet",
    )
    assert "Unfinished" in compare(runs).remarks[-1]


def test_the_epochs_of_a_twin_are_told_before_the_others(tmp_path: Path):
    begun = ("--epochs", "28", "--pretraining.epochs", "20")
    runs = [make_run(tmp_path / "a", *begun), make_run(tmp_path / "b", *begun, "--seed", "1", done=0, test=None)]
    make_run(tmp_path / "b" / "twin", "--epochs", "20", recipe="digits-fp", done=2, test=None)
    assert [row["epochs"] for row in cells(runs)] == ["20 + 28", "2 + 0 of 20 + 28"]


def test_a_run_given_twice_counts_once(seeds: list[Path]):
    assert compare([seeds[1], seeds[1], seeds[1] / ".." / seeds[1].name]).runs == 1


def test_runs_of_the_same_name_are_told_apart_by_their_folders(tmp_path: Path):
    runs = [make_run(tmp_path / lr / "run", "--optimizer.lr", lr, done=1) for lr in ("0.01", "0.02")]
    assert [row["run"] for row in cells(runs)] == [str(run) for run in runs]


def test_the_csv_holds_plain_numbers(seeds: list[Path]):
    full, ternary = csv.DictReader(compare(seeds).numbers().csv().splitlines())
    assert float(ternary["test_accuracy"]) == pytest.approx(0.92)
    assert float(ternary["test_std"]) == pytest.approx(0.02)
    assert float(ternary["points_to_full_precision"]) == pytest.approx(-3)
    assert float(ternary["seconds"]) == pytest.approx(754.2)
    assert (full["test_std"], full["points_to_full_precision"], full["finished"]) == ("", "", "True")


def test_markdown_cells_stay_in_their_columns(tmp_path: Path):
    run = make_run(tmp_path / "a|b<script>", done=1)
    header, rule, row, *_ = compare([run]).markdown().splitlines()
    assert row.startswith("| a\\|b&lt;script&gt; | digits |")
    assert row.replace("\\|", "").count("|") == header.count("|") == rule.count("|")


def test_the_page_draws_each_group_once_with_its_runs_behind(seeds: list[Path], tmp_path: Path):
    text = write_comparison(compare(seeds), tmp_path)[0].read_text()
    accuracy = text.split("<svg")[1]
    assert accuracy.count(" shown") == 2
    assert accuracy.count(" ghost") == 3
    assert "<script>" not in text.replace("<script>//", "", 1)


def test_the_command_prints_the_table_and_writes_beside_the_first_run(
    seeds: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    names = ("compare.html", "compare.csv", "compare.md")
    assert main(["compare", *map(str, seeds)]) == 0
    printed = capsys.readouterr().out
    assert "92.00 ± 2.00 %" in printed
    assert all(str(seeds[0].parent / name) in printed and (seeds[0].parent / name).exists() for name in names)
    assert main(["compare", *map(str, seeds), "--out", str(tmp_path / "new" / "place")]) == 0
    assert all((tmp_path / "new" / "place" / name).exists() for name in names)


def test_nothing_to_compare_is_an_error():
    with pytest.raises(ValueError, match="name at least one run"):
        compare([])


@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium: apt-get install chromium")
def test_a_browser_shows_the_page_without_a_complaint(seeds: list[Path], tmp_path: Path):
    path = write_comparison(compare(seeds), tmp_path)[0]
    browser = Browser()
    try:
        browser.open(path)
        assert browser.problems == []
        assert browser.requests == [path.as_uri()]
        lengths = browser.evaluate("[...document.querySelectorAll('path.line')].map(one => one.getTotalLength())")
        assert len(lengths) == 20
        assert min(lengths) > 100
        values = json.loads(browser.evaluate("document.querySelector('svg').dataset.chart"))["series"]
        assert [name for name, _ in values] == ["digits-fp-seed0", "digits-ana"]
    finally:
        browser.close()


def test_runs_by_a_glob_may_have_earlier_comparisons_beside_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    make_run(tmp_path / "a", done=1)
    (tmp_path / "demo").mkdir()
    for _ in range(2):
        assert main(["compare", *sorted(map(str, tmp_path.iterdir()))]) == 0
    left_out = ", ".join(str(tmp_path / name) for name in ("compare.csv", "compare.html", "compare.md", "demo"))
    assert capsys.readouterr().err.splitlines()[-1] == f"lehr compare: left out, because they are no runs: {left_out}"
    assert main(["compare", str(tmp_path / "demo")]) == 1
    assert "demo is not a run" in capsys.readouterr().err
    assert main(["compare", str(tmp_path / "a"), str(tmp_path / "missing")]) == 1  # a slip of the pen


def test_a_number_that_is_none_does_not_count(tmp_path: Path):
    runs = [make_run(tmp_path / f"a-seed{seed}", "--seed", str(seed), done=1, test=0.9) for seed in range(2)]
    results = json.loads((runs[1] / "results.json").read_text())
    (runs[1] / "results.json").write_text(json.dumps({**results, "test/accuracy": float("nan")}))
    (row,) = cells(runs)
    assert (row["runs"], row["test"]) == ("2", "90.00 %")
