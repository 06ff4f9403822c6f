import io
import sys

from lehr.data.progress import terminal


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_shows_each_file_and_how_much_of_it_came(monkeypatch):
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    with terminal() as progress:
        assert progress is not None
        progress("one.gz", 500_000, 1_000_000)
        progress("one.gz", 1_000_000, 1_000_000)
        progress("two.gz", 250_000, None)
    shown = screen.getvalue()
    assert "one.gz" in shown
    assert "1.0/1.0 MB" in shown
    assert "two.gz" in shown


def test_what_is_no_terminal_stays_silent(capsys):
    with terminal() as progress:
        assert progress is None
    assert capsys.readouterr() == ("", "")
