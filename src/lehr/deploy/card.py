"""The model card of a packed network: what it was trained on, how, how good it is, and what it is not for.

>>> card = Card("digits", data="digits", recipe="lehr train digits-ana", accuracy=0.978, licence="Apache-2.0")
>>> Card.from_json(card.to_json()) == card
True
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import Any

_LONGEST = 4000  # characters of a text


@dataclass(frozen=True)
class Card:
    """What a user of a network should know; what is empty is not known.

    Args:
        name: what the network is called.
        data: the data set it was trained on.
        recipe: the command that trained it.
        accuracy: the share of the data set's test examples that it classifies correctly.
        licence: what it may be used for.
        limits: what it was not made or measured for.
    """

    name: str = ""
    data: str = ""
    recipe: str = ""
    accuracy: float | None = None
    licence: str = ""
    limits: str = ""

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.name == "accuracy":
                if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
                    raise TypeError(f"card: accuracy is a number, got {value!r:.60}")
                if value is not None and not 0 <= value <= 1:
                    raise ValueError(f"card: accuracy is a share, 0 to 1, got {value}")
            elif not isinstance(value, str):
                raise TypeError(f"card: {field.name} is text, got {value!r:.60}")
            elif len(value) > _LONGEST:
                raise ValueError(f"card: {field.name} has at most {_LONGEST} characters, got {len(value)}")

    def rows(self) -> list[tuple[str, str]]:
        """Return each field that is known, in words."""
        shown: dict[str, Any] = dataclasses.asdict(self)
        if self.accuracy is not None:
            shown["accuracy"] = f"{self.accuracy:.2%} of the test examples"
        return [(name, value) for name, value in shown.items() if value]

    def to_json(self) -> str:
        """Return the fields that are known, as JSON."""
        return json.dumps({k: v for k, v in dataclasses.asdict(self).items() if v not in ("", None)})

    @classmethod
    def from_json(cls, text: str) -> Card:
        """Read a card; raise ValueError or TypeError if it is none. Fields of a later version are left out."""
        found = json.loads(text)
        if not isinstance(found, dict):
            raise TypeError(f"card: an object of names and texts, got {found!r:.60}")
        return cls(**{field.name: found[field.name] for field in dataclasses.fields(cls) if field.name in found})
