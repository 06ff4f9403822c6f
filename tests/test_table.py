"""One table in four forms; names stay whole in a narrow terminal."""

from __future__ import annotations

import csv
import html.parser

import numpy as np
import pytest
import torch
from torch import nn

import lehr
from lehr.annealing import Hierarchical
from lehr.deploy.operations import Flatten, Linear, Weights
from lehr.deploy.operations import Table as PixelTable
from lehr.summary import summarize
from lehr.table import Table, Tabular

RECIPES = Table(
    ("recipe", "data", "method", "result"),
    [
        ("cifar10-flagship", "cifar10", "STE, half-width 1", "91.23 % on the test images, one seed"),
        ("digits-ana", "digits", "ANA asynchronous, linear", None),
    ],
)


@pytest.mark.parametrize("width", [25, 40, 60, 80, 120])
def test_a_narrow_table_keeps_every_word_whole_and_within_the_width(width: int) -> None:
    text = RECIPES.text(width)
    assert max(map(len, text.splitlines())) <= width
    words = {word for row in RECIPES.rows for cell in row if cell for word in str(cell).split()}
    assert words <= set(text.split())


def test_names_stand_on_one_line_however_narrow() -> None:
    table = Table(("a name", "n"), [("two words", 1)])
    assert "two words" in table.text(5)


def test_numbers_are_aligned_to_the_right_and_words_to_the_left() -> None:
    table = Table(
        ("name", "bytes", "share"), [("a", "1,234", "5.00 %"), ("bc", "7", "10.00 %")], ("total", "1,241", "")
    )
    assert str(table).splitlines() == [
        "name   bytes    share",
        "a      1,234   5.00 %",
        "bc         7  10.00 %",
        "total  1,241",
    ]
    assert table.markdown().splitlines()[1] == "|---|--:|--:|"


def test_wide_characters_take_two_columns() -> None:
    lines = str(Table(("class", "n"), [("青蛙", "1"), ("frog", "2")])).splitlines()
    assert lines[1:] == ["青蛙   1", "frog   2"]


def test_every_form_makes_a_cell_harmless() -> None:
    table = Table(("run", "note"), [("a|b<script>", "x\x1b[31m\n,y")])
    assert "\x1b" not in table.text() + table.csv() + table.markdown() + table.html()
    assert table.markdown().splitlines()[2].startswith("| a\\|b&lt;script&gt; |")
    assert "<script>" not in table.html()
    assert list(csv.reader(table.csv().splitlines())) == [["run", "note"], ["a|b<script>", "x\\x1b[31m\\n,y"]]


def test_the_html_is_well_formed_with_its_total_in_the_foot() -> None:
    class Cells(html.parser.HTMLParser):
        def __init__(self) -> None:
            super().__init__()
            self.open: list[str] = []
            self.found: list[tuple[str, str]] = []

        def handle_starttag(self, tag: str, attrs: object) -> None:
            self.open.append(tag)

        def handle_endtag(self, tag: str) -> None:
            assert self.open.pop() == tag

        def handle_data(self, data: str) -> None:
            self.found.append((self.open[1], data))

    cells = Cells()
    cells.feed(Table(("name", "bytes"), [("a", 3)], ("total", 3)).html("numbers"))
    assert cells.open == []
    assert cells.found == [
        ("thead", "name"),
        ("thead", "bytes"),
        ("tbody", "a"),
        ("tbody", "3"),
        ("tfoot", "total"),
        ("tfoot", "3"),
    ]


def test_what_all_rows_share_is_told_once() -> None:
    shared, table = Table(("run", "data", "test"), [("a", "digits", 1), ("b", "digits", 2)]).without_shared(["data"])
    assert (shared, table.header) == ("data digits", ("run", "test"))
    empty = Table(("run", "bytes"), [("a", None), ("b", "")]).without_shared(["data"])
    assert empty == ("", Table(("run",), (("a",), ("b",))))
    alone = Table(("run", "data"), [("a", "digits")])
    assert alone.without_shared(["data"]) == ("", Table(("run", "data"), (("a", "digits"),)))


def everything_shown() -> list[tuple[object, str]]:
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    conversion = lehr.quantize_(model)
    pixels = PixelTable("pixels", np.arange(256)[None] // 128)
    sums = Linear("sums", "flat", Weights.of(np.ones((500, 400), dtype=np.int64)))
    net = lehr.deploy.IntegerNet((1, 20, 20), (pixels, Flatten("flat", "pixels"), sums))
    return [
        (conversion, "Conversion(3 of 3 modules converted)"),
        (lehr.Annealer(model, Hierarchical(5)), "Annealer(2 layers, epoch 0 of 10)"),
        (summarize(model, torch.zeros(1, 1, 2, 2)), "Summary(2 layers, 48 MACs, 51 bytes)"),
        (net, "IntegerNet(1x20x20 images to 500 logits, 3 operations, 200,000 MACs"),
        (net.summary(), "Summary(3 operations, 200,000 MACs"),
        (lehr.deploy.compile(net, instruction_set="scalar"), "Engine(1x20x20 images, scalar, 1 thread)"),
    ]


def test_what_a_notebook_shows_is_a_table_and_what_python_shows_a_line() -> None:
    for shown, line in everything_shown():
        assert repr(shown).startswith(line), repr(shown)
        assert len(repr(shown)) < 150
        assert "\n" not in repr(shown)
        assert shown._repr_html_().startswith("<table>")  # pyright: ignore[reportAttributeAccessIssue]
        if isinstance(shown, Tabular):
            assert str(shown).startswith(str(shown.table()))
