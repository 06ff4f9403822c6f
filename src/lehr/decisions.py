"""The words of a conversion: what is asked of it, which calls there are, and what is decided about each part.

`quantize_` makes a `Request`, `decide` answers with a `ConversionPlan` of one `Decision` a part, and a `Change` is what
a user reads of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from torch import nn

from lehr.additions import ADDITION
from lehr.calls import CALLS, is_opened
from lehr.precision import Precision
from lehr.quantizer import AbstractQuantizer
from lehr.uses import Observation, Use

Scale = Literal["tensor", "channel", "fixed"]
Skip = str | Iterable[str] | Callable[[str, nn.Module], bool]


@dataclass(frozen=True)
class Change:
    """What became of one module or call: `now` is a class name or "kept", `why` says why it was kept."""

    module: str
    was: str
    now: str
    levels: int | None = None
    why: str = ""


@dataclass(frozen=True, eq=False)
class FunctionCall:
    """A place in a module's forward where it calls a function, or uses an activation module that is used elsewhere too.

    Args:
        path: where its quantizer will be
        owner: the path of the module whose forward it is in
        name: of its quantizer
        use: what was seen there
    """

    path: str
    owner: str
    name: str
    use: Use


@dataclass(frozen=True, eq=False)
class Decision:
    """What becomes of a module or a call; without a quantizer it is kept.

    `follows` says that the activation is computed and its result quantized; else the quantizer takes its place.
    `of_input` says that the quantizer is for what a layer reads, not for its weights.
    """

    change: Change
    quantizer: AbstractQuantizer | None = None
    module: nn.Module | None = None
    call: FunctionCall | None = None
    follows: bool = False
    of_input: bool = False


@dataclass(frozen=True, eq=False)
class Request:
    """The arguments of `quantize_`, checked."""

    weights: AbstractQuantizer | None
    activations: AbstractQuantizer | None
    sums: AbstractQuantizer | None
    replace: tuple[type[nn.Module], ...]
    skip: Skip
    skip_first: bool
    skip_last: bool
    scale: Scale
    rules: Mapping[str, Precision]
    split: bool  # whether each use of a shared activation module gets a quantizer of its own


class Calls:
    """The calls in the forwards of a model, and their order in training and in eval mode."""

    def __init__(self, modules: Mapping[str, nn.Module], seen: Observation, *, split: bool, sums: bool) -> None:
        places: dict[str, set[object]] = {}
        for use in seen.uses:
            if use.module is not None and not is_opened(modules[use.module]):
                places.setdefault(use.module, set()).add((use.owner, use.place))
        # A container calls what it contains, and would call the quantizers too.
        whole = {use.module for use in seen.uses if isinstance(modules[use.owner], nn.Sequential)}
        self.split = {path for path, used in places.items() if split and len(used) > 1 and path not in whole}
        self.order: dict[str, dict[bool, list[FunctionCall]]] = {}
        self.own: set[str] = set()  # owners whose additions stay as they are
        self.unclear: dict[str, list[str]] = {}  # owners whose calls differ from run to run, and what they call
        for owner in dict.fromkeys(owner for runs in seen.runs.values() for owner in runs):
            if is_opened(modules[owner]):
                continue  # its calls are quantized already
            modes = {training: runs.get(owner, []) for training, runs in seen.runs.items()}
            if not sums or not any(_is_sum(use) for runs in modes.values() for run in runs for use in run):
                modes = self._without_additions(owner, modes)
            self._add(owner, modes)

    def of(self, owner: str) -> list[FunctionCall]:
        """The calls of one forward, each once."""
        order = self.order.get(owner, {})
        return list(dict.fromkeys(call for training in sorted(order) for call in order[training]))

    def __iter__(self) -> Iterator[FunctionCall]:
        for owner in self.order:
            yield from self.of(owner)

    def _add(self, owner: str, modes: dict[bool, list[list[Use]]]) -> None:
        calls: dict[object, FunctionCall] = {}
        names: Counter[str] = Counter()
        order: dict[bool, list[FunctionCall]] = {}
        for training in sorted(modes):
            runs = [[use for use in run if self._counts(use)] for run in modes[training]]
            keyed = [_keyed(run) for run in runs]
            if any(list(run) != list(keyed[0]) for run in keyed[1:]):
                if any(use.name == ADDITION for run in runs for use in run):  # without its additions it may be clear
                    return self._add(owner, self._without_additions(owner, modes))
                self.unclear[owner] = sorted({use.name for run in keyed for use in run.values()})
                return None
            for key, use in (keyed[0] if keyed else {}).items():
                if key not in calls:
                    number, names[use.name] = names[use.name], names[use.name] + 1
                    name = f"{use.name}_{number}" if number else use.name
                    path = f"{owner}.{CALLS}.{name}" if owner else f"{CALLS}.{name}"
                    calls[key] = FunctionCall(path, owner, name, use)
                order.setdefault(training, []).append(calls[key])
        if calls:
            only = next(iter(order.values()))
            self.order[owner] = {mode: order.get(mode, [] if mode in modes else only) for mode in (False, True)}
        return None

    def _without_additions(self, owner: str, modes: dict[bool, list[list[Use]]]) -> dict[bool, list[list[Use]]]:
        if any(use.name == ADDITION for runs in modes.values() for run in runs for use in run):
            self.own.add(owner)
        return {mode: [[use for use in run if use.name != ADDITION] for run in runs] for mode, runs in modes.items()}

    def _counts(self, use: Use) -> bool:
        return not use.is_product and (use.module is None or use.module in self.split)


def _is_sum(use: Use) -> bool:
    """Whether the use is an addition of two values inside the network."""
    return use.name == ADDITION and not (use.adds_constant or use.is_output)


def _keyed(run: list[Use]) -> dict[object, Use]:
    """The uses of one run by where they stand in the source and how often that place was met before."""
    met: Counter[object] = Counter()
    keyed = {}
    for use in run:
        place = (use.name, use.module, use.place)
        keyed[(place, met[place])] = use
        met[place] += 1
    return keyed


@dataclass(frozen=True, eq=False)
class ConversionPlan:
    """All decisions, the calls they are about, and what was seen."""

    decisions: tuple[Decision, ...]
    calls: Calls
    seen: Observation

    @property
    def changed(self) -> list[Decision]:
        """Those that change something."""
        return [decision for decision in self.decisions if decision.quantizer is not None]
