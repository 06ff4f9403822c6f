"""Train a recipe into a run folder, or go on with one that was interrupted.

results = train(recipe, path)       # from nothing, or from a full-precision run (recipe.start)
results = resume(path)              # goes on bit for bit, as if it had never stopped

With several processes each of them calls these; the first writes, and the others get None.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

from lightning.fabric import Fabric
from torch import nn

from lehr.data import Splits, StreamedSplits
from lehr.training.circumstances import circumstances, warn_if_circumstances_differ, warn_if_split_differs
from lehr.training.errors import Diverged, RunError, RunWarning
from lehr.training.folder import RunFolder, load_checkpoint, read_json, write_json
from lehr.training.launch import all_processes, deterministic, fabric_of, is_main_process, stopped_by_signals
from lehr.training.lock import alone
from lehr.training.loop import Results, Step, Training
from lehr.training.machine import keep_freed_memory
from lehr.training.recipe import Recipe
from lehr.training.recipes import dump, read
from lehr.training.run import Images, build, check_images, images_of, load_data, load_network
from lehr.training.teacher import Teacher, check_features

Data = Splits | StreamedSplits
Watch = Callable[[Step], None]


def train(recipe: Recipe, path: Path, *, splits: Data | None = None, watch: Watch | None = None) -> Results | None:
    """Train from the beginning.

    Args:
        recipe: what to train
        path: the run folder, which must not hold a run yet
        splits: images of your own in place of the recipe's data set
        watch: called with each step of the network, not of its twin, before the optimizer changes the weights

    Returns:
        What results.json holds; None in a process other than the first.
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
        network = build(recipe, images, start=recipe.start)
        fabric = fabric_of(recipe)
        with deterministic(recipe.deterministic), all_processes(fabric, path) as folder:
            if not recipe.twin_epochs:
                training = _training(fabric, recipe, folder, network, splits, watch)
                _create(folder, training, images)
                return _run(training, folder)
            twin, twin_folder = build(recipe.twin, images), RunFolder(folder.twin)
            if recipe.distillation.by == "features" and recipe.distillation.epochs:
                check_features(twin, network)
            with _training_the_twin(recipe, twin_folder.path):
                training = _training(fabric, recipe.twin, twin_folder, twin, splits)
                _create(folder, training, images, recipe)
                _create(twin_folder, training, images)
                _run(training, twin_folder)
            if recipe.pretraining.epochs:  # the first one showed, before hours of training, that it can be made
                network = build(recipe, images, start=twin_folder.path)
            return _run(_training(fabric, recipe, folder, network, splits, watch), folder)


def resume(path: Path, *, splits: Data | None = None, watch: Watch | None = None) -> Results | None:
    """Continue an interrupted run with its own recipe; what a finished run gave is read from it.

    Args:
        path: the run folder
        splits: the images it was begun with, if they were your own
        watch: as in `train`

    Returns:
        What results.json holds; None in a process other than the first.
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
    fabric: Fabric, recipe: Recipe, folder: RunFolder, splits: Data, watch: Watch | None = None
) -> Results | None:
    """Go on after the newest checkpoint, of the twin first if there is one."""
    newest = folder.newest_checkpoint()
    if newest and "optimizer" not in newest[1]:
        raise RunError(
            f"{folder.path} was begun by an older lehr, whose checkpoints can be evaluated but not trained on: "
            f"begin anew with `lehr train {folder.recipe}`"
        )
    images = Images.of(splits.train)
    twin = RunFolder(folder.twin)
    if recipe.twin_epochs and (not twin.recipe.exists() or _results_of(twin) is None):
        with _training_the_twin(recipe, twin.path):
            if not twin.recipe.exists():
                twin.create(dump(recipe.twin), {**circumstances(recipe.twin), "images": images._asdict()})
            _continue(fabric, recipe.twin, twin, splits)
    start = twin.path if recipe.pretraining.epochs else recipe.start
    network = build(recipe, images, start=None if newest else start)
    training = _training(fabric, recipe, folder, network, splits, watch)
    if newest:
        training.load_state_dict(newest[1])
    return _run(training, folder)


def _training(
    fabric: Fabric, recipe: Recipe, folder: RunFolder, network: nn.Module, splits: Data, watch: Watch | None = None
) -> Training:
    """A network ready to train; raises if anything speaks against it."""
    keep_freed_memory()
    return Training(fabric, recipe, network, splits, teacher=_teacher(recipe, network, folder, splits), watch=watch)


def _create(folder: RunFolder, training: Training, images: Images, recipe: Recipe | None = None) -> None:
    """Make the folder of a new run, once nothing speaks against training; `recipe` is the training's unless given."""
    recipe = training.recipe if recipe is None else recipe
    if training.fabric.is_global_zero:
        folder.create(dump(recipe), {**circumstances(recipe), "images": images._asdict()})


def _run(training: Training, folder: RunFolder) -> Results | None:
    """Train a network to its end; the last file that is written, results.json, says that the run is finished."""
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
    """The results of a finished run; None if it is unfinished, or its network can no longer be read."""
    finished = folder.read_results()
    if finished is not None:
        try:
            load_checkpoint(folder.final)
        except RunError as error:
            warnings.warn(f"{error}; it is made anew", RunWarning, stacklevel=3)
            return None
    return finished


def _alone(path: Path) -> contextlib.AbstractContextManager[None]:
    """The lock of the run folder, which the first process holds for all."""
    return alone(path) if is_main_process() else contextlib.nullcontext()


def _check_settings(recipe: Recipe, images: Images) -> None:
    """Raise ValueError for settings that do not suit the images; warn of networks that saw validation images."""
    if is_main_process():
        for other in (recipe.start, recipe.distillation.teacher):
            if other:
                warn_if_split_differs(recipe, other)
    size = "x".join(map(str, images.shape[1:]))
    if recipe.data.cutout >= min(images.shape[1:]):
        raise ValueError(f"data.cutout must be smaller than the images ({size}), got {recipe.data.cutout}")
    if recipe.data.reflect and recipe.data.padding >= min(images.shape[1:]):
        raise ValueError(f"data.padding must be smaller than the images ({size}) to reflect, got {recipe.data.padding}")


@contextlib.contextmanager
def _training_the_twin(recipe: Recipe, path: Path) -> Iterator[None]:
    """Hold the twin's folder too, since it can be resumed by itself; say of a `Diverged` that it was the twin's."""
    try:
        with _alone(path):
            yield
    except Diverged as error:
        key = "distillation.lr"
        if recipe.pretraining.epochs:
            key = "pretraining.lr" if recipe.pretraining.optimizer is None else "pretraining.optimizer.lr"
        raise Diverged(f"the full-precision twin, whose learning rate is {key}: {error}") from error


def _teacher(recipe: Recipe, student: nn.Module, folder: RunFolder, splits: Data) -> Teacher | None:
    """The network that is learned from; it must know the same images."""
    path = folder.twin if recipe.distillation.epochs else recipe.distillation.teacher
    if path is None:
        return None
    images, known = Images.of(splits.train), images_of(path)
    if (known.shape, known.classes) != (images.shape, images.classes):
        raise RunError(f"the teacher {path} knows images of {known.shape} in {len(known.classes)} classes, not these")
    network, _ = load_network(path)
    try:
        return Teacher(network, student, recipe.distillation)
    except ValueError as error:
        raise RunError(f"{path}: {error}") from None
