"""Text of a stranger's file is shown, and does nothing else to the terminal."""

import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lehr.cli import main
from lehr.deploy import compile
from lehr.deploy.integer_net import IntegerNet
from lehr.deploy.operations import Flatten, Linear, Table, Weights
from lehr.printable import printable
from lehr.table import Table as TextTable

EVIL = "a\x1b]0;owned\x07\rb\x9bc\u202ed\u2028e"
SHOWN = r"a\x1b]0;owned\x07\rb\x9bc\u202ed\u2028e"


def evil_net() -> IntegerNet:
    return IntegerNet(
        (1, 1, 2),
        (
            Table("pixels", np.arange(256)[None] // 128),
            Flatten("flat", "pixels"),
            Linear(EVIL, "flat", Weights.of([[1, -1], [0, 1]])),
        ),
        classes=(EVIL, "other"),
    )


@given(st.text())
def test_what_is_shown_is_printable_and_can_be_encoded(text: str):
    assert printable(text).isprintable()
    printable(text).encode()
    if text.isprintable():
        assert printable(text) == text


def test_controls_are_escaped_and_letters_stay():
    assert printable(EVIL) == SHOWN
    assert printable("Größe 青蛙 ضفدع 🐸") == "Größe 青蛙 ضفدع 🐸"
    assert printable("\udc80") == r"\udc80"
    assert printable("two\nlines\r", keep="\n") == "two\nlines\\r"


def test_tables_show_controls_as_escapes():
    assert TextTable(("name",), [(EVIL,)]).text() == f"name\n{SHOWN}"
    net = evil_net()
    for text in (str(net.summary()), str(compile(net).describe())):
        assert SHOWN in text
        assert all(line.isprintable() for line in text.split("\n"))


@pytest.mark.parametrize("words", [["predict", "net.lehr", "image.png"], ["predict", "net.lehr", f"no{EVIL}.png"]])
def test_commands_print_no_control_characters(tmp_path, monkeypatch, capsys, words):
    from PIL import Image

    monkeypatch.chdir(tmp_path)
    evil_net().save("net.lehr")
    Image.fromarray(np.zeros((1, 2), np.uint8)).save("image.png")
    main(words)
    captured = capsys.readouterr()
    printed = captured.out + captured.err
    assert SHOWN in printed
    assert all(line.isprintable() for line in printed.split("\n"))


def test_an_error_about_a_file_prints_no_control_characters(tmp_path, capsys):
    net = evil_net()
    path = tmp_path / "net.lehr"
    net.save(path)
    # The flat value that the operation of that name reads does not exist any more.
    path.write_bytes(path.read_bytes().replace(b'source\\":\\"flat', b'source\\":\\"flop'))
    assert main(["predict", str(path), "image.png"]) == 2
    error = capsys.readouterr().err
    assert SHOWN in error
    assert error.rstrip("\n").isprintable()


def test_a_warning_prints_no_control_characters(capsys):
    from lehr.cli import show_warning

    class Told(UserWarning):
        __module__ = "lehr.somewhere"

    show_warning(Told(EVIL), Told, "file.py", 1, file=sys.stderr)
    assert SHOWN in capsys.readouterr().err
