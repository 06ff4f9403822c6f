"""Muon: its step against the singular value decomposition, its Adam against torch's, its state, and that it trains."""

import copy
import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from lehr.algorithms import FullPrecision
from lehr.training.loop import Step
from lehr.training.muon import Muon, orthogonal
from lehr.training.optimizer import Optimizer, RateSchedule
from lehr.training.recipe import Data, Pretraining, Recipe
from lehr.training.recipes import named
from lehr.training.session import resume, train


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@given(st.integers(1, 12), st.integers(1, 12), st.integers(0, 99), st.floats(1e-4, 1e4))
def test_singular_values_come_near_1_and_singular_vectors_stay(rows, columns, seed, factor):
    matrix = factor * random(rows, columns, seed=seed).double()
    before = np.linalg.svd(matrix.numpy(), full_matrices=False)
    after = orthogonal(matrix, 30).numpy()
    core = before[0].T @ after @ before[2].T  # diagonal if the vectors are the same
    assert np.abs(core - np.diag(np.diag(core))).max() < 1e-6
    relative = before[1] / np.linalg.norm(before[1])
    assert np.all((np.diag(core)[relative > 1e-4] > 0.6) & (np.diag(core)[relative > 1e-4] < 1.3))


def test_a_gradient_of_zeros_moves_nothing():
    assert not orthogonal(torch.zeros(3, 5), 3).any()


def test_a_step_has_spectral_norm_lr_for_any_size_of_the_gradient():
    for factor in (1e-6, 1.0, 1e6):
        conv = nn.Conv2d(3, 8, 3)
        before = conv.weight.detach().clone()
        conv.weight.grad = factor * random(8, 3, 3, 3)
        Muon([conv.weight], lr=0.1, norm_lr=0.1, iterations=30).step()
        values = torch.linalg.svdvals((before - conv.weight.detach()).flatten(1)) / 0.1
        assert values.min() > 0.6
        assert values.max() < 1.3


def test_momentum_is_nesterovs():
    weight = nn.Parameter(torch.zeros(4, 6))
    optimizer, kept = Muon([weight], lr=0.1, norm_lr=0.1, momentum=0.6), torch.zeros(4, 6)
    expected = torch.zeros(4, 6)
    for seed in range(3):
        grad = random(4, 6, seed=seed)
        weight.grad = grad.clone()
        optimizer.step()
        kept = 0.6 * kept + grad
        expected -= 0.1 * orthogonal(grad + 0.6 * kept, 3)
    torch.testing.assert_close(weight.detach(), expected)


def test_what_is_no_matrix_takes_adams_steps():
    mine, theirs = (nn.Parameter(random(5)) for _ in range(2))
    pairs = [(mine, Muon([mine], lr=1.0, norm_lr=0.03)), (theirs, torch.optim.Adam([theirs], lr=0.03))]
    for seed in range(5):
        for parameter, optimizer in pairs:
            parameter.grad = random(5, seed=seed)
            optimizer.step()
    torch.testing.assert_close(mine, theirs)


def test_weight_decay_takes_its_share_and_normalizing_keeps_the_norm():
    weight = nn.Parameter(random(4, 6))
    weight.grad = torch.zeros(4, 6)
    before = weight.detach().clone()
    Muon([weight], lr=0.1, norm_lr=0.1, weight_decay=0.5).step()
    torch.testing.assert_close(weight.detach(), 0.95 * before)
    Muon([weight], lr=0.1, norm_lr=0.1, normalize=True).step()
    assert weight.norm().item() == pytest.approx(2)


def test_a_copy_continues_from_its_state():
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8))
    optimizer = Muon(model.parameters(), lr=0.1, norm_lr=0.01)
    other = copy.deepcopy(model)
    twin = Muon(other.parameters(), lr=0.1, norm_lr=0.01)
    for number in range(4):
        for network, steps in ((model, optimizer), (other, twin)):
            if network is other and number < 2:
                continue
            network.zero_grad()
            network(random(16, 4, seed=number)).square().sum().backward()
            steps.step()
        if number == 1:
            other.load_state_dict(model.state_dict())
            twin.load_state_dict(copy.deepcopy(optimizer.state_dict()))  # torch shares its tensors
    for mine, theirs in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(mine, theirs)


RECIPE = dataclasses.replace(
    named("digits-fp"),
    data=Data("digits"),
    epochs=2,
    optimizer=Optimizer("muon", lr=0.1),
    schedule=RateSchedule("linear"),
)


class StoppedError(Exception):
    pass


def stop_in_the_second_epoch(step: Step) -> None:
    if step.epoch == 1:
        raise StoppedError


def test_a_recipe_trains_with_muon_and_resumes_bit_for_bit(tmp_path: Path):
    results = train(RECIPE, tmp_path / "whole")
    assert results is not None
    assert results["test/accuracy"] > 0.9
    with pytest.raises(StoppedError):
        train(RECIPE, tmp_path / "stopped", watch=stop_in_the_second_epoch)
    resume(tmp_path / "stopped")
    whole, stopped = ((tmp_path / name / "metrics.csv").read_text() for name in ("whole", "stopped"))
    assert whole == stopped


def test_a_twin_can_have_another_optimizer_schedule_and_batch_size():
    optimizer, schedule = Optimizer("muon", lr=0.1), RateSchedule("linear", warmup=0.5)
    recipe: Recipe = dataclasses.replace(
        named("digits-ana"), pretraining=Pretraining(epochs=2, batch_size=256, optimizer=optimizer, schedule=schedule)
    )
    assert (recipe.twin.optimizer, recipe.twin.algorithm) == (optimizer, FullPrecision())
    assert (recipe.twin.data.batch_size, recipe.data.batch_size) == (256, named("digits-ana").data.batch_size)
    assert dataclasses.replace(recipe.twin.schedule, milestones=()) == dataclasses.replace(schedule, milestones=())
    said = named("digits-ana", ["--pretraining.epochs", "2", "--pretraining.optimizer.name", "muon"])
    assert said.twin.optimizer.name == "muon"
