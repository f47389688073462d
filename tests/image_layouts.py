"""Small data sets of real JPEGs, in the layouts that the owners of the large ones publish.

Image number k is of one colour, ``colour(k)``, so that who got which image can be seen.
"""

import os
from collections.abc import Iterable
from hashlib import blake2b
from pathlib import Path

from PIL import Image

TRAIN = [("10", 0), ("9", 1), ("10", 2), ("9", 0), ("9", 2), ("31", 1), ("10", 1), ("31", 0)]
"""User and class of the images 0, 1, ...; users are in no order."""
BY_CLIENT = {"9": [1, 3, 4], "10": [0, 2, 6], "31": [5, 7]}
"""The images of each user, users by number."""
TEST = [2, 1, 0]
"""Classes of the images 100, 101, ...."""
WNIDS = ("n02124075", "n01443537", "n04067472")


def colour(number: int) -> tuple[int, int, int]:
    """Of an image; those of different numbers are far apart."""
    return number * 67 % 256, number * 101 % 256, 255 - number * 67 % 256


def image(path: Path, number: int, size: tuple[int, int] = (60, 44)) -> None:
    """One of the images, as a JPEG (or a PNG, if it is called so), always of the same time."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, colour(number)).save(path)
    os.utime(path, (1e9, 1e9))


def image_id(number: int) -> str:
    """Sixteen hexadecimal digits, as owners name images."""
    return blake2b(b"%d" % number, digest_size=8).hexdigest()


def landmarks(root: Path, **size: tuple[int, int]) -> Path:
    """Google's lists in their folder, images at train/a/b/c/ID.jpg."""
    users = [(user, image_id(k), label) for k, (user, label) in enumerate(TRAIN)]
    tested = [(image_id(100 + k), label) for k, label in enumerate(TEST)]
    _table(root / "landmarks-user-160k/federated_train.csv", "user_id,image_id,class", users)
    _table(root / "landmarks-user-160k/test.csv", "image_id,class", tested)
    for number in (*range(len(TRAIN)), *range(100, 100 + len(TEST))):
        image(landmark(root, number), number, **size)
    return root


def landmark(root: Path, number: int) -> Path:
    """Where one of the images of ``landmarks`` lies."""
    name = image_id(number)
    return root.joinpath("train", *name[:3], f"{name}.jpg")


def inaturalist(root: Path, **size: tuple[int, int]) -> Path:
    """TFF's lists, with rows of no user; images in folders of taxa, some among the test images."""
    rows = [("c1", user, image_id(k), label) for k, (user, label) in enumerate(TRAIN)]
    rows[2:2] = [("c2", "NA", image_id(50), 0)]
    tested = [(image_id(100 + k), label) for k, label in enumerate(TEST)]
    _table(root / "iNaturalist_train.csv", "geo_100,user_120k,image_id,class", rows)
    _table(root / "iNaturalist_test.csv", "image_id,class", tested)
    for number in (*range(len(TRAIN)), 50, 100):
        taxon = f"train_val_images/Plantae/Acer {number % 3}"
        image(root / taxon / f"{image_id(number)}.jpg", number, **size)
    for number in range(101, 100 + len(TEST)):
        image(root / "test2017" / f"{image_id(number)}.jpg", number, **size)
    return root


def image_folder(root: Path, **size: tuple[int, int]) -> Path:
    """Folders of clients, of classes, of images."""
    for number, (user, label) in enumerate(TRAIN):
        image(root / "train" / user / f"class{label}" / f"{number}.jpg", number, **size)
    for k, label in enumerate(TEST):
        image(root / "test" / f"class{label}" / f"{k}.png", 100 + k, **size)
    return root


def tiny_imagenet(root: Path, each: int = 4, side: int = 64) -> Path:
    """The official archive, unpacked; image k of class c has number 10 c + k, 100 more in val."""
    folder = root / "tiny-imagenet-200"
    lines = []
    for c, wnid in enumerate(sorted(WNIDS)):
        for k in range(each):
            name = f"{wnid}_{k}.JPEG"
            image(folder / "train" / wnid / "images" / name, 10 * c + k, (side, side))
        (folder / "train" / wnid / f"{wnid}_boxes.txt").write_text("")
        image(folder / f"val/images/val_{c}.JPEG", 100 + 10 * c, (side, side))
        lines.append(f"val_{c}.JPEG\t{wnid}\t0\t0\t62\t62\n")
    (folder / "wnids.txt").write_text("".join(f"{wnid}\n" for wnid in WNIDS))
    (folder / "val/val_annotations.txt").write_text("".join(reversed(lines)))
    return root


def _table(path: Path, header: str, rows: Iterable[tuple[object, ...]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join([header, *(",".join(map(str, row)) for row in rows), ""]))
