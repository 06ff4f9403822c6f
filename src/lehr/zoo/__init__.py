"""Trained networks that come with lehr, as packed files. Commands take their names instead of a path.

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
from lehr.table import Table

_FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Network:
    """A network of the zoo.

    Args:
        name: its name, also that of its file.
        dataset: the images it classifies.
        accuracy: the share of their test images that it classifies correctly.
        trained: the command that trained it.
        seed: the seed of that run.
    """

    name: str
    dataset: str
    accuracy: float
    trained: str
    seed: int

    @property
    def path(self) -> Path:
        """Where its packed file is."""
        return _FOLDER / f"{self.name}.lehr"

    def load(self) -> IntegerNet:
        """Read the network from its file."""
        return load(self.path)


def networks() -> dict[str, Network]:
    """Return all networks of the zoo by name."""
    rows = json.loads((_FOLDER / "networks.json").read_text())
    return {row["name"]: Network(**row) for row in rows}


def file_of(name: str | Path) -> Path:
    """Return the packed file that a user names: an existing file, else the network of that name in the zoo.

    Raises ValueError if there is neither, or if it is a folder.
    """
    path, known = Path(name), networks()
    if path.is_dir() and str(name) in known and not (path / "recipe.yaml").exists():
        return known[str(name)].path
    if path.is_dir():
        raise ValueError(
            f"{path} is a folder, not a packed network. If it is a run, `lehr export {path} --to packed` writes "
            f"{path / 'model.lehr'}"
        )
    if path.exists():
        return path
    if path.suffix:
        raise ValueError(
            f"there is no file {path}: `lehr export RUN --to packed` writes one, and the zoo has {', '.join(known)}"
        )
    if str(name) not in known:
        raise ValueError(f"there is no file {name} and no network of that name: the zoo has {', '.join(known)}")
    return known[str(name)].path


def listing() -> Table:
    """Return a row for each network."""
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
    return Table(("name", "data", "test accuracy", "bytes", "MACs", "trained by"), rows)
