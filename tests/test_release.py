"""What a release tells of itself is said once, or compared."""

from __future__ import annotations

import re
from pathlib import Path

import lehr

ROOT = Path(__file__).parents[1]


def test_citation_and_changelog_know_the_version():
    assert f"version: {lehr.__version__}\n" in (ROOT / "CITATION.cff").read_text()
    sections = re.findall(r"^## (\d+\.\d+\.\d+)", (ROOT / "CHANGELOG.md").read_text(), re.M)
    assert sections[0] == lehr.__version__
    assert sections == sorted(sections, reverse=True)
