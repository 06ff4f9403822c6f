"""A plain text table: what the library prints where a person reads."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Columns as wide as their longest cell, two spaces apart.

    >>> print(table(("layer", "std"), [("1", "0.2887"), ("12", "0")]))
    layer  std
    1      0.2887
    12     0
    """
    lines = [header, *rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    padded = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in lines]
    return "\n".join(line.rstrip() for line in padded)
