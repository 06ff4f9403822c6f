r"""Formulas as MathML, made at build time: no script, no fonts, nothing to fetch.

In a page `$x$` stands in a line and `$$x$$` by itself. Arithmatex finds them, so that code is left alone, and writes
`\(x\)` and `\[x\]`, which are replaced here.
"""

from __future__ import annotations

import html
import re

from latex2mathml.converter import convert

_FOUND = re.compile(r'<(span|div) class="arithmatex">\\([(\[])(.*?)\\[)\]]</\1>', re.DOTALL)


def on_page_content(content: str, **_: object) -> str:
    """Replace every formula of a page."""
    return _FOUND.sub(_mathml, content)


def _mathml(found: re.Match[str]) -> str:
    tag, bracket, latex = found.groups()
    display = "block" if bracket == "[" else "inline"
    return f'<{tag} class="formula">{convert(html.unescape(latex), display=display)}</{tag}>'
