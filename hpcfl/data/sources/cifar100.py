"""CIFAR-100: 60 000 images of 100 (fine) classes, 32x32 (Krizhevsky, 2009)."""

from dataclasses import dataclass
from typing import ClassVar

from hpcfl.data.images import Mean, Std
from hpcfl.data.sources.cifar import Cifar, CifarFiles


@dataclass(frozen=True, kw_only=True)
class Cifar100(Cifar):
    """CIFAR-100: cifar-100-python/ or cifar100.npz; training images are cropped and flipped."""

    layout: ClassVar[CifarFiles] = CifarFiles(
        name="cifar100",
        url="https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz",
        md5="eb9058c3a382ffc7106e4002c42a8d85",
        folder="cifar-100-python",
        train={"train": "16019d7e3df5f24257cddd939b257f8d"},
        test={"test": "f0ef6b0ae62326f3e7ffdfab6717acfc"},
        labels="fine_labels",
        classes=100,
    )
    mean: Mean = (0.5071, 0.4865, 0.4409)
    std: Std = (0.2673, 0.2564, 0.2762)
