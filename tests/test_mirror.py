"""Networks with a second pass over the mirror image: the sum of both scores, in every backend."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from lehr import cli, zoo
from lehr.deploy import to_c, to_onnx
from lehr.deploy.cpu import available, compile
from lehr.deploy.integer_net import IntegerNet, random_batch
from lehr.deploy.mirror import mirrored


@pytest.mark.parametrize("name", ["digits", "cifar10-quick"])
def test_scores_are_the_sum_of_both_and_logits_their_mean(name: str) -> None:
    net = zoo.load(name)
    images = random_batch(net, 3)
    turned = images[..., ::-1].copy()
    both = mirrored(net)
    assert np.array_equal(both.scores(images), net.scores(images) + net.scores(turned))
    assert np.allclose(both.run(images), (net.run(images) + net.run(turned)) / 2, atol=1e-5)
    assert both.exact == net.exact
    for instruction_set in available():
        assert np.array_equal(compile(both, instruction_set=instruction_set).run(images), both.run(images))


def test_files_hold_the_constants_once(tmp_path: Path) -> None:
    net = zoo.load("digits")
    sizes = []
    for number, each in enumerate((net, mirrored(net))):
        to_c(each, tmp_path / f"c{number}")
        to_onnx(each, tmp_path / f"{number}.onnx")
        sizes.append(
            [(tmp_path / f"c{number}" / "model.c").stat().st_size, (tmp_path / f"{number}.onnx").stat().st_size]
        )
    assert (np.array(sizes[1]) < 1.1 * np.array(sizes[0])).all()


def test_export_writes_it_and_compares_all_backends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["export", "digits", "--to", "onnx", "--mirror", "true"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "ONNX, onnxruntime: 256 images, 0 classes differ from the reference run, logits are equal" in lines


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["export", "har", "--to", "c"], "only images have a mirror image: this network takes inputs of shape 6 x 128"),
        (["export", "digits", "--to", "packed"], "a packed file has one pass: `lehr predict FILE IMAGE --mirror true`"),
    ],
)
def test_what_has_no_mirror_image_is_refused(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main([*words, "--mirror", "true"]) == 2
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_network_that_ends_with_integers_is_refused() -> None:
    net = zoo.load("digits")
    bare = IntegerNet(net.input_shape, net.operations[:-1])
    with pytest.raises(ValueError, match="only scores that are integers can be summed for both images"):
        mirrored(bare)
