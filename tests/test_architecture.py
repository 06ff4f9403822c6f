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


@functools.cache
def table(column: int) -> dict[str, set[str]]:
    """A column of both tables, that of the rooms and that of the files of deploy; absent cells are empty."""
    text = (ROOT / "docs" / "architecture.md").read_text().split("## Who imports whom")[1]
    rows = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("| `")]
    cells = {row[0]: "".join(row[column : column + 1]) for row in rows}
    return {re.findall(r"`(\w+)`", room)[0]: set(re.findall(r"`(\w+)`", cell)) for room, cell in cells.items()}


@functools.cache
def allowed() -> dict[str, set[str]]:
    direct = table(1)

    @functools.cache
    def reach(room: str) -> frozenset[str]:
        return frozenset({room}).union(*(reach(other) for other in direct[room]))

    return {room: set(reach(room)) for room in direct}


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


@functools.cache
def imports(path: Path, *, when_loaded: bool = False) -> set[str]:
    """Full names of what a file imports, relative imports resolved; `when_loaded`: without imports in functions."""
    here = ["lehr", *path.relative_to(PACKAGE).with_suffix("").parts]
    names = set()
    tree = ast.parse(path.read_text())
    for node in tree.body if when_loaded else ast.walk(tree):
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


DEPLOY = sorted(path for path in (PACKAGE / "deploy").glob("*.py") if path.name != "__init__.py")


@pytest.mark.parametrize("path", DEPLOY, ids=lambda path: path.stem)
def test_imports_within_deploy_follow_the_table(path: Path):
    def used(names: set[str]) -> set[str]:
        parts = [name.removeprefix("lehr.").removeprefix("deploy.") for name in names if name.startswith("lehr.")]
        return {part.split(".")[0] for part in parts}

    files = allowed()
    assert path.stem in files, f"deploy/{path.name} is missing in docs/architecture.md"
    reach, when_called = files[path.stem], table(2)[path.stem]
    assert used(imports(path, when_loaded=True)) <= reach
    assert used(imports(path)) <= reach | when_called


def test_no_backend_knows_another_and_operations_know_nothing():
    files, backends = allowed(), {"pack", "cpu", "write_c", "write_onnx"}
    assert {name: files[name] & backends for name in backends} == {name: {name} for name in backends}
    vocabulary = {"operations", "abstract", "constants", "values"}
    assert files["operations"] == vocabulary | {name for name in files if name.endswith("_operations")}
    from_torch = {
        "trace",
        "conversion",
        "walk",
        "quantizer_converter",
        "layer_converters",
        "move_converters",
        "pool_converters",
        "converters",
        "freeze",
        "check",
        "verify",
    }
    assert {path.stem for path in DEPLOY if "layers" in files[path.stem]} == from_torch


@pytest.mark.parametrize("page", ["architecture", "paper", "extend", "methods", "devices"])
def test_files_named_on_the_page_exist(page: str):
    names = re.findall(r"`([\w/]+\.(?:py|c|h|inc))`", (ROOT / "docs" / f"{page}.md").read_text())
    folders = ("src", "tests", "benchmarks", "examples")
    paths = [f"/{path.relative_to(ROOT)}" for folder in folders for path in (ROOT / folder).rglob("*.*")]
    assert {name for name in names if not any(path.endswith(f"/{name}") for path in paths)} == set()


@pytest.mark.parametrize(
    ("library", "rooms"),
    [
        ("ray", {"training"}),
        ("lightning", {"training", "integrations"}),
        ("transformers", {"integrations"}),
        ("jsonargparse", {"training", "cli"}),
        ("rich", {"data", "calibration", "training"}),
        ("matplotlib", {"report"}),
        ("onnx", {"deploy"}),
        ("onnxruntime", {"deploy"}),
    ],
)
def test_a_library_stays_in_its_room(library: str, rooms: set[str]):
    users = {room_of(path) for path in FILES if library in {name.split(".")[0] for name in imports(path)}}
    assert users <= rooms


def test_import_lehr_needs_only_torch():
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


@functools.cache
def roads() -> dict[str, tuple[list[Path], set[str]]]:
    """Of each road of docs/architecture.md, the files it goes through and the names it mentions."""
    text = (ROOT / "docs" / "architecture.md").read_text().split("## Who imports whom")[0]
    found = {}
    for section in re.split(r"^## ", text, flags=re.MULTILINE):
        if section.startswith("The road"):
            title, _, body = section.partition("\n")
            words = re.findall(r"`([^`\s]+)`", body)
            files = [word for word in words if re.fullmatch(r"[\w/]+\.(py|c|h|inc)", word)]
            places = [PACKAGE / file if (PACKAGE / file).exists() else PACKAGE / "deploy" / file for file in files]
            names = {
                word.rpartition(".")[2] for word in set(words) - set(files) if re.fullmatch(r"[A-Za-z_][\w.]*", word)
            }
            found[title] = places, names
    return found


@pytest.mark.parametrize("road", roads())
def test_the_roads_go_through_files_that_are_there_and_hold_what_they_name(road: str) -> None:
    files, names = roads()[road]
    assert [file.name for file in files if not file.exists()] == []
    text = " ".join(file.read_text() for file in files)
    assert len(names) > 3
    assert {name for name in names if re.search(rf"\b{name}\b", text) is None} == set()
