"""Theorem 1 as a constructor: it turns a Lipschitz function into a quantized network with a certified bound.

The domain [0, S]^n0 is cut into N = n^n0 cubes of side S/n. A first layer with weights {-1, 0, 1} tests on which side
of each cube's 2 n0 faces a point lies; a second with weights {0, 1} finds the one cube that passes all its tests. Both
have Heaviside activations. An affine layer reads the value of f at the cube's centre. No point is farther than
√n0 S/2n from that centre, so with λ the Lipschitz constant in the Euclidean norm::

    |Φ(x) - f(x)| <= λ √n0 S / 2n <= ε/4    for the proof's n >= 2 √n0 S λ / ε

The proof takes the mean of f over a cube, but only uses that f has this value somewhere in it.

>>> import torch
>>> net = approximate(lambda x: x[:, 0].sin(), lipschitz=1, side=3, dimension=1, epsilon=0.1)
>>> net
Approximation(dimension=1, side=3, n=60, N=60, bound=0.025)
>>> x = torch.linspace(0, 3, 1000)[:, None]
>>> bool((net(x) - x[:, 0].sin()).abs().max() <= net.bound)
True

The 2 n0 N + N rows of the two layers are N outer products of n tests on each axis, so `Approximation` keeps only the
n + 1 thresholds and the N values; `Approximation.dense` is the network of the proof, layer by layer, which computes the
same bits, and `Approximation.on_bytes` the same for 8-bit points, to `lehr.freeze` and export.

**Faces.** The paper's closed cubes share their faces; here they are half-open, [a, b), and closed at the upper end of
the domain, so that exactly one is active at every point. In floating point an open side is a closed one at the
neighbouring number: x < b is x <= b' for the largest b' below b, so H, with H(0) = 1, replaces the proof's σ⁻.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from lehr.approximation_size import Size, check_memory, refuse_beyond_memory, size
from lehr.layers import Linear
from lehr.multistep import MultiStep
from lehr.noise import Dirac
from lehr.quantizer import Quantizer

Function = Callable[[Tensor], Tensor]  # (batch, dimension) -> (batch,) or (batch, 1)

_BLOCK = 2**16  # points in one call of f


def approximate(
    f: Function,
    *,
    lipschitz: float,
    dimension: int,
    epsilon: float,
    side: float = 1.0,
    tight: bool = False,
    dtype: torch.dtype | None = None,
) -> Approximation:
    """Build the quantized network within ε of `f` on [0, side]^dimension.

    Args:
        f: maps points (batch, dimension) to (batch,) or (batch, 1), as the network will.
        lipschitz: the constant of f in the Euclidean norm, on which the bound depends; raise ValueError if values at
            neighbouring centres contradict it.
        dimension: n0, the number of coordinates.
        epsilon: ε, the allowed distance from f.
        side: S, the length of the domain's edges.
        tight: use the fewest cubes whose bound is ε instead of the proof's n, which is four times as large.
        dtype: of the network and of the points at which f is evaluated.

    Raises:
        MemoryError: if the network does not fit in memory; the message names its size.
    """
    dtype = torch.get_default_dtype() if dtype is None else dtype
    plan = size(lipschitz=lipschitz, dimension=dimension, epsilon=epsilon, side=side, tight=tight, dtype=dtype)
    check_memory(plan, dtype)
    thresholds = _thresholds(plan.n, side, dtype)
    middles = ((torch.arange(plan.n, dtype=torch.float64) + 0.5) / plan.n * side).to(dtype)
    values, column = [], False
    with torch.no_grad():
        for start in range(0, plan.N, _BLOCK):
            cells = torch.arange(start, min(start + _BLOCK, plan.N))
            centres = middles[_unravel(cells, plan.n, dimension)]
            block = f(centres)
            if not isinstance(block, Tensor):
                raise TypeError(
                    f"f must map points ({len(cells)}, {dimension}) to a tensor ({len(cells)},) or ({len(cells)}, 1), "
                    f"got {type(block).__name__}: compute with torch"
                )
            column = block.shape == (len(cells), 1)
            if not column and block.shape != (len(cells),):
                raise ValueError(
                    f"f must map points ({len(cells)}, {dimension}) to ({len(cells)},) or ({len(cells)}, 1), "
                    f"got {tuple(block.shape)}"
                )
            values.append(block.reshape(-1).to(dtype))
            if not bool(values[-1].isfinite().all()):
                where = centres[int((~values[-1].isfinite()).nonzero()[0])].tolist()
                raise ValueError(f"f is not finite at {where}")
    table = torch.cat(values)
    _check_slopes(table, plan.n, lipschitz, side)
    return Approximation(thresholds, table, plan, lipschitz, column)


class Approximation(nn.Module):
    """The network of Theorem 1, computed by a lookup on each axis.

    The tests on one axis are ordered, so a binary search counts those that a point passes; these counts are the index
    of the one cube that passes all its 2 n0 tests. Outside the domain no cube is active and the value is 0. `values`
    are the affine layer's weights, that of cube (i_0, i_1, ...) at i_0 + i_1 n + i_2 n² + ...; `bound` is certified for
    these values, up to the rounding in f itself.
    """

    thresholds: Tensor
    strides: Tensor

    def __init__(self, thresholds: Tensor, values: Tensor, plan: Size, lipschitz: float, column: bool) -> None:
        super().__init__()
        self.n, self.N, self.dimension, self.bound = plan.n, plan.N, plan.dimension, plan.bound
        self.lipschitz, self.side, self.column = lipschitz, thresholds[-1].item(), column
        self.register_buffer("thresholds", thresholds)  # (n + 1,): the faces across any axis
        self.register_buffer("strides", plan.n ** torch.arange(plan.dimension), persistent=False)
        self.values = nn.Parameter(values, requires_grad=False)  # (N,)

    def cell(self, x: Tensor) -> Tensor:
        """Return the index of the active cube, (..., dimension) -> (...); -1 outside the domain."""
        if x.shape[-1:] != (self.dimension,):
            raise ValueError(f"expected points of {self.dimension} coordinates, got a tensor {tuple(x.shape)}")
        if x.dtype != self.thresholds.dtype:
            raise TypeError(f"the network computes in {self.thresholds.dtype}, got {x.dtype}")
        passed = torch.bucketize(x.contiguous(), self.thresholds[1:-1], right=True)  # H(x - t_k) = 1, for k = 1..n-1
        inside = ((x >= self.thresholds[0]) & (x <= self.thresholds[-1])).all(-1)
        return torch.where(inside, (passed * self.strides).sum(-1), -1)

    def forward(self, x: Tensor) -> Tensor:
        """Return Φ(x), (..., dimension) -> (...), or (..., 1) if f returned (batch, 1); NaN stays NaN."""
        cell = self.cell(x)
        y = self.values[cell.clamp_min(0)]
        y = torch.where(cell >= 0, y, torch.where(x.isnan().any(-1), torch.nan, 0.0).to(y.dtype))
        return y[..., None] if self.column else y

    def dense(self) -> nn.Sequential:
        """Return the network of the proof, layer by layer, (batch, dimension) -> (batch, 1).

        w1 is ternary, 2 n0 N x n0; w2 is {0, 1}, N x 2 n0 N (the paper prints 2 n0 x n0 and N x n0); both are followed
        by Heaviside; w3 is real. It equals `forward` bit for bit at every finite point of its dtype.
        """
        faces = self.thresholds.cpu()
        last = torch.cat([_neighbour(faces[1:-1], -torch.inf), faces[-1:]])  # the last number of each interval
        return nn.Sequential(*self._layers(faces[:-1], last)).to(self.thresholds.device)

    def on_bytes(self) -> nn.Sequential:
        """Return the same layers for uint8 points, x = side * byte / 255, (batch, dimension) -> (batch, 1), to freeze.

        Its faces are bytes too, so all its numbers are integers except the values, float32.
        """
        grid = (torch.arange(256, dtype=torch.float64) / 255 * self.side).to(self.thresholds.dtype)
        first = torch.searchsorted(grid, self.thresholds.cpu()[:-1])
        last = torch.cat([first[1:], torch.tensor([256])]) - 1
        return nn.Sequential(_Centred(), *self._layers(first.float() - 128, last.float() - 128)).float()

    def _layers(self, first: Tensor, last: Tensor) -> list[nn.Module]:
        """Return the proof's layers for cubes from first[i] to last[i], both included, along each axis."""
        plan = Size(self.dimension, self.n, self.bound)
        refuse_beyond_memory(f"the dense layers of {self.N:,} cubes", plan.dense_weights, first.dtype)
        index = _unravel(torch.arange(self.N), self.n, self.dimension)
        head = nn.Linear(self.N, 1, bias=False, device="meta")
        head.weight = nn.Parameter(self.values.detach().cpu()[None].clone(), requires_grad=False)
        return [*_closed_boxes(first[index], last[index]), head]

    def extra_repr(self) -> str:
        """Return domain, size and bound."""
        return f"dimension={self.dimension}, side={self.side:g}, n={self.n}, N={self.N}, bound={self.bound:.4g}"


class _Centred(nn.Module):
    """uint8 -> the integers -128..127, as floats."""

    def forward(self, x: Tensor) -> Tensor:
        return x.float() - 128


def box_indicator(
    low: Sequence[float],
    high: Sequence[float],
    sides: str | Sequence[str] = "[]",
    dtype: torch.dtype | None = None,
) -> nn.Sequential:
    """Return the characteristic function of a box as a ternary network (Lemma 1), (batch, dimension) -> (batch, 1).

    The corners are rounded to `dtype`; in that dtype the network is exact at every number. (b1 begins with -p: the
    paper prints p.)

    Args:
        low: the lower corner.
        high: the upper corner.
        sides: which ends belong to the box, for each axis or for all: "[]", "[)", "(]" or "()".
        dtype: the dtype of the network.

    >>> import torch
    >>> unit = box_indicator([0.0, 0.0], [1.0, 1.0], ["[)", "[]"])
    >>> unit(torch.tensor([[0.0, 1.0], [1.0, 0.0], [0.5, 0.5]])).flatten()
    tensor([1., 0., 1.])
    """
    dtype = torch.get_default_dtype() if dtype is None else dtype
    ends = [sides] * len(low) if isinstance(sides, str) else list(sides)
    if not len(low) == len(high) == len(ends) > 0:
        raise ValueError(f"a box needs as many low as high ends and sides, got {len(low)}, {len(high)}, {len(ends)}")
    for end in ends:
        if end not in ("[]", "[)", "(]", "()"):
            raise ValueError(f"sides must be '[]', '[)', '(]' or '()', got {end!r}")
    first, last = torch.tensor(low, dtype=dtype), torch.tensor(high, dtype=dtype)
    if not bool((first.isfinite() & last.isfinite() & (first <= last)).all()):
        raise ValueError(f"a box needs finite ends, low <= high, got {list(low)} and {list(high)}")
    first = torch.where(torch.tensor([end[0] == "(" for end in ends]), _neighbour(first, torch.inf), first)
    last = torch.where(torch.tensor([end[1] == ")" for end in ends]), _neighbour(last, -torch.inf), last)
    return nn.Sequential(*_closed_boxes(first[None], last[None]))


def sup_error(net: Approximation, f: Function, *, points: int = 200_000, seed: int = 0) -> float:
    """Return the largest |Φ(x) - f(x)| found at random points.

    Args:
        net: the network Φ.
        f: the function.
        points: how many; half are uniform, half at corners of cubes, where the error is largest.
        seed: of the points.
    """
    generator = torch.Generator().manual_seed(seed)
    faces = net.thresholds.cpu()
    shape = (points // 2, net.dimension)
    anywhere = torch.rand(shape, generator=generator, dtype=faces.dtype) * net.side
    ends = torch.cat([faces, _neighbour(faces[1:], -torch.inf)])  # each cube's first and last number
    corners = ends[torch.randint(len(ends), shape, generator=generator)]
    worst = 0.0
    with torch.no_grad():
        for x in torch.cat([anywhere, corners]).to(net.thresholds.device).split(_BLOCK):
            worst = max(worst, float((net(x).double() - f(x).double()).abs().max()))
    return worst


def _closed_boxes(low: Tensor, high: Tensor) -> list[nn.Module]:
    """Return the layers of Lemma 1 for M closed boxes, (batch, dimension) -> (batch, M): 1 in a box, 0 outside."""
    boxes, dimension = low.shape
    half_spaces = torch.cat([torch.eye(dimension), -torch.eye(dimension)]).repeat(boxes, 1)
    all_of_them = torch.eye(boxes).repeat_interleave(2 * dimension, dim=1)
    membership = MultiStep((0.5,), (0.0, 1.0))  # for weights that are 0 or 1
    return [
        _fixed_layer(half_spaces.to(low), torch.cat([-low, high], dim=1).flatten(), MultiStep.ternary()),
        _hard(MultiStep.heaviside()),
        _fixed_layer(all_of_them.to(low), torch.full((boxes,), -2.0 * dimension).to(low), membership),
        _hard(MultiStep.heaviside()),
    ]


def _fixed_layer(weight: Tensor, bias: Tensor, step: MultiStep) -> Linear:
    # Made on the meta device, so that initialisation draws no random numbers.
    layer = Linear(weight.shape[1], weight.shape[0], quantizer=_hard(step), device="meta")
    layer.weight = nn.Parameter(weight, requires_grad=False)
    layer.bias = nn.Parameter(bias, requires_grad=False)
    return layer


def _hard(step: MultiStep) -> Quantizer:
    return Quantizer(step, forward=Dirac(), backward=Dirac())


def _thresholds(n: int, side: float, dtype: torch.dtype) -> Tensor:
    return (torch.arange(n + 1, dtype=torch.float64) / n * side).to(dtype)  # n/n = 1: the last is exactly the side


def _neighbour(x: Tensor, towards: float) -> Tensor:
    return torch.nextafter(x, torch.tensor(towards, dtype=x.dtype))


def _unravel(cells: Tensor, n: int, dimension: int) -> Tensor:
    """Return the index tuples (i_0, i_1, ...) of the cubes i_0 + i_1 n + i_2 n² + ..., each in 0..n-1 (not 0..n0-1)."""
    return torch.stack([cells // n**axis % n for axis in range(dimension)], dim=-1)


def _check_slopes(values: Tensor, n: int, lipschitz: float, side: float) -> None:
    """Raise ValueError if two neighbouring centres contradict the constant by more than rounding explains."""
    if n == 1:
        return
    spacing = side / n
    rounding = 64 * torch.finfo(values.dtype).eps * float(values.abs().max())
    inner = 1
    while inner < len(values):
        rise = max(map(abs, torch.stack(values.view(-1, n, inner).diff(dim=1).aminmax()).tolist()))
        if rise > 1.01 * lipschitz * spacing + rounding:
            raise ValueError(
                f"f is steeper than lipschitz={lipschitz:g}: between two points {spacing:.3g} apart it changes "
                f"by {rise:.3g}, a slope of {rise / spacing:.4g}"
            )
        inner *= n
