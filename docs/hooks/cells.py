"""Runnable cells: a page whose front matter says `notebook: true` is run while the site is built, from top to bottom.

What a Python block prints stands below it; a matplotlib figure that is its last expression is drawn there. The same
page is written as a Jupyter notebook beside it, NAME.ipynb, without outputs, for the reader to run.
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
import re
import tempfile
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from lehr.report.style import save

_BLOCK = re.compile(r"```python\n(.*?)```\n", re.DOTALL)
_FRONT = re.compile(r"\A---\n(.*?)\n---\n", re.DOTALL)


def on_startup(**_: object) -> None:
    """One thread: the tensors of a page are small, and on a busy machine more of them wait for each other."""
    torch.set_num_threads(1)


def on_files(files: Files, config: MkDocsConfig) -> None:
    """Write the notebooks."""
    for file in list(files.documentation_pages()):
        text = file.content_string
        front = _FRONT.match(text)
        if front and "notebook: true" in front[1].splitlines():
            name = file.src_uri.removesuffix(".md") + ".ipynb"
            files.append(File.generated(config, name, content=notebook(text[front.end() :])))


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Run the cells of a notebook page and write what they give below them."""
    if not page.meta.get("notebook"):
        return markdown
    names: dict[str, Any] = {"__name__": "__main__"}
    pictures: list[str] = []

    def with_output(block: re.Match[str]) -> str:
        printed, last = run(block[1], names)
        shown = [block[0]]
        if printed:
            shown.append(f"\n```{{.text .output}}\n{printed.rstrip()}\n```\n")
        if isinstance(last, Figure):
            name = f"{Path(page.file.src_uri).stem}_{len(pictures) + 1}"
            with tempfile.TemporaryDirectory() as folder:
                (drawn,) = save(last, Path(folder) / name, ["svg"])
                files.append(File.generated(config, f"figures/{name}.svg", content=drawn.read_bytes()))
            pictures.append(name)
            shown.append(f"\n![The figure this cell draws](figures/{name}.svg)\n")
        return "".join(shown)

    return _BLOCK.sub(with_output, markdown)


def run(code: str, names: dict[str, Any]) -> tuple[str, Any]:
    """Run a cell in `names`: what it printed, and the value of its last line if that is an expression."""
    tree = ast.parse(code)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    value = None
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(compile(tree, "<cell>", "exec"), names)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), "<cell>", "eval"), names)
    text = printed.getvalue()
    return (text if value is None or isinstance(value, Figure) else f"{text}{value!r}\n"), value


def notebook(text: str) -> str:
    """The page as a Jupyter notebook."""
    cells: list[dict[str, Any]] = []
    for number, part in enumerate(_BLOCK.split(text)):
        if part.strip():
            source = part.strip().splitlines(keepends=True)
            cell: dict[str, Any] = {"cell_type": "markdown", "id": f"cell-{number}", "metadata": {}, "source": source}
            if number % 2:
                cell |= {"cell_type": "code", "execution_count": None, "outputs": []}
            cells.append(cell)
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    content = {"cells": cells, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(content, indent=1, ensure_ascii=False)
