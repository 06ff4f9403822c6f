"""A table in four forms: text for terminals, CSV, Markdown, HTML. Everything that lehr prints in columns is a `Table`.

>>> table = Table(("layer", "kind", "weights"), [("conv", "Conv2d", 432), ("fc", "Linear", 10_240)])
>>> print(table)
layer  kind    weights
conv   Conv2d      432
fc     Linear    10240
>>> print(table.markdown())
| layer | kind | weights |
|---|---|--:|
| conv | Conv2d | 432 |
| fc | Linear | 10240 |
"""

from __future__ import annotations

import abc
import csv
import html
import io
import re
import shutil
import sys
import unicodedata
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from lehr.printable import printable

_GAP = 2  # spaces between columns
_NARROWEST = 16  # a column that wraps is not made narrower than this: nobody reads a word a line
_QUANTITY = r"[-+−]?\d+(?:[,.]\d+)*(?: ?(?:%|x|ms|s|min|h|B|kB|MB|GB))?"
_NUMBER = re.compile(rf"{_QUANTITY}(?: (?:± |\+ |of )?{_QUANTITY})*")  # also "12 min 3 s", "92.00 ± 0.31 %", "20 + 28"
_DIGIT = re.compile(r"\d")


@dataclass(frozen=True)
class Table:
    """Rows of cells below a header. Columns of numbers, but for the first, are aligned to the right.

    Args:
        header: the names of the columns.
        rows: the cells. None is an empty cell; control characters are shown as escapes.
        footer: a last row, such as totals.
    """

    header: Sequence[str]
    rows: Sequence[Sequence[object]]
    footer: Sequence[object] | None = None

    def __str__(self) -> str:
        return self.text()

    def text(self, width: int | None = None) -> str:
        """Return aligned columns, two spaces apart.

        A table that is too wide wraps its cells between words, except for the first column, which holds names. If that
        is not enough, each row becomes a paragraph. No word is ever cut.

        Args:
            width: the columns of the terminal; None for no limit.

        >>> table = Table(("recipe", "result"), [("digits-ana", "97.9 % on the test images")])
        >>> print(table.text(30))
        recipe      result
        digits-ana  97.9 % on the test
                    images
        >>> print(table.text(20))
        digits-ana
          result  97.9 % on
                  the test
                  images
        """
        header, *lines = self._lines()
        columns = list(zip(header, *lines, strict=True))
        widths = [max(map(_width, column)) for column in columns]
        if width is not None and sum(widths) + _GAP * (len(widths) - 1) > width:
            shrunk = _shrink(columns, widths, width)
            if shrunk is None:
                return _paragraphs(header, lines, width)
            widths = shrunk
        numbers = self._numbers()
        return "\n".join(_aligned(line, widths, numbers) for line in (header, *lines))

    def csv(self) -> str:
        """Return comma-separated values with a header, without the footer."""
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([self.header, *replace(self, footer=None)._lines()[1:]])
        return text.getvalue()

    def markdown(self) -> str:
        """Return a table of GitHub's Markdown."""
        lines = [[html.escape(cell, quote=False).replace("|", r"\|") for cell in line] for line in self._lines()]
        drawn = [f"| {' | '.join(line)} |" for line in lines]
        rule = "".join("--:|" if number else "---|" for number in self._numbers())
        return "\n".join([drawn[0], f"|{rule}", *drawn[1:]])

    def html(self, look: str = "") -> str:
        """Return a table element. Cells of columns that are not numbers have the class "text".

        Args:
            look: the class of the table in a style sheet.
        """
        header, *lines = self._lines()
        numbers = self._numbers()

        def row(line: Sequence[str], scope: str) -> str:
            cells = []
            for at, (cell, number) in enumerate(zip(line, numbers, strict=True)):
                tag = f'th scope="{scope}"' if at == 0 or scope == "col" else "td"
                kind = "" if number or at == 0 else ' class="text"'
                cells.append(f"<{tag}{kind}>{html.escape(cell)}</{tag[:2]}>")
            return f"<tr>{''.join(cells)}</tr>"

        body = [row(line, "row") for line in lines]
        foot = f"<tfoot>{body.pop()}</tfoot>" if self.footer is not None else ""
        opening = f'<table class="{html.escape(look)}">' if look else "<table>"
        return f"{opening}<thead>{row(header, 'col')}</thead><tbody>{''.join(body)}</tbody>{foot}</table>"

    def without_shared(self, names: Collection[str]) -> tuple[str, Table]:
        """Split off the columns that have the same cell in all rows; return these in words, and the narrower table.

        Columns without any cell are dropped.

        Args:
            names: the columns that may be split off.

        >>> shared, rest = Table(("run", "data"), [("a", "digits"), ("b", "digits")]).without_shared(["data"])
        >>> shared, rest.header, rest.rows
        ('data digits', ('run',), (('a',), ('b',)))
        """
        same = [
            name in names and len(self.rows) > 1 and len({row[at] for row in self.rows}) == 1
            for at, name in enumerate(self.header)
        ]
        shared = [f"{self.header[at]} {_cell(self.rows[0][at])}" for at, alike in enumerate(same) if alike]
        same = [
            alike or (bool(self.rows) and not any(_cell(row[at]) for row in self.rows)) for at, alike in enumerate(same)
        ]

        def kept(row: Sequence[object]) -> tuple[object, ...]:
            return tuple(cell for cell, alike in zip(row, same, strict=True) if not alike)

        header = tuple(map(str, kept(self.header)))
        footer = None if self.footer is None else kept(self.footer)
        return ", ".join(shared), Table(header, tuple(map(kept, self.rows)), footer)

    def _lines(self) -> list[list[str]]:
        lines = (self.header, *self.rows, *([] if self.footer is None else [self.footer]))
        return [[_cell(cell) for cell in line] for line in lines]

    def _numbers(self) -> list[bool]:
        """Return for each column but the first, which is names, whether it is numbers, or words such as "not yet"."""
        columns = list(zip(*([_cell(cell) for cell in row] for row in self.rows), strict=True))
        found = [_is_numbers([cell for cell in column if cell]) for column in columns]
        return [False, *found[1:]] if found else [False] * len(self.header)


class Tabular(abc.ABC):
    """Something that prints as a table, in notebooks as an HTML table."""

    @abc.abstractmethod
    def table(self) -> Table:
        """Return it as a table."""

    def __str__(self) -> str:
        return str(self.table())

    def _repr_html_(self) -> str:
        return self.table().html()


def show(table: Table, title: str = "") -> None:
    """Print a table, wrapped to the width of the terminal; at full width where the output is a file or a pipe."""
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    if title:
        print(printable(title))
    print(table.text(width))


def _cell(value: object) -> str:
    return "" if value is None else printable(value)


def _is_numbers(cells: Sequence[str]) -> bool:
    numbers = [_NUMBER.fullmatch(cell) is not None for cell in cells]
    return any(numbers) and all(number or not _DIGIT.search(cell) for cell, number in zip(cells, numbers, strict=True))


def _width(text: str) -> int:
    """Return how many columns of a terminal a text takes: Chinese characters take two, accents none."""
    if text.isascii():
        return len(text)
    return sum(0 if unicodedata.combining(c) else 1 + (unicodedata.east_asian_width(c) in "WF") for c in text)


def _shrink(columns: Sequence[Sequence[str]], widths: Sequence[int], width: int) -> list[int] | None:
    """Narrow the widest columns until the table fits; None if a word would be cut. The first column keeps its width."""
    words = [max(_width(word) for cell in column for word in cell.split() or [""]) for column in columns]
    least = [min(width, max(word, _NARROWEST)) for width, word in zip(widths, words, strict=True)]
    least[0] = widths[0]
    shrunk = list(widths)
    while sum(shrunk) + _GAP * (len(shrunk) - 1) > width:
        able = [at for at in range(len(shrunk)) if shrunk[at] > least[at]]
        if not able:
            return None
        shrunk[max(able, key=shrunk.__getitem__)] -= 1
    return shrunk


def _aligned(line: Sequence[str], widths: Sequence[int], numbers: Sequence[bool]) -> str:
    wrapped = [_wrapped(cell, width) for cell, width in zip(line, widths, strict=True)]
    drawn = []
    for at in range(max(map(len, wrapped))):
        cells = []
        for parts, width, number in zip(wrapped, widths, numbers, strict=True):
            part = parts[at] if at < len(parts) else ""
            space = " " * (width - _width(part))
            cells.append(space + part if number else part + space)
        drawn.append((" " * _GAP).join(cells).rstrip())
    return "\n".join(drawn)


def _wrapped(text: str, width: int) -> list[str]:
    """Cut a text between words into lines of at most `width`; a longer word has a line of its own."""
    if _width(text) <= width:
        return [text]
    lines = [""]
    for word in text.split():
        longer = f"{lines[-1]} {word}".lstrip()
        if _width(longer) <= width or not lines[-1]:
            lines[-1] = longer
        else:
            lines.append(word)
    return lines


def _paragraphs(header: Sequence[str], lines: Sequence[Sequence[str]], width: int) -> str:
    """Return a name for each row and its other cells below it, one to a line."""
    label = max(map(_width, header[1:]), default=0)
    drawn = []
    for name, *cells in lines:
        drawn.append(name)
        for column, cell in zip(header[1:], cells, strict=True):
            indent = f"  {column}{' ' * (label - _width(column))}  "
            for at, part in enumerate(_wrapped(cell, width - label - 4) if cell else []):
                drawn.append((indent if at == 0 else " " * (label + 4)) + part)
    return "\n".join(drawn)
