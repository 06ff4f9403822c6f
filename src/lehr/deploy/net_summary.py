"""What an integer network costs: bits, multiply-accumulates and bytes of each operation."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass

from lehr.deploy.operations import Affine, Floats, Operation, Shape, Value, Weights
from lehr.printable import printable
from lehr.table import Table as TextTable
from lehr.table import Tabular


@dataclass(frozen=True)
class SummaryRow:
    """One operation in numbers: distinct values as bits, work for one image, size in a packed file."""

    name: str
    operation: str
    shape: Shape
    weight_bits: float  # log2 of the number of levels; 32 for floats; 0 without weights
    value_bits: int  # width of the narrowest signed integer that holds the result; 32 for floats
    macs: int
    bytes: int


@dataclass(frozen=True, repr=False)
class Summary(Tabular):
    """A row for each operation and their totals; `str` is a table, and what of the network is float.

    `floats` are the operations on floats; maps from the last integers to outputs do not count.
    """

    rows: tuple[SummaryRow, ...]
    floats: tuple[str, ...] = ()

    @classmethod
    def of(cls, operations: Sequence[Operation], values: Mapping[str, Value], outputs: Set[str]) -> Summary:
        """Return the summary of a network.

        Args:
            operations: of the network.
            values: what they make, by their names.
            outputs: the names of its results.
        """
        rows = []
        for operation in operations:
            value = values[operation.name]
            weights = operation.weights
            bits = 0.0 if weights is None else 32.0
            if isinstance(weights, Weights):
                bits = max(1.0, math.log2(len(weights.levels)))
            value_bits = 8 * value.dtype.itemsize
            if value.kind == "integer":
                value_bits = 1 + max(value.high, -value.low - 1, 0).bit_length()
            kind = type(operation).__name__
            macs = operation.macs(value)
            rows.append(SummaryRow(operation.name, kind, value.shape, bits, value_bits, macs, operation.bytes))
        floats = (
            operation.name
            for operation in operations
            if values[operation.name].kind == "float"
            and not isinstance(operation, Floats)
            and not (isinstance(operation, Affine) and operation.name in outputs)
        )
        return cls(tuple(rows), tuple(floats))

    @property
    def float_share(self) -> float:
        """The share of the MACs that are computed in float."""
        return sum(row.macs for row in self.rows if row.name in self.floats) / max(self.macs, 1)

    def __str__(self) -> str:
        if not self.floats:
            return super().__str__()
        share = f"{100 * self.float_share:.1f} % of the MACs"
        return f"{super().__str__()}\nin float, with {share}: {printable(', '.join(self.floats))}"

    @property
    def macs(self) -> int:
        """Multiply-accumulates for one image."""
        return sum(row.macs for row in self.rows)

    @property
    def bytes(self) -> int:
        """Size of all constants in a packed file."""
        return sum(row.bytes for row in self.rows)

    def table(self) -> TextTable:
        """Return a row for each operation, and the totals."""
        rows = []
        for row in self.rows:
            bits = f"{row.weight_bits:.3g}" if row.weight_bits else None
            macs = f"{row.macs:,}" if row.macs else None
            shape = "x".join(map(str, row.shape))
            rows.append((row.name, row.operation, shape, bits, row.value_bits, macs, f"{row.bytes:,}"))
        total = ("total", "", "", "", "", f"{self.macs:,}", f"{self.bytes:,}")
        return TextTable(("name", "operation", "shape", "weight bits", "value bits", "MACs", "bytes"), rows, total)

    def __repr__(self) -> str:
        return f"Summary({len(self.rows)} operations, {self.macs:,} MACs, {self.bytes:,} bytes)"
