"""The figures that pages, pictures, recipes and the zoo show are those of docs/results.yaml."""

from __future__ import annotations

import re
from copy import deepcopy
from pathlib import Path

import matplotlib
import pytest
import yaml

import results as written
from lehr.report.style import save
from lehr.training.recipes import named, names
from lehr.zoo import networks

RESULTS = written.read()
PERCENT = re.compile(r"\d+\.\d+(?: ± \d+\.\d+)? %")
HOW = "run `make results`"


@pytest.mark.parametrize("path", written.PAGES, ids=lambda path: path.name)
def test_the_tables_of_a_page_are_those_of_the_data_file(path: Path) -> None:
    text = path.read_text()
    assert "<!-- results: " in text
    assert written.page(text, RESULTS) == text, HOW


def test_a_changed_figure_changes_the_page() -> None:
    changed = deepcopy(RESULTS)
    changed["accuracy"][0]["ternary"] = changed["small"][0]["accuracy"] = "12.34 %"
    for path in written.PAGES:
        assert "12.34 %" in written.page(path.read_text(), changed)


def test_the_result_lines_of_recipes_are_those_of_the_data_file() -> None:
    lines = dict(written.recipe_lines(RESULTS))
    for name in names():
        result = named(name).result
        if PERCENT.search(result):
            assert f"result: {result}" == lines.pop(name), HOW
    assert lines == {}, "recipes that do not exist or have no `result:` line"


def test_the_zoo_tells_the_accuracy_of_the_data_file() -> None:
    told = [entry for entry in RESULTS["accuracy"] if "zoo" in entry]
    assert told
    for entry in told:
        assert f"{100 * networks()[entry['zoo']].accuracy:.2f} %" == entry["ternary"]


def test_the_chart_is_drawn_from_the_data_file(tmp_path: Path) -> None:
    committed = written.PICTURE.with_suffix(".svg").read_text()
    if f"Matplotlib v{matplotlib.__version__}" not in committed:
        pytest.skip("another version of matplotlib may place letters elsewhere")
    (drawn,) = save(written.chart(RESULTS), tmp_path / "results", ["svg"])
    assert drawn.read_text() == committed, HOW


@pytest.mark.parametrize("page", ["results.md", "which-method.md"])
def test_every_percentage_of_a_page_is_in_the_lab_notebook(page: str) -> None:
    docs = written.ROOT / "docs"
    notebook = (docs / "lab-notebook.md").read_text()
    shown = PERCENT.findall((docs / page).read_text())
    assert shown
    assert [figure for figure in shown if figure.removesuffix(" %") not in notebook] == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda entry: entry.pop("command"), "lacks command"),
        (lambda entry: entry.update(machine="Z"), "names machine Z, which `machines` does not list"),
    ],
)
def test_a_figure_without_its_provenance_is_refused(
    change, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = deepcopy(RESULTS)
    change(broken["speed"][0])
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "results.yaml").write_text(yaml.safe_dump(broken))
    monkeypatch.setattr(written, "ROOT", tmp_path)
    with pytest.raises(ValueError, match=re.escape(message)):
        written.read()
