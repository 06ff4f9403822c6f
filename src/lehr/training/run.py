"""Build the network of a recipe, load or evaluate that of a run, without importing Lightning.

model, recipe = load_network(path)            # the trained network, in eval mode, without its data set
model, recipe, splits = load_run(path)        # with the data it was trained on
results = evaluate(path)                      # loss and accuracy on validation and test data
"""

from __future__ import annotations

import contextlib
import itertools
import math
import reprlib
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from lehr import data
from lehr.algorithms import FullPrecision
from lehr.data import AnyDataset, Dataset, Splits, StreamedSplits, batches_of
from lehr.dequantize import keep_float_sums_
from lehr.models import Input, quantized_part
from lehr.training.errors import RunWarning
from lehr.training.evaluation import evaluate_each, mirrored
from lehr.training.folder import RunError, RunFolder, load_checkpoint, read_json
from lehr.training.loaders import EVALUATED_AT_ONCE
from lehr.training.recipe import Recipe
from lehr.training.recipes import named, read

_LARGEST_IMAGE = 2**26  # values; a photograph of 4096 x 4096 pixels has 3 * 2**24
MODEL = "model."  # prefix of the network's tensors in a checkpoint


class InputFormat(NamedTuple):
    """The properties of images, or of signals, that a network is built from; stored in run.json."""

    shape: tuple[int, ...]
    classes: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    dtype: str = "uint8"  # or float32, of signals

    @classmethod
    def of(cls, dataset: AnyDataset) -> InputFormat:
        """Return the properties of a data set's images."""
        signals = isinstance(dataset, Dataset) and dataset.images.is_floating_point()
        kind = "float32" if signals else "uint8"
        return cls(dataset.shape, dataset.classes, dataset.mean, dataset.std, kind)

    def example(self, count: int = 1) -> Tensor:
        """Return some input for the network: black images, or signals that are the mean."""
        if self.dtype == "uint8":
            return torch.zeros(count, *self.shape, dtype=torch.uint8)
        mean = torch.tensor(self.mean).reshape(-1, *[1] * (len(self.shape) - 1))
        return mean.expand(count, *self.shape).clone()


def load_data(recipe: Recipe, *, fetch: bool = True) -> Splits | StreamedSplits:
    """Load the recipe's images, split by its seed.

    Args:
        recipe: the experiment
        fetch: download a data set that is not there
    """
    name, root, settings = recipe.data.name, recipe.data.root, recipe.data
    if name in data.STREAMED:
        for key, none in (("cutout", 0), ("reflect", False)):
            if getattr(settings, key) != none:
                raise ValueError(f"data.{key} needs images in memory, but {name} is streamed: leave it at {none}")
        if settings.flip == "alternate":
            raise ValueError(f"data.flip alternate needs images in memory, but {name} is streamed: set it to true")
        return data.load_streamed(name, root, size=settings.size, seed=recipe.seed, validation=settings.validation)
    if name == "folder":
        if root is None:
            raise ValueError("data.name folder needs data.root: the folder of your images")
        return data.load_folder(
            root, size=settings.size, seed=recipe.seed, validation=settings.validation, workers=settings.workers
        )
    if settings.size is not None:
        raise ValueError(
            f"the images of {name} have a fixed size: leave data.size out, which is for folder, "
            f"{', '.join(data.STREAMED)}; got {settings.size}"
        )
    try:
        return data.load(name, root, seed=recipe.seed, validation=settings.validation)
    except data.DataError:
        if not fetch:
            raise
        data.fetch_missing(name, root)
    return data.load(name, root, seed=recipe.seed, validation=settings.validation)


def build(recipe: Recipe, images: InputFormat, *, start: Path | None = None) -> nn.Module:
    """Build the recipe's network, initialised by its seed and quantized by its algorithm.

    Args:
        recipe: the experiment
        images: the images the network is for
        start: a run whose weights the network starts from: a full-precision one, or one of the same algorithm, which
            then goes on
    """
    theirs, from_float = None, False
    if start is not None:
        theirs, its_recipe = load_network(start)  # before the seed is set: it draws numbers too
        from_float = isinstance(its_recipe.algorithm, FullPrecision)
    torch.manual_seed(recipe.seed)
    try:
        model = recipe.model.build(images.shape, len(images.classes), images.mean, images.std)
    except (RuntimeError, OverflowError, MemoryError, TypeError) as error:
        if isinstance(error, TypeError) and "Overflow" not in str(error):  # torch's error for 10**30 features
            raise
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise RunError(f"the network of this recipe cannot be built for images of {_size(images)}: {reason}") from error
    except ValueError as error:
        if images.dtype == "uint8":
            raise
        raise RunError(f"{recipe.model.name} cannot be built for signals of {_size(images)}: {error}") from error
    if images.dtype != "uint8" and any(isinstance(module, Input) for module in model.modules()):
        raise RunError(f"{recipe.model.name} takes images, and these are signals of {_size(images)}: try signal-net")
    if theirs is not None and from_float:
        _load_weights(model, theirs, f"the network of {start} is not the full-precision network of this recipe")
    rules = {"rules": recipe.precision_rules} if recipe.precision_rules else {}  # not every algorithm takes them
    recipe.algorithm.convert_(quantized_part(model), trained=start is not None, **rules)
    if theirs is not None and not from_float:
        _load_weights(model, theirs, f"the network of {start} is not the network of this recipe")
    if recipe.channels_last:
        for tensor in itertools.chain(model.parameters(), model.buffers()):
            if tensor.dim() == 4:  # Module.to(memory_format=...) would fail on tensors of 5 dimensions
                tensor.data = tensor.data.contiguous(memory_format=torch.channels_last)
    return model


def _load_weights(model: nn.Module, theirs: nn.Module, problem: str) -> None:
    """Copy weights, scales and buffers; raise RunError if the layers differ, or the levels of their quantizers."""
    try:
        model.load_state_dict(theirs.state_dict())
    except RuntimeError as error:
        raise RunError(f"{problem}: {_difference(error)}") from error


def load_network(path: Path) -> tuple[nn.Module, Recipe]:
    """Return the network of a run in eval mode, and its recipe; an unfinished run has its newest checkpoint."""
    model, recipe, _ = _load(path)
    return model, recipe


def _load(path: Path) -> tuple[nn.Module, Recipe, InputFormat]:
    folder = RunFolder.open(path)
    recipe = read(folder.recipe)
    saved = _saved_network(folder)
    images = images_of(path)
    model = build(recipe, images)
    keep_float_sums_(model, saved)  # a run of lehr 0.1 has no quantizers of sums
    try:
        model.load_state_dict(saved)
    except RuntimeError as error:
        raise RunError(f"the checkpoint of {path} does not match its recipe.yaml: {_difference(error)}") from error
    return model.eval(), recipe, images


def load_run(path: Path) -> tuple[nn.Module, Recipe, Splits | StreamedSplits]:
    """Return the network, the recipe and the data of a run; raise RunError if the data do not fit the network."""
    model, recipe = load_network(path)
    splits = load_data(recipe)
    check_images(splits, RunFolder(path))
    return model, recipe, splits


def check_images(splits: Splits | StreamedSplits, folder: RunFolder | None = None) -> InputFormat:
    """Return the properties of the images; raise RunError if the splits, or the run in `folder`, differ in them.

    Args:
        splits: the images to train or to evaluate on
        folder: a run to compare with, unless its run.json is lost
    """
    images = InputFormat.of(splits.train)
    network, wanted = "the training images are", images
    if folder is not None:
        with contextlib.suppress(RunError):
            network, wanted = f"the network of {folder.path} is for images", _recorded_images(folder)
    for part, dataset in zip(splits._fields, splits, strict=True):
        given = InputFormat.of(dataset)
        if (given.shape, given.dtype, len(given.classes)) != (wanted.shape, wanted.dtype, len(wanted.classes)):
            raise RunError(f"{network} of {_size(wanted)}, but the {part} images are of {_size(given)}")
    return images


@torch.inference_mode()
def evaluate(path: Path, device: torch.device | str | None = None, *, mirror: bool = False) -> dict[str, float]:
    """Return loss and accuracy of a run's network on validation and test data, without noise.

    Args:
        path: the run folder
        device: default: cuda if available, else cpu
        mirror: also measure the mean of the scores of each image and its mirror image (`val/mirrored_accuracy`, ...)
    """
    model, recipe, splits = load_run(path)
    device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    model, loss = model.to(device), recipe.loss.build()
    results = {}
    for name, dataset in (("val", splits.validation), ("test", splits.test)):
        batches = batches_of(dataset, EVALUATED_AT_ONCE, device=device)
        forwards = {f"{name}/": model} | ({f"{name}/mirrored_": mirrored(model)} if mirror else {})
        results |= evaluate_each(forwards, loss, batches, device)
    return results


def untrained_network(path: Path) -> tuple[nn.Module, Tensor]:
    """Return the network of a run before training, in eval mode, and an image for it; needs no checkpoint."""
    folder = RunFolder.open(path)
    images = _recorded_images(folder)
    model = build(read(folder.recipe), images).eval()
    return model, images.example()


def network_of(name: str) -> tuple[nn.Module, Tensor]:
    """Return the network of a run, or of a recipe before training, in eval mode, and an image for it."""
    path = Path(name)
    if path.is_dir():
        model, _, images = _load(path)
    else:
        recipe = named(name)
        images = InputFormat.of(load_data(recipe, fetch=False).train)
        model = build(recipe, images).eval()
    return model, images.example()


def unused_path(path: Path) -> Path:
    """Return the path, or if it exists, the first of PATH-2, PATH-3, ... that does not."""
    candidates = itertools.chain([path], (path.with_name(f"{path.name}-{n}") for n in itertools.count(2)))
    return next(candidate for candidate in candidates if not candidate.exists())


def images_of(path: Path) -> InputFormat:
    """Return the images that a run's network is for, from run.json, or if that is lost, from the recipe's data set."""
    folder = RunFolder.open(path)
    try:
        return _recorded_images(folder)
    except RunError as error:
        lost = error
    try:
        images = InputFormat.of(load_data(read(folder.recipe), fetch=False).train)
    except (data.DataError, OSError, ValueError) as error:
        raise RunError(f"{lost}; the recipe's data set, which has the images too, cannot be loaded: {error}") from error
    warnings.warn(f"{lost}; using the images of the recipe's data set", RunWarning, stacklevel=2)
    return images


def _recorded_images(folder: RunFolder) -> InputFormat:
    """Return the images that run.json records; raise RunError if they are missing or impossible."""
    recorded = read_json(folder.info).get("images")
    if not isinstance(recorded, dict):
        raise RunError(f"{folder.info} does not say what images the network is for")
    parts: list[tuple[Any, ...]] = []
    for name, kind in {"shape": int, "classes": str, "mean": int | float, "std": int | float}.items():
        values = recorded.get(name)
        if not isinstance(values, list) or not values or not all(isinstance(value, kind) for value in values):
            raise RunError(f"{folder.info}: {name} of the images cannot be {reprlib.repr(values)}")
        parts.append(tuple(values))
    images = InputFormat(*parts, dtype=recorded.get("dtype", "uint8"))  # runs of lehr 0.1 do not say: images
    if images.dtype not in ("uint8", "float32"):
        raise RunError(f"{folder.info}: images are uint8 and signals float32, got {reprlib.repr(images.dtype)}")
    if images.dtype == "float32" and not 1 <= len(images.shape) <= 3:
        raise RunError(f"{folder.info}: signals are channels x time, with one to three dimensions, got {_size(images)}")
    if (
        (images.dtype == "uint8" and len(images.shape) != 3)
        or min(images.shape) < 1
        or math.prod(images.shape) > _LARGEST_IMAGE
    ):
        raise RunError(
            f"{folder.info}: images are channels x height x width of at most {_LARGEST_IMAGE:,} values, got "
            f"{_size(images)}"
        )
    if not images.shape[0] == len(images.mean) == len(images.std):
        raise RunError(f"{folder.info}: each of the {images.shape[0]} channels needs a mean and a std")
    if not all(math.isfinite(value) for value in images.mean) or not all(0 < value < math.inf for value in images.std):
        raise RunError(f"{folder.info}: mean and std of the images must be finite, std positive")
    return images


def _size(images: InputFormat) -> str:
    kind = "" if images.dtype == "uint8" else f" {images.dtype}"
    return f"{'x'.join(f'{number:.6g}' for number in images.shape[:5])}{kind} in {len(images.classes)} classes"


def _difference(error: RuntimeError) -> str:
    """Return the first complaint of `load_state_dict`."""
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
    return {key.removeprefix(MODEL): value for key, value in state if key.startswith(MODEL)}
