"""An `IntegerNet` as one HTML page: draw, drop or open a picture, and see classes, scores, time and size.

The page holds the network as WebAssembly and loads nothing: it works from a disk and off-line. browser/try.mjs is its
script; the documentation's page "Try it" shows the same with `widget`.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
from pathlib import Path

from lehr.deploy.integer_net import IntegerNet
from lehr.deploy.write_wasm import BROWSER, wasm_of
from lehr.printable import printable


def to_html(net: IntegerNet, path: str | Path, *, title: str = "A ternary network") -> None:
    """Write `net` as one self-contained page.

    Args:
        net: a network of images with 1 or 3 channels, and one output
        path: the page
        title: its title
    """
    script = script_of({"lehr": net})
    channels, rows, columns = net.input_shape
    verb = "Draw, or drop a picture" if channels == 1 else "Drop a picture, or draw"
    size = f"{columns} x {rows} pixels{', grey' if channels == 1 else ''}"
    page = (BROWSER / "page.html").read_text(encoding="utf-8")
    for name, text in {
        "TITLE": html.escape(printable(title)),
        "WHAT": f"{verb}: the network sees {size}.",
        "STYLE": style(),
        "SCRIPT_HASH": f"sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}",
        "SCRIPT": script,
    }.items():
        page = page.replace(f"@{name}@", text)
    Path(path).write_text(page, encoding="utf-8", newline="\n")


def script_of(nets: dict[str, IntegerNet], samples: dict[str, dict[str, str]] | None = None) -> str:
    """The script, a module, that fills the element of each id with its network.

    Args:
        nets: by the id of the element
        samples: for some of these ids, addresses of pictures to click, by their names
    """
    for net in nets.values():
        _check(net)
    files = {place: base64.b64encode(wasm_of(net)).decode() for place, net in nets.items()}
    source = "\n".join((BROWSER / name).read_text(encoding="utf-8") for name in ("model.mjs", "try.mjs"))
    return f"""
{source}
const samples = {json.dumps(samples or {})};
for (const [place, file] of Object.entries({json.dumps(files)})) {{
  const bytes = Uint8Array.from(atob(file), (letter) => letter.charCodeAt(0)).buffer;
  tryIt(document.getElementById(place), bytes, samples[place]);
}}
"""


def style() -> str:
    """The style sheet of what the script makes."""
    return (BROWSER / "try.css").read_text(encoding="utf-8")


def _check(net: IntegerNet) -> None:
    channels = net.input_shape[0]
    if net.input_dtype != "uint8" or len(net.input_shape) != 3 or channels not in (1, 3):
        taken = " x ".join(map(str, net.input_shape))
        raise ValueError(
            f"a page shows pictures, 1 or 3 channels of uint8, and this network takes {taken} {net.input_dtype}: "
            "export it to wasm, whose model.mjs takes such numbers"
        )
