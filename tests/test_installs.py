"""Base and partial installs: what works, works; what does not is one sentence with the extra to install."""

from __future__ import annotations

import re
import sys
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from installs import PROJECT, ROOT, make_install, run_installed
from lehr.cli import COMMANDS
from lehr.cli.extras import EXTRAS, missing_sentence

# Each command in turn, its exit code before what it printed: torch is imported once.
EACH = """
import sys
from lehr.cli import main
for words in {commands!r}:
    print("$", *words, flush=True)
    print("exit code", main(words), flush=True)
"""


def run_each(folder: Path, *commands: str) -> dict[str, str]:
    """What each command printed on both streams, with its exit code."""
    code = "import os; os.dup2(1, 2)" + EACH.format(commands=[command.split() for command in commands])
    ended = run_installed(folder, "-c", code)
    assert ended.returncode == 0, ended.stdout
    parts = re.split(r"^\$ (.*)\n", ended.stdout, flags=re.M)[1:]
    return dict(zip(parts[::2], parts[1::2], strict=True))


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_install(tmp_path_factory.mktemp("base"))


def test_a_base_install_quantizes(base: Path) -> None:
    code = (
        "import lehr, torch; model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.ReLU());"
        "lehr.quantize_(model); print(type(model[0]).__module__)"
    )
    ended = run_installed(base, "-W", "ignore", "-c", code)
    assert (ended.returncode, ended.stdout) == (0, "lehr.layers\n"), ended.stderr


def test_in_a_base_install_every_command_names_its_extra(base: Path) -> None:
    commands = [f"{word} a b" for word in EXTRAS]
    for command, printed in run_each(base, *commands).items():
        word = command.split()[0]
        pattern = rf"lehr {word} needs \w+, which is not installed: pip install 'lehr\[{EXTRAS[word]}\]'\nexit code 1\n"
        assert re.fullmatch(pattern, printed), printed


def test_with_deploy_alone_networks_are_listed_classified_and_exported(tmp_path: Path) -> None:
    folder = make_install(tmp_path, "deploy")
    commands = ("zoo", "predict digits nowhere.png", "export digits --to onnx --verify false", "train digits-ana")
    listed, predicted, exported, trained = run_each(folder, *commands).values()
    assert "cifar10-quick" in listed
    assert "there is no file nowhere.png" in predicted
    assert exported.startswith("digits.onnx: ")
    assert trained.endswith("pip install 'lehr[train]'\nexit code 1\n")


def test_every_command_that_needs_an_extra_says_which() -> None:
    assert set(EXTRAS) == set(COMMANDS) - {"doctor"}
    assert {extra for extras in EXTRAS.values() for extra in extras.split(",")} <= set(PROJECT["optional-dependencies"])


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.10 does not know which modules a package has")
@pytest.mark.parametrize("extra", ["train", "deploy", "imagenet", "ray"])
def test_what_an_extra_brings_is_known_when_it_is_missing(extra: str) -> None:
    if extra == "ray":
        pytest.importorskip("ray", reason="needs lehr[ray]")
    modules: dict[str, list[str]] = {}
    for module, names in metadata.packages_distributions().items():
        for name in names:
            modules.setdefault(name.lower(), []).append(module)
    needed = [Requirement(text).name for text in PROJECT["optional-dependencies"][extra]]
    for name in set(needed) - {"lehr"}:
        assert any(missing_sentence("train", module) for module in modules[name]), name
    assert missing_sentence("train", "a_module_of_the_user") is None


def test_the_lowest_versions_are_those_of_the_project() -> None:
    lines = (ROOT / "constraints-lowest.txt").read_text().splitlines()
    lowest = {Requirement(line).name: Requirement(line).specifier for line in lines if not line.startswith("#")}
    extras = PROJECT["optional-dependencies"]
    needed = [
        Requirement(text) for text in PROJECT["dependencies"] + extras["train"] + extras["deploy"] + extras["imagenet"]
    ]
    bounds = {need.name: f"=={str(need.specifier).removeprefix('>=')}" for need in needed if need.name != "lehr"}
    assert {name: str(version) for name, version in lowest.items()} == bounds | {"torch": "==2.13.0"}


def test_a_base_install_is_examined_and_whole(base: Path) -> None:
    ended = run_installed(base, "-m", "lehr", "doctor")
    assert (ended.returncode, ended.stderr) == (0, "")
    rows = {row[0]: row[1:] for row in (re.split(r"\s{2,}", line) for line in ended.stdout.splitlines())}
    assert rows["torch"] == [f"{metadata.version('torch')} (>=2.4)", "OK"]
    assert rows["lehr[deploy]"][1] == "to use it: pip install 'lehr[deploy]'"
    assert {"python", "processor", "GPU", "C compiler", "cache", "engine", "data", "free disk"} <= set(rows)


def test_a_package_outside_its_range_is_broken_and_the_advice_repairs_it(tmp_path: Path) -> None:
    folder = make_install(tmp_path)
    [described] = folder.glob("lehr-*.dist-info/METADATA")
    described.write_text(described.read_text().replace("torch>=2.4", "torch>=99"))
    ended = run_installed(folder, "-m", "lehr", "doctor")
    assert ended.returncode == 1
    assert ended.stderr == "lehr doctor: torch: needed and broken, see above\n"
    assert re.search(r"^torch +\S+, outside >=99 +pip install 'torch>=99'$", ended.stdout, re.M)


def test_the_form_of_an_issue_asks_for_it() -> None:
    assert "`lehr doctor`" in (ROOT / ".github" / "ISSUE_TEMPLATE" / "bug.yml").read_text()
