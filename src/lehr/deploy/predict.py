"""Classify image files with a packed network."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from lehr.deploy.engine import CompilerError, Engine, compile
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
    names = net.classes or tuple(str(number) for number in range(net.values[net.operations[-1].name].size))
    for path in image_files(paths):
        try:
            pixels = read_image(path, net.input_shape, resize=resize)
        except ImageError as error:
            yield path, error
            continue
        scores = np.asarray(run.run(pixels[None]))[0]
        best, second = np.argsort(-scores, kind="stable")[:2] if len(scores) > 1 else (0, 0)
        yield path, (names[best], f"{scores[best]:.4g}", names[second], f"{scores[second]:.4g}")


def _runner(net: IntegerNet) -> Engine | IntegerNet:
    try:
        return compile(net)
    except (CompilerError, OSError):  # there is no compiler, or no folder to keep what it makes
        return net
