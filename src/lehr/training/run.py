"""Train a recipe into a run folder, resume it, load what it trained.

run = train(recipe, folder)              # from nothing, or from a full-precision run (recipe.start)
run = resume(folder)                     # goes on bit for bit where it was interrupted
model, recipe = load_run(folder)         # the trained network, in eval mode
"""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import platform
import shutil
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import RichProgressBar
from lightning.pytorch.loggers import TensorBoardLogger
from torch import Tensor, nn

import lehr
from lehr import data
from lehr.annealing import layers_of
from lehr.batchnorm import reestimate_
from lehr.data import Batches, Splits
from lehr.layers import Quantizer
from lehr.training.annealing import NoiseAnnealing
from lehr.training.folder import RunError, RunFolder, load_checkpoint, replacing, write_text
from lehr.training.loaders import Loaders
from lehr.training.recipe import Recipe
from lehr.training.recipes import dump, named, read
from lehr.training.record import Record
from lehr.training.task import Task

_BATCHNORM_BATCH = 256  # images


def train(recipe: Recipe, path: Path) -> dict[str, Any]:
    """Train from the beginning; `path` must not hold a run yet. Returns what results.json holds."""
    splits = _load_data(recipe)  # fails before anything is written
    model = build(recipe, splits)
    folder = RunFolder(path)
    if _is_main_process():
        folder = RunFolder.create(path)
        write_text(folder.recipe, dump(recipe))
        folder.write_json(folder.info, _circumstances(recipe))
    return _fit(recipe, folder, model, splits, checkpoint=None)


def resume(path: Path) -> dict[str, Any]:
    """Continue an interrupted run with its own recipe."""
    folder = RunFolder.open(path)
    recipe = read(folder.recipe)
    if folder.results.exists():
        return json.loads(folder.results.read_text())
    splits = _load_data(recipe)
    newest = folder.newest_checkpoint()
    if newest is None and list(folder.checkpoints.glob("epoch-*.ckpt")):
        raise RunError(f"no checkpoint of {path} can be read; start anew with `lehr train {path / 'recipe.yaml'}`")
    return _fit(recipe, folder, build(recipe, splits), splits, checkpoint=newest[0] if newest else None)


def load_run(path: Path) -> tuple[nn.Module, Recipe, Splits]:
    """The trained network of a run in eval mode, its recipe and its data; of an unfinished run, as far as it is."""
    folder = RunFolder.open(path)
    recipe = read(folder.recipe)
    splits = _load_data(recipe)
    if folder.final.exists():
        content = load_checkpoint(folder.final)
    else:
        newest = folder.newest_checkpoint()
        if newest is None:
            raise RunError(f"{path} has no checkpoint yet: continue it with `lehr train --resume {path}`")
        content = newest[1]
    model = build(recipe, splits, from_start=False)
    model.load_state_dict(_model_state(content))
    return model.eval(), recipe, splits


def evaluate(path: Path) -> dict[str, float]:
    """Loss and accuracy of a run's network on validation and test data, without noise."""
    model, recipe, splits = load_run(path)
    loss = recipe.loss.build()
    results = {}
    for name, dataset in (("val", splits.validation), ("test", splits.test)):
        total, correct = 0.0, 0
        with torch.inference_mode():
            for images, labels in Batches(dataset, 500):
                scores = model(images)
                total += float(loss(scores, labels)) * len(labels)
                correct += int((scores.argmax(1) == labels).sum())
        results |= {f"{name}/loss": total / len(dataset), f"{name}/accuracy": correct / len(dataset)}
    return results


def network_of(name: str) -> tuple[nn.Module, Tensor]:
    """The network of a run, or of a recipe before training, in eval mode, and one image for it."""
    if (Path(name) / "recipe.yaml").exists():
        model, _, splits = load_run(Path(name))
    else:
        recipe = named(name)
        splits = _load_data(recipe)
        model = build(recipe, splits).eval()
    return model, splits.test.images[:1]


def new_folder(name: str, recipe: Recipe) -> Path:
    """Where a run goes unless told: runs/RECIPE-seed, numbered if that exists."""
    stem = f"{Path(name).stem}-seed{recipe.seed}"
    candidates = (Path("runs") / (stem if n == 1 else f"{stem}-{n}") for n in itertools.count(1))
    return next(path for path in candidates if not path.exists())


def demo(path: Path) -> dict[str, dict[str, Any]]:
    """The digits recipe and its full-precision twin, from nothing; their results."""
    results = {}
    for name in ("digits-fp", "digits-ana"):
        folder = path / name
        shutil.rmtree(folder, ignore_errors=True)
        results[name] = train(named(name), folder)
    return results


def build(recipe: Recipe, splits: Splits, *, from_start: bool = True) -> nn.Module:
    """The recipe's network, quantized by its algorithm; starting from `recipe.start`'s weights if that is given."""
    L.seed_everything(recipe.seed, verbose=False)
    train = splits.train
    model = recipe.model.build(train.shape, len(train.classes), train.mean, train.std)
    trained = from_start and recipe.start is not None
    if trained and recipe.start is not None:
        _start_from(model, recipe.start)
    recipe.algorithm.convert_(model, trained=trained)
    if recipe.channels_last:
        model = model.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
    return model


def _fit(
    recipe: Recipe, folder: RunFolder, model: nn.Module, splits: Splits, checkpoint: Path | None
) -> dict[str, Any]:
    quantized = any(isinstance(module, Quantizer) for module in model.modules())
    layers = len(layers_of(model)) if quantized else 0
    annealed = max((window.end for window in recipe.annealing.windows_for(layers)), default=0.0) if layers else 0.0
    # Unaugmented images, the same on every process, so that all have the same statistics.
    batchnorm = splits.train.images.split(_BATCHNORM_BATCH)[: recipe.batchnorm_batches]
    task = Task(
        model,
        recipe.loss.build(),
        recipe.algorithm,
        recipe.optimizer,
        lambda epoch: recipe.schedule.factor(epoch, recipe.epochs, annealed),
        seed=recipe.seed,
        batchnorm=batchnorm,
        compile=recipe.compile,
    )
    callbacks: list[L.Callback] = [Record(folder)]
    if quantized:
        settings = recipe.annealing
        callbacks.append(
            NoiseAnnealing(
                settings.windows_for(layers),
                settings.law,
                synchronous=settings.synchronous,
                backward_law=settings.backward_law,
                per=settings.per,
            )
        )
    if sys.stderr.isatty():
        callbacks.append(RichProgressBar(leave=False))
    loaders = Loaders(splits, recipe.data.batch_size, augment=recipe.data.augment, seed=recipe.seed)
    with _quiet_lightning():
        trainer = L.Trainer(
            accelerator=recipe.accelerator,
            devices=recipe.devices,
            num_nodes=recipe.num_nodes,
            strategy=recipe.strategy,
            precision=recipe.precision,
            max_epochs=recipe.epochs,
            gradient_clip_val=recipe.optimizer.clip_norm,
            callbacks=callbacks,
            logger=TensorBoardLogger(folder.path, name="tensorboard", version=""),
            enable_checkpointing=True,
            enable_model_summary=False,
            enable_progress_bar=sys.stderr.isatty(),
            num_sanity_val_steps=0,
            use_distributed_sampler=False,
            default_root_dir=folder.path,
        )
        started = time.perf_counter()
        trainer.fit(task, datamodule=loaders, ckpt_path=checkpoint, weights_only=True)
        seconds = time.perf_counter() - started
        if trainer.interrupted:
            raise KeyboardInterrupt
        return _finish(recipe, folder, trainer, task, loaders, seconds)


def _finish(
    recipe: Recipe, folder: RunFolder, trainer: L.Trainer, task: Task, loaders: Loaders, seconds: float
) -> dict[str, Any]:
    """BatchNorm re-estimation if asked for, the final network, validation and test once, the results."""
    results: dict[str, Any] = {}
    if recipe.batchnorm_batches:
        trainer.validate(task, datamodule=loaders, verbose=False)
        results["val/accuracy with running statistics"] = task.results["val/accuracy"]
        reestimate_(task.model, (batch.to(task.device) for batch in task.batchnorm))
    trainer.validate(task, datamodule=loaders, verbose=False)
    trainer.test(task, datamodule=loaders, verbose=False)
    results |= {name: task.results[name] for name in ("val/accuracy", "val/loss", "test/accuracy", "test/loss")}
    results |= {"epochs": recipe.epochs, "seconds of this session": round(seconds, 1)}
    if trainer.is_global_zero:
        with replacing(folder.final) as part:
            state = {f"model.{key}": value for key, value in task.model.state_dict().items()}
            torch.save({"state_dict": state, "epoch": recipe.epochs}, part)
        folder.write_json(folder.results, results)
    return results


def _load_data(recipe: Recipe) -> Splits:
    return data.load(recipe.data.name, recipe.data.root, seed=recipe.seed, validation=recipe.data.validation)


def _start_from(model: nn.Module, path: Path) -> None:
    folder = RunFolder.open(path)
    source = folder.final if folder.final.exists() else None
    newest = None if source else folder.newest_checkpoint()
    if source is None and newest is None:
        raise RunError(f"{path} has no checkpoint to start from")
    content = load_checkpoint(source) if source else newest[1]  # pyright: ignore[reportOptionalSubscript]
    try:
        model.load_state_dict(_model_state(content))
    except RuntimeError as error:
        raise RunError(
            f"the network of {path} does not fit this recipe's: {str(error).splitlines()[1].strip()}"
        ) from error


def _model_state(content: dict[str, Any]) -> dict[str, Any]:
    prefix = "model."
    return {key.removeprefix(prefix): value for key, value in content["state_dict"].items() if key.startswith(prefix)}


def _circumstances(recipe: Recipe) -> dict[str, Any]:
    """Where, when and with what the run was made."""
    commit = subprocess.run(
        ["git", "-C", str(Path(lehr.__file__).parent), "rev-parse", "HEAD"], capture_output=True, text=True, check=False
    )
    return {
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "command": sys.argv,
        "seed": recipe.seed,
        "commit": commit.stdout.strip() or None,
        "lehr": lehr.__version__,
        "torch": torch.__version__,
        "lightning": L.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "threads": torch.get_num_threads(),
    }


def _is_main_process() -> bool:
    """Whether this is the process that writes; Lightning starts the others with their rank in the environment."""
    return L.pytorch.utilities.rank_zero_only.rank == 0  # pyright: ignore[reportAttributeAccessIssue]


@contextlib.contextmanager
def _quiet_lightning() -> Iterator[None]:
    """Without Lightning's advertisements and its hints for other people's data loaders."""
    loggers = [logging.getLogger(name) for name in ("lightning.pytorch", "lightning.fabric", "lightning")]
    levels = [logger.level for logger in loggers]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*(does not have many workers|LeafSpec|logging interval).*")
        warnings.filterwarnings("ignore", message=".*(Checkpoint directory|You are using `torch.load`).*")
        for logger in loggers:
            logger.setLevel(logging.WARNING)
        try:
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)
