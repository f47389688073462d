"""Landmarks-User-160k (Hsu et al., arXiv:2003.08082): photographs of landmarks by 1262 users.

Google publishes the user of each image of Google Landmarks v2, and separately the images.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from hpcfl.data.archives import Archive, provide_members
from hpcfl.data.download import Track
from hpcfl.data.image_listing import Listing, Photo
from hpcfl.data.photographs import Counts, PublishedPhotos, grouped, image_name
from hpcfl.data.tables import CsvRow, class_of, read_table

FOLDER = "landmarks-user-160k"
_LISTS = (f"{FOLDER}/federated_train.csv", f"{FOLDER}/test.csv")
SPLIT = Archive(
    name=f"{FOLDER}.zip",
    url=f"http://storage.googleapis.com/gresearch/federated-vision-datasets/{FOLDER}.zip",
    md5="53c36bd7d5fc12f927af2820b7e4a57c",
    members={name: name for name in _LISTS},
)


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
        return self.require_counts(Listing(train, test, self.counts.classes))

    @property
    def to_fetch(self) -> str:
        """Google's archives of the training images."""
        address = "https://s3.amazonaws.com/google-landmark/"
        return (
            f"unpack {address}train/images_000.tar to images_499.tar (md5 sums: {address}md5sum/"
            f"train/md5.images_000.txt to 499) into {Path(self.root) / self.images}, where ID.jpg "
            "belongs at a/b/c/ID.jpg, ID = abc..., or say images=FOLDER if it is called otherwise"
        )

    def _lists(self, track: Track) -> Path:
        root = Path(self.root)
        if (root / "federated_train.csv").exists():
            return root
        provide_members(root, SPLIT, track)
        return root / FOLDER

    def _photo(self, row: CsvRow, image: str, label: str) -> Photo:
        path = "/".join((self.images, *image_name(row, image)[:3], f"{image}.jpg"))
        return Photo(path, class_of(row, label, self.counts.classes), row.where)
