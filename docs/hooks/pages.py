"""Pages made at build time, and a place in the navigation for every page: the reference and the command line.

The reference has a page for each room of src/lehr that has a docstring; mkdocstrings fills it in. The command line is
what `lehr COMMAND --help` prints. Pages under docs/ that mkdocs.yml does not name are appended to its nav.
"""

from __future__ import annotations

import contextlib
import io
import os
import types
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

PACKAGE = Path(__file__).parents[2] / "src" / "lehr"
ROOMS = (  # in the order of the road; a room that is not named here comes after them
    *(
        "multistep",
        "noise",
        "estimator",
        "expectation",
        "layers",
        "convert",
        "dequantize",
        "calibration",
        "precision",
        "layer_loss",
        "annealing",
        "batchnorm",
        "losses",
        "summary",
    ),
    *("models", "algorithms", "data", "training", "deploy", "zoo", "export", "integrations"),
    *("approximation", "approximation_size", "theory", "expression", "interval", "report"),
)
# The front page, the command line, and what only lehr itself uses.
INTERNAL = {"__init__", "__main__", "cli", "decide", "fast", "observe", "printable", "search", "symbolic", "table"}
INTERNAL |= {"tracing", "uses"}


def on_config(config: MkDocsConfig) -> None:
    """Complete the nav."""
    nav: list[Any] = list(config.nav or [])
    named = set(_named(nav))
    docs = Path(config.docs_dir)
    pages = sorted(path.relative_to(docs).as_posix() for path in docs.rglob("*.md"))
    more = [page for page in pages if page not in named]
    reference = [{"Commands": "reference/commands.md"}, {"lehr": "reference/lehr.md"}]
    reference += [{f"lehr.{room}": f"reference/{room}.md"} for room in _rooms()]
    config.nav = [entry for entry in nav if entry != {"Reference": []}] + more + [{"Reference": reference}]


def on_files(files: Files, config: MkDocsConfig) -> None:
    """Write the reference pages."""
    pages = {f"{room}.md": _room_page(room) for room in _rooms()}
    pages |= {"lehr.md": _front_page(), "commands.md": _commands_page()}
    for name, text in pages.items():
        files.append(File.generated(config, f"reference/{name}", content=text))


def _named(nav: Any) -> list[str]:
    """The pages that a nav names."""
    if isinstance(nav, str):
        return [nav]
    entries = nav.values() if isinstance(nav, dict) else nav
    return [page for entry in entries for page in _named(entry)]


def _rooms() -> list[str]:
    found = {path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    found -= INTERNAL
    return [room for room in ROOMS if room in found] + sorted(found - set(ROOMS))


def _room_page(room: str) -> str:
    package = (PACKAGE / room).is_dir()  # its names are told once, where they are defined
    lines = [f"# lehr.{room}", "", *_directive(f"lehr.{room}", top=True, members=not package)]
    for path in sorted((PACKAGE / room).rglob("*.py")):
        if not path.stem.startswith("_") and path.stat().st_size:
            name = ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
            lines += ["", *_directive(f"lehr.{name}")]
    return "\n".join(lines)


def _front_page() -> str:
    import lehr

    names = [f"| {_linked(name)} | {_summary(getattr(lehr, name))} |" for name in lehr.__all__]
    return "\n".join(
        ["# lehr", "", *_directive("lehr", top=True, members=False), "", "| name | |", "|---|---|", *names]
    )


def _linked(name: str) -> str:
    """`lehr.NAME`, linked to where it is told."""
    import lehr

    thing = getattr(lehr, name)
    if isinstance(thing, types.ModuleType):
        return f"[`lehr.{name}`]({name}.md)"
    return f"[`lehr.{name}`][{thing.__module__}.{thing.__qualname__}]"


def _summary(thing: Any) -> str:
    """The first line of its docstring, as the cell of a table."""
    return (thing.__doc__ or "").strip().splitlines()[0].replace("|", "\\|")


def _directive(name: str, *, top: bool = False, members: bool = True) -> list[str]:
    """A page begins with the room's own docstring; below it each module has a heading of its own."""
    options = {"show_root_heading": not top, "show_root_full_path": True, "show_root_toc_entry": not top}
    lines = [f"::: {name}", "    options:", *(f"      {key}: {str(value).lower()}" for key, value in options.items())]
    return lines if members else [*lines, "      members: []"]


def _commands_page() -> str:
    from lehr.cli import COMMANDS, main

    lines = ["# Commands", "", "What `lehr COMMAND --help` prints.", ""]
    before = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = "88"
    try:
        for word in COMMANDS:
            with contextlib.redirect_stdout(io.StringIO()) as printed:
                main([word, "--help"])
            lines += [f"## lehr {word}", "", "```text", printed.getvalue().strip(), "```", ""]
    finally:
        os.environ.pop("COLUMNS")
        if before is not None:
            os.environ["COLUMNS"] = before
    return "\n".join(lines)
