"""The user's own images, in folders train/CLIENT/CLASS/*.jpg, and perhaps test images."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import ClassVar

from hpcfl.data.download import Track
from hpcfl.data.image_listing import Listing, Photo
from hpcfl.data.photographs import Photos, grouped
from hpcfl.errors import DataError


@dataclass(frozen=True, kw_only=True)
class ImageFolder(Photos):
    """Folders train/CLIENT/CLASS of JPEG, PNG, TIFF or WebP, packed.

    Test images, if there are any, are in test/CLASS, or in test/CLIENT/CLASS where each client has
    its own.
    """

    kind: ClassVar[str] = "image_folder"

    def listing(self, track: Track) -> Listing:
        """List the images; classes are numbered in the order of the names of train's folders.

        Files and folders whose names begin with a dot are ignored.
        """
        root = Path(self.root)
        if not (root / "train").is_dir():
            raise DataError(f"{root}: expected a folder train of CLIENT/CLASS/*.jpg; not found")
        clients = _inside(root / "train")
        names = sorted({folder.name for client in clients for folder in _inside(client)})
        classes = {name: label for label, name in enumerate(names)}
        train = grouped(
            (client.name, photo)
            for client in track(clients, "looking for images", len(clients))
            for photo in _photos(root, client, classes)
        )
        if not train:
            raise DataError(f"{root / 'train'}: found no image in CLIENT/CLASS")
        tested, owners = _tests(root, classes)
        return Listing(train, tested, len(classes), owners)


def _tests(root: Path, classes: Mapping[str, int]) -> tuple[list[Photo], list[str]]:
    """The test images, and the names of their clients; no names where the images are for all."""
    test = root / "test"
    folders = [folder for folder in (_inside(test) if test.is_dir() else []) if _inside(folder)]
    by_client = [_inside(folder)[0].is_dir() for folder in folders]
    if not any(by_client):
        return [*chain.from_iterable(_of_class(root, folder, classes) for folder in folders)], []
    if not all(by_client):
        raise DataError(
            f"{folders[by_client.index(False)]}: has images, but "
            f"{folders[by_client.index(True)]} has folders; expected test/CLIENT/CLASS of all test "
            "images, or test/CLASS of all"
        )
    found = grouped(
        (folder.name, photo) for folder in folders for photo in _photos(root, folder, classes)
    )
    photos = [photo for _, own in found for photo in own]
    return photos, [client for client, own in found for _ in own]


def _inside(folder: Path) -> list[Path]:
    """The entries of a folder, in order of names."""
    if not folder.is_dir():
        raise DataError(f"{folder}: expected a folder")
    return sorted(path for path in folder.iterdir() if not path.name.startswith("."))


def _photos(root: Path, folder: Path, classes: Mapping[str, int]) -> Iterator[Photo]:
    """The images below a folder of classes, in order."""
    for each in _inside(folder):
        yield from _of_class(root, each, classes)


def _of_class(root: Path, folder: Path, classes: Mapping[str, int]) -> Iterator[Photo]:
    """The images in the folder of a class, in order.

    Raises:
        DataError: no client trains on a class of this name.
    """
    if folder.name not in classes:
        raise DataError(
            f"{folder}: no client trains on a class of this name; rename or remove it, or make "
            "an empty folder for it in train/CLIENT"
        )
    for path in _inside(folder):
        yield Photo(path.relative_to(root).as_posix(), classes[folder.name])
