"""How precise a layer is, in a word: "ternary", "4bit", "int8", "float"; and rules that say it for parts of a model.

>>> template_of("4bit").levels[:3], template_of("float")
((-8.0, -7.0, -6.0), None)
>>> Rules({"conv1": "int8", "layer4.*": "2bit", "fc": "float"}).pattern_of("layer4.0.conv2")
'layer4.*'
"""

from __future__ import annotations

import fnmatch
import itertools
import re
from collections.abc import Iterable, Mapping, Sequence

from lehr.estimator import Estimator, ste
from lehr.multistep import MultiStep
from lehr.quantizer import AbstractQuantizer, Quantizer

Precision = str | AbstractQuantizer | None  # a word, a quantizer that is copied, or None for full precision
FEW_LEVELS = 3  # a function of so few steps takes the place of any activation, as the paper's ternary one does
_WORDS = 'a word such as "float", "binary", "ternary", "4bit" or "int8"'


def step_of(word: str) -> MultiStep | None:
    """The levels that a word names; None for "float". ValueError for a word that names none."""
    if word == "float":
        return None
    if word == "ternary":
        return MultiStep.ternary()
    if word in ("binary", "1bit"):
        return MultiStep.sign()
    found = re.fullmatch(r"(?:int)?([2-8])(?:-?bits?)?", word)
    if found is None or word.isdigit():
        raise ValueError(f"a precision is {_WORDS}, of 2 to 8 bits, got {word!r}")
    return MultiStep.uniform(int(found[1]))


def template_of(precision: Precision, like: AbstractQuantizer | None = None) -> AbstractQuantizer | None:
    """The quantizer that a precision stands for.

    Args:
        precision: a word, a quantizer or None.
        like: a quantizer whose noises a word takes; without one it has no forward noise and the straight-through
            estimator's window backward.
    """
    if precision is None or isinstance(precision, AbstractQuantizer):
        return precision
    if not isinstance(precision, str):
        raise TypeError(f"a precision is {_WORDS}, a quantizer such as lehr.Quantizer(), or None, got {precision!r}")
    step = step_of(precision)
    if step is None:
        return None
    if isinstance(like, Quantizer):
        return Quantizer(Estimator(step, like.forward_noise, like.backward_noise, like.mode))
    return Quantizer(ste(step, half_width=1 if len(step.levels) == 2 else 0.5))


def unsigned(quantizer: Quantizer) -> Quantizer:
    """The same with levels from 0 on: as many if they are evenly spaced, else those that are not negative."""
    levels, thresholds = quantizer.step.levels, quantizer.step.thresholds
    if levels[0] >= 0:
        return quantizer
    gaps = {b - a for a, b in itertools.pairwise(levels)}
    if len(gaps) == 1:
        step = MultiStep(tuple(t - levels[0] for t in thresholds), tuple(level - levels[0] for level in levels))
    else:
        below = sum(level < 0 for level in levels)
        step = MultiStep(thresholds[below:], levels[below:])
    scale = 1.0 if quantizer.scale is None else quantizer.scale
    noises = quantizer.forward_noise, quantizer.backward_noise
    return Quantizer(Estimator(step, *noises, quantizer.mode), scale=scale)


class Rules:
    """Precisions by path: `rules` of `quantize_`. The last rule that names a module, or what it lies in, counts.

    Args:
        rules: a precision for each pattern: a path, or one with wildcards; "first", "last" and "ends" (both) are
            layers by their place.
        layers: the paths of the layers with weights, in order.
        paths: all paths that a rule can name; ValueError for a rule that names none of them.
    """

    def __init__(self, rules: Mapping[str, Precision], layers: Sequence[str] = (), paths: Iterable[str] = ()) -> None:
        paths = list(paths)
        ends = {"first": layers[:1], "last": layers[-1:], "ends": [*layers[:1], *layers[-1:]]}
        self.rules: dict[str, Precision] = {}
        for pattern, precision in rules.items():
            template_of(precision)  # TypeError or ValueError for what is no precision
            is_path = any(_names(pattern, path) for path in paths)
            if paths and not is_path and pattern not in ends:
                raise ValueError(
                    f"the rule {pattern!r} names nothing that can be quantized: there are {', '.join(paths)}"
                )
            self.rules |= dict.fromkeys([pattern] if is_path or not paths else ends[pattern], precision)

    def pattern_of(self, *paths: str) -> str | None:
        """The rule for a module known by these paths; None if there is none."""
        return next((rule for rule in reversed(self.rules) if any(_names(rule, path) for path in paths)), None)


def _names(pattern: str, path: str) -> bool:
    """Whether the pattern is that of the path, or of something it lies in."""
    parts = path.split(".")
    return any(fnmatch.fnmatchcase(".".join(parts[:end]), pattern) for end in range(1, len(parts) + 1))
