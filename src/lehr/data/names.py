"""A million file names in two arrays.

A list of strings is a million objects whose reference counts every reader process touches, and so copies, page by page;
two arrays stay shared.

>>> names = Names(["n01440764/a.JPEG", "n01443537/b.JPEG"])
>>> names[1], len(names)
('n01443537/b.JPEG', 2)
"""

from collections.abc import Iterable

import numpy as np


class Names:
    """An immutable sequence of strings."""

    def __init__(self, names: Iterable[str]) -> None:
        encoded = [name.encode("utf-8", "surrogateescape") for name in names]
        self._bytes = np.frombuffer(b"".join(encoded), dtype=np.uint8)
        self._ends = np.cumsum([0, *map(len, encoded)], dtype=np.int64)

    def __len__(self) -> int:
        return len(self._ends) - 1

    def __getitem__(self, index: int) -> str:
        if not 0 <= index < len(self):
            raise IndexError(f"there are {len(self)} names, got index {index}")
        return self._bytes[self._ends[index] : self._ends[index + 1]].tobytes().decode("utf-8", "surrogateescape")
