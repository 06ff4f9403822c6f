"""Shows a download on the terminal; where standard error is no terminal, says nothing."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from .download import Progress


@contextmanager
def terminal() -> Iterator[Progress | None]:
    """Yield what draws one bar per file while the context lasts, or None where nobody looks."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn, TransferSpeedColumn
    from rich.progress import Progress as Bars

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Bars(*columns, console=Console(stderr=True)) as bars:
        tasks = {}

        def show(name: str, here: int, total: int | None) -> None:
            if name not in tasks:
                tasks[name] = bars.add_task(name)
            bars.update(tasks[name], completed=here, total=total)

        yield show
