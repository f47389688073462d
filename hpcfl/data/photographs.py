"""The base of data sets of photographs: packed once, decoded ahead of training."""

import re
from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import ClassVar, NamedTuple

from hpcfl.data.base import DataConfig, Dataset
from hpcfl.data.download import Track
from hpcfl.data.encoded_images import require_pillow
from hpcfl.data.image_listing import Listing, Photo, check_origin, sources_remain
from hpcfl.data.images import IMAGENET_MEAN, IMAGENET_STD, CropFlipNormalize
from hpcfl.data.pack_images import pack
from hpcfl.data.packed import Contents, read_packed
from hpcfl.data.prepared_file import changed_keys, origin_and_size, prepare_command
from hpcfl.data.tables import CsvRow
from hpcfl.errors import DataError
from hpcfl.types import Count, Natural, PathText

_NAME = re.compile(r"[0-9A-Za-z_-]{3,}")


class Counts(NamedTuple):
    """The numbers of a published data set."""

    clients: int
    train: int
    classes: int
    test: int

    def __str__(self) -> str:
        return (
            f"{self.clients} clients, {self.train} training images of {self.classes} classes, "
            f"{self.test} test images"
        )


@dataclass(frozen=True, kw_only=True)
class Photos(DataConfig):
    """Images uint8 [n, S, S, 3], S = size + margin, decoded by threads ahead of the batch.

    Training sees a random crop of size x size, mirrored with probability 1/2, evaluation the
    centre.
    """

    maps_files: ClassVar[bool] = True

    kind: ClassVar[str]
    """Its name in jobs, and the beginning of the packed file's name."""

    root: PathText = "data"
    """The folder of the publisher's files, and of the packed one."""
    size: Count = 224
    """Pixels of the sides of model inputs."""
    margin: Natural = 32
    """Pixels by which stored images are larger, for random crops."""
    augment: bool = True
    """Crop training images at random and flip them, per image; else their middle is used."""
    workers: Count = 4
    """Threads, per rank, that decode ahead of the training; processes of ``data prepare``."""
    allow_missing: Natural = 0
    """Number of images that may be missing or damaged when the others are packed."""

    @property
    def packed(self) -> Path:
        """The packed file."""
        return Path(self.root) / f"{self.kind}-{self.size + self.margin}.h5"

    def prepare(self, track: Track) -> Path:
        """Pack the images in colour, each the middle square of its image, of side size + margin.

        Smaller ones are packed as they are and enlarged when they are decoded.

        Raises:
            DataError: images are missing; or the packed file was made from others.
        """
        require_pillow()
        missing = not self.packed.exists()
        if missing:
            pack(
                self.packed,
                self.listing(track),
                side=self.size + self.margin,
                workers=self.workers,
                allowed=self.allow_missing,
                track=track,
            )
        contents = self.read()
        if not missing and sources_remain(self.packed):
            check_origin(self.packed, self.listing(track))
        self.check(contents)
        return self.packed

    @abstractmethod
    def listing(self, track: Track) -> Listing:
        """All images; small files of the publisher are fetched.

        Raises:
            DataError: the publisher's lists are missing or wrong.
        """

    def check(self, contents: Contents) -> None:
        """Check the numbers of a packed file.

        Raises:
            DataError: they are not those of the data set.
        """

    def read(self) -> Contents:
        """Memory-map the packed file."""
        if not self.packed.exists():
            # The other keys say how training reads the file.
            own = changed_keys(self, ("size", "margin", "allow_missing", "subset", "images"))
            command = prepare_command(self.kind, self.root, own)
            raise DataError(f"{self.packed}: not found; make it once by: {command}")
        return read_packed(self.packed, self.size + self.margin, self.workers)

    def load(self, seed: int) -> Dataset:
        """Memory-map the packed file; nothing is decoded yet."""
        require_pillow()
        contents = self.read()
        self.check(contents)
        return Dataset(
            train=contents.train.examples,
            test=None if contents.test is None else contents.test.examples,
            natural=contents.natural,
            natural_tests=contents.natural_tests,
            classes=contents.classes,
            loss="cross_entropy",
            transform=self._transform(),
            origin=origin_and_size(self.packed),
        )

    def _transform(self) -> CropFlipNormalize:
        return CropFlipNormalize(
            mean=IMAGENET_MEAN,
            std=IMAGENET_STD,
            padding=0,
            size=self.size,
            augment=self.augment,
        )


@dataclass(frozen=True, kw_only=True)
class PublishedPhotos(Photos):
    """Photographs of a published data set, whose counts are checked."""

    counts: ClassVar[Counts]

    subset: bool = False
    """Whether the lists may hold another number of images than the published ones."""

    def check(self, contents: Contents) -> None:
        """Compare the number of images, left out ones too, with the published one."""
        test = contents.test
        found = len(contents.train.examples.labels) + contents.train.missing
        tested = 0 if test is None else len(test.examples.labels) + test.missing
        if not self.subset and (found, tested) != (self.counts.train, self.counts.test):
            raise DataError(
                f"{self.packed}: {found} training and {tested} test images, expected "
                f"{self.counts}; say subset: true if it is meant to be one"
            )

    @property
    @abstractmethod
    def to_fetch(self) -> str:
        """The end of a message: which archives to download, and where to unpack them."""

    def require_counts(self, listing: Listing) -> Listing:
        """Check a listing, and return it.

        Raises:
            DataError: it is not the published one, or none of its images is there.
        """
        train = [photo.label for _, photos in listing.clients for photo in photos]
        found = Counts(len(listing.clients), len(train), len(set(train)), len(listing.test))
        if not self.subset and found != self.counts:
            raise DataError(
                f"{self.root}: the lists hold {found}; expected {self.counts}; say subset=true if "
                "it is meant to be one"
            )
        photos = chain(listing.test, *(photos for _, photos in listing.clients))
        if not any((Path(self.root) / photo.path).exists() for photo in photos):
            raise DataError(f"{self.root}: none of the images is there; {self.to_fetch}")
        return listing


def image_name(row: CsvRow, text: str) -> str:
    """Check the name of an image, without .jpg, in a row, and return it.

    Raises:
        DataError: it is no name; as a path it might lead out of the folder of images.
    """
    if not _NAME.fullmatch(text):
        raise DataError(f"{row.where}: image_id is {text!r}, expected letters and digits")
    return text


def grouped(photos: Iterable[tuple[str, Photo]]) -> list[tuple[str, list[Photo]]]:
    """The photographs of each client, in their order; clients by number, or by name."""
    groups: dict[str, list[Photo]] = {}
    for client, photo in photos:
        groups.setdefault(client, []).append(photo)
    return sorted(groups.items(), key=lambda group: (not group[0].isdecimal(), _ordinal(group[0])))


def _ordinal(name: str) -> tuple[int, str, str]:
    """Sort key: numbers of any length by their value; other names alphabetically."""
    digits = name.lstrip("0")
    return (len(digits), digits, name) if name.isdecimal() else (0, "", name)
