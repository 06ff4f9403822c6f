"""Train a recipe into a run folder, or go on with one that was interrupted.

results = train(recipe, path)       # from nothing, or from a full-precision run (recipe.start)
results = resume(path)              # goes on bit for bit, as if it had never stopped

Both take `splits`, images of your own in place of the recipe's data set, and `callbacks` of Lightning to add to lehr's.
With several processes each of them calls these; the first writes, and what the others get back is None.
"""

from __future__ import annotations

import contextlib
import json
import logging
import platform
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import lightning as L
import torch
from lightning.fabric.plugins.environments.torchelastic import TorchElasticEnvironment
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.fabric.utilities.rank_zero import rank_zero_only
from lightning.pytorch.callbacks import LambdaCallback
from lightning.pytorch.utilities.exceptions import SIGTERMException
from torch import Tensor, nn

import lehr
from lehr.batchnorm import reestimate_
from lehr.data import CropFlip, Splits, StreamedBatches, StreamedSplits, examples_of
from lehr.training.annealing import NoiseAnnealing
from lehr.training.averaging import Averaging
from lehr.training.errors import Diverged, Interrupted, RunError, RunWarning
from lehr.training.folder import RunFolder, load_checkpoint, save_checkpoint, write_json
from lehr.training.interruption import StopAtOnce
from lehr.training.loaders import Loaders
from lehr.training.machine import check_bfloat16, check_compiler
from lehr.training.measures import annealed_together, level_codes, level_shares, noise, noisy_quantizers
from lehr.training.memory import keep_freed_memory
from lehr.training.progress import progress
from lehr.training.recipe import Recipe
from lehr.training.recipes import dump, read
from lehr.training.record import Record
from lehr.training.run import Images, build, images_of, load_data, load_network
from lehr.training.task import Task
from lehr.training.teacher import Teacher, check_features

_BATCHNORM_BATCH = 256  # images

Results = dict[str, Any]


def train(
    recipe: Recipe, path: Path, *, splits: Splits | StreamedSplits | None = None, callbacks: Sequence[L.Callback] = ()
) -> Results | None:
    """Train from the beginning; `path` must not hold a run yet. Returns what results.json holds."""
    folder = RunFolder.unused(path) if is_main_process() else RunFolder(path)
    recipe = recipe.anchored
    splits = splits or load_data(recipe)
    for other in (recipe.start, recipe.distillation.teacher):
        if other and is_main_process():
            _tell_other_split(recipe, other)
    images = Images.of(splits.train)
    if recipe.data.cutout >= min(images.shape[1:]):
        size = "x".join(map(str, images.shape[1:]))
        raise ValueError(f"data.cutout must be smaller than the images ({size}), got {recipe.data.cutout}")
    model = build(recipe, images, start=recipe.start)
    if recipe.twin_epochs:
        if is_main_process():
            RunFolder.unused(folder.twin)
        if recipe.distillation.by == "features" and recipe.distillation.epochs:
            check_features(build(recipe.twin, images), model)
    circumstances = {**_circumstances(recipe), "images": images._asdict()}
    record = Record(folder, lambda: folder.create(dump(recipe), circumstances))
    if recipe.twin_epochs:
        # With the twin the run begins, and can be resumed.
        _train_twin(recipe, folder, splits, LambdaCallback(on_train_start=lambda *_: record.begin()))
    if recipe.pretraining.epochs:
        model = build(recipe, images, start=folder.twin)
    return _fit(recipe, record, model, splits, callbacks)


def resume(
    path: Path, *, splits: Splits | StreamedSplits | None = None, callbacks: Sequence[L.Callback] = ()
) -> Results | None:
    """Continue an interrupted run with its own recipe; what a finished run gave is read from it."""
    folder = RunFolder.open(path)
    recipe = read(folder.recipe)
    finished = folder.read_results()
    if finished is not None:
        try:
            load_checkpoint(folder.final)
            return finished
        except RunError as error:
            warnings.warn(f"{error}; it is made anew", RunWarning, stacklevel=2)
    splits = splits or load_data(recipe)
    newest = folder.newest_checkpoint()
    if is_main_process():
        _tell_differences(folder.read_info(), _circumstances(recipe))
    if recipe.twin_epochs:
        _train_twin(recipe, folder, splits)
    start = folder.twin if recipe.pretraining.epochs else recipe.start
    model = build(recipe, Images.of(splits.train), start=None if newest else start)
    checkpoint = newest[0] if newest else None
    return _fit(recipe, Record(folder), model, splits, callbacks, checkpoint=checkpoint)


def is_main_process() -> bool:
    """Whether this is the process that writes and speaks; launchers tell the others their rank."""
    return rank_zero_only.rank == 0  # pyright: ignore[reportFunctionMemberAccess]


def _fit(
    recipe: Recipe,
    record: Record,
    model: nn.Module,
    splits: Splits | StreamedSplits,
    added: Sequence[L.Callback],
    *,
    checkpoint: Path | None = None,
) -> Results | None:
    settings = recipe.annealing
    falls = bool(noisy_quantizers(model)) or settings.backward_law is not None
    groups = annealed_together(model) if recipe.algorithm.anneals and falls else []
    windows = settings.windows_for(len(groups)) if groups else []
    task = Task(
        model,
        recipe.loss.build(),
        recipe.algorithm,
        recipe.optimizer,
        recipe.schedule,
        annealed=max(window.end for window in windows) if windows else None,
        seed=recipe.seed,
        batchnorm=_batchnorm_images(recipe, splits) if recipe.batchnorm_batches else (),
        teacher=_teacher(recipe, model, record.folder, splits),
        compile=recipe.compile,
    )
    callbacks: list[L.Callback] = [*added, StopAtOnce(record.folder.path), record]
    if windows:
        callbacks.append(
            NoiseAnnealing(
                windows,
                settings.law,
                synchronous=settings.synchronous,
                backward_law=settings.backward_law,
                groups=[[f"model.{path}" for path in group] for group in groups],
                per=settings.per,
            )
        )
    averaging = Averaging(recipe.averaging) if recipe.averaging else None
    if averaging:
        callbacks.append(averaging)
    if is_main_process():
        callbacks.append(progress())
    loaders = Loaders(splits, recipe.data, seed=recipe.seed)
    try:
        with _quiet_lightning():
            trainer = _trainer(recipe, record.folder, callbacks)
            trainer.fit(task, datamodule=loaders, ckpt_path=checkpoint, weights_only=True)
            if averaging:
                averaging.keep_(task)
            results = _finish(recipe, record, trainer, task, loaders)
    except SIGTERMException as stop:  # the signal came before training began
        raise Interrupted.training(signal.SIGTERM, record.folder.path) from stop
    except (Diverged, Interrupted):
        if is_main_process():
            raise
        raise SystemExit(1) from None  # it stopped all processes, and is told once
    return results if is_main_process() else None


def _batchnorm_images(recipe: Recipe, splits: Splits | StreamedSplits) -> Sequence[Tensor]:
    """The same on every process, so that all have the same statistics; in memory, augmented like those of training."""
    images = examples_of(splits.train, _BATCHNORM_BATCH * recipe.batchnorm_batches)
    # Data may be in the order of its classes: a batch must hold many.
    images = images[torch.randperm(len(images), generator=torch.Generator().manual_seed(recipe.seed))]
    if recipe.data.augment and isinstance(splits, Splits):
        augment = CropFlip(recipe.data.padding, recipe.data.flip, recipe.data.cutout)
        images = augment(images, torch.Generator().manual_seed(recipe.seed))
    return [batch for batch in images.split(_BATCHNORM_BATCH) if len(batch) > 1]  # BatchNorm needs two images


def _train_twin(recipe: Recipe, folder: RunFolder, splits: Splits | StreamedSplits, *callbacks: L.Callback) -> None:
    """Train the full-precision twin, a run within the run; go on where it was interrupted."""
    try:
        if RunFolder(folder.twin).recipe.exists():
            resume(folder.twin, splits=splits)
        else:
            train(recipe.twin, folder.twin, splits=splits, callbacks=callbacks)
    except Interrupted as stop:
        raise Interrupted.training(stop.signum, folder.path) from stop
    except Diverged as error:
        key = "pretraining.lr" if recipe.pretraining.epochs else "distillation.lr"
        raise Diverged(f"the full-precision twin, whose learning rate is {key}: {error}") from error


def _teacher(recipe: Recipe, student: nn.Module, folder: RunFolder, splits: Splits | StreamedSplits) -> Teacher | None:
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


def _trainer(recipe: Recipe, folder: RunFolder, callbacks: list[L.Callback]) -> L.Trainer:
    _check_launched(recipe)
    keep_freed_memory()
    try:
        trainer = L.Trainer(
            accelerator=recipe.accelerator,
            devices=recipe.devices,
            num_nodes=recipe.num_nodes,
            strategy=recipe.strategy,
            precision=recipe.precision,
            max_epochs=recipe.epochs,
            gradient_clip_val=recipe.optimizer.clip_norm,
            deterministic=recipe.deterministic,
            callbacks=callbacks,
            logger=False,
            enable_model_summary=False,
            enable_progress_bar=False,
            num_sanity_val_steps=0,
            use_distributed_sampler=False,
            default_root_dir=folder.path,
        )
    except MisconfigurationException as error:
        asked = f"accelerator {recipe.accelerator}, devices {recipe.devices}, strategy {recipe.strategy}"
        raise ValueError(f"{asked}: {error}") from error
    if trainer.strategy.root_device.type == "cpu":
        if trainer.precision == "bf16-mixed":  # which Lightning makes of 16-mixed here
            check_bfloat16()
        if recipe.compile:
            check_compiler()
    return trainer


def _check_launched(recipe: Recipe) -> None:
    """Lightning would train as many networks as torchrun starts processes, each into the same folder."""
    launched = TorchElasticEnvironment().world_size() if TorchElasticEnvironment.detect() else None
    if launched not in (None, recipe.devices * recipe.num_nodes):
        raise ValueError(
            f"torchrun started {launched} processes, but devices is {recipe.devices} and num_nodes {recipe.num_nodes}: "
            "give --devices what torchrun has as --nproc-per-node, and --num_nodes what it has as --nnodes"
        )


def _finish(recipe: Recipe, record: Record, trainer: L.Trainer, task: Task, loaders: Loaders) -> Results:
    """What the algorithm does last, BatchNorm re-estimation if asked for, validation and test once, the results."""
    results: Results = _skipped("train", trainer, trainer.train_dataloader)
    task.results = {}
    recipe.algorithm.after_training_(task.model)
    if recipe.batchnorm_batches:
        trainer.validate(task, datamodule=loaders, verbose=False)
        results |= {name.replace("/", "/running_"): value for name, value in task.results.items()}
        task.to(trainer.strategy.root_device)  # validation ended on the CPU
        reestimate_(task.model, (batch.to(task.device) for batch in task.batchnorm))
    trainer.validate(task, datamodule=loaders, verbose=False)
    results |= _skipped("val", trainer, trainer.val_dataloaders)
    trainer.test(task, datamodule=loaders, verbose=False)
    results |= _skipped("test", trainer, trainer.test_dataloaders)
    results |= task.results
    codes = level_codes(task.model)
    results |= level_shares(task.model, codes)
    results |= {name: std for name, std in noise(task.model).items() if name.startswith("std/forward")}
    seconds = record.seconds
    if recipe.twin_epochs:
        seconds += json.loads(RunFolder(record.folder.twin).results.read_text())["seconds"]
    results |= {"epochs": recipe.epochs, "seconds": round(seconds, 1)}
    if trainer.is_global_zero:
        state = {f"model.{key}": value.cpu() for key, value in task.model.state_dict().items()}
        save_checkpoint({"state_dict": state, "epoch": recipe.epochs}, record.folder.final)
        write_json(record.folder.results, results)  # last: with it the run is finished
    return results


def _skipped(part: str, trainer: L.Trainer, batches: Any) -> Results:
    """How many images of a part of the data could not be read, if there are any; the user is told."""
    names = set(batches.skipped.reasons) if isinstance(batches, StreamedBatches) else set()
    if trainer.world_size > 1:
        gathered: list[set[str]] = [set()] * trainer.world_size
        torch.distributed.all_gather_object(gathered, names)
        names = set().union(*gathered)
    if not names:
        return {}
    if is_main_process():
        told = f"{len(names)} of {batches.skipped.total} images of {part} data cannot be read and were skipped"
        warnings.warn(told, RunWarning, stacklevel=2)
    return {f"{part}/skipped": len(names)}


def _circumstances(recipe: Recipe) -> dict[str, Any]:
    """Where, when and with what a run is made."""
    ask = ["git", "-C", str(Path(lehr.__file__).parent), "rev-parse", "HEAD"]
    try:
        commit = subprocess.run(ask, capture_output=True, text=True, check=False).stdout.strip()
    except OSError:  # there is no git
        commit = ""
    return {
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "command": sys.argv,
        "seed": recipe.seed,
        "commit": commit or None,
        "lehr": lehr.__version__,
        "torch": torch.__version__,
        "lightning": L.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "threads": torch.get_num_threads(),
    }


def _tell_differences(then: dict[str, Any], now: dict[str, Any]) -> None:
    """What makes a resumed run differ in the last bits from one that never stopped."""
    changed = [name for name in ("lehr", "torch", "threads") if then.get(name) != now[name]]
    if changed:
        was = ", ".join(f"{name} {then.get(name)}" for name in changed)
        now_is = ", ".join(f"{name} {now[name]}" for name in changed)
        warnings.warn(f"this run began with {was} and goes on with {now_is}: not bit for bit", RunWarning, stacklevel=3)


def _tell_other_split(recipe: Recipe, other: Path) -> None:
    """What a network may know of this run's validation images."""
    theirs = read(RunFolder.open(other).recipe)
    held_out, theirs_held_out = ((r.seed, r.data.validation) for r in (recipe, theirs))
    if recipe.data.name == theirs.data.name and held_out != theirs_held_out:
        warnings.warn(
            f"{other} held other images out (its seed and data.validation are {theirs.seed} and "
            f"{theirs.data.validation}, this run's {recipe.seed} and {recipe.data.validation}) and has seen some of "
            f"this run's validation images, which will look better than they are; test data is not touched",
            RunWarning,
            stacklevel=3,
        )


@contextlib.contextmanager
def _quiet_lightning() -> Iterator[None]:
    """Without Lightning's advertisements and its hints for other people's data loaders."""
    loggers = [logging.getLogger(name) for name in ("lightning.pytorch", "lightning.fabric", "lightning")]
    levels = [logger.level for logger in loggers]
    with warnings.catch_warnings():
        # Lightning 2.6 asks torch a question in a way torch 2.13 no longer likes.
        warnings.filterwarnings("ignore", r"`isinstance\(treespec, LeafSpec\)` is deprecated", FutureWarning)
        for logger in loggers:
            logger.setLevel(logging.WARNING)
        try:
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)
