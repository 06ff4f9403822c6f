# %% [markdown]
# # A method of your own
#
# A method says how a model is quantized and what happens while it trains. This one has no forward noise
# (as the straight-through estimator), a triangular backward noise, and pulls each weight a little towards
# its level after each step.

# %%
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import nn

import lehr
from lehr.algorithms import Algorithm
from lehr.algorithms.algorithm import quantized_layers
from lehr.convert import Conversion
from lehr.training.recipes import named
from lehr.training.session import train

# %% [markdown]
# `convert_` must be there. `wrap`, `before_epoch_`, `after_step_` and `after_training_` may be.


# %%
@dataclass(frozen=True)
class Pulled(Algorithm):
    """Straight-through with triangular windows; weights are pulled to their levels by `pull` of the distance a step."""

    pull: float = 0.001
    std: float = 0.4

    def convert_(self, model: nn.Module, *, trained: bool = False) -> Conversion:
        estimator = lehr.Estimator(lehr.MultiStep.ternary(), backward=lehr.Triangular(self.std))
        quantizer = lehr.Quantizer(estimator)
        conversion = lehr.quantize_(model, weights=quantizer, activations=quantizer, scale="fixed")
        if not trained:
            for _, layer in quantized_layers(model):
                layer.reset_parameters()  # around the thresholds, as in the paper
        return conversion

    @torch.no_grad()
    def after_step_(self, model: nn.Module) -> None:
        for _, layer in quantized_layers(model):
            layer.weight.lerp_(layer.quantizer.step(layer.weight), self.pull)


# %% [markdown]
# A recipe trains it as it trains the methods that come with lehr: with a run folder, metrics, resuming and export.

# %%
recipe = named("digits-ana", ["--epochs", "8", "--annealing.schedule.duration", "1", "--model.hidden", "[128, 128]"])
for algorithm in (recipe.algorithm, Pulled()):
    results = train(replace(recipe, algorithm=algorithm), Path("runs") / type(algorithm).__name__)
    assert results is not None  # only the first process of several gets them
    print(f"{type(algorithm).__name__:8} {results['test/accuracy']:.1%} after {recipe.epochs} epochs")

# %% [markdown]
# In a module that Python can import, say `mymethods.py`, it also has a name on the command line:
# `lehr train digits-ana --algorithm mymethods.Pulled --algorithm.pull 0.01`.
