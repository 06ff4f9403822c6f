"""`make quick` leaves out what starts programs, trains or compiles, by marks that tests get from their code."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
import torch

from browser import Browser
from lehr import cli
from lehr.training import session
from lehr.training.session import train
from processes import Lehr
from uses import MARKS, marks_of


@pytest.fixture
def opened() -> Browser:
    return Browser()


def started() -> None:
    subprocess.run(["true"], check=True)


class Owner:
    def compiled(self, function):
        return torch.compile(function)


def calls_a_function_that_starts_a_program() -> None:
    started()


def trains_inside_a_comprehension() -> list:
    return [train(recipe, Path("run")) for recipe in ()]


def trains_by_an_attribute() -> None:
    session.train(None, Path("run"))


def calls_a_method_of_a_class() -> None:
    Owner().compiled(len)


def runs_a_command() -> None:
    cli.main(["recipes"])


def starts_lehr() -> None:
    Lehr("recipes", output=Path("log"))


def compiles_a_pattern() -> None:
    re.compile("a")


@pytest.mark.parametrize(
    ("function", "marks"),
    [
        (calls_a_function_that_starts_a_program, {"process"}),
        (trains_inside_a_comprehension, {"training"}),
        (trains_by_an_attribute, {"training"}),
        (calls_a_method_of_a_class, {"compiler"}),
        (runs_a_command, {"command"}),
        (starts_lehr, {"process"}),
        (compiles_a_pattern, set()),
    ],
)
def test_a_test_gets_the_marks_of_what_it_uses(function, marks: set[str]) -> None:
    assert marks_of(function) == marks


def test_a_test_gets_the_marks_of_its_fixtures() -> None:
    assert marks_of(compiles_a_pattern, ("opened", "tmp_path")) >= {"browser"}


def test_make_quick_leaves_every_mark_out() -> None:
    makefile = (Path(__file__).parents[1] / "Makefile").read_text()
    (expression,) = re.findall(r"^QUICK := (.*)$", makefile, flags=re.MULTILINE)
    assert set(re.findall(r"not (\w+)", expression)) == {*MARKS, "slow"}
