"""A run folder: no half-written files, damage is detected, untrusted files are harmless."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path

import pytest
import torch

from lehr.training import folder as folder_module
from lehr.training.errors import RunError, RunWarning
from lehr.training.folder import RunFolder, load_checkpoint, read_json, replacing, save_checkpoint, write_json


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    run = RunFolder.unused(tmp_path / "deep" / "run")
    run.create("epochs: 1\n", {"seed": 3})
    return run


def checkpoint(number: float) -> dict[str, object]:
    return {"state_dict": {"model.weight": torch.full((1000,), number)}, "epoch": 1}


def test_a_folder_is_a_run_once_its_recipe_is_there(run: RunFolder) -> None:
    assert run.recipe.read_text() == "epochs: 1\n"
    assert '"seed": 3' in run.info.read_text()
    assert RunFolder.open(run.path).path == run.path
    with pytest.raises(RunError, match=f"{run.path} already holds a run: continue it with `lehr train --resume"):
        RunFolder.unused(run.path)
    with pytest.raises(RunError, match=r"is not a run: it has no recipe\.yaml"):
        RunFolder.open(run.path.parent)


def test_a_folder_that_cannot_be_created_raises(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match=r"cannot create the run folder .*: Not a directory"):
        RunFolder(tmp_path / "file" / "run").create("", {})


def test_a_failed_write_leaves_the_file_of_before_and_no_rest(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    write_json(path, {"a": 1})
    before = path.read_text()

    def fail(error: BaseException) -> None:
        with replacing(path) as part:
            part.write_text("half")
            raise error

    with pytest.raises(RunError, match=r"cannot write .*results.json: No space left on device; .* --resume"):
        fail(OSError(28, "No space left on device"))
    with pytest.raises(KeyboardInterrupt):
        fail(KeyboardInterrupt())
    assert path.read_text() == before
    assert os.listdir(tmp_path) == ["results.json"]


def test_old_checkpoints_and_rests_of_interrupted_writes_go(run: RunFolder) -> None:
    for epoch in range(1, 7):
        save_checkpoint(checkpoint(epoch), run.checkpoint(epoch))
    (run.checkpoints / "epoch-00003.ckpt.123.part").write_text("half")
    (run.path / "metrics.csv.123.part").write_text("half")
    run.prune()
    assert sorted(os.listdir(run.checkpoints)) == ["epoch-00004.ckpt", "epoch-00005.ckpt", "epoch-00006.ckpt"]
    assert not list(run.path.glob("*.part"))


def test_the_newest_checkpoint_comes_first_also_beyond_five_digits(run: RunFolder) -> None:
    assert run.newest_checkpoint() is None
    for epoch in (9, 10, 100):
        save_checkpoint(checkpoint(epoch), run.checkpoint(epoch))
    newest = run.newest_checkpoint()
    assert newest is not None
    assert newest[0] == run.checkpoint(100)
    assert torch.equal(newest[1]["state_dict"]["model.weight"], torch.full((1000,), 100.0))


@pytest.mark.parametrize("place", [0.0, 0.3, 0.5, 0.7, 0.99])
def test_a_flipped_bit_anywhere_is_noticed(run: RunFolder, place: float) -> None:
    path = run.checkpoint(1)
    save_checkpoint(checkpoint(1), path)
    content = bytearray(path.read_bytes())
    content[int(place * len(content))] ^= 0x10
    path.write_bytes(content)
    with pytest.raises(RunError, match=f"checkpoint {path} is damaged"):
        load_checkpoint(path)


def test_damaged_checkpoints_are_passed_over_with_a_word_until_none_is_left(run: RunFolder) -> None:
    for epoch in (1, 2):
        save_checkpoint(checkpoint(epoch), run.checkpoint(epoch))
    run.checkpoint(2).write_bytes(run.checkpoint(2).read_bytes()[:-1000])
    with pytest.warns(RunWarning, match=f"{run.checkpoint(2)} is damaged .*; trying the checkpoint before it"):
        newest = run.newest_checkpoint()
    assert newest is not None
    assert newest[0] == run.checkpoint(1)
    run.checkpoint(1).write_bytes(b"")
    with pytest.warns(RunWarning), pytest.raises(RunError, match=r"no checkpoint of .* can be read: start over with"):
        run.newest_checkpoint()


class Hostile:
    """Its pickle calls `os.system`."""

    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, (self.command,)


def test_a_hostile_checkpoint_is_refused_without_running_its_code(run: RunFolder, tmp_path: Path) -> None:
    path = run.checkpoint(1)
    torch.save({"state_dict": {}, "callbacks": Hostile(f"touch {tmp_path / 'owned'}")}, path)
    with pytest.raises(RunError, match="holds more than numbers and is not loaded: it could run code"):
        load_checkpoint(path)
    assert not (tmp_path / "owned").exists()
    torch.load(path, weights_only=False)  # the attack is real
    assert (tmp_path / "owned").exists()


def test_a_file_that_is_not_a_checkpoint_raises(run: RunFolder) -> None:
    with pytest.raises(RunError, match="there is no checkpoint"):
        load_checkpoint(run.final)
    torch.save([1, 2], run.final)
    with pytest.raises(RunError, match="is not a checkpoint of a run: it has no state_dict"):
        load_checkpoint(run.final)


@pytest.mark.parametrize("state", [[1], 3, None, {1: torch.ones(1)}])
def test_a_state_dict_without_named_tensors_raises(run: RunFolder, state: object) -> None:
    torch.save({"state_dict": state}, run.final)
    with pytest.raises(RunError, match="its state_dict does not map names to tensors"):
        load_checkpoint(run.final)


def test_a_checkpoint_that_unpacks_to_more_than_it_holds_is_refused_at_once(run: RunFolder) -> None:
    with zipfile.ZipFile(run.final, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", bytes(100_000_000))
    with pytest.raises(RunError, match="it would unpack to more than the file holds"):
        load_checkpoint(run.final)


def test_a_checkpoint_that_is_no_file_is_refused(run: RunFolder) -> None:
    os.mkfifo(run.final)
    with pytest.raises(RunError, match=r"final\.ckpt is not a regular file"):
        load_checkpoint(run.final)


def test_metrics_keep_their_text_and_gain_columns(run: RunFolder) -> None:
    assert run.read_metrics() == []
    run.write_metrics([{"epoch": 0, "loss": 0.1}])
    rows = run.read_metrics()
    assert rows == [{"epoch": "0", "loss": "0.1"}]
    run.write_metrics([*rows, {"epoch": 1, "loss": 0.05, "noisy": 0.5}])
    assert run.metrics.read_text() == "epoch,loss,noisy\n0,0.1,\n1,0.05,0.5\n"


DAMAGES = {
    "cut within a line": (lambda text: text[: text.index("\n3,") + 6], "epoch 3"),
    "cut within the last number": (lambda text: text[:-2], "epoch 3"),
    "cut at a line": (lambda text: text[: text.index("2,0.2")], "epochs 2 to 3"),
    "NULs in the middle": (lambda text: text.replace("1,0.1", "\0" * 5), "epoch 1"),
    "NULs from a place on": (lambda text: text[:20] + "\0" * (len(text) - 20), "epochs 1 to 3"),
    "NULs throughout": (lambda text: "\0" * len(text), "epochs 0 to 3"),
    "nothing": (lambda text: "", "epochs 0 to 3"),
    "another file": (lambda text: "name,colour\nfrog,green\n", "epochs 0 to 3"),
    "words": (lambda text: text.replace("0.2", "many"), "epoch 2"),
    "an epoch that is none": (lambda text: text.replace("\n2,", "\n-2,"), "epoch 2"),
    "a digit too many": (lambda text: text.replace("\n2,", "\n" + "2" * 5000 + ","), "epoch 2"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_rows_are_skipped_and_missing_epochs_warn(run: RunFolder, damage: str) -> None:
    run.write_metrics([{"epoch": epoch, "loss": f"0.{epoch}25"} for epoch in range(4)])
    whole = run.read_metrics()
    assert run.metrics_before(4) == whole
    change, lost = DAMAGES[damage]
    run.metrics.write_text(change(run.metrics.read_text()))
    with pytest.warns(RunWarning) as told:
        rows = run.metrics_before(4)
    assert str(told[-1].message).startswith(f"{run.metrics} has no {lost}: only the curves have a gap")
    assert rows == [row for row in whole if row in rows]
    run.write_metrics(rows)
    assert run.read_metrics() == rows


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[" * 991 + "]" * 991, "it is nested more than 50 deep"),
        ("[" * 100_000 + "]" * 100_000, "it is nested more than 50 deep"),
        ('{"a": 1e999}', "the number 1e999 is beyond what a float can hold"),
        ('{"a": ' + "9" * 400 + "}", "a number of 1329 bits is beyond what a float can hold"),
        ('{"a": ' + "9" * 5000 + "}", "digits"),
        ("[1]", "list"),
        ("\0", "Expecting value"),
        ("\xff", "is not UTF-8 text"),
    ],
)
def test_json_beyond_its_bounds_is_a_sentence(run: RunFolder, text: str, message: str) -> None:
    for path, read in ((run.results, run.read_results), (run.info, lambda: read_json(run.info))):
        path.write_bytes(text.encode("latin-1"))
        with pytest.raises(RunError) as error:
            read()
        assert message in str(error.value)
        assert str(path) in str(error.value)


def test_a_file_that_never_ends_or_never_begins_is_refused(run: RunFolder) -> None:
    run.info.unlink()
    os.mkfifo(run.info)
    with pytest.raises(RunError, match=r"run\.json is not a regular file"):
        read_json(run.info)
    with run.results.open("wb") as file:
        file.truncate(10**12)
    with pytest.raises(RunError, match="has 1,000,000,000,000 bytes; at most 16,000,000 are allowed"):
        run.read_results()


@pytest.mark.parametrize(("value", "shown"), [("many", "'many'"), (None, "None"), (True, "True"), ([1], "[1]")])
def test_results_are_numbers(run: RunFolder, value: object, shown: str) -> None:
    write_json(run.results, {"val/accuracy": value})
    with pytest.raises(RunError) as error:
        run.read_results()
    assert f"val/accuracy should be a number, got {shown}; remove it, and create it again with `lehr" in str(
        error.value
    )


def test_three_checkpoints_are_kept() -> None:
    assert folder_module.KEPT == 3
