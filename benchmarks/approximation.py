"""Theorem 1 at a million cubes: building the network, and evaluating 100 000 points.

    python benchmarks/approximation.py

The last line compares the look-up with the proof's dense layers where these still fit.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from lehr.approximation import approximate, sup_error
from lehr.approximation_size import size


def fastest(run: Callable[[], object], repeats: int = 7) -> float:
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(times)


def f(x: torch.Tensor) -> torch.Tensor:
    return torch.sin(3 * x[:, 0]) * x[:, 1]


def main() -> None:
    torch.manual_seed(0)
    x = torch.rand(100_000, 2)
    for tight, epsilon in ((False, 8.9e-3), (True, 2.2e-3)):
        plan = size(lipschitz=10**0.5, dimension=2, epsilon=epsilon, tight=tight)
        net = approximate(f, lipschitz=10**0.5, dimension=2, epsilon=epsilon, tight=tight)
        built = fastest(
            lambda e=epsilon, t=tight: approximate(f, lipschitz=10**0.5, dimension=2, epsilon=e, tight=t), 3
        )
        evaluated = fastest(lambda net=net: net(x))
        print(
            f"epsilon {epsilon:<8g} n {plan.n:,}, N {plan.N:,}: built in {built * 1e3:.0f} ms, 100,000 points in "
            f"{evaluated * 1e3:.1f} ms; bound {net.bound:.2e}, measured {sup_error(net, f):.2e}; "
            f"dense weights would be {plan.dense_weights:,}"
        )
    net = approximate(f, lipschitz=10**0.5, dimension=2, epsilon=0.4)
    dense, points = net.dense(), x[:10_000]
    same = torch.equal(net(points), dense(points)[:, 0])
    ratio = fastest(lambda: dense(points), 3) / fastest(lambda: net(points))
    print(f"N {net.N:,}: the same bits as the dense layers: {same}; {ratio:.0f} times as fast on 10,000 points")


if __name__ == "__main__":
    main()
