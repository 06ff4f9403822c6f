"""docs/troubleshooting.md explains every error of converting, freezing and exporting, and none that is not there."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "lehr"
DEPLOY = PACKAGE / "deploy"
PAGE = (ROOT / "docs" / "troubleshooting.md").read_text()
TITLED = {"FreezeError", "Refusal", "error"}  # what takes a title as its first text
# Files whose messages the page quotes.
CONVERSION = ("convert", "decide", "calls", "tracing", "scale", "precision", "layer_loss")
EXPORT = ("write_onnx", "onnx_nodes", "write_c", "build", "plan", "lower", "cpu", "images", "arrays", "limits")
QUOTED = [PACKAGE / f"{name}.py" for name in CONVERSION] + [DEPLOY / f"{name}.py" for name in EXPORT]


def calls(path: Path) -> Iterator[ast.Call]:
    yield from (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call))


def text(node: ast.AST) -> str | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def titles() -> set[str]:
    """The first text among the arguments of what raises a FreezeError."""
    found = set()
    for path in DEPLOY.glob("*.py"):
        for call in calls(path):
            name = call.func.id if isinstance(call.func, ast.Name) else getattr(call.func, "attr", "")
            given = [text(argument) for argument in call.args[:2]]
            if name in TITLED:
                found |= {next((x for x in given if x is not None), None)}
    return {title for title in found if title is not None}


def fixed_parts(message: ast.expr) -> list[str]:
    """What of a message is the same whatever it is about."""
    if isinstance(message, ast.JoinedStr):
        return [part for part in map(text, message.values) if part]
    if isinstance(message, ast.BinOp):
        return fixed_parts(message.left) + fixed_parts(message.right)
    return [part for part in [text(message)] if part]


def words(part: str) -> str:
    return " ".join(part.split()).strip(" .,:;()")


def test_every_title_of_a_freeze_error_is_a_heading_and_every_heading_a_title() -> None:
    section = PAGE.split("## When freeze refuses a model")[1].split("\n## ")[0]
    headings = set(re.findall(r"^### (.+)$", section, flags=re.MULTILINE))
    assert len(headings) > 30
    assert titles() == headings


@pytest.mark.parametrize("path", QUOTED, ids=lambda path: path.stem)
def test_every_message_is_quoted(path: Path) -> None:
    page = " ".join(PAGE.split())
    missing = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and node.exc.args:
            parts = [words(part) for part in fixed_parts(node.exc.args[0])]
            telling = [part for part in parts if len(part) > 10]  # not the words between two names
            if telling and not any(part in page for part in telling):
                missing.append(f"line {node.lineno}: {' ... '.join(parts)}")
    assert missing == []


def test_every_quoted_message_is_in_the_source() -> None:
    source = " ".join(" ".join(path.read_text() for path in PACKAGE.rglob("*.py")).split())
    source = re.sub(r'" f?"', "", source)  # texts that Python joins
    quoted = [part for row in re.findall(r"^\| `([^`]+)` \|", PAGE, flags=re.MULTILINE) for part in row.split("...")]
    assert len(quoted) > 40
    assert [part for part in quoted if words(part) not in source] == []
