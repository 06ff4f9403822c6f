"""How the benchmarks measure: ratios in one process, interleaved, the minimum of many repetitions.

One thread, whose CPU time is counted: what else runs on the machine then costs repetitions, hardly precision.
"""

from __future__ import annotations

import math
import platform
import random
import sys
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from lehr.table import Table

SLACK = 1.15  # a goal missed by more than this fails: 14 % is what two runs may differ by


def fastest(variants: dict[str, Callable[[], object]], repetitions: int) -> dict[str, float]:
    """Least CPU seconds of each variant, run in turns, each turn in another order: what ran before leaves its mark."""
    best = dict.fromkeys(variants, math.inf)
    order, shuffle = list(variants), random.Random(0).shuffle
    for round in range(repetitions + 2):  # two to warm up
        shuffle(order)
        for name in order:
            start = time.thread_time()
            variants[name]()
            seconds = time.thread_time() - start
            best[name] = min(best[name], seconds if round >= 2 else math.inf)
    return best


@dataclass(frozen=True)
class Row:
    """One goal and what was measured; without a goal, or where nothing could be measured, it only informs."""

    what: str
    measured: float | None
    goal: float | None = None
    at_least: bool = False
    slack: float = SLACK

    def met(self, slack: float = 1.0) -> bool:
        """Whether the goal is reached, or missed by no more than `slack`."""
        if self.goal is None or self.measured is None:
            return True
        return self.measured * slack >= self.goal if self.at_least else self.measured <= self.goal * slack

    def cells(self) -> tuple[str, ...]:
        """As the table shows it."""
        goal = "" if self.goal is None else f"{'>=' if self.at_least else '<='} {self.goal:g}"
        measured = "not measured" if self.measured is None else f"{self.measured:.2f}"
        verdict = "" if not goal or self.measured is None else "yes" if self.met() else "no"
        return self.what, goal, measured, verdict


def report(rows: list[Row]) -> None:
    """Print the table; leave with an error if a goal is missed by more than its slack."""
    print(f"torch {torch.__version__}, {torch.get_num_threads()} thread, {platform.machine()}, {_processor()}")
    print(Table(("what", "goal", "measured", "met"), [row.cells() for row in rows]))
    missed = [row.what for row in rows if not row.met(row.slack)]
    if missed:
        sys.exit(f"missed: {'; '.join(missed)}")


class LiveMemory(TorchDispatchMode):
    """Counts the bytes of the tensors made inside it that are alive together."""

    def __init__(self) -> None:
        super().__init__()
        self.live = self.peak = 0
        self._seen: weakref.WeakSet[torch.UntypedStorage] = weakref.WeakSet()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        given = {leaf.untyped_storage() for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)}
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor):
                storage = leaf.untyped_storage()
                if storage not in given and storage not in self._seen:
                    self._seen.add(storage)
                    self.live += storage.nbytes()
                    weakref.finalize(storage, self._freed, storage.nbytes())
        self.peak = max(self.peak, self.live)
        return result

    def _freed(self, count: int) -> None:
        self.live -= count


def _processor() -> str:
    try:
        with open("/proc/cpuinfo") as lines:
            return next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor()
