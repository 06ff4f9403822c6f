"""Runs whose files are lost, damaged or absurd: they load if possible, else raise an error of one sentence."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from lehr.cli import main
from lehr.data import Dataset, Splits, load
from lehr.training.errors import RunError
from lehr.training.folder import RunFolder, load_checkpoint
from lehr.training.recipes import named
from lehr.training.session import train

pytestmark = [
    pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec.` is deprecated:FutureWarning"),
    pytest.mark.filterwarnings("default::lehr.training.errors.RunWarning"),
]
SHORT = ["--epochs", "4", "--annealing.schedule.duration", "1", "--model.hidden", "[16]"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("whole") / "run"
    assert main(["train", "digits-ana", *SHORT, "--out", str(path)]) == 0
    return path


@pytest.fixture
def run(whole: Path, tmp_path: Path) -> Path:
    return shutil.copytree(whole, tmp_path / "run")


def unfinished(run: Path) -> None:
    """Remove what the end of training writes."""
    (run / "results.json").unlink()
    (run / "checkpoints" / "final.ckpt").unlink()


def _tables(out: str) -> str:
    """Return the output of `evaluate` without the run's name."""
    return out[out.index("\n") :]


@pytest.mark.parametrize("content", [None, "", "{", "[]", "{}", '{"images": 3}'])
def test_a_lost_run_json_is_made_good_from_the_data_set(
    content: str | None, run: Path, whole: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    info = run / "run.json"
    info.unlink() if content is None else info.write_text(content)
    assert main(["evaluate", str(run)]) == 0
    out, err = capsys.readouterr()
    assert err.startswith(f"lehr: {info} ")
    assert err.endswith("; using the images of the recipe's data set\n")
    assert main(["evaluate", str(whole)]) == 0
    assert _tables(out) == _tables(capsys.readouterr().out)
    assert main(["report", str(run)]) == 0
    unfinished(run)
    assert main(["train", "--resume", str(run)]) == 0
    ours, theirs = (load_checkpoint(RunFolder(path).final)["state_dict"] for path in (run, whole))
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    if content not in ("{}", '{"images": 3}'):
        assert json.loads(info.read_text())["images"]["shape"] == [1, 8, 8]
        capsys.readouterr()
        assert main(["evaluate", str(run)]) == 0
        assert capsys.readouterr().err == ""


def test_a_lost_run_json_without_data_asks_for_them(run: Path, tmp_path: Path, capsys: Any) -> None:
    (run / "run.json").unlink()
    recipe = run / "recipe.yaml"
    recipe.write_text(recipe.read_text().replace("name: digits", f"name: cifar10\n  root: {tmp_path / 'nowhere'}"))
    assert main(["evaluate", str(run)]) == 1
    error = capsys.readouterr().err
    assert "the recipe's data set, which has the images too, cannot be loaded: " in error
    assert "`lehr data cifar10` fetches it" in error


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"shape": [1, 10**9, 10**9]}, "at most 67,108,864 values, got 1x1e+09x1e+09 in 10 classes"),
        ({"shape": [1, 8]}, "images are channels x height x width"),
        ({"shape": [1, -8, -8]}, "images are channels x height x width"),
        ({"shape": [1, 10**300, 8]}, "images are channels x height x width"),
        ({"shape": "188"}, "shape of the images cannot be '188'"),
        ({"shape": [1, 8.5, 8]}, "shape of the images cannot be [1, 8.5, 8]"),
        ({"shape": [[1], 8, 8]}, "shape of the images cannot be [[1], 8, 8]"),
        ({"classes": []}, "classes of the images cannot be []"),
        ({"classes": [1, 2]}, "classes of the images cannot be [1, 2]"),
        ({"mean": [0.1, 0.2]}, "each of the 1 channels needs a mean and a std"),
        ({"mean": [None]}, "mean of the images cannot be [None]"),
        ({"std": [0]}, "mean and std of the images must be finite, std positive"),
        ({"std": [-1.0]}, "mean and std of the images must be finite, std positive"),
    ],
)
def test_absurd_images_in_run_json_warn_and_the_data_set_is_used(
    change: dict[str, Any], message: str, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    info = json.loads((run / "run.json").read_text())
    info["images"] |= change
    (run / "run.json").write_text(json.dumps(info))
    assert main(["evaluate", str(run)]) == 0
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_a_shape_that_is_not_that_of_the_data_is_one_sentence(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    info = json.loads((run / "run.json").read_text())
    info["images"]["shape"] = [1, 4, 16]  # as many pixels, so that the network takes them
    (run / "run.json").write_text(json.dumps(info))
    told = (
        f"the network of {run} is for images of 1x4x16 in 10 classes, but the train images are of 1x8x8 in 10 classes\n"
    )
    for words in (["evaluate"], ["export", "--to", "packed"]):
        assert main([words[0], str(run), *words[1:]]) == 1
        assert capsys.readouterr().err == f"lehr {words[0]}: {told}"
    unfinished(run)
    assert main(["train", "--resume", str(run)]) == 1
    assert capsys.readouterr().err == f"lehr train: {told}"


def test_validation_images_of_another_size_are_one_sentence(tmp_path: Path) -> None:
    splits = load("digits")
    other = splits.validation
    wide = Dataset(other.images.repeat(1, 1, 1, 2), other.labels, other.classes, other.mean, other.std)
    message = "the training images are of 1x8x8 in 10 classes, but the validation images are of 1x8x16 in 10 classes"
    with pytest.raises(RunError, match=message):
        train(named("digits-ana", SHORT), tmp_path / "run", splits=Splits(splits.train, wide, splits.test))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("hidden", [[10**12], [10**30], [2**62]])
def test_a_network_beyond_all_memory_is_one_sentence(
    hidden: list[int], run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = yaml.safe_load((run / "recipe.yaml").read_text())
    recipe["model"]["init_args"]["hidden"] = hidden
    (run / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    assert main(["evaluate", str(run)]) == 1
    error = capsys.readouterr().err
    assert error.startswith(
        "lehr evaluate: the network of this recipe cannot be built for images of 1x8x8 in 10 classes"
    )
    assert error.count("\n") == 1


def test_truncated_metrics_warn_when_the_run_resumes_and_when_it_is_shown(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    metrics = run / "metrics.csv"
    lines = metrics.read_text().splitlines()
    metrics.write_text("\n".join(lines[:4])[:-20])
    assert main(["report", str(run)]) == 0
    assert capsys.readouterr().err == f"lehr: {metrics}: skipped damaged line 4\n"
    unfinished(run)
    (run / "checkpoints" / "epoch-00004.ckpt").unlink()
    assert main(["train", "--resume", str(run)]) == 0
    error = capsys.readouterr().err
    assert f"lehr: {metrics} has no epoch 2: only the curves have a gap, the network was trained there too\n" in error
    assert [row["epoch"] for row in RunFolder(run).read_metrics()] == ["0", "1", "3"]
    assert metrics.read_text().splitlines()[-1] == lines[-1]


def deep(levels: int) -> str:
    return "".join("  " * level + "a:\n" for level in range(levels)) + "  " * levels + "1\n"


LAUGHS = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 12)
)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: " + "[" * 991 + "]" * 991, "nested more than 50 deep"),
        ("a: " + "{b: " * 991 + "}" * 991, "nested more than 50 deep"),
        (deep(60), "nested more than 50 deep"),
        (LAUGHS, "it holds more than 1,000,000 values with its aliases expanded"),
        ("a: &a [*a]", "nested more than 50 deep"),
        ("a: &a {b: *a}", "nested more than 50 deep"),
        ("description: " + "x" * 200_000, "bytes; at most 100,000 are allowed"),
        ("epochs: " + "9" * 400, "beyond what a float can hold"),
        ("epochs: " + "9" * 5000, "digits"),
        ("epochs: 1e400", "epochs"),
        ("optimizer: {lr: 1e400}", "lr must be positive"),
        ("optimizer: {lr: .nan}", "lr must be positive"),
        ("annealing: {duration: .inf}", "got inf"),
        ("model: {name: mlp, width: 1e999}", "model.width must be finite, got inf"),
        ("!!python/object/apply:os.system ['true']", "could not determine a constructor"),
        ("\0", "unacceptable character"),
    ],
)
def test_yaml_beyond_its_bounds_is_one_sentence(
    text: str, message: str, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = run / "recipe.yaml"
    kept = "" if text[0] in "!\0" else recipe.read_text().replace(f"{text.split(':')[0]}:", "unused:", 1)
    lines, skipping = [], False
    for line in kept.splitlines():  # without the key that is set again
        skipping = line.startswith("unused:") or (skipping and line.startswith((" ", "-")))
        lines += [] if skipping else [line]
    recipe.write_text("\n".join([*lines, text, ""]))
    for words in (["report"], ["evaluate"], ["summary"], ["compare"], ["train", "--resume"]):
        assert main([*words, str(run)]) == 2
        error = capsys.readouterr().err
        assert message in error
        assert error.count("\n") == 1
