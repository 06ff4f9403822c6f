"""A recipe from a file imports only lehr's classes unless the user trusts others; showing one never imports them."""

from __future__ import annotations

import contextlib
import copy
import functools
import itertools
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from lehr.algorithms import ANA
from lehr.training import trust
from lehr.training.recipes import RecipeError, dump, named, read
from lehr.training.untrusted import read_to_show
from made_runs import make_run
from processes import lehr

NUMBERS = itertools.count()
FORMS: dict[str, Callable[[str], Any]] = {
    "a string": lambda path: path,
    "a string in spaces": lambda path: f" {path}\n",
    "a class": lambda path: {"class_path": path},
    "a class with settings": lambda path: {"class_path": path, "init_args": {"a": 1}},
    "a class within lehr's": lambda path: {"class_path": "lehr.algorithms.ANA", "init_args": {"noise": path}},
    "a class within lehr's, as a class": lambda path: {
        "class_path": "lehr.algorithms.ANA",
        "init_args": {"noise": {"class_path": path}},
    },
    "unknown settings": lambda path: {"class_path": "lehr.algorithms.ANA", "dict_kwargs": {"a": {"class_path": path}}},
    "JSON in a string": lambda path: json.dumps({"class_path": path}),
    "a list": lambda path: [{"class_path": path}],
    "a class of a class": lambda path: {"class_path": {"class_path": path}},
}


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], str]:
    """Return a function that writes a new module with a class X and returns its name."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def make() -> str:
        name = f"strangers_module_{next(NUMBERS)}"
        (tmp_path / f"{name}.py").write_text("class X: pass\n")
        return name

    return make


def places(content: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every key and index of plain data."""
    items = content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()
    for key, value in items:
        yield (*at, key)
        yield from places(value, (*at, key))


def changed(content: Any, place: tuple[Any, ...], value: Any) -> Any:
    content = copy.deepcopy(content)
    functools.reduce(lambda below, key: below[key], place[:-1], content)[place[-1]] = value
    return content


@pytest.mark.parametrize("form", FORMS)
def test_no_key_of_a_recipe_imports_a_strangers_module(
    form: str, modules: Callable[[], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = yaml.safe_load(dump(named("digits-ana", ["--annealing.backward_law", "Constant"])))
    path = tmp_path / "recipe.yaml"
    refused, module = [], ""
    every = list(places(whole))
    for place in every if form in ("a string", "a class") else [place for place in every if len(place) == 1]:
        module = modules()
        path.write_text(yaml.safe_dump(changed(whole, place, FORMS[form](f"{module}.X"))))
        for reader in (read, read_to_show) if form == "a class" else (read,):
            try:
                reader(path)
            except RecipeError as error:
                refused += [place] * (f"it names {module}.X, a class that is not lehr's" in str(error))
            assert module not in sys.modules, place
    assert ("algorithm",) in refused or form in ("a string in spaces", "a list")
    monkeypatch.setenv("LEHR_TRUST", "1")
    if form == "a class":  # the attack is real
        path.write_text(yaml.safe_dump(changed(whole, ("data",), {"class_path": f"{module}.X"})))
        with pytest.raises(RecipeError):
            read(path)
        assert module in sys.modules


def test_a_recipe_does_not_send_to_another_file(modules: Callable[[], str], tmp_path: Path) -> None:
    whole = yaml.safe_load(dump(named("digits-ana", ["--annealing.backward_law", "Constant"])))
    path, other = tmp_path / "recipe.yaml", tmp_path / "other.yaml"
    for place in places(whole):
        module = modules()
        other.write_text(f"class_path: {module}.X\n")
        path.write_text(yaml.safe_dump(changed(whole, place, str(other))))
        with contextlib.suppress(RecipeError):
            read(path)
        assert module not in sys.modules, place
    path.write_text(yaml.safe_dump({**whole, "data": str(other)}))
    with pytest.raises(RecipeError, match=r"data must hold keys and values, got '/.*other\.yaml'"):
        read(path)


@pytest.mark.parametrize("key", ["algorithm.class_path", "annealing.law", "annealing.law.class_path"])
def test_dotted_keys_do_not_go_round_it(key: str, modules: Callable[[], str], tmp_path: Path) -> None:
    module, path = modules(), tmp_path / "recipe.yaml"
    path.write_text(dump(named("digits-ana")) + f"{key}: {module}.X\n")
    for reader in (read, read_to_show):
        with pytest.raises(RecipeError, match=f"it names {module}.X, a class that is not lehr's"):
            reader(path)
    assert module not in sys.modules


@pytest.mark.parametrize(
    "path", ["lehr.__main__.main", "lehr.algorithms.ana.torch.nn.Linear", "lehr.algorithms.algorithm.nn.Linear"]
)
def test_what_lehr_itself_imports_and_its_program_are_not_lehrs_classes(path: str) -> None:
    assert list(trust.foreign({"model": path})) == [(("model",), path)]


class Own(ANA):
    """An algorithm that the program has already imported."""


def test_a_class_that_the_program_has_imported_itself_needs_no_trust(tmp_path: Path) -> None:
    recipe = named("digits-ana", ["--algorithm", f"{__name__}.Own"])
    (tmp_path / "recipe.yaml").write_text(dump(recipe))
    assert read(tmp_path / "recipe.yaml") == recipe
    assert isinstance(recipe.algorithm, Own)


@pytest.mark.parametrize(
    ("value", "trusted"), [("1", True), ("all", True), ("a, mine", True), ("a,b", False), ("0", False), ("min", False)]
)
def test_the_variable_names_packages_or_everything(value: str, trusted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEHR_TRUST", value)
    assert (not list(trust.foreign("mine.Method"))) == trusted
    with trust.trusting(False):
        assert list(trust.foreign("mine.Method"))


# The command line, in separate processes.

METHOD = """
import pathlib
from dataclasses import dataclass
from lehr.algorithms import ANA
pathlib.Path({mark!r}).touch()

@dataclass(frozen=True)
class Own(ANA):
    pull: float = 0.5
"""


@pytest.mark.parametrize("form", ["{}.X", "{}:X", "{}.sub:X", " {}.X"])
def test_a_network_that_a_file_names_is_not_imported(form: str, tmp_path: Path, modules: Callable[[], str]) -> None:
    module = modules()
    content = yaml.safe_load(dump(named("digits-ana"))) | {"model": {"class_path": form.format(module)}}
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(content))
    with pytest.raises(RecipeError, match=module):
        read(tmp_path / "recipe.yaml")
    assert module not in sys.modules


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A run of a user's method, given on the command line, and a file that exists once its module was imported."""
    folder = tmp_path_factory.mktemp("own")
    mark = folder / "imported"
    (folder / "mymethods.py").write_text(METHOD.format(mark=str(mark)))
    words = ("digits-ana", "--algorithm", "mymethods.Own", "--epochs", 1, "--annealing.schedule.duration", 0, "--out")
    words = ("train", *words, folder / "run", "--model.hidden", "[16]")
    code, output = lehr(*words, output=folder / "log", before=functools.partial(_prepare, str(folder), None))
    assert code == 0, output
    assert mark.exists()
    return folder / "run", mark


def called(own: tuple[Path, Path], *words: object, trusted: str | None = None) -> tuple[int, str, bool]:
    """Return the exit code, the output, and whether the module was imported."""
    run, mark = own
    mark.unlink(missing_ok=True)
    before = functools.partial(_prepare, str(run.parent), trusted)
    code, output = lehr(*words, output=run.parent / "log", before=before)
    return code, output, mark.exists()


def _prepare(folder: str, trusted: str | None) -> None:
    sys.path.insert(0, folder)
    if trusted is not None:
        os.environ["LEHR_TRUST"] = trusted


@pytest.mark.parametrize("words", ["evaluate RUN", "summary RUN", "export RUN --to packed", "train --resume RUN"])
def test_a_run_of_another_class_needs_trust_and_says_what_to_type(words: str, own: tuple[Path, Path]) -> None:
    command = [str(own[0]) if word == "RUN" else word for word in words.split()]
    code, output, imported = called(own, *command)
    assert (code, imported) == (2, False)
    told = "it names mymethods.Own, a class that is not lehr's, and importing it runs its code: if you trust it, "
    assert output == f"lehr {command[0]}: recipe {own[0]}/recipe.yaml: {told}add --trust or set LEHR_TRUST=mymethods\n"
    assert called(own, *command, "--trust")[::2] == (0, True)
    assert called(own, *command, trusted="mymethods")[::2] == (0, True)


def test_starting_from_such_a_run_needs_trust_too(own: tuple[Path, Path]) -> None:
    run = own[0]
    code, output, imported = called(own, "train", "digits-ana", "--from", run, "--out", run.parent / "from")
    assert (code, imported) == (2, False)
    assert "it names mymethods.Own" in output
    assert not (run.parent / "from").exists()


@pytest.mark.parametrize("trusted", [None, "1"])
def test_a_report_imports_nothing_and_shows_what_it_can(own: tuple[Path, Path], trusted: str | None) -> None:
    code, output, imported = called(own, "report", own[0], trusted=trusted)
    assert (code, imported) == (0, False), output
    page = (own[0] / "report.html").read_text()
    assert "validation accuracy" in page
    assert "a report imports only classes of lehr, and this needs mymethods.Own" in page
    code, output, _ = called(own, "report", own[0], "--trust")
    assert code == 2
    assert "--trust is for train, evaluate, summary, compare, export: report imports no class" in output


def test_a_comparison_shows_the_run_and_says_what_it_did_not_import(own: tuple[Path, Path]) -> None:
    words = ("compare", own[0], "--out", own[0].parent / "compared")
    code, output, imported = called(own, *words)
    assert (code, imported) == (0, False), output
    assert "Own" in output
    assert "Not imported, because they are not part of lehr: mymethods.Own. --trust imports them." in output
    code, output, imported = called(own, *words, "--trust")
    assert (code, imported) == (0, True), output
    assert "Not imported" not in output


def test_a_strangers_law_is_left_out_of_what_is_shown(tmp_path: Path, modules: Callable[[], str]) -> None:
    run, module = make_run(tmp_path / "run"), modules()
    recipe = run / "recipe.yaml"
    recipe.write_text(recipe.read_text().replace("lehr.annealing.LinearDecay", f"{module}.X"))
    shown, left_out = read_to_show(recipe)
    assert (shown.epochs, left_out) == (50, (f"{module}.X",))
    code, output = lehr("report", run, output=tmp_path / "log")
    assert code == 0, output
    shutil.rmtree(run)
