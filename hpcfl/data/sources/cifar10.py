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
        train={
            "data_batch_1": "c99cafc152244af753f735de768cd75f",
            "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
            "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
            "data_batch_4": "634d18415352ddfa80567beed471001a",
            "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
        },
        test={"test_batch": "40351d587109b95175f43aff81a1287e"},
        labels="labels",
        classes=10,
    )
    mean: Mean = (0.4914, 0.4822, 0.4465)
    std: Std = (0.2470, 0.2435, 0.2616)
