"""Annealing in training scripts that are not lehr's: a user's own Lightning module."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from torch import Tensor, nn

import lehr
from lehr.annealing import AnnealingWarning, Constant, Hierarchical, LinearDecay, Window
from lehr.data import Batches, load
from lehr.integrations.lightning_trainer import NoiseAnnealing
from lehr.models import MLP

pytestmark = pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec.` is deprecated:FutureWarning")

STD = math.sqrt(3) / 6


class Plain(L.LightningModule):
    """A Lightning module that knows nothing of lehr's loop."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        digits = load("digits").train
        self.model = MLP((1, 8, 8), hidden=(64,), mean=digits.mean, std=digits.std)
        lehr.quantize_(self.model, scale="fixed")
        self.stds: list[float] = []

    def training_step(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        layer = self.model.layers[1]
        assert isinstance(layer, lehr.Linear)
        self.stds.append(layer.quantizer.forward_std.item())
        return nn.functional.cross_entropy(self.model(batch[0]), batch[1])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=0.01)


def trainer(path: Path, epochs: int, callback: L.Callback) -> L.Trainer:
    return L.Trainer(
        max_epochs=epochs,
        callbacks=[callback],
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=path,
    )


@pytest.mark.parametrize("per", ["epoch", "batch"])
def test_the_annealing_callback_works_in_a_lightning_script_of_ones_own_and_through_its_checkpoints(
    tmp_path: Path, per: Any
) -> None:
    def annealing() -> NoiseAnnealing:
        return NoiseAnnealing(Hierarchical(duration=2), per=per)

    batches = Batches(load("digits").train, 256, shuffle=True, drop_last=True)
    steps = len(batches)
    whole = Plain()
    trainer(tmp_path, 4, annealing()).fit(whole, batches)
    fraction = [step // steps if per == "epoch" else step / steps for step in range(4 * steps)]
    expected = [STD * max(0.0, 1 - time / 2) for time in fraction]
    assert whole.stds == pytest.approx(expected, abs=1e-6)

    first, second = Plain(), Plain()
    batches.set_epoch(0)
    half = trainer(tmp_path, 1, annealing())
    with pytest.warns(AnnealingWarning):
        half.fit(first, batches)
    half.save_checkpoint(tmp_path / "half.ckpt")
    trainer(tmp_path, 4, annealing()).fit(second, batches, ckpt_path=tmp_path / "half.ckpt", weights_only=True)
    assert first.stds + second.stds == pytest.approx(expected, abs=1e-6)


def test_the_callback_takes_one_window_for_all_layers_and_a_backward_law(tmp_path: Path) -> None:
    model = Plain()
    callback = NoiseAnnealing(Window(0, 1), Constant(final=0.0), backward_law=LinearDecay(final=0.5))
    batches = Batches(load("digits").train, 512, drop_last=True)
    with pytest.warns(AnnealingWarning, match="still have noise"):
        trainer(tmp_path, 2, callback).fit(model, batches)
    assert callback.annealer is not None
    assert [std.item() for std in _backward(model)] == pytest.approx([STD / 2] * 3)


def _backward(model: nn.Module) -> list[Tensor]:
    return [module.backward_std for module in model.modules() if isinstance(module, lehr.Quantizer)]


class ForTrainer(nn.Module):
    """A network as Hugging Face's Trainer takes it: keyword arguments in, the loss among what comes out."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        digits = load("digits").train
        self.model = MLP((1, 8, 8), hidden=(32,), mean=digits.mean, std=digits.std)
        lehr.quantize_(self.model, scale="fixed")
        self.stds: list[float] = []

    def forward(self, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
        if self.training:
            self.stds.append(self.model.layers[1].quantizer.forward_std.item())
        scores = self.model(images)
        return {"loss": nn.functional.cross_entropy(scores, labels), "logits": scores}


def trained_by_transformers(path: Path, *, stop: int | None = None, resume: bool = False) -> ForTrainer:
    transformers = pytest.importorskip("transformers")
    from lehr.integrations.transformers_trainer import NoiseAnnealing as TransformersAnnealing

    class Stop(transformers.TrainerCallback):  # pyright: ignore
        def on_epoch_end(self, args, state, control, **kwargs):
            control.should_training_stop = state.epoch == stop

    network = ForTrainer()
    annealer = lehr.Annealer(network, Window(1, 3))
    digits = load("digits").train
    rows = [
        {"images": image, "labels": label} for image, label in zip(digits.images[:96], digits.labels[:96], strict=True)
    ]
    arguments = transformers.TrainingArguments(
        output_dir=str(path),
        num_train_epochs=4,
        per_device_train_batch_size=32,
        save_strategy="epoch",
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
        seed=0,
    )
    trainer = transformers.Trainer(
        network,
        arguments,
        train_dataset=rows,
        callbacks=[TransformersAnnealing(annealer), *([Stop()] if stop else [])],
    )
    trainer.train(resume_from_checkpoint=resume or None)
    return network


@pytest.mark.filterwarnings("ignore")  # of transformers' own
def test_the_callback_of_hugging_faces_trainer_anneals_and_resumes(tmp_path: Path) -> None:
    whole = trained_by_transformers(tmp_path / "whole")
    assert whole.stds == pytest.approx([STD] * 6 + [STD / 2] * 3 + [0] * 3)
    begun = trained_by_transformers(tmp_path / "stopped", stop=2)
    assert begun.stds == whole.stds[:6]
    resumed = trained_by_transformers(tmp_path / "stopped", resume=True)
    assert resumed.stds == whole.stds[6:]
    for name, value in whole.state_dict().items():
        assert torch.equal(value, resumed.state_dict()[name]), name


@pytest.mark.filterwarnings("ignore")  # of accelerate's own
def test_an_annealer_is_saved_and_loaded_by_accelerate(tmp_path: Path) -> None:
    accelerate = pytest.importorskip("accelerate")
    accelerator = accelerate.Accelerator(cpu=True)
    network = accelerator.prepare(ForTrainer())
    annealer = lehr.Annealer(network, Window(0, 4))
    accelerator.register_for_checkpointing(annealer)
    annealer.step()
    accelerator.save_state(str(tmp_path / "state"))
    annealer.seek(4)
    assert network.model.layers[1].quantizer.forward_std == 0
    accelerator.load_state(str(tmp_path / "state"))
    assert annealer.time == 1
    assert network.model.layers[1].quantizer.forward_std.item() == pytest.approx(0.75 * STD)
