"""Train a recipe into a run folder, or resume an interrupted run.

results = train(recipe, path)       # from scratch, or from a full-precision run (recipe.start)
results = resume(path)              # bit for bit as if it had never stopped

With several processes each of them calls these; the first writes and returns the results, the others return None.
"""

from __future__ import annotations

import contextlib
import itertools
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

from lightning.fabric import Fabric
from torch import nn

from lehr.calibration import calibrate_
from lehr.data import Splits, StreamedSplits, batches_of
from lehr.training.circumstances import circumstances, warn_if_circumstances_differ, warn_if_split_differs
from lehr.training.errors import Diverged, RunError, RunWarning
from lehr.training.folder import RunFolder, load_checkpoint, read_json, write_json
from lehr.training.launch import all_processes, deterministic, fabric_of, is_main_process, stopped_by_signals
from lehr.training.lock import alone
from lehr.training.loop import Results, Step, Training
from lehr.training.machine import keep_freed_memory
from lehr.training.recipe import Recipe
from lehr.training.recipes import dump, read
from lehr.training.run import InputFormat, build, check_images, images_of, load_data, load_network
from lehr.training.teacher import Teacher, check_features

AnySplits = Splits | StreamedSplits
Watch = Callable[[Step], None]


def train(recipe: Recipe, path: Path, *, splits: AnySplits | None = None, watch: Watch | None = None) -> Results | None:
    """Train a new run.

    Args:
        recipe: the experiment
        path: the run folder, which must not hold a run yet
        splits: images of your own instead of the recipe's data set
        watch: called with each step of the network (not of its twin), before the optimizer step

    Returns:
        The content of results.json; None in all processes but the first.
    """
    recipe = recipe.anchored
    with stopped_by_signals(path), _alone(path):
        if is_main_process():
            RunFolder.unused(path)
            if recipe.twin_epochs:
                RunFolder.unused(RunFolder(path).twin)
        splits = splits or load_data(recipe)
        images = check_images(splits)
        _check_settings(recipe, images)
        network = _built_and_calibrated(recipe, images, recipe.start, splits)
        fabric = fabric_of(recipe)
        with deterministic(recipe.deterministic), all_processes(fabric, path) as folder:
            if not recipe.twin_epochs:
                training = _make_training(fabric, recipe, folder, network, splits, watch)
                _create(folder, recipe, training, images)
                return _run(training, folder)
            twin, twin_folder = build(recipe.twin, images), RunFolder(folder.twin)
            if recipe.distillation.by == "features" and recipe.distillation.epochs:
                check_features(twin, network)
            with _training_the_twin(recipe, twin_folder.path):
                training = _make_training(fabric, recipe.twin, twin_folder, twin, splits)
                _create(folder, recipe, training, images)
                _create(twin_folder, recipe.twin, training, images)
                _run(training, twin_folder)
            if recipe.pretraining.epochs:  # built again; the first build found errors before hours of training
                network = _built_and_calibrated(recipe, images, twin_folder.path, splits)
            return _run(_make_training(fabric, recipe, folder, network, splits, watch), folder)


def resume(path: Path, *, splits: AnySplits | None = None, watch: Watch | None = None) -> Results | None:
    """Resume an interrupted run with the recipe in its folder; if it is finished, return its results.

    Args:
        path: the run folder
        splits: the images the run began with, if they were your own
        watch: as in `train`

    Returns:
        The content of results.json; None in all processes but the first.
    """
    folder = RunFolder.open(path)
    recipe = read(folder.recipe)
    finished = _results_of(folder)
    if finished is not None:
        return finished
    with stopped_by_signals(path), _alone(path):
        splits = splits or load_data(recipe)
        images = check_images(splits, folder)
        if is_main_process():
            now = circumstances(recipe)
            warn_if_circumstances_differ(folder.read_info(otherwise={**now, "images": images._asdict()}), now)
        fabric = fabric_of(recipe)
        with deterministic(recipe.deterministic), all_processes(fabric, path):
            return _continue(fabric, recipe, folder, splits, watch)


def _continue(
    fabric: Fabric, recipe: Recipe, folder: RunFolder, splits: AnySplits, watch: Watch | None = None
) -> Results | None:
    """Continue from the newest checkpoint; finish the twin first."""
    newest = folder.newest_checkpoint()
    if newest and "optimizer" not in newest[1]:
        raise RunError(
            f"{folder.path} was begun by an older lehr; its checkpoints can be evaluated but not resumed: "
            f"start over with `lehr train {folder.recipe}`"
        )
    images = InputFormat.of(splits.train)
    twin = RunFolder(folder.twin)
    if recipe.twin_epochs and (not twin.recipe.exists() or _results_of(twin) is None):
        with _training_the_twin(recipe, twin.path):
            if not twin.recipe.exists():
                twin.create(dump(recipe.twin), {**circumstances(recipe.twin), "images": images._asdict()})
            _continue(fabric, recipe.twin, twin, splits)
    start = twin.path if recipe.pretraining.epochs else recipe.start
    network = _built_and_calibrated(recipe, images, None if newest else start, splits)
    training = _make_training(fabric, recipe, folder, network, splits, watch)
    if newest:
        training.load_state_dict(newest[1])
    return _run(training, folder)


def _built_and_calibrated(recipe: Recipe, images: InputFormat, start: Path | None, splits: AnySplits) -> nn.Module:
    """Build the network; fit the activations of one that starts from a full-precision run to training images."""
    network = build(recipe, images, start=start)
    count = recipe.pretraining.calibration
    if start is not None and count:
        batches = itertools.islice((batch for batch, _ in batches_of(splits.train, recipe.data.batch_size)), count)
        like, _ = load_network(start)
        has_same_layers = {name for name, _ in like.named_parameters()} == {n for n, _ in network.named_parameters()}
        calibrate_(network, batches, like=like if has_same_layers else None, progress=False)
    return network


def _make_training(
    fabric: Fabric, recipe: Recipe, folder: RunFolder, network: nn.Module, splits: AnySplits, watch: Watch | None = None
) -> Training:
    """Return the training of a network; raise an error if its settings do not fit."""
    keep_freed_memory()
    return Training(fabric, recipe, network, splits, teacher=_teacher(recipe, network, folder, splits), watch=watch)


def _create(folder: RunFolder, recipe: Recipe, training: Training, images: InputFormat) -> None:
    """Create the folder of a new run, once a `Training` could be made of its settings or of its twin's."""
    if training.fabric.is_global_zero:
        folder.create(dump(recipe), {**circumstances(recipe), "images": images._asdict()})


def _run(training: Training, folder: RunFolder) -> Results | None:
    """Train a network to the end; results.json is written last and marks the run as finished."""
    fabric, recipe = training.fabric, training.recipe
    training.run(folder)
    results = training.finish(folder)
    seconds = training.seconds
    if recipe.twin_epochs:
        seconds += read_json(RunFolder(folder.twin).results)["seconds"]
    results |= {"epochs": recipe.epochs, "seconds": round(seconds, 1)}
    if fabric.is_global_zero:
        write_json(folder.results, results)
    fabric.barrier()
    return results if fabric.is_global_zero else None


def _results_of(folder: RunFolder) -> Results | None:
    """Return the results of a finished run; None if it is unfinished or its final checkpoint cannot be read."""
    finished = folder.read_results()
    if finished is not None:
        try:
            load_checkpoint(folder.final)
        except RunError as error:
            warnings.warn(f"{error}; the run resumes to create it again", RunWarning, stacklevel=3)
            return None
    return finished


def _alone(path: Path) -> contextlib.AbstractContextManager[None]:
    """Return the lock of the run folder; the first process holds it for all."""
    return alone(path) if is_main_process() else contextlib.nullcontext()


def _check_settings(recipe: Recipe, images: InputFormat) -> None:
    """Raise ValueError for settings that do not fit the images; warn of networks trained on validation images."""
    if is_main_process():
        for other in (recipe.start, recipe.distillation.teacher):
            if other:
                warn_if_split_differs(recipe, other)
    if images.dtype != "uint8":
        if recipe.data.augment:
            raise ValueError(f"data.augment moves and mirrors images, and {recipe.data.name} has signals: leave it out")
        return
    size = "x".join(map(str, images.shape[1:]))
    if recipe.data.cutout >= min(images.shape[1:]):
        raise ValueError(f"data.cutout must be smaller than the images ({size}), got {recipe.data.cutout}")
    if recipe.data.reflect and recipe.data.padding >= min(images.shape[1:]):
        raise ValueError(f"data.padding must be smaller than the images ({size}) to reflect, got {recipe.data.padding}")


@contextlib.contextmanager
def _training_the_twin(recipe: Recipe, path: Path) -> Iterator[None]:
    """Lock the twin's folder too, since the twin can be resumed alone; let `Diverged` say that it was the twin."""
    try:
        with _alone(path):
            yield
    except Diverged as error:
        key = "distillation.lr"
        if recipe.pretraining.epochs:
            key = "pretraining.lr" if recipe.pretraining.optimizer is None else "pretraining.optimizer.lr"
        raise Diverged(f"the full-precision twin, whose learning rate is {key}: {error}") from error


def _teacher(recipe: Recipe, student: nn.Module, folder: RunFolder, splits: AnySplits) -> Teacher | None:
    """Return the recipe's teacher, or None; raise RunError if it was trained on other images."""
    path = folder.twin if recipe.distillation.epochs else recipe.distillation.teacher
    if path is None:
        return None
    images, known = InputFormat.of(splits.train), images_of(path)
    if (known.shape, known.classes) != (images.shape, images.classes):
        raise RunError(
            f"the teacher {path} was trained on images of {known.shape} in {len(known.classes)} classes, but this "
            f"recipe has images of {images.shape} in {len(images.classes)} classes"
        )
    network, _ = load_network(path)
    try:
        return Teacher(network, student, recipe.distillation)
    except ValueError as error:
        raise RunError(f"{path}: {error}") from None
