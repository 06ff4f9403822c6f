"""The import directions of docs/architecture.md, and what `import lehr` costs."""

import ast
import functools
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "lehr"
FILES = sorted(PACKAGE.rglob("*.py"))


def allowed() -> dict[str, set[str]]:
    text = (ROOT / "docs" / "architecture.md").read_text().split("## Who imports whom")[1]
    rows = [line.split("|")[1:3] for line in text.splitlines() if line.startswith("| `")]
    direct = {re.findall(r"`(\w+)`", room)[0]: set(re.findall(r"`(\w+)`", rest)) for room, rest in rows}

    @functools.cache
    def reach(room: str) -> frozenset[str]:
        return frozenset({room}).union(*(reach(other) for other in direct[room]))

    return {room: set(reach(room)) for room in direct}


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports(path: Path) -> set[str]:
    """Full names of what a file imports, relative imports resolved."""
    here = ["lehr", *path.relative_to(PACKAGE).with_suffix("").parts]
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = ".".join([*here[: len(here) - node.level], *([node.module] if node.module else [])])
            base = base if node.level else node.module or ""
            names |= {f"{base}.{alias.name}" for alias in node.names}
    return names


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_follow_the_table(path: Path):
    room, rooms = room_of(path), allowed()
    if room == "__init__":
        return
    assert room in rooms, f"{room} is missing in docs/architecture.md"
    known = {p.name.removesuffix(".py") for p in PACKAGE.iterdir()}
    used = {name.split(".")[1] for name in imports(path) if name.startswith("lehr.")} & known
    assert used <= rooms[room], f"{path.name} imports {used - rooms[room]}, which the table does not allow"


@pytest.mark.parametrize(
    ("library", "rooms"),
    [
        ("lightning", {"training"}),
        ("jsonargparse", {"training", "cli"}),
        ("rich", {"report", "data", "training"}),
        ("matplotlib", {"report"}),
        ("onnx", {"deploy"}),
        ("onnxruntime", {"deploy"}),
    ],
)
def test_a_library_stays_in_its_room(library: str, rooms: set[str]):
    users = {room_of(path) for path in FILES if library in {name.split(".")[0] for name in imports(path)}}
    assert users <= rooms


def test_import_lehr_needs_torch_alone():
    code = (
        "import sys, torch; before = set(sys.modules); import lehr; "
        "print(*sorted({name.split('.')[0] for name in set(sys.modules) - before}))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    heavy = {
        "lightning",
        "jsonargparse",
        "rich",
        "numpy",
        "sklearn",
        "onnx",
        "onnxruntime",
        "matplotlib",
        "PIL",
        "safetensors",
    }
    assert "lehr" in result.stdout.split()
    assert not heavy & set(result.stdout.split())
