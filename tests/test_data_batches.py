import itertools
from pathlib import Path

import lightning
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from lehr.data import Batches, CropFlip, Dataset


def dataset(count: int) -> Dataset:
    """Return constant images whose pixels are their number, which is also their label."""
    labels = torch.arange(count)
    images = labels.to(torch.uint8).reshape(-1, 1, 1, 1).expand(-1, 1, 6, 6).clone()
    return Dataset(images, labels, tuple(str(i) for i in range(count)), (0.5,), (0.5,))


def numbers(batches: Batches) -> list[list[int]]:
    return [labels.tolist() for _, labels in batches]


def same(a: list[tuple[Tensor, Tensor]], b: list[tuple[Tensor, Tensor]]) -> bool:
    return len(a) == len(b) and all(
        torch.equal(x, y) for p, q in zip(a, b, strict=True) for x, y in zip(p, q, strict=True)
    )


def training(**settings) -> Batches:
    return Batches(dataset(50), 8, **({"shuffle": True, "augment": CropFlip(2), "seed": 5} | settings))


def test_without_shuffling_batches_come_in_order_and_the_last_is_smaller():
    assert numbers(Batches(dataset(10), 4)) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def test_images_keep_their_labels():
    for images, labels in Batches(dataset(50), 8, shuffle=True):
        assert images.dtype == torch.uint8
        assert torch.equal(images[:, 0, 0, 0].long(), labels)


def test_drop_last_leaves_a_smaller_last_batch_out():
    assert numbers(Batches(dataset(10), 4, drop_last=True)) == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_alternate_mirrors_each_image_every_other_epoch():
    columns = torch.arange(6, dtype=torch.uint8).expand(50, 1, 6, 6)
    pictures = Dataset(columns, torch.arange(50), tuple(map(str, range(50))), (0.5,), (0.5,))
    batches = Batches(pictures, 8, shuffle=True, alternate=True, seed=5)
    epochs = []
    for _ in range(3):
        mirrored = torch.zeros(50, dtype=torch.bool)
        for images, labels in batches:
            mirrored[labels] = (images == columns[:1].flip(3)).all((1, 2, 3))
            assert ((images == columns[:1]).all((1, 2, 3)) ^ mirrored[labels]).all()
        epochs.append(mirrored)
    assert torch.equal(epochs[0], ~epochs[1])
    assert torch.equal(epochs[0], epochs[2])
    assert 10 < epochs[0].sum() < 40  # half of them


def test_alternating_batches_resume_in_the_middle_of_an_epoch():
    whole, resumed = training(alternate=True), training(alternate=True)
    whole.set_epoch(1)
    resumed.set_epoch(1, start=3)
    assert same(list(whole)[3:], list(resumed))


@given(
    count=st.integers(0, 60),
    batch_size=st.integers(1, 9),
    world_size=st.integers(1, 5),
    shuffle=st.booleans(),
    drop_last=st.booleans(),
)
def test_ranks_share_every_sample_once_in_equally_many_steps(count, batch_size, world_size, shuffle, drop_last):
    if 0 < count < world_size:
        return
    ranks = [
        Batches(dataset(count), batch_size, shuffle=shuffle, drop_last=drop_last, rank=rank, world_size=world_size)
        for rank in range(world_size)
    ]
    shares = [numbers(batches) for batches in ranks]
    assert {len(share) for share in shares} == {len(batches) for batches in ranks} == {len(shares[0])}
    seen = sorted(itertools.chain(*itertools.chain(*shares)))
    if drop_last:
        assert len(seen) == len(set(seen)) == count - count % (batch_size * world_size)
    else:
        assert seen == [*range(count)]
    for step in zip(*shares, strict=True):
        sizes = {len(batch) for batch in step}
        assert min(sizes) >= 1
        assert max(sizes) <= batch_size + 1
        assert max(sizes) - min(sizes) <= 1
    for step in [*zip(*shares, strict=True)][:-1]:
        assert {len(batch) for batch in step} == {batch_size}


def test_an_epoch_is_a_function_of_seed_and_epoch():
    once, again = training(), training()
    epochs = [[*once] for _ in range(3)]
    for epoch in (2, 0, 1):
        again.set_epoch(epoch)
        assert same([*again], epochs[epoch])


def test_epochs_and_seeds_differ_in_order():
    batches = training()
    first, second, other = numbers(batches), numbers(batches), numbers(training(seed=6))
    assert first != second
    assert first != other


def test_epochs_seeds_steps_and_ranks_differ_in_augmentation():
    same_image = torch.full((64, 1, 6, 6), 255, dtype=torch.uint8)  # what differs was moved differently
    images = Dataset(same_image, torch.zeros(64, dtype=torch.int64), ("white",), (0.5,), (0.5,))

    def moved(epoch=0, **settings) -> list[Tensor]:
        batches = Batches(images, 32, augment=CropFlip(2), **settings)
        batches.set_epoch(epoch)
        return [batch for batch, _ in batches]

    one, two = moved()
    results = [one, two, *moved(epoch=1), *moved(seed=1)]
    results += [*moved(rank=0, world_size=2), *moved(rank=1, world_size=2)][1:]  # the first is `one` itself
    assert all(not torch.equal(a, b) for a, b in itertools.combinations(results, 2))


@pytest.mark.parametrize("start", [0, 1, 4, 6, 7])
def test_an_epoch_resumes_at_any_step_bit_for_bit(start):
    uninterrupted = training()
    uninterrupted.set_epoch(3)
    whole = [*uninterrupted]
    resumed = training()
    resumed.set_epoch(3, start=start)
    assert same([*resumed], whole[start:])
    assert len(resumed) == len(whole)


def test_state_is_the_batch_that_comes_next():
    batches = training()
    upcoming = iter(batches)
    for step in range(1, len(batches)):
        next(upcoming)
        assert batches.state_dict() == {"epoch": 0, "step": step}
    next(upcoming)
    assert batches.state_dict() == {"epoch": 1, "step": 0}


@pytest.mark.parametrize("done", [0, 3, 7, 10])
def test_a_loaded_state_continues_bit_for_bit(done):
    uninterrupted, interrupted, resumed = training(), training(), training()
    whole = [*uninterrupted, *uninterrupted]
    begun = itertools.chain(interrupted, interrupted)
    for _ in range(done):
        next(begun)
    resumed.load_state_dict(interrupted.state_dict())
    rest = [*resumed] + ([*resumed] if done < 7 else [])
    assert same(rest, whole[done:])


def test_an_iteration_that_was_broken_off_begins_the_epoch_again():
    batches = training()
    first = next(iter(batches))
    assert same([next(iter(batches))], [first])


def test_torchs_own_random_state_is_neither_used_nor_moved():
    before = torch.get_rng_state()
    [*training()]
    assert torch.equal(torch.get_rng_state(), before)


class Listener(lightning.LightningModule):
    """Does not train; collects its batches, and after `stop` batches saves a checkpoint and raises."""

    def __init__(self, stop: int | None = None, checkpoint: Path = Path()):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(()))
        self.seen, self.stop, self.checkpoint = [], stop, checkpoint

    def training_step(self, batch, index):
        self.seen.append(batch)
        return self.weight * 0

    def on_train_batch_end(self, outputs, batch, batch_idx):
        if len(self.seen) == self.stop:
            self.trainer.save_checkpoint(self.checkpoint)
            raise InterruptedError

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

    def train_for_three_epochs(self, batches: Batches, resume: Path | None = None) -> None:
        trainer = lightning.Trainer(
            max_epochs=3,
            accelerator="cpu",
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(self, batches, ckpt_path=resume, weights_only=resume is not None)


@pytest.mark.filterwarnings("ignore")  # Lightning's own, of parts of torch it still uses
def test_lightning_trains_on_it_with_a_new_order_each_epoch():
    listener, expected = Listener(), training()
    listener.train_for_three_epochs(training())
    assert same(listener.seen, [*expected, *expected, *expected])


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("stop", [3, 7, 13])
def test_lightning_resumes_in_the_middle_of_an_epoch(tmp_path, stop):
    expected, before, after = training(), Listener(stop, tmp_path / "checkpoint"), Listener()
    with pytest.raises(InterruptedError):
        before.train_for_three_epochs(training())
    after.train_for_three_epochs(training(), resume=tmp_path / "checkpoint")
    assert same(before.seen + after.seen, [*expected, *expected, *expected])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"batch_size": 0}, "batch_size must be at least 1, got 0"),
        ({"rank": 2, "world_size": 2}, "got rank=2 and world_size=2"),
        ({"rank": -1}, "got rank=-1 and world_size=1"),
        ({"world_size": 11}, "10 samples are too few for 11 ranks"),
    ],
)
def test_what_cannot_be_shared_out_is_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        Batches(dataset(10), **({"batch_size": 4} | settings))


@pytest.mark.parametrize(("epoch", "start"), [(-1, 0), (0, -1), (0, 8)])
def test_a_position_outside_is_refused(epoch, start):
    with pytest.raises(ValueError, match=rf"start in 0..7, got epoch={epoch}, start={start}"):
        training().set_epoch(epoch, start=start)
