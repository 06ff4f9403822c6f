"""Operations that only move values to other places."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from typing_extensions import override

from lehr.deploy.abstract import Unary
from lehr.deploy.values import Value


@dataclass(frozen=True, eq=False)
class Flatten(Unary):
    """(channel, row, column) -> (features, 1, 1), in that order."""

    @override
    def infer(self, *inputs: Value) -> Value:
        (x,) = inputs
        return dataclasses.replace(x, shape=(x.size, 1, 1))
