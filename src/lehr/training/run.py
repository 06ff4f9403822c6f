"""A run that is there: its network, built, loaded and evaluated. Nothing here trains, so nothing here needs Lightning.

model, recipe = load_network(path)            # the trained network, in eval mode; the data set is not needed
model, recipe, splits = load_run(path)        # and the data it was trained on
results = evaluate(path)                      # loss and accuracy on validation and test data
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from lehr import data
from lehr.data import AnyDataset, Splits, StreamedSplits, batches_of
from lehr.models.mobilenet_v2 import MobileNetV2, convert_branches_
from lehr.training.folder import RunError, RunFolder, load_checkpoint
from lehr.training.recipe import Recipe
from lehr.training.recipes import named, read
from lehr.training.tally import Tally

_EVALUATED_AT_ONCE = 200  # images
_MODEL = "model."  # what a task calls its network


class Images(NamedTuple):
    """What a network must know of the images it is built for; kept in run.json."""

    shape: tuple[int, ...]
    classes: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]

    @classmethod
    def of(cls, dataset: AnyDataset) -> Images:
        """Those of a data set."""
        return cls(dataset.shape, dataset.classes, dataset.mean, dataset.std)


def load_data(recipe: Recipe) -> Splits | StreamedSplits:
    """The recipe's images, split by its seed."""
    name, root, settings = recipe.data.name, recipe.data.root, recipe.data
    if name in data.STREAMED:
        if settings.cutout:
            raise ValueError(f"data.cutout goes with images in memory, not with {name}: leave it at 0")
        return data.load_streamed(name, root, size=settings.size, seed=recipe.seed, validation=settings.validation)
    if settings.size is not None:
        raise ValueError(f"the images of {name} have their size: data.size goes with {', '.join(data.STREAMED)}")
    return data.load(name, root, seed=recipe.seed, validation=settings.validation)


def build(recipe: Recipe, images: Images, *, start: Path | None = None) -> nn.Module:
    """The recipe's network, initialised by its seed and quantized by its algorithm.

    With `start` it begins with the weights of that full-precision run.
    """
    torch.manual_seed(recipe.seed)
    model = recipe.model.build(images.shape, len(images.classes), images.mean, images.std)
    if start is not None:
        folder = RunFolder.open(start)
        try:
            model.load_state_dict(_saved_network(folder))
        except RuntimeError as error:
            raise RunError(
                f"the network of {start} is not this recipe's in full precision: {_difference(error)}"
            ) from error
    if isinstance(model, MobileNetV2):
        convert_branches_(model, lambda branches: recipe.algorithm.convert_(branches, trained=start is not None))
    else:
        recipe.algorithm.convert_(model, trained=start is not None)
    if recipe.channels_last:
        for tensor in itertools.chain(model.parameters(), model.buffers()):
            if tensor.dim() == 4:  # Module.to would take those of 5 dimensions too, and fail
                tensor.data = tensor.data.contiguous(memory_format=torch.channels_last)
    return model


def load_network(path: Path) -> tuple[nn.Module, Recipe]:
    """The network of a run in eval mode, and its recipe; of an unfinished run, as far as it is."""
    folder = RunFolder.open(path)
    recipe = read(folder.recipe)
    model = build(recipe, images_of(path))
    try:
        model.load_state_dict(_saved_network(folder))
    except RuntimeError as error:
        raise RunError(f"the network of {path} is not that of its recipe.yaml: {_difference(error)}") from error
    return model.eval(), recipe


def load_run(path: Path) -> tuple[nn.Module, Recipe, Splits | StreamedSplits]:
    """`load_network`, and the run's data."""
    model, recipe = load_network(path)
    return model, recipe, load_data(recipe)


@torch.inference_mode()
def evaluate(path: Path, device: torch.device | str | None = None) -> dict[str, float]:
    """Loss and accuracy of a run's network on validation and test data, without noise."""
    model, recipe, splits = load_run(path)
    device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    model, loss = model.to(device), recipe.loss.build()
    results = {}
    for name, dataset in (("val", splits.validation), ("test", splits.test)):
        tally = Tally(device)
        for images, labels in batches_of(dataset, _EVALUATED_AT_ONCE, device=device):
            scores = model(images)
            tally.add(loss(scores, labels), scores, labels)
        results[f"{name}/loss"], results[f"{name}/accuracy"] = tally.read()
    return results


def untrained_network(path: Path) -> tuple[nn.Module, Tensor]:
    """The network of a run as it was before training, in eval mode, and an image for it; no checkpoint is needed."""
    folder = RunFolder.open(path)
    images = images_of(path)
    model = build(read(folder.recipe), images).eval()
    return model, torch.zeros(1, *images.shape, dtype=torch.uint8)


def network_of(name: str) -> tuple[nn.Module, Tensor]:
    """The network of a run, or of a recipe before training, in eval mode, and an image for it."""
    path = Path(name)
    if path.is_dir():
        model, _ = load_network(path)
        images = images_of(path)
    else:
        recipe = named(name)
        images = Images.of(load_data(recipe).train)
        model = build(recipe, images).eval()
    return model, torch.zeros(1, *images.shape, dtype=torch.uint8)


def unused_path(path: Path) -> Path:
    """The path itself, or with the first number from 2 on that makes it new."""
    candidates = itertools.chain([path], (path.with_name(f"{path.name}-{n}") for n in itertools.count(2)))
    return next(candidate for candidate in candidates if not candidate.exists())


def images_of(path: Path) -> Images:
    """What images a run's network is for."""
    folder = RunFolder.open(path)
    try:
        info = folder.read_info()["images"]
        return Images(*(tuple(info[field]) for field in Images._fields))
    except (KeyError, TypeError) as error:
        raise RunError(f"{folder.info} does not tell what images the network is for ({error})") from error


def _difference(error: RuntimeError) -> str:
    """The first of what `load_state_dict` complains of."""
    return " ".join(str(error).split("\n\t")[1].split())


def _saved_network(folder: RunFolder) -> dict[str, Any]:
    if folder.final.exists():
        content = load_checkpoint(folder.final)
    else:
        newest = folder.newest_checkpoint()
        if newest is None:
            raise RunError(f"{folder.path} has no checkpoint yet: continue it with `lehr train --resume {folder.path}`")
        content = newest[1]
    state = content["state_dict"].items()
    return {key.removeprefix(_MODEL): value for key, value in state if key.startswith(_MODEL)}
