"""CIFAR-10: 60 000 images of 10 classes, 32x32 (Krizhevsky, 2009)."""

from dataclasses import dataclass
from pathlib import Path

from hpcfl.data import cifar
from hpcfl.data.base import DataConfig, Dataset
from hpcfl.data.images import CropFlipNormalize
from hpcfl.types import PathText

_MEAN, _STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)


@dataclass(frozen=True, kw_only=True)
class Cifar10(DataConfig):
    """Images uint8 [n, 32, 32, 3] and labels; training images are cropped and flipped."""

    root: PathText = "data"
    """The folder that holds cifar-10-batches-py/ or cifar10.npz."""
    download: bool = False
    """Fetch the official files into root if they are missing (needs torchvision)."""
    augment: bool = True
    """Crop training images from a padding of 4 and flip them, per image."""

    def load(self, seed: int) -> Dataset:
        """Read the official pickles, or the .npz."""
        root = Path(self.root)
        if self.download:
            cifar.download(root, "CIFAR10")
        train, test = cifar.read(
            root,
            name="cifar10",
            folder="cifar-10-batches-py",
            train=tuple(f"data_batch_{k}" for k in range(1, 6)),
            test="test_batch",
            labels="labels",
            classes=10,
        )
        return Dataset(
            train=train,
            test=test,
            natural=None,
            classes=10,
            loss="cross_entropy",
            transform=CropFlipNormalize(mean=_MEAN, std=_STD, augment=self.augment),
        )
