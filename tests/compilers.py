"""C compilers for tests."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path


def with_last(command: Sequence[str], *flags: str, folder: Path) -> str:
    """A program that is `command` with these flags behind all others, so that -O0 is heard: for CC."""
    program = folder / "compiler"
    program.write_text(f'#!/bin/sh\nexec {shlex.join(command)} "$@" {shlex.join(flags)}\n')
    program.chmod(0o755)
    return str(program)
