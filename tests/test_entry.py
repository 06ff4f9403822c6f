"""The program before it does anything: quick to tell its commands, quiet when it is interrupted while it imports."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from processes import ENVIRONMENT, PATIENCE

# The script that pip writes for the command `lehr`, and the module.
WAYS = {"script": "import sys; from lehr.__main__ import main; sys.exit(main())", "module": "-m"}
# Python imports sitecustomize before anything else. This one presses Ctrl-C when the module is about to be imported.
AT_IMPORT = """
import os, signal, sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r} and os.environ.pop("INTERRUPT", ""):
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Finder())
"""


def run(way: str, *words: str, **settings: str) -> subprocess.CompletedProcess[str]:
    command = ["-m", "lehr"] if way == "module" else ["-c", WAYS[way]]
    return subprocess.run(
        [sys.executable, *command, *words],
        env={**ENVIRONMENT, **settings},
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
    )


@pytest.mark.parametrize(
    ("way", "module", "words"),
    [
        ("script", "lehr.cli", "--help"),
        ("module", "lehr.cli", "--help"),
        ("script", "argparse", "recipes"),
        ("script", "lehr.training.recipes", "recipes"),
        ("script", "torch", "recipes"),
        ("module", "torch", "recipes"),
        ("script", "torch._C", "recipes"),
        ("script", "numpy", "recipes"),
        ("script", "jsonargparse", "recipes"),
        ("script", "yaml", "recipes"),
        ("script", "sympy", "recipes"),
        ("script", "lehr.report.terminal", "recipes"),
        ("script", "onnxruntime", "bench digits"),
    ],
)
def test_ctrl_c_while_a_module_is_imported_is_no_traceback(way: str, module: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(AT_IMPORT.format(module=module))
    path = f"{tmp_path}:{ENVIRONMENT['PYTHONPATH']}"
    ended = run(way, *words.split(), PYTHONPATH=path, INTERRUPT="now")
    assert (ended.returncode, ended.stderr) in [(130, "lehr: interrupted\n"), (0, "")]
    assert ended.returncode == 130 or module in ("sympy", "numpy"), "it is imported no more"


def test_an_interrupt_that_a_shell_wants_ignored_is(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(AT_IMPORT.format(module="lehr.cli"))
    environment = {**ENVIRONMENT, "PYTHONPATH": f"{tmp_path}:{ENVIRONMENT['PYTHONPATH']}", "INTERRUPT": "now"}
    words = f"trap '' INT; {sys.executable} -m lehr --help"
    ended = subprocess.run(["sh", "-c", words], env=environment, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_help_does_not_wait_for_torch() -> None:
    code = (
        "import sys; from lehr.__main__ import main; code = main();"
        "assert not {'torch', 'numpy', 'jsonargparse'} & set(sys.modules), sorted(sys.modules); sys.exit(code)"
    )
    for words in ("--help", "--version"):
        ended = subprocess.run([sys.executable, "-c", code, words], env=ENVIRONMENT, capture_output=True, check=False)
        assert (ended.returncode, ended.stderr) == (0, b"")
    seconds = []
    for _ in range(5):  # the quickest counts: other processes run at the same time
        began = time.perf_counter()
        assert run("module", "--help").returncode == 0
        seconds.append(time.perf_counter() - began)
    assert min(seconds) < 0.5


def test_ctrl_c_while_a_command_works_is_a_sentence(tmp_path: Path) -> None:
    compiler, works = tmp_path / "cc", tmp_path / "works"  # of the engine, which takes its time
    compiler.write_text(f"#!/bin/sh\ntouch {works}\nexec sleep {PATIENCE}\n")
    compiler.chmod(0o755)
    process = subprocess.Popen(
        [sys.executable, "-m", "lehr", "bench", "digits"],
        env={**ENVIRONMENT, "LEHR_CACHE": str(tmp_path), "CC": str(compiler)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + PATIENCE
    while not works.exists():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=PATIENCE)
    assert (process.returncode, out) == (130, "")
    assert err in ("lehr bench: interrupted\n", "lehr: interrupted\n")
