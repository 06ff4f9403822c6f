"""The data sets by name: `load` reads one, `fetch` gets its files.

>>> train, validation, test = load("digits", seed=0)
>>> len(train), len(validation), len(test), train.shape
(1253, 180, 364, (1, 8, 8))
"""

from pathlib import Path

from .cifar10 import Cifar10
from .dataset import Splits
from .digits import Digits
from .download import Progress, obtain
from .errors import DownloadError
from .idx import FASHION_MNIST, MNIST
from .progress import terminal
from .source import Source, folder
from .split import hold_out

SOURCES: dict[str, Source] = {source.name: source for source in (Digits(), MNIST, FASHION_MNIST, Cifar10())}


def names() -> tuple[str, ...]:
    """Return the names `load` and `fetch` know."""
    return tuple(SOURCES)


def load(name: str, root: str | Path | None = None, *, seed: int = 0, validation: int | None = None) -> Splits:
    """Read a data set from `root` (default: `folder()`); hold `validation` training images out, by seed.

    Without `validation` the data set's own number is taken: 5000 of CIFAR-10 and of the MNISTs, 180 of
    digits. The test images never depend on the seed.
    """
    source = _find(name)
    training, test = source.read(_root(root))
    count = source.validation if validation is None else validation
    return Splits(*hold_out(training, count, seed=seed), test)


def fetch(name: str, root: str | Path | None = None, *, progress: Progress | None = None) -> None:
    """Have a data set's files below `root` (default: `folder()`), whole and checked, for `load` to read.

    What is there and reads well is left alone; what is missing or damaged is fetched. Without `progress`, a
    bar is drawn where standard error is a terminal.
    """
    source, home = _find(name), _root(root)
    try:
        with terminal() as bar:
            for wanted in source.missing(home):
                obtain(wanted, home, progress=progress or bar)
    except DownloadError as error:
        by_hand = "".join(f"\n  {file.urls[0]}\n    as {home / file.path}" for file in source.missing(home))
        raise DownloadError(
            f"{error}\nWithout network, bring here by hand and run `lehr data {name}` again:{by_hand}"
        ) from error
    except OSError as error:
        raise DownloadError(f"cannot write below {home}: {error}") from error
    source.read(home)


def _find(name: str) -> Source:
    if name not in SOURCES:
        raise ValueError(
            f"no data set is called {name!r}; there are {', '.join(SOURCES)}, and imagenet, which cannot be fetched: "
            "recipes read it from their data.root"
        )
    return SOURCES[name]


def _root(root: str | Path | None) -> Path:
    return folder() if root is None else Path(root).expanduser()
