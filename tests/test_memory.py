"""Freed memory stays with the process: a real process, since it changes how that one allocates from then on."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

PROGRAM = """
import resource, sys, torch
from lehr.training.machine import keep_freed_memory
if sys.argv[1] == "keep":
    assert keep_freed_memory()
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.ones(2**24)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
print(min(faults() for _ in range(10)))  # the kernel may take a page back in between
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="mallopt is glibc's")
def test_a_large_tensor_made_again_needs_no_new_pages():
    kept, given_back = (
        int(subprocess.run([sys.executable, "-c", PROGRAM, how], capture_output=True, check=True, text=True).stdout)
        for how in ("keep", "give back")
    )
    assert kept < 100
    assert given_back > 10 * max(kept, 1)  # or this test cannot tell
