"""The user's own images, in folders train/CLIENT/CLASS/*.jpg and test/CLASS/*.jpg."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from hpcfl.data.download import Track
from hpcfl.data.image_listing import Listing, Photo
from hpcfl.data.photographs import Photos, grouped
from hpcfl.errors import DataError


@dataclass(frozen=True, kw_only=True)
class ImageFolder(Photos):
    """Folders train/CLIENT/CLASS of JPEG, PNG, TIFF or WebP, packed, and perhaps test/CLASS."""

    kind: ClassVar[str] = "image_folder"

    def listing(self, track: Track) -> Listing:
        """List the images; classes are numbered in the order of the names of train's folders.

        Files and folders whose names begin with a dot are ignored.
        """
        root = Path(self.root)
        if not (root / "train").is_dir():
            raise DataError(f"{root}: expected a folder train of CLIENT/CLASS/*.jpg; not found")
        clients = _inside(root / "train")
        test = root / "test"
        names = sorted({folder.name for client in clients for folder in _inside(client)})
        classes = {name: label for label, name in enumerate(names)}
        for folder in _inside(test) if test.is_dir() else []:
            if folder.name not in classes:
                raise DataError(
                    f"{folder}: no client trains on a class of this name; rename or remove it, or "
                    "make an empty folder for it in train/CLIENT"
                )
        train = grouped(
            (client.name, photo)
            for client in track(clients, "looking for images", len(clients))
            for photo in _photos(root, client, classes)
        )
        if not train:
            raise DataError(f"{root / 'train'}: found no image in CLIENT/CLASS")
        tested = list(_photos(root, test, classes)) if test.is_dir() else []
        return Listing(train, tested, len(classes))


def _inside(folder: Path) -> list[Path]:
    """The entries of a folder, in order of names."""
    if not folder.is_dir():
        raise DataError(f"{folder}: expected a folder")
    return sorted(path for path in folder.iterdir() if not path.name.startswith("."))


def _photos(root: Path, folder: Path, classes: Mapping[str, int]) -> Iterator[Photo]:
    """The images below a folder of classes, in order."""
    for each in _inside(folder):
        for path in _inside(each):
            yield Photo(path.relative_to(root).as_posix(), classes[each.name])
