"""The command line: a word, and the function behind it.

    lehr demo | train RECIPE | evaluate RUN | recipes | data NAME | summary RUN | report RUN |
         compare RUN... | compare --methods NAME... --dataset BASE |
         export RUN --to packed|onnx|qonnx|hls4ml|c|wasm|html | predict FILE IMAGE... | bench FILE | zoo |
         approximate FORMULA | figures | doctor | completion SHELL

`main` runs one command. Wrong words end with one sentence on standard error and exit code 2, a failure while working
with one sentence and exit code 1, a signal with 128 plus its number. Only a defect of lehr ends with a traceback.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import os
import shutil
import sys
import warnings
from collections.abc import Sequence
from typing import TextIO

from lehr.cli.commands import COMMANDS, doctor
from lehr.cli.extras import missing_sentence
from lehr.cli.recipe_commands import CommandFailed, UsageError, compare, compare_words, train, train_words
from lehr.printable import printable
from lehr.table import Table

__all__ = ["COMMANDS", "main"]

TRUST = "--trust"  # import classes that a recipe names, though they are not part of lehr
TRUSTING = ("train", "evaluate", "summary", "compare", "export")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code.

    Args:
        argv: the words behind `lehr`; those of the process unless given.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    if not words or words[0] in ("-h", "--help"):
        print(_usage())
        return 0
    if words[0] == "--version":
        import lehr

        print(lehr.__version__)
        return 0
    word, *arguments = words
    if word not in COMMANDS:
        close = difflib.get_close_matches(word, COMMANDS, n=1)
        hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(COMMANDS)}"
        return _fail(2, f"lehr: there is no command {word!r}; {hint}")
    with warnings.catch_warnings():
        warnings.showwarning = show_warning
        warnings.filterwarnings(
            "ignore", "Failed to initialize NumPy"
        )  # torch says so in a base install, which has none
        try:
            with _trusting(word, arguments):
                _call(word, [_path_like(argument) for argument in arguments if argument != TRUST])
            sys.stdout.flush()
        except BrokenPipeError:  # the reader, `head` perhaps, has closed the pipe
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # takes what Python flushes at its end
            return 141  # as after SIGPIPE
        except SystemExit as stop:  # after --help
            return int(stop.code or 0)
        except CommandFailed as failure:
            return _fail(1, f"lehr {word}: {failure}")
        except KeyboardInterrupt:
            return _fail(130, f"lehr {word}: interrupted")
        except (argparse.ArgumentError, ValueError) as error:
            return _fail(2, f"lehr {word}: {' '.join(str(error).split())}")
        except ModuleNotFoundError as error:
            missing = missing_sentence(word, error.name or "")
            return _fail(1, missing or f"lehr {word}: {error}")
        except (OSError, ImportError, MemoryError) as error:
            return _fail(1, f"lehr {word}: {error}")
        except BaseException as error:
            from lehr.data import DataError
            from lehr.deploy import CompilerError
            from lehr.training.errors import Diverged, Interrupted, RunError

            if isinstance(error, Interrupted):
                return _fail(128 + error.signum, f"lehr {word}: {error}")
            if isinstance(error, DataError | RunError | Diverged | CompilerError):
                return _fail(1, f"lehr {word}: {error}")
            raise  # a defect of lehr: its traceback is wanted
    return 0


def _path_like(argument: str) -> str:
    """Write a file or folder whose name begins with a dash so that it is not taken for an option."""
    dashed = argument.startswith("-") and not argument.startswith("--") and argument != "-h"
    return f"./{argument}" if dashed and os.path.lexists(argument) else argument


def _trusting(word: str, arguments: Sequence[str]) -> contextlib.AbstractContextManager[None]:
    """With --trust, let classes be imported that a recipe names though they are not part of lehr."""
    if TRUST not in arguments:
        return contextlib.nullcontext()
    if word not in TRUSTING:
        raise UsageError(f"{TRUST} is for {', '.join(TRUSTING)}: {word} imports no class that a recipe names")
    from lehr.training.trust import trusting

    return trusting(True)


def _call(word: str, arguments: Sequence[str]) -> None:
    function = COMMANDS[word]
    if function is doctor and not arguments:
        function()  # works in a base install, without a parser of arguments
    elif function not in (train, compare):
        from lehr.cli.arguments import parser_of

        function(**vars(parser_of(word, function).parse_args(list(arguments))))
    elif not {"-h", "--help"} & set(arguments):
        function(arguments)
    elif function is train:
        from lehr.training.recipe_keys import help_parser

        print(help_parser(train_words()).format_help())
    else:
        print(compare_words().format_help())


def show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Print a warning of lehr as a sentence, and any other as Python does."""
    text = f"lehr: {printable(message)}\n"
    if not category.__module__.startswith("lehr."):
        text = warnings.formatwarning(message, category, filename, lineno, line)
    print(text, end="", file=file or sys.stderr)


def _usage() -> str:
    rows = [(word, (function.__doc__ or "").splitlines()[0]) for word, function in COMMANDS.items()]
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    commands = Table(("command", "what it does"), rows).text(width)
    trust = f"{TRUST} lets {', '.join(TRUSTING)} import classes that a recipe names and that are not part of lehr."
    return f"usage: lehr COMMAND ...\n\n{commands}\n\nlehr COMMAND --help lists its arguments.\n{trust}"


def _fail(code: int, message: str) -> int:
    print(printable(message, keep="\n"), file=sys.stderr)
    return code
