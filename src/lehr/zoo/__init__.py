"""Trained networks that come with lehr, packed: `lehr zoo` lists them, and their names stand for their files.

>>> network = networks()["digits"]
>>> network.dataset, network.path.name
('digits', 'digits.lehr')
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from lehr.deploy.integer_net import IntegerNet
from lehr.deploy.pack import load
from lehr.table import table

_FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Network:
    """One network: the images it classifies, its accuracy on their test set, the command and seed that trained it."""

    name: str
    dataset: str
    accuracy: float
    trained: str
    seed: int

    @property
    def path(self) -> Path:
        """Its packed file."""
        return _FOLDER / f"{self.name}.lehr"

    def load(self) -> IntegerNet:
        """The network."""
        return load(self.path)


def networks() -> dict[str, Network]:
    """All of them by name."""
    rows = json.loads((_FOLDER / "networks.json").read_text())
    return {row["name"]: Network(**row) for row in rows}


def file_of(name: str | Path) -> Path:
    """The file a user means: one of their own, else the network of that name here; a folder is none."""
    path, known = Path(name), networks()
    if path.is_dir() and str(name) in known and not (path / "recipe.yaml").exists():
        return known[str(name)].path
    if path.is_dir():
        raise ValueError(f"{path} is a folder: of a run, `lehr export {path} --to packed` writes {path / 'model.lehr'}")
    if path.exists():
        return path
    if path.suffix:
        raise ValueError(
            f"there is no file {path}: `lehr export RUN --to packed` writes one, and the zoo has {', '.join(known)}"
        )
    if str(name) not in known:
        raise ValueError(f"there is no {name} here, and no such network in the zoo, which has {', '.join(known)}")
    return known[str(name)].path


def listing() -> str:
    """The zoo as a table."""
    rows = []
    for network in networks().values():
        summary = network.load().summary()
        size = network.path.stat().st_size
        rows.append(
            (
                network.name,
                network.dataset,
                f"{network.accuracy:.2%}",
                f"{size:,}",
                f"{summary.macs:,}",
                network.trained,
            )
        )
    return table(("name", "data", "test accuracy", "bytes", "MACs", "trained by"), rows)
