"""Trained networks that come with lehr, as packed files with their model cards. Commands take their names.

>>> net = load("digits")
>>> net.card.data, net.card.recipe
('digits', 'lehr train digits-ana')
>>> print(describe("digits"))  # doctest: +ELLIPSIS
what            of this network
name            digits
data            digits
...
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path

from lehr.deploy.card import Card
from lehr.deploy.integer_net import IntegerNet
from lehr.deploy.pack import load, read_card
from lehr.deploy.packed_files import file_of, zoo_files
from lehr.table import Table

__all__ = ["DEVICES", "Network", "describe", "devices", "file_of", "listing", "load", "networks"]

DEVICES = Path(__file__).parent / "devices.csv"  # written by benchmarks/devices.py
_SHOWN = "cortex-m4"


@dataclass(frozen=True)
class Network:
    """A network of the zoo.

    Args:
        name: its name, also that of its file.
        path: where its packed file is.
        card: what it was trained on, how, and how good it is.
    """

    name: str
    path: Path
    card: Card

    @property
    def dataset(self) -> str:
        """The data set it was trained on."""
        return self.card.data

    @property
    def accuracy(self) -> float:
        """The share of the data set's test images that it classifies correctly."""
        if self.card.accuracy is None:
            raise ValueError(f"the card of {self.name} tells no accuracy")
        return self.card.accuracy

    def load(self) -> IntegerNet:
        """Read the network from its file."""
        return load(self.path)


def networks() -> dict[str, Network]:
    """Return all networks of the zoo by name, the smallest first."""
    return {name: Network(name, path, read_card(path)) for name, path in zoo_files().items()}


def devices() -> dict[tuple[str, str], dict[str, str]]:
    """Return what each network takes on each target, as counted in emulators: instructions, memory, flash, ..."""
    with DEVICES.open() as file:
        return {(row["network"], row["target"]): row for row in csv.DictReader(file)}


def describe(name: str | Path) -> Table:
    """Return the model card of a network of the zoo, or of a packed file, with its size and what it takes and gives.

    Args:
        name: a name of the zoo, or a packed file.
    """
    path = file_of(name)
    net = load(path)
    facts = [
        ("bytes", f"{path.stat().st_size:,}"),
        ("MACs", f"{net.summary().macs:,}"),
        ("takes", f"{'x'.join(map(str, net.input_shape))} {net.input_dtype}"),
        ("classes", ", ".join(net.classes) or "without names"),
        ("exact", "yes: torch's own integers on any machine" if net.exact else "no: rounding can decide"),
    ]
    if (counted := devices().get((net.card.name, _SHOWN))) and path == zoo_files().get(net.card.name):
        facts.append(
            (
                f"on a {_SHOWN}",
                "{instructions} instructions, {memory} bytes of RAM, {flash} of flash".format_map(_grouped(counted)),
            )
        )
    told = net.card.rows() or [("card", "none: it was packed without one")]
    return Table(("what", "of this network"), [*told, *facts])


def listing() -> Table:
    """Return a row for each network."""
    rows, counts = [], devices()
    for network in networks().values():
        size, macs = network.path.stat().st_size, network.load().summary().macs
        counted = _grouped(counts.get((network.name, _SHOWN), {}))
        on_device = [counted.get(what, "") for what in ("instructions", "memory", "flash")]
        rows.append((network.name, f"{network.accuracy:.2%}", f"{size:,}", f"{macs:,}", *on_device))
    return Table(("name", "accuracy", "bytes", "MACs", "instructions", "RAM", "flash"), rows)


def _grouped(counted: dict[str, str]) -> dict[str, str]:
    """Numbers with commas: 1,204,608."""
    return {what: f"{int(value):,}" if value.isdecimal() else value for what, value in counted.items()}
