"""Landmarks-User-160k (Hsu et al., arXiv:2003.08082): photographs of landmarks by 1262 users.

Google publishes who took which image of Google Landmarks v2, and the images apart from that.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from shutil import unpack_archive
from typing import ClassVar

from hpcfl.data.owners import Published, Track, provide
from hpcfl.data.packing import Listing, Photo
from hpcfl.data.photos import Counts, PublishedPhotos, grouped
from hpcfl.data.tables import Row, class_of, read_table
from hpcfl.errors import DataError

FOLDER = "landmarks-user-160k"
SPLIT = Published(
    f"{FOLDER}.zip",
    f"http://storage.googleapis.com/gresearch/federated-vision-datasets/{FOLDER}.zip",
    "53c36bd7d5fc12f927af2820b7e4a57c",
)
_ID = re.compile(r"[0-9A-Za-z_-]{3,}")


@dataclass(frozen=True, kw_only=True)
class Landmarks(PublishedPhotos):
    """Landmarks-User-160k, packed; natural clients are the users."""

    kind: ClassVar[str] = "landmarks"
    counts: ClassVar[Counts] = Counts(clients=1262, train=164172, classes=2028, test=19526)

    images: str = "train"
    """The folder of Google Landmarks' images below root, ID at a/b/c/ID.jpg, ID = abc..."""

    def listing(self, track: Track) -> Listing:
        """Read federated_train.csv and test.csv, in root or in the folder that Google zips."""
        folder = self._lists(track)
        train = grouped(
            (user, self._photo(row, image, label))
            for row in read_table(folder / "federated_train.csv", ("user_id", "image_id", "class"))
            for user, image, label in [row.values]
        )
        test = [
            self._photo(row, *row.values)
            for row in read_table(folder / "test.csv", ("image_id", "class"))
        ]
        return self.counted(Listing(train, test, self.counts.classes))

    def _lists(self, track: Track) -> Path:
        root = Path(self.root)
        for folder in (root, root / FOLDER):
            if (folder / "federated_train.csv").exists():
                return folder
        provide(root, [SPLIT], track)
        unpack_archive(root / SPLIT.name, root)
        return root / FOLDER

    def _photo(self, row: Row, image: str, label: str) -> Photo:
        if not _ID.fullmatch(image):
            raise DataError(f"{row.where}: image_id is {image!r}, expected letters and digits")
        path = "/".join((self.images, *image[:3], f"{image}.jpg"))
        return Photo(path, class_of(row, label, self.counts.classes), row.where)
