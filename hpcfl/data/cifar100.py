"""CIFAR-100: 60 000 images of 100 (fine) classes, 32x32 (Krizhevsky, 2009)."""

from dataclasses import dataclass
from pathlib import Path

from hpcfl.data import cifar
from hpcfl.data.base import DataConfig, Dataset
from hpcfl.data.images import CropFlipNormalize
from hpcfl.types import PathText

_MEAN, _STD = (0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)


@dataclass(frozen=True, kw_only=True)
class Cifar100(DataConfig):
    """Images uint8 [n, 32, 32, 3] and labels; training images are cropped and flipped."""

    root: PathText = "data"
    """The folder that holds cifar-100-python/ or cifar100.npz."""
    download: bool = False
    """Fetch the official files into root if they are missing (needs torchvision)."""
    augment: bool = True
    """Crop training images from a padding of 4 and flip them, per image."""

    def load(self, seed: int) -> Dataset:
        """Read the official pickles, or the .npz."""
        root = Path(self.root)
        if self.download:
            cifar.download(root, "CIFAR100")
        train, test = cifar.read(
            root,
            name="cifar100",
            folder="cifar-100-python",
            train=("train",),
            test="test",
            labels="fine_labels",
            classes=100,
        )
        return Dataset(
            train=train,
            test=test,
            natural=None,
            classes=100,
            loss="cross_entropy",
            transform=CropFlipNormalize(mean=_MEAN, std=_STD, augment=self.augment),
        )
