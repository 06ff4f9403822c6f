"""`lehr approximate`: the networks of Theorem 1 for a formula, a table of their errors, and a picture.

>>> print(approximate_formula("sin(3*x0)*x1", epsilon=0.2))
sin(3*x0)*x1 on [0, 1]^2, Lipschitz constant 3.00009 (certified by interval arithmetic)
epsilon   n     N    bound  measured
1.6       6    36   0.3536    0.2526
0.8      11   121   0.1929    0.1406
0.4      22   484  0.09643   0.07103
0.2      43  1849  0.04933   0.03657
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from lehr.approximation import approximate, sup_error
from lehr.approximation_size import check_memory, size
from lehr.expression import parse
from lehr.table import Table

_COARSER = (8, 4, 2, 1)  # a row for each multiple of epsilon, to show how the error falls
_LABEL = 30  # characters that fit above a panel
_ROUNDING = 1e-9  # of an error, as a share of the values


def approximate_formula(
    formula: str,
    *,
    epsilon: float,
    side: float = 1.0,
    lipschitz: float | None = None,
    tight: bool = False,
    out: Path | None = None,
    formats: Sequence[str] = ("svg", "pdf", "png"),
) -> str:
    """Return a table of the networks of Theorem 1 for a formula: their size, certified bound and measured error.

    Args:
        formula: arithmetic and named functions of x0, x1, ..., such as "sin(3*x0)*x1".
        epsilon: the largest error allowed in the last row.
        side: the domain is [0, side] in each variable.
        lipschitz: a Lipschitz constant; None to certify one by interval arithmetic.
        tight: use the fewest cubes whose bound is epsilon, a quarter of the proof's on each axis.
        out: draw the function, the last network and its error to OUT.svg, OUT.pdf and OUT.png.
        formats: which of these to write.
    """
    f = parse(formula)
    constant = f.lipschitz(side) if lipschitz is None else lipschitz
    known = {"lipschitz": constant, "side": side, "dimension": f.dimension, "tight": tight, "dtype": torch.float64}
    check_memory(size(**known, epsilon=epsilon), torch.float64)  # before time is spent on the coarser ones
    net, rows = None, []
    for factor in _COARSER:
        net = approximate(f, **known, epsilon=factor * epsilon)
        measured = sup_error(net, f)
        if measured > net.bound + _ROUNDING * float(net.values.abs().max()):
            raise ValueError(f"{f} is steeper than lipschitz={constant:g}: the error is {measured:.4g}")
        rows.append((f"{factor * epsilon:.4g}", str(net.n), str(net.N), f"{net.bound:.4g}", f"{measured:.4g}"))
    assert net is not None
    origin = "certified by interval arithmetic" if lipschitz is None else "as given"
    lines = [
        f"{f} on [0, {side:g}]^{f.dimension}, Lipschitz constant {constant:.6g} ({origin})",
        str(Table(("epsilon", "n", "N", "bound", "measured"), rows)),
    ]
    if out is not None:
        from lehr.report.style import save
        from lehr.report.theorem_figures import approximation  # matplotlib is slow to load and not always wanted

        label = f.text if len(f.text) <= _LABEL else f"{f.text[: _LABEL - 1]}…"
        lines += [f"drawn: {path}" for path in save(approximation(f, net, label), out, formats)]
    return "\n".join(lines)
