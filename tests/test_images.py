"""Image files of strangers: they are decoded, or refused in a sentence; they start nothing and block nothing."""

import os
import warnings
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from lehr.cli import main
from lehr.deploy.images import ImageError, read_image
from lehr.deploy.integer_net import IntegerNet
from lehr.deploy.operations import Flatten, Table
from lehr.deploy.predict import predict

EPS = b"""%!PS-Adobe-3.0 EPSF-3.0
%%BoundingBox: 0 0 8 8
%%EndComments
(started) print
%%EOF
"""


def test_no_program_is_started_for_an_image(tmp_path, monkeypatch):
    ghostscript, started = tmp_path / "gs", tmp_path / "started"
    ghostscript.write_text(f"#!/bin/sh\ntouch {started}\n")
    ghostscript.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    picture = tmp_path / "photo.png"
    picture.write_bytes(EPS)
    with pytest.raises(ImageError, match=r"photo.png is no image that can be read"):
        read_image(picture, (3, 8, 8))
    assert not started.exists()


@pytest.mark.parametrize("suffix", ["png", "jpg", "bmp", "gif", "webp", "ppm", "pgm", "tif"])
def test_the_usual_formats_are_read(tmp_path, suffix):
    path = tmp_path / f"image.{suffix}"
    Image.fromarray(np.full((8, 8), 200, np.uint8)).save(path)
    assert abs(int(read_image(path, (1, 8, 8)).mean()) - 200) < 3


def test_pipes_and_devices_are_refused_and_not_waited_for(tmp_path, capsys):
    os.mkfifo(tmp_path / "pipe.png")
    for path in (tmp_path / "pipe.png", Path("/dev/zero")):
        with pytest.raises(ImageError, match="it is no file on a disk but a pipe, a device or the like"):
            read_image(path, (1, 8, 8))
    assert main(["predict", "digits", str(tmp_path)]) == 1  # the pipe is an image of that folder
    os.mkfifo(tmp_path / "net.lehr")
    assert main(["predict", str(tmp_path / "net.lehr"), "image.png"]) == 2
    error = capsys.readouterr().err
    assert error.count("is no file on a disk but a pipe, a device or the like") == 2


def test_an_image_that_would_fill_the_memory_is_refused_before_it_is_decoded(tmp_path):
    path = tmp_path / "bomb.png"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Image.new("1", (12000, 9000)).save(path)
        assert path.stat().st_size < 50_000
        with pytest.raises(ImageError, match=r"it has 12000x9000 pixels, more than 67,108,864"):
            read_image(path, (1, 8, 8), resize=True)


def test_two_best_classes_are_the_first_of_equals_and_numbers_come_before_what_is_none(tmp_path):
    ramp = np.arange(256, dtype=np.float32)[None]
    net = IntegerNet((1, 1, 4), (Table("pixels", ramp), Flatten("flat", "pixels")))
    net.save(tmp_path / "net.lehr")
    for pixels, expected in (([7, 9, 9, 1], ("1", "9", "2", "9")), ([9, 1, 2, 7], ("0", "9", "3", "7"))):
        Image.fromarray(np.array([pixels], np.uint8)).save(tmp_path / "image.png")
        ((_, answer),) = predict(tmp_path / "net.lehr", [tmp_path / "image.png"])
        assert answer == expected
