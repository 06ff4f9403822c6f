"""Files that could not be read: each named once in the log, all counted.

>>> skipped = Skipped(total=100)
>>> skipped.note("train/a/1.jpg", "image file is truncated")
>>> skipped.note("train/a/1.jpg", "image file is truncated")  # in the next epoch
>>> print(skipped)
1 of 100 images cannot be read and are skipped
"""

import logging
from collections.abc import Mapping
from types import MappingProxyType

_log = logging.getLogger(__name__)
_NAMED = 50  # a log of a million lines helps nobody


class Skipped:
    """What has been skipped so far of `total` images."""

    def __init__(self, total: int) -> None:
        self.total = total
        self._reasons: dict[str, str] = {}

    @property
    def reasons(self) -> Mapping[str, str]:
        """Return why, by name."""
        return MappingProxyType(self._reasons)

    def __len__(self) -> int:
        return len(self._reasons)

    def note(self, name: str, reason: str) -> None:
        """Remember a file, and log it if it is new and not one of very many."""
        if name in self._reasons:
            return
        self._reasons[name] = reason
        if len(self) <= _NAMED:
            _log.warning("%s cannot be read and is skipped: %s", name, reason)
        if len(self) == _NAMED:
            _log.warning("more images that cannot be read will be counted, not named")

    def __str__(self) -> str:
        return f"{len(self)} of {self.total} images cannot be read and are skipped"
