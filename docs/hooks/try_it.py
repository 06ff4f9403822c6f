"""The networks of the page "Try it", compiled to WebAssembly while the site is built.

lehr.deploy.write_html makes their part of the page. Without clang and lld the page says that they are missing, and the
rest of the site is built all the same.
"""

from __future__ import annotations

import base64
import html
import io

from drawings import drawings

from lehr import zoo
from lehr.deploy.build import CompilerError
from lehr.deploy.write_html import script_of, style

_NETWORKS = {"try-digits": "digits", "try-pictures": "cifar10-quick"}  # the element on the page: its network


def samples() -> dict[str, str]:
    """The pictures to click, PNG files as addresses, by their names."""
    addresses = {}
    for name, picture in drawings().items():
        file = io.BytesIO()
        picture.save(file, "PNG")
        addresses[name] = f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"
    return addresses


def on_page_content(content: str, **_: object) -> str:
    """Fill the places that the page has for networks."""
    marks = {name: f'<div id="{name}"></div>' for name in _NETWORKS}
    if not all(mark in content for mark in marks.values()):
        return content
    try:
        known = zoo.networks()
        script = script_of(
            {place: known[name].load() for place, name in _NETWORKS.items()}, {"try-pictures": samples()}
        )
    except CompilerError as error:
        missing = f"<p>This site was built without the networks: {html.escape(str(error))}</p>"
        for mark in marks.values():
            content = content.replace(mark, missing)
        return content
    for name, mark in marks.items():
        content = content.replace(mark, f'<div class="lehr-try" id="{name}"></div>')
    return f'{content}<style>{style()}</style><script type="module">{script}</script>'
