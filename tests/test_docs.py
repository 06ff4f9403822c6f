"""README and docs: their Python runs, their commands are taken, their numbers were measured, their picture is drawn."""

from __future__ import annotations

import argparse
import inspect
import re
import shlex
import sys
import types
from pathlib import Path

import matplotlib
import pytest
import torch

from imagenet_files import write_tree
from lehr import cli
from lehr.cli import recipe_commands
from lehr.cli.arguments import parser_of
from lehr.training.recipes import dump, named

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
PAGES = [README, *sorted((ROOT / "docs").rglob("*.md"))]
PYTHON = re.compile(r"```python\n(.*?)```", re.DOTALL)
ELSEWHERE = {"own-model.md"}  # test_own_model runs it and looks at what it leaves
FENCE = re.compile(r"^```(\w*).*?\n(.*?)^```", re.DOTALL | re.MULTILINE)

pytestmark = pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec.` is deprecated:FutureWarning")


def page_id(page: Path) -> str:
    return page.name


def with_python() -> list[Path]:
    return [page for page in PAGES if PYTHON.search(page.read_text()) and page.name not in ELSEWHERE]


@pytest.mark.slow
@pytest.mark.parametrize("page", with_python(), ids=page_id)
def test_the_python_of_a_page_runs_from_top_to_bottom(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for part in ("train", "val"):
        write_tree(Path("DIR"), split=part)  # the images of docs/imagenet.md
    module = types.ModuleType("page")  # as a file of the reader's: its classes can be imported by name
    monkeypatch.setitem(sys.modules, "page", module)
    with torch.random.fork_rng():
        exec(compile("\n".join(PYTHON.findall(page.read_text())), str(page), "exec"), module.__dict__)


def commands(text: str) -> list[list[str]]:
    """The words of each `lehr ...` line in a page's code blocks, comments removed, lines continued."""
    shells = [body for language, body in FENCE.findall(text) if language in ("", "sh", "console")]
    plain = FENCE.sub("", text)
    shells += [line[4:] for line in plain.replace("\\\n", " ").splitlines() if line.startswith("    ")]
    lines = "\n".join(shells).replace("\\\n", " ").splitlines()
    found = [re.search(r"(?:^|srun |-m )lehr(?:\.cli)? (.*)", line) for line in lines]
    return [shlex.split(match[1].partition(" > ")[0], comments=True) for match in found if match]


def shown() -> list[tuple[str, list[str]]]:
    """Every command, with the last page that shows it."""
    found = {tuple(words): page.name for page in PAGES for words in commands(page.read_text())}
    return [(page, list(words)) for words, page in found.items()]


def test_pages_show_commands() -> None:
    told = {words[0] for _, words in shown()}
    assert {"train", "evaluate", "export", "predict", "bench", "compare", "report", "recipes", "figures"} <= told


@pytest.mark.parametrize(("page", "words"), shown(), ids=lambda value: value if isinstance(value, str) else value[0])
def test_every_command_shown_is_one_that_lehr_takes(
    page: str, words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    Path("my-recipe.yaml").write_text(dump(named("digits-ana")))
    blocks = [
        body for language, body in FENCE.findall((ROOT / "docs" / "extend.md").read_text()) if "class TinyNet" in body
    ]
    Path("mynets.py").write_text("from torch import nn\n" + blocks[0])
    words = [word for word in words if word != cli.TRUST]
    word, *arguments = ["digits-ana" if word == "RECIPE" else word for word in words]
    assert word in cli.COMMANDS, f"{page} shows lehr {word}"
    reads_its_words_itself = [*inspect.signature(cli.COMMANDS[word]).parameters] == ["arguments"]
    if reads_its_words_itself:  # all of it but the work
        for work in ("_train", "_print_comparison"):
            monkeypatch.setattr(recipe_commands, work, lambda *_: None)
        monkeypatch.setattr(recipe_commands, "_compare_methods", read_recipes)
    if reads_its_words_itself or word in ("recipes", "approximate"):
        assert cli.main([word, *arguments]) == 0, capsys.readouterr().err
    else:
        parser_of(word, cli.COMMANDS[word]).parse_args(arguments)


def read_recipes(options: argparse.Namespace, keys: list[str]) -> None:
    """What `lehr compare --methods` does before it trains: a wrong method, data set or key is an error."""
    assert options.seeds > 0
    for method in ["fp", "ana"] if options.methods == ["all"] else options.methods:
        named(f"{options.dataset}-{method}", keys)


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_commands_in_passing_exist(page: Path) -> None:
    words = set(re.findall(r"`lehr ([a-z]\w*)", page.read_text()))
    assert words <= set(cli.COMMANDS)


@pytest.mark.parametrize("page", [README, ROOT / "CONTRIBUTING.md"], ids=page_id)
def test_files_the_front_pages_link_to_exist(page: Path) -> None:
    links = re.findall(r"\]\(([^)#]+)[^)]*\)|src=\"([^\"]+)\"", page.read_text())
    local = [link for pair in links for link in pair if link and "://" not in link]
    assert local
    assert [link for link in local if not (ROOT / link).exists()] == []


def test_the_picture_of_the_readme_is_what_its_command_draws(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = re.search(r"<!-- drawn by: lehr (.*?) -->", README.read_text())
    assert told
    monkeypatch.chdir(tmp_path)
    assert cli.main(shlex.split(told[1])) == 0
    (drawn,) = (tmp_path / "docs").rglob("*.svg")
    committed = ROOT / drawn.relative_to(tmp_path)
    assert f"({committed.relative_to(ROOT)})" in README.read_text()
    if f"Matplotlib v{matplotlib.__version__}" in committed.read_text():  # another one may place letters otherwise
        assert drawn.read_text() == committed.read_text()


def test_the_set_up_the_readme_asks_for_is_in_the_makefile() -> None:
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    asked = {word for page in PAGES for word in re.findall(r"^ {4}make (\w+)", page.read_text(), flags=re.MULTILINE)}
    assert {"demo", "test", "docs"} <= asked <= targets
