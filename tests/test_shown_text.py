"""Text of a stranger's run folder does not command the terminal, nor reorder a page, wherever it is shown."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from lehr.cli import main
from lehr.training.folder import RunFolder
from made_runs import make_run, trained_runs

pytestmark = [
    pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec.` is deprecated:FutureWarning"),
    pytest.mark.filterwarnings("default::lehr.training.errors.RunWarning"),
]
ATTACK = "\x1b]0;owned\x07\x1b[2J\r\x9b31m\u202e\u2028x"  # title, bell, cleared screen, C1, right to left, a line


def hostile(path: Path, name: str = ATTACK) -> Path:
    """A run in which every text is an attack."""
    run = make_run(path / name, "--description", "D", info={"command": ["lehr", ATTACK], "commit": ATTACK})
    recipe = run / "recipe.yaml"
    text = recipe.read_text().replace("description: D", f"description: {json.dumps(ATTACK)}")
    recipe.write_text(text.replace("name: digits", f"name: {json.dumps(ATTACK)}"))
    metrics = run / "metrics.csv"
    metrics.write_text(metrics.read_text().replace("layers.1", ATTACK.replace("\r", "").replace("\u2028", "")))
    results = json.loads((run / "results.json").read_text())
    (run / "results.json").write_text(json.dumps({**results, f"share/{ATTACK}/1": 0.5}))
    return run


def assert_harmless(text: str) -> None:
    assert not [c for c in text if not c.isprintable() and c != "\n"]
    assert r"\x1b]0" in re.sub(r"[\s│]", "", text)  # a narrow column breaks its lines


@pytest.mark.parametrize(
    "words", ["report RUN", "compare RUN --out OUT", "summary RUN", "evaluate RUN", "export RUN --to c"]
)
def test_what_a_run_holds_is_shown_with_escapes(words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, out = hostile(tmp_path), tmp_path / "out"
    command = [{"RUN": str(run), "OUT": str(out)}.get(word, word) for word in words.split()]
    main(command)
    captured = capsys.readouterr()
    assert_harmless(captured.out + captured.err)
    pages = [run / "report.html"] if command[0] == "report" else sorted(out.glob("compare.*"))
    assert len(pages) == {"report": 1, "compare": 3}.get(command[0], 0)
    for page in pages:
        assert_harmless(page.read_text(encoding="utf-8"))


def test_results_are_printed_with_escapes(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    run = RunFolder(shutil.copytree(trained_runs(tmp_path_factory) / "digits-ana", tmp_path / ATTACK))
    run.results.write_text(json.dumps({**(run.read_results() or {}), f"share/{ATTACK}/1": 0.5}))
    capsys.readouterr()
    assert main(["train", "--resume", str(run.path)]) == 0
    captured = capsys.readouterr()
    assert_harmless(captured.out + captured.err)
    damaged = run.metrics.read_text().splitlines()
    run.metrics.write_text("\n".join([*damaged, "torn"]) + "\n")
    assert main(["evaluate", str(run.path)]) == 0
    captured = capsys.readouterr()
    assert "skipped damaged line" in captured.err
    assert_harmless(captured.out + captured.err)
