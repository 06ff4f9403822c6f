"""Pictures that pages show as figures/NAME.svg, drawn by `lehr figures` while the site is built: none is committed."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from lehr.report.figures import draw_all


def on_files(files: Files, config: MkDocsConfig) -> None:
    """Draw what any page asks for."""
    texts = [file.content_string for file in files.documentation_pages()]
    wanted = sorted({name for text in texts for name in re.findall(r"\(figures/(\w+)\.svg\)", text)})
    with tempfile.TemporaryDirectory() as folder:
        for path in draw_all(folder, only=wanted, formats=["svg"]) if wanted else ():
            files.append(File.generated(config, f"figures/{Path(path).name}", content=path.read_bytes()))
