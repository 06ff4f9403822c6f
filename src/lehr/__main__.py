"""The program `lehr`, also `python -m lehr`: listen to Ctrl-C first, then import the command line and run it.

Nothing heavy is imported before the handler stands. An interrupt that strikes while a module is being imported would
end in a traceback from anywhere, or be swallowed by the module: nothing is lost then, and the process leaves at once.
At all other times the interrupt is the KeyboardInterrupt that commands clean up after.
"""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType
from typing import Any, NoReturn

_INTERRUPTED = 130  # the exit code after SIGINT


def main() -> int:
    """Run one command and give its exit code."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not where a shell wants it to be ignored
        signal.signal(signal.SIGINT, _interrupt)
        sys.unraisablehook = _show_unraisable
    from lehr.cli import main

    code = main()
    if signal.getsignal(signal.SIGINT) is _interrupt:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # the rest is Python's end
    return code


def _interrupt(signum: int, frame: FrameType | None) -> None:
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            _leave()
        frame = frame.f_back
    raise KeyboardInterrupt


def _show_unraisable(unraisable: Any) -> None:
    """An interrupt that strikes where nothing can be raised, in a `__del__` for instance, ends the process too."""
    if issubclass(unraisable.exc_type, KeyboardInterrupt):
        _leave()
    sys.__unraisablehook__(unraisable)


def _leave() -> NoReturn:
    os.write(2, b"lehr: interrupted\n")
    os._exit(_INTERRUPTED)


if __name__ == "__main__":
    sys.exit(main())
