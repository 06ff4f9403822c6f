import itertools
import logging
import sys
from pathlib import Path

import lightning
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from imagenet_files import number, photographs, write_pictures, write_tree
from lehr.data import (
    CentreCrop,
    Colour,
    CropFlip,
    DataError,
    ImageFiles,
    RandomCrop,
    StreamedBatches,
    batches_of,
    examples_of,
    read_folder,
)
from lehr.data.streamed import start_reader, usual_readers


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> ImageFiles:
    """24 images; image n has brightness 10 n and label n // 8."""
    return read_folder(write_tree(tmp_path_factory.mktemp("images")) / "train", size=16)


@pytest.fixture(scope="module")
def pictures(tmp_path_factory) -> ImageFiles:
    """12 images whose crops all differ."""
    return read_folder(write_pictures(tmp_path_factory.mktemp("pictures")) / "train", size=16)


@pytest.fixture
def damaged(tmp_path) -> ImageFiles:
    """The same with images 3 and 20 broken."""
    write_tree(tmp_path)
    (tmp_path / "train" / "class_0" / "003.jpg").write_bytes(b"no image")
    whole = (tmp_path / "train" / "class_2" / "004.jpg").read_bytes()
    (tmp_path / "train" / "class_2" / "004.jpg").write_bytes(whole[:-200])
    return read_folder(tmp_path / "train", size=16)


def streamed(files: ImageFiles, batch_size: int = 4, **options) -> StreamedBatches:
    return StreamedBatches(files, batch_size, **({"crop": CentreCrop(16, 18), "workers": 0} | options))


def training(files: ImageFiles, **options) -> StreamedBatches:
    usual = {"crop": RandomCrop(16), "shuffle": True, "augment": Colour(), "seed": 5, "drop_last": True}
    return streamed(files, **(usual | options))


def numbers(batches: StreamedBatches) -> list[list[int]]:
    return [[number(image) for image in images] for images, _ in batches]


def same(a: list[tuple[Tensor, Tensor]], b: list[tuple[Tensor, Tensor]]) -> bool:
    return len(a) == len(b) and all(
        torch.equal(x, y) for p, q in zip(a, b, strict=True) for x, y in zip(p, q, strict=True)
    )


def test_without_shuffling_images_come_in_order_with_their_labels(files):
    batches = [*streamed(files, 9)]
    assert [len(labels) for _, labels in batches] == [9, 9, 6]
    assert [number(image) for images, _ in batches for image in images] == [*range(24)]
    assert [label for _, labels in batches for label in labels.tolist()] == [n // 8 for n in range(24)]


def test_reader_processes_change_nothing_but_the_speed(files):
    alone, many = training(files), training(files, workers=2)
    for _ in range(2):
        assert same([*alone], [*many])
    assert many.epoch == 2


def test_an_epoch_is_a_function_of_seed_and_epoch(files):
    once, again = training(files), training(files)
    epochs = [[*once] for _ in range(3)]
    for epoch in (2, 0, 1):
        again.set_epoch(epoch)
        assert same([*again], epochs[epoch])
    assert not same(epochs[0], epochs[1])
    assert not same([*training(files, seed=6)], epochs[0])


@pytest.mark.parametrize("workers", [0, 2])
def test_a_resumed_epoch_continues_bit_for_bit(files, workers):
    whole = [*training(files)]
    interrupted, resumed = training(files, workers=workers), training(files, workers=workers)
    for _ in itertools.islice(interrupted, 2):
        pass
    resumed.load_state_dict(interrupted.state_dict())
    assert resumed.state_dict() == {"epoch": 0, "step": 2}
    assert same([*resumed], whole[2:])


def test_an_iteration_that_was_broken_off_begins_the_epoch_again(files):
    batches = training(files, workers=2)
    first = next(iter(batches))
    assert same([next(iter(batches))], [first])


def test_a_samples_crop_depends_only_on_seed_epoch_and_sample(pictures):
    def crops(epoch: int = 0, files: ImageFiles = pictures, **options) -> set[bytes]:
        batches = training(files, augment=None, drop_last=False, **options)
        batches.set_epoch(epoch)
        return {bytes(image.contiguous().flatten().tolist()) for images, _ in batches for image in images}

    once = crops()
    assert len(once) == 12
    assert crops(batch_size=7) == once
    assert crops(shuffle=False) == once
    assert crops(rank=0, world_size=2) | crops(rank=1, world_size=2) == once
    assert crops(files=pictures.take(torch.arange(6, 12))) < once
    assert not crops(epoch=1) & once
    assert not crops(seed=6) & once


@settings(max_examples=15, deadline=None)
@given(st.integers(1, 9), st.integers(1, 5), st.booleans(), st.booleans())
def test_ranks_share_every_image_once_in_equally_many_steps(batch_size, world_size, shuffle, drop_last):
    files = read_folder(_tree(), size=8)
    options = {"crop": CentreCrop(8, 9), "shuffle": shuffle, "drop_last": drop_last, "world_size": world_size}
    shares = [numbers(streamed(files, batch_size, rank=rank, **options)) for rank in range(world_size)]
    assert len({len(share) for share in shares}) == 1
    seen = sorted(itertools.chain(*itertools.chain(*shares)))
    kept = 24 - 24 % (batch_size * world_size) if drop_last else 24
    assert len(seen) == len(set(seen)) == kept


_made: list[Path] = []


def _tree() -> Path:
    """One folder for all examples of hypothesis."""
    if not _made:
        import tempfile

        _made.append(write_tree(Path(tempfile.mkdtemp())) / "train")
    return _made[0]


@pytest.mark.parametrize("workers", [0, 2])
def test_what_cannot_be_read_is_named_counted_and_skipped(damaged, workers, caplog):
    batches = streamed(damaged, 8, workers=workers)
    with caplog.at_level(logging.WARNING):
        seen = [*itertools.chain(*numbers(batches))]
        again = [*itertools.chain(*numbers(batches))]
    assert seen == again == [n for n in range(24) if n not in (3, 20)]
    reasons = {Path(name).name: reason.lower() for name, reason in batches.skipped.reasons.items()}
    assert reasons.keys() == {"003.jpg", "004.jpg"}
    assert reasons["003.jpg"] == "cannot identify image file"
    assert "truncated" in reasons["004.jpg"]
    assert str(batches.skipped) == "2 of 24 images cannot be read and are skipped"
    assert [Path(message.split(" cannot")[0]).name for message in caplog.messages] == ["003.jpg", "004.jpg"]


def test_labels_stay_with_their_images_when_others_are_skipped(damaged):
    for images, labels in streamed(damaged, 8):
        assert [number(image) // 8 for image in images] == labels.tolist()


def test_training_steps_stay_equally_many_when_images_are_skipped(damaged):
    shares = [[*training(damaged, batch_size=4, rank=rank, world_size=2)] for rank in range(2)]
    assert [len(share) for share in shares] == [3, 3]
    assert sum(len(labels) for share in shares for _, labels in share) == 22


def test_a_training_step_without_any_readable_image_is_an_error(files, tmp_path):
    write_tree(tmp_path)
    files = read_folder(tmp_path / "train", size=16)
    for path in (tmp_path / "train").rglob("*.jpg"):
        path.unlink()
    with pytest.raises(DataError, match=r"none of the 4 images of a step can be read; .*jpg: No such file"):
        [*training(files)]
    assert [*streamed(files)] == []  # evaluation counts what there is


def test_colours_change_on_the_way_and_images_stay_uint8(files):
    plain, coloured = [*training(files, augment=None)], [*training(files)]
    assert coloured[0][0].dtype == torch.uint8
    assert torch.equal(plain[0][1], coloured[0][1])
    assert not torch.equal(plain[0][0], coloured[0][0])


def test_torchs_own_random_state_is_neither_used_nor_moved(files):
    before = torch.get_rng_state()
    [*training(files)]
    assert torch.equal(torch.get_rng_state(), before)


def test_one_call_gives_the_batches_of_any_data_set(files):
    batches = batches_of(files, 4, training=True, augment=CropFlip(), seed=5, workers=0)
    assert same([*batches], [*training(files)])
    plain = batches_of(files, 4, workers=0)
    assert same([*plain], [*streamed(files)])


def test_examples_are_what_evaluation_sees_spread_over_the_data_set(damaged):
    images = examples_of(damaged, 24)
    assert [number(image) for image in images] == [n for n in range(24) if n not in (3, 20)]
    assert [number(image) for image in examples_of(damaged, 3)] == [0, 11, 23]


def test_a_rank_has_its_share_of_the_cores_as_readers(monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: range(48))
    monkeypatch.setattr("torch.cuda.device_count", lambda: 4)
    assert usual_readers() == 12
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    assert usual_readers() == 16


def test_there_are_no_fewer_readers_than_none(files):
    with pytest.raises(ValueError, match="workers must be at least 0, got -1"):
        streamed(files, workers=-1)


def test_a_reader_says_nothing_when_nobody_takes_its_batches_any_more(monkeypatch, capsys):
    monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)
    start_reader(0)
    for error in (ConnectionResetError("gone"), BrokenPipeError("gone"), EOFError(), ValueError("of its own")):
        sys.excepthook(type(error), error, None)
    assert capsys.readouterr().err == "ValueError: of its own\n"


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


@pytest.mark.filterwarnings("ignore")  # Lightning's own, of parts of torch it still uses
def test_lightning_resumes_in_the_middle_of_an_epoch(files, tmp_path):
    def fit(listener: Listener, resume: Path | None = None) -> None:
        trainer = lightning.Trainer(
            max_epochs=2,
            accelerator="cpu",
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(listener, training(files, workers=1), ckpt_path=resume, weights_only=resume is not None)

    expected, before, after = training(files), Listener(8, tmp_path / "checkpoint"), Listener()
    with pytest.raises(InterruptedError):
        fit(before)
    fit(after, tmp_path / "checkpoint")
    assert same(before.seen + after.seen, [*expected, *expected])


def test_photographs_of_imagenet_stream():
    if not photographs():
        pytest.skip("no sample of ImageNet: set LEHR_IMAGENET_SAMPLE")
    files = read_folder(photographs()[0].parents[1], size=224)
    batches = batches_of(files, 16, training=True, augment=CropFlip(), workers=2)
    shapes = [(tuple(images.shape), len(labels)) for images, labels in batches]
    assert shapes == [((16, 3, 224, 224), 16)] * 3
