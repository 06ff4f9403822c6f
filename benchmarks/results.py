"""Writes the figures of docs/results.yaml into the pages, pictures and recipes that show them: `make results`.

A page shows a table between `<!-- results: NAME -->` and `<!-- end -->`, where NAME is a key of `TABLES`.
tests/test_results.py compares what this module would write with what is there.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml
from matplotlib.figure import Figure

from lehr.report.style import BLUE, ORANGE, PAGE, SKY, VERMILION, save, styled

ROOT = Path(__file__).parents[1]
RECIPES = ROOT / "src" / "lehr" / "recipes"
PICTURE = ROOT / "docs" / "pictures" / "results"
PAGES = (ROOT / "README.md", ROOT / "docs" / "results.md", ROOT / "docs" / "small-devices.md")
PROVENANCE = ("command", "seeds", "machine", "date")
SECTIONS = ("accuracy", "size", "speed", "cost", "small")
_BLOCK = re.compile(r"(<!-- results: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)

Results = dict[str, Any]


def read() -> Results:
    """The figures; raises ValueError if one of them does not say how it was measured."""
    results: Results = yaml.safe_load((ROOT / "docs" / "results.yaml").read_text(encoding="utf-8"))
    for section in SECTIONS:
        for entry in results[section]:
            missing = [key for key in PROVENANCE if key not in entry]
            if missing:
                raise ValueError(f"{section}: {entry} lacks {', '.join(missing)}")
            if entry["machine"] not in results["machines"]:
                raise ValueError(f"{section}: {entry} names machine {entry['machine']}, which `machines` does not list")
    return results


def table(header: list[str], rows: list[list[str]]) -> str:
    """A table in Markdown."""
    lines = [header, ["---"] * len(header), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def measured(entry: Results) -> str:
    """Seeds, machine and date in few words: `seeds 0-4, A, 2026-11-16`."""
    seeds = entry["seeds"]
    several = f"seeds {seeds[0]}-{seeds[-1]}" if len(seeds) > 1 else f"seed {seeds[0]}" if seeds else ""
    return ", ".join(filter(None, [several, entry["machine"], str(entry["date"])]))


def accuracy(results: Results) -> str:
    """Each trained network with its command."""
    rows = [
        [
            f"{one['data']}, {one['network']}",
            *(one["float"], one["ternary"], one.get("mirrored", "")),
            *(f"{one['by']}, {one['training']}", one["time"]),
            f"`{one['command'].removeprefix('lehr train ')}`" if "recipe" in one else f"zoo: `{one['zoo']}`",
            measured(one),
        ]
        for one in results["accuracy"]
    ]
    return table(
        ["data, network", "float", "fully ternary", "mirrored", "training", "time", "`lehr train`", "measured"], rows
    )


def size(results: Results) -> str:
    """Files, and how many times smaller they are."""
    rows = [
        [one["file"], f"{one['bytes']:,}", one["smaller"], f"`{one['command']}`", measured(one)]
        for one in results["size"]
    ]
    return table(["file", "bytes", "smaller than float32", "command", "measured"], rows)


def speed(results: Results) -> str:
    """Milliseconds an image beside onnxruntime's."""

    def beside(one: Results, key: str) -> str:
        return f"{one[key]['ms']:.2f} ms, {one[key]['times']}" if key in one else ""

    rows = [
        [
            f"{one['network']}, {one['code']}",
            f"{one['ms']:.2f} ms",
            beside(one, "fp32"),
            beside(one, "int8"),
            measured(one),
        ]
        for one in results["speed"]
    ]
    return table(["network, code", "lehr", "onnxruntime fp32", "onnxruntime int8", "measured"], rows)


def cost(results: Results) -> str:
    """What quantization adds to training."""
    rows = [
        [one["what"], one["value"], f"`{one['command']}`", f"{measured(one)}, {one['version']}"]
        for one in results["cost"]
    ]
    return table(["what", "cost", "command", "measured, with version"], rows)


def small(results: Results) -> str:
    """The networks for small devices, each in several precisions."""
    rows = [
        [
            f"`{one['task']}`, {one['network']}",
            one["precision"],
            one["accuracy"],
            *(f"{one[key]:,}" if key in one else "" for key in ("bytes", "memory", "flash", "instructions")),
            f"{measured(one)}, {one['time']}",
        ]
        for one in results["small"]
    ]
    header = ["task, network", "precision", "accuracy", "bytes", "RAM", "flash", "instructions"]
    return table([*header, "measured, training time"], rows)


def machines(results: Results) -> str:
    """The machines by letter, in one paragraph."""
    return "Machines. " + " ".join(f"**{letter}**: {text}." for letter, text in results["machines"].items()) + "\n"


def readme(results: Results) -> str:
    """The README's table, and the sentence about size and speed below it."""
    rows = [
        [
            f"{one['data']}, {one['network']}",
            one["float"],
            one["ternary"],
            one["by"],
            one["time"],
            f"`{one['command']}`",
        ]
        for one in _for_readme(results["accuracy"])
    ]
    (packed,) = _for_readme(results["size"])
    (file, _) = packed["file"].split(", ")
    faster = [
        f"{one['fp32']['times']} and {one['int8']['times']} with {one['code'].split()[-1]}"
        for one in _for_readme(results["speed"])
    ]
    sentence = (
        f"{file}, the paper's network for CIFAR-10 at full width, is {packed['smaller']} smaller packed than in fp32.\n"
        f"On one core it is faster than onnxruntime's float32 and int8 by {', '.join(faster)}.\n"
    )
    return table(["test accuracy", "float", "fully ternary", "by", "time", "command"], rows) + "\n" + sentence


def _for_readme(entries: list[Results]) -> list[Results]:
    return [entry for entry in entries if entry.get("readme")]


TABLES: dict[str, Callable[[Results], str]] = {
    "accuracy": accuracy,
    "size": size,
    "speed": speed,
    "cost": cost,
    "small": small,
    "machines": machines,
    "readme": readme,
}


def page(text: str, results: Results) -> str:
    """The page with every table between its marks written anew."""
    return _BLOCK.sub(lambda found: f"{found[1]}{TABLES[found[2]](results)}{found[3]}", text)


def recipe_lines(results: Results) -> Iterator[tuple[str, str]]:
    """Each recipe that has a figure, and its `result:` line."""
    for entry in results["accuracy"]:
        seeds = len(entry["seeds"])
        for role, figure in (("recipe", "ternary"), ("twin", "float")):
            if role in entry:
                yield entry[role], f"result: {entry[figure]}" + (f", {seeds} seeds" if seeds > 1 else "")
    for entry in results["small"]:
        if "recipe" in entry:
            yield (
                entry["recipe"],
                f"result: {entry['accuracy']}" + (f", {len(entry['seeds'])} seeds" if len(entry["seeds"]) > 1 else ""),
            )
    for name, figure in results["paper"].items():
        yield name, f"result: paper {figure}"


@styled
def chart(results: Results) -> Figure:
    """On the left accuracy, float and ternary joined by a line; on the right time beside onnxruntime's."""
    figure = Figure(figsize=(1.5 * PAGE, 2.1))
    accuracy_axes, speed_axes = figure.subplots(1, 2, width_ratios=[3, 2])
    entries = results["accuracy"]
    for row, one in enumerate(entries):
        values = [float(one[key].split()[0]) for key in ("float", "ternary")]
        accuracy_axes.plot(values, [row, row], color="#BBBBBB", linewidth=2, zorder=1)
        for value, colour, name in zip(values, (BLUE, VERMILION), ("float", "fully ternary"), strict=True):
            accuracy_axes.scatter([value], [row], color=colour, s=24, zorder=2, label=name if row == 0 else None)
    names = [f"{one['data']}, {one['network']}, {one['by']}, {one['time'].split(',')[0]}" for one in entries]
    accuracy_axes.set_yticks(range(len(entries)), names)
    accuracy_axes.set_xlabel("test accuracy, %")
    accuracy_axes.legend(loc="lower left")

    entries = [one for one in results["speed"] if "fp32" in one and "int8" in one]
    for row, one in enumerate(entries):
        bars = [("onnxruntime fp32", one["fp32"]["ms"], SKY), ("onnxruntime int8", one["int8"]["ms"], ORANGE)]
        for place, (name, value, colour) in enumerate([*bars, ("lehr", one["ms"], VERMILION)]):
            speed_axes.barh(
                row + 0.27 * (place - 1), value, height=0.25, color=colour, label=name if row == 0 else None
            )
            speed_axes.text(value, row + 0.27 * (place - 1), f" {value:.1f}", va="center", fontsize=7)
    speed_axes.set_yticks(range(len(entries)), [f"{one['network']}, {one['code'].split(', ')[1]}" for one in entries])
    speed_axes.set_xlabel("milliseconds an image, one core")
    speed_axes.set_xlim(0, 1.45 * max(one["fp32"]["ms"] for one in entries))  # room for the legend
    speed_axes.legend(loc="upper right")
    for axes in (accuracy_axes, speed_axes):
        axes.invert_yaxis()
    return figure


def main() -> None:
    """Rewrite pages, recipes and pictures."""
    results = read()
    for path in PAGES:
        path.write_text(page(path.read_text(encoding="utf-8"), results), encoding="utf-8")
    for name, line in recipe_lines(results):
        path = RECIPES / f"{name}.yaml"
        path.write_text(re.sub(r"^result: .*$", line, path.read_text(), flags=re.MULTILINE))
    save(chart(results), PICTURE, ["svg"])


if __name__ == "__main__":
    main()
