"""iNaturalist-User-120k (Hsu et al., arXiv:2003.08082): photographs of species by 9275 users.

TensorFlow Federated publishes the user of each image of the iNaturalist competition of 2017, and
iNaturalist publishes the images.
"""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from hpcfl.data.download import PublishedFile, Track, provide
from hpcfl.data.image_listing import Listing, Photo
from hpcfl.data.photographs import Counts, PublishedPhotos, grouped, image_name
from hpcfl.data.tables import class_of, read_table

_FROM = "https://storage.googleapis.com/tff-datasets-public/"
LISTS = tuple(
    PublishedFile(name, _FROM + name, md5)
    for name, md5 in (
        ("iNaturalist_train.csv", "63d5a41699434bc2b13f5853f3764c18"),
        ("iNaturalist_test.csv", "bcf08a5a740ee76dac4e5af668081891"),
    )
)
FOLDERS = ("train_val_images", "test2017")  # as the two archives of 2017 unpack
_ARCHIVES = "https://ml-inat-competition-datasets.s3.amazonaws.com/2017/"
_MD5S = ("7c784ea5e424efaec655bd392f87301f", "7d9b096fa1cd94d67a0fa779ea301234")


@dataclass(frozen=True, kw_only=True)
class INaturalist(PublishedPhotos):
    """iNaturalist-User-120k, packed; natural clients are the users."""

    kind: ClassVar[str] = "inaturalist"
    counts: ClassVar[Counts] = Counts(clients=9275, train=120300, classes=1203, test=35641)

    def listing(self, track: Track) -> Listing:
        """Read both lists and look for their images; rows without a user (NA) are left out."""
        root, classes = Path(self.root), self.counts.classes
        own = [file for file in LISTS if self.subset and (root / file.name).exists()]
        provide(root, [file for file in LISTS if file not in own], track)
        train, test = (root / file.name for file in LISTS)
        rows = [
            (user, image_name(row, image), class_of(row, label, classes), row.where)
            for row in read_table(train, ("user_120k", "image_id", "class"))
            for user, image, label in [row.values]
            if user != "NA"
        ]
        tested = [
            (image_name(row, image), class_of(row, label, classes), row.where)
            for row in read_table(test, ("image_id", "class"))
            for image, label in [row.values]
        ]
        wanted = {image for _, image, *_ in rows} | {image for image, *_ in tested}
        paths = _paths(root, wanted, track)

        def photo(image: str, label: int, where: str) -> Photo:
            # A missing image gets the path of an unsorted one, under which it is then reported.
            return Photo(paths.get(image, f"{FOLDERS[0]}/{image}.jpg"), label, where)

        clients = grouped((user, photo(image, label, at)) for user, image, label, at in rows)
        return self.require_counts(Listing(clients, [photo(*row) for row in tested], classes))

    @property
    def to_fetch(self) -> str:
        """The archives of the competition of 2017."""
        archives = (
            f"{_ARCHIVES}{folder}.tar.gz (md5 {md5}) to {folder}/"
            for folder, md5 in zip(FOLDERS, _MD5S, strict=True)
        )
        return f"unpack into {self.root}: {', '.join(archives)}"


def _paths(root: Path, wanted: set[str], track: Track) -> dict[str, str]:
    """The path below ``root`` of each image whose name, without .jpg, is in ``wanted``."""
    paths: dict[str, str] = {}
    folders: Iterable[tuple[str, list[str], list[str]]] = (
        found for folder in FOLDERS for found in os.walk(root / folder)
    )
    for folder, below, names in track(folders, "looking for images"):
        below.sort()
        for name in names:
            image = name.removesuffix(".jpg")
            if image in wanted:
                paths[image] = (Path(folder) / name).relative_to(root).as_posix()
    return paths
