"""Classify image files with a packed network."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from lehr.deploy.build import CompilerError
from lehr.deploy.cpu import Engine, compile
from lehr.deploy.images import ImageError, image_files, read_image
from lehr.deploy.integer_net import IntegerNet
from lehr.deploy.pack import load


def predict(
    file: Path, paths: Sequence[Path], *, resize: bool = False
) -> Iterator[tuple[Path, tuple[str, str, str, str] | ImageError]]:
    """For each image: the class and its score, the next best class and its score; or why it could not be read.

    Runs in the compiled engine, or, where it cannot be built, in the reference run, with the same result.
    """
    net = load(file)
    run = _runner(net)
    for path in image_files(paths):
        try:
            pixels = read_image(path, net.input_shape, resize=resize)
        except ImageError as error:
            yield path, error
            continue
        scores = np.asarray(run.run(pixels[None]))[0]
        best, second = _two_best(scores)
        yield path, (_name(net, best), f"{scores[best]:.4g}", _name(net, second), f"{scores[second]:.4g}")


def _two_best(
    scores: np.ndarray,  # (class,)
) -> tuple[int, int]:
    """The first of the largest scores and the first of the largest others; what is no number comes last."""
    ranked = np.where(np.isnan(scores), -np.inf, scores)
    best = int(ranked.argmax())
    others = np.delete(ranked, best)
    if not len(others):
        return best, best
    second = int(others.argmax())
    return best, second + (second >= best)


def _name(net: IntegerNet, number: int) -> str:
    return net.classes[number] if net.classes else str(number)


def _runner(net: IntegerNet) -> Engine | IntegerNet:
    try:
        return compile(net)
    except CompilerError:  # there is no compiler, or no folder to keep what it makes
        return net
