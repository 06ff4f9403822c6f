"""The progress of many runs that train at once: one table that is redrawn on a terminal, lines in a log."""

from __future__ import annotations

import abc
import sys
from collections import Counter
from collections.abc import Sequence

from rich.console import Console
from rich.live import Live
from rich.table import Table

from lehr.printable import printable
from lehr.training.cluster import State

_ORDER = ("trains", "failed", "waits", "finished")  # a terminal shows the first of many rows


def series_progress() -> SeriesProgress:
    """Return a table if standard error is a terminal, else lines for a log."""
    return LiveTable() if sys.stderr.isatty() else Log()


class SeriesProgress(abc.ABC):
    """Shows the states of all runs; a context manager that restores the terminal."""

    @abc.abstractmethod
    def show(self, states: Sequence[State]) -> None:
        """Show the states."""

    @abc.abstractmethod
    def say(self, line: str) -> None:
        """Show a sentence that stays."""

    def __enter__(self) -> SeriesProgress:
        return self

    def __exit__(self, *error: object) -> None:
        return None


class LiveTable(SeriesProgress):
    """A row for each run, redrawn in place and left as it is at the end."""

    def __enter__(self) -> SeriesProgress:
        self._live = Live(console=Console(stderr=True), refresh_per_second=2)
        self._live.start()
        return self

    def show(self, states: Sequence[State]) -> None:
        """Redraw the table."""
        counts = Counter(state.word for state in states)
        told = ", ".join(f"{counts[word]} {word}" for word in _ORDER if counts[word])
        table = Table("run", "epochs", f"{len(states)} runs: {told}", box=None)
        for state in sorted(states, key=lambda state: _ORDER.index(state.word)):
            table.add_row(printable(state.run.path.name), f"{state.epoch} of {state.run.recipe.epochs}", state.word)
        self._live.update(table)

    def say(self, line: str) -> None:
        """Print a line above the table."""
        self._live.console.print(line, markup=False, highlight=False)

    def __exit__(self, *error: object) -> None:
        self._live.stop()


class Log(SeriesProgress):
    """A line for each run that begins, with how many are finished; `say` prints one for each that ends."""

    def __init__(self) -> None:
        self._training: set[str] = set()

    def show(self, states: Sequence[State]) -> None:
        """Print what trains now and did not before."""
        finished = sum(state.word == "finished" for state in states)
        training = {state.run.path.name for state in states if state.word == "trains"}
        for name in sorted(training - self._training):
            self.say(f"{printable(name)} trains; {finished} of {len(states)} runs are finished")
        self._training = training

    def say(self, line: str) -> None:
        """Print a line."""
        print(line, file=sys.stderr, flush=True)
