"""The images of a data set as they are listed, before they are packed; and images at fault."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from hpcfl.data.hdf5 import opened, strings
from hpcfl.data.prepared_file import (
    origin_of,
    require_same_sources,
    source_fingerprint,
    stamp,
)
from hpcfl.errors import DataError, disk_errors
from hpcfl.io.regular import read


class Photo(NamedTuple):
    """An image of a data set, as its publisher lists it."""

    path: str
    """Relative to the data set's root."""
    label: int
    where: str = ""
    """File and line of the publisher's list, if there is one."""


class Listing(NamedTuple):
    """All images of a data set."""

    clients: Sequence[tuple[str, Sequence[Photo]]]
    """Names and images of the clients, in the order of their numbers."""
    test: Sequence[Photo]
    classes: int
    owners: Sequence[str] = ()
    """The name of the client of each test image, perhaps of none that trains; empty: not known."""

    @property
    def train(self) -> list[Photo]:
        """The training images of all clients."""
        return [photo for _, photos in self.clients for photo in photos]


def present_origin(listing: Listing, root: Path) -> str:
    """Digest of a listing and of its files' sizes and times: what a packed file records.

    Every file is looked up, and none is read.
    """
    train = [(name, [photo[:2] for photo in photos]) for name, photos in listing.clients]
    paths = dict.fromkeys(photo.path for photo in (*listing.train, *listing.test))
    found = [stamp(root / path) for path in paths]
    about = [train, [photo[:2] for photo in listing.test], listing.classes, found]
    return source_fingerprint(about)


class Fault(NamedTuple):
    """An image that is missing, or cannot be decoded."""

    photo: Photo
    why: str

    def __str__(self) -> str:
        return ": ".join(filter(None, (self.photo.where, self.photo.path, self.why)))


def sources_remain(path: Path) -> bool:
    """Whether any of the images that a packed file was made from is still there."""
    with opened(path) as file:
        names = strings(path, file["train"], "names")[()]
    return any((path.parent / os.fsdecode(name)).exists() for name in names)


def check_origin(path: Path, listing: Listing) -> None:
    """Check that a packed file was made from the images of the listing, unchanged since.

    Raises:
        DataError: it was not.
    """
    require_same_sources(path, origin_of(path), present_origin(listing, path.parent))


def report_faults(
    path: Path, faults: Sequence[Fault], images: int, allowed: int | None = None
) -> None:
    """List faults in ``path`` with the suffix ``.missing.txt``.

    Args:
        path: the packed file that is being made.
        faults: those found.
        images: number of all images.
        allowed: number of faults that the user allows; None where the data set allows none.

    Raises:
        DataError: there are more faults.
    """
    listed = path.with_suffix(".missing.txt")
    listed.unlink(missing_ok=True)
    if faults:
        lines = "".join(f"{fault}\n" for fault in faults)
        listed.write_text(lines, "utf-8", "surrogateescape")  # names of files as they are
    if len(faults) > (allowed or 0):
        way_out = "" if allowed is None else f", or leave them out: allow_missing={len(faults)}"
        raise DataError(
            f"{path}: {len(faults)} of {images} images are missing or damaged; {listed} lists "
            f"them; the first is {faults[0]}; put them right{way_out}"
        )


def read_image(path: Path) -> bytes:
    """The bytes of an image that is to be packed.

    Raises:
        OSError: the file is missing or unreadable: a fault of this image.
        DiskError: the disk fails: no fault of this image, and others would fail too.
    """
    with disk_errors(path):
        return read(path)
