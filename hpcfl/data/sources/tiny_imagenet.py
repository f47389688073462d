"""Tiny ImageNet: 110 000 images of 200 classes, 64x64 (Le and Yang, 2015).

Its official test labels are secret, so the validation images are the test set, as in all papers.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from math import prod
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from hpcfl.data.archives import provide_folder
from hpcfl.data.base import Dataset
from hpcfl.data.colour import Coloured
from hpcfl.data.download import PublishedFile, Track
from hpcfl.data.encoded_images import DAMAGED, pixels, reason, require_pillow
from hpcfl.data.hdf5 import attribute, encoded, opened
from hpcfl.data.image_listing import (
    Fault,
    Listing,
    Photo,
    present_origin,
    read_image,
    report_faults,
)
from hpcfl.data.images import IMAGENET_MEAN, IMAGENET_STD, CropFlipNormalize
from hpcfl.data.packed import checked_labels, mapped
from hpcfl.data.prepared_file import (
    changed_keys,
    new_prepared_file,
    origin_and_size,
    origin_of,
    prepare_command,
    require_same_sources,
)
from hpcfl.errors import DataError
from hpcfl.io.files import read_error
from hpcfl.io.regular import read_text
from hpcfl.types import Count, Examples, PathText

FOLDER = "tiny-imagenet-200"
ARCHIVE = PublishedFile(
    f"{FOLDER}.zip",
    f"http://cs231n.stanford.edu/{FOLDER}.zip",
    "90528d7ca1a48142e341f4ef8d21d0de",
)
_MEMBERS = re.compile(
    r"train/n\d+/images/n\d+_\d+\.JPEG|val/images/val_\d+\.JPEG|val/val_annotations\.txt"
)
TRAIN, TEST, CLASSES = 100_000, 10_000, 200
FORMAT = 3  # 2 kept texts where HDF5 has no checksum
_BLOCK = 1024  # images that are decoded at a time


@dataclass(frozen=True, kw_only=True)
class TinyImageNet(Coloured):
    """Tiny ImageNet, packed as uint8 [n, 64, 64, 3] and mapped into memory; 64 may be any size."""

    names_clients: ClassVar[bool | None] = False
    maps_files: ClassVar[bool] = True

    root: PathText = "data"
    """The folder that holds tiny-imagenet-200/, or its train/ and val/, and the packed file."""
    augment: bool = True
    """Crop training images from a padding of 4 and flip them, per image."""
    subset: bool = False
    """Allow other numbers of images than the published ones."""
    workers: Count = 4
    """Threads of ``data prepare`` that decode images."""

    @property
    def packed(self) -> Path:
        """The packed file."""
        return Path(self.root) / "tiny_imagenet.h5"

    def prepare(self, track: Track) -> Path:
        """Decode all images into one file; fetch the archive if the images are missing."""
        root, path = Path(self.root), self.packed
        missing = not path.exists()
        if missing or any((folder / "train").is_dir() for folder in (root / FOLDER, root)):
            require_pillow()
            folder = _official(root, track)
            names, train, test = _listed(folder)
            self._check(len(names), len(train), len(test))
            splits = {"train": train, "test": test}
            origin = present_origin(Listing([("", train)], test, len(names)), folder)
            if missing:
                _pack(path, folder, names, splits, origin, self.workers, track)
            else:
                require_same_sources(path, origin_of(path), origin)
        self.load(0)
        return path

    def load(self, seed: int) -> Dataset:
        """Map the packed file."""
        path = self.packed
        if not path.exists():
            raise DataError(
                f"{path}: not found; make it once by: "
                f"{prepare_command('tiny_imagenet', self.root, changed_keys(self, ['subset']))}"
            )
        with opened(path) as file:
            if attribute(file, "format") != FORMAT:
                raise DataError(f"{path}: of another format: remove it and prepare it again")
            classes = int(attribute(file, "classes"))
            train, test = (_examples(path, file, name, classes) for name in ("train", "test"))
        self._check(classes, len(train.labels), len(test.labels))
        transform = self._transform()
        return Dataset(
            train=train,
            test=test,
            natural=None,
            classes=classes,
            loss="cross_entropy",
            transform=transform,
            personal=self.personal(transform, seed),
            mapped=True,
            origin=origin_and_size(path),
        )

    def _transform(self) -> CropFlipNormalize:
        return CropFlipNormalize(mean=IMAGENET_MEAN, std=IMAGENET_STD, augment=self.augment)

    def _check(self, classes: int, train: int, test: int) -> None:
        if not self.subset and (classes, train, test) != (CLASSES, TRAIN, TEST):
            raise DataError(
                f"{self.root}: {classes} classes, {train} training and {test} validation images, "
                f"expected {CLASSES}, {TRAIN} and {TEST}; set subset: true if this is intended"
            )


def _official(root: Path, track: Track) -> Path:
    """The folder with train/ and val/."""
    for folder in (root / FOLDER, root):
        if (folder / "train").is_dir():
            return folder
    provide_folder(root, ARCHIVE, FOLDER, _MEMBERS, track)
    return root / FOLDER


def _listed(folder: Path) -> tuple[list[str], list[Photo], list[Photo]]:
    """Classes in the order of their WordNet ids, training and validation images."""
    names = sorted(path.name for path in (folder / "train").iterdir() if path.is_dir())
    classes = {name: label for label, name in enumerate(names)}
    train: list[Photo] = []
    for name, label in classes.items():
        own = folder / "train" / name
        train += _photos(folder, own / "images" if (own / "images").is_dir() else own, label)
    annotations = folder / "val" / "val_annotations.txt"
    if annotations.is_file():
        test = list(_annotated(annotations, classes))
    else:  # sorted into folders of classes, a common change after unpacking
        test = [p for n, c in classes.items() for p in _photos(folder, folder / "val" / n, c)]
    return names, train, test


def _photos(root: Path, folder: Path, label: int) -> Iterator[Photo]:
    """The images of a folder, by name."""
    for path in sorted(folder.glob("*.JPEG")):
        yield Photo(path.relative_to(root).as_posix(), label)


def _annotated(path: Path, classes: dict[str, int]) -> Iterator[Photo]:
    """The validation images: a line holds name, class and a box, separated by tabs."""
    try:
        lines = read_text(path).splitlines()
    except (OSError, UnicodeDecodeError) as error:
        message = f"{path}: not a readable list of images: {error}"
        raise read_error(error, message, DataError) from error
    for number, line in enumerate(lines, 1):
        name, _, rest = line.partition("\t")
        wnid = rest.partition("\t")[0]
        if "/" in name:
            raise DataError(f"{path}:{number}: {name!r} is not the name of an image")
        if wnid not in classes:
            raise DataError(f"{path}:{number}: class {wnid!r} has no folder in train")
        yield Photo(f"val/images/{name}", classes[wnid], f"{path.name}:{number}")


def _pack(
    path: Path,
    folder: Path,
    names: Sequence[str],
    splits: dict[str, list[Photo]],
    origin: str,
    workers: int,
    track: Track,
) -> None:
    """Decode all images into ``path``; if some are at fault, list them and write nothing."""
    every = [photo for photos in splits.values() for photo in photos]
    faults: list[Fault] = []
    with ThreadPoolExecutor(workers) as threads:
        shape = _first_shape(folder, every)
        room = len(every) * (prod(shape) + 8) + encoded(names).nbytes
        about = {"format": FORMAT, "classes": len(names)}
        recorded = np.bytes_(origin.encode())
        with new_prepared_file(path, room, origin=recorded, **about) as file:
            file["wnids"] = encoded(names)
            for split, photos in splits.items():
                if not photos:
                    raise DataError(f"{folder}: found no image to {split} on")
                faults += _decode(file, folder, split, photos, threads.map, track, shape)
            # Before the end of the block, which would give the file its name.
            report_faults(path, faults, len(every))


def _first_shape(folder: Path, photos: Iterable[Photo]) -> tuple[int, ...]:
    """The shape [height, width, 3] of the first image that can be read; (0,) if none can."""
    found = (_decoded(folder, photo) for photo in photos)
    return next((image.shape for image in found if not isinstance(image, Fault)), (0,))


def _decode(
    file: Any,
    folder: Path,
    split: str,
    photos: Sequence[Photo],
    map_: Callable[..., Iterable[NDArray[np.uint8] | Fault]],
    track: Track,
    shape: tuple[int, ...],
) -> list[Fault]:
    """Write the images of a split, all of ``shape``; return the images at fault."""
    faults = []
    images = file.create_dataset(f"{split}/images", (len(photos), *shape), np.uint8)
    starts = range(0, len(photos), _BLOCK)
    for start in track(starts, f"packing {split}", len(starts)):
        block = photos[start : start + _BLOCK]
        for row, found in enumerate(map_(partial(_decoded, folder), block), start):
            if isinstance(found, Fault):
                faults.append(found)
            elif found.shape != shape:
                why = f"its size is {found.shape[:2]}, that of others {shape[:2]}"
                faults.append(Fault(photos[row], why))
            else:
                images[row] = found
    file[f"{split}/labels"] = np.array([photo.label for photo in photos], dtype=np.int64)
    return faults


def _decoded(folder: Path, photo: Photo) -> NDArray[np.uint8] | Fault:
    try:
        return pixels(read_image(folder / photo.path))
    except DAMAGED as error:
        return Fault(photo, reason(error))


def _examples(path: Path, file: Any, split: str, classes: int) -> Examples:
    images = mapped(path, file, f"{split}/images", np.uint8, dimensions=4)
    labels = mapped(path, file, f"{split}/labels", np.int64)
    if len(images) != len(labels):
        raise DataError(f"{path}: {split}: images of shape {images.shape}, {len(labels)} labels")
    return Examples(
        torch.from_numpy(images), checked_labels(path, f"{split}/labels", labels, classes)
    )
