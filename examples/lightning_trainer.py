"""A Lightning script: `quantize_` in the module, one callback that anneals the noise."""

import lightning as L
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import lehr
import lehr.data
from lehr.annealing import Hierarchical
from lehr.integrations.lightning_trainer import NoiseAnnealing


class Digits(L.LightningModule):
    """A Lightning module as you would write it for a float network, but for one line."""

    def __init__(self, mean: tuple[float, ...], std: tuple[float, ...]) -> None:
        super().__init__()
        self.model = nn.Sequential(
            lehr.models.Input(mean, std, bits=8),
            nn.Flatten(),
            *(nn.Linear(64, 128, bias=False), nn.BatchNorm1d(128), nn.ReLU()),
            *(nn.Linear(128, 10, bias=False), nn.BatchNorm1d(10)),
        )
        lehr.quantize_(self.model)  # the line

    def training_step(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        images, labels = batch
        return nn.functional.cross_entropy(self.model(images), labels)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=1e-2)


L.seed_everything(0)
train, _, test = lehr.data.load("digits")
batches = DataLoader(TensorDataset(train.images, train.labels), batch_size=64, shuffle=True)
digits = Digits(train.mean, train.std)
trainer = L.Trainer(
    max_epochs=12,
    callbacks=[NoiseAnnealing(Hierarchical(duration=4))],  # 8 epochs of falling noise, 4 without
    accelerator="cpu",
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
)
trainer.fit(digits, batches)

net = lehr.freeze(digits.model.eval(), test.images, classes=test.classes)
accuracy = (net.predict(test.images) == test.labels).double().mean().item()
print(f"{accuracy:.1%} of the test images; the same integers as torch: {net.exact}")
net.save("lightning.lehr")
