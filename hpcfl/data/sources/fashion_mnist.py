"""Fashion-MNIST (Xiao et al., 2017; arXiv:1708.07747): articles of clothing, 28x28 pixels."""

from dataclasses import dataclass
from typing import ClassVar

from hpcfl.data.sources.mnist import MnistFormat
from hpcfl.types import PathText


@dataclass(frozen=True, kw_only=True)
class FashionMnist(MnistFormat):
    """Articles of clothing: grey images uint8 [n, 28, 28], normalised; 10 classes."""

    name: ClassVar[str] = "fashion_mnist"
    folder: ClassVar[str] = "FashionMNIST/raw"
    url: ClassVar[str] = (
        "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion"
    )
    md5: ClassVar[tuple[str, ...]] = (
        "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
        "25c81989df183df01b3e8a0aad5dffbe",
        "bef4ecab320f06d8554ea6380940ec79",
        "bb300cfdad3c16e7a12a480ee83cd310",
    )
    mean: ClassVar[float] = 0.2860
    std: ClassVar[float] = 0.3530

    root: PathText = "data"
    """The folder that holds FashionMNIST/raw as torchvision makes it, or fashion_mnist.npz."""
