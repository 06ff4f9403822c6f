"""The command line: every command tells its arguments, every mistake is one sentence and a non-zero exit code."""

from __future__ import annotations

import json
import os
import pty
import re
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch

import lehr
from lehr.cli import COMMANDS, main
from lehr.cli.arguments import completion_script, parser_of
from lehr.cli.recipe_commands import train_words
from lehr.report.numbers import percent
from lehr.training import recipes
from lehr.training.folder import RunFolder
from lehr.training.model import NETWORKS
from lehr.training.recipe_keys import help_parser, parser_of_keys
from lehr.training.run import load_network
from made_runs import make_run
from processes import ENVIRONMENT, PATIENCE
from processes import lehr as lehr_process

pytestmark = pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec.` is deprecated:FutureWarning")
SHORT = ("digits-ana", "--epochs", "4", "--annealing.schedule.duration", "1", "--model.hidden", "[64,64]")


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("cli") / "run"
    assert main(["train", *SHORT, "--out", str(path)]) == 0
    return path


def test_it_tells_its_commands_and_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == main(["--help"]) == 0
    output = capsys.readouterr().out
    for word in COMMANDS:
        assert f"\n{word} " in output
    assert "--trust lets train, evaluate" in output
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"{lehr.__version__}\n"


@pytest.mark.parametrize("word", COMMANDS)
def test_every_command_has_help(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([word, "--help"]) == 0
    captured = capsys.readouterr()
    assert f"usage: lehr {word}" in captured.out
    assert captured.err == ""


@pytest.mark.parametrize("word", [word for word in COMMANDS if word not in ("train", "compare")])
def test_every_argument_of_every_command_is_described(word: str) -> None:
    actions = parser_of(word, COMMANDS[word])._actions
    assert [action.dest for action in actions if not action.help] == []


@pytest.mark.parametrize("network", NETWORKS.values())
def test_every_key_of_a_recipe_is_described(network: type[torch.nn.Module]) -> None:
    # jsonargparse itself names the type and the default: a description is what remains without them.
    actions = parser_of_keys(network)._actions
    undescribed = [action.dest for action in actions if not (action.help or "").strip()]
    assert undescribed == []
    assert all(action.help for action in help_parser(train_words())._actions)


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("lehr ev", {"evaluate"}),
        ("lehr train digits-twn", {"digits-twn"}),
        ("lehr train digits-ana --optimizer.w", {"--optimizer.weight_decay"}),
        ("lehr export digits --to q", {"qonnx"}),
        ("lehr compare --methods tt", {"ttq"}),
        ("lehr data fash", {"fashion-mnist"}),
    ],
)
def test_bash_completes(words: str, expected: set[str], completion: Path) -> None:
    script = (
        f"source {completion}; COMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); "
        '_shtab_lehr lehr "${COMP_WORDS[-1]}" "${COMP_WORDS[-2]}"; echo "${COMPREPLY[@]}"'
    )
    ended = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
    assert set(ended.stdout.split()) == expected


@pytest.fixture(scope="module")
def completion(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("completion") / "lehr"
    path.write_text(completion_script(COMMANDS, "bash"))
    return path


@pytest.mark.parametrize("shell", ["zsh", "tcsh"])
def test_other_shells_have_their_script(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    assert "digits-ana" in capsys.readouterr().out


def test_help_of_train_lists_the_keys_of_a_recipe(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--help"]) == 0
    output = capsys.readouterr().out
    for key in (
        "--resume",
        "--from",
        "--out",
        "--epochs",
        "--optimizer.lr",
        "--annealing.schedule",
        "--algorithm.help",
    ):
        assert key in output


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        ("trian digits-ana", 2, "lehr: there is no command 'trian'; did you mean train?"),
        ("completion fish", 2, "fish"),
        ("frobnicate", 2, "lehr: there is no command 'frobnicate'; there are demo, train,"),
        ("train", 2, "lehr train: which recipe?"),
        ("train digits-anna", 2, "no recipe is called 'digits-anna'; did you mean digits-ana?"),
        ("train digits-ana --epoch 3", 2, "unrecognized arguments: --epoch 3"),
        ("train digits-ana --epochs -3", 2, "epochs must be at least 1, got -3"),
        ("train digits-ana --epochs many", 2, "many"),
        ("train digits-ana --out", 2, "argument --out: expected one argument"),
        ("train digits-ana --data.name cifar10 --data.root /nowhere", 1, "`lehr data cifar10` fetches it"),
        ("train digits-ana --data.name nope", 2, "no data set is called 'nope'"),
        ("train digits-ana --data.batch_size 9999", 2, "1253 training images do not fill one batch of 9999"),
        ("train digits-ana --from /nowhere", 1, "/nowhere is not a run: it has no recipe.yaml"),
        ("train digits-ana --accelerator abacus", 2, "abacus"),
        ("train --resume /nowhere", 1, "/nowhere is not a run: it has no recipe.yaml"),
        ("train --resume /nowhere --epochs 3", 2, "continues with the run's own recipe and takes no other argument"),
        ("train digits-ana --seed 18446744073709551616", 2, "seed must be below 2**64, got 18446744073709551616"),
        ("train digits-ana --data.batch_size 1", 2, "batch_size must be at least 2, got 1"),
        ("evaluate", 2, "run"),
        ("evaluate /nowhere", 1, "/nowhere is not a run"),
        ("summary nothing", 2, "no recipe is called 'nothing'"),
        ("recipes all", 2, "all"),
        ("data nope", 2, "no data set is called 'nope'"),
        ("data imagenet", 2, "cannot be fetched: recipes read them from data.root"),
        ("compare run --foo", 2, "lehr compare: unrecognized arguments: --foo"),
        ("bench digits --repetitions 0", 2, "repetitions must be at least 1, got 0"),
        ("predict / image.png", 2, "If it is a run, `lehr export / --to packed` writes /model.lehr"),
        ("export digits --to packed --out /", 1, "/ is a folder: name a file in it"),
        ("export digits --to packed --out /no/such.lehr", 1, "there is no folder /no to write such.lehr to"),
        ("approximate x0 --epsilon 1e-12", 1, "GiB of memory, but this machine has"),
        ("approximate x0*x1*x2*x3*x4*x5 --epsilon 0.1", 1, "GiB of memory, but this machine has"),
        ("approximate x0 --epsilon 0.1 --lipschitz 0", 2, "x0 is steeper than lipschitz=0: the error is 0.5"),
    ],
)
def test_a_mistake_is_one_sentence_and_leaves_nothing_behind(
    words: str, code: int, message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(words.split()) == code
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.err.startswith("lehr")
    assert captured.err.count("\n") == 1
    assert captured.out == ""
    assert os.listdir(tmp_path) == []


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine without any tool: no compiler, no git."""
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    monkeypatch.setenv("LEHR_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("CC", raising=False)


@pytest.mark.usefixtures("bare")
@pytest.mark.filterwarnings("default")
def test_a_machine_without_tools_trains_and_exports(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = "train digits-ana --epochs 2 --annealing.schedule.duration 0.2 --model.hidden [16] --out"
    assert main([*words.split(), str(tmp_path / "run")]) == 0
    assert json.loads((tmp_path / "run" / "run.json").read_text())["commit"] is None
    capsys.readouterr()
    assert main(["export", str(tmp_path / "run"), "--to", "packed"]) == 0
    captured = capsys.readouterr()
    assert "C is not checked: there is no C compiler" in captured.err
    assert "ONNX, onnxruntime: 364 images, 0 classes differ" in captured.out
    assert main(["bench", "digits"]) == 0
    assert "there is no C compiler" in capsys.readouterr().out


@pytest.mark.filterwarnings("default")
def test_a_run_whose_files_do_not_fit_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    words = "train digits-ana --epochs 2 --annealing.schedule.duration 0.2 --model.hidden [16] --out"
    assert main([*words.split(), str(run)]) == 0
    results, final, recipe = run / "results.json", run / "checkpoints" / "final.ckpt", run / "recipe.yaml"
    before = final.read_bytes()
    final.write_bytes(b"damaged")
    capsys.readouterr()
    assert main(["train", "--resume", str(run)]) == 0  # it is made anew
    assert "final.ckpt is damaged" in capsys.readouterr().err
    assert final.read_bytes() == before
    text = results.read_text()
    results.write_text("{")
    assert main(["train", "--resume", str(run)]) == 1
    assert "results.json is damaged: " in capsys.readouterr().err
    results.write_text(text)
    recipe.write_text(recipe.read_text().replace("- 16", "- 12"))
    assert main(["evaluate", str(run)]) == 1
    error = capsys.readouterr().err
    assert f"the checkpoint of {run} does not match its recipe.yaml: size mismatch for " in error
    assert error.count("\n") == 1
    (run / "metrics.csv").write_bytes(b"epoch,\xff\n")
    assert main(["report", str(run)]) == 1
    assert "metrics.csv is damaged: " in capsys.readouterr().err


def test_a_defect_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lehr.report.terminal.print_recipes", lambda recipes: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        main(["recipes"])


def test_help_of_train_offers_no_algorithm_that_cannot_train() -> None:
    words = [sys.executable, "-m", "lehr", "train", "--help"]
    offered = subprocess.run(words, capture_output=True, text=True, env=ENVIRONMENT, check=True).stdout
    assert "lehr.algorithms.ANA" in offered
    assert "NotImported" not in offered


def test_whoever_reads_no_further_is_told_nothing(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    words = [sys.executable, "-m", "lehr", "train", "--help"]
    ended = subprocess.run(words, stdout=writing, stderr=subprocess.PIPE, env=ENVIRONMENT, check=False)
    os.close(writing)
    assert (ended.returncode, ended.stderr) == (141, b"")


def test_recipes_are_listed_with_what_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recipes"]) == 0
    output = capsys.readouterr().out
    line = next(line for line in output.splitlines() if "digits-ana" in line)
    assert re.findall(r"[\w-]+", line)[:3] == ["digits-ana", "digits", "mlp"]
    assert "ANA" in line
    assert "50" in line


def test_training_ends_with_a_table_of_accuracy_levels_and_noise(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--resume", str(run)]) == 0  # tells again what a finished run gave
    output = capsys.readouterr().out
    results = json.loads((run / "results.json").read_text())
    for name in ("val", "test"):
        assert percent(results[f"{name}/accuracy"]) in output
    shares = [percent(results[f"share/layers.1/{level}"]) for level in (-1, 0, 1)]
    assert re.search(r"layers\.1\W+" + r"\W+".join(map(re.escape, shares)), output)
    assert "noise left: none" in output


def test_evaluate_and_summary_of_a_run(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", str(run)]) == 0
    results = json.loads((run / "results.json").read_text())
    assert percent(results["test/accuracy"]) in capsys.readouterr().out
    assert main(["summary", str(run)]) == 0
    output = capsys.readouterr().out
    assert re.search(r"layers\.1 +Linear +64 +4,096 +4,096 +1\.58 +8 ", output)
    assert main(["summary", "digits-fp"]) == 0
    assert re.search(r"layers\.1 +Linear +256 +16,384 +16,384 +32 +8 ", capsys.readouterr().out)


def test_data_says_where_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "digits"]) == 0
    expected = "digits is complete in scikit-learn: 1253 train, 180 validation, 364 test images of 1x8x8\n"
    assert capsys.readouterr().out == expected


def test_data_without_a_name_lists_what_is_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "--root", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["data", "set", "in", str(tmp_path)]
    rows = dict(line.split(maxsplit=1) for line in lines[1:])
    assert tuple(rows) == lehr.data.names()
    assert rows["digits"] == "complete"
    assert rows["mnist"] == "4 files are missing"


@pytest.mark.filterwarnings("ignore:.* held out other validation images")
def test_a_run_goes_to_a_folder_of_its_own_and_from_starts_with_another(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    short = ["--epochs", "1", "--model.hidden", "[16]", "--annealing.schedule.duration", "0"]
    assert main(["train", "digits-fp", *short]) == main(["train", "digits-fp", *short]) == 0
    assert sorted(os.listdir("runs")) == ["digits-fp-seed0", "digits-fp-seed0-2"]
    assert main(["train", "digits-ana", *short, "--from", "runs/digits-fp-seed0", "--out", "tuned"]) == 0
    recipe = (tmp_path / "tuned" / "recipe.yaml").read_text()
    assert f"start: {tmp_path}/runs/digits-fp-seed0\n" in recipe  # absolute: resumable from anywhere
    assert main(["train", "tuned/recipe.yaml", "--out", "again", "--seed", "1"]) == 0
    assert "seed: 1\n" in (tmp_path / "again" / "recipe.yaml").read_text()


def test_from_goes_on_with_a_quantized_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    short = ["--epochs", "1", "--model.hidden", "[16]", "--annealing.schedule.duration", "0"]
    still = ["--optimizer.lr", "1e-12"]
    assert main(["train", "digits-fp", *short, "--out", "fp"]) == 0
    assert main(["train", "digits-ana", *short, "--from", "fp", "--out", "first"]) == 0
    assert main(["train", "digits-ana", *short, *still, "--from", "first", "--out", "second"]) == 0
    first, second = (load_network(tmp_path / run)[0].state_dict() for run in ("first", "second"))
    weights = [name for name, value in first.items() if value.ndim > 1]
    assert len(weights) >= 2
    for name in weights:  # scales among them
        assert torch.allclose(first[name], second[name], atol=1e-6), name
    assert main(["train", "digits-fp", *short, "--from", "first", "--out", "third"]) == 1
    assert "first is not the network of this recipe" in capsys.readouterr().err
    other = ["--algorithm.weights", "sign", "--from", "first", "--out", "fourth"]
    assert main(["train", "digits-ana", *short, *other]) == 1
    assert "has the levels" in capsys.readouterr().err


def test_a_loss_that_is_no_number_is_a_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    absurd = ["--algorithm", "FullPrecision", "--optimizer.name", "sgd", "--optimizer.lr", "1e38"]
    assert main(["train", *SHORT, *absurd, "--out", str(tmp_path / "run")]) == 1
    errors = capsys.readouterr().err
    assert re.match(r"lehr train: the loss became (nan|inf) at step 1 \(epoch 0\); the \w+ of layer layers\.\d", errors)
    assert errors.count("\n") == 1


def test_without_a_terminal_training_says_nothing_but_its_table_and_a_warning_is_a_sentence(tmp_path: Path) -> None:
    words = ("digits-ana", "--epochs", 1, "--annealing.schedule.duration", 5, "--out", tmp_path / "run")
    code, output = lehr_process("train", *words, output=tmp_path / "log")
    assert code == 0
    lines = [line.strip() for line in output.splitlines()]
    assert lines[0].startswith("lehr: after 1 epochs layers 1, 2, 3 still have noise: their windows end at 5, 10, 15;")
    assert "".join(lines[1:]).startswith(str(tmp_path / "run"))
    assert lines[-1] == "noise left: layer 1 std 0.2309, layer 2 std 0.2887, layer 3 std 0.2887"


def test_on_a_terminal_a_bar_shows_time_left_loss_and_noise_free_accuracy(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    words = ("digits-ana", "--epochs", "30", "--annealing.schedule.duration", "1", "--out", str(tmp_path / "run"))
    environment = {**ENVIRONMENT, "TERM": "xterm", "COLUMNS": "140"}
    process = subprocess.Popen(
        [sys.executable, "-m", "lehr", "train", *words], env=environment, stdout=theirs, stderr=theirs
    )
    os.close(theirs)
    seen: list[bytes] = []
    reader = threading.Thread(target=_read, args=(ours, seen))
    reader.start()
    assert process.wait(PATIENCE) == 0
    reader.join()
    screen = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", b"".join(seen).decode())
    number = r"\d+\.\d+"
    bar = rf"epoch (\d+)/30 .*% 0:\d\d:\d\d left (0:\d\d:\d\d|-:--:--) +loss {number} +accuracy ({number})%"
    shown = re.findall(bar, screen)
    assert shown
    epochs = [int(epoch) for epoch, _, _ in shown]
    assert epochs == sorted(epochs)
    accuracies = {f"{float(row['val/accuracy']) * 100:.2f}" for row in RunFolder(tmp_path / "run").read_metrics()}
    assert {accuracy for _, _, accuracy in shown} <= accuracies
    assert any(left.startswith("0:") for _, left, _ in shown)
    assert "noise left: none" in screen


def _read(terminal: int, seen: list[bytes]) -> None:
    while True:
        try:
            some = os.read(terminal, 65536)
        except OSError:  # how Linux says that nobody writes any more
            return
        if not some:
            return
        seen.append(some)


def test_demo_trains_both_networks_and_shows_them_side_by_side(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    named = recipes.named
    monkeypatch.setattr(
        recipes, "named", lambda name: named(name, ["--epochs", "2", "--annealing.schedule.duration", "0"])
    )
    assert main(["demo"]) == 0
    output = capsys.readouterr().out
    assert "full precision" in output
    assert "ANA" in output
    assert {*os.listdir("runs/demo")} >= {"digits-ana", "digits-fp"}
    assert main(["demo"]) == 0
    assert "demo-2" in os.listdir("runs")  # nothing is removed


def test_a_run_whose_name_begins_with_a_dash(capsys: pytest.CaptureFixture[str]) -> None:
    words = "train digits-ana --epochs 1 --annealing.schedule.duration 0 --model.hidden [16] --out=-dash"
    assert main(words.split()) == 0
    for words in (
        "evaluate -dash",
        "summary -dash",
        "train --resume -dash",
        "report -dash",
        "export -dash --to packed",
    ):
        assert main(words.split()) == 0, capsys.readouterr().err
    assert main(["evaluate", "-nothing"]) == 2


def test_figures_draws_figure_1_of_runs_with_their_windows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = make_run(tmp_path / "ana")
    words = ("--out", "drawn", "--runs", str(run), "--only", "validation_error", "idea", "--formats", "svg")
    assert main(["figures", *words]) == 0
    assert capsys.readouterr().out.split() == ["drawn/validation_error.svg", "drawn/idea.svg"]


def test_approximate_takes_a_constant_of_the_users_and_the_fewest_cubes(capsys: pytest.CaptureFixture[str]) -> None:
    formula = ("approximate", "sin(3*x0)", "--epsilon", "0.2", "--lipschitz", "3")
    assert main([*formula]) == main([*formula, "--tight"]) == 0
    output = capsys.readouterr().out
    assert output.count("Lipschitz constant 3 (as given)") == 2
    assert [line.split()[1] for line in output.splitlines() if line.startswith("0.2 ")] == ["30", "8"]
