"""Text from a file, made safe to show: names and messages of strangers must not move the cursor or reorder a line."""

from __future__ import annotations


def printable(text: object, *, keep: str = "") -> str:
    r"""`text` with every character that is not printable written as an escape: control characters, bidi marks, ...

    Letters of all scripts stay. What is escaped are the terminal's commands (ESC, BEL, CR, the C1 set), marks that
    change the direction of a line or take no room, line and paragraph separators, and lone surrogates, which no
    terminal can encode. A backslash of the text itself stays: this is for people to read, not to be read back.

    Args:
        text: what to show; anything but a `str` is converted first
        keep: characters that stay although they are not printable, such as a newline in a message of several lines

    >>> printable("a\x1b[31mred\rb")
    'a\\x1b[31mred\\rb'
    >>> printable("žába 青蛙 \u202etxt.exe")
    'žába 青蛙 \\u202etxt.exe'
    """
    shown = str(text)
    if shown.isprintable():
        return shown
    return "".join(c if c.isprintable() or c in keep else c.encode("unicode_escape").decode() for c in shown)
