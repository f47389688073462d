"""Pack encoded images into one HDF5 file, by several processes.

The list of images is cut into chunks.  A process shrinks the images of a chunk and writes them to a
file of their own in the folder NAME.h5.part, so that a call that was interrupted resumes with the
chunks that are there, unless an image has changed since.  The chunks are then joined in the order
of the list, whichever process made them.
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

import numpy as np
import PIL
from numpy.typing import NDArray

from hpcfl.data.download import Track
from hpcfl.data.encoded_images import DAMAGED, QUALITY, reason, shrunk
from hpcfl.data.hdf5 import encoded
from hpcfl.data.image_listing import Fault, ListedFiles, Listing, Photo, read_image, report_faults
from hpcfl.data.packed import FORMAT
from hpcfl.data.prepared_file import (
    Stamp,
    commit,
    new_image_file,
    preparation_errors,
    source_fingerprint,
)
from hpcfl.errors import DataError
from hpcfl.io.regular import open_binary, open_write

CHUNK = 512  # images; what a process loses at most when it is killed


class Chunk(NamedTuple):
    """Consecutive images of a split, which one process shrinks."""

    photos: Sequence[Photo]
    side: int
    root: Path
    path: Path
    """The file of the shrunk images."""

    @classmethod
    def of(
        cls, photos: Sequence[Photo], stamps: Mapping[str, Stamp], side: int, target: Path
    ) -> "Chunk":
        """A chunk of the packed file ``target``.

        The name of its own file changes with everything that its bytes follow from, so that a
        file that is there can be used.
        """
        about = [(photo.path, stamps[photo.path]) for photo in photos]
        name = source_fingerprint([FORMAT, side, QUALITY, PIL.__version__, about])
        return cls(photos, side, target.parent, _part(target) / f"{name}.npz")


def pack(
    path: Path, listing: Listing, *, side: int, workers: int, allowed: int, track: Track
) -> None:
    """Write the packed file ``path``.

    Images that are missing or damaged are listed in ``path`` with the suffix ``.missing.txt``.

    Args:
        path: the HDF5 file, in the root of the images.
        listing: the images.
        side: pixels of the shorter side that larger images are scaled to.
        workers: processes.
        allowed: number of images that may be missing or damaged; they are left out.
        track: shows progress.

    Raises:
        DataError: more images are; or the file cannot be written.
        DiskError: the disk is full or fails.
    """
    part, train = _part(path), listing.train
    with preparation_errors(path):
        part.mkdir(parents=True, exist_ok=True)
        files = ListedFiles.of(listing, path.parent)
        splits = {
            split: [
                Chunk.of(photos[k : k + CHUNK], files.stamps, side, path)
                for k in range(0, len(photos), CHUNK)
            ]
            for split, photos in (("train", train), ("test", listing.test))
        }
        chunks = [chunk for each in splits.values() for chunk in each]
        with _mapping(workers) as map_:
            done = track(map_(_make, chunks), f"packing {path.stem}", len(chunks))
            faults = [fault for found in done for fault in found]
        report_faults(path, faults, len(train) + len(listing.test), allowed)
        whole = part / "whole.h5"
        about = {"format": FORMAT, "classes": listing.classes, "side": side}
        room = _room(listing, chunks)
        with new_image_file(path, whole, files.origin, room, **about) as file:
            for split, its in splits.items():
                if its:
                    _join(file.create_group(split), its)
            _name_clients(file, listing, {fault.photo for fault in faults})
        rmtree(part)


def _part(path: Path) -> Path:
    """The folder of the chunks."""
    return path.with_name(path.name + ".part")


@contextmanager
def _mapping(workers: int) -> Iterator[Callable[..., Any]]:
    """``map`` over so many processes; the results come in order."""
    if workers == 1:
        yield map
        return
    # A fork of this process would be unsafe, as torch may have threads; the fork server has none.
    context = get_context("forkserver")
    context.set_forkserver_preload([__name__])
    pool = ProcessPoolExecutor(workers, context, _follow_parent)
    try:
        yield pool.map
    except BrokenProcessPool as error:
        raise DataError(
            f"one of {workers} processes was killed, for lack of memory perhaps; the same call "
            "resumes where it ended"
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


def _follow_parent() -> None:
    """End this process when its parent ends, even by a kill, and not by Ctrl-C before that.

    Otherwise it would write chunks while the next call writes its own.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = parent_process()
    if parent is not None:
        Thread(target=_end_after, args=(parent.sentinel,), daemon=True).start()


def _end_after(sentinel: int) -> None:
    connection.wait([sentinel])
    os._exit(1)


def _make(chunk: Chunk) -> list[Fault]:
    """Write the file of a chunk, unless it is there; return the images that it leaves out."""
    if chunk.path.exists():
        return []
    contents, faults = [], []
    for photo in chunk.photos:
        content = b""
        try:
            content = shrunk(read_image(chunk.root / photo.path), chunk.side)
        except DAMAGED as error:
            faults.append(Fault(photo, reason(error)))
        contents.append(content)
    # Under another name where images are at fault, so that the next call tries them again.
    path = chunk.path.with_suffix(".faulty.npz") if faults else chunk.path
    new = path.with_suffix(f".{os.getpid()}")
    with open_write(new) as file:
        sizes = np.array([len(content) for content in contents])
        np.savez(file, bytes=np.frombuffer(b"".join(contents), np.uint8), sizes=sizes)
    commit(new, path)
    return faults


def _file(chunk: Chunk) -> Path:
    """The file of a chunk: under another name where images were at fault."""
    return chunk.path if chunk.path.exists() else chunk.path.with_suffix(".faulty.npz")


def _read(chunk: Chunk, name: str) -> NDArray[Any]:
    """One array of a chunk's file."""
    with open_binary(_file(chunk)) as content, np.load(content) as file:
        array: NDArray[Any] = file[name]
    return array


def _room(listing: Listing, chunks: Sequence[Chunk]) -> int:
    """Bytes of all arrays of the packed file, at most: images, names, offsets and labels."""
    photos = [photo for chunk in chunks for photo in chunk.photos]
    longest = max((len(os.fsencode(photo.path)) for photo in photos), default=0)
    longest_client = max((len(os.fsencode(name)) for name, _ in listing.clients), default=0)
    return (
        sum(_file(chunk).stat().st_size for chunk in chunks)
        + len(photos) * (longest + 24)
        + len(listing.clients) * (longest_client + 8)
    )


def _join(group: Any, chunks: Sequence[Chunk]) -> None:
    """Write a split's group without its clients; images without bytes are left out."""
    sizes = np.concatenate([_read(chunk, "sizes") for chunk in chunks])
    photos = [photo for chunk in chunks for photo in chunk.photos]
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
    for chunk in chunks:
        own = _read(chunk, "bytes")
        content[begin : begin + len(own)] = own
        begin += len(own)


def _name_clients(file: Any, listing: Listing, lost: set[Photo]) -> None:
    """Write the rows and names of the clients; a client without any image is left out."""
    counts = {name: sum(photo not in lost for photo in photos) for name, photos in listing.clients}
    kept = [name for name, count in counts.items() if count]
    file["train/clients"] = np.cumsum([0, *(counts[name] for name in kept)])
    file["train/client_names"] = encoded(kept)
    if listing.owners:
        numbers = {name: number for number, name in enumerate(kept)}
        whose = zip(listing.owners, listing.test, strict=True)
        owners = [numbers.get(name, -1) for name, photo in whose if photo not in lost]
        file["test/clients"] = np.array(owners, dtype=np.int64)
