"""Pack image files into one HDF5 file, by several processes.

Every process shrinks pieces of the list and leaves each in a file of its own in NAME.h5.part, so a
call that was interrupted goes on with the pieces that are there, unless an image has changed.  They
are joined in the list's order, whoever made them, and the whole takes its name last.
"""

import os
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import connection, get_context, parent_process
from pathlib import Path
from shutil import rmtree
from threading import Thread
from typing import Any, NamedTuple

import h5py
import numpy as np
import PIL
from numpy.typing import NDArray

from hpcfl.data.download import Track
from hpcfl.data.encoded_images import DAMAGED, QUALITY, reason, shrunk
from hpcfl.data.hdf5 import attribute, encoded, opened, strings
from hpcfl.data.packed import FORMAT
from hpcfl.data.source_fingerprint import Stamp, same, source_fingerprint, stamp
from hpcfl.errors import DataError, DiskError, disk_errors, file_error

PIECE = 512  # images


class Photo(NamedTuple):
    """An image as it is listed."""

    path: str
    """Below the data set's root."""
    label: int
    where: str = ""
    """File and line of the list, if there is one."""


class Listing(NamedTuple):
    """All images of a data set."""

    clients: Sequence[tuple[str, Sequence[Photo]]]
    """Names and images of the clients, in the order they are to have."""
    test: Sequence[Photo]
    classes: int

    @property
    def train(self) -> list[Photo]:
        """The training images of all clients."""
        return [photo for _, photos in self.clients for photo in photos]


class Origin(NamedTuple):
    """The files that a listing names, as they are now."""

    stamps: dict[str, Stamp]
    """Of each image, by its path."""
    digest: str
    """Of the listing and the stamps."""

    @classmethod
    def of(cls, listing: Listing, root: Path) -> "Origin":
        """Look at every file."""
        train = [(name, [photo[:2] for photo in photos]) for name, photos in listing.clients]
        paths = [photo.path for photo in (*listing.train, *listing.test)]
        found = {path: stamp(root / path) for path in paths}
        about = [train, [photo[:2] for photo in listing.test], listing.classes, [*found.values()]]
        return cls(found, source_fingerprint(about))


class Piece(NamedTuple):
    """Consecutive images of a split: what a process shrinks at a time."""

    photos: Sequence[Photo]
    side: int
    root: Path
    path: Path
    """The file for them."""

    @classmethod
    def of(
        cls, photos: Sequence[Photo], stamps: Mapping[str, Stamp], side: int, target: Path
    ) -> "Piece":
        """Its file's name, below ``target``'s .part, changes with whatever determines the bytes."""
        about = [(photo.path, stamps[photo.path]) for photo in photos]
        name = source_fingerprint([FORMAT, side, QUALITY, PIL.__version__, about])
        return cls(photos, side, target.parent, _part(target) / f"{name}.npz")


class Fault(NamedTuple):
    """An image that is not there, or cannot be decoded."""

    photo: Photo
    why: str

    def __str__(self) -> str:
        return ": ".join(filter(None, (self.photo.where, self.photo.path, self.why)))


def pack(
    path: Path, listing: Listing, *, side: int, workers: int, allowed: int, track: Track
) -> None:
    """Write ``path``, or nothing.

    Images that are missing or damaged are listed in a file beside it.

    Args:
        path: the HDF5 file, in the root of the images.
        listing: the images.
        side: pixels of the shorter side that larger images are scaled to.
        workers: processes.
        allowed: how many images may be missing or damaged; they are left out.
        track: shows progress.

    Raises:
        DataError: more are; or the file cannot be written.
        DiskError: the disk is full or fails.
    """
    part, train = _part(path), listing.train
    with writable(path):
        part.mkdir(parents=True, exist_ok=True)
        origin = Origin.of(listing, path.parent)
        splits = {
            split: [
                Piece.of(photos[k : k + PIECE], origin.stamps, side, path)
                for k in range(0, len(photos), PIECE)
            ]
            for split, photos in (("train", train), ("test", listing.test))
        }
        pieces = [piece for each in splits.values() for piece in each]
        with _mapping(workers) as map_:
            done = track(map_(_make, pieces), f"packing {path.stem}", len(pieces))
            faults = [fault for found in done for fault in found]
        report(path, faults, len(train) + len(listing.test), allowed)
        whole = part / "whole.h5"
        with h5py.File(whole, "w", libver=("v108", "v108"), locking=False) as file:
            mark = np.bytes_(origin.digest.encode())
            file.attrs.update(format=FORMAT, classes=listing.classes, side=side, origin=mark)
            for split, its in splits.items():
                if its:
                    _join(file.create_group(split), its)
            _name_clients(file, listing, {fault.photo for fault in faults})
        commit(whole, path)
        rmtree(part)


def sources_remain(path: Path) -> bool:
    """Whether any of the images that a packed file was made from still lies where it was."""
    with opened(path) as file:
        names = strings(path, file["train"], "names")[()]
    return any((path.parent / os.fsdecode(name)).exists() for name in names)


def check_origin(path: Path, listing: Listing) -> None:
    """See whether a packed file was made from what is listed.

    Raises:
        DataError: it was not.
    """
    with opened(path) as file:
        same(path, attribute(file, "origin"), Origin.of(listing, path.parent).digest.encode())


def _part(path: Path) -> Path:
    """The folder of what is not finished yet."""
    return path.with_name(path.name + ".part")


def report(path: Path, faults: Sequence[Fault], images: int, allowed: int | None = None) -> None:
    """List faults in a file beside ``path``.

    Args:
        path: what is being made.
        faults: those found.
        images: how many there are in all.
        allowed: how many faults there may be; None where there is no choice but none.

    Raises:
        DataError: there are more.
    """
    listed = path.with_suffix(".missing.txt")
    listed.unlink(missing_ok=True)
    if faults:
        listed.write_text("".join(f"{fault}\n" for fault in faults), "utf-8")
    if len(faults) > (allowed or 0):
        way_out = "" if allowed is None else f", or leave them out: allow_missing={len(faults)}"
        raise DataError(
            f"{path}: {len(faults)} of {images} images are missing or damaged; {listed} lists "
            f"them; the first is {faults[0]}; put them right{way_out}"
        )


@contextmanager
def writable(path: Path) -> Iterator[None]:
    """What the system refuses inside the block, as an error about ``path``.

    Raises:
        DataError: the block raised OSError, and the disk is sound.
        DiskError: the disk is full or fails.
    """
    try:
        yield
    except OSError as error:
        raise file_error(error, f"{path}: cannot be made: {error}", DataError) from error
    except RuntimeError as error:  # which h5py's close raises where the disk is full
        if "errno = " not in str(error):  # HDF5's text of what the system refused
            raise
        raise DiskError(f"{path}: cannot be made: {' '.join(str(error).split())}") from error


def commit(part: Path, path: Path) -> None:
    """Give a file that was closed its name, once it is on the disk."""
    with part.open("rb") as file:
        os.fsync(file.fileno())
    part.replace(path)


@contextmanager
def _mapping(workers: int) -> Iterator[Callable[..., Any]]:
    """``map``, by so many processes; the results come in order."""
    if workers == 1:
        yield map
        return
    # Not forked from here, where torch may have threads, but from a process that only imports.
    context = get_context("forkserver")
    context.set_forkserver_preload([__name__])
    pool = ProcessPoolExecutor(workers, context, _follow_parent)
    try:
        yield pool.map
    except BrokenProcessPool as error:
        raise DataError(
            f"one of {workers} processes was killed, for lack of memory perhaps; the same call "
            "goes on where it ended"
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


def _follow_parent() -> None:
    """Let a process end with the one that started it, however that ends, and only with it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = parent_process()
    if parent is not None:
        Thread(target=_end_after, args=(parent.sentinel,), daemon=True).start()


def _end_after(sentinel: int) -> None:
    connection.wait([sentinel])
    os._exit(1)


def read_image(path: Path) -> bytes:
    """The bytes of an image that is to be packed.

    Raises:
        OSError: there is no such file, or it may not be read; which is a fault of one image.
        DiskError: the disk fails; other images would fail, too, and none of them is damaged.
    """
    with disk_errors(path):
        return path.read_bytes()


def _make(piece: Piece) -> list[Fault]:
    """Write the file of a piece, unless it is there and whole; what it had to leave out."""
    if piece.path.exists():
        return []
    contents, faults = [], []
    for photo in piece.photos:
        content = b""
        try:
            content = shrunk(read_image(piece.root / photo.path), piece.side)
        except DAMAGED as error:
            faults.append(Fault(photo, reason(error)))
        contents.append(content)
    # One with faults is made anew by the next call: they may have been put right.
    path = piece.path.with_suffix(".faulty.npz") if faults else piece.path
    new = path.with_suffix(f".{os.getpid()}")
    with new.open("wb") as file:
        sizes = np.array([len(content) for content in contents])
        np.savez(file, bytes=np.frombuffer(b"".join(contents), np.uint8), sizes=sizes)
    commit(new, path)
    return faults


def _read(piece: Piece, name: str) -> NDArray[Any]:
    """One array of its file."""
    faulty = piece.path.with_suffix(".faulty.npz")
    with np.load(piece.path if piece.path.exists() else faulty) as file:
        array: NDArray[Any] = file[name]
    return array


def _join(group: Any, pieces: Sequence[Piece]) -> None:
    """Write a split's group, all but its clients; an image without bytes is left out."""
    sizes = np.concatenate([_read(piece, "sizes") for piece in pieces])
    photos = [photo for piece in pieces for photo in piece.photos]
    present = np.flatnonzero(sizes)
    if not len(present):
        raise DataError(f"{group.file.filename}: no image of {group.name} is left")
    offsets = np.concatenate([[0], np.cumsum(sizes[present])])
    group["offsets"] = offsets
    group["labels"] = np.array([photos[k].label for k in present], dtype=np.int64)
    group["names"] = encoded(photos[k].path for k in present)
    group.attrs["missing"] = len(photos) - len(present)
    content = group.create_dataset("bytes", (offsets[-1],), np.uint8)
    begin = 0
    for piece in pieces:
        own = _read(piece, "bytes")
        content[begin : begin + len(own)] = own
        begin += len(own)


def _name_clients(file: Any, listing: Listing, lost: set[Photo]) -> None:
    """Write who holds which rows; a client that lost every image is left out."""
    counts = {name: sum(photo not in lost for photo in photos) for name, photos in listing.clients}
    kept = [name for name, count in counts.items() if count]
    file["train/clients"] = np.cumsum([0, *(counts[name] for name in kept)])
    file["train/client_names"] = encoded(kept)
