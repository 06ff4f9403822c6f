"""A packed file by its path, or by the name of a network of the zoo.

>>> file_of("digits").name
'digits.lehr'
"""

from __future__ import annotations

import difflib
from pathlib import Path

ZOO = Path(__file__).parents[1] / "zoo"


def zoo_files() -> dict[str, Path]:
    """Return the files of the zoo by name, the smallest first."""
    files = sorted(ZOO.glob("*.lehr"), key=lambda path: path.stat().st_size)
    return {path.stem: path for path in files}


def file_of(name: str | Path) -> Path:
    """Return the packed file that a user names: an existing file, else the network of that name in the zoo.

    Raises ValueError if there is neither, or if it is a folder.
    """
    path, known = Path(name), zoo_files()
    if path.is_dir() and str(name) in known and not (path / "recipe.yaml").exists():
        return known[str(name)]
    if path.is_dir():
        raise ValueError(
            f"{path} is a folder, not a packed network. If it is a run, `lehr export {path} --to packed` writes "
            f"{path / 'model.lehr'}"
        )
    if path.exists():
        return path
    if str(name) in known:
        return known[str(name)]
    close = difflib.get_close_matches(path.stem, known, n=3)
    nearest = f"did you mean {' or '.join(close)}?" if close else f"the zoo has {', '.join(known)}"
    if path.suffix:
        raise ValueError(f"there is no file {path}: `lehr export RUN --to packed` writes one; of the zoo, {nearest}")
    raise ValueError(f"there is no file {name} and no network of that name: {nearest}")


def is_name(name: str | Path) -> bool:
    """Whether this can only be the name of a network: there is no such file, and it looks like none."""
    path = Path(name)
    return not path.exists() and not path.suffix and path.name == str(name)
