"""The page of a run: everything is told, nothing of a stranger's files gets to run, and a browser shows it."""

from __future__ import annotations

import html
import json
import math
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch

from browser import CHROMIUM, Browser
from lehr.cli import main
from lehr.data import Dataset
from lehr.report import page
from lehr.report.confusion import Confusion, confuse
from lehr.report.history import read_run
from lehr.report.page import write_report
from lehr.training.folder import RunError
from made_runs import INFO, make_run, metrics_row, trained_runs

HOSTILE = "\"'><script>window.hacked = 1</script><img src=x onerror='window.hacked = 1'>"


class Tags(HTMLParser):
    """The elements of a page and its visible words."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words = ""
        self._silent = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._silent = tag in ("style", "script")

    def handle_data(self, data: str) -> None:
        self.words += "" if self._silent else f"{data} "

    def named(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


def charts(text: str) -> dict[str, dict[str, list[float | None]]]:
    """Of each chart the values of its series, as the page carries them."""
    found = {}
    for one in Tags(text).named("svg"):
        data = json.loads(one["data-chart"] or "")
        found[(one["aria-label"] or "").split(" over ")[0]] = dict(data["series"])
    return found


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_report(make_run(tmp_path_factory.mktemp("runs") / "finished")).read_text()


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_report(trained_runs(tmp_path_factory) / "digits-ana")


def test_the_result_stands_at_the_top(finished: str):
    top = " ".join(Tags(finished.split("<h2>")[0]).words.split())
    for words in ("finished", "test accuracy 90.00 %", "validation accuracy 91.00 %", "levels of weights −1, 0, 1"):
        assert words in top
    assert "noise left none" in top
    assert "12 min 34 s 50 epochs" in top
    assert "unfinished" not in top


def test_the_circumstances_are_told(finished: str):
    words = Tags(finished).words
    for part in ("lehr train digits-ana --out 'runs/a run'", INFO["commit"], "torch 2.13.0", "2026-11-15T21:34:46"):
        assert str(part) in words
    assert "duration: 10.0" in words  # the whole recipe


def test_every_metric_is_drawn(finished: str):
    rows = [metrics_row(epoch, 50, 3, quantized=True) for epoch in range(50)]
    found = charts(finished)
    stages = {"validation, without noise": "val", "training": "train"}
    for title, metric in (("Accuracy", "accuracy"), ("Loss", "loss")):
        for name, stage in stages.items():
            assert found[title][name] == pytest.approx([row[f"{stage}/{metric}"] for row in rows], rel=1e-4)
    for layer, path in enumerate(("layers.1", "layers.4", "layers.7"), 1):
        stds = [row[f"std/forward/{layer}"] for row in rows]
        assert found["Forward std"][f"layer {layer}"] == pytest.approx(stds, rel=1e-4)
        assert found["Gradient norm"][path] == pytest.approx([row[f"grad_norm/{path}"] for row in rows], rel=1e-4)
        assert found[path] == {"−1": [0.25] * 50, "0": [0.5] * 50, "1": [0.25] * 50}
    assert found["Backward std"] == {"all layers": [0.2887] * 50}
    assert found["Learning rate"]["learning rate"] == pytest.approx([row["lr"] for row in rows], rel=1e-4)
    assert "Weights that changed level" in found


def drawn_epochs(text: str, title: str) -> list[float]:
    (found,) = [tag for tag in Tags(text).named("svg") if (tag["aria-label"] or "").startswith(f"{title} over")]
    return json.loads(found["data-chart"] or "")["epochs"]


@pytest.mark.parametrize("per", ["epoch", "batch"])
def test_what_an_epoch_leads_to_is_drawn_at_its_end_and_its_noise_where_it_is(tmp_path: Path, per: str):
    run = make_run(tmp_path / "run", "--epochs", "4", "--annealing.schedule.duration", "1", "--annealing.per", per)
    text = write_report(run).read_text()
    for title in ("Accuracy", "Loss", "Learning rate", "Gradient norm", "Weights that changed level", "layers.1"):
        assert drawn_epochs(text, title) == [1, 2, 3, 4]
    # The noise of metrics.csv is that of the epoch's last step: the same in all the epoch, or that of its end.
    assert drawn_epochs(text, "Forward std") == ([0, 1, 2, 3] if per == "epoch" else [1, 2, 3, 4])


def test_a_single_epoch_has_its_shares_drawn(tmp_path: Path):
    text = write_report(make_run(tmp_path / "run", "--epochs", "1")).read_text()
    areas = [tag["d"] or "" for tag in Tags(text).named("path") if "area" in (tag["class"] or "")]
    widths = [{point.split()[0] for point in re.split("[MLZ]", path) if point} for path in areas]
    assert len(areas) == 9
    assert all(len(places) == 2 for places in widths)
    assert "12 min 34 s 1 epoch " in " ".join(Tags(text).words.split())


def test_the_annealing_windows_are_shaded_and_told(finished: str):
    accuracy = finished.split("<svg")[1]
    assert accuracy.count('class="window"') == 3
    assert "layer 1: 0 to 10, layer 2: 10 to 20, layer 3: 20 to 30" in Tags(finished).words


def test_the_noisy_accuracy_is_drawn_while_there_is_noise_only(tmp_path: Path):
    run = make_run(tmp_path / "run", "--epochs", "4", done=0)
    lines = ["epoch,val/accuracy,val/noisy_accuracy,std/forward/1"]
    lines += ["0,0.5,0.6,0.2", "1,0.6,0.7,0.1", "2,0.7,0.7,0.0", "3,0.8,,0.0"]
    (run / "metrics.csv").write_text("\n".join(lines) + "\n")
    accuracy = charts(write_report(run).read_text())["Accuracy"]
    assert accuracy == {
        "validation, with noise": [0.6, 0.7, None, None],
        "validation, without noise": [0.5, 0.6, 0.7, 0.8],
    }


def test_an_unfinished_run_is_reported_as_far_as_it_is(tmp_path: Path):
    text = write_report(make_run(tmp_path / "run", done=20, test=None)).read_text()
    words = " ".join(Tags(text).words.split())
    assert "unfinished: 20 of 50 epochs" in words
    assert "test accuracy not yet" in words
    row = metrics_row(19, 50, 3, quantized=True)
    assert f"validation accuracy {100 * row['val/accuracy']:.2f} %" in words
    assert f"noise left {max(row[f'std/forward/{layer}'] for layer in (1, 2, 3)):.3g}" in words
    assert len(charts(text)["Accuracy"]["training"]) == 20


def test_a_run_that_has_just_begun_has_a_page(tmp_path: Path):
    text = write_report(make_run(tmp_path / "run", done=0, test=None)).read_text()
    assert "unfinished: 0 of 50 epochs" in Tags(text).words
    assert not Tags(text).named("svg")


def test_a_full_precision_run_has_neither_noise_nor_levels(tmp_path: Path):
    text = write_report(make_run(tmp_path / "run", recipe="digits-fp")).read_text()
    assert set(charts(text)) == {"Accuracy", "Loss", "Learning rate", "Gradient norm"}
    assert 'class="window"' not in text
    assert "noise left" not in text


def test_a_twin_that_was_trained_first_is_drawn_and_told(tmp_path: Path):
    run = make_run(tmp_path / "run", "--epochs", "3", "--pretraining.epochs", "5", done=2, test=None)
    make_run(run / "twin", "--epochs", "5", recipe="digits-fp", test=0.95)
    text = write_report(run).read_text()
    words = " ".join(Tags(text).words.split())
    assert "full-precision twin 96.00 %" in words
    assert "2 of 3 epochs after 5 of the twin" in words
    accuracy = charts(text)["Accuracy"]
    twin = [metrics_row(epoch, 5, 3, quantized=False)["val/accuracy"] for epoch in range(5)]
    assert accuracy["the twin's validation, before"] == pytest.approx(twin, abs=1e-4)
    assert accuracy["training"][1] is not None
    assert accuracy["training"][2:] == [None] * 3


def test_other_data_in_their_place_leave_it_out_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def of_a_few(path: Path):
        raise ValueError("validation must be in 0..11 for 12 samples, got 10000")

    monkeypatch.setattr(page, "network_and_test_images", of_a_few)
    words = Tags(write_report(make_run(tmp_path / "run")).read_text()).words
    assert "The confusion matrix is left out: validation must be in 0..11 for 12 samples" in words


def test_absent_data_leave_out_the_confusion_with_a_sentence(tmp_path: Path):
    run = make_run(tmp_path / "run", "--data.root", str(tmp_path), recipe="cifar10-quarter-ana")
    words = Tags(write_report(run).read_text()).words
    assert "The confusion matrix is left out: " in words
    assert str(tmp_path) in words
    assert "test accuracy" in words


def test_results_that_re_estimated_batchnorm_show_what_it_changed(tmp_path: Path):
    run = make_run(tmp_path / "run", done=2)
    results = json.loads((run / "results.json").read_text()) | {"val/running_accuracy": 0.8765}
    (run / "results.json").write_text(json.dumps(results))
    assert "87.65 % with BatchNorm as in training" in write_report(run).read_text()


def test_hostile_files_cannot_bring_markup_into_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    text = hostile_page(tmp_path, monkeypatch).read_text()
    tags = Tags(text)
    assert len(tags.named("script")) == 1
    assert not tags.named("img")
    assert not [name for _, attributes in tags.tags for name in attributes if name.startswith("on")]
    assert tags.words.count("<script>window.hacked") >= 6  # told as words, wherever it was put


def hostile_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A page of a run in which every text is an attack: folder, description, command, commit, layers, class names."""
    folder = tmp_path / HOSTILE.replace("/", "")
    run = make_run(folder, "--description", HOSTILE, info={"command": ["lehr", HOSTILE], "commit": HOSTILE})
    metrics = (run / "metrics.csv").read_text().replace("layers.1", HOSTILE.replace('"', "").replace(",", ""))
    (run / "metrics.csv").write_text(metrics)
    images = Dataset(torch.zeros(4, 1, 1, 1, dtype=torch.uint8), torch.tensor([0, 1, 1, 0]), (HOSTILE, "b"), (0,), (1,))
    answers_first = torch.nn.Sequential(torch.nn.Flatten(), Constant())
    monkeypatch.setattr(page, "network_and_test_images", lambda path: (answers_first, images))
    return write_report(run)


class Constant(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tensor([1.0, 0.0]).expand(len(x), 2)


def test_nothing_may_load_and_only_the_hover_script_may_run(finished: str):
    tags = Tags(finished)
    policy = next(one["content"] or "" for one in tags.named("meta") if "http-equiv" in one)
    assert policy.startswith("default-src 'none'")
    assert re.search(r"script-src 'sha256-[\w+/]+='", policy)
    assert not [one for one in tags.named("script") if "src" in one]
    assert [one["href"] for one in tags.named("link")] == ["data:,"]


def test_a_confusion_counts_what_a_network_answers():
    images = torch.tensor([0, 0, 1, 2, 2, 2], dtype=torch.uint8).view(-1, 1, 1, 1)
    dataset = Dataset(images, torch.tensor([0, 1, 1, 2, 2, 0]), ("a", "b", "c"), (0.0,), (1.0,))

    class Look(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.one_hot(x.flatten().long(), 3).float()

    confusion = confuse(Look(), dataset)
    assert confusion.counts == [[1, 0, 1], [1, 1, 0], [0, 0, 2]]
    assert (confusion.right, confusion.total) == (4, 6)
    assert confusion.share(2, 2) == 1.0
    assert confusion.worst().rows == [("a", "c", "1 of 2"), ("b", "a", "1 of 2")]


def test_of_many_classes_only_the_confusions_are_told():
    assert not Confusion(tuple(map(str, range(1000))), [[0] * 1000] * 1000).drawn
    assert Confusion(tuple("0123456789"), [[0] * 10] * 10).drawn


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("metrics.csv", "lr\n0.1\n", r"metrics.csv is damaged: expected a column epoch, found 'lr'"),
        (
            "results.json",
            '{"test/accuracy": "good"}',
            r"results.json is damaged: test/accuracy should be a number, got",
        ),
        ("results.json", "[1]", r"results.json is damaged: it should hold names and numbers, got list"),
    ],
)
def test_a_damaged_file_is_named(tmp_path: Path, file: str, content: str, message: str):
    run = make_run(tmp_path / "run", done=1)
    (run / file).write_text(content)
    with pytest.raises(RunError, match=message):
        read_run(run)


def test_an_empty_cell_is_a_gap(tmp_path: Path):
    run = make_run(tmp_path / "run", done=0, test=None)
    (run / "metrics.csv").write_text("epoch,val/accuracy,lr\n0,0.5,\n1,,\n")
    metrics = read_run(run).metrics
    assert metrics["val/accuracy"][0] == 0.5
    assert all(math.isnan(value) for value in (metrics["val/accuracy"][1], *metrics["lr"]))


def test_the_command_writes_the_page_and_says_where(real: Path, capsys: pytest.CaptureFixture[str]):
    real.unlink()
    assert main(["report", str(real.parent)]) == 0
    assert capsys.readouterr().out.strip() == str(real)
    assert real.exists()


def test_a_real_run_has_its_confusion_and_its_layers(real: Path):
    text = real.read_text()
    counts = re.findall(r'<td class="(?:right|wrong)[^>]*>(\d*)</td>', text)
    assert len(counts) == 100
    assert sum(int(count or 0) for count in counts) == 364
    assert "84,480" in text
    assert "left out" not in text


in_a_browser = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium: apt-get install chromium")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    browser = Browser()
    yield browser
    browser.close()


@pytest.fixture
def opened(browser: Browser, real: Path) -> Browser:
    browser.problems.clear()
    browser.requests.clear()
    browser.open(real)
    return browser


@in_a_browser
def test_it_loads_without_a_complaint_and_asks_for_nothing(opened: Browser, real: Path):
    assert opened.problems == []
    assert opened.requests == [real.resolve().as_uri()]


@in_a_browser
def test_its_curves_and_words_are_there_to_be_seen(opened: Browser):
    shown = opened.evaluate("document.body.innerText")
    for words in ("digits-ana", "test accuracy", "Confusion on the test images", "layers.7", "How it was made"):
        assert words in shown
    lengths = opened.evaluate("[...document.querySelectorAll('path.line')].map(one => one.getTotalLength())")
    assert len(lengths) >= 10
    assert min(lengths) > 100
    colours = "new Set([...document.querySelectorAll('path.layer')].map(one => getComputedStyle(one).stroke)).size"
    assert opened.evaluate(colours) >= 3


@in_a_browser
def test_the_pointer_shows_the_values_of_an_epoch(opened: Browser):
    box = opened.evaluate(
        "(b => [b.left, b.top, b.width, b.height])(document.querySelector('svg').getBoundingClientRect())"
    )
    opened.point(box[0] + 0.55 * box[2], box[1] + box[3] / 2)
    tip = opened.evaluate("document.getElementById('tip').innerText")
    data = json.loads(opened.evaluate("document.querySelector('svg').dataset.chart"))
    values = dict(data["series"])["validation, without noise"]
    assert tip.splitlines()[0].split() == ["epoch", "1"]
    assert f"{100 * values[0]:.2f} %" in tip  # after one epoch
    opened.point(5, 5)
    assert opened.evaluate("document.getElementById('tip').hidden") is True


@in_a_browser
def test_the_arrow_keys_show_them_too(opened: Browser):
    opened.evaluate("document.querySelector('svg').focus()")
    for _ in range(2):
        opened.call("Input.dispatchKeyEvent", type="keyDown", key="ArrowRight", code="ArrowRight")
    assert opened.evaluate("document.getElementById('tip').innerText").splitlines()[0].split() == ["epoch", "2"]


@in_a_browser
@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [390, 1200])
def test_it_fits_its_window_and_its_text_stands_out(opened: Browser, real: Path, width: int, dark: bool):
    opened.open(real, width=width, dark=dark)
    assert opened.evaluate("document.documentElement.scrollWidth") <= width
    lightness = "(colour => colour.match(/[0-9.]+/g).slice(0, 3).reduce((sum, one) => sum + Number(one), 0) / 3)"
    paper = opened.evaluate(f"{lightness}(getComputedStyle(document.body).backgroundColor)")
    ink = opened.evaluate(f"{lightness}(getComputedStyle(document.body).color)")
    assert (paper < 60 and ink > 200) if dark else (paper > 240 and ink < 60)


@in_a_browser
def test_no_script_of_a_stranger_runs(browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = hostile_page(tmp_path, monkeypatch)
    browser.open(path)
    assert "window.hacked" in browser.evaluate("document.body.innerText")
    assert browser.evaluate("typeof window.hacked") == "undefined"
    attacked = tmp_path / "attacked.html"  # and if markup did get in, the page's policy would stop it
    attacked.write_text(path.read_text().replace("</main>", f"{html.unescape(HOSTILE)}</main>"))
    browser.open(attacked)
    assert browser.evaluate("typeof window.hacked") == "undefined"
