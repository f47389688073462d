"""MNIST (LeCun et al., 1998): handwritten digits of 28x28 pixels."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from hpcfl.data.download import PublishedFile, Track, provide
from hpcfl.data.grayscale import Grey
from hpcfl.data.idx_images import IdxFiles, IdxImages
from hpcfl.types import PathText

_FILES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)


@dataclass(frozen=True, kw_only=True)
class MnistFormat(IdxImages):
    """What MNIST and Fashion-MNIST have in common: file names, numbers, normalisation."""

    name: ClassVar[str]
    """``data.kind``, which is also the name of the .npz."""
    folder: ClassVar[str]
    """Below the root, where torchvision puts the files."""
    url: ClassVar[str]
    """Where the folder with the four files is."""
    md5: ClassVar[tuple[str, ...]]
    """The md5 of the packed files, in the order of `_FILES`."""
    mean: ClassVar[float]
    """The mean of the training images' pixels in [0, 1]."""
    std: ClassVar[float]

    normalize: bool = True
    """Take the mean of all training pixels off and divide by their standard deviation; otherwise
    inputs are in [0, 1]."""

    @property
    def layout(self) -> IdxFiles:
        """The four files; 60 000 training and 10 000 test examples of 10 classes."""
        files = [Path(self.folder) / name for name in _FILES]
        return IdxFiles(
            name=self.name,
            prepare=self.name,
            train=(files[0], files[1]),
            test=(files[2], files[3]),
            classes=10,
            counts=(60_000, 10_000),
        )

    def transform(self) -> Grey:
        """Make model inputs of images, normalised if the job does not say otherwise."""
        return Grey(self.flat, normal=(self.mean, self.std) if self.normalize else None)

    def provide(self, track: Track) -> None:
        """Fetch the files that are missing; those that are there packed are checked."""
        root, layout = Path(self.root), self.layout
        files = [
            PublishedFile(f"{file}.gz", f"{self.url}/{file.name}.gz", md5=md5)
            for file, md5 in zip((*layout.train, *layout.test), self.md5, strict=True)
            if not (root / file).exists()
        ]
        provide(root, files, track)


@dataclass(frozen=True, kw_only=True)
class Mnist(MnistFormat):
    """Handwritten digits: grey images uint8 [n, 28, 28], normalised; 10 classes."""

    # The authors' own site asks for a password; this is the copy that torchvision fetches.
    name: ClassVar[str] = "mnist"
    folder: ClassVar[str] = "MNIST/raw"
    url: ClassVar[str] = "https://ossci-datasets.s3.amazonaws.com/mnist"
    md5: ClassVar[tuple[str, ...]] = (
        "f68b3c2dcbeaaa9fbdd348bbdeb94873",
        "d53e105ee54ea40749a09fcbcd1e9432",
        "9fb629c4189551a2d022fa330f9573f3",
        "ec29112dd5afa0611ce80d1b7f02629c",
    )
    mean: ClassVar[float] = 0.1307
    std: ClassVar[float] = 0.3081

    root: PathText = "data"
    """The folder that holds MNIST/raw as torchvision makes it, or mnist.npz."""
