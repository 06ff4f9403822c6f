"""Run folders damaged at random: every command ends, with a sentence if it fails, and imports nothing."""

from __future__ import annotations

import json
import random
import shutil
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from fuzzing import seeds
from lehr.cli import main
from made_runs import trained_runs

pytestmark = [
    pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec.` is deprecated:FutureWarning"),
    pytest.mark.filterwarnings("default::lehr.training.errors.RunWarning"),
]
SECONDS = 30.0  # no command takes longer, on a busy machine either
MODULE = "strangers_fuzzed_module"
VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2, 0.5, -0.5, 10**12, -(10**12), 2**63, 2**64, 10**30, 10**309, 1e300, -1e300),
    *(float("inf"), float("-inf"), float("nan"), 1e-320, "", "x", "0", "nan", "1e999", "annealed", "\x1b[2J\x07", "\0"),
    *("\ud800", "..", "/", "-", "a.b", f"{MODULE}.X", json.dumps({"class_path": f"{MODULE}.X"}), "x" * 5000),
    *([], {}, [[]], [1, 2, 3], {"a": 1}, {"class_path": f"{MODULE}.X"}, {"class_path": "lehr.algorithms.TWN"}),
    *({"class_path": "lehr.algorithms.ANA", "init_args": {"noise": 3}}, {"class_path": "lehr.cli.main"}),
)
COMMANDS = (["report"], ["compare"], ["evaluate"], ["summary"], ["export", "--to", "packed", "--verify", "false"])


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained_runs(tmp_path_factory) / "digits-ana"


def changed_bytes(chance: random.Random, content: bytes) -> bytes:
    """Flipped, cut, blanked, repeated or something else."""
    start = chance.randrange(len(content) + 1)
    end = min(len(content), start + chance.choice((1, 1, 2, 8, 64, 4096)))
    middle = chance.choice(
        (b"", bytes(end - start), content[start:end] * 3, chance.randbytes(end - start), b"\xff", b"[" * 1200, b"\r\n")
    )
    return content[:start] + middle + (b"" if chance.random() < 0.2 else content[end:])


def changed_value(chance: random.Random, content: Any) -> Any:
    """With a value, or a key, somewhere in it replaced; sizes of the network only by such that no machine holds."""
    if not isinstance(content, dict | list) or not content or chance.random() < 0.1:
        return chance.choice(VALUES)
    if isinstance(content, list):
        at = chance.randrange(len(content))
        return [*content[:at], changed_value(chance, content[at]), *content[at + 1 :]]
    key = chance.choice(list(content))
    if chance.random() < 0.1:
        return {name: value for name, value in content.items() if name != key}
    if chance.random() < 0.1:
        return {(f"{key}.class_path" if name == key else name): value for name, value in content.items()}
    return {**content, key: changed_value(chance, content[key])}


def as_yaml(content: Any) -> str:
    return yaml.safe_dump(content, allow_unicode=False)


def damage(chance: random.Random, run: Path) -> None:
    """Change one file of the run, or two."""
    plain: dict[str, tuple[Callable[[str], Any], Callable[[Any], str]]] = {
        "recipe.yaml": (yaml.safe_load, as_yaml),
        "run.json": (json.loads, json.dumps),
        "results.json": (json.loads, json.dumps),
    }
    for _ in range(chance.choice((1, 1, 2))):
        path = run / chance.choice((*plain, *plain, "metrics.csv", "checkpoints/final.ckpt"))
        if path.name in plain and chance.random() < 0.7:
            read, write = plain[path.name]
            try:
                path.write_text(write(changed_value(chance, read(path.read_text()))))
                continue
            except (ValueError, yaml.YAMLError):  # it was damaged before
                pass
        path.write_bytes(changed_bytes(chance, path.read_bytes()))


def test_a_damaged_run_is_shown_or_refused_in_a_sentence(
    whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / f"{MODULE}.py").write_text("class X: pass\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    for seed in seeds():
        chance, run = random.Random(seed), tmp_path / "run"
        shutil.rmtree(run, ignore_errors=True)
        shutil.copytree(whole, run)
        damage(chance, run)
        word, *rest = chance.choice(COMMANDS)
        told = f"LEHR_FUZZ_SEED={seed}: lehr {word}"
        capsys.readouterr()
        began = time.monotonic()
        try:
            with warnings.catch_warnings():
                code = main([word, "run", *rest])
        except BaseException as error:
            raise AssertionError(told) from error
        captured = capsys.readouterr()
        assert code in (0, 1, 2), told
        assert time.monotonic() - began < SECONDS, told
        assert all(c.isprintable() or c == "\n" for c in captured.out + captured.err), told
        assert code == 0 or captured.err.startswith("lehr"), told
        assert len(captured.err) < 5000, told
        assert MODULE not in sys.modules, told
