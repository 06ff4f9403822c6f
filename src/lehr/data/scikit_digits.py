"""The digits of scikit-learn: 1797 images of 8 x 8 pixels, part of the package.

Their 17 grey levels (0 to 16) are scaled to 0 to 255, so that digits is uint8 like every other data set. The
test set is every fifth image of each class in the package's order: the same for every seed and every version
of torch.
"""

from dataclasses import dataclass
from pathlib import Path

import torch

from lehr.data.dataset import DataError, Dataset
from lehr.data.download import Download


@dataclass(frozen=True)
class Digits:
    """The digits of scikit-learn; `root` is ignored."""

    name: str = "digits"
    validation: int = 180  # an eighth of the 1433 images that are not test images

    def read(self, root: Path) -> tuple[Dataset, Dataset]:
        """Return the 1433 training and 364 test images."""
        try:
            from sklearn.datasets import load_digits
        except ImportError as error:
            raise DataError("digits comes with scikit-learn: pip install 'lehr[train]'") from error
        pixels, target = load_digits(return_X_y=True)
        levels = torch.from_numpy(pixels).reshape(-1, 1, 8, 8)
        labels = torch.from_numpy(target).to(torch.int64)
        everything = Dataset(
            images=(levels * 255 / 16).round().to(torch.uint8),
            labels=labels,
            classes=tuple("0123456789"),
            mean=(0.3055,),  # of the 1433 training images, as is the std
            std=(0.3761,),
        )
        nth_of_class = torch.nn.functional.one_hot(labels).cumsum(0).gather(1, labels[:, None]).flatten() - 1
        is_test = nth_of_class % 5 == 0
        training, test = (torch.nonzero(chosen).flatten() for chosen in (~is_test, is_test))
        return everything.take(training), everything.take(test)

    def missing(self, root: Path) -> tuple[Download, ...]:
        """Return (): the images come with scikit-learn."""
        return ()
