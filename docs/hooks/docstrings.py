"""Docstrings as Markdown: what follows a `::` and what a doctest prints become code blocks.

lehr's docstrings are plain text with backquotes, indented blocks after `::`, and doctests. Markdown would take `>>>`
for three quotations.
"""

from __future__ import annotations

import re
import textwrap

import griffe


class Markdown(griffe.Extension):
    """Rewrites every docstring as griffe meets it."""

    def on_instance(self, *, obj: griffe.Object, **_: object) -> None:
        """A module, a class, a function or an attribute that was read."""
        if obj.docstring is not None:
            obj.docstring.value = to_markdown(obj.docstring.value)


def to_markdown(text: str) -> str:
    """The docstring with fenced code.

    >>> print(to_markdown("The law::\\n\\n    1 - p\\n\\n>>> 1 + 1\\n2"))
    The law:
    <BLANKLINE>
    ```text
    1 - p
    ```
    <BLANKLINE>
    ```pycon
    >>> 1 + 1
    2
    ```
    """
    written: list[str] = []
    for paragraph in re.split(r"\n\s*\n", text.strip("\n")):
        if paragraph.startswith("    "):
            block = f"{textwrap.dedent(paragraph)}\n```"
            if written and written[-1].startswith("```text"):  # the same block, after an empty line
                written[-1] = f"{written[-1][:-3]}\n{block}"
            else:
                written.append(f"```text\n{block}")
        elif paragraph.startswith(">>>"):
            written.append(f"```pycon\n{paragraph}\n```")
        else:
            written.append(paragraph[:-1] if paragraph.endswith("::") else paragraph)
    return "\n\n".join(written)
