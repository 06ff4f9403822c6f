"""The site: built strict and offline, its links lead somewhere, its pages open in a browser, the noise can be moved."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import subprocess
import sys
import time
import types
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag, urlsplit

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_sample_image

import lehr
from browser import CHROMIUM, Browser
from lehr import zoo
from lehr.report.figures import NOISES
from lehr.theory import derivative
from pages import TryIt
from processes import ENVIRONMENT

ROOT = Path(__file__).parent.parent
PHONE, DESK = 390, 1280

pytestmark = pytest.mark.skipif(importlib.util.find_spec("mkdocs") is None, reason="needs lehr[docs]")
in_browser = pytest.mark.skipif(CHROMIUM is None, reason="needs chromium")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("site")
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(target)]
    quiet = {**ENVIRONMENT, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(build, cwd=ROOT, env=quiet, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return target


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    opened = Browser()
    yield opened
    opened.close()


class Page(HTMLParser):
    """What a page refers to: addresses it loads, addresses it links to, names it can be linked at."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.links: list[str] = []
        self.names: set[str] = set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.names |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        elif tag == "link" and given.get("rel") not in ("canonical", "prev", "next"):
            self.loads.append(given["href"])
        elif "src" in given:
            self.loads.append(given["src"])


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Page]:
    return {path: Page(path) for path in sorted(site.rglob("*.html")) if path.name != "404.html"}


def test_every_page_of_docs_and_every_room_is_on_the_site(site: Path, pages: dict[Path, Page]) -> None:
    found = {path.relative_to(site).with_suffix("").as_posix() for path in pages}
    written = {path.relative_to(ROOT / "docs").with_suffix("").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    assert written <= found
    rooms = {path.stem for path in (ROOT / "src" / "lehr").iterdir() if path.name[0] not in "_."} - {"py"}
    internal = {"decide", "fast", "observe", "printable", "search", "symbolic", "table", "tracing", "uses"}
    assert {f"reference/{room}" for room in rooms - internal - {"recipes", "cli"}} <= found


def test_every_page_is_in_the_navigation(site: Path, pages: dict[Path, Page]) -> None:
    linked = {(site / urldefrag(link).url).resolve() for link in Page(site / "index.html").links if "://" not in link}
    assert set(pages) - linked <= {site / "index.html"}


def test_links_lead_to_files_and_anchors_that_exist(site: Path, pages: dict[Path, Page]) -> None:
    dead = []
    for path, page in pages.items():
        for link in page.links + page.loads:
            if urlsplit(link).scheme or link.startswith("//"):
                continue
            address, anchor = urldefrag(link)
            target = (path.parent / unquote(address)).resolve() if address not in ("", ".") else path
            target = target / "index.html" if target.is_dir() else target
            if not target.is_file() or (anchor and target in pages and unquote(anchor) not in pages[target].names):
                dead.append(f"{path.relative_to(site)}: {link}")
    assert dead == []


def test_nothing_is_loaded_from_elsewhere(site: Path, pages: dict[Path, Page]) -> None:
    assert [load for page in pages.values() for load in page.loads if urlsplit(load).scheme not in ("", "data")] == []
    for style in site.rglob("*.css"):
        assert not re.search(r"(url\(|@import)\s*[\"']?(https?:)?//", style.read_text(encoding="utf-8"))


def test_formulas_are_mathml(pages: dict[Path, Page]) -> None:
    texts = {path.stem: path.read_text(encoding="utf-8") for path in pages}
    assert texts["idea"].count("<math") > 10
    assert "<mi>&#x00398;</mi>" in texts["paper"]  # Θ, in a table
    for text in texts.values():
        assert "arithmatex" not in text
        assert not re.search(r"<p>[^<]*\$[^<]*\\[a-z]+", text)  # LaTeX that stayed as it was


def test_braces_are_text(site: Path) -> None:
    """An extension that takes {...} for attributes would swallow sets."""
    assert "all in {-1, 0, +1}" in (site / "index.html").read_text(encoding="utf-8")


def test_cells_show_what_they_print_and_draw_and_are_a_notebook(site: Path) -> None:
    shown = (site / "theory.html").read_text(encoding="utf-8")
    assert "tensor([-1.,  0.,  0.,  0.,  1.])" in shown
    assert (site / "figures" / "theory_1.svg").read_text(encoding="utf-8").startswith("<?xml")
    notebook = json.loads((site / "theory.ipynb").read_text(encoding="utf-8"))
    code = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    page = (ROOT / "docs" / "theory.md").read_text(encoding="utf-8")
    assert code == [block.strip() for block in re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)]
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)


def test_the_reference_tells_the_public_names_and_the_commands(site: Path) -> None:
    front = (site / "reference" / "lehr.html").read_text(encoding="utf-8")
    for name in lehr.__all__:
        assert re.search(rf'<a[^>]* href="[^"]+"[^>]*><code>lehr\.{name}</code>', front), name
    noise = (site / "reference" / "noise.html").read_text(encoding="utf-8")
    assert "which make a multi-step function differentiable" in noise
    assert "&gt;&gt;&gt;" in noise
    assert "<blockquote>" not in noise
    assert "--lipschitz" in (site / "reference" / "commands.html").read_text(encoding="utf-8")


def hook(name: str) -> types.ModuleType:
    spec = importlib.util.spec_from_file_location(f"docs_{name}", ROOT / "docs" / "hooks" / f"{name}.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look themselves up there
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "docs" / "hooks")  # as mkdocs does
        spec.loader.exec_module(module)
    return module


def test_a_page_nobody_named_gets_a_place_before_the_reference(tmp_path: Path) -> None:
    for name in ("index.md", "methods.md"):
        (tmp_path / name).touch()
    config = types.SimpleNamespace(nav=[{"Home": "index.md"}, {"Reference": []}], docs_dir=str(tmp_path))
    hook("pages").on_config(config)
    assert config.nav[:2] == [{"Home": "index.md"}, "methods.md"]
    assert list(config.nav[2]) == ["Reference"]


def test_blocks_and_doctests_of_a_docstring_become_code() -> None:
    to_markdown = hook("docstrings").to_markdown
    assert to_markdown("A law::\n\n    1 - p\n\n    or so\n\nmore") == "A law:\n\n```text\n1 - p\n\nor so\n```\n\nmore"
    assert to_markdown(">>> 1 + 1\n2") == "```pycon\n>>> 1 + 1\n2\n```"


@pytest.mark.parametrize("kind", NOISES)
@pytest.mark.parametrize("levels", ["ternary", "uneven"])
def test_the_curves_to_choose_from_are_those_of_lehr(kind: type[lehr.Normal], levels: str) -> None:
    explorer = hook("explorer")
    step = explorer.LEVELS[levels][1]
    value, slope = explorer.panels_of(step)
    noise = kind(explorer.STDS[12])
    drawn = explorer.curve_of(step, noise, value, slope)
    expected = (value, lehr.quantize), (slope, lambda x, step, noise: derivative(step, noise, x))
    for points, (panel, function) in zip(drawn, expected, strict=False):
        places = torch.tensor([[float(number) for number in point.split(",")] for point in points.split()])
        assert len(places) < 400
        x = (places[:, 0] - panel.left) / (panel.right - panel.left) * 2 * panel.high[0] - panel.high[0]
        near = torch.stack([panel.y(function(x.double() + shift, step, noise)) for shift in (-2e-3, 0.0, 2e-3)])
        off = torch.relu(places[:, 1] - near.amax(0)) + torch.relu(near.amin(0) - places[:, 1])
        assert off.max() < 0.5  # of a pixel, where the curve is within a pixel of there


@in_browser
@pytest.mark.parametrize(("width", "dark"), [(DESK, False), (PHONE, True)])
def test_every_page_opens_without_a_complaint_or_a_request_to_elsewhere(
    site: Path, pages: dict[Path, Page], browser: Browser, width: int, dark: bool
) -> None:
    for path in pages if width > PHONE else [path for path in pages if path.parent == site]:
        browser.problems.clear()
        browser.requests.clear()
        browser.open(path, width=width, dark=dark)
        name = path.relative_to(site)
        assert browser.evaluate("document.documentElement.scrollWidth") <= width, name
        scheme = browser.evaluate("document.body.dataset.mdColorScheme")
        assert (scheme == "slate") == dark, name
        assert browser.problems == [], name
        assert [address for address in browser.requests if not address.startswith(("file:", "data:", "about:"))] == []


def shown(browser: Browser) -> dict[str, str]:
    parts = {"value": "points", "slope": "points", "staircase": "points", "told": None, "axes": None, "masses": None}
    return {
        part: browser.evaluate(
            f"document.getElementById('explorer-{part}')" + (f".getAttribute('{name}')" if name else ".innerHTML")
        )
        for part, name in parts.items()
    }


def press(browser: Browser, key: str) -> None:
    for kind in ("keyDown", "keyUp"):
        code = {"ArrowLeft": 37, "ArrowRight": 39, "Home": 36, "End": 35, "ArrowDown": 40}[key]
        browser.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code)


def choose(browser: Browser, menu: str, option: str) -> None:
    browser.evaluate(
        f"{{const menu = document.getElementById('explorer-{menu}'); menu.value = '{option}';"
        "menu.dispatchEvent(new Event('input', {bubbles: true}))}"
    )


@in_browser
def test_the_slider_moves_the_noise_by_the_keyboard_and_the_picture_follows(site: Path, browser: Browser) -> None:
    browser.open(site / "explorer.html")
    before = shown(browser)
    assert before["told"] == "std 0.289 (√3/6, the paper’s) · steepest slope 1"
    browser.evaluate("document.getElementById('explorer-std').focus()")
    press(browser, "ArrowLeft")
    after = shown(browser)
    assert after["told"] == "std 0.269 · steepest slope 1.07"
    assert after["value"] != before["value"]
    assert after["slope"] != before["slope"]
    assert browser.evaluate("document.getElementById('explorer-std').getAttribute('aria-valuetext')") == "0.269"
    press(browser, "Home")
    hard = shown(browser)
    assert hard["value"] == hard["staircase"]
    assert hard["masses"].count("<line") == 2
    assert hard["told"] == "std 0.000 · steepest slope ∞"


@in_browser
def test_menus_change_the_noise_and_the_levels(site: Path, browser: Browser) -> None:
    browser.open(site / "explorer.html")
    uniform = shown(browser)
    choose(browser, "noise", "Normal")
    normal = shown(browser)
    assert normal["value"] != uniform["value"]
    assert normal["axes"] == uniform["axes"]
    choose(browser, "levels", "sign")
    sign = shown(browser)
    assert sign["staircase"] != normal["staircase"]
    assert sign["axes"].count("explorer-level") == 2


@in_browser
def test_the_gradient_stays_while_the_value_is_annealed_if_asked_to(site: Path, browser: Browser) -> None:
    browser.open(site / "explorer.html")
    before = shown(browser)
    browser.evaluate("document.getElementById('explorer-backward').click()")
    browser.evaluate("document.getElementById('explorer-anneal').click()")
    deadline = time.monotonic() + 30
    while browser.evaluate("document.getElementById('explorer-std').value") != "0" and time.monotonic() < deadline:
        time.sleep(0.1)
    after = shown(browser)
    assert after["value"] == after["staircase"] != before["value"]
    assert after["slope"] == before["slope"]
    assert browser.evaluate("document.getElementById('explorer-anneal').textContent") == "Anneal"


@in_browser
def test_the_search_finds_a_word_in_pages_opened_as_files(site: Path, browser: Browser) -> None:
    browser.problems.clear()
    browser.open(site / "index.html")
    browser.evaluate("document.querySelector('[data-md-component=search-query]').focus()")
    browser.call("Input.insertText", text="straight-through")
    deadline, found = time.monotonic() + 30, []
    while not found and time.monotonic() < deadline:
        time.sleep(0.1)
        found = browser.evaluate("[...document.querySelectorAll('.md-search-result__link')].map((link) => link.href)")
    assert any("theory.html" in address for address in found)
    assert browser.problems == []


@in_browser
@pytest.mark.skipif(
    shutil.which("clang") is None or shutil.which("wasm-ld") is None, reason="needs clang and lld (Debian: clang lld)"
)
def test_networks_of_the_zoo_answer_to_a_drawn_digit_and_a_dropped_picture(site, browser, tmp_path):
    photo = Image.fromarray(load_sample_image("china.jpg")).resize((32, 32))
    photo.save(tmp_path / "temple.png")
    browser.problems.clear()
    browser.open(site / "try-it.html", width=DESK, height=1000)
    digits = TryIt(browser, "try-digits")
    assert [digits.draw(digit)["label"] for digit in "047"] == ["0", "4", "7"]
    answer = TryIt(browser, "try-pictures").drop(tmp_path / "temple.png")
    pixels = np.array(photo).transpose(2, 0, 1)[None]
    assert answer["image"] == pixels.ravel().tolist()
    net = zoo.networks()["cifar10-quick"].load()
    assert answer["scores"] == net.scores(pixels)[0].tolist()
    for name, drawing in hook("drawings").drawings().items():
        answer = TryIt(browser, "try-pictures").click(name)
        assert answer["label"] == name
        assert answer["image"] == np.array(drawing).transpose(2, 0, 1).ravel().tolist()
    assert browser.problems == []


def test_drawings_are_what_they_are_called_by_networks_of_the_zoo():
    drawings = hook("drawings").drawings()
    images = np.stack([np.array(drawing).transpose(2, 0, 1) for drawing in drawings.values()])
    assert images.shape == (3, 3, 32, 32)
    for name in ("cifar10-quick", "cifar10-flagship"):
        net = zoo.networks()[name].load()
        assert [net.classes[label] for label in net.predict(images)] == list(drawings)


def test_the_site_says_what_is_missing_where_networks_cannot_be_compiled(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    page = hook("try_it").on_page_content('<div id="try-digits"></div><div id="try-pictures"></div>')
    assert page.count("there is no clang") == 2
    assert "<script" not in page
