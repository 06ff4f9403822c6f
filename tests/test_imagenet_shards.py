import io
import itertools
import json
import random
import tarfile
from pathlib import Path

import pytest
import torch
from torch import Tensor
from webdataset.writer import ShardWriter, TarWriter

from imagenet_files import encoded, number, smooth, write_pictures, write_tree
from lehr.data import CentreCrop, Colour, DataError, RandomCrop, Shards, StreamedBatches, load_images, pack, read_folder
from lehr.data.shards import count_samples, hold_out_shards, read_shards


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    """Shards of 24 training images, five in each, and 6 for validation; `write_tree` says what they show."""
    home = tmp_path_factory.mktemp("images")
    write_tree(write_tree(home), per_class=2, split="val")
    for split in ("train", "val"):
        pack(read_folder(home / split, size=16), home / "shards" / split, per_shard=5, seed=1)
    return home / "shards"


@pytest.fixture
def shards(root) -> Shards:
    return read_shards(root / "train", size=16)


def streamed(shards: Shards, batch_size: int = 4, **options) -> StreamedBatches:
    return StreamedBatches(shards, batch_size, **({"crop": CentreCrop(16, 18), "workers": 0} | options))


def training(shards: Shards, **options) -> StreamedBatches:
    usual = {"crop": RandomCrop(16), "shuffle": True, "augment": Colour(), "seed": 5, "drop_last": True}
    return streamed(shards, **(usual | options))


def numbers(batches: StreamedBatches) -> list[list[int]]:
    return [[number(image) for image in images] for images, _ in batches]


def same(a: list[tuple[Tensor, Tensor]], b: list[tuple[Tensor, Tensor]]) -> bool:
    pairs = [*itertools.zip_longest(itertools.chain(*a), itertools.chain(*b))]
    return all(x is not None and y is not None and torch.equal(x, y) for x, y in pairs)


def test_packed_shards_hold_every_file_as_it_is_with_its_label(root, shards):
    assert shards.sizes == (5, 5, 5, 5, 4)
    assert shards.classes == ("class_0", "class_1", "class_2")
    samples = [sample for shard in range(5) for sample in shards.samples(shard)]
    originals = {path.read_bytes() for path in (root.parent / "train").rglob("*.jpg")}
    assert {sample.file for sample in samples} == originals
    assert [sample.number for sample in samples] == [*range(24)]
    for images, labels in streamed(shards):
        assert [number(image) // 8 for image in images] == labels.tolist()


def test_packing_mixes_the_classes(shards):
    first = [sample.label for sample in shards.samples(0)]
    assert len(set(first)) > 1


def test_sizes_are_counted_where_nobody_wrote_them_down(root, shards):
    assert [count_samples(path) for path in shards.paths] == [*shards.sizes]


def test_shards_that_webdataset_wrote_are_read(tmp_path, capsys):
    with ShardWriter(str(tmp_path / "other-%04d.tar"), maxcount=2) as writer:
        for key in range(3):
            writer.write({"__key__": f"a.b/{key}", "jpeg": encoded(smooth(40, 30)), "cls": 998 - key, "json": {"x": 1}})
    shards = read_shards(tmp_path, size=16)
    assert shards.sizes == (2, 1)
    assert len(shards.classes) == 1000
    assert [labels.tolist() for _, labels in streamed(shards, 2)] == [[998, 997], [996]]


@pytest.mark.parametrize("workers", [0, 1, 2])
@pytest.mark.parametrize("world_size", [1, 2, 3])
@pytest.mark.parametrize(("shuffle", "drop_last"), [(False, False), (True, True)])
def test_ranks_and_readers_share_every_image_once_in_equally_many_steps(
    shards, workers, world_size, shuffle, drop_last
):
    options = {"shuffle": shuffle, "drop_last": drop_last, "world_size": world_size, "workers": workers}
    shares = [numbers(streamed(shards, 5, rank=rank, **options)) for rank in range(world_size)]
    assert len({len(share) for share in shares}) == 1
    seen = sorted(itertools.chain(*itertools.chain(*shares)))
    assert len(seen) == len(set(seen)) == (24 - 24 % (5 * world_size) if drop_last else 24)
    if drop_last:
        assert {len(step) for share in shares for step in share} == {5}


def test_without_shuffling_samples_come_in_their_order(shards):
    expected = [sample.label for shard in range(5) for sample in shards.samples(shard)]
    assert [label for _, labels in streamed(shards) for label in labels.tolist()] == expected


def test_an_epoch_is_a_function_of_seed_and_epoch(shards):
    once, again = training(shards), training(shards)
    epochs = [[*once] for _ in range(3)]
    for epoch in (2, 0, 1):
        again.set_epoch(epoch)
        assert same([*again], epochs[epoch])
    assert not same(epochs[0], epochs[1])
    assert [labels.tolist() for _, labels in epochs[0]] != [labels.tolist() for _, labels in epochs[1]]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_resumed_epoch_continues_bit_for_bit(shards, workers):
    whole = [*training(shards, workers=workers)]
    interrupted, resumed = training(shards, workers=workers), training(shards, workers=workers)
    for _ in itertools.islice(interrupted, 3):
        pass
    resumed.load_state_dict(interrupted.state_dict())
    assert same([*resumed], whole[3:])


def test_a_shard_that_breaks_off_costs_its_rest_and_no_step(root, tmp_path):
    for path in (root / "train").iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    damaged = tmp_path / "images-000002.tar"
    damaged.write_bytes(damaged.read_bytes()[:11_000])  # tar files are read in blocks of 10240
    (tmp_path / "images-000003.tar").unlink()
    (tmp_path / "images-000003.tar").mkdir()
    shards = read_shards(tmp_path, size=16)
    batches = training(shards, world_size=2, rank=0, batch_size=4)
    others = training(shards, world_size=2, rank=1, batch_size=4)
    steps = [[*batches], [*others]]
    assert len(steps[0]) == len(steps[1]) == 3
    skipped = {**batches.skipped.reasons, **others.skipped.reasons}
    assert sum(len(labels) for share in steps for _, labels in share) == 24 - len(skipped)
    assert 5 < len(skipped) < 10  # the folder's five, and some but not all of the damaged one's
    assert all(name.startswith((str(damaged), str(tmp_path / "images-000003.tar"))) for name in skipped)


def test_a_sample_without_image_or_class_is_skipped_and_named(tmp_path):
    with TarWriter(str(tmp_path / "a.tar")) as writer:
        writer.write({"__key__": "good", "jpg": encoded(smooth(40, 30)), "cls": 1})
        writer.write({"__key__": "noimage", "cls": 1})
        writer.write({"__key__": "noclass", "jpg": encoded(smooth(40, 30))})
        writer.write({"__key__": "wrong", "jpg": encoded(smooth(40, 30)), "cls": 2})
    (tmp_path / "classes.txt").write_text("a\nb\n")
    batches = streamed(read_shards(tmp_path, size=16))
    assert [labels.tolist() for _, labels in batches] == [[1]]
    assert {name.split(", ")[1]: reason for name, reason in batches.skipped.reasons.items()} == {
        "noimage": "expected an image (jpg, jpeg, png), found none",
        "noclass": "expected a class from 0 to 1, found ''",
        "wrong": "expected a class from 0 to 1, found '2'",
    }


def add(tar: tarfile.TarFile, name: str, content: bytes, **headers: str) -> None:
    member = tarfile.TarInfo(name)
    member.size, member.pax_headers = len(content), headers
    tar.addfile(member, io.BytesIO(content))


@pytest.mark.parametrize("sparse", [True, False])
def test_a_member_that_is_no_image_by_its_size_is_skipped_without_reading_it(tmp_path, sparse):
    path, image = tmp_path / "a.tar", encoded(smooth(40, 30))
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as tar:
        add(tar, "good.jpg", image)
        add(tar, "good.cls", b"1")
        if sparse:  # ten bytes in the shard, 40 GB once read
            add(tar, "huge.jpg", bytes(10), **{"GNU.sparse.map": "0,10", "GNU.sparse.size": str(40 << 30)})
        else:
            add(tar, "huge.jpg", bytes(65 << 20))
        add(tar, "huge.cls", b"1")
        add(tar, "last.jpg", image)
        add(tar, "last.cls", b"9" * 5000)
    (tmp_path / "classes.txt").write_text("a\nb\n")
    shards = read_shards(tmp_path, size=16)
    batches = streamed(shards)
    assert len(shards) == 3
    assert [labels.tolist() for _, labels in batches] == [[1]]
    kind, megabytes = ("a sparse file", 40 << 10) if sparse else ("one", 65)
    reasons = {name.split(", ")[1]: reason for name, reason in batches.skipped.reasons.items()}
    assert reasons["huge"] == f"expected a file of at most 64 MB, found {kind} of {megabytes} MB"
    assert reasons["last"].startswith("expected a class from 0 to 1, found '999")


def test_a_chain_of_headers_without_end_is_skipped(tmp_path):
    path = tmp_path / "a.tar"
    header = tarfile.TarInfo("././@LongLink")
    header.type = tarfile.GNUTYPE_LONGNAME
    path.write_bytes(header.tobuf(tarfile.GNU_FORMAT) * 5000)
    with pytest.raises(DataError, match=r"a\.tar: expected a readable tar file"):
        read_shards(tmp_path, size=16)
    (tmp_path / "sizes.json").write_text('{"a.tar": 2}')
    batches = streamed(read_shards(tmp_path, size=16))
    assert [*batches] == []
    assert len(batches.skipped) == 2


def test_a_key_of_a_shard_does_not_drive_the_terminal(tmp_path, caplog):
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        add(tar, "red\x1b[31m.jpg", b"no image")
        add(tar, "red\x1b[31m.cls", b"0")
    assert [*streamed(read_shards(tmp_path, size=16))] == []
    assert r"red\x1b[31m cannot be read" in caplog.messages[0]


def test_shards_are_not_packed_beside_others(root):
    files = read_folder(root.parent / "train", size=16)
    with pytest.raises(ValueError, match=r"already holds shards \(images-000000\.tar, \.\.\.\)"):
        pack(files, root / "train", per_shard=12)
    assert len(read_shards(root / "train", size=16)) == 24


@pytest.mark.parametrize("content", ["{", '["images-000000.tar"]', '{"images-000000.tar": "many"}'])
def test_invalid_sizes_raise(tmp_path, content):
    (tmp_path / "images-000000.tar").touch()
    (tmp_path / "sizes.json").write_text(content)
    with pytest.raises(DataError, match=r"sizes\.json: expected"):
        read_shards(tmp_path, size=16)


def test_no_shard_need_be_held_out(root):
    assert [len(split) for split in load_images(root, size=16, validation=0)] == [24, 0, 6]


def test_whole_shards_are_held_out_by_seed(shards):
    kept, held = hold_out_shards(shards, 6, seed=3)
    assert len(held.paths) == 2
    assert sorted(kept.paths + held.paths) == sorted(shards.paths)
    assert hold_out_shards(shards, 6, seed=3)[1] == held
    assert len({hold_out_shards(shards, 6, seed=seed)[1].paths for seed in range(8)}) > 1
    with pytest.raises(ValueError, match="validation must leave at least one of 5 shards with 24 images, got 21"):
        hold_out_shards(shards, 21, seed=3)


def test_a_samples_crop_depends_only_on_seed_epoch_and_sample(tmp_path):
    files = read_folder(write_pictures(tmp_path) / "train", size=16)
    shards = pack(files, tmp_path / "shards", per_shard=4)
    kept, _ = hold_out_shards(shards, 4, seed=3)

    def crops(part: Shards = shards, epoch: int = 0, **options) -> set[bytes]:
        batches = training(part, augment=None, drop_last=False, **options)
        batches.set_epoch(epoch)
        return {bytes(image.contiguous().flatten().tolist()) for images, _ in batches for image in images}

    once = crops()
    assert len(once) == 12
    assert crops(workers=2) == crops(shuffle=False) == once
    assert crops(rank=0, world_size=2) | crops(rank=1, world_size=2) == once
    assert crops(kept) < once
    assert not crops(epoch=1) & once
    assert not crops(seed=6) & once


def test_imagenet_in_shards_loads_as_imagenet_in_folders_does(root):
    splits = load_images(root, size=16, validation=5)
    assert [len(split) for split in splits] in ([19, 5, 6], [20, 4, 6], [15, 9, 6])
    assert splits.test.examples(3).shape == (3, 3, 16, 16)
    for split in splits:  # over as many shards as are needed
        assert [len(split.examples(count)) for count in (1, 4, len(split), 99)] == [1, 4, len(split), len(split)]


def test_different_classes_in_train_and_val_are_refused(root, tmp_path):
    for split in ("train", "val"):
        (tmp_path / split).mkdir()
        for path in (root / split).iterdir():
            (tmp_path / split / path.name).write_bytes(path.read_bytes())
    (tmp_path / "val" / "classes.txt").write_text("a\nb\n")
    with pytest.raises(DataError, match="the shards of train and val have different classes"):
        load_images(tmp_path, size=16, validation=5)


def test_what_are_no_shards_is_refused(tmp_path):
    with pytest.raises(DataError, match=r"expected shards \(\*.tar\), found none"):
        read_shards(tmp_path, size=16)
    (tmp_path / "a.tar").write_bytes(random.Random(0).randbytes(2000))
    with pytest.raises(DataError, match=r"a.tar: expected a readable tar file"):
        read_shards(tmp_path, size=16)
    (tmp_path / "sizes.json").write_text(json.dumps({"a.tar": 3}))
    with pytest.raises(DataError, match=r"no shard begins with a readable image; .*a.tar, sample 0: "):
        read_shards(tmp_path, size=16).examples(2)
