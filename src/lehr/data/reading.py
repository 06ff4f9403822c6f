"""Reader processes: what they hand over, and how they are set up."""

import os
import signal
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any, NamedTuple

import torch
import torch.utils.data
from torch import Tensor

from .steps import Steps

_MOST_READERS = 16  # of one rank: more fill memory before they fill a device


class Read(NamedTuple):
    """What a reader hands over: the images it could read with their labels, and (name, reason) of the others."""

    images: Tensor  # (some, 3, size, size), uint8, channels last in memory
    labels: Tensor  # (some,), int64
    failures: list[tuple[str, str]]


class Reading(ABC):
    """A kind of data set as readers take it."""

    @abstractmethod
    def read(self, steps: Steps, epoch: int, start: int) -> Iterator[Read]:
        """Give what the readers hand over for the steps of `epoch` from `start` on, in their order."""


@dataclass(frozen=True)
class Readers:
    """`count` reader processes (0: read in this one), each up to `prefetch` batches ahead."""

    count: int
    prefetch: int = 2
    pinned: bool = False  # memory from which an accelerator copies by itself

    def __post_init__(self) -> None:
        if self.count < 0 or self.prefetch < 1:
            raise ValueError(
                f"there are at least 0 readers, at least 1 batch ahead, got {self.count} and {self.prefetch}"
            )

    def loader(self, dataset: Any, *, requests: Any = None, lasting: bool) -> torch.utils.data.DataLoader[Any]:
        """Return torch's loader for `dataset`, which gives whole `Read`s; `lasting` readers outlive an epoch."""
        return torch.utils.data.DataLoader(
            dataset,
            sampler=requests,
            batch_size=None,
            collate_fn=_as_it_is,
            num_workers=self.count,
            pin_memory=self.pinned,
            persistent_workers=lasting and self.count > 0,
            prefetch_factor=self.prefetch if self.count else None,
            worker_init_fn=_start_reader,
            generator=torch.Generator(),  # torch's own would be moved by one draw an epoch
        )


def usual_readers() -> int:
    """Return how many readers a rank has unless told: its share of the machine's cores, at most 16."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(_MOST_READERS, max(1, cores // max(1, torch.cuda.device_count())))


def _start_reader(number: int) -> None:
    """Let a reader end without a word when the process that trains is gone, and leave signals to that process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # which a terminal sends to all
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    shown = sys.excepthook

    def quiet(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        # A reader's own errors go to the process that trains; what arrives here is that nobody takes a batch any more.
        if not isinstance(error, ConnectionError):
            shown(kind, error, trace)

    sys.excepthook = quiet


def _as_it_is(read: Any) -> Any:
    return read
