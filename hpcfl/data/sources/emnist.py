"""EMNIST: handwritten digits and letters, 28x28 (Cohen et al., 2017; arXiv:1702.05373)."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from hpcfl.data.archives import Archive, provide_members
from hpcfl.data.download import Track
from hpcfl.data.idx import idx_place
from hpcfl.data.idx_images import IdxFiles, IdxImages
from hpcfl.types import PathText

URL = "https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip"
MD5 = "58c8d27c78d21e728a6bc7b3cc06412e"
_RAW = Path("EMNIST") / "raw"  # where torchvision puts them


class EmnistSplit(NamedTuple):
    """One of the ways in which the publisher splits EMNIST."""

    classes: int
    counts: tuple[int, int]
    """Numbers of training and test examples."""
    first: int = 0
    """The label of the first class."""


SPLITS = {
    "balanced": EmnistSplit(classes=47, counts=(112_800, 18_800)),
    "byclass": EmnistSplit(classes=62, counts=(697_932, 116_323)),
    "bymerge": EmnistSplit(classes=47, counts=(697_932, 116_323)),
    "letters": EmnistSplit(classes=26, counts=(124_800, 20_800), first=1),
    "digits": EmnistSplit(classes=10, counts=(240_000, 40_000)),
    "mnist": EmnistSplit(classes=10, counts=(60_000, 10_000)),
}


@dataclass(frozen=True, kw_only=True)
class Emnist(IdxImages):
    """Grey images uint8 [n, 28, 28], upright, to [0, 1] (not normalised); 62 to 10 classes."""

    root: PathText = "data"
    """The folder that holds EMNIST/raw as torchvision makes it, or emnist_SPLIT.npz."""
    split: Literal["balanced", "byclass", "bymerge", "letters", "digits", "mnist"] = "balanced"
    """byclass: 62 digits and letters; bymerge: 47, as 15 letters look the same in both cases;
    balanced: these 47, equally often; letters: 26, upper and lower case as one; digits: 10; mnist:
    10, as many of them as MNIST has."""

    @property
    def layout(self) -> IdxFiles:
        """The files and numbers of the split."""

        def files(part: str) -> tuple[Path, Path]:
            stem = f"emnist-{self.split}-{part}"
            return _RAW / f"{stem}-images-idx3-ubyte", _RAW / f"{stem}-labels-idx1-ubyte"

        split = SPLITS[self.split]
        return IdxFiles(
            name=f"emnist_{self.split}",
            prepare=f"emnist split={self.split}",
            train=files("train"),
            test=files("test"),
            classes=split.classes,
            counts=split.counts,
            what=f" of {self.split}",
            first=split.first,
            transposed=True,
        )

    def provide(self, track: Track) -> None:
        """Extract this split's files from the publisher's archive; they stay compressed."""
        root, layout = Path(self.root), self.layout
        files = (*layout.train, *layout.test)
        if all(idx_place(root / file).exists() for file in files):
            return
        members = {f"gzip/{file.name}.gz": f"{file}.gz" for file in files}
        name = str(_RAW / URL.rpartition("/")[2])
        provide_members(root, Archive(name=name, url=URL, md5=MD5, members=members), track)
