"""A plain text table: what the library prints where a person reads."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from lehr.printable import printable


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Columns as wide as their longest cell, two spaces apart; control characters in a cell are shown as escapes.

    >>> print(table(("layer", "std"), [("1", "0.2887"), ("12", "0")]))
    layer  std
    1      0.2887
    12     0
    """
    lines = [[printable(cell) for cell in line] for line in (header, *rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    padded = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in lines]
    return "\n".join(line.rstrip() for line in padded)
