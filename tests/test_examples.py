"""The scripts of examples/ run, learn and write what they say; three of them run as notebooks too."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import jupytext
import nbclient
import nbformat
import pytest
import torch

import processes  # noqa: F401 - its environment lets a kernel import what this process imports

EXAMPLES = Path(__file__).parents[1] / "examples"
SCRIPTS = sorted(EXAMPLES.glob("*.py"))
NOTEBOOKS = [path for path in SCRIPTS if path.read_text().startswith("# %%")]
WRITES = {
    "cnn_to_c": ["digits.lehr", "digits-c/model.c"],
    "custom_method": ["runs/Pulled/results.json"],
    "fine_tune": ["fine-tuned.lehr"],
    "lightning_trainer": ["lightning.lehr"],
    "microcontroller": ["digits-cortex-m4/model.c"],
    "resnet": ["resnet.lehr"],
    "theorem3": [],
}

pytestmark = [
    pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec.` is deprecated:FutureWarning"),
    pytest.mark.filterwarnings("ignore:The 'train_dataloader' does not have many workers"),
]


def stem(path: Path) -> str:
    return path.stem


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MAKEFLAGS", "CFLAGS=-O0")  # quickly
    return tmp_path


def check(script: Path, printed: str, folder: Path) -> None:
    """At the end every example has learned most digits, and written its files."""
    accuracies = [float(number) for number in re.findall(r"(\d+\.\d)%", printed)]
    assert accuracies[-1] > 85
    assert [name for name in WRITES[script.stem] if not (folder / name).exists()] == []
    differences = re.findall(r"images, .*: (\d+) differ", printed)
    assert set(differences) <= {"0"}


@pytest.mark.parametrize("script", [path for path in SCRIPTS if path not in NOTEBOOKS], ids=stem)
def test_a_script_learns_and_writes_its_files(script: Path, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with torch.random.fork_rng():
        runpy.run_path(str(script), run_name="__main__")
    check(script, capsys.readouterr().out, folder)


@pytest.mark.parametrize("script", NOTEBOOKS, ids=stem)
def test_a_notebook_learns_and_writes_its_files(script: Path, folder: Path) -> None:
    notebook = nbformat.read(script.with_suffix(".ipynb"), as_version=4)
    resources = {"metadata": {"path": str(folder)}}
    nbclient.NotebookClient(notebook, timeout=300, kernel_name="python3", resources=resources).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    check(script, "".join(output.get("text", "") for output in outputs), folder)


@pytest.mark.parametrize("script", NOTEBOOKS, ids=stem)
def test_a_notebook_has_the_cells_of_its_script(script: Path) -> None:
    cells = [(cell.cell_type, cell.source) for cell in jupytext.read(script).cells]
    notebook = nbformat.read(script.with_suffix(".ipynb"), as_version=4)
    assert [(cell.cell_type, cell.source) for cell in notebook.cells] == cells, "run `make notebooks`"


@pytest.mark.parametrize("script", SCRIPTS, ids=stem)
def test_an_example_fits_on_a_page(script: Path) -> None:
    assert len(script.read_text().splitlines()) < 80


def test_the_list_of_examples_is_complete() -> None:
    listed = set(re.findall(r"\]\(([\w.]+)\)", (EXAMPLES / "README.md").read_text()))
    there = {path.name for path in EXAMPLES.iterdir() if path.suffix in (".py", ".ipynb")}
    assert listed == there
    assert len(NOTEBOOKS) == 3
