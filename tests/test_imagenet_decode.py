import io
import random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageOps

from imagenet_files import contents, encoded, photographs, smooth
from lehr.data.decode import CentreCrop, Crop, RandomCrop, Sample, decode, decode_batch


def pixels(file: bytes, crop: Crop, seed: int = 0) -> np.ndarray:
    image, reason = decode(file, crop, random.Random(seed))
    assert image is not None, reason
    assert image.mode == "RGB"
    assert image.size == (crop.size, crop.size)
    return np.asarray(image).astype(int)


def samples(*files: bytes | str) -> list[Sample]:
    return [Sample(number, f"{number}.jpg", file, label=10 + number) for number, file in enumerate(files)]


def difference(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.abs(a - b).mean())


@pytest.mark.parametrize("crop", [CentreCrop(224), RandomCrop(224)], ids=["centre", "random"])
def test_real_photographs_decode(crop):
    if not photographs():
        pytest.skip("no sample of ImageNet: set LEHR_IMAGENET_SAMPLE")
    decoded = decode_batch(samples(*(path.read_bytes() for path in photographs())), crop)
    assert decoded.images.shape == (50, 3, 224, 224)
    assert decoded.failures == []
    assert float(decoded.images.float().std()) > 30


@pytest.mark.parametrize(("size", "shorter"), [(224, 256), (227, 256), (96, 110)])
@pytest.mark.parametrize("file", contents()[:3])
def test_the_centre_crop_is_resizing_and_then_cropping(file, size, shorter):
    image = Image.open(io.BytesIO(file)).convert("RGB")
    scale = min(image.size)
    width, height = (side * shorter // scale for side in image.size)
    left, top = round((width - size) / 2), round((height - size) / 2)
    resized = image.resize((width, height), Image.Resampling.BILINEAR)
    expected = np.asarray(resized.crop((left, top, left + size, top + size))).astype(int)
    found = pixels(file, CentreCrop(size, shorter))
    assert np.abs(found - expected).max() <= 1  # of 255, from the rounding of the box


def test_the_usual_centre_crops_come_from_256():
    assert CentreCrop.of(224) == CentreCrop(224, 256)
    assert CentreCrop.of(227) == CentreCrop(227, 256)
    assert CentreCrop.of(64) == CentreCrop(64, 73)


@given(st.integers(1, 700), st.integers(1, 700), st.integers(0, 10**6))
def test_a_random_box_lies_inside_with_area_and_ratio_in_range(width, height, seed):
    box = RandomCrop(224).box(width, height, random.Random(seed))
    assert 0 <= box.left < box.right <= width
    assert 0 <= box.top < box.bottom <= height
    columns, rows = box.right - box.left, box.bottom - box.top
    if min(columns, rows) > 20:  # rounding to whole pixels shows in small ones
        assert 0.7 <= columns / rows <= 1.43
        assert columns * rows >= 0.07 * min(width * height, min(width, height) ** 2 * 4 / 3)


def test_an_image_no_box_fits_gives_the_largest_in_the_middle():
    box = RandomCrop(224, area=(1, 1), flip=False).box(1000, 100, random.Random(0))
    assert box == (433, 0, 566, 100, False)  # 4 : 3
    box = RandomCrop(224, area=(1, 1), flip=False).box(100, 1000, random.Random(0))
    assert box == (0, 433, 100, 566, False)  # 3 : 4


def test_half_of_the_images_are_mirrored():
    boxes = [RandomCrop(224).box(300, 200, random.Random(seed)) for seed in range(1000)]
    assert 420 < sum(box.mirrored for box in boxes) < 580
    assert not any(RandomCrop(224, flip=False).box(300, 200, random.Random(seed)).mirrored for seed in range(50))


def test_the_areas_share_is_uniform():
    draws = [RandomCrop(224).box(1000, 1000, random.Random(seed)) for seed in range(2000)]
    shares = np.array([(box.right - box.left) * (box.bottom - box.top) / 1e6 for box in draws])
    fitting = shares[shares < 0.75]  # above, long boxes do not fit and are drawn again
    assert abs(np.median(fitting) - (0.08 + 0.75) / 2) < 0.03


def test_a_mirrored_box_shows_the_image_mirrored():
    file = encoded(smooth(200, 150), quality=95)
    seeds = [seed for seed in range(50) if RandomCrop(64).box(200, 150, random.Random(seed)).mirrored]
    for seed in seeds[:3]:
        red = pixels(file, RandomCrop(64), seed)[:, :, 0]
        assert red[:, 0].mean() > red[:, -1].mean()


@pytest.mark.parametrize("side", [600, 1200, 2400])
def test_draft_mode_decodes_fewer_pixels_of_the_same_image(side, monkeypatch):
    file = encoded(smooth(side, side), quality=95)
    decoded_at = []
    resize = Image.Image.resize

    def note(image, *arguments, **settings):
        decoded_at.append(image.size[0])
        return resize(image, *arguments, **settings)

    monkeypatch.setattr(Image.Image, "resize", note)
    whole = RandomCrop(96, area=(0.9, 1), draft=0)
    fast = RandomCrop(96, area=(0.9, 1))
    assert difference(pixels(file, whole, 1), pixels(file, fast, 1)) < 2
    assert decoded_at[0] == side
    assert 96 <= decoded_at[1] <= side // 4


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("crop", [CentreCrop(64, 72), RandomCrop(64)], ids=["centre", "random"])
def test_the_orientation_a_camera_noted_is_applied(orientation, crop):
    exif = Image.Exif()
    exif[0x0112] = orientation
    image = smooth(300, 200)
    file = encoded(image, quality=95, exif=exif)
    upright = ImageOps.exif_transpose(Image.open(io.BytesIO(file)))
    assert difference(pixels(file, crop, 3), pixels(encoded(upright, quality=95), crop, 3)) < 3


@pytest.mark.parametrize("orientation", [1, 3, 6])
def test_the_orientation_of_a_png_may_stand_after_its_pixels(orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    file = encoded(smooth(300, 200), "PNG", exif=exif)
    begin = file.index(b"eXIf") - 4
    end = begin + 12 + int.from_bytes(file[begin : begin + 4], "big")
    late = file[:begin] + file[end:-12] + file[begin:end] + file[-12:]  # before IEND
    upright = encoded(ImageOps.exif_transpose(Image.open(io.BytesIO(file))), "PNG")
    assert difference(pixels(late, CentreCrop(64, 72)), pixels(upright, CentreCrop(64, 72))) == 0


def test_a_png_cut_in_its_pixels_is_no_image():
    file = encoded(smooth(300, 200), "PNG")
    image, reason = decode(file[: len(file) // 2], CentreCrop(64, 72), random.Random(0))
    assert image is None
    assert "truncated" in reason


def test_damaged_metadata_do_not_lose_the_image():
    file = encoded(smooth(80, 60), quality=95, exif=b"Exif\0\0MM\0*\0\0\0\x08\xff\xff\x01\x12")
    assert difference(pixels(file, CentreCrop(32, 36)), pixels(encoded(smooth(80, 60)), CentreCrop(32, 36))) < 3


@pytest.mark.parametrize("mode", ["L", "CMYK", "RGB"])
def test_jpegs_of_every_mode_become_rgb(mode):
    image = smooth(120, 90)
    found = pixels(encoded(image.convert(mode), quality=95), CentreCrop(64, 72))
    expected = pixels(encoded(image.convert("L").convert("RGB") if mode == "L" else image, "PNG"), CentreCrop(64, 72))
    assert difference(found, expected) < 4


@pytest.mark.parametrize("mode", ["P", "RGBA", "LA", "1"])
def test_pngs_that_are_called_jpeg_are_read_too(mode):
    pixels(encoded(smooth(120, 90).convert(mode), "PNG"), CentreCrop(64, 72))


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda file: b"", "cannot identify image file"),
        (lambda file: file[: len(file) // 2], "image file is truncated"),
        (lambda file: b"../../train/a.JPEG", "cannot identify image file"),
        (lambda file: file[:20], "."),
    ],
    ids=["empty", "half", "text", "header"],
)
@pytest.mark.parametrize("crop", [CentreCrop(224), RandomCrop(224)], ids=["centre", "random"])
def test_a_damaged_file_has_a_reason_and_no_pixels(damage, reason, crop):
    for file in contents()[:3]:
        image, found = decode(damage(file), crop, random.Random(0))
        assert image is None
        assert reason in found or (reason == "." and found)
        assert "0x" not in found


@settings(max_examples=40)
@given(st.data())
def test_no_damage_raises(data):
    file = bytearray(encoded(smooth(60, 50)))
    for _ in range(data.draw(st.integers(1, 8))):
        file[data.draw(st.integers(0, len(file) - 1))] = data.draw(st.integers(0, 255))
    decode_batch(samples(bytes(file)), RandomCrop(32))


def test_a_batch_holds_the_images_that_could_be_read_and_says_why_the_others_not():
    file = encoded(smooth(80, 60))
    decoded = decode_batch(samples(file, b"", "no such file", file), CentreCrop(32, 36))
    assert decoded.labels.tolist() == [10, 13]
    assert decoded.images.shape == (2, 3, 32, 32)
    assert torch.equal(decoded.images[0], decoded.images[1])
    assert decoded.failures == [("1.jpg", "cannot identify image file"), ("2.jpg", "no such file")]


def test_a_batch_lies_in_memory_channels_last_as_decoded():
    images = decode_batch(samples(*[encoded(smooth(80, 60))] * 2), CentreCrop(32, 36)).images
    assert images.is_contiguous(memory_format=torch.channels_last)


def test_the_seed_decides_the_crop():
    file = contents()[0]
    assert difference(pixels(file, RandomCrop(64), 1), pixels(file, RandomCrop(64), 1)) == 0
    assert difference(pixels(file, RandomCrop(64), 1), pixels(file, RandomCrop(64), 2)) > 1


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: CentreCrop(0), "size must be at least 1 pixel, got 0"),
        (lambda: CentreCrop(300, 256), "300 pixels cannot be cut from a side of 256"),
        (lambda: RandomCrop(224, area=(0, 1)), "area must be a range of positive numbers, got 0 to 1"),
        (lambda: RandomCrop(224, ratio=(2, 1)), "ratio must be a range of positive numbers, got 2 to 1"),
    ],
)
def test_wrong_crops_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_no_program_is_started_for_an_image(tmp_path, monkeypatch):
    ghostscript, started = tmp_path / "gs", tmp_path / "started"
    ghostscript.write_text(f"#!/bin/sh\ntouch {started}\n")
    ghostscript.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    postscript = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\n%%EOF\n"
    image, reason = decode(postscript, CentreCrop(8), random.Random(0))
    assert image is None
    assert "cannot identify" in reason
    assert not started.exists()
