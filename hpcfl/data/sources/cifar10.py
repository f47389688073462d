"""CIFAR-10: 60 000 images of 10 classes, 32x32 (Krizhevsky, 2009)."""

from dataclasses import dataclass
from typing import ClassVar

from hpcfl.data.images import Mean, Std
from hpcfl.data.sources.cifar import Cifar, CifarFiles


@dataclass(frozen=True, kw_only=True)
class Cifar10(Cifar):
    """CIFAR-10: cifar-10-batches-py/ or cifar10.npz; training images are cropped and flipped."""

    layout: ClassVar[CifarFiles] = CifarFiles(
        name="cifar10",
        url="https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
        md5="c58f30108f718f92721af3b95e74349a",
        folder="cifar-10-batches-py",
        train=tuple(f"data_batch_{k}" for k in range(1, 6)),
        test="test_batch",
        labels="labels",
        classes=10,
    )
    mean: Mean = (0.4914, 0.4822, 0.4465)
    std: Std = (0.2470, 0.2435, 0.2616)
